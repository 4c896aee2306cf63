//! Every interleaving of a home, a helper and others, by loom.
//!
//! The two files are the switch's own, with loom's atomics in the place of the real ones.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use port::PortId;

use idle::boost::{Boost, Scheduling};
use idle::desk::{Desk, Next, Reason};

#[path = "../src/idle"]
mod idle {
    #![allow(dead_code)] // each file is here for what is modelled of it

    mod sync {
        pub(super) use loom::sync::Mutex;
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
        pub(super) use loom::thread::yield_now;
    }

    pub(crate) mod boost;
    pub(crate) mod desk;
}

const PORT: PortId = PortId(7);

/// A queue pair that only its owner may touch; loom reports who does at the same time.
struct Pair(UnsafeCell<u32>);

// SAFETY: that nobody else has it is what these tests are about.
unsafe impl Sync for Pair {}
// SAFETY: as above.
unsafe impl Send for Pair {}

impl Pair {
    fn serve(&self) {
        // SAFETY: as above.
        self.0.with_mut(|count| unsafe { *count += 1 });
    }
}

fn model(threads: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_threads = threads + 1;
    builder.check(run);
}

/// Home lends, works on, and takes back; the helper does two pieces at most. Nobody has the pair at the same time, and what each
/// did is seen by the other.
#[test]
fn a_pair_is_served_by_one_at_a_time() {
    for last in [Next::Keep, Next::Back(Reason::Quiet)] {
        model(2, move || {
            let desk = Arc::new(Desk::new());
            let pair = Arc::new(Pair(UnsafeCell::new(0)));
            pair.serve();
            desk.lend(PORT, 3).expect("room");
            let helper = {
                let (desk, pair) = (Arc::clone(&desk), Arc::clone(&pair));
                thread::spawn(move || {
                    let mut pieces = 0;
                    for next in [Next::Keep, last] {
                        if desk.claim(0) == Some((PORT, 3)) {
                            pair.serve();
                            desk.done(0, next);
                            pieces += 1;
                        }
                    }
                    pieces
                })
            };
            while desk.take_back(0).is_none() {
                thread::yield_now();
            }
            pair.serve();
            let pieces = helper.join().expect("no panic");
            // SAFETY: the helper has ended.
            let count = pair.0.with(|count| unsafe { *count });
            assert_eq!(count, pieces + 2);
            assert!(!desk.in_piece() && desk.claim(0).is_none());
        });
    }
}

/// Two homes lend to one helper: each gets a slot of its own.
#[test]
fn two_homes_get_two_slots() {
    model(2, || {
        let desk = Arc::new(Desk::new());
        let other = Arc::clone(&desk);
        let there = thread::spawn(move || other.lend(PORT, 1).expect("room").0);
        let here = desk.lend(PORT, 2).expect("room").0;
        assert_ne!(here, there.join().expect("no panic"));
    });
}

/// A helper that goes to sleep while something is lent wakes up for it: a lost wake-up is a deadlock, which loom reports.
#[test]
fn no_loan_is_slept_through() {
    model(2, || {
        let desk = Arc::new(Desk::new());
        let bell = Arc::new(Notify::new());
        let helper = {
            let (desk, bell) = (Arc::clone(&desk), Arc::clone(&bell));
            thread::spawn(move || {
                while desk.claim(0).is_none() {
                    if desk.prepare_sleep() {
                        bell.wait();
                        desk.woke();
                    }
                }
                desk.done(0, Next::Back(Reason::Quiet));
            })
        };
        if desk.lend(PORT, 0).expect("room").1 {
            bell.notify();
        }
        helper.join().expect("no panic");
        assert_eq!(desk.take_back(0), Some(Reason::Quiet));
    });
}

/// What the system was told last.
struct Policy {
    lowest: AtomicBool,
    /// What the thread was asked for, and has not done.
    open: AtomicUsize,
}

impl Scheduling for Arc<Policy> {
    fn normal(&self) {
        self.lowest.store(false, Ordering::SeqCst);
    }

    fn idle(&self) {
        self.lowest.store(true, Ordering::SeqCst);
    }

    fn move_to(&self, _: Option<u16>) {}
}

/// Does what was asked for, then settles, as the thread does.
fn do_and_settle(policy: &Policy, boost: &Boost<Arc<Policy>>) {
    loop {
        policy.open.swap(0, Ordering::SeqCst);
        if boost.settle() {
            return;
        }
    }
}

/// Somebody asks for something while the thread settles. When the call is over, the thread has done it or is an ordinary one; and it
/// settles in the end.
#[test]
fn who_asks_is_heard_with_ordinary_priority() {
    model(2, || {
        let policy = Arc::new(Policy {
            lowest: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        });
        let boost = Arc::new(Boost::new(Arc::clone(&policy)));
        let asker = {
            let (boost, policy) = (Arc::clone(&boost), Arc::clone(&policy));
            thread::spawn(move || {
                policy.open.fetch_add(1, Ordering::SeqCst);
                boost.raise(None);
                // In this order: what is open after the look was open at the look.
                let lowest = policy.lowest.load(Ordering::SeqCst);
                let open = policy.open.load(Ordering::SeqCst) != 0;
                assert!(!(lowest && open), "it waits with the lowest priority");
            })
        };
        do_and_settle(&policy, &boost);
        asker.join().expect("no panic");
        if boost.is_raised() {
            do_and_settle(&policy, &boost);
        }
        assert_eq!(policy.open.load(Ordering::SeqCst), 0);
        assert!(policy.lowest.load(Ordering::SeqCst), "it has settled");
    });
}
