//! Counters of each queue.

use ipc::figures::QueueCounts;
use port::{DropReason, REASONS};

use super::{GuestPort, GuestQueue};

/// Drops of one worker by queue and reason, since the queue was started. Each worker has its own,
/// so that it needs no lock of a queue that another worker uses.
#[derive(Debug, Default)]
pub(crate) struct Drops(Vec<OfQueue>);

#[derive(Clone, Debug)]
struct OfQueue {
    /// Bitmap of the reasons with a count: readers skip the others.
    seen: u64,
    frames: [u64; REASONS.len()],
}

const _: () = assert!(REASONS.len() <= u64::BITS as usize);

impl Default for OfQueue {
    fn default() -> Self {
        Self {
            seen: 0,
            frames: [0; REASONS.len()],
        }
    }
}

impl Drops {
    /// Resets a queue that is started.
    pub(crate) fn begin(&mut self, queue: usize) {
        if self.0.len() <= queue {
            self.0.resize_with(queue + 1, OfQueue::default);
        }
        self.0[queue] = OfQueue::default();
    }

    /// Adds dropped frames; frames of an unknown queue are ignored.
    #[inline]
    pub(crate) fn add(&mut self, queue: usize, reason: DropReason, frames: u64) {
        if let Some(of) = self.0.get_mut(queue) {
            of.seen |= 1 << reason as u32;
            of.frames[reason as usize] += frames;
        }
    }

    /// Returns all counts: queue, reason, frames.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u16, DropReason, u64)> + '_ {
        let queues = (0..).zip(&self.0).filter(|(_, of)| of.seen != 0);
        queues.flat_map(|(queue, of)| {
            let reasons = REASONS.iter().zip(of.frames);
            let counted = reasons.filter(|(_, frames)| *frames > 0);
            counted.map(move |(reason, frames)| (queue, *reason, frames))
        })
    }
}

impl GuestPort {
    /// Returns the counters of every queue by index, without drops, which are per worker.
    #[must_use]
    pub fn counts(&mut self) -> Vec<(u16, QueueCounts)> {
        let queues = (0..).zip(&mut self.queues);
        let counts = |queue: &mut GuestQueue| QueueCounts {
            full_ns: queue.congestion.full_ns(),
            ..queue.counts.clone()
        };
        let all = queues.filter_map(|(at, lock)| Some((at, lock.as_mut()?.with(counts))));
        all.collect()
    }

    /// Returns the drops of this worker since the queues were started: queue, reason, frames.
    pub(crate) fn drops(&self) -> impl Iterator<Item = (u16, DropReason, u64)> + '_ {
        self.drops.all()
    }
}
