//! Parts of a driver process for fuzz targets, without an interface and a switch.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use front::queue::{Direction, Queue};
use front::region::{self, Region, Shape};
use wire::coalesce::HEAD;
use wire::virtio::net;

use crate::frames::{self, Coalescer, Outgoing};

/// Frames that a driver takes from the switch before the other direction has its turn.
pub const BATCH: usize = frames::BATCH;
/// Entries of a [`DriverQueue`]: few, so that indices come round soon.
pub const ENTRIES: u16 = 8;
/// Bytes of one of its buffers.
pub const ROOM: u32 = 4096;

/// Returns what a driver writes to an interface for a batch of frames, each with its virtio header
/// of 12 bytes: one entry for each system call, or for each message of one. `uso`: the interface
/// takes super-frames of UDP, too.
///
/// # Panics
/// With more than [`BATCH`] frames, or one that is not longer than its header: the driver refuses
/// it before.
#[must_use]
pub fn coalesce(frames: &[Vec<u8>], uso: bool) -> Vec<Vec<u8>> {
    assert!(frames.len() <= BATCH && frames.iter().all(|frame| frame.len() > net::LEN));
    // A buffer is longer than the head that is copied of it, also where the frame is not.
    let mut buffers = frames.to_vec();
    for buffer in &mut buffers {
        let len = buffer.len().max(net::LEN + HEAD);
        buffer.resize(len, 0xee);
    }
    let outgoing = (0..).zip(&mut buffers).zip(frames);
    let outgoing = outgoing.map(|((id, buffer), frame)| Outgoing {
        id,
        buffer: buffer.as_mut_ptr(),
        len: frame.len() as u32,
    });
    let mut outgoing: Vec<_> = outgoing.collect();
    let mut coalescer = Coalescer::new(uso);
    coalescer.arrange(&mut outgoing, true);
    let mut first = 0;
    let groups = coalescer.groups().iter().map(|group| {
        let frames = &outgoing[first..first + group.count];
        first += group.count;
        let mut pieces = Vec::new();
        coalescer.describe(group, frames, net::LEN, &mut pieces);
        let bytes = pieces.iter().map(|piece| {
            let start = piece.iov_base.cast_const().cast::<u8>();
            // SAFETY: a piece is a part of the coalescer or of a buffer, which both live here and
            // are not written meanwhile.
            unsafe { std::slice::from_raw_parts(start, piece.iov_len) }
        });
        bytes.flatten().copied().collect()
    });
    groups.collect()
}

/// A queue of a driver whose other side is the caller's.
pub struct DriverQueue {
    queue: Queue,
    region: Arc<Region>,
}

impl DriverQueue {
    /// Returns a queue of [`ENTRIES`] buffers of [`ROOM`] bytes; the switch writes them if
    /// `from_switch`.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn new(from_switch: bool) -> io::Result<Self> {
        let shape = Shape {
            entries: ENTRIES,
            buffer: ROOM,
        };
        let region = Arc::new(Region::over(
            region::file(crate::MEMORY, shape, 1)?,
            shape,
            1,
        )?);
        let (index, direction) = if from_switch {
            (0, Direction::Inbound)
        } else {
            (1, Direction::Outbound)
        };
        let queue = Queue::new(region.clone(), index, direction);
        Ok(Self { queue, region })
    }

    /// Submits `len` bytes of a buffer from `start` on, and publishes it if `publish`. Returns
    /// whether the switch is to be kicked.
    ///
    /// # Panics
    /// If the buffer is submitted already, or the bytes are not within it.
    pub fn submit(&mut self, id: u16, start: u32, len: u32, publish: bool) -> bool {
        self.queue.submit(id, start, len);
        publish && self.queue.publish()
    }

    /// Returns the next buffer that came back, and the bytes that the switch wrote.
    ///
    /// # Errors
    /// The violation of the switch, after which the queue is not used.
    pub fn take(&mut self) -> Result<Option<(u16, u32)>, String> {
        let used = self.queue.take().map_err(|fault| fault.to_string())?;
        Ok(used.map(|used| (used.id, used.len)))
    }

    /// Requests a notification, as before a sleep. Returns whether a buffer is there already.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn arm(&mut self) -> Result<bool, String> {
        self.queue.arm().map_err(|fault| fault.to_string())
    }

    /// Returns whether all buffers are here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Writes an element of the used ring.
    pub fn set_used(&self, slot: u16, id: u32, len: u32) {
        let at = self.queue.place().used + 4 + 8 * u64::from(slot % ENTRIES);
        self.region.u32(at).store(id.to_le(), Ordering::Relaxed);
        let at = at + 4;
        self.region.u32(at).store(len.to_le(), Ordering::Relaxed);
    }

    /// Writes the index of the used ring.
    pub fn set_used_index(&self, index: u16) {
        let at = self.queue.place().used + 2;
        self.region.u16(at).store(index.to_le(), Ordering::Release);
    }

    /// Writes 16 bits anywhere in the rings; `at` is taken modulo their length.
    pub fn scribble(&self, at: u16, value: u16) {
        let place = self.queue.place();
        let end = place.used + 6 + 8 * u64::from(ENTRIES);
        let len = (end - place.descriptors) / 2;
        let at = place.descriptors + 2 * (u64::from(at) % len);
        self.region.u16(at).store(value, Ordering::Relaxed);
    }
}
