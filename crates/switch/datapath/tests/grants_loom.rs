//! Every interleaving of a worker that uses a granted page and the thread that revokes it, by loom.
//!
//! The turn of the queue lock, the slots of the table and its rules are the switch's own, with
//! loom's atomics; the lock's value, the file and the wait with its hook are left out.
//!
//! Each fence is needed here, and so are the orders of `end`, `holder` and `is_over`: without any
//! of them, one of these tests fails. (That of `take` is needed where no fence is behind it.)

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;

use iotlb::slot::Slot;
use queue_lock::line::Line;
use queue_lock::turn::Turn;

#[path = "../src/ports/queue_lock"]
mod queue_lock {
    #![allow(dead_code)] // each file is here for what is modelled of it

    mod sync {
        pub(super) use loom::sync::atomic::{AtomicU32, Ordering};
    }

    pub(crate) mod line;
    pub(crate) mod turn;
}

#[path = "../../../lib/memory/src/iotlb"]
mod iotlb {
    #![allow(dead_code)] // each file is here for what is modelled of it

    mod sync {
        pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
    }

    pub(crate) mod slot;
}

/// Keys have bit 63.
const KEY: u64 = 1 << 63 | 0x50;
const VALUE: u64 = 0x1000;

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// A page that is granted, and the lock of the queue by which it is reached. Loom reports an access
/// to the page beside one that writes it.
struct Granted {
    turn: Turn,
    slot: Slot,
    /// Changes with each revocation, in front of the fence; see `Iotlb::generation`.
    generation: AtomicU64,
    page: UnsafeCell<u64>,
}

// SAFETY: these tests prove that the page is written by one thread while no other accesses it.
unsafe impl Sync for Granted {}
// SAFETY: as above.
unsafe impl Send for Granted {}

impl Granted {
    fn new() -> Arc<Self> {
        let granted = Self {
            turn: Turn::new(),
            slot: Slot {
                check: AtomicU64::new(0),
                value: AtomicU64::new(0),
            },
            generation: AtomicU64::new(0),
            page: UnsafeCell::new(0),
        };
        granted.slot.write(KEY, VALUE);
        Arc::new(granted)
    }

    /// Uses the page as a worker that has the lock does: it fills a frame into it.
    fn fill(&self) {
        // SAFETY: the owner does not use the page while this worker may; loom checks it.
        self.page.with_mut(|page| unsafe { *page += 1 });
    }

    /// One batch of a worker: locks, looks up, uses the page, unlocks. The lock is free.
    fn batch(&self) {
        assert!(self.turn.take());
        fence(Ordering::SeqCst);
        if self.slot.find(KEY).is_some() {
            self.fill();
        }
        self.turn.end();
    }

    /// Revokes the page and waits for the present holder, as the session thread does for
    /// INVALIDATE. It locks nothing.
    fn revoke(&self) {
        self.slot.clear();
        // In front of the fence, as `IotlbWriter::invalidate` has it.
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store(generation + 1, Ordering::Release);
        fence(Ordering::SeqCst);
        if let Some(hold) = self.turn.holder() {
            while !self.turn.is_over(hold) {
                thread::yield_now();
            }
        }
    }

    /// Uses the page as its owner, who has it back.
    fn own(&self) {
        // SAFETY: no worker uses it any more; loom checks it.
        self.page.with_mut(|page| unsafe { *page = 100 });
    }
}

/// The owner has the page for itself when it was revoked, whatever a worker is doing.
#[test]
fn a_revoked_page_is_its_owners_alone() {
    model(|| {
        let granted = Granted::new();
        let theirs = Arc::clone(&granted);
        let worker = thread::spawn(move || theirs.batch());
        granted.revoke();
        granted.own();
        worker.join().expect("no panic");
        // SAFETY: the worker has ended.
        assert_eq!(granted.page.with(|page| unsafe { *page }), 100);
    });
}

/// A worker that locks again at once does not hold up the revocation, and finds no entry then. Nor
/// does it matter that the hold that is found is not the first.
#[test]
fn a_worker_that_locks_again_at_once_uses_nothing_revoked() {
    model(|| {
        let granted = Granted::new();
        let theirs = Arc::clone(&granted);
        let worker = thread::spawn(move || {
            theirs.batch();
            theirs.batch();
        });
        granted.revoke();
        granted.own();
        worker.join().expect("no panic");
        // SAFETY: the worker has ended.
        assert_eq!(granted.page.with(|page| unsafe { *page }), 100);
    });
}

