//! Known faults of virtual switches, with the whole switch: rows of the threat table that are
//! decided in the data path. Rows of the vhost-user session alone have their tests in `virtio`.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ipc::switching::PortPhase;
use port::DropReason;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FallocateFlags, fallocate};
use testkit::driver::{
    DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Layout, PackedDesc, Piece, RawDesc, Shape, SplitDesc,
};
use testkit::features::{ALL_OFFLOADS, LOG_ALL, MRG_RXBUF, VERSION_1};
use testkit::frontend::{DirtyFile, FrontEnd};
use testkit::guest_ram::{GuestRam, RamRegion, RegionSpec};
use testkit::net::{NetHeader, RxBuffers};
use testkit::packets::{Flow, numbered_payload, tcp_super, udp, udp_partial};
use testkit::stop::Stop;
use testkit::{FakeGuest, GuestConfig};

use crate::host::{Host, LIMIT, wait_for};
use crate::traffic::{disconnect, drain, numbered, one_way, stray, talk};

const MIB: u64 = 1 << 20;

fn config(packed: bool) -> GuestConfig {
    let config = GuestConfig::default();
    if packed { config.packed() } else { config }
}

/// Puts a frame with its header into guest memory and sends it in these pieces.
pub(crate) fn send_pieces(guest: &mut FakeGuest, pieces: &[Piece], shape: Shape, bytes: &[u8]) {
    let ram = guest.ram().clone();
    let mut rest = bytes;
    for piece in pieces {
        let (now, later) = rest.split_at(piece.len as usize);
        ram.write(piece.gpa, now);
        rest = later;
    }
    let tx = &mut guest.pairs[0].nic.tx;
    tx.poll().expect("a sound ring");
    tx.add(pieces, &[], shape, 0).expect("room");
    tx.publish();
    guest.pairs[0].tx_kick.signal();
}

/// A frame of guest 1 to guest 2 behind a plain virtio header.
fn with_header(frame: &[u8]) -> Vec<u8> {
    [&NetHeader::default().to_bytes(), frame].concat()
}

#[test]
fn cve_2018_1059_a_buffer_is_mapped_and_contiguous() {
    let mut host = Host::with_ports([1, 2]);
    for packed in [false, true] {
        let regions = vec![
            RegionSpec::at(0, 4 * MIB),
            RegionSpec::at(4 * MIB, 8 * MIB),
            RegionSpec::at(1024 * MIB, 8 * MIB),
        ];
        let mut a = host.guest(
            1,
            GuestConfig {
                regions: Some(regions),
                ..config(packed)
            },
        );
        let mut b = host.guest(2, config(false));
        // From one region into the next is one buffer, though two mappings.
        let frame = numbered(1, 2, 1, 1000);
        let bytes = with_header(&frame);
        let across = a.ram().straddle(0, bytes.len() as u64);
        let piece = Piece::new(across, bytes.len() as u32);
        send_pieces(&mut a, &[piece], Shape::Direct, &bytes);
        assert_eq!(
            b.recv(LIMIT).expect("correct").expect("a frame").frame,
            frame
        );
        // From a region into nothing is none.
        let at = 12 * MIB - 100;
        let piece = RawDesc {
            gpa: at,
            len: 200,
            flags: 0,
        };
        a.pairs[0].nic.tx.add_raw(&[piece], 0).expect("room");
        a.pairs[0].nic.tx.publish();
        a.pairs[0].tx_kick.signal();
        assert!(host.wait_fault(1, 1).contains("not mapped"));
        assert!(b.recv_all().expect("correct").is_empty());
        host.gone((a, b), 2);
    }
}

#[test]
fn cve_2020_10722_a_dirty_log_that_ends_before_guest_memory_is_refused() {
    let mut host = Host::with_ports([1, 2, 3]);
    for packed in [false, true] {
        let mut a = host.guest(1, config(packed));
        let mut b = host.guest(2, config(packed));
        let mut c = host.guest(3, config(packed));
        talk(&mut a, &mut b, 20);
        let log = DirtyFile::new(64 << 10, 0).expect("a file");
        let features = a.features() | LOG_ALL;
        let front = a.front().expect("a session");
        front.set_log_base(&log).expect("logging is not on yet");
        let refused = front.set_features(features);
        assert!(refused.is_err(), "nothing would be logged behind its end");
        // It continues as before, and logs nothing.
        talk(&mut a, &mut b, 20);
        assert!(log.take().is_empty());
        talk(&mut c, &mut b, 20);
        host.gone((a, b, c), 3);
    }
}

