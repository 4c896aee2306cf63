//! A packed ring (virtio 1.3 section 2.8): a descriptor is offered with one store of its second
//! half.
//!
//! Positions count descriptors without end; position `p` lies in slot `p % size`, and the wrap
//! counter is 1 in even laps. A buffer's address is written again only when another buffer moved
//! into its slot.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::LeanError;
use super::null::{Device, PackedDevice};
use super::ring::{Buffers, Ring, RingOptions};
use super::span::Span;
use testkit::driver::{DESC_AVAIL, DESC_USED, DESC_WRITE, EVENT_DISABLE, EVENT_ENABLE, QueueAddrs};
use testkit::guest_ram::GuestRam;

/// Length, id and flags as they stand in a descriptor's second half.
fn half(len: u32, id: u16, flags: u16) -> u64 {
    u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48
}

/// Slot and wrap counter of a position.
fn place(position: u32, size: u16) -> (u16, bool) {
    let slot = position & (u32::from(size) - 1);
    (slot as u16, position & u32::from(size) == 0)
}

/// Byte of the second half of the descriptor in `slot`.
fn half_at(slot: u16) -> usize {
    16 * usize::from(slot) + 8
}

#[derive(Debug)]
pub(super) struct Packed {
    desc: Span,
    driver: Span,
    device: Span,
    options: RingOptions,
    buffers: Buffers,
    /// Which buffer's address each slot holds.
    ids: Box<[u16]>,
    next: u32,
    seen: u32,
}

impl Packed {
    /// The used descriptor at the next position: its second half.
    #[inline]
    fn fresh(&self) -> Option<u64> {
        let (slot, wrap) = place(self.seen, self.options.size);
        let half = self.desc.u64(half_at(slot)).load(Acquire);
        let flags = (half >> 48) as u16;
        let used = (flags & DESC_AVAIL != 0) == wrap && (flags & DESC_USED != 0) == wrap;
        (used && self.seen != self.next).then_some(half)
    }

    /// Takes the used descriptor `half` into the slot's place; how many buffers it stands for.
    #[inline]
    fn accept(&mut self, half: u64) -> Result<u16, LeanError> {
        let (slot, _) = place(self.seen, self.options.size);
        let id = (half >> 32) as u16;
        if id >= self.options.size {
            return Err(LeanError::Device("a used descriptor without a buffer"));
        }
        if !self.options.in_order {
            if self.ids[usize::from(slot)] != id {
                self.ids[usize::from(slot)] = id;
                let gpa = self.buffers.at(id);
                self.desc.u64(16 * usize::from(slot)).store(gpa, Relaxed);
            }
            return Ok(1);
        }
        // In order, one may stand for all up to the buffer that it names (section 2.8.10).
        let count = (id.wrapping_sub(slot) & (self.options.size - 1)) + 1;
        if u32::from(count) > self.next.wrapping_sub(self.seen) {
            return Err(LeanError::Device("a buffer used out of order"));
        }
        Ok(count)
    }

    fn walk(&mut self, mut each: impl FnMut(u16, u32)) -> Result<u16, LeanError> {
        let mut total = 0;
        while let Some(half) = self.fresh() {
            let count = self.accept(half)?;
            let wrote = half >> 48 & u64::from(DESC_WRITE) != 0;
            let last = if wrote { half as u32 } else { 0 };
            if last > self.buffers.len {
                return Err(LeanError::Device("more bytes written than there is room"));
            }
            for k in 0..count {
                let (slot, _) = place(self.seen.wrapping_add(k.into()), self.options.size);
                let len = if k + 1 == count {
                    last
                } else {
                    self.buffers.len
                };
                each(self.ids[usize::from(slot)], len);
            }
            self.seen = self.seen.wrapping_add(count.into());
            total += count;
        }
        Ok(total)
    }
}

impl Ring for Packed {
    type Device = PackedDevice;
    const FIRST_BASE: u32 = 0x8000_8000;

