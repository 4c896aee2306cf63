//! A slot queue in netmap's format whose slots keep their buffers: slot *n* names buffer *n*. Only
//! the index moves, and lengths that the switch writes into the slots of received frames are left
//! there.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::LeanError;
use super::null::{Device, SlotsDevice};
use super::ring::{Buffers, Ring, RingOptions};
use super::span::Span;
use testkit::driver::QueueAddrs;
use testkit::guest_ram::GuestRam;
use testkit::net::HEADER_LEN;

const AT_HEAD: usize = 0;
const AT_EVENT: usize = 2;
/// In the device area.
pub(super) const AT_TAIL: usize = 0;
pub(super) const AT_KICK_EVENT: usize = 2;
/// `NS_MOREFRAG`.
const MORE: u16 = 0x20;

#[derive(Debug)]
pub(super) struct Slots {
    slots: Span,
    driver: Span,
    device: Span,
    size: u16,
    /// Slots given to the switch.
    head: u16,
    /// The switch's index up to which slots were taken back.
    seen: u16,
    /// `head` at the last question for a kick.
    asked: u16,
    /// Bytes of a buffer.
    len: u32,
}

impl Slots {
    fn at(&self, index: u16) -> (u16, usize) {
        let slot = index & (self.size - 1);
        (slot, 16 * usize::from(slot))
    }

    /// Slots that the switch is done with.
    fn fresh(&self) -> Result<u16, LeanError> {
        let fresh = self
            .device
            .u16(AT_TAIL)
            .load(Acquire)
            .wrapping_sub(self.seen);
        if fresh > self.head.wrapping_sub(self.seen) {
            return Err(LeanError::Device("a tail beyond the head"));
        }
        Ok(fresh)
    }
}

impl Ring for Slots {
    type Device = SlotsDevice;
    const FIRST_BASE: u32 = 0;
    const EVENT_INDEX: bool = true;

    fn new(ram: &GuestRam, buffers: Buffers, options: RingOptions) -> Self {
        let size = usize::from(options.size);
        let ring = Self {
            slots: Span::new(ram, 16 * size),
            driver: Span::new(ram, 128),
            device: Span::new(ram, 64),
            size: options.size,
            head: 0,
            seen: 0,
            asked: 0,
            len: buffers.len,
        };
        for id in 0..options.size {
            let (_, at) = ring.at(id);
            ring.slots.u32(at).store(id.into(), Relaxed);
            ring.slots.u16(at + 4).store(buffers.len as u16, Relaxed);
        }
        // The parameters; buffers are one stride long, of which frames use a part.
        let pool = buffers.gpa;
        let words = [
            (0, u32::from_le_bytes(*b"LHSQ")),
            (4, 1 | (HEADER_LEN as u32) << 16),
            (8, pool as u32),
            (12, (pool >> 32) as u32),
            (16, buffers.stride),
            (20, options.size.into()),
        ];
        for (at, word) in words {
            ring.driver.u32(64 + at).store(word.to_le(), Relaxed);
        }
        // Polls: an event that the switch passes once in 65536 slots.
        ring.driver.u16(AT_EVENT).store(0xffff, Release);
        ring
    }

    fn addrs(&self) -> QueueAddrs {
        QueueAddrs {
            desc: self.slots.gpa(),
            driver: self.driver.gpa(),
            device: self.device.gpa(),
        }
    }

    fn device(&self) -> SlotsDevice {
        SlotsDevice {
            slots: self.slots.clone(),
            driver: self.driver.clone(),
            device: self.device.clone(),
            size: self.size,
            position: 0,
        }
    }

    fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    fn free(&self) -> u16 {
        self.size - self.head.wrapping_sub(self.seen)
    }

    #[inline]
    fn buffer(&self, ahead: u16) -> u16 {
        self.at(self.head.wrapping_add(ahead)).0
    }

    #[inline]
    fn offer(&mut self, n: u16) {
        self.head = self.head.wrapping_add(n);
        self.driver.u16(AT_HEAD).store(self.head, Release);
    }

    #[inline]
    fn take(&mut self, mut each: impl FnMut(u16, u32)) -> Result<u16, LeanError> {
        let fresh = self.fresh()?;
        for k in 0..fresh {
            let (slot, at) = self.at(self.seen.wrapping_add(k));
            let word = self.slots.u32(at + 4).load(Relaxed);
            let len = word & 0xffff;
            if len > self.len || (word >> 16) as u16 & MORE != 0 {
                return Err(LeanError::Device("a frame that does not fit in one slot"));
            }
            each(slot, len);
        }
        self.seen = self.seen.wrapping_add(fresh);
        Ok(fresh)
    }

    #[inline]
    fn reclaim(&mut self) -> Result<u16, LeanError> {
        let fresh = self.fresh()?;
        self.seen = self.seen.wrapping_add(fresh);
        Ok(fresh)
    }

    #[inline]
    fn wants_kick(&mut self) -> bool {
        let old = std::mem::replace(&mut self.asked, self.head);
        let event = self.device.u16(AT_KICK_EVENT).load(Relaxed);
        self.head.wrapping_sub(event).wrapping_sub(1) < self.head.wrapping_sub(old)
    }
}

impl Device for SlotsDevice {
    fn waiting(&mut self, most: u16) -> u16 {
        let head = self.driver.u16(AT_HEAD).load(Acquire);
        head.wrapping_sub(self.position).min(most)
    }

    fn give(&mut self, n: u16, written: Option<u32>) {
        if let Some(len) = written {
            for k in 0..n {
                let slot = self.position.wrapping_add(k) & (self.size - 1);
                let field = self.slots.u32(16 * usize::from(slot) + 4);
                if field.load(Relaxed) != len {
                    field.store(len, Relaxed);
                }
            }
        }
        self.position = self.position.wrapping_add(n);
        self.device.u16(AT_TAIL).store(self.position, Release);
    }

    fn begin(&mut self) {
        self.device.u16(AT_KICK_EVENT).store(0x8000, Release);
    }
}
