//! Frames that wait: for decisions of control (upcalls, retries, timeouts), and in the queues of
//! their senders (rate limits, backpressure).

use std::sync::Arc;

use channel::capture::Way;
use channel::limits::Limits;
use channel::records::Upcall;
use port::{DropReason, PortId};
use wire::flow::FlowKey;
use wire::vlan::HeaderBuf;

use super::{Switch, UpcallSink};
use crate::forward::limits::PortLimits;
use crate::forward::pending_upcalls::{Admission, PendingFrame, PendingUpcall};
use crate::forward::revalidator::FLOW_IDLE_MS;
use crate::forward::tap::{TapPayload, TappedFrame};
use crate::ports::coalescing::Nanos;
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

/// Senders that have to wait.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Whether any sender may have to wait: a limit is set, or backpressure is on.
    pub(super) active: bool,
    /// End of the backpressure, milliseconds; 0: none. See [`Switch::enable_backpressure`].
    backpressure_until: u64,
    /// Ports with a from-guest rate limit.
    ports: Vec<PortId>,
    /// Time at which the pair that was served last can be served again.
    until: Option<Nanos>,
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

    /// Enables backpressure for `for_ms` milliseconds: while too many frames of a port are pending,
    /// its further frames stay in the guest's queue and are not dropped. A switch that takes over
    /// starts so: it has no flows yet.
    pub fn enable_backpressure(&mut self, now: u64, for_ms: u64) {
        self.throttle.backpressure_until = self.throttle.backpressure_until.max(now + for_ms);
        self.update_throttle();
        self.pending.take_whole_batches(true);
    }

    /// Returns whether a port's frames stay in its queues for now.
    #[inline(never)]
    pub(super) fn must_wait(&mut self, id: PortId, now: u64) -> bool {
        if self.throttle.backpressure_until != 0 && self.is_under_backpressure(id, now) {
            return true;
        }
        self.exceeds_rate_limit(id)
    }

    #[cold]
    fn is_under_backpressure(&mut self, id: PortId, now: u64) -> bool {
        if now < self.throttle.backpressure_until {
            return !self.pending.has_room(id);
        }
        self.throttle.backpressure_until = 0;
        self.update_throttle();
        self.pending.take_whole_batches(false);
        false
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
        self.fabric.flush();
        self.fabric.charge_receivers(0, None);
    }

    /// Sets the limits of a port; workers share them.
    pub fn set_limits(&mut self, id: PortId, limits: Option<Arc<PortLimits>>) {
        self.throttle.ports.retain(|port| *port != id);
        if limits
            .as_ref()
            .is_some_and(|limits| limits.limits_from_guest())
        {
            self.throttle.ports.push(id);
        }
        self.fabric.set_limits(id, limits);
        self.update_throttle();
    }

    /// Returns the limits of a port.
    #[must_use]
    pub fn limits(&mut self, id: PortId) -> Limits {
        let limits = self.limits_of(id);
        limits.map(|limits| limits.limits()).unwrap_or_default()
    }

    /// Returns whether the port has a from-guest rate limit.
    #[must_use]
    pub(crate) fn limits_from_guest(&self, id: PortId) -> bool {
        self.throttle.active && self.throttle.ports.contains(&id)
    }

    /// Returns and clears the time, in nanoseconds, until which the pair that was served last has
    /// to wait because of its rate limit.
    #[inline]
    pub(crate) fn take_pause(&mut self) -> Option<Nanos> {
        if self.throttle.active {
            self.throttle.until.take()
        } else {
            None
        }
    }

    fn update_throttle(&mut self) {
        self.throttle.active =
            self.throttle.backpressure_until != 0 || !self.throttle.ports.is_empty();
        if !self.throttle.active {
            self.lookup.batch.set_budget(None);
        }
    }

    fn limits_of(&mut self, id: PortId) -> Option<Arc<PortLimits>> {
        self.fabric.slot(id)?.limits.clone()
    }

    /// Sets the budget of the batch from its sender's rate limit. Returns whether it is zero.
    fn exceeds_rate_limit(&mut self, id: PortId) -> bool {
        let now = self.fabric.now;
        let granted = match self.fabric.slot(id).and_then(|slot| slot.limits.as_deref()) {
            Some(limits) => limits.grant(now),
            None => Ok(None),
        };
        let (budget, until) = match granted {
            Ok(budget) => (budget, None),
            Err(until) => (None, Some(until)),
        };
        self.lookup.batch.set_budget(budget);
        self.throttle.until = until;
        until.is_some()
    }

    /// Returns the unused budget of the batch.
    #[inline(never)]
    pub(super) fn settle_limits(&mut self, id: PortId) {
        let now = self.fabric.now;
        let Some(budget) = self.lookup.batch.budget().copied() else {
            return;
        };
        self.lookup.batch.set_budget(None);
        if let Some(limits) = self.fabric.slot(id).and_then(|slot| slot.limits.as_deref()) {
            self.throttle.until = limits.settle(&budget, now);
        }
    }
}