    fn new(ram: &GuestRam, buffers: Buffers, options: RingOptions) -> Self {
        let ring = Self {
            desc: Span::new(ram, 16 * usize::from(options.size)),
            driver: Span::new(ram, 4),
            device: Span::new(ram, 4),
            options,
            buffers,
            ids: (0..options.size).collect(),
            next: 0,
            seen: 0,
        };
        for id in 0..options.size {
            let at = 16 * usize::from(id);
            ring.desc.u64(at).store(buffers.at(id), Relaxed);
        }
        ring.driver.u16(2).store(EVENT_DISABLE, Release);
        ring
    }

    fn addrs(&self) -> QueueAddrs {
        QueueAddrs {
            desc: self.desc.gpa(),
            driver: self.driver.gpa(),
            device: self.device.gpa(),
        }
    }

    fn device(&self) -> PackedDevice {
        PackedDevice::new(self.desc.clone(), self.device.clone(), self.options.size)
    }

    fn size(&self) -> u16 {
        self.options.size
    }

    #[inline]
    fn free(&self) -> u16 {
        self.options.size - self.next.wrapping_sub(self.seen) as u16
    }

    #[inline]
    fn buffer(&self, ahead: u16) -> u16 {
        let (slot, _) = place(self.next.wrapping_add(ahead.into()), self.options.size);
        self.ids[usize::from(slot)]
    }

    #[inline]
    fn offer(&mut self, n: u16) {
        let kind = if self.options.writable { DESC_WRITE } else { 0 };
        // Newest first: the device stops at the oldest, so the whole batch appears with it.
        for k in (0..n).rev() {
            let (slot, wrap) = place(self.next.wrapping_add(k.into()), self.options.size);
            let lap = if wrap { DESC_AVAIL } else { DESC_USED };
            let id = self.ids[usize::from(slot)];
            let order = if k == 0 { Release } else { Relaxed };
            let half = half(self.buffers.len, id, kind | lap);
            self.desc.u64(half_at(slot)).store(half, order);
        }
        self.next = self.next.wrapping_add(n.into());
    }

    #[inline]
    fn take(&mut self, each: impl FnMut(u16, u32)) -> Result<u16, LeanError> {
        self.walk(each)
    }

    #[inline]
    fn reclaim(&mut self) -> Result<u16, LeanError> {
        self.walk(|_, _| ())
    }

    #[inline]
    fn wants_kick(&mut self) -> bool {
        self.device.u16(2).load(Relaxed) & 3 == EVENT_ENABLE
    }
}

impl Device for PackedDevice {
    fn waiting(&mut self, most: u16) -> u16 {
        let offered = |k: &u16| {
            let (slot, wrap) = place(self.position.wrapping_add((*k).into()), self.size);
            let flags = self.desc.u64(half_at(slot)).load(Acquire) >> 48;
            let has = |bit: u16| flags & u64::from(bit) != 0;
            has(DESC_AVAIL) == wrap && has(DESC_USED) != wrap
        };
        (0..most.min(self.size)).take_while(offered).count() as u16
    }

    fn give(&mut self, n: u16, written: Option<u32>) {
        let flags = |wrap| if wrap { DESC_AVAIL | DESC_USED } else { 0 };
        match written {
            // One stands for the batch.
            None => {
                let (slot, wrap) = place(self.position, self.size);
                let last = self.position.wrapping_add(u32::from(n) - 1);
                let id = place(last, self.size).0;
                let half = half(0, id, flags(wrap));
                self.desc.u64(half_at(slot)).store(half, Release);
            }
            Some(len) => {
                for k in (0..n).rev() {
                    let (slot, wrap) = place(self.position.wrapping_add(k.into()), self.size);
                    let half = half(len, slot, flags(wrap) | DESC_WRITE);
                    self.desc.u64(half_at(slot)).store(half, Release);
                }
            }
        }
        self.position = self.position.wrapping_add(n.into());
    }

    fn begin(&mut self) {
        self.device.u16(2).store(EVENT_DISABLE, Release);
    }
}
