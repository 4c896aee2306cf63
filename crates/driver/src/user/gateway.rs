//! The gateway of a network: its services, its flows with their sockets, and the way to the guests.
//! The translator's actions are carried out here.

use std::collections::VecDeque;

use channel::driving::UserNetwork;
use channel::user_reports::{UserFigures, UserTotals};
use rustix::io::Errno;
use usernet::network::{Access, Network, Refusal};
use usernet::services::{Errors, Services};
use usernet::{
    Action, Failure, FlowId, Nanos, Payload, Peek, Peeked, Secret, SocketEvent, Target, Translator,
    Turns,
};
use wire::MacAddr;
use wire::virtio::net::NetHeader;

use super::accepted::Accepted;
use super::datagrams::Source;
use super::figures::Counters;
use super::forwards::Forwards;
use super::guests::Guests;
use super::memory::Bytes;
use super::questions::Questions;
use super::sends::{Segments, Sends};
use super::settings::{self, SettingsError};
use super::sockets::{self, Sockets};
use super::{YOUNG, copy_of};

/// For so long the names of ports are used before leases are looked at again.
const NAMES: Nanos = 1_000_000_000;

/// Flows that wait for something.
#[derive(Debug)]
pub(super) struct Waiting {
    /// TCP flows to peek.
    pub(super) turns: Turns,
    /// Sockets that have datagrams.
    pub(super) datagrams: VecDeque<Source>,
    /// Flows that are to outlive the process from a time on, the oldest first.
    pub(super) young: VecDeque<(Nanos, FlowId)>,
    /// Connections whose guest is asked for.
    pub(super) accepted: Accepted,
}

impl Waiting {
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            turns: Turns::new(secret),
            datagrams: VecDeque::new(),
            young: VecDeque::new(),
            accepted: Accepted::default(),
        }
    }
}

/// Settings that can change under flows.
#[derive(Debug)]
pub(super) struct Desired {
    pub(super) network: UserNetwork,
    pub(super) access: Access,
    /// Time from which on leases are looked at for names.
    pub(super) names_until: Nanos,
}

impl Desired {
    pub(super) fn new(network: UserNetwork) -> Result<Self, SettingsError> {
        Ok(Self {
            access: settings::access(&network)?,
            network,
            names_until: 0,
        })
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) network: Network,
    pub(super) desired: Desired,
    pub(super) translator: Translator,
    pub(super) services: Services,
    pub(super) errors: Errors,
    pub(super) sockets: Sockets,
    pub(super) questions: Questions,
    pub(super) forwards: Forwards,
    pub(super) guests: Guests,
    pub(super) waiting: Waiting,
    pub(super) sends: Sends,
    pub(super) segments: Segments,
    pub(super) counters: Counters,
}

impl Gateway {
    /// Carries out actions, and those that follow from them. `frame` is the frame at hand.
    pub(super) fn perform(&mut self, actions: Vec<Action>, frame: Option<Bytes>, now: Nanos) {
        let mut actions = VecDeque::from(actions);
        let mut more = Vec::new();
        while let Some(action) = actions.pop_front() {
            self.act(action, frame, now, &mut more);
            for next in more.drain(..).rev() {
                actions.push_front(next);
            }
        }
    }

    fn act(&mut self, action: Action, frame: Option<Bytes>, now: Nanos, more: &mut Vec<Action>) {
        let of_frame = |payload: Payload| {
            let Payload { start, len } = payload;
            frame.and_then(|frame| frame.part(start as usize, len as usize))
        };
        match action {
            Action::Connect(flow, target) => self.connect(flow, target, now, more),
            Action::Send(flow, payload) => match of_frame(payload) {
                Some(bytes) if self.questions.has(flow) => {
                    self.update_names(now);
                    let events = self.questions.take(flow, bytes, now);
                    self.report_all(flow, events, now, more);
                }
                Some(bytes) => self.send(flow, bytes),
                None => {}
            },
            Action::Ready(flow) => {
                if let Some(station) = self.translator.station(flow) {
                    self.waiting.turns.ready(station, flow);
                }
            }
            Action::Discard(flow, len) if self.questions.has(flow) => {
                let events = self.questions.discard(flow, len, now);
                self.report_all(flow, events, now, more);
            }
            Action::AwaitRoom(flow) if self.questions.has(flow) => {
                let events = self.questions.await_room(flow);
                self.report_all(flow, events, now, more);
            }
            Action::Shutdown(flow) if self.questions.has(flow) => {
                let events = self.questions.shut_down(flow);
                self.report_all(flow, events, now, more);
            }
            Action::Close { flow, .. } if self.questions.has(flow) => self.questions.closed(flow),
            Action::Discard(flow, len) => {
                self.counters.totals.to_guests += u64::from(len);
                if self.sockets.discard(flow, len).is_err() {
                    self.report(flow, SocketEvent::Reset, now, more);
                }
            }
            Action::Frame(headers) => self.guests.send(headers.net(), headers.bytes()),
            Action::AwaitRoom(flow) => {
                if self.sockets.await_room(flow).is_err() {
                    self.report(flow, SocketEvent::Reset, now, more);
                }
            }
            Action::Shutdown(flow) => {
                if let Some(socket) = self.sockets.get(flow) {
                    socket.shut_down();
                }
            }
            Action::Keep(flow) => {
                self.counters.established();
                self.waiting
                    .young
                    .push_back((now.saturating_add(YOUNG), flow));
            }
            Action::Close { flow, reset } => {
                self.send_last(flow);
                self.sockets.close(flow, reset);
            }
            Action::OpenUdp(flow, family) => {
                let of = (flow, self.station(flow));
                if let Err(error) = self.sockets.open_udp(of, family) {
                    tracing::debug!("no socket for a mapping: {error}");
                    let failure = sockets::failure(error);
                    // The guest's next datagram opens another, and the one at hand is refused.
                    if let Some((frame, refusal)) = frame.zip(failure.refusal()) {
                        self.refuse(frame, refusal, now);
                    }
                    self.report(flow, SocketEvent::Failed(failure), now, more);
                }
            }
            Action::SendTo {
                flow,
                target,
                payload,
                segment,
            } => {
                if let Some((bytes, frame)) = of_frame(payload).zip(frame)
                    && let Err(refusal) = self.send_to(flow, target, (bytes, segment), frame, now)
                {
                    self.refuse(frame, refusal, now);
                }
            }
        }
    }

