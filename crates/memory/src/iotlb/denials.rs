//! Pages that were asked for and that the front end does not grant: from the writer to the readers.
//!
//! ```text
//! writer                                   reader
//! word: 0 -> page and access (release)     word: page and access -> 0 (acquire)
//! answers: + 1 (release)                   answers: read (acquire), before it looks
//! ```

use std::ops::Range;

use super::sync::{AtomicU64, Ordering};
use super::{MOST_MISSES, Miss};

/// Misses without a mapping. Each is taken by one reader, which then does without that page once.
/// Where there is no room, the oldest goes: its reader misses again, and is denied again.
#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Denials {
    /// Page and access; 0: free.
    words: [AtomicU64; MOST_MISSES],
}

impl Default for Denials {
    fn default() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Denials {
    /// Puts a denial into the first free place, or into `oldest`. For the writer.
    pub(super) fn put(&self, miss: Miss, oldest: usize) {
        let words = || self.words.iter();
        let has = |at: &AtomicU64| at.load(Ordering::Relaxed) == miss.encode();
        if words().any(has) {
            return;
        }
        let free = words().position(|at| at.load(Ordering::Relaxed) == 0);
        self.words[free.unwrap_or(oldest % MOST_MISSES)].store(miss.encode(), Ordering::Release);
    }

    /// Takes a denial; returns whether it was there. Of several readers, one gets it.
    pub(super) fn take(&self, miss: Miss) -> bool {
        let word = miss.encode();
        self.words.iter().any(|at| {
            at.load(Ordering::Relaxed) == word
                && at
                    .compare_exchange(word, 0, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        })
    }

    /// Returns whether a denial is there.
    pub(super) fn has(&self, miss: Miss) -> bool {
        let word = miss.encode();
        self.words
            .iter()
            .any(|at| at.load(Ordering::Relaxed) == word)
    }

    /// Removes the denials of these pages. For the writer.
    pub(super) fn lift(&self, pages: &Range<u64>) {
        for at in &self.words {
            let word = at.load(Ordering::Relaxed);
            if Miss::decode(word).is_some_and(|miss| pages.contains(&miss.page)) {
                // A reader may take it at the same moment.
                let _ = at.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}
