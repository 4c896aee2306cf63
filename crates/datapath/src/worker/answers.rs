//! Control's answers: receiving them and passing each to its worker.

use channel::records::Answer;

use super::{Notice, Worker, millis, nanos};
use crate::forward::switch::Switch;
use crate::ports::guest::GuestPort;

/// Answers executed in one pass.
const ANSWERS: usize = 256;

impl Worker {
    /// Continues the work of earlier answers, then executes new ones.
    pub(super) fn follow_answers(&mut self) {
        if self.switch.has_work() && !self.continue_sweeps() {
            return;
        }
        for _ in 0..ANSWERS {
            let Some(ring) = &mut self.control.answers else {
                return;
            };
            match ring.recv::<Answer>() {
                Ok(Some(answer)) => self.dispatch(answer),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!("malformed answer from control: {error}");
                    self.drop_control();
                    return;
                }
            }
        }
    }

    /// Executes a part of the pending work. Returns `true` when further answers can be executed.
    pub(super) fn continue_sweeps(&mut self) -> bool {
        let caught_up = self.switch.continue_work(self.now());
        for finished in self.switch.take_finished() {
            self.send_notice(Notice::Finished(finished));
        }
        caught_up
    }

    /// Passes an answer to the worker that sent the upcall; one without an upcall goes to all.
    fn dispatch(&mut self, answer: Answer) {
        let asked = match &answer {
            Answer::Install { upcall, .. } => *upcall,
            Answer::Once { upcall, .. } | Answer::Reply { upcall, .. } => Some(*upcall),
            Answer::Forget(_) => None,
        };
        let asker = asked.map(Switch::<GuestPort>::switch_of);
        for (number, worker) in self.all.iter().enumerate() {
            if number != self.number && asker.is_none_or(|asker| asker == number) {
                let answer = answer.clone();
                worker.post(move |w| w.follow(answer));
            }
        }
        if asker.is_none_or(|asker| asker == self.number) {
            self.follow(answer);
        }
    }

    fn follow(&mut self, answer: Answer) {
        let now = self.started.elapsed();
        self.answer_poll.found_frames(now);
        self.switch.set_clock(nanos(now));
        self.switch.answer(answer, millis(now));
    }
}
