//! The word of a queue lock: a number that is even while the lock is free and odd while it is held,
//! times two. Each lock and each unlock adds one to it, so every hold has a number of its own.
//!
//! A thread that never locks can tell by it when a hold has ended ([`Turn::holder`],
//! [`Turn::is_over`]), also when the lock was taken again at once. That makes revocation possible
//! without the lock. A thread that removes an entry from a table which holders read waits until no
//! holder can have the entry any more:
//!
//! ```text
//! remover                                  holder
//! remove the entry                         turn becomes odd          (take)
//! fence(SeqCst)                            fence(SeqCst)
//! t = turn                                 look the entry up, use it
//! odd: wait until turn is not t            turn becomes even         (end)
//! reuse what the entry led to
//! ```
//!
//! One of the two fences is before the other in the order of all fences:
//!
//! * *The holder's:* its turn was odd before its fence, and the remover loads the turn behind its
//!   own. So it finds that number or a later one. If it finds that number, it waits for the next.
//!   The next is stored by `end` with release, or was added by a later `take`, which continues the
//!   release sequence of that store. The remover loads with acquire. So all that the holder did is
//!   before all that the remover does next.
//! * *The remover's:* the holder looks up behind its own fence, and finds no entry.
//!
//! The lock has no fence of its own: a holder that reads such a table has one, behind `take`. What
//! it kept from an earlier hold it may use only when it knows, behind that fence, that nothing was
//! removed since.
//!
//! The number wraps around. A waiting thread that missed a multiple of 2^31 changes waits for one
//! more, so it never waits for less than the hold that it found.

use super::sync::{AtomicU32, Ordering};

/// One, times two: set while the lock is held. (Not bit 0, for which LLVM makes a loop of `take`
/// where it is followed by a branch.)
const HELD: u32 = 2;

/// Word of a lock; see the module.
#[derive(Debug)]
pub(crate) struct Turn(AtomicU32);

impl Turn {
    /// Returns a free lock.
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes the lock if it is free. Returns whether it was.
    #[inline(always)]
    pub(crate) fn take(&self) -> bool {
        // One instruction on x86, as an exchange. A lock that is held stays as it is.
        self.0.fetch_or(HELD, Ordering::Acquire) & HELD == 0
    }

    /// Returns whether the lock is free, as a hint.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.0.load(Ordering::Relaxed) & HELD == 0
    }

    /// Releases the lock. For its holder alone.
    #[inline(always)]
    pub(crate) fn end(&self) {
        // No other thread changes an odd number, so this needs no read-modify-write.
        let held = self.0.load(Ordering::Relaxed);
        self.0.store(held.wrapping_add(HELD), Ordering::Release);
    }

    /// Returns the number of holds that have ended, as a hint. It wraps around.
    #[inline]
    pub(crate) fn holds(&self) -> u32 {
        self.0.load(Ordering::Relaxed) / (2 * HELD)
    }

    /// Returns the number of the present hold, if the lock is held.
    #[inline]
    pub(crate) fn holder(&self) -> Option<u32> {
        // Acquire: what a free lock's last holder did is before what the caller does next.
        let turn = self.0.load(Ordering::Acquire);
        (turn & HELD != 0).then_some(turn)
    }

    /// Returns whether the hold with this number has ended.
    #[inline]
    pub(crate) fn is_over(&self, hold: u32) -> bool {
        self.0.load(Ordering::Acquire) != hold
    }
}
