//! Two index lines in shared memory, and who wakes whom: each side writes one line and reads the
//! other's.
//!
//! A line has a free-running index (modulo 2^16) and an event index. A side that is about to sleep
//! stores in its event index the value that the other side's index must pass, as in virtio (1.3,
//! 2.7.10); the other side notifies when it does. The fences order each side's store before its
//! load, so that of two sides that do both at once at least one sees the other's.

use crate::sync::{AtomicU16, Ordering, fence};

/// One side's line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Line {
    /// Free-running.
    pub(crate) index: AtomicU16,
    /// The other side notifies when its index passes this.
    pub(crate) event: AtomicU16,
}

/// Whether an index that moves from `old` to `new` passes `event` (virtio 1.3, 2.7.10).
pub(crate) fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Moves our index from `old` to `new`, behind everything that was written before. Returns whether
/// the other side is to be notified.
pub(crate) fn publish(mine: &Line, theirs: &Line, old: u16, new: u16) -> bool {
    mine.index.store(new, Ordering::Release);
    fence(Ordering::SeqCst);
    passes(theirs.event.load(Ordering::Relaxed), new, old)
}

/// Requests a notification when the other side's index passes `event`. Returns that index as it is
/// after the request: when it has passed already, no notification is sure to come.
pub(crate) fn request(mine: &Line, theirs: &Line, event: u16) -> u16 {
    mine.event.store(event, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    theirs.index.load(Ordering::Acquire)
}
