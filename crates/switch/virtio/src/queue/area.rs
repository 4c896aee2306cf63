//! Raw access to ring memory: an area's addresses are resolved once. It is one contiguous piece of
//! guest memory ([`FlatArea`]), or, for a guest with an IOMMU, may lie anywhere page by page
//! (`translated::PagedArea`). All fields are little endian, and atomics: the driver writes them
//! while we read. `memory` argues for this, in its section on concurrency.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use memory::GuestMemory;

use super::QueueFault;

/// Returns whether the process is alive; tests let it die between two stores to shared memory.
#[inline(always)]
pub(super) fn alive() -> bool {
    #[cfg(test)]
    return super::tests::death::next_store_happens();
    #[cfg(not(test))]
    true
}

/// A resolved ring area. Valid while the `GuestMemory` that resolved it lives, and while the guest
/// grants it; the queue keeps the one and watches the other.
pub trait Area {
    /// A copy for a loop, which then reads the address once: see [`memory::View`].
    type View<'a>: Area + Copy
    where
        Self: 'a;

    fn view(&self) -> Self::View<'_>;

    /// Returns the area for a loop, if it is contiguous here.
    fn flat(&self) -> Option<FlatArea>;

    /// Returns the address of the byte at `offset`. A field never leaves its page.
    ///
    /// # Safety
    /// `offset < len`, and the memory that resolved the area is alive.
    unsafe fn at(&self, offset: usize) -> *mut u8;

    /// Returns the number of bytes.
    fn len(&self) -> u32;

    /// Logs a write of `len` bytes at `offset`.
    fn mark(&self, mem: &GuestMemory, offset: usize, len: usize);

    /// Returns the 16-bit field at `at`.
    ///
    /// # Safety
    /// `at + 2 <= len`, `at` is even, and the memory that resolved the area is alive.
    #[inline(always)]
    unsafe fn u16(&self, at: usize) -> &AtomicU16 {
        debug_assert!(at + 2 <= self.len() as usize && at.is_multiple_of(2));
        // SAFETY: the caller keeps `at` inside the area, which was found mapped and aligned.
        unsafe { AtomicU16::from_ptr(self.at(at).cast()) }
    }

    /// Returns the 32-bit field at `at`.
    ///
    /// # Safety
    /// `at + 4 <= len`, `at` and the area are multiples of 4, and the memory is alive.
    #[inline(always)]
    unsafe fn u32(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at + 4 <= self.len() as usize && at.is_multiple_of(4));
        // SAFETY: the caller keeps `at` inside the area, which was found mapped and aligned.
        unsafe { AtomicU32::from_ptr(self.at(at).cast()) }
    }

    /// Returns the 32-bit fields at `at` and behind that, which may be on another page.
    ///
    /// # Safety
    /// `at + 8 <= len`, `at` and the area are multiples of 4, and the memory is alive.
    #[inline(always)]
    unsafe fn u32_pair(&self, at: usize) -> [&AtomicU32; 2] {
        // SAFETY: the caller keeps both inside the area.
        unsafe { [self.u32(at), self.u32(at + 4)] }
    }

    /// Returns the 64-bit field at `at`.
    ///
    /// # Safety
    /// `at + 8 <= len`, `at` and the area are multiples of 8, and the memory is alive.
    #[inline(always)]
    unsafe fn u64(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + 8 <= self.len() as usize && at.is_multiple_of(8));
        // SAFETY: the caller keeps `at` inside the area, which was found mapped and aligned.
        unsafe { AtomicU64::from_ptr(self.at(at).cast()) }
    }

    /// Returns the two words of the descriptor at `at`, which lies in one page.
    ///
    /// # Safety
    /// `at + 16 <= len`, `at` and the area are multiples of 16, and the memory is alive.
    #[inline(always)]
    unsafe fn words(&self, at: usize) -> &[AtomicU64; 2] {
        debug_assert!(at + 16 <= self.len() as usize && at.is_multiple_of(16));
        // SAFETY: the caller keeps `at` inside the area, which was found mapped and aligned. Two
        // atomics have the layout of two words.
        unsafe { &*self.at(at).cast() }
    }

    /// Returns the address of the byte at `at`, which may lie behind the area, for a prefetch.
    fn line_of(&self, at: usize) -> *const u8;
}

/// An area that is one contiguous piece of guest memory.
#[derive(Clone, Copy, Debug)]
pub struct FlatArea {
    pub(super) ptr: *mut u8,
    pub(super) gpa: u64,
    pub(super) len: u32,
}

// SAFETY: it is an address; every access goes through the unsafe methods of `Area`, whose callers
// hold the GuestMemory that keeps the address mapped.
unsafe impl Send for FlatArea {}

impl FlatArea {
    /// Resolves `len` bytes at `gpa`, aligned to `align` here as in the guest.
    pub(super) fn resolve(
        mem: &GuestMemory,
        gpa: u64,
        len: u32,
        align: usize,
    ) -> Result<Self, QueueFault> {
        let piece = mem.translate(gpa, len).ok_or(QueueFault::UnmappedRing)?;
        if !piece.ptr.addr().is_multiple_of(align) || !gpa.is_multiple_of(align as u64) {
            return Err(QueueFault::Misaligned);
        }
        Ok(Self {
            ptr: piece.ptr,
            gpa,
            len,
        })
    }
}

impl Area for FlatArea {
    type View<'a> = Self;

    #[inline(always)]
    fn view(&self) -> Self {
        *self
    }

    #[inline(always)]
    fn flat(&self) -> Option<Self> {
        Some(*self)
    }

    #[inline(always)]
    unsafe fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: this function's contract has the same requirements.
        unsafe { self.ptr.add(offset) }
    }

    #[inline(always)]
    fn line_of(&self, at: usize) -> *const u8 {
        self.ptr.wrapping_add(at)
    }

    #[inline(always)]
    fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    fn mark(&self, mem: &GuestMemory, offset: usize, len: usize) {
        mem.mark_dirty(self.gpa + offset as u64, len as u64);
    }
}

/// Fetches the 16 bytes of a descriptor once, at any alignment, as two little-endian words.
/// Indirect tables need not be aligned.
///
/// # Safety
/// 16 bytes at `ptr` are mapped.
pub(super) unsafe fn fetch_words(ptr: *mut u8) -> (u64, u64) {
    if ptr.addr().is_multiple_of(8) {
        // SAFETY: the caller guarantees that 16 bytes are mapped; both words are aligned.
        let (a, b) = unsafe {
            (
                AtomicU64::from_ptr(ptr.cast()),
                AtomicU64::from_ptr(ptr.add(8).cast()),
            )
        };
        return (
            u64::from_le(a.load(Ordering::Relaxed)),
            u64::from_le(b.load(Ordering::Relaxed)),
        );
    }
    let mut words = [0u64; 2];
    for (i, word) in words.iter_mut().enumerate() {
        let mut bytes = [0u8; 8];
        for (j, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: i * 8 + j < 16, mapped by the caller's contract; bytes are always aligned.
            *byte = unsafe { AtomicU8::from_ptr(ptr.add(i * 8 + j)) }.load(Ordering::Relaxed);
        }
        *word = u64::from_le_bytes(bytes);
    }
    (words[0], words[1])
}
