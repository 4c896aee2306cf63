//! Guest memory as the guest sees it: regions of a memfd (or of the heap, for Miri), an allocator,
//! and access to single ring fields.
//!
//! ```text
//! region   |reserved| bump allocator ->                         |reserved|
//!          ^ gpa     ^ gpa + EDGE                       end - EDGE ^        ^ end
//! ```
//! The reserved edges exist in regions of at least 1 MiB; [`GuestRam::straddle`] takes buffers from
//! them that cross from one region into the next.
//!
//! Behind an [IOMMU](crate::iommu) a driver has addresses of its own, which lead to scattered
//! pages, and the device has others: [`GuestRam::map`]. Without one all three are the same.

mod pool;
mod written;

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use memory::{GuestMemory, Region};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::iommu::{Access, Iommu};

pub use pool::BufferPool;
use written::Written;

/// Bytes at both ends of a large region that the allocator leaves alone.
pub const EDGE: u64 = 64 << 10;
const EDGED: u64 = 1 << 20;

const PAGE: u64 = 4096;

/// Start of user addresses: never equal to a guest-physical address in tests.
pub const USER_BASE: u64 = 0x7e00_0000_0000;

/// A region to make: its place in the guest, in the VMM and in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Guest-physical address of the first byte.
    pub gpa: u64,
    /// Size in bytes.
    pub size: u64,
    /// The VMM's virtual address of the first byte; a label that is never dereferenced.
    pub uva: u64,
    /// Offset of the first byte in the memory file.
    pub file_offset: u64,
}

impl RegionSpec {
    /// A region at `gpa` with a made-up user address and file offset 0.
    #[must_use]
    pub fn at(gpa: u64, size: u64) -> Self {
        Self {
            gpa,
            size,
            uva: USER_BASE + gpa.rotate_left(1),
            file_offset: 0,
        }
    }
}

/// One region of guest memory.
#[derive(Debug)]
pub struct RamRegion {
    region: Arc<Region>,
    spec: RegionSpec,
    fd: Option<OwnedFd>,
    next: AtomicU64,
    limit: u64,
}

impl RamRegion {
    fn memfd(spec: RegionSpec) -> io::Result<Self> {
        let fd = memfd_create("guest-ram", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, spec.file_offset + spec.size)?;
        Self::from_fd(fd, spec)
    }

    /// Maps a region from a file, as a back end does with what it was sent.
    ///
    /// # Errors
    /// When the range cannot be mapped.
    pub fn from_fd(fd: OwnedFd, spec: RegionSpec) -> io::Result<Self> {
        let region = Region::map(
            fd.try_clone()?,
            spec.gpa,
            spec.size,
            spec.uva,
            spec.file_offset,
        )
        .map_err(io::Error::other)?;
        Ok(Self::new(region, spec, Some(fd)))
    }

    fn heap(spec: RegionSpec) -> Self {
        Self::new(Region::heap(spec.gpa, spec.size, spec.uva), spec, None)
    }

    fn new(region: Region, spec: RegionSpec, fd: Option<OwnedFd>) -> Self {
        let edge = if spec.size >= EDGED { EDGE } else { 0 };
        Self {
            region: Arc::new(region),
            spec,
            fd,
            next: AtomicU64::new(spec.gpa + edge),
            limit: spec.gpa + spec.size - edge,
        }
    }

    /// Returns the parameters of the region.
    #[must_use]
    pub fn spec(&self) -> RegionSpec {
        self.spec
    }

    /// The memory file; none on the heap.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.fd.as_ref().map(AsFd::as_fd)
    }

    fn alloc(&self, len: u64, align: u64) -> Option<u64> {
        let mut found = 0;
        self.next
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |next| {
                found = next.next_multiple_of(align);
                let end = found.checked_add(len)?;
                (end <= self.limit).then_some(end)
            })
            .ok()
            .map(|_| found)
    }

    /// The address of `len` bytes at `gpa`, when they all lie in this region.
    fn ptr(&self, gpa: u64, len: u64) -> Option<*mut u8> {
        let offset = gpa.checked_sub(self.spec.gpa)?;
        (offset.checked_add(len)? <= self.spec.size)
            .then(|| self.region.as_ptr().wrapping_add(offset as usize))
    }
}

