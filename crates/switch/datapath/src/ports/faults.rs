//! The number of faults of queues in this process: a cheap check before a look at every queue of
//! every port, which would cost a worker more than a sleep where there are hundreds.

use std::sync::atomic::{AtomicUsize, Ordering};

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns a number that changes with each fault. A queue that is looked at after this call shows
/// those that are counted, unless it is locked meanwhile.
#[must_use]
pub fn faults() -> usize {
    COUNT.load(Ordering::Acquire)
}

/// Counts a fault that a queue has.
pub(crate) fn note_fault() {
    COUNT.fetch_add(1, Ordering::Release);
}
