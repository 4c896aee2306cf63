//! The three areas of a split queue, with indices masked so that no access can leave them.
//!
//! ```text
//! descriptor table   16 i: addr u64, len u32, flags u16, next u16
//! available ring     flags u16, idx u16, ring[size] u16, used_event u16        (the driver writes)
//! used ring          flags u16, idx u16, ring[size] {id u32, len u32}, avail_event u16  (device)
//! ```

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use memory::GuestMemory;
use memory::copy::{prefetch_line, prefetch_line_for_write};
use memory::iotlb::Access;

use crate::queue::area::{Area, FlatArea, alive};
use crate::queue::descriptor::{DESC_LEN, Desc};
use crate::queue::space::Space;
use crate::queue::{Layout, QueueFault};

/// In the available ring's flags: the driver wants no notifications.
const NO_INTERRUPT: u16 = 1;
/// In the used ring's flags: the device wants no kicks.
const NO_NOTIFY: u16 = 1;
const AT_FLAGS: usize = 0;
const AT_INDEX: usize = 2;
const AT_RING: usize = 4;
/// Used elements in a cache line.
const USED_IN_A_LINE: u16 = 8;

/// Resolved areas. Invariant, set up by `resolve`: `size` is a power of two, and the areas are as
/// long as the layout above says for it, mapped and aligned; the queue keeps the memory that they
/// lie in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rings<A> {
    desc: A,
    avail: A,
    used: A,
    size: u16,
    /// `size - 1`: masks an index to a slot.
    mask: u16,
}

impl<A: Area> Rings<A> {
    pub(super) fn resolve(
        space: &impl Space<Area = A>,
        layout: Layout,
        event_idx: bool,
    ) -> Result<Self, QueueFault> {
        let size = u32::from(layout.size);
        let event = if event_idx { 2 } else { 0 };
        // All of them, so that all that is missing is asked for at once.
        let desc = space.area(layout.desc, DESC_LEN * size, 16, Access::READ);
        let avail = space.area(layout.driver, 4 + 2 * size + event, 2, Access::READ);
        let used = space.area(layout.device, 4 + 8 * size + event, 4, Access::READ_WRITE);
        Ok(Self {
            desc: desc?,
            avail: avail?,
            used: used?,
            size: layout.size,
            mask: layout.size.wrapping_sub(1),
        })
    }

    /// Returns a copy for a loop, if all areas are contiguous here.
    #[inline(always)]
    pub(super) fn flat(&self) -> Option<Rings<FlatArea>> {
        Some(Rings {
            desc: self.desc.flat()?,
            avail: self.avail.flat()?,
            used: self.used.flat()?,
            size: self.size,
            mask: self.mask,
        })
    }

