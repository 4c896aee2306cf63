//! Towards the guest: what to peek, what to send again, and what a flow waits for.

use wire::tcp::{FIN, PSH};

use super::sequence::{after, before};
use super::{Context, Flow, State, Urgent, timer};
use crate::Nanos;
use crate::action::{Action, Headers, Peek, PeekResult};
use crate::services::{PathError, Trouble};
use crate::waiting::{SocketQueues, TcpCounters, TimerKind, WaitsFor};

impl Flow {
    /// The bytes to peek next.
    pub(crate) fn peek(&mut self, now: Nanos) -> Option<Peek> {
        self.path.try_longer(&mut self.sending, now);
        let wanted = self.wanted();
        if wanted.is_none() {
            self.sending.announced = false;
            self.watch_window(now);
        }
        wanted
    }

    pub(super) fn wanted(&self) -> Option<Peek> {
        if self.state != State::Open {
            return None;
        }
        let sending = &self.sending;
        let peek = |offset: u32, len: u32| {
            let headers = self.ends.tcp_len();
            (len > 0).then_some(Peek {
                offset,
                len,
                headers,
            })
        };
        let last = sending.end.unwrap_or(sending.max);
        let sent = if before(last, sending.una) {
            0
        } else {
            last.wrapping_sub(sending.una)
        };
        let mss = u32::from(sending.mss);
        if sending.again {
            let limit = if sending.window == 0 {
                1
            } else {
                mss.min(sending.window)
            };
            let known = if sent == 0 && sending.readable {
                limit
            } else {
                sent
            };
            return peek(0, known.min(limit));
        }
        let offset = sending.nxt.wrapping_sub(sending.una);
        if offset > 0 && sending.urgent == Urgent::Stopped {
            return None;
        }
        let open = sending.window.saturating_sub(offset);
        let left = match sending.end {
            Some(_) => sent.saturating_sub(offset),
            None if sending.readable => u32::MAX,
            None => sent.saturating_sub(offset),
        };
        // No small segment while others are on their way (RFC 9293, section 3.8.6.2.1).
        if open < mss.min(left) && offset > 0 {
            return None;
        }
        let most = if self.super_frames {
            self.ends.longest() / mss * mss
        } else {
            mss
        };
        peek(offset, open.min(most).min(left))
    }

    /// The headers to put in front of the bytes that were peeked.
    pub(crate) fn peeked(
        &mut self,
        peek: Peek,
        peeked: PeekResult,
        context: &mut Context<'_>,
    ) -> Option<Headers> {
        if self.state != State::Open {
            return None;
        }
        let seq = self.sending.una.wrapping_add(peek.offset);
        let again = std::mem::take(&mut self.sending.again);
        let len = match peeked {
            PeekResult::Bytes(len) => len.min(peek.len),
            PeekResult::Empty => {
                self.found_nothing(peek);
                return None;
            }
            PeekResult::End if self.found_nothing(peek) => return None,
            PeekResult::End => {
                if before(seq, self.sending.max) {
                    return None;
                }
                self.sending.end = Some(seq);
                self.pump(context);
                return None;
            }
        };
        if self.sending.window > 0 && before(seq, self.sending.max) {
            self.sending.retransmissions = self.sending.retransmissions.saturating_add(1);
        }
        let end = seq.wrapping_add(len);
        if !again || after(end, self.sending.nxt) {
            self.sending.nxt = end;
        }
        if after(end, self.sending.max) {
            self.sending.max = end;
            self.timer.sample(end, context.now);
        }
        self.timer.start_if_idle(context.now);
        Some(self.headers(seq, PSH, len))
    }

    /// Nothing was found after the bytes that are on their way; returns whether urgent data may be
    /// the reason.
    fn found_nothing(&mut self, peek: Peek) -> bool {
        let sending = &mut self.sending;
        sending.readable = false;
        let may_stop = peek.offset > 0 && sending.urgent != Urgent::Never;
        if may_stop {
            sending.urgent = Urgent::Stopped;
        }
        may_stop
    }

