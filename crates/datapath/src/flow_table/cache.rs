//! Memory in cache lines, and hints to the machine about what will be needed of it.

/// Asks for the cache line of `at`; it comes while other work is done.
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

/// What stays in small pages: a switch with few flows needs no more memory than they do.
const SMALL: usize = 2 << 20;

/// Asks for huge pages for the reserved memory behind the first 2 MiB: over millions of flows a core
/// would look for pages longer than for flows. A system without them changes nothing.
pub(super) fn want_huge_pages<T>(reserved: &Vec<T>) {
    let len = reserved.capacity() * size_of::<T>();
    let start = (reserved.as_ptr().addr() + SMALL).next_multiple_of(SMALL);
    let Some(rest) = (reserved.as_ptr().addr() + len).checked_sub(start) else {
        return;
    };
    let at = reserved.as_ptr().with_addr(start).cast_mut().cast();
    let pages = rest & !(SMALL - 1);
    // SAFETY: the range lies within the vector's own allocation, which the caller keeps for the table's
    // life, and the advice changes neither its content nor whether it is mapped.
    let _ = unsafe { rustix::mm::madvise(at, pages, rustix::mm::Advice::LinuxHugepage) };
}

/// Words in a cache line.
pub(super) const LINE: usize = 8;

/// Cache lines of zeroes at first, which cost nothing before they are used.
#[derive(Debug)]
pub(super) struct Lines {
    /// The lines, after a few unused words that bring the first to its place: memory that comes zeroed from
    /// the system cannot be had aligned.
    words: Vec<u64>,
    first: usize,
}

impl Lines {
    pub(super) fn new(lines: usize) -> Self {
        let words = vec![0; (lines + 1) * LINE];
        want_huge_pages(&words);
        let start = words.as_ptr().addr();
        let unused = start.next_multiple_of(LINE * size_of::<u64>()) - start;
        let first = unused / size_of::<u64>();
        Self { words, first }
    }

    /// # Panics
    /// When there is no such line.
    #[inline]
    pub(super) fn get(&self, line: usize) -> &[u64; LINE] {
        let words = self.words[self.first + line * LINE..].first_chunk();
        words.expect("a line behind the last")
    }

    /// # Panics
    /// When there is no such line.
    #[inline]
    pub(super) fn get_mut(&mut self, line: usize) -> &mut [u64; LINE] {
        let words = self.words[self.first + line * LINE..].first_chunk_mut();
        words.expect("a line behind the last")
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }
}
