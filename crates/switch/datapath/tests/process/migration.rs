//! A guest's memory is migrated under traffic, as a VMM does it: the memory arrives complete, and
//! would not without any one bit of the dirty log.

use std::time::Duration;

use ipc::switching::PortPhase;
use port::DropReason;
use rustix::fs::ftruncate;
use testkit::driver::Shape;
use testkit::features::{
    ALL_OFFLOADS, EVENT_IDX, GUEST_OFFLOADS, INDIRECT_DESC, LOG_ALL, MRG_RXBUF, RING_PACKED,
};
use testkit::frontend::DirtyFile;
use testkit::net::{Cuts, NetHeader};
use testkit::packets::{Flow, tcp_super, udp_partial};
use testkit::precopy::Precopy;
use testkit::stop::Stop;
use testkit::{FakeGuest, GuestConfig};

use crate::dirty;
use crate::host::{Host, wait_for};
use crate::traffic::{numbered, talk};

/// Passes over the memory while everything runs.
const PASSES: usize = 5;
/// Pages that the switch writes after the last one.
const ENOUGH_PAGES: usize = 8;

/// The guests that migrate: both layouts, with and without event index, merged buffers and
/// offloads, chains of all kinds.
fn movers() -> Vec<GuestConfig> {
    let base = || dirty::configs().swap_remove(0);
    let both = [base(), base().packed()];
    let legacy = || base().legacy();
    let mut all = vec![
        legacy(),
        legacy().without(MRG_RXBUF),
        GuestConfig {
            rx_cuts: Cuts::At(vec![10]),
            tx_cuts: Cuts::At(vec![10]),
            ..legacy().without(MRG_RXBUF | ALL_OFFLOADS)
        },
    ];
    for base in both {
        all.push(base.clone());
        all.push(base.clone().without(EVENT_IDX | INDIRECT_DESC));
        // The switch segments and checksums for it.
        all.push(base.clone().without(ALL_OFFLOADS | MRG_RXBUF));
        all.push(base.clone().without(GUEST_OFFLOADS));
        all.push(GuestConfig {
            rx_cuts: Cuts::Every(333),
            tx_cuts: Cuts::Every(100),
            shape: Shape::Indirect,
            ..base.clone()
        });
        // Rings of many pages.
        all.push(GuestConfig {
            queue_size: 2048,
            ..base.clone()
        });
        all.push(base.in_order());
    }
    all
}