#[test]
fn cve_2019_14835_nothing_is_written_behind_the_dirty_log() {
    let mut host = Host::with_ports([1, 2, 3]);
    for packed in [false, true] {
        let hot_plug = GuestConfig {
            memory_slots: true,
            ..config(packed)
        };
        let mut a = host.guest(1, hot_plug);
        let mut b = host.guest(2, config(packed));
        let mut c = host.guest(3, config(packed));
        talk(&mut a, &mut b, 20);
        let regions = a.ram().regions().iter().map(|region| region.spec());
        let end = regions.map(|spec| spec.gpa + spec.size).max();
        let end = end.expect("memory");
        let log = DirtyFile::new(end, 0).expect("a file");
        let whole = rustix::fs::fstat(log.file()).expect("its length").st_size as u64;
        // What lies behind the log, in its file, is not the log.
        rustix::fs::ftruncate(log.file(), whole + 4096).expect("longer");
        let features = a.features() | LOG_ALL;
        let front = a.front().expect("a session");
        front.set_log_base(&log).expect("a log");
        front.set_features(features).expect("all of it is covered");
        talk(&mut b, &mut a, 20);
        assert!(!log.take().is_empty(), "what was received is logged");
        // Memory that the log does not cover cannot be added, and is not written.
        assert!(a.plug(RegionSpec::at(end, MIB)).is_err());
        talk(&mut b, &mut a, 20);
        let mut behind = [0; 4096];
        rustix::io::pread(log.file(), &mut behind, whole).expect("readable");
        assert_eq!(behind, [0; 4096]);
        // The log itself is truncated during writes.
        rustix::fs::ftruncate(log.file(), 0).expect("cut off");
        b.send(&stray(2, 1, 1000)).expect("room");
        let state = host.wait_phase(1, PortPhase::Waiting);
        let reason = state.reason.expect("a reason");
        assert!(reason.contains("memory was taken away"), "{reason}");
        talk(&mut c, &mut b, 20);
        host.gone((a, b, c), 3);
    }
}

#[test]
fn cve_2022_2132_a_header_in_twelve_pieces_is_a_header() {
    let host = Host::with_ports([1, 2]);
    for packed in [false, true] {
        let mut a = host.guest(1, config(packed));
        let mut b = host.guest(2, config(packed));
        for shape in [Shape::Direct, Shape::Indirect, Shape::Mixed(5)] {
            let frame = numbered(1, 2, 3, 500);
            let bytes = with_header(&frame);
            let at = a.ram().alloc(4096, 64);
            let mut pieces: Vec<_> = (0..14).map(|n| Piece::new(at + 3 * n, 1)).collect();
            pieces.push(Piece::new(at + 100, bytes.len() as u32 - 14));
            send_pieces(&mut a, &pieces, shape, &bytes);
            assert_eq!(
                b.recv(LIMIT).expect("correct").expect("a frame").frame,
                frame
            );
        }
        // Twelve bytes are a header without a frame: a runt, and no reason to stop.
        let at = a.ram().alloc(64, 64);
        let runts = host.counts(1).dropped(DropReason::Runt);
        send_pieces(&mut a, &[Piece::new(at, 12)], Shape::Direct, &[0; 12]);
        wait_for("a runt", || {
            host.counts(1).dropped(DropReason::Runt) == runts + 1
        });
        a.pairs[0].drain().expect("buffers come back");
        one_way(&mut a, &mut b, 20);
        disconnect([a, b]);
    }
}

#[test]
fn cve_2024_11614_a_checksum_beyond_the_packet_is_a_drop() {
    let host = Host::with_ports([1, 2]);
    let mut a = host.guest(1, GuestConfig::default());
    let mut b = host.guest(2, GuestConfig::default());
    let (frame, header) = udp_partial(&Flow::v4(1, 2), &[7; 58]);
    let lies = [
        (34, 65),
        (99, 0),
        (u16::MAX, 0),
        (34, u16::MAX),
        (u16::MAX, u16::MAX),
        (0, 6),
        (13, 0),
    ];
    for (csum_start, csum_offset) in lies {
        let lie = NetHeader {
            csum_start,
            csum_offset,
            ..header
        };
        a.send_on(0, &frame, &lie).expect("room");
    }
    let (large, gso) = tcp_super(&Flow::v4(1, 2), 1, &[1; 9000], 1448);
    let lies = [
        NetHeader { gso_size: 0, ..gso },
        NetHeader { gso_size: 1, ..gso },
        NetHeader {
            csum_start: 33,
            ..gso
        },
        NetHeader {
            csum_offset: 6,
            ..gso
        },
        NetHeader { gso_type: 4, ..gso },
        NetHeader { gso_type: 5, ..gso },
    ];
    for lie in lies {
        a.send_on(0, &large, &lie).expect("room");
    }
    let unknown = [
        NetHeader { gso_type: 3, ..gso },
        NetHeader { gso_type: 7, ..gso },
        NetHeader {
            gso_type: 0x80,
            ..gso
        },
        NetHeader { flags: 0, ..gso },
    ];
    for lie in unknown {
        a.send_on(0, &large, &lie).expect("room");
    }
    a.pairs[0].drain().expect("buffers come back");
    assert_eq!(host.counts(1).dropped(DropReason::BadOffload), 12);
    // Segments of a byte.
    assert_eq!(host.counts(1).dropped(DropReason::TooManySegments), 1);
    assert_eq!(host.counts(1).dropped(DropReason::BadHeader), 4);
    assert!(b.recv_all().expect("correct").is_empty());
    one_way(&mut a, &mut b, 20);
}

