//! A user network between an enemy's guests and an enemy's peers: frames, what sockets report, what
//! resolvers answer, and records of a dead driver, in any order.
//!
//! * Sent bytes lie within the frame at hand, and go to a socket that is connected and not shut
//!   down. No socket is connected to what is never allowed.
//! * Never more bytes are discarded than were peeked, and nothing is peeked behind a gap.
//! * A socket is closed once, and then left alone. Flows stay within their bounds.
//! * Frames to guests are whole, and leave from the gateway.
//! * A record is read as it was written, or not at all.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use usernet::network::{Access, Network, never_allowed};
use usernet::services::dns::{
    Asker, Forwarder, Outcome, Query, Step as Next, Ticket, Trouble, Zone,
};
use usernet::services::{
    Checksum, Errors, FramePurpose, IcmpError, Notice, Offer, Search, Services,
};
use usernet::{
    Action, Bounds, Datagrams, Failure, FlowId, FlowRecord, ForwardPeer, Headers, Nanos, Peek,
    PeekResult, Progress, RECORD_LEN, Secret, Settings, SocketEvent, Target, Times, Translator,
    Turns, Verdict,
};
use wire::tcp::TcpView;
use wire::virtio::net::NetHeader;
use wire::{MacAddr, ParsedHeaders, SNAPSHOT};

mod frames;

use frames::{GUEST, Guest};

const SERVERS: [&str; 2] = ["192.0.2.53:53", "192.0.2.54:53"];
/// Station of the gateway.
const GATEWAY: MacAddr = MacAddr([0x52, 0x55, 10, 0, 2, 2]);
/// Bounds that an input can reach.
const BOUNDS: Bounds = Bounds {
    flows: 12,
    guest: 8,
    half_open: 4,
    forwarded: 3,
    ports: 6,
};
/// Bytes of a step.
const STEP: usize = 8;
const MS: Nanos = 1_000_000;

/// A step of the input: its kind, a flow or a port, and what the kind makes of the rest.
#[derive(Clone, Copy)]
struct Step([u8; STEP]);

impl Step {
    fn at<T>(self, position: usize, all: &[T]) -> Option<&T> {
        all.get(usize::from(self.0[position]).checked_rem(all.len())?)
    }

    fn number(self, position: usize) -> u32 {
        u32::from(self.0[position])
    }
}

/// The host's end of a flow.
#[derive(Default)]
struct Socket {
    is_udp: bool,
    connected: bool,
    shut: bool,
    /// Bytes that were peeked and not discarded.
    peeked: u32,
}

/// The driver with its sockets.
struct Driver {
    translator: Translator,
    services: Services,
    errors: Errors,
    turns: Turns,
    forwarder: Forwarder,
    zone: Zone,
    network: Network,
    sockets: BTreeMap<FlowId, Socket>,
    /// Bytes of frames that leave by one call.
    waiting: BTreeMap<FlowId, u32>,
    /// All flows that there were.
    flows: Vec<FlowId>,
    /// Questions at resolvers: resolver and message.
    tickets: Vec<(Ticket, SocketAddr, Vec<u8>)>,
    guest: Guest,
    now: Nanos,
    /// Sockets do at once what they are asked for.
    willing: bool,
}

impl Driver {
    fn new(willing: bool) -> Self {
        let prefix = "10.0.2.0/24".parse().expect("a prefix");
        let prefix6 = "fd00:1::/64".parse().ok();
        let network = Network::new(prefix, prefix6, GATEWAY, 1500).expect("a network");
        let settings = Settings {
            network,
            access: Access::default(),
            bounds: BOUNDS,
            times: Times::default(),
            secret: Secret([1, 2]),
            super_frames: true,
        };
        let offer = Offer {
            route6: true,
            dns: true,
            search: Search::default(),
        };
        let resolvers = SERVERS.map(|text| text.parse().expect("an address"));
        let vm1 = "10.0.2.15".parse().expect("an address");
        let mut translator = Translator::new(settings);
        translator.reserve([GUEST]);
        Self {
            translator,
            services: Services::new(network, offer),
            errors: Errors::new(network, Secret([3, 4])),
            turns: Turns::new(Secret([5, 6])),
            forwarder: Forwarder::new(&network, &resolvers),
            zone: Zone::new([("vm1", vm1)]),
            network,
            sockets: BTreeMap::new(),
            waiting: BTreeMap::new(),
            flows: Vec::new(),
            tickets: Vec::new(),
            guest: Guest::default(),
            now: 0,
            willing,
        }
    }

