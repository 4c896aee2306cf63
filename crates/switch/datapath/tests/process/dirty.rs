//! The dirty log: every page that the switch wrote is marked, rings included.

use std::collections::BTreeSet;
use std::time::Duration;

use ipc::switching::PortPhase;
use port::DropReason;
use testkit::driver::Shape;
use testkit::features::{ALL_OFFLOADS, EVENT_IDX, HOST_TSO4, LOG_ALL, MRG_RXBUF};
use testkit::frontend::DirtyFile;
use testkit::guest_ram::{GuestRam, RegionSpec};
use testkit::net::{Cuts, NetHeader};
use testkit::packets::{Flow, tcp_super};
use testkit::{FakeGuest, GuestConfig};

use crate::host::{Host, LIMIT, wait_for};
use crate::interfaces::{arrives, interface, is_up, left};
use crate::traffic::{disconnect, numbered, talk};

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;
const HIGH: u64 = 256 * MIB;
const PAUSE: Duration = Duration::from_millis(5);

pub(crate) fn configs() -> Vec<GuestConfig> {
    let base = || GuestConfig {
        regions: Some(vec![
            RegionSpec::at(0, 2 * MIB),
            RegionSpec::at(2 * MIB, 4 * MIB),
            RegionSpec::at(HIGH, 20 * MIB),
        ]),
        ..GuestConfig::default()
    };
    vec![
        base(),
        base().packed(),
        base().without(EVENT_IDX),
        base()
            .packed()
            .without(EVENT_IDX | MRG_RXBUF | ALL_OFFLOADS),
        base().without(MRG_RXBUF),
        GuestConfig {
            rx_cuts: Cuts::Every(333),
            shape: Shape::Indirect,
            ..base().packed().in_order()
        },
        base().legacy(),
        base().legacy().without(MRG_RXBUF),
    ]
}

/// All of a guest's memory, region by region.
fn snapshot(ram: &GuestRam) -> Vec<(u64, Vec<u8>)> {
    let read = |spec: RegionSpec| {
        let mut bytes = vec![0; spec.size as usize];
        ram.read(spec.gpa, &mut bytes);
        (spec.gpa, bytes)
    };
    ram.regions().iter().map(|r| read(r.spec())).collect()
}

