use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use wire::build::{PacketBuilder, TcpFields};
use wire::{SNAPSHOT, VlanTci};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OWN: &str = "fe80::1";
const OTHER: &str = "2001:db8::2";
/// The solicited-node address of [`OTHER`].
const ASKED: &str = "ff02::1:ff00:2";

fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn of(frame: &[u8]) -> FrameClass {
    classify(&frame[..frame.len().min(SNAPSHOT)], frame.len())
}

fn built(builder: &PacketBuilder) -> FrameClass {
    of(&builder.build())
}

fn frame() -> PacketBuilder {
    PacketBuilder::new(A, B)
}

/// An option with a link-layer address.
fn option(kind: u8, mac: MacAddr) -> Vec<u8> {
    [&[kind, 1], &mac.0[..]].concat()
}

/// Neighbour discovery: the type, its flags, addresses, target and options.
fn discovery(
    kind: u8,
    flags: u8,
    (src, dst): (&str, &str),
    target: &str,
    options: &[u8],
) -> PacketBuilder {
    let body = [&ip(target).octets(), options].concat();
    frame()
        .ipv6(ip(src), ip(dst))
        .ttl(255)
        .icmp(kind, 0, [flags, 0, 0, 0])
        .payload(&body)
}

fn solicitation(src: &str, options: &[u8]) -> PacketBuilder {
    discovery(135, 0, (src, ASKED), OTHER, options)
}

fn advertisement(flags: u8, dst: &str, options: &[u8]) -> PacketBuilder {
    discovery(136, flags, (OWN, dst), OTHER, options)
}

fn said(builder: &PacketBuilder) -> Option<Neighbour> {
    let frame = builder.build();
    Neighbour::in_frame(&frame[..frame.len().min(SNAPSHOT)], frame.len())
}

#[test]
fn servers_and_routers_are_distinguished_from_clients_and_hosts() {
    use FrameClass::{DhcpServer, Ordinary, Router};
    let v4 = |src, dst| built(&frame().ipv4([10, 0, 0, 1], [255; 4]).udp(src, dst));
    assert_eq!(v4(67, 68), DhcpServer);
    assert_eq!(v4(4000, 68), DhcpServer, "a client looks at one port only");
    assert_eq!(v4(67, 67), DhcpServer, "to a relay");
    assert_eq!((v4(68, 67), v4(4000, 53)), (Ordinary, Ordinary));
    let v6 = |src, dst| built(&frame().ipv6(ip(OWN), ip(OTHER)).udp(src, dst));
    assert_eq!((v6(547, 546), v6(9, 546)), (DhcpServer, DhcpServer));
    assert_eq!((v6(546, 547), v6(67, 68)), (Ordinary, Ordinary));
    assert_eq!(v4(547, 546), Ordinary);
    let icmp6 = |kind| {
        let packet = frame().ipv6(ip(OWN), ip("ff02::1")).ttl(255);
        built(&packet.icmp(kind, 0, [0; 4]).payload(&[0; 32]))
    };
    assert_eq!((icmp6(134), icmp6(137)), (Router, Router));
    assert_eq!(
        (icmp6(128), icmp6(143), icmp6(131)),
        (Ordinary, Ordinary, Ordinary)
    );
    let icmp4 = |kind| frame().ipv4([1; 4], [2; 4]).icmp(kind, 0, [0; 4]);
    for kind in [0, 3, 4, 8, 10, 11, 12, 13, 134, 137] {
        assert_eq!(built(&icmp4(kind)), Ordinary, "{kind}");
    }
    for kind in [5, 9] {
        assert_eq!(built(&icmp4(kind)), Router, "{kind}");
        assert_eq!(built(&icmp4(kind).vlan(VlanTci::new(7))), Router, "{kind}");
        assert_eq!(built(&icmp4(kind).fragment(0, true)), Router, "{kind}");
        assert_eq!(built(&icmp4(kind).fragment(1, true)), Ordinary, "{kind}");
        let v6 = frame().ipv6(ip(OWN), ip(OTHER)).protocol(1);
        assert_eq!(built(&v6.payload(&[kind; 8])), Ordinary, "{kind}");
    }
    let mut options = icmp4(5).payload(&[0; 8]).build();
    options.splice(34..34, [1; 4]);
    (options[14], options[17]) = (0x46, options[17] + 4);
    assert_eq!(of(&options), Router);
}

