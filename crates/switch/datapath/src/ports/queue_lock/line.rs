//! Line of threads that have waited long for a lock, so that each gets it.
//!
//! A lock without one is taken by the fastest thread, mostly by its last owner. Then a wait has no
//! bound: each hold is short, and there may be any number of them. A line for all would bound it,
//! but a thread that is first there and does not run would hold up all others. So only those go
//! into it who have lost many holds:
//!
//! ```text
//! waits      while the line is empty, as all threads do
//! joins      when it has lost 16 holds
//! is first   when those before it have had the lock, each for one hold
//! leaves     when it has locked
//! ```
//!
//! While a thread is in the line, no thread outside delivers to the queue; at most, each ends an
//! attempt that it had begun. So a wait takes 16 holds, those of the threads before it in the line,
//! and one of each other thread. Operations that are no batch, such as a look for a notification,
//! see no line; they are short, and none of them is repeated without other work in between. Who has
//! the lock is decided by the turn alone.

use super::sync::{AtomicU32, Ordering};

/// Line of a lock; see the module.
#[derive(Debug)]
pub(crate) struct Line {
    /// Places that were given away.
    joined: AtomicU32,
    /// The first place that has not left.
    first: AtomicU32,
}

impl Line {
    pub(crate) fn new() -> Self {
        Self {
            joined: AtomicU32::new(0),
            first: AtomicU32::new(0),
        }
    }

    /// Returns whether a thread outside may lock, as a hint.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.joined.load(Ordering::Relaxed) == self.first.load(Ordering::Relaxed)
    }

    /// Joins the line; returns the place.
    pub(crate) fn join(&self) -> u32 {
        self.joined.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether the thread at this place may lock.
    pub(crate) fn is_first(&self, place: u32) -> bool {
        self.first.load(Ordering::Relaxed) == place
    }

    /// Leaves the line. For who is first.
    pub(crate) fn leave(&self, place: u32) {
        self.first.store(place.wrapping_add(1), Ordering::Relaxed);
    }
}
