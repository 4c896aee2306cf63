//! A thread of the lowest priority (`SCHED_IDLE`, sched(7)) that others must not wait for in vain.
//!
//! It runs only while its core has nothing else to do. That is what it is for, but it is bad for those who wait for it: for a queue
//! that it holds in the middle of a piece, or for the answer to a message. They *raise* it: it becomes an ordinary thread, and where
//! somebody spins for it, it moves to that thread's core, which is then given up for a moment. When it is done it settles again.
//!
//! Raising takes `RLIMIT_NICE` of 20 at least (the priority of every ordinary thread; setrlimit(2)). Without, there are no helpers.

use super::sync::{AtomicBool, Mutex, Ordering, yield_now};

/// How the system is told; tests have their own.
pub(crate) trait Scheduling {
    /// The thread becomes an ordinary one.
    fn normal(&self);
    /// It runs when its core has nothing else to do; called by itself.
    fn idle(&self);
    /// It moves to this core, or with `None` to its own.
    fn move_to(&self, core: Option<u16>);
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Boost<S> {
    system: S,
    /// Whoever changes the priority has this.
    changing: Mutex<()>,
    /// Somebody wants something that was not looked for since.
    wanted: AtomicBool,
    /// It is an ordinary thread.
    raised: AtomicBool,
    moved: AtomicBool,
}

impl<S: Scheduling> Boost<S> {
    /// Of a thread that is an ordinary one, and settles when it has nothing to do.
    pub(crate) fn new(system: S) -> Self {
        Self {
            system,
            changing: Mutex::new(()),
            wanted: AtomicBool::new(false),
            raised: AtomicBool::new(true),
            moved: AtomicBool::new(false),
        }
    }

    /// Has the thread run soon: whatever it was asked for before this call, it will do with ordinary priority, on `core` if one is
    /// named.
    pub(crate) fn raise(&self, core: Option<u16>) {
        // It was asked to look again by somebody, and will see what we want.
        if core.is_none() && self.wanted.load(Ordering::SeqCst) {
            return;
        }
        loop {
            // The lock may be held by the thread itself, which does not run then.
            self.system.normal();
            if let Ok(_changing) = self.changing.try_lock() {
                self.wanted.store(true, Ordering::SeqCst);
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

    /// Whether [`Boost::settle`] is due.
    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// The thread itself: it has done all that it was asked for, and takes the lowest priority again. `false` when somebody came
    /// meanwhile: then it is to look again what for.
    pub(crate) fn settle(&self) -> bool {
        let Ok(_changing) = self.changing.lock() else {
            return true; // nobody panics with it
        };
        if self.wanted.swap(false, Ordering::SeqCst) {
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
