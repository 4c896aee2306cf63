//! The slots of the netmap API (`net/netmap.h`, API 14), with two lines of indices.
//!
//! ```text
//! descriptor area   16 i: buf_idx u32, len u16, flags u16, ptr u64        (struct netmap_slot)
//! driver area        0: head u16, event u16                               (the client writes)
//!                   64: magic u32, version u16, header u16, pool u64, buffer_size u32,
//!                       buffers u32, program [u8; 16]                     (read once)
//! device area        0: tail u16, kick_event u16                          (the switch writes)
//! ```
//!
//! A netmap program sees `struct netmap_ring` instead, whose indices are modular; the library that
//! it is linked with translates. The meaning of `event` and `kick_event` is that of virtio's event
//! index (virtio 1.3, 2.7.10): the other side is woken when an index passes it. `event` is netmap's
//! `cur`, and the four together are its CSB (paper, section 3.1; `struct nm_csb_atok`,
//! `nm_csb_ktoa`).

use std::sync::atomic::Ordering::Relaxed;

use memory::{GuestMemory, Segment, View};

use super::{Format, Places, SLOT};
use crate::queue::area::{Area, FlatArea, alive};
use crate::queue::descriptor::{Desc, NEXT, WRITE};
use crate::queue::event::need_event;
use crate::queue::{Layout, QueueFault};

/// Bytes of the driver area.
pub(crate) const DRIVER_LEN: u32 = 128;
/// Bytes of the device area.
pub(crate) const DEVICE_LEN: u32 = 64;
/// Alignment of both: a cache line.
pub(crate) const LINE: u64 = 64;

/// "LHSQ", at the start of the parameters.
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"LHSQ");
/// Version of the parameters.
pub(crate) const VERSION: u16 = 1;

const AT_EVENT: usize = 2;
const AT_PARAMETERS: usize = 64;
const AT_PROGRAM: usize = 88;
const AT_KICK_EVENT: usize = 2;

/// Offset of `len` and `flags` in a slot.
const AT_LEN: usize = 4;
/// `NS_MOREFRAG`: the frame continues in the next slot.
const MORE: u16 = 0x20;

/// The parameters of a queue, as its client set them up before the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parameters {
    /// Bytes of the virtio header before each frame: 0, 10 or 12.
    header: u16,
    /// Guest-physical address of buffer 0.
    pool: u64,
    buffer_size: u32,
    buffers: u32,
}

impl Parameters {
    /// Reads each field once, and checks the copies.
    fn read(driver: &FlatArea) -> Result<Self, QueueFault> {
        let word = |at: usize| {
            // SAFETY: the area is `DRIVER_LEN` bytes long, aligned to a line, and its memory is
            // alive in the call.
            let field = unsafe { driver.u32(AT_PARAMETERS + at) };
            u32::from_le(field.load(Relaxed))
        };
        let [magic, kind, low, high, buffer_size, buffers] = [0, 4, 8, 12, 16, 20].map(word);
        let (version, header) = (kind as u16, (kind >> 16) as u16);
        let sound = magic == MAGIC && version == VERSION && [0, 10, 12].contains(&header);
        // A slot's length has 16 bits. A pool of 4 GiB or more is no piece of memory here.
        let bytes = u64::from(buffer_size) * u64::from(buffers);
        let holds = (1..=u32::from(u16::MAX)).contains(&buffer_size)
            && (1..=u64::from(u32::MAX)).contains(&bytes);
        if !sound || !holds {
            return Err(QueueFault::BadParameters);
        }
        Ok(Self {
            header,
            pool: u64::from(low) | u64::from(high) << 32,
            buffer_size,
            buffers,
        })
    }
}

/// The slots of a queue, and its pool: `buffers` times `buffer_size` bytes.
#[derive(Debug)]
pub struct Netmap {
    places: Places,
    pool: Segment,
    parameters: Parameters,
}

/// Returns the name of the program that a client gave, from the driver area of one of its queues at
/// `driver`: printable ASCII characters.
#[must_use]
pub fn program(mem: &GuestMemory, driver: u64) -> Option<String> {
    let area = FlatArea::resolve(mem, driver, DRIVER_LEN, LINE as usize).ok()?;
    let mut name = String::new();
    for at in (AT_PROGRAM..AT_PROGRAM + 16).step_by(4) {
        // SAFETY: the area is `DRIVER_LEN` bytes long and aligned, and `mem` is alive.
        let word = unsafe { area.u32(at) }.load(Relaxed);
        name.extend(word.to_ne_bytes().map(char::from));
    }
    let end = name.find('\0').unwrap_or(name.len());
    name.truncate(end);
    let printable = |c: char| c.is_ascii_graphic() || c == ' ';
    (!name.is_empty() && name.chars().all(printable)).then_some(name)
}