    /// Announces bytes to peek. Sends the FIN if it is next, and again if it alone was lost.
    pub(super) fn pump(&mut self, context: &mut Context<'_>) {
        if self.state != State::Open {
            return;
        }
        let sending = &self.sending;
        let is_lost = sending.again && sending.end == Some(sending.una);
        if let Some(end) = sending.end
            && (end == sending.nxt || is_lost)
        {
            let headers = self.headers(end, FIN, 0);
            context.act(Action::Frame(headers));
            self.sending.again = false;
            self.sending.nxt = end.wrapping_add(1);
            let is_again = self.sending.max == self.sending.nxt;
            self.sending.retransmissions += u32::from(is_again);
            self.sending.max = self.sending.nxt;
            self.timer.start_if_idle(context.now);
        }
        if self.wanted().is_some() {
            if !self.sending.announced {
                self.sending.announced = true;
                context.act(Action::Ready(context.id));
            }
        } else {
            self.watch_window(context.now);
        }
    }

    /// A closed window is probed, also when nothing is on its way (RFC 9293, section 3.8.6.1).
    fn watch_window(&mut self, now: Nanos) {
        if self.state == State::Open && self.sending.window == 0 && self.has_more() {
            self.timer.start_if_idle(now);
        }
    }

    fn has_more(&self) -> bool {
        self.sending.readable || self.sending.max != self.sending.una
    }

    /// An ICMP error about a segment of this flow. It counts if the segment is on its way, which
    /// only one who sees it knows (RFC 5927, section 4.1); returns whether it does.
    pub(crate) fn path_error(&mut self, error: &PathError, context: &mut Context<'_>) -> bool {
        let sending = &mut self.sending;
        if before(error.seq, sending.una) || !before(error.seq, sending.max) {
            return false;
        }
        match (self.state, error.trouble) {
            (State::Open, Trouble::TooBig(mtu))
                if self.path.refused(sending, (mtu, error.len), context.now) =>
            {
                self.send_again(context);
            }
            // A connection that is not established ends (RFC 5461, section 2.1; as Linux has it).
            (State::SynSent | State::SynReceived, Trouble::Unreachable) => {
                self.reset_peer(context);
            }
            // One that is established does not: ways come back (RFC 1122, section 4.2.3.9).
            _ => {}
        }
        true
    }

    /// Sends all that is on its way again, in segments of the size of now, without a timeout.
    fn send_again(&mut self, context: &mut Context<'_>) {
        let sending = &mut self.sending;
        sending.nxt = sending.una;
        sending.duplicates = 0;
        (sending.recover, sending.again) = (None, false);
        self.timer.forget_sample();
        self.timer.start(context.now);
        self.pump(context);
    }

    /// The deadline has passed.
    pub(crate) fn expire(&mut self, context: &mut Context<'_>) {
        match self.state {
            State::Late | State::Closed => self.state = State::Closed,
            // The guest has given up, or asks again.
            State::Connecting => self.reset_peer(context),
            State::SynSent | State::SynReceived => self.expire_half_open(context),
            State::Open => self.expire_open(context),
        }
    }

    fn expire_half_open(&mut self, context: &mut Context<'_>) {
        let most = context.times.half_open;
        if self.timer.silent(context.now) >= most {
            return self.reset_peer(context);
        }
        // The first timeouts are after one second and after three: time for an answer.
        if self.state == State::SynSent {
            match self.timer.timeouts() {
                0 => context.act(Action::Ask(context.id, None)),
                1 => context.act(Action::Ask(context.id, Some(self.timer.heard_at()))),
                _ => {}
            }
        }
        self.timer.back_off(context.now, u8::MAX);
        self.send_syn(context);
        self.timer.end_after(most);
    }

