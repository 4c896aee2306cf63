//! Every interleaving of a home worker, a helper and other threads, by loom.
//!
//! The two modules are the switch's own, with loom's atomics in place of the real ones.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use port::PortId;

use idle::boost::{Boost, Scheduling};
use idle::handoff::{HandoffSlots, Next, Reason};

#[path = "../src/worker/idle"]
mod idle {
    #![allow(dead_code)] // each file is here for what is modelled of it

    mod sync {
        pub(super) use loom::sync::Mutex;
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
        pub(super) use loom::thread::yield_now;
    }

    pub(crate) mod boost;
    pub(crate) mod handoff;
}

const PORT: PortId = PortId(7);

/// A queue pair that only its owner may touch; loom reports simultaneous accesses.
struct Pair(UnsafeCell<u32>);

// SAFETY: these tests prove that one thread at a time has it.
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

/// Home assigns a pair, continues, and takes it back; the helper does at most two chunks. No two
/// threads have the pair at the same time, and each sees the other's writes.
#[test]
fn a_pair_is_served_by_one_at_a_time() {
    for last in [Next::Keep, Next::Back(Reason::Quiet)] {
        model(2, move || {
            let handoff = Arc::new(HandoffSlots::new());
            let pair = Arc::new(Pair(UnsafeCell::new(0)));
            pair.serve();
            handoff.assign(PORT, 3).expect("room");
            let helper = {
                let (handoff, pair) = (Arc::clone(&handoff), Arc::clone(&pair));
                thread::spawn(move || {
                    let mut chunks = 0;
                    for next in [Next::Keep, last] {
                        if handoff.claim(0) == Some((PORT, 3)) {
                            pair.serve();
                            handoff.done(0, next);
                            chunks += 1;
                        }
                    }
                    chunks
                })
            };
            while handoff.take_back(0).is_none() {
                thread::yield_now();
            }
            pair.serve();
            let chunks = helper.join().expect("no panic");
            // SAFETY: the helper has ended.
            let count = pair.0.with(|count| unsafe { *count });
            assert_eq!(count, chunks + 2);
            assert!(!handoff.in_chunk() && handoff.claim(0).is_none());
        });
    }
}

/// Two homes assign to one helper: each gets a slot of its own.
#[test]
fn two_homes_get_two_slots() {
    model(2, || {
        let handoff = Arc::new(HandoffSlots::new());
        let other = Arc::clone(&handoff);
        let there = thread::spawn(move || other.assign(PORT, 1).expect("room").0);
        let here = handoff.assign(PORT, 2).expect("room").0;
        assert_ne!(here, there.join().expect("no panic"));
    });
}

/// A helper that is about to sleep wakes up for an assignment: a lost wake-up is a deadlock, which
/// loom reports.
#[test]
fn no_assignment_is_slept_through() {
    model(2, || {
        let handoff = Arc::new(HandoffSlots::new());
        let bell = Arc::new(Notify::new());
        let helper = {
            let (handoff, bell) = (Arc::clone(&handoff), Arc::clone(&bell));
            thread::spawn(move || {
                while handoff.claim(0).is_none() {
                    if handoff.prepare_sleep() {
                        bell.wait();
                        handoff.woke();
                    }
                }
                handoff.done(0, Next::Back(Reason::Quiet));
            })
        };
        if handoff.assign(PORT, 0).expect("room").1 {
            bell.notify();
        }
        helper.join().expect("no panic");
        assert_eq!(handoff.take_back(0), Some(Reason::Quiet));
    });
}

/// The last calls of the scheduler.
struct Policy {
    lowest: AtomicBool,
    /// Requests to the thread that it has not handled.
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

/// Handles requests, then lowers the priority, as the thread does.
fn do_and_lower(policy: &Policy, boost: &Boost<Arc<Policy>>) {
    loop {
        policy.open.swap(0, Ordering::SeqCst);
        if boost.lower() {
            return;
        }
    }
}

/// A request comes while the thread lowers its priority. When the call returns, the thread has
/// handled the request or has the ordinary priority; in the end it has the lowest one.
#[test]
fn a_request_is_handled_with_ordinary_priority() {
    model(2, || {
        let policy = Arc::new(Policy {
            lowest: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        });
        let boost = Arc::new(Boost::new(Arc::clone(&policy)));
        let requester = {
            let (boost, policy) = (Arc::clone(&boost), Arc::clone(&policy));
            thread::spawn(move || {
                policy.open.fetch_add(1, Ordering::SeqCst);
                boost.raise(None);
                // In this order: a request that is open after the first load was open at it.
                let lowest = policy.lowest.load(Ordering::SeqCst);
                let open = policy.open.load(Ordering::SeqCst) != 0;
                assert!(!(lowest && open), "it waits with the lowest priority");
            })
        };
        do_and_lower(&policy, &boost);
        requester.join().expect("no panic");
        if boost.is_raised() {
            do_and_lower(&policy, &boost);
        }
        assert_eq!(policy.open.load(Ordering::SeqCst), 0);
        assert!(policy.lowest.load(Ordering::SeqCst), "it is lowered");
    });
}
