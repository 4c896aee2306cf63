use std::sync::Arc;
use std::time::Duration;

use port::PortId;

use super::boost::Boost;
use super::desk::*;
use super::helper::{Backoff, Helper, Helpers, Hysteresis, depend_on};
use super::system::Thread;
use crate::worker::Help;

const PORT: PortId = PortId(0xfff_ffff);

#[test]
fn a_pair_goes_there_and_back() {
    let desk = Desk::new();
    assert_eq!(desk.lend(PORT, 63), Some((0, false)));
    assert_eq!(desk.claim(1), None);
    for _ in 0..3 {
        assert_eq!(desk.claim(0), Some((PORT, 63)));
        assert!(desk.in_piece() && desk.claim(0).is_none());
        desk.done(0, Next::Keep);
    }
    assert_eq!(desk.beat(0), 3);
    assert!(!desk.in_piece() && !desk.is_back(0));
    assert_eq!(desk.take_back(0), Some(Reason::Asked));
    assert_eq!(desk.claim(0), None);
    assert_eq!(desk.take_back(0), None, "it is not lent");
}

#[test]
fn what_is_asked_for_in_a_piece_comes_back_behind_it() {
    for (next, reason) in [
        (Next::Keep, Reason::Asked),
        (Next::Back(Reason::Quiet), Reason::Quiet),
        (Next::Back(Reason::Unknown), Reason::Unknown),
    ] {
        let desk = Desk::new();
        desk.lend(PORT, 0).unwrap();
        desk.claim(0).unwrap();
        assert_eq!(desk.take_back(0), None);
        assert_eq!(desk.take_back(0), None);
        assert!(desk.in_piece() && !desk.is_back(0));
        desk.done(0, next);
        assert!(desk.is_back(0) && desk.claim(0).is_none());
        assert_eq!(desk.take_back(0), Some(reason));
        assert!(desk.lend(PORT, 1).is_some());
    }
}

#[test]
fn a_full_desk_takes_no_more_and_a_sleeper_is_woken_once() {
    let desk = Desk::new();
    assert!(desk.prepare_sleep());
    assert_eq!(desk.lend(PORT, 0), Some((0, true)));
    for at in 1..SLOTS {
        assert_eq!(desk.lend(PORT, 0), Some((at, false)));
    }
    assert!(desk.is_full() && desk.lend(PORT, 9).is_none());
    assert!(!desk.prepare_sleep());
    assert_eq!(desk.take_back(2), Some(Reason::Asked));
    assert_eq!(desk.lend(PORT, 0), Some((2, false)));
}

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

#[test]
fn a_pair_that_comes_back_at_once_stays_longer_the_next_time() {
    let mut hysteresis = Hysteresis::new(us(5));
    hysteresis.came(us(0));
    assert!(!hysteresis.is_over(us(4), us(50)));
    assert!(hysteresis.is_over(us(5), us(51)));
    for (came, over) in [(100, 10), (200, 20), (300, 40), (400, 50), (500, 50)] {
        hysteresis.came(us(came));
        assert!(!hysteresis.is_over(us(over - 1), us(came + over)), "{over}");
        assert!(hysteresis.is_over(us(over), us(came + over)), "{over}");
    }
    // It came late: less and less, down to what was told.
    for (came, over) in [(10_000, 25), (20_000, 12), (30_000, 6), (40_000, 5)] {
        hysteresis.came(us(came));
        assert!(!hysteresis.is_over(us(over - 1), us(came + over)), "{over}");
        assert!(hysteresis.is_over(us(over + 1), us(came + over)), "{over}");
    }
}

#[test]
fn a_core_that_does_not_help_is_asked_less_and_less() {
    let mut backoff = Backoff::default();
    assert!(backoff.is_over(us(0)));
    for wait in [1, 2, 4, 8, 16, 32, 64, 128, 128] {
        backoff.failed(us(7));
        assert!(!backoff.is_over(us(1000 * wait + 6)) && backoff.is_over(us(1000 * wait + 7)));
    }
    backoff.helped();
    backoff.failed(us(7));
    assert!(backoff.is_over(us(1007)));
}

/// A helper has a queue in the middle of a piece, and its core has something else to do. Whoever waits for the queue raises it: here
/// the piece ends only then.
#[test]
fn who_waits_for_a_helper_raises_it() {
    let core = super::topology::allowed()[0];
    let lane = crate::lane::Lane::new(0);
    let (reply, started) = std::sync::mpsc::sync_channel(1);
    let mut there = lane.share();
    let helper = std::thread::spawn(move || {
        let thread = match Thread::current(core, true) {
            Ok(thread) => thread,
            // It may not come back from the lowest priority.
            Err(error) => return assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
        };
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let helper = Arc::new(Helper {
            core,
            desk: Desk::new(),
            boost: Boost::new(thread),
            bell: Arc::new(bell),
            frames: 0.into(),
        });
        assert!(helper.boost.settle() && !helper.boost.is_raised());
        helper.desk.lend(PORT, 0).unwrap();
        helper.desk.claim(0).unwrap();
        there.hold();
        reply.send(Arc::clone(&helper)).unwrap();
        while !helper.boost.is_raised() {
            std::hint::spin_loop();
        }
        there.with(|value| *value += 1);
        there.let_go();
        helper.desk.done(0, Next::Keep);
        assert!(!helper.boost.settle(), "somebody wanted something");
        assert!(helper.boost.settle());
    });
    if let Ok(known) = started.recv() {
        depend_on(Arc::new(Helpers::new(vec![known], Help::none())));
        let mut here = lane;
        assert_eq!(here.with(|value| *value), 1);
    }
    helper.join().unwrap();
}
