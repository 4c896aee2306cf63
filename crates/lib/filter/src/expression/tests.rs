//! Filters: matching, parsing of their own output, and error messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use testkit::table::rows;
use wire::VlanTci;
use wire::build::{PacketBuilder, TcpFields};

use super::*;
use crate::MAX_DEPTH;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn tcp(from: u16, to: u16) -> TcpFields {
    TcpFields {
        src_port: from,
        dst_port: to,
        ..TcpFields::default()
    }
}

/// A frame of each kind, by name.
fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let to_b = || PacketBuilder::new(A, B);
    let v4 = || to_b().ipv4([10, 0, 0, 1], [10, 0, 1, 2]);
    let v6 = || {
        let host = |n| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n);
        to_b().ipv6(host(1), host(2))
    };
    let all = || PacketBuilder::new(A, MacAddr::BROADCAST);
    let group = MacAddr([0x01, 0, 0x5e, 0, 0, 5]);
    vec![
        ("http", v4().tcp(tcp(4000, 80)).build()),
        ("reply", v4().tcp(tcp(80, 4000)).build()),
        ("dns", v4().udp(4000, 53).build()),
        ("dns6", v6().udp(53, 4000).build()),
        ("tagged", v4().vlan(VlanTci::new(5)).udp(1, 2).build()),
        ("ping", v4().echo_request(1, 1).build()),
        ("ping6", v6().echo_request(1, 1).build()),
        ("piece", v4().fragment(9, false).udp(80, 80).build()),
        (
            "arp",
            all().arp_request([10, 0, 0, 1], [10, 0, 0, 9]).build(),
        ),
        ("rarp", all().rarp_announce().build()),
        (
            "group",
            PacketBuilder::new(A, group)
                .ipv4([10, 0, 0, 1], [224, 0, 0, 5])
                .protocol(2)
                .payload(&[0; 1400])
                .build(),
        ),
        ("other", to_b().build()),
        ("short", vec![0; 9]),
    ]
}

fn meant(filter: &str) -> Vec<&'static str> {
    let filter = Filter::parse(filter).unwrap_or_else(|e| panic!("{filter}: {e}"));
    let meant = |frame: &Vec<u8>| {
        let parsed = ParsedHeaders::parse(frame, frame.len());
        filter.matches(&parsed, frame.len() as u32)
    };
    frames()
        .into_iter()
        .filter_map(|(name, frame)| meant(&frame).then_some(name))
        .collect()
}

#[test]
fn primitives_mean_what_tcpdump_means() {
    for (filter, expected) in [
        ("icmp", "ping"),
        ("icmp6", "ping6"),
        ("icmp or icmp6", "ping ping6"),
        ("arp", "arp"),
        ("rarp", "rarp"),
        ("ip6", "dns6 ping6"),
        ("tcp", "http reply"),
        ("udp", "dns dns6 tagged piece"),
        ("ip proto udp", "dns tagged piece"),
        ("ip6 proto 17", "dns6"),
        ("igmp", "group"),
        ("proto 2", "group"),
        ("tcp port 80 and host 10.0.0.1", "http reply"),
        ("tcp dst port 80", "http"),
        ("src port 80", "reply"),
        ("port 80 or 53", "http reply dns dns6"),
        ("portrange 50-60", "dns dns6"),
        ("src and dst portrange 1-2", "tagged"),
        ("udp src port 53 or not multicast and ip6", "dns6 ping6"),
        ("arp or tcp and src port 80", "reply"),
        ("arp or (tcp and src port 80)", "reply arp"),
        ("host 10.0.0.9", "arp"),
        ("ip host 10.0.0.9", ""),
        ("arp dst 10.0.0.9", "arp"),
        ("arp src host 10.0.0.9 or 10.0.0.1", "arp"),
        ("dst net 10.0.1.0/24 and udp", "dns tagged piece"),
        ("net 10.0.0.0/30 and not ip", "arp"),
        ("ip6 net 2001:db8::/64", "dns6 ping6"),
        ("src 2001:db8::2", ""),
        ("src or dst host 2001:db8::2", "dns6 ping6"),
        ("vlan", "tagged"),
        ("vlan 5 and ip", "tagged"),
        ("vlan 6", ""),
        ("broadcast", "arp rarp"),
        ("ether multicast", "arp rarp group"),
        ("ip multicast", "group"),
        ("ip6 multicast", ""),
        ("ether proto 0x88b5", "other"),
        ("ether dst 02:00:00:00:00:02 and proto 2", ""),
        (
            "ether src 02:00:00:00:00:01 && !ip && !ip6",
            "arp rarp other",
        ),
        ("greater 1400", "group"),
        ("less 10", "short"),
        ("!ether host 02:00:00:00:00:01", "short"),
    ] {
        let expected: Vec<&str> = expected.split_whitespace().collect();
        assert_eq!(meant(filter), expected, "{filter}");
    }
    assert_eq!(
        meant("  ").len(),
        frames().len(),
        "no text means every frame"
    );
}

