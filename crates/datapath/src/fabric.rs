//! Ports of a switch and the delivery of frames between them.

mod accounting;
mod drops;
mod flood;
mod limited;
mod spread;
mod tags;
mod tapped;

use std::ops::Range;
use std::sync::Arc;

use policy::{Action, Program};
use port::counters::{Counters, Traffic};
use port::{Batch, DropReason, Offload, Outgoing, Payload, Port, PortId};
use wire::vlan::{HeaderBuf, VlanTci};

use crate::flow_batch::ActionBatch;
use crate::limits::PortLimits;
use crate::offload::{self, Fitter};
use crate::reject::RejectBudget;
use crate::switch::BYTES_PER_LOAD;
use crate::tap::Taps;
use flow_table::ExcludeSets;

pub(crate) use drops::NO_PAIR;
use spread::spread;
use tags::{link_header, shifted, strip_tag};

/// Ethernet header without tags, bytes.
const ETHERNET: u32 = 14;
const TAG: u16 = 4;
/// Number of receivers between which the cost of a batch is split at most. A batch has more only if
/// its flushes were interleaved with waits for other workers' queue locks.
const MAX_RECEIVERS: usize = 1024;

/// Port with its state of the batch in progress.
#[derive(Debug)]
pub(crate) struct Slot<P> {
    pub(crate) port: P,
    delivered: Traffic,
    /// Queue pairs that need a flush, one bit each.
    unflushed: u64,
    /// Frames of the batch that are announced by [`Fabric::expect`].
    expected: usize,
    /// Whether frames were dropped without a delivery attempt, see [`Port::is_masked`].
    masked: bool,
    /// Budget of replies to rejected frames.
    pub(crate) rejects: RejectBudget,
    pub(crate) limits: Option<Arc<PortLimits>>,
    /// Whether frames to this port are rate limited.
    limited: bool,
}

/// Receiver of frames and the work of their delivery.
#[derive(Clone, Copy, Debug)]
struct Receiver {
    port: PortId,
    load: u64,
}

/// State of the switch without the batch, so that both can be borrowed at once.
#[derive(Debug)]
pub(crate) struct Fabric<P> {
    /// Slots by port id.
    pub(crate) slots: Vec<Option<Slot<P>>>,
    /// Ports with queue pairs to flush.
    touched: Vec<PortId>,
    /// Queue pair from which the current frames were taken.
    pub(crate) serving: u16,
    /// Time of the current batch, nanoseconds of the monotonic clock.
    pub(crate) now: u64,
    /// Receivers of the last batches, up to the reserved capacity; see `Switch::next_served`.
    pub(crate) served: Vec<(PortId, u16)>,
    /// Receivers with a deferred notification, and its due time.
    pub(crate) deferred: Vec<(PortId, u16, u64)>,
    /// Whether a receiver of this batch with one queue is masked or rate limited.
    any_special: bool,
    /// Receivers that were flushed and are not charged yet.
    uncharged: Vec<Receiver>,
    pub(crate) program: Program,
    pub(crate) counters: Counters,
    /// Captures and mirrors, if there are any.
    pub(crate) taps: Option<Box<Taps>>,
    /// Reason for which the current frame was dropped before it reached a receiver.
    dropped_at_sender: Option<DropReason>,
    pub(crate) fitter: Fitter,
}

/// Frame on its way to receivers: private headers, payload in its sender's memory.
pub(crate) struct FrameInTransit<'a> {
    pub(crate) headers: &'a mut HeaderBuf,
    pub(crate) payload: &'a Payload<'a>,
    pub(crate) offload: Offload,
    pub(crate) from: PortId,
}

impl<P: Port> Fabric<P> {
    /// Returns a fabric without ports, with a program that forwards nothing.
    pub(crate) fn new(counters: Counters) -> Self {
        Self {
            slots: Vec::new(),
            touched: Vec::with_capacity(64),
            serving: NO_PAIR,
            now: 0,
            served: Vec::new(),
            deferred: Vec::with_capacity(64),
            any_special: false,
            uncharged: Vec::with_capacity(64),
            program: Program::default(),
            counters,
            taps: None,
            dropped_at_sender: None,
            fitter: Fitter::default(),
        }
    }

    /// Adds a port with its counters at zero.
    pub(crate) fn add_port(&mut self, id: PortId, port: P) {
        self.counters.clear(id);
        self.take_over_port(id, port);
    }

    /// Adds a port and keeps its counters.
    pub(crate) fn take_over_port(&mut self, id: PortId, port: P) {
        let index = id.0 as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(Slot {
            port,
            delivered: Traffic::default(),
            unflushed: 0,
            expected: 0,
            masked: false,
            rejects: RejectBudget::default(),
            limits: None,
            limited: false,
        });
    }

