//! Packets one by one, as the RFCs have them.

use proptest::prelude::*;
use wire::build::{PacketBuilder, TcpFields};
use wire::tcp::{ACK, FIN, SYN, TcpView};
use wire::virtio::net::NetHeader;

use super::host::{Host, Socket};
use super::{GATEWAY, GUEST, settings};
use crate::network::Refusal;
use crate::{Action, Bounds, Datagrams, FlowRecord, Progress, Record, Target, Translator, Verdict};

pub(super) const RST: u16 = 4;
pub(super) const IRS: u32 = u32::MAX - 5;

pub(super) fn tcp(to: [u8; 4], fields: TcpFields, payload: &[u8]) -> Vec<u8> {
    let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4([10, 0, 2, 15], to);
    frame.tcp(fields).payload(payload).build()
}

pub(super) fn fields(src_port: u16, seq: u32, ack: u32, flags: u16) -> TcpFields {
    TcpFields {
        src_port,
        dst_port: 80,
        seq,
        ack,
        flags,
        options: Vec::new(),
    }
}

pub(super) const SERVER: [u8; 4] = [93, 184, 216, 34];

pub(super) fn host() -> Host {
    let socket = Socket {
        buffer: 10_000,
        closes_after: usize::MAX,
        ..Socket::default()
    };
    Host::new(Translator::new(settings()), 0, socket)
}

/// Sequence number, acknowledgement and flags of the only frame that came.
pub(super) fn answer(host: &mut Host) -> (u32, u32, u16) {
    let frames = std::mem::take(&mut host.frames);
    let [frame] = &frames[..] else {
        panic!("{} frames", frames.len());
    };
    let tcp = TcpView::new_checked(&frame[34..]).unwrap();
    (tcp.seq(), tcp.ack(), tcp.flags())
}

/// An established flow; returns the next sequence number towards the guest.
pub(super) fn established(host: &mut Host) -> u32 {
    host.frame(&tcp(SERVER, fields(5000, IRS, 0, SYN), &[]));
    let (iss, ack, flags) = answer(host);
    assert_eq!((ack, flags), (IRS.wrapping_add(1), SYN | ACK));
    let next = iss.wrapping_add(1);
    host.frame(&tcp(SERVER, fields(5000, ack, next, ACK), &[]));
    assert!(host.frames.is_empty());
    next
}

/// The record of an established flow whose driver dies, and the next sequence number towards the
/// guest.
pub(super) fn recorded() -> (Record, u32) {
    let mut host = host();
    let next = established(&mut host);
    let record = host.translator.record(host.flow.unwrap()).unwrap();
    let Ok(FlowRecord::Flow(record)) = FlowRecord::decode(&record.encode()) else {
        panic!("{record:?}");
    };
    (record, next)
}

/// The progress of a flow in which nothing was sent, as the kernel knows it.
pub(super) const UNTOUCHED: Progress = Progress {
    taken: 0,
    given: 0,
    unread: 0,
    guest_closed: false,
    peer_closed: false,
    room: 0,
};

#[test]
fn a_reset_counts_at_the_next_byte_alone() {
    let mut host = host();
    let next = established(&mut host);
    let at = IRS.wrapping_add(1);
    // RFC 5961, section 3.2: elsewhere in the window it is challenged, and outside it is ignored.
    host.frame(&tcp(SERVER, fields(5000, at.wrapping_add(9), 0, RST), &[]));
    assert_eq!(answer(&mut host), (next, at, ACK));
    host.frame(&tcp(SERVER, fields(5000, at.wrapping_sub(9), 0, RST), &[]));
    assert!(host.frames.is_empty() && host.socket.closed.is_none());
    // Section 4.2: a SYN is challenged.
    host.frame(&tcp(SERVER, fields(5000, at, 0, SYN), &[]));
    assert_eq!(answer(&mut host), (next, at, ACK));
    // Section 5.2: so is an acknowledgement of what was never sent.
    host.frame(&tcp(
        SERVER,
        fields(5000, at, next.wrapping_add(1), ACK),
        &[],
    ));
    assert_eq!(answer(&mut host), (next, at, ACK));
    host.frame(&tcp(SERVER, fields(5000, at, 0, RST), &[]));
    assert_eq!(host.socket.closed, Some(true));
    assert!(host.translator.is_empty());
}

#[test]
fn what_the_kernel_took_is_acknowledged() {
    let mut host = host();
    let next = established(&mut host);
    let at = IRS.wrapping_add(1);
    host.socket.buffer = 4;
    host.frame(&tcp(SERVER, fields(5000, at, next, ACK), b"payload"));
    assert_eq!(answer(&mut host), (next, at.wrapping_add(4), ACK));
    // The rest comes again, with the FIN: it counts when all before it was taken.
    host.socket.buffer = 100;
    let again = fields(5000, at.wrapping_add(2), next, ACK | FIN);
    host.frame(&tcp(SERVER, again, b"yload"));
    assert_eq!(answer(&mut host), (next, at.wrapping_add(8), ACK));
    assert!(host.socket.shut);
    assert_eq!(host.socket.queued.make_contiguous(), b"payload");
}

