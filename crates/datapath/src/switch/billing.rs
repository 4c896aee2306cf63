//! What batches cost, who pays, and how long they may become.

use port::counters::Ticks;
use port::{BatchLimit, Port, PortId};

use super::Switch;
use crate::cycles::Meter;

impl<P: Port> Switch<P> {
    /// What the last batch cost: its frames, and for long ones their bytes.
    #[must_use]
    pub fn last_load(&self) -> u64 {
        self.load
    }

    /// What the last batch cost altogether, in ticks. Its sender is the cause of all of it, also of what is counted
    /// as the receivers'.
    #[must_use]
    pub fn last_cost(&self) -> u64 {
        self.cost
    }

    /// Frames of the last batch.
    #[must_use]
    pub fn last_frames(&self) -> usize {
        self.frames
    }

    /// What all that was done for frames has cost, in ticks.
    #[must_use]
    pub fn busy(&self) -> u64 {
        self.meter.total()
    }

    /// Batches begin: what was done since the last one is nobody's.
    pub fn begin_batches(&mut self) {
        self.meter.begin();
    }

    /// From now on, batches are no longer than that.
    pub fn set_limit(&mut self, limit: BatchLimit) {
        self.batch.set_limit(limit);
    }

    /// Measures with another counter.
    pub fn measure_with(&mut self, clock: fn() -> u64) {
        self.meter = Meter::reading(clock);
    }

    /// Says how fast the counter is that ticks are counted with.
    pub fn set_ticks_per_second(&self, ticks: u64) {
        self.fabric.counters.set_ticks_per_second(ticks);
    }

    /// Counts what a batch has cost: taking and matching at its sender, the rest at the receivers. Where none got a
    /// frame, it is all the sender's.
    pub(super) fn pay(&mut self, from: PortId, measured: Ticks) {
        let mut ticks = self.meter.bill(measured, self.load);
        self.cost = ticks.switching + ticks.copying;
        if self.fabric.pay(ticks.copying) {
            ticks.copying = 0;
        }
        ticks.switching += std::mem::take(&mut ticks.copying);
        self.fabric.counters.add_ticks(from, ticks);
    }
}
