//! The switch itself: ports, flow cache and program, without threads, sockets or time of its own.
//!
//! One call of [`Switch::serve`] moves one batch, in this order:
//!
//! ```text
//! take      lease up to 64 frames from one from-guest queue
//! match     parse each header snapshot as far as any flow looks, check what the sender left undone, look the
//!           key up in the flow cache; frames without a flow are parked, control is asked
//! expect    tell each receiver how many frames come, so that its buffers are on their way here
//! deliver   copy to the receivers' buffers, once, in the form they take
//! flush     publish to all receivers of the batch, notify them
//! release   give the sender its buffers back
//! ```

mod billing;
mod guests;
mod holding;
pub(crate) mod piece;
mod reply;
mod screen;
mod trains;
mod waiting;
mod watching;

use channel::records::Upcall;
use channel::switching::{StationUse, SwitchFigures};
use policy::{Action, Lookup, Program};
use port::counters::{Counters, Ticks};
use port::{BATCH, Batch, DropReason, Offload, Payload, Port, PortId};
use wire::flow::FlowKey;
use wire::vlan::HeaderBuf;

use crate::culprit;
use crate::cycles::{self, Meter};
use crate::fabric::{Fabric, InHand, NO_PAIR};
use crate::flow_table::{CHANGE, Effort, FlowTable, MAX_FLOWS, PIECE, Progress};
use crate::follow::ToDo;
use crate::parking::{Parked, ParkedFrame, Parking};
use crate::runs::{Run, Train};
use holding::Holding;

/// Flows that the cache holds.
pub const FLOWS: usize = MAX_FLOWS;

/// A flow that was not used for so long goes, milliseconds.
const FLOW_IDLE_MS: u32 = 120_000;
/// Flows that are looked at in one sweep, so that none holds up frames.
const FLOWS_PER_SWEEP: usize = 1024;
/// Milliseconds between two sweeps, however often somebody looks.
const SWEEP_MS: u64 = 16;

/// Above an upcall's own number is that of the switch that asks.
const ASKER_SHIFT: u32 = 56;
/// Bytes that cost about as much to copy as a frame costs otherwise.
pub(crate) const BYTES_PER_LOAD: u64 = 512;

/// Where upcalls go; the ring to control, or a test's list.
pub trait UpcallSink {
    /// Sends one; `false` when there is no room or nobody there. It is asked again later.
    fn send(&mut self, upcall: &Upcall) -> bool;
}

/// See the module.
#[derive(Debug)]
pub struct Switch<P> {
    pub(crate) fabric: Fabric<P>,
    pub(crate) flows: FlowTable,
    pub(crate) parking: Parking,
    pub(crate) to_do: ToDo,
    batch: Batch,
    trains: Vec<Train>,
    runs: Vec<Run>,
    /// Places of those frames of the batch in hand that are refused before they have a flow.
    refused: Vec<(usize, DropReason)>,
    figures: SwitchFigures,
    load: u64,
    meter: Meter,
    /// What the last batch cost, ticks.
    cost: u64,
    frames: usize,
    /// When the last sweep was.
    swept: u64,
    /// Until then, a port for whose frames without a flow there is no room waits; 0: it does not.
    patient_until: u64,
    /// Who has to wait; see [`Switch::paused_until`].
    holding: Holding,
}

impl<P: Port> Switch<P> {
    /// A switch without ports. `seed` keys the flow cache's hash.
    #[must_use]
    pub fn new(counters: Counters, seed: u64) -> Self {
        Self {
            fabric: Fabric::new(counters),
            flows: FlowTable::new(FLOWS, seed),
            parking: Parking::default(),
            to_do: ToDo::default(),
            batch: Batch::new(),
            trains: Vec::with_capacity(BATCH),
            runs: Vec::with_capacity(BATCH),
            refused: Vec::with_capacity(BATCH),
            figures: SwitchFigures::default(),
            load: 0,
            meter: Meter::reading(cycles::ticks),
            cost: 0,
            frames: 0,
            swept: 0,
            patient_until: 0,
            holding: Holding::default(),
        }
    }

    /// As [`Switch::new`], one of several: its questions are told from theirs by `number`, see
    /// [`Switch::asker`].
    #[must_use]
    pub fn numbered(counters: Counters, seed: u64, number: u8) -> Self {
        Self {
            parking: Parking::numbered_from(u64::from(number) << ASKER_SHIFT),
            ..Self::new(counters, seed)
        }
    }

    /// The number of the switch that asked this question.
    #[must_use]
    pub fn asker(upcall: u64) -> usize {
        (upcall >> ASKER_SHIFT) as usize
    }

    /// Adds a port under a new id, with its counters at zero.
    pub fn add_port(&mut self, id: PortId, port: P) {
        self.fabric.add_port(id, port);
    }

    /// Adds a port that a switch before this one had; its counters go on.
    pub fn take_over_port(&mut self, id: PortId, port: P) {
        self.fabric.take_over_port(id, port);
    }

