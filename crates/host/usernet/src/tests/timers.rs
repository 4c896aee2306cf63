//! Timers of flows, and beginnings and ends other than by a guest's SYN over IPv4.

use wire::build::{PacketBuilder, TcpFields};
use wire::tcp::{ACK, FIN, SYN, TcpView};
use wire::virtio::net::NetHeader;

use super::host::Host;
use super::packets::{
    IRS, RST, SERVER, UNTOUCHED, answer, established, fields, host, recorded, tcp,
};
use super::{GATEWAY, GUEST, settings};
use crate::{Action, FlowRecord, Nanos, PeekResult, Progress, SocketEvent, Translator};

const MS: Nanos = 1_000_000;
const S: Nanos = 1000 * MS;

/// Lets the next deadline pass; returns how long that took.
fn pass(host: &mut Host) -> Nanos {
    let deadline = host.translator.deadline().unwrap();
    let passed = deadline - host.now;
    host.now = deadline;
    host.step(0, 0);
    passed
}

/// Runs a frame without a model of the host.
fn run(translator: &mut Translator, frame: &[u8]) -> Vec<Action> {
    let mut out = Vec::new();
    translator.frame(0, frame, frame.len(), &NetHeader::default(), &mut out);
    out
}

#[test]
fn timeouts_are_those_of_rfc_6298() {
    let mut host = host();
    host.frame(&tcp(SERVER, fields(5000, IRS, 0, SYN), &[]));
    let (iss, ack, _) = answer(&mut host);
    // Sections 2.1 and 5.5: a second, then doubled.
    for seconds in [1, 2, 4] {
        assert_eq!(pass(&mut host), seconds * S);
        assert_eq!(answer(&mut host), (iss, ack, SYN | ACK));
    }
    let next = iss.wrapping_add(1);
    host.frame(&tcp(SERVER, fields(5000, ack, next, ACK), &[]));
    // Section 2.2: the first trip of 100 ms, and four times its half.
    host.socket.script = vec![7; 100];
    host.step(0, 100);
    host.serve(1);
    host.frames.clear();
    host.now += 100 * MS;
    host.frame(&tcp(
        SERVER,
        fields(5000, ack, next.wrapping_add(100), ACK),
        &[],
    ));
    host.socket.script = vec![7; 200];
    host.step(0, 100);
    host.serve(1);
    host.frames.clear();
    assert_eq!(pass(&mut host), 300 * MS);
    // Section 5.4 and 5.5: the first byte again, and twice the time.
    host.serve(1);
    assert_eq!(answer(&mut host).0, next.wrapping_add(100));
    assert_eq!(pass(&mut host), 600 * MS);
}

#[test]
fn a_closed_window_is_probed_with_a_byte() {
    let mut host = host();
    let next = established(&mut host);
    let at = IRS.wrapping_add(1);
    let mut closed = tcp(SERVER, fields(5000, at, next, ACK), &[]);
    closed[48..50].fill(0);
    host.frame(&closed);
    host.socket.script = vec![7; 1000];
    host.step(0, 1000);
    host.serve(9);
    assert!(host.frames.is_empty(), "the window is closed");
    for _ in 0..2 {
        pass(&mut host);
        host.serve(9);
        let [probe] = &std::mem::take(&mut host.frames)[..] else {
            panic!("no probe, or several");
        };
        assert_eq!(probe.len(), 55);
    }
    host.frame(&tcp(
        SERVER,
        fields(5000, at, next.wrapping_add(1), ACK),
        &[],
    ));
    host.serve(1);
    assert_eq!(answer(&mut host).0, next.wrapping_add(1));
    assert_eq!(host.socket.discarded, 1);
}

#[test]
fn an_idle_flow_is_probed_and_given_up() {
    let mut host = host();
    let next = established(&mut host);
    let at = IRS.wrapping_add(1);
    assert_eq!(pass(&mut host), 7200 * S);
    assert_eq!(answer(&mut host), (next.wrapping_sub(1), at, ACK));
    // A guest that answers lives.
    host.frame(&tcp(SERVER, fields(5000, at, next, ACK), &[]));
    assert_eq!(pass(&mut host), 7200 * S);
    assert_eq!(answer(&mut host).0, next.wrapping_sub(1));
    for _ in 1..9 {
        assert_eq!(pass(&mut host), 75 * S);
        assert_eq!(answer(&mut host).0, next.wrapping_sub(1));
    }
    assert_eq!(pass(&mut host), 75 * S);
    assert_eq!(answer(&mut host), (next, at, RST | ACK));
    assert_eq!(host.socket.closed, Some(true));
    assert!(host.translator.is_empty());
}