/// The first fix of the CVE checked the header in guest memory and then fetched it again: here it
/// changes all the time.
#[test]
fn cve_2024_11614_a_header_that_changes_while_it_is_read() {
    let host = Host::with_ports([1, 2]);
    for packed in [false, true] {
        let mut a = host.guest(1, config(packed));
        // For this guest every sum is completed.
        let mut b = host.guest(2, GuestConfig::default().without(ALL_OFFLOADS));
        talk(&mut b, &mut a, 1);
        let payload = [7; 300];
        let (partial, header) = udp_partial(&Flow::v4(1, 2), &payload);
        let whole = udp(&Flow::v4(1, 2), &payload);
        let bytes = [&header.to_bytes(), &partial[..]].concat();
        let ram = a.ram().clone();
        let at = ram.alloc(4096, 64);
        ram.write(at, &bytes);
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, pokes) = (Arc::clone(&stop), ram.clone());
        let good = u32::from(header.csum_start) | u32::from(header.csum_offset) << 16;
        let thread = std::thread::spawn(move || {
            while !seen.load(Relaxed) {
                // Start and offset of the sum: within the packet, far behind it, at its very end.
                let end = bytes.len() as u32 - 12;
                for lie in [u32::MAX, good, end - 1, 0xffff << 16 | 34, good, 0xfff0] {
                    pokes.store_u16(at + 6, lie as u16);
                    pokes.store_u16(at + 8, (lie >> 16) as u16);
                }
            }
        });
        let before = host.counts(1).dropped(DropReason::BadOffload);
        let mut delivered = 0;
        for _ in 0..400 {
            let piece = Piece::new(at, (12 + partial.len()) as u32);
            let tx = &mut a.pairs[0].nic.tx;
            tx.add(&[piece], &[], Shape::Direct, 0).expect("room");
            tx.publish();
            a.pairs[0].tx_kick.signal();
            wait_for("the buffer back", || {
                a.pairs[0].nic.tx.poll().expect("sound").is_some()
            });
            for got in b.recv_all().expect("correct") {
                assert_eq!(got.frame, whole, "another byte was changed");
                delivered += 1;
            }
        }
        stop.store(true, Relaxed);
        thread.join().expect("no panic");
        // The last buffer comes back before its result is counted.
        let dropped = || host.counts(1).dropped(DropReason::BadOffload) - before;
        wait_for("each to be delivered or dropped", || {
            delivered += b.recv_all().expect("correct").len() as u64;
            delivered + dropped() == 400
        });
        assert!(delivered > 0 && dropped() > 0, "{delivered}");
        drop((a, b));
    }
}

#[test]
fn cve_2026_86566_runt_receive_buffers_split_and_packed() {
    let mut host = Host::with_ports([1, 2, 3]);
    for merge in [MRG_RXBUF, 0] {
        for packed in [false, true] {
            for len in [1, 5, 11] {
                let config = GuestConfig {
                    queue_size: 8,
                    rx_buffers: Some(RxBuffers::Of(2048)),
                    ..config(packed).without(MRG_RXBUF ^ merge)
                };
                let mut victim = host.guest(1, config);
                let mut b = host.guest(2, GuestConfig::default());
                let mut c = host.guest(3, GuestConfig::default());
                // As the second buffer of a merged frame, or as the only one of its own.
                victim.pairs[0].nic.auto_refill = false;
                one_way(&mut b, &mut victim, 1);
                let at = victim.ram().alloc(4096, 64);
                let runt = RawDesc {
                    gpa: at,
                    len,
                    flags: DESC_WRITE,
                };
                victim.pairs[0].nic.rx.add_raw(&[runt], 0).expect("room");
                victim.pairs[0].nic.rx.publish();
                for n in 0..7 {
                    b.send(&numbered(2, 1, n, 100)).expect("room");
                }
                b.send(&numbered(2, 1, 8, 3000)).expect("room");
                assert!(host.wait_fault(1, 0).contains("too short"));
                let mut memory = [0; 64];
                victim.ram().read(at + u64::from(len), &mut memory);
                assert_eq!(memory, [0; 64], "written behind the buffer");
                talk(&mut b, &mut c, 10);
                host.gone((victim, b, c), 3);
            }
        }
    }
}

#[test]
fn cve_2026_86567_memory_that_is_taken_away_under_traffic() {
    let mut host = Host::with_ports([1, 2, 3]);
    for packed in [false, true] {
        let mut a = host.guest(1, config(packed));
        let mut b = host.guest(2, config(packed));
        let mut c = host.guest(3, config(packed));
        talk(&mut a, &mut b, 20);
        for _ in 0..100 {
            a.send(&stray(1, 2, 1000)).expect("room");
        }
        // The first region holds a's rings.
        let less = a.ram().unplugged(0);
        a.front()
            .expect("a session")
            .set_mem_table(&less)
            .expect("taken");
        a.pairs[0].tx_kick.signal();
        let state = host.state(1);
        assert!(
            state.queues.is_empty() || state.phase == PortPhase::Faulted,
            "{state:?}"
        );
        drain(&mut b);
        talk(&mut c, &mut b, 20);
        // And back again.
        let ram = a.ram().clone();
        a.front()
            .expect("a session")
            .set_mem_table(&ram)
            .expect("taken");
        a.reset().expect("a reset");
        a.wait_link().expect("a link");
        talk(&mut a, &mut b, 20);
        host.gone((a, b, c), 3);
    }
}

