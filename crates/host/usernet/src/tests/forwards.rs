//! Datagrams that come by forwards.

use std::net::SocketAddr;

use wire::build::PacketBuilder;
use wire::virtio::net::{self, NetHeader};
use wire::{MacAddr, ParsedHeaders};

use super::{GATEWAY, GUEST, settings};
use crate::network::Refusal;
use crate::{
    Action, Bounds, Datagrams, FlowId, FlowRecord, ForwardPeer, Headers, Target, Translator,
    Verdict,
};

const GUEST_IP: [u8; 4] = [10, 0, 2, 15];
const ONE: Datagrams = Datagrams { len: 4, segment: 0 };

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn from(peer: &str) -> ForwardPeer {
    ForwardPeer {
        listen: address("127.0.0.1:5353"),
        peer: address(peer),
    }
}

fn guest() -> (SocketAddr, MacAddr) {
    (SocketAddr::from((GUEST_IP, 53)), GUEST)
}

type Came = (Result<(FlowId, Headers), Refusal>, Vec<Action>);

fn comes(translator: &mut Translator, now: u64, from: ForwardPeer) -> Came {
    let mut out = Vec::new();
    let came = translator.forwarded(now, guest(), from, ONE, &mut out);
    (came, out)
}

/// The sender as the guest sees it.
fn seen(headers: &Headers) -> SocketAddr {
    let parsed = ParsedHeaders::parse(headers.bytes(), headers.bytes().len() + 4);
    assert_eq!(parsed.dst_port, 53);
    let wire::packet::L3::V4 { src, .. } = parsed.l3 else {
        panic!("{parsed:?}");
    };
    SocketAddr::new(src.into(), parsed.src_port)
}

/// The guest answers a peer as it sees it.
fn answer(translator: &mut Translator, to: SocketAddr, by: MacAddr) -> (Verdict, Vec<Action>) {
    let SocketAddr::V4(to) = to else {
        panic!("{to}");
    };
    let frame = PacketBuilder::new(by, GATEWAY).ipv4(GUEST_IP, to.ip().octets());
    let frame = frame.udp(53, to.port()).payload(b"answer").build();
    let mut out = Vec::new();
    let net = NetHeader::default();
    let verdict = translator.frame(0, &frame, frame.len(), &net, &mut out);
    (verdict, out)
}

#[test]
fn answers_go_to_the_peer_that_asked() {
    let mut translator = Translator::new(settings());
    // Two peers of loopback with one port, a service's port, DHCP's, and one from outside.
    let peers = [
        ("127.0.0.1:7000", "10.0.2.2:7000"),
        ("127.0.0.2:7000", "10.0.2.2"),
        ("127.0.0.1:67", "10.0.2.2"),
        ("192.0.2.7:7000", "192.0.2.7:7000"),
        ("192.0.2.7:547", "192.0.2.7"),
        ("169.254.1.1:9", "10.0.2.2:9"),
    ];
    let mut all = Vec::new();
    for (peer, expected) in peers {
        let (came, out) = comes(&mut translator, 0, from(peer));
        let (flow, headers) = came.unwrap();
        // The record has no room for a peer that is neither on loopback nor seen as it is.
        assert_eq!(out.len(), usize::from(!peer.starts_with("169")), "{peer}");
        let as_seen = seen(&headers);
        assert!(
            as_seen.to_string().starts_with(expected),
            "{peer}: {as_seen}"
        );
        assert!(all.iter().all(|(other, _)| *other != as_seen));
        all.push((as_seen, flow));
    }
    for ((to, flow), (peer, _)) in all.iter().zip(peers) {
        let (verdict, out) = answer(&mut translator, *to, GUEST);
        assert_eq!(verdict, Verdict::Done);
        let [
            Action::SendTo {
                flow: by, target, ..
            },
        ] = out[..]
        else {
            panic!("{out:?}");
        };
        assert_eq!((by, target), (*flow, Target::Peer(address(peer))));
        // Not of another station.
        let (verdict, _) = answer(&mut translator, *to, MacAddr([2; 6]));
        assert_eq!(verdict, Verdict::Refused(Refusal::Denied));
        // An error is about the peer as the guest sees it.
        let target = Target::Outside(address(peer));
        let undelivered = translator.undelivered(*flow, target).unwrap();
        assert_eq!((undelivered.peer, undelivered.guest), (*to, guest().0));
    }
    // A second datagram belongs to the same mapping.
    let (came, out) = comes(&mut translator, 1, from("127.0.0.2:7000"));
    assert_eq!((came.unwrap().0, out.len()), (all[1].1, 0));
    // What the guest itself begins from that port has a mapping of its own.
    let (_, out) = answer(&mut translator, address("198.51.100.1:99"), GUEST);
    assert!(matches!(out[0], Action::OpenUdp(..)), "{out:?}");
    // The forward ends.
    let mut out = Vec::new();
    translator.retain_forwards(|listen| listen != address("127.0.0.1:5353"), &mut out);
    assert_eq!((out.len(), translator.len()), (all.len(), 1));
}