    fn run(&mut self, mut data: &[u8], kinds: u8) {
        while let Some((step, rest)) = data.split_first_chunk::<STEP>() {
            data = rest;
            let step = Step(*step);
            let kind = step.0[0] % kinds;
            // Frames that come one behind the other may be those of a batch.
            if kind > 4 || step.0[6] & 0x80 == 0 {
                self.flush(step);
            }
            match kind {
                0..=3 => {
                    let frame = self.guest.frame(step);
                    self.frame(&frame, step);
                }
                4 => {
                    let len = usize::from(step.0[1]).min(data.len());
                    let (frame, rest) = data.split_at(len);
                    data = rest;
                    self.frame(frame, step);
                }
                5 => self.pass(step),
                6 | 7 => self.serve(step),
                8 | 9 => self.event(step),
                10 => self.datagram(step),
                11 => {
                    let len = usize::from(step.0[2]).min(data.len());
                    let (bytes, rest) = data.split_at(len);
                    data = rest;
                    self.resolver(bytes, step);
                }
                _ => self.accept(step),
            }
            assert!(self.translator.len() <= BOUNDS.flows as usize);
        }
    }

    /// The bytes that wait leave, as many as the system takes.
    fn flush(&mut self, step: Step) {
        for (id, len) in std::mem::take(&mut self.waiting) {
            let taken = len.min(step.number(6) * 4);
            let room = 4 * step.number(7);
            self.report(id, SocketEvent::Sent { taken, room }, &[], step);
        }
    }

    /// A frame of the guest.
    fn frame(&mut self, frame: &[u8], step: Step) {
        let mut out = Vec::new();
        let net = NetHeader {
            gso_type: step.0[7],
            gso_size: 100,
            ..NetHeader::default()
        };
        let headers = &frame[..frame.len().min(SNAPSHOT)];
        let verdict = self
            .translator
            .frame(self.now, headers, frame.len(), &net, &mut out);
        if verdict == Verdict::Service {
            self.service(frame, step);
        }
        if verdict == Verdict::Expired
            && let Some(answer) = self.errors.expired(self.now, frame)
        {
            check_frame(&answer);
        }
        if let Verdict::Refused(refusal) = verdict
            && let Some(answer) = self.errors.refused(self.now, frame, refusal)
        {
            check_frame(&answer);
        }
        self.act(out, frame, step);
    }

    fn service(&mut self, frame: &[u8], step: Step) {
        let checksum = match step.0[6] & 1 {
            0 => Checksum::InFrame,
            _ => Checksum::Left,
        };
        match self.services.frame(frame, checksum, self.now) {
            Ok(FramePurpose::Here(answer)) => answer.iter().for_each(|frame| check_frame(frame)),
            Ok(FramePurpose::Dns { client, message }) => {
                self.question(Asker::Udp(client), &message)
            }
            Ok(FramePurpose::PathError(error)) => {
                let mut out = Vec::new();
                self.translator.path_error(self.now, &error, &mut out);
                self.act(out, frame, step);
            }
            Ok(FramePurpose::Elsewhere) | Err(_) => {}
        }
    }