/// Guest memory: an immutable list of shared regions. Clones share content and allocator; hot-plug
/// makes a new list ([`GuestRam::plugged`]) and leaves the old one usable.
#[derive(Clone, Debug)]
pub struct GuestRam {
    regions: Vec<Arc<RamRegion>>,
    written: Arc<Written>,
    iommu: Option<Arc<Iommu>>,
}

impl GuestRam {
    /// Memory in one memfd a region, to be shared with a back end.
    ///
    /// # Errors
    /// When a file cannot be made or mapped.
    pub fn memfd(specs: &[RegionSpec]) -> io::Result<Self> {
        let regions = specs
            .iter()
            .map(|s| RamRegion::memfd(*s).map(Arc::new))
            .collect::<Result<_, _>>()?;
        Ok(Self::of(regions))
    }

    /// Memory on the heap: for Miri, where files cannot be mapped.
    #[must_use]
    pub fn heap(specs: &[RegionSpec]) -> Self {
        Self::of(
            specs
                .iter()
                .map(|s| Arc::new(RamRegion::heap(*s)))
                .collect(),
        )
    }

    /// Memory from regions that exist.
    #[must_use]
    pub fn of(regions: Vec<Arc<RamRegion>>) -> Self {
        Self {
            regions,
            written: Arc::default(),
            iommu: None,
        }
    }

    /// This memory for a driver behind `iommu`, which is over the same memory.
    #[must_use]
    pub fn behind(&self, iommu: &Arc<Iommu>) -> Self {
        Self {
            iommu: Some(Arc::clone(iommu)),
            ..self.clone()
        }
    }

    /// The IOMMU that the device is behind, if there is one.
    #[must_use]
    pub fn iommu(&self) -> Option<&Arc<Iommu>> {
        self.iommu.as_ref()
    }

    /// The pages that the guest has written through this memory or a clone of it since this was
    /// asked for last; none the first time. What a device writes is not among them.
    #[must_use]
    pub fn take_written(&self) -> BTreeSet<u64> {
        self.written.take()
    }

    /// One heap region of `size` bytes at a guest address that is not zero.
    #[must_use]
    pub fn small(size: u64) -> Self {
        Self::heap(&[RegionSpec::at(0x10_0000, size)])
    }

    /// The regions.
    #[must_use]
    pub fn regions(&self) -> &[Arc<RamRegion>] {
        &self.regions
    }

    /// Returns the same mappings as the type of the code under test.
    ///
    /// # Panics
    /// When the regions overlap.
    #[must_use]
    pub fn memory(&self) -> Arc<GuestMemory> {
        let regions = self.regions.iter().map(|r| Arc::clone(&r.region)).collect();
        Arc::new(GuestMemory::new(regions, None).expect("regions that do not overlap"))
    }

    /// This memory and one more memfd region.
    ///
    /// # Errors
    /// When the file cannot be made or mapped.
    pub fn plugged(&self, spec: RegionSpec) -> io::Result<Self> {
        let mut more = self.clone();
        more.regions.push(Arc::new(RamRegion::memfd(spec)?));
        Ok(more)
    }

    /// This memory without the region at `gpa`.
    #[must_use]
    pub fn unplugged(&self, gpa: u64) -> Self {
        let mut less = self.clone();
        less.regions.retain(|r| r.spec.gpa != gpa);
        less
    }

