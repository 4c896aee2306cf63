//! Drop accounting: per port and per queue.

use port::{DropReason, Port, PortId};

use super::Fabric;

/// Queue pair of frames that came from none.
pub(crate) const NO_PAIR: u16 = u16::MAX;

impl<P: Port> Fabric<P> {
    /// Counts frames of the current queue pair as dropped because of their sender or the policy.
    #[inline(never)]
    pub(crate) fn count_drop(&mut self, from: PortId, reason: DropReason, frames: u64) {
        self.counters.add_drops(from, reason, frames);
        let pair = self.serving;
        if let Some(slot) = self.slot(from) {
            slot.port.note_refused(pair, reason, frames);
        }
    }
}
