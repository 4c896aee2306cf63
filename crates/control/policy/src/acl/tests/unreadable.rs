//! Frames whose headers cannot be parsed, and those that a receiver may parse otherwise than their
//! types tell.

use proptest::prelude::*;
use wire::build::{PacketBuilder, TcpFields};
use wire::flow::KeyState;
use wire::{EtherType, FlowKey, MacAddr, ParsedHeaders, VlanTci};

use super::decided::{denied, key, list, program, rule, stations};
use super::*;
use crate::port_security::{PortSecurity, PortSecurityTable};
use crate::{Action, DropReason, Program, decide};

const UNREADABLE: Action = Action::Drop(DropReason::Unparseable);

/// A list from `vm1` with one rule.
fn with(action: &str, rest: &str) -> Program {
    let attached = "segments = [\"lan\"]";
    program(&list("l", "from-guest", attached, &rule("r", action, rest)))
}

#[test]
fn what_cannot_be_read_passes_no_list_that_looks_there() {
    let of = |rest: &str, state| {
        let key = key(2, 0).with_state(state);
        let decision = decide(&with("allow", rest), &stations, &key);
        let by = decision.from_guest.unwrap().by;
        assert_eq!(decision.action == UNREADABLE, by == By::Unparseable);
        decision.action == UNREADABLE
    };
    let (l3, l4) = (KeyState::L3_MALFORMED, KeyState::L4_UNKNOWN);
    let hidden = KeyState::HIDDEN;
    let ethernet = "source_mac = \"02:00:00:00:00:01\"";
    assert_eq!([l3, l4, hidden].map(|s| of(ethernet, s)), [false; 3]);
    let other = "ether_type = \"0x88cc\"";
    assert_eq!([l3, l4, hidden].map(|s| of(other, s)), [false; 3]);
    for named in ["ipv4", "ipv6", "arp"] {
        let rest = format!("ether_type = \"{named}\"");
        let found = [l3, l4, hidden].map(|s| of(&rest, s));
        assert_eq!(found, [false, false, true], "{named}");
    }
    let addresses = "source = [\"10.0.0.0/8\"]";
    assert_eq!(
        [l3, l4, hidden].map(|s| of(addresses, s)),
        [true, false, true]
    );
    let transport = "protocol = \"tcp\"";
    assert_eq!([l3, l4, hidden].map(|s| of(transport, s)), [true; 3]);
}

#[test]
fn an_unreadable_frame_is_named_so_unless_a_rule_denies_it_too() {
    let to = |name, ports, rules: &str| list(name, "to-guest", ports, rules);
    let no_tcp = to(
        "t",
        "ports = [\"vm2\", \"vm3\"]",
        &rule("r", "drop", "protocol = \"tcp\""),
    );
    let hidden = |to: u8| {
        key(to, 0)
            .with_ethertype(EtherType(0x88a8))
            .with_state(KeyState::HIDDEN)
    };
    let action = |text: &str, to| decide(&program(text), &stations, &hidden(to)).action;
    assert_eq!(action(&no_tcp, 2), UNREADABLE);
    assert_eq!(action(&no_tcp, 4), Action::to(4));
    // A flood excludes receivers whose lists cannot decide; without receivers it is dropped.
    let flood = decide(&program(&no_tcp), &stations, &hidden(9));
    assert_eq!(
        (flood.action, flood.excluded().collect::<Vec<_>>()),
        (Action::flood(LAN), vec![PortId(2), PortId(3)])
    );
    let all = |action| no_tcp.clone() + &to("all", "ports = [\"vm4\"]", &rule("r", action, ""));
    assert_eq!(action(&all("drop"), 9), denied());
    assert_eq!(
        action(&all("reject"), 9),
        Action::Drop(DropReason::AclRejected)
    );
    let everybody = no_tcp.replace("\"vm3\"", "\"vm3\", \"vm4\"");
    assert_eq!(action(&everybody, 9), UNREADABLE);
}

#[test]
fn hidden_frames_share_no_flow_with_others_where_lists_look_for_them() {
    let program = with("drop", "protocol = \"tcp\"");
    let opaque = key(2, 0).with_ethertype(EtherType(0x88a8)).with_ip_proto(0);
    let passes = decide(&program, &stations, &opaque);
    assert_ne!(passes.action, UNREADABLE);
    let hidden = opaque.with_state(KeyState::HIDDEN);
    assert_ne!(hidden.masked(&passes.mask), opaque.masked(&passes.mask));
    let ethernet = with("drop", "destination_mac = \"02:00:00:00:00:03\"");
    let passes = decide(&ethernet, &stations, &hidden);
    assert!(
        !passes.mask.is_long(),
        "no rule depends on fields above Ethernet"
    );
}

