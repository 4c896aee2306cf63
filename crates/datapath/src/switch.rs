//! The switch itself: ports, flow cache and program, without threads, sockets or time of its own.
//!
//! One call of [`Switch::serve`] moves one batch, in this order:
//!
//! ```text
//! take      lease up to 64 frames from one from-guest queue
//! key       parse each header snapshot, check what the sender left undone
//! match     look the key up in the flow cache; frames without a flow are parked, control is asked
//! deliver   copy to the receivers' buffers, once, in the form they take
//! flush     publish to all receivers of the batch, notify them
//! release   give the sender its buffers back
//! ```

use channel::records::{Answer, Upcall, key_from_words, mask_from_words};
use channel::switching::{FlowRecord, SwitchFigures};
use policy::{Action, Program, SegmentId};
use port::counters::{Counters, Traffic};
use port::{Batch, DropReason, Offload, Outgoing, Payload, Port, PortId};
use wire::flow::FlowKey;
use wire::packet::Parsed;
use wire::vlan::{HeaderBuf, VlanTci};

use crate::flow_table::FlowTable;
use crate::offload::{self, Fitter};
use crate::parking::{Parked, ParkedFrame, Parking, Waiting};

/// Flows that the cache holds for each mask.
pub const FLOWS: usize = 65_536;

/// Ethernet header without tags, bytes.
const ETHERNET: u32 = 14;
const TAG: u16 = 4;

/// Where upcalls go; the ring to control, or a test's list.
pub trait UpcallSink {
    /// Sends one; `false` when there is no room or nobody there. It is asked again later.
    fn send(&mut self, upcall: &Upcall) -> bool;
}

/// A port with what one batch did to it.
#[derive(Debug)]
struct Slot<P> {
    port: P,
    delivered: Traffic,
    /// Queue pairs that wait for a flush, one bit each.
    unflushed: u64,
}

/// Everything but the frames' source, so that both can be borrowed at once.
#[derive(Debug)]
struct Fabric<P> {
    /// By port id.
    slots: Vec<Option<Slot<P>>>,
    /// Ports with something to flush.
    touched: Vec<PortId>,
    program: Program,
    counters: Counters,
    fitter: Fitter,
}

/// See the module.
#[derive(Debug)]
pub struct Switch<P> {
    fabric: Fabric<P>,
    flows: FlowTable,
    parking: Parking,
    batch: Batch,
    figures: SwitchFigures,
}

/// A frame in hand: private headers, payload still at its sender.
struct InHand<'a> {
    headers: &'a mut HeaderBuf,
    payload: Payload<'a>,
    offload: Offload,
    from: PortId,
    hash: u64,
}

impl<P: Port> Switch<P> {
    /// A switch without ports. `seed` keys the flow cache's hash.
    #[must_use]
    pub fn new(counters: Counters, seed: u64) -> Self {
        Self {
            fabric: Fabric {
                slots: Vec::new(),
                touched: Vec::with_capacity(64),
                program: Program::default(),
                counters,
                fitter: Fitter::default(),
            },
            flows: FlowTable::new(FLOWS, seed),
            parking: Parking::default(),
            batch: Batch::new(),
            figures: SwitchFigures::default(),
        }
    }

    /// Adds a port under a new id, with its counters at zero.
    pub fn add_port(&mut self, id: PortId, port: P) {
        let index = id.0 as usize;
        if self.fabric.slots.len() <= index {
            self.fabric.slots.resize_with(index + 1, || None);
        }
        self.fabric.counters.clear(id);
        self.fabric.slots[index] = Some(Slot {
            port,
            delivered: Traffic::default(),
            unflushed: 0,
        });
    }

