//! Notifications in both directions, against the standard's words rather than its formula.

use proptest::prelude::*;
use wire::virtio::features::Features;

use super::driver::*;
use crate::queue::Queue;
use crate::queue::event::need_event;
use crate::queue::packed::cursor::{Cursor, packed_need_event};

const ONE: Buffer = Buffer {
    gpa: DATA,
    len: 60,
    writable: false,
};

proptest! {
    #![proptest_config(cases(8, 2000))]

    #[test]
    fn need_event_is_true_when_the_event_was_passed(
        old: u16, moved in 0..600u16, ahead in -700..700i32
    ) {
        let event = old.wrapping_add(ahead as u16);
        let passed = (0..moved).any(|i| old.wrapping_add(i) == event);
        prop_assert_eq!(need_event(event, old.wrapping_add(moved), old), passed);
    }

    #[test]
    fn cursors_walk_slot_by_slot(size in 1..70u16, start: u16, wrap: bool, n in 0..70u16) {
        let from = Cursor { index: start % size, wrap };
        let n = n.min(size);
        let mut walked = from;
        for _ in 0..n {
            walked.index += 1;
            if walked.index == size {
                walked = Cursor { index: 0, wrap: !walked.wrap };
            }
        }
        let mut jumped = from;
        jumped.advance(n, size);
        prop_assert_eq!(jumped, walked);
        prop_assert_eq!(from.distance(jumped, size), n);
        prop_assert_eq!(Cursor::from_bits(jumped.bits()), jumped);
        jumped.retreat(n, size);
        prop_assert_eq!(jumped, from);
    }

    #[test]
    fn packed_need_event_is_true_when_the_slot_was_passed(
        size in 1..40u16, start: u16, wrap: bool, moved in 0..40u16, pick: u16,
    ) {
        let moved = moved.min(size);
        // A position names a slot in the lap of the used position or in one of its neighbours.
        let ahead = i32::from(moved) - i32::from(size) + i32::from(pick % (2 * size));
        let old = Cursor { index: start % size, wrap };
        let mut event = old;
        if ahead >= 0 {
            (0..ahead).for_each(|_| event.advance(1, size));
        } else {
            (0..-ahead).for_each(|_| event.retreat(1, size));
        }
        let mut used = old;
        used.advance(moved, size);
        let passed = ahead >= 0 && ahead < i32::from(moved);
        prop_assert_eq!(packed_need_event(event, used, u32::from(moved), size), passed);
    }

    #[test]
    fn a_queue_notifies_at_the_split_drivers_event(
        start: u16, batches in prop::collection::vec((1..8u16, 0..12u16), 1..12)
    ) {
        let [features, _] = both(Features::RING_EVENT_IDX);
        let mut driver = Driver::new(Guest::new(8, features));
        driver.start_at(start);
        let mut queue = driver.guest.queue_at(u32::from(start)).unwrap();
        let used_event = driver.guest.layout.driver + 4 + 2 * 8;
        serve(&mut driver, &mut queue, 1);
        prop_assert!(queue.needs_notify(), "the first batch");
        let mut used = start.wrapping_add(1);
        for (n, ahead) in batches {
            let event = used.wrapping_add(ahead);
            driver.guest.set16(used_event, event);
            serve(&mut driver, &mut queue, n);
            let desired = (0..n).any(|i| used.wrapping_add(i) == event);
            prop_assert_eq!(queue.needs_notify(), desired);
            prop_assert!(!queue.needs_notify(), "one answer for each batch");
            used = used.wrapping_add(n);
        }
    }

    #[test]
    fn a_queue_notifies_at_the_packed_drivers_event(
        size in 1..9u16, batches in prop::collection::vec((1..9u16, 0..9u16), 1..12)
    ) {
        let [_, features] = both(Features::RING_EVENT_IDX);
        let mut driver = Driver::new(Guest::new(size, features));
        let mut queue = driver.guest.queue();
        let mut used = Cursor { index: 0, wrap: true };
        driver.guest.set16(driver.guest.layout.driver + 2, 2);
        serve(&mut driver, &mut queue, 1);
        prop_assert!(queue.needs_notify(), "the first batch");
        used.advance(1, size);
        for (n, ahead) in batches {
            let (n, ahead) = (n.min(size), ahead.min(size - 1));
            let mut event = used;
            event.advance(ahead, size);
            driver.guest.set16(driver.guest.layout.driver, event.bits());
            serve(&mut driver, &mut queue, n);
            prop_assert_eq!(queue.needs_notify(), ahead < n);
            used.advance(n, size);
        }
    }
}

/// Offers, takes, puts, publishes and reaps `n` chains of one descriptor.
fn serve(driver: &mut Driver, queue: &mut Queue, n: u16) {
    let mut segs = Vec::new();
    for _ in 0..n {
        driver.add(&[ONE], false, 0).expect("room");
        let chain = queue.take_readable(&mut segs).unwrap().unwrap();
        queue.put(chain, 0);
    }
    queue.publish();
    (0..n).for_each(|_| assert!(driver.reap().is_some()));
}

#[test]
fn nothing_published_needs_no_notification() {
    for features in both(Features::empty()) {
        let guest = Guest::new(4, features);
        assert!(!guest.queue().needs_notify());
    }
}

#[test]
fn flags_suppress_notifications() {
    for features in both(Features::empty()) {
        let mut driver = Driver::new(Guest::new(4, features));
        let mut queue = driver.guest.queue();
        let flags = driver.guest.layout.driver + if driver.guest.packed() { 2 } else { 0 };
        serve(&mut driver, &mut queue, 1);
        assert!(queue.needs_notify());
        driver.guest.set16(flags, 1);
        serve(&mut driver, &mut queue, 1);
        assert!(!queue.needs_notify());
    }
}

