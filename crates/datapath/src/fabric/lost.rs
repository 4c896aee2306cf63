//! What is dropped is counted twice: at the port that is the cause, and at the queue by which it came or was to go.

use port::{DropReason, Port, PortId};

use super::Fabric;

/// A queue pair that there is not: what is dropped came by none.
pub(crate) const NO_PAIR: u16 = u16::MAX;

impl<P: Port> Fabric<P> {
    /// Frames were dropped that came from the queue pair that is served, and of which their sender or the policy is the cause.
    #[inline(never)]
    pub(crate) fn count_lost(&mut self, from: PortId, reason: DropReason, frames: u64) {
        self.counters.add_drops(from, reason, frames);
        let pair = self.serving;
        if let Some(slot) = self.slot(from) {
            slot.port.note_refused(pair, reason, frames);
        }
    }
}
