//! A piece of guest memory with cheap, checked access to its fields.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use testkit::guest_ram::GuestRam;

/// Bytes at a fixed guest address, aligned to a cache line at least.
#[derive(Clone, Debug)]
pub(super) struct Span {
    ptr: *mut u8,
    len: usize,
    gpa: u64,
    /// Keeps the mapping that `ptr` points into.
    _ram: GuestRam,
}

// SAFETY: the memory is a shared mapping kept by `_ram`, which is `Send`, and is accessed through
// atomics only, so that no thread depends on where another one is.
unsafe impl Send for Span {}

// SAFETY: as above; `copy`, which goes without atomics, has its callers keep other threads away.
unsafe impl Sync for Span {}

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
            // SAFETY: `new` made `ptr` aligned to 64, `len` a multiple of 64 and all of it mapped
            // for as long as `_ram` lives; `at` is below `len` and aligned, so the whole field is
            // inside.
            unsafe { <$atomic>::from_ptr(self.ptr.add(at).cast()) }
        }
    };
}

impl Span {
    /// Zeroed memory of at least `len` bytes, aligned to a page when large, so that it is mapped
    /// before it is used.
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

    /// Writes `value` at `at` and then every 64 bytes, `count` times.
    ///
    /// # Panics
    /// When one of the places lies outside or is not aligned.
    #[inline]
    pub(super) fn set_lines(&self, at: usize, count: usize, value: u64) {
        (0..count).for_each(|line| self.u64(at + 64 * line).store(value, Relaxed));
    }

    /// Sum of the words of eight bytes that fit `len` bytes from `at` on, modulo 2^64.
    ///
    /// # Panics
    /// When they lie outside or are not aligned.
    #[inline]
    pub(super) fn sum(&self, at: usize, len: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at <= self.len && len <= self.len - at);
        let words = len / 8;
        let word = |index: usize| {
            // SAFETY: `new` made `ptr` aligned to 64 and `len` bytes mapped for as long as `_ram`
            // lives; `at` is aligned, and word `index` of `words` ends at most `len` bytes behind
            // it: checked above.
            let word = unsafe { AtomicU64::from_ptr(self.ptr.add(at + 8 * index).cast()) };
            word.load(Relaxed)
        };
        // Several sums at once: one after the other they would take longer than reading.
        let mut sums = [0u64; 4];
        for group in 0..words / 4 {
            for (lane, sum) in sums.iter_mut().enumerate() {
                *sum = sum.wrapping_add(word(4 * group + lane));
            }
        }
        let rest = (words / 4 * 4..words).map(word);
        sums.into_iter().chain(rest).fold(0, u64::wrapping_add)
    }

    /// Copies `len` bytes as `memcpy` does.
    ///
    /// # Safety
    /// The source has no other writer and the destination no other user meanwhile.
    ///
    /// # Panics
    /// When they lie outside.
    pub(super) unsafe fn copy((from, at): (&Self, usize), (to, to_at): (&Self, usize), len: usize) {
        let inside = |span: &Self, at| at <= span.len && len <= span.len - at;
        assert!(inside(from, at) && inside(to, to_at), "bytes inside");
        // SAFETY: both ranges lie inside mappings kept by `_ram` (checked above); the caller
        // ensures that they have no other user, and that they are different ones.
        unsafe { std::ptr::copy_nonoverlapping(from.ptr.add(at), to.ptr.add(to_at), len) };
    }

    field!(u16, AtomicU16);
    field!(u32, AtomicU32);
    field!(u64, AtomicU64);
}
