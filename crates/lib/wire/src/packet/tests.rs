use super::*;
use crate::{
    SNAPSHOT,
    build::{PacketBuilder, TcpFields},
};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn builder() -> PacketBuilder {
    PacketBuilder::new(A, B)
}

fn v4() -> PacketBuilder {
    builder().ipv4([10, 0, 0, 1], [10, 0, 0, 2])
}

fn v6() -> PacketBuilder {
    builder().ipv6(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED)
}

fn parse(frame: &[u8]) -> ParsedHeaders {
    ParsedHeaders::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len())
}

#[test]
fn tagged_tcp_with_options() {
    let tci = VlanTci {
        pcp: 6,
        dei: false,
        vid: 100,
    };
    let tcp = TcpFields {
        src_port: 80,
        dst_port: 4000,
        flags: tcp::SYN | 0x100,
        options: vec![1; 12],
        ..TcpFields::default()
    };
    let p = parse(
        &v4()
            .vlan(tci)
            .tos(0xb8)
            .tcp(tcp)
            .payload(&[0; 2000])
            .build(),
    );
    assert_eq!(
        (p.src, p.dst, p.vlan, p.ethertype),
        (A, B, Some(tci), EtherType::IPV4)
    );
    assert_eq!(
        (p.l3_offset, p.l4_offset, p.header_len, p.l3_end),
        (18, Some(38), 70, 2070)
    );
    assert_eq!((p.src_port, p.dst_port, p.l4_flags), (80, 4000, 0x102));
    assert_eq!(
        p.l3,
        L3::V4 {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            tos: 0xb8
        }
    );
    assert_eq!((p.l4_len(), p.checksum_offset()), (Some(2032), Some(54)));
}

#[test]
fn padding_is_no_part_of_the_datagram() {
    // A datagram that ends inside its UDP header, padded so that the bytes behind look like ports.
    let mut frame = v4()
        .protocol(udp::PROTOCOL)
        .payload(&[0, 53, 0, 53])
        .build();
    frame.resize(60, 0xee);
    let p = parse(&frame);
    assert_eq!((p.l3_end, p.l4_offset, p.src_port), (38, None, 0));
    assert!(p.l4_unknown());
}

#[test]
fn lengths_that_contradict_the_frame_are_malformed() {
    let good = v4().udp(1, 2).payload(&[0; 20]).build();
    for (at, bytes) in [
        (16, [0xff, 0xff]),
        (16, [0, 19]),
        (14, [0x44, 0]),
        (14, [0x65, 0]),
        (14, [0x4f, 0]),
    ] {
        let mut bad = good.clone();
        bad[at..at + 2].copy_from_slice(&bytes);
        let p = parse(&bad);
        assert_eq!(
            (p.l3, p.l4_proto, p.src_port, p.header_len),
            (L3::Malformed, 0, 0, 14),
            "{at} {bytes:?}"
        );
    }
}

#[test]
fn runts_have_no_ethernet() {
    let frame = v4().vlan(VlanTci::new(1)).udp(1, 2).build();
    for len in 0..18 {
        let p = parse(&frame[..len]);
        assert!(!p.has_ethernet());
        assert_eq!(
            p,
            ParsedHeaders {
                l3: L3::Malformed,
                ..ParsedHeaders::default()
            }
        );
    }
    // A frame length below the snapshot's wins.
    assert!(!ParsedHeaders::parse(&frame, 13).has_ethernet());
}

