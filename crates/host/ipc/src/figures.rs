//! Counters of the switch outside the shared memory of counters: since it started, or a queue was
//! started.

use port::DropReason;
use serde::{Deserialize, Serialize};

/// Counters of one queue since it was started.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QueueCounts {
    /// Frames that it has carried; a segmentation-offload frame counts once.
    pub frames: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Dropped frames by reason: of a queue from a guest those that came by it, of one to a guest
    /// those that were to leave by it. Only reasons with frames.
    pub drops: Vec<(DropReason, u64)>,
    /// Notifications: received kicks of a queue from a guest; calls of one to a guest.
    pub notifications: u64,
    /// Notifications that were put off because the guest ran: how often kicks of a queue from a
    /// guest were suppressed; deferred calls of one to a guest.
    pub deferred: u64,
    /// Deferred calls during which the guest went to sleep, so that it had better been called at
    /// once; of a queue to a guest.
    pub slept_through: u64,
    /// How often the guest was asked for one kick for several frames; of a queue from a guest.
    pub coalesced: u64,
    /// Nanoseconds from a batch that found no buffer until the next one that did; of a queue to a
    /// guest.
    pub full_ns: u64,
    /// Frames in batches whose first frame was copied misaligned: long, and between places at
    /// different offsets in their cache lines; of a queue to a guest.
    pub misaligned: u64,
}

/// Work of a worker since the switch started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WorkerFigures {
    /// Time for frames, in ticks of the switch's counter: receiving, matching, delivering.
    pub busy_ticks: u64,
    /// CPU time of the thread, polling without frames included.
    pub cpu_ns: u64,
    /// Time in which it waited for locks of queues that other threads had, nanoseconds.
    pub queue_lock_wait_ns: u64,
}

/// Bounds of [`Waits`], microseconds.
pub const WAIT_BOUNDS_US: [u64; 12] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 100_000, 1_000_000,
];

/// Histogram of waits: of upcalls for their answers, or of INVALIDATE for workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    /// Waits of up to each of [`WAIT_BOUNDS_US`], and not up to the one before.
    pub within: [u64; WAIT_BOUNDS_US.len()],
    /// Longer waits.
    pub longer: u64,
    /// Nanoseconds of all waits together.
    pub total_ns: u64,
}

impl Waits {
    /// Counts one wait.
    pub fn note(&mut self, ns: u64) {
        let bound = WAIT_BOUNDS_US.iter().position(|us| ns <= us * 1000);
        match bound {
            Some(at) => self.within[at] += 1,
            None => self.longer += 1,
        }
        self.total_ns += ns;
    }

    /// Adds the counts of another worker of the same switch.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.within.iter_mut().zip(other.within) {
            *mine += theirs;
        }
        self.longer += other.longer;
        self.total_ns += other.total_ns;
    }
}

impl Waits {
    /// Returns the number of waits.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.within.iter().sum::<u64>() + self.longer
    }

    /// Returns the least of [`WAIT_BOUNDS_US`] within which 99 of 100 waits were; `None` without
    /// waits, or when more were longer than all bounds.
    #[must_use]
    pub fn p99_us(&self) -> Option<u64> {
        let count = self.count();
        let mut so_far = 0;
        let mut bounds = WAIT_BOUNDS_US.into_iter().zip(self.within);
        let found = bounds.find(|(_, waits)| {
            so_far += waits;
            so_far * 100 >= count * 99
        });
        found.filter(|_| count > 0).map(|(us, _)| us)
    }
}

/// Translations of a guest with an IOMMU, since its front end has connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TranslationFigures {
    /// Entries of the table now.
    pub entries: u64,
    /// UPDATEs that were accepted.
    pub updates: u64,
    /// INVALIDATEs that were accepted.
    pub invalidations: u64,
    /// Entries that lost their place in the table to another.
    pub evictions: u64,
    /// UPDATEs and INVALIDATEs that were refused.
    pub refusals: u64,
    /// MISS messages that were sent.
    pub misses: u64,
    /// Missing translations that the front end has refused, or has not granted in time.
    pub denied: u64,
    /// Those of them for which it has not answered in time.
    pub unanswered: u64,
    /// Waits of INVALIDATE for workers, since the port was added.
    pub waits: Waits,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_counted_at_the_first_bound_that_it_keeps() {
        let mut waits = Waits::default();
        for ns in [0, 10_000, 10_001, 999_999_999, 1_000_000_001] {
            waits.note(ns);
        }
        assert_eq!(
            (waits.within[0], waits.within[1], waits.within[11]),
            (2, 1, 1)
        );
        assert_eq!((waits.longer, waits.total_ns), (1, 2_000_020_001));
        let mut both = waits;
        both.add(&waits);
        assert_eq!((both.within[0], both.longer), (4, 2));
        assert_eq!((both.count(), both.p99_us()), (10, None));
    }

    #[test]
    fn the_99th_percentile_is_a_bound() {
        let mut waits = Waits::default();
        assert_eq!(waits.p99_us(), None);
        (0..98).for_each(|_| waits.note(1));
        assert_eq!(waits.p99_us(), Some(10));
        (0..2).for_each(|_| waits.note(70_000));
        assert_eq!(waits.p99_us(), Some(100));
    }
}