#[test]
fn several_batches_may_share_one_question() {
    for features in both(Features::RING_EVENT_IDX) {
        let mut driver = Driver::new(Guest::new(4, features));
        let mut queue = driver.guest.queue();
        if driver.guest.packed() {
            driver.guest.set16(driver.guest.layout.driver, 0x8002);
            driver.guest.set16(driver.guest.layout.driver + 2, 2);
        } else {
            driver.guest.set16(driver.guest.layout.driver + 4 + 8, 2);
        }
        serve(&mut driver, &mut queue, 1);
        assert!(queue.needs_notify(), "the first batch");
        serve(&mut driver, &mut queue, 1);
        serve(&mut driver, &mut queue, 1);
        serve(&mut driver, &mut queue, 1);
        assert!(queue.needs_notify());
    }
}

#[test]
fn so_many_that_the_index_wrapped_need_a_notification() {
    if cfg!(miri) {
        return;
    }
    for features in both(Features::RING_EVENT_IDX) {
        let mut driver = Driver::new(Guest::new(4, features));
        let mut queue = driver.guest.queue();
        if driver.guest.packed() {
            driver.guest.set16(driver.guest.layout.driver, 3);
            driver.guest.set16(driver.guest.layout.driver + 2, 2);
        } else {
            driver
                .guest
                .set16(driver.guest.layout.driver + 4 + 8, 60_000);
        }
        for _ in 0..0x1_0001 {
            serve(&mut driver, &mut queue, 1);
        }
        assert!(queue.needs_notify());
    }
}

#[test]
fn kicks_are_switched_by_flags() {
    let [split, packed] = both(Features::empty()).map(|f| Guest::new(4, f));
    let (mut s, mut p) = (split.queue(), packed.queue());
    assert!(!s.set_kicks(false));
    assert!(!p.set_kicks(false));
    assert_eq!(split.get16(split.layout.device), 1);
    assert_eq!(packed.get16(packed.layout.device + 2), 1);
    assert!(!s.set_kicks(true));
    assert!(!p.set_kicks(true));
    assert_eq!(split.get16(split.layout.device), 0);
    assert_eq!(packed.get16(packed.layout.device + 2), 0);
}

#[test]
fn kicks_are_asked_for_at_the_next_chain() {
    for features in both(Features::RING_EVENT_IDX) {
        let mut driver = Driver::new(Guest::new(4, features));
        let mut queue = driver.guest.queue();
        serve(&mut driver, &mut queue, 3);
        assert!(!queue.set_kicks(true));
        let device = driver.guest.layout.device;
        if driver.guest.packed() {
            assert_eq!(driver.guest.get16(device), 0x8003);
            assert_eq!(driver.guest.get16(device + 2), 2);
            serve(&mut driver, &mut queue, 1);
            queue.set_kicks(true);
            assert_eq!(driver.guest.get16(device), 0x0000);
            queue.set_kicks(false);
            assert_eq!(driver.guest.get16(device + 2), 1);
        } else {
            assert_eq!(driver.guest.get16(device + 4 + 8 * 4), 3);
            assert_eq!(
                driver.guest.get16(device),
                0,
                "flags stay 0 with an event index"
            );
        }
    }
}

#[test]
fn a_chain_that_waits_already_is_noticed() {
    for features in [Features::empty(), Features::RING_EVENT_IDX]
        .map(both)
        .concat()
    {
        let mut driver = Driver::new(Guest::new(4, features));
        let mut queue = driver.guest.queue();
        assert!(!queue.set_kicks(true));
        driver.add(&[ONE], false, 0);
        assert!(!queue.set_kicks(false));
        assert!(queue.set_kicks(true));
        let chain = queue.take_readable(&mut Vec::new()).unwrap().unwrap();
        assert!(!queue.set_kicks(true));
        queue.untake(&[chain]);
        assert!(queue.set_kicks(true));
    }
}

#[test]
fn a_threshold_asks_for_a_kick_after_so_many_chains() {
    for features in both(Features::RING_EVENT_IDX) {
        let mut driver = Driver::new(Guest::new(4, features));
        let mut queue = driver.guest.queue();
        serve(&mut driver, &mut queue, 3);
        let event = |driver: &Driver| {
            let device = driver.guest.layout.device;
            let at = if driver.guest.packed() { 0 } else { 4 + 8 * 4 };
            driver.guest.get16(device + at)
        };
        // Of a packed queue: the slot, and the wrap counter of the lap.
        let packed = driver.guest.packed();
        for (chains, split_event, packed_event) in [
            (0, 3, 0x8003),
            (1, 3, 0x8003),
            (3, 5, 1),
            (4, 6, 2),
            (99, 6, 2),
        ] {
            assert_eq!(queue.set_kick_threshold(chains), Some(false));
            let expected = if packed { packed_event } else { split_event };
            assert_eq!(event(&driver), expected, "{chains} chains");
        }
        driver.add(&[ONE], false, 0);
        assert_eq!(queue.set_kick_threshold(4), Some(true), "one is there");
    }
}

#[test]
fn without_an_event_index_there_is_no_threshold() {
    for features in both(Features::empty()) {
        let guest = Guest::new(4, features);
        let mut queue = guest.queue();
        queue.set_kicks(false);
        let words = || [0, 2].map(|at| guest.get16(guest.layout.device + at));
        let before = words();
        assert_eq!(queue.set_kick_threshold(2), None);
        assert_eq!(words(), before);
    }
}
