//! Switch of one worker: ports, flow cache and program, without threads, sockets or a clock.
//!
//! One call of [`Switch::serve`] moves one batch, in this order:
//!
//! ```text
//! take      lease up to 64 frames from one from-guest queue
//! match     parse each header snapshot as far as any flow looks, check offloads, look the key up
//!           in the flow cache; frames without a flow become pending, an upcall goes to control
//! expect    announce the number of frames to each receiver, so that it prefetches its buffers
//! deliver   copy to the receivers' buffers, once, in the form that they accept
//! flush     publish to all receivers of the batch, notify them
//! release   return the buffers to the sender
//! ```

mod accounting;
pub(crate) mod chunk;
mod classify;
mod flow_batches;
mod guests;
mod reply;
mod taps;
mod throttle;
mod upcalls;

use channel::records::Upcall;
use channel::switching::{StationUse, SwitchFigures};
use policy::{Action, Lookup, Program};
use port::counters::{Counters, Ticks};
use port::{BATCH, Batch, DropReason, Offload, Payload, Port, PortId};
use wire::flow::FlowKey;
use wire::vlan::HeaderBuf;

use crate::apply::WorkQueue;
use crate::crash_record;
use crate::cycles::{self, Meter};
use crate::fabric::{Fabric, FrameInTransit, NO_PAIR};
use crate::flow_batch::{ActionBatch, FlowBatch};
use crate::pending_upcalls::{Admission, PendingFrame, PendingUpcalls};
use flow_table::{CHANGE, Effort, FLOWS_PER_PART, FlowTable, MAX_FLOWS, Progress};
use throttle::Throttle;

/// Flows in the cache at most.
pub const FLOWS: usize = MAX_FLOWS;

/// Idle timeout of a flow, milliseconds.
const FLOW_IDLE_MS: u32 = 120_000;
/// Flows that one sweep visits, so that frames do not wait for it.
const FLOWS_PER_SWEEP: usize = 1024;
/// Interval between two sweeps, milliseconds.
const SWEEP_MS: u64 = 16;

/// Position of the switch's number in an upcall id.
const SWITCH_SHIFT: u32 = 56;
/// Bytes whose copy costs about as much as the rest of the work for a frame.
pub(crate) const BYTES_PER_LOAD: u64 = 512;

/// Destination of upcalls: the ring to control, or a test's list.
pub trait UpcallSink {
    /// Sends an upcall. Returns `false` when the ring is full or control is gone; the switch
    /// retries.
    fn send(&mut self, upcall: &Upcall) -> bool;
}

/// Switch of one worker; see the module.
#[derive(Debug)]
pub struct Switch<P> {
    pub(crate) fabric: Fabric<P>,
    pub(crate) flows: FlowTable,
    pub(crate) pending: PendingUpcalls,
    pub(crate) work_queue: WorkQueue,
    batch: Batch,
    flow_batches: Vec<FlowBatch>,
    action_batches: Vec<ActionBatch>,
    /// Frames of the current batch that are dropped before the flow lookup, by index.
    malformed: Vec<(usize, DropReason)>,
    figures: SwitchFigures,
    load: u64,
    meter: Meter,
    /// Cycles of the last batch, ticks.
    cost: u64,
    frames: usize,
    /// Time of the last sweep, milliseconds.
    swept: u64,
    /// End of the backpressure, milliseconds; 0: none. See [`Switch::enable_backpressure`].
    backpressure_until: u64,
    /// Senders that have to wait; see [`Switch::take_pause`].
    throttle: Throttle,
}

impl<P: Port> Switch<P> {
    /// Returns a switch without ports. `seed` keys the flow cache's hash.
    #[must_use]
    pub fn new(counters: Counters, seed: u64) -> Self {
        Self {
            fabric: Fabric::new(counters),
            flows: FlowTable::new(FLOWS, seed),
            pending: PendingUpcalls::default(),
            work_queue: WorkQueue::default(),
            batch: Batch::new(),
            flow_batches: Vec::with_capacity(BATCH),
            action_batches: Vec::with_capacity(BATCH),
            malformed: Vec::with_capacity(BATCH),
            figures: SwitchFigures::default(),
            load: 0,
            meter: Meter::reading(cycles::ticks),
            cost: 0,
            frames: 0,
            swept: 0,
            backpressure_until: 0,
            throttle: Throttle::default(),
        }
    }

    /// Returns a switch like [`Switch::new`] whose upcall ids contain `number`, see
    /// [`Switch::switch_of`].
    #[must_use]
    pub fn numbered(counters: Counters, seed: u64, number: u8) -> Self {
        Self {
            pending: PendingUpcalls::numbered_from(u64::from(number) << SWITCH_SHIFT),
            ..Self::new(counters, seed)
        }
    }

    /// Returns the number of the switch that sent this upcall.
    #[must_use]
    pub fn switch_of(upcall: u64) -> usize {
        (upcall >> SWITCH_SHIFT) as usize
    }

