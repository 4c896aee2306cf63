//! Lock of a queue that several workers use.
//!
//! Every worker has a [`QueueLock`] for every queue of every port, because frames from any queue
//! may go to any other. A queue is locked per batch, never per frame, and accessible only while it
//! is locked. A worker that waits for a lock holds no other lock that workers wait for (see
//! `fabric`), so there is no deadlock. A front end's descriptors are written while no lock is held
//! (see `calls`), so a hold ends after a bounded amount of work.
//!
//! A worker that locks a queue again and again may do so before another that waits. That one loses
//! 16 holds at most, and then goes into a line (see `line`). Batches for a guest lock its queue in
//! the order of the line ([`QueueLock::lock`]); what few threads wait for is locked without a look
//! at it ([`QueueLock::lock_directly`]).
//!
//! A [`Watch`] sees when the present holder has unlocked, and does not lock: a thread that takes
//! something away from all holders waits by it, see `turn`.

mod line;
mod sync;
mod turn;

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use line::Line;
use turn::Turn;

/// Number of spins on a locked queue before the thread gives up its core: a batch takes about that
/// time, unless the owner is not running.
const SPINS: u32 = 1000;
/// Number of holds of others after which a waiting thread goes into the line.
const MOST_LOST: u32 = 16;
/// From one look at a hold to the next, by a thread that waits for the end of it.
const LOOK: Duration = Duration::from_micros(20);

thread_local! {
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Returns the time that the calling thread has waited for locks since it began. Locks that it got
/// at once count nothing, and read no clock.
#[must_use]
pub fn waited() -> Duration {
    WAITED.get()
}

/// Waits until `done` returns true. `give_up` gives up the core to the owner of a lock, which may
/// not be running.
fn spin(mut done: impl FnMut() -> bool, give_up: impl Fn()) {
    loop {
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if done() {
                return;
            }
        }
        give_up();
    }
}

struct LockState<T> {
    turn: Turn,
    line: Line,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the one handle that has taken the turn, and it is
// handed over with release and acquire; so sharing is no more than sending it from owner to owner.
unsafe impl<T: Send> Sync for LockState<T> {}

/// Handle of one user to a shared value.
pub struct QueueLock<T> {
    shared: Arc<LockState<T>>,
    held: bool,
}

impl<T> QueueLock<T> {
    /// Returns a handle to `value`, not locked.
    pub fn new(value: T) -> Self {
        let shared = LockState {
            turn: Turn::new(),
            line: Line::new(),
            value: UnsafeCell::new(value),
        };
        Self {
            shared: Arc::new(shared),
            held: false,
        }
    }

    /// Returns another handle to the same value.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            held: false,
        }
    }

    /// Returns a handle that sees whether the value is locked.
    #[must_use]
    pub fn watch(&self) -> Watch<T> {
        Watch(Arc::clone(&self.shared))
    }

    /// Locks the value if it is not locked by another handle, and none has waited for long. Returns
    /// whether this handle has the lock.
    #[inline]
    pub fn try_lock(&mut self) -> bool {
        self.held = self.held || self.shared.line.is_empty() && self.shared.turn.take();
        self.held
    }

    /// As [`QueueLock::try_lock`], also while others wait.
    #[inline]
    fn take(&mut self) -> bool {
        self.held = self.held || self.shared.turn.take();
        self.held
    }

    /// Locks the value; waits while another handle has the lock.
    #[inline]
    pub fn lock(&mut self) {
        if !self.try_lock() {
            self.wait(std::thread::yield_now);
        }
    }

    /// As [`QueueLock::lock`], but before those who have waited for long, if the value is not
    /// locked: for a lock that is not taken again and again while others wait.
    #[inline]
    pub fn lock_directly(&mut self) {
        if !self.take() {
            self.wait(std::thread::yield_now);
        }
    }

    #[cold]
    fn wait(&mut self, give_up: impl Fn()) {
        let since = Instant::now();
        let LockState { turn, line, .. } = &*self.shared;
        let (first, mut place) = (turn.holds(), None);
        let done = || {
            if place.is_none() && turn.holds().wrapping_sub(first) >= MOST_LOST {
                place = Some(line.join());
            }
            let is_next = place.map_or_else(|| line.is_empty(), |place| line.is_first(place));
            is_next && turn.is_free() && turn.take()
        };
        spin(done, give_up);
        if let Some(place) = place {
            line.leave(place);
        }
        self.held = true;
        WAITED.set(WAITED.get() + since.elapsed());
    }

    /// Returns the value if this handle has the lock.
    #[inline]
    pub fn get(&mut self) -> Option<&mut T> {
        // SAFETY: this handle has the lock, so no other one reaches the value until this one
        // unlocks, for which it must be borrowed anew.
        self.held.then(|| unsafe { &mut *self.shared.value.get() })
    }

    /// Unlocks the value.
    #[inline]
    pub fn unlock(&mut self) {
        if std::mem::take(&mut self.held) {
            self.shared.turn.end();
        }
    }

    /// Calls `job` as [`QueueLock::with`], unless another handle has the lock.
    pub fn try_with<R>(&mut self, job: impl FnOnce(&mut T) -> R) -> Option<R> {
        let before = self.held;
        let result = self.take().then(|| self.with(job));
        if !before {
            self.unlock();
        }
        result
    }

    /// Calls `job` with the value, which is locked meanwhile.
    pub fn with<R>(&mut self, job: impl FnOnce(&mut T) -> R) -> R {
        let before = self.held;
        self.lock_directly();
        // SAFETY: as in `get`; `lock_directly` has returned.
        let result = job(unsafe { &mut *self.shared.value.get() });
        if !before {
            self.unlock();
        }
        result
    }
}

