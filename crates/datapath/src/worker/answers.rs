//! What control answers: who hears it, and when.

use channel::records::Answer;

use super::{Notice, Worker, millis, nanos};
use crate::guest::GuestPort;
use crate::switch::Switch;

/// Answers followed in one pass.
const ANSWERS: usize = 256;

impl Worker {
    /// Goes on with what earlier answers left, then follows new ones.
    pub(super) fn follow_answers(&mut self) {
        if self.switch.has_to_do() && !self.go_on() {
            return;
        }
        for _ in 0..ANSWERS {
            let Some(ring) = &mut self.control.answers else {
                return;
            };
            match ring.recv::<Answer>() {
                Ok(Some(answer)) => self.pass_on(answer),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!("control's answers make no sense: {error}");
                    self.drop_control();
                    return;
                }
            }
        }
    }

    /// Does a piece of what is left. `true` when answers have nothing to wait for.
    pub(super) fn go_on(&mut self) -> bool {
        let caught_up = self.switch.go_on(self.now());
        for errand in self.switch.take_finished() {
            self.tell(Notice::Finished(errand));
        }
        caught_up
    }

    /// Gives an answer to the worker that asked, and one that nobody asked for to all.
    fn pass_on(&mut self, answer: Answer) {
        let asked = match &answer {
            Answer::Install { upcall, .. } => *upcall,
            Answer::Once { upcall, .. } | Answer::Reply { upcall, .. } => Some(*upcall),
            Answer::Forget(_) => None,
        };
        let asker = asked.map(Switch::<GuestPort>::asker);
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
        self.for_answers.found_frames(now);
        self.switch.set_clock(nanos(now));
        self.switch.answer(answer, millis(now));
    }
}
