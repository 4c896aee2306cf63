//! How long flows of each state may be silent, and connections that do not come about.

use std::net::SocketAddr;

use wire::build::PacketBuilder;
use wire::tcp::{ACK, FIN, SYN, TcpView};
use wire::virtio::net::NetHeader;

use super::host::Host;
use super::packets::{IRS, RST, SERVER, answer, established, fields, host, tcp};
use super::{GATEWAY, GUEST, settings};
use crate::services::{Errors, IcmpError, Notice};
use crate::{
    Action, Failure, Nanos, Secret, Settings, SocketEvent, Time, Times, Translator,
    UndeliveredPacket, Verdict,
};

const S: Nanos = 1_000_000_000;

/// Lets the next deadline pass; returns how long that took.
fn pass(host: &mut Host) -> Nanos {
    let deadline = host.translator.deadline().unwrap();
    let passed = deadline - host.now;
    host.now = deadline;
    host.step(0, 0);
    passed
}

/// A flow of which one end has closed its half, and nothing is on its way: the next numbers of the
/// guest and towards it.
fn half_closed(by_guest: bool) -> (Host, u32, u32) {
    let mut host = host();
    let next = established(&mut host);
    let at = IRS.wrapping_add(1);
    if by_guest {
        host.frame(&tcp(SERVER, fields(5000, at, next, ACK | FIN), &[]));
        host.frames.clear();
        return (host, at.wrapping_add(1), next);
    }
    host.socket.closes_after = 0;
    host.step(0, 0);
    host.serve(1);
    assert_eq!(answer(&mut host).2, FIN | ACK);
    let next = next.wrapping_add(1);
    host.frame(&tcp(SERVER, fields(5000, at, next, ACK), &[]));
    (host, at, next)
}

#[test]
fn a_silent_half_closed_flow_is_probed_after_two_minutes() {
    for by_guest in [true, false] {
        // A guest that lives and is silent keeps it, however long.
        let (mut host, at, next) = half_closed(by_guest);
        for _ in 0..100 {
            assert_eq!(pass(&mut host), 120 * S, "{by_guest}");
            assert_eq!(answer(&mut host), (next.wrapping_sub(1), at, ACK));
            host.frame(&tcp(SERVER, fields(5000, at, next, ACK), &[]));
        }
        // One that has forgotten it resets.
        pass(&mut host);
        host.frame(&tcp(SERVER, fields(5000, at, 0, RST), &[]));
        assert_eq!(host.socket.closed, Some(true));
        assert!(host.translator.is_empty());
        // One that is gone costs nothing for long, and has four minutes at least.
        let (mut host, ..) = half_closed(by_guest);
        let mut silent = 0;
        while host.socket.closed.is_none() {
            silent += pass(&mut host);
        }
        assert!((240 * S..300 * S).contains(&silent), "{silent}");
    }
}

#[test]
fn both_ends_of_a_silent_connection_are_probed() {
    for (times, ends) in [
        (&["established 600"][..], 600),
        (&["half-closed 300", "established 600"], 600),
        (&[], 7200),
    ] {
        let mut host = Host::new(Translator::new(with(times)), 0, host().socket);
        established(&mut host);
        host.now = ends * S;
        let mut out = Vec::new();
        host.translator.expire(host.now, &mut out);
        let [Action::Probe(_, seconds), Action::Frame(_)] = out[..] else {
            panic!("{out:?}");
        };
        assert_eq!(Nanos::from(seconds), ends);
        // Once for each silence.
        let mut out = Vec::new();
        host.translator.expire(host.now + 75 * S, &mut out);
        assert!(matches!(out[..], [Action::Frame(_)]), "{out:?}");
    }
}

fn with(times: &[&str]) -> Settings {
    let times = times.iter().map(|text| text.parse::<Time>().unwrap());
    Settings {
        times: times.fold(Times::default(), Times::with),
        ..settings()
    }
}

#[test]
fn other_times_hold_for_flows_that_are_there() {
    let (mut host, at, next) = half_closed(true);
    host.translator.set_times(with(&["half-closed 10"]).times);
    pass(&mut host);
    host.frames.clear();
    host.frame(&tcp(SERVER, fields(5000, at, next, ACK), &[]));
    assert_eq!(pass(&mut host), 10 * S);
}

#[test]
fn a_flow_that_both_ends_have_closed_waits_four_minutes_for_its_guest() {
    let (mut host, ..) = half_closed(true);
    host.socket.closes_after = 0;
    host.step(0, 0);
    host.serve(1);
    assert_eq!(answer(&mut host).2, FIN | ACK);
    let mut silent = 0;
    while host.socket.closed.is_none() {
        silent += pass(&mut host);
    }
    assert_eq!(silent, 240 * S);
    // Both streams are whole.
    assert_eq!(host.socket.closed, Some(false));
    assert!(host.translator.is_empty());
}

