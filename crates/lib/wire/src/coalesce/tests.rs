use super::*;
use crate::{
    MacAddr, VlanTci,
    build::{PacketBuilder, TcpFields},
};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// The head of a frame, with something behind a short one.
fn head(b: &PacketBuilder) -> ([u8; HEAD], usize) {
    let frame = b.build();
    let mut head = [0x11; HEAD];
    let len = frame.len().min(HEAD);
    head[..len].copy_from_slice(&frame[..len]);
    (head, frame.len())
}

fn of(b: &PacketBuilder, header: &NetHeader) -> Option<SuperFrame> {
    let mut frame = SuperFrame::default();
    let (head, len) = head(b);
    *frame.bytes() = head;
    frame.check(HEAD, len, header).then_some(frame)
}

fn udp4() -> PacketBuilder {
    PacketBuilder::new(A, A)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .udp(1, 2)
        .payload(&[7; 100])
}

fn tcp6(flags: u16) -> PacketBuilder {
    let fields = TcpFields {
        flags,
        options: vec![1; 40],
        ..TcpFields::default()
    };
    let packet = PacketBuilder::new(A, A).vlan(VlanTci::new(1));
    packet.ipv6([0; 16], [1; 16]).tcp(fields).payload(&[7; 100])
}

fn plain(b: &PacketBuilder) -> Option<SuperFrame> {
    of(b, &NetHeader::default())
}

#[test]
fn frames_that_cutting_does_not_make_go_alone() {
    assert!(plain(&udp4()).is_some());
    let longest = plain(&tcp6(tcp::ACK)).expect("the longest head");
    assert_eq!(longest.header_len(), HEAD);
    for alone in [
        udp4().payload(&[]),
        udp4().pad_to(150),
        udp4().fragment(0, true),
        udp4().fragment(3, false),
        udp4().protocol(47),
        udp4().icmp(8, 0, [0; 4]),
        udp4().partial_checksum(),
        tcp6(tcp::ACK).extension(60, &[]),
        tcp6(tcp::ACK).extension(43, &[]),
        PacketBuilder::new(A, A).arp_request([1; 4], [2; 4]),
    ] {
        assert!(plain(&alone).is_none_or(|of| !of.is_right(|| Sum::of(&[7; 100]))));
    }
    for (name, flag) in tcp::FLAGS {
        let alone = plain(&tcp6(tcp::ACK ^ flag)).is_none();
        assert_eq!(alone, !["psh", "ece"].contains(&name), "{name}");
    }
    let whole = NetHeader {
        gso_type: net::GSO_UDP_L4,
        gso_size: 50,
        ..NetHeader::default()
    };
    assert!(of(&udp4(), &whole).is_none());
}

#[test]
fn a_checksum_that_is_left_to_the_receiver_is_where_it_belongs() {
    let header = |csum_start, csum_offset| NetHeader {
        flags: net::FLAG_NEEDS_CSUM,
        csum_start,
        csum_offset,
        ..NetHeader::default()
    };
    let partial = udp4().partial_checksum();
    assert!(of(&partial, &header(34, 6)).is_some());
    assert!(of(&partial, &header(34, 16)).is_none());
    assert!(of(&partial, &header(30, 6)).is_none());
    // It is complete, and would be completed again.
    assert!(of(&udp4(), &header(34, 6)).is_none());
}

#[test]
fn only_a_right_checksum_is_right() {
    let frame = plain(&udp4()).expect("plain");
    assert!(frame.is_right(|| Sum::of(&[7; 100])));
    assert!(!frame.is_right(|| Sum::of(&[8; 100])));
}

#[test]
fn a_frame_needs_all_its_headers() {
    for frame in [udp4(), udp4().vlan(VlanTci::new(1)), tcp6(tcp::ACK)] {
        let (head, len) = head(&frame);
        let header_len = plain(&frame).expect("a frame").header_len();
        let hash = flow_hash(&head, HEAD, len);
        for known in 0..=HEAD {
            let mut other = head;
            other[known..].fill(0xff);
            let found = flow_hash(&other, known, len);
            assert!(found.is_none() || found == hash, "{known} bytes");
            assert!(found.is_some() || known < header_len, "{known} bytes");
            let mut frame = SuperFrame::default();
            *frame.bytes() = other;
            let may = frame.check(known, len, &NetHeader::default());
            assert_eq!(may, known >= header_len, "{known} bytes");
        }
    }
}

#[test]
fn a_flow_has_one_hash() {
    let hash = |b: &PacketBuilder| {
        let (head, len) = head(b);
        flow_hash(&head, HEAD, len)
    };
    let same = hash(&udp4());
    assert!(same.is_some());
    let others = udp4().ttl(3).tos(4).ip_id(5).payload(&[]);
    assert_eq!(hash(&others), same);
    assert_ne!(hash(&udp4().udp(1, 3)), same);
    assert_ne!(hash(&udp4().vlan(VlanTci::new(3))), same);
    assert_eq!(hash(&udp4().fragment(0, true)), None);
}
