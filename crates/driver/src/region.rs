//! The memory that a driver shares with the switch: rings and buffers of all its queues, in one sealed file.
//!
//! ```text
//!   0                    rings of queue 0: descriptors, available ring, used ring
//!   8 KiB                rings of queue 1
//!   ...
//!   2 * pairs * 8 KiB    buffers of queue 0, QUEUE_SIZE of BUFFER bytes
//!   ...                  buffers of queue 1
//! ```
//!
//! An address in a descriptor is an offset in this file. Buffer `n` of a queue is what its descriptor `n`
//! speaks of, for ever. Nobody else sees the file, so its layout needs no version.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use memory::Mapping;
use rustix::fs::{MemfdFlags, SealFlags};

/// Entries of each queue. A frame takes one.
pub(crate) const QUEUE_SIZE: u16 = 256;
/// Bytes of one buffer: the longest frame that an interface hands out whole (65535 bytes of IP packet), its
/// Ethernet header with a tag, and the virtio header, in whole pages.
pub(crate) const BUFFER: u32 = 17 * 4096;

/// Bytes for the rings of one queue.
const RINGS: u64 = 8192;
/// Where the rings of a queue lie: descriptors from 0 (16 bytes each), then these.
const AVAILABLE: u64 = 4096;
/// On a cache line of its own, because the other side writes it.
const USED: u64 = 4096 + 768;

const _: () = {
    let size = QUEUE_SIZE as u64;
    assert!(16 * size <= AVAILABLE);
    assert!(AVAILABLE + 6 + 2 * size <= USED && USED.is_multiple_of(64));
    assert!(USED + 6 + 8 * size <= RINGS);
};

/// Offsets of one queue's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePlace {
    /// Descriptor table.
    pub(crate) descriptors: u64,
    /// Available ring.
    pub(crate) available: u64,
    /// Used ring.
    pub(crate) used: u64,
    /// First buffer.
    buffers: u64,
}

impl QueuePlace {
    /// The offset of a buffer.
    pub(crate) fn buffer(&self, id: u16) -> u64 {
        debug_assert!(id < QUEUE_SIZE);
        self.buffers + u64::from(id) * u64::from(BUFFER)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: Mapping,
    file: Option<OwnedFd>,
    queues: u64,
}

fn size_of(queues: u64) -> u64 {
    queues * (RINGS + u64::from(QUEUE_SIZE) * u64::from(BUFFER))
}

impl Region {
    /// Memory for so many queue pairs, all zero, in a file that nobody can make shorter or longer.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new(pairs: u16) -> io::Result<Self> {
        let queues = 2 * u64::from(pairs);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("lasthop-driver", flags)?;
        rustix::fs::ftruncate(&file, size_of(queues))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let mapping = Mapping::shared(&file, size_of(queues), 0).map_err(io::Error::other)?;
        Ok(Self {
            mapping,
            file: Some(file),
            queues,
        })
    }

    /// The same on the heap, for tests.
    #[cfg(test)]
    pub(crate) fn heap(pairs: u16) -> Self {
        let queues = 2 * u64::from(pairs);
        Self {
            mapping: Mapping::heap(size_of(queues)),
            file: None,
            queues,
        }
    }

    /// The file, to hand over.
    pub(crate) fn file(&self) -> io::Result<BorrowedFd<'_>> {
        let file = self.file.as_ref().map(AsFd::as_fd);
        file.ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Bytes in all.
    pub(crate) fn size(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Where the parts of a queue are; queues are counted as in vhost-user: 0 to, 1 from the driver's first pair.
    pub(crate) fn place(&self, queue: u16) -> QueuePlace {
        let queue = u64::from(queue);
        assert!(queue < self.queues, "no such queue");
        let rings = queue * RINGS;
        QueuePlace {
            descriptors: rings,
            available: rings + AVAILABLE,
            used: rings + USED,
            buffers: self.queues * RINGS + queue * u64::from(QUEUE_SIZE) * u64::from(BUFFER),
        }
    }

    /// The address of `len` bytes. They may change at any time: the switch maps them too.
    ///
    /// # Panics
    /// When they are not all inside.
    pub(crate) fn pointer(&self, offset: u64, len: u64) -> *mut u8 {
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

    pub(crate) fn u16(&self, offset: u64) -> &AtomicU16 {
        // SAFETY: `aligned` checked bounds and alignment (the mapping starts at a page), the memory lives as long
        // as `self`, and everyone here reaches ring memory through atomics only.
        unsafe { AtomicU16::from_ptr(self.aligned(offset, 2).cast()) }
    }

    pub(crate) fn u32(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: as in `u16`.
        unsafe { AtomicU32::from_ptr(self.aligned(offset, 4).cast()) }
    }

    pub(crate) fn u64(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: as in `u16`.
        unsafe { AtomicU64::from_ptr(self.aligned(offset, 8).cast()) }
    }
}
