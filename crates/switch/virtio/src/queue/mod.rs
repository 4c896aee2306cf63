//! The device side of a virtqueue (virtio 1.3, sections 2.7 split and 2.8 packed).
//!
//! Everything that a driver writes is hostile: descriptors, indices and indirect tables change
//! while they are read. Each guest-owned field is fetched once with an atomic load, checked, and
//! used from the copy; every loop is bounded by the queue size or by a constant. The first
//! violation stops the queue: it gets a [`QueueFault`] that every later call returns, and touches
//! guest memory no more.
//!
//! ```text
//!              take_readable / take_writable             put               publish
//!  available --------------------------------> taken ----------> staged ------------> used
//!      ^                                         |                        one release store
//!      +---------------- untake -----------------+
//! ```
//!
//! Staged elements become visible to the driver together: a split queue writes its used index last,
//! a packed queue the flags of the batch's first element.
//!
//! With `IN_ORDER` the caller puts chains in the order in which it took them. One used element
//! stands for a batch of chains that were read ([`Queue::put_read`]; sections 2.7.9 and 2.8.9); of
//! chains that were written each has its own, because the driver needs every length.
//!
//! Writes to rings and event fields are logged by the queue when the memory has a dirty log; the
//! code that writes the bytes of frames logs them with [`Queue::mark_written`], before `publish`.

mod area;
mod batch;
mod descriptor;
mod event;
mod fault;
mod inflight;
mod journal;
mod outlined;
mod packed;
mod resume;
mod slots;
mod space;
mod split;
mod translated;
mod unnotified;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use memory::GuestMemory;
pub use memory::Segment;

use batch::Ring;
pub use batch::{ChainBatch, Fill, Limit};
use descriptor::GatherResult;
pub use fault::QueueFault;
use fault::Stop;
pub use inflight::{Inflight, InflightRegion};
pub use journal::{Journal, JournalRegion};
use outlined::OutlinedQueue;
use packed::PackedQueue;
pub(crate) use slots::netmap;
pub use slots::netmap::program as netmap_program;
pub use slots::{MAX_SLOTS_PER_FRAME, SlotFormat};
pub use space::QueueMemory;
use split::SplitQueue;
use translated::{Layouts, TranslatedQueue, TranslatedSpace};
use wire::virtio::features::Features;

/// Largest queue size that is served.
pub const MAX_SIZE: u16 = 4096;
/// Most bytes in one chain.
pub const MAX_CHAIN_BYTES: u32 = 1 << 20;
/// Most descriptors in one chain, those in an indirect table included.
pub const MAX_CHAIN_DESCRIPTORS: u32 = 1024;
/// Most borders between memory regions that the buffers of one chain cross: with its descriptors, a
/// chain lies in 2048 pieces of memory at most.
pub const MAX_CHAIN_BORDERS: u32 = 1024;

/// Place of a queue in guest memory: addresses of its three areas, guest-physical or, of a guest
/// with an IOMMU, I/O virtual ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Number of descriptors: 1..=4096; a power of two for a split queue and for slots.
    pub size: u16,
    /// Descriptor area: the table, or the packed ring.
    pub desc: u64,
    /// Driver area: the available ring, or the driver's event suppression structure.
    pub driver: u64,
    /// Device area: the used ring, or the device's event suppression structure.
    pub device: u64,
    /// The format of a slot queue; `None` for a virtqueue.
    pub slots: Option<SlotFormat>,
}

/// A range of the caller's segment arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegRange {
    /// Index of the first segment.
    pub start: u32,
    /// Number of segments.
    pub len: u32,
}

impl SegRange {
    /// Returns the segments of the range.
    ///
    /// # Panics
    /// When `arena` is not the one that the chain was taken into.
    #[inline]
    #[must_use]
    pub fn of<'a>(&self, arena: &'a [Segment]) -> &'a [Segment] {
        &arena[self.start as usize..][..self.len as usize]
    }
}