#[test]
fn tags_options_extensions_and_fragments_hide_nothing() {
    use FrameClass::{DhcpServer, Ordinary, Router, Unparseable};
    let offer = || frame().ipv4([10, 0, 0, 1], [255; 4]).udp(67, 68);
    assert_eq!(built(&offer().vlan(VlanTci::new(0))), DhcpServer);
    assert_eq!(built(&offer().vlan(VlanTci::new(7))), DhcpServer);
    assert_eq!(built(&offer().fragment(0, true)), DhcpServer);
    assert_eq!(built(&offer().fragment(1, true)), Ordinary, "no header");
    let advert = || {
        let packet = frame().ipv6(ip(OWN), ip("ff02::1")).ttl(255);
        packet.icmp(134, 0, [0; 4]).payload(&[0; 8])
    };
    assert_eq!(built(&advert().extension(60, &[0; 6])), Router);
    // RFC 4302 counts the length of an authentication header in another way.
    assert_eq!(built(&advert().extension(51, &[0; 22])), Router);
    let after = advert().extension(60, &[0; 6]).extension(51, &[0; 22]);
    assert_eq!(built(&after.extension(0, &[0; 6])), Router);
    assert_eq!(built(&advert().fragment(0, true)), Router);
    assert_eq!(built(&advert().fragment(1, false)), Ordinary);
    let long = advert().extension(60, &[0; 150]);
    assert_eq!(built(&long), Unparseable, "beyond what is looked at");
    let many = (0..9).fold(advert(), |packet, _| packet.extension(60, &[0; 6]));
    assert_eq!(built(&many), Unparseable);
    // A first fragment that ends before what it carries begins (RFC 7112).
    let cut = frame().ipv6(ip(OWN), ip(OTHER)).protocol(58);
    assert_eq!(
        built(&cut.fragment(0, true).payload(&[134, 0, 0, 0])),
        Unparseable
    );
}

#[test]
fn frames_that_a_receiver_may_decapsulate_are_unparseable() {
    use FrameClass::{Ordinary, Unparseable};
    let arp = &frame().arp_request([10, 0, 0, 1], [10, 0, 0, 2]).build()[12..];
    let wrapped = |ethertype: u16, before: &[u8]| {
        let payload = [before, arp].concat();
        frame().ethertype(EtherType(ethertype)).payload(&payload)
    };
    // An S-tag without a VLAN; a tag within a priority tag.
    assert_eq!(built(&wrapped(0x88a8, &[0xe0, 0])), Unparseable);
    let twice = wrapped(0x8100, &[0, 0]).vlan(VlanTci::new(0));
    assert_eq!(built(&twice), Unparseable);
    // A VLAN of the guest's own is invisible to a receiver that has not configured it.
    assert_eq!(built(&wrapped(0x88a8, &[0, 5])), Ordinary);
    for oui in [[0, 0, 0], [0, 0, 0xf8]] {
        for llc in [[0xaa, 0xaa, 3], [0xab, 0xab, 3], [0xaa, 0xab, 0x13]] {
            let snap = [&llc[..], &oui].concat();
            assert_eq!(built(&wrapped(100, &snap)), Unparseable, "{snap:x?}");
        }
    }
    for sap in [0x06, 0x07, 0x98, 0x99] {
        let llc = wrapped(100, &[sap, sap, 3]);
        assert_eq!(built(&llc), Unparseable, "{sap:x}");
        assert_eq!(built(&llc.vlan(VlanTci::new(7))), Unparseable, "{sap:x}");
    }
    let cut = frame().ethertype(EtherType(3)).payload(&[6]);
    assert_eq!(built(&cut), Unparseable);
    assert_eq!(
        built(&wrapped(100, &[0xaa, 0xaa, 3, 0, 0, 0xc])),
        Ordinary,
        "Cisco's"
    );
    assert_eq!(
        built(&wrapped(100, &[0x42, 0x42, 3])),
        Ordinary,
        "spanning tree"
    );
    assert_eq!(built(&frame().rarp_announce()), Ordinary);
    // Whose version or lengths are wrong.
    let mut bad = frame().ipv6(ip(OWN), ip(OTHER)).udp(1, 2).build();
    bad[14] = 0x45;
    assert_eq!(of(&bad), Unparseable);
}

