//! The descriptors and rings of memif 2.0 (DPDK 22.11, `drivers/net/memif/memif.h`).
//!
//! ```text
//! driver area   ring +  0: cookie u32, flags u16, head u16
//! device area   ring + 64: tail u16
//! descriptors   ring + 128 + 16 i: flags u16, region u16, length u32, offset u32, metadata u32
//! ```
//!
//! The client writes `head` and the switch `tail`, in both directions. The side that receives
//! frames writes `flags`, whose bit 0 says that it wants no interrupts: the switch in rings from
//! the client, the client in rings to it. The sender of frames is not interrupted when buffers come
//! back. The length of a descriptor to the client is the room in its buffer, and the length of the
//! frame when it comes back: what a process wrote there and did not publish is the room that its
//! successor finds, so frames may take a few descriptors more then.
//!
//! Region *r* of the client is guest memory at *r* << 32.

use std::sync::atomic::Ordering::Relaxed;

use memory::{GuestMemory, Segment, View};

use super::{Format, Places, SlotFormat};
use crate::queue::area::{Area, alive};
use crate::queue::descriptor::{Desc, NEXT, WRITE};
use crate::queue::{Layout, MAX_CHAIN_BYTES, QueueFault};

/// First field of a ring.
const COOKIE: u32 = 0x03e3_1f20;

const AT_COOKIE: usize = 0;
const AT_FLAGS: usize = 4;
/// In a ring's flags: the receiver wants no interrupts.
const NO_INTERRUPT: u16 = 1;

/// Offset of the length in a descriptor.
const AT_LEN: usize = 4;
/// `MEMIF_DESC_FLAG_NEXT`: the frame continues in the next descriptor.
const MORE: u16 = 1;

/// The descriptors of a ring.
#[derive(Debug)]
pub struct Memif {
    places: Places,
    to_client: bool,
}

/// A descriptor as it was fetched, once.
struct Descriptor {
    flags: u16,
    region: u16,
    len: u32,
    offset: u32,
}

impl Descriptor {
    /// Returns the address of the buffer: region and offset do not overlap, so no sum can overflow.
    #[inline(always)]
    fn addr(&self) -> u64 {
        u64::from(self.region) << 32 | u64::from(self.offset)
    }
}

impl Memif {
    #[inline(always)]
    fn fetch(&self, at: u16) -> Descriptor {
        let offset = self.places.offset(at);
        // SAFETY: the mask keeps the descriptor inside the area.
        let (low, high) = unsafe {
            (
                self.places.slots.u64(offset).load(Relaxed),
                self.places.slots.u64(offset + 8).load(Relaxed),
            )
        };
        let (low, high) = (u64::from_le(low), u64::from_le(high));
        Descriptor {
            flags: low as u16,
            region: (low >> 16) as u16,
            len: (low >> 32) as u32,
            offset: high as u32,
        }
    }
}

impl Format for Memif {
    const KICK_EVENT: bool = false;
    const AT_HEAD: usize = 6;

    fn resolve(
        mem: &GuestMemory,
        layout: Layout,
        before: Option<&Self>,
    ) -> Result<Self, QueueFault> {
        let this = Self {
            places: Places::resolve(mem, layout, 8, (8, 8), (2, 8))?,
            to_client: layout.slots == Some(SlotFormat::Memif { to_client: true }),
        };
        // SAFETY: the field lies in the area, and `mem` is alive.
        let cookie = u32::from_le(unsafe { this.places.driver.u32(AT_COOKIE) }.load(Relaxed));
        if before.is_none() && cookie != COOKIE {
            return Err(QueueFault::WrongCookie);
        }
        Ok(this)
    }

    fn header(&self) -> u32 {
        0
    }

    fn places(&self) -> &Places {
        &self.places
    }

    #[inline(always)]
    fn plain<const WRITABLE: bool>(&self, mem: &View<'_>, at: u16) -> Option<Segment> {
        let slot = self.fetch(at);
        if (!WRITABLE && slot.flags & MORE != 0) || slot.len > MAX_CHAIN_BYTES {
            return None;
        }
        mem.translate(slot.addr(), slot.len)
    }

    fn slot<const WRITABLE: bool>(&self, at: u16) -> Result<Desc, QueueFault> {
        let slot = self.fetch(at);
        let more = !WRITABLE && slot.flags & MORE != 0;
        Ok(Desc {
            addr: slot.addr(),
            len: slot.len,
            flags: if more { NEXT } else { 0 } | if WRITABLE { WRITE } else { 0 },
            link: 0,
        })
    }

    #[inline(always)]
    fn set_written(places: &Places, at: u16, len: u32, more: bool) {
        let offset = places.offset(at);
        // SAFETY: the mask keeps the descriptor inside the area.
        let (flags, length) =
            unsafe { (places.slots.u16(offset), places.slots.u32(offset + AT_LEN)) };
        let (len, more) = (len.to_le(), if more { MORE } else { 0 }.to_le());
        if length.load(Relaxed) != len && alive() {
            length.store(len, Relaxed);
        }
        if flags.load(Relaxed) != more && alive() {
            flags.store(more, Relaxed);
        }
    }

    #[inline]
    fn wants_call(&self, _tail: u16, _moved: Option<u16>) -> bool {
        // SAFETY: the field lies in the area, by the invariant.
        let flags = || u16::from_le(unsafe { self.places.driver.u16(AT_FLAGS) }.load(Relaxed));
        self.to_client && flags() & NO_INTERRUPT == 0
    }

    #[inline]
    fn request_kicks(&self, event: Option<u16>) {
        if self.to_client || !alive() {
            return;
        }
        let flags = if event.is_some() { 0 } else { NO_INTERRUPT };
        // SAFETY: the field lies in the area, by the invariant.
        unsafe { self.places.driver.u16(AT_FLAGS) }.store(flags.to_le(), Relaxed);
    }
}
