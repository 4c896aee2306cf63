//! The areas of a packed queue.
//!
//! ```text
//! descriptor ring    16 i: addr u64, len u32, id u16, flags u16         (both sides write)
//! event suppression  off_wrap u16, flags u16     one for each side      (driver area, device area)
//! ```

use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

use memory::GuestMemory;
use memory::copy::{prefetch_line, prefetch_line_for_write};
use memory::iotlb::Access;

use crate::queue::area::{Area, FlatArea, alive};
use crate::queue::descriptor::{DESC_LEN, Desc};
use crate::queue::packed::cursor::Cursor;
use crate::queue::space::Space;
use crate::queue::{Journal, Layout, QueueFault};

/// Descriptor flag: equals the driver's wrap counter when available.
pub(super) const AVAIL: u16 = 1 << 7;
/// Descriptor flag: differs from `AVAIL` when available, equals it when used.
pub(super) const USED: u16 = 1 << 15;
/// Event flags: notify always.
pub(super) const EVENT_ENABLE: u16 = 0;
/// Event flags: never notify.
pub(super) const EVENT_DISABLE: u16 = 1;
/// Event flags: notify when the descriptor of `off_wrap` is reached.
pub(super) const EVENT_DESC: u16 = 2;

const AT_LEN: usize = 8;
/// Descriptors in a cache line.
const SLOTS_IN_A_LINE: usize = 4;
/// Number of descriptors that are prefetched ahead.
const SLOTS_AHEAD: usize = 16;
const AT_ID: usize = 12;
const AT_FLAGS: usize = 14;
const AT_OFF_WRAP: usize = 0;
const AT_EVENT_FLAGS: usize = 2;
const EVENT_LEN: u32 = 4;

/// Splits a `SET_VRING_BASE` value into the available and the used position, and the slots between
/// them.
pub(super) fn positions(position: u32, size: u16) -> Result<(Cursor, Cursor, u16), QueueFault> {
    let next = Cursor::from_bits(position as u16);
    let used = Cursor::from_bits((position >> 16) as u16);
    if next.index >= size || used.index >= size {
        return Err(QueueFault::BadPosition);
    }
    if position >> 16 == 0 && next.wrap {
        // The front end knows only the available half: nothing can be in flight then.
        return Ok((next, next, 0));
    }
    let in_flight = used.distance(next, size);
    if in_flight > size {
        return Err(QueueFault::BadPosition);
    }
    Ok((next, used, in_flight))
}

/// Returns whether a descriptor with these flags is available in the lap of `wrap`.
#[inline]
pub(super) fn is_available(flags: u16, wrap: bool) -> bool {
    flags & (AVAIL | USED) == if wrap { AVAIL } else { USED }
}

/// A used element.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Element {
    pub(super) len: u32,
    pub(super) id: u16,
    pub(super) flags: u16,
}

impl Element {
    #[inline(always)]
    fn word(self) -> u64 {
        u64::from(self.len) | u64::from(self.id) << 32 | u64::from(self.flags) << 48
    }

    fn of(word: u64) -> Self {
        Self {
            len: word as u32,
            id: (word >> 32) as u16,
            flags: (word >> 48) as u16,
        }
    }
}

/// Resolved areas. Invariant, set up by `resolve`: the ring holds `size` descriptors, each event
/// structure 4 bytes, all mapped and aligned; the queue keeps the memory that they lie in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring<A> {
    desc: A,
    driver: A,
    device: A,
    size: u16,
}

impl<A: Area> Ring<A> {
    pub(super) fn resolve(
        space: &impl Space<Area = A>,
        layout: Layout,
    ) -> Result<Self, QueueFault> {
        // All of them, so that all that is missing is asked for at once.
        let len = DESC_LEN * u32::from(layout.size);
        let desc = space.area(layout.desc, len, 16, Access::READ_WRITE);
        let driver = space.area(layout.driver, EVENT_LEN, 4, Access::READ);
        let device = space.area(layout.device, EVENT_LEN, 4, Access::READ_WRITE);
        Ok(Self {
            desc: desc?,
            driver: driver?,
            device: device?,
            size: layout.size,
        })
    }

