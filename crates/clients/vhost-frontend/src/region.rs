//! The memory that a front end shares with the switch: rings and buffers of all its queues, in one
//! sealed file.
//!
//! ```text
//!   0                    rings of queue 0: descriptors, available ring, used ring
//!   R                    rings of queue 1
//!   ...
//!   2 * pairs * R        buffers of queue 0
//!   ...                  buffers of queue 1
//! ```
//!
//! An address in a descriptor is an offset in this file. Descriptor `n` of a queue always refers to
//! buffer `n`. Their number and length is the region's [`Shape`], from which `R` follows, in whole
//! pages. The file is private to front end and switch, so its layout needs no version.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use mapping::Mapping;
use wire::virtio::shape::Shape;

/// Offsets of one queue's parts.
#[derive(Clone, Copy, Debug)]
pub struct QueuePlace {
    /// Descriptor table.
    pub descriptors: u64,
    /// Available ring.
    pub available: u64,
    /// Used ring.
    pub used: u64,
    /// First buffer.
    buffers: u64,
    /// Of this queue's.
    pub shape: Shape,
}

impl QueuePlace {
    /// These rings, with the buffers of another queue.
    pub fn with_buffers_of(self, other: Self) -> Self {
        Self {
            buffers: other.buffers,
            shape: other.shape,
            ..self
        }
    }

    /// The offset of a buffer.
    pub fn buffer(&self, id: u16) -> u64 {
        debug_assert!(id < self.shape.entries);
        self.buffers + u64::from(id) * u64::from(self.shape.buffer)
    }

    /// The buffer that this offset lies in.
    pub fn buffer_at(&self, offset: u64) -> Option<u16> {
        let id = offset.checked_sub(self.buffers)? / u64::from(self.shape.buffer);
        u16::try_from(id).ok().filter(|id| *id < self.shape.entries)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    file: OwnedFd,
    queues: u64,
    shape: Shape,
}

/// Returns a file for a region, all zero, sealed against changes of its size.
///
/// # Errors
/// The system's refusal.
pub fn file(name: &str, shape: Shape, pairs: u16) -> io::Result<OwnedFd> {
    sys::file::fixed(name, shape.size(pairs))
}

impl Region {
    /// Memory for so many queue pairs; `name` is that of its file.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn new(name: &str, pairs: u16) -> io::Result<Self> {
        Self::over(file(name, Shape::LONG, pairs)?, Shape::LONG, pairs)
    }

    /// Returns a region in a file of [`file()`].
    ///
    /// # Errors
    /// The system's refusal, or the file is shorter.
    pub fn over(file: OwnedFd, shape: Shape, pairs: u16) -> io::Result<Self> {
        let mapping = Mapping::shared(&file, shape.size(pairs), 0).map_err(io::Error::other)?;
        Ok(Self {
            mapping,
            file,
            queues: 2 * u64::from(pairs),
            shape,
        })
    }

    /// The file, to hand over.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Bytes in all.
    pub fn size(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Returns the place of a queue's parts; queues are numbered as in vhost-user: 0 to, 1 from the
    /// front end's first pair.
    ///
    /// # Panics
    /// There is no such queue.
    pub fn place(&self, queue: u16) -> QueuePlace {
        let queue = u64::from(queue);
        assert!(queue < self.queues, "no such queue");
        let shape = self.shape;
        let rings = queue * shape.rings();
        QueuePlace {
            descriptors: rings,
            available: rings + shape.available(),
            used: rings + shape.used(),
            buffers: self.queues * shape.rings() + queue * shape.buffers(),
            shape,
        }
    }

    /// The address of `len` bytes. They may change at any time: the switch maps them too.
    ///
    /// # Panics
    /// When they are not all inside.
    pub fn pointer(&self, offset: u64, len: u64) -> *mut u8 {
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= self.size());
        assert!(inside, "{len} bytes at {offset} of {}", self.size());
        self.mapping.as_ptr().wrapping_add(offset as usize)
    }

    fn aligned(&self, offset: u64, size: u64) -> *mut u8 {
        assert!(offset.is_multiple_of(size), "{offset} is not aligned");
        self.pointer(offset, size)
    }

    /// A number of 16 bits in a ring.
    ///
    /// # Panics
    /// It is not aligned, or not inside.
    pub fn u16(&self, offset: u64) -> &AtomicU16 {
        // SAFETY: `aligned` checked bounds and alignment (the mapping starts at a page), the memory
        // lives as long as `self`, and everyone here reaches ring memory through atomics only.
        unsafe { AtomicU16::from_ptr(self.aligned(offset, 2).cast()) }
    }

    /// A number of 32 bits in a ring.
    ///
    /// # Panics
    /// It is not aligned, or not inside.
    pub fn u32(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: as in `u16`.
        unsafe { AtomicU32::from_ptr(self.aligned(offset, 4).cast()) }
    }

    /// A number of 64 bits in a ring.
    ///
    /// # Panics
    /// It is not aligned, or not inside.
    pub fn u64(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: as in `u16`.
        unsafe { AtomicU64::from_ptr(self.aligned(offset, 8).cast()) }
    }
}