impl Netmap {
    /// Returns the first word of a slot, fetched once: buffer, length, flags.
    #[inline(always)]
    fn fetch(&self, at: u16) -> (u32, u32, u16) {
        // SAFETY: the mask keeps the slot inside the area.
        let word =
            u64::from_le(unsafe { self.places.slots.u64(self.places.offset(at)) }.load(Relaxed));
        // Masked, not cast to 16 bits: the length is zero-extended once then.
        let len = word >> 32 & 0xffff;
        (word as u32, len as u32, (word >> 48) as u16)
    }
}

impl Format for Netmap {
    const KICK_EVENT: bool = true;
    const AT_HEAD: usize = 0;

    fn resolve(
        mem: &GuestMemory,
        layout: Layout,
        before: Option<&Self>,
    ) -> Result<Self, QueueFault> {
        let line = LINE as usize;
        let places = Places::resolve(mem, layout, SLOT, (DRIVER_LEN, line), (DEVICE_LEN, line))?;
        let parameters = match before {
            Some(before) => before.parameters,
            None => Parameters::read(&places.driver)?,
        };
        let pool_len = parameters.buffer_size * parameters.buffers;
        let pool = mem.translate(parameters.pool, pool_len);
        Ok(Self {
            places,
            pool: pool.ok_or(QueueFault::UnmappedPool)?,
            parameters,
        })
    }

    fn places(&self) -> &Places {
        &self.places
    }

    fn header(&self) -> u32 {
        u32::from(self.parameters.header)
    }

    #[inline(always)]
    fn plain<const WRITABLE: bool>(&self, _: &View<'_>, at: u16) -> Option<Segment> {
        let (buffer, len, flags) = self.fetch(at);
        let Parameters {
            buffer_size,
            buffers,
            ..
        } = self.parameters;
        let len = if WRITABLE { buffer_size } else { len };
        let whole = WRITABLE || (flags & MORE == 0 && len.wrapping_sub(1) < buffer_size);
        // The product fits: the pool is less than 4 GiB.
        (whole && buffer < buffers).then(|| self.pool.slice(buffer * buffer_size, len))
    }

    fn slot<const WRITABLE: bool>(&self, at: u16) -> Result<Desc, QueueFault> {
        let (buffer, len, flags) = self.fetch(at);
        let Parameters {
            pool,
            buffer_size,
            buffers,
            ..
        } = self.parameters;
        if buffer >= buffers {
            return Err(QueueFault::BufferOutOfRange);
        }
        if !WRITABLE && len > buffer_size {
            return Err(QueueFault::LengthBeyondBuffer);
        }
        let more = !WRITABLE && flags & MORE != 0;
        Ok(Desc {
            addr: pool + u64::from(buffer) * u64::from(buffer_size),
            len: if WRITABLE { buffer_size } else { len },
            flags: if more { NEXT } else { 0 } | if WRITABLE { WRITE } else { 0 },
            link: 0,
        })
    }

    #[inline(always)]
    fn set_written(places: &Places, at: u16, len: u32, more: bool) {
        let flags = if more { u32::from(MORE) << 16 } else { 0 };
        // A buffer's length fits in 16 bits.
        let word = (len | flags).to_le();
        // SAFETY: the mask keeps the slot inside the area.
        let field = unsafe { places.slots.u32(places.offset(at) + AT_LEN) };
        if field.load(Relaxed) != word && alive() {
            field.store(word, Relaxed);
        }
    }

    #[inline]
    fn wants_call(&self, tail: u16, moved: Option<u16>) -> bool {
        // SAFETY: the field lies in the area, by the invariant.
        let event = u16::from_le(unsafe { self.places.driver.u16(AT_EVENT) }.load(Relaxed));
        moved.is_none_or(|moved| need_event(event, tail, tail.wrapping_sub(moved)))
    }

    #[inline]
    fn request_kicks(&self, event: Option<u16>) {
        if let Some(event) = event.filter(|_| alive()) {
            // SAFETY: the field lies in the area, by the invariant.
            unsafe { self.places.device.u16(AT_KICK_EVENT) }.store(event.to_le(), Relaxed);
        }
    }
}
