//! What waits for control: for how long, and where.

use port::{DropReason, Port, PortId};

use super::{FLOW_IDLE_MS, FLOWS_PER_SWEEP, SWEEP_MS, Switch};

impl<P: Port> Switch<P> {
    /// For so many milliseconds from `now` on, frames stay with their sender while too many others of its port wait
    /// for control, instead of being dropped. So does a switch begin that takes over: it knows no flow yet, and a
    /// sender that does nothing new is to lose nothing.
    pub fn be_patient(&mut self, now: u64, for_ms: u64) {
        self.patient_until = self.patient_until.max(now + for_ms);
        self.parking.take_whole_batches(true);
    }

    #[cold]
    pub(super) fn has_to_wait(&mut self, id: PortId, now: u64) -> bool {
        if now < self.patient_until {
            return !self.parking.has_room(id);
        }
        self.patient_until = 0;
        self.parking.take_whole_batches(false);
        false
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
        for waiting in self.parking.expire(now) {
            self.fabric.counters.add_drops(
                waiting.port(),
                DropReason::UpcallTimeout,
                waiting.frames.len() as u64,
            );
            self.show_expired(&waiting);
        }
    }
}
