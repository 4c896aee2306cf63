//! Ports of a switch and the delivery of frames between them.

mod ports;
mod tapped;

use std::ops::Range;
use std::sync::Arc;

use ipc::egress::SenderQos;
use policy::{Action, Program, SegmentId};
use port::counters::{Counters, Ticks, Traffic};
use port::{DropReason, Offload, PortId};
use wire::flow::{FlowKey, FlowMask};
use wire::packet::ParsedHeaders;
use wire::vlan::{HeaderBuf, VlanTci};
use wire::{MacAddr, SNAPSHOT};

use crate::forward::classes::Classes;
use crate::forward::egress::Output;
use crate::forward::flow_batch::ActionBatch;
use crate::forward::limits::PortLimits;
use crate::forward::receive_shares::ReceiveShares;
use crate::forward::reject::RejectBudget;
use crate::forward::tap::Taps;
use crate::ports::batch::{Batch, SHALLOW};
use crate::ports::budget::Cost;
use crate::ports::calls::PendingCalls;
use crate::ports::offload::{self, Fitter};
use crate::ports::payload::{Outgoing, Payload};
use crate::ports::port::Port;
use flow_table::{CachedDecision, Class, ExcludeSets};

/// Ethernet header without tags, bytes.
const ETHERNET: u32 = 14;
const TAG: u16 = 4;
/// Number of receivers between which the cost of a batch is split at most. A batch has more only if
/// its flushes were interleaved with waits for other workers' queue locks.
const MAX_RECEIVERS: usize = 1024;
/// Queue pair of frames that came from none.
pub(crate) const NO_PAIR: u16 = u16::MAX;

/// Reason for which frames for a port are dropped without a delivery attempt.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Dropping {
    #[default]
    Nothing,
    /// A queue has no buffers, see [`Port::is_masked`].
    Masked,
    /// The port has had its share of copies, see [`ReceiveShares`].
    OverShare,
}

/// Port with its state of the batch in progress.
#[derive(Debug)]
pub(crate) struct Slot<P> {
    pub(crate) port: P,
    delivered: Traffic,
    /// Queue pairs that need a flush, one bit each.
    unflushed: u64,
    /// Frames of the batch that are announced by [`Fabric::expect`].
    expected: usize,
    /// Why frames of this batch are dropped without a delivery attempt.
    dropping: Dropping,
    /// Budget of replies to rejected frames.
    pub(crate) rejects: RejectBudget,
    pub(crate) limits: Option<Arc<PortLimits>>,
    /// Whether frames to this port are rate limited.
    limited: bool,
    /// The credit of its senders, where it is scheduled.
    pub(crate) output: Option<Arc<Output>>,
    /// Whether frames to this port may be refused: it is limited or scheduled.
    refuses: bool,
    /// Its settings as a sender to scheduled ports.
    pub(crate) qos: Option<Box<SenderQos>>,
}

/// Receiver of frames and the work of their delivery.
#[derive(Clone, Copy, Debug)]
struct Receiver {
    port: PortId,
    load: u64,
}

/// State of the batch in progress.
#[derive(Debug, Default)]
struct InProgress {
    /// Whether a receiver of this batch with one queue is masked, over its share or rate limited.
    any_special: bool,
    /// Reason for which the current frame was dropped before it reached a receiver.
    dropped_at_sender: Option<DropReason>,
}

/// Notifications of guests that are not sent yet.
#[derive(Debug)]
pub(crate) struct Notifications {
    /// Those that wait until no queue lock is held.
    calls: PendingCalls,
    /// Receivers with a deferred notification, and its due time.
    pub(crate) deferred: Vec<(PortId, u16, u64)>,
}

impl Default for Notifications {
    fn default() -> Self {
        Self {
            calls: PendingCalls::with_capacity(64),
            deferred: Vec::with_capacity(64),
        }
    }
}

