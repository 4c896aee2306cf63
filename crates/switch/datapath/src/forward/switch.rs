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
//! flush     publish to all receivers of the batch, unlock their queues
//! release   return the buffers to the sender, unlock its queue
//! notify    write the call descriptors of those that want it
//! ```

mod apply;
mod connections;
mod funding;
mod lookups;
mod upcalls;

use std::sync::Arc;

use flow_table::{FlowTable, MAX_FLOWS};
use ipc::capture::Way;
use ipc::records::Upcall;
use ipc::switching::SwitchFigures;
use policy::Program;
use port::counters::{Counters, Ticks};
use port::{DropReason, Offload, PortId};

use crate::forward::cycles::{self, BYTES_PER_LOAD, BatchCost, LastBatch, Meter};
use crate::forward::fabric::{Fabric, NO_PAIR};
use crate::forward::flow_batch::Lookup;
use crate::forward::mirror::Mirror;
use crate::forward::pending_upcalls::PendingUpcalls;
use crate::forward::tables::TrackedPorts;
use crate::forward::tap::{Tap, TapPayload, TappedFrame};
use crate::ports::attached::{AttachedPort, QueueFailure};
use crate::ports::batch::BatchLimit;
use crate::ports::guest::GuestPort;
use crate::ports::port::{Port, Settlement};
use apply::WorkQueue;
pub(crate) use funding::Pause;
use funding::Throttle;

/// Flows in the cache at most.
pub const FLOWS: usize = MAX_FLOWS;

/// Position of the switch's number in an upcall id.
const SWITCH_SHIFT: u32 = 56;
/// Receivers that are remembered at most.
const SERVED: usize = 8;

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
    pub(crate) pending: PendingUpcalls,
    pub(crate) work_queue: WorkQueue,
    /// Lookup of the port that is served.
    pub(crate) lookup: Box<Lookup>,
    /// Present since the first port was tracked.
    tracked: Option<Box<TrackedPorts>>,
    figures: SwitchFigures,
    last: LastBatch,
    meter: Meter,
    /// Time of the last sweep, milliseconds.
    swept: u64,
    /// Senders that have to wait; see [`Switch::take_pause`].
    throttle: Throttle,
}

impl<P: Port> Switch<P> {
    /// Returns a switch without ports. `seed` keys the flow cache's hash.
    #[must_use]
    pub fn new(counters: Counters, seed: u64) -> Self {
        Self {
            fabric: Fabric::new(counters),
            pending: PendingUpcalls::default(),
            work_queue: WorkQueue::default(),
            lookup: Box::new(Lookup::new(FlowTable::new(FLOWS, seed))),
            tracked: None,
            figures: SwitchFigures::default(),
            last: LastBatch::default(),
            meter: Meter::reading(cycles::ticks),
            swept: 0,
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
        self.forget_connections_of(id);
        // The next port of this number has limits and senders of its own, or none.
        self.untrack(id);
        self.set_limits(id, None);
        self.set_output(id, None);
        let slot = self.fabric.slots.get_mut(id.0 as usize)?.take()?;
        self.pending.forget_port(id);
        self.fabric.update_classes();
        self.remove_taps_of(id);
        Some(slot.port)
    }

    /// Returns a port.
    pub fn port_mut(&mut self, id: PortId) -> Option<&mut P> {
        Some(&mut self.fabric.slot(id)?.port)
    }

    /// Counts what became of frames that a receiver had kept.
    pub fn count_settled(&mut self, id: PortId, settled: Settlement) {
        self.fabric.count_settled(id, settled);
    }

    /// Replaces the program, and what is tracked with it. Cached flows stay: control removes the
    /// outdated ones.
    pub fn set_program(&mut self, program: Program) {
        self.fabric.program = program;
        self.follow_program();
    }

    /// Returns the current program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.fabric.program
    }

