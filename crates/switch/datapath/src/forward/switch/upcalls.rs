//! Frames that wait for decisions of control: upcalls, retries, timeouts.

use ipc::capture::Way;
use ipc::records::{Connection, Upcall};
use port::{DropReason, PortId};
use wire::flow::{Ct, FlowKey};
use wire::vlan::HeaderBuf;

use super::{Switch, UpcallSink};
use crate::forward::pending_upcalls::{Admission, PendingFrame, PendingUpcall};
use crate::forward::revalidator::FLOW_IDLE_MS;
use crate::forward::tap::{TapPayload, TappedFrame};
use crate::ports::batch::Batch;
use crate::ports::port::Port;

/// Flows that one sweep visits, so that frames do not wait for it.
const FLOWS_PER_SWEEP: usize = 1024;
/// Interval between two sweeps, milliseconds.
const SWEEP_MS: u64 = 16;

/// Returns the upcall of these pending frames.
fn upcall_of(id: u64, waiting: &PendingUpcall) -> Upcall {
    let first = waiting.frames.first();
    let headers = first.map(|frame| frame.headers.as_slice().to_vec());
    Upcall {
        id,
        key: *waiting.key.words(),
        frame_len: first.map_or(0, |frame| frame.bytes() as u32),
        headers: headers.unwrap_or_default(),
        connection: waiting.connection,
    }
}

impl<P: Port> Switch<P> {
    /// Asks control about the frames of a flow batch without a flow. Returns the flow batch to go
    /// on with: the same if it has another key now.
    #[cold]
    pub(super) fn ask(
        &mut self,
        unknown: usize,
        from: PortId,
        now: u64,
        upcalls: &mut dyn UpcallSink,
    ) -> usize {
        let (fabric, number) = (&self.fabric, self.pending.number());
        let whole = |batch: &mut Batch, index| {
            batch.deepen(index);
            let (headers, payload, _) = batch.split(index);
            let len = headers.as_slice().len() + payload.len() as usize;
            fabric.exact_key(from, headers.as_slice(), len, number)
        };
        if self.lookup.ask_rules(unknown, whole) {
            return unknown;
        }
        let flow_batch = &self.lookup.flow_batches[unknown];
        let (frames, ct) = (flow_batch.frames.clone(), flow_batch.key.ct());
        self.figures.misses += frames.len() as u64;
        frames.for_each(|index| self.send_upcall((index, ct), from, now, upcalls));
        unknown + 1
    }