    fn question(&mut self, asker: Asker, message: &[u8]) {
        let Ok(Ok(query)) = Query::parse(message) else {
            return;
        };
        if self.zone.answer(&self.network, &query).is_some() {
            return;
        }
        let next = self.forwarder.ask(asker, query, 0x0102_0304, self.now);
        self.follow(None, next);
    }

    /// A ticket has ended, and another may follow.
    fn follow(&mut self, ended: Option<Ticket>, next: Next) {
        self.tickets.retain(|(ticket, ..)| Some(*ticket) != ended);
        let next = next.map(|ask| (ask.ticket, ask.server, ask.message));
        self.tickets.extend(next);
    }

    /// Time passes, and deadlines with it.
    fn pass(&mut self, step: Step) {
        self.now += Nanos::from(step.0[1]) * MS * 40;
        if step.0[2] & 1 != 0 {
            self.now = self.now.max(self.translator.deadline().unwrap_or(0));
        }
        let mut out = Vec::new();
        self.translator.expire(self.now, &mut out);
        self.act(out, &[], step);
        if let Some(frame) = self.services.advertisement(self.now) {
            check_frame(&frame);
        }
        for _ in 0..=self.tickets.len() {
            if let Some((ended, next)) = self.forwarder.expired(7, self.now) {
                self.follow(Some(ended), next);
            }
        }
    }

    /// A buffer is leased: bytes of a socket are peeked.
    fn serve(&mut self, step: Step) {
        let turn = self.turns.current();
        let id = turn.filter(|_| step.0[4] & 1 == 0);
        let Some(id) = id.or_else(|| step.at(1, &self.flows).copied()) else {
            return;
        };
        let Some(peek) = self.translator.peek(self.now, id) else {
            return self.turns.closed(id);
        };
        let socket = self.sockets.get_mut(&id).expect("a flow with a socket");
        assert!(socket.connected && peek.len > 0 && peek.len <= u32::from(u16::MAX));
        assert!(peek.offset <= socket.peeked, "a gap is peeked");
        let peeked = found(step, peek);
        if let PeekResult::Bytes(len) = peeked {
            socket.peeked = socket.peeked.max(peek.offset + len);
        }
        let mut out = Vec::new();
        let headers = self.translator.peeked(self.now, id, peek, peeked, &mut out);
        if let (Some(headers), PeekResult::Bytes(len)) = (headers, peeked) {
            assert_eq!(headers.bytes().len(), usize::from(peek.headers));
            self.give(&headers, len);
            if turn == Some(id) {
                self.turns.served(len);
            }
        }
        self.act(out, &[], step);
    }

    fn event(&mut self, step: Step) {
        let Some(id) = step.at(1, &self.flows).copied() else {
            return;
        };
        let room = step.number(3) * 64;
        let failures = [
            Failure::Refused,
            Failure::Own,
            Failure::Unreachable(Notice {
                error: IcmpError::HopLimit,
                from: Some([198, 51, 100, step.0[4]].into()),
            }),
            Failure::Silent,
            Failure::Descriptors,
        ];
        let event = match step.0[2] % 7 {
            0 => SocketEvent::Connected { room },
            1 => SocketEvent::Failed(*step.at(3, &failures).unwrap_or(&Failure::Own)),
            2 => SocketEvent::Room { room },
            3 => SocketEvent::Readable,
            4 => SocketEvent::Reset,
            5 => SocketEvent::Urgent,
            _ => SocketEvent::Absent,
        };
        self.report(id, event, &[], step);
    }

    fn report(&mut self, id: FlowId, event: SocketEvent, frame: &[u8], step: Step) {
        if let (SocketEvent::Connected { .. }, Some(socket)) = (event, self.sockets.get_mut(&id)) {
            socket.connected = true;
        }
        let mut out = Vec::new();
        self.translator.socket(self.now, id, event, &mut out);
        self.act(out, frame, step);
    }

