//! A piece of memory that is unmapped (or freed) when dropped: a shared file mapping, or heap for tests.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::MemoryError;
use crate::sigbus::Entry;

#[derive(Debug)]
enum Kind {
    /// With its entry in the table of mappings that may be lost.
    File(Option<Entry>),
    Heap(std::alloc::Layout),
}

/// Owned memory that others may write at the same time; hands out raw pointers only.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    /// Bytes mapped, from `base`; page offset included.
    mapped: usize,
    /// Where the wanted bytes start within the mapping.
    skip: usize,
    kind: Kind,
}

// SAFETY: a Mapping owns its address range and offers raw pointers only; every access through them is
// argued by its user, who treats the content as written by others at any time.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives addresses, no references to the content.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes of `fd` from `offset`, shared, readable and writable.
    ///
    /// # Errors
    /// An empty or wrapping range, a file that is none of memory or ends before the range, or the system's
    /// refusal.
    pub fn shared(fd: &OwnedFd, size: u64, offset: u64) -> Result<Self, MemoryError> {
        if size == 0 {
            return Err(MemoryError::Empty);
        }
        let needed = offset.checked_add(size).ok_or(MemoryError::Wraps {
            start: offset,
            size,
        })?;
        // Only memfd, tmpfs and hugetlbfs know seals. Any other file may wait for a disk, a network or a
        // hostile FUSE daemon at every access, and already when it is asked for its length.
        rustix::fs::fcntl_get_seals(fd).map_err(|_| MemoryError::NotMemory)?;
        let len = file_length(fd)?;
        if len < needed {
            return Err(MemoryError::FileTooShort { needed, len });
        }
        let page = rustix::param::page_size() as u64;
        let skip = offset % page;
        let mapped = usize::try_from(size + skip).map_err(|_| MemoryError::Wraps {
            start: offset,
            size,
        })?;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd.as_fd(),
                offset - skip,
            )
        }
        .map_err(|e| MemoryError::Map(e.into()))?;
        let mut mapping = Self {
            base: NonNull::new(base.cast()).ok_or(MemoryError::Empty)?,
            mapped,
            skip: skip as usize,
            kind: Kind::File(None),
        };
        let entry = Entry::new(base as usize, mapped).ok_or(MemoryError::TooManyMappings)?;
        mapping.kind = Kind::File(Some(entry));
        Ok(mapping)
    }

    /// Zeroed, page-aligned heap memory, for tests and Miri.
    ///
    /// # Panics
    /// When `size` is 0 or not to be had.
    #[must_use]
    pub fn heap(size: u64) -> Self {
        let size = usize::try_from(size).expect("a size that fits this machine");
        assert!(size > 0, "an empty heap mapping");
        let layout = std::alloc::Layout::from_size_align(size, 4096).expect("a valid layout");
        // SAFETY: the layout's size is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        Self {
            base: NonNull::new(base).expect("memory"),
            mapped: size,
            skip: 0,
            kind: Kind::Heap(layout),
        }
    }

    /// The first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.skip)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mapped - self.skip
    }

    /// Whether the file was cut off under the mapping, which now shows dummy pages; see
    /// [`survive_truncation`](crate::survive_truncation).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(&self.kind, Kind::File(Some(entry)) if entry.is_lost())
    }

    /// Never true: an empty mapping cannot be made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match &mut self.kind {
            Kind::File(entry) => {
                // First out of the table: the addresses may be another mapping's at once.
                drop(entry.take());
                // SAFETY: base and mapped are what mmap returned and were never changed; users of the raw
                // pointers keep the Mapping alive.
                let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
            }
            // SAFETY: base came from alloc_zeroed with this very layout.
            Kind::Heap(layout) => unsafe { std::alloc::dealloc(self.base.as_ptr(), *layout) },
        }
    }
}

/// The length of the file; hugetlbfs and memfd report it in `st_size` alike.
fn file_length(fd: &OwnedFd) -> Result<u64, MemoryError> {
    let stat = rustix::fs::fstat(fd).map_err(|e| MemoryError::Map(e.into()))?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}
