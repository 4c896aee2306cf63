//! The memory of a ring: an array of 64-bit atomic words. All unsafe code of the crate is here.

use crate::sync::AtomicU64;

#[cfg(not(loom))]
mod real {
    use std::any::Any;
    use std::fmt;
    use std::ptr::NonNull;
    use std::sync::Arc;

    use super::AtomicU64;
    use crate::fault::SetupError;

    /// A piece of memory that both ends of a ring map. Clones share it.
    #[derive(Clone)]
    pub struct RingMemory {
        words: NonNull<AtomicU64>,
        count: usize,
        /// Keeps the words alive; dropped with the last clone.
        _owner: Arc<dyn Any + Send + Sync>,
    }

    // SAFETY: the words are atomics, which any thread may use, and `_owner`, itself Send and
    // Sync, keeps them alive as long as any clone exists (`heap` and the caller of `from_raw`
    // uphold that).
    unsafe impl Send for RingMemory {}
    // SAFETY: as for Send; `&RingMemory` gives out nothing but `&AtomicU64`.
    unsafe impl Sync for RingMemory {}

    impl RingMemory {
        /// Returns zeroed memory of `len` bytes (rounded up to whole words) on the heap, for tests
        /// and for two ends in one process.
        pub fn heap(len: usize) -> Self {
            let owner: Arc<Vec<AtomicU64>> =
                Arc::new((0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect());
            // An empty Vec's pointer is dangling but aligned, and count 0 allows no access.
            let words = NonNull::from(owner.as_slice()).cast();
            Self {
                words,
                count: owner.len(),
                _owner: owner,
            }
        }

        /// Wraps shared memory of `len` bytes at `ptr`; `owner` unmaps it when dropped.
        ///
        /// # Errors
        ///
        /// [`SetupError::Misaligned`] when `ptr` is null or no multiple of 8.
        ///
        /// # Safety
        ///
        /// `ptr..ptr + len` stays mapped, readable and writable until `owner` is dropped, and
        /// cannot lose its backing (a memory file is sealed against shrinking). In this process it
        /// is accessed only through atomics or ring ends; another process may access it in any way.
        pub unsafe fn from_raw(
            ptr: *mut u8,
            len: usize,
            owner: Arc<dyn Any + Send + Sync>,
        ) -> Result<Self, SetupError> {
            let words = NonNull::new(ptr.cast::<AtomicU64>()).ok_or(SetupError::Misaligned)?;
            if !words.is_aligned() {
                return Err(SetupError::Misaligned);
            }
            Ok(Self {
                words,
                count: len / 8,
                _owner: owner,
            })
        }

        /// Returns the usable length in bytes, a multiple of 8.
        pub fn len(&self) -> usize {
            self.count * 8
        }

        /// Returns whether there is no usable word.
        pub fn is_empty(&self) -> bool {
            self.count == 0
        }

        /// Returns the word at `index`. Panics beyond the end; the ends of a ring compute indices
        /// that their setup has checked against the length.
        pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
            assert!(index < self.count, "ring word {index} of {}", self.count);
            // SAFETY: index < count, and `_owner` keeps `count` aligned words mapped while
            // `self` lives: `heap` by holding the Vec, `from_raw` by its contract. The
            // other process may write to an atomic, see the crate's section on trust.
            unsafe { self.words.add(index).as_ref() }
        }

        /// Returns `count` words from the one at `first`. Panics beyond the end, as
        /// [`RingMemory::word`].
        pub(crate) fn words(&self, first: usize, count: usize) -> &[AtomicU64] {
            let end = first.checked_add(count);
            assert!(
                end.is_some_and(|end| end <= self.count),
                "{count} ring words at {first} of {}",
                self.count
            );
            // SAFETY: as in `word`, for each of them; they lie side by side in one piece of memory.
            unsafe { std::slice::from_raw_parts(self.words.as_ptr().add(first), count) }
        }
    }

    impl fmt::Debug for RingMemory {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("RingMemory")
                .field("len", &self.len())
                .finish_non_exhaustive()
        }
    }
}

#[cfg(loom)]
mod model {
    use super::AtomicU64;
    use std::sync::Arc;

    /// Words of loom's model, in place of shared memory.
    #[derive(Clone, Debug)]
    pub struct RingMemory(Arc<Vec<AtomicU64>>);

    impl RingMemory {
        /// Returns zeroed memory of `len` bytes.
        pub fn heap(len: usize) -> Self {
            Self(Arc::new(
                (0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect(),
            ))
        }

        /// Returns the length in bytes.
        pub fn len(&self) -> usize {
            self.0.len() * 8
        }

        /// Returns whether there is no usable word.
        pub fn is_empty(&self) -> bool {
            self.0.is_empty()
        }

        /// Returns the word at `index`.
        pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
            &self.0[index]
        }

        /// Returns `count` words from the one at `first`.
        pub(crate) fn words(&self, first: usize, count: usize) -> &[AtomicU64] {
            &self.0[first..first + count]
        }
    }
}

#[cfg(loom)]
pub use model::RingMemory;
#[cfg(not(loom))]
pub use real::RingMemory;