    /// Returns a copy for a loop, if all areas are contiguous here.
    #[inline(always)]
    pub(super) fn flat(&self) -> Option<Ring<FlatArea>> {
        Some(Ring {
            desc: self.desc.flat()?,
            driver: self.driver.flat()?,
            device: self.device.flat()?,
            size: self.size,
        })
    }

    #[inline(always)]
    pub(super) fn size(&self) -> u16 {
        self.size
    }

    /// Returns a copy for a loop; see [`memory::View`].
    #[inline(always)]
    pub(super) fn view(&self) -> Ring<A::View<'_>> {
        Ring {
            desc: self.desc.view(),
            driver: self.driver.view(),
            device: self.device.view(),
            size: self.size,
        }
    }

    /// Returns the offset of slot `at`.
    ///
    /// # Panics
    /// When there is no such slot; the queue's cursors are always below the size.
    #[inline]
    fn slot(&self, at: u16) -> usize {
        assert!(at < self.size, "a cursor left the ring");
        DESC_LEN as usize * usize::from(at)
    }

    /// Returns the flags of slot `at`; everything written before them is visible after.
    #[inline]
    pub(super) fn flags(&self, at: u16) -> u16 {
        // SAFETY: `slot` keeps the descriptor inside the ring.
        u16::from_le(unsafe { self.desc.u16(self.slot(at) + AT_FLAGS) }.load(Acquire))
    }

    /// Returns the descriptor in slot `at`, whose flags were fetched before.
    #[inline(always)]
    pub(super) fn descriptor(&self, at: u16, flags: u16) -> Desc {
        let offset = self.slot(at);
        // SAFETY: `slot` keeps the descriptor inside the ring.
        let (addr, len, id) = unsafe {
            (
                self.desc.u64(offset).load(Relaxed),
                self.desc.u32(offset + AT_LEN).load(Relaxed),
                self.desc.u16(offset + AT_ID).load(Relaxed),
            )
        };
        Desc {
            addr: u64::from_le(addr),
            len: u32::from_le(len),
            flags,
            link: u16::from_le(id),
        }
    }

    /// Prefetches the lines of the descriptors from slot `at` on, as many as
    /// [`Ring::prefetch_ahead`] keeps ahead; for writing too if their elements will go there.
    #[inline]
    pub(super) fn prefetch_first(&self, at: u16, to_write: bool) {
        for ahead in (0..SLOTS_AHEAD).step_by(SLOTS_IN_A_LINE) {
            self.prefetch(self.slot(at) + DESC_LEN as usize * ahead, to_write);
        }
    }

    /// Prefetches the line that is this far ahead of slot `at`, once per line.
    #[inline]
    pub(super) fn prefetch_ahead(&self, at: u16, to_write: bool) {
        if usize::from(at).is_multiple_of(SLOTS_IN_A_LINE) {
            self.prefetch(self.slot(at) + DESC_LEN as usize * SLOTS_AHEAD, to_write);
        }
    }

    #[inline]
    fn prefetch(&self, offset: usize, to_write: bool) {
        if to_write {
            prefetch_line_for_write(self.desc.line_of(offset));
        } else {
            prefetch_line(self.desc.line_of(offset));
        }
    }

    /// Returns the second half of the descriptor in slot `at` (length, id, flags), as in memory.
    #[inline(always)]
    pub(super) fn tail(&self, at: u16) -> u64 {
        let offset = self.slot(at) + AT_LEN;
        if cfg!(miri) {
            let desc = self.descriptor(at, self.flags(at));
            return Element {
                len: desc.len,
                id: desc.link,
                flags: desc.flags,
            }
            .word()
            .to_le();
        }
        // SAFETY: `slot` keeps the descriptor inside the ring; it is aligned to 16.
        unsafe { self.desc.u64(offset) }.load(Relaxed)
    }

    /// Puts back the value that [`Ring::tail`] has read.
    pub(super) fn put_back(&self, at: u16, tail: u64) {
        self.set_tail(at, tail, Release);
    }

    /// Writes a used element that is hidden behind another one of its batch; the overwritten word
    /// goes to the journal.
    #[inline(always)]
    pub(super) fn set_hidden(&self, at: u16, element: Element, journal: Option<&Journal>) {
        if cfg!(miri) {
            if let Some(journal) = journal {
                journal.keep(at, self.tail(at));
            }
            return self.set_tail(at, element.word().to_le(), Release);
        }
        // SAFETY: `slot` keeps the descriptor inside the ring; it is aligned to 16.
        let tail = unsafe { self.desc.u64(self.slot(at) + AT_LEN) };
        if let Some(journal) = journal {
            journal.keep(at, tail.load(Relaxed));
        }
        if alive() {
            tail.store(element.word().to_le(), Release);
        }
    }

    /// Writes a batch's first element, which makes all of it visible.
    #[inline]
    pub(super) fn publish_element(&self, at: u16, element: Element) {
        self.set_tail(at, element.word().to_le(), Release);
    }

    /// Writes length, id and flags with one store, so that the driver, and a successor of this
    /// process, sees all of them or none. Miri supports atomics of one width only at each place, so
    /// for it the fields go one by one.
    #[inline(always)]
    fn set_tail(&self, at: u16, tail: u64, order: Ordering) {
        let offset = self.slot(at) + AT_LEN;
        if !alive() {
            return;
        }
        if cfg!(miri) {
            let element = Element::of(u64::from_le(tail));
            // SAFETY: `slot` keeps the descriptor inside the ring.
            unsafe {
                self.desc.u32(offset).store(element.len.to_le(), Relaxed);
                self.desc.u16(offset + 4).store(element.id.to_le(), Relaxed);
                self.desc
                    .u16(offset + 6)
                    .store(element.flags.to_le(), order);
            }
            return;
        }
        // SAFETY: `slot` keeps the descriptor inside the ring; it is aligned to 16.
        unsafe { self.desc.u64(offset) }.store(tail, order);
    }

    /// Writes the flags of a used element that is hidden behind another one of its batch.
    #[inline]
    pub(super) fn set_hidden_flags(&self, at: u16, flags: u16) {
        // SAFETY: `slot` keeps the descriptor inside the ring.
        unsafe { self.desc.u16(self.slot(at) + AT_FLAGS) }.store(flags.to_le(), Relaxed);
    }

    /// Clears used flags that a former process staged behind `used` and never published: once the
    /// slot in front of them is used, the driver would take them for used too. The `in_flight`
    /// slots from `used` on belong to the device until it uses them.
    pub(super) fn hide_staged(&self, mem: &GuestMemory, used: Cursor, in_flight: u16) {
        let mut at = used;
        for _ in 0..in_flight {
            let used_here = if at.wrap { AVAIL | USED } else { 0 };
            if self.flags(at.index) & (AVAIL | USED) == used_here {
                self.set_hidden_flags(at.index, used_here ^ USED);
                self.mark_used(mem, at.index, 1);
            }
            at.advance(1, self.size);
        }
    }

    /// Logs `count` slots from `from` on.
    #[cold]
    pub(super) fn mark_used(&self, mem: &GuestMemory, from: u16, count: u16) {
        let each = DESC_LEN as usize;
        let count = usize::from(count.min(self.size));
        let before_end = count.min(usize::from(self.size - from));
        self.desc
            .mark(mem, each * usize::from(from), each * before_end);
        self.desc.mark(mem, 0, each * (count - before_end));
    }

    /// Returns the driver's event suppression: event flags, and the position that they refer to.
    #[inline]
    pub(super) fn driver_event(&self) -> (u16, Cursor) {
        // SAFETY: both fields are inside the area by the invariant. The driver writes the flags
        // last, so they are read first.
        let (flags, off) = unsafe {
            let flags = self.driver.u16(AT_EVENT_FLAGS).load(Acquire);
            (flags, self.driver.u16(AT_OFF_WRAP).load(Relaxed))
        };
        let event = Cursor::from_bits(u16::from_le(off));
        (u16::from_le(flags) & 3, event)
    }

    /// Writes the device's event suppression; with `EVENT_DESC`, for a kick at `event`.
    pub(super) fn set_device_event(&self, mem: &GuestMemory, flags: u16, event: Cursor) {
        // SAFETY: both fields are inside the area by the invariant.
        unsafe {
            self.device
                .u16(AT_OFF_WRAP)
                .store(event.bits().to_le(), Relaxed);
            self.device
                .u16(AT_EVENT_FLAGS)
                .store(flags.to_le(), Release);
        }
        self.device.mark(mem, 0, EVENT_LEN as usize);
    }
}