    /// A datagram comes from outside.
    fn datagram(&mut self, step: Step) {
        let Some(id) = step.at(1, &self.flows).copied() else {
            return;
        };
        let from = frames::peer(step);
        let target = match step.0[2] & 1 {
            0 => Target::Outside(from),
            _ => Target::Host(from),
        };
        if let Some(headers) = self
            .translator
            .datagram(self.now, id, target, datagrams(step))
        {
            let is_whole = headers.bytes().len() > 40;
            assert!(is_whole && self.sockets[&id].is_udp);
        }
        if let Some(undelivered) = self.translator.undelivered(id, target) {
            let error = match step.0[3] & 1 {
                0 => IcmpError::Port,
                _ => IcmpError::TooBig(step.number(4) * 8),
            };
            let payload = vec![7; usize::from(step.0[5]) * 4];
            let answer = self
                .errors
                .undelivered(self.now, &undelivered, &payload, error);
            answer.iter().for_each(|frame| check_frame(frame));
        }
    }

    /// A resolver answers: with bytes of the input behind none, some or all of the question's.
    fn resolver(&mut self, bytes: &[u8], step: Step) {
        let Some((ticket, server, question)) = step.at(1, &self.tickets).cloned() else {
            return;
        };
        if step.0[5] & 6 == 6 {
            let trouble = match step.0[5] & 8 {
                0 => Trouble::Own,
                _ => Trouble::Resolver(Outcome::Closed),
            };
            if let Some(next) = self.forwarder.failed(ticket, trouble, 7, self.now) {
                self.follow(Some(ticket), next);
            }
            return;
        }
        let known = question.len().min(usize::from(step.0[3]));
        let mut answer = [&question[..known], bytes].concat();
        for (at, bits) in [(2, 4), (3, 6)] {
            if let Some(flags) = answer.get_mut(at) {
                *flags ^= step.0[bits];
            }
        }
        let is_other = step.0[5] & 1 != 0;
        let mut from = server;
        from.set_port(53 + u16::from(is_other));
        if let Some(next) = self.forwarder.answer(ticket, from, &answer, 7, self.now) {
            assert!(!is_other, "an answer of another server counted");
            self.follow(Some(ticket), next);
        }
    }

    /// A socket of a forward was accepted.
    fn accept(&mut self, step: Step) {
        let (guest, peer) = (frames::guest(step), frames::peer(step));
        let mut out = Vec::new();
        if step.0[4] & 1 != 0 {
            return self.forwarded(guest, peer, step);
        }
        let station = (guest, GUEST);
        let room = step.number(3) * 64;
        let accepted = self
            .translator
            .accepted(self.now, station, peer, room, &mut out);
        if let Ok(id) = accepted {
            self.open(id, true, 0);
        }
        self.act(out, &[], step);
    }

    /// Datagrams came to the socket of a forward.
    fn forwarded(&mut self, guest: SocketAddr, peer: SocketAddr, step: Step) {
        let listen = SocketAddr::new(peer.ip(), 5000 + u16::from(step.0[5] & 1));
        let (from, ends) = (ForwardPeer { listen, peer }, (guest, GUEST));
        let mut out = Vec::new();
        let came = self
            .translator
            .forwarded(self.now, ends, from, datagrams(step), &mut out);
        self.act(out, &[], step);
        if let Ok((id, headers)) = came {
            assert!(headers.bytes().len() > 40);
            if !self.sockets.contains_key(&id) {
                self.open(id, true, 0);
                self.sockets.entry(id).or_default().is_udp = true;
            }
        }
        if step.0[5] & 2 != 0 {
            let mut out = Vec::new();
            self.translator.retain_forwards(|of| of != listen, &mut out);
            self.act(out, &[], step);
        }
    }

    fn open(&mut self, id: FlowId, connected: bool, peeked: u32) {
        let socket = Socket {
            connected,
            peeked,
            ..Socket::default()
        };
        assert!(self.sockets.insert(id, socket).is_none());
        self.flows.push(id);
    }

