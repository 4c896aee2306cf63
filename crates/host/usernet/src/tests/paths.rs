//! The way behind a guest that is a router: links with a smaller MTU, with a word or without, and
//! errors about what does not arrive.

use std::net::{IpAddr, SocketAddr};

use wire::build::{PacketBuilder, TcpFields};
use wire::ipv4::Ipv4View;
use wire::tcp::{ACK, SYN, TcpView};
use wire::virtio::net::NetHeader;
use wire::{MacAddr, ipv4, ipv6};

use super::guest::Guest;
use super::host::{Host, Socket};
use super::packets::{IRS, SERVER, answer, established, fields, host, tcp};
use super::{GATEWAY, GUEST, settings};
use crate::network::Refusal;
use crate::services::{Checksum, FramePurpose, Offer, Search, Services};
use crate::{
    Action, Datagrams, FlowId, Nanos, PeekResult, SocketEvent, Target, Translator, Verdict,
};

const S: Nanos = 1_000_000_000;

fn offer() -> Offer {
    Offer {
        route6: true,
        dns: true,
        search: Search::none(),
    }
}

/// The error of a router about a frame to the guest: type, code, and the four bytes behind them.
fn error(from: MacAddr, frame: &[u8], (kind, code, rest): (u8, u8, [u8; 4])) -> Vec<u8> {
    let packet = &frame[14..];
    let builder = PacketBuilder::new(from, GATEWAY);
    let builder = match packet[0] >> 4 {
        4 => {
            let ip = Ipv4View::new_checked(packet).unwrap();
            builder.ipv4([10, 0, 2, 15], ip.src())
        }
        _ => {
            let ip = wire::ipv6::Ipv6View::new_checked(packet).unwrap();
            builder.ipv6(ip.dst(), ip.src())
        }
    };
    // No more than every router gives back: the IP header, and eight bytes.
    let header = if packet[0] >> 4 == 4 {
        ipv4::HEADER_LEN
    } else {
        ipv6::HEADER_LEN
    };
    builder
        .icmp(kind, code, rest)
        .payload(&packet[..header + 8])
        .build()
}

fn too_big(frame: &[u8], mtu: u16) -> Vec<u8> {
    let [high, low] = mtu.to_be_bytes();
    let message = match frame[14] >> 4 {
        4 => (3, 4, [0, 0, high, low]),
        _ => (2, 0, [0, 0, high, low]),
    };
    error(GUEST, frame, message)
}

/// Gives the translator an error; returns what became of it.
fn tell(translator: &mut Translator, now: Nanos, error: &[u8]) -> (Verdict, Vec<Action>) {
    let mut out = Vec::new();
    let mut services = Services::new(settings().network, offer());
    let verdict = match services.frame(error, Checksum::InFrame, now) {
        Ok(FramePurpose::PathError(error)) => translator.path_error(now, &error, &mut out),
        Err(refusal) => Verdict::Refused(refusal),
        Ok(other) => panic!("{other:?}"),
    };
    (verdict, out)
}

/// A link behind the guest.
struct Link {
    mtu: u16,
    /// The MTU that its router says; none: it says nothing.
    says: Option<u16>,
}

/// A download of 100 kB by a link; returns the milliseconds that it took.
fn download(link: &Link) -> u64 {
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at * 7) as u8).collect();
    let mut guest = Guest::new(1, Vec::new(), 65_536);
    let socket = Socket {
        buffer: 10_000,
        script: bytes.clone(),
        ..Socket::default()
    };
    let mut host = Host::new(Translator::new(settings()), 0, socket);
    for millis in 0..100_000u64 {
        host.now = millis * 1_000_000;
        guest.step(millis as i64, 100_000);
        for frame in std::mem::take(&mut guest.queues.from_guest) {
            host.frame(&frame);
        }
        host.step(10_000, 20_000);
        host.serve(16);
        for frame in std::mem::take(&mut host.frames) {
            let may_fragment = frame[12..14] == [8, 0] && frame[20] & 0x40 == 0;
            if frame.len() - 14 <= link.mtu.into() || may_fragment {
                guest.queues.to_guest.push_back(frame);
            } else if let Some(says) = link.says {
                let error = too_big(&frame, says);
                let (_, actions) = tell(&mut host.translator, host.now, &error);
                host.act(actions, &[]);
            }
        }
        if guest.read.len() == bytes.len() {
            assert!(guest.read == bytes);
            return millis;
        }
    }
    panic!("{} bytes have arrived", guest.read.len());
}