    /// Allocates `len` bytes for good, aligned to `align`, in the first region with room; behind an
    /// IOMMU on pages of their own.
    ///
    /// # Panics
    /// When no region has room.
    #[must_use]
    pub fn alloc(&self, len: u64, align: u64) -> u64 {
        if let Some(iommu) = &self.iommu {
            return iommu.alloc(len, align);
        }
        self.regions
            .iter()
            .find_map(|r| r.alloc(len, align))
            .unwrap_or_else(|| panic!("guest memory has no {len} bytes left"))
    }

    /// As [`GuestRam::alloc`], for what driver and device share all the time: rings and tables.
    ///
    /// # Panics
    /// As [`GuestRam::alloc`].
    #[must_use]
    pub fn alloc_shared(&self, len: u64, align: u64) -> u64 {
        match &self.iommu {
            Some(iommu) => iommu.alloc_shared(len, align),
            None => self.alloc(len, align),
        }
    }

    /// Gives `len` allocated bytes to the device, which does with them what `access` says; returns
    /// its address of them.
    #[must_use]
    pub fn map(&self, addr: u64, len: u64, access: Access) -> u64 {
        let iommu = self.iommu.as_ref();
        iommu.map_or(addr, |iommu| iommu.map(addr, len, access))
    }

    /// Takes what was mapped at `addr` back from the device. Behind an IOMMU its content is lost.
    pub fn unmap(&self, addr: u64) {
        if let Some(iommu) = &self.iommu {
            iommu.unmap(addr);
        }
    }

    /// Returns the device's address of memory that is mapped or shared.
    ///
    /// # Panics
    /// When it is neither.
    #[must_use]
    pub fn device_address(&self, addr: u64) -> u64 {
        let iommu = self.iommu.as_ref();
        iommu.map_or(addr, |iommu| iommu.iova(addr))
    }

    /// Returns the guest-physical address of the driver's address `addr`.
    #[must_use]
    pub fn physical(&self, addr: u64) -> u64 {
        let iommu = self.iommu.as_ref();
        iommu.map_or(addr, |iommu| iommu.physical(addr))
    }

    /// Allocates in the region at `index`; none when it is full.
    #[must_use]
    pub fn alloc_in(&self, index: usize, len: u64, align: u64) -> Option<u64> {
        self.regions[index].alloc(len, align)
    }

    /// A buffer whose first half ends region `index` and whose second half starts the region behind
    /// it.
    ///
    /// # Panics
    /// When no region of at least 1 MiB follows directly, or `len` exceeds the reserved edges.
    #[must_use]
    pub fn straddle(&self, index: usize, len: u64) -> u64 {
        let first = self.regions[index].spec;
        let end = first.gpa + first.size;
        let next = self
            .regions
            .iter()
            .find(|r| r.spec.gpa == end)
            .expect("an adjacent region")
            .spec;
        assert!(
            len <= EDGE && first.size >= EDGED && next.size >= EDGED,
            "no room at the edges"
        );
        end - len / 2
    }

    /// The VMM's virtual address of guest address `gpa`.
    ///
    /// # Panics
    /// When `gpa` lies in no region.
    #[must_use]
    pub fn user_address(&self, gpa: u64) -> u64 {
        let spec = self
            .regions
            .iter()
            .map(|r| r.spec)
            .find(|s| gpa.wrapping_sub(s.gpa) < s.size)
            .unwrap_or_else(|| panic!("{gpa:#x} is not guest memory"));
        spec.uva + (gpa - spec.gpa)
    }

    /// The address of a ring for SET_VRING_ADDR: the VMM's, or the device's behind an IOMMU.
    ///
    /// # Panics
    /// When it lies in no region, or is not shared.
    #[must_use]
    pub fn ring_address(&self, addr: u64) -> u64 {
        match &self.iommu {
            Some(iommu) => iommu.iova(addr),
            None => self.user_address(addr),
        }
    }

