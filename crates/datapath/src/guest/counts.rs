//! What is counted of each queue.

use channel::figures::QueueCounts;
use port::Batch;
use port::counters::Traffic;

use super::{GuestPort, GuestQueue, to_guest};

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
        let taken = batch.taken();
        self.carried(taken);
        self.counts.dropped += taken.packets - batch.frames().len() as u64;
    }
}

impl GuestPort {
    /// What was counted of every queue, by index.
    pub(crate) fn counts(&mut self) -> Vec<(u16, QueueCounts)> {
        let queues = (0..).zip(&mut self.queues);
        let counts = |queue: &mut GuestQueue| QueueCounts {
            full_ns: queue.congestion.full_ns(),
            ..queue.counts
        };
        let all = queues.filter_map(|(at, lane)| Some((at, lane.as_mut()?.with(counts))));
        all.collect()
    }

    /// Frames for a pair that is held were dropped.
    pub(super) fn count_dropped(&mut self, pair: u16, frames: u64) {
        let lane = self.queues.get_mut(to_guest(pair)).and_then(Option::as_mut);
        if let Some(queue) = lane.and_then(|lane| lane.held()) {
            queue.counts.dropped += frames;
        }
    }
}
