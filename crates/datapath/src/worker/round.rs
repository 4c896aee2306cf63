//! A round over the active pairs.

use std::time::Duration;

use port::PortId;

use super::fair::Turn;
use super::{Worker, millis, nanos};

impl Worker {
    /// Sets a port's weight: its part of the worker time under load.
    pub fn set_weight(&mut self, port: PortId, weight: u16) {
        self.fair.set_weight(port, weight);
    }

    /// Serves every active pair once whose turn it is. Returns `false` when none had a frame.
    pub(super) fn serve_active(&mut self, time: Duration) -> bool {
        self.switch.set_clock(nanos(time));
        let now = millis(time);
        let alone = self.active.len() <= 1;
        let (mut at, mut found) = (0, false);
        self.switch.begin_batches();
        while let Some((port, pair)) = self.active.get(at) {
            let (switch, upcalls) = (&mut self.switch, &mut self.control);
            match self.fair.serve(switch, (port, pair), alone, now, upcalls) {
                Turn::Waits => self.active.waits(at),
                Turn::Served => {
                    found = true;
                    self.active.had_frames(at);
                    self.note_batch(port, pair);
                    if let Some(load) = self.loads.get_mut(&(port, pair)) {
                        *load += self.switch.last_load();
                    }
                    if self.pauses(at, (port, pair)) {
                        continue;
                    }
                }
                Turn::Empty => {
                    if self.pauses(at, (port, pair)) {
                        continue;
                    }
                    if self.active.is_quiet(at)
                        && !self.poll.never_sleeps()
                        && !self.enable_kicks(port, pair)
                    {
                        self.active.remove_at(at);
                        continue;
                    }
                }
            }
            at += 1;
        }
        if found {
            self.active.end_round();
        }
        self.switch.flush_deferred();
        self.assign_or_take_back(time);
        self.fair.end_round() || found
    }
}