#[test]
fn what_is_forbidden_is_refused_by_name() {
    for (to, refusal) in [
        ([127, 0, 0, 1], Refusal::Denied),
        ([169, 254, 169, 254], Refusal::Denied),
        ([10, 0, 2, 2], Refusal::Unreachable),
        ([10, 0, 2, 77], Refusal::Unreachable),
    ] {
        let mut host = host();
        host.frame(&tcp(to, fields(5000, IRS, 0, SYN), &[]));
        assert_eq!(host.verdict, Verdict::Refused(refusal));
        assert_eq!(answer(&mut host), (0, IRS.wrapping_add(1), RST | ACK));
        assert!(host.translator.is_empty());
    }
    let fragment = PacketBuilder::new(GUEST, GATEWAY).ipv4([10, 0, 2, 15], SERVER);
    let fragment = fragment.udp(5000, 80).fragment(0, true).build();
    let mut host = host();
    host.frame(&fragment);
    assert_eq!(host.verdict, Verdict::Refused(Refusal::Fragment));
}

#[test]
fn half_open_connections_of_a_guest_are_bounded() {
    let mut with = settings();
    with.bounds = Bounds {
        half_open: 3,
        guest: 5,
        flows: 8,
        ..Bounds::default()
    };
    let mut translator = Translator::new(with);
    let mut verdict = |port: u16| {
        let frame = tcp(SERVER, fields(port, IRS, 0, SYN), &[]);
        translator.frame(
            0,
            &frame,
            frame.len(),
            &NetHeader::default(),
            &mut Vec::new(),
        )
    };
    for port in 1..=3 {
        assert_eq!(verdict(port), Verdict::Done);
    }
    assert_eq!(verdict(4), Verdict::Refused(Refusal::Flows));
    // The same SYN again is no new flow.
    assert_eq!(verdict(3), Verdict::Done);
}

#[test]
fn peers_that_a_guest_does_not_answer_take_no_place_of_its_own_connections() {
    let mut with = settings();
    with.bounds.half_open = 3;
    let mut translator = Translator::new(with);
    let guest = ("10.0.2.15:22".parse().unwrap(), GUEST);
    let mut accepted = |port: u16| {
        let peer = std::net::SocketAddr::from((SERVER, port));
        let mut out = Vec::new();
        translator.accepted(0, guest, peer, 1000, &mut out).is_ok()
    };
    let all: Vec<_> = (1..=4).map(&mut accepted).collect();
    assert_eq!(all, [true, true, true, false]);
    let frame = tcp(SERVER, fields(5000, IRS, 0, SYN), &[]);
    let (net, mut out) = (NetHeader::default(), Vec::new());
    let verdict = translator.frame(0, &frame, frame.len(), &net, &mut out);
    assert_eq!(verdict, Verdict::Done);
    assert!(matches!(out[..], [Action::Connect(..)]));
}

#[test]
fn a_successor_continues_a_flow() {
    let (record, next) = recorded();
    let at = IRS.wrapping_add(1);
    let mut second = Translator::new(settings());
    let progress = Progress {
        taken: 10,
        given: 20,
        unread: 30,
        guest_closed: false,
        peer_closed: false,
        room: 1000,
    };
    let mut out = Vec::new();
    let flow = second.restore(0, &record, &progress, &mut out).unwrap();
    let [Action::Frame(probe), Action::Ready(_)] = out[..] else {
        panic!("{out:?}");
    };
    let probe = TcpView::new_checked(&probe.bytes()[34..]).unwrap();
    let una = next.wrapping_add(20);
    assert_eq!(
        (probe.seq(), probe.ack()),
        (una.wrapping_sub(1), at.wrapping_add(10))
    );
    // The guest has had all that the predecessor may have sent.
    let ack = fields(5000, at.wrapping_add(10), una.wrapping_add(30), ACK);
    let frame = tcp(SERVER, ack, &[]);
    out.clear();
    second.frame(0, &frame, frame.len(), &NetHeader::default(), &mut out);
    assert!(matches!(out[..], [Action::Discard(id, 30), ..] if id == flow));
    // A second record of the same flow, and one of an address that no guest has.
    let twice = second.restore(0, &record, &progress, &mut out);
    assert_eq!(twice, Err(Refusal::Flows));
    let foreign = Record {
        guest: "10.0.3.1:5".parse().unwrap(),
        ..record
    };
    let foreign = second.restore(0, &foreign, &progress, &mut out);
    assert_eq!(foreign, Err(Refusal::Unreachable));
}