#[test]
fn arp_speaks_for_its_sender_alone() {
    use FrameClass::{NeighbourRequest, Ordinary, SpoofedNeighbour};
    let arp = |op, sender: [u8; 4]| frame().arp(op, sender, B, [10, 0, 0, 2]);
    assert_eq!(built(&arp(1, [10, 0, 0, 1])), Ordinary);
    assert_eq!(built(&arp(2, [10, 0, 0, 1])), Ordinary);
    assert_eq!(built(&arp(1, [0; 4])), Ordinary, "a probe");
    let to_all = PacketBuilder::new(A, MacAddr::BROADCAST);
    let asks = |sender: [u8; 4]| to_all.clone().arp_request(sender, [10, 0, 0, 2]);
    assert_eq!(built(&asks([10, 0, 0, 1])), NeighbourRequest);
    assert_eq!(built(&asks([0; 4])), NeighbourRequest, "a probe");
    assert_eq!(built(&asks([10, 0, 0, 2])), Ordinary, "an announcement");
    assert_eq!(built(&asks([255; 4])), SpoofedNeighbour);
    for (op, sender) in [
        (2, [0; 4]),
        (8, [10, 0, 0, 1]),
        (1, [255; 4]),
        (1, [224, 0, 0, 1]),
    ] {
        assert_eq!(built(&arp(op, sender)), SpoofedNeighbour, "{op} {sender:?}");
    }
    let mut other = arp(2, [10, 0, 0, 1]).build();
    other[27] ^= 1; // the last byte of the sender's hardware address
    assert_eq!(of(&other), SpoofedNeighbour);
    let mut strange = arp(1, [10, 0, 0, 1]).build();
    strange[14] = 6;
    assert_eq!(of(&strange), SpoofedNeighbour);
    let whole = arp(1, [10, 0, 0, 1]).build();
    assert_eq!(of(&whole[..30]), SpoofedNeighbour);
}

#[test]
fn neighbour_discovery_speaks_for_its_sender_alone() {
    let target = Some(ip(OTHER));
    let (own, others) = (option(1, A), option(1, B));
    let asks = Some(Neighbour {
        claims: None,
        target,
    });
    let claims = Some(Neighbour {
        claims: target,
        target,
    });
    assert_eq!(said(&solicitation(OWN, &own)), asks);
    assert_eq!(said(&solicitation(OWN, &[])), asks);
    assert_eq!(said(&solicitation("::", &[])), claims, "may I have it?");
    assert_eq!(said(&advertisement(0x60, "fe80::9", &option(2, A))), claims);
    assert_eq!(said(&advertisement(0x20, "ff02::1", &option(2, A))), claims);
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    assert_eq!(
        said(&solicitation("::", &nonce)),
        claims,
        "RFC 7527 has a nonce"
    );
    assert_eq!(built(&solicitation(OWN, &own)), FrameClass::Neighbour);
    let to_all = discovery(135, 0, ("::", "ff02::1"), OTHER, &[]);
    let ours = solicitation(OWN, &own);
    let wrong = [
        ("another's address", solicitation(OWN, &others)),
        (
            "one of two is another's",
            solicitation(OWN, &[own.clone(), others].concat()),
        ),
        (
            "the unspecified address with a link-layer option",
            solicitation("::", &own),
        ),
        ("a solicitation to all nodes", to_all),
        (
            "another's in an answer",
            advertisement(0x60, "fe80::9", &option(2, B)),
        ),
        (
            "all have asked",
            advertisement(0x60, "ff02::1", &option(2, A)),
        ),
        ("from afar", ours.clone().ttl(254)),
        ("a fragment (RFC 6980)", ours.clone().fragment(0, true)),
        ("an endless option", solicitation(OWN, &[5, 0, 0, 0])),
        ("half an option", solicitation(OWN, &[14, 2, 0, 0])),
        ("a long address", solicitation(OWN, &[1, 2])),
        ("a group", discovery(135, 0, (OWN, ASKED), "ff02::1", &own)),
        (
            "more than is looked at",
            solicitation(OWN, &[&[14, 20][..], &[0; 158], &own].concat()),
        ),
    ];
    for (what, packet) in wrong {
        assert_eq!(said(&packet), None, "{what}");
        assert_eq!(built(&packet), FrameClass::SpoofedNeighbour, "{what}");
    }
    let mut code = ours.build();
    code[55] = 1;
    assert_eq!(of(&code), FrameClass::SpoofedNeighbour);
    let hello = |options: &[u8]| {
        let packet = frame().ipv6(ip(OWN), ip("ff02::2")).ttl(255);
        built(&packet.icmp(133, 0, [0; 4]).payload(options))
    };
    assert_eq!(hello(&own), FrameClass::Ordinary);
    assert_eq!(hello(&option(1, B)), FrameClass::SpoofedNeighbour);
}

