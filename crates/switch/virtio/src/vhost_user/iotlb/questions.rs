//! Questions for translations: what was asked on the back-end channel and is not settled.
//!
//! ```text
//! Misses (64)  ->  backlogs (64 each)  ->  open (64)  ->  channel
//!                                            ends by UPDATE, by the answer that there is none,
//!                                            by INVALIDATE, or by time
//! ```
//!
//! What is asked for ahead has a backlog of its own, and leaves 16 places among the open questions
//! to what a frame or a queue waits for.
//!
//! The front end answers in the order of the questions, also those that have ended meanwhile. So
//! answers are counted, and those to questions that have ended change nothing. While it owes 256
//! questions both an UPDATE and an answer, it is asked nothing more.
//!
//! **A question ends by time** a second after it was asked, or after the answer to an earlier one.
//! QEMU serves one after the other, and on a busy host it takes more than a second for all of them.
//! Answers to later questions do not count: a front end may answer those, and deny this one in
//! silence.
//!
//! **An UPDATE answers one question, and gives no more than that has asked for.** It is the oldest
//! for a page of the message, also if it has ended: QEMU answers each with an UPDATE of its own,
//! which permits more than was asked for, and perhaps more than the guest has granted. What another
//! question has asked for, and the same UPDATE permits, is given when the front end says on the
//! channel that it has answered that one, too. An UPDATE that can be no answer holds as it is.
//!
//! **A successor of the process** knows from the table's file what the former one has asked for.
//! The front end is asked nothing until it has answered that, or has sent no answer for a quarter
//! of a second, and an UPDATE gives no more meanwhile than all of those questions that it may
//! answer have asked for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use memory::REGION_PAGE;
use memory::iotlb::{Access, Iotlb, MOST_MISSES, MOST_OWED, Miss, Need, OwedAnswers, Update};

use crate::vhost_user::channel::SendResult;

/// Questions that are open at a time.
const MOST_QUESTIONS: usize = MOST_MISSES;
/// Open questions beyond which nothing is asked for ahead.
const MOST_AHEAD: usize = MOST_QUESTIONS / 4 * 3;
/// Time after which a question ends without an answer to it or to an earlier one, seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// Time without an answer after which no more is waited for of what a former process has asked. A
/// process that dies with an answer in its hands leaves one that does not come, and guests wait for
/// the end of this.
const SILENCE: Duration = Duration::from_millis(250);

/// A question that is not settled.
#[derive(Debug)]
struct Question {
    miss: Miss,
    need: Need,
    /// Time at which it ends by itself.
    until: Instant,
    /// Its number, when it was sent.
    sent: Option<u64>,
    /// An UPDATE that answers another question and permits this, too, of this page alone.
    permitted: Option<Update>,
}

/// An answer that the front end owes to a question that no UPDATE has answered. The question may
/// have ended.
#[derive(Debug)]
struct OwedAnswer {
    number: u64,
    /// The number of its answer on the channel.
    answer: u64,
    miss: Miss,
    /// The front end has said on the channel that it is answered. Its UPDATE may still wait on the
    /// connection's socket.
    answered: bool,
}

/// Answers that the front end owes to a former process.
#[derive(Debug)]
struct Former {
    /// Answers on the channel.
    answers: u64,
    /// Questions, in any order. They may be more than those that are not answered.
    misses: Vec<Miss>,
    /// Time after which no more is waited for, unless an answer comes.
    until: Instant,
}

/// Result of an answer to an open question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QuestionResult {
    /// There is no mapping.
    Denied(Miss, Need),
    /// This UPDATE of its page holds for it, too.
    Permitted(Miss, Need, Update),
}

/// The question that an UPDATE answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnsweredQuestion {
    number: u64,
    pub(super) miss: Miss,
}

/// The questions of a session.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// The oldest first; those that were not sent come last.
    open: VecDeque<Question>,
    /// Misses that find no room among the open questions.
    backlog: VecDeque<Miss>,
    /// The same of what is asked for ahead.
    backlog_ahead: VecDeque<Miss>,
    /// Questions that are not answered, in their order on the channel. The table's file has them,
    /// too.
    owed: VecDeque<OwedAnswer>,
    /// Answers that were requested, and those of them that have come.
    requested: u64,
    answered: u64,
    /// While it is there, nothing is asked.
    former: Option<Former>,
    /// The number of the next question.
    next: u64,
    /// Questions that were sent.
    pub(super) sent: u64,
    /// Questions that ended without an answer in time.
    pub(super) unanswered: u64,
}