#[test]
fn several_datagrams_are_one_super_frame() {
    let mut translator = Translator::new(settings());
    let several = Datagrams {
        len: 3500,
        segment: 1000,
    };
    let mut out = Vec::new();
    let from = from("192.0.2.7:7");
    let came = translator.forwarded(0, guest(), from, several, &mut out);
    let net = came.unwrap().1.net();
    assert_eq!((net.gso_type, net.gso_size), (net::GSO_UDP_L4, 1000));
    let one = Datagrams {
        len: 1000,
        segment: 1000,
    };
    let came = translator.forwarded(0, guest(), from, one, &mut out);
    assert_eq!(came.unwrap().1.net().gso_type, net::GSO_NONE);
}

#[test]
fn a_forward_that_leads_elsewhere_has_another_mapping() {
    let mut translator = Translator::new(settings());
    let first = comes(&mut translator, 0, from("192.0.2.7:7")).0.unwrap().0;
    let other = (address("10.0.2.16:53"), MacAddr([2; 6]));
    let mut out = Vec::new();
    let came = translator.forwarded(0, other, from("192.0.2.7:7"), ONE, &mut out);
    assert_ne!(came.unwrap().0, first);
    assert!(matches!(out[0], Action::Close { flow, .. } if flow == first));
    assert_eq!(translator.len(), 1);
    // An address that no guest has.
    let gateway = (address("10.0.2.2:53"), MacAddr([2; 6]));
    let came = translator.forwarded(0, gateway, from("192.0.2.7:8"), ONE, &mut out);
    assert_eq!(came.unwrap_err(), Refusal::Unreachable);
}

#[test]
fn peers_take_the_place_of_those_that_were_idle_longest() {
    let mut with = settings();
    with.bounds = Bounds {
        forwarded: 3,
        guest: 5,
        ..Bounds::default()
    };
    let mut translator = Translator::new(with);
    let peer = |n: u64| from(&format!("192.0.2.7:{}", 1000 + n));
    for n in 0..3 {
        comes(&mut translator, n, peer(n)).0.unwrap();
    }
    // The first is used again, so the second goes.
    comes(&mut translator, 5, peer(0)).0.unwrap();
    let (came, out) = comes(&mut translator, 6, peer(3));
    assert!(came.is_ok() && matches!(out[0], Action::Close { .. }));
    let known = [0, 1, 2, 3].map(|n| translator.flow_of(&peer(n)).is_some());
    assert_eq!(known, [true, false, true, true]);
    // So a guest keeps room for flows of its own.
    for port in [7, 8] {
        let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, [192, 0, 2, 9]);
        let frame = frame.udp(port, 9).payload(b"x").build();
        let net = NetHeader::default();
        let verdict = translator.frame(6, &frame, frame.len(), &net, &mut Vec::new());
        assert_eq!(verdict, Verdict::Done);
    }
    assert_eq!(translator.deadline(), Some(120_000_000_002));
    let mut out = Vec::new();
    translator.expire(120_000_000_005, &mut out);
    assert_eq!((translator.len(), out.len()), (3, 2));
    assert!(translator.flow_of(&peer(0)).is_none());
}

#[test]
fn a_successor_continues_mappings_of_forwards() {
    let mut first = Translator::new(settings());
    let mut second = Translator::new(settings());
    for peer in ["127.0.0.2:67", "192.0.2.7:67", "192.0.2.8:9"] {
        let (flow, headers) = comes(&mut first, 0, from(peer)).0.unwrap();
        let kept = first.record(flow).unwrap();
        assert_eq!(FlowRecord::decode(&kept.encode()), Ok(kept));
        let FlowRecord::Mapping(record) = kept else {
            panic!("{kept:?}");
        };
        let listen = from(peer).listen;
        let flow = second.restore_mapping(0, &record, listen).unwrap();
        let twice = second.restore_mapping(0, &record, listen);
        assert_eq!(twice, Err(Refusal::Flows));
        let (_, out) = answer(&mut second, seen(&headers), GUEST);
        let target = Target::Peer(address(peer));
        let [
            Action::SendTo {
                flow: by,
                target: to,
                ..
            },
        ] = out[..]
        else {
            panic!("{out:?}");
        };
        assert_eq!((by, to), (flow, target));
    }
}