/// A guest that changes the length of an indirect table, and its content, while the switch reads
/// it.
#[test]
fn cve_2026_93683_an_indirect_table_that_changes_while_it_is_read() {
    let mut host = Host::with_ports([1, 2, 3]);
    let mut b = host.guest(2, config(false));
    let mut c = host.guest(3, config(true));
    for packed in [false, true] {
        let mut evil = host.guest(1, config(packed));
        // The race was hit when tables were read both as they were and as they became.
        let (mut served, mut faulted, mut rounds) = (false, false, 0);
        wait_for("both outcomes", || {
            served |= flicker(&mut evil, packed);
            // Control has to read the fault events, or sending to it fails.
            faulted |= host.state(1).phase == PortPhase::Faulted;
            evil.reset().expect("a reset");
            rounds += 1;
            served && faulted && rounds >= 20
        });
        talk(&mut b, &mut c, 50);
        evil.crash();
        host.wait_phase(1, PortPhase::Waiting);
    }
}

/// Keeps the from-guest queue busy with one indirect buffer while another thread rewrites it.
/// Returns whether any was served.
fn flicker(evil: &mut FakeGuest, packed: bool) -> bool {
    let ram = evil.ram().clone();
    let table = ram.alloc(16 * 64, 16);
    let data = ram.alloc(4096, 64);
    let entry = |len: u32, flags: u16, next: u16| {
        if packed {
            let desc = PackedDesc {
                gpa: data,
                len,
                id: 0,
                flags,
            };
            desc.to_bytes()
        } else {
            let desc = SplitDesc {
                gpa: data,
                len,
                flags,
                next,
            };
            desc.to_bytes()
        }
    };
    for n in 0..64 {
        let flags = if n < 63 { DESC_NEXT } else { 0 };
        ram.write(table + 16 * n, &entry(60, flags, n as u16 + 1));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (seen, pokes) = (Arc::clone(&stop), ram.clone());
    let thread = std::thread::spawn(move || {
        while !seen.load(Relaxed) {
            for len in [60, u32::MAX, 0, 1, 1 << 20] {
                pokes.store_u32(table + 8, len);
                pokes.store_u32(table + 16 * 40 + 8, len ^ 60);
                pokes.store_u16(table + 14, len as u16);
            }
        }
    });
    let pair = &mut evil.pairs[0];
    let tx = &mut pair.nic.tx;
    assert_eq!(tx.options().layout == Layout::Packed, packed);
    let mut served = false;
    for _ in 0..100 {
        let head = RawDesc {
            gpa: table,
            len: 16 * 64,
            flags: DESC_INDIRECT,
        };
        if tx.add_raw(&[head], 0).is_none() {
            break;
        }
        tx.publish();
        pair.tx_kick.signal();
        while tx.poll().is_ok_and(|used| used.is_some()) {
            served = true;
        }
    }
    stop.store(true, Relaxed);
    thread.join().expect("no panic");
    served
}

#[test]
fn dpdk_7cc4f260bf_the_switch_ends_under_traffic() {
    for _ in 0..5 {
        let mut host = Host::with_ports([1, 2]);
        let mut a = host.guest(1, GuestConfig::default());
        let mut b = host.guest(2, GuestConfig::default());
        talk(&mut a, &mut b, 20);
        let stop = Stop::new();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let frame = numbered(1, 2, 0, 1000);
                while !stop.is_set() {
                    // In the end the switch takes no more buffers.
                    let sent = a.pairs[0].stage(&frame, &NetHeader::default());
                    sent.expect("a correct device");
                    a.pairs[0].flush();
                }
            });
            let end = stop.at_end();
            let before = host.counts(1).from_guest.packets;
            wait_for("frames to be under way", || {
                host.counts(1).from_guest.packets > before + 100
            });
            host.stop();
            drop(end);
            sender.join().expect("no panic");
        });
        assert!(b.wait_link().is_err());
    }
}