impl Questions {
    /// Returns the questions of a process that continues a session. Its table has those of the
    /// former process.
    pub(super) fn after_restart(owed: &OwedAnswers, now: Instant) -> Self {
        let answers = owed.answers();
        if answers == 0 {
            owed.clear();
            return Self::default();
        }
        Self::after(answers, owed.misses(), now)
    }

    /// Returns the questions of a process that continues a session without the table of the former
    /// process: any answer that comes soon may be meant for that one.
    pub(super) fn after_loss(now: Instant) -> Self {
        Self::after(u64::MAX, Vec::new(), now)
    }

    fn after(answers: u64, misses: Vec<Miss>, now: Instant) -> Self {
        let until = now + SILENCE;
        let former = Former {
            answers,
            misses,
            until,
        };
        Self {
            former: Some(former),
            ..Self::default()
        }
    }

    /// Takes the misses of a table, and makes questions of them while there is room. Returns
    /// whether there was one that needs no question: no answer says to readers that its place is
    /// free.
    pub(super) fn take(&mut self, table: &Iotlb, now: Instant) -> bool {
        if self.former.is_some() {
            return false;
        }
        let mut needless = self.fill_backlogs(table);
        while let Some((miss, need)) = self.next_miss(table) {
            if self.is_open(miss, need) || table.look_up(miss.iova(), miss.access()).is_some() {
                needless = true;
                continue;
            }
            self.open.push_back(Question {
                miss,
                need,
                until: now + PATIENCE,
                sent: None,
                permitted: None,
            });
        }
        needless
    }

    /// Returns the next miss that finds room among the open questions.
    fn next_miss(&mut self, table: &Iotlb) -> Option<(Miss, Need)> {
        let open = self.open.len();
        if open >= MOST_QUESTIONS {
            return None;
        }
        if self.backlog.is_empty() {
            self.fill_backlogs(table);
        }
        if let Some(miss) = self.backlog.pop_front() {
            self.backlog_ahead.retain(|other| *other != miss);
            return Some((miss, Need::Now));
        }
        let miss = self.backlog_ahead.pop_front_if(|_| open < MOST_AHEAD)?;
        Some((miss, Need::Ahead))
    }

    /// Takes the misses of a table into those backlogs that are empty, without those that are asked
    /// for. Returns whether there were any of these.
    fn fill_backlogs(&mut self, table: &Iotlb) -> bool {
        let mut is_asked = false;
        let may_take = [self.backlog.is_empty(), self.backlog_ahead.is_empty()];
        table.misses().take_some(|miss, need| {
            if self.is_open(miss, need) {
                is_asked = true;
                return true;
            }
            let (may_take, backlog) = match need {
                Need::Now => (may_take[0], &mut self.backlog),
                Need::Ahead => (may_take[1], &mut self.backlog_ahead),
            };
            if may_take {
                backlog.push_back(miss);
            }
            may_take
        });
        is_asked
    }

    /// Returns whether a miss is asked for, which may be needed now since.
    fn is_open(&mut self, miss: Miss, need: Need) -> bool {
        let same = self.open.iter_mut().find(|question| question.miss == miss);
        let Some(question) = same else {
            return false;
        };
        if need == Need::Now {
            question.need = need;
        }
        true
    }

    /// Takes all misses of a table, which cannot be asked for.
    pub(super) fn take_all(&mut self, table: &Iotlb) -> Vec<(Miss, Need)> {
        let now = self.backlog.drain(..).map(|miss| (miss, Need::Now));
        let ahead = self.backlog_ahead.drain(..);
        let mut all: Vec<_> = now.chain(ahead.map(|miss| (miss, Need::Ahead))).collect();
        table.misses().take_some(|miss, need| {
            all.push((miss, need));
            true
        });
        all
    }

    /// Waits no longer for what is owed to a former process, if the time for that is over.
    pub(super) fn end_former(&mut self, owed: &OwedAnswers, now: Instant) {
        let former = self.former.as_ref();
        if former.is_some_and(|former| former.until <= now) {
            self.forget_former(owed);
        }
    }

