//! Hints to the machine about memory that will be needed.

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
