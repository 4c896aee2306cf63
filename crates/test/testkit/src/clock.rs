//! A clock that tests move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds that a test sets; clones share the same time.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// A clock that shows `ns` nanoseconds.
    #[must_use]
    pub fn at(ns: u64) -> Self {
        Self(Arc::new(AtomicU64::new(ns)))
    }

    /// The time in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Moves the time forward and returns the new time in nanoseconds.
    pub fn advance(&self, by: Duration) -> u64 {
        let ns = u64::try_from(by.as_nanos()).expect("a step that fits 64 bits of nanoseconds");
        self.0.fetch_add(ns, Ordering::AcqRel) + ns
    }

    /// Sets the time in nanoseconds, also backwards.
    pub fn set_ns(&self, ns: u64) {
        self.0.store(ns, Ordering::Release);
    }

    /// The number behind the clock, for code that takes a plain atomic.
    #[must_use]
    pub fn shared(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_time() {
        let clock = VirtualClock::at(5);
        let other = clock.clone();
        assert_eq!(clock.advance(Duration::from_nanos(7)), 12);
        assert_eq!(other.now_ns(), 12);
        other.set_ns(3);
        assert_eq!(clock.shared().load(Ordering::Relaxed), 3);
    }
}
