//! A piece of memory that is unmapped (or freed) when dropped: a shared file mapping, or heap for
//! tests.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::sigbus::{Entry, Place};
use crate::{Amount, MappingError, Quota};

/// A piece of a file that was checked, and not mapped yet.
///
/// Whole blocks of the file are mapped: of hugetlbfs, the system maps nothing less than a huge
/// page, and then neither unmaps nor replaces less (firecracker#6043).
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Start of the first block in the file.
    start: u64,
    /// Bytes in it before the requested ones.
    skip: usize,
    /// Number of requested bytes.
    len: usize,
    /// Bytes to map.
    mapped: usize,
    /// Bytes of a block.
    block: usize,
}

impl Extent {
    /// Checks `size` bytes of `fd` from `offset`.
    ///
    /// # Errors
    /// An empty or wrapping range, or a file that is not in memory or ends before the range.
    pub fn check(fd: &OwnedFd, size: u64, offset: u64) -> Result<Self, MappingError> {
        if size == 0 {
            return Err(MappingError::Empty);
        }
        let wraps = MappingError::Wraps {
            start: offset,
            size,
        };
        let Some(needed) = offset.checked_add(size) else {
            return Err(wraps);
        };
        // Only memfd, tmpfs and hugetlbfs support seals. Any other file may wait for a disk, a
        // network or a hostile FUSE daemon at every access, even when its length is requested.
        rustix::fs::fcntl_get_seals(fd).map_err(|error| match error {
            Errno::INVAL => MappingError::NotMemory,
            other => MappingError::Map(other.into()),
        })?;
        let (len, block) = length_and_block(fd)?;
        if len < needed {
            return Err(MappingError::FileTooShort { needed, len });
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

    /// Returns the amount that the mapping will take.
    #[must_use]
    pub fn amount(&self) -> Amount {
        Amount {
            bytes: self.mapped as u64,
            mappings: 1,
        }
    }

    /// Maps the piece of this file, which is the one that was checked, shared, readable and
    /// writable, and counts it within a quota.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn map(&self, fd: &OwnedFd, quota: Option<&Arc<Quota>>) -> Result<Mapping, MappingError> {
        self.map_as(fd, ProtFlags::READ | ProtFlags::WRITE, quota)
    }

    fn map_as(
        &self,
        fd: &OwnedFd,
        protection: ProtFlags,
        quota: Option<&Arc<Quota>>,
    ) -> Result<Mapping, MappingError> {
        // SAFETY: a new mapping at an address of the kernel's choice aliases no other memory of the
        // process.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                self.mapped,
                protection,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd.as_fd(),
                self.start,
            )
        }
        .map_err(|error| match error {
            Errno::NOMEM => MappingError::NoRoom,
            other => MappingError::Map(other.into()),
        })?;
        let mut mapping = Mapping {
            base: NonNull::new(base.cast()).ok_or(MappingError::Empty)?,
            extent: *self,
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
        let entry = Entry::new(place).ok_or(MappingError::TooManyMappings)?;
        mapping.kind = Kind::File(Some(entry));
        Ok(mapping)
    }
}

#[derive(Debug)]
enum Kind {
    /// The entry in the table of mappings that may be lost.
    File(Option<Entry>),
    #[cfg(any(test, feature = "test-utils"))]
    Heap(std::alloc::Layout),
}

/// Owned memory that other processes may write at the same time; only raw pointers lead there.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    /// Its place in the file.
    extent: Extent,
    kind: Kind,
    /// Quota that it counts for.
    quota: Option<Arc<Quota>>,
}