#[test]
fn packet_bytes_that_change_while_they_are_read_are_forwarded_as_checked() {
    // The destination flickers between a neighbour and the sender itself while frames are switched:
    // each frame goes where its own snapshot says, whatever the sender's memory says later.
    let host = Host::with_ports([1, 2, 3]);
    let mut a = host.guest(1, config(false));
    let mut b = host.guest(2, config(false));
    let mut c = host.guest(3, config(true));
    talk(&mut a, &mut b, 5);
    talk(&mut a, &mut c, 5);
    let ram = a.ram().clone();
    let key = testkit::packets::Numbered { stream: 9, seq: 1 };
    let bytes = with_header(&udp(&Flow::v4(1, 2), &numbered_payload(key, 300)));
    let at = ram.alloc(4096, 64);
    ram.write(at, &bytes);
    let stop = Arc::new(AtomicBool::new(false));
    let (seen, pokes) = (Arc::clone(&stop), ram.clone());
    let thread = std::thread::spawn(move || {
        while !seen.load(Relaxed) {
            // The last byte of the destination address; a 32-bit field at an aligned address.
            for mac in [2u8, 3] {
                pokes.write(at + 12 + 5, &[mac]);
            }
        }
    });
    let (mut to_b, mut to_c) = (0, 0);
    for round in 0.. {
        // The race was hit when frames went both ways.
        if round >= 400 && to_b > 0 && to_c > 0 {
            break;
        }
        assert!(round < 100_000, "{to_b} {to_c}");
        let piece = Piece::new(at, bytes.len() as u32);
        let tx = &mut a.pairs[0].nic.tx;
        tx.add(&[piece], &[], Shape::Direct, 0).expect("room");
        tx.publish();
        a.pairs[0].tx_kick.signal();
        wait_for("the buffer back", || {
            a.pairs[0].nic.tx.poll().expect("sound").is_some()
        });
        for got in b.recv_all().expect("correct") {
            assert_eq!(
                got.frame[5], 2,
                "delivered by another address than it carries"
            );
            to_b += 1;
        }
        for got in c.recv_all().expect("correct") {
            assert_eq!(
                got.frame[5], 3,
                "delivered by another address than it carries"
            );
            to_c += 1;
        }
    }
    stop.store(true, Relaxed);
    thread.join().expect("no panic");
}

#[test]
fn a_full_call_descriptor_stops_no_other_port() {
    let host = Host::with_ports([1, 2, 3]);
    let mut a = host.guest(1, config(false));
    let mut b = host.guest(2, config(false));
    let mut c = host.guest(3, config(false));
    talk(&mut a, &mut b, 10);
    // A blocking eventfd without room for another 1.
    let full = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("room");
    b.front()
        .expect("a session")
        .set_vring_call(0, Some(full.as_fd()))
        .expect("taken");
    b.pairs[0].nic.rx.set_notifications(true);
    for n in 0..20 {
        a.send(&numbered(1, 2, n, 60)).expect("room");
    }
    talk(&mut a, &mut c, 50);
    wait_for("all frames", || host.counts(2).to_guest.packets >= 30);
}

/// An eventfd that blocks every write. The switch found it non-blocking, but the flag belongs to
/// the open file: the VMM clears it later.
fn have_block(event: &OwnedFd) {
    rustix::fs::fcntl_setfl(event, rustix::fs::OFlags::empty()).expect("a flag");
    if poll_in(event) {
        rustix::io::read(event, &mut [0; 8]).expect("a count");
    }
    rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).expect("room");
}

/// Waits until the switch has ended the connection of a port, which then pauses.
fn wait_pause(host: &mut Host, port: u32, pauses: u64) {
    wait_for("a pause", || host.state(port).front_ends.pauses == pauses);
    let state = host.state(port);
    assert_eq!(state.phase, PortPhase::Waiting);
    let reason = state.reason.expect("a reason");
    assert!(reason.contains("block"), "{reason}");
}

#[test]
fn a_call_descriptor_that_blocks_ends_its_own_connection() {
    let mut host = Host::with_ports([1, 2, 3]);
    let mut a = host.guest(1, config(false));
    let mut b = host.guest(2, config(true));
    let mut c = host.guest(3, config(false));
    talk(&mut a, &mut b, 10);
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    b.front()
        .expect("a session")
        .set_vring_call(0, Some(event.as_fd()))
        .expect("taken");
    have_block(&event);
    b.pairs[0].nic.rx.set_notifications(true);
    for n in 0..5 {
        a.send(&numbered(1, 2, n, 60)).expect("room");
    }
    wait_pause(&mut host, 2, 1);
    talk(&mut a, &mut c, 50);
    b.crash();
    // A new connection waits until the pause is over.
    let mut b = host.guest(2, config(true));
    talk(&mut a, &mut b, 10);
    assert_eq!(host.state(2).front_ends.pause_ms, 0);
}

#[test]
fn repeatedly_started_queues_with_blocking_descriptors_delay_no_other_port() {
    let mut host = Host::with_ports([1, 2, 3, 4, 5]);
    let mut a = host.guest(1, config(false));
    let mut b = host.guest(2, config(false));
    for round in 1..=2 {
        for evil in [3, 4, 5] {
            let mut guest = host.guest(evil, config(evil == 4));
            let front = guest.front().expect("a session");
            let call = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
            front.set_vring_call(1, Some(call.as_fd())).expect("taken");
            have_block(&call);
            let kick = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
            for n in 0..200 {
                // It starts again with each of them, until the connection ends.
                let sent = match (evil, n % 2) {
                    (3, _) => front.set_vring_kick(1, Some(kick.as_fd())),
                    (4, _) => front.set_vring_base(1, 0),
                    (_, half) => front.set_vring_num(1, 128 << half),
                };
                if sent.is_err() {
                    break;
                }
            }
            wait_pause(&mut host, evil, round);
            assert_eq!(host.state(evil).connections, round);
        }
        talk(&mut a, &mut b, 50);
    }
}

