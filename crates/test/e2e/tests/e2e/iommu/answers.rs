//! Answers to questions that are wrong, late or missing.

use std::time::Duration;

use e2e::beside;
use e2e::numbered::{Stream, collect, settle};
use testkit::GuestConfig;
use testkit::driver::{Piece, Shape};
use testkit::iommu::{IommuConfig, Lie};
use testkit::packets::{Flow, SequenceChecker, udp};
use testkit::wait::wait_until;

use super::{
    LAP, LIMIT, WINDOW, all_arrive, arrive_in_the_end, layouts, others, pair, sound, start,
};

/// Frames whose receiver's buffers are not translated are dropped by name, and come again when
/// questions are answered again.
#[test]
fn buffers_that_are_not_translated_are_counted_at_their_receiver() {
    let _turn = beside();
    let lasthop = start("");
    let mut guests = pair(&lasthop, &GuestConfig::default(), IommuConfig::qemu());
    let [a, b] = &mut guests;
    b.iommu().lie(Some(Lie::Late));
    let untranslated = || lasthop.stats().get("vm2.drops.receiver-untranslated");
    wait_until("buffers that were asked for ahead are used up", || {
        a.send(&udp(&Flow::v4(1, 2), b"more")).expect("room");
        b.recv_all().expect("the device keeps the rules");
        untranslated() > 10
    });
    b.iommu().lie(None);
    // A front end that owes 256 answers is asked nothing more, and on a slow machine it does.
    b.iommu().answer_held();
    // Each buffer of the ring was denied, and is asked for again.
    arrive_in_the_end(a, b, Flow::v4(1, 2), LAP);
    all_arrive(&lasthop, a, b, Flow::v4(1, 2), 500);
    sound(&guests);
    lasthop.stop();
}

/// A front end answers one question after the other, and on a busy host it takes more than a second
/// for all that are open. No frame is lost by that.
#[test]
fn a_slow_front_end_is_waited_for() {
    /// The last of a window's 41 pages has its answer after two seconds.
    const SLOW: Duration = Duration::from_millis(50);
    let _turn = beside();
    let lasthop = start("");
    let mut guests = pair(&lasthop, &GuestConfig::default(), IommuConfig::qemu());
    let [a, b] = &mut guests;
    a.iommu().lie(Some(Lie::Slow(SLOW)));
    all_arrive(&lasthop, a, b, Flow::v4(1, 2), WINDOW);
    a.iommu().lie(None);
    sound(&guests);
    lasthop.stop();
}

/// Frames to a guest whose buffers were all revoked and are mapped again, as a lazy guest does with
/// each flush, wait for the answers: all arrive, in their order.
#[test]
fn frames_wait_for_buffers_that_are_asked_for() {
    let _turn = beside();
    let lasthop = start("");
    for config in layouts() {
        let mut guests = pair(&lasthop, &config, IommuConfig::qemu());
        let [a, b] = &mut guests;
        let before = lasthop.stats();
        let mut stream = Stream::new(7, Flow::v4(1, 2));
        let mut checker = SequenceChecker::default();
        for _ in 0..5 {
            b.iommu().lie(Some(Lie::Late));
            b.revoke_buffers(LAP as usize);
            for _ in 0..WINDOW {
                stream.send(a, 64 + (stream.sent() as usize * 131) % 1300);
            }
            a.pairs[0].drain().expect("the sender's buffers come back");
            let early = checker.next_of(7);
            collect(b, &mut checker);
            assert_eq!(checker.next_of(7), early, "no buffer is translated");
            b.iommu().lie(None);
            b.iommu().answer_held();
            settle(b, &mut checker, &stream, LIMIT);
        }
        let moved = lasthop.stats().since(&before);
        assert_eq!(moved.get("drops.receiver-untranslated"), 0, "{moved:?}");
        let arrived = moved.get("vm2.to_guest.packets");
        assert_eq!(arrived, stream.sent(), "each is counted once: {moved:?}");
        sound(&guests);
    }
    lasthop.stop();
}

/// A front end that answers late, twice, wrong or not at all: its own frames wait, and no others
/// do.
#[test]
fn wrong_answers_cost_the_port_that_gives_them() {
    let turn = beside();
    let lasthop = start("");
    let [mut c, mut d] = others(&lasthop);
    for lie in [
        Lie::Late,
        Lie::Refused,
        Lie::Doubled,
        Lie::Missing,
        Lie::OtherPage,
        Lie::Deaf,
        Lie::Nonsense,
    ] {
        turn.step(&format!("{lie:?}"));
        let mut guests = pair(&lasthop, &GuestConfig::default(), IommuConfig::qemu());
        let [a, _] = &mut guests;
        a.iommu().lie(Some(lie));
        for _ in 0..200 {
            // Questions about everything, with or without answers.
            let nowhere = a.iommu().reserve(1);
            let pieces = [Piece::new(nowhere, 100)];
            let nic = &mut a.pairs[0].nic;
            while nic.tx.poll().expect("the device keeps the rules").is_some() {}
            nic.tx.add(&pieces, &[], Shape::Direct, 0);
            a.pairs[0].flush();
            a.front()
                .expect("a session")
                .get_features()
                .expect("an answer");
        }
        all_arrive(&lasthop, &mut c, &mut d, Flow::v4(3, 4), 100);
        a.iommu().answer_held();
        a.iommu().lie(None);
        a.wait_link().expect("the connection goes on");
        sound(&guests);
    }
    lasthop.stop();
}
