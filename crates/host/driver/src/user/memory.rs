//! Bytes of buffers, which the switch has, too.

use std::ptr;

use vhost_frontend::queue::Queue;

/// A part of a buffer. The memory is mapped for as long as its queue is; the other side may write
/// it at any time, so that it is only copied, or read and written by the system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes {
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory is no thread's own: it is mapped for as long as the queue is, which moves with
// the worker that has both, and its bytes are only copied.
unsafe impl Send for Bytes {}

impl Bytes {
    /// `len` bytes from `start` of buffer `id`.
    ///
    /// # Panics
    /// When they are not all inside the buffer.
    pub(super) fn of(queue: &Queue, id: u16, start: u32, len: u32) -> Self {
        let room = queue.place().shape.buffer;
        let inside = start.checked_add(len).is_some_and(|end| end <= room);
        assert!(inside, "{len} bytes at {start} of a buffer of {room}");
        Self {
            start: queue.buffer(id).wrapping_add(start as usize),
            len: len as usize,
        }
    }

    pub(super) fn len(self) -> usize {
        self.len
    }

    /// `len` of these bytes, from `start` on; `None` if they are not all here.
    pub(super) fn part(self, start: usize, len: usize) -> Option<Self> {
        let inside = start.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| Self {
            start: self.start.wrapping_add(start),
            len,
        })
    }

    /// The address, for the system.
    pub(super) fn pointer(self) -> *mut u8 {
        self.start
    }

    /// Copies as many bytes as both have; returns their number.
    pub(super) fn copy_to(self, to: &mut [u8]) -> usize {
        let len = self.len.min(to.len());
        // SAFETY: `of` and `part` have checked that the bytes are inside a buffer, which is mapped;
        // `to` is memory of this process alone. No reference to the shared bytes is made.
        unsafe { ptr::copy_nonoverlapping(self.start, to.as_mut_ptr(), len) };
        len
    }

    /// Writes bytes at the start, as many as fit.
    pub(super) fn put(self, bytes: &[u8]) {
        let len = self.len.min(bytes.len());
        // SAFETY: as in `copy_to`, the other way round.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start, len) };
    }
}