    /// Adds a frame to the pending ones and sends its upcall.
    #[cold]
    fn send_upcall(
        &mut self,
        (index, ct): (usize, Ct),
        from: PortId,
        now: u64,
        upcalls: &mut dyn UpcallSink,
    ) {
        self.lookup.batch.deepen(index);
        let (headers, payload, _) = self.lookup.batch.split(index);
        let len = headers.as_slice().len() + payload.len() as usize;
        let number = self.pending.number();
        let key = self.fabric.exact_key(from, headers.as_slice(), len, number);
        let key = key.with_ct(ct);
        let connection = self.lookup.connections.as_mut();
        let connection = connection.and_then(|connections| connections.about(index));
        let (headers, payload, offload) = self.lookup.batch.split(index);
        self.pending.clock = self.fabric.now;
        let pair = self.fabric.serving;
        let admission = self.pending.add((&key, connection), len, now, || {
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
                    connection,
                });
                if !sent {
                    self.pending.retry(id);
                }
            }
        }
    }

    /// Lets a frame wait for another decision: its connection has this state now.
    #[cold]
    pub(super) fn ask_again(
        &mut self,
        (key, frame): (FlowKey, PendingFrame),
        (ct, connection): (Ct, Option<Connection>),
        now: u64,
    ) {
        let (key, len) = (key.with_ct(ct), frame.bytes());
        match self.pending.add((&key, connection), len, now, || frame) {
            Admission::Queued => {}
            Admission::Upcall(id) => self.pending.retry(id),
            Admission::Full => {
                let from = PortId(key.in_port());
                self.fabric.count_drop(from, DropReason::UpcallFull, 1);
            }
        }
    }

    /// Notes that control has replied to this upcall.
    pub(crate) fn note_reply(&mut self, upcall: Option<u64>) {
        self.pending.clock = self.fabric.now;
        if let Some(ns) = upcall.and_then(|id| self.pending.open_for(id)) {
            self.figures.waits.note(ns);
        }
    }

    /// Sends the upcalls that were not sent because their port had too many open ones or the ring
    /// was full. To be called periodically and after answers.
    #[inline]
    pub fn send_unsent_upcalls(&mut self, upcalls: &mut dyn UpcallSink) {
        if self.pending.has_unsent() {
            self.send_next_upcalls(upcalls);
        }
    }

    #[cold]
    fn send_next_upcalls(&mut self, upcalls: &mut dyn UpcallSink) {
        while let Some((id, waiting)) = self.pending.next_unsent() {
            if !upcalls.send(&upcall_of(id, waiting)) {
                return self.pending.retry(id);
            }
        }
    }

    /// Sends all open upcalls again, for a new control. Does nothing while answers wait to be
    /// applied: each upcall would be answered twice.
    pub fn retry_upcalls(&mut self, upcalls: &mut dyn UpcallSink) {
        self.retry_upcalls_since(u64::MAX, upcalls);
    }

    /// Sends the upcalls again that have been open for `ms` milliseconds.
    pub(crate) fn retry_overdue_upcalls(
        &mut self,
        ms: u64,
        now: u64,
        upcalls: &mut dyn UpcallSink,
    ) {
        self.retry_upcalls_since(now.saturating_sub(ms), upcalls);
    }

    /// Sends the upcalls again that were open at `then`.
    fn retry_upcalls_since(&mut self, then: u64, upcalls: &mut dyn UpcallSink) {
        if self.work_queue.is_behind() {
            return;
        }
        let open = self.pending.open().into_iter();
        for (id, waiting) in open.filter(|(_, waiting)| waiting.since() <= then) {
            if !upcalls.send(&upcall_of(id, waiting)) {
                return;
            }
        }
        self.send_unsent_upcalls(upcalls);
    }

    /// Drops and counts all pending frames.
    pub fn drop_pending(&mut self) {
        self.expire(u64::MAX);
    }

    /// Drops and counts the pending frames that timed out, and expires idle flows.
    pub fn expire(&mut self, now: u64) {
        if now >= self.swept + SWEEP_MS {
            self.swept = now;
            self.tables().each(|flows| {
                flows.expire_some(now, FLOW_IDLE_MS, FLOWS_PER_SWEEP);
            });
        }
        self.sweep_connections(now);
        let expired = self.pending.expire(now);
        self.drop_frames_of(expired);
    }

    /// Drops and counts the pending frames of a port whose guest disconnected: control must not
    /// attribute them to the next guest.
    pub fn guest_disconnected(&mut self, id: PortId) {
        let undecided = self.pending.forget_port(id);
        self.drop_frames_of(undecided);
    }

    /// Counts frames that were left in the rings of a port's driver when that ended.
    pub fn count_left(&mut self, id: PortId, frames: u64) {
        let counters = &self.fabric.counters;
        counters.add_drops(id, DropReason::DriverEnded, frames);
    }

    fn drop_frames_of(&mut self, all: Vec<PendingUpcall>) {
        for waiting in all {
            for frame in &waiting.frames {
                self.fabric.serving = frame.pair;
                self.fabric
                    .count_drop(waiting.port(), DropReason::UpcallTimeout, 1);
            }
            self.emit_undecided(&waiting);
        }
    }

    /// Emits frames whose upcall timed out.
    fn emit_undecided(&mut self, waiting: &PendingUpcall) {
        if self.fabric.taps.is_none() {
            return;
        }
        for frame in &waiting.frames {
            let shown = TappedFrame {
                headers: frame.headers.as_slice(),
                rest: TapPayload::Owned(&frame.payload),
                offload: frame.offload,
            };
            let reason = DropReason::UpcallTimeout;
            self.fabric
                .emit(waiting.port(), Way::In, shown, Some(reason));
        }
        // Flushes the copies that mirrors made of them.
        self.fabric.flush_and_notify();
        self.fabric.charge_receivers(0, None);
    }
}
