//! Upcalls of pending frames: sending, retrying, timeouts, backpressure.

use port::{DropReason, Port, PortId};

use channel::records::Upcall;

use super::{FLOW_IDLE_MS, FLOWS_PER_SWEEP, SWEEP_MS, Switch, UpcallSink};
use crate::pending_upcalls::PendingUpcall;

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
    /// Enables backpressure for `for_ms` milliseconds: while too many frames of a port are pending,
    /// its further frames stay in the guest's queue and are not dropped. A switch that takes over
    /// starts so: it has no flows yet.
    pub fn enable_backpressure(&mut self, now: u64, for_ms: u64) {
        self.backpressure_until = self.backpressure_until.max(now + for_ms);
        self.update_throttle();
        self.pending.take_whole_batches(true);
    }

    /// Returns whether a port's frames stay in its queues for now.
    #[inline(never)]
    pub(super) fn must_wait(&mut self, id: PortId, now: u64) -> bool {
        if self.backpressure_until != 0 && self.is_under_backpressure(id, now) {
            return true;
        }
        self.exceeds_rate_limit(id)
    }

    #[cold]
    fn is_under_backpressure(&mut self, id: PortId, now: u64) -> bool {
        if now < self.backpressure_until {
            return !self.pending.has_room(id);
        }
        self.backpressure_until = 0;
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
            self.flows.expire_some(now, FLOW_IDLE_MS, FLOWS_PER_SWEEP);
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
}