    /// Returns a copy for a loop; see [`memory::View`].
    #[inline(always)]
    pub(super) fn view(&self) -> Rings<A::View<'_>> {
        Rings {
            desc: self.desc.view(),
            avail: self.avail.view(),
            used: self.used.view(),
            size: self.size,
            mask: self.mask,
        }
    }

    /// Returns the slot of an index.
    #[inline]
    pub(super) fn slot(&self, index: u16) -> usize {
        usize::from(index & self.mask)
    }

    /// Returns descriptor `at`, fetched once, or `None` when the table has no such descriptor.
    #[inline]
    pub(super) fn descriptor(&self, at: u16) -> Option<Desc> {
        if at >= self.size {
            return None;
        }
        let offset = DESC_LEN as usize * usize::from(at);
        // SAFETY: `at < size`, so both words lie in the table by the invariant.
        let [addr, rest] = unsafe { self.desc.words(offset) };
        let (addr, rest) = (addr.load(Relaxed), rest.load(Relaxed));
        Some(Desc::split(u64::from_le(addr), u64::from_le(rest)))
    }

    /// Returns the driver's available index; everything made available before is visible after.
    #[inline]
    pub(super) fn available_index(&self) -> u16 {
        // SAFETY: the ring's head is inside the area by the invariant.
        u16::from_le(unsafe { self.avail.u16(AT_INDEX) }.load(Acquire))
    }

    /// Returns the head that entry `index` of the available ring names.
    #[inline]
    pub(super) fn available(&self, index: u16) -> u16 {
        // SAFETY: the masked slot is below `size`, inside the area by the invariant.
        u16::from_le(unsafe { self.avail.u16(AT_RING + 2 * self.slot(index)) }.load(Relaxed))
    }

    /// Prefetches the descriptor that entry `index` of the available ring names.
    #[inline]
    pub(super) fn prefetch_descriptor(&self, index: u16) {
        let at = self.slot(self.available(index));
        prefetch_line(self.desc.line_of(DESC_LEN as usize * at));
    }

    /// Prefetches the lines of `count` used elements from `index` on, for writing.
    #[inline]
    pub(super) fn prefetch_used(&self, index: u16, count: u16) {
        for line in 0..count.min(self.size).div_ceil(USED_IN_A_LINE) {
            let at = self.slot(index.wrapping_add(USED_IN_A_LINE * line));
            prefetch_line_for_write(self.used.line_of(AT_RING + 8 * at));
        }
    }

    /// Returns whether the driver's flags ask for no notifications.
    #[inline]
    pub(super) fn interrupts_suppressed(&self) -> bool {
        // SAFETY: the ring's head is inside the area by the invariant.
        let flags = u16::from_le(unsafe { self.avail.u16(AT_FLAGS) }.load(Relaxed));
        flags & NO_INTERRUPT != 0
    }

    /// Returns the used index at which the driver wants a notification; only with an event index.
    #[inline]
    pub(super) fn used_event(&self) -> u16 {
        let at = AT_RING + 2 * usize::from(self.size);
        // SAFETY: behind the ring; `resolve` covered the field when the event index was negotiated.
        u16::from_le(unsafe { self.avail.u16(at) }.load(Relaxed))
    }

    /// Returns the used index in memory.
    pub(super) fn used_index(&self) -> u16 {
        // SAFETY: the ring's head is inside the area by the invariant.
        u16::from_le(unsafe { self.used.u16(AT_INDEX) }.load(Relaxed))
    }

    /// Writes the used element `index`.
    #[inline]
    pub(super) fn set_used(&self, index: u16, id: u16, len: u32) {
        let at = AT_RING + 8 * self.slot(index);
        if !alive() {
            return;
        }
        // SAFETY: the masked slot is below `size`, inside the area by the invariant.
        let [id_at, len_at] = unsafe { self.used.u32_pair(at) };
        id_at.store(u32::from(id).to_le(), Relaxed);
        len_at.store(len.to_le(), Relaxed);
    }

    /// Publishes all elements below `index`.
    #[inline]
    pub(super) fn publish_used(&self, index: u16) {
        if !alive() {
            return;
        }
        // SAFETY: the ring's head is inside the area by the invariant.
        unsafe { self.used.u16(AT_INDEX) }.store(index.to_le(), Release);
    }

    /// Logs `count` elements from `from` on, and the index.
    #[cold]
    pub(super) fn mark_used(&self, mem: &GuestMemory, from: u16, count: u16) {
        let first = self.slot(from);
        let count = usize::from(count).min(usize::from(self.size));
        let before_end = count.min(usize::from(self.size) - first);
        self.used.mark(mem, AT_RING + 8 * first, 8 * before_end);
        self.used.mark(mem, AT_RING, 8 * (count - before_end));
        self.used.mark(mem, AT_INDEX, 2);
    }

    /// Sets the flag that asks the driver for no kicks.
    pub(super) fn set_kicks_suppressed(&self, mem: &GuestMemory, suppressed: bool) {
        let flags = if suppressed { NO_NOTIFY } else { 0 };
        // SAFETY: the ring's head is inside the area by the invariant.
        unsafe { self.used.u16(AT_FLAGS) }.store(flags.to_le(), Relaxed);
        self.used.mark(mem, AT_FLAGS, 2);
    }

    /// Asks for a kick at available index `index`; only with an event index.
    pub(super) fn set_available_event(&self, mem: &GuestMemory, index: u16) {
        let at = AT_RING + 8 * usize::from(self.size);
        // SAFETY: behind the ring; `resolve` covered the field when the event index was negotiated.
        unsafe { self.used.u16(at) }.store(index.to_le(), Relaxed);
        self.used.mark(mem, at, 2);
    }
}
