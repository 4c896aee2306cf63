//! Questions of control for tables of a user port, whose driver answers them one at a time.
//!
//! The driver is not trusted: an answer without a question ends it, one that does not come in time
//! is not waited for, and the next question is only asked when it has come.

use std::collections::VecDeque;
use std::time::Instant;

use ipc::supervision::EventToDriver;
use ipc::timeouts;
use ipc::user_reports::{UserPage, UserQuestion};
use thiserror::Error;

use super::DriverChild;

/// Most questions that wait for their turn.
const WAITING_MAX: usize = 16;

/// The reason why a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(in crate::drivers) enum NoAnswer {
    #[error("too many questions to its driver")]
    TooMany,
    #[error("it has no driver")]
    NoDriver,
    #[error("its driver does not run")]
    NotRunning,
    #[error("its driver has not answered in time")]
    Late,
}

/// A question, and its answer for control or the reason why there is none.
pub(in crate::drivers) type Answer = (UserQuestion, Result<UserPage, NoAnswer>);

/// A question, and the end of its time.
#[derive(Clone, Copy, Debug)]
struct Pending {
    question: UserQuestion,
    deadline: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Questions {
    waiting: VecDeque<Pending>,
    /// The one that the process has.
    asked: Option<Pending>,
    /// Control has its answer already: there was none in time.
    is_late: bool,
    /// An answer may come to a question of the supervisor before, or of an earlier poll.
    tolerates: bool,
    answers: Vec<Answer>,
}

impl Questions {
    /// Those of a port whose process another supervisor has started, and perhaps asked.
    pub(super) fn of_predecessor() -> Self {
        Self {
            tolerates: true,
            ..Self::default()
        }
    }

    /// Control asks.
    pub(super) fn ask(&mut self, question: UserQuestion, now: Instant) {
        if self.waiting.len() >= WAITING_MAX {
            return self.answers.push((question, Err(NoAnswer::TooMany)));
        }
        let deadline = now + timeouts::USER_TABLE;
        self.waiting.push_back(Pending { question, deadline });
    }

    /// Sends the next question to the process, and answers those whose time is over; without a
    /// process all.
    pub(super) fn poll(&mut self, process: Option<&DriverChild>, now: Instant) {
        let Some(process) = process else {
            self.tolerates |= self.asked.is_some();
            let asked = self.asked.take().filter(|_| !self.is_late);
            let all = asked.into_iter().chain(std::mem::take(&mut self.waiting));
            let none = |of: Pending| (of.question, Err(NoAnswer::NotRunning));
            return self.answers.extend(all.map(none));
        };
        if let Some(asked) = self.asked.filter(|of| of.deadline <= now && !self.is_late) {
            self.is_late = true;
            self.answers.push((asked.question, Err(NoAnswer::Late)));
        }
        while let Some(first) = self.waiting.pop_front_if(|of| of.deadline <= now) {
            self.answers.push((first.question, Err(NoAnswer::Late)));
        }
        if self.asked.is_none()
            && let Some(next) = self.waiting.front().copied()
        {
            let event = EventToDriver::UserQuestion(next.question);
            // A process whose link is full does not answer pings either.
            if process.try_send(&event, &[]).is_ok() {
                self.waiting.pop_front();
                (self.asked, self.is_late) = (Some(next), false);
            }
        }
    }

    /// A new process has no questions.
    pub(super) fn begin(&mut self) {
        self.poll(None, Instant::now());
        self.tolerates = false;
    }

    /// The process answers. Returns `false` for an answer that no driver sends.
    pub(super) fn answered(&mut self, page: UserPage) -> bool {
        match self.asked.take_if(|asked| page.answers(asked.question)) {
            Some(asked) if !self.is_late => self.answers.push((asked.question, Ok(page))),
            Some(_) => {}
            None => return self.asked.is_none() && std::mem::take(&mut self.tolerates),
        }
        true
    }

    /// Takes the answers for control.
    pub(super) fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    /// Returns the time at which a question is over.
    pub(super) fn due(&self) -> Option<Instant> {
        let asked = self.asked.iter().filter(|_| !self.is_late);
        let all = asked.chain(self.waiting.front());
        all.map(|of| of.deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use ipc::link::{Link, LinkEvent};
    use ipc::supervision::DriverRequest;
    use ipc::user_reports::{UserRows, UserTable};

    use super::*;

    fn question(from: u32) -> UserQuestion {
        UserQuestion {
            table: UserTable::Leases,
            from,
        }
    }

    fn page(from: u32) -> UserPage {
        UserPage {
            question: question(from),
            rows: UserRows::Leases(Vec::new()),
            next: None,
        }
    }

    fn asked(link: &mut Link<DriverRequest, EventToDriver>) -> Option<UserQuestion> {
        match link.recv().unwrap() {
            LinkEvent::Message(EventToDriver::UserQuestion(question), _) => Some(question),
            LinkEvent::Nothing => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_question_at_a_time_goes_to_the_driver() {
        let (child, mut link) = DriverChild::idle();
        link.set_nonblocking().unwrap();
        let (mut questions, now) = (Questions::default(), Instant::now());
        questions.ask(question(0), now);
        questions.ask(question(64), now);
        questions.poll(Some(&child), now);
        questions.poll(Some(&child), now);
        assert_eq!(asked(&mut link), Some(question(0)));
        assert_eq!(asked(&mut link), None);
        assert!(!questions.answered(page(64)), "it was not asked yet");
        assert!(questions.answered(page(0)));
        questions.poll(Some(&child), now);
        assert_eq!(asked(&mut link), Some(question(64)));
        assert_eq!(questions.take_answers(), [(question(0), Ok(page(0)))]);
    }

    #[test]
    fn a_late_answer_counts_for_nothing_and_ends_nothing() {
        let (child, mut link) = DriverChild::idle();
        link.set_nonblocking().unwrap();
        let (mut questions, now) = (Questions::default(), Instant::now());
        questions.ask(question(0), now);
        questions.poll(Some(&child), now);
        let later = questions.due().unwrap();
        questions.ask(question(1), later);
        questions.poll(Some(&child), later);
        let answers = questions.take_answers();
        assert!(matches!(&answers[..], [(of, Err(NoAnswer::Late))] if *of == question(0)));
        assert_eq!(asked(&mut link), Some(question(0)));
        assert_eq!(asked(&mut link), None, "it has not answered the first");
        assert!(questions.answered(page(0)));
        assert!(questions.take_answers().is_empty());
        questions.poll(Some(&child), later);
        assert_eq!(asked(&mut link), Some(question(1)));
    }

    #[test]
    fn an_answer_without_a_question_is_unsound_but_of_a_predecessor() {
        assert!(!Questions::default().answered(page(0)));
        let mut passed = Questions::of_predecessor();
        assert!(passed.answered(page(0)));
        assert!(!passed.answered(page(0)), "there was one at most");
    }

    #[test]
    fn without_a_process_all_are_answered() {
        let (child, _link) = DriverChild::idle();
        let (mut questions, now) = (Questions::default(), Instant::now());
        for from in 0..20 {
            questions.ask(question(from), now);
        }
        assert_eq!(questions.take_answers().len(), 4, "too many");
        questions.poll(Some(&child), now);
        questions.poll(None, now);
        let answers = questions.take_answers();
        assert!(answers.len() == 16 && answers.iter().all(|(_, of)| of.is_err()));
        assert!(questions.due().is_none());
        assert!(questions.answered(page(0)), "it may have been on its way");
        questions.ask(question(0), now);
        questions.poll(Some(&child), now);
        questions.begin();
        assert!(!questions.answered(page(0)), "the process is another");
    }
}
