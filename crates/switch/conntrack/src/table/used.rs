//! Bitmap of the entries in use: those that threads have claimed or filled, and those that wait
//! for their reuse.

use super::memory::Part;
use super::sync::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed, Release},
};

/// Entries in a word.
pub(crate) const BITS: u32 = u64::BITS;
/// Words that one claim looks at: 4096 are 256 k entries.
const WORDS_TO_SEARCH: usize = 4096;

/// The bitmap; see the module.
#[derive(Debug)]
pub(crate) struct UseBitmap {
    words: Part<AtomicU64>,
    /// Number of bits that are set.
    taken: AtomicU64,
    /// A word before which there is likely no free entry: low entries are used first, so that a
    /// table with few connections touches little memory.
    from: AtomicU64,
}

impl UseBitmap {
    /// The bitmap without an entry in use.
    pub(crate) fn cleared(words: Part<AtomicU64>) -> Self {
        words.iter().for_each(|word| word.store(0, Relaxed));
        Self {
            words,
            taken: AtomicU64::new(0),
            from: AtomicU64::new(0),
        }
    }

    /// Number of entries in use.
    #[inline]
    pub(crate) fn taken(&self) -> u32 {
        self.taken.load(Relaxed) as u32
    }

    /// Number of words.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// The bits of a word.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> u64 {
        self.words.get(at).map_or(0, |word| word.load(Relaxed))
    }

    /// Claims entries of one word, the lowest that are free. Returns the word's
    /// position and their bits; none where all words that it looks at are full.
    pub(crate) fn claim(&self, entries: u32) -> (usize, u64) {
        let len = self.words.len();
        let from = self.from.load(Relaxed) as usize % len;
        for ahead in 0..len.min(WORDS_TO_SEARCH) {
            let at = (from + ahead) % len;
            let Some(word) = self.words.get(at) else {
                continue;
            };
            let bits = lowest(!word.load(Relaxed), entries);
            if bits == 0 {
                continue;
            }
            let claimed = bits & !word.fetch_or(bits, AcqRel);
            if claimed != 0 {
                self.from.store(at as u64, Relaxed);
                self.taken.fetch_add(claimed.count_ones().into(), Relaxed);
                return (at, claimed);
            }
        }
        let next = (from + WORDS_TO_SEARCH) % len;
        self.from.store(next as u64, Relaxed);
        (0, 0)
    }

    /// Marks one entry; `false` when it is marked already or is none.
    pub(crate) fn mark(&self, entry: u32) -> bool {
        let Some(word) = self.words.get((entry / BITS) as usize) else {
            return false;
        };
        let bit = 1 << (entry % BITS);
        let marked = word.fetch_or(bit, AcqRel) & bit == 0;
        self.taken.fetch_add(marked.into(), Relaxed);
        marked
    }

    /// Gives an entry back.
    pub(crate) fn release(&self, entry: u32) {
        let at = entry / BITS;
        let Some(word) = self.words.get(at as usize) else {
            return;
        };
        let bit = 1 << (entry % BITS);
        if word.fetch_and(!bit, Release) & bit != 0 {
            self.taken.fetch_sub(1, Relaxed);
            self.from.fetch_min(at.into(), Relaxed);
        }
    }
}

/// The lowest bits of a word, up to a number of them.
fn lowest(mut bits: u64, count: u32) -> u64 {
    let all = bits;
    for _ in 0..count.min(BITS) {
        bits &= bits.wrapping_sub(1);
    }
    all & !bits
}