#[test]
fn an_accepted_socket_sends_a_syn() {
    let mut translator = Translator::new(settings());
    let mut out = Vec::new();
    let guest = ("10.0.2.15:80".parse().unwrap(), GUEST);
    let peer = "10.0.2.2:5000".parse().unwrap();
    let flow = translator
        .accepted(0, guest, peer, 10_000, &mut out)
        .unwrap();
    let [Action::Frame(syn)] = out[..] else {
        panic!("{out:?}");
    };
    let syn = TcpView::new_checked(&syn.bytes()[34..]).unwrap();
    assert_eq!((syn.flags(), syn.dst_port()), (SYN, 80));
    let next = syn.seq().wrapping_add(1);
    let to_gateway = |ack: u32, flags: u16| {
        let fields = TcpFields {
            src_port: 80,
            dst_port: 5000,
            seq: IRS,
            ack,
            flags,
            options: Vec::new(),
        };
        let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4([10, 0, 2, 15], [10, 0, 2, 2]);
        frame.tcp(fields).build()
    };
    // RFC 9293, section 3.10.7.3: an acknowledgement of something else is reset.
    let out = run(
        &mut translator,
        &to_gateway(next.wrapping_add(1), SYN | ACK),
    );
    let [Action::Frame(reset)] = out[..] else {
        panic!("{out:?}");
    };
    let reset = TcpView::new_checked(&reset.bytes()[34..]).unwrap();
    assert_eq!((reset.flags(), reset.seq()), (RST, next.wrapping_add(1)));
    let out = run(&mut translator, &to_gateway(next, SYN | ACK));
    let [Action::Keep(kept), Action::Frame(ack), Action::Ready(_)] = out[..] else {
        panic!("{out:?}");
    };
    let ack = TcpView::new_checked(&ack.bytes()[34..]).unwrap();
    assert_eq!(
        (ack.seq(), ack.ack(), ack.flags()),
        (next, IRS.wrapping_add(1), ACK)
    );
    let record = translator.record(kept).unwrap();
    assert!(matches!(record, FlowRecord::Flow(record) if !record.connected));
    // A guest that refuses: the socket is closed with a reset.
    let again = translator.accepted(0, guest, peer, 1, &mut Vec::new());
    assert!(again.is_err());
    let peer = "10.0.2.2:5001".parse().unwrap();
    let mut out = Vec::new();
    translator.accepted(0, guest, peer, 1, &mut out).unwrap();
    let mut refusal = to_gateway(0, RST | ACK);
    refusal[36..38].copy_from_slice(&5001u16.to_be_bytes());
    let [Action::Frame(syn)] = out[..] else {
        panic!("{out:?}");
    };
    let next = TcpView::new_checked(&syn.bytes()[34..]).unwrap().seq();
    refusal[42..46].copy_from_slice(&next.wrapping_add(1).to_be_bytes());
    let out = run(&mut translator, &refusal);
    assert!(
        matches!(out[..], [Action::Close { reset: true, .. }]),
        "{out:?}"
    );
    assert_eq!(translator.station(flow), Some(GUEST));
}

#[test]
fn flows_of_ipv6_have_its_headers() {
    let mut with = settings();
    with.super_frames = true;
    let mut translator = Translator::new(with);
    let own: std::net::Ipv6Addr = "fd12:3456:789a:1::15".parse().unwrap();
    let server: std::net::Ipv6Addr = "2001:db8::1".parse().unwrap();
    let segment = |seq: u32, ack: u32, flags: u16| {
        let frame = PacketBuilder::new(GUEST, GATEWAY).ipv6(own, server);
        frame.tcp(fields(5000, seq, ack, flags)).build()
    };
    let out = run(&mut translator, &segment(IRS, 0, SYN));
    let [Action::Connect(flow, _)] = out[..] else {
        panic!("{out:?}");
    };
    let mut out = Vec::new();
    let connected = SocketEvent::Connected { room: 10_000 };
    translator.socket(0, flow, connected, &mut out);
    let [Action::Frame(syn)] = out[..] else {
        panic!("{out:?}");
    };
    let tcp = TcpView::new_checked(&syn.bytes()[54..]).unwrap();
    // The MTU less 60 bytes.
    assert_eq!(syn.bytes()[74..78], [2, 4, 5, 160]);
    let ack = segment(IRS.wrapping_add(1), tcp.seq().wrapping_add(1), ACK);
    run(&mut translator, &ack);
    let peek = translator.peek(0, flow).unwrap();
    // A guest that names no size takes 1220 bytes of IPv6.
    assert_eq!((peek.headers, peek.offset, peek.len % 1220), (74, 0, 0));
    let headers = translator.peeked(0, flow, peek, PeekResult::Bytes(5000), &mut Vec::new());
    let headers = headers.unwrap();
    let net = headers.net();
    assert_eq!(
        (net.gso_type, net.gso_size),
        (wire::virtio::net::GSO_TCPV6, 1220)
    );
    assert_eq!(headers.bytes()[18..20], (20u16 + 5000).to_be_bytes());
    // A SYN to what IPv6 never allows.
    let frame = PacketBuilder::new(GUEST, GATEWAY).ipv6(own, std::net::Ipv6Addr::LOCALHOST);
    let frame = frame.tcp(fields(5001, IRS, 0, SYN)).build();
    let out = run(&mut translator, &frame);
    assert!(matches!(out[..], [Action::Frame(_)]), "{out:?}");
}

