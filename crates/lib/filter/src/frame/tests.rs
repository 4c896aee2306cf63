//! Frame descriptions: parsing, building, and error messages.

use proptest::prelude::*;
use testkit::table::rows;
use wire::packet::{L3, ParsedHeaders};

use super::*;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn read(text: &str) -> FrameText {
    FrameText::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn parsed(text: &str) -> ParsedHeaders {
    let frame = read(text).build(A, B);
    ParsedHeaders::parse(&frame, frame.len())
}

#[test]
fn a_ping_is_an_echo_request_of_its_version() {
    let p = parsed("icmp 10.0.0.1 > 10.0.0.2");
    assert_eq!((p.src, p.dst, p.l4_proto, p.l4_flags), (A, B, 1, 8 << 8));
    let p = parsed("icmp6 2001:db8::1 > 2001:db8::2 echo-reply length 56");
    assert_eq!(
        (p.l4_proto, p.l4_flags, p.l4_len()),
        (58, 129 << 8, Some(64))
    );
    let p = parsed("icmp 10.0.0.1 > 10.0.0.2 type 3 code 4");
    assert_eq!(p.l4_flags, 3 << 8 | 4);
}

#[test]
fn tcp_and_udp_have_ports_and_flags() {
    let p = parsed("vlan 7 tcp 10.0.0.1:4000 > 10.0.0.2:80 syn ack");
    assert_eq!((p.src_port, p.dst_port, p.l4_flags), (4000, 80, 0x12));
    assert_eq!(p.vlan.map(|tag| tag.vid), Some(7));
    let p = parsed("udp [2001:db8::1]:53 > [2001:db8::2]:4000 length 10");
    assert_eq!((p.src_port, p.dst_port, p.l4_len()), (53, 4000, Some(18)));
    let p = parsed("ip proto 47 10.0.0.1 > 10.0.0.2");
    assert_eq!(p.l4_proto, 47);
}

#[test]
fn arp_and_neighbor_solicitations_go_where_they_must() {
    let request = read("arp who-has 10.0.0.2 tell 10.0.0.1");
    assert_eq!(request.implied_destination(), Some(MacAddr::BROADCAST));
    let p = parsed("arp who-has 10.0.0.2 tell 10.0.0.1");
    assert!(matches!(
        p.l3,
        L3::Arp {
            operation: 1,
            sender_mac: A,
            ..
        }
    ));

    let reply = read("arp reply 10.0.0.1 is-at 02:00:00:00:00:09 tell 10.0.0.2");
    assert_eq!(reply.source(), Some(MacAddr([2, 0, 0, 0, 0, 9])));
    let p = parsed(concat!(
        "ether 02:00:00:00:00:01 > 02:00:00:00:00:02 ",
        "arp reply 10.0.0.1 is-at 02:00:00:00:00:09 tell 10.0.0.2",
    ));
    let L3::Arp {
        operation: 2,
        sender_mac,
        ..
    } = p.l3
    else {
        panic!("{p:?}");
    };
    assert_eq!((p.src, sender_mac), (A, MacAddr([2, 0, 0, 0, 0, 9])));

    let asked = read("nd who-has fe80::1:2:3 tell fe80::1");
    let group = MacAddr([0x33, 0x33, 0xff, 2, 0, 3]);
    assert_eq!(asked.implied_destination(), Some(group));
    let frame = asked.build(A, group);
    let p = ParsedHeaders::parse(&frame, frame.len());
    assert_eq!((p.l4_flags, p.l4_len()), (135 << 8, Some(32)));
}

#[test]
fn groups_have_addresses_of_their_own() {
    let of = |text| read(text).implied_destination().map(|mac| mac.to_string());
    let group = of("udp 10.0.0.1:5353 > 224.128.0.251:5353");
    assert_eq!(group.as_deref(), Some("01:00:5e:00:00:fb"));
    let all = of("udp 0.0.0.0:68 > 255.255.255.255:67");
    assert_eq!(all.as_deref(), Some("ff:ff:ff:ff:ff:ff"));
    assert_eq!(of("udp 10.0.0.1:1 > 10.0.0.2:2"), None);
    assert_eq!(of("type 0x88cc"), None);
}

#[test]
fn what_is_wrong_is_said_with_its_column() {
    for [text, column, problem] in &rows(
        r#"
        "" | 1 | expected `ether`, `vlan`, `icmp`
        icmp 10.0.0.1 | 14 | expected `>`, found the end
        icmp 10.0.0.1 > ::1 | 17 | expected an IPv4 address, found `::1`
        icmp ::1 > ::2 | 6 | expected an IPv4 address, found `::1`
        tcp 10.0.0.1 > 10.0.0.2:80 | 5 | an address with its port such as 10.0.0.1:80
        tcp 10.0.0.1:1 > [::1]:80 | 18 | an IPv4 address with its port
        tcp 10.0.0.1:1 > 10.0.0.2:80 sync | 30 | expected the end, found `sync`
        arp 10.0.0.1 | 5 | expected `who-has` or `reply`, found `10.0.0.1`
        arp who-has 10.0.0.1 10.0.0.2 | 22 | expected `tell`, found `10.0.0.2`
        vlan 4095 icmp 1.1.1.1 > 2.2.2.2 | 6 | expected a VLAN (0 to 4094)
        ether 02:00:00:00:00:01 icmp | 25 | expected `>`, found `icmp`
        type 0x8100 | 6 | other than 0x8100 of a tag
        type 64 | 6 | expected a type of Ethernet frames (0x600 to 0xffff)
        udp 1.1.1.1:1 > 2.2.2.2:2 length 9001 | 34 | (0 to 9000)
        arp who-has 1.1.1.1 tell 2.2.2.2 length 9 | 34 | expected the end
    "#,
    ) {
        let error = FrameText::parse(text).expect_err(text);
        assert_eq!(error.column.to_string(), *column, "{text}: {error}");
        assert!(error.problem.contains(problem), "{text}: {error}");
    }
}

fn ips() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        any::<(Ipv4Addr, Ipv4Addr)>().prop_map(|(a, b)| (a.into(), b.into())),
        any::<(Ipv6Addr, Ipv6Addr)>().prop_map(|(a, b)| (a.into(), b.into())),
    ]
}

