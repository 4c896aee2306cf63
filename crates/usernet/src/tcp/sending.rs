//! Towards the guest: what to peek, and what to send again.

use wire::tcp::{FIN, PSH};

use super::sequence::{after, before};
use super::{Context, Flow, State, Urgent, timer};
use crate::Nanos;
use crate::action::{Action, Headers, Peek, Peeked};

impl Flow {
    /// The bytes to peek next.
    pub(crate) fn peek(&mut self, now: Nanos) -> Option<Peek> {
        let wanted = self.wanted();
        if wanted.is_none() {
            self.sending.announced = false;
            self.watch_window(now);
        }
        wanted
    }

    fn wanted(&self) -> Option<Peek> {
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
        peeked: Peeked,
        context: &mut Context<'_>,
    ) -> Option<Headers> {
        if self.state != State::Open {
            return None;
        }
        let seq = self.sending.una.wrapping_add(peek.offset);
        let again = std::mem::take(&mut self.sending.again);
        let len = match peeked {
            Peeked::Bytes(len) => len.min(peek.len),
            Peeked::Empty => {
                self.found_nothing(peek);
                return None;
            }
            Peeked::End if self.found_nothing(peek) => return None,
            Peeked::End => {
                if before(seq, self.sending.max) {
                    return None;
                }
                self.sending.end = Some(seq);
                self.pump(context);
                return None;
            }
        };
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

    /// Nothing was found behind what is on its way; returns whether urgent data may be the reason.
    fn found_nothing(&mut self, peek: Peek) -> bool {
        let sending = &mut self.sending;
        sending.readable = false;
        let may_stop = peek.offset > 0 && sending.urgent != Urgent::Never;
        if may_stop {
            sending.urgent = Urgent::Stopped;
        }
        may_stop
    }

    /// Announces what is to be peeked, and sends the FIN when it is next, or again when it is the
    /// one thing that was lost.
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

    /// The deadline has passed.
    pub(crate) fn expire(&mut self, context: &mut Context<'_>) {
        match self.state {
            State::Late | State::Closed => self.state = State::Closed,
            State::Connecting => self.timer.deadline = None,
            State::SynSent | State::SynReceived => {
                if self.timer.back_off(context.now, timer::SYN_TRIES) {
                    self.send_syn(context);
                } else {
                    self.reset_peer(context);
                }
            }
            State::Open => self.expire_open(context),
        }
    }

    fn expire_open(&mut self, context: &mut Context<'_>) {
        let is_shut_out = self.sending.window == 0 && self.sending.readable;
        let is_idle = self.sending.max == self.sending.una && !is_shut_out;
        if is_idle {
            if self.timer.tries < timer::PROBES {
                self.send_probe(context);
            } else {
                self.give_up(context);
            }
            return;
        }
        if !self.timer.back_off(context.now, timer::TRIES) {
            return self.give_up(context);
        }
        let sending = &mut self.sending;
        sending.duplicates = 0;
        sending.recover = None;
        sending.announced = false;
        sending.again = sending.window == 0;
        if sending.window > 0 || sending.end == Some(sending.una) {
            sending.nxt = sending.una;
        }
        self.pump(context);
    }

    fn give_up(&mut self, context: &mut Context<'_>) {
        self.send_reset(context);
        self.guest_is_gone(context);
    }
}
