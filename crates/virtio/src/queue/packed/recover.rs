//! Finding the place again in a ring that a former process served.

use memory::GuestMemory;

use super::PackedQueue;
use super::ring::{AVAIL, Ring, USED, is_available};
use crate::queue::{Journal, Layout, MAX_SIZE, QueueFault};

impl PackedQueue {
    /// Where the queue of `journal` stands, in the encoding of `Queue::position`, after what its former process
    /// staged and never published was taken back. It can be repeated.
    pub(in crate::queue) fn recover(
        mem: &GuestMemory,
        layout: Layout,
        journal: &Journal,
    ) -> Result<Option<u32>, QueueFault> {
        let size = layout.size;
        if size == 0 || size > MAX_SIZE {
            return Err(QueueFault::BadSize);
        }
        let Some((from, to)) = journal.last_move(size)? else {
            return Ok(None);
        };
        let ring = Ring::resolve(mem, layout)?;
        let was_seen = !is_available(ring.flags(from.index), from.wrap);
        let used = if was_seen { to } else { from };
        let mut at = used;
        for _ in 0..size {
            // Used in this lap, and behind the position: staged.
            let staged = if at.wrap { AVAIL | USED } else { 0 };
            if ring.flags(at.index) & (AVAIL | USED) == staged {
                ring.put_back(at.index, journal.kept(at.index));
                ring.mark_used(mem, at.index, 1);
            }
            at.advance(1, size);
        }
        journal.moves(used, used);
        Ok(Some(u32::from(used.bits()) | u32::from(used.bits()) << 16))
    }

    pub(in crate::queue) fn set_journal(&mut self, journal: Option<Journal>) {
        self.journal = journal.filter(|_| self.tracker.is_none());
        if let Some(journal) = &self.journal {
            journal.moves(self.used, self.used);
        }
    }

    pub(in crate::queue) fn was_served(mem: &GuestMemory, layout: Layout) -> Option<bool> {
        let ring = Ring::resolve(mem, layout).ok()?;
        let mut slots = 0..layout.size.min(MAX_SIZE);
        Some(slots.any(|at| ring.flags(at) & USED != 0))
    }
}
