//! The gateway of a network: its services, its flows with their sockets, and the way to the guests.
//! The translator's actions are carried out here.

use std::collections::VecDeque;

use ipc::driving::UserNetwork;
use ipc::user_reports::{UserFigures, UserTotals};
use usernet::network::{Access, Network, Refusal};
use usernet::services::{Errors, Services};
use usernet::{
    Action, Failure, Family, FlowId, Nanos, Payload, Secret, SocketEvent, Target, Translator, Turns,
};
use wire::MacAddr;
use wire::virtio::net::NetHeader;

use super::accepted::AcceptedConnections;
use super::datagrams::Source;
use super::figures::{self, Counters};
use super::forwards::Forwards;
use super::guests::Guests;
use super::memory::Bytes;
use super::questions::{Questions, Reply};
use super::sends::{Segments, Sends};
use super::settings::{self, SettingsError};
use super::sockets::{self, End, Sockets};
use super::{YOUNG, copy_of, now};

/// How long the names of ports are used before leases are looked at again.
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
    /// Connections to guests with unknown stations.
    pub(super) accepted: AcceptedConnections,
}

impl Waiting {
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            turns: Turns::new(secret),
            datagrams: VecDeque::new(),
            young: VecDeque::new(),
            accepted: AcceptedConnections::default(),
        }
    }
}

/// Settings that can change under flows.
#[derive(Debug)]
pub(super) struct DesiredSettings {
    pub(super) network: UserNetwork,
    pub(super) access: Access,
    /// Time of the next look at leases for names.
    pub(super) names_until: Nanos,
}

