//! Frames that are not simply delivered, because a port's limits or a masked receiver forbid it.

use std::sync::Arc;

use policy::Action;
use port::{Batch, Cost, DropReason, Port, PortId};
use wire::MacAddr;

use super::{Fabric, InHand, Slot};
use crate::flow_table::LeftOutLists;
use crate::limits::PortLimits;
use crate::runs::Run;

impl InHand<'_> {
    /// What it is on the wire.
    pub(super) fn cost(&self) -> Cost {
        let len = self.headers.len() as u32 + self.payload.len();
        Cost::of(len, &self.offload)
    }
}

impl<P> Slot<P> {
    /// Whether the port may be sent a frame, which is then paid for.
    #[cold]
    pub(super) fn may_get(&self, cost: Cost, now: u64) -> bool {
        let limits = self.limits.as_deref();
        limits.is_none_or(|limits| limits.admits(cost, now))
    }
}

impl<P: Port> Fabric<P> {
    /// What a port may send and be sent is this from now on.
    pub(crate) fn set_limits(&mut self, id: PortId, limits: Option<Arc<PortLimits>>) {
        if let Some(slot) = self.slot(id) {
            slot.limited = limits.as_ref().is_some_and(|limits| limits.drops());
            slot.limits = limits;
        }
    }

    /// Does to a frame of a batch what its flow says.
    #[inline(always)]
    pub(super) fn execute_one(
        &mut self,
        (action, left_out): (Action, &LeftOutLists),
        index: usize,
        batch: &mut Batch,
        from: PortId,
    ) {
        let (headers, payload, offload) = batch.split(index);
        let frame = InHand {
            headers,
            payload: &payload,
            offload: *offload,
            from,
        };
        self.execute_here(action, frame, left_out);
    }

    /// Does it to frames for a receiver with one queue that is masked, all at once, or limited, one by one; `false` if it is
    /// neither.
    #[cold]
    pub(super) fn execute_special(
        &mut self,
        run: &Run,
        batch: &mut Batch,
        from: PortId,
        left_out: &LeftOutLists,
    ) -> bool {
        if self.drop_masked(run) {
            return true;
        }
        let Action::Unicast { port: to, .. } = run.action else {
            return false;
        };
        let limited = self.slot(to).is_some_and(|slot| slot.limited);
        if limited {
            for index in run.frames.clone() {
                self.execute_one((run.action, left_out), index, batch, from);
            }
        }
        limited
    }

    /// Drops frames for a receiver with one queue that is masked, all at once; `false` if it is not.
    fn drop_masked(&mut self, run: &Run) -> bool {
        let Action::Unicast { port: to, .. } = run.action else {
            return false;
        };
        let masked = self.slot(to).is_some_and(|slot| slot.masked);
        if masked {
            let frames = run.frames.len() as u64;
            if let Some(slot) = self.slot(to) {
                slot.port.note_dropped(0, DropReason::ReceiverFull, frames);
            }
            self.counters
                .add_drops(to, DropReason::ReceiverFull, frames);
        }
        masked
    }

    /// Whether a frame that is to be flooded is one too many.
    pub(super) fn is_storm(&mut self, frame: &InHand<'_>) -> bool {
        let (now, cost) = (self.now, frame.cost());
        let to = frame.headers.first().copied().map(MacAddr);
        let slot = self.slots.get(frame.from.0 as usize);
        let limits = slot.and_then(|slot| slot.as_ref()?.limits.as_deref());
        limits.is_some_and(|limits| !limits.admits_flood(to.unwrap_or(MacAddr::ZERO), cost, now))
    }
}