#[test]
fn a_connection_that_is_not_established_ends() {
    let mut host = host();
    host.frame(&tcp(SERVER, fields(5000, IRS, 0, SYN), &[]));
    let mut silent = 0;
    while host.socket.closed.is_none() {
        silent += pass(&mut host);
    }
    assert_eq!((silent, host.socket.closed), (240 * S, Some(true)));
    // So does one whose socket does not connect.
    let mut translator = Translator::new(with(&["half-open 30"]));
    let flow = connecting(&mut translator);
    assert_eq!(translator.deadline(), Some(30 * S));
    let mut out = Vec::new();
    translator.expire(30 * S, &mut out);
    let [Action::Close { flow: closed, .. }] = out[..] else {
        panic!("{out:?}");
    };
    assert_eq!(closed, flow);
}

/// A connection of the guest whose socket connects.
fn connecting(translator: &mut Translator) -> crate::FlowId {
    let syn = tcp(SERVER, fields(5000, IRS, 0, SYN), &[]);
    let mut out = Vec::new();
    translator.frame(0, &syn, syn.len(), &NetHeader::default(), &mut out);
    let [Action::Connect(flow, _)] = out[..] else {
        panic!("{out:?}");
    };
    flow
}

#[test]
fn mappings_end_after_their_time() {
    let mut translator = Translator::new(with(&["udp 300", "dns 20"]));
    for (port, ends) in [(4000, 300), (53, 20)] {
        let datagram = PacketBuilder::new(GUEST, GATEWAY).ipv4([10, 0, 2, 15], SERVER);
        let datagram = datagram.udp(port, port).payload(b"x").build();
        let mut out = Vec::new();
        translator.frame(
            0,
            &datagram,
            datagram.len(),
            &NetHeader::default(),
            &mut out,
        );
        assert_eq!(translator.deadline(), Some(ends * S));
        translator.expire(ends * S, &mut out);
        assert!(translator.is_empty());
    }
}

/// The actions when the socket of a connection of a guest fails.
fn failed(failure: Failure) -> Vec<Action> {
    let mut translator = Translator::new(settings());
    let flow = connecting(&mut translator);
    let mut out = Vec::new();
    translator.socket(0, flow, SocketEvent::Failed(failure), &mut out);
    assert!(translator.is_empty());
    out
}

#[test]
fn a_connection_that_fails_is_heard_of_as_a_host_would_hear() {
    let router = "198.51.100.7".parse().unwrap();
    for (error, from, expected) in [
        (IcmpError::Host, None, (3, 1)),
        (IcmpError::Network, None, (3, 0)),
        (IcmpError::Prohibited, Some(router), (3, 13)),
        (IcmpError::HopLimit, Some(router), (11, 0)),
    ] {
        let notice = Notice { error, from };
        let out = failed(Failure::Unreachable(notice));
        let [Action::Notify(of, said), Action::Close { reset: false, .. }] = out[..] else {
            panic!("{out:?}");
        };
        assert_eq!(said, notice);
        let mut errors = Errors::new(settings().network, Secret([1, 2]));
        let frame = errors.undelivered(0, &of, &[], notice).unwrap();
        assert_eq!((frame[34], frame[35]), expected);
        let source: [u8; 4] = std::array::from_fn(|at| frame[26 + at]);
        assert_eq!(
            source,
            [[10, 0, 2, 2], [198, 51, 100, 7]][usize::from(from.is_some())]
        );
        // The SYN, as the guest finds its connection by it.
        let quoted = TcpView::new_checked(&frame[62..]).unwrap();
        assert_eq!(
            (quoted.src_port(), quoted.dst_port(), quoted.seq()),
            (5000, 80, IRS)
        );
        assert_eq!(frame[54..58], [10, 0, 2, 15]);
    }
    // A host that is silent is silent; one that refuses resets.
    let out = failed(Failure::Silent);
    assert!(
        matches!(out[..], [Action::Close { reset: false, .. }]),
        "{out:?}"
    );
    for failure in [
        Failure::Refused,
        Failure::Own,
        Failure::Ports,
        Failure::Descriptors,
    ] {
        let out = failed(failure);
        let [Action::Close { reset: false, .. }, Action::Frame(reset)] = out[..] else {
            panic!("{out:?}");
        };
        let flags = TcpView::new_checked(&reset.bytes()[34..]).unwrap().flags();
        assert_eq!(flags, RST | ACK);
    }
}

/// A router has no address of the guests' network, and no loopback address.
#[test]
fn errors_come_from_routers_outside_or_from_the_gateway() {
    let of = UndeliveredPacket {
        station: GUEST,
        guest: "10.0.2.15:1000".parse().unwrap(),
        peer: "192.0.2.1:2000".parse().unwrap(),
        syn: None,
    };
    for (from, expected) in [
        ("198.51.100.7", [198, 51, 100, 7]),
        ("10.0.2.20", [10, 0, 2, 2]),
        ("127.0.0.1", [10, 0, 2, 2]),
        ("2001:db8::1", [10, 0, 2, 2]),
    ] {
        let notice = Notice {
            error: IcmpError::HopLimit,
            from: from.parse().ok(),
        };
        let mut errors = Errors::new(settings().network, Secret([1, 2]));
        let frame = errors.undelivered(0, &of, b"x", notice).unwrap();
        assert_eq!(frame[26..30], expected, "{from}");
    }
    // Those of others are theirs to bound: a traceroute sends many packets at once.
    let mut errors = Errors::new(settings().network, Secret([1, 2]));
    let notice = Notice {
        error: IcmpError::HopLimit,
        from: "198.51.100.7".parse().ok(),
    };
    let passed = (0..48).filter(|_| errors.undelivered(0, &of, b"x", notice).is_some());
    assert_eq!(passed.count(), 48);
}