#[test]
fn an_error_descriptor_that_blocks_ends_its_own_connection() {
    let mut host = Host::with_ports([1, 2, 3]);
    let mut a = host.guest(1, config(false));
    let mut b = host.guest(2, config(false));
    let mut evil = host.guest(3, config(false));
    let err = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let front = evil.front().expect("a session");
    front.set_vring_err(1, Some(err.as_fd())).expect("taken");
    have_block(&err);
    let nowhere = RawDesc {
        gpa: 1 << 40,
        len: 200,
        flags: 0,
    };
    evil.pairs[0].nic.tx.add_raw(&[nowhere], 0).expect("room");
    evil.pairs[0].nic.tx.publish();
    evil.pairs[0].tx_kick.signal();
    wait_pause(&mut host, 3, 1);
    talk(&mut a, &mut b, 50);
}

#[test]
fn announcements_without_end_are_no_broadcasts_without_end() {
    let host = Host::with_ports([1, 2]);
    let mut a = host.guest(1, config(false));
    let mut b = host.guest(2, config(false));
    talk(&mut a, &mut b, 10);
    let mac = a.mac();
    let began = Instant::now();
    let front = a.front().expect("a session");
    for _ in 0..10_000 {
        front.send_rarp(mac).expect("taken");
    }
    // Messages are handled in order: all announcements are done after this reply.
    front.get_features().expect("an answer");
    let counts = host.counts(2);
    let received = counts.to_guest.packets + counts.dropped(DropReason::ReceiverFull);
    let most = 10 + 64 * (2 + began.elapsed().as_secs());
    assert!((11..=most).contains(&received), "{received} of {most}");
    b.recv_all().expect("correct");
    talk(&mut a, &mut b, 10);
}

#[test]
fn endless_connections_do_not_fill_the_log() {
    let mut host = Host::with_ports([1, 2]);
    let mut a = host.guest(1, config(false));
    // Each chooses features before it disconnects, which is worth two lines.
    for number in 1..=500 {
        let mut front = FrontEnd::connect(&host.socket(2), LIMIT).expect("it listens");
        front.negotiate(VERSION_1, 0).expect("features");
        drop(front);
        wait_for("it to be over", || {
            host.state(2).phase == PortPhase::Waiting
        });
        assert_eq!(host.state(2).connections, number);
    }
    // At most 30 within 30 seconds; this took less than three minutes.
    let excluded = host.state(2).front_ends.suppressed_log_lines;
    assert!((800..1000).contains(&excluded), "{excluded}");
    let mut b = host.guest(2, config(false));
    talk(&mut a, &mut b, 10);
}

/// QEMU without a shared memory back end negotiates, and then sends nothing.
#[test]
fn a_driver_without_memory_is_reported_until_memory_comes_or_it_disconnects() {
    let mut host = Host::with_ports([1, 2]);
    let mut front = FrontEnd::connect(&host.socket(1), LIMIT).expect("it listens");
    front.negotiate(VERSION_1, 0).expect("features");
    wait_for("a reason", || host.state(1).reason.is_some());
    let reason = host.state(1).reason.expect("a reason");
    assert!(reason.contains("memory-backend-memfd"), "{reason}");
    let ram = GuestRam::memfd(&[RegionSpec::at(0, MIB)]).expect("memory");
    front.set_mem_table(&ram).expect("a table");
    wait_for("it to be well", || host.state(1).reason.is_none());
    drop(front);
    assert_eq!(host.wait_phase(1, PortPhase::Waiting).reason, None);
    let mut front = FrontEnd::connect(&host.socket(1), LIMIT).expect("it listens");
    front.negotiate(VERSION_1, 0).expect("features");
    wait_for("a reason", || host.state(1).reason.is_some());
    drop(front);
    assert_eq!(host.wait_phase(1, PortPhase::Waiting).reason, None);
}

/// A VMM that repeatedly disconnects before its first message.
#[test]
fn connections_that_come_to_nothing_are_taken_ever_more_seldom() {
    let mut host = Host::with_ports([1, 2]);
    let began = Instant::now();
    let mut dialed = 0;
    while began.elapsed() < Duration::from_millis(1500) {
        let stream = UnixStream::connect(host.socket(1)).expect("it listens");
        dialed += 1;
        wait_for("it to be taken", || host.state(1).connections == dialed);
        drop(stream);
        host.wait_phase(1, PortPhase::Waiting);
    }
    // The pauses: 1, 2, 4, 8, 16, then 20 milliseconds each.
    let elapsed = began.elapsed().as_millis() as u64;
    assert!(dialed <= 7 + elapsed / 20, "{dialed} in {elapsed} ms");
    let mut a = host.guest(1, config(false));
    let mut b = host.guest(2, config(false));
    talk(&mut a, &mut b, 10);
}

/// Connections that wait in the backlog and are closed already delay no other connection.
#[test]
fn a_connection_after_many_closed_ones_is_served_at_once() {
    let mut host = Host::with_ports([1, 2]);
    let dialed = 500;
    for _ in 0..dialed {
        drop(UnixStream::connect(host.socket(1)).expect("it listens"));
    }
    let mut a = host.guest(1, config(false));
    let mut b = host.guest(2, config(false));
    talk(&mut a, &mut b, 10);
    let state = host.state(1);
    let others = state.connections - 1 + state.front_ends.rejected_connections;
    assert_eq!(others, dialed, "{state:?}");
    // Served connections were still open when they were accepted. Each is followed by a pause.
    assert!(state.connections < dialed / 2, "{state:?}");
}