    /// Nothing is owed to a former process any more.
    fn forget_former(&mut self, owed: &OwedAnswers) {
        self.former = None;
        owed.clear();
    }

    /// Returns the number of answers that are to come on the channel.
    pub(super) fn answers_to_come(&self) -> u64 {
        let former = self.former.as_ref().map(|former| former.answers);
        former.unwrap_or(self.requested - self.answered)
    }

    /// Returns the next question to be sent; `requested`: with a request for an answer.
    pub(super) fn unsent(&self, requested: bool) -> Option<Miss> {
        let is_full = requested && self.owed.len() >= MOST_OWED;
        if is_full || self.former.is_some() {
            return None;
        }
        let unsent = self.open.iter().find(|question| question.sent.is_none());
        unsent.map(|question| question.miss)
    }

    /// Sends questions as long as `put` sends them whole; `requested`: with a request for an
    /// answer.
    pub(super) fn send(
        &mut self,
        requested: bool,
        owed: &OwedAnswers,
        mut put: impl FnMut(Miss) -> SendResult,
    ) -> SendResult {
        while let Some(miss) = self.unsent(requested) {
            if requested {
                owed.add(self.requested, miss);
            }
            let sent = put(miss);
            if sent != SendResult::Whole {
                if requested {
                    owed.remove(self.requested);
                }
                return sent;
            }
            self.sent(requested);
        }
        SendResult::Whole
    }

    /// Notes that the next question was sent.
    fn sent(&mut self, requested: bool) {
        let mut open = self.open.iter_mut();
        let Some(question) = open.find(|question| question.sent.is_none()) else {
            return;
        };
        let number = self.next;
        question.sent = Some(number);
        if requested {
            self.owed.push_back(OwedAnswer {
                number,
                answer: self.requested,
                miss: question.miss,
                answered: false,
            });
            self.requested += 1;
        }
        self.sent += 1;
        self.next += 1;
    }

    /// Takes an answer: 0, or that there is no mapping. After 0, a question that is still open and
    /// was permitted by no UPDATE waits for its own.
    pub(super) fn answered(
        &mut self,
        value: u64,
        owed: &OwedAnswers,
        now: Instant,
    ) -> Option<QuestionResult> {
        if let Some(former) = &mut self.former {
            owed.forget_one();
            former.answers -= 1;
            former.until = now + SILENCE;
            if former.answers == 0 {
                self.forget_former(owed);
            }
            return None;
        }
        if self.answered == self.requested {
            return None;
        }
        let answer = self.answered;
        owed.remove(answer);
        self.answered += 1;
        let Some(at) = self.owed.iter().position(|owed| owed.answer == answer) else {
            // Its UPDATE has come. If it is denied all the same, answers come in another order, and
            // none says which question was permitted.
            if value != 0 {
                self.open.iter_mut().for_each(|open| open.permitted = None);
            }
            return None;
        };
        let number = self.owed[at].number;
        self.wait_behind(number, now);
        let is_it = |question: &Question| question.sent == Some(number);
        let question = self.open.iter().position(is_it);
        let permitted = question.and_then(|at| self.open[at].permitted);
        if value == 0 && permitted.is_none() {
            self.owed[at].answered = true;
            return None;
        }
        self.owed.remove(at);
        let Question { miss, need, .. } = self.open.remove(question?)?;
        Some(match permitted.filter(|_| value == 0) {
            Some(update) => QuestionResult::Permitted(miss, need, update),
            None => QuestionResult::Denied(miss, need),
        })
    }

    /// Begins the time of the questions after one that is answered `now` anew.
    fn wait_behind(&mut self, number: u64, now: Instant) {
        let behind = |question: &&mut Question| question.sent.is_none_or(|sent| sent > number);
        let behind = self.open.iter_mut().filter(behind);
        behind.for_each(|question| question.until = question.until.max(now + PATIENCE));
    }

    /// Forgets the questions that were answered on the channel. All that waited on the connection's
    /// socket was served since.
    pub(super) fn forget_answered(&mut self) {
        self.owed.retain(|owed| !owed.answered);
    }

