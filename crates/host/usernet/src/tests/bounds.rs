//! Bounds of flows, and guests against each other's flows.

use wire::MacAddr;
use wire::build::{PacketBuilder, TcpFields};
use wire::tcp::{ACK, FIN, SYN, TcpView};
use wire::virtio::net::{self, NetHeader};

use super::host::Host;
use super::packets::{IRS, RST, SERVER, established, fields, host, tcp};
use super::{GATEWAY, GUEST, settings};
use crate::network::Refusal;
use crate::{Action, Bounds, Failure, FlowId, FlowState, SocketEvent, Translator, Verdict};

const OTHER: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 16]);
const AT: u32 = IRS.wrapping_add(1);

fn run(translator: &mut Translator, frame: &[u8], net: NetHeader) -> (Verdict, Vec<Action>) {
    let mut out = Vec::new();
    let verdict = translator.frame(0, frame, frame.len(), &net, &mut out);
    (verdict, out)
}

fn plain(translator: &mut Translator, frame: &[u8]) -> (Verdict, Vec<Action>) {
    run(translator, frame, NetHeader::default())
}

fn translator(bounds: Bounds) -> Translator {
    let mut with = settings();
    with.bounds = bounds;
    Translator::new(with)
}

/// Opens a flow from this port, and closes both its halves; the guest's answer to our FIN is this.
fn open_and_close(translator: &mut Translator, port: u16, answer: u16) -> Result<FlowId, Verdict> {
    let segment = |seq, ack, flags| tcp(SERVER, fields(port, seq, ack, flags), &[]);
    let (verdict, out) = plain(translator, &segment(IRS, 0, SYN));
    let [Action::Connect(flow, _)] = out[..] else {
        return Err(verdict);
    };
    let mut out = Vec::new();
    translator.socket(0, flow, SocketEvent::Connected { room: 1000 }, &mut out);
    let [Action::Frame(syn)] = out[..] else {
        panic!("{out:?}");
    };
    let syn = TcpView::new_checked(&syn.bytes()[34..]).unwrap();
    let next = syn.seq().wrapping_add(1);
    plain(translator, &segment(AT, next, ACK | FIN));
    let peek = translator.peek(0, flow).unwrap();
    translator.peeked(0, flow, peek, crate::PeekResult::End, &mut out);
    let (_, out) = plain(translator, &segment(AT + 1, next.wrapping_add(1), answer));
    let closed = matches!(out[..], [Action::Close { reset: false, .. }]);
    assert!(closed, "{out:?}");
    Ok(flow)
}

#[test]
fn a_guest_that_has_forgotten_a_finished_connection_resets_nothing() {
    let mut translator = translator(settings().bounds);
    open_and_close(&mut translator, 5000, RST).unwrap();
}

#[test]
fn flows_that_have_ended_make_room() {
    let mut all = translator(Bounds {
        flows: 3,
        guest: 2,
        half_open: 1,
        ..Bounds::default()
    });
    // Each waits two seconds for late segments.
    for port in 1..=10 {
        let flow = open_and_close(&mut all, port, ACK).unwrap();
        assert!(flow.index() < 3 && all.len() <= 3);
    }
    let mut later = Vec::new();
    all.expire(2_000_000_000, &mut later);
    assert!(later.is_empty() && all.is_empty());
    // Those that live do not.
    let syn = |port| tcp(SERVER, fields(port, IRS, 0, SYN), &[]);
    assert_eq!(plain(&mut all, &syn(1)).0, Verdict::Done);
    let refused = plain(&mut all, &syn(2)).0;
    assert_eq!(refused, Verdict::Refused(Refusal::Flows));
}

/// A SYN of a station from this port.
fn syn_of(station: MacAddr, port: u16) -> Vec<u8> {
    let frame = PacketBuilder::new(station, GATEWAY).ipv4([10, 0, 2, 15], SERVER);
    frame.tcp(fields(port, IRS, 0, SYN)).build()
}

