//! Resuming a queue after the death of a process or the end of a connection.

use std::sync::Arc;

use wire::virtio::features::Features;

use super::outlined::OutlinedQueue;
use super::packed::PackedQueue;
use super::space::Space;
use super::split::SplitQueue;
use super::translated::TranslatedSpace;
use super::{Journal, Layout, Queue, QueueFault, QueueMemory};

/// Evaluates an expression over the address space of a queue.
macro_rules! over {
    ($mem:expr, $space:ident => $call:expr) => {
        match &$mem.iotlb {
            None => {
                let $space = Arc::clone(&$mem.memory);
                $call
            }
            Some(iotlb) => {
                let $space = TranslatedSpace::new(Arc::clone(&$mem.memory), Arc::clone(iotlb));
                $call
            }
        }
    };
}

/// Marks everything that the device may have written in the rings as dirty. A process that died
/// between a write to the ring and its mark in the dirty log would otherwise leave the old bytes to
/// a live migration. The bytes of buffers were marked before they were published.
pub(super) fn mark_written(mem: &QueueMemory, layout: Layout, features: Features) {
    if layout.slots.is_some() {
        // Processes do not migrate: their memory has no dirty log.
        return;
    }
    over!(mem, space => mark_areas(&space, layout, features));
}

fn mark_areas(space: &impl Space, layout: Layout, features: Features) {
    let size = u32::from(layout.size);
    if features.contains(Features::RING_PACKED) {
        space.mark(layout.desc, 16 * size);
        space.mark(layout.device, 4);
    } else {
        space.mark(layout.device, 6 + 8 * size);
    }
}

impl Queue {
    /// Resumes the queue of a process that died, without an in-flight area of the front end. Every
    /// chain that was taken and not published as used is taken again; none is used twice.
    ///
    /// A split queue continues at the used index in guest memory, a slot queue at its `tail` there,
    /// a packed one at the position in `journal`. Without a journal, or with one of a queue that
    /// never ran, it starts at `position`.
    ///
    /// # Errors
    /// As [`Queue::new`]; [`QueueFault::InflightCorrupt`] for a journal that cannot be this
    /// queue's.
    pub fn resume(
        mem: impl Into<QueueMemory>,
        layout: Layout,
        features: Features,
        position: u32,
        journal: Option<Journal>,
    ) -> Result<Self, QueueFault> {
        let mem = mem.into();
        let position = if layout.slots.is_some() {
            // The queue continues at the tail in memory.
            position
        } else if !features.contains(Features::RING_PACKED) {
            over!(mem, space => SplitQueue::used_index(&space, layout))?.into()
        } else if let Some(journal) = &journal {
            over!(mem, space => PackedQueue::recover(&space, layout, journal))?.unwrap_or(position)
        } else {
            position
        };
        mark_written(&mem, layout, features);
        let mut queue = Self::new(mem, layout, features, position)?;
        queue.set_journal(journal);
        Ok(queue)
    }

    /// Records the position of a packed queue in `journal` for a successor of this process. A split
    /// queue needs no journal, nor does one with an in-flight area.
    pub fn set_journal(&mut self, journal: Option<Journal>) {
        match self {
            Self::Packed(queue) => queue.set_journal(journal),
            Self::Outlined(OutlinedQueue::Translated(queue)) => queue.set_journal(journal),
            Self::Split(_) | Self::Outlined(_) => {}
        }
    }

    /// Returns the position of the packed ring at `layout`, derived from the ring itself: for a
    /// front end that offers the start of a ring that was served. `None` when the ring does not
    /// show it: the driver puts several descriptors into the ring for a buffer, or has buffers used
    /// in batches.
    #[must_use]
    pub fn position_in_ring(mem: &QueueMemory, layout: Layout, features: Features) -> Option<u32> {
        let each_for_itself = features.contains(Features::RING_INDIRECT_DESC)
            && !features.contains(Features::IN_ORDER);
        let served = each_for_itself && Self::was_served(mem, layout);
        let found =
            served.then(|| over!(mem, space => PackedQueue::position_in_ring(&space, layout)));
        found.flatten()
    }

    /// Returns whether a device has ever used a descriptor of the packed ring at `layout` since its
    /// driver set it up, as far as the ring shows it: a ring that was just set up has no used flag
    /// anywhere.
    #[must_use]
    pub fn was_served(mem: &QueueMemory, layout: Layout) -> bool {
        over!(mem, space => PackedQueue::was_served(&space, layout)).unwrap_or(false)
    }
}
