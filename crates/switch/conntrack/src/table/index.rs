//! The index: sets of words that lead to entries, two sets a connection.
//!
//! A new word goes to the first set of its hash while that has several free ways, else to the
//! emptier one. So nearly all are found in the first, and with two words of room an entry no set
//! overflows but by a chance that is not met.

use super::memory::{LINE, Line, Part, prefetch};
use super::sync::Ordering::{AcqRel, Acquire, Relaxed};
use super::word::IndexWord;

/// Free ways of the first set that are left for words of other first sets: with more, the second
/// set is not looked at.
const ROOMY: usize = LINE.div_ceil(4);

/// The index; see the module.
#[derive(Debug)]
pub(crate) struct Index {
    sets: Part<Line>,
}

impl Index {
    /// The number of sets is a power of two, and not one.
    pub(crate) const fn new(sets: Part<Line>) -> Self {
        Self { sets }
    }

    /// The first set of a hash.
    #[inline(always)]
    pub(crate) fn first(&self, hash: u64) -> &Line {
        self.sets.at_hash(hash)
    }

    /// The other set of a hash, never the same.
    #[inline(always)]
    pub(crate) fn second(&self, hash: u64) -> &Line {
        let last = self.sets.len() as u64 - 1;
        let other = hash >> 20;
        let same = u64::from((other ^ hash) & last == 0);
        self.sets.at_hash(other ^ same)
    }

    /// Prefetches the first set of a hash.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(self.first(hash));
    }

    /// Returns the first word that may lead to the connection of a hash.
    #[inline(always)]
    pub(crate) fn candidate(&self, hash: u64) -> Option<IndexWord> {
        let tag = IndexWord::tag(hash);
        find(self.first(hash), tag).or_else(|| find(self.second(hash), tag))
    }

    /// All words that may lead to the connection of a hash.
    #[inline]
    pub(crate) fn candidates(&self, hash: u64) -> impl Iterator<Item = IndexWord> {
        let tag = IndexWord::tag(hash);
        self.words(hash)
            .filter(move |word| word.has(tag) && !word.is_free())
    }

    /// All words in the two sets of a hash.
    pub(crate) fn words(&self, hash: u64) -> impl Iterator<Item = IndexWord> {
        let both = [self.first(hash), self.second(hash)];
        let words = both.into_iter().flat_map(|set| &set.0);
        words.map(|way| IndexWord(way.load(Acquire)))
    }

    /// Meets all words that may lead to the connection of a hash, and maybe free ways: few are met.
    #[inline(always)]
    pub(crate) fn meet_candidates(&self, hash: u64, meet: &mut dyn FnMut(IndexWord)) {
        let tag = IndexWord::tag(hash);
        for way in &self.first(hash).0 {
            let word = IndexWord(way.load(Acquire));
            if word.has(tag) {
                meet(word);
            }
        }
        for way in &self.second(hash).0 {
            let word = IndexWord(way.load(Acquire));
            if word.has(tag) {
                meet(word);
            }
        }
    }

    /// Adds a word; `false` when both sets are full.
    pub(crate) fn add(&self, hash: u64, word: IndexWord) -> bool {
        let (first, second) = (self.first(hash), self.second(hash));
        let (preferred, other) = if is_roomy(first) || free_ways(first) >= free_ways(second) {
            (first, second)
        } else {
            (second, first)
        };
        exchange(preferred, 0, word.0) || exchange(other, 0, word.0)
    }

    /// Removes a word; its entry has another generation already. Returns whether it was there.
    pub(crate) fn remove(&self, hash: u64, word: IndexWord) -> bool {
        exchange(self.first(hash), word.0, 0) || exchange(self.second(hash), word.0, 0)
    }

    /// All sets.
    pub(crate) fn sets(&self) -> impl ExactSizeIterator<Item = &Line> {
        self.sets.iter()
    }

    /// Returns whether a set is one of a hash's two.
    pub(crate) fn is_of(&self, set: &Line, hash: u64) -> bool {
        std::ptr::eq(set, self.first(hash)) || std::ptr::eq(set, self.second(hash))
    }
}

#[inline(always)]
fn find(set: &Line, tag: u64) -> Option<IndexWord> {
    // A free way may have the tag zero; its generation, which no entry has, leads nowhere.
    for way in &set.0 {
        let word = IndexWord(way.load(Acquire));
        if word.has(tag) {
            return Some(word);
        }
    }
    None
}

/// Replaces one word of a set by another; `false` if it is not there.
#[inline(always)]
fn exchange(set: &Line, old: u64, new: u64) -> bool {
    for way in &set.0 {
        if way.load(Relaxed) == old && way.compare_exchange(old, new, AcqRel, Relaxed).is_ok() {
            return true;
        }
    }
    false
}

/// Returns whether more ways are free than are left for words of other first sets: of a set that
/// is nearly empty not all ways are looked at.
#[inline(always)]
fn is_roomy(set: &Line) -> bool {
    let mut free = 0;
    for way in &set.0 {
        free += usize::from(way.load(Relaxed) == 0);
        if free > ROOMY {
            return true;
        }
    }
    false
}

#[cold]
fn free_ways(set: &Line) -> usize {
    set.0.iter().filter(|way| way.load(Relaxed) == 0).count()
}