/// Two VMMs with one socket, of which the second dials repeatedly.
#[test]
fn second_connections_at_a_port_in_use_are_examined_ever_more_rarely() {
    let mut host = Host::with_ports([1, 2]);
    let mut a = host.guest(1, config(false));
    let mut b = host.guest(2, config(false));
    let began = Instant::now();
    let mut dialed = 0;
    while began.elapsed() < Duration::from_millis(1500) {
        let Ok(stream) = UnixStream::connect(host.socket(1)) else {
            break;
        };
        dialed += 1;
        // Until the switch closes it.
        let _ = (&stream).read(&mut [0]);
    }
    let state = host.state(1);
    assert_eq!(state.front_ends.rejected_connections, dialed);
    // One line a minute; on a busy machine this may have taken longer.
    let lines = dialed - state.front_ends.suppressed_log_lines;
    let most = 1 + began.elapsed().as_secs() / 60;
    assert!((1..=most).contains(&lines), "{lines} of {dialed}");
    // The pauses add up to no less than the time that this took: 1, 2, 4 … milliseconds, then a
    // second each.
    let elapsed = began.elapsed().as_millis() as u64;
    assert!(dialed <= 12 + elapsed / 1000, "{dialed} in {elapsed} ms");
    let reason = state.reason.expect("it is said");
    assert!(
        reason.contains(&format!("rejected {dialed} other connections")),
        "{reason}"
    );
    talk(&mut a, &mut b, 10);
    // Without an open connection no pause applies.
    a.crash();
    host.wait_phase(1, PortPhase::Waiting);
    let mut a = host.guest(1, config(false));
    talk(&mut a, &mut b, 10);
}

fn poll_in(event: &impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll") > 0
}

#[test]
fn a_memory_file_that_is_cut_off_ends_its_own_port() {
    let mut host = Host::with_ports([1, 2, 3]);
    for packed in [false, true] {
        let mut evil = host.guest(1, config(packed));
        let mut b = host.guest(2, config(packed));
        let mut c = host.guest(3, config(packed));
        talk(&mut evil, &mut b, 10);
        for region in evil.ram().regions() {
            rustix::fs::ftruncate(region.fd().expect("a file"), 0).expect("cut off");
        }
        // Read and written by the switch: its own frames, and frames for it.
        evil.pairs[0].tx_kick.signal();
        for _ in 0..10 {
            b.send(&stray(2, 1, 1000)).expect("room");
        }
        let state = host.wait_phase(1, PortPhase::Waiting);
        let reason = state.reason.expect("a reason");
        assert!(reason.contains("memory"), "{reason}");
        talk(&mut b, &mut c, 50);
        drop(evil);
        let mut good = host.guest(1, config(packed));
        talk(&mut good, &mut b, 10);
        host.gone((good, b, c), 3);
    }
}

/// The files are truncated while the switch reads and writes them, at any moment; the guest itself
/// continues meanwhile.
#[test]
fn a_memory_file_that_is_cut_off_under_traffic_ends_its_own_port() {
    let mut host = Host::with_ports([1, 2, 3]);
    let mut b = host.guest(2, config(true));
    let mut c = host.guest(3, config(false));
    for round in 0..12u64 {
        let mut evil = host.guest(1, config(round % 2 == 0));
        let files: Vec<OwnedFd> = evil.ram().regions().iter().map(file_of).collect();
        let length = [0, 4096, 32 << 10][round as usize % 3];
        let stop = Stop::new();
        std::thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                // The guest's memory may have any content by now.
                let pair = &mut evil.pairs[0];
                for n in 0.. {
                    let frame = numbered(1, 2, n, 1200);
                    let sound = pair.stage(&frame, &NetHeader::default()).is_ok();
                    pair.flush();
                    if !sound || pair.try_recv().is_err() || stop.is_set() {
                        break;
                    }
                }
            });
            let end = stop.at_end();
            for n in 0..300 {
                b.send(&stray(2, 1, 1000)).expect("room");
                if n == 20 * round {
                    let cut = |file| rustix::fs::ftruncate(file, length).expect("cut off");
                    files.iter().for_each(cut);
                }
                b.recv_all().expect("correct");
            }
            drop(end);
            traffic.join().expect("no panic");
        });
        let state = host.wait_phase(1, PortPhase::Waiting);
        let reason = state.reason.expect("a reason");
        assert!(reason.contains("memory was taken away"), "{reason}");
        drain(&mut b);
        talk(&mut b, &mut c, 20);
    }
    let mut good = host.guest(1, config(false));
    talk(&mut good, &mut b, 10);
}

fn file_of(region: &Arc<RamRegion>) -> OwnedFd {
    let file = region.fd().expect("a file");
    file.try_clone_to_owned().expect("a descriptor")
}