// SAFETY: a Mapping owns its address range and offers raw pointers only; every access through them
// is argued by its user, who treats the content as written by other processes at any time.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives addresses, no references to the content.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Checks and maps `size` bytes of `fd` from `offset`, shared, readable and writable, without a
    /// quota.
    ///
    /// # Errors
    /// Those of [`Extent::check`] and [`Extent::map`].
    pub fn shared(fd: &OwnedFd, size: u64, offset: u64) -> Result<Self, MappingError> {
        Extent::check(fd, size, offset)?.map(fd, None)
    }

    /// Checks and maps a piece of a file as [`Mapping::shared`] does, but read-only: a write to it
    /// is a fault.
    ///
    /// # Errors
    /// Those of [`Extent::check`] and [`Extent::map`].
    pub fn read_only(fd: &OwnedFd, size: u64, offset: u64) -> Result<Self, MappingError> {
        Extent::check(fd, size, offset)?.map_as(fd, ProtFlags::READ, None)
    }

    /// Zeroed, page-aligned heap memory, for tests and Miri.
    ///
    /// # Panics
    /// When `size` is 0 or the allocation fails.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn heap(size: u64) -> Self {
        let size = usize::try_from(size).expect("a size that fits this machine");
        assert!(size > 0, "an empty heap mapping");
        let layout = std::alloc::Layout::from_size_align(size, 4096).expect("a valid layout");
        // SAFETY: the layout's size is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        Self {
            base: NonNull::new(base).expect("memory"),
            extent: Extent {
                start: 0,
                skip: 0,
                len: size,
                mapped: size,
                block: layout.align(),
            },
            kind: Kind::Heap(layout),
            quota: None,
        }
    }

    /// Returns the first byte.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.extent.skip)
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // an empty mapping cannot be created
    pub fn len(&self) -> usize {
        self.extent.len
    }

    /// Returns the amount that it takes of a quota.
    #[must_use]
    pub fn amount(&self) -> Amount {
        self.extent.amount()
    }

    /// Returns whether the file was truncated under the mapping, which now shows dummy pages; see
    /// [`survive_truncation`](crate::survive_truncation).
    #[inline]
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(&self.kind, Kind::File(Some(entry)) if entry.is_lost())
    }
}

impl Drop for Mapping {
    /// Memory of a front end, which has a quota, is unmapped by the [closer](sys::closer): that may
    /// free it, which takes about 0.1 s for each GiB of small pages.
    fn drop(&mut self) {
        match &mut self.kind {
            Kind::File(entry) => {
                // First out of the table: another mapping may get the addresses at once.
                drop(entry.take());
                let range = Range(self.base, self.extent.mapped);
                let Some(quota) = self.quota.take() else {
                    let _ = range.unmap();
                    return;
                };
                let (amount, author) = (self.extent.amount(), quota.author());
                quota.leave(amount);
                let unmap = move || match range.unmap() {
                    Ok(()) => quota.give_back(amount),
                    Err(_) => quota.set_stuck(amount),
                };
                match amount.bytes <= sys::closer::SMALL {
                    true => unmap(),
                    false => sys::closer::run(author, unmap),
                }
            }
            #[cfg(any(test, feature = "test-utils"))]
            // SAFETY: base came from alloc_zeroed with this very layout.
            Kind::Heap(layout) => unsafe { std::alloc::dealloc(self.base.as_ptr(), *layout) },
        }
    }
}

/// Addresses of a mapping that is dropped, and their number.
struct Range(NonNull<u8>, usize);

// SAFETY: the range belongs to its owner alone, who only unmaps it.
unsafe impl Send for Range {}

impl Range {
    fn unmap(self) -> rustix::io::Result<()> {
        let Self(base, len) = self;
        // SAFETY: base and length are as returned by mmap and were never changed; users of the raw
        // pointers kept the Mapping alive, which is dropped.
        unsafe { munmap(base.as_ptr().cast(), len) }
    }
}

/// Returns the length of the file, and of the blocks that it consists of: huge pages on hugetlbfs,
/// which alone insists on them. Both are reported alike by hugetlbfs, tmpfs and memfd.
fn length_and_block(fd: &OwnedFd) -> Result<(u64, u64), MappingError> {
    let stat = rustix::fs::fstat(fd).map_err(|e| MappingError::Map(e.into()))?;
    let len = u64::try_from(stat.st_size).unwrap_or(0);
    let page = rustix::param::page_size() as u64;
    let block = u64::try_from(stat.st_blksize).unwrap_or(0);
    Ok((len, block.max(page).next_multiple_of(page)))
}
