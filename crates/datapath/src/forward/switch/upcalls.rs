//! Frames that wait for decisions of control: upcalls, retries, timeouts.

use channel::capture::Way;
use channel::records::Upcall;
use port::{DropReason, PortId};
use wire::flow::FlowKey;
use wire::vlan::HeaderBuf;

use super::{Switch, UpcallSink};
use crate::forward::pending_upcalls::{Admission, PendingFrame, PendingUpcall};
use crate::forward::revalidator::FLOW_IDLE_MS;
use crate::forward::tap::{TapPayload, TappedFrame};
use crate::ports::port::Port;

/// Flows that one sweep visits, so that frames do not wait for it.
const FLOWS_PER_SWEEP: usize = 1024;
/// Interval between two sweeps, milliseconds.
const SWEEP_MS: u64 = 16;
/// Upcalls that are remembered, so that none is repeated too soon.
const RECENT_UPCALLS: usize = 32;
/// Interval after which an upcall may be repeated, milliseconds.
const RETRY_INTERVAL_MS: u64 = 100;

/// Upcalls that a helper, which keeps no frames, has sent recently.
#[derive(Debug, Default)]
pub(crate) struct RecentUpcalls(Vec<(FlowKey, u64)>);

impl RecentUpcalls {
    /// Returns whether the upcall of this key is due, and notes it.
    fn is_due(&mut self, key: &FlowKey, now: u64) -> bool {
        self.0
            .retain(|(_, at)| now.saturating_sub(*at) < RETRY_INTERVAL_MS);
        let due = self.0.len() < RECENT_UPCALLS && self.0.iter().all(|(sent, _)| sent != key);
        if due {
            self.0.push((*key, now));
        }
        due
    }
}

/// Returns the upcall of these pending frames.
fn upcall_of(id: u64, waiting: &PendingUpcall) -> Upcall {
    let first = waiting.frames.first();
    let headers = first.map(|frame| frame.headers.as_slice().to_vec());
    Upcall {
        id,
        key: *waiting.key.words(),
        frame_len: first.map_or(0, |frame| frame.bytes() as u32),
        headers: headers.unwrap_or_default(),
    }
}

impl<P: Port> Switch<P> {
    /// Adds a frame to the pending ones and sends its upcall.
    #[cold]
    pub(super) fn send_upcall(
        &mut self,
        index: usize,
        from: PortId,
        now: u64,
        upcalls: &mut dyn UpcallSink,
    ) {
        self.lookup.batch.deepen(index);
        let (headers, payload, offload) = self.lookup.batch.split(index);
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

    /// Sends the upcall of a frame that is not kept here.
    #[cold]
    pub(super) fn send_upcall_only(
        &mut self,
        index: usize,
        from: PortId,
        now: u64,
        recent: &mut RecentUpcalls,
        upcalls: &mut dyn UpcallSink,
    ) {
        self.lookup.batch.deepen(index);
        let (headers, payload, _) = self.lookup.batch.split(index);
        let frame_len = headers.as_slice().len() as u32 + payload.len();
        let headers = headers.as_slice();
        let key = self.fabric.exact_key(from, headers, frame_len as usize, 0);
        if recent.is_due(&key, now) {
            self.figures.upcalls += 1;
            upcalls.send(&Upcall {
                id: self.pending.number(),
                key: *key.words(),
                frame_len,
                headers: headers.to_vec(),
            });
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
            self.lookup
                .flows
                .expire_some(now, FLOW_IDLE_MS, FLOWS_PER_SWEEP);
        }
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
