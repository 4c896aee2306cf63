//! A split ring (virtio 1.3 section 2.7) whose descriptor table never changes.
//!
//! In order, the available ring stays `0, 1, 2, …` too, and only its index moves.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::LeanError;
use super::null::{Device, SplitDevice};
use super::ring::{Buffers, Ring, RingOptions};
use super::span::Span;
use testkit::driver::{DESC_WRITE, QueueAddrs};
use testkit::guest_ram::GuestRam;

const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// Byte of the index in the available and the used ring.
pub(super) const IDX: usize = 2;

#[derive(Debug)]
pub(super) struct Split {
    desc: Span,
    avail: Span,
    used: Span,
    options: RingOptions,
    /// Available index.
    next: u16,
    /// Used index up to which buffers were taken back.
    seen: u16,
    /// Available index at the last question for a kick.
    asked: u16,
    /// Buffers that were never offered count as taken back: `free` is `size - (next - seen)`.
    len: u32,
}

/// Byte of entry `slot` in the available ring.
pub(super) fn avail_at(slot: u16) -> usize {
    4 + 2 * usize::from(slot)
}

/// Byte of element `slot` in the used ring.
pub(super) fn used_at(slot: u16) -> usize {
    4 + 8 * usize::from(slot)
}

impl Split {
    fn slot(&self, index: u16) -> u16 {
        index & (self.options.size - 1)
    }

    /// Elements that the device added.
    fn fresh(&self) -> Result<u16, LeanError> {
        let fresh = self.used.u16(IDX).load(Acquire).wrapping_sub(self.seen);
        if fresh > self.next.wrapping_sub(self.seen) {
            return Err(LeanError::Device("a used index ahead of the available one"));
        }
        Ok(fresh)
    }

    /// Checks the used element at `index` and puts its buffer where it is offered next.
    fn element(&self, index: u16) -> Result<(u16, u32), LeanError> {
        let slot = self.slot(index);
        let at = used_at(slot);
        let id = self.used.u32(at).load(Relaxed);
        let len = self.used.u32(at + 4).load(Relaxed);
        if id >= u32::from(self.options.size) {
            return Err(LeanError::Device("a used element without a buffer"));
        }
        let id = id as u16;
        let entry = self.avail.u16(avail_at(slot));
        if !self.options.in_order {
            // A line that did not change stays with both.
            if entry.load(Relaxed) != id {
                entry.store(id, Relaxed);
            }
        } else if id != slot {
            return Err(LeanError::Device("a buffer used out of order"));
        }
        Ok((id, len))
    }
}

impl Ring for Split {
    type Device = SplitDevice;
    const FIRST_BASE: u32 = 0;

    fn new(ram: &GuestRam, buffers: Buffers, options: RingOptions) -> Self {
        let size = usize::from(options.size);
        let ring = Self {
            desc: Span::new(ram, 16 * size),
            avail: Span::new(ram, 6 + 2 * size),
            used: Span::new(ram, 6 + 8 * size),
            options,
            next: 0,
            seen: 0,
            asked: 0,
            len: buffers.len,
        };
        let flags = if options.writable { DESC_WRITE } else { 0 };
        for id in 0..options.size {
            let at = 16 * usize::from(id);
            ring.desc.u64(at).store(buffers.at(id), Relaxed);
            ring.desc.u32(at + 8).store(buffers.len, Relaxed);
            ring.desc.u16(at + 12).store(flags, Relaxed);
            ring.avail.u16(avail_at(id)).store(id, Relaxed);
        }
        ring.avail.u16(0).store(NO_INTERRUPT, Release);
        ring
    }

    fn addrs(&self) -> QueueAddrs {
        QueueAddrs {
            desc: self.desc.gpa(),
            driver: self.avail.gpa(),
            device: self.used.gpa(),
        }
    }

    fn device(&self) -> SplitDevice {
        SplitDevice::new(self.avail.clone(), self.used.clone(), self.options.size)
    }

    fn size(&self) -> u16 {
        self.options.size
    }

    #[inline]
    fn free(&self) -> u16 {
        self.options.size - self.next.wrapping_sub(self.seen)
    }

    #[inline]
    fn buffer(&self, ahead: u16) -> u16 {
        let slot = self.slot(self.next.wrapping_add(ahead));
        if self.options.in_order {
            return slot;
        }
        self.avail.u16(avail_at(slot)).load(Relaxed)
    }

    #[inline]
    fn offer(&mut self, n: u16) {
        self.next = self.next.wrapping_add(n);
        self.avail.u16(IDX).store(self.next, Release);
    }

    #[inline]
    fn take(&mut self, mut each: impl FnMut(u16, u32)) -> Result<u16, LeanError> {
        let fresh = self.fresh()?;
        for k in 0..fresh {
            let (id, len) = self.element(self.seen.wrapping_add(k))?;
            if len > self.len {
                return Err(LeanError::Device("more bytes written than there is room"));
            }
            each(id, len);
        }
        self.seen = self.seen.wrapping_add(fresh);
        Ok(fresh)
    }

    #[inline]
    fn reclaim(&mut self) -> Result<u16, LeanError> {
        if !self.options.in_order {
            return self.take(|_, _| ());
        }
        // An in-order device need not write every element (section 2.7.9); the index says it all.
        let fresh = self.fresh()?;
        self.seen = self.seen.wrapping_add(fresh);
        Ok(fresh)
    }

    #[inline]
    fn wants_kick(&mut self) -> bool {
        if self.options.event_index {
            let old = std::mem::replace(&mut self.asked, self.next);
            let at = used_at(self.options.size);
            let event = self.used.u16(at).load(Relaxed);
            // Section 2.7.10.
            return self.next.wrapping_sub(event).wrapping_sub(1) < self.next.wrapping_sub(old);
        }
        self.used.u16(0).load(Relaxed) & NO_NOTIFY == 0
    }
}

impl Device for SplitDevice {
    fn waiting(&mut self, most: u16) -> u16 {
        let avail = self.avail.u16(IDX).load(Acquire);
        avail.wrapping_sub(self.position).min(most)
    }

    fn give(&mut self, n: u16, written: Option<u32>) {
        if let Some(len) = written {
            for k in 0..n {
                let slot = self.position.wrapping_add(k) & (self.size - 1);
                let id = self.avail.u16(avail_at(slot)).load(Relaxed);
                let element = u64::from(id) | u64::from(len) << 32;
                let at = used_at(slot);
                self.used.u32(at).store(element as u32, Relaxed);
                self.used.u32(at + 4).store((element >> 32) as u32, Relaxed);
            }
        }
        self.position = self.position.wrapping_add(n);
        self.used.u16(IDX).store(self.position, Release);
    }

    fn begin(&mut self) {
        self.used.u16(0).store(NO_NOTIFY, Release);
    }
}