impl DesiredSettings {
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
    pub(super) desired: DesiredSettings,
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
            Action::Send(flow, payload) => {
                if let Some(bytes) = of_frame(payload) {
                    self.send(flow, bytes);
                }
            }
            Action::Ready(flow) => {
                if let Some(station) = self.translator.station(flow) {
                    self.waiting.turns.ready(station, flow);
                }
            }
            Action::Discard(flow, len) => self.discard(flow, len, now, more),
            Action::Frame(headers) => self.guests.send(headers.net(), headers.bytes()),
            Action::AwaitRoom(flow) => self.await_room(flow, now, more),
            Action::Shutdown(flow) => self.shut_down(flow, now, more),
            Action::Probe(flow, seconds) => self.probe(flow, seconds),
            Action::Ask(flow, since) => self.ask_for_guest(flow, since, now, more),
            Action::Notify(of, notice) => {
                let answer = self.errors.undelivered(now, &of, &[], notice);
                self.tell(answer);
            }
            Action::Keep(flow) => {
                self.counters.established();
                let due = now.saturating_add(YOUNG);
                self.waiting.young.push_back((due, flow));
            }
            Action::Close { flow, reset } => self.close(flow, reset),
            Action::OpenUdp(flow, family) => self.open_udp((flow, family), frame, now, more),
            Action::SendTo {
                flow,
                target,
                payload,
                segment,
                hops,
            } => {
                if let Some((bytes, frame)) = of_frame(payload).zip(frame) {
                    self.send_to((flow, target), (bytes, segment, hops), frame, now);
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

    fn connect(&mut self, flow: FlowId, target: Target, now: Nanos, more: &mut Vec<Action>) {
        let of = (flow, self.station(flow));
        let hops = self.translator.hops(flow);
        let connected = match target {
            Target::Outside(to) => self.sockets.connect(of, (to, hops), true, now),
            Target::Host(to) | Target::Peer(to) => self.sockets.connect(of, (to, None), false, now),
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

    /// Asks for the station of a guest that does not answer a SYN. One that has not answered the
    /// question either is gone.
    fn ask_for_guest(
        &mut self,
        flow: FlowId,
        since: Option<Nanos>,
        now: Nanos,
        more: &mut Vec<Action>,
    ) {
        match (self.translator.guest(flow), since) {
            (Some((address, _)), None) => self.ask(address),
            (Some((address, station)), Some(since))
                if !self.services.was_heard(address, station, since) =>
            {
                self.counters.refuse(Refusal::Unreachable);
                self.report(flow, SocketEvent::Absent, now, more);
            }
            _ => {}
        }
    }

    /// The station of the guest of a flow.
    pub(super) fn station(&self, flow: FlowId) -> MacAddr {
        self.translator.station(flow).unwrap_or_default()
    }

    fn connect_to_dns(&mut self, flow: FlowId, now: Nanos) -> Result<u32, Failure> {
        let station = self.translator.station(flow);
        let station = station.filter(|_| self.desired.network.dns);
        let station = station.ok_or(Failure::Refused)?;
        let opened = self.sockets.streams.open(flow, station, now);
        opened.ok_or(Failure::Descriptors)
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

    /// Counts a frame that is not passed on since its time to live ends here, and tells the guest.
    pub(super) fn expired(&mut self, frame: &[u8], now: Nanos) {
        self.counters.refuse(Refusal::Unreachable);
        let answer = self.errors.expired(now, frame);
        self.tell(answer);
    }

    /// Tells a guest that its frame was refused.
    pub(super) fn send_error(&mut self, frame: &[u8], refusal: Refusal, now: Nanos) {
        let answer = self.errors.refused(now, frame, refusal);
        self.tell(answer);
    }

    /// Sends a guest an error, unless there are too many.
    fn tell(&mut self, error: Option<Vec<u8>>) {
        if let Some(frame) = error {
            self.guests.send(NetHeader::default(), &frame);
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
            resolvers: figures::resolvers(self.questions.resolvers(), now()),
            echo_denied: false,
            totals: UserTotals {
                dns_questions: self.questions.asked,
                ..self.counters.totals
            },
        }
    }

    /// Consumes bytes that the guest has acknowledged.
    pub(super) fn discard(&mut self, flow: FlowId, len: u32, now: Nanos, more: &mut Vec<Action>) {
        match self.sockets.get(flow) {
            Some(End::Socket(_)) => {
                self.counters.totals.to_guests += u64::from(len);
                if self.sockets.discard(flow, len).is_err() {
                    self.report(flow, SocketEvent::Reset, now, more);
                }
            }
            Some(End::Stream(stream)) => {
                stream.discard(len);
                self.serve_stream(flow, now, more);
            }
            None => {}
        }
    }

    /// Has room for bytes of the guest reported.
    pub(super) fn await_room(&mut self, flow: FlowId, now: Nanos, more: &mut Vec<Action>) {
        let has_failed = match self.sockets.get(flow) {
            Some(End::Socket(_)) => self.sockets.await_room(flow).is_err(),
            Some(End::Stream(stream)) => {
                stream.await_room();
                return self.serve_stream(flow, now, more);
            }
            None => false,
        };
        if has_failed {
            self.report(flow, SocketEvent::Reset, now, more);
        }
    }

    /// The guest sends no more bytes.
    pub(super) fn shut_down(&mut self, flow: FlowId, now: Nanos, more: &mut Vec<Action>) {
        match self.sockets.get(flow) {
            Some(End::Socket(socket)) => socket.shut_down(),
            Some(End::Stream(stream)) => {
                stream.shut_down();
                self.serve_stream(flow, now, more);
            }
            None => {}
        }
    }

    /// Has the system probe the peer after these seconds of silence.
    pub(super) fn probe(&mut self, flow: FlowId, seconds: u32) {
        if let Some(End::Socket(socket)) = self.sockets.get(flow) {
            socket.probe(seconds);
        }
    }

    /// Closes the other end, with a reset of the peer or without.
    pub(super) fn close(&mut self, flow: FlowId, reset: bool) {
        match self.sockets.get(flow) {
            Some(End::Socket(_)) => {
                self.send_last(flow);
                self.sockets.close(flow, reset);
            }
            Some(End::Stream(_)) => {
                self.sockets.streams.close(flow);
                self.questions.closed(flow);
            }
            None => {}
        }
    }

    /// Opens the socket of a mapping. `frame` is the datagram that opens it.
    pub(super) fn open_udp(
        &mut self,
        (flow, family): (FlowId, Family),
        frame: Option<Bytes>,
        now: Nanos,
        more: &mut Vec<Action>,
    ) {
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

    /// Has bytes of the guest taken by a stream.
    pub(super) fn take(
        &mut self,
        flow: FlowId,
        pieces: &[Bytes],
        now: Nanos,
        more: &mut Vec<Action>,
    ) {
        self.update_names(now);
        let Some(End::Stream(stream)) = self.sockets.get(flow) else {
            return;
        };
        let Ok(taken) = stream.take(pieces, now) else {
            return self.report(flow, SocketEvent::Reset, now, more);
        };
        let events = self.questions.serve(stream, now);
        let room = stream.room();
        self.report(flow, SocketEvent::Sent { taken, room }, now, more);
        for event in events {
            self.report(flow, event, now, more);
        }
    }

    /// Answers questions of a stream, and reports what has changed of it.
    fn serve_stream(&mut self, flow: FlowId, now: Nanos, more: &mut Vec<Action>) {
        if let Some(End::Stream(stream)) = self.sockets.get(flow) {
            for event in self.questions.serve(stream, now) {
                self.report(flow, event, now, more);
            }
        }
    }

    /// Gives a guest an answer of the gateway's.
    pub(super) fn reply(&mut self, reply: Reply, now: Nanos) {
        match reply {
            Reply::Frame(frame) => self.guests.send(NetHeader::default(), &frame),
            Reply::Message(flow, message) => {
                if let Some(End::Stream(stream)) = self.sockets.get(flow) {
                    stream.answered(&message, now);
                }
                let mut actions = Vec::new();
                self.serve_stream(flow, now, &mut actions);
                self.perform(actions, None, now);
            }
        }
    }

    /// The time of the next deadline of questions and streams.
    pub(super) fn dns_deadline(&self) -> Option<Nanos> {
        let all = [self.questions.deadline(), self.sockets.streams.deadline()];
        all.into_iter().flatten().min()
    }

    /// Handles questions and streams that are due.
    pub(super) fn expire_dns(&mut self, now: Nanos) {
        for reply in self.questions.expired(now) {
            self.reply(reply, now);
        }
        for (flow, event) in self.sockets.streams.expired(now) {
            let mut actions = Vec::new();
            self.report(flow, event, now, &mut actions);
            self.perform(actions, None, now);
        }
    }
}
