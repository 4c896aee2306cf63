//! Events of sockets, reported to the translator.

use std::mem::MaybeUninit;
use std::time::Duration;

use ipc::driving::ForwardProtocol;
use rustix::event::epoll::{Event, EventFlags};
use usernet::network::Refusal;
use usernet::services::IcmpError;
use usernet::{Failure, Nanos, SocketEvent};
use wire::virtio::net::NetHeader;

use super::datagrams::Source;
use super::echoes::Request;
use super::events::{Kind, Tag};
use super::questions::Reply;
use super::sockets::Progress;
use super::{EVENTS, UserWorker, now};
use crate::worker::WorkerError;

impl UserWorker {
    /// Waits for events, and handles those of sockets.
    pub(super) fn wait(
        &mut self,
        limit: Option<Duration>,
        is_running: bool,
    ) -> Result<(), WorkerError> {
        let mut buffer = [MaybeUninit::<Event>::uninit(); EVENTS];
        let events = sys::wait::events(self.gateway.sockets.epoll(), &mut buffer, limit)?;
        if !is_running {
            return Ok(());
        }
        let now = now();
        if !events.is_empty() {
            self.waiter.found();
        }
        for event in events {
            let (tag, flags) = (Tag::of(event.data), event.flags);
            match tag.kind() {
                Kind::Wake => {}
                Kind::Flow => self.flow_event(tag, flags, now),
                Kind::Question => {
                    if let Some(reply) = self.gateway.questions.event(tag, now) {
                        self.gateway.reply(reply, now);
                    }
                }
                Kind::Echo => {
                    if flags.contains(EventFlags::ERR) {
                        self.report_echo_errors(tag, now);
                    }
                    if let Some(frame) = self.echoes.event(tag) {
                        self.gateway.guests.send(NetHeader::default(), &frame);
                    }
                }
                Kind::Forward => self.forward_event(tag, flags, now),
            }
        }
        Ok(())
    }

    /// Counts an echo request that was refused, and returns the error for its guest. Where the
    /// system permits none, that is as if a rule forbade it.
    pub(super) fn refused_echo(
        &mut self,
        frame: &[u8],
        refusal: Refusal,
        now: Nanos,
    ) -> Option<Reply> {
        self.gateway.counters.refuse(refusal);
        let is_forbidden = refusal == Refusal::Protocol
            && self.echoes.is_denied()
            && Request::parse(frame).is_some();
        let answer = match is_forbidden {
            true => self.gateway.errors.about(now, frame, IcmpError::Prohibited),
            false => self.gateway.errors.refused(now, frame, refusal),
        };
        answer.map(Reply::Frame)
    }

    /// Tells a guest of echo requests that were not delivered.
    fn report_echo_errors(&mut self, tag: Tag, now: Nanos) {
        while let Some((request, notice)) = self.echoes.next_error(tag) {
            if let Some(frame) = self.gateway.errors.about(now, &request, notice) {
                self.gateway.guests.send(NetHeader::default(), &frame);
            }
        }
    }

    /// Something has come to the socket of a forward.
    fn forward_event(&mut self, tag: Tag, flags: EventFlags, now: Nanos) {
        match self.gateway.forwards.protocol(tag) {
            Some(ForwardProtocol::Tcp) => self.accept(tag, now),
            Some(ForwardProtocol::Udp) => {
                if flags.contains(EventFlags::ERR) {
                    self.gateway.report_errors(Source::Forward(tag), now);
                }
                if !self.gateway.forwards.set_queued(tag, true) {
                    self.gateway
                        .waiting
                        .datagrams
                        .push_back(Source::Forward(tag));
                }
            }
            None => {}
        }
    }

    fn flow_event(&mut self, tag: Tag, flags: EventFlags, now: Nanos) {
        const READABLE: EventFlags = EventFlags::IN
            .union(EventFlags::RDHUP)
            .union(EventFlags::HUP);
        let Some(socket) = self.gateway.sockets.of_event(tag) else {
            return;
        };
        let flow = socket.flow;
        socket.ended |= flags.intersects(EventFlags::RDHUP | EventFlags::HUP);
        let is_writable = flags.contains(EventFlags::OUT);
        // Urgent data first: bytes before it are not all that will come.
        let read = match flags.contains(EventFlags::PRI) {
            true => Some(SocketEvent::Urgent),
            false => flags.intersects(READABLE).then_some(SocketEvent::Readable),
        };
        let mut actions = Vec::new();
        match socket.progress {
            Progress::Datagrams => {
                if !std::mem::replace(&mut socket.is_queued, true) {
                    self.gateway.waiting.datagrams.push_back(Source::Flow(flow));
                }
                if flags.contains(EventFlags::ERR) {
                    self.gateway.report_errors(Source::Flow(flow), now);
                }
                return;
            }
            Progress::Connecting => {
                let has_failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
                match socket.take_failure() {
                    Some(failure) => self.gateway.fail(flow, failure, now, &mut actions),
                    None if is_writable && !has_failed => {
                        socket.connected();
                        let room = socket.room_of_writable();
                        self.gateway.sockets.count(flow);
                        self.gateway.report(
                            flow,
                            SocketEvent::Connected { room },
                            now,
                            &mut actions,
                        );
                        if let Some(read) = read {
                            self.gateway.report(flow, read, now, &mut actions);
                        }
                    }
                    None if has_failed => {
                        let failure = Failure::Unreachable(IcmpError::Host.into());
                        self.gateway.fail(flow, failure, now, &mut actions);
                    }
                    None => {}
                }
            }
            Progress::Connected => {
                if flags.contains(EventFlags::ERR) && socket.take_error().is_some() {
                    self.gateway
                        .report(flow, SocketEvent::Reset, now, &mut actions);
                } else {
                    if is_writable && std::mem::take(&mut socket.awaits_room) {
                        let room = socket.room_of_writable();
                        self.gateway
                            .report(flow, SocketEvent::Room { room }, now, &mut actions);
                    }
                    if let Some(read) = read {
                        self.gateway.report(flow, read, now, &mut actions);
                    }
                }
            }
        }
        self.gateway.perform(actions, None, now);
    }
}
