//! Translations that readers have missed: the only way from them to the writer.
//!
//! ```text
//! reader                                   writer
//! word: 0 -> page and access (release)     noted: -> false (acquire, release)
//! noted: -> true (acquire, release)        each word: -> 0 (acquire)
//!     it was false: notify the writer
//! ```
//!
//! `noted` is exchanged by both, so one comes first. If the reader does, the writer has seen the
//! word when it has exchanged `noted`, and takes it. If the writer does, the reader finds `false`
//! and notifies it. So no miss is left behind without a notification.

use std::ops::Range;

use super::sync::{AtomicBool, AtomicU64, Ordering};
use super::{MOST_MISSES, Miss};

/// Translations that readers lack, each once, until the writer takes them. Lock-free; of bounded
/// size, because the guest chooses the addresses. It is not in the table's file: readers of a
/// successor miss again.
#[repr(align(64))]
#[derive(Debug)]
pub struct Misses {
    /// Page and access; 0: free.
    words: [AtomicU64; MOST_MISSES],
    /// The writer has been notified since it has last taken them.
    noted: AtomicBool,
}

/// Result of noting a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It was noted, and the caller has to notify the writer.
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
    /// Notes a miss. One that is there already is not noted twice, unless the writer takes others
    /// at the same moment. Then its question is asked twice, which every front end answers.
    pub fn note(&self, miss: Miss) -> Noted {
        if !self.put(miss.encode()) {
            return Noted::Full;
        }
        if self.noted.swap(true, Ordering::AcqRel) {
            Noted::Pending
        } else {
            Noted::Notify
        }
    }

    /// Puts a word into the first free place, unless one has it. Readers that do this at the same
    /// time meet at that place, and the second finds the first's word there.
    fn put(&self, word: u64) -> bool {
        let has = |at: &AtomicU64| at.load(Ordering::Relaxed) == word;
        let put = |at: &AtomicU64| {
            // A load first: where there is no room, an exchange of each word would take long.
            let there = at.load(Ordering::Relaxed);
            if there != 0 {
                return there == word;
            }
            let put = at.compare_exchange(0, word, Ordering::Release, Ordering::Relaxed);
            put.is_ok() || put == Err(word)
        };
        self.words.iter().any(has) || self.words.iter().any(put)
    }

    /// Removes the misses of these pages, and returns whether there were any. For the writer.
    pub(super) fn lift(&self, pages: &Range<u64>) -> bool {
        let mut lifted = false;
        for at in &self.words {
            let word = at.load(Ordering::Relaxed);
            if Miss::decode(word).is_some_and(|miss| pages.contains(&miss.page)) {
                let taken = at.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
                lifted |= taken.is_ok();
            }
        }
        lifted
    }

    /// Takes all misses. For the writer.
    pub fn take(&self, mut each: impl FnMut(Miss)) {
        self.noted.swap(false, Ordering::AcqRel);
        for at in &self.words {
            // Most are free, and an exchange takes the cache line from the readers.
            if at.load(Ordering::Relaxed) == 0 {
                continue;
            }
            if let Some(miss) = Miss::decode(at.swap(0, Ordering::Acquire)) {
                each(miss);
            }
        }
    }
}