/// A hole in a file of this kind reads as zeroes, without an error: a guest's changes of its own
/// memory affect only itself.
#[test]
fn holes_in_a_memory_file_harm_no_other_port() {
    let mut host = Host::with_ports([1, 2, 3]);
    let mut b = host.guest(2, config(false));
    let mut c = host.guest(3, config(true));
    for packed in [false, true] {
        let mut evil = host.guest(1, config(packed));
        talk(&mut evil, &mut b, 10);
        let files: Vec<OwnedFd> = evil.ram().regions().iter().map(file_of).collect();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for round in 0..20 {
            for n in 0..20 {
                // Its rings are lost as well, so that it may find invalid data there.
                let _ = evil.pairs[0].stage(&numbered(1, 2, n, 1200), &NetHeader::default());
                evil.pairs[0].tx_kick.signal();
                b.send(&stray(2, 1, 1000)).expect("room");
                if n == round {
                    for file in &files {
                        fallocate(file, flags, 0, 4 * MIB).expect("a hole");
                    }
                }
            }
            drain(&mut b);
            talk(&mut b, &mut c, 5);
        }
        evil.crash();
        host.wait_phase(1, PortPhase::Waiting);
    }
}

/// REM_MEM_REG while frames lie in the region, sent and not yet delivered.
#[test]
fn a_region_that_is_removed_with_frames_in_it_costs_its_own_guest_at_most_a_queue() {
    let mut host = Host::with_ports([1, 2, 3]);
    let mut b = host.guest(2, config(false));
    let mut c = host.guest(3, config(true));
    for packed in [false, true] {
        let hot_plug = GuestConfig {
            memory_slots: true,
            ..config(packed)
        };
        let mut a = host.guest(1, hot_plug);
        for round in 0..20u64 {
            talk(&mut a, &mut b, 5);
            let gpa = (0x20 + round) << 32;
            a.plug(RegionSpec::at(gpa, MIB)).expect("more memory");
            let frame = with_header(&stray(1, 2, 1000));
            let last = a.ram().regions().len() - 1;
            let at = a.ram().alloc_in(last, 4096, 64).expect("room");
            a.ram().write(at, &frame);
            let piece = Piece::new(at, frame.len() as u32);
            let tx = &mut a.pairs[0].nic.tx;
            for _ in 0..40 {
                tx.add(&[piece], &[], Shape::Direct, 0).expect("room");
            }
            tx.publish();
            a.pairs[0].tx_kick.signal();
            a.unplug(gpa).expect("less memory");
            // Frames that were not taken yet are lost with the region.
            let end = Instant::now() + LIMIT;
            let faulted = loop {
                while a.pairs[0].nic.tx.poll().expect("sound").is_some() {}
                let faulted = host.state(1).phase == PortPhase::Faulted;
                if faulted || a.pairs[0].nic.tx.outstanding() == 0 {
                    break faulted;
                }
                assert!(Instant::now() < end, "neither sent nor refused");
            };
            drain(&mut b);
            talk(&mut b, &mut c, 5);
            if faulted {
                a.reset().expect("a reset");
                a.wait_link().expect("a link");
            }
        }
        a.crash();
        host.wait_phase(1, PortPhase::Waiting);
    }
}

#[test]
fn buffers_of_a_few_bytes_are_not_merged_without_end() {
    let host = Host::with_ports([1, 2]);
    for packed in [false, true] {
        let config = GuestConfig {
            queue_size: 1024,
            rx_buffers: Some(RxBuffers::Of(13)),
            ..config(packed)
        };
        let mut tiny = host.guest(1, config);
        let mut b = host.guest(2, GuestConfig::default());
        for n in 0..5 {
            b.send(&numbered(2, 1, n, 100)).expect("room");
            tiny.recv(LIMIT).expect("correct").expect("a frame");
        }
        let before = host.counts(1).dropped(DropReason::BufferTooSmall);
        b.send(&numbered(2, 1, 0, 3000)).expect("room");
        wait_for("a drop", || {
            host.counts(1).dropped(DropReason::BufferTooSmall) == before + 1
        });
        // All buffers are as they were.
        let frame = numbered(2, 1, 0, 1000);
        b.send(&frame).expect("room");
        let got = tiny.recv(LIMIT).expect("correct").expect("a frame");
        assert_eq!((got.frame, got.buffers), (frame, 1054_u16.div_ceil(13)));
        disconnect([tiny, b]);
    }
}

#[test]
fn two_guests_in_the_same_memory_harm_only_each_other() {
    // A hostile VMM uses the same file at two ports, whose rings are then the same: others are not
    // affected.
    let host = Host::with_ports(1..=4);
    let mut a = host.guest(1, config(false));
    let mut b = host.guest(2, config(false));
    let mut c = host.guest(3, config(false));
    let mut d = host.guest(4, config(true));
    talk(&mut c, &mut d, 50);
    let ram = a.ram().clone();
    b.front()
        .expect("a session")
        .set_mem_table(&ram)
        .expect("taken");
    for n in 0..50 {
        // Its used ring is inconsistent.
        let _ = a.send(&numbered(1, 2, n, 1000));
    }
    talk(&mut c, &mut d, 50);
}
