//! One region of a guest's memory: a file mapping with its place in the guest and in the VMM.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mapping::{Amount, Extent, Mapping, MappingError, Quota};

use crate::{MemoryError, REGION_PAGE, Segment};

/// A mapped region. Dropping it unmaps it.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    place: Place,
}

/// Place of a region, in the guest and in the VMM.
#[derive(Clone, Copy, Debug)]
struct Place {
    gpa: u64,
    size: u64,
    uva: u64,
}

/// A region to map: checked, and not mapped yet.
#[derive(Clone, Copy, Debug)]
pub struct RegionPlan {
    extent: Extent,
    place: Place,
}

impl RegionPlan {
    /// Checks `size` bytes of `fd` from `mmap_offset` as the guest-physical range that starts at
    /// `gpa`; `uva` is the address in the VMM.
    ///
    /// # Errors
    /// An empty range, one that wraps around in either space or does not consist of pages, or a
    /// file that is not in memory or too short (CVE-2026-86561: the size is checked before anything
    /// is mapped).
    pub fn check(
        fd: &OwnedFd,
        gpa: u64,
        size: u64,
        uva: u64,
        mmap_offset: u64,
    ) -> Result<Self, MemoryError> {
        check_range(uva, size)?;
        check_pages("size", size)?;
        check_pages("user address", uva)?;
        check_pages("mmap offset", mmap_offset)?;
        Self::check_place(fd, Place { gpa, size, uva }, mmap_offset)
    }

    /// Checks the first `size` bytes of `fd`, not necessarily whole pages, as the guest-physical
    /// range that starts at `gpa`. Its user addresses are the same.
    ///
    /// # Errors
    /// As [`RegionPlan::check`].
    pub fn check_bytes(fd: &OwnedFd, gpa: u64, size: u64) -> Result<Self, MemoryError> {
        let uva = gpa;
        Self::check_place(fd, Place { gpa, size, uva }, 0)
    }

    fn check_place(fd: &OwnedFd, place: Place, mmap_offset: u64) -> Result<Self, MemoryError> {
        check_range(place.gpa, place.size)?;
        check_pages("guest address", place.gpa)?;
        let extent = Extent::check(fd, place.size, mmap_offset)?;
        Ok(Self { extent, place })
    }

    /// Returns the amount that the region will take.
    #[must_use]
    pub fn amount(&self) -> Amount {
        self.extent.amount()
    }

    /// Maps the region of this file, which is the one that was checked, within a quota.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn map(&self, fd: &OwnedFd, quota: Option<&Arc<Quota>>) -> Result<Region, MappingError> {
        Ok(Region {
            mapping: self.extent.map(fd, quota)?,
            place: self.place,
        })
    }
}

impl Region {
    /// Checks and maps a region at once, without a quota; see [`RegionPlan::check`].
    ///
    /// # Errors
    /// Those of [`RegionPlan::check`] and [`RegionPlan::map`].
    pub fn map(
        fd: OwnedFd,
        gpa: u64,
        size: u64,
        uva: u64,
        mmap_offset: u64,
    ) -> Result<Self, MemoryError> {
        Ok(RegionPlan::check(&fd, gpa, size, uva, mmap_offset)?.map(&fd, None)?)
    }

    /// Returns the amount that the region takes of a quota.
    #[must_use]
    pub fn amount(&self) -> Amount {
        self.mapping.amount()
    }

    /// Creates a region on the heap, for tests and Miri.
    ///
    /// # Panics
    /// When the size is 0 or a range wraps around.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn heap(gpa: u64, size: u64, uva: u64) -> Self {
        check_range(gpa, size).expect("a valid guest range");
        check_range(uva, size).expect("a valid user range");
        Self {
            mapping: Mapping::heap(size),
            place: Place { gpa, size, uva },
        }
    }

    /// Returns the first guest-physical address.
    #[must_use]
    pub fn gpa(&self) -> u64 {
        self.place.gpa
    }

    /// Returns the first guest-physical address after the region.
    #[must_use]
    pub fn gpa_end(&self) -> u64 {
        self.place.gpa + self.place.size
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.place.size
    }

    /// Returns the address of the region's first byte in the VMM.
    #[must_use]
    pub fn uva(&self) -> u64 {
        self.place.uva
    }

    /// Returns the address of the mapping in this process.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Returns whether the VMM truncated the memory.
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    pub(crate) fn span(&self) -> Span {
        Span {
            gpa: self.place.gpa,
            size: self.place.size,
            ptr: self.as_ptr(),
        }
    }
}

/// The bytes of a region, in the guest and in this process. Valid while the region lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) gpa: u64,
    pub(crate) size: u64,
    ptr: *mut u8,
}

// SAFETY: a Span is an address and a length; code that dereferences the addresses argues that the
// region is alive (see `Segment`).
unsafe impl Send for Span {}
// SAFETY: as above; nothing changes through a shared Span.
unsafe impl Sync for Span {}

impl Span {
    /// No memory.
    pub(crate) const NONE: Self = Self {
        gpa: 0,
        size: 0,
        ptr: std::ptr::null_mut(),
    };

    #[inline]
    pub(crate) fn contains(&self, gpa: u64) -> bool {
        gpa.wrapping_sub(self.gpa) < self.size
    }

    /// Translates `len` bytes at `gpa`, if there are any and all lie within the region.
    #[inline(always)]
    pub(crate) fn whole(&self, gpa: u64, len: u32) -> Option<Segment> {
        let offset = gpa.wrapping_sub(self.gpa);
        let rest = self.size.checked_sub(u64::from(len))?;
        (offset <= rest && len > 0).then(|| self.segment(offset, len))
    }

    /// Returns the piece at `offset`; the caller has checked that it lies within the region.
    #[inline]
    pub(crate) fn segment(&self, offset: u64, len: u32) -> Segment {
        debug_assert!(offset + u64::from(len) <= self.size);
        Segment {
            ptr: self.ptr.wrapping_add(offset as usize),
            len,
            gpa: self.gpa + offset,
        }
    }
}

/// Refuses empty ranges and those that reach past the last 64-bit address (which itself stays
/// unused, so that an end address is always representable).
fn check_range(start: u64, size: u64) -> Result<(), MappingError> {
    if size == 0 {
        return Err(MappingError::Empty);
    }
    start
        .checked_add(size)
        .map(|_| ())
        .ok_or(MappingError::Wraps { start, size })
}

fn check_pages(what: &'static str, value: u64) -> Result<(), MemoryError> {
    if value.is_multiple_of(REGION_PAGE) {
        Ok(())
    } else {
        Err(MemoryError::Misaligned { what, value })
    }
}