fn endpoints() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    (ips(), any::<(u16, u16)>())
        .prop_map(|((a, b), (p, q))| (SocketAddr::new(a, p), SocketAddr::new(b, q)))
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        (ips(), any::<(u8, u8)>()).prop_map(|((src, dst), (kind, code))| Body::Icmp {
            src,
            dst,
            kind,
            code
        }),
        (endpoints(), 0..256u16).prop_map(|((src, dst), flags)| Body::Tcp { src, dst, flags }),
        endpoints().prop_map(|(src, dst)| Body::Udp { src, dst }),
        (ips(), any::<u8>()).prop_map(|((src, dst), protocol)| Body::Ip { src, dst, protocol }),
        (0x600..=0xffffu16)
            .prop_filter("no tag", |t| *t != 0x8100)
            .prop_map(|t| Body::Other(EtherType(t))),
    ]
}

fn question() -> impl Strategy<Value = Body> {
    prop_oneof![
        any::<(Ipv4Addr, Ipv4Addr)>()
            .prop_map(|(target, sender)| Body::ArpRequest { target, sender }),
        any::<(Ipv4Addr, [u8; 6], Ipv4Addr)>().prop_map(|(sender, mac, target)| Body::ArpReply {
            sender,
            mac: MacAddr(mac),
            target
        }),
        any::<(Ipv6Addr, Ipv6Addr)>()
            .prop_map(|(target, sender)| Body::NeighborSolicitation { target, sender }),
    ]
}

fn frame() -> impl Strategy<Value = FrameText> {
    let body = prop_oneof![
        (body(), 0..=MAX_PAYLOAD),
        question().prop_map(|body| (body, 0))
    ];
    let ether = prop::option::of(any::<([u8; 6], [u8; 6])>());
    (ether, prop::option::of(0..4095u16), body).prop_map(|(ether, vlan, (body, payload))| {
        FrameText {
            ether: ether.map(|(a, b)| (MacAddr(a), MacAddr(b))),
            vlan,
            body,
            payload,
        }
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(frame in frame()) {
        let text = frame.to_string();
        prop_assert_eq!(FrameText::parse(&text), Ok(frame), "{}", text);
    }

    #[test]
    fn what_is_built_says_what_was_described(frame in frame()) {
        let bytes = frame.build(A, B);
        let parsed = ParsedHeaders::parse(&bytes, bytes.len());
        let (source, destination) = frame.ether.unwrap_or((A, B));
        prop_assert_eq!((parsed.src, parsed.dst), (source, destination));
        prop_assert_eq!(parsed.vlan.map(|tag| tag.vid), frame.vlan);
        match frame.body {
            Body::Tcp { src, dst, flags } => {
                prop_assert_eq!((parsed.src_port, parsed.dst_port), (src.port(), dst.port()));
                prop_assert_eq!(parsed.l4_flags, flags);
            }
            Body::Icmp { kind, code, .. } => {
                prop_assert_eq!(parsed.l4_flags, u16::from_be_bytes([kind, code]));
            }
            Body::ArpRequest { target, sender } => {
                let found = matches!(parsed.l3, L3::Arp { sender_ip, target_ip, .. }
                    if (sender_ip, target_ip) == (sender, target));
                prop_assert!(found);
            }
            _ => {}
        }
    }

    #[test]
    fn no_text_panics(text in "[ a-z0-9.:>\\[\\]-]{0,60}|\\PC{0,30}") {
        if let Ok(frame) = FrameText::parse(&text) {
            prop_assert!(frame.build(A, B).len() >= 14);
            prop_assert_eq!(FrameText::parse(&frame.to_string()), Ok(frame));
        }
    }
}