    fn expire_open(&mut self, context: &mut Context<'_>) {
        let is_closing = self.receiving.closed && self.sending.end.is_some();
        if is_closing && self.timer.silent(context.now) >= context.times.closing {
            return self.give_up(context);
        }
        let is_shut_out = self.sending.window == 0 && self.sending.readable;
        let is_idle = self.sending.max == self.sending.una && !is_shut_out;
        if is_idle {
            if self.timer.tries < timer::PROBES {
                let silence = self.silence(&context.times);
                if self.timer.tries == 0 && self.timer.silent(context.now) >= silence {
                    let seconds = silence / timer::S;
                    context.act(Action::Probe(context.id, seconds as u32));
                }
                self.send_probe(context);
            } else {
                self.give_up(context);
            }
            return;
        }
        if !self.timer.back_off(context.now, timer::TRIES) {
            return self.give_up(context);
        }
        let timeouts = self.timer.timeouts();
        self.path.probe(&mut self.sending, timeouts, context.now);
        let sending = &mut self.sending;
        sending.duplicates = 0;
        sending.recover = None;
        sending.announced = false;
        sending.again = sending.window == 0;
        if sending.window > 0 || sending.end == Some(sending.una) {
            sending.nxt = sending.una;
        }
        self.pump(context);
        if is_closing {
            self.timer.end_after(context.times.closing);
        }
    }

    fn give_up(&mut self, context: &mut Context<'_>) {
        self.send_reset(context);
        self.guest_is_gone(context);
    }

    /// Returns the time of the last progress: bytes that the guest has acknowledged, bytes of it
    /// that the socket took, a connection that was established, or an end of a stream.
    pub(crate) fn progress(&self) -> Nanos {
        self.progress
    }

    /// Returns how far the flow is.
    pub(crate) fn counters(&self) -> TcpCounters {
        TcpCounters {
            unacknowledged: self.unacknowledged(),
            window: self.sending.window,
            room: self.receiving.room,
            retransmissions: self.sending.retransmissions,
        }
    }

    /// Returns the next deadline, and its reason.
    pub(crate) fn timer(&self) -> Option<(TimerKind, Nanos)> {
        let kind = match self.state {
            State::Connecting | State::Late | State::Closed => TimerKind::Expiry,
            _ if !self.timer.is_running() => TimerKind::KeepAlive,
            State::Open if self.sending.window == 0 => TimerKind::Probe,
            _ => TimerKind::Retransmission,
        };
        self.timer.deadline.map(|deadline| (kind, deadline))
    }

    /// Returns what the flow waits for. `has_buffer`: there is a free buffer for the guest.
    pub(crate) fn waits_for(&self, queues: &SocketQueues, has_buffer: bool) -> WaitsFor {
        match self.state {
            State::Connecting => return WaitsFor::HostSocket,
            State::SynSent | State::SynReceived => return WaitsFor::Acknowledgement,
            State::Late | State::Closed => return WaitsFor::Nothing,
            State::Open => {}
        }
        let sending = &self.sending;
        let sent = self.unacknowledged();
        let waiting = queues.unread.saturating_sub(sent);
        if sending.window == 0 && sent + waiting > 0 {
            return WaitsFor::GuestWindow;
        }
        let is_due = waiting > 0 || sending.again || before(sending.nxt, sending.max);
        if is_due && self.wanted().is_some() {
            return match has_buffer {
                true => WaitsFor::Turn,
                false => WaitsFor::Buffer,
            };
        }
        if waiting > 0 && sending.urgent != Urgent::Stopped {
            // Bytes that have just come are not known here yet: their event is next.
            return match sending.readable {
                true => WaitsFor::GuestWindow,
                false => WaitsFor::Turn,
            };
        }
        if sending.max != sending.una {
            return WaitsFor::Acknowledgement;
        }
        match queues.unsent > 0 {
            true => WaitsFor::HostSocket,
            false => WaitsFor::Nothing,
        }
    }

    /// Returns the bytes that are on their way to the guest, without a FIN.
    fn unacknowledged(&self) -> u32 {
        let sending = &self.sending;
        let last = sending.end.unwrap_or(sending.max);
        match self.state {
            State::Open if !before(last, sending.una) => last.wrapping_sub(sending.una),
            _ => 0,
        }
    }
}