    /// Ends a question that is overdue, and returns its miss.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<(Miss, Need)> {
        let oldest = self.open.pop_front_if(|oldest| oldest.until <= now)?;
        self.unanswered += 1;
        Some((oldest.miss, oldest.need))
    }

    /// Returns the time at which the oldest question ends by itself, or asking begins.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let former = self.former.as_ref().map(|former| former.until);
        former.or_else(|| self.open.front().map(|oldest| oldest.until))
    }

    /// Returns the question that an UPDATE answers: the oldest that was sent for one of its pages
    /// and was not answered by another, if it permits some of what was asked for.
    pub(super) fn answered_by(&self, update: &Update) -> Option<AnsweredQuestion> {
        let fits = |miss| may_answer(update, miss);
        let owed = self.owed.iter().find(|owed| fits(owed.miss));
        let owed = owed.map(|owed| AnsweredQuestion {
            number: owed.number,
            miss: owed.miss,
        });
        let mut open = self.open.iter().filter_map(|question| {
            let (number, miss) = (question.sent?, question.miss);
            Some(AnsweredQuestion { number, miss })
        });
        let open = open.find(|asked| fits(asked.miss) && !self.owes(asked.number));
        [owed, open]
            .into_iter()
            .flatten()
            .min_by_key(|asked| asked.number)
    }

    /// Returns the questions of a former process that an UPDATE may answer.
    pub(super) fn asked_by_former(&self, update: &Update) -> Vec<Miss> {
        let misses = self.former.iter().flat_map(|former| &former.misses);
        misses
            .copied()
            .filter(|miss| may_answer(update, *miss))
            .collect()
    }

    fn owes(&self, number: u64) -> bool {
        self.owed.iter().any(|owed| owed.number == number)
    }

    /// Notes that an UPDATE was accepted `now` as the answer to `asked`. Ends that question, and
    /// others that have a translation.
    pub(super) fn updated(
        &mut self,
        update: &Update,
        asked: Option<AnsweredQuestion>,
        table: &Iotlb,
        now: Instant,
    ) {
        let asked = asked.map(|asked| asked.number);
        if let Some(number) = asked {
            self.wait_behind(number, now);
        }
        let is_asked = |owed: &OwedAnswer| Some(owed.number) == asked;
        if let Some(at) = self.owed.iter().position(is_asked) {
            self.owed.remove(at);
        }
        self.open.retain_mut(|question| {
            let miss = question.miss;
            if !is_in(miss, update.iova, update.size) {
                return true;
            }
            question.permitted = of_page(update, miss);
            let is_it = question.sent.is_some() && question.sent == asked;
            !is_it && table.look_up(miss.iova(), miss.access()).is_none()
        });
    }

    /// Ends the questions for pages that were revoked. Returns whether there were any.
    pub(super) fn invalidated(&mut self, iova: u64, size: u64) -> bool {
        let before = self.waiting();
        let stays = |miss: Miss| !is_in(miss, iova, size);
        self.open.retain(|question| stays(question.miss));
        self.backlog.retain(|miss| stays(*miss));
        self.backlog_ahead.retain(|miss| stays(*miss));
        self.waiting() < before
    }

    fn waiting(&self) -> usize {
        self.open.len() + self.backlog.len() + self.backlog_ahead.len()
    }

    /// Ends all questions: the device was reset.
    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.backlog.clear();
        self.backlog_ahead.clear();
    }

    /// Asks open questions once more, on a new channel.
    pub(super) fn channel_changed(&mut self, owed: &OwedAnswers) {
        self.owed.clear();
        self.answered = self.requested;
        self.forget_former(owed);
        for question in &mut self.open {
            question.sent = None;
        }
    }
}

/// Returns whether an UPDATE is for the page of a miss, and permits some of what was asked for.
fn may_answer(update: &Update, miss: Miss) -> bool {
    let permitted = Access::from_bits(update.permission.into());
    let common = permitted.and_then(|permitted| miss.access().common(permitted));
    common.is_some() && is_in(miss, update.iova, update.size)
}

/// Returns what an UPDATE says of the page of a miss, if it permits some of that.
fn of_page(update: &Update, miss: Miss) -> Option<Update> {
    let permitted = Access::from_bits(update.permission.into())?;
    miss.access().common(permitted)?;
    let offset = miss.iova().checked_sub(update.iova)?;
    Some(Update {
        iova: miss.iova(),
        size: REGION_PAGE,
        user_addr: update.user_addr.checked_add(offset)?,
        permission: update.permission,
    })
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