    /// Returns the mapping of `len` bytes at `gpa`, which is valid as long as any clone of this
    /// memory lives. Behind an IOMMU they must lie on one page.
    ///
    /// # Panics
    /// When they are not one piece of guest memory.
    #[must_use]
    pub fn ptr(&self, gpa: u64, len: u64) -> *mut u8 {
        let gpa = self.physical(gpa);
        self.regions
            .iter()
            .find_map(|r| r.ptr(gpa, len))
            .unwrap_or_else(|| panic!("{gpa:#x}+{len} is not one piece of guest memory"))
    }

    /// Walks `len` bytes from `gpa` region by region, behind an IOMMU page by page: address in the
    /// guest, pointer, range from the start.
    fn pieces(&self, gpa: u64, len: usize, mut each: impl FnMut(u64, *mut u8, Range<usize>)) {
        let mut done = 0;
        while done < len {
            let addr = gpa + done as u64;
            let at = self.physical(addr);
            let (ptr, room) = self
                .regions
                .iter()
                .find_map(|r| r.ptr(at, 1).map(|p| (p, r.spec.size - (at - r.spec.gpa))))
                .unwrap_or_else(|| panic!("{at:#x} is not guest memory"));
            let page = self.iommu.as_ref().map_or(room, |_| PAGE - at % PAGE);
            let n = (len - done).min(usize::try_from(room.min(page)).unwrap_or(usize::MAX));
            each(at, ptr, done..done + n);
            done += n;
        }
    }

    /// Copies `bytes` to `gpa`; may cross adjacent regions.
    ///
    /// # Panics
    /// When the range is not guest memory.
    pub fn write(&self, gpa: u64, bytes: &[u8]) {
        self.pieces(gpa, bytes.len(), |at, ptr, range| {
            let part = &bytes[range];
            // SAFETY: `pieces` hands out ranges inside a mapping that `self` keeps alive; the
            // source is a private slice. A device that races with this write is itself the subject
            // of the test.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), ptr, part.len()) }
            self.written.note(at, part.len());
        });
    }

    /// Copies from `gpa` into `out`; may cross adjacent regions.
    ///
    /// # Panics
    /// When the range is not guest memory.
    pub fn read(&self, gpa: u64, out: &mut [u8]) {
        self.pieces(gpa, out.len(), |_, ptr, range| {
            let part = &mut out[range];
            // SAFETY: as in `write`, with the private slice as destination.
            unsafe { std::ptr::copy_nonoverlapping(ptr, part.as_mut_ptr(), part.len()) }
        });
    }

    /// Appends `len` bytes from `gpa` to `out`.
    ///
    /// # Panics
    /// When the range is not guest memory.
    pub fn read_onto(&self, gpa: u64, len: usize, out: &mut Vec<u8>) {
        self.pieces(gpa, len, |_, ptr, range| {
            let n = range.len();
            out.reserve(n);
            let old = out.len();
            // SAFETY: `ptr` as in `write`; `reserve` made room for `n` bytes behind the length,
            // which are initialised here before the length covers them.
            unsafe {
                std::ptr::copy_nonoverlapping(ptr, out.as_mut_ptr().add(old), n);
                out.set_len(old + n);
            }
        });
    }

    /// Fills a range with one byte.
    ///
    /// # Panics
    /// When the range is not guest memory.
    pub fn fill(&self, gpa: u64, len: usize, byte: u8) {
        self.pieces(gpa, len, |at, ptr, range| {
            // SAFETY: as in `write`.
            unsafe { std::ptr::write_bytes(ptr, byte, range.len()) }
            self.written.note(at, range.len());
        });
    }

    /// Reads a little-endian 16-bit field with acquire order.
    ///
    /// # Panics
    /// When it is not guest memory or not aligned; so do the other field accesses.
    #[must_use]
    pub fn load_u16(&self, gpa: u64) -> u16 {
        // SAFETY: `field` checked range and alignment; the mapping outlives the reference.
        u16::from_le(
            unsafe { AtomicU16::from_ptr(self.field(gpa, 2).cast()) }.load(Ordering::Acquire),
        )
    }

