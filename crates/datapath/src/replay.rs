//! The worker's inner loop without the worker, for instruction counts.

use port::PortId;

use crate::guest::GuestPort;
use crate::switch::{Switch, UpcallSink};

impl Switch<GuestPort> {
    /// Serves one queue pair until it is empty. `now` is in milliseconds.
    ///
    /// Compiled in this crate only: `examples/instructions` then counts the code that the worker
    /// runs, not a copy with different inlining.
    #[inline(never)]
    pub fn drain(&mut self, id: PortId, pair: u16, now: u64, upcalls: &mut dyn UpcallSink) {
        while self.serve(id, pair, now, upcalls) {}
    }
}
