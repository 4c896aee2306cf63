//! Questions for translations: what was asked on the back-end channel and is not settled.
//!
//! ```text
//! Misses (64)  ->  backlog (64)  ->  open (64)  ->  channel
//!                                      ends by UPDATE, by the answer that there is none,
//!                                      by INVALIDATE, or after a second
//! ```
//!
//! The front end answers in the order of the questions, also those that have ended meanwhile. So
//! the numbers of all questions that it has not answered are kept in that order; an answer to one
//! that has ended changes nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use memory::iotlb::{Access, Iotlb, MOST_MISSES, Miss, Update};

/// Questions that are open at a time.
const MOST_QUESTIONS: usize = MOST_MISSES;
/// Time after which a question ends without an answer, seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// Answers that a front end may owe. One that owes more does not answer at all: it is asked without
/// a request for answers, and its UPDATEs are what counts.
const MOST_OWED: usize = 256;

/// A question that is not settled.
#[derive(Debug)]
struct Question {
    miss: Miss,
    /// Time at which it ends by itself.
    until: Instant,
    /// Its number, when it was sent.
    sent: Option<u64>,
}

/// The questions of a session.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// The oldest first; those that were not sent come last.
    open: VecDeque<Question>,
    /// Misses for which there is no room among the open questions.
    backlog: VecDeque<Miss>,
    /// Questions that are not answered, in their order on the channel.
    owed: VecDeque<u64>,
    /// The front end does not answer at all.
    mute: bool,
    /// The number of the next question.
    next: u64,
    /// Questions that were sent.
    pub(super) sent: u64,
    /// Questions that ended without an answer in time.
    pub(super) unanswered: u64,
}

impl Questions {
    /// Takes the misses of a table, and makes questions of them while there is room.
    pub(super) fn take(&mut self, table: &Iotlb, now: Instant) {
        self.fill_backlog(table);
        while self.open.len() < MOST_QUESTIONS {
            self.fill_backlog(table);
            let Some(miss) = self.backlog.pop_front() else {
                return;
            };
            if table.look_up(miss.iova(), miss.access()).is_none() {
                self.open.push_back(Question {
                    miss,
                    until: now + PATIENCE,
                    sent: None,
                });
            }
        }
    }

    /// Takes the misses of a table into an empty backlog, without those that are asked for.
    fn fill_backlog(&mut self, table: &Iotlb) {
        if !self.backlog.is_empty() {
            return;
        }
        let open = &self.open;
        table.misses().take(|miss| {
            if !open.iter().any(|question| question.miss == miss) {
                self.backlog.push_back(miss);
            }
        });
    }

    /// Takes all misses of a table, which cannot be asked for.
    pub(super) fn take_all(&mut self, table: &Iotlb) -> Vec<Miss> {
        let mut all: Vec<_> = self.backlog.drain(..).collect();
        table.misses().take(|miss| all.push(miss));
        all
    }

    /// Returns the next question to be sent.
    pub(super) fn unsent(&self) -> Option<Miss> {
        let unsent = self.open.iter().find(|question| question.sent.is_none());
        unsent.map(|question| question.miss)
    }

    /// Returns whether the next question requests an answer, where that was agreed.
    pub(super) fn requests_answers(&self) -> bool {
        !self.mute
    }

    /// Notes that the next question was sent; `answered`: with a request for an answer.
    pub(super) fn sent(&mut self, answered: bool) {
        let unsent = self
            .open
            .iter_mut()
            .find(|question| question.sent.is_none());
        if let Some(question) = unsent {
            question.sent = Some(self.next);
        }
        self.sent += 1;
        if answered {
            self.owed.push_back(self.next);
        }
        self.next += 1;
        if self.owed.len() > MOST_OWED {
            self.mute = true;
            self.owed.clear();
        }
    }

    /// Ends the question of an answer that there is no mapping, and returns its miss. After another
    /// answer, the question waits for its UPDATE.
    pub(super) fn answered(&mut self, value: u64) -> Option<Miss> {
        let number = self.owed.pop_front()?;
        let is_it = |question: &Question| question.sent == Some(number);
        let at = self.open.iter().position(is_it).filter(|_| value != 0)?;
        self.open.remove(at).map(|question| question.miss)
    }

    /// Ends a question whose time is over, and returns its miss.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<Miss> {
        let oldest = self.open.front().filter(|oldest| oldest.until <= now)?.miss;
        self.open.pop_front();
        self.unanswered += 1;
        Some(oldest)
    }

    /// Returns the time at which the oldest question ends by itself.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.open.front().map(|oldest| oldest.until)
    }

    /// Returns the question that an UPDATE answers: the oldest for its pages, with the access of
    /// all for the same page. One that it does not grant any of is not answered.
    pub(super) fn answered_by(&self, update: &Update) -> Option<Miss> {
        let granted = Access::from_bits(update.permission.into())?;
        let in_range = |question: &&Question| is_in(question.miss, update.iova, update.size);
        let mut open = self.open.iter().filter(in_range);
        let first = open.find(|question| question.miss.access().common(granted).is_some())?;
        let page = first.miss.iova();
        let same = open.filter(|question| question.miss.iova() == page);
        let access = same.fold(first.miss.access(), |all, question| {
            all.with(question.miss.access())
        });
        Some(Miss::new(page, access))
    }

    /// Ends the questions that an UPDATE has answered, at least in part.
    pub(super) fn updated(&mut self, update: &Update, table: &Iotlb) {
        self.open.retain(|question| {
            let miss = question.miss;
            let found = [Access::READ, Access::WRITE].into_iter().any(|access| {
                miss.access().includes(access) && table.look_up(miss.iova(), access).is_some()
            });
            !(found && is_in(miss, update.iova, update.size))
        });
    }

    /// Ends the questions for pages that were revoked. Returns whether there were any.
    pub(super) fn invalidated(&mut self, iova: u64, size: u64) -> bool {
        let before = self.open.len() + self.backlog.len();
        let stays = |miss: Miss| !is_in(miss, iova, size);
        self.open.retain(|question| stays(question.miss));
        self.backlog.retain(|miss| stays(*miss));
        self.open.len() + self.backlog.len() < before
    }

    /// Ends all questions: the device was reset.
    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.backlog.clear();
    }

    /// Asks open questions once more, on a new channel.
    pub(super) fn channel_changed(&mut self) {
        self.owed.clear();
        self.mute = false;
        for question in &mut self.open {
            question.sent = None;
        }
    }
}

/// Returns whether a range has a byte of the page of a miss. A range that wraps around ends with
/// the last address.
fn is_in(miss: Miss, iova: u64, size: u64) -> bool {
    let Some(last) = size.checked_sub(1) else {
        return false;
    };
    let page = |iova: u64| Miss::new(iova, miss.access()).iova();
    (page(iova)..=page(iova.saturating_add(last))).contains(&miss.iova())
}
