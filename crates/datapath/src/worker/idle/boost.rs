//! Priority boost of a thread of the lowest priority (`SCHED_IDLE`, sched(7)).
//!
//! Such a thread runs only while its core has nothing else to do. Other threads would wait too long
//! for it: for a queue lock that it holds in a chunk, or for the reply to a message. They *raise*
//! it: it gets the ordinary priority, and a spinning waiter moves it to its own core and yields.
//! When it has done its work it *lowers* its priority again.
//!
//! Raising requires an `RLIMIT_NICE` of at least 20 (the priority of every ordinary thread;
//! setrlimit(2)). Without it, there are no helpers.

use super::sync::{AtomicBool, Mutex, Ordering, yield_now};

/// The scheduler's calls; tests replace them.
pub(crate) trait Scheduling {
    /// Sets the ordinary priority.
    fn normal(&self);
    /// Sets the lowest priority; only the thread itself calls it.
    fn idle(&self);
    /// Moves the thread to this core; `None`: to its own core.
    fn move_to(&self, core: Option<u16>);
}

/// The priority of one thread.
#[derive(Debug)]
pub(crate) struct Boost<S> {
    system: S,
    /// Held by the thread that changes the priority.
    lock: Mutex<()>,
    /// A request came since the thread last checked for work.
    pending: AtomicBool,
    /// The thread has the ordinary priority.
    raised: AtomicBool,
    moved: AtomicBool,
}

impl<S: Scheduling> Boost<S> {
    /// Creates the state of a thread with the ordinary priority.
    pub(crate) fn new(system: S) -> Self {
        Self {
            system,
            lock: Mutex::new(()),
            pending: AtomicBool::new(false),
            raised: AtomicBool::new(true),
            moved: AtomicBool::new(false),
        }
    }

    /// Raises the priority: requests from before this call are handled with ordinary priority, on
    /// `core` if one is given.
    pub(crate) fn raise(&self, core: Option<u16>) {
        // A pending request is not handled yet: the thread will see this one as well.
        if core.is_none() && self.pending.load(Ordering::SeqCst) {
            return;
        }
        loop {
            // The thread itself may hold the lock, and not run.
            self.system.normal();
            if let Ok(_lock) = self.lock.try_lock() {
                self.pending.store(true, Ordering::SeqCst);
                self.raised.store(true, Ordering::Relaxed);
                self.system.normal();
                if core.is_some() {
                    self.moved.store(true, Ordering::Relaxed);
                    self.system.move_to(core);
                }
                return;
            }
            yield_now();
        }
    }

    /// Returns whether [`Boost::lower`] is due.
    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Lowers the priority; called by the thread itself when its work is done. Returns `false` when
    /// a request came meanwhile: the thread must check for work again.
    pub(crate) fn lower(&self) -> bool {
        let Ok(_lock) = self.lock.lock() else {
            return true; // no holder panics
        };
        if self.pending.swap(false, Ordering::SeqCst) {
            return false;
        }
        if self.moved.swap(false, Ordering::Relaxed) {
            self.system.move_to(None);
        }
        self.raised.store(false, Ordering::Relaxed);
        self.system.idle();
        true
    }
}
