//! Translations that readers have missed: the only way from them to the writer.
//!
//! ```text
//! reader                                   writer
//! word: 0 -> page and access (release)     noted: -> false (acquire, release)
//! or ahead -> now (release)                each word: as it was found -> 0 (acquire)
//! noted: -> true (acquire, release)            another: hand it over once more
//!     it was false: notify the writer
//! ```
//!
//! `noted` is exchanged by both, so one comes first. If the reader does, the writer has seen the
//! word when it has exchanged `noted`, and takes it. If the writer does, the reader finds `false`
//! and notifies it. So no miss stays without a notification.
//!
//! A word that the writer has no room for stays, and the writer looks again when it has.

use std::ops::Range;

use super::sync::{AtomicBool, AtomicU64, Ordering};
use super::{MOST_MISSES, Miss, Need};

/// Set in the word of a miss for later use ([`Need::Ahead`]).
const AHEAD: u64 = 1 << 63;
/// Places that misses for later use leave to others.
const KEPT_FREE: usize = MOST_MISSES / 4;

/// Translations that readers lack, each once, until the writer takes them. Lock-free; of bounded
/// size, because the guest chooses the addresses. It is not in the table's file: readers of a
/// successor miss again.
#[repr(align(64))]
#[derive(Debug)]
pub struct Misses {
    /// Page and access, and whether it is for later use; 0: free.
    words: [AtomicU64; MOST_MISSES],
    /// The writer has been notified since it has last taken them.
    noted: AtomicBool,
}

/// Result of noting a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteResult {
    /// It was noted, and the caller must notify the writer.
    Notify,
    /// It is noted, and the writer has been notified.
    Pending,
    /// 64 others wait. The caller notes it again when it looks at its queue again, which it does
    /// after the writer has taken those.
    Full,
}

impl Default for Misses {
    fn default() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            noted: AtomicBool::new(false),
        }
    }
}

impl Misses {
    /// Notes a miss. One that is there already is not noted twice, unless the writer takes others,
    /// or a reader with another need notes it, at the same moment. Then its question is asked
    /// twice, which every front end answers.
    pub fn note(&self, miss: Miss, need: Need) -> NoteResult {
        let word = miss.encode();
        if !self.find(word, need) && !self.put(word, need) {
            return NoteResult::Full;
        }
        if self.noted.swap(true, Ordering::AcqRel) {
            NoteResult::Pending
        } else {
            NoteResult::Notify
        }
    }

    /// Returns whether there is room for a miss that is noted for later use.
    pub fn has_room_ahead(&self) -> bool {
        let is_free = |at: &AtomicU64| at.load(Ordering::Relaxed) == 0;
        self.words[KEPT_FREE..].iter().any(is_free)
    }

    /// Returns whether a word is there. It waits for no others any longer if it is needed now.
    fn find(&self, word: u64, need: Need) -> bool {
        self.words.iter().any(|at| {
            let there = at.load(Ordering::Relaxed);
            if there & !AHEAD != word {
                return false;
            }
            if need == Need::Ahead || there == word {
                return true;
            }
            // If it fails, another reader was faster, or the writer has taken it as one ahead.
            let raised = at.compare_exchange(there, word, Ordering::Release, Ordering::Relaxed);
            raised.is_ok() || raised == Err(word)
        })
    }

    /// Puts a word into the first free place, unless one has it. Readers that do this at the same
    /// time meet at that place, and the second finds the first's word there.
    fn put(&self, word: u64, need: Need) -> bool {
        let (first, word) = match need {
            Need::Now => (0, word),
            Need::Ahead => (KEPT_FREE, word | AHEAD),
        };
        let is_same = |there: u64| (there ^ word) & !AHEAD == 0;
        self.words[first..].iter().any(|at| {
            // A load first: where there is no room, an exchange of each word would take long.
            let there = at.load(Ordering::Relaxed);
            if there != 0 {
                return is_same(there);
            }
            let put = at.compare_exchange(0, word, Ordering::Release, Ordering::Relaxed);
            put.is_ok() || put.is_err_and(is_same)
        })
    }

    /// Removes the misses of these pages, and returns whether there were any. For the writer.
    pub(super) fn lift(&self, pages: &Range<u64>) -> bool {
        let mut lifted = false;
        for at in &self.words {
            let word = at.load(Ordering::Relaxed);
            let miss = Miss::decode(word & !AHEAD);
            if miss.is_some_and(|miss| pages.contains(&miss.page)) {
                let taken = at.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
                lifted |= taken.is_ok();
            }
        }
        lifted
    }

    /// Takes all misses. For the writer.
    pub fn take(&self, mut each: impl FnMut(Miss)) {
        self.take_some(|miss, _| {
            each(miss);
            true
        });
    }

    /// Takes the misses that `each` accepts. The others stay, without a notification: the caller
    /// looks at them again when there is room for them. One that a reader needs now, while it is
    /// taken as one ahead, is handed over a second time. For the writer.
    pub fn take_some(&self, mut each: impl FnMut(Miss, Need) -> bool) {
        self.noted.swap(false, Ordering::AcqRel);
        for at in &self.words {
            // Most are free, and an exchange takes the cache line from the readers.
            let mut word = at.load(Ordering::Relaxed);
            while let Some(miss) = Miss::decode(word & !AHEAD)
                && each(miss, need_in(word))
            {
                match at.compare_exchange(word, 0, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => break,
                    // A reader needs it now, since then: that happens once.
                    Err(raised) => word = raised,
                }
            }
        }
    }
}

/// Returns the need in the word of a miss.
fn need_in(word: u64) -> Need {
    if word & AHEAD == 0 {
        Need::Now
    } else {
        Need::Ahead
    }
}
