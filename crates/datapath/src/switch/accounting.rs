//! CPU cycles and load of batches, and their maximum length.

use port::counters::Ticks;
use port::{BatchLimit, Port, PortId};

use super::Switch;

impl<P: Port> Switch<P> {
    /// Returns the load of the last batch: its frames, plus a part for bytes.
    #[must_use]
    pub fn last_load(&self) -> u64 {
        self.load
    }

    /// Returns the cycles of the last batch in ticks, including the part that is charged to its
    /// receivers.
    #[must_use]
    pub fn last_cost(&self) -> u64 {
        self.cost
    }

    /// Returns the number of frames of the last batch.
    #[must_use]
    pub fn last_frames(&self) -> usize {
        self.frames
    }

    /// Returns the ticks of all batches so far.
    #[must_use]
    pub fn busy(&self) -> u64 {
        self.meter.total()
    }

    /// Starts the measurement of batches; the time since the last one is charged to no port.
    pub fn begin_batches(&mut self) {
        self.meter.begin();
    }

    /// Sets the maximum length of batches.
    pub fn set_limit(&mut self, limit: BatchLimit) {
        self.batch.set_limit(limit);
    }

    /// Measures with another counter.
    #[cfg(test)]
    pub(crate) fn measure_with(&mut self, clock: fn() -> u64) {
        self.meter = crate::cycles::Meter::reading(clock);
    }

    /// Sets the frequency of the tick counter.
    pub fn set_ticks_per_second(&self, ticks: u64) {
        self.fabric.counters.set_ticks_per_second(ticks);
    }

    /// Charges the cycles of a batch: take and match to its sender, the rest to the receivers.
    /// Without receivers the sender is charged for everything.
    pub(super) fn charge_batch(&mut self, from: PortId, measured: Ticks) {
        let mut ticks = self.meter.bill(measured, self.load);
        self.cost = ticks.switching + ticks.copying;
        if self.fabric.charge_receivers(ticks.copying) {
            ticks.copying = 0;
        }
        ticks.switching += std::mem::take(&mut ticks.copying);
        self.fabric.counters.add_ticks(from, ticks);
    }
}
