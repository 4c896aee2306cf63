//! Ports of a fabric: their settings (limits, outputs, classes), what they refuse, and the end of a
//! batch, at which buffers are published, queues unlocked, and then guests notified.

use std::ops::Range;
use std::sync::Arc;

use flow_table::Class;
use port::counters::{Counters, Traffic};
use port::{DropReason, PortId};

use super::{Dropping, Fabric, FrameInTransit, MAX_RECEIVERS, Notifications, Receiver, Slot, TAG};
use crate::forward::cycles::BYTES_PER_LOAD;
use crate::forward::egress::Output;
use crate::forward::flow_batch::ActionBatch;
use crate::forward::limits::PortLimits;
use crate::ports::batch::Batch;
use crate::ports::port::{Port, Settlement};

impl<P: Port> Fabric<P> {
    /// Publishes the buffers of all receivers with queue pairs to flush, and unlocks these. Their
    /// guests are notified when the sender's queue is unlocked too.
    pub(crate) fn flush(&mut self) {
        while let Some(id) = self.touched.pop() {
            let Some(slot) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else {
                continue;
            };
            while slot.unflushed != 0 {
                let pair = slot.unflushed.trailing_zeros() as u16;
                slot.unflushed &= slot.unflushed - 1;
                if let Some(settled) = slot.port.settle(pair, self.now) {
                    slot.delivered = corrected(slot.delivered, &settled);
                    for (reason, frames) in settled.dropped {
                        self.counters.add_drops(id, reason, frames);
                    }
                }
                let Notifications { calls, deferred } = &mut self.notifications;
                if let Some(due) = slot.port.flush(pair, self.now, calls) {
                    deferred.push((id, pair, due));
                }
                if self.served.len() < self.served.capacity() {
                    self.served.push((id, pair));
                }
            }
            slot.expected = 0;
            match std::mem::take(&mut slot.dropping) {
                Dropping::Nothing => {}
                Dropping::Masked => self.counters.add_masked(id),
                Dropping::OverShare => self.shares.note_dropped(id),
            }
            let Traffic { packets, bytes } = std::mem::take(&mut slot.delivered);
            if packets == 0 {
                continue;
            }
            self.counters.add_to(id, Traffic { packets, bytes });
            if self.uncharged.len() < MAX_RECEIVERS {
                let load = packets + bytes / BYTES_PER_LOAD;
                self.uncharged.push(Receiver { port: id, load });
            }
        }
    }

    /// Counts what became of frames that a receiver had kept, outside of a batch.
    pub(crate) fn count_settled(&mut self, id: PortId, settled: Settlement) {
        count_settled(&self.counters, id, settled);
    }

    /// Flushes as [`Fabric::flush`] does, and notifies. For frames that hold no sender's queue.
    pub(crate) fn flush_and_notify(&mut self) {
        self.flush();
        self.notifications.calls.send();
    }

    /// Returns the buffers of the sender and unlocks its queue, which is the last one that this
    /// worker holds: all guests can be notified then.
    #[inline]
    pub(crate) fn give_back(&mut self, from: PortId, pair: u16) {
        if let Some(Some(slot)) = self.slots.get_mut(from.0 as usize) {
            slot.port.release(pair, &mut self.notifications.calls);
        }
    }

    /// Notifies all guests that are to be notified. Returns whether there was one.
    #[inline]
    pub(crate) fn notify(&mut self) -> bool {
        let any = !self.notifications.calls.is_empty();
        self.notifications.calls.send();
        any
    }

    /// Returns the sender's buffers and unlocks its queue, then notifies.
    pub(crate) fn release(&mut self, from: PortId, pair: u16) {
        self.give_back(from, pair);
        self.notify();
    }

    /// Sends the deferred notifications that are due.
    pub(crate) fn flush_deferred(&mut self) {
        let (slots, now, counters) = (&mut self.slots, self.now, &self.counters);
        let Notifications { calls, deferred } = &mut self.notifications;
        deferred.retain_mut(|(id, pair, due)| {
            let Some(Some(slot)) = slots.get_mut(id.0 as usize) else {
                return false;
            };
            let next = slot.port.notify(*pair, now, calls);
            if let Some(settled) = slot.port.settle_deferred(*pair) {
                count_settled(counters, *id, settled);
            }
            *due = next.unwrap_or(*due);
            next.is_some()
        });
        calls.send();
    }

    /// Sends all deferred notifications, due or not.
    pub(crate) fn end_deferrals(&mut self) {
        let Notifications { calls, deferred } = &mut self.notifications;
        for (id, pair, _) in deferred.drain(..) {
            if let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) {
                slot.port.end_deferral(pair, calls);
                if let Some(settled) = slot.port.settle_deferred(pair) {
                    count_settled(&self.counters, id, settled);
                }
            }
        }
        calls.send();
    }

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
            let holds = output.as_ref().is_some_and(|out| out.holds_when_full());
            slot.output = output;
            slot.refuses = slot.limited || slot.output.is_some();
            self.shares.set_lossless(id, holds);
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

fn count_settled(counters: &Counters, id: PortId, settled: Settlement) {
    counters.add_to(id, settled.delivered);
    for (reason, frames) in settled.dropped {
        counters.add_drops(id, reason, frames);
    }
}

/// Returns the traffic that was delivered to a receiver, without the frames that it has only kept
/// and with those that it had kept before.
#[cold]
fn corrected(delivered: Traffic, settled: &Settlement) -> Traffic {
    Traffic {
        packets: delivered.packets + settled.delivered.packets - settled.kept.packets,
        bytes: delivered.bytes + settled.delivered.bytes - settled.kept.bytes,
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