/// State of the switch without the batch, so that both can be borrowed at once.
#[derive(Debug)]
pub(crate) struct Fabric<P> {
    /// Slots by port id.
    pub(crate) slots: Vec<Option<Slot<P>>>,
    /// Ports with queue pairs to flush.
    touched: Vec<PortId>,
    /// Whether the frames of the batch to scheduled ports are paid for; floods and copies are not.
    pub(crate) prepaid: bool,
    /// Queue pair from which the current frames were taken.
    pub(crate) serving: u16,
    /// Time of the current batch, nanoseconds of the monotonic clock.
    pub(crate) now: u64,
    /// Receivers of the last batches, up to the reserved capacity; see `Switch::next_served`.
    pub(crate) served: Vec<(PortId, u16)>,
    pub(crate) notifications: Notifications,
    in_progress: InProgress,
    /// Receivers that were flushed and are not charged yet.
    uncharged: Vec<Receiver>,
    pub(crate) shares: ReceiveShares,
    pub(crate) program: Program,
    pub(crate) classes: Classes,
    pub(crate) counters: Counters,
    /// Captures and mirrors, if there are any.
    pub(crate) taps: Option<Box<Taps>>,
    pub(crate) fitter: Fitter,
}

/// Frame on its way to receivers: private headers, payload in its sender's memory.
pub(crate) struct FrameInTransit<'a> {
    pub(crate) headers: &'a mut HeaderBuf,
    pub(crate) payload: &'a Payload<'a>,
    pub(crate) offload: Offload,
    pub(crate) from: PortId,
    pub(crate) class: Class,
}