/// From station 1 to station 2.
fn frame() -> PacketBuilder {
    let mac = |n| MacAddr([2, 0, 0, 0, 0, n]);
    PacketBuilder::new(mac(1), mac(2))
}

fn packet() -> impl Strategy<Value = PacketBuilder> {
    let v4 = (0..3u8, 0..3u8).prop_map(|(a, b)| frame().ipv4([10, 0, 0, a], [10, 0, b, 2]));
    let v6 = (0..3u16, 0..3u16).prop_map(|(a, b)| {
        let ip = |net, host| std::net::Ipv6Addr::new(0x2001, 0xdb8, net, 0, 0, 0, 0, host);
        frame().ipv6(ip(a, 1), ip(b, 2))
    });
    let port = || prop_oneof![Just(22u16), Just(80), Just(53)];
    let transport = (0..4, port(), port());
    (prop_oneof![v4, v6.clone(), v6], transport, any::<bool>()).prop_map(
        |(packet, (which, src_port, dst_port), arp)| match which {
            0 => packet.tcp(TcpFields {
                src_port,
                dst_port,
                ..TcpFields::default()
            }),
            1 => packet.udp(src_port, dst_port),
            2 => packet.icmp(8, 0, [0; 4]),
            _ if arp => frame().arp_request([10, 0, 0, 1], [10, 0, 1, 2]),
            _ => packet.protocol(47).payload(&[0; 8]),
        },
    )
}

/// Headers that a receiver skips: extension headers, and encapsulation around the packet.
fn hiding() -> impl Strategy<Value = (Vec<u8>, Vec<&'static [u8]>)> {
    let extension = prop_oneof![Just(0u8), Just(43), Just(51), Just(51), Just(60)];
    let around = [
        &[0x88, 0xa8, 0, 0][..],
        &[0x81, 0, 0xe0, 0],
        &[0, 90, 0xaa, 0xaa, 3, 0, 0, 0],
        &[0, 90, 0xaa, 0xaa, 3, 0, 0, 0xf8],
        &[0, 90, 0xab, 0xab, 0x13, 0, 0, 0],
    ];
    let around = prop::sample::select(around.to_vec());
    // No receiver parses LLC within SNAP.
    let one_snap = |all: &Vec<&[u8]>| all.iter().filter(|one| one.len() > 4).count() < 2;
    let around = prop::collection::vec(around, 0..3).prop_filter("one SNAP", one_snap);
    (prop::collection::vec(extension, 0..6), around)
}

/// Rules that drop something, and let the rest pass.
fn rules() -> impl Strategy<Value = Program> {
    let one = prop_oneof![
        Just("protocol = \"tcp\"\ndestination_ports = [22]"),
        Just("protocol = \"udp\""),
        Just("protocol = \"udp\"\nsource_ports = [53]"),
        Just("protocol = \"icmp\""),
        Just("protocol = \"icmpv6\"\nicmp_type = 8"),
        Just("source = [\"10.0.0.0/31\", \"2001:db8::/48\"]"),
        Just("destination = [\"10.0.1.0/24\"]"),
        Just("ether_type = \"ipv6\""),
        Just("ether_type = \"arp\""),
    ];
    prop::collection::vec(one, 1..4).prop_map(|all| {
        let named = all
            .iter()
            .enumerate()
            .map(|(n, rest)| rule(&format!("r{n}"), "drop", rest));
        program(&list(
            "l",
            "to-guest",
            "ports = [\"vm2\"]",
            &named.collect::<String>(),
        ))
    })
}

fn action(program: &Program, frame: &[u8]) -> Action {
    let key = FlowKey::new(1, &ParsedHeaders::parse(frame, frame.len()));
    decide(program, &stations, &key).action
}

/// A frame of IPv6 with these bytes behind the fixed header, of which the first has this number.
fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let addresses = [2, 1].map(|host| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host));
    frame()
        .ipv6(addresses[0], addresses[1])
        .protocol(next)
        .payload(payload)
        .build()
}

/// A frame of IPv4 with TCP to port 80, in which `change` has changed the bytes from the IP header.
fn v4(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let tcp = TcpFields {
        src_port: 1000,
        dst_port: 80,
        ..TcpFields::default()
    };
    let mut bytes = frame().ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(tcp).build();
    change(&mut bytes[14..]);
    bytes
}

