//! Recovery of the position in a ring that a former process served.

use super::PackedQueue;
use super::ring::{AVAIL, Ring, USED, is_available};
use crate::queue::descriptor::NEXT;
use crate::queue::packed::cursor::Cursor;
use crate::queue::space::Space;
use crate::queue::{Journal, Layout, MAX_SIZE, QueueFault};

impl<S: Space> PackedQueue<S> {
    /// Returns the position of the queue of `journal`, in the encoding of `Queue::position`, after
    /// it has restored the descriptors that the former process overwrote with staged elements and
    /// never published. It can be repeated.
    pub(in crate::queue) fn recover(
        space: &S,
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
        let ring = Ring::resolve(space, layout)?;
        let was_seen = !is_available(ring.flags(from.index), from.wrap);
        let used = if was_seen { to } else { from };
        let mut at = used;
        for _ in 0..size {
            // Used in this lap, and behind the position: staged.
            let staged = if at.wrap { AVAIL | USED } else { 0 };
            if ring.flags(at.index) & (AVAIL | USED) == staged {
                ring.put_back(at.index, journal.kept(at.index));
                ring.mark_used(space.memory(), at.index, 1);
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

    /// Returns the position of a ring, in the encoding of `Queue::position`, as far as its
    /// descriptors alone show it.
    ///
    /// A slot with used flags was used in the lap of these; one that is available for a lap, in the
    /// lap before. So the slots before the position were used in this lap, and those from it on in
    /// the lap before: there is one step in the ring, or none at the start of a lap. Of a chain of
    /// several slots only the first has used flags, and the others look like available ones: a ring
    /// with such chains, or one that is used in batches, is not judged.
    pub(in crate::queue) fn position_in_ring(space: &S, layout: Layout) -> Option<u32> {
        let ring = Ring::resolve(space, layout).ok()?;
        let size = layout.size.min(MAX_SIZE);
        let (mut first, mut last, mut step) = (false, false, None);
        for at in 0..size {
            let flags = ring.flags(at);
            let (avail, used) = (flags & AVAIL != 0, flags & USED != 0);
            if avail != used && flags & NEXT != 0 {
                return None;
            }
            let used_up_in = if avail == used { avail } else { !avail };
            if at == 0 {
                first = used_up_in;
            } else if used_up_in != last && step.replace(at).is_some() {
                return None;
            }
            last = used_up_in;
        }
        let at = match step {
            Some(index) => Cursor { index, wrap: first },
            None => Cursor {
                index: 0,
                wrap: !first,
            },
        };
        Some(u32::from(at.bits()) | u32::from(at.bits()) << 16)
    }

    pub(in crate::queue) fn was_served(space: &S, layout: Layout) -> Option<bool> {
        let ring = Ring::resolve(space, layout).ok()?;
        let mut slots = 0..layout.size.min(MAX_SIZE);
        Some(slots.any(|at| ring.flags(at) & USED != 0))
    }
}
