//! Memory of our own that outlives this process and records the position of a packed queue.
//!
//! A split queue's used index lies in guest memory, and chains are used in the order in which they
//! were taken: the successor of a process that died continues at the used index. A packed ring
//! shows neither the position of the device nor, once elements are staged in it, the driver's
//! descriptors. Both are recorded here:
//!
//! ```text
//! 0          cursors u64: the used position before the last batch (bits 0..16), behind it
//!            (16..32), and the number of the queue's start (32..64)
//! 64 + 8 i   what slot i held before a staged element went there: len u32, id u16, flags u16
//! ```
//!
//! ```text
//! stage      keep the slot's word, then write the element            (all but the batch's first)
//! publish    write the cursors, then the first element with its flags: one store, which
//!            publishes the batch
//! resume     slot at the first cursor still available: the batch was never seen; else it was.
//!            Elements staged behind the position are undone; all from there on is taken again.
//! ```
//!
//! Only this process and its successor have this memory. The ring that it is compared with is the
//! guest's, so a guest that lies gets wrong positions in its own ring, and nothing else: taken
//! chains are checked as usual.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mapping::{Mapping, MappingError};

use super::area::alive;
use super::packed::cursor::Cursor;
use super::{MAX_SIZE, QueueFault};

const AT_SLOTS: usize = 64;
/// Bytes of one queue's part: whole pages, so that queues that do not run take no memory.
const PART: u64 = 36 << 10;
const _: () =
    assert!(AT_SLOTS + 8 * MAX_SIZE as usize <= PART as usize && MAX_SIZE.is_power_of_two());

/// The memory of all queues of one device.
#[derive(Debug)]
pub struct JournalRegion {
    mapping: Mapping,
}

impl JournalRegion {
    /// Returns the number of bytes that so many queues need.
    #[must_use]
    pub fn size(queues: u16) -> u64 {
        PART * u64::from(queues)
    }

    /// Maps the parts of so many queues from a file.
    ///
    /// # Errors
    /// No queues, or a file that is too short or none of memory.
    pub fn map(fd: &OwnedFd, queues: u16) -> Result<Self, MappingError> {
        let mapping = Mapping::shared(fd, Self::size(queues), 0)?;
        Ok(Self { mapping })
    }

    /// Zeroed memory on the heap, for tests.
    ///
    /// # Panics
    /// Without queues.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn heap(queues: u16) -> Self {
        let mapping = Mapping::heap(Self::size(queues));
        Self { mapping }
    }

    /// Returns the number of the start of queue `index` that its part belongs to; 0 when it never
    /// started.
    #[must_use]
    pub fn last_start(self: &Arc<Self>, index: u16) -> u32 {
        let part = Journal::new(Arc::clone(self), index, 0);
        part.map_or(0, |part| part.start_of(part.cursors()))
    }
}

/// One queue's part of a [`JournalRegion`].
#[derive(Clone, Debug)]
pub struct Journal {
    /// The part's first byte: PART bytes from here on are the region's.
    base: NonNull<u8>,
    /// The number of the queue's start, at its place in the cursors' word.
    start: u64,
    /// Keeps the memory mapped.
    _region: Arc<JournalRegion>,
}

// SAFETY: `base` is an address in the region, which may be shared and sent; what is there is only
// reached as atomics.
unsafe impl Send for Journal {}
// SAFETY: as above.
unsafe impl Sync for Journal {}

impl Journal {
    /// Returns the part of queue `index`, if the region has one. `start` numbers the starts of the
    /// queue, from 1 on: a position of another start is not valid for this one.
    #[must_use]
    pub fn new(region: Arc<JournalRegion>, index: u16, start: u32) -> Option<Self> {
        let offset = PART as usize * usize::from(index);
        if offset + PART as usize > region.mapping.len() {
            return None;
        }
        Some(Self {
            base: NonNull::new(region.mapping.as_ptr().wrapping_add(offset))?,
            start: u64::from(start) << 32,
            _region: region,
        })
    }

    fn cursors(&self) -> u64 {
        self.word(0).load(Ordering::Acquire)
    }

    fn start_of(&self, cursors: u64) -> u32 {
        (cursors >> 32) as u32
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        let word = self.base.as_ptr().wrapping_add(at);
        // SAFETY: both callers stay below PART, which `new` found inside the mapping; parts start
        // on pages and `at` is a multiple of 8; the mapping lives as long as `self._region`.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }

    /// Returns the word of a slot. Every `u16` is in bounds.
    #[inline(always)]
    fn slot(&self, at: u16) -> &AtomicU64 {
        self.word(AT_SLOTS + 8 * usize::from(at & (MAX_SIZE - 1)))
    }

    // A process that dies leaves its stores in the order in which they were made. `moves` must come
    // after the batch before it, so it is a release; a kept word must only come before the store
    // that overwrites it, which is a release.

    /// Saves the word of slot `at`, which is about to be overwritten.
    #[inline(always)]
    pub(super) fn keep(&self, at: u16, word: u64) {
        if alive() {
            self.slot(at).store(word, Ordering::Relaxed);
        }
    }

    /// Returns the saved word of slot `at`.
    pub(super) fn kept(&self, at: u16) -> u64 {
        self.slot(at).load(Ordering::Acquire)
    }

    /// Records that a batch is about to become visible that moves the used position from `from` to
    /// `to`; equal positions record that the queue stands there.
    #[inline(always)]
    pub(super) fn moves(&self, from: Cursor, to: Cursor) {
        let word = u64::from(from.bits()) | u64::from(to.bits()) << 16 | self.start;
        if alive() {
            self.word(0).store(word, Ordering::Release);
        }
    }

    /// Returns the last movement, or `None` when this start of the queue has not published yet.
    ///
    /// # Errors
    /// Positions that a queue of this size does not have.
    pub(super) fn last_move(&self, size: u16) -> Result<Option<(Cursor, Cursor)>, QueueFault> {
        let word = self.cursors();
        if word == 0 || self.start_of(word) != self.start_of(self.start) {
            return Ok(None);
        }
        let from = Cursor::from_bits(word as u16);
        let to = Cursor::from_bits((word >> 16) as u16);
        if from.index >= size || to.index >= size {
            return Err(QueueFault::InflightCorrupt);
        }
        Ok(Some((from, to)))
    }
}

#[cfg(test)]
mod tests;
