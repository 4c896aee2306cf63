//! Kicks of a queue: their attribution, and the rate of frames ([`KickRate`]).
//!
//! A VMM kicks when it starts a queue (QEMU makes its eventfd with a count of one); every later
//! kick is the guest's, which kicks only when it has made a buffer available. A guest that kicks
//! while no buffer is visible writes to memory that is not shared.
//!
//! A guest that uses the event index may kick once and never again, so its first kick must be
//! recognised.

use std::time::{Duration, Instant};

use super::kick_rate::KickRate;

/// Time after a queue's start from which a kick is the guest's, even if it is the first.
const STARTUP_TIME: Duration = Duration::from_millis(250);
/// Time after the first kick from which a kick is the guest's: the kicks of a VMM's start come
/// together.
const MIN_DISTANCE: Duration = Duration::from_millis(10);

/// Kicks of one queue.
#[derive(Debug)]
pub(super) struct Kicks {
    started: Instant,
    first: Option<Instant>,
    /// To a guest with an IOMMU: it is to kick for its first buffer.
    pub(super) awaits_buffers: bool,
    /// The rate of frames, by which kicks are coalesced.
    pub(super) rate: KickRate,
}

impl Kicks {
    /// Returns the state of a queue that is started at `now`.
    #[must_use]
    pub(super) fn since(now: Instant) -> Self {
        Self {
            started: now,
            first: None,
            awaits_buffers: false,
            rate: KickRate::default(),
        }
    }

    /// Notes a kick. Returns whether it is the guest's.
    pub(super) fn note(&mut self, now: Instant) -> bool {
        let first = *self.first.get_or_insert(now);
        now - self.started >= STARTUP_TIME || now - first >= MIN_DISTANCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kicks_at(millis: &[u64]) -> Vec<bool> {
        let start = Instant::now();
        let mut kicks = Kicks::since(start);
        let note = |ms: &u64| kicks.note(start + Duration::from_millis(*ms));
        millis.iter().map(note).collect()
    }

    #[test]
    fn the_kicks_of_a_start_are_the_vmms() {
        assert_eq!(kicks_at(&[0, 1, 2]), [false; 3]);
        assert_eq!(kicks_at(&[200]), [false]);
    }

    #[test]
    fn a_guest_that_starts_at_once_is_distinguished_from_its_vmm() {
        assert_eq!(kicks_at(&[0, 70]), [false, true]);
    }

    #[test]
    fn a_late_kick_is_the_guests_though_it_is_the_first() {
        assert_eq!(kicks_at(&[300]), [true]);
    }
}