/// Sends frames of all kinds to test guest 2 until it is stopped.
fn send_on_and_on(from: &mut FakeGuest, stop: &Stop) {
    let flow = Flow::v4(1, 2);
    let large = [0x77; 12_000];
    for seq in 0.. {
        if stop.is_set() {
            return;
        }
        let (frame, header) = match seq % 8 {
            0 => tcp_super(&flow, seq as u32, &large, 1448),
            1 => udp_partial(&flow, &large[..900]),
            _ => {
                let len = [16, 700, 1400][seq as usize % 3];
                (numbered(1, 2, seq, len), NetHeader::default())
            }
        };
        from.send_on(0, &frame, &header).expect("room");
        if seq % 16 == 0 {
            from.recv_all().expect("correct");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Receives `count` frames and answers each.
fn answer(guest: &mut FakeGuest, count: usize) {
    for seq in 0..count as u64 {
        let got = guest.recv(Duration::from_secs(5)).expect("correct");
        got.expect("a frame");
        guest.send(&numbered(2, 1, seq, 300)).expect("room");
    }
}

/// Memory is sent pass by pass while frames come and go; then the guest stands still.
fn migrate(guest: &mut FakeGuest) -> Precopy {
    let mut vmm = Precopy::begin(guest).expect("a log");
    for _ in 0..PASSES {
        answer(guest, 100);
        vmm.pass();
    }
    // After the last pass only the switch writes, so that writes of the guest hide nothing. The
    // receive queue may be full then: the guest first adds buffers.
    wait_for("the switch writes after a pass", || {
        answer(guest, 50);
        vmm.pass();
        std::thread::sleep(Duration::from_millis(20));
        vmm.differing().len() >= ENOUGH_PAGES
    });
    for pair in &mut guest.pairs {
        pair.nic.auto_refill = false;
    }
    guest.stop().expect("positions");
    vmm
}

/// Sends all that is pending but for one page after the other.
fn every_bit_counts(vmm: &mut Precopy, what: &str) {
    let mut pending = vmm.pending();
    let needed = vmm.differing();
    let by_device: Vec<u64> = needed
        .iter()
        .copied()
        .filter(|page| pending.device.contains(page) && !pending.guest.contains(page))
        .collect();
    assert!(by_device.len() > 3, "{what}: {by_device:x?}");
    let withheld = by_device[by_device.len() / 2];
    pending.device.remove(&withheld);
    vmm.send(pending.device.union(&pending.guest));
    let [here, there] = vmm.checksums();
    assert_ne!(here, there, "{what}: without the bit of page {withheld:x}");
    assert_eq!(vmm.differing(), [withheld], "{what}: unmarked");
    vmm.send([&withheld]);
    let [here, there] = vmm.checksums();
    assert_eq!(here, there, "{what}");
}

#[test]
fn memory_arrives_whole_and_would_not_without_one_bit_of_the_log() {
    let mut host = Host::with_ports([1, 2]);
    for config in movers() {
        let mut sender = host.guest(1, dirty::configs().swap_remove(0));
        let mut mover = host.guest(2, config.clone());
        talk(&mut sender, &mut mover, 30);
        let down = host.counts(2).dropped(DropReason::ReceiverDown);
        let stop = Stop::new();
        std::thread::scope(|scope| {
            scope.spawn(|| send_on_and_on(&mut sender, &stop));
            let _end = stop.at_end();
            // A cancelled migration: the log is switched on and off under traffic.
            let mut given_up = Precopy::begin(&mut mover).expect("a log");
            answer(&mut mover, 50);
            given_up.pass();
            stop_log(&mut mover);
            answer(&mut mover, 50);
            let after = host.counts(2).dropped(DropReason::ReceiverDown);
            assert_eq!(after, down, "{config:?}: its queues have stopped");
            let _ = given_up.pending();
            answer(&mut mover, 50);
            assert_eq!(given_up.pending().device, [].into(), "it is off");

            let mut vmm = migrate(&mut mover);
            every_bit_counts(&mut vmm, &format!("{config:?}"));
        });
        sender.crash();
        mover.crash();
        host.wait_phase(1, PortPhase::Waiting);
        host.wait_phase(2, PortPhase::Waiting);
    }
}

/// Ends a cancelled migration as QEMU does: the feature is cleared, then the flags of the used
/// rings.
fn stop_log(guest: &mut FakeGuest) {
    let features = guest.features();
    let front = guest.front().expect("a session");
    front.set_features(features & !LOG_ALL).expect("off");
    guest.set_used_ring_log(false).expect("off");
}

#[test]
fn a_log_that_the_vmm_truncates_ends_its_own_port_alone() {
    let mut host = Host::with_ports([1, 2, 3]);
    for packed in [false, true] {
        let config = dirty::configs().swap_remove(usize::from(packed));
        let mut a = host.guest(1, config.clone());
        let mut b = host.guest(2, config.clone());
        let mut c = host.guest(3, config);
        assert_eq!(b.features() & RING_PACKED != 0, packed);
        talk(&mut a, &mut b, 20);
        talk(&mut a, &mut c, 20);
        let log = b.start_log().expect("a log");
        ftruncate(log.file(), 0).expect("a file of ours");
        for seq in 0..20 {
            a.send(&numbered(1, 2, seq, 700)).expect("room");
        }
        let state = host.wait_phase(2, PortPhase::Waiting);
        let reason = state.reason.unwrap_or_default();
        assert!(reason.contains("memory"), "{reason}");
        talk(&mut a, &mut c, 50);
        drop((a, b, c));
        for id in [1, 2, 3] {
            host.wait_phase(id, PortPhase::Waiting);
        }
    }
}

#[test]
fn a_log_that_is_too_short_is_refused_by_name() {
    let mut host = Host::with_ports([1, 2]);
    let config = dirty::configs().swap_remove(0);
    let mut a = host.guest(1, config.clone());
    let mut b = host.guest(2, config);
    talk(&mut a, &mut b, 20);
    let log = DirtyFile::new(64 << 10, 0).expect("a file");
    let features = b.features() | LOG_ALL;
    let front = b.front().expect("a session");
    front.set_log_base(&log).expect("nothing is logged yet");
    front.set_features(features).expect_err("too short");
    wait_for("a reason", || {
        let reason = host.state(2).reason.unwrap_or_default();
        reason.contains("the dirty log covers addresses below")
    });
    talk(&mut a, &mut b, 20);
    assert_eq!(log.dirty_pages(), [0; 0]);
}