    /// Takes a port out, with every flow from and to it and every frame of it that waits.
    pub fn remove_port(&mut self, id: PortId) -> Option<P> {
        let slot = self.fabric.slots.get_mut(id.0 as usize)?.take()?;
        self.parking.forget_port(id);
        self.flows.remove_if(|key, action| {
            key.in_port() == id.0 || matches!(action, Action::Unicast { port, .. } if *port == id)
        });
        Some(slot.port)
    }

    /// A port, to change it.
    pub fn port_mut(&mut self, id: PortId) -> Option<&mut P> {
        Some(&mut self.fabric.slot(id)?.port)
    }

    /// Replaces the program. Cached flows stay: control removes those that it changed its mind about.
    pub fn set_program(&mut self, program: Program) {
        self.fabric.program = program;
    }

    /// The running program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.fabric.program
    }

    /// All cached flows.
    #[must_use]
    pub fn flow_records(&self, now: u64) -> Vec<FlowRecord> {
        self.flows.records(now)
    }

    /// Figures of the whole switch.
    #[must_use]
    pub fn figures(&self) -> SwitchFigures {
        SwitchFigures {
            flows: self.flows.len() as u64,
            parked: self.parking.len() as u64,
            ..self.figures
        }
    }

    /// Whether frames wait for control.
    #[must_use]
    pub fn has_parked(&self) -> bool {
        !self.parking.is_empty()
    }

    /// Moves one batch from a port's queue pair. `false` when nothing waited there. `now` is in
    /// milliseconds.
    pub fn serve(&mut self, id: PortId, pair: u16, now: u64, upcalls: &mut dyn UpcallSink) -> bool {
        let Some(slot) = self.fabric.slot(id) else {
            return false;
        };
        self.batch.clear();
        slot.port.take(pair, &mut self.batch);
        if self.batch.is_untouched() {
            return false;
        }
        self.fabric.counters.add_from(id, self.batch.taken());
        for (reason, frames) in self.batch.drops() {
            self.fabric.counters.add_drops(id, reason, frames);
        }
        for index in 0..self.batch.frames().len() {
            self.switch_frame(index, id, now, upcalls);
        }
        self.fabric.flush();
        self.batch.clear();
        if let Some(slot) = self.fabric.slot(id) {
            slot.port.release(pair);
        }
        true
    }

    /// Switches a frame of our own as if `from` had sent it.
    pub fn inject(&mut self, from: PortId, frame: &[u8], now: u64, upcalls: &mut dyn UpcallSink) {
        self.batch.clear();
        let mut bytes = frame.to_vec();
        self.batch.segments_mut().push(memory::Segment {
            ptr: bytes.as_mut_ptr(),
            len: bytes.len() as u32,
            gpa: 0,
        });
        // SAFETY: the segment is `bytes`, which outlives the batch's use below and is not touched.
        unsafe {
            self.batch
                .push(0..1, 0, frame.len() as u32, Offload::default())
        };
        self.switch_frame(0, from, now, upcalls);
        self.fabric.flush();
        self.batch.clear();
    }

    fn switch_frame(&mut self, index: usize, from: PortId, now: u64, upcalls: &mut dyn UpcallSink) {
        let len = self.batch.frames()[index].len();
        let (headers, payload, mut offload) = self.batch.split(index);
        let parsed = Parsed::parse(headers.as_slice(), len as usize);
        if let Err(reason) = offload::check(headers.as_slice(), len, &parsed, &mut offload) {
            self.fabric.counters.add_drops(from, reason, 1);
            return;
        }
        let key = FlowKey::new(from.0, &parsed);
        let action = self.flows.lookup(&key, now);
        let frame = InHand {
            headers,
            payload,
            offload,
            from,
            hash: spread(&key),
        };
        match action {
            Some(action) => {
                self.figures.hits += 1;
                self.fabric.execute(action, frame);
            }
            None => {
                self.figures.misses += 1;
                self.ask(index, &key, offload, now, upcalls);
            }
        }
    }

    /// Parks a frame and asks control about it.
    #[cold]
    fn ask(
        &mut self,
        index: usize,
        key: &FlowKey,
        offload: Offload,
        now: u64,
        upcalls: &mut dyn UpcallSink,
    ) {
        let (headers, payload, _) = self.batch.split(index);
        let len = headers.as_slice().len() + payload.len() as usize;
        let parked = self.parking.park(key, len, now, || {
            let mut copy = HeaderBuf::default();
            copy.fill(headers.as_slice().len())
                .copy_from_slice(headers.as_slice());
            let mut rest = Vec::new();
            payload.append_to(&mut rest);
            ParkedFrame {
                headers: copy,
                payload: rest,
                offload,
            }
        });
        match parked {
            Parked::Behind => {}
            Parked::Full => {
                let from = PortId(key.in_port());
                self.fabric
                    .counters
                    .add_drops(from, DropReason::UpcallFull, 1);
            }
            Parked::Ask(id) => {
                self.figures.upcalls += 1;
                upcalls.send(&Upcall {
                    id,
                    key: *key.words(),
                    frame_len: len as u32,
                    headers: headers.as_slice().to_vec(),
                });
            }
        }
    }

    /// Asks all open questions again: control is new, or may have missed some.
    pub fn ask_again(&mut self, upcalls: &mut dyn UpcallSink) {
        for (id, waiting) in self.parking.open() {
            let Some(first) = waiting.frames.first() else {
                continue;
            };
            let sent = upcalls.send(&Upcall {
                id,
                key: *waiting.key.words(),
                frame_len: first.bytes() as u32,
                headers: first.headers.as_slice().to_vec(),
            });
            if !sent {
                return;
            }
        }
    }

    /// Follows one answer of control.
    pub fn answer(&mut self, answer: Answer, now: u64) {
        match answer {
            Answer::Install {
                upcall,
                key,
                mask,
                action,
                segment,
            } => {
                self.flows.install_words(&key, &mask, action, segment, now);
                if let Some(waiting) = upcall.and_then(|id| self.parking.release(id)) {
                    self.execute_parked(action, waiting);
                }
            }
            Answer::Once { upcall, action } => {
                if let Some(waiting) = self.parking.release(upcall) {
                    self.execute_parked(action, waiting);
                }
            }
            Answer::Remove { key, mask } => {
                self.flows
                    .remove(&key_from_words(&key), &mask_from_words(&mask));
            }
        }
    }

    fn execute_parked(&mut self, action: Action, waiting: Waiting) {
        let (from, hash) = (waiting.port(), spread(&waiting.key));
        for mut frame in waiting.frames {
            let segments = [memory::Segment {
                ptr: frame.payload.as_mut_ptr(),
                len: frame.payload.len() as u32,
                gpa: 0,
            }];
            let len = frame.payload.len() as u32;
            // SAFETY: the segment is the frame's own buffer, which lives to the end of this turn of the
            // loop and is not touched otherwise.
            let payload = unsafe { Payload::new(&segments, 0, len) };
            self.fabric.execute(
                action,
                InHand {
                    headers: &mut frame.headers,
                    payload,
                    offload: frame.offload,
                    from,
                    hash,
                },
            );
        }
        self.fabric.flush();
    }

    /// Drops what has waited too long for control, by name.
    pub fn expire(&mut self, now: u64) {
        for waiting in self.parking.expire(now) {
            self.fabric.counters.add_drops(
                waiting.port(),
                DropReason::UpcallTimeout,
                waiting.frames.len() as u64,
            );
        }
    }
}

