//! A queue that several workers may use, one at a time.
//!
//! Every worker has a [`Lane`] to every queue of every port, because frames from any queue may go to any other.
//! A lane is held for a batch, never for a frame, and only by its holder is the queue reached. Who waits for a
//! lane holds none that others wait for in the same way (see `fabric`), so nobody waits in a circle.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Looks at a lane that is taken before its holder is given the core: a batch is done in about that time, unless
/// the holder does not run.
const LOOKS: u32 = 1000;

struct Shared<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by the one lane that has swapped `taken` from false to true, and is handed
// on with release and acquire; so sharing is no more than sending it from holder to holder.
unsafe impl<T: Send> Sync for Shared<T> {}

/// One user's way to a value that it shares with others.
pub struct Lane<T> {
    shared: Arc<Shared<T>>,
    held: bool,
}

impl<T> Lane<T> {
    /// A lane to `value`, not held.
    pub fn new(value: T) -> Self {
        let shared = Shared {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        };
        Self {
            shared: Arc::new(shared),
            held: false,
        }
    }

    /// Another user's lane to the same value.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            held: false,
        }
    }

    /// Holds the lane if nobody else does; whether it is held now.
    #[inline]
    pub fn try_hold(&mut self) -> bool {
        self.held = self.held || !self.shared.taken.swap(true, Ordering::Acquire);
        self.held
    }

    /// Holds the lane, as soon as nobody else does.
    #[inline]
    pub fn hold(&mut self) {
        if !self.try_hold() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&mut self) {
        loop {
            for _ in 0..LOOKS {
                std::hint::spin_loop();
                if !self.shared.taken.load(Ordering::Relaxed) && self.try_hold() {
                    return;
                }
            }
            // It may be a helper's whose core has something else to do.
            crate::idle::helper::rescue();
            std::thread::yield_now();
        }
    }

    /// The value, for the holder.
    #[inline]
    pub fn held(&mut self) -> Option<&mut T> {
        // SAFETY: this lane is held, so no other one reaches the value until this one lets go, for which it
        // must be borrowed anew.
        self.held.then(|| unsafe { &mut *self.shared.value.get() })
    }

    /// Lets others hold the lane.
    #[inline]
    pub fn let_go(&mut self) {
        if std::mem::take(&mut self.held) {
            self.shared.taken.store(false, Ordering::Release);
        }
    }

    /// As [`Lane::with`], unless somebody else holds the lane.
    pub fn try_with<R>(&mut self, job: impl FnOnce(&mut T) -> R) -> Option<R> {
        let before = self.held;
        let result = self.try_hold().then(|| self.with(job));
        if !before {
            self.let_go();
        }
        result
    }

    /// Does something with the value, which is held for that long at least.
    pub fn with<R>(&mut self, job: impl FnOnce(&mut T) -> R) -> R {
        let before = self.held;
        self.hold();
        // SAFETY: as in `held`; `hold` has returned.
        let result = job(unsafe { &mut *self.shared.value.get() });
        if !before {
            self.let_go();
        }
        result
    }
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl<T> fmt::Debug for Lane<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("held", &self.held).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_holder_reaches_the_value() {
        let mut mine = Lane::new(7);
        let mut yours = mine.share();
        assert!(mine.held().is_none() && yours.held().is_none());
        assert!(mine.try_hold() && mine.try_hold());
        assert!(!yours.try_hold() && yours.held().is_none());
        *mine.held().unwrap() += 1;
        mine.let_go();
        yours.hold();
        assert_eq!(yours.held(), Some(&mut 8));
        assert!(!mine.try_hold());
        drop(yours);
        assert!(mine.try_hold());
    }

    #[test]
    fn what_is_done_within_does_not_end_an_outer_hold() {
        let mut mine = Lane::new(0);
        let mut yours = mine.share();
        mine.hold();
        mine.with(|n| *n += 1);
        assert!(!yours.try_hold());
        mine.let_go();
        yours.with(|n| *n += 1);
        assert_eq!(mine.with(|n| *n), 2);
    }

    #[test]
    fn no_update_is_lost_between_threads() {
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let mut all = Lane::new([0u64; 2]);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let mut lane = all.share();
                scope.spawn(move || {
                    for _ in 0..rounds {
                        lane.hold();
                        let [a, b] = lane.held().unwrap();
                        assert_eq!(*a, *b);
                        (*a, *b) = (*a + 1, *b + 1);
                        lane.let_go();
                    }
                });
            }
        });
        assert_eq!(all.with(|n| *n), [3 * rounds; 2]);
    }
}
