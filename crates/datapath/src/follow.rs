//! Following control's answers in their order, a bounded piece at a time.
//!
//! A rule may concern a million flows, and frames wait while they are forgotten. So what is left of a rule is kept,
//! with all answers that came behind it, until the next call.

use std::collections::VecDeque;

use channel::records::{Answer, Stale, key_from_words, mask_from_words};
use policy::PortId;
use port::Port;
use wire::MacAddr;

use crate::flow_table::{FlowTable, Origin, PIECE, Progress};
use crate::switch::Switch;

/// Something to be done.
#[derive(Debug)]
enum Work {
    Answer(Answer),
    /// From a place in the flow table on.
    Forget(Stale, usize),
}

/// What is to be done, in order.
#[derive(Debug, Default)]
pub(crate) struct ToDo {
    works: VecDeque<Work>,
    /// Flows forgotten since the last [`Switch::go_on`].
    spent: usize,
}

impl ToDo {
    pub(crate) fn is_empty(&self) -> bool {
        self.works.is_empty()
    }
}

/// Forgets what a rule says, as far as one piece goes.
fn forget(flows: &mut FlowTable, stale: Stale, at: usize) -> Progress {
    match stale {
        Stale::Station { segment, mac, from } => flows.forget_station(segment, MacAddr(mac), from),
        Stale::Port(port) => flows.forget_port(port, at),
    }
}

impl<P: Port> Switch<P> {
    /// Follows one answer of control: at once, if nothing is left of those before it.
    pub fn answer(&mut self, answer: Answer, now: u64) {
        self.to_do.works.push_back(Work::Answer(answer));
        if self.to_do.works.len() == 1 {
            self.work(now);
        }
    }

    /// Begins to forget the flows from and to a port.
    pub(crate) fn forget_flows_of(&mut self, port: PortId, now: u64) {
        self.answer(Answer::Forget(Stale::Port(port)), now);
    }

    /// To be called now and then, and soon while [`Switch::has_to_do`]: does a piece of what is left of earlier
    /// answers. `true` when all of it is done.
    pub fn go_on(&mut self, now: u64) -> bool {
        self.to_do.spent = 0;
        self.work(now);
        self.to_do.is_empty()
    }

    fn work(&mut self, now: u64) {
        while self.to_do.spent < PIECE
            && let Some(work) = self.to_do.works.pop_front()
        {
            match work {
                Work::Answer(answer) => self.follow(answer, now),
                Work::Forget(stale, at) => self.forget(stale, at),
            }
        }
    }

    /// Does a piece of work of a rule; what is left of it is first again.
    fn forget(&mut self, stale: Stale, at: usize) {
        let before = self.flows.len();
        let progress = forget(&mut self.flows, stale, at);
        self.to_do.spent += before - self.flows.len();
        if let Progress::GoOn(next) = progress {
            self.to_do.spent = PIECE;
            self.to_do.works.push_front(Work::Forget(stale, next));
        }
    }

    fn follow(&mut self, answer: Answer, now: u64) {
        match answer {
            Answer::Install {
                upcall,
                key,
                mask,
                action,
                segment,
                learned,
            } => {
                let (key, mask) = (key_from_words(&key), mask_from_words(&mask));
                let origin = Origin { segment, learned };
                self.flows.install(&key, &mask, action, origin, now);
                let frames = self.parking.release_covered(upcall, &key, &mask);
                self.execute_parked(action, frames);
            }
            Answer::Once { upcall, action } => {
                if let Some(waiting) = self.parking.release(upcall) {
                    self.execute_parked(action, waiting.into_frames());
                }
            }
            Answer::Forget(stale) => self.forget(stale, 0),
        }
    }
}