/// Spreads flows over a receiver's queue pairs; the same flow always takes the same one.
fn spread(key: &FlowKey) -> u64 {
    key.with_in_port(0).hash(0) >> 32
}

impl<P: Port> Fabric<P> {
    #[inline]
    fn slot(&mut self, id: PortId) -> Option<&mut Slot<P>> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    #[inline]
    fn execute(&mut self, action: Action, mut frame: InHand<'_>) {
        let priority = strip_tag(&mut frame);
        match action {
            Action::Unicast { port, tag } => self.deliver(port, tag, priority, &mut frame),
            Action::Flood { segment } => self.flood(segment, priority, &mut frame),
            Action::Drop(reason) => self.counters.add_drops(frame.from, reason, 1),
        }
    }

    fn flood(&mut self, segment: SegmentId, priority: VlanTci, frame: &mut InHand<'_>) {
        let members = self.program.members(segment).len();
        let mut receivers = 0;
        for at in 0..members {
            let member = self.program.members(segment)[at];
            if member.port != frame.from {
                receivers += 1;
                self.deliver(member.port, member.tag, priority, frame);
            }
        }
        if receivers == 0 {
            self.counters
                .add_drops(frame.from, DropReason::NoReceiver, 1);
        }
    }

    /// Delivers an untagged frame to one port, with the tag that the port wants.
    #[inline]
    fn deliver(&mut self, to: PortId, tag: Option<u16>, priority: VlanTci, frame: &mut InHand<'_>) {
        let Some(slot) = self.slots.get_mut(to.0 as usize).and_then(Option::as_mut) else {
            self.counters.add_drops(to, DropReason::ReceiverDown, 1);
            return;
        };
        // A second tag that went out first would move the frame to that tag's segment.
        if tag.is_none() && frame.headers.vlan().is_some() {
            self.counters
                .add_drops(frame.from, DropReason::VlanNotAllowed, 1);
            return;
        }
        let pairs = slot.port.pairs();
        if pairs == 0 {
            self.counters.add_drops(to, DropReason::ReceiverDown, 1);
            return;
        }
        let pair = if pairs == 1 {
            0
        } else {
            (frame.hash % u64::from(pairs)) as u16
        };
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
        let link_header = ETHERNET + if tag.is_some() { u32::from(TAG) } else { 0 };
        let done = self.fitter.deliver(&mut slot.port, pair, &out, link_header);
        if tag.is_some() {
            frame.headers.pop_vlan();
        }
        slot.delivered.packets += done.traffic.packets;
        slot.delivered.bytes += done.traffic.bytes;
        if slot.unflushed == 0 {
            self.touched.push(to);
        }
        slot.unflushed |= 1 << pair;
        if let Some((reason, frames)) = done.lost {
            self.counters.add_drops(to, reason, frames);
        }
    }

