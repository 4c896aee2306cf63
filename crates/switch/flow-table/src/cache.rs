//! Memory in cache lines: prefetches and huge pages.

/// Prefetches the cache line of `at`.
#[inline]
pub(super) fn prefetch<T>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and never faults; the reference is valid anyway.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Advises huge pages for the reserved memory behind the first 2 MiB: with millions of flows, TLB
/// misses would cost more than the flows themselves. The first part keeps small pages, so that a
/// switch with few flows needs little memory. A kernel without huge pages ignores the advice.
pub(super) fn advise_huge_pages<T>(reserved: &Vec<T>) {
    let bytes = reserved.capacity() * size_of::<T>();
    let at = reserved.as_ptr().cast();
    // SAFETY: the range is the vector's own allocation.
    unsafe { advise_huge(at, HUGE, bytes) }
}

/// Advises huge pages for the bytes from `from` to `to` behind `start`, as far as they fill such
/// pages.
///
/// # Safety
/// The bytes from `start` to `to` are one allocation of the caller's.
unsafe fn advise_huge(start: *const u8, from: usize, to: usize) {
    let first = (start.addr() + from).next_multiple_of(HUGE);
    let Some(bytes) = (start.addr() + to).checked_sub(first) else {
        return;
    };
    let (at, bytes) = (start.with_addr(first).cast_mut(), bytes & !(HUGE - 1));
    // SAFETY: the range lies within the caller's allocation, and the advice changes neither its
    // content nor whether it is mapped.
    let _ = unsafe { rustix::mm::madvise(at.cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
}

/// Words in a cache line.
pub(super) const LINE: usize = 8;

/// Zeroed cache lines; untouched ones use no memory.
#[derive(Debug)]
pub(super) struct Lines {
    /// The lines, after some unused words that align the first one: zeroed memory from the system
    /// cannot be requested aligned.
    words: Vec<u64>,
    first: usize,
}

/// Order in which lines are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// Ascending, as flows are added.
    InTurn,
    /// Random, so that small pages would save nothing.
    Scattered,
}

impl Lines {
    pub(super) fn new(lines: usize, order: Use) -> Self {
        let bytes = lines * LINE * size_of::<u64>();
        let alignment = if bytes < HUGE {
            LINE * size_of::<u64>()
        } else {
            HUGE
        };
        let words = vec![0; (bytes + alignment) / size_of::<u64>()];
        let start = words.as_ptr().addr();
        let first = (start.next_multiple_of(alignment) - start) / size_of::<u64>();
        let small = match order {
            Use::InTurn => HUGE,
            Use::Scattered => 0,
        };
        let unused = first * size_of::<u64>();
        // SAFETY: the range is the vector's own allocation.
        unsafe { advise_huge(words.as_ptr().cast(), unused + small, unused + bytes) };
        Self { words, first }
    }

    /// Returns a line.
    ///
    /// # Panics
    /// When there is no such line.
    #[inline]
    pub(super) fn get(&self, line: usize) -> &[u64; LINE] {
        let words = self.words[self.first + line * LINE..].first_chunk();
        words.expect("a line behind the last")
    }

    /// Returns a line.
    ///
    /// # Panics
    /// When there is no such line.
    #[inline]
    pub(super) fn get_mut(&mut self, line: usize) -> &mut [u64; LINE] {
        let words = self.words[self.first + line * LINE..].first_chunk_mut();
        words.expect("a line behind the last")
    }
}