#[test]
fn a_link_with_a_smaller_mtu_is_heard_of() {
    // Its MTU; none, as old routers have it; and one so small that routers are to fragment.
    for (mtu, says) in [
        (1300, 1300),
        (1280, 1280),
        (1100, 0),
        (552, 552),
        (296, 296),
        (68, 68),
    ] {
        let took = download(&Link {
            mtu,
            says: Some(says),
        });
        // No timeout has passed, which would be 200 ms.
        assert!(took < 100, "{mtu}: {took} ms");
    }
    let took = download(&Link {
        mtu: 400,
        says: Some(0),
    });
    assert!(took < 100, "below all that is tried: {took} ms");
}

#[test]
fn a_link_that_says_nothing_is_found_out() {
    for mtu in [1499, 1300, 1280, 576, 552] {
        download(&Link { mtu, says: None });
    }
}

/// An established flow with so many bytes for its guest, of which one segment is on its way.
fn sending() -> (Host, u32, Vec<u8>) {
    let mut host = host();
    let mut syn = fields(5000, IRS, 0, SYN);
    syn.options = vec![2, 4, 5, 180];
    host.frame(&tcp(SERVER, syn, &[]));
    let (iss, ack, _) = answer(&mut host);
    let next = iss.wrapping_add(1);
    let mut first = tcp(SERVER, fields(5000, ack, next, ACK), &[]);
    first[48..50].copy_from_slice(&30_000u16.to_be_bytes());
    host.frame(&first);
    host.socket.script = vec![7; 20_000];
    host.step(0, 20_000);
    host.serve(2);
    let frame = host.frames[0].clone();
    assert_eq!(frame.len(), 1514);
    host.frames.clear();
    (host, next, frame)
}

/// The length of the next frame.
fn length(host: &mut Host) -> usize {
    host.frames.clear();
    host.serve(1);
    host.frames[0].len()
}