/// One chain of descriptors, taken from the driver. It is returned exactly once, with
/// [`Queue::put`] or [`Queue::untake`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Split: the head descriptor. Packed: the buffer id. Slots: the position of the first one.
    pub id: u16,
    /// Ring slots that the chain takes: 1 on a split queue, its direct descriptors on a packed one,
    /// its slots on a slot queue.
    pub count: u16,
    /// The chain's buffers in the caller's arena, in order.
    pub segs: SegRange,
    /// Bytes of all buffers together, 1..=[`MAX_CHAIN_BYTES`]; 0 for an empty slot, and for a chain
    /// that a guest with an IOMMU has not granted.
    pub bytes: u32,
}

impl Chain {
    /// Creates the chain that was gathered, of `count` slots.
    fn gathered(id: u16, count: u16, gathered: GatherResult) -> Result<Self, Stop> {
        let (segs, bytes) = match gathered {
            GatherResult::Buffers(segs, bytes) => (segs, bytes),
            GatherResult::NotGranted(start) => (SegRange { start, len: 0 }, 0),
            GatherResult::Untranslated => return Err(Stop::Untranslated),
        };
        Ok(Self {
            id,
            count,
            segs,
            bytes,
        })
    }

    /// Creates a chain of one buffer, which is number `start` of the arena.
    #[inline(always)]
    fn of_one(id: u16, start: u32, buffer: Segment) -> Self {
        Self {
            id,
            count: 1,
            segs: SegRange { start, len: 1 },
            bytes: buffer.len,
        }
    }

    /// Returns a copy, made field by field. It reloads the chain into registers after an outlined
    /// call has written it to memory: otherwise the fast path would keep it in memory too, and
    /// reassembling it costs a store-forwarding stall per frame.
    #[inline(always)]
    fn reload(&self) -> Self {
        Self {
            id: self.id,
            count: self.count,
            segs: SegRange {
                start: self.segs.start,
                len: self.segs.len,
            },
            bytes: self.bytes,
        }
    }
}

/// A virtqueue of either layout, or a slot queue of either format.
///
/// Nothing is allocated after the queue is created, as long as the caller's arena has room. The
/// queue may move between threads; it has one user at a time.
#[derive(Debug)]
pub enum Queue {
    /// Descriptor table, available ring, used ring.
    Split(SplitQueue<Arc<GuestMemory>>),
    /// One ring of descriptors.
    Packed(PackedQueue<Arc<GuestMemory>>),
    /// A slot queue, or one of a guest with an IOMMU.
    Outlined(OutlinedQueue),
}

/// Calls the same method of any layout.
macro_rules! either {
    ($queue:expr, $q:ident => $call:expr) => {
        match $queue {
            Queue::Split($q) => $call,
            Queue::Packed($q) => $call,
            Queue::Outlined($q) => $call,
        }
    };
}

impl Queue {
    /// Creates a queue at `layout` in `mem`; `RING_PACKED`, `RING_INDIRECT_DESC` and
    /// `RING_EVENT_IDX` of `features` select its behaviour. `position` is the value of
    /// [`Queue::position`] when the queue stopped, or the start: 0 for a split queue, `0x8000_8000`
    /// for a packed one (`SET_VRING_BASE`).
    ///
    /// A split queue continues at the used index in guest memory, a slot queue at its `tail` there,
    /// whatever `position` is. A packed queue whose used half of
    /// the position cannot be right because the front end gave only the available half (`0x8000`)
    /// starts with both halves equal.
    ///
    /// # Errors
    /// [`QueueFault::BadSize`], [`QueueFault::BadPosition`], [`QueueFault::Misaligned`],
    /// [`QueueFault::UnmappedRing`]; of slot queues [`QueueFault::BadParameters`],
    /// [`QueueFault::UnmappedPool`], [`QueueFault::WrongCookie`].
    pub fn new(
        mem: impl Into<QueueMemory>,
        layout: Layout,
        features: Features,
        position: u32,
    ) -> Result<Self, QueueFault> {
        Self::build(mem.into(), layout, features, position, None)
    }

