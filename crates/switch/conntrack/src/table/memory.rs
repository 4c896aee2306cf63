//! The memory of the table: parts of one mapping. All unsafe code of the crate is here.
//!
//! Every part is an array of items that are made of atomics alone. So another process that writes
//! to them, as a broken one may, produces odd numbers and no data race; and no reference into the
//! memory is to anything else.

use std::ptr::NonNull;
use std::sync::Arc;

use mapping::Mapping;

use super::account::PortAccounts;
use super::entry::{Entry, SideLine};
use super::sync::{AtomicU32, AtomicU64};

/// Words in a cache line, which is a set of the index.
pub(crate) const LINE: usize = 8;

/// Content of shared memory.
///
/// # Safety
/// The type consists of atomics alone and has no padding, so that every pattern of bits is valid
/// and other processes may write at any time. Its alignment is not greater than a cache line's.
pub(crate) unsafe trait AtomicContent {}

// SAFETY: an atomic.
unsafe impl AtomicContent for AtomicU64 {}
// SAFETY: an atomic.
unsafe impl AtomicContent for AtomicU32 {}

/// One cache line of words.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Line(pub(crate) [AtomicU64; LINE]);

// SAFETY: atomics alone, in a whole cache line.
unsafe impl AtomicContent for Line {}
// SAFETY: atomics alone, in a whole cache line.
unsafe impl AtomicContent for SideLine {}
const _: () = assert!(size_of::<SideLine>() == 64);
// SAFETY: atomics alone, in three whole cache lines.
unsafe impl AtomicContent for Entry {}
// SAFETY: atomics alone, in a whole cache line.
unsafe impl AtomicContent for PortAccounts {}
const _: () = assert!(size_of::<PortAccounts>() == 64);
const _: () = assert!(size_of::<Line>() == 64 && size_of::<Entry>() == 192);

/// An array in the memory; it keeps the mapping alive.
#[derive(Debug)]
pub(crate) struct Part<T: AtomicContent> {
    base: NonNull<T>,
    count: usize,
    _owner: Arc<Mapping>,
}

// SAFETY: items are made of atomics, which any thread may use, and `_owner`, which is Send and
// Sync itself, keeps them mapped.
unsafe impl<T: AtomicContent> Send for Part<T> {}
// SAFETY: as above.
unsafe impl<T: AtomicContent> Sync for Part<T> {}

impl<T: AtomicContent> Part<T> {
    /// Returns `count` items at a position in the mapping, in bytes; `None` if they do not lie in
    /// it as whole items.
    pub(crate) fn new(mapping: &Arc<Mapping>, at: usize, count: usize) -> Option<Self> {
        let bytes = count.checked_mul(size_of::<T>())?;
        let end = at.checked_add(bytes)?;
        let base = NonNull::new(mapping.as_ptr().wrapping_add(at).cast::<T>())?;
        (end <= mapping.len() && base.is_aligned() && count > 0).then(|| Self {
            base,
            count,
            _owner: Arc::clone(mapping),
        })
    }

    /// The number of items.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns an item.
    #[inline(always)]
    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        // SAFETY: `new` has checked that all items lie, aligned, in the mapping, which `_owner`
        // keeps alive; an item consists of atomics.
        (at < self.count).then(|| unsafe { self.base.add(at).as_ref() })
    }

    /// Returns the item that a number falls on, of a number of items that is a power of two.
    #[inline(always)]
    pub(crate) fn at_hash(&self, hash: u64) -> &T {
        debug_assert!(self.count.is_power_of_two());
        let at = hash as usize & (self.count - 1);
        // SAFETY: `at` is not greater than `count - 1`, and there is an item; else as in `get`.
        unsafe { self.base.add(at).as_ref() }
    }

    /// All items.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        // SAFETY: as in `get`, for each of them.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }.iter()
    }
}

/// Prefetches the cache line of an item.
#[inline(always)]
pub(crate) fn prefetch<T: AtomicContent>(item: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and never faults; the reference is valid anyway.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = item;
}
