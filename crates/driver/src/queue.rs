//! Driver side of a split virtqueue (virtio 1.3, section 2.7) whose every frame takes one
//! descriptor.
//!
//! Descriptor `n` always refers to buffer `n`, so that submitting a buffer writes one descriptor
//! and one slot of the available ring, and a used buffer is named by a number that is easily
//! checked. `VIRTIO_F_IN_ORDER` would let the switch leave out used elements, and with them the
//! lengths of received frames; it is not requested.
//!
//! The used ring belongs to the switch, which is trusted no more here than a guest is there: its
//! index and every element are fetched once and checked, and a violation ends the driver.

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::region::{QueuePlace, Region};

/// The buffer is for the device to write (virtio 1.3, 2.7.5).
const DESC_WRITE: u64 = 2;

/// Protocol violation of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the switch returned {ahead} buffers, {submitted} were submitted")]
    Ahead { ahead: u16, submitted: u16 },
    #[error("the switch returned buffer {0}, which it did not have")]
    NotLent(u32),
    #[error("the switch wrote {written} bytes to a buffer of {room}")]
    TooLong { written: u32, room: u32 },
}

/// Direction of a queue: which side writes its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The switch: frames for the interface.
    FromSwitch,
    /// We: frames of the interface.
    ToSwitch,
}

/// A buffer that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) id: u16,
    /// Bytes that the switch wrote; 0 in the other direction.
    pub(crate) len: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    region: Arc<Region>,
    place: QueuePlace,
    direction: Direction,
    /// Submitted bytes of each buffer; 0 while the driver owns it.
    submitted: Box<[u32]>,
    lent_count: u16,
    /// Next slot of the available ring.
    available: u16,
    /// The available index when a kick was considered last.
    kicked: u16,
    /// Next element of the used ring.
    used: u16,
    /// The used index, as fetched last.
    used_seen: u16,
}

impl Queue {
    /// Queue number `index` of a region that is all zero.
    pub(crate) fn new(region: Arc<Region>, index: u16, direction: Direction) -> Self {
        let place = region.place(index);
        Self {
            place,
            region,
            direction,
            submitted: vec![0; usize::from(place.shape.entries)].into(),
            lent_count: 0,
            available: 0,
            kicked: 0,
            used: 0,
            used_seen: 0,
        }
    }

    /// Returns the place of its parts.
    pub(crate) fn place(&self) -> QueuePlace {
        self.place
    }

    /// The address of a buffer, all its bytes.
    pub(crate) fn buffer(&self, id: u16) -> *mut u8 {
        let len = self.place.shape.buffer;
        self.region.pointer(self.place.buffer(id), len.into())
    }

    /// The slot of a ring for an index, which counts on and on.
    fn slot(&self, index: u16) -> u64 {
        u64::from(index % self.place.shape.entries)
    }

    /// Makes `len` bytes of a buffer available, from byte `start` of it on. The switch sees it
    /// after [`Queue::publish`].
    ///
    /// # Panics
    /// When the buffer is available already, or the bytes are not within it.
    pub(crate) fn submit(&mut self, id: u16, start: u32, len: u32) {
        let room = self.place.shape.buffer;
        let submitted = &mut self.submitted[usize::from(id)];
        assert!(
            *submitted == 0 && len > 0 && start.checked_add(len).is_some_and(|end| end <= room)
        );
        *submitted = len;
        self.lent_count += 1;
        let descriptor = self.place.descriptors + 16 * u64::from(id);
        let address = self.place.buffer(id) + u64::from(start);
        let flags = match self.direction {
            Direction::FromSwitch => DESC_WRITE,
            Direction::ToSwitch => 0,
        };
        self.region
            .u64(descriptor)
            .store(address.to_le(), Ordering::Relaxed);
        let rest = u64::from(len) | flags << 32;
        self.region
            .u64(descriptor + 8)
            .store(rest.to_le(), Ordering::Relaxed);
        let slot = self.place.available + 4 + 2 * self.slot(self.available);
        self.region.u16(slot).store(id.to_le(), Ordering::Relaxed);
        self.available = self.available.wrapping_add(1);
    }

    /// Publishes the submitted buffers. `true` when the switch requests a kick.
    pub(crate) fn publish(&mut self) -> bool {
        if self.kicked == self.available {
            return false;
        }
        let index = self.region.u16(self.place.available + 2);
        index.store(self.available.to_le(), Ordering::Release);
        // The index must be out before the event is read (virtio 1.3, 2.7.10): the switch does it
        // the other way round before it sleeps.
        fence(Ordering::SeqCst);
        let event = self.place.used + 4 + 8 * u64::from(self.place.shape.entries);
        let event = u16::from_le(self.region.u16(event).load(Ordering::Relaxed));
        let old = std::mem::replace(&mut self.kicked, self.available);
        passes(event, old, self.available)
    }

    /// The next buffer that came back.
    ///
    /// # Errors
    /// What the switch did wrong; the queue must not be used any more.
    pub(crate) fn take(&mut self) -> Result<Option<Used>, Fault> {
        if self.used == self.used_seen {
            self.look()?;
            if self.used == self.used_seen {
                return Ok(None);
            }
        }
        let element = self.place.used + 4 + 8 * self.slot(self.used);
        let id = u32::from_le(self.region.u32(element).load(Ordering::Relaxed));
        let written = u32::from_le(self.region.u32(element + 4).load(Ordering::Relaxed));
        let submitted = usize::try_from(id)
            .ok()
            .and_then(|id| self.submitted.get_mut(id));
        let submitted = submitted
            .filter(|submitted| **submitted > 0)
            .ok_or(Fault::NotLent(id))?;
        let len = match self.direction {
            Direction::ToSwitch => 0,
            Direction::FromSwitch if written <= *submitted => written,
            Direction::FromSwitch => {
                let room = *submitted;
                return Err(Fault::TooLong { written, room });
            }
        };
        *submitted = 0;
        self.lent_count -= 1;
        self.used = self.used.wrapping_add(1);
        Ok(Some(Used { id: id as u16, len }))
    }

    /// Returns whether all buffers are here.
    pub(crate) fn is_empty(&self) -> bool {
        self.lent_count == 0
    }

    /// Fetches the used index.
    fn look(&mut self) -> Result<(), Fault> {
        let index = self.region.u16(self.place.used + 2).load(Ordering::Acquire);
        let ahead = u16::from_le(index).wrapping_sub(self.used);
        if ahead > self.lent_count {
            let submitted = self.lent_count;
            return Err(Fault::Ahead { ahead, submitted });
        }
        self.used_seen = self.used.wrapping_add(ahead);
        Ok(())
    }

    /// Requests a notification when the next buffer comes back; with `VIRTIO_F_EVENT_IDX` that is
    /// one notification. `true` when a buffer is there already: then there may be none.
    ///
    /// # Errors
    /// As [`Queue::take`].
    pub(crate) fn arm(&mut self) -> Result<bool, Fault> {
        self.want_call_at(self.used);
        fence(Ordering::SeqCst);
        self.look()?;
        Ok(self.used != self.used_seen)
    }

    /// Wants no call before a whole turn of the index has gone by.
    pub(crate) fn disarm(&mut self) {
        self.want_call_at(self.used.wrapping_sub(1));
    }

    fn want_call_at(&mut self, index: u16) {
        let event = self.place.available + 4 + 2 * u64::from(self.place.shape.entries);
        self.region
            .u16(event)
            .store(index.to_le(), Ordering::Relaxed);
    }
}

/// Returns whether an index that went from `old` to `new` passed `event` (virtio 1.3, 2.7.10,
/// `vring_need_event`).
fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
