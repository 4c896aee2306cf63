//! The ports of a switch, and how one frame gets from one of them to others.

mod flood;
mod limited;
mod lost;
mod paying;
mod spread;
mod tags;
mod watched;

use std::ops::Range;
use std::sync::Arc;

use memory::engine::Copier;
use policy::{Action, Program};
use port::counters::{Counters, Traffic};
use port::{Batch, DropReason, Offload, Outgoing, Payload, Port, PortId};
use wire::vlan::{HeaderBuf, VlanTci};

use crate::flow_table::LeftOutLists;
use crate::limits::PortLimits;
use crate::offload::{self, Fitter};
use crate::refuse::Told;
use crate::runs::Run;
use crate::switch::BYTES_PER_LOAD;
use crate::watch::Watch;

pub(crate) use lost::NO_PAIR;
use spread::spread;
use tags::{link_header, shifted, strip_tag};

/// Ethernet header without tags, bytes.
const ETHERNET: u32 = 14;
const TAG: u16 = 4;
/// Receivers that a batch's cost is split between at most. More come of a batch that other workers hold up again and
/// again.
const MAX_PAYERS: usize = 1024;

/// A port with what one batch did to it.
#[derive(Debug)]
pub(crate) struct Slot<P> {
    pub(crate) port: P,
    delivered: Traffic,
    /// Queue pairs that wait for a flush, one bit each.
    unflushed: u64,
    /// Frames of the batch that will come.
    expected: usize,
    /// Frames were dropped untried, see [`Port::is_masked`].
    masked: bool,
    /// Of rejected frames.
    pub(crate) told: Told,
    pub(crate) limits: Option<Arc<PortLimits>>,
    /// Those frames are limited that it is sent.
    limited: bool,
}

/// Who got frames, and how much work that was.
#[derive(Clone, Copy, Debug)]
struct Payer {
    port: PortId,
    load: u64,
}

/// Everything but the frames' source, so that both can be borrowed at once.
#[derive(Debug)]
pub(crate) struct Fabric<P> {
    /// By port id.
    pub(crate) slots: Vec<Option<Slot<P>>>,
    /// Ports with something to flush.
    touched: Vec<PortId>,
    /// The queue pair that the frames in hand came by.
    pub(crate) serving: u16,
    /// Nanoseconds of the machine's monotonic clock, of the batch that is served.
    pub(crate) now: u64,
    /// Receivers of the last batches, as far as somebody is to ask: as many as there is room for.
    pub(crate) served: Vec<(PortId, u16)>,
    /// Receivers that are to be notified later, and when.
    pub(crate) late: Vec<(PortId, u16, u64)>,
    /// A receiver of this batch with one queue is masked, or limited.
    any_special: bool,
    /// Of what was flushed and is not paid for yet.
    payers: Vec<Payer>,
    /// Ports with something that waits for copies.
    unsettled: Vec<PortId>,
    /// What copies long frames, where it is not the processor: for ports that are to be added.
    pub(crate) copier: Option<Copier>,
    pub(crate) program: Program,
    pub(crate) counters: Counters,
    /// Who looks on, if anybody does.
    pub(crate) watch: Option<Box<Watch>>,
    /// Why the frame in hand was lost before it came to a receiver.
    lost_at_sender: Option<DropReason>,
    pub(crate) fitter: Fitter,
}

/// A frame in hand: private headers, payload still at its sender.
pub(crate) struct InHand<'a> {
    pub(crate) headers: &'a mut HeaderBuf,
    pub(crate) payload: &'a Payload<'a>,
    pub(crate) offload: Offload,
    pub(crate) from: PortId,
}

impl<P: Port> Fabric<P> {
    /// Without ports and with a program that forwards nothing.
    pub(crate) fn new(counters: Counters) -> Self {
        Self {
            slots: Vec::new(),
            touched: Vec::with_capacity(64),
            serving: NO_PAIR,
            now: 0,
            served: Vec::new(),
            late: Vec::with_capacity(64),
            any_special: false,
            payers: Vec::with_capacity(64),
            unsettled: Vec::new(),
            copier: None,
            program: Program::default(),
            counters,
            watch: None,
            lost_at_sender: None,
            fitter: Fitter::default(),
        }
    }