fn any_transport() -> impl Strategy<Value = PacketBuilder> {
    let port = || prop_oneof![Just(67u16), Just(68), Just(546), Just(547), any::<u16>()];
    let v6 = prop_oneof![
        Just(frame().ipv4([10, 0, 0, 1], [10, 0, 0, 2])),
        Just(frame().ipv6(ip(OWN), ip(ASKED)).ttl(255)),
    ];
    let tag = prop_oneof![Just(None), Just(Some(0)), Just(Some(5u16))];
    let payload = vec(any::<u8>(), 0..64);
    let kind = prop_oneof![0..12u8, 120..150u8];
    (v6, tag, 0..4, port(), port(), kind, payload).prop_map(
        |(packet, tag, which, src, dst, kind, payload)| {
            let packet = match which {
                0 => packet.tcp(TcpFields {
                    src_port: src,
                    dst_port: dst,
                    ..TcpFields::default()
                }),
                1 => packet.udp(src, dst),
                2 => packet.icmp(kind, 0, [0; 4]),
                _ => packet.protocol(kind),
            };
            let packet = packet.payload(&payload);
            match tag {
                Some(vid) => packet.vlan(VlanTci::new(vid)),
                None => packet,
            }
        },
    )
}

proptest! {
    #[test]
    fn the_quick_look_and_the_long_one_agree(
        packet in any_transport(),
        held in 0usize..256,
        length in proptest::option::of((0usize..24, any::<u16>())),
    ) {
        let mut frame = packet.build();
        // Also with a length changed, or what else there is.
        if let Some((at, wrong)) = length
            && let Some(bytes) = frame.get_mut(14 + at..16 + at)
        {
            bytes.copy_from_slice(&wrong.to_be_bytes());
        }
        let head = &frame[..frame.len().min(held)];
        if is_ordinary(head) {
            let headers = &frame[..frame.len().min(SNAPSHOT)];
            let parsed = ParsedHeaders::parse(headers, frame.len());
            // The quick look does not see that lengths are impossible.
            let impossible = parsed.l3 == L3::Malformed || parsed.l4_unknown();
            let found = parse(headers, frame.len());
            let cut_short = impossible && found == FrameClass::Unparseable;
            prop_assert!(found == FrameClass::Ordinary || cut_short);
        }
    }

    #[test]
    fn ordinary_traffic_is_seen_in_the_first_64_bytes(packet in any_transport()) {
        let frame = packet.build();
        let headers = &frame[..frame.len().min(SNAPSHOT)];
        let parsed = ParsedHeaders::parse(headers, frame.len());
        let usual = matches!(parsed.l4_proto, tcp::PROTOCOL | udp::PROTOCOL);
        let head = &frame[..frame.len().min(64)];
        let ordinary = parse(headers, frame.len()) == FrameClass::Ordinary;
        if usual && parsed.l4_offset.is_some() && ordinary {
            prop_assert!(is_ordinary(head));
        }
    }

    #[test]
    fn nothing_panics(bytes in vec(any::<u8>(), 0..256), len in 0usize..400) {
        let _ = (classify(&bytes, len), Neighbour::in_frame(&bytes, len));
    }

    #[test]
    fn damaged_discovery_does_not_panic(at in 12usize..110, byte: u8, len in 40usize..120) {
        let mut frame = solicitation(OWN, &[option(1, A), option(14, B)].concat()).build();
        if let Some(b) = frame.get_mut(at) {
            *b = byte;
        }
        frame.truncate(len);
        let found = Neighbour::in_frame(&frame, frame.len());
        let no_target = found.is_none_or(|found| found.target.is_none());
        prop_assert_eq!(no_target, of(&frame) != FrameClass::Neighbour);
    }

    #[test]
    fn contents_that_a_receiver_may_unwrap_are_unparseable(
        tag in prop_oneof![Just(None), (0u16..4096).prop_map(Some)],
        ethertype in prop_oneof![Just(0x8100u16), Just(0x88a8), 0..0x600u16],
        llc in prop_oneof![
            Just(vec![0xaa, 0xaa, 3, 0, 0, 0]),
            Just(vec![0xaa, 0xaa, 3, 0, 0, 0xf8]),
            Just(vec![6, 6, 3]),
            Just(vec![0x98, 0x98, 3]),
            vec(any::<u8>(), 0..6),
        ],
        inner in prop_oneof![Just(0x800u16), Just(0x806), Just(0x86dd), any::<u16>()],
        behind in vec(any::<u8>(), 0..64),
    ) {
        let tag = tag.map(|tci| [[0x81, 0], tci.to_be_bytes()].concat()).unwrap_or_default();
        let (ethertype, inner) = (ethertype.to_be_bytes(), inner.to_be_bytes());
        let frame = [&[2; 12][..], &tag, &ethertype, &llc, &inner, &behind].concat();
        if ParsedHeaders::parse(&frame, frame.len()).l3 == L3::Hidden {
            prop_assert_eq!(of(&frame), FrameClass::Unparseable);
        }
    }
}