#[test]
fn an_error_counts_for_a_segment_on_its_way_alone() {
    let (mut host, next, frame) = sending();
    let changed = |at: usize, bytes: &[u8]| {
        let mut frame = frame.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let refused = Verdict::Refused(Refusal::Protocol);
    let behind = next.wrapping_add(2 * 1460).to_be_bytes();
    let in_front = next.wrapping_sub(1).to_be_bytes();
    for (what, error) in [
        ("another segment", too_big(&changed(38, &behind), 1300)),
        ("an old segment", too_big(&changed(38, &in_front), 1300)),
        ("another port", too_big(&changed(36, &[1, 1]), 1300)),
        ("another peer", too_big(&changed(26, &[1, 1, 1, 1]), 1300)),
        ("a fragment", too_big(&changed(21, &[9]), 1300)),
        ("another protocol", too_big(&changed(23, &[47]), 1300)),
        (
            "another station",
            error(MacAddr([2; 6]), &frame, (3, 4, [0, 0, 5, 20])),
        ),
    ] {
        let (verdict, actions) = tell(&mut host.translator, 0, &error);
        assert_eq!(verdict, refused, "{what}");
        assert!(actions.is_empty(), "{what}");
    }
    // The outer address has to be the one that the packet came from.
    let mut other = too_big(&frame, 1300);
    other[30..34].copy_from_slice(&[8, 8, 8, 8]);
    let sum = wire::Sum::of(&[&other[14..24], &[0, 0], &other[26..34]].concat()).finish();
    other[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(tell(&mut host.translator, 0, &other).0, refused);
    // Larger ones, and those that the size keeps to, change nothing.
    for mtu in [1500, 9000, u16::MAX] {
        assert_eq!(
            tell(&mut host.translator, 0, &too_big(&frame, mtu)).0,
            Verdict::Done
        );
        assert_eq!(length(&mut host), 1514);
    }
    let (verdict, actions) = tell(&mut host.translator, 0, &too_big(&frame, 1300));
    assert_eq!(verdict, Verdict::Done);
    host.frames.clear();
    host.act(actions, &[]);
    host.serve(1);
    assert_eq!(
        host.frames[0].len(),
        14 + 1300,
        "the first byte again, at once"
    );
    assert_eq!(host.frames[0][38..42], next.to_be_bytes());
    // The same again is about what was sent before.
    let (_, actions) = tell(&mut host.translator, 0, &too_big(&frame, 1300));
    assert!(actions.is_empty(), "{actions:?}");
    // No word makes segments tiny: routers fragment.
    let (_, actions) = tell(&mut host.translator, 0, &too_big(&frame, 68));
    host.act(actions, &[]);
    assert_eq!(length(&mut host), 14 + 552);
    assert_eq!(host.frames[0][20], 0, "it may be fragmented");
    let first = host.frames[0][18..20].to_vec();
    assert_eq!(length(&mut host), 14 + 552);
    assert_ne!(host.frames[0][18..20], first[..], "each has another number");
}

#[test]
fn a_longer_segment_is_tried_after_ten_minutes() {
    let (mut host, _, frame) = sending();
    let (_, actions) = tell(&mut host.translator, 0, &too_big(&frame, 600));
    host.act(actions, &[]);
    assert_eq!(length(&mut host), 14 + 600);
    host.now = 599 * S;
    assert_eq!(length(&mut host), 14 + 600);
    host.now = 600 * S;
    assert_eq!(length(&mut host), 1514);
}

#[test]
fn an_established_connection_survives_what_comes_back() {
    let (mut host, _, frame) = sending();
    for (kind, code) in [
        (3, 0),
        (3, 1),
        (3, 2),
        (3, 3),
        (3, 10),
        (3, 13),
        (11, 0),
        (12, 0),
    ] {
        let error = error(GUEST, &frame, (kind, code, [0; 4]));
        let (verdict, actions) = tell(&mut host.translator, 0, &error);
        assert_eq!(verdict, Verdict::Done);
        assert!(actions.is_empty(), "{kind}, {code}: {actions:?}");
    }
    // Source quench and redirects are passed by (RFC 6633).
    let quench = error(GUEST, &frame, (4, 0, [0; 4]));
    let handled = Services::new(settings().network, offer()).frame(&quench, Checksum::InFrame, 0);
    assert_eq!(handled, Ok(FramePurpose::Elsewhere));
}

/// The two versions of IP: a guest with its station, and a peer.
const ENDS: [(&str, &str); 2] = [
    ("10.0.2.15:80", "10.0.2.2:5000"),
    ("[fd12:3456:789a:1::15]:80", "[2001:db8::1]:5000"),
];

#[test]
fn a_connection_that_does_not_reach_its_guest_ends() {
    for (guest, peer) in ENDS {
        let guest: SocketAddr = guest.parse().unwrap();
        let unreachable = match guest.ip() {
            IpAddr::V4(_) => [(3, 1), (3, 3), (3, 13), (11, 0)],
            IpAddr::V6(_) => [(1, 0), (1, 4), (1, 1), (3, 0)],
        };
        for (kind, code) in unreachable {
            let mut translator = Translator::new(settings());
            let mut out = Vec::new();
            let ends = (guest, GUEST);
            let peer = peer.parse().unwrap();
            let flow = translator.accepted(0, ends, peer, 9, &mut out).unwrap();
            let [Action::Frame(syn)] = out[..] else {
                panic!("{out:?}");
            };
            let error = error(GUEST, syn.bytes(), (kind, code, [0; 4]));
            let (_, actions) = tell(&mut translator, 0, &error);
            let [
                Action::Close {
                    flow: closed,
                    reset: true,
                },
            ] = actions[..]
            else {
                panic!("{actions:?}");
            };
            assert_eq!(closed, flow);
            assert!(translator.is_empty());
        }
    }
}

#[test]
fn a_guest_whose_syn_ack_does_not_arrive_has_no_connection() {
    let mut host = host();
    host.frame(&tcp(SERVER, fields(5000, IRS, 0, SYN), &[]));
    let syn_ack = host.frames[0].clone();
    let (_, actions) = tell(
        &mut host.translator,
        0,
        &error(GUEST, &syn_ack, (3, 1, [0; 4])),
    );
    assert!(
        matches!(actions[..], [Action::Close { reset: true, .. }]),
        "{actions:?}"
    );
    // After it nothing is on its way.
    let mut host = self::host();
    let next = established(&mut host);
    let (verdict, _) = tell(
        &mut host.translator,
        0,
        &error(GUEST, &syn_ack, (3, 1, [0; 4])),
    );
    assert_eq!(verdict, Verdict::Refused(Refusal::Protocol), "{next}");
}

/// A connection over IPv6 with bytes for its guest.
fn sending6(translator: &mut Translator) -> FlowId {
    let segment = |seq: u32, ack: u32, flags: u16| {
        let frame = PacketBuilder::new(GUEST, GATEWAY).ipv6(
            "fd12:3456:789a:1::15"
                .parse::<std::net::Ipv6Addr>()
                .unwrap(),
            "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap(),
        );
        let options = if flags & SYN != 0 {
            vec![2, 4, 5, 160]
        } else {
            Vec::new()
        };
        let fields = TcpFields {
            src_port: 5000,
            dst_port: 80,
            seq,
            ack,
            flags,
            options,
        };
        let mut frame = frame.tcp(fields).build();
        frame[68..70].copy_from_slice(&30_000u16.to_be_bytes());
        frame
    };
    let run = |translator: &mut Translator, frame: &[u8]| {
        let mut out = Vec::new();
        translator.frame(0, frame, frame.len(), &NetHeader::default(), &mut out);
        out
    };
    let out = run(translator, &segment(IRS, 0, SYN));
    let [Action::Connect(flow, _)] = out[..] else {
        panic!("{out:?}");
    };
    let mut out = Vec::new();
    translator.socket(0, flow, SocketEvent::Connected { room: 9 }, &mut out);
    let [Action::Frame(syn)] = out[..] else {
        panic!("{out:?}");
    };
    let iss = TcpView::new_checked(&syn.bytes()[54..]).unwrap().seq();
    let ack = segment(IRS.wrapping_add(1), iss.wrapping_add(1), ACK);
    run(translator, &ack);
    flow
}

#[test]
fn packet_too_big_lowers_the_segment_size_of_ipv6() {
    // MTUs below IPv6's least are taken as that.
    for (mtu, payload) in [(1300, 1240), (1280, 1220), (1000, 1220), (0, 1220)] {
        let mut translator = Translator::new(settings());
        let flow = sending6(&mut translator);
        let peek = translator.peek(0, flow).unwrap();
        assert_eq!(peek.len, 1440);
        let bytes = PeekResult::Bytes(peek.len);
        let headers = translator
            .peeked(0, flow, peek, bytes, &mut Vec::new())
            .unwrap();
        let (verdict, _) = tell(&mut translator, 0, &too_big(headers.bytes(), mtu));
        assert_eq!(verdict, Verdict::Done);
        let peek = translator.peek(0, flow).unwrap();
        assert_eq!((peek.offset, peek.len), (0, payload), "{mtu}");
    }
}

#[test]
fn datagrams_that_are_too_long_may_be_fragmented() {
    let mut translator = Translator::new(settings());
    let datagram = PacketBuilder::new(GUEST, GATEWAY).ipv4([10, 0, 2, 15], SERVER);
    let datagram = datagram.udp(5000, 4000).payload(b"hello").build();
    let mut out = Vec::new();
    translator.frame(
        0,
        &datagram,
        datagram.len(),
        &NetHeader::default(),
        &mut out,
    );
    let [Action::OpenUdp(flow, _), ..] = out[..] else {
        panic!("{out:?}");
    };
    let answer = |translator: &mut Translator| {
        let from = Target::Outside(SocketAddr::from((SERVER, 4000)));
        let datagrams = Datagrams {
            len: 1400,
            segment: 0,
        };
        let headers = translator.datagram(0, flow, from, datagrams).unwrap();
        headers.bytes().to_vec()
    };
    let first = answer(&mut translator);
    assert_eq!(first[18..21], [0, 0, 0x40]);
    // A port without a program is said by no socket of the host's.
    let unreachable = error(GUEST, &first, (3, 3, [0; 4]));
    assert_eq!(tell(&mut translator, 0, &unreachable).0, Verdict::Done);
    assert_eq!(answer(&mut translator)[20], 0x40);
    assert_eq!(
        tell(&mut translator, 0, &too_big(&first, 1300)).0,
        Verdict::Done
    );
    let [second, third] = [answer(&mut translator), answer(&mut translator)];
    assert_eq!((second[20], third[20]), (0, 0));
    assert_ne!(second[18..20], third[18..20]);
    // The datagrams of another station are its own.
    let other = error(MacAddr([2; 6]), &first, (3, 4, [0, 0, 5, 20]));
    let (verdict, _) = tell(&mut translator, 0, &other);
    assert_eq!(verdict, Verdict::Refused(Refusal::Protocol));
}
