//! Going on where a process that died, or a connection that broke, has left a queue.

use std::sync::Arc;

use memory::GuestMemory;

use super::packed::PackedQueue;
use super::split::SplitQueue;
use super::{Journal, Layout, Queue, QueueFault};
use crate::features::Features;

/// Where a process died between a write to the ring and its mark in the dirty log, a live migration would leave the old
/// bytes behind: whatever the device may have written there is marked. What lies in buffers was marked before it was
/// published.
pub(super) fn mark_written(mem: &GuestMemory, layout: Layout, features: Features) {
    let size = u64::from(layout.size);
    if features.contains(Features::RING_PACKED) {
        mem.mark_dirty(layout.desc, 16 * size);
        mem.mark_dirty(layout.device, 4);
    } else {
        mem.mark_dirty(layout.device, 6 + 8 * size);
    }
}

impl Queue {
    /// The queue of a process that died while it served it without an inflight area of the front end. Every
    /// chain that was taken and not published as used is taken again; nothing is used twice.
    ///
    /// A split queue goes on at the used index in guest memory, a packed one where `journal` says. Without a
    /// journal, or with one in which no queue ever ran, it is as new at `position`.
    ///
    /// # Errors
    /// As [`Queue::new`]; [`QueueFault::InflightCorrupt`] for a journal that cannot be this queue's.
    pub fn resume(
        mem: Arc<GuestMemory>,
        layout: Layout,
        features: Features,
        position: u32,
        journal: Option<Journal>,
    ) -> Result<Self, QueueFault> {
        let position = if !features.contains(Features::RING_PACKED) {
            SplitQueue::used_index(&mem, layout)?.into()
        } else if let Some(journal) = &journal {
            PackedQueue::recover(&mem, layout, journal)?.unwrap_or(position)
        } else {
            position
        };
        mark_written(&mem, layout, features);
        let mut queue = Self::new(mem, layout, features, position)?;
        queue.set_journal(journal);
        Ok(queue)
    }

    /// From now on the position of a packed queue is kept where a successor of this process finds it. A split
    /// queue needs no journal, and one whose chains are tracked in an inflight area has all it needs there.
    pub fn set_journal(&mut self, journal: Option<Journal>) {
        if let Self::Packed(queue) = self {
            queue.set_journal(journal);
        }
    }

    /// Where the packed ring at `layout` stands, told from the ring itself: for a front end that offers the start of a ring
    /// that was served. `None` when it cannot be told: a driver that puts several descriptors into the ring for a buffer,
    /// or that lets buffers be used in batches.
    #[must_use]
    pub fn position_in_ring(mem: &GuestMemory, layout: Layout, features: Features) -> Option<u32> {
        let each_for_itself = features.contains(Features::RING_INDIRECT_DESC)
            && !features.contains(Features::IN_ORDER);
        let served = each_for_itself && Self::was_served(mem, layout);
        let found = served.then(|| PackedQueue::position_in_ring(mem, layout));
        found.flatten()
    }

    /// Whether a device has ever used a descriptor of the packed ring at `layout` in its driver's life, as far as
    /// the ring shows it: a ring that a driver has just set up has no used flag anywhere.
    #[must_use]
    pub fn was_served(mem: &GuestMemory, layout: Layout) -> bool {
        PackedQueue::was_served(mem, layout).unwrap_or(false)
    }
}