    /// Returns the counters of this switch.
    #[must_use]
    pub fn figures(&self) -> SwitchFigures {
        let other = self.tracked.as_ref().map(|tracked| tracked.other());
        let lookups = || [&*self.lookup].into_iter().chain(other);
        SwitchFigures {
            flows: lookups().map(|lookup| lookup.flows.len() as u64).sum(),
            pending: self.pending.len() as u64,
            hits: lookups().map(|lookup| lookup.hits).sum(),
            upcalls: self.pending.upcalls_sent,
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
        self.take_up_lookup(id);
        if self.throttle.active {
            return self.serve_throttled((id, pair), now, upcalls);
        }
        self.lookup.batch.clear();
        let Some(slot) = self.fabric.slot(id) else {
            return false;
        };
        slot.port.take(pair, &mut self.lookup.batch);
        if self.lookup.batch.is_untouched() {
            self.fabric.release(id, pair);
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
        let taken = self.lookup.batch.taken();
        self.last.load = taken.packets + taken.bytes / BYTES_PER_LOAD;
        self.last.frames = taken.packets as usize;
        self.last.more = self.lookup.batch.is_cut_for_others();
        self.fabric.counters.add_from(id, taken);
        for (reason, frames) in self.lookup.batch.drops() {
            self.fabric.count_drop(id, reason, frames);
        }
    }

    /// Executes the decided actions, returns the sender's buffers, and charges the cycles.
    #[inline(never)]
    fn execute_batch(&mut self, id: PortId, pair: u16) {
        self.settle_connections(id);
        let switching = self.meter.lap();
        self.fabric.expect(&self.lookup.action_batches);
        let excluded = &self.lookup.flows.excluded;
        self.fabric.forward(
            &self.lookup.action_batches,
            &mut self.lookup.batch,
            id,
            excluded,
        );
        self.fabric.flush();
        self.lookup.batch.clear();
        self.fabric.give_back(id, pair);
        let mut copying = self.meter.lap();
        self.last.cost.notifying = 0;
        if self.fabric.notify() {
            self.last.cost.notifying = self.meter.lap();
            copying += self.last.cost.notifying;
        }
        self.charge_batch(id, Ticks { switching, copying });
    }

    /// Forwards a frame of the switch's own as if `from` had sent it.
    pub fn inject(&mut self, from: PortId, frame: &[u8], now: u64, upcalls: &mut dyn UpcallSink) {
        self.take_up_lookup(from);
        self.lookup.batch.clear();
        self.fabric.serving = NO_PAIR;
        let mut bytes = frame.to_vec();
        self.lookup.batch.segments_mut().push(memory::Segment {
            ptr: bytes.as_mut_ptr(),
            len: bytes.len() as u32,
            gpa: memory::Segment::PRIVATE,
        });
        // SAFETY: the segment is `bytes`, which outlives the batch's use below and is not touched.
        unsafe {
            self.lookup
                .batch
                .push(0..1, 0, frame.len() as u32, Offload::default())
        };
        self.decide(from, now, upcalls);
        self.settle_connections(from);
        let excluded = &self.lookup.flows.excluded;
        self.fabric.forward(
            &self.lookup.action_batches,
            &mut self.lookup.batch,
            from,
            excluded,
        );
        self.fabric.flush_and_notify();
        self.fabric.charge_receivers(0, None);
        self.lookup.batch.clear();
    }

    /// Decides the action of each frame of the batch. All flow batches are looked up side by side,
    /// so that their cache misses overlap.
    fn decide(&mut self, from: PortId, now: u64, upcalls: &mut dyn UpcallSink) {
        self.group(from, (now, true));
        self.drop_malformed(from);
        let mut at = 0;
        while let Some(unknown) = self.find_all(from, at, now) {
            at = self.ask(unknown, from, now, upcalls);
        }
    }

    /// Groups the frames of the batch into flow batches; those of a tracked port are judged. `at`:
    /// the time, and whether none of the frames will be given back.
    #[inline]
    fn group(&mut self, from: PortId, at: (u64, bool)) {
        if self.lookup.connections.is_some() {
            let program = &self.fabric.program;
            return self.lookup.build_tracked_flow_batches(program, from, at);
        }
        let secured = !self.fabric.program.port_security(from).is_open();
        self.lookup.build_flow_batches(from, secured);
    }

    /// Opens, renews, counts and forgets the connections of a tracked port's batch.
    #[inline]
    fn settle_connections(&mut self, from: PortId) {
        if self.lookup.connections.is_some() {
            self.lookup.settle_connections(from);
        }
    }

    /// Appends the actions of the flow batches from `at` on, up to the first one without a flow.
    /// Returns its index.
    #[inline]
    fn find_all(&mut self, from: PortId, at: usize, now: u64) -> Option<usize> {
        let unknown = self.lookup.find_all(at, now);
        if self.fabric.classes.by_pair {
            self.classify_by_pair(from);
        }
        unknown
    }

    /// Sets the priorities of tags by class, 0 to 7; `None`, and classes beyond: the priority of
    /// the received tag is kept.
    pub fn set_priorities(&mut self, priorities: Vec<Option<u8>>) {
        self.fabric.classes.priorities = priorities;
    }

    /// Gives the frames of the batch the class of their queue pair, if it has one.
    #[cold]
    fn classify_by_pair(&mut self, from: PortId) {
        if let Some(class) = self.fabric.class_of_pair(from, self.fabric.serving) {
            for group in &mut self.lookup.action_batches {
                group.set_class(class);
            }
        }
    }

    /// Counts and emits the malformed frames. Called once the batch is certain not to be taken
    /// again.
    #[inline]
    fn drop_malformed(&mut self, from: PortId) {
        if !self.lookup.malformed.is_empty() {
            self.drop_some_malformed(from);
        }
    }

    #[cold]
    fn drop_some_malformed(&mut self, from: PortId) {
        for at in 0..self.lookup.malformed.len() {
            let (index, reason) = self.lookup.malformed[at];
            self.fabric.count_drop(from, reason, 1);
            self.emit_drop(index, from, reason);
        }
        self.lookup.malformed.clear();
    }

    /// Returns the cost of the last batch.
    #[must_use]
    pub fn last_cost(&self) -> BatchCost {
        self.last.cost
    }

    /// Returns the number of frames of the last batch.
    #[must_use]
    pub fn last_frames(&self) -> usize {
        self.last.frames
    }

    /// Returns the ticks of all batches so far.
    #[must_use]
    pub fn busy(&self) -> u64 {
        self.meter.total()
    }

    /// Starts the measurement of batches; the time since the last one is charged to no port.
    pub fn begin_batches(&mut self) {
        self.meter.begin();
    }

    /// Ends a round over all active pairs; `waits`: the turn of some has not come. Returns whether
    /// frames were dropped in it for receivers that have had their share.
    #[inline]
    pub fn end_round(&mut self, waits: bool) -> bool {
        self.fabric.shares.end_round(waits)
    }

    /// Sets the weight of a port as a receiver.
    pub fn set_weight(&mut self, port: PortId, weight: u16) {
        self.fabric.shares.set_weight(port, weight);
    }

    /// Sets the maximum length of batches.
    pub fn set_limit(&mut self, limit: BatchLimit) {
        self.lookup.batch.set_limit(limit);
    }

    /// Measures with another counter.
    #[cfg(test)]
    pub(crate) fn measure_with(&mut self, clock: fn() -> u64) {
        self.meter = Meter::reading(clock);
    }

    /// Sets the frequency of the tick counter.
    pub fn set_ticks_per_second(&self, ticks: u64) {
        self.fabric.counters.set_ticks_per_second(ticks);
    }

    /// Charges the cycles of a batch: take and match to its sender, the rest to the receivers.
    /// Without receivers the sender is charged for everything.
    fn charge_batch(&mut self, from: PortId, measured: Ticks) {
        let copied = self.fabric.has_receivers();
        let mut ticks = self.meter.bill(measured, self.last.load, copied);
        self.last.cost.copied = copied;
        self.last.cost.all = ticks.switching + ticks.copying;
        let backlogged = self.last.more.then_some(from);
        let receiver = self.fabric.charge_receivers(ticks.copying, backlogged);
        if receiver.is_some() {
            ticks.copying = 0;
        }
        ticks.switching += std::mem::take(&mut ticks.copying);
        self.last.cost.of_sender = ticks.switching;
        if receiver.is_some_and(|receiver| self.fabric.shares.charges_sender(receiver)) {
            self.last.cost.of_sender = self.last.cost.all;
        }
        self.fabric.shares.spend(self.last.cost.all);
        self.fabric.counters.add_ticks(from, ticks);
    }

    /// Adds a tap.
    pub fn add_tap(&mut self, tap: Tap) {
        self.fabric.taps.get_or_insert_default().add(tap);
    }

    /// Removes the taps of the capture with this number.
    pub fn remove_tap(&mut self, id: u32) {
        self.remove_taps(|tap| tap.id == id);
    }

    /// Removes the taps of a port.
    fn remove_taps_of(&mut self, port: PortId) {
        self.remove_taps(|tap| tap.port == port);
    }

    fn remove_taps(&mut self, leaves: impl Fn(&Tap) -> bool) {
        let Some(taps) = &mut self.fabric.taps else {
            return;
        };
        taps.remove(leaves);
        self.remove_idle_taps();
    }

    /// Replaces the mirrors.
    pub fn set_mirrors(&mut self, mirrors: Arc<[Mirror]>) {
        let taps = self.fabric.taps.get_or_insert_default();
        taps.set_mirrors(mirrors);
        self.remove_idle_taps();
    }

    /// Drops the tap state when it is empty, so that frames take the path without taps.
    fn remove_idle_taps(&mut self) {
        if self.fabric.taps.as_ref().is_some_and(|w| w.is_empty()) {
            self.fabric.taps = None;
        }
    }

    /// Emits a frame of the batch that is dropped.
    #[cold]
    pub(super) fn emit_drop(&mut self, index: usize, from: PortId, reason: DropReason) {
        if self.fabric.taps.is_none() {
            return;
        }
        let (headers, payload, offload) = self.lookup.batch.split(index);
        let shown = TappedFrame {
            headers: headers.as_slice(),
            rest: TapPayload::Leased(&payload),
            offload: *offload,
        };
        self.fabric.emit(from, Way::In, shown, Some(reason));
        // No queue lock may be held when the batch's receivers are announced, nor those of the
        // copies.
        self.fabric.flush();
    }

    /// Sets the time for deferred notifications and rate limits, nanoseconds of the monotonic
    /// clock.
    #[inline]
    pub fn set_clock(&mut self, now: u64) {
        self.fabric.now = now;
    }

    /// Starts to remember some of the last receivers, for `Switch::next_served`.
    pub fn remember_served(&mut self) {
        self.fabric.served.reserve_exact(SERVED);
    }

    /// Returns one of the last receivers. One may be returned twice.
    pub(crate) fn next_served(&mut self) -> Option<(PortId, u16)> {
        self.fabric.served.pop()
    }

    /// Sends the deferred notifications that are due. Returns the time of the next one, if any is
    /// left.
    pub fn flush_deferred(&mut self) -> Option<u64> {
        if !self.fabric.notifications.deferred.is_empty() {
            self.fabric.flush_deferred();
        }
        let deferred = self.fabric.notifications.deferred.iter();
        deferred.map(|(_, _, due)| *due).min()
    }

    /// Sends all deferred notifications, due or not: another process serves the queues next.
    pub fn end_deferrals(&mut self) {
        self.fabric.end_deferrals();
    }
}

impl Switch<AttachedPort> {
    /// Returns the guest side of a port.
    pub fn guest_mut(&mut self, id: PortId) -> Option<&mut GuestPort> {
        Some(&mut self.fabric.slot(id)?.port.guest)
    }

    /// Returns the ports whose VMM removed guest memory, and whether all ports were checked: other
    /// workers may have locked some.
    pub fn ports_without_memory(&mut self) -> (Vec<PortId>, bool) {
        let (mut lost, mut all) = (Vec::new(), true);
        for (id, slot) in self.fabric.slots.iter_mut().enumerate() {
            match slot.as_mut().map(|slot| slot.port.guest.lost_memory()) {
                Some(Some(true)) => lost.push(PortId(id as u32)),
                Some(None) => all = false,
                Some(Some(false)) | None => {}
            }
        }
        (lost, all)
    }

    /// Returns the queues that have failed since the last call (port, queue index, fault), and
    /// whether all queues were looked at: other workers may have locked some.
    pub fn take_faults(&mut self) -> (Vec<(PortId, u16, QueueFailure)>, bool) {
        let (mut faults, mut all) = (Vec::new(), true);
        for (id, slot) in self.fabric.slots.iter_mut().enumerate() {
            let Some(slot) = slot else { continue };
            while let Some((queue, fault)) = slot.port.take_fault(&mut all) {
                faults.push((PortId(id as u32), queue, fault));
            }
        }
        (faults, all)
    }

    /// Returns whether frames of this worker wait for an interface that has taken no more: it has
    /// deferred them.
    pub fn awaits_interfaces(&mut self) -> bool {
        let Fabric {
            slots,
            notifications,
            ..
        } = &mut self.fabric;
        let mut deferred = notifications.deferred.iter();
        deferred.any(|(id, _, _)| {
            let slot = slots.get_mut(id.0 as usize).and_then(Option::as_mut);
            slot.is_some_and(|slot| slot.port.interface().is_some())
        })
    }

    /// Subscribes to block events of the guests with deferred notifications. Returns `true` when
    /// one has blocked before the subscription. Without block events the clock ends the deferral.
    pub(crate) fn subscribe_deferred(&mut self) -> bool {
        let mut blocked = false;
        for at in 0..self.fabric.notifications.deferred.len() {
            let (id, pair, _) = self.fabric.notifications.deferred[at];
            if let Some(guest) = self.guest_mut(id) {
                blocked |= guest.listen(pair) && !guest.runs(pair);
            }
        }
        blocked
    }

    /// Serves one queue pair until it is empty. `now` is in milliseconds.
    ///
    /// Compiled in this crate only: `examples/instructions` then counts the code that the worker
    /// runs, not a copy with different inlining.
    #[inline(never)]
    pub fn drain(&mut self, id: PortId, pair: u16, now: u64, upcalls: &mut dyn UpcallSink) {
        while self.serve(id, pair, now, upcalls) {}
    }
}