    /// Publishes to every receiver that was touched.
    fn flush(&mut self) {
        while let Some(id) = self.touched.pop() {
            let Some(slot) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else {
                continue;
            };
            while slot.unflushed != 0 {
                let pair = slot.unflushed.trailing_zeros() as u16;
                slot.unflushed &= slot.unflushed - 1;
                slot.port.flush(pair);
            }
            self.counters
                .add_to(id, std::mem::take(&mut slot.delivered));
        }
    }
}

/// Takes the outer tag off; what is left of it is the priority, for a receiver that wants a tag.
#[inline]
fn strip_tag(frame: &mut InHand<'_>) -> VlanTci {
    match frame.headers.pop_vlan() {
        Some(tci) => {
            frame.offload = shifted(frame.offload, -i32::from(TAG));
            tci
        }
        None => VlanTci::new(0),
    }
}

/// The offload of a frame whose headers grew or shrank in front of the network header.
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

impl Switch<crate::guest::GuestPort> {
    /// Queues whose guests broke a rule since the last call: port, queue index, and how.
    pub fn take_faults(&mut self) -> Vec<(PortId, u16, crate::guest::GuestFault)> {
        let mut faults = Vec::new();
        for (id, slot) in self.fabric.slots.iter_mut().enumerate() {
            while let Some((queue, fault)) = slot.as_mut().and_then(|s| s.port.take_fault()) {
                faults.push((PortId(id as u32), queue, fault));
            }
        }
        faults
    }
}
