//! Following control's answers in their order, a bounded piece at a time.
//!
//! A rule may concern a million flows, and frames wait while they are forgotten. So what is left of a rule is kept,
//! with all answers that came behind it, until the next call.

use std::collections::VecDeque;

use channel::records::{Answer, Stale, key_from_words, mask_from_words};
use policy::{Action, LeftOut, Outdated, PortId, Program, SegmentId};
use port::{DropReason, Port};
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};

use crate::errand::{Errand, Errands};
use crate::flow_table::{CHANGE, Effort, Origin, Progress, SEEK};
use crate::parking::ParkedFrame;
use crate::switch::Switch;

/// How long frames without a flow stay with their senders when there is no room for them, once flows were forgotten because a
/// program changed, milliseconds.
const PATIENCE_MS: u64 = 1000;

/// Something to be done.
#[derive(Debug)]
enum Work {
    Answer(Answer),
    /// Forget a station's flows, from a place on.
    Station(SegmentId, MacAddr, usize),
    /// Forget what is outdated, from a place on.
    Outdated(Outdated, usize),
    /// Nothing is outdated any more: have this program run.
    Run(Program),
    /// Begin an errand of this number.
    Begin(u64, Errand),
}

/// What is to be done, in order.
#[derive(Debug, Default)]
pub(crate) struct ToDo {
    works: VecDeque<Work>,
    /// Until the next [`Switch::go_on`].
    effort: Effort,
    pub(crate) errands: Errands,
}

impl ToDo {
    pub(crate) fn is_empty(&self) -> bool {
        self.works.is_empty() && self.errands.is_empty()
    }

    /// Answers that came are not followed yet.
    pub(crate) fn is_behind(&self) -> bool {
        !self.works.is_empty()
    }

    /// A port whose flows are to be forgotten, and those that are next: they share a walk through the flows.
    fn ports_with(&mut self, port: PortId) -> Outdated {
        let mut ports = vec![port];
        while let Some(Work::Answer(Answer::Forget(Stale::Port(port)))) = self.works.front() {
            ports.push(*port);
            self.works.pop_front();
        }
        Outdated::ports(ports)
    }
}

impl<P: Port> Switch<P> {
    /// Follows one answer of control: at once, if nothing is left of those before it and not too much was done since
    /// the last [`Switch::go_on`].
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

    /// Replaces the program, and begins to forget flows that it may decide otherwise; until that is done, nothing is flooded to
    /// new members of segments, which such a flow does not know of. Who asks for their flows anew loses nothing for a while.
    pub fn change_program(&mut self, program: Program, outdated: Outdated, now: u64) {
        self.set_program(program.without_newcomers(self.program()));
        if !outdated.is_empty() {
            self.be_patient(now, PATIENCE_MS);
        }
        let works = &mut self.to_do.works;
        works.retain(|work| !matches!(work, Work::Run(_)));
        works.extend([Work::Outdated(outdated, 0), Work::Run(program)]);
        self.work(now);
    }

    /// Has an errand run behind everything that is to be done already; it is done when [`Switch::take_finished`]
    /// has it.
    pub fn begin(&mut self, ticket: u64, errand: Errand) {
        self.to_do.works.push_back(Work::Begin(ticket, errand));
    }

    /// To be called now and then, and soon while [`Switch::has_to_do`]: does a piece of what is left of earlier
    /// answers, and of an errand. `true` when later answers have nothing to wait for.
    pub fn go_on(&mut self, now: u64) -> bool {
        if !self.fabric.is_settled() {
            self.fabric.settle();
        }
        self.to_do.effort = Effort::default();
        self.work(now);
        self.run_errand(now);
        !self.to_do.is_behind()
    }

    fn work(&mut self, now: u64) {
        while !self.to_do.effort.is_spent()
            && let Some(work) = self.to_do.works.pop_front()
        {
            match work {
                Work::Answer(answer) => self.follow(answer, now),
                Work::Station(segment, mac, at) => self.forget_station(segment, mac, at),
                Work::Outdated(flows, at) => self.forget_outdated(flows, at),
                Work::Run(program) => self.set_program(program),
                Work::Begin(ticket, errand) => self.to_do.errands.begin(ticket, errand),
            }
        }
    }

    /// Does a piece of work of a rule; what is left of it is first again.
    fn forget_station(&mut self, segment: SegmentId, mac: MacAddr, at: usize) {
        let effort = &mut self.to_do.effort;
        if let Progress::GoOn(at) = self.flows.forget_station(segment, mac, at, effort) {
            self.to_do.works.push_front(Work::Station(segment, mac, at));
        }
    }