#[test]
fn fragments() {
    let first = parse(&v4().fragment(0, true).udp(1, 2).build());
    assert_eq!(
        (first.fragment, first.src_port, first.l4_offset),
        (Fragment::First, 1, Some(34))
    );
    let later = parse(&v4().fragment(3, false).udp(1, 2).build());
    assert_eq!(
        (
            later.fragment,
            later.src_port,
            later.l4_offset,
            later.l4_proto
        ),
        (Fragment::Later, 0, None, 17)
    );
    assert!(!later.l4_unknown());
    let first = parse(&v6().fragment(0, true).udp(1, 2).build());
    assert_eq!(
        (first.fragment, first.src_port, first.l4_offset),
        (Fragment::First, 1, Some(62))
    );
    let later = parse(&v6().fragment(1, true).udp(1, 2).build());
    assert_eq!(
        (
            later.fragment,
            later.l4_offset,
            later.l4_proto,
            later.header_len
        ),
        (Fragment::Later, None, 17, 62)
    );
}

#[test]
fn ipv6_extensions_are_walked() {
    let p = parse(
        &v6()
            .extension(0, &[0; 6])
            .extension(60, &[0; 14])
            .extension(43, &[0; 6])
            .udp(7, 8)
            .build(),
    );
    assert_eq!(
        (p.l4_offset, p.l4_proto, p.dst_port, p.header_len),
        (Some(86), 17, 8, 94)
    );
    assert!(matches!(p.l3, L3::V6 { routing: true, .. }));
    assert!(p.pseudo_header(8).is_none());
}