    /// As [`Queue::new`], with in-flight chains tracked in `inflight`. Chains that an earlier
    /// process left in flight there are taken again first, oldest first. A region that was used
    /// before overrides `position`: a front end that lost its back end does not know the queue's
    /// position. So a reset of the device needs a zeroed region.
    ///
    /// # Errors
    /// As [`Queue::new`]; [`QueueFault::InflightMismatch`] and [`QueueFault::InflightCorrupt`] for
    /// a region that cannot be this queue's.
    pub fn with_inflight(
        mem: impl Into<QueueMemory>,
        layout: Layout,
        features: Features,
        position: u32,
        inflight: Inflight,
    ) -> Result<Self, QueueFault> {
        let mem = mem.into();
        resume::mark_written(&mem, layout, features);
        Self::build(mem, layout, features, position, Some(inflight))
    }

    fn build(
        mem: QueueMemory,
        layout: Layout,
        features: Features,
        position: u32,
        inflight: Option<Inflight>,
    ) -> Result<Self, QueueFault> {
        if layout.size == 0 || layout.size > MAX_SIZE {
            return Err(QueueFault::BadSize);
        }
        let QueueMemory { memory, iotlb } = mem;
        let packed = features.contains(Features::RING_PACKED);
        if let Some(format) = layout.slots {
            return OutlinedQueue::new(memory, layout, format).map(Self::Outlined);
        }
        let Some(iotlb) = iotlb else {
            let space = memory;
            return if packed {
                PackedQueue::new(space, layout, features, position, inflight).map(Self::Packed)
            } else {
                SplitQueue::new(space, layout, features, position, inflight).map(Self::Split)
            };
        };
        let generation = iotlb.generation();
        let space = TranslatedSpace::new(memory, Arc::clone(&iotlb));
        let queue = if packed {
            PackedQueue::new(space, layout, features, position, inflight).map(Layouts::Packed)?
        } else {
            SplitQueue::new(space, layout, features, position, inflight).map(Layouts::Split)?
        };
        let queue = TranslatedQueue::new(queue, iotlb, generation);
        Ok(Self::Outlined(OutlinedQueue::Translated(Box::new(queue))))
    }

    /// Returns whether the queue's addresses are those of a guest with an IOMMU.
    #[inline]
    #[must_use]
    pub fn is_translated(&self) -> bool {
        matches!(self, Self::Outlined(OutlinedQueue::Translated(_)))
    }

    /// Returns whether the last batch ended before an available chain, because that is not
    /// translated: it will be there when the front end has answered.
    #[must_use]
    pub fn is_untranslated(&self) -> bool {
        self.translated()
            .is_some_and(|queue| queue.is_untranslated())
    }

