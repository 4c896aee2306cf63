//! Events of sockets, reported to the translator.

use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::event::epoll::{Event, EventFlags};
use usernet::{Failure, Nanos, SocketEvent};
use wire::virtio::net::NetHeader;

use super::events::{Kind, Tag};
use super::forwards::Accepted;
use super::sockets::{self, Progress};
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
        let events = sys::wait::events(self.sockets.epoll(), &mut buffer, limit)?;
        if !is_running {
            return Ok(());
        }
        let now = now();
        for event in events {
            let tag = Tag::of(event.data);
            match tag.kind() {
                Kind::Wake => {}
                Kind::Flow => self.flow_event(tag, event.flags, now),
                Kind::Question => {
                    if let Some(frame) = self.questions.event(tag, now) {
                        self.guests.send(NetHeader::default(), &frame);
                    }
                }
                Kind::Echo => {
                    if let Some(frame) = self.echoes.event(tag) {
                        self.guests.send(NetHeader::default(), &frame);
                    }
                }
                Kind::Forward => self.accept(tag, now),
            }
        }
        Ok(())
    }

    /// Accepts a connection of a forward; others have their turn between.
    fn accept(&mut self, tag: Tag, now: Nanos) {
        let leases = self.services.leases();
        let Some(accepted) = self.forwards.accept(tag, &self.desired.network, leases) else {
            return;
        };
        let Accepted {
            socket,
            guest,
            station,
            peer,
        } = accepted;
        let (room, mut actions) = (sockets::room_of(&socket), Vec::new());
        let flow = self
            .translator
            .accepted(now, (guest, station), peer, room, &mut actions);
        match flow {
            Ok(flow) => {
                if self.sockets.accepted(flow, socket).is_err() {
                    self.report(flow, SocketEvent::Reset, now, &mut actions);
                }
            }
            Err(refusal) => {
                self.counters.refuse(refusal);
                let _ = rustix::net::connect_unspec(&socket);
            }
        }
        self.perform(actions, None, now);
    }

    fn flow_event(&mut self, tag: Tag, flags: EventFlags, now: Nanos) {
        const READABLE: EventFlags = EventFlags::IN
            .union(EventFlags::RDHUP)
            .union(EventFlags::HUP);
        let Some(socket) = self.sockets.of_event(tag) else {
            return;
        };
        let flow = socket.flow;
        socket.ended |= flags.intersects(EventFlags::RDHUP | EventFlags::HUP);
        let is_writable = flags.contains(EventFlags::OUT);
        let is_readable = flags.intersects(READABLE);
        let mut actions = Vec::new();
        match socket.progress {
            Progress::Datagrams => {
                if !std::mem::replace(&mut socket.is_queued, true) {
                    self.waiting.datagrams.push_back(flow);
                }
                return;
            }
            Progress::Connecting => {
                let has_failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
                match socket.take_error() {
                    Some(error) => {
                        self.fail(flow, sockets::failure(error), now, &mut actions);
                    }
                    None if is_writable && !has_failed => {
                        socket.progress = Progress::Connected;
                        let room = socket.room_of_writable();
                        self.report(flow, SocketEvent::Connected { room }, now, &mut actions);
                        if is_readable {
                            self.report(flow, SocketEvent::Readable, now, &mut actions);
                        }
                    }
                    None if has_failed => {
                        let failure = Failure::Unreachable;
                        self.fail(flow, failure, now, &mut actions);
                    }
                    None => {}
                }
            }
            Progress::Connected => {
                if flags.contains(EventFlags::ERR) && socket.take_error().is_some() {
                    self.report(flow, SocketEvent::Reset, now, &mut actions);
                } else {
                    if is_writable && std::mem::take(&mut socket.awaits_room) {
                        let room = socket.room_of_writable();
                        self.report(flow, SocketEvent::Room { room }, now, &mut actions);
                    }
                    if is_readable {
                        self.report(flow, SocketEvent::Readable, now, &mut actions);
                    }
                }
            }
        }
        self.perform(actions, None, now);
    }
}
