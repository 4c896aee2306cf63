//! What waits for control: for how long, and where.

use port::{DropReason, Port, PortId};

use channel::records::Upcall;

use super::{FLOW_IDLE_MS, FLOWS_PER_SWEEP, SWEEP_MS, Switch, UpcallSink};
use crate::parking::Waiting;

/// The question behind which these frames wait.
fn question(id: u64, waiting: &Waiting) -> Upcall {
    let first = waiting.frames.first();
    let headers = first.map(|frame| frame.headers.as_slice().to_vec());
    Upcall {
        id,
        key: *waiting.key.words(),
        frame_len: first.map_or(0, |frame| frame.bytes() as u32),
        headers: headers.unwrap_or_default(),
    }
}

impl<P: Port> Switch<P> {
    /// For so many milliseconds from `now` on, frames stay with their sender while too many others of its port wait
    /// for control, instead of being dropped. So does a switch begin that takes over: it knows no flow yet, and a
    /// sender that does nothing new is to lose nothing.
    pub fn be_patient(&mut self, now: u64, for_ms: u64) {
        self.patient_until = self.patient_until.max(now + for_ms);
        self.look_who_waits();
        self.parking.take_whole_batches(true);
    }

    /// Whether a port is to keep what it has for now.
    #[inline(never)]
    pub(super) fn has_to_wait(&mut self, id: PortId, now: u64) -> bool {
        if self.patient_until != 0 && self.has_to_be_patient(id, now) {
            return true;
        }
        self.is_over_its_limit(id)
    }

    #[cold]
    fn has_to_be_patient(&mut self, id: PortId, now: u64) -> bool {
        if now < self.patient_until {
            return !self.parking.has_room(id);
        }
        self.patient_until = 0;
        self.look_who_waits();
        self.parking.take_whole_batches(false);
        false
    }

    /// Control has answered this question.
    pub(crate) fn note_answered(&mut self, question: Option<u64>) {
        self.parking.clock = self.fabric.now;
        if let Some(ns) = question.and_then(|id| self.parking.open_for(id)) {
            self.figures.waits.note(ns);
        }
    }

    /// Asks control what could not be asked before, because too many questions of a port were open, or the ring was full. To be
    /// called now and then, and after answers.
    #[inline]
    pub fn ask_more(&mut self, upcalls: &mut dyn UpcallSink) {
        if self.parking.has_to_ask() {
            self.ask_next(upcalls);
        }
    }

    #[cold]
    fn ask_next(&mut self, upcalls: &mut dyn UpcallSink) {
        while let Some((id, waiting)) = self.parking.next_to_ask() {
            if !upcalls.send(&question(id, waiting)) {
                return self.parking.ask_later(id);
            }
        }
    }

    /// Asks all open questions again: control is new, or may have missed some. Not while answers wait to be
    /// followed: they would become more than are followed.
    pub fn ask_again(&mut self, upcalls: &mut dyn UpcallSink) {
        self.ask_again_of(u64::MAX, upcalls);
    }

    /// The same of those that have been open for `ms` milliseconds: the answers to others are on their way.
    pub(crate) fn ask_overdue(&mut self, ms: u64, now: u64, upcalls: &mut dyn UpcallSink) {
        self.ask_again_of(now.saturating_sub(ms), upcalls);
    }

    /// The same of those that were open then.
    fn ask_again_of(&mut self, then: u64, upcalls: &mut dyn UpcallSink) {
        if self.to_do.is_behind() {
            return;
        }
        let open = self.parking.open().into_iter();
        for (id, waiting) in open.filter(|(_, waiting)| waiting.since() <= then) {
            if !upcalls.send(&question(id, waiting)) {
                return;
            }
        }
        self.ask_more(upcalls);
    }

    /// Drops, by name, all that waits for control.
    pub fn drop_parked(&mut self) {
        self.expire(u64::MAX);
    }

    /// Drops what has waited too long for control, by name, and forgets flows that nobody uses.
    pub fn expire(&mut self, now: u64) {
        if now >= self.swept + SWEEP_MS {
            self.swept = now;
            self.flows.expire_some(now, FLOW_IDLE_MS, FLOWS_PER_SWEEP);
        }
        let late = self.parking.expire(now);
        self.drop_waiting(late);
    }

    /// Drops, by name, what a port's guest has sent and control has not decided: the guest has gone, and what control would learn
    /// of it now would be held against the next one.
    pub fn guest_left(&mut self, id: PortId) {
        let left = self.parking.forget_port(id);
        self.drop_waiting(left);
    }

    fn drop_waiting(&mut self, all: Vec<Waiting>) {
        for waiting in all {
            for frame in &waiting.frames {
                self.fabric.serving = frame.pair;
                self.fabric
                    .count_lost(waiting.port(), DropReason::UpcallTimeout, 1);
            }
            self.show_undecided(&waiting);
        }
    }
}