    /// Writes a little-endian 16-bit field with release order.
    pub fn store_u16(&self, gpa: u64, value: u16) {
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU16::from_ptr(self.field(gpa, 2).cast()) }
            .store(value.to_le(), Ordering::Release);
        self.written.note(self.physical(gpa), 2);
    }

    /// Reads a little-endian 32-bit field with acquire order.
    #[must_use]
    pub fn load_u32(&self, gpa: u64) -> u32 {
        // SAFETY: as in `load_u16`.
        u32::from_le(
            unsafe { AtomicU32::from_ptr(self.field(gpa, 4).cast()) }.load(Ordering::Acquire),
        )
    }

    /// Writes a little-endian 32-bit field with release order.
    pub fn store_u32(&self, gpa: u64, value: u32) {
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU32::from_ptr(self.field(gpa, 4).cast()) }
            .store(value.to_le(), Ordering::Release);
        self.written.note(self.physical(gpa), 4);
    }

    /// Reads a little-endian 64-bit field with acquire order.
    #[must_use]
    pub fn load_u64(&self, gpa: u64) -> u64 {
        // SAFETY: as in `load_u16`.
        u64::from_le(
            unsafe { AtomicU64::from_ptr(self.field(gpa, 8).cast()) }.load(Ordering::Acquire),
        )
    }

    /// Writes a little-endian 64-bit field with release order.
    pub fn store_u64(&self, gpa: u64, value: u64) {
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU64::from_ptr(self.field(gpa, 8).cast()) }
            .store(value.to_le(), Ordering::Release);
        self.written.note(self.physical(gpa), 8);
    }

    fn field(&self, gpa: u64, size: u64) -> *mut u8 {
        let ptr = self.ptr(gpa, size);
        assert!(
            (ptr as u64).is_multiple_of(size),
            "{gpa:#x} is not aligned to {size}"
        );
        ptr
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> GuestRam {
        GuestRam::heap(&[
            RegionSpec::at(0x10_0000, 1 << 20),
            RegionSpec::at(0x20_0000, 1 << 20),
        ])
    }

    #[test]
    fn a_write_crosses_adjacent_regions() {
        let ram = two();
        let gpa = ram.straddle(0, 100);
        let bytes: Vec<u8> = (0..100).collect();
        ram.write(gpa, &bytes);
        let mut back = vec![0; 100];
        ram.read(gpa, &mut back);
        assert_eq!(back, bytes);
        assert_ne!(ram.user_address(gpa), gpa);
    }

    #[test]
    fn allocation_moves_to_the_next_region_and_keeps_off_the_edges() {
        let ram = two();
        let first = ram.alloc(800 << 10, 4096);
        let second = ram.alloc(800 << 10, 4096);
        assert_eq!((first, second), (0x10_0000 + EDGE, 0x20_0000 + EDGE));
        assert_eq!(ram.alloc_in(0, 800 << 10, 1), None);
    }

    #[test]
    #[cfg(not(miri))] // Miri maps no files
    fn a_plugged_region_leaves_the_old_list_alone() {
        let ram = GuestRam::memfd(&[RegionSpec {
            file_offset: 4096,
            ..RegionSpec::at(0x1000, 8192)
        }])
        .expect("memory");
        let more = ram
            .plugged(RegionSpec::at(0x10_0000, 4096))
            .expect("memory");
        more.store_u32(0x10_0000, 7);
        more.store_u64(0x1008, 9);
        assert_eq!((ram.regions().len(), ram.load_u64(0x1008)), (1, 9));
        assert_eq!(more.unplugged(0x1000).load_u32(0x10_0000), 7);
    }

    #[test]
    fn buffers_come_back() {
        let ram = GuestRam::small(1 << 20);
        let mut pool = BufferPool::default();
        let (gpa, size) = pool.take(&ram, 3000);
        pool.give(gpa, size);
        assert_eq!(pool.take(&ram, 4096), (gpa, 4096));
        assert_ne!(pool.take(&ram, 4096).0, gpa);
    }
}