/// Two workers use the queue one after the other, and only the lock orders them. (The second never
/// tries it in vain: loom might order that exchange behind the store that ends the hold.)
#[test]
fn a_page_is_revoked_from_all_workers() {
    model(|| {
        let granted = Granted::new();
        let ended = Arc::new(AtomicBool::new(false));
        let (first, second) = (Arc::clone(&granted), Arc::clone(&granted));
        let told = Arc::clone(&ended);
        let workers = [
            thread::spawn(move || {
                first.batch();
                told.store(true, Ordering::Relaxed);
            }),
            thread::spawn(move || {
                if ended.load(Ordering::Relaxed) {
                    second.batch();
                }
            }),
        ];
        granted.revoke();
        granted.own();
        for worker in workers {
            worker.join().expect("no panic");
        }
        // SAFETY: the workers have ended.
        assert_eq!(granted.page.with(|page| unsafe { *page }), 100);
    });
}

/// A worker keeps a translation from one hold to the next. It uses it while the generation that it
/// finds behind its fence is the one that it read before it looked up.
#[test]
fn a_translation_that_was_kept_is_not_used_once_it_is_revoked() {
    model(|| {
        let granted = Granted::new();
        let theirs = Arc::clone(&granted);
        // Kept from a hold before all this.
        let kept = granted.generation.load(Ordering::Acquire);
        let worker = thread::spawn(move || {
            assert!(theirs.turn.take());
            fence(Ordering::SeqCst);
            if theirs.generation.load(Ordering::Acquire) == kept {
                theirs.fill();
            }
            theirs.turn.end();
        });
        granted.revoke();
        granted.own();
        worker.join().expect("no panic");
        // SAFETY: the worker has ended.
        assert_eq!(granted.page.with(|page| unsafe { *page }), 100);
    });
}

/// A lock with its line, and what it protects.
struct Shared {
    turn: Turn,
    line: Line,
    value: UnsafeCell<u32>,
}

// SAFETY: these tests prove that the value is reached by one thread at a time.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            turn: Turn::new(),
            line: Line::new(),
            value: UnsafeCell::new(0),
        })
    }

    /// Work of a thread that has the lock. Returns the number of holds before it.
    fn hold(&self) -> u32 {
        // SAFETY: loom checks it.
        let before = self.value.with_mut(|value| unsafe {
            *value += 1;
            *value - 1
        });
        self.turn.end();
        before
    }

    /// One attempt of the thread at a place in the line, as `QueueLock::wait` repeats it. Returns
    /// the number of holds before it.
    fn attempt_at(&self, place: u32) -> Option<u32> {
        let may_lock = self.line.is_first(place) && self.turn.is_free() && self.turn.take();
        may_lock.then(|| {
            self.line.leave(place);
            self.hold()
        })
    }

    /// One attempt of a thread outside the line.
    fn attempt(&self) -> Option<u32> {
        let may_lock = self.line.is_empty() && self.turn.take();
        may_lock.then(|| self.hold())
    }
}

/// Threads in the line lock in its order, and others after them. No lock is held twice.
#[test]
fn a_line_ends_in_its_order() {
    model(|| {
        let shared = Shared::new();
        let places = [shared.line.join(), shared.line.join()];
        let waiters = places.map(|place| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.attempt_at(place))
        });
        let outside = shared.attempt();
        let [first, second] = waiters.map(|waiter| waiter.join().expect("no panic"));
        assert!(matches!(first, None | Some(0)));
        assert!(matches!(second, None | Some(1)));
        assert!(matches!(outside, None | Some(2)));
        assert!(first.is_some() || second.is_none());
    });
}

/// A thread that locks again and again has begun each hold before another joins the line, or has it
/// after that one.
#[test]
fn a_thread_in_the_line_loses_no_further_hold() {
    model(|| {
        let shared = Shared::new();
        let theirs = Arc::clone(&shared);
        let joined = Arc::new(AtomicBool::new(false));
        let is_in_line = Arc::clone(&joined);
        let waiter = thread::spawn(move || {
            let place = theirs.line.join();
            is_in_line.store(true, Ordering::Release);
            theirs.attempt_at(place)
        });
        let mut mine = 0;
        for _ in 0..2 {
            let in_line = joined.load(Ordering::Acquire);
            if let Some(before) = shared.attempt() {
                assert!(!in_line || before == mine + 1, "behind it");
                mine += 1;
            }
        }
        let waited = waiter.join().expect("no panic");
        assert!(waited.is_none_or(|before| before <= mine));
    });
}