#[test]
fn what_is_wrong_is_said_with_its_column() {
    for [text, column, problem] in &rows(
        r"
        tcp prot 80 | 5 | expected `and`, `or` or the end, found `prot`
        icmp and | 9 | such as `tcp`, `host ADDRESS` or `port NUMBER`, found the end
        host 10.0.0 | 6 | expected an IPv4 or IPv6 address, found `10.0.0`
        ip host ::1 | 9 | expected an IPv4 address, found `::1`
        net 10.0.0.1/8 | 5 | expected a prefix such as 10.0.0.0/8, without bits behind it
        ip6 net 10.0.0.0/8 | 9 | expected an IPv6 prefix
        port http | 6 | expected a port (0 to 65535), found `http`
        port 80 or http | 12 | expected a port (0 to 65535), found `http`
        portrange 9-3 | 11 | expected two ports such as 1000-2000, the lower first
        tcp host 10.0.0.1 | 5 | expected `port` or `portrange`
        (tcp or udp | 12 | expected `and`, `or` or `)`, found the end
        tcp) | 4 | expected `and`, `or` or the end, found `)`
        vlan 5000 | 6 | expected a VLAN (0 to 4095), found `5000`
        ether tcp | 7 | expected `host`, `src`, `dst`, `proto`, `broadcast` or `multicast`
        ether host 1:2 | 12 | expected an Ethernet address
        tcp[13] | 4 | bytes of frames, as in `tcp[13]`, cannot be
        port 80 and tcp[tcpflags] & tcp-syn != 0 | 16 | bytes of frames
        tcp = 3 | 5 | unexpected character '='
        é | 1 | unexpected character 'é'
        not | 4 | found the end
        proto 300 | 7 | or a number up to 255, found `300`
        less -1 | 6 | expected a length in bytes
    ",
    ) {
        let error = Filter::parse(text).expect_err(text);
        assert_eq!(error.column.to_string(), *column, "{text}: {error}");
        assert!(error.problem.contains(problem), "{text}: {error}");
    }
}

#[test]
fn texts_are_bounded_in_every_way() {
    let long = format!("tcp{}", " ".repeat(2000));
    let deep = format!("{}tcp{}", "(".repeat(17), ")".repeat(17));
    let wide = vec!["tcp"; 100].join(" or ");
    for (text, problem) in [
        (long, "longer than 1024 bytes"),
        (deep.clone(), "more than 16 levels deep"),
        ("not ".repeat(17) + "tcp", "more than 16 levels deep"),
        (wide, "more than 128 primitives and operators"),
    ] {
        let error = Filter::parse(&text).expect_err(problem);
        assert_eq!(error.problem, problem);
    }
    let deepest = &deep[1..deep.len() - 1];
    assert_eq!(deepest.matches('(').count(), MAX_DEPTH);
    Filter::parse(deepest).expect("as deep as allowed");
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![
        Just(Side::Either),
        Just(Side::Source),
        Just(Side::Destination),
        Just(Side::Both)
    ]
}

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::V4), Just(Version::V6)]
}

fn prefix() -> impl Strategy<Value = Prefix> {
    let v4 = (any::<u32>(), 0..=32u8).prop_map(|(bits, len)| {
        let kept = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
        Prefix::new(IpAddr::V4(Ipv4Addr::from_bits(bits & kept)), len)
    });
    let v6 = (any::<u128>(), 0..=128u8).prop_map(|(bits, len)| {
        let kept = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        Prefix::new(IpAddr::V6(Ipv6Addr::from_bits(bits & kept)), len)
    });
    prop_oneof![v4, v6].prop_map(|p| p.expect("a prefix"))
}

fn address() -> impl Strategy<Value = Primitive> {
    let holder = prop_oneof![Just(Holder::Any), Just(Holder::Ip), Just(Holder::Arp)];
    (holder, side(), prefix()).prop_map(|(holder, side, prefix)| match holder {
        Holder::Arp if prefix.address.is_ipv6() => Primitive::Address(Holder::Ip, side, prefix),
        holder => Primitive::Address(holder, side, prefix),
    })
}

fn primitive() -> impl Strategy<Value = Primitive> {
    let ports = (
        prop_oneof![Just(None), Just(Some(6)), Just(Some(17))],
        side(),
        any::<u16>(),
        any::<u16>(),
    );
    prop_oneof![
        any::<u16>().prop_map(|t| Primitive::EtherType(EtherType(t))),
        Just(Primitive::EtherType(EtherType::ARP)),
        (side(), any::<[u8; 6]>()).prop_map(|(s, mac)| Primitive::Ether(s, MacAddr(mac))),
        Just(Primitive::Broadcast),
        Just(Primitive::Multicast),
        version().prop_map(Primitive::IpMulticast),
        (prop::option::of(version()), any::<u8>()).prop_map(|(v, n)| Primitive::Protocol(v, n)),
        address(),
        ports.prop_map(|(p, s, a, b)| Primitive::Ports(p, s, a.min(b), a.max(b))),
        prop::option::of(0..4096u16).prop_map(Primitive::Vlan),
        (0..65_000u32).prop_map(Primitive::Less),
        (0..65_000u32).prop_map(Primitive::Greater),
    ]
}

fn node() -> impl Strategy<Value = Node> {
    primitive()
        .prop_map(Node::Is)
        .prop_recursive(4, 12, 2, |inner| {
            let two =
                || (inner.clone(), inner.clone()).prop_map(|(a, b)| (Box::new(a), Box::new(b)));
            prop_oneof![
                inner.clone().prop_map(|n| Node::Not(Box::new(n))),
                two().prop_map(|(a, b)| Node::And(a, b)),
                two().prop_map(|(a, b)| Node::Or(a, b)),
            ]
        })
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(root in node()) {
        let filter = Filter::new(root);
        let text = filter.to_string();
        prop_assert_eq!(Filter::parse(&text), Ok(filter), "{}", text);
    }

    #[test]
    fn no_text_panics_and_what_is_read_can_be_written(
        text in "[ a-z0-9.:/()!&|-]{0,60}|\\PC{0,30}",
    ) {
        if let Ok(filter) = Filter::parse(&text) {
            prop_assert_eq!(Filter::parse(&filter.to_string()), Ok(filter));
        }
    }
}
