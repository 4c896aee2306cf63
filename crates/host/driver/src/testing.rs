//! Parts of a driver process for fuzz targets, without an interface and a switch.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use interfaces::MEMORY;
pub use vhost_frontend::queue::Fault;
use vhost_frontend::queue::{Direction, Queue};
use vhost_frontend::region::{self, Region};
use wire::virtio::shape::Shape;

/// Entries of a [`DriverQueue`]: few, so that indices come round soon.
pub const ENTRIES: u16 = 8;
/// Bytes of one of its buffers.
pub const ROOM: u32 = 4096;

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
        let region = Arc::new(Region::over(region::file(MEMORY, shape, 1)?, shape, 1)?);
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
    pub fn take(&mut self) -> Result<Option<(u16, u32)>, Fault> {
        let used = self.queue.take()?;
        Ok(used.map(|used| (used.id, used.len)))
    }

    /// Requests a notification, as before a sleep. Returns whether a buffer is there already.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn arm(&mut self) -> Result<bool, Fault> {
        self.queue.arm()
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
