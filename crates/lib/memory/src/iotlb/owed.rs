//! Questions to the front end whose answers are to come. They are in the table's file, so that a
//! successor of the process knows what an UPDATE or an answer may be for.
//!
//! A process may die between two steps. Then more is there than is owed, and never less: a question
//! is stored before it is sent, and removed when its answer on the channel was received. That comes
//! after its UPDATE was answered, which may be served twice.

use super::Miss;
use super::sync::{AtomicU64, Ordering};

/// Questions whose answers a front end may owe.
pub const MOST_OWED: usize = 256;

/// Questions whose answers the front end owes. For the writer, and its successor.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct OwedAnswers {
    /// Answers that are to come on the channel for questions.
    answers: AtomicU64,
    /// Their questions, the latest 256: each at the number of its answer; 0: none.
    misses: [AtomicU64; MOST_OWED],
}

impl OwedAnswers {
    /// Stores the question that is about to be sent, whose answer has this number. Numbers are
    /// consecutive.
    pub fn add(&self, number: u64, miss: Miss) {
        let answers = self.answers();
        self.answers
            .store(answers.saturating_add(1), Ordering::Release);
        self.place(number).store(miss.encode(), Ordering::Release);
    }

    /// Removes the question whose answer was received, or which could not be sent.
    pub fn remove(&self, number: u64) {
        let answers = self.answers();
        self.forget_one();
        // Of more than 256, a later one has its place.
        if answers <= MOST_OWED as u64 {
            self.place(number).store(0, Ordering::Release);
        }
    }

    /// Counts an answer that was received to some question.
    pub fn forget_one(&self) {
        let answers = self.answers().saturating_sub(1);
        self.answers.store(answers, Ordering::Release);
    }

    /// Removes all: no answer is to come any more.
    pub fn clear(&self) {
        let places = self.misses.iter();
        places.for_each(|at| at.store(0, Ordering::Release));
        self.answers.store(0, Ordering::Release);
    }

    /// Returns the number of answers that are to come on the channel.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Acquire)
    }

    /// Returns their questions, in any order.
    #[must_use]
    pub fn misses(&self) -> Vec<Miss> {
        let words = self.misses.iter().map(|at| at.load(Ordering::Acquire));
        words.filter_map(Miss::decode).collect()
    }

    fn place(&self, number: u64) -> &AtomicU64 {
        &self.misses[number as usize % MOST_OWED]
    }
}