/// Frames that claim to be IP or ARP, and whose protocol or ports cannot be read.
fn unreadable() -> Vec<(&'static str, Vec<u8>)> {
    let fragment = [44, 0, 0, 1, 0, 0, 0, 0];
    let chain: Vec<u8> = (0..20).flat_map(|_| [60, 0, 1, 4, 0, 0, 0, 0]).collect();
    let mut short_arp = frame().arp_request([10, 0, 0, 1], [10, 0, 0, 2]).build();
    short_arp.truncate(14 + 27);
    vec![
        ("hop-by-hop options cut off", v6(0, &[6, 0, 1, 4])),
        ("no hop-by-hop options at all", v6(0, &[])),
        (
            "hop-by-hop options past the end",
            v6(0, &[6, 2, 1, 4, 0, 0, 0, 0]),
        ),
        (
            "a routing header past the end",
            v6(43, &[6, 9, 0, 0, 0, 0, 0, 0]),
        ),
        (
            "an authentication header past the end",
            v6(51, &[6, 9, 0, 0, 0, 0, 0, 0]),
        ),
        ("a fragment header cut off", v6(44, &[6, 0, 0, 0])),
        (
            "two fragment headers",
            v6(44, &[fragment, fragment].concat()),
        ),
        (
            "a later fragment of an extension header",
            v6(44, &[60, 0, 0, 8, 0, 0, 0, 1]),
        ),
        ("too many extension headers", v6(60, &chain)),
        (
            "hop-by-hop options and nothing behind",
            v6(0, &[6, 0, 1, 4, 0, 0, 0, 0]),
        ),
        ("another version", v4(|ip| ip[0] = 0x65)),
        ("an IPv4 header of four words", v4(|ip| ip[0] = 0x44)),
        (
            "IPv4 options past the end",
            v4(|ip| (ip[0], ip[2], ip[3]) = (0x4f, 0, 40)),
        ),
        ("more bytes than the frame has", v4(|ip| ip[2] = 1)),
        (
            "fewer bytes than the header",
            v4(|ip| (ip[2], ip[3]) = (0, 19)),
        ),
        ("a TCP header of four words", v4(|ip| ip[32] = 0x40)),
        ("TCP options past the end", v4(|ip| ip[32] = 0xf0)),
        ("half a TCP header", v4(|ip| ip[3] = 30)),
        ("half a UDP header", v4(|ip| (ip[9], ip[3]) = (17, 24))),
        ("half an ICMP header", v4(|ip| (ip[9], ip[3]) = (1, 23))),
        ("half an ARP packet", short_arp),
    ]
}

/// A rule before the list that cannot decide, at whose side ever, counts nothing either.
#[test]
fn no_rule_counts_what_cannot_be_read() {
    let rest = |action| rule("rest", action, "priority = 0");
    let looks = [
        rule(
            "http",
            "allow",
            "protocol = \"tcp\"\ndestination_ports = [80]",
        ),
        rule("ping", "allow", "protocol = \"icmp\""),
    ];
    let looks = |last| looks.concat() + &rest(last);
    let all = "segments = [\"lan\"]";
    for (name, frame) in unreadable() {
        let key = FlowKey::new(1, &ParsedHeaders::parse(&frame, frame.len()));
        for last in ["allow", "drop", "reject"] {
            let at_sender = list("out", "from-guest", all, &looks(last));
            let at_receiver = list("out", "from-guest", all, &rest("allow"))
                + &list("in", "to-guest", all, &looks(last));
            for text in [at_sender, at_receiver] {
                let decision = decide(&program(&text), &stations, &key);
                assert_eq!(decision.action, UNREADABLE, "{name}: {text}");
                assert_eq!(decision.rules(), [], "{name}: {text}");
            }
        }
        // Where no list looks so far, a rule decides and counts.
        let blind = decide(
            &program(&list("out", "from-guest", all, &rest("drop"))),
            &stations,
            &key,
        );
        assert_eq!((blind.action, blind.rules().len()), (denied(), 1), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_a_list_drops_it_drops_in_every_wrapping(
        packet in packet(),
        (extensions, around) in hiding(),
        tag in prop_oneof![Just(None), Just(Some(0u16))],
        program in rules(),
    ) {
        if !matches!(action(&program, &packet.build()), Action::Drop(_)) {
            return Ok(());
        }
        let extend = |packet: PacketBuilder, kind: &u8| packet.extension(*kind, &[0; 10]);
        let packet = extensions.iter().fold(packet, extend);
        let mut frame = match tag {
            Some(vid) => packet.vlan(VlanTci::new(vid)).build(),
            None => packet.build(),
        };
        for before in around {
            frame.splice(12..12, before.iter().copied());
        }
        prop_assert!(matches!(action(&program, &frame), Action::Drop(_)), "{frame:x?}");
        let security = PortSecurity { no_router: true, ..PortSecurity::default() };
        let restricted = [(PortId(1), security)].into_iter().collect::<PortSecurityTable>();
        let secured = program.with_port_security(restricted);
        prop_assert!(matches!(action(&secured, &frame), Action::Drop(_)), "{frame:x?}");
    }
}