    /// Puts a port in its place, with its counters at zero.
    pub(crate) fn add_port(&mut self, id: PortId, port: P) {
        self.counters.clear(id);
        self.take_over_port(id, port);
    }

    /// Adds a port whose counters go on.
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
            told: Told::default(),
            limits: None,
            limited: false,
        });
    }

    /// The port, if there is one of this number.
    #[inline]
    pub(crate) fn slot(&mut self, id: PortId) -> Option<&mut Slot<P>> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    /// Tells the receivers of a batch what is coming.
    pub(crate) fn expect(&mut self, runs: &[Run]) {
        let mut any_limited = false;
        for run in runs {
            if let Action::Unicast { port, .. } = run.action
                && let Some(slot) = self.slot(port)
                && slot.port.pairs() == 1
            {
                slot.expected += run.frames.len();
                any_limited |= slot.limited;
                self.touch(port, 0);
            }
        }
        // Also of a receiver that is not touched any more: others had to be waited for.
        self.any_special = any_limited;
        for id in &self.touched {
            if let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) {
                slot.port.expect(0, std::mem::take(&mut slot.expected));
                slot.masked = slot.port.is_masked(0);
                self.any_special |= slot.masked;
            }
        }
    }

    /// Does to all frames of a batch what their flows say.
    pub(crate) fn execute_runs(
        &mut self,
        runs: &[Run],
        batch: &mut Batch,
        from: PortId,
        left_out: &LeftOutLists,
    ) {
        match self.watch.is_some() {
            true => self.execute_runs_seen(runs, batch, from, left_out),
            false => self.execute_runs_unseen(runs, batch, from, left_out),
        }
    }

    /// The same where nobody looks on. Not inlined: with one place that takes this way, all of it is inlined here.
    #[inline(never)]
    fn execute_runs_unseen(
        &mut self,
        runs: &[Run],
        batch: &mut Batch,
        from: PortId,
        left_out: &LeftOutLists,
    ) {
        for run in runs {
            if self.any_special && self.execute_special(run, batch, from, left_out) {
                continue;
            }
            let mut frames = run.frames.clone();
            let ready = self.retag(run, batch);
            frames.start += self.pass_on(run.action, frames.start..ready, batch);
            if !frames.is_empty() {
                self.execute_rest((run.action, left_out), frames, ready, batch, from);
            }
        }
    }

    /// Does what a flow says to frames of which the first cannot be passed on as it is, and to no other of a batch. Not inlined:
    /// so those that can be do not pay for it.
    #[inline(never)]
    fn execute_rest(
        &mut self,
        what: (Action, &LeftOutLists),
        mut frames: Range<usize>,
        ready: usize,
        batch: &mut Batch,
        from: PortId,
    ) {
        while let Some(index) = frames.next() {
            self.execute_one(what, index, batch, from);
            frames.start += self.pass_on(what.0, frames.start..ready, batch);
        }
    }

    /// Gives frames for a receiver with one queue the tags that they go out with, in one go and once, however often
    /// that receiver is full. Returns the index of the first one that was left as it is.
    fn retag(&mut self, run: &Run, batch: &mut Batch) -> usize {
        let frames = run.frames.clone();
        let Action::Unicast { port: to, tag } = run.action else {
            return frames.start;
        };
        if self.slot(to).is_none_or(|slot| slot.port.pairs() != 1) {
            return frames.start;
        }
        if run.tagged || tag.is_some() {
            return frames.start + batch.retag(frames, tag);
        }
        frames.end
    }

    /// Delivers frames that need no change to a receiver with one queue: almost every frame. Returns how many it
    /// did, up to the first one that is not of this kind.
    #[inline]
    fn pass_on(&mut self, action: Action, frames: Range<usize>, batch: &Batch) -> usize {
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

    /// Gets hold of a receiver's queue pair, until the flush. Who waits for another worker holds nothing: what was
    /// delivered so far is flushed before.
    #[inline]
    fn touch(&mut self, to: PortId, pair: u16) {
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

    /// Does to a frame what its flow says.
    #[inline(never)]
    pub(crate) fn execute(&mut self, action: Action, frame: InHand<'_>, left_out: &LeftOutLists) {
        self.execute_here(action, frame, left_out);
    }

    /// The same in the place that calls it: for the one through which almost all frames go that cannot be dealt with together.
    #[inline(always)]
    fn execute_here(&mut self, action: Action, mut frame: InHand<'_>, left_out: &LeftOutLists) {
        let priority = strip_tag(frame.headers, &mut frame.offload);
        match action {
            Action::Unicast { port, tag } => self.deliver(port, tag, priority, frame),
            Action::Flood {
                segment,
                left_out: which,
            } => self.flood(segment, left_out.get(which.0), priority, frame),
            Action::Drop(reason) => {
                self.count_lost(frame.from, reason, 1);
                if reason == DropReason::AclRejected {
                    self.refuse(priority, &frame);
                }
            }
        }
    }

    /// Delivers an untagged frame to one port, with the tag that the port wants.
    pub(crate) fn deliver(
        &mut self,
        to: PortId,
        tag: Option<u16>,
        priority: VlanTci,
        frame: InHand<'_>,
    ) {
        let Some(slot) = self.slots.get_mut(to.0 as usize).and_then(Option::as_mut) else {
            self.lose_at_receiver(to, DropReason::ReceiverDown, &frame);
            return;
        };
        // A second tag that went out first would move the frame to that tag's segment.
        if tag.is_none() && frame.headers.vlan().is_some() {
            self.lose_at_sender(frame.from, DropReason::VlanNotAllowed);
            return;
        }
        let pairs = slot.port.pairs();
        if pairs == 0 {
            self.lose_at_receiver(to, DropReason::ReceiverDown, &frame);
            return;
        }
        let pair = if pairs == 1 {
            0
        } else {
            (spread(frame.headers.as_slice(), frame.payload.len()) % u64::from(pairs)) as u16
        };
        self.touch(to, pair);
        let Some(slot) = self.slots.get_mut(to.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        if slot.port.is_masked(pair) {
            slot.masked = true;
            slot.port.note_dropped(pair, DropReason::ReceiverFull, 1);
            self.lose_at_receiver(to, DropReason::ReceiverFull, &frame);
            return;
        }
        if slot.limited && !slot.may_get(frame.cost(), self.now) {
            slot.port.note_dropped(pair, DropReason::RateLimited, 1);
            self.lose_at_receiver(to, DropReason::RateLimited, &frame);
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
        if self.watch.is_some() {
            self.show_out(to, &out, lost);
        }
        if tag.is_some() {
            frame.headers.pop_vlan();
        }
    }

    /// Notes whether something of a sender waits for copies.
    #[inline]
    pub(crate) fn note_unsettled(&mut self, id: PortId) {
        if self.slot(id).is_some_and(|slot| !slot.port.is_settled()) {
            note(&mut self.unsettled, id);
        }
    }

    /// Whether nothing waits for copies.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Lets everybody have what was copied meanwhile. Nothing is held then.
    #[cold]
    pub(crate) fn settle(&mut self) {
        let (slots, late, now) = (&mut self.slots, &mut self.late, self.now);
        self.unsettled.retain(|id| {
            let slot = slots.get_mut(id.0 as usize).and_then(Option::as_mut);
            let mut note = |pair, due| late.push((*id, pair, due));
            slot.is_some_and(|slot| !slot.port.settle(now, &mut note))
        });
    }

    /// Publishes to every receiver that was touched.
    pub(crate) fn flush(&mut self) {
        while let Some(id) = self.touched.pop() {
            let Some(slot) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else {
                continue;
            };
            while slot.unflushed != 0 {
                let pair = slot.unflushed.trailing_zeros() as u16;
                slot.unflushed &= slot.unflushed - 1;
                if let Some(due) = slot.port.flush(pair, self.now) {
                    self.late.push((id, pair, due));
                }
                if self.served.len() < self.served.capacity() {
                    self.served.push((id, pair));
                }
            }
            if !slot.port.is_settled() {
                note(&mut self.unsettled, id);
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
            if self.payers.len() < MAX_PAYERS {
                let load = packets + bytes / BYTES_PER_LOAD;
                self.payers.push(Payer { port: id, load });
            }
        }
    }
}

#[cold]
fn note(unsettled: &mut Vec<PortId>, id: PortId) {
    if !unsettled.contains(&id) {
        unsettled.push(id);
    }
}