#[test]
fn a_port_is_used_again_soon_after_both_ends_have_closed() {
    let mut host = host();
    let next = established(&mut host);
    let at = IRS.wrapping_add(1);
    host.frame(&tcp(SERVER, fields(5000, at, next, ACK | FIN), &[]));
    host.frames.clear();
    host.socket.closes_after = 0;
    host.step(0, 0);
    host.serve(1);
    let (fin, _, flags) = answer(&mut host);
    assert_eq!((fin, flags), (next, FIN | ACK));
    let closed = at.wrapping_add(1);
    host.frame(&tcp(
        SERVER,
        fields(5000, closed, next.wrapping_add(1), ACK),
        &[],
    ));
    assert_eq!(host.socket.closed, Some(false));
    // The guest's FIN again: it has lost the acknowledgement.
    host.frame(&tcp(
        SERVER,
        fields(5000, at, next.wrapping_add(1), ACK | FIN),
        &[],
    ));
    assert_eq!(answer(&mut host).1, closed);
    // The SYN of the flow itself, again, opens nothing.
    host.frame(&tcp(SERVER, fields(5000, IRS, 0, SYN), &[]));
    assert!(host.frames.is_empty());
    assert_eq!(host.socket.closed, Some(false));
    // A lower number is that of a new connection, too.
    let again = IRS.wrapping_sub(1000);
    host.frame(&tcp(SERVER, fields(5000, again, 0, SYN), &[]));
    let (_, ack, flags) = answer(&mut host);
    assert_eq!((ack, flags), (again.wrapping_add(1), SYN | ACK));
    assert_eq!(host.translator.len(), 1);
}

#[test]
fn challenges_are_bounded_for_each_flow() {
    let mut host = host();
    established(&mut host);
    let syn = tcp(SERVER, fields(5000, IRS.wrapping_add(1), 0, SYN), &[]);
    // RFC 5961, section 7: ten in five seconds.
    for (now, most) in [(4 * S, 10), (5 * S, 10), (9 * S, 0), (10 * S, 10)] {
        host.now = now;
        (0..50).for_each(|_| host.frame(&syn));
        assert_eq!(std::mem::take(&mut host.frames).len(), most, "{now}");
    }
}

/// A flow that continues after its driver's death, with so many bytes for its guest; returns the
/// next sequence number towards the guest.
fn continued(unread: usize) -> (Host, u32) {
    let (record, next) = recorded();
    let progress = Progress {
        unread: unread as u32,
        room: 10_000,
        ..UNTOUCHED
    };
    let mut second = host();
    second.socket.script = vec![7; unread];
    second.socket.arrived = unread;
    let mut out = Vec::new();
    second.flow = second
        .translator
        .restore(0, &record, &progress, &mut out)
        .ok();
    second.ready = true;
    (second, next)
}

#[test]
fn a_guest_is_asked_soon_and_again_after_a_restart() {
    let (mut host, next) = continued(0);
    for shift in (1..=6).rev() {
        assert_eq!(pass(&mut host), S >> shift);
        assert_eq!(answer(&mut host).0, next.wrapping_sub(1), "a probe");
    }
    // A guest that sleeps has as long as ever.
    for _ in 0..9 {
        assert_eq!(pass(&mut host), 75 * S);
    }
    assert_eq!(host.socket.closed, Some(true));
}

#[test]
fn lost_bytes_are_sent_again_soon_after_a_restart() {
    let (mut host, next) = continued(100);
    for shift in (1..=5).rev() {
        host.serve(1);
        assert_eq!(answer(&mut host).0, next);
        assert_eq!(pass(&mut host), S >> shift);
    }
    let (mut host, next) = continued(100);
    host.serve(1);
    host.frames.clear();
    let at = IRS.wrapping_add(1);
    let half = next.wrapping_add(50);
    host.frame(&tcp(SERVER, fields(5000, at, half, ACK), &[]));
    assert_eq!(pass(&mut host), S / 5, "the least timeout");
}
