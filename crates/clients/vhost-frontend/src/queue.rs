//! Driver side of a split virtqueue (virtio 1.3, section 2.7), to the switch or to a vhost device
//! of the kernel. Each buffer takes one descriptor. A frame is in one buffer, but for a super-frame
//! to a vhost device, which is a chain.
//!
//! Descriptor `n` always refers to buffer `n`, so that submitting a buffer writes one descriptor
//! and one slot of the available ring, and a used buffer is named by a number that is easily
//! checked. `VIRTIO_F_IN_ORDER` would let the switch leave out used elements, and with them the
//! lengths of received frames; it is not requested.
//!
//! The used ring belongs to the other side. The switch is trusted no more here than a guest is
//! there: index and every element are fetched once and checked, and after a violation the queue
//! must not be used any more.
//! The kernel is trusted, and its rings are checked in the same way.

#[cfg(any(test, feature = "test-utils"))]
pub mod device;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::region::{QueuePlace, Region};

/// The chain continues with the next field (virtio 1.3, 2.7.5).
const DESC_NEXT: u64 = 1;
/// The buffer is for the device to write.
const DESC_WRITE: u64 = 2;
/// No buffer.
const NONE: u16 = u16::MAX;

/// Protocol violation of the other side, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The used index is ahead of what was submitted.
    #[error("returned {ahead} buffers, {submitted} were submitted")]
    Ahead {
        /// Buffers by the index.
        ahead: u16,
        /// Buffers that it had.
        submitted: u16,
    },
    /// A used element names a buffer that the other side did not have.
    #[error("returned buffer {0}, which it did not have")]
    NotLent(u32),
    /// More bytes than there was room for.
    #[error("wrote {written} bytes to a buffer of {room}")]
    TooLong {
        /// Bytes by the used element.
        written: u32,
        /// Bytes that were submitted.
        room: u32,
    },
}

/// Direction of a queue: which side writes its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The other side: frames for us.
    Inbound,
    /// We: frames for it.
    Outbound,
}

/// A buffer that came back: a used element of virtio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedBuffer {
    /// The first buffer.
    pub id: u16,
    /// Bytes that the other side wrote; 0 in the other direction.
    pub len: u32,
}