/// Numbers of the pages that differ.
fn changed(before: &[(u64, Vec<u8>)], after: &[(u64, Vec<u8>)]) -> Vec<u64> {
    let regions = before.iter().zip(after);
    regions
        .flat_map(|((gpa, old), (_, new))| {
            let pages = old.chunks(PAGE).zip(new.chunks(PAGE)).enumerate();
            let differ = pages.filter(|(_, (old, new))| old != new);
            differ
                .map(|(n, _)| gpa / PAGE as u64 + n as u64)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Logging with a log that starts somewhere in its file (CVE-2026-86563).
fn start_log(guest: &mut FakeGuest, offset: u64) -> DirtyFile {
    let first = guest.start_log().expect("a log");
    if offset == 0 {
        return first;
    }
    let log = DirtyFile::new(HIGH + 20 * MIB, offset).expect("a file");
    let front = guest.front().expect("a session");
    front.set_log_base(&log).expect("another log");
    log
}

#[test]
fn every_page_that_is_written_is_marked() {
    let mut host = Host::with_ports([1, 2]);
    for (config, offset) in configs()
        .into_iter()
        .zip([0, 4096, 0, 65536, 8192, 0, 0, 4096])
    {
        let mut a = host.guest(1, config.clone());
        let mut b = host.guest(2, config.clone());
        talk(&mut a, &mut b, 30);
        b.pairs[0].nic.auto_refill = false;
        let log = start_log(&mut b, offset);
        let clean = log.dirty_pages();
        let before = snapshot(b.ram());
        let packets = host.counts(2).to_guest.packets;
        for n in 0..20 {
            a.send(&numbered(1, 2, n, 700)).expect("room");
        }
        let (frame, header) = tcp_super(&Flow::v4(1, 2), 1, &[0x77; 20_000], 1448);
        let large = a.features() & HOST_TSO4 != 0;
        if large {
            a.send_on(0, &frame, &header).expect("room");
        }
        a.pairs[0].drain().expect("buffers come back");
        wait_for("delivery", || {
            host.counts(2).to_guest.packets >= packets + 20 + u64::from(large)
        });
        let after = snapshot(b.ram());
        let written = changed(&before, &after);
        let dirty = log.dirty_pages();
        let unmarked: Vec<_> = written.iter().filter(|p| !dirty.contains(p)).collect();
        assert!(
            unmarked.is_empty(),
            "{config:?}: pages {unmarked:x?} were written unmarked"
        );
        assert!(written.len() > 10, "{written:x?}");
        let more = dirty
            .iter()
            .filter(|p| !written.contains(p) && !clean.contains(p));
        assert!(
            more.count() <= 8,
            "a log that marks everything is of no use"
        );
        let used = b.pairs[0].nic.rx.addrs();
        let ring = if b.features() & testkit::features::RING_PACKED == 0 {
            used.device
        } else {
            used.desc
        };
        assert!(log.is_dirty(ring), "the used ring");
        while b.recv(PAUSE).expect("correct").is_some() {}
        disconnect([a, b]);
        host.wait_phase(1, PortPhase::Waiting);
        host.wait_phase(2, PortPhase::Waiting);
    }
    let (_, _, drops) = host.totals();
    assert_eq!(drops, 0);
}

#[test]
fn a_senders_used_ring_is_marked_and_its_buffers_are_not() {
    let host = Host::with_ports([1, 2]);
    for packed in [false, true] {
        let config = configs().swap_remove(usize::from(packed));
        let mut a = host.guest(1, config.clone());
        let mut b = host.guest(2, config);
        talk(&mut a, &mut b, 10);
        let log = start_log(&mut a, 0);
        let buffer = a.ram().alloc(8192, 4096);
        let frame = [
            NetHeader::default().to_bytes().as_slice(),
            &numbered(1, 2, 0, 500),
        ]
        .concat();
        a.ram().write(buffer, &frame);
        let piece = testkit::driver::Piece::new(buffer, frame.len() as u32);
        let tx = &mut a.pairs[0].nic.tx;
        while tx.poll().expect("sound").is_some() {}
        tx.add(&[piece], &[], Shape::Direct, 0).expect("room");
        tx.publish();
        a.pairs[0].tx_kick.signal();
        wait_for("the buffer back", || a.pairs[0].nic.tx.has_used());
        let addrs = a.pairs[0].nic.tx.addrs();
        assert!(log.is_dirty(if packed { addrs.desc } else { addrs.device }));
        assert!(!log.is_dirty(buffer));
        disconnect([a, b]);
    }
}

#[test]
fn logging_ends_when_it_is_switched_off() {
    let host = Host::with_ports([1, 2]);
    let config = configs().swap_remove(0);
    let mut a = host.guest(1, config.clone());
    let mut b = host.guest(2, config);
    talk(&mut a, &mut b, 10);
    let log = start_log(&mut b, 0);
    let features = b.features();
    talk(&mut a, &mut b, 10);
    let front = b.front().expect("a session");
    front.set_features(features & !LOG_ALL).expect("off");
    let dirty = log.dirty_pages();
    talk(&mut a, &mut b, 300);
    assert_eq!(log.dirty_pages(), dirty);
}

/// Numbers of the pages that a guest's rings lie on.
fn ring_pages(guest: &FakeGuest) -> BTreeSet<u64> {
    let nic = &guest.pairs[0].nic;
    let rings = [&nic.rx, &nic.tx].map(|ring| (ring.addrs(), u64::from(ring.options().size)));
    let areas = rings.into_iter().flat_map(|(addrs, size)| {
        let areas = [addrs.desc, addrs.driver, addrs.device];
        areas.map(|at| at / PAGE as u64..=(at + 16 * size) / PAGE as u64)
    });
    areas.flatten().collect()
}

/// The system reads the memory of who sends to an interface, also that of frames which wait.
#[test]
fn frames_to_an_interface_mark_their_senders_used_ring_alone() {
    let mut host = Host::with_ports([1]);
    let (queues, systems) = interface(1);
    host.add_interface(2, queues);
    is_up(&mut host, 2);
    for packed in [false, true] {
        let mut a = host.guest(1, configs().swap_remove(usize::from(packed)));
        a.send(&numbered(1, 2, 0, 700)).expect("room");
        left(&systems);
        let log = start_log(&mut a, 0);
        drop(log.take());
        let gone = |host: &Host| {
            let to = host.counts(2);
            (to.to_guest.packets, to.dropped(DropReason::ReceiverFull))
        };
        let before = gone(&host);
        let (large, header) = tcp_super(&Flow::v4(1, 2), 1, &[0x77; 20_000], 1448);
        for n in 0..600 {
            a.send(&numbered(1, 2, n, 700)).expect("room");
            if n % 20 == 0 {
                a.send_on(0, &large, &header).expect("room");
            }
        }
        a.pairs[0].drain().expect("buffers come back");
        wait_for("those that wait leave", || {
            while rustix::io::read(&systems[0], &mut [0; 100]).is_ok() {}
            let (sent, full) = gone(&host);
            sent - before.0 + full - before.1 == 630
        });
        let rings = ring_pages(&a);
        let dirty = log.take();
        assert!(!dirty.is_empty(), "the used ring");
        let others: Vec<_> = dirty.iter().filter(|page| !rings.contains(page)).collect();
        assert!(others.is_empty(), "{others:x?}");
        disconnect([a]);
        host.wait_phase(1, PortPhase::Waiting);
    }
}

#[test]
fn frames_of_an_interface_mark_what_they_are_written_to() {
    let mut host = Host::with_ports([1]);
    let (queues, systems) = interface(1);
    host.add_interface(2, queues);
    is_up(&mut host, 2);
    for config in configs() {
        let mut a = host.guest(1, config.clone());
        arrives(&systems[0], &numbered(2, 1, 0, 700));
        assert!(a.recv(LIMIT).expect("correct").is_some());
        a.pairs[0].nic.auto_refill = false;
        let log = start_log(&mut a, 0);
        drop(log.take());
        let before = snapshot(a.ram());
        let packets = host.counts(1).to_guest.packets;
        for n in 0..20 {
            arrives(&systems[0], &numbered(2, 1, n, 1400));
        }
        wait_for("delivery", || {
            host.counts(1).to_guest.packets == packets + 20
        });
        let written = changed(&before, &snapshot(a.ram()));
        let (dirty, rings) = (log.take(), ring_pages(&a));
        assert!(written.len() > 10, "{written:x?}");
        let unmarked: Vec<_> = written
            .iter()
            .filter(|page| !dirty.contains(page))
            .collect();
        assert!(unmarked.is_empty(), "{config:?}: {unmarked:x?} unmarked");
        let mut more = dirty.iter();
        assert!(
            more.all(|page| written.contains(page) || rings.contains(page)),
            "{config:?}: {dirty:x?} for {written:x?}"
        );
        while a.recv(PAUSE).expect("correct").is_some() {}
        disconnect([a]);
        host.wait_phase(1, PortPhase::Waiting);
    }
}
