//! The table of mappings: a signal handler reads it while any thread enters and leaves, so it is
//! lock-free.
//!
//! A slot is a seqlock. A read counts only when the version was even and the same before and after:
//! base and length then belong together. The handler needs no more, because the mapping that it
//! looks for is in use, and so in the table, all the while; a slot that changes meanwhile is
//! another mapping's.

use super::sync::{AtomicBool, AtomicUsize, Ordering, fence};

/// Base address of a free slot.
const FREE: usize = 0;
/// Base address of a slot that is claimed.
const CLAIMED: usize = 1;

/// Place of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// First address, a multiple of `block`.
    pub(crate) base: usize,
    /// Bytes, a multiple of `block`.
    pub(crate) len: usize,
    /// Bytes that can be mapped anew alone: a page, or a huge page.
    pub(crate) block: usize,
}

impl Place {
    fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.len
    }
}

/// Slot for a mapping. All zero: free.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Odd while the others change.
    pub(crate) version: AtomicUsize,
    pub(crate) base: AtomicUsize,
    pub(crate) len: AtomicUsize,
    pub(crate) block: AtomicUsize,
    /// The file was truncated under the mapping.
    pub(crate) lost: AtomicBool,
    /// The whole mapping is replaced by dummy pages.
    pub(crate) replaced: AtomicBool,
}

impl Slot {
    fn claim(&self) -> bool {
        let claim = self
            .base
            .compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
        claim.is_ok()
    }

    /// Changes the slot. One thread at a time: the one that has claimed it.
    fn change(&self, to: Place) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.base.store(to.base, Ordering::Relaxed);
        self.len.store(to.len, Ordering::Relaxed);
        self.block.store(to.block, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// Frees the slot.
    pub(crate) fn release(&self) {
        self.change(Place {
            base: CLAIMED,
            len: 0,
            block: 0,
        });
        self.base.store(FREE, Ordering::Release);
    }

    /// Returns the mapping that is in the slot, unless it changes at this moment.
    fn read(&self) -> Option<Place> {
        let before = self.version.load(Ordering::Acquire);
        let place = Place {
            base: self.base.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            block: self.block.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        let same = self.version.load(Ordering::Relaxed) == before;
        (same && before.is_multiple_of(2) && place.base > CLAIMED).then_some(place)
    }
}

/// Enters a mapping into the first free slot; `None` when there is none.
pub(crate) fn enter(slots: &[Slot], place: Place) -> Option<usize> {
    let index = slots.iter().position(Slot::claim)?;
    let slot = &slots[index];
    slot.lost.store(false, Ordering::Relaxed);
    slot.replaced.store(false, Ordering::Relaxed);
    slot.change(place);
    Some(index)
}

/// Returns the slot and the place of the mapping that contains `address`.
pub(crate) fn find(slots: &[Slot], address: usize) -> Option<(&Slot, Place)> {
    let mut places = slots.iter().map(|slot| (slot, slot.read()));
    places.find_map(|(slot, place)| Some((slot, place.filter(|p| p.contains(address))?)))
}