    /// Returns the slot of a port.
    #[inline]
    pub(crate) fn slot(&mut self, id: PortId) -> Option<&mut Slot<P>> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    /// Announces the frames of a batch to their receivers.
    pub(crate) fn expect(&mut self, groups: &[ActionBatch]) {
        let mut any_limited = false;
        for group in groups {
            if let Action::Unicast { port, .. } = group.action
                && let Some(slot) = self.slot(port)
                && slot.port.pairs() == 1
            {
                slot.expected += group.frames.len();
                any_limited |= slot.limited;
                self.lock_pair(port, 0);
            }
        }
        // Includes receivers that were flushed already while another queue lock was awaited.
        self.any_special = any_limited;
        for id in &self.touched {
            if let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) {
                slot.port.expect(0, std::mem::take(&mut slot.expected));
                slot.masked = slot.port.is_masked(0);
                self.any_special |= slot.masked;
            }
        }
    }

    /// Executes the actions of all frames of a batch.
    pub(crate) fn forward(
        &mut self,
        groups: &[ActionBatch],
        batch: &mut Batch,
        from: PortId,
        excluded: &ExcludeSets,
    ) {
        if self.taps.is_some() {
            self.forward_tapped(groups, batch, from, excluded)
        } else {
            self.forward_untapped(groups, batch, from, excluded)
        }
    }

    /// Executes the actions of all frames without taps. Not inlined: with one call site, the
    /// compiler inlines the whole path here.
    #[inline(never)]
    fn forward_untapped(
        &mut self,
        groups: &[ActionBatch],
        batch: &mut Batch,
        from: PortId,
        excluded: &ExcludeSets,
    ) {
        for group in groups {
            if self.any_special && self.forward_special(group, batch, from, excluded) {
                continue;
            }
            let mut frames = group.frames.clone();
            let ready = self.retag(group, batch);
            frames.start += self.deliver_unchanged(group.action, frames.start..ready, batch);
            if !frames.is_empty() {
                self.forward_rest((group.action, excluded), frames, ready, batch, from);
            }
        }
    }

    /// Executes the action of frames of which the first needs more than
    /// [`Fabric::deliver_unchanged`]. Not inlined: the common frames do not pay for it.
    #[inline(never)]
    fn forward_rest(
        &mut self,
        what: (Action, &ExcludeSets),
        mut frames: Range<usize>,
        ready: usize,
        batch: &mut Batch,
        from: PortId,
    ) {
        while let Some(index) = frames.next() {
            self.forward_one(what, index, batch, from);
            frames.start += self.deliver_unchanged(what.0, frames.start..ready, batch);
        }
    }

    /// Sets the egress tags of frames for a receiver with one queue, once per batch, even if the
    /// receiver is full. Returns the index of the first frame that was left unchanged.
    fn retag(&mut self, group: &ActionBatch, batch: &mut Batch) -> usize {
        let frames = group.frames.clone();
        let Action::Unicast { port: to, tag } = group.action else {
            return frames.start;
        };
        if self.slot(to).is_none_or(|slot| slot.port.pairs() != 1) {
            return frames.start;
        }
        if group.tagged || tag.is_some() {
            return frames.start + batch.retag(frames, tag);
        }
        frames.end
    }

    /// Delivers frames that need no change to a receiver with one queue, the most common case.
    /// Returns their number, up to the first frame that does not qualify.
    #[inline]
    fn deliver_unchanged(&mut self, action: Action, frames: Range<usize>, batch: &Batch) -> usize {
        let Action::Unicast { port: to, tag } = action else {
            return 0;
        };
        let Some(slot) = self.slots.get_mut(to.0 as usize).and_then(Option::as_mut) else {
            return 0;
        };
        if slot.port.pairs() != 1 || slot.unflushed == 0 {
            return 0;
        }
        let pieces = batch.pieces(frames, slot.port.mtu() + link_header(tag));
        let done = slot.port.deliver_pieces(0, pieces);
        slot.delivered.packets += done.packets;
        slot.delivered.bytes += done.bytes;
        done.packets as usize
    }

    /// Locks a receiver's queue pair until the flush. Before it waits for another worker it flushes
    /// and unlocks everything that it has locked.
    #[inline]
    fn lock_pair(&mut self, to: PortId, pair: u16) {
        let Some(slot) = self.slot(to) else {
            return;
        };
        if slot.unflushed & 1 << pair == 0 && !slot.port.hold(pair, false) {
            self.flush();
            if let Some(slot) = self.slot(to) {
                slot.port.hold(pair, true);
            }
        }
        let Some(slot) = self.slots.get_mut(to.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        if slot.unflushed == 0 {
            self.touched.push(to);
        }
        slot.unflushed |= 1 << pair;
    }

    /// Executes the action of a frame.
    #[inline(never)]
    pub(crate) fn execute(
        &mut self,
        action: Action,
        frame: FrameInTransit<'_>,
        excluded: &ExcludeSets,
    ) {
        self.execute_inline(action, frame, excluded);
    }

    /// Executes the action of a frame. Inlined in its most frequent caller.
    #[inline(always)]
    fn execute_inline(
        &mut self,
        action: Action,
        mut frame: FrameInTransit<'_>,
        excluded: &ExcludeSets,
    ) {
        let priority = strip_tag(frame.headers, &mut frame.offload);
        match action {
            Action::Unicast { port, tag } => self.deliver(port, tag, priority, frame),
            Action::Flood {
                segment,
                excluded: which,
            } => self.flood(segment, excluded.get(which.0), priority, frame),
            Action::Drop(reason) => {
                self.count_drop(frame.from, reason, 1);
                if reason == DropReason::AclRejected {
                    self.reject(priority, &frame);
                }
            }
        }
    }

    /// Delivers an untagged frame to one port, with the egress tag of the port.
    pub(crate) fn deliver(
        &mut self,
        to: PortId,
        tag: Option<u16>,
        priority: VlanTci,
        frame: FrameInTransit<'_>,
    ) {
        let Some(slot) = self.slots.get_mut(to.0 as usize).and_then(Option::as_mut) else {
            self.drop_at_receiver(to, DropReason::ReceiverDown, &frame);
            return;
        };
        // A second tag that became the outer one would move the frame to another segment.
        if tag.is_none() && frame.headers.vlan().is_some() {
            self.drop_at_sender(frame.from, DropReason::VlanNotAllowed);
            return;
        }
        let pairs = slot.port.pairs();
        if pairs == 0 {
            self.drop_at_receiver(to, DropReason::ReceiverDown, &frame);
            return;
        }
        let pair = if pairs == 1 {
            0
        } else {
            (spread(frame.headers.as_slice(), frame.payload.len()) % u64::from(pairs)) as u16
        };
        self.lock_pair(to, pair);
        let Some(slot) = self.slots.get_mut(to.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        if slot.port.is_masked(pair) {
            slot.masked = true;
            slot.port.note_dropped(pair, DropReason::ReceiverFull, 1);
            self.drop_at_receiver(to, DropReason::ReceiverFull, &frame);
            return;
        }
        if slot.limited && !slot.admits(frame.cost(), self.now) {
            slot.port.note_dropped(pair, DropReason::RateLimited, 1);
            self.drop_at_receiver(to, DropReason::RateLimited, &frame);
            return;
        }
        let mut offload = frame.offload;
        if let Some(vid) = tag {
            frame.headers.push_vlan(priority.with_vid(vid));
            offload = shifted(offload, i32::from(TAG));
        }
        let out = Outgoing {
            headers: frame.headers.as_slice(),
            payload: frame.payload,
            offload,
        };
        let link_header = link_header(tag);
        let lost = if offload::fits(&slot.port, &out, link_header) {
            match slot.port.deliver(pair, &out) {
                Ok(()) => {
                    slot.delivered.packets += 1;
                    slot.delivered.bytes += u64::from(out.len());
                    None
                }
                Err(reason) => {
                    slot.port.note_dropped(pair, reason, 1);
                    self.counters.add_drops(to, reason, 1);
                    Some(reason)
                }
            }
        } else {
            let done = self.fitter.deliver(&mut slot.port, pair, &out, link_header);
            slot.delivered.packets += done.traffic.packets;
            slot.delivered.bytes += done.traffic.bytes;
            done.lost.map(|(reason, frames)| {
                slot.port.note_dropped(pair, reason, frames);
                self.counters.add_drops(to, reason, frames);
                reason
            })
        };
        if self.taps.is_some() {
            self.emit_out(to, &out, lost);
        }
        if tag.is_some() {
            frame.headers.pop_vlan();
        }
    }

    /// Publishes the buffers of all receivers with queue pairs to flush.
    pub(crate) fn flush(&mut self) {
        while let Some(id) = self.touched.pop() {
            let Some(slot) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else {
                continue;
            };
            while slot.unflushed != 0 {
                let pair = slot.unflushed.trailing_zeros() as u16;
                slot.unflushed &= slot.unflushed - 1;
                if let Some(due) = slot.port.flush(pair, self.now) {
                    self.deferred.push((id, pair, due));
                }
                if self.served.len() < self.served.capacity() {
                    self.served.push((id, pair));
                }
            }
            slot.expected = 0;
            if std::mem::take(&mut slot.masked) {
                self.counters.add_masked(id);
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
}