#[test]
fn what_is_authenticated_is_not_hidden() {
    let udp = || v6().udp(7, 8);
    let found = |b: PacketBuilder| {
        let p = parse(&b.build());
        (p.l4_proto, p.l4_offset, p.dst_port, p.l4_unknown())
    };
    // 12, 16 and 24 bytes of header and check value.
    assert_eq!(found(udp().extension(51, &[])), (17, Some(62), 8, false));
    assert_eq!(
        found(udp().extension(51, &[0; 14])),
        (17, Some(70), 8, false)
    );
    let mut twelve = udp().extension(51, &[0; 14]).build();
    twelve.drain(66..70);
    (twelve[19], twelve[55]) = (twelve[19] - 4, 1);
    assert_eq!(parse(&twelve).l4_offset, Some(66));
    assert_eq!(parse(&twelve).dst_port, 8);
    for before in [0, 43, 60] {
        let b = udp().extension(before, &[]).extension(51, &[0; 14]);
        assert_eq!(found(b).2, 8, "before {before}");
        let b = udp().extension(51, &[0; 14]).extension(before, &[]);
        assert_eq!(found(b).2, 8, "behind {before}");
    }
    let endless = v6().protocol(51).payload(&[17, 200, 0, 0, 0, 0, 0, 0]);
    assert_eq!(parse(&endless.build()).l3, L3::Malformed);
    let beyond = udp().extension(51, &[0; 400]);
    assert_eq!(found(beyond), (51, None, 0, true));
    // Over IPv4 it is a protocol like others.
    let v4 = v4().protocol(51).payload(&[17, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(found(v4), (51, Some(34), 0, false));
}

#[test]
fn a_later_fragment_behind_whose_header_others_follow_is_of_no_known_protocol() {
    let later = |protocol| {
        let fragment = v6().fragment(3, false).protocol(protocol);
        parse(&fragment.payload(&[0; 32]).build())
    };
    for protocol in [0, 43, 44, 51, 60] {
        let p = later(protocol);
        assert_eq!((p.fragment, p.l4_unknown()), (Fragment::Later, true));
        assert_eq!((p.l4_proto, p.l4_offset), (protocol, None));
    }
    for protocol in [6, 17, 50, 58, 59] {
        assert!(!later(protocol).l4_unknown(), "{protocol}");
    }
    let v4 = v4().fragment(3, false).protocol(51).payload(&[0; 32]);
    assert!(!parse(&v4.build()).l4_unknown());
}

#[test]
fn an_extension_chain_that_is_too_long_or_out_of_sight_is_unknown() {
    let mut long = v6().udp(7, 8);
    for _ in 0..9 {
        long = long.extension(60, &[]);
    }
    let p = parse(&long.build());
    assert_eq!(
        (p.l4_proto, p.l4_offset, p.l4_unknown(), p.src_port),
        (60, None, true, 0)
    );
    let p = parse(&v6().extension(60, &[0; 200]).udp(7, 8).build());
    assert_eq!((p.l4_proto, p.l4_offset, p.l4_unknown()), (60, None, true));
}

#[test]
fn exactly_the_allowed_number_of_extensions_is_followed() {
    let mut b = v6().udp(7, 8);
    for _ in 0..crate::ipv6::MAX_EXTENSIONS {
        b = b.extension(60, &[]);
    }
    assert_eq!(parse(&b.build()).src_port, 7);
}

#[test]
fn an_extension_past_the_datagram_or_a_second_fragment_header_is_malformed() {
    let mut frame = v6().extension(0, &[]).build();
    frame[55] = 200;
    assert_eq!(parse(&frame).l3, L3::Malformed);
    // Jumbograms (RFC 2675) have a zero payload length and are not supported.
    frame[18..20].copy_from_slice(&[0, 0]);
    assert_eq!(parse(&frame).l3, L3::Malformed);
    let twice = v6().extension(44, &[]).fragment(0, true).udp(1, 2).build();
    assert_eq!(parse(&twice).l3, L3::Malformed);
}

#[test]
fn icmp_counts_only_over_its_own_ip_version() {
    let p = parse(&v4().icmp(3, 4, [0; 4]).build());
    assert_eq!(
        (p.l4_flags, p.l4_offset, p.header_len, p.checksum_offset()),
        (0x304, Some(34), 42, Some(36))
    );
    let p = parse(&v6().echo_request(1, 1).build());
    assert_eq!((p.l4_flags, p.l4_proto), (0x8000, 58));
    let p = parse(&v4().protocol(58).payload(&[1; 8]).build());
    assert_eq!(
        (p.l4_flags, p.l4_offset, p.header_len, p.checksum_offset()),
        (0, Some(34), 34, None)
    );
}

#[test]
fn arp_and_others() {
    let p = parse(
        &builder()
            .arp_request([10, 0, 0, 1], [10, 0, 0, 2])
            .pad_to(60)
            .build(),
    );
    let (sender_ip, target_ip) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    assert_eq!(
        p.l3,
        L3::Arp {
            operation: 1,
            sender_mac: A,
            sender_ip,
            target_ip
        }
    );
    let mut bad = builder().arp_request([10, 0, 0, 1], [10, 0, 0, 2]).build();
    bad[15] = 6;
    assert_eq!(parse(&bad).l3, L3::Malformed);
    let p = parse(
        &builder()
            .ethertype(EtherType::LLDP)
            .payload(&[0; 50])
            .build(),
    );
    assert_eq!((p.l3, p.header_len, p.l4_unknown()), (L3::Other, 14, false));
}

#[test]
fn an_announcement_is_a_reverse_request_for_its_own_address() {
    let frame = PacketBuilder::new(A, MacAddr::BROADCAST)
        .rarp_announce()
        .pad_to(60)
        .build();
    let p = parse(&frame);
    assert_eq!((p.ethertype, p.src, p.l3), (EtherType::RARP, A, L3::Other));
    let arp = ArpView::new_checked(&frame[14..]).unwrap();
    assert_eq!(
        (arp.operation(), arp.sender_mac()),
        (crate::arp::REVERSE_REQUEST, A)
    );
}

#[test]
fn a_tcp_header_that_lies_about_its_length_is_unknown() {
    let good = v4()
        .tcp(TcpFields {
            src_port: 9,
            ..TcpFields::default()
        })
        .build();
    for offset in [0x40, 0xf0] {
        let mut bad = good.clone();
        bad[46] = offset;
        let p = parse(&bad);
        assert_eq!(
            (p.l4_offset, p.src_port, p.l4_proto, p.l4_unknown()),
            (None, 0, 6, true)
        );
    }
}