    pub(super) fn report(
        &mut self,
        flow: FlowId,
        event: SocketEvent,
        now: Nanos,
        more: &mut Vec<Action>,
    ) {
        self.translator.socket(now, flow, event, more);
    }

    pub(super) fn report_all(
        &mut self,
        flow: FlowId,
        events: Vec<SocketEvent>,
        now: Nanos,
        more: &mut Vec<Action>,
    ) {
        for event in events {
            self.report(flow, event, now, more);
        }
    }

    fn connect(&mut self, flow: FlowId, target: Target, now: Nanos, more: &mut Vec<Action>) {
        let of = (flow, self.station(flow));
        let connected = match target {
            Target::Outside(to) => self.sockets.connect(of, to, true, now),
            Target::Host(to) | Target::Peer(to) => self.sockets.connect(of, to, false, now),
            Target::Resolver => {
                let connected = self.connect_to_dns(flow, now);
                connected.map(|room| {
                    self.report(flow, SocketEvent::Connected { room }, now, more);
                })
            }
        };
        if let Err(failure) = connected {
            self.fail(flow, failure, now, more);
        }
    }

    /// The station of the guest of a flow.
    pub(super) fn station(&self, flow: FlowId) -> MacAddr {
        self.translator.station(flow).unwrap_or_default()
    }

    fn connect_to_dns(&mut self, flow: FlowId, now: Nanos) -> Result<u32, Failure> {
        let station = self.translator.station(flow);
        let station = station.filter(|_| self.desired.network.dns);
        let station = station.ok_or(Failure::Unreachable)?;
        self.questions.connect(flow, station, now)
    }

    pub(super) fn fail(
        &mut self,
        flow: FlowId,
        failure: Failure,
        now: Nanos,
        more: &mut Vec<Action>,
    ) {
        self.counters.failed(failure);
        self.report(flow, SocketEvent::Failed(failure), now, more);
    }

    /// Looks for other names, if that was not done just before.
    pub(super) fn update_names(&mut self, now: Nanos) {
        if now >= self.desired.names_until {
            self.name(now);
        }
    }

    /// Gives the DNS server the names of now.
    pub(super) fn name(&mut self, now: Nanos) {
        let network = &self.desired.network;
        let zone = settings::zone(network, self.services.leases());
        self.questions.set(zone, settings::resolvers(network));
        self.desired.names_until = now.saturating_add(NAMES);
    }

    /// Counts a frame that was refused, and tells the guest.
    pub(super) fn refuse(&mut self, frame: Bytes, refusal: Refusal, now: Nanos) {
        self.counters.refuse(refusal);
        self.send_error(&copy_of(frame), refusal, now);
    }

    /// Tells a guest that its frame was refused.
    pub(super) fn send_error(&mut self, frame: &[u8], refusal: Refusal, now: Nanos) {
        if let Some(answer) = self.errors.refused(now, frame, refusal) {
            self.guests.send(NetHeader::default(), &answer);
        }
    }

    /// Reads bytes of a flow without consuming them.
    pub(super) fn read(&mut self, flow: FlowId, peek: Peek, into: Bytes) -> Result<Peeked, Errno> {
        match self.questions.peek(flow, peek, into) {
            Some(peeked) => Ok(peeked),
            None => self.sockets.peek(flow, peek, into),
        }
    }

    /// Figures for people.
    pub(super) fn figures(&self) -> UserFigures {
        let (kept, kept_max) = self.sockets.kept();
        UserFigures {
            flows: self.translator.states(),
            flows_max: self.counters.flows_max,
            kept,
            kept_max,
            totals: UserTotals {
                dns_questions: self.questions.asked,
                ..self.counters.totals
            },
        }
    }
}