#[test]
fn a_guest_of_a_forward_that_does_not_answer_is_asked_for() {
    let mut translator = Translator::new(settings());
    let guest: SocketAddr = "10.0.2.15:80".parse().unwrap();
    let peer = "10.0.2.2:5000".parse().unwrap();
    let mut out = Vec::new();
    let flow = translator
        .accepted(7, (guest, GUEST), peer, 9, &mut out)
        .unwrap();
    assert_eq!(translator.guest(flow), Some((guest.ip(), GUEST)));
    for (at, since) in [(7 + S, None), (7 + 3 * S, Some(7))] {
        assert_eq!(translator.deadline(), Some(at));
        let mut out = Vec::new();
        translator.expire(at, &mut out);
        let [Action::Ask(asked, found), Action::Frame(_)] = out[..] else {
            panic!("{out:?}");
        };
        assert_eq!((asked, found), (flow, since));
    }
    let mut out = Vec::new();
    translator.socket(3 * S, flow, SocketEvent::Absent, &mut out);
    assert!(
        matches!(out[..], [Action::Close { reset: true, .. }]),
        "{out:?}"
    );
    assert!(translator.is_empty());
}

#[test]
fn a_time_to_live_ends_at_the_gateway_or_goes_on() {
    let run = |frame: PacketBuilder| {
        let frame = frame.build();
        let mut translator = Translator::new(settings());
        let mut out = Vec::new();
        let net = NetHeader::default();
        let verdict = translator.frame(0, &frame, frame.len(), &net, &mut out);
        let hops = match out.last() {
            Some(Action::SendTo { hops, .. }) => Some(*hops),
            Some(Action::Connect(flow, _)) => Some(translator.hops(*flow)),
            _ => None,
        };
        (verdict, hops)
    };
    let packet = |to: [u8; 4], hops: u8| {
        let packet = PacketBuilder::new(GUEST, GATEWAY).ttl(hops);
        packet.ipv4([10, 0, 2, 15], to)
    };
    let packet6 = |hops: u8| {
        let own: std::net::Ipv6Addr = "fd12:3456:789a:1::15".parse().unwrap();
        let far: std::net::Ipv6Addr = "2001:db8::1".parse().unwrap();
        PacketBuilder::new(GUEST, GATEWAY).ttl(hops).ipv6(own, far)
    };
    for (hops, expected) in [(2, Some(1)), (63, Some(62)), (64, None), (255, None)] {
        let passed = (Verdict::Done, Some(expected));
        assert_eq!(run(packet(SERVER, hops).udp(5000, 4000)), passed);
        assert_eq!(
            run(packet(SERVER, hops).tcp(fields(5000, IRS, 0, SYN))),
            passed
        );
        assert_eq!(run(packet6(hops).udp(5000, 4000)), passed);
        assert_eq!(run(packet6(hops).tcp(fields(5000, IRS, 0, SYN))), passed);
    }
    for hops in [0, 1] {
        let expired = (Verdict::Expired, None);
        assert_eq!(run(packet(SERVER, hops).udp(5000, 4000)), expired);
        assert_eq!(
            run(packet(SERVER, hops).tcp(fields(5000, IRS, 0, SYN))),
            expired
        );
        assert_eq!(run(packet6(hops).udp(5000, 4000)), expired);
        // The gateway itself is no hop away.
        let (verdict, _) = run(packet([10, 0, 2, 2], hops).udp(5000, 4000));
        assert_ne!(verdict, Verdict::Expired);
        // A router drops it before it looks where it would go.
        let (verdict, _) = run(packet([169, 254, 169, 254], hops).udp(5000, 4000));
        assert_eq!(verdict, Verdict::Expired);
    }
    let mut errors = Errors::new(settings().network, Secret([1, 2]));
    for frame in [
        packet(SERVER, 1).udp(5000, 4000),
        packet(SERVER, 1).tcp(fields(5000, IRS, 0, SYN)),
    ] {
        let answer = errors.expired(0, &frame.build()).unwrap();
        assert_eq!(
            (&answer[26..30], &answer[34..36]),
            (&[10, 0, 2, 2][..], &[11, 0][..])
        );
    }
    let answer = errors
        .expired(0, &packet6(1).udp(5000, 4000).build())
        .unwrap();
    assert_eq!(answer[54..56], [3, 0]);
}