#[test]
fn a_mapping_is_independent_of_the_endpoint() {
    let mut translator = Translator::new(settings());
    let mut out = Vec::new();
    for to in [[8, 8, 8, 8], [9, 9, 9, 9]] {
        let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4([10, 0, 2, 15], to);
        let frame = frame.udp(7000, 123).payload(b"time").build();
        let net = NetHeader::default();
        let verdict = translator.frame(0, &frame, frame.len(), &net, &mut out);
        assert_eq!(verdict, Verdict::Done);
    }
    let [
        Action::OpenUdp(flow, _),
        Action::Keep(_),
        Action::SendTo { payload, .. },
        Action::SendTo { flow: other, .. },
    ] = out[..]
    else {
        panic!("{out:?}");
    };
    assert_eq!((flow, payload.range()), (other, 42..46));
    let from = |text: &str| Target::Outside(text.parse().unwrap());
    let headers = translator
        .datagram(0, flow, from("1.2.3.4:9"), ONE)
        .unwrap();
    assert_eq!(headers.bytes().len(), 42);
    for stranger in ["127.0.0.1:9", "10.0.2.9:9", "[2001:db8::1]:9"] {
        assert!(
            translator.datagram(0, flow, from(stranger), ONE).is_none(),
            "{stranger}"
        );
    }
    // An error is only about what the guest may reach.
    let undelivered = translator.undelivered(flow, from("9.9.9.9:123")).unwrap();
    assert_eq!(undelivered.peer, "9.9.9.9:123".parse().unwrap());
    assert_eq!(translator.undelivered(flow, from("127.0.0.1:9")), None);
    // Two minutes without a datagram.
    out.clear();
    translator.expire(119_999_999_999, &mut out);
    assert!(out.is_empty());
    translator.expire(120_000_000_000, &mut out);
    assert!(matches!(out[..], [Action::Close { .. }]) && translator.is_empty());
}

/// A datagram of four bytes.
const ONE: Datagrams = Datagrams { len: 4, segment: 0 };

fn udp(to: [u8; 4], port: u16) -> Vec<u8> {
    let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4([10, 0, 2, 15], to);
    frame.udp(7000, port).payload(b"bytes").build()
}

#[test]
fn a_mapping_that_only_asks_dns_servers_ends_after_ten_seconds() {
    const S: crate::Nanos = 1_000_000_000;
    let mut translator = Translator::new(settings());
    let mut send = |now, port| {
        let frame = udp([8, 8, 8, 8], port);
        let net = NetHeader::default();
        translator.frame(now, &frame, frame.len(), &net, &mut Vec::new());
        translator.deadline()
    };
    assert_eq!(send(0, 53), Some(10 * S));
    assert_eq!(send(5 * S, 53), Some(15 * S));
    assert_eq!(send(6 * S, 123), Some(126 * S));
    assert_eq!(send(7 * S, 53), Some(127 * S));
}

#[test]
fn a_successor_continues_a_mapping() {
    let mut first = Translator::new(settings());
    let (mut out, frame) = (Vec::new(), udp(SERVER, 53));
    first.frame(0, &frame, frame.len(), &NetHeader::default(), &mut out);
    let [
        Action::OpenUdp(..),
        Action::Keep(flow),
        Action::SendTo { .. },
    ] = out[..]
    else {
        panic!("{out:?}");
    };
    let bytes = first.record(flow).unwrap().encode();
    let Ok(FlowRecord::Mapping(record)) = FlowRecord::decode(&bytes) else {
        panic!("{bytes:?}");
    };
    let mut second = Translator::new(settings());
    let own = "0.0.0.0:40000".parse().unwrap();
    let flow = second.restore_mapping(0, &record, own).unwrap();
    assert_eq!(second.deadline(), Some(120_000_000_000));
    let from = Target::Outside("1.2.3.4:9".parse().unwrap());
    assert!(second.datagram(0, flow, from, ONE).is_some());
    out.clear();
    second.frame(0, &frame, frame.len(), &NetHeader::default(), &mut out);
    assert!(matches!(out[..], [Action::SendTo { flow: same, .. }] if same == flow));
    assert_eq!(second.restore_mapping(0, &record, own), Err(Refusal::Flows));
    let guest = "10.0.2.3:7".parse().unwrap();
    let foreign = second.restore_mapping(0, &crate::MappingRecord { guest, ..record }, own);
    assert_eq!(foreign, Err(Refusal::Unreachable));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_record_is_read_but_as_it_was_written(bytes: [u8; 64]) {
        if let Ok(record) = FlowRecord::decode(&bytes) {
            prop_assert_eq!(record.encode(), bytes);
        }
    }

    #[test]
    fn no_frame_panics(
        cut in 0usize..80,
        changes in prop::collection::vec((0usize..80, any::<u8>()), 0..6),
        open: bool,
    ) {
        let mut host = host();
        let next = if open { established(&mut host) } else { 0 };
        let at = IRS.wrapping_add(1);
        let mut frame = tcp(SERVER, fields(5000, at, next, ACK), b"some bytes of payload");
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate(frame.len().min(cut));
        let headers = &frame[..frame.len().min(wire::SNAPSHOT)];
        let mut out = Vec::new();
        host.translator.frame(0, headers, frame.len(), &NetHeader::default(), &mut out);
        for action in out {
            if let Action::Send(_, payload) = action {
                prop_assert!(payload.range().end <= frame.len());
            }
        }
    }
}
