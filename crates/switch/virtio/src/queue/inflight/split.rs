//! In-flight tracking of a split queue.

use super::{Inflight, Pending};
use crate::queue::QueueFault;

const AT_LAST_BATCH: usize = 12;
const AT_USED: usize = 14;
const INFLIGHT: usize = 0;
const NEXT: usize = 6;
const COUNTER: usize = 8;

/// Returns the offset of field `field` of the entry of head `head`.
fn entry(head: u16, field: usize) -> usize {
    16 + 16 * usize::from(head) + field
}

/// Tracker: the shared part, and private copies of the values that this process wrote there.
#[derive(Debug)]
pub(in crate::queue) struct Tracker {
    part: Inflight,
    counter: u64,
    last_batch: u16,
    live: Vec<bool>,
    batch: Vec<u16>,
    pending: Pending,
}

impl Tracker {
    /// Attaches to `part` when the used ring's index is `used`. Also returns the available index to
    /// continue at, when a former process recorded one: the specification's region then decides,
    /// because a front end that lost its back end does not know the position.
    pub(in crate::queue) fn attach(
        part: Inflight,
        size: u16,
        used: u16,
    ) -> Result<(Self, Option<u16>), QueueFault> {
        part.check(size, false)?;
        let mut tracker = Self {
            counter: 0,
            last_batch: 0,
            live: vec![false; usize::from(size)],
            batch: Vec::with_capacity(usize::from(size)),
            pending: Pending::default(),
            part,
        };
        // Published and not yet cleared when the process died. There cannot be more than the queue
        // holds: then the driver has reset the queue since, and the front end did not bring a
        // zeroed region.
        let done = used.wrapping_sub(tracker.part.get16(AT_USED));
        if !tracker.part.used_before()? || done > size {
            tracker.initialise(size, used);
            return Ok((tracker, None));
        }
        tracker.finish_batch(size, used, done)?;
        tracker.find_pending(size);
        let left = tracker.pending.heads.len() as u16;
        Ok((tracker, Some(used.wrapping_add(left))))
    }

    fn initialise(&self, size: u16, used: u16) {
        for head in 0..size {
            self.part.set8(entry(head, INFLIGHT), 0);
        }
        self.part.set16(AT_LAST_BATCH, 0);
        self.part.set16(AT_USED, used);
        self.part.seal();
    }

    /// Clears the marks of the last batch: `done` elements that were published.
    fn finish_batch(&mut self, size: u16, used: u16, done: u16) -> Result<(), QueueFault> {
        self.last_batch = self.part.get16(AT_LAST_BATCH);
        let mut head = self.last_batch;
        for _ in 0..done {
            if head >= size {
                return Err(QueueFault::InflightCorrupt);
            }
            self.part.set8(entry(head, INFLIGHT), 0);
            head = self.part.get16(entry(head, NEXT));
        }
        self.part.set16(AT_USED, used);
        Ok(())
    }

    fn find_pending(&mut self, size: u16) {
        let mut found = Vec::new();
        for head in 0..size {
            if self.part.get8(entry(head, INFLIGHT)) == 1 {
                found.push((self.part.get64(entry(head, COUNTER)), head));
                self.live[usize::from(head)] = true;
            }
        }
        (self.pending, self.counter) = Pending::new(found);
    }

    /// Returns the head of the oldest chain that is left from before.
    pub(in crate::queue) fn pending(&self) -> Option<u16> {
        self.pending.peek()
    }

    /// Records that the chain of [`Self::pending`] was taken.
    pub(in crate::queue) fn took_pending(&mut self) {
        self.pending.next += 1;
    }

    /// Returns whether `head` is in flight.
    pub(in crate::queue) fn is_live(&self, head: u16) -> bool {
        self.live.get(usize::from(head)).copied().unwrap_or(false)
    }

    /// Records a new chain; `head` is below the queue size.
    pub(in crate::queue) fn took(&mut self, head: u16) {
        self.part.set64(entry(head, COUNTER), self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.part.set8(entry(head, INFLIGHT), 1);
        self.live[usize::from(head)] = true;
        self.pending.fresh = self.pending.fresh.saturating_add(1);
    }

    /// Records that the newest taken chain was untaken. Returns `true` when it came from the ring.
    pub(in crate::queue) fn untook(&mut self, head: u16) -> bool {
        let fresh = self.pending.untake();
        if fresh && self.is_live(head) {
            self.part.set8(entry(head, INFLIGHT), 0);
            self.live[usize::from(head)] = false;
        }
        fresh
    }

    /// Records that a used element was staged.
    pub(in crate::queue) fn staged(&mut self, head: u16) {
        if self.is_live(head) {
            self.batch.push(head);
        }
    }

    /// Records that the batch is about to become visible.
    pub(in crate::queue) fn before_publish(&mut self) {
        for &head in &self.batch {
            self.part.set16(entry(head, NEXT), self.last_batch);
            self.part.set16(AT_LAST_BATCH, head);
            self.last_batch = head;
        }
    }

    /// Records that the batch is visible and that the used index is `used`.
    pub(in crate::queue) fn after_publish(&mut self, used: u16) {
        for head in self.batch.drain(..) {
            self.part.set8(entry(head, INFLIGHT), 0);
            self.live[usize::from(head)] = false;
        }
        self.part.set16(AT_USED, used);
    }
}