    /// Takes a port out, with every frame of it that waits, and begins to forget the flows from and to it:
    /// [`Switch::go_on`] until that is done.
    pub fn remove_port(&mut self, id: PortId, now: u64) -> Option<P> {
        self.forget_flows_of(id, now);
        let slot = self.fabric.slots.get_mut(id.0 as usize)?.take()?;
        self.parking.forget_port(id);
        self.remove_taps_of(id);
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

    /// A piece of [`FlowTable::stations_in_use`]. On the way flows expire that nobody uses: where no frames come,
    /// nothing else looks.
    pub(crate) fn stations_in_use(
        &mut self,
        at: usize,
        now: u64,
        within_ms: u32,
        effort: &mut Effort,
        each: impl FnMut(StationUse),
    ) -> Progress {
        let expired = self.flows.expire_some(now, FLOW_IDLE_MS, PIECE);
        effort.charge(expired * CHANGE);
        self.flows.stations_in_use(at, now, within_ms, effort, each)
    }

    /// A piece of [`FlowTable::check`].
    pub(crate) fn check_flows(
        &mut self,
        at: usize,
        known: &dyn Lookup,
        effort: &mut Effort,
    ) -> Progress {
        self.flows.check(at, &self.fabric.program, known, effort)
    }

    /// Whether something is left of control's answers or of an errand, or waits for copies, for [`Switch::go_on`].
    #[must_use]
    pub fn has_to_do(&self) -> bool {
        !self.to_do.is_empty() || !self.fabric.is_settled()
    }

    /// Figures of the whole switch.
    #[must_use]
    pub fn figures(&self) -> SwitchFigures {
        SwitchFigures {
            flows: self.flows.len() as u64,
            parked: self.parking.len() as u64,
            upcalls: self.figures.upcalls + self.parking.questions,
            ..self.figures
        }
    }

    /// Whether frames wait for control.
    #[must_use]
    pub fn has_parked(&self) -> bool {
        !self.parking.is_empty()
    }

    /// Whether frames of a port's queue pair wait for control.
    #[must_use]
    pub fn has_parked_of(&self, id: PortId, pair: u16) -> bool {
        self.parking.has(id, pair)
    }

    /// Moves one batch from a port's queue pair. `false` when nothing waited there. `now` is in
    /// milliseconds.
    pub fn serve(&mut self, id: PortId, pair: u16, now: u64, upcalls: &mut dyn UpcallSink) -> bool {
        if self.holding.any && self.has_to_wait(id, now) {
            return false;
        }
        if !self.fabric.is_settled() {
            self.fabric.settle();
            // Copies of earlier batches: not this sender's.
            self.begin_batches();
        }
        self.batch.clear();
        let Some(slot) = self.fabric.slot(id) else {
            return false;
        };
        slot.port.take(pair, &mut self.batch);
        let untouched = self.batch.is_untouched();
        if untouched {
            slot.port.release(pair);
        }
        if self.holding.any {
            self.settle_limits(id);
        }
        if untouched {
            return false;
        }
        self.fabric.serving = pair;
        self.count_taken(id);
        self.decide(id, now, upcalls);
        self.carry_out(id, pair);
        true
    }

    /// Counts what was taken from a port.
    #[inline]
    fn count_taken(&mut self, id: PortId) {
        let taken = self.batch.taken();
        self.load = taken.packets + taken.bytes / BYTES_PER_LOAD;
        self.frames = taken.packets as usize;
        self.fabric.counters.add_from(id, taken);
        for (reason, frames) in self.batch.drops() {
            self.fabric.count_lost(id, reason, frames);
        }
    }

    /// Does what was decided with the batch, gives its sender the buffers back, and bills.
    #[inline(never)]
    fn carry_out(&mut self, id: PortId, pair: u16) {
        let switching = self.meter.lap();
        self.fabric.expect(&self.runs);
        let left_out = &self.flows.left_out;
        self.fabric
            .execute_runs(&self.runs, &mut self.batch, id, left_out);
        self.fabric.flush();
        self.batch.clear();
        if let Some(slot) = self.fabric.slot(id) {
            slot.port.release(pair);
        }
        self.fabric.note_unsettled(id);
        let copying = self.meter.lap();
        self.pay(id, Ticks { switching, copying });
    }

    /// Switches a frame of our own as if `from` had sent it.
    pub fn inject(&mut self, from: PortId, frame: &[u8], now: u64, upcalls: &mut dyn UpcallSink) {
        self.batch.clear();
        self.fabric.serving = NO_PAIR;
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
        self.decide(from, now, upcalls);
        let left_out = &self.flows.left_out;
        self.fabric
            .execute_runs(&self.runs, &mut self.batch, from, left_out);
        self.fabric.flush();
        self.fabric.pay(0);
        self.batch.clear();
    }

    /// Finds out what is to be done with each frame of the batch. The flows of all trains are looked up side by
    /// side, so that their memory is waited for once.
    fn decide(&mut self, from: PortId, now: u64, upcalls: &mut dyn UpcallSink) {
        self.line_up(from);
        self.lose_refused(from);
        let mut at = 0;
        while let Some(unknown) = self.find_all(at, now) {
            let frames = self.trains[unknown].frames.clone();
            self.figures.misses += frames.len() as u64;
            frames.for_each(|index| self.ask(index, from, now, upcalls));
            at = unknown + 1;
        }
    }

    /// Adds what is to be done with the trains from `at` on to the runs, up to the first one without a flow, whose place is
    /// returned.
    #[inline]
    fn find_all(&mut self, at: usize, now: u64) -> Option<usize> {
        match self.flows.counts_rules() {
            true => self.find_flows::<true>(at, now),
            false => self.find_flows::<false>(at, now),
        }
    }

    /// The same. `BYTES`: those of each flow are counted. Not inlined: with one place that looks flows up, that is inlined here.
    #[inline(never)]
    fn find_flows<const BYTES: bool>(&mut self, at: usize, now: u64) -> Option<usize> {
        for (index, train) in self.trains.iter().enumerate().skip(at) {
            let frames = train.frames.clone();
            let count = frames.len() as u64;
            let found = if BYTES {
                let used = (count, self.batch.bytes(frames.clone()));
                self.flows
                    .lookup_counting_bytes(&train.key, train.probe, used, now)
            } else {
                self.flows
                    .lookup_prepared(&train.key, train.probe, count, now)
            };
            let Some(action) = found else {
                return Some(index);
            };
            self.figures.hits += count;
            let tagged = train.key.vlan().is_some();
            match self.runs.last_mut() {
                Some(run) if run.goes_on(action, tagged, &frames) => run.frames.end = frames.end,
                _ => self.runs.push(Run {
                    action,
                    tagged,
                    frames,
                }),
            }
        }
        None
    }

    /// Counts and shows the frames that were wrong when they were lined up, once it is sure that they will not be taken again.
    #[inline]
    fn lose_refused(&mut self, from: PortId) {
        if !self.refused.is_empty() {
            self.lose_some_refused(from);
        }
    }

    #[cold]
    fn lose_some_refused(&mut self, from: PortId) {
        for at in 0..self.refused.len() {
            let (index, reason) = self.refused[at];
            self.fabric.count_lost(from, reason, 1);
            self.show_lost(index, from, reason);
        }
        self.refused.clear();
    }

    /// Parks a frame and asks control about it.
    #[cold]
    fn ask(&mut self, index: usize, from: PortId, now: u64, upcalls: &mut dyn UpcallSink) {
        self.batch.deepen(index);
        let (headers, payload, offload) = self.batch.split(index);
        let len = headers.as_slice().len() + payload.len() as usize;
        let number = self.parking.number();
        let key = self.fabric.exact_key(from, headers.as_slice(), len, number);
        self.parking.clock = self.fabric.now;
        let pair = self.fabric.serving;
        let parked = self.parking.park(&key, len, now, || {
            let mut rest = Vec::new();
            payload.append_to(&mut rest);
            ParkedFrame {
                pair,
                headers: HeaderBuf::copy_of(headers.as_slice()),
                payload: rest,
                offload: *offload,
            }
        });
        match parked {
            Parked::Behind => {}
            Parked::Full => {
                self.fabric.count_lost(from, DropReason::UpcallFull, 1);
                self.show_lost(index, from, DropReason::UpcallFull);
            }
            Parked::Ask(id) => {
                let sent = upcalls.send(&Upcall {
                    id,
                    key: *key.words(),
                    frame_len: len as u32,
                    headers: headers.as_slice().to_vec(),
                });
                if !sent {
                    self.parking.ask_later(id);
                }
            }
        }
    }

    pub(crate) fn execute_parked(
        &mut self,
        action: Action,
        frames: impl IntoIterator<Item = (FlowKey, ParkedFrame)>,
    ) {
        self.meter.begin();
        for (key, mut frame) in frames {
            let from = PortId(key.in_port());
            let _served = culprit::serve(Some(from));
            self.fabric.serving = frame.pair;
            let segments = [memory::Segment {
                ptr: frame.payload.as_mut_ptr(),
                len: frame.payload.len() as u32,
                gpa: 0,
            }];
            let len = frame.payload.len() as u32;
            // SAFETY: the segment is the frame's own buffer, which lives to the end of this turn of the
            // loop and is not touched otherwise.
            let payload = unsafe { Payload::new(&segments, 0, len) };
            self.fabric.execute_seen(
                action,
                InHand {
                    headers: &mut frame.headers,
                    payload: &payload,
                    offload: frame.offload,
                    from,
                },
                &self.flows.left_out,
            );
        }
        self.fabric.flush();
        let copying = self.meter.lap_of_all();
        self.fabric.pay(copying);
    }
}
