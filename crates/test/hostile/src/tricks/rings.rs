//! Tricks of a guest's driver.

use std::time::Duration;

use super::super::arena::{Arena, Random};
use testkit::driver::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, PackedDesc, SplitDesc};
use testkit::features::{ALL_OFFLOADS, GUEST_OFFLOADS, RING_PACKED};
use testkit::net::{GSO_TCPV4, GSO_UDP_L4, NEEDS_CSUM, NetHeader};
use testkit::packets::{BROADCAST, Flow, mac, udp, udp_partial};
use testkit::{FakeGuest, GuestConfig};

/// Entries of an attacker's queues.
const ENTRIES: u64 = 64;

fn flow(from: u8) -> Flow {
    Flow {
        src_mac: mac(from),
        dst_mac: BROADCAST,
        ..Flow::v4(from, 255)
    }
}

fn rewritten(arena: &Arena<'_>, features: u64, poke: fn(&FakeGuest, &mut Random)) {
    let mut random = arena.random();
    let frame = udp(&flow(213), &[7; 500]);
    for mut guest in arena.guests(GuestConfig::default().with(features)) {
        if guest.features() & features != features {
            return;
        }
        for round in 0..300 {
            if round < 50 {
                let _ = guest.pairs[0].stage(&frame, &NetHeader::default());
                guest.pairs[0].flush();
            }
            poke(&guest, &mut random);
            guest.pairs[0].tx_kick.signal();
            guest.pairs[0].rx_kick.signal();
            arena.step();
            if !arena.on() {
                break;
            }
        }
    }
}

/// An address in the guest's memory, at its edge, or anywhere.
fn address(random: &mut Random) -> u64 {
    match random.below(3) {
        0 => 0x10_0000 + random.below(16 << 20),
        1 => 0x10_0000 + (16 << 20) - random.below(100),
        _ => random.number(),
    }
}

pub(super) fn rewritten_split(arena: &Arena<'_>) {
    rewritten(arena, 0, |guest, random| {
        let nic = &guest.pairs[0].nic;
        let queue = if random.below(2) == 0 {
            &nic.rx
        } else {
            &nic.tx
        };
        let desc = SplitDesc {
            gpa: address(random),
            len: random.number() as u32,
            flags: random.below(8) as u16,
            next: random.below(80) as u16,
        };
        queue.poke_desc(random.below(ENTRIES) as u16, desc);
        match random.below(6) {
            0 => queue.poke_avail_idx(queue.peek_avail_idx().wrapping_add(1)),
            1 => queue.poke_avail_ring(random.below(ENTRIES) as u16, random.next() as u16),
            2 => queue.poke_used_idx(random.next() as u16),
            3 if random.below(20) == 0 => queue.poke_avail_idx(random.next() as u16),
            4 => queue.poke_used_event(random.next() as u16),
            _ => queue.poke_avail_flags(random.next() as u16),
        }
    });
}

pub(super) fn rewritten_packed(arena: &Arena<'_>) {
    rewritten(arena, RING_PACKED, |guest, random| {
        let nic = &guest.pairs[0].nic;
        let queue = if random.below(2) == 0 {
            &nic.rx
        } else {
            &nic.tx
        };
        let desc = PackedDesc {
            gpa: address(random),
            len: random.number() as u32,
            id: random.next() as u16,
            flags: (random.next() as u16) & 0x8087,
        };
        queue.poke_packed(random.below(ENTRIES) as u16, desc);
        queue.poke_driver_event(random.next() as u16, random.below(4) as u16);
    });
}

