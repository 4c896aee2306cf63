//! The other side of a queue, for tests.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::region::{QueuePlace, Region};

/// The switch's side of a queue, written from the standard alone.
pub struct Device {
    pub(super) region: Arc<Region>,
    pub(super) place: QueuePlace,
    seen: u16,
    used: u16,
}

impl Device {
    /// Returns the other side of a queue, by its number, which was not used yet.
    #[must_use]
    pub fn new(region: &Arc<Region>, queue: u16) -> Self {
        Self {
            region: region.clone(),
            place: region.place(queue),
            seen: 0,
            used: 0,
        }
    }

    /// The next available buffer: number, address, length, flags.
    pub fn take(&mut self) -> Option<(u16, u64, u32, u16)> {
        let index = self
            .region
            .u16(self.place.available + 2)
            .load(Ordering::Acquire);
        if index == self.seen {
            return None;
        }
        let slot = self.place.available + 4 + 2 * u64::from(self.seen % self.place.shape.entries);
        let id = self.region.u16(slot).load(Ordering::Relaxed);
        self.seen = self.seen.wrapping_add(1);
        let at = self.place.descriptors + 16 * u64::from(id);
        let address = self.region.u64(at).load(Ordering::Relaxed);
        let len = self.region.u32(at + 8).load(Ordering::Relaxed);
        let flags = self.region.u16(at + 12).load(Ordering::Relaxed);
        Some((id, address, len, flags))
    }

    /// Buffers that are available and were not taken.
    pub fn waiting(&self) -> u16 {
        let index = self.region.u16(self.place.available + 2);
        index.load(Ordering::Acquire).wrapping_sub(self.seen)
    }

    /// Gives buffer `id` back, of which `len` bytes were written.
    pub fn give(&mut self, id: u32, len: u32) {
        let at = self.place.used + 4 + 8 * u64::from(self.used % self.place.shape.entries);
        self.region.u32(at).store(id, Ordering::Relaxed);
        self.region.u32(at + 4).store(len, Ordering::Relaxed);
        self.used = self.used.wrapping_add(1);
        let index = self.region.u16(self.place.used + 2);
        index.store(self.used, Ordering::Release);
    }

    /// Requests a kick when the available index passes `index` (event index).
    pub fn want_kick_at(&self, index: u16) {
        let event = self.place.used + 4 + 8 * u64::from(self.place.shape.entries);
        self.region.u16(event).store(index, Ordering::Relaxed);
    }

    /// Returns the used index behind which the driver requests a call (event index).
    #[must_use]
    pub fn call_wanted_at(&self) -> u16 {
        let event = self.place.available + 4 + 2 * u64::from(self.place.shape.entries);
        self.region.u16(event).load(Ordering::Relaxed)
    }
}
