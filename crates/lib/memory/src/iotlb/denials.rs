//! Pages that were asked for and that the front end does not grant: from the writer to the readers.
//!
//! ```text
//! writer                                   reader
//! word: 0 -> page and access (release)     word: page and access -> 0 (acquire)
//! answers: + 1 (release)                   answers: read (acquire), before it looks
//! ```

use std::ops::Range;

use super::sync::{AtomicBool, AtomicU64, Ordering};
use super::{MOST_MISSES, Miss, Need};

/// Denials for readers that wait: as many as the writer can give before any reader looks. Those
/// are of 64 open questions, 64 that wait to be asked, and 64 misses.
const MOST_NOW: usize = 3 * MOST_MISSES;
/// Denials of what readers have asked for ahead. They only save further questions.
const MOST_AHEAD: usize = MOST_MISSES;

/// Misses without a mapping. Each is taken by one reader, which then does without that page once.
/// Where there is no room, the oldest of its kind goes: its reader misses again, and is denied
/// again.
#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Denials {
    /// Page and access; 0: free. First those for readers that wait.
    words: [AtomicU64; MOST_NOW + MOST_AHEAD],
    /// There may be any.
    any: AtomicBool,
}

impl Default for Denials {
    fn default() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            any: AtomicBool::new(false),
        }
    }
}

impl Denials {
    /// Puts a denial, of which it is the `number`th of its kind, into the place of the oldest. For
    /// the writer.
    pub(super) fn put(&self, miss: Miss, need: Need, number: usize) {
        let word = miss.encode();
        // One that is there is renewed.
        self.remove(|there| there == miss);
        let at = match need {
            Need::Now => number % MOST_NOW,
            Need::Ahead => MOST_NOW + number % MOST_AHEAD,
        };
        self.words[at].store(word, Ordering::Release);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Returns the words, if there may be any denial. A reader that was notified of one finds it:
    /// the notification (`answers`) comes after it.
    fn words(&self) -> &[AtomicU64] {
        if self.any.load(Ordering::Relaxed) {
            &self.words
        } else {
            &[]
        }
    }

    /// Takes a denial; returns whether it was there. Of several readers, one gets it.
    pub(super) fn take(&self, miss: Miss) -> bool {
        let word = miss.encode();
        self.words().iter().any(|at| {
            at.load(Ordering::Relaxed) == word
                && at
                    .compare_exchange(word, 0, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        })
    }

    /// Returns whether a denial is there.
    pub(super) fn has(&self, miss: Miss) -> bool {
        let word = miss.encode();
        self.words()
            .iter()
            .any(|at| at.load(Ordering::Relaxed) == word)
    }

    /// Removes the denials of these pages. For the writer.
    pub(super) fn lift(&self, pages: &Range<u64>) {
        self.remove(|miss| pages.contains(&miss.page));
    }

    /// Removes the denials of what was asked for ahead. For the writer.
    pub(super) fn lift_ahead(&self) {
        for at in &self.words[MOST_NOW..] {
            // A reader may take it at the same moment.
            at.store(0, Ordering::Relaxed);
        }
    }

    /// Removes all denials. For the writer.
    pub(super) fn lift_all(&self) {
        self.remove(|_| true);
        self.any.store(false, Ordering::Relaxed);
    }

    fn remove(&self, which: impl Fn(Miss) -> bool) {
        for at in self.words() {
            let word = at.load(Ordering::Relaxed);
            if Miss::decode(word).is_some_and(&which) {
                // A reader may take it at the same moment.
                let _ = at.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}