impl<P: Port> Fabric<P> {
    /// Returns a fabric without ports, with a program that forwards nothing.
    pub(crate) fn new(counters: Counters) -> Self {
        Self {
            slots: Vec::new(),
            touched: Vec::with_capacity(64),
            prepaid: false,
            serving: NO_PAIR,
            now: 0,
            served: Vec::new(),
            notifications: Notifications::default(),
            in_progress: InProgress::default(),
            uncharged: Vec::with_capacity(64),
            shares: ReceiveShares::default(),
            program: Program::default(),
            classes: Classes::default(),
            counters,
            taps: None,
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
            dropping: Dropping::Nothing,
            rejects: RejectBudget::default(),
            limits: None,
            limited: false,
            output: None,
            refuses: false,
            qos: None,
        });
        self.shares.add(id);
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
        self.in_progress.any_special = any_limited;
        for id in &self.touched {
            if let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) {
                let frames = std::mem::take(&mut slot.expected);
                if slot.dropping == Dropping::Nothing {
                    slot.port.expect(0, frames);
                    if slot.port.is_masked(0) {
                        slot.dropping = Dropping::Masked;
                    }
                }
                self.in_progress.any_special |= slot.dropping != Dropping::Nothing;
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
            if self.in_progress.any_special && self.forward_special(group, batch, from, excluded) {
                continue;
            }
            let mut frames = group.frames.clone();
            let ready = self.retag(group, batch);
            frames.start += self.deliver_unchanged(group.action, frames.start..ready, batch);
            if !frames.is_empty() {
                self.forward_rest((group.decided(), excluded), frames, ready, batch, from);
            }
        }
    }

    /// Executes the action of frames of which the first needs more than
    /// [`Fabric::deliver_unchanged`]. Not inlined: the common frames do not pay for it.
    #[inline(never)]
    fn forward_rest(
        &mut self,
        what: (CachedDecision, &ExcludeSets),
        mut frames: Range<usize>,
        ready: usize,
        batch: &mut Batch,
        from: PortId,
    ) {
        frames.start += self.deliver_range(what.0.0, frames.start..ready, batch);
        while let Some(index) = frames.next() {
            self.forward_one(what, index, batch, from);
            frames.start += self.deliver_unchanged(what.0.0, frames.start..ready, batch);
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
        if group.is_tagged() || tag.is_some() {
            let ready = frames.start + batch.retag(frames.clone(), tag);
            self.mark(group, frames.start..ready, batch);
            return ready;
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

    /// As [`Fabric::deliver_unchanged`], to a port that takes no pieces.
    fn deliver_range(&mut self, action: Action, frames: Range<usize>, batch: &Batch) -> usize {
        let Action::Unicast { port: to, tag } = action else {
            return 0;
        };
        let Some(slot) = self.slots.get_mut(to.0 as usize).and_then(Option::as_mut) else {
            return 0;
        };
        if slot.port.pairs() != 1 || slot.unflushed == 0 {
            return 0;
        }
        let longest = slot.port.mtu() + link_header(tag);
        let Some(done) = slot.port.deliver_range(0, batch, frames, longest) else {
            return 0;
        };
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
            if self.shares.is_over(to) {
                slot.dropping = Dropping::OverShare;
            }
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
            slot.dropping = Dropping::Masked;
            slot.port.note_dropped(pair, DropReason::ReceiverFull, 1);
            self.drop_at_receiver(to, DropReason::ReceiverFull, &frame);
            return;
        }
        if (slot.refuses | (slot.dropping == Dropping::OverShare))
            && let Some(reason) = slot.refuses(&frame, tag, (self.prepaid, self.now))
        {
            slot.port.note_dropped(pair, reason, 1);
            self.drop_at_receiver(to, reason, &frame);
            return;
        }
        let mut offload = frame.offload;
        if let Some(vid) = tag {
            let priority = self.classes.remarked(priority, frame.class, &self.taps);
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

    /// Delivers a frame to all members of its segment except the excluded ones. The payload
    /// checksums of a TSO frame are computed once for all receivers.
    #[inline(never)]
    fn flood(
        &mut self,
        segment: SegmentId,
        excluded: &[PortId],
        priority: VlanTci,
        frame: FrameInTransit<'_>,
    ) {
        if self.exceeds_storm_limit(&frame) {
            self.drop_at_sender(frame.from, DropReason::StormControl);
            return;
        }
        let is_cut = frame.offload.gso.is_some();
        if is_cut {
            self.fitter.keep_sums(true);
        }
        let prepaid = std::mem::take(&mut self.prepaid);
        let members = self.program.members(segment).len();
        let mut receivers = 0;
        for at in 0..members {
            let member = self.program.members(segment)[at];
            if member.port == frame.from {
                continue;
            }
            if excluded.binary_search(&member.port).is_ok() {
                self.drop_at_receiver(member.port, DropReason::AclExcluded, &frame);
                continue;
            }
            receivers += 1;
            let again = FrameInTransit {
                headers: &mut *frame.headers,
                ..frame
            };
            self.deliver(member.port, member.tag, priority, again);
        }
        self.prepaid = prepaid;
        if is_cut {
            self.fitter.keep_sums(false);
        }
        if receivers == 0 {
            self.drop_at_sender(frame.from, DropReason::NoReceiver);
        }
    }

    /// Executes the action of one frame of a batch.
    #[inline(always)]
    fn forward_one(
        &mut self,
        ((action, class), excluded): (CachedDecision, &ExcludeSets),
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
            class,
        };
        self.execute_inline(action, frame, excluded);
    }

    /// Handles frames for a receiver with one queue that is masked or over its share (all at once)
    /// or rate limited (one by one). Returns `false` if it is neither.
    #[cold]
    fn forward_special(
        &mut self,
        group: &ActionBatch,
        batch: &mut Batch,
        from: PortId,
        excluded: &ExcludeSets,
    ) -> bool {
        if self.drop_at_once(group) {
            return true;
        }
        let Action::Unicast { port: to, .. } = group.action else {
            return false;
        };
        let limited = self.slot(to).is_some_and(|slot| slot.limited);
        if limited {
            for index in group.frames.clone() {
                self.forward_one((group.decided(), excluded), index, batch, from);
            }
        }
        limited
    }

    /// Drops all frames for a receiver with one queue that is masked or over its share. Returns
    /// `false` if it is neither.
    fn drop_at_once(&mut self, group: &ActionBatch) -> bool {
        let Action::Unicast { port: to, .. } = group.action else {
            return false;
        };
        let Some(slot) = self.slots.get_mut(to.0 as usize).and_then(Option::as_mut) else {
            return false;
        };
        let reason = match slot.dropping {
            Dropping::Masked => DropReason::ReceiverFull,
            Dropping::OverShare if slot.port.pairs() == 1 => DropReason::ReceiveShare,
            _ => return false,
        };
        let frames = group.frames.len() as u64;
        slot.port.note_dropped(0, reason, frames);
        self.counters.add_drops(to, reason, frames);
        true
    }

    /// Returns whether a flooded frame exceeds the storm control limit of its sender.
    fn exceeds_storm_limit(&mut self, frame: &FrameInTransit<'_>) -> bool {
        let (now, cost) = (self.now, frame.cost());
        let to = frame.headers.first().copied().map(MacAddr);
        let slot = self.slots.get(frame.from.0 as usize);
        let limits = slot.and_then(|slot| slot.as_ref()?.limits.as_deref());
        limits.is_some_and(|limits| !limits.admits_flood(to.unwrap_or(MacAddr::ZERO), cost, now))
    }

    /// Counts frames of the current queue pair as dropped because of their sender or the policy.
    #[inline(never)]
    pub(crate) fn count_drop(&mut self, from: PortId, reason: DropReason, frames: u64) {
        self.counters.add_drops(from, reason, frames);
        let pair = self.serving;
        if let Some(slot) = self.slot(from) {
            slot.port.note_refused(pair, reason, frames);
        }
    }

    /// Returns whether frames were delivered whose receivers are not charged yet.
    #[inline]
    pub(crate) fn has_receivers(&self) -> bool {
        !self.uncharged.is_empty()
    }

    /// Charges the cycles since the last call to the receivers of the flushed frames; `backlogged`:
    /// their sender, if it has more frames than these. Returns the main receiver; `None` if there
    /// were none.
    pub(crate) fn charge_receivers(
        &mut self,
        copying: u64,
        backlogged: Option<PortId>,
    ) -> Option<PortId> {
        let ticks = |copying| Ticks {
            switching: 0,
            copying,
        };
        let main = match self.uncharged.as_slice() {
            [] => return None,
            [one] => {
                self.counters.add_ticks(one.port, ticks(copying));
                self.shares.charge(one.port, copying);
                one.port
            }
            many => {
                let total: u64 = many.iter().map(|receiver| receiver.load).sum();
                let mut main = many[0];
                for receiver in many {
                    let part = u128::from(copying) * u128::from(receiver.load) / u128::from(total);
                    self.counters.add_ticks(receiver.port, ticks(part as u64));
                    self.shares.charge(receiver.port, part as u64);
                    if receiver.load > main.load {
                        main = *receiver;
                    }
                }
                main.port
            }
        };
        if let Some(sender) = backlogged {
            self.shares.note_backlog(main, sender);
        }
        self.uncharged.clear();
        Some(main)
    }

    /// Sends the reply to a rejected frame, which came with this tag.
    #[cold]
    pub(crate) fn reject(&mut self, tag: VlanTci, frame: &FrameInTransit<'_>) {
        let (from, now) = (frame.from, self.now);
        if !self
            .slot(from)
            .is_some_and(|slot| slot.rejects.has_room(now))
        {
            return;
        }
        let headers = frame.headers.as_slice();
        let whole = headers.len() + frame.payload.len() as usize;
        let (held, end) = (headers.len().min(SNAPSHOT), whole.min(SNAPSHOT));
        let mut bytes = [0; SNAPSHOT];
        bytes[..held].copy_from_slice(&headers[..held]);
        frame.payload.cursor().read(&mut bytes[held..end]);
        // The reply is allocated, as often as the budget permits: checked before.
        let Some(reply) = policy::reject::refusal(&bytes[..end], whole) else {
            return;
        };
        if let Some(slot) = self.slot(from) {
            slot.rejects.note_reply();
        }
        self.deliver_generated(from, Some(tag.vid), &reply);
    }

    /// Delivers an untagged frame that the switch generated, at most as long as the header buffer,
    /// in reply to a frame of this port with this tag.
    pub(crate) fn deliver_generated(&mut self, to: PortId, tag: Option<u16>, frame: &[u8]) {
        let mut headers = HeaderBuf::default();
        headers.fill(frame.len()).copy_from_slice(frame);
        let own = FrameInTransit {
            headers: &mut headers,
            payload: &Payload::empty(),
            offload: Offload::default(),
            from: to,
            class: Class::default(),
        };
        let tag = tag.filter(|vid| *vid != 0);
        self.deliver(to, tag, VlanTci::new(0), own);
    }

    /// Returns all fields that a decision may look at. A frame that is decided alone must not share
    /// its key with another: it is numbered in the ports, which ICMPv6 does not have.
    pub(crate) fn exact_key(
        &self,
        from: PortId,
        headers: &[u8],
        len: usize,
        number: u64,
    ) -> FlowKey {
        let key = FlowKey::new(from.0, &ParsedHeaders::parse(headers, len));
        let security = self.program.port_security(from);
        if security.is_open() {
            return key;
        }
        let frame_class = policy::frame_class::classify(headers, len);
        let key = key.with_frame_class(frame_class);
        if security.needs_upcalls(&key) {
            key.with_l4_ports((number >> 16) as u16, number as u16)
        } else {
            key
        }
    }
}

impl FrameInTransit<'_> {
    /// Returns the cost of the frame on the wire.
    fn cost(&self) -> Cost {
        self.padded_cost(0)
    }

    /// Returns the same behind a link that pads frames to `shortest` bytes.
    fn padded_cost(&self, shortest: u32) -> Cost {
        let len = self.headers.len() as u32 + self.payload.len();
        Cost::of_padded(len, &self.offload, shortest)
    }
}

/// Returns a hash of the frame's conversation: all frames of a conversation take the same queue
/// pair. Used only for receivers with more than one pair.
#[inline(never)]
fn spread(headers: &[u8], payload_len: u32) -> u64 {
    let frame_len = headers.len() + payload_len as usize;
    // The hash must not depend on how deep the head was copied, nor on a tag in it.
    let headers = &headers[..headers.len().min(SHALLOW - usize::from(TAG))];
    let key = FlowKey::new(0, &ParsedHeaders::parse(headers, frame_len));
    key.masked(&FlowMask::CONVERSATION).hash(0) >> 32
}

/// Returns the length of the link header of a frame with this egress tag.
fn link_header(tag: Option<u16>) -> u32 {
    ETHERNET + if tag.is_some() { u32::from(TAG) } else { 0 }
}

/// Pops the outer tag. Returns its TCI, whose priority is kept for a tagged egress.
#[inline]
fn strip_tag(headers: &mut HeaderBuf, offload: &mut Offload) -> VlanTci {
    match headers.pop_vlan() {
        Some(tci) => {
            *offload = shifted(*offload, -i32::from(TAG));
            tci
        }
        None => VlanTci::new(0),
    }
}

/// Returns the offload after the network header moved by so many bytes.
fn shifted(mut offload: Offload, by: i32) -> Offload {
    let shift = |v: u16| (i32::from(v) + by) as u16;
    if let Some(checksum) = &mut offload.checksum {
        checksum.start = shift(checksum.start);
    }
    if let Some(gso) = &mut offload.gso {
        gso.header_len = shift(gso.header_len);
    }
    offload
}