    /// Continues a flow of a record.
    fn restore(&mut self, bytes: &[u8; RECORD_LEN], step: Step) {
        let Ok(kept) = FlowRecord::decode(bytes) else {
            return;
        };
        assert_eq!(kept.encode(), *bytes);
        let record = match kept {
            FlowRecord::Flow(record) => record,
            FlowRecord::Mapping(record) => {
                let own = SocketAddr::from(([127, 0, 0, 1], 5000));
                if let Ok(id) = self.translator.restore_mapping(self.now, &record, own) {
                    assert!(self.network.may_be_guest(record.guest.ip()));
                    self.open(id, true, 0);
                    self.sockets.entry(id).or_default().is_udp = true;
                }
                return;
            }
        };
        let progress = Progress {
            taken: u64::from(step.number(1)) << 24 | 3,
            given: u64::from(step.number(2)) << 24 | 5,
            unread: step.number(3) << 8,
            guest_closed: step.0[4] & 1 != 0,
            peer_closed: step.0[4] & 2 != 0,
            room: step.number(5) << 6,
        };
        let mut out = Vec::new();
        let restored = self
            .translator
            .restore(self.now, &record, &progress, &mut out);
        if let Ok(id) = restored {
            assert!(self.network.may_be_guest(record.guest.ip()));
            self.open(id, true, progress.unread);
            self.sockets.entry(id).or_default().shut = progress.guest_closed;
        } else {
            assert!(out.is_empty());
        }
        self.act(out, &[], step);
    }

    /// Carries out actions.
    fn act(&mut self, actions: Vec<Action>, frame: &[u8], step: Step) {
        for action in actions {
            match action {
                Action::Frame(headers) => self.give(&headers, 0),
                Action::Connect(id, target) => {
                    check_target(target);
                    self.open(id, false, 0);
                    if self.willing {
                        self.report(id, SocketEvent::Connected { room: 5000 }, frame, step);
                    }
                }
                Action::OpenUdp(id, _) => {
                    self.open(id, true, 0);
                    self.sockets.entry(id).or_default().is_udp = true;
                }
                Action::Close { flow, .. } => {
                    assert!(self.sockets.remove(&flow).is_some(), "closed twice");
                    self.waiting.remove(&flow);
                    self.turns.closed(flow);
                }
                Action::Send(id, payload) => {
                    assert!(payload.range().end <= frame.len());
                    let socket = &self.sockets[&id];
                    assert!(socket.connected && !socket.shut);
                    *self.waiting.entry(id).or_default() += payload.len;
                }
                Action::SendTo {
                    flow,
                    target,
                    payload,
                    ..
                } => {
                    check_target(target);
                    assert!(payload.range().end <= frame.len() && self.sockets[&flow].is_udp);
                }
                Action::Discard(id, len) => {
                    let socket = self.sockets.get_mut(&id).expect("a socket");
                    assert!(len <= socket.peeked, "more is discarded than was peeked");
                    socket.peeked -= len;
                }
                Action::Shutdown(id) => {
                    let socket = self.sockets.get_mut(&id).expect("a socket");
                    assert!(!std::mem::replace(&mut socket.shut, true), "shut twice");
                }
                Action::Ready(id) => {
                    assert!(self.sockets.contains_key(&id));
                    let station = self.translator.station(id);
                    station
                        .iter()
                        .for_each(|guest| self.turns.ready(*guest, id));
                }
                Action::Probe(id, seconds) => {
                    assert!(self.sockets.contains_key(&id) && seconds > 0);
                }
                Action::Ask(id, _) => assert!(self.translator.guest(id).is_some()),
                Action::Notify(of, notice) => {
                    let answer = self.errors.undelivered(self.now, &of, &[], notice);
                    answer.iter().for_each(|frame| check_frame(frame));
                }
                Action::AwaitRoom(id) => assert!(self.sockets.contains_key(&id)),
                Action::Keep(id) => {
                    let record = self.translator.record(id);
                    let record =
                        record.filter(|record| FlowRecord::decode(&record.encode()).is_ok());
                    assert!(record.is_some(), "a record that is not read");
                }
            }
        }
    }

