//! Hash index of the flows: sets of one cache line, compared tag by tag.
//!
//! The index grows by linear hashing (Litwin, 1980): one set at a time is split in two, so that
//! memory follows the number of flows and no installation moves more than one set.

use super::cache::prefetch;

/// Flows in a set: four times the average of a full table, so that the chance of an overflow is one
/// in a million.
pub(super) const WAYS: usize = 16;
/// Average flows per set at which the index grows.
const GROW_AT: usize = 2;
/// Average flows per set of a full table.
const FLOWS_PER_SET: usize = 4;
/// Sets at first: one page.
const FIRST_SETS: usize = 64;

/// Bits of a way for the slot; those above are the tag, which is never 0.
pub(super) const SLOT_BITS: u32 = 20;
const TAG_BITS: u32 = u32::BITS - SLOT_BITS;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
/// Slots that a way can name.
pub(super) const MAX_SLOTS: usize = 1 << SLOT_BITS;

/// Tags and slots of up to [`WAYS`] flows; 0 is an empty way.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct Set([u32; WAYS]);

/// Ways of a set, one bit each.
#[derive(Clone, Copy)]
struct Ways(u32);

impl Iterator for Ways {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let way = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(way)
    }
}

impl Set {
    /// Returns the ways that hold `tag`.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn with_tag(&self, tag: u32) -> Ways {
        use std::arch::x86_64::*;
        // SAFETY: every x86-64 processor has SSE2, and the four loads of 16 bytes are the set,
        // which is aligned to 64.
        unsafe {
            let (tags, tag) = (
                _mm_set1_epi32(!SLOT_MASK as i32),
                _mm_set1_epi32(tag as i32),
            );
            let quarter = |n: usize| {
                let words = _mm_load_si128(self.0.as_ptr().add(4 * n).cast());
                _mm_cmpeq_epi32(_mm_and_si128(words, tags), tag)
            };
            let low = _mm_packs_epi32(quarter(0), quarter(1));
            let high = _mm_packs_epi32(quarter(2), quarter(3));
            Ways(_mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32)
        }
    }

    /// Returns the ways that hold `tag`.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    fn with_tag(&self, tag: u32) -> Ways {
        let words = self.0.iter().enumerate();
        Ways(words.fold(0, |ways, (way, word)| {
            ways | u32::from(word & !SLOT_MASK == tag) << way
        }))
    }

    fn slots(&self) -> impl Iterator<Item = u32> {
        let used = self.0.into_iter().filter(|word| *word != 0);
        used.map(|word| word & SLOT_MASK)
    }
}

/// Index of the flows; see the module.
#[derive(Debug)]
pub(super) struct Index {
    /// Sets. Capacity is reserved at the start; untouched memory is not allocated.
    sets: Vec<Set>,
    most: usize,
    /// Mask of the smallest power of two that is not below the number of sets.
    wide: usize,
}

/// Returns the tag of a hash, in its position: from the top bits; sets are chosen from the bottom.
#[inline]
fn tag_of(hash: u64) -> u32 {
    ((hash >> (64 - TAG_BITS)) as u32).max(1) << SLOT_BITS
}

impl Index {
    /// Returns an index for `flows` flows.
    pub(super) fn new(flows: usize) -> Self {
        let most = (flows / FLOWS_PER_SET).next_power_of_two();
        let mut sets = Vec::with_capacity(most);
        sets.resize(most.min(FIRST_SETS), Set::default());
        super::cache::advise_huge_pages(&sets);
        let wide = sets.len() - 1;
        Self { sets, most, wide }
    }

    /// Returns the set of a hash: by the mask, or by half of it if that set does not exist yet.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        let set = hash as usize & self.wide;
        if set < self.sets.len() {
            set
        } else {
            set & (self.wide >> 1)
        }
    }

    /// Prefetches the set of a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(&self.sets[self.home(hash)]);
    }

    /// Returns the slots that may hold the flow of this hash.
    #[inline]
    pub(super) fn candidates(&self, hash: u64) -> impl Iterator<Item = u32> {
        let set = &self.sets[self.home(hash)];
        set.with_tag(tag_of(hash)).map(|way| set.0[way] & SLOT_MASK)
    }

    /// Returns whether the set of this hash is full.
    pub(super) fn is_full_at(&self, hash: u64) -> bool {
        !self.sets[self.home(hash)].0.contains(&0)
    }

    /// Returns the slots in the set that is `further` behind that of a hash.
    pub(super) fn neighbours(&self, hash: u64, further: usize) -> impl Iterator<Item = u32> {
        self.sets[(self.home(hash) + further) % self.sets.len()].slots()
    }

    /// Adds a flow, for which there is room. `flows` is their number after that; `hash_of` returns
    /// the hash of each.
    pub(super) fn insert(
        &mut self,
        hash: u64,
        slot: u32,
        flows: usize,
        hash_of: impl Fn(u32) -> u64,
    ) {
        self.put(hash, slot);
        if flows > GROW_AT * self.sets.len() && self.sets.len() < self.most {
            self.split(hash_of);
        }
    }

    fn put(&mut self, hash: u64, slot: u32) {
        let home = self.home(hash);
        if let Some(way) = self.sets[home].0.iter_mut().find(|word| **word == 0) {
            *way = tag_of(hash) | slot;
        }
    }

    /// Adds a set and moves the flows that belong to it, all from one set.
    fn split(&mut self, hash_of: impl Fn(u32) -> u64) {
        let new = self.sets.len();
        let from = new & !(1 << new.ilog2());
        self.sets.push(Set::default());
        self.wide |= new;
        for slot in std::mem::take(&mut self.sets[from]).slots() {
            self.put(hash_of(slot), slot);
        }
    }

    /// Removes a flow.
    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        let home = self.home(hash);
        let word = tag_of(hash) | slot;
        if let Some(way) = self.sets[home].0.iter_mut().find(|way| **way == word) {
            *way = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(n: u64) -> u64 {
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes()
    }

    #[test]
    fn growing_loses_nothing() {
        let mut index = Index::new(1 << 16);
        for n in 0..10_000u32 {
            assert!(!index.is_full_at(spread(n.into())));
            let flows = n as usize + 1;
            index.insert(spread(n.into()), n, flows, |slot| spread(slot.into()));
            let back = n / 2;
            assert!(index.candidates(spread(back.into())).any(|s| s == back));
        }
        assert_eq!(index.sets.len(), 10_000 / GROW_AT);
        for n in 0..10_000u32 {
            assert!(index.candidates(spread(n.into())).any(|s| s == n));
            index.remove(spread(n.into()), n);
            assert!(index.candidates(spread(n.into())).all(|s| s != n));
        }
        assert!(index.sets.iter().all(|set| set.0 == [0; WAYS]));
    }

    #[test]
    fn a_tag_is_never_nothing() {
        assert_eq!(tag_of(0), 1 << SLOT_BITS);
        assert_eq!(tag_of(u64::MAX), !SLOT_MASK);
        assert_eq!(tag_of(5 << 52), 5 << SLOT_BITS);
    }
}
