//! The worker's inner loop without the worker, for whoever counts its instructions.

use port::PortId;

use crate::guest::GuestPort;
use crate::switch::{Switch, UpcallSink};

impl Switch<GuestPort> {
    /// Serves one queue pair until nothing waits there. `now` is in milliseconds.
    ///
    /// Compiled here and nowhere else: what `examples/instructions` counts is then the code that the worker
    /// runs, and not another crate's copy of it with other inlining.
    #[inline(never)]
    pub fn drain(&mut self, id: PortId, pair: u16, now: u64, upcalls: &mut dyn UpcallSink) {
        while self.serve(id, pair, now, upcalls) {}
    }
}