    /// A frame to the guest, whose `payload` bytes are not here.
    fn give(&mut self, headers: &Headers, payload: u32) {
        let bytes = headers.bytes();
        let parsed = ParsedHeaders::parse(bytes, bytes.len() + payload as usize);
        assert_eq!(parsed.src, GATEWAY);
        let at = usize::from(parsed.l4_offset.expect("a transport"));
        let tcp = TcpView::new_checked(&bytes[at..]).expect("a TCP header");
        self.guest.hear(&tcp, payload);
    }
}

fn found(step: Step, peek: Peek) -> PeekResult {
    let len = (step.number(3) * 64).min(peek.len);
    match step.0[2] % 4 {
        0 => PeekResult::End,
        1 => PeekResult::Empty,
        _ if len == 0 => PeekResult::Bytes(1),
        _ => PeekResult::Bytes(len),
    }
}

fn datagrams(step: Step) -> Datagrams {
    Datagrams {
        len: u16::from_be_bytes([step.0[6], step.0[7]]),
        segment: u16::from(step.0[5]) * 8,
    }
}

fn check_target(target: Target) {
    match target {
        Target::Outside(to) => assert!(!never_allowed(to.ip()), "{to} is connected to"),
        Target::Host(to) => panic!("{to} is no service of the host"),
        // A peer of a forward has asked first, from wherever it is.
        Target::Resolver | Target::Peer(_) => {}
    }
}

/// A whole frame of the gateway.
fn check_frame(frame: &[u8]) {
    let parsed = ParsedHeaders::parse(frame, frame.len());
    assert_eq!(parsed.src, GATEWAY);
    assert!(frame.len() <= 1514);
}

/// Frames, with sockets that do at once what they are asked for.
pub fn frames(data: &[u8]) {
    Driver::new(true).run(data, 8);
}

/// Frames, and sockets and resolvers that report anything.
pub fn peer(data: &[u8]) {
    Driver::new(false).run(data, 13);
}

/// Records of a dead driver, then as [`peer`]. The first byte says how many.
pub fn records(data: &[u8]) {
    let Some((count, mut data)) = data.split_first() else {
        return;
    };
    let mut driver = Driver::new(false);
    for _ in 0..*count % 16 {
        let Some((record, rest)) = data.split_first_chunk::<RECORD_LEN>() else {
            return;
        };
        let Some((step, rest)) = rest.split_first_chunk::<STEP>() else {
            return;
        };
        data = rest;
        driver.restore(record, Step(*step));
    }
    driver.run(data, 13);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(target: &str, name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds");
        std::fs::read(format!("{folder}/{target}/{name}")).expect("a seed")
    }

    #[test]
    fn seeds_reach_flows_questions_and_records() {
        let mut driver = Driver::new(true);
        driver.run(&seed("usernet_frames", "stream"), 8);
        assert!(driver.sockets.values().any(|s| s.connected && s.peeked > 0));
        let mut driver = Driver::new(false);
        driver.run(&seed("usernet_peer", "question"), 13);
        assert_eq!((driver.flows.len(), driver.tickets.len()), (1, 0));
        let mut driver = Driver::new(false);
        driver.run(&seed("usernet_peer", "resolvers"), 13);
        let last = driver.forwarder.resolvers().iter().map(|of| of.udp.last);
        let last: Vec<Outcome> = last.collect();
        assert_eq!(last, [Outcome::Answered, Outcome::Closed]);
        assert!(driver.tickets.is_empty());
        let bytes = seed("user_records", "three");
        let record = bytes[1..].first_chunk().expect("a record");
        assert!(matches!(
            FlowRecord::decode(record),
            Ok(FlowRecord::Flow(_))
        ));
    }
}