/// A part of a buffer: `len` bytes from `start` of buffer `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The buffer.
    pub id: u16,
    /// First byte.
    pub start: u32,
    /// Bytes.
    pub len: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Queue {
    region: Arc<Region>,
    place: QueuePlace,
    direction: Direction,
    /// Submitted bytes of each buffer that a frame starts in; 0 while the driver owns it.
    submitted: Box<[u32]>,
    /// The buffer after each in a chain, or none.
    next_in_chain: Box<[u16]>,
    /// Frames at the other side, each a buffer or a chain.
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
    pub fn new(region: Arc<Region>, index: u16, direction: Direction) -> Self {
        let place = region.place(index);
        Self::at(region, place, direction)
    }

    /// Queue with its rings in `region`, which are all zero.
    pub fn at(region: Arc<Region>, place: QueuePlace, direction: Direction) -> Self {
        let entries = usize::from(place.shape.entries);
        Self {
            place,
            region,
            direction,
            submitted: vec![0; entries].into(),
            next_in_chain: vec![NONE; entries].into(),
            lent_count: 0,
            available: 0,
            kicked: 0,
            used: 0,
            used_seen: 0,
        }
    }

    /// Returns the place of its parts.
    pub fn place(&self) -> QueuePlace {
        self.place
    }

    /// The addresses of descriptor table, available ring and used ring.
    pub fn areas(&self) -> [*mut u8; 3] {
        let QueuePlace { shape, .. } = self.place;
        let entries = u64::from(shape.entries);
        let area = |offset, len| self.region.pointer(offset, len);
        [
            area(self.place.descriptors, 16 * entries),
            area(self.place.available, 6 + 2 * entries),
            area(self.place.used, 6 + 8 * entries),
        ]
    }

    /// Returns the memory of the rings.
    #[must_use]
    pub fn region(&self) -> Arc<Region> {
        self.region.clone()
    }

    /// The address of a buffer, all its bytes. Rings with buffers elsewhere have none.
    pub fn buffer(&self, id: u16) -> *mut u8 {
        let len = self.place.shape.buffer;
        self.region.pointer(self.place.buffer(id), len.into())
    }

    /// The slot of a ring for an index, which counts on and on.
    fn slot(&self, index: u16) -> u64 {
        u64::from(index % self.place.shape.entries)
    }

    /// Makes `len` bytes of a buffer available, from byte `start` of it on. The other side sees it
    /// after [`Queue::publish`].
    ///
    /// # Panics
    /// When the buffer is available already, or the bytes are not within it.
    pub fn submit(&mut self, id: u16, start: u32, len: u32) {
        self.describe(Piece { id, start, len }, NONE);
        self.make_available(id, len);
    }

    /// Makes pieces of several buffers available as one frame. They come back together: the first
    /// by [`Queue::take`], the others by [`Queue::take_next`].
    ///
    /// # Panics
    /// As [`Queue::submit`].
    pub fn submit_chain(&mut self, pieces: &[Piece]) {
        let Some(first) = pieces.first() else { return };
        for (at, piece) in pieces.iter().enumerate() {
            let next = pieces.get(at + 1).map_or(NONE, |next| next.id);
            self.describe(*piece, next);
        }
        self.make_available(first.id, first.len);
    }

    /// Writes the descriptor of a buffer; its chain continues with `next`.
    fn describe(&mut self, piece: Piece, next: u16) {
        let Piece { id, start, len } = piece;
        let room = self.place.shape.buffer;
        let is_here = self.submitted[usize::from(id)] == 0;
        assert!(is_here && len > 0 && start.checked_add(len).is_some_and(|end| end <= room));
        self.next_in_chain[usize::from(id)] = next;
        let descriptor = self.place.descriptors + 16 * u64::from(id);
        let address = self.place.buffer(id) + u64::from(start);
        let mut flags = match self.direction {
            Direction::Inbound => DESC_WRITE,
            Direction::Outbound => 0,
        };
        if next != NONE {
            flags |= DESC_NEXT | u64::from(next) << 16;
        }
        self.region
            .u64(descriptor)
            .store(address.to_le(), Ordering::Relaxed);
        let rest = u64::from(len) | flags << 32;
        self.region
            .u64(descriptor + 8)
            .store(rest.to_le(), Ordering::Relaxed);
    }

    fn make_available(&mut self, id: u16, len: u32) {
        self.submitted[usize::from(id)] = len;
        self.lent_count += 1;
        let slot = self.place.available + 4 + 2 * self.slot(self.available);
        self.region.u16(slot).store(id.to_le(), Ordering::Relaxed);
        self.available = self.available.wrapping_add(1);
    }

    /// Returns the number of submitted buffers that the other side does not see yet.
    #[must_use]
    pub fn unpublished(&self) -> u16 {
        self.available.wrapping_sub(self.kicked)
    }

    /// Publishes the submitted buffers. `true` when the other side requests a kick.
    pub fn publish(&mut self) -> bool {
        if self.kicked == self.available {
            return false;
        }
        let index = self.region.u16(self.place.available + 2);
        index.store(self.available.to_le(), Ordering::Release);
        // The index must be out before the event is read (virtio 1.3, 2.7.10): the other side does
        // it the other way round before it sleeps.
        fence(Ordering::SeqCst);
        let event = self.place.used + 4 + 8 * u64::from(self.place.shape.entries);
        let event = u16::from_le(self.region.u16(event).load(Ordering::Relaxed));
        let old = std::mem::replace(&mut self.kicked, self.available);
        passes(event, old, self.available)
    }

    /// The next buffer that came back.
    ///
    /// # Errors
    /// A fault of the other side; the queue must not be used any more.
    pub fn take(&mut self) -> Result<Option<UsedBuffer>, Fault> {
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
            Direction::Outbound => 0,
            Direction::Inbound if written <= *submitted => written,
            Direction::Inbound => {
                let room = *submitted;
                return Err(Fault::TooLong { written, room });
            }
        };
        *submitted = 0;
        self.lent_count -= 1;
        self.used = self.used.wrapping_add(1);
        Ok(Some(UsedBuffer { id: id as u16, len }))
    }

    /// Takes the next buffer of a chain that came back.
    pub fn take_next(&mut self, id: u16) -> Option<u16> {
        let next = std::mem::replace(&mut self.next_in_chain[usize::from(id)], NONE);
        (next != NONE).then_some(next)
    }

    /// Returns whether all buffers are here.
    pub fn is_empty(&self) -> bool {
        self.lent_count == 0
    }

    /// Returns the number of frames at the other side, each a buffer or a chain.
    pub fn lent(&self) -> u16 {
        self.lent_count
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
    pub fn arm(&mut self) -> Result<bool, Fault> {
        self.arm_for(1)
    }

    /// Requests a notification when `count` buffers, one or more, have come back. `true` when they
    /// are there already.
    ///
    /// # Errors
    /// As [`Queue::take`].
    pub fn arm_for(&mut self, count: u16) -> Result<bool, Fault> {
        self.want_call_at(self.used.wrapping_add(count).wrapping_sub(1));
        fence(Ordering::SeqCst);
        self.look()?;
        Ok(self.used_seen.wrapping_sub(self.used) >= count)
    }

    /// Wants no call before a whole turn of the index has gone by.
    pub fn disarm(&mut self) {
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
