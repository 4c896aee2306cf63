//! What is counted of each queue.

use channel::figures::QueueCounts;
use port::counters::Traffic;
use port::{Batch, DropReason, REASONS};

use super::{GuestPort, GuestQueue};

/// What one worker has dropped of each queue since it was started, by reason. It is the worker's own, so that nobody waits for others when
/// something is dropped of a queue that they have.
#[derive(Debug, Default)]
pub(super) struct Drops(Vec<OfQueue>);

#[derive(Clone, Debug)]
struct OfQueue {
    /// Reasons that are counted already, one bit each: there are few, and who reads looks at no others.
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
    /// A queue is started.
    pub(super) fn begin(&mut self, queue: usize) {
        if self.0.len() <= queue {
            self.0.resize_with(queue + 1, OfQueue::default);
        }
        self.0[queue] = OfQueue::default();
    }

    /// Counts; what is of no queue is left out.
    #[inline]
    pub(super) fn add(&mut self, queue: usize, reason: DropReason, frames: u64) {
        if let Some(of) = self.0.get_mut(queue) {
            of.seen |= 1 << reason as u32;
            of.frames[reason as usize] += frames;
        }
    }

    /// All that was counted: queue, reason, frames.
    fn all(&self) -> impl Iterator<Item = (u16, DropReason, u64)> + '_ {
        let queues = (0..).zip(&self.0).filter(|(_, of)| of.seen != 0);
        queues.flat_map(|(queue, of)| {
            let reasons = REASONS.iter().zip(of.frames);
            let counted = reasons.filter(|(_, frames)| *frames > 0);
            counted.map(move |(reason, frames)| (queue, *reason, frames))
        })
    }
}

impl GuestQueue {
    /// Frames were carried.
    #[inline(always)]
    pub(super) fn carried(&mut self, done: Traffic) {
        self.counts.frames += done.packets;
        self.counts.bytes += done.bytes;
    }

    /// A batch was filled, from the beginning.
    #[inline(always)]
    pub(super) fn count_leased(&mut self, batch: &Batch) {
        self.carried(batch.taken());
    }
}

impl GuestPort {
    /// What was counted of every queue, by index; but for drops, which each worker has of its own.
    pub(crate) fn counts(&mut self) -> Vec<(u16, QueueCounts)> {
        let queues = (0..).zip(&mut self.queues);
        let counts = |queue: &mut GuestQueue| QueueCounts {
            full_ns: queue.congestion.full_ns(),
            ..queue.counts.clone()
        };
        let all = queues.filter_map(|(at, lane)| Some((at, lane.as_mut()?.with(counts))));
        all.collect()
    }

    /// What this worker has dropped since the queues were started: queue, reason, frames.
    pub(crate) fn drops(&self) -> impl Iterator<Item = (u16, DropReason, u64)> + '_ {
        self.drops.all()
    }
}