    /// The same of what is outdated.
    fn forget_outdated(&mut self, flows: Outdated, at: usize) {
        let effort = &mut self.to_do.effort;
        if let Progress::GoOn(at) = self.flows.forget_outdated(&flows, at, effort) {
            self.to_do.works.push_front(Work::Outdated(flows, at));
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
                except,
                rules,
                epoch,
            } => {
                let (key, mask) = (key_from_words(&key), mask_from_words(&mask));
                self.note_answered(upcall);
                self.to_do.effort.charge(CHANGE);
                let rules = self.flows.hold_rules(rules);
                let origin = Origin {
                    segment,
                    learned,
                    rules,
                };
                let decided = (action, except);
                // An answer to what was asked before the program changed is that, and nothing more.
                match epoch == self.program().epoch() {
                    true => self.install(upcall, (&key, &mask), decided, origin, now),
                    false => self.answer_once(upcall, decided, (rules, epoch), now),
                }
                self.flows.release_rules(rules);
            }
            Answer::Once {
                upcall,
                action,
                except,
                rules,
                epoch,
            } => {
                self.to_do.effort.charge(SEEK);
                self.note_answered(Some(upcall));
                let rules = self.flows.hold_rules(rules);
                self.answer_once(Some(upcall), (action, except), (rules, epoch), now);
                self.flows.release_rules(rules);
            }
            Answer::Reply { upcall, frame } => {
                self.to_do.effort.charge(SEEK);
                self.note_answered(Some(upcall));
                self.reply(upcall, &frame, now);
            }
            Answer::Forget(Stale::Station { segment, mac }) => {
                self.to_do.effort.charge(SEEK);
                self.forget_station(segment, MacAddr(mac), 0);
            }
            Answer::Forget(Stale::Port(port)) => {
                self.to_do.effort.charge(SEEK);
                let ports = self.to_do.ports_with(port);
                self.forget_outdated(ports, 0);
            }
        }
    }

    /// Remembers a decision, and does what it says with the frames that waited for it.
    fn install(
        &mut self,
        upcall: Option<u64>,
        (key, mask): (&FlowKey, &FlowMask),
        (action, except): (Action, Vec<PortId>),
        origin: Origin,
        now: u64,
    ) {
        let Some(left_out) = self.flows.left_out.hold(except) else {
            // Nobody gets it who might be one of them.
            let nobody = (Action::Drop(DropReason::UpcallFull), Vec::new());
            return self.answer_once(upcall, nobody, (0, self.program().epoch()), now);
        };
        let action = action.leaving_out(LeftOut(left_out));
        self.flows.install(key, mask, action, origin, now);
        let frames = self.parking.release_covered(upcall, key, mask);
        self.send_on(action, frames, origin.rules, now);
        self.flows.left_out.release(left_out);
    }

    /// Answers one question, and remembers nothing. If whom a flood leaves out was said of other members, it is asked again.
    fn answer_once(
        &mut self,
        upcall: Option<u64>,
        (action, except): (Action, Vec<PortId>),
        (rules, epoch): (u16, u64),
        now: u64,
    ) {
        let Some(upcall) = upcall else {
            return;
        };
        if matches!(action, Action::Flood { .. }) && epoch != self.program().epoch() {
            return self.parking.ask_later(upcall);
        }
        let Some(waiting) = self.parking.release(upcall) else {
            return;
        };
        let frames = waiting.into_frames().collect();
        match self.flows.left_out.hold(except) {
            Some(left_out) => {
                let action = action.leaving_out(LeftOut(left_out));
                self.send_on(action, frames, rules, now);
                self.flows.left_out.release(left_out);
            }
            None => self.send_on(Action::Drop(DropReason::UpcallFull), frames, 0, now),
        }
    }

    /// Answers the sender of a frame that waited, with the tag that it came with.
    fn reply(&mut self, upcall: u64, frame: &[u8], now: u64) {
        let Some(waiting) = self.parking.release(upcall) else {
            return;
        };
        let (asker, tag) = (waiting.port(), waiting.key.vlan());
        let asked = waiting.into_frames().collect();
        self.send_on(Action::Drop(DropReason::Answered), asked, 0, now);
        self.send_own(asker, tag, frame);
    }

    /// Does with frames that waited what control says, by these rules.
    fn send_on(
        &mut self,
        action: Action,
        frames: Vec<(FlowKey, ParkedFrame)>,
        rules: u16,
        now: u64,
    ) {
        let bytes = frames.iter().map(|(_, frame)| frame.bytes()).sum();
        self.to_do.effort.charge_frames(frames.len(), bytes);
        let packets = frames.len() as u64;
        self.flows.count_unflowed(rules, packets, bytes as u64, now);
        self.execute_parked(action, frames);
    }
}