    /// Adds a port under a new id, with its counters at zero.
    pub fn add_port(&mut self, id: PortId, port: P) {
        self.fabric.add_port(id, port);
    }

    /// Adds a port that a former switch process had, and keeps its counters.
    pub fn take_over_port(&mut self, id: PortId, port: P) {
        self.fabric.take_over_port(id, port);
    }

    /// Removes a port with its pending frames and begins to remove the flows from and to it;
    /// [`Switch::continue_work`] completes that.
    pub fn remove_port(&mut self, id: PortId, now: u64) -> Option<P> {
        self.forget_flows_of(id, now);
        let slot = self.fabric.slots.get_mut(id.0 as usize)?.take()?;
        self.pending.forget_port(id);
        self.remove_taps_of(id);
        Some(slot.port)
    }

    /// Returns a port.
    pub fn port_mut(&mut self, id: PortId) -> Option<&mut P> {
        Some(&mut self.fabric.slot(id)?.port)
    }

    /// Replaces the program. Cached flows stay: control removes the outdated ones.
    pub fn set_program(&mut self, program: Program) {
        self.fabric.program = program;
    }

    /// Returns the current program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.fabric.program
    }

    /// Runs a part of [`FlowTable::stations_in_use`]. It expires idle flows, too: without frames
    /// nothing else does.
    pub(crate) fn stations_in_use(
        &mut self,
        at: usize,
        now: u64,
        within_ms: u32,
        effort: &mut Effort,
        each: impl FnMut(StationUse),
    ) -> Progress {
        let expired = self.flows.expire_some(now, FLOW_IDLE_MS, FLOWS_PER_PART);
        effort.charge(expired * CHANGE);
        self.flows.stations_in_use(at, now, within_ms, effort, each)
    }

    /// Runs a part of [`FlowTable::check`].
    pub(crate) fn check_flows(
        &mut self,
        at: usize,
        known: &dyn Lookup,
        effort: &mut Effort,
    ) -> Progress {
        self.flows.check(at, &self.fabric.program, known, effort)
    }

    /// Returns whether [`Switch::continue_work`] has answers or sweeps left.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.work_queue.is_empty()
    }

    /// Returns the counters of this switch.
    #[must_use]
    pub fn figures(&self) -> SwitchFigures {
        SwitchFigures {
            flows: self.flows.len() as u64,
            pending: self.pending.len() as u64,
            upcalls: self.figures.upcalls + self.pending.upcalls_sent,
            ..self.figures
        }
    }

    /// Returns whether frames wait for control.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns whether frames of a port's queue pair wait for control.
    #[must_use]
    pub fn has_pending_of(&self, id: PortId, pair: u16) -> bool {
        self.pending.has(id, pair)
    }

    /// Moves one batch from a port's queue pair. Returns `false` when no frame waited. `now` is in
    /// milliseconds.
    pub fn serve(&mut self, id: PortId, pair: u16, now: u64, upcalls: &mut dyn UpcallSink) -> bool {
        if self.throttle.active && self.must_wait(id, now) {
            return false;
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
        if self.throttle.active {
            self.settle_limits(id);
        }
        if untouched {
            return false;
        }
        self.fabric.serving = pair;
        self.count_taken(id);
        self.decide(id, now, upcalls);
        self.execute_batch(id, pair);
        true
    }

    /// Counts the frames taken from a port.
    #[inline]
    fn count_taken(&mut self, id: PortId) {
        let taken = self.batch.taken();
        self.load = taken.packets + taken.bytes / BYTES_PER_LOAD;
        self.frames = taken.packets as usize;
        self.fabric.counters.add_from(id, taken);
        for (reason, frames) in self.batch.drops() {
            self.fabric.count_drop(id, reason, frames);
        }
    }

    /// Executes the decided actions, returns the sender's buffers, and charges the cycles.
    #[inline(never)]
    fn execute_batch(&mut self, id: PortId, pair: u16) {
        let switching = self.meter.lap();
        self.fabric.expect(&self.action_batches);
        let excluded = &self.flows.excluded;
        self.fabric
            .forward(&self.action_batches, &mut self.batch, id, excluded);
        self.fabric.flush();
        self.batch.clear();
        if let Some(slot) = self.fabric.slot(id) {
            slot.port.release(pair);
        }
        let copying = self.meter.lap();
        self.charge_batch(id, Ticks { switching, copying });
    }

    /// Forwards a frame of the switch's own as if `from` had sent it.
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
        let excluded = &self.flows.excluded;
        self.fabric
            .forward(&self.action_batches, &mut self.batch, from, excluded);
        self.fabric.flush();
        self.fabric.charge_receivers(0);
        self.batch.clear();
    }

    /// Decides the action of each frame of the batch. All flow batches are looked up side by side,
    /// so that their cache misses overlap.
    fn decide(&mut self, from: PortId, now: u64, upcalls: &mut dyn UpcallSink) {
        self.build_flow_batches(from);
        self.drop_malformed(from);
        let mut at = 0;
        while let Some(unknown) = self.find_all(at, now) {
            let frames = self.flow_batches[unknown].frames.clone();
            self.figures.misses += frames.len() as u64;
            frames.for_each(|index| self.send_upcall(index, from, now, upcalls));
            at = unknown + 1;
        }
    }

    /// Appends the actions of the flow batches from `at` on, up to the first one without a flow.
    /// Returns its index.
    #[inline]
    fn find_all(&mut self, at: usize, now: u64) -> Option<usize> {
        if self.flows.counts_rules() {
            self.find_flows::<true>(at, now)
        } else {
            self.find_flows::<false>(at, now)
        }
    }

    /// Does the lookups of [`Switch::find_all`]. `BYTES`: the bytes of each flow are counted. Not
    /// inlined: with one lookup site, the lookup is inlined here.
    #[inline(never)]
    fn find_flows<const BYTES: bool>(&mut self, at: usize, now: u64) -> Option<usize> {
        for (index, flow_batch) in self.flow_batches.iter().enumerate().skip(at) {
            let frames = flow_batch.frames.clone();
            let count = frames.len() as u64;
            let found = if BYTES {
                let used = (count, self.batch.bytes(frames.clone()));
                self.flows
                    .lookup_counting_bytes(&flow_batch.key, flow_batch.probe, used, now)
            } else {
                self.flows
                    .lookup_prepared(&flow_batch.key, flow_batch.probe, count, now)
            };
            let Some(action) = found else {
                return Some(index);
            };
            self.figures.hits += count;
            let tagged = flow_batch.key.vlan().is_some();
            match self.action_batches.last_mut() {
                Some(last) if last.continues(action, tagged, &frames) => {
                    last.frames.end = frames.end
                }
                _ => self.action_batches.push(ActionBatch {
                    action,
                    tagged,
                    frames,
                }),
            }
        }
        None
    }

    /// Counts and emits the malformed frames. Called once the batch is certain not to be taken
    /// again.
    #[inline]
    fn drop_malformed(&mut self, from: PortId) {
        if !self.malformed.is_empty() {
            self.drop_some_malformed(from);
        }
    }

    #[cold]
    fn drop_some_malformed(&mut self, from: PortId) {
        for at in 0..self.malformed.len() {
            let (index, reason) = self.malformed[at];
            self.fabric.count_drop(from, reason, 1);
            self.emit_drop(index, from, reason);
        }
        self.malformed.clear();
    }

    /// Adds a frame to the pending ones and sends its upcall.
    #[cold]
    fn send_upcall(&mut self, index: usize, from: PortId, now: u64, upcalls: &mut dyn UpcallSink) {
        self.batch.deepen(index);
        let (headers, payload, offload) = self.batch.split(index);
        let len = headers.as_slice().len() + payload.len() as usize;
        let number = self.pending.number();
        let key = self.fabric.exact_key(from, headers.as_slice(), len, number);
        self.pending.clock = self.fabric.now;
        let pair = self.fabric.serving;
        let admission = self.pending.add(&key, len, now, || {
            let mut rest = Vec::new();
            payload.append_to(&mut rest);
            PendingFrame {
                pair,
                headers: HeaderBuf::copy_of(headers.as_slice()),
                payload: rest,
                offload: *offload,
            }
        });
        match admission {
            Admission::Queued => {}
            Admission::Full => {
                self.fabric.count_drop(from, DropReason::UpcallFull, 1);
                self.emit_drop(index, from, DropReason::UpcallFull);
            }
            Admission::Upcall(id) => {
                let sent = upcalls.send(&Upcall {
                    id,
                    key: *key.words(),
                    frame_len: len as u32,
                    headers: headers.as_slice().to_vec(),
                });
                if !sent {
                    self.pending.retry(id);
                }
            }
        }
    }

    pub(crate) fn execute_pending(
        &mut self,
        action: Action,
        frames: impl IntoIterator<Item = (FlowKey, PendingFrame)>,
    ) {
        self.meter.begin();
        for (key, mut frame) in frames {
            let from = PortId(key.in_port());
            let _served = crash_record::serve(Some(from));
            self.fabric.serving = frame.pair;
            let segments = [memory::Segment {
                ptr: frame.payload.as_mut_ptr(),
                len: frame.payload.len() as u32,
                gpa: 0,
            }];
            let len = frame.payload.len() as u32;
            // SAFETY: the segment is the frame's own buffer, which lives to the end of this
            // iteration and is not accessed otherwise.
            let payload = unsafe { Payload::new(&segments, 0, len) };
            self.fabric.execute_tapped(
                action,
                FrameInTransit {
                    headers: &mut frame.headers,
                    payload: &payload,
                    offload: frame.offload,
                    from,
                },
                &self.flows.excluded,
            );
        }
        self.fabric.flush();
        let copying = self.meter.lap_of_all();
        self.fabric.charge_receivers(copying);
    }
}
