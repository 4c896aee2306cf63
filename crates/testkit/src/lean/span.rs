//! A piece of guest memory with cheap, checked access to its fields.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use crate::guest_ram::GuestRam;

/// Bytes at a fixed guest address, aligned to a cache line at least.
#[derive(Clone, Debug)]
pub(super) struct Span {
    ptr: *mut u8,
    len: usize,
    gpa: u64,
    /// Keeps the mapping that `ptr` points into.
    _ram: GuestRam,
}

// SAFETY: the memory is a shared mapping kept by `_ram`, which is `Send`, and is accessed through atomics
// only, so that no thread depends on where another one is.
unsafe impl Send for Span {}

macro_rules! field {
    ($name:ident, $atomic:ty) => {
        /// The field at byte `at`.
        ///
        /// # Panics
        /// When it lies outside or is not aligned.
        #[inline(always)]
        pub(super) fn $name(&self, at: usize) -> &$atomic {
            const SIZE: usize = size_of::<$atomic>();
            assert!(at < self.len && at.is_multiple_of(SIZE), "a field inside");
            // SAFETY: `new` made `ptr` aligned to 64, `len` a multiple of 64 and all of it mapped for as
            // long as `_ram` lives; `at` is below `len` and aligned, so the whole field is inside.
            unsafe { <$atomic>::from_ptr(self.ptr.add(at).cast()) }
        }
    };
}

impl Span {
    /// Zeroed memory of at least `len` bytes, aligned to a page when large, so that it is mapped before it
    /// is used.
    ///
    /// # Panics
    /// When guest memory is exhausted.
    pub(super) fn new(ram: &GuestRam, len: usize) -> Self {
        let len = len.next_multiple_of(64);
        let gpa = ram.alloc(len as u64, if len < 4096 { 128 } else { 4096 });
        ram.fill(gpa, len, 0);
        Self {
            ptr: ram.ptr(gpa, len as u64),
            len,
            gpa,
            _ram: ram.clone(),
        }
    }

    /// Guest-physical address.
    pub(super) fn gpa(&self) -> u64 {
        self.gpa
    }

    field!(u16, AtomicU16);
    field!(u32, AtomicU32);
    field!(u64, AtomicU64);
}
