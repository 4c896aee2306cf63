use std::sync::Arc;
use std::time::Duration;

use port::PortId;

use super::boost::Boost;
use super::handoff::*;
use super::helper::{Backoff, Helper, Helpers, Hysteresis, register_waiter};
use super::system::Thread;
use crate::worker::idle::helper::Help;

const PORT: PortId = PortId(0xfff_ffff);

#[test]
fn a_pair_goes_there_and_back() {
    let handoff = HandoffSlots::new();
    assert_eq!(handoff.assign(PORT, 63), Some((0, false)));
    assert_eq!(handoff.claim(1), None);
    for _ in 0..3 {
        assert_eq!(handoff.claim(0), Some((PORT, 63)));
        assert!(handoff.in_chunk() && handoff.claim(0).is_none());
        handoff.done(0, Next::Keep);
    }
    assert_eq!(handoff.progress(0), 3);
    assert!(!handoff.in_chunk() && !handoff.is_back(0));
    assert_eq!(handoff.take_back(0), Some(Reason::Requested));
    assert_eq!(handoff.claim(0), None);
    assert_eq!(handoff.take_back(0), None, "it is not assigned");
}

#[test]
fn copies_are_charged_once_and_to_the_last_receiver() {
    let handoff = HandoffSlots::new();
    assert_eq!(handoff.take_copies(1), None);
    handoff.note_copies(1, PortId(7), 1000);
    handoff.note_copies(1, PortId(1023), 1 << 40);
    assert_eq!(handoff.take_copies(0), None);
    let sum = (1 << 40) + 1000;
    assert_eq!(handoff.take_copies(1), Some((PortId(1023), sum)));
    assert_eq!(handoff.take_copies(1), None);
}

#[test]
fn a_pair_requested_in_a_chunk_comes_back_after_it() {
    for (next, reason) in [
        (Next::Keep, Reason::Requested),
        (Next::Back(Reason::Quiet), Reason::Quiet),
        (Next::Back(Reason::Unknown), Reason::Unknown),
    ] {
        let handoff = HandoffSlots::new();
        handoff.assign(PORT, 0).unwrap();
        handoff.claim(0).unwrap();
        assert_eq!(handoff.take_back(0), None);
        assert_eq!(handoff.take_back(0), None);
        assert!(handoff.in_chunk() && !handoff.is_back(0));
        handoff.done(0, next);
        assert!(handoff.is_back(0) && handoff.claim(0).is_none());
        assert_eq!(handoff.take_back(0), Some(reason));
        assert!(handoff.assign(PORT, 1).is_some());
    }
}

#[test]
fn full_slots_take_no_more_and_a_sleeper_is_woken_once() {
    let handoff = HandoffSlots::new();
    assert!(handoff.prepare_sleep());
    assert_eq!(handoff.assign(PORT, 0), Some((0, true)));
    for at in 1..SLOTS {
        assert_eq!(handoff.assign(PORT, 0), Some((at, false)));
    }
    assert!(handoff.is_full() && handoff.assign(PORT, 9).is_none());
    assert!(!handoff.prepare_sleep());
    assert_eq!(handoff.take_back(2), Some(Reason::Requested));
    assert_eq!(handoff.assign(PORT, 0), Some((2, false)));
}

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

#[test]
fn a_pair_that_comes_back_at_once_stays_longer_the_next_time() {
    let mut hysteresis = Hysteresis::new(us(5));
    hysteresis.arrived(us(0));
    assert!(!hysteresis.is_over(us(4), us(50)));
    assert!(hysteresis.is_over(us(5), us(51)));
    for (arrived, over) in [(100, 10), (200, 20), (300, 40), (400, 50), (500, 50)] {
        hysteresis.arrived(us(arrived));
        assert!(
            !hysteresis.is_over(us(over - 1), us(arrived + over)),
            "{over}"
        );
        assert!(hysteresis.is_over(us(over), us(arrived + over)), "{over}");
    }
    // It came late: less and less, down to the configured time.
    for (arrived, over) in [(10_000, 25), (20_000, 12), (30_000, 6), (40_000, 5)] {
        hysteresis.arrived(us(arrived));
        assert!(
            !hysteresis.is_over(us(over - 1), us(arrived + over)),
            "{over}"
        );
        assert!(
            hysteresis.is_over(us(over + 1), us(arrived + over)),
            "{over}"
        );
    }
}

#[test]
fn a_core_that_does_not_help_is_used_less_and_less() {
    let mut backoff = Backoff::default();
    assert!(backoff.is_over(us(0)));
    for wait in [1, 2, 4, 8, 16, 32, 64, 128, 128] {
        backoff.failed(us(7));
        assert!(!backoff.is_over(us(1000 * wait + 6)) && backoff.is_over(us(1000 * wait + 7)));
    }
    backoff.succeeded();
    backoff.failed(us(7));
    assert!(backoff.is_over(us(1007)));
}

/// A helper holds a queue lock in a chunk, and its core is busy. A thread that waits for the lock
/// boosts the helper: here the chunk ends only then.
#[test]
fn a_waiter_boosts_the_helper() {
    let core = sched::topology::allowed()[0];
    let queue = crate::ports::queue_lock::QueueLock::new(0);
    let (reply, started) = std::sync::mpsc::sync_channel(1);
    let mut there = queue.share();
    let helper = std::thread::spawn(move || {
        let thread = match Thread::current(core, true) {
            Ok(thread) => thread,
            // The thread may not return from the lowest priority.
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
                return testkit::skip::skipped("no right to raise a thread of the lowest priority");
            }
        };
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let helper = Arc::new(Helper {
            core,
            handoff: HandoffSlots::new(),
            boost: Boost::new(thread),
            bell: Arc::new(bell),
            frames: 0.into(),
        });
        assert!(helper.boost.lower() && !helper.boost.is_raised());
        helper.handoff.assign(PORT, 0).unwrap();
        helper.handoff.claim(0).unwrap();
        there.lock();
        reply.send(Arc::clone(&helper)).unwrap();
        while !helper.boost.is_raised() {
            std::hint::spin_loop();
        }
        there.with(|value| *value += 1);
        there.unlock();
        helper.handoff.done(0, Next::Keep);
        assert!(!helper.boost.lower(), "a request was pending");
        assert!(helper.boost.lower());
    });
    if let Ok(known) = started.recv() {
        register_waiter(Arc::new(Helpers {
            list: vec![known],
            help: Help::none(),
        }));
        let mut here = queue;
        assert_eq!(here.with(|value| *value), 1);
    }
    helper.join().unwrap();
}