/// Descriptors that name themselves, tables that hold tables, chains that never end.
pub(super) fn chains(arena: &Arena<'_>) {
    let mut random = arena.random();
    for guest in arena.guests(GuestConfig::default()) {
        let ram = guest.ram().clone();
        let table = ram.alloc(16 * 1024, 16);
        for n in 0..1024_u16 {
            let desc = SplitDesc {
                gpa: table,
                len: 16 * 1024,
                flags: [DESC_NEXT, DESC_INDIRECT, DESC_NEXT | DESC_INDIRECT]
                    [random.below(3) as usize],
                next: random.below(1024) as u16,
            };
            ram.write(table + 16 * u64::from(n), &desc.to_bytes());
        }
        let flags = [
            DESC_NEXT,
            DESC_INDIRECT,
            DESC_NEXT | DESC_WRITE,
            DESC_NEXT | DESC_INDIRECT,
        ];
        let pair = &guest.pairs[0];
        for queue in [&pair.nic.tx, &pair.nic.rx] {
            for index in 0..ENTRIES as u16 {
                let next = (index + random.below(2) as u16) % ENTRIES as u16;
                let flags = flags[random.below(4) as usize];
                let len = [0, 16, 16 * 1024, u32::MAX][random.below(4) as usize];
                queue.poke_desc(
                    index,
                    SplitDesc {
                        gpa: table,
                        len,
                        flags,
                        next,
                    },
                );
            }
            queue.poke_avail_idx(queue.peek_avail_idx().wrapping_add(8));
        }
        pair.tx_kick.signal();
        pair.rx_kick.signal();
        arena.step();
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn random_header(random: &mut Random) -> NetHeader {
    NetHeader {
        flags: random.below(4) as u8,
        gso_type: [0, 1, 3, 4, 5, 0x80, 0x81, 0x84][random.below(8) as usize],
        hdr_len: random.number() as u16,
        gso_size: random.number() as u16,
        csum_start: random.number() as u16,
        csum_offset: random.number() as u16,
        num_buffers: random.number() as u16,
    }
}

pub(super) fn random_frames(arena: &Arena<'_>) {
    let mut random = arena.random();
    for mut guest in arena.guests(GuestConfig::default()) {
        let Some(mut peer) = arena.guest(GuestConfig::default()) else {
            continue;
        };
        for _ in 0..2000 {
            let len = 14 + random.below(8000) as usize;
            let mut frame = random.bytes(len);
            frame[0] &= 0xfe;
            if random.below(2) == 0 {
                frame[..6].copy_from_slice(&BROADCAST);
            }
            if random.below(2) == 0 {
                let good = udp(&flow(214), &[3; 1400]);
                let n = good.len().min(frame.len());
                frame[6..n].copy_from_slice(&good[6..n]);
            }
            let header = random_header(&mut random);
            let sent = guest.send_on(0, &frame, &header);
            let _ = peer.recv_all();
            arena.step();
            if sent.is_err() || !arena.on() {
                break;
            }
        }
    }
}

/// The other attackers are receivers that take no offloads.
pub(super) fn segments(arena: &Arena<'_>) {
    for mut sender in arena.guests(GuestConfig::default()) {
        let receivers = || arena.guest(GuestConfig::default().without(GUEST_OFFLOADS));
        let mut others: Vec<FakeGuest> = (0..6).filter_map(|_| receivers()).collect();
        let (frame, partial) = udp_partial(&flow(215), &[9; 65_000]);
        let headers = [GSO_UDP_L4, GSO_TCPV4].map(|gso_type| NetHeader {
            flags: NEEDS_CSUM,
            gso_type,
            gso_size: 47,
            ..partial
        });
        for step in 0..500 {
            let sent = sender.send_on(0, &frame, &headers[usize::from(step % 8 == 7)]);
            for other in &mut others {
                let _ = other.recv_all();
            }
            arena.step();
            if sent.is_err() || !arena.on() {
                break;
            }
        }
    }
}

pub(super) fn flood(arena: &Arena<'_>) {
    let frame = udp(&flow(216), &[4; 64]);
    arena.crew(2, |_| {
        for mut guest in arena.guests(GuestConfig::default().without(ALL_OFFLOADS)) {
            while arena.on() && guest.send(&frame).is_ok() {
                let _ = guest.recv_all();
                arena.step();
            }
        }
    });
}