impl<T> Drop for QueueLock<T> {
    fn drop(&mut self) {
        self.unlock();
    }
}

impl<T> fmt::Debug for QueueLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueLock")
            .field("held", &self.held)
            .finish()
    }
}

/// Sees whether a value is locked, without the right to lock it.
pub struct Watch<T>(Arc<LockState<T>>);

impl<T> Watch<T> {
    /// Returns the present hold of the lock, if it is held.
    #[inline]
    #[must_use]
    pub fn holder(&self) -> Option<Hold<'_>> {
        let turn = &self.0.turn;
        let number = turn.holder()?;
        Some(Hold { turn, number })
    }
}

impl<T> fmt::Debug for Watch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watch").field(&self.0.turn).finish()
    }
}

/// One hold of a lock: from a lock to the next unlock.
#[derive(Debug)]
pub struct Hold<'a> {
    turn: &'a Turn,
    number: u32,
}

impl Hold<'_> {
    /// Waits until it has ended; what its owner did is visible then. It does not wait for the next
    /// owner, and no thread waits for the caller.
    ///
    /// The owner may not be running because the caller has its core. So the caller sleeps: when it
    /// wakes it has the core again, and the owner has worked meanwhile. Were it to yield, it would
    /// have the core again when the owner's time slice is over, milliseconds later; the same awaits
    /// a caller that has used much of its own time on looking.
    pub fn wait(self) {
        while !self.turn.is_over(self.number) {
            std::thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_reaches_the_value() {
        let mut mine = QueueLock::new(7);
        let mut yours = mine.share();
        assert!(mine.get().is_none() && yours.get().is_none());
        assert!(mine.try_lock() && mine.try_lock());
        assert!(!yours.try_lock() && yours.get().is_none());
        *mine.get().unwrap() += 1;
        mine.unlock();
        yours.lock();
        assert_eq!(yours.get(), Some(&mut 8));
        assert!(!mine.try_lock());
        drop(yours);
        assert!(mine.try_lock());
    }

    #[test]
    fn with_does_not_unlock_an_outer_lock() {
        let mut mine = QueueLock::new(0);
        let mut yours = mine.share();
        mine.lock();
        mine.with(|n| *n += 1);
        assert!(!yours.try_lock());
        mine.unlock();
        yours.with(|n| *n += 1);
        assert_eq!(mine.with(|n| *n), 2);
    }

    #[test]
    fn only_the_time_of_waits_is_counted() {
        let (mut mine, (waits, waiting)) = (QueueLock::new(()), std::sync::mpsc::channel());
        let mut yours = mine.share();
        mine.lock();
        let counted = std::thread::spawn(move || {
            QueueLock::new(()).with(|()| ());
            let at_once = waited();
            yours.wait(|| _ = waits.send(()));
            (at_once, waited())
        });
        waiting.recv().expect("it waits");
        mine.unlock();
        let (at_once, after) = counted.join().expect("it got the lock");
        assert!(
            at_once == Duration::ZERO && after > Duration::ZERO,
            "{at_once:?} {after:?}"
        );
    }

    #[test]
    fn a_watch_finds_the_holder_and_not_the_next_one() {
        let mut mine = QueueLock::new(());
        let mut yours = mine.share();
        let watch = mine.watch();
        assert!(watch.holder().is_none());
        mine.lock();
        let hold = watch.holder().expect("it is held");
        assert!(!hold.turn.is_over(hold.number));
        assert!(!yours.try_lock(), "in vain, and no other turn");
        assert!(!hold.turn.is_over(hold.number));
        mine.unlock();
        // Locked again at once: the hold that was found is over all the same.
        yours.lock();
        assert!(hold.turn.is_over(hold.number));
        hold.wait();
        let next = watch.holder().expect("the next one");
        yours.unlock();
        assert!(watch.holder().is_none());
        next.wait();
    }

    #[test]
    fn a_watch_sees_the_end_and_waits_for_no_lock() {
        let (mut mine, (waits, waiting)) = (QueueLock::new(()), std::sync::mpsc::channel());
        let watch = mine.watch();
        mine.lock();
        let passed = std::thread::spawn(move || {
            let hold = watch.holder().expect("it is held");
            waits.send(()).expect("a receiver");
            hold.wait();
            waited()
        });
        waiting.recv().expect("it has found the hold");
        mine.unlock();
        let waited = passed.join().expect("it saw the end");
        assert_eq!(waited, Duration::ZERO, "it waited for no lock");
    }

    #[test]
    fn who_has_lost_many_holds_is_next() {
        let (mut mine, (waits, waiting)) = (QueueLock::new(0), std::sync::mpsc::channel());
        let mut yours = mine.share();
        mine.lock();
        let waiter = std::thread::spawn(move || {
            yours.wait(|| {
                _ = waits.send(());
                std::thread::yield_now();
            });
            yours.with(|n| *n += 1);
        });
        waiting.recv().expect("it waits");
        for _ in 0..2 * MOST_LOST {
            mine.unlock();
            // If it was faster, there is nothing to be shown this time.
            mine.lock();
        }
        if mine.with(|n| *n) == 0 {
            // It has looked at the lock since, all the time between two of its messages.
            waiting.try_iter().for_each(drop);
            (0..2).for_each(|_| waiting.recv().expect("it waits still"));
            assert!(!mine.shared.line.is_empty());
            mine.unlock();
            mine.lock();
            assert_eq!(mine.with(|n| *n), 1, "not before it");
        }
        mine.unlock();
        waiter.join().expect("it got the lock");
        assert!(mine.try_lock(), "the line is empty again");
    }

    #[test]
    fn those_in_the_line_lock_in_its_order_and_others_after_them() {
        let mut mine = QueueLock::new(());
        let line = &mine.shared.line;
        let [first, second] = [line.join(), line.join()];
        assert!(line.is_first(first) && !line.is_first(second));
        let mut yours = mine.share();
        assert!(!yours.try_lock() && yours.try_with(|()| ()).is_some());
        mine.shared.line.leave(first);
        assert!(mine.shared.line.is_first(second) && !yours.try_lock());
        mine.shared.line.leave(second);
        assert!(yours.try_lock());
        yours.unlock();
        assert!(mine.try_lock());
    }

    #[test]
    fn no_update_is_lost_between_threads() {
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let mut all = QueueLock::new([0u64; 2]);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let mut lock = all.share();
                scope.spawn(move || {
                    for _ in 0..rounds {
                        lock.lock();
                        let [a, b] = lock.get().unwrap();
                        assert_eq!(*a, *b);
                        (*a, *b) = (*a + 1, *b + 1);
                        lock.unlock();
                    }
                });
            }
        });
        assert_eq!(all.with(|n| *n), [3 * rounds; 2]);
    }
}