#[test]
fn a_guest_that_invents_stations_leaves_room_for_configured_ones() {
    let mut all = translator(Bounds {
        flows: 64,
        guest: 20,
        half_open: 20,
        ..Bounds::default()
    });
    all.reserve([GUEST, OTHER]);
    let mut port = 0;
    let mut opens = |all: &mut Translator, station: MacAddr| {
        port += 1;
        plain(all, &syn_of(station, port)).0 == Verdict::Done
    };
    // Half of 64 in two shares; the rest is for those that come first.
    let invented = (0..100u8).map(|n| MacAddr([2, 0, 0, 0, 9, n]));
    let count = invented.filter(|of| opens(&mut all, *of)).count();
    assert_eq!(count, 32);
    for station in [GUEST, OTHER] {
        let count = (0..30).filter(|_| opens(&mut all, station)).count();
        assert_eq!(count, 16, "a share");
    }
    assert_eq!(all.len(), 64);
    // Without configured stations all is shared, and who has more than before keeps it.
    all.reserve([]);
    assert!(!opens(&mut all, GUEST));
    let mut out = Vec::new();
    all.expire(0, &mut out);
    assert_eq!(all.len(), 64);
}

#[test]
fn a_configured_station_may_have_more_than_its_share() {
    let mut all = translator(Bounds {
        flows: 64,
        guest: 60,
        half_open: 60,
        ..Bounds::default()
    });
    all.reserve([GUEST, OTHER]);
    let count = |all: &mut Translator, station, from: u16| {
        let ports = from..from + 100;
        let opened = ports.filter(|port| plain(all, &syn_of(station, *port)).0 == Verdict::Done);
        opened.count()
    };
    assert_eq!(count(&mut all, GUEST, 1), 48);
    assert_eq!(count(&mut all, MacAddr([2; 6]), 1000), 0);
    assert_eq!(count(&mut all, OTHER, 2000), 16);
}

/// A datagram of a station from this port, which opens a mapping.
fn datagram_of(station: MacAddr, port: u16) -> Vec<u8> {
    let frame = PacketBuilder::new(station, GATEWAY).ipv4([10, 0, 2, 15], SERVER);
    frame.udp(port, 123).payload(b"time").build()
}

/// A SYN to this port of the server.
fn syn_to(station: MacAddr, port: u16, to: u16) -> Vec<u8> {
    let fields = TcpFields {
        dst_port: to,
        ..fields(port, IRS, 0, SYN)
    };
    let frame = PacketBuilder::new(station, GATEWAY).ipv4([10, 0, 2, 15], SERVER);
    frame.tcp(fields).build()
}

/// Opens flows until one is refused, for want of a port; returns their number.
fn take_all(translator: &mut Translator, frame: impl Fn(u16) -> Vec<u8>, from: u16) -> u16 {
    for port in from.. {
        match plain(translator, &frame(port)).0 {
            Verdict::Done => {}
            verdict => {
                assert_eq!(verdict, Verdict::Refused(Refusal::Ports));
                return port - from;
            }
        }
    }
    unreachable!("there are no more ports of guests")
}

#[test]
fn a_guest_that_takes_all_ports_it_can_leaves_some_to_others() {
    let bounds = Bounds {
        ports: 512,
        half_open: 4096,
        ..Bounds::default()
    };
    let opens: [fn(MacAddr, u16) -> Vec<u8>; 3] = [
        datagram_of,
        |station, port| syn_to(station, port, 80),
        |station, port| syn_to(station, port, 443),
    ];
    let third = MacAddr([2, 0, 0, 0, 0, 3]);
    for open in opens {
        // Known stations: each has a share of 128, and at most half of the rest that is left.
        let mut all = translator(bounds);
        all.reserve([GUEST, OTHER]);
        let first = take_all(&mut all, |port| open(GUEST, port), 1000);
        let second = take_all(&mut all, |port| open(OTHER, port), 2000);
        let stranger = take_all(&mut all, |port| open(third, port), 3000);
        assert_eq!((first, second, stranger), (128 + 128, 128 + 64, 32));
        assert!(first + second + stranger <= 512);
        // Stations that others invent do not get the shares.
        let mut all = translator(bounds);
        all.reserve([GUEST, OTHER]);
        for n in 0..100 {
            let invented = MacAddr([2, 0, 0, 0, 9, n]);
            take_all(
                &mut all,
                |port| open(invented, port),
                1000 + u16::from(n) * 256,
            );
        }
        assert!(take_all(&mut all, |port| open(GUEST, port), 40_000) >= 128);
        assert!(take_all(&mut all, |port| open(OTHER, port), 50_000) >= 128);
        // Without known ones, who comes later has some as well.
        let mut all = translator(bounds);
        let guests = [(GUEST, 1000), (OTHER, 2000), (third, 3000)];
        let taken = guests.map(|(of, from)| take_all(&mut all, |port| open(of, port), from));
        assert_eq!(taken, [256, 128, 64]);
    }
}