    /// Returns whether it ended there because the guest has not granted that chain, while one
    /// before it was in use.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.translated().is_some_and(|queue| queue.is_denied())
    }

    /// Asks for the translations of up to `most` buffers that the guest has offered since the last
    /// time, so that they are there when frames come. Nothing happens without an IOMMU.
    #[inline]
    pub fn ask_for_buffers(&mut self, most: u16) {
        if let Self::Outlined(OutlinedQueue::Translated(queue)) = self {
            queue.ask_for_buffers(most);
        }
    }

    fn translated(&self) -> Option<&TranslatedQueue> {
        match self {
            Self::Outlined(OutlinedQueue::Translated(queue)) => Some(queue),
            _ => None,
        }
    }

    /// Returns the bytes of each frame's header, where the queue itself determines them: 0, 10 or
    /// 12 of a slot queue. `None`: the negotiated features of virtio-net do.
    #[must_use]
    pub fn header(&self) -> Option<u32> {
        match self {
            Self::Outlined(queue) => queue.header(),
            Self::Split(_) | Self::Packed(_) => None,
        }
    }

    /// Returns whether a kick that was requested may be missing: memif clients store `head` and
    /// load the interrupt mask without a fence between (libmemif, VPP and DPDK do), so they may see
    /// the mask of before. The caller must look at such a queue once more a while after each
    /// request.
    #[must_use]
    pub fn may_miss_kicks(&self) -> bool {
        matches!(self, Self::Outlined(OutlinedQueue::Memif(_)))
    }

    /// Switches to another snapshot of the guest's memory, at the same guest-physical addresses.
    /// Segments taken before stay valid only while the former snapshot lives.
    ///
    /// # Errors
    /// [`QueueFault::UnmappedRing`] or [`QueueFault::Misaligned`] stop the queue: a ring area is
    /// gone.
    pub fn set_memory(&mut self, mem: Arc<GuestMemory>) -> Result<(), QueueFault> {
        either!(self, q => q.set_memory(mem))
    }

    /// Returns the memory that contains the queue.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        either!(self, q => q.memory())
    }

    /// Returns the number of descriptors.
    #[must_use]
    pub fn size(&self) -> u16 {
        either!(self, q => q.size())
    }

    /// Returns the reason why the queue stopped, if it did.
    #[must_use]
    pub fn fault(&self) -> Option<QueueFault> {
        either!(self, q => q.fault())
    }

    /// Takes the next chain for the device to read and appends its buffers to `segs`; `None` when
    /// there is none.
    ///
    /// # Errors
    /// The violation by the driver; `segs` is as before, and the queue has stopped.
    #[cfg(any(test, feature = "test-utils"))]
    #[inline]
    pub fn take_readable(&mut self, segs: &mut Vec<Segment>) -> Result<Option<Chain>, QueueFault> {
        either!(self, q => q.take::<false>(segs))
    }

    /// Takes the next chain for the device to write and appends its buffers to `segs`; `None` when
    /// there is none.
    ///
    /// # Errors
    /// As [`Queue::take_readable`].
    #[cfg(any(test, feature = "test-utils"))]
    #[inline]
    pub fn take_writable(&mut self, segs: &mut Vec<Segment>) -> Result<Option<Chain>, QueueFault> {
        either!(self, q => q.take::<true>(segs))
    }

    /// Takes chains for the device to read, until there are no more or the limit is reached.
    /// `prefetch` is called at once with the first buffer of each.
    ///
    /// # Errors
    /// The violation by the driver: the queue has stopped, and the chains before the bad one are
    /// taken.
    #[inline]
    pub fn take_all_readable(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        self.take_all::<false>(into, limit, prefetch)
    }

    /// Takes chains for the device to write, as [`Queue::take_all_readable`] does.
    ///
    /// # Errors
    /// As [`Queue::take_all_readable`].
    #[inline]
    pub fn take_all_writable(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        self.take_all::<true>(into, limit, prefetch)
    }

    #[inline(always)]
    fn take_all<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        match self {
            Self::Split(queue) => queue.take_all::<WRITABLE>(into, limit, prefetch),
            Self::Packed(queue) => queue.take_all::<WRITABLE>(into, limit, prefetch),
            // A struct of its own for a call that is not inlined: the other layouts keep theirs in
            // registers.
            Self::Outlined(queue) => queue.take_many::<WRITABLE>(into.again(), limit, prefetch),
        }
    }

    /// Returns the chains that were taken last to the queue, unused; `chains` lists them in the
    /// order of taking. Neither they nor any chain taken after the first of them has been put. They
    /// will be taken again.
    pub fn untake(&mut self, chains: &[Chain]) {
        either!(self, q => q.untake(chains));
    }

    /// Stages one used element: the device is done with `chain` and has written its first `written`
    /// bytes (0 for a readable chain). The driver sees nothing before [`Queue::publish`].
    #[inline(always)]
    pub fn put(&mut self, chain: Chain, written: u32) {
        if self.fault().is_none() {
            either!(self, q => q.put(chain, written));
        }
    }

    /// Stages chains that `fill` writes to, each with the number of bytes that `fill` returns, from
    /// the first one on up to the first one that it refuses. Returns the number of chains, none
    /// when the queue has stopped, and the writer: it is moved, so that its state may stay in
    /// registers.
    #[inline(always)]
    pub fn put_filled<F: Fill>(&mut self, chains: &[Chain], mut fill: F) -> (usize, F) {
        // First: packed queues take two instructions a frame less than with one `match`.
        if let Self::Outlined(queue) = self {
            return queue.fill(chains, fill);
        }
        let count = match self {
            Self::Split(queue) => queue.put_filled(chains, &mut fill),
            Self::Packed(queue) => queue.put_filled(chains, &mut fill),
            Self::Outlined(_) => 0,
        };
        (count, fill)
    }

    /// Prefetches the places of about `count` elements that are about to be staged, which are in
    /// the cache of the driver's core. A hint.
    #[inline]
    pub fn expect_used(&mut self, count: u16) {
        either!(self, q => q.expect_used(count));
    }

    /// Stages `chains`, all read, in the order of taking: as [`Queue::put`] of each with nothing
    /// written. With `IN_ORDER` one element is enough.
    #[inline(always)]
    pub fn put_read(&mut self, chains: &[Chain]) {
        either!(self, q => q.put_read(chains));
    }

    /// Makes all staged elements visible to the driver at once.
    #[inline(always)]
    pub fn publish(&mut self) {
        either!(self, q => q.publish());
    }

    /// Returns the answer that [`Queue::needs_notify`] would give now, and leaves its state as it
    /// is.
    #[inline]
    #[must_use]
    pub fn wants_notify(&mut self) -> bool {
        either!(self, q => q.wants_notify())
    }

    /// Returns whether the driver wants to be notified of the elements that were published since
    /// the last call. A full fence separates the published elements from the read of the driver's
    /// event fields. The first batch of a queue is notified whatever the event index is, because a
    /// former process may have died before it notified.
    #[inline(always)]
    #[must_use]
    pub fn needs_notify(&mut self) -> bool {
        either!(self, q => q.needs_notify())
    }

    /// Returns the number of elements that were published since the last [`Queue::needs_notify`].
    #[inline]
    #[must_use]
    pub fn unnotified(&self) -> u32 {
        either!(self, q => q.unnotified())
    }

    /// Returns whether a chain is available.
    #[must_use]
    pub fn has_available(&mut self) -> bool {
        either!(self, q => q.waiting())
    }

    /// Returns the number of chains that are available, of a split queue. Of other queues: the size
    /// if any chain is, because a count would look at each.
    #[must_use]
    pub fn available(&mut self) -> u16 {
        match self {
            Self::Split(queue) => queue.available(),
            Self::Packed(queue) if queue.waiting() => queue.size(),
            Self::Packed(_) => 0,
            Self::Outlined(queue) => queue.available(),
        }
    }

    /// Asks the driver to kick when it makes chains available, or not to. When `on`, a full fence
    /// follows and `true` means that a chain is available already: no kick will come for it.
    ///
    /// With an event index the request holds for the next chain only: enable again before every
    /// sleep. A driver may kick in spite of `false`.
    pub fn set_kicks(&mut self, on: bool) -> bool {
        either!(self, q => q.set_kicks(on))
    }

    /// As `set_kicks(true)`, but asks for a kick only when `chains` more chains are available (of a
    /// packed queue: as many descriptors), at most the queue's size (virtio 1.3, sections 2.7.7.2
    /// and 2.8.10). Returns `None` without an event index: then nothing is changed.
    pub fn set_kick_threshold(&mut self, chains: u16) -> Option<bool> {
        either!(self, q => q.set_kick_threshold(chains))
    }

    /// Returns the queue's position in the encoding of `GET_VRING_BASE`. Split and slots: the next
    /// available index. Packed: next available slot in bits 0..15, its wrap counter in bit 15, next
    /// used slot in bits 16..31, its wrap counter in bit 31. Staged elements are not counted:
    /// publish first.
    #[must_use]
    pub fn position(&self) -> u32 {
        either!(self, q => q.position())
    }

    /// Logs the first `written` bytes of `segs` as dirty, for a live migration. Nothing happens
    /// without a dirty log.
    #[inline]
    pub fn mark_written(&self, segs: &[Segment], written: u32) {
        let mem = self.memory();
        if mem.log().is_some() {
            mark_segments(mem, segs, written);
        }
    }
}

#[cold]
fn mark_segments(mem: &GuestMemory, segs: &[Segment], written: u32) {
    let mut left = written;
    for seg in segs {
        let len = seg.len.min(left);
        mem.mark_dirty(seg.gpa, u64::from(len));
        left -= len;
    }
}
