//! Settings of ports: limits, outputs, classes; and what they refuse.

use std::ops::Range;
use std::sync::Arc;

use flow_table::Class;
use port::{DropReason, PortId};

use super::{Dropping, Fabric, FrameInTransit, Slot, TAG};
use crate::forward::egress::Output;
use crate::forward::flow_batch::ActionBatch;
use crate::forward::limits::PortLimits;
use crate::ports::batch::Batch;
use crate::ports::port::Port;

impl<P: Port> Fabric<P> {
    /// Sets the limits of a port.
    pub(crate) fn set_limits(&mut self, id: PortId, limits: Option<Arc<PortLimits>>) {
        if let Some(slot) = self.slot(id) {
            slot.limited = limits
                .as_ref()
                .is_some_and(|limits| limits.limits_to_guest());
            slot.limits = limits;
            slot.refuses = slot.limited || slot.output.is_some();
        }
    }

    /// Schedules what leaves by a port, or no longer.
    pub(crate) fn set_output(&mut self, id: PortId, output: Option<Arc<Output>>) {
        if let Some(slot) = self.slot(id) {
            slot.output = output;
            slot.refuses = slot.limited || slot.output.is_some();
        }
    }

    /// Returns the class of all frames of a queue pair, if it has one.
    pub(crate) fn class_of_pair(&self, port: PortId, pair: u16) -> Option<Class> {
        let slot = self.slots.get(port.0 as usize)?.as_ref()?;
        let class = slot.qos.as_ref()?.class_by_pair.get(usize::from(pair))?;
        class.map(Class::new)
    }

    /// Notes whether any queue pair has a class, after settings of a port changed.
    pub(crate) fn update_classes(&mut self) {
        let mut senders = self
            .slots
            .iter()
            .flatten()
            .filter_map(|slot| slot.qos.as_ref());
        self.classes.by_pair = senders.any(|qos| qos.class_by_pair.iter().any(Option::is_some));
    }

    /// Sets the priorities of tags that were set for these frames of an action batch.
    #[inline(never)]
    pub(crate) fn mark(&self, group: &ActionBatch, frames: Range<usize>, batch: &mut Batch) {
        if let Some(pcp) = self.classes.priority(group.class()) {
            batch.set_priority(frames, pcp);
        }
    }
}

impl<P> Slot<P> {
    /// Returns the reason for which a frame is not copied: the port is over its share, its to-guest
    /// limit is exceeded, or its sender has no credit. The cost of the frame is taken otherwise.
    #[cold]
    pub(super) fn refuses(
        &self,
        frame: &FrameInTransit<'_>,
        tag: Option<u16>,
        (prepaid, now): (bool, u64),
    ) -> Option<DropReason> {
        if self.dropping == Dropping::OverShare {
            return Some(DropReason::ReceiveShare);
        }
        let cost = frame.cost();
        let limits = self.limits.as_deref().filter(|_| self.limited);
        let mut admitted = limits.is_none_or(|limits| limits.admits(cost, now));
        let output = self.output.as_deref().filter(|_| admitted && !prepaid);
        if let Some(output) = output
            && let Some(leaf) = output.leaf(frame.from, frame.class.number())
        {
            let tag = if tag.is_some() { TAG.into() } else { 0 };
            let cost = frame.padded_cost(output.shortest().saturating_sub(tag));
            let bits = output.bits(cost) + cost.packets * u64::from(tag) * 8;
            admitted = output.pay_later(leaf, bits, now);
        }
        (!admitted).then_some(DropReason::RateLimited)
    }
}