#[test]
fn each_destination_has_ports_of_its_own_and_flows_give_theirs_back() {
    let mut all = translator(Bounds {
        ports: 64,
        ..Bounds::default()
    });
    let web = take_all(&mut all, |port| syn_to(GUEST, port, 80), 1000);
    let datagrams = take_all(&mut all, |port| datagram_of(GUEST, port), 1000);
    let other = take_all(&mut all, |port| syn_to(GUEST, port, 443), 2000);
    assert_eq!([web, datagrams, other], [32; 3]);
    // A connection that ends, and mappings whose time is over.
    plain(&mut all, &tcp(SERVER, fields(1000, AT, 0, RST), &[]));
    assert_eq!(take_all(&mut all, |port| syn_to(GUEST, port, 80), 5000), 1);
    all.expire(u64::MAX, &mut Vec::new());
    assert_eq!(
        take_all(&mut all, |port| datagram_of(GUEST, port), 7000),
        32
    );
}

#[test]
fn another_number_of_ports_holds_for_new_flows() {
    let mut all = translator(Bounds {
        ports: 64,
        ..Bounds::default()
    });
    let open = |port| datagram_of(GUEST, port);
    assert_eq!(take_all(&mut all, open, 1000), 32);
    all.set_ports(20);
    assert_eq!((all.len(), take_all(&mut all, open, 2000)), (32, 0));
    all.set_ports(128);
    assert_eq!(take_all(&mut all, open, 3000), 32);
    all.reserve([GUEST]);
    assert_eq!(
        take_all(&mut all, open, 4000),
        32,
        "its share, and half of the rest"
    );
}

#[test]
fn a_flow_is_that_of_its_station() {
    let mut host = host();
    let next = established(&mut host);
    let spoofed = |port, flags| {
        let fields = TcpFields {
            src_port: port,
            ..fields(5000, AT, next, flags)
        };
        let frame = PacketBuilder::new(OTHER, GATEWAY).ipv4([10, 0, 2, 15], SERVER);
        frame.tcp(fields).payload(b"bytes").build()
    };
    for flags in [ACK, 4, SYN, ACK | FIN] {
        host.frame(&spoofed(5000, flags));
        assert_eq!(host.verdict, Verdict::Refused(Refusal::Denied));
    }
    assert!(host.frames.is_empty() && host.socket.queued.is_empty());
    assert_eq!(host.socket.closed, None);
    // So is a mapping.
    let mut translator = Translator::new(settings());
    let datagram = |station| {
        let frame = PacketBuilder::new(station, GATEWAY).ipv4([10, 0, 2, 15], SERVER);
        frame.udp(7000, 123).payload(b"time").build()
    };
    assert_eq!(plain(&mut translator, &datagram(GUEST)).0, Verdict::Done);
    let (verdict, out) = plain(&mut translator, &datagram(OTHER));
    assert_eq!(verdict, Verdict::Refused(Refusal::Denied));
    assert!(out.is_empty());
}

