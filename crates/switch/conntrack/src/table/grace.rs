//! Reuse of entries: after every thread has begun another batch (reclamation by quiescent states,
//! as in Fraser's "Practical lock-freedom").
//!
//! A thread shows the epoch in its slot while it serves a batch, and zero between two. The epoch
//! advances when all that serve a batch show it. What was unlinked in an epoch is in no thread's
//! hands two epochs later. So a thread that found an entry may write to its lines until its batch
//! ends, and a thread that sleeps holds nothing up.

use super::sync::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

/// The epoch and its readers.
#[derive(Debug)]
pub(crate) struct Grace {
    epoch: AtomicU64,
    slots: Box<[Slot]>,
    /// Slots from here on were never used.
    end: AtomicU64,
}

/// A thread's place, in a cache line of its own: the epoch of its batch, or zero.
#[repr(align(64))]
#[derive(Debug)]
struct Slot(AtomicU64);

impl Grace {
    /// The epochs of this number of threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            epoch: AtomicU64::new(2),
            slots: (0..threads).map(|_| Slot(AtomicU64::new(0))).collect(),
            end: AtomicU64::new(0),
        }
    }

    /// Notes that a thread may begin batches.
    pub(crate) fn register(&self, thread: usize) {
        // Seen in time for the reason that the slot is: its first batch begins with a fence.
        self.end.fetch_max(thread as u64 + 1, Relaxed);
    }

    /// Begins a batch of a thread.
    #[inline]
    pub(crate) fn begin(&self, thread: usize) {
        let epoch = self.epoch.load(Relaxed);
        self.slots[thread].0.store(epoch, Relaxed);
        // The slot is seen before anything of the batch is read. A reader of slots that does not
        // see it has unlinked its entries before, and this thread sees that.
        fence(SeqCst);
    }

    /// Ends a batch of a thread.
    #[inline]
    pub(crate) fn end(&self, thread: usize) {
        self.slots[thread].0.store(0, Release);
    }

    /// The stamp of entries that were unlinked just now.
    pub(crate) fn stamp(&self) -> u64 {
        fence(SeqCst);
        self.epoch.load(Relaxed)
    }

    /// Returns the latest stamp that is over, after an attempt to advance; the epoch moves once a
    /// call, so a batch with calls costs a look at each slot.
    pub(crate) fn over(&self) -> u64 {
        fence(SeqCst);
        let epoch = self.epoch.load(Relaxed);
        let is_behind = |slot: &Slot| {
            let shown = slot.0.load(Relaxed);
            shown != 0 && shown != epoch
        };
        let end = self.end.load(Relaxed) as usize;
        if self.slots.iter().take(end).any(is_behind) {
            fence(Acquire);
            return epoch - 2;
        }
        fence(Acquire);
        // Another thread may have advanced it, which is as good.
        let next = epoch + 1;
        match self.epoch.compare_exchange(epoch, next, SeqCst, Acquire) {
            Ok(_) => next - 2,
            Err(now) => now - 2,
        }
    }
}
