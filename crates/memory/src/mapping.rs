//! A piece of memory that is unmapped (or freed) when dropped: a shared file mapping, or heap for tests.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::sigbus::{Entry, Place};
use crate::{Amount, MemoryError, Quota};

/// A piece of a file that was checked, and not mapped yet.
///
/// What is mapped are whole blocks of the file: of hugetlbfs, the system maps nothing less than a huge page, and then neither unmaps
/// nor replaces less (firecracker#6043).
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Where the first block starts in the file.
    start: u64,
    /// Bytes of it before the wanted ones.
    skip: usize,
    /// Bytes that are wanted.
    len: usize,
    /// Bytes to map.
    mapped: usize,
    /// Bytes of a block.
    block: usize,
}

impl Extent {
    /// `size` bytes of `fd` from `offset`.
    ///
    /// # Errors
    /// An empty or wrapping range, or a file that is none of memory or ends before the range.
    pub fn check(fd: &OwnedFd, size: u64, offset: u64) -> Result<Self, MemoryError> {
        if size == 0 {
            return Err(MemoryError::Empty);
        }
        let wraps = MemoryError::Wraps {
            start: offset,
            size,
        };
        let Some(needed) = offset.checked_add(size) else {
            return Err(wraps);
        };
        // Only memfd, tmpfs and hugetlbfs know seals. Any other file may wait for a disk, a network or a
        // hostile FUSE daemon at every access, and already when it is asked for its length.
        rustix::fs::fcntl_get_seals(fd).map_err(|_| MemoryError::NotMemory)?;
        let (len, block) = length_and_block(fd)?;
        if len < needed {
            return Err(MemoryError::FileTooShort { needed, len });
        }
        let start = offset / block * block;
        let end = needed.checked_next_multiple_of(block);
        let whole = || {
            Some(Self {
                start,
                skip: usize::try_from(offset - start).ok()?,
                len: usize::try_from(size).ok()?,
                mapped: usize::try_from(end? - start).ok()?,
                block: usize::try_from(block).ok()?,
            })
        };
        whole().ok_or(wraps)
    }

    /// What it will take.
    #[must_use]
    pub fn amount(&self) -> Amount {
        Amount {
            bytes: self.mapped as u64,
            mappings: 1,
        }
    }

    /// Maps it of this file, which is the one that was checked, shared, readable and writable, and counts it within a quota.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn map(&self, fd: &OwnedFd, quota: Option<&Arc<Quota>>) -> Result<Mapping, MemoryError> {
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                self.mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd.as_fd(),
                self.start,
            )
        }
        .map_err(|e| MemoryError::Map(e.into()))?;
        let mut mapping = Mapping {
            base: NonNull::new(base.cast()).ok_or(MemoryError::Empty)?,
            mapped: self.mapped,
            skip: self.skip,
            len: self.len,
            kind: Kind::File(None),
            quota: quota.map(Arc::clone),
        };
        if let Some(quota) = quota {
            quota.take(self.amount());
        }
        let place = Place {
            base: base as usize,
            len: self.mapped,
            block: self.block,
        };
        let entry = Entry::new(place).ok_or(MemoryError::TooManyMappings)?;
        mapping.kind = Kind::File(Some(entry));
        Ok(mapping)
    }
}

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
    /// Bytes mapped, from `base`: whole blocks.
    mapped: usize,
    /// Where the wanted bytes start within the mapping.
    skip: usize,
    /// How many they are.
    len: usize,
    kind: Kind,
    /// Whose it counts for.
    quota: Option<Arc<Quota>>,
}

// SAFETY: a Mapping owns its address range and offers raw pointers only; every access through them is
// argued by its user, who treats the content as written by others at any time.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives addresses, no references to the content.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Checks and maps `size` bytes of `fd` from `offset`, shared, readable and writable, of nobody's quota.
    ///
    /// # Errors
    /// Those of [`Extent::check`] and [`Extent::map`].
    pub fn shared(fd: &OwnedFd, size: u64, offset: u64) -> Result<Self, MemoryError> {
        Extent::check(fd, size, offset)?.map(fd, None)
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
            len: size,
            kind: Kind::Heap(layout),
            quota: None,
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
        self.len
    }

    /// What it takes of a quota.
    #[must_use]
    pub fn amount(&self) -> Amount {
        Amount {
            bytes: self.mapped as u64,
            mappings: 1,
        }
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
                let gone = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
                let Some(quota) = &self.quota else { return };
                match gone {
                    Ok(()) => quota.give_back(self.amount()),
                    Err(_) => quota.set_stuck(),
                }
            }
            // SAFETY: base came from alloc_zeroed with this very layout.
            Kind::Heap(layout) => unsafe { std::alloc::dealloc(self.base.as_ptr(), *layout) },
        }
    }
}

/// The length of the file, and of the blocks that it consists of: huge pages on hugetlbfs, which alone insists on them. Both are
/// reported alike by hugetlbfs, tmpfs and memfd.
fn length_and_block(fd: &OwnedFd) -> Result<(u64, u64), MemoryError> {
    let stat = rustix::fs::fstat(fd).map_err(|e| MemoryError::Map(e.into()))?;
    let len = u64::try_from(stat.st_size).unwrap_or(0);
    let page = rustix::param::page_size() as u64;
    let block = u64::try_from(stat.st_blksize).unwrap_or(0);
    Ok((len, block.max(page).next_multiple_of(page)))
}