#[test]
fn a_mapping_without_a_socket_ends() {
    let mut translator = Translator::new(settings());
    let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4([10, 0, 2, 15], SERVER);
    let frame = frame.udp(7000, 123).payload(b"time").build();
    let (_, out) = plain(&mut translator, &frame);
    let [Action::OpenUdp(flow, _), ..] = out[..] else {
        panic!("{out:?}");
    };
    let mut out = Vec::new();
    translator.socket(0, flow, SocketEvent::Readable, &mut out);
    assert!(out.is_empty());
    let failed = SocketEvent::Failed(Failure::Descriptors);
    translator.socket(0, flow, failed, &mut out);
    assert!(matches!(out[..], [Action::Close { reset: false, .. }]));
    assert!(translator.is_empty() && translator.deadline().is_none());
}

#[test]
fn super_frames_of_datagrams_are_bounded() {
    let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4([10, 0, 2, 15], SERVER);
    let frame = frame.udp(7000, 123).payload(&[7; 1290]).build();
    for (gso_type, gso_size, segment) in [
        (net::GSO_NONE, 0, Some(0)),
        (net::GSO_UDP, 500, Some(0)),
        (net::GSO_UDP_L4, 500, Some(500)),
        (net::GSO_UDP_L4, 10, None),
        (net::GSO_UDP_L4, 0, None),
        (net::GSO_TCPV4, 500, None),
        (2, 500, None),
    ] {
        let net = NetHeader {
            gso_type,
            gso_size,
            ..NetHeader::default()
        };
        let (verdict, out) = run(&mut Translator::new(settings()), &frame, net);
        let sent = out.iter().find_map(|action| match action {
            Action::SendTo { segment, .. } => Some(*segment),
            _ => None,
        });
        assert_eq!(sent, segment, "{net:?}");
        let refused = verdict == Verdict::Refused(Refusal::Protocol);
        assert_eq!((refused, out.is_empty()), (sent.is_none(), sent.is_none()));
    }
}

#[test]
fn frames_to_a_group_are_not_refused() {
    let group = MacAddr([1, 0, 0x5e, 0, 0, 0xfb]);
    for (to, verdict) in [
        (group, Verdict::Ignored),
        (GATEWAY, Verdict::Refused(Refusal::Fragment)),
    ] {
        let frame = PacketBuilder::new(GUEST, to).ipv4([10, 0, 2, 15], [224, 0, 0, 251]);
        let frame = frame.udp(5353, 5353).fragment(0, true).build();
        let (got, out) = plain(&mut Translator::new(settings()), &frame);
        assert_eq!((got, out.is_empty()), (verdict, true));
    }
}

#[test]
fn peers_are_hosts_outside_or_the_gateway() {
    let mut translator = Translator::new(settings());
    let guest = ("10.0.2.15:80".parse().unwrap(), GUEST);
    for (peer, is_one) in [
        ("192.0.2.1:5000", true),
        ("10.0.2.2:5000", true),
        ("10.0.2.3:5000", true),
        ("10.0.2.16:5000", false),
        ("127.0.0.1:5000", false),
        ("169.254.1.1:5000", false),
        ("224.0.0.1:5000", false),
        ("0.0.0.0:5000", false),
        ("192.0.2.1:0", false),
        ("[2001:db8::1]:5000", false),
    ] {
        let peer = peer.parse().unwrap();
        let accepted = translator.accepted(0, guest, peer, 1000, &mut Vec::new());
        assert_eq!(accepted.is_ok(), is_one, "{peer}");
    }
}

#[test]
fn states_are_counted_as_flows_go_through_them() {
    let mut host = host();
    let states = |host: &Host| host.translator.states();
    let next = established(&mut host);
    assert_eq!(states(&host), [0, 1, 0, 0, 0]);
    host.frame(&tcp(SERVER, fields(5000, AT, next, ACK | FIN), &[]));
    assert_eq!(states(&host), [0, 0, 1, 0, 0], "the guest's half is closed");
    let listed = host.translator.listed(0).unwrap();
    assert_eq!(listed.state, FlowState::HalfClosed);
    assert_eq!((listed.station, listed.guest.port()), (GUEST, 5000));
    assert_eq!(host.translator.listed(1), None);
    host.frame(&tcp(SERVER, fields(5000, AT.wrapping_add(1), 0, RST), &[]));
    assert_eq!(states(&host), [0; 5]);
    assert_eq!(host.translator.listed(0), None);
}
