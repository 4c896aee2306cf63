//! A slot of the table: two words that one thread writes and any thread reads, without a lock.
//!
//! ```text
//! writer                                   reader
//! check = 0                                c = check       (acquire)
//! value = new      (release)               v = value       (acquire)
//! check = key ^ v  (release)               c ^ v is the key, and check is still c: a hit
//! ```
//!
//! A reader may see words of two entries. It never takes them for one:
//!
//! * *A new check and an old value:* impossible. The check was stored with release behind its
//!   value, and is loaded with acquire in front of it.
//! * *An old check and a new value:* the value was stored with release behind the zero, and is
//!   loaded with acquire in front of the second load of the check. So that load finds the zero or
//!   something newer, and the pair is no hit.
//!
//! The second load is needed because the first comparison can be met by chance: an old check and
//! a new value look like the entry of a third key, `old key ^ old value ^ new value`. What is left
//! is a slot that is written twice between two loads of one reader, with the check that it had
//! before. Then a reader may find the value in between for that third key: a page that the same
//! guest has granted at that moment. It needs a guest that chooses its addresses for that, and it
//! reaches its own memory only.
//!
//! A writer that dies leaves its stores in their order: the old entry, nothing, or the new entry.
//! A reader that meets a slot while it changes finds nothing there, and does not try again.

use super::sync::{AtomicU64, Ordering};

/// An entry, or none. All zero: none.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Slot {
    /// The key of the entry, combined with its value by exclusive or; 0: no entry. Keys have bit 63
    /// and values have not, so neither 0 nor any value alone is a hit.
    pub(crate) check: AtomicU64,
    pub(crate) value: AtomicU64,
}

impl Slot {
    /// Returns the value of the entry with this key, if the slot has it.
    #[inline]
    pub(crate) fn find(&self, key: u64) -> Option<u64> {
        let check = self.check.load(Ordering::Acquire);
        let value = self.value.load(Ordering::Acquire);
        if check ^ value != key {
            return None;
        }
        (self.check.load(Ordering::Relaxed) == check).then_some(value)
    }

    /// Returns key and value of the entry. For the writer alone: no other thread changes the slot.
    pub(crate) fn entry(&self) -> Option<(u64, u64)> {
        let check = self.check.load(Ordering::Relaxed);
        let value = self.value.load(Ordering::Relaxed);
        (check != 0).then_some((check ^ value, value))
    }

    /// Replaces the entry. One thread at a time.
    pub(crate) fn write(&self, key: u64, value: u64) {
        self.check.store(0, Ordering::Relaxed);
        self.value.store(value, Ordering::Release);
        self.check.store(key ^ value, Ordering::Release);
    }

    /// Removes the entry. One thread at a time. A reader that has it already may still use it: the
    /// caller waits for such readers.
    pub(crate) fn clear(&self) {
        self.check.store(0, Ordering::Relaxed);
    }
}
