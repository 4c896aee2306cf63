//! Delivery with rate limits and to masked receivers.

use std::sync::Arc;

use policy::Action;
use port::{Batch, Cost, DropReason, Port, PortId};
use wire::MacAddr;

use super::{Fabric, FrameInTransit, Slot};
use crate::flow_batch::ActionBatch;
use crate::limits::PortLimits;
use flow_table::ExcludeSets;

impl FrameInTransit<'_> {
    /// Returns the cost of the frame on the wire.
    pub(super) fn cost(&self) -> Cost {
        let len = self.headers.len() as u32 + self.payload.len();
        Cost::of(len, &self.offload)
    }
}

impl<P> Slot<P> {
    /// Takes the cost of a frame from the port's to-guest limit. Returns `false` if it is exceeded.
    #[cold]
    pub(super) fn admits(&self, cost: Cost, now: u64) -> bool {
        let limits = self.limits.as_deref();
        limits.is_none_or(|limits| limits.admits(cost, now))
    }
}

impl<P: Port> Fabric<P> {
    /// Sets the limits of a port.
    pub(crate) fn set_limits(&mut self, id: PortId, limits: Option<Arc<PortLimits>>) {
        if let Some(slot) = self.slot(id) {
            slot.limited = limits
                .as_ref()
                .is_some_and(|limits| limits.limits_to_guest());
            slot.limits = limits;
        }
    }

    /// Executes the action of one frame of a batch.
    #[inline(always)]
    pub(super) fn forward_one(
        &mut self,
        (action, excluded): (Action, &ExcludeSets),
        index: usize,
        batch: &mut Batch,
        from: PortId,
    ) {
        let (headers, payload, offload) = batch.split(index);
        let frame = FrameInTransit {
            headers,
            payload: &payload,
            offload: *offload,
            from,
        };
        self.execute_inline(action, frame, excluded);
    }

    /// Handles frames for a receiver with one queue that is masked (all at once) or rate limited
    /// (one by one). Returns `false` if it is neither.
    #[cold]
    pub(super) fn forward_special(
        &mut self,
        group: &ActionBatch,
        batch: &mut Batch,
        from: PortId,
        excluded: &ExcludeSets,
    ) -> bool {
        if self.drop_masked(group) {
            return true;
        }
        let Action::Unicast { port: to, .. } = group.action else {
            return false;
        };
        let limited = self.slot(to).is_some_and(|slot| slot.limited);
        if limited {
            for index in group.frames.clone() {
                self.forward_one((group.action, excluded), index, batch, from);
            }
        }
        limited
    }

    /// Drops all frames for a receiver with one queue that is masked. Returns `false` if it is not.
    fn drop_masked(&mut self, group: &ActionBatch) -> bool {
        let Action::Unicast { port: to, .. } = group.action else {
            return false;
        };
        let masked = self.slot(to).is_some_and(|slot| slot.masked);
        if masked {
            let frames = group.frames.len() as u64;
            if let Some(slot) = self.slot(to) {
                slot.port.note_dropped(0, DropReason::ReceiverFull, frames);
            }
            self.counters
                .add_drops(to, DropReason::ReceiverFull, frames);
        }
        masked
    }

    /// Returns whether a flooded frame exceeds the storm control limit of its sender.
    pub(super) fn exceeds_storm_limit(&mut self, frame: &FrameInTransit<'_>) -> bool {
        let (now, cost) = (self.now, frame.cost());
        let to = frame.headers.first().copied().map(MacAddr);
        let slot = self.slots.get(frame.from.0 as usize);
        let limits = slot.and_then(|slot| slot.as_ref()?.limits.as_deref());
        limits.is_some_and(|limits| !limits.admits_flood(to.unwrap_or(MacAddr::ZERO), cost, now))
    }
}
