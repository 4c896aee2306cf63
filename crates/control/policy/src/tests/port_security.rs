//! Port security: each of its rules, and that a decision holds for all frames that its mask lets
//! share it.

use std::net::IpAddr;

use proptest::prelude::*;
use wire::flow::KeyState;
use wire::hash::SplitMix64;
use wire::{EtherType, FlowMask, FrameClass};

use super::*;
use crate::port_security::{
    Addresses, Bindings, Macs, Network, Owner, PortSecurity, PortSecurityTable,
};
use crate::{Action, Decision, DropReason, decide};

/// Returns a program with this port security at port 1.
fn secured(security: PortSecurity) -> Program {
    program().with_port_security(PortSecurityTable::from_iter([(PortId(1), security)]))
}

fn net(text: &str) -> Network {
    text.parse().unwrap()
}

fn ip(text: &str) -> u128 {
    match text.parse().unwrap() {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn only(networks: &[&str]) -> PortSecurity {
    PortSecurity {
        addresses: Addresses::Only(networks.iter().map(|text| net(text)).collect()),
        ..PortSecurity::default()
    }
}

/// A frame of port 1 to everybody.
fn frame() -> FlowKey {
    key(1, None, mac(1), MacAddr::BROADCAST)
}

fn packet(ethertype: EtherType, src: &str, dst: &str) -> FlowKey {
    let key = frame().with_ethertype(ethertype);
    key.with_src_ip(ip(src)).with_dst_ip(ip(dst))
}

fn v4(src: &str) -> FlowKey {
    packet(EtherType::IPV4, src, "10.9.9.9").with_ip_proto(6)
}

fn v6(src: &str) -> FlowKey {
    packet(EtherType::IPV6, src, "ff02::1").with_ip_proto(58)
}

fn arp(sender: &str, target: &str) -> FlowKey {
    packet(EtherType::ARP, sender, target).with_ip_proto(1)
}

fn decided(security: &PortSecurity, bound: Bindings, key: &FlowKey) -> Decision {
    let table = Table {
        bound: [(PortId(1), bound)].into(),
        ..Table::default()
    };
    decide(&secured(security.clone()), &table, key)
}

/// Why a frame is dropped; none if it is not.
fn refused(security: &PortSecurity, bound: Bindings, key: &FlowKey) -> Option<DropReason> {
    let decision = decided(security, bound, key);
    assert_eq!(
        decision.learn.is_some(),
        matches!(decision.action, Action::Flood { .. })
    );
    match decision.action {
        Action::Drop(reason) => Some(reason),
        _ => None,
    }
}

#[test]
fn a_guest_has_its_own_address_alone() {
    let nothing = Bindings::default();
    let bound = Bindings {
        mac: Some(mac(1).0),
        ..nothing
    };
    let spoofed = Some(DropReason::SpoofedMac);
    let other = key(1, None, mac(2), MacAddr::BROADCAST);
    let configured = PortSecurity {
        macs: Macs::Only(vec![mac(1).0, mac(3).0]),
        ..PortSecurity::default()
    };
    assert_eq!(refused(&configured, nothing, &frame()), None);
    assert_eq!(refused(&configured, nothing, &other), spoofed);
    let learned = PortSecurity {
        macs: Macs::Learned,
        ..PortSecurity::default()
    };
    assert_eq!(refused(&learned, nothing, &frame()), None);
    assert_eq!(learned.bind(&nothing, &frame(), None), bound);
    assert_eq!(learned.bind(&bound, &other, None), bound, "once");
    assert_eq!(refused(&learned, bound, &frame()), None);
    assert_eq!(refused(&learned, bound, &other), spoofed);
    // Another port has no port security.
    let elsewhere = other.with_in_port(2);
    assert_eq!(refused(&configured, nothing, &elsewhere), None);
}

#[test]
fn what_a_frame_does_is_allowed_or_not() {
    let refused = |security: &PortSecurity, frame_class| {
        refused(
            security,
            Bindings::default(),
            &frame().with_frame_class(frame_class),
        )
    };
    let guest = PortSecurity {
        macs: Macs::Learned,
        no_dhcp_server: true,
        no_router: true,
        ..PortSecurity::default()
    };
    let all = [
        (FrameClass::Ordinary, None),
        (FrameClass::Neighbour, None),
        (
            FrameClass::SpoofedNeighbour,
            Some(DropReason::SpoofedNeighbour),
        ),
        (FrameClass::DhcpServer, Some(DropReason::DhcpServer)),
        (FrameClass::Router, Some(DropReason::RouterAdvert)),
        (FrameClass::Unparseable, Some(DropReason::Unparseable)),
    ];
    for (frame_class, reason) in all {
        assert_eq!(refused(&guest, frame_class), reason);
        assert_eq!(refused(&PortSecurity::default(), frame_class), None);
    }
    let server = PortSecurity {
        no_dhcp_server: false,
        ..guest.clone()
    };
    assert_eq!(refused(&server, FrameClass::DhcpServer), None);
    let router = PortSecurity {
        no_router: false,
        ..guest.clone()
    };
    assert_eq!(refused(&router, FrameClass::Router), None);
    // VRRP answers for an address that is not the frame's.
    let bridge = PortSecurity {
        macs: Macs::Any,
        ..guest
    };
    assert_eq!(refused(&bridge, FrameClass::SpoofedNeighbour), None);
    assert!(refused(&bridge, FrameClass::Unparseable).is_some());
}

#[test]
fn port_security_by_mac_depends_on_ethernet_addresses_alone() {
    let guest = PortSecurity {
        macs: Macs::Learned,
        no_dhcp_server: true,
        no_router: true,
        ..PortSecurity::default()
    };
    for key in [
        frame(),
        v4("10.0.0.1"),
        frame().with_frame_class(FrameClass::Router),
    ] {
        let decision = decided(&guest, Bindings::default(), &key);
        assert_eq!(decision.mask, crate::DECISION_MASK);
    }
    assert!(FlowMask::ETHERNET.covers(&crate::DECISION_MASK));
}

#[test]
fn addresses_are_those_of_the_list() {
    let security = only(&["10.0.0.5", "10.1.0.0/16", "2001:db8::5"]);
    let refused = |key| refused(&security, Bindings::default(), &key);
    let spoofed = Some(DropReason::SpoofedIp);
    for mine in ["10.0.0.5", "10.1.2.3"] {
        assert_eq!(refused(v4(mine)), None);
        assert_eq!(refused(arp(mine, "10.0.0.9")), None);
    }
    assert_eq!(refused(v6("2001:db8::5")), None);
    for others in ["10.0.0.6", "10.2.0.1", "255.255.255.255", "127.0.0.1"] {
        assert_eq!(refused(v4(others)), spoofed, "{others}");
        assert_eq!(
            refused(arp(others, "10.0.0.9")),
            Some(DropReason::SpoofedNeighbour)
        );
    }
    assert_eq!(refused(v6("2001:db8::6")), spoofed);
    assert_eq!(refused(v6("ff02::1")), spoofed);
    assert_eq!(refused(frame().with_ethertype(EtherType(0x88cc))), None);
    let malformed = v4("0.0.0.0").with_state(KeyState::L3_MALFORMED);
    assert_eq!(refused(malformed), spoofed);
}

#[test]
fn a_guest_without_an_address_may_request_one() {
    let security = only(&["10.0.0.5", "2001:db8::5"]);
    let refused = |key| refused(&security, Bindings::default(), &key);
    let spoofed = Some(DropReason::SpoofedIp);
    let discover = || {
        let key = packet(EtherType::IPV4, "0.0.0.0", "255.255.255.255");
        key.with_ip_proto(17).with_l4_ports(68, 67)
    };
    assert_eq!(refused(discover()), None);
    assert_eq!(refused(discover().with_l4_ports(69, 67)), spoofed);
    assert_eq!(refused(discover().with_dst_ip(ip("10.0.0.9"))), spoofed);
    assert_eq!(refused(discover().with_state(KeyState::FRAGMENT)), spoofed);
    assert_eq!(refused(v4("0.0.0.0")), spoofed);
    assert_eq!(refused(arp("0.0.0.0", "10.0.0.5")), None, "a probe");
    let probe = arp("0.0.0.0", "10.0.0.6");
    assert_eq!(refused(probe), Some(DropReason::SpoofedNeighbour));
    let nobody = |kind: u16| v6("::").with_l4_flags(kind << 8);
    assert_eq!((refused(nobody(133)), refused(nobody(143))), (None, None));
    assert_eq!(
        refused(nobody(135).with_frame_class(FrameClass::Neighbour)),
        None
    );
    assert_eq!(refused(nobody(128)), spoofed);
    assert_eq!(refused(nobody(133).with_ip_proto(17)), spoofed);
}

#[test]
fn the_first_addresses_are_bound() {
    let security = PortSecurity {
        addresses: Addresses::Learned,
        ..PortSecurity::default()
    };
    let mut bound = Bindings::default();
    for nothing in [frame(), arp("0.0.0.0", "10.0.0.5"), v6("::")] {
        bound = security.bind(&bound, &nothing, None);
        assert_eq!(bound, Bindings::default());
    }
    for first in [
        arp("10.0.0.5", "10.0.0.9"),
        v6("fe80::5"),
        v6("2001:db8::5"),
    ] {
        assert_eq!(refused(&security, bound, &first), None);
        bound = security.bind(&bound, &first, None);
        assert_eq!(refused(&security, bound, &first), None);
    }
    for second in [v4("10.0.0.6"), v6("fe80::6"), v6("2001:db8::6")] {
        assert_eq!(security.bind(&bound, &second, None), bound);
        assert_eq!(
            refused(&security, bound, &second),
            Some(DropReason::SpoofedIp)
        );
    }
    let claims = Some("fe80::7".parse().unwrap());
    let claimed = security.bind(&Bindings::default(), &v6("::"), claims);
    assert_eq!(claimed.link_local, claims);
    assert!(!security.may_claim(&claimed, "fe80::8".parse().unwrap()));
}

#[test]
fn a_host_has_one_link_local_address_besides_those_of_the_list() {
    let security = only(&["2001:db8::/64"]);
    let bound = security.bind(&Bindings::default(), &v6("fe80::5"), None);
    assert_eq!(refused(&security, bound, &v6("fe80::5")), None);
    let spoofed = Some(DropReason::SpoofedIp);
    assert_eq!(refused(&security, bound, &v6("fe80::6")), spoofed);
    let listed = only(&["fe80::7"]);
    assert_eq!(
        listed.bind(&Bindings::default(), &v6("fe80::5"), None),
        Bindings::default()
    );
    assert_eq!(
        refused(&listed, Bindings::default(), &v6("fe80::5")),
        spoofed
    );
}

#[test]
fn a_flood_of_false_addresses_costs_few_flows() {
    let security = only(&["10.0.0.5", "192.168.0.0/16"]);
    let mut flows = HashSet::new();
    let mut masks = HashSet::new();
    let mut random = SplitMix64(1);
    for _ in 0..100_000 {
        let source = u128::from((random.number() >> 32) as u32);
        let key = v4("10.0.0.5").with_src_ip(source);
        let decision = decided(&security, Bindings::default(), &key);
        flows.insert(key.masked(&decision.mask));
        masks.insert(*decision.mask.words());
    }
    assert!(flows.len() < 1100, "{}", flows.len());
    assert!(masks.len() <= 5, "{}", masks.len());
}

#[test]
fn networks_are_read_and_written() {
    for text in [
        "10.0.0.5",
        "10.0.0.0/24",
        "0.0.0.0/0",
        "2001:db8::/64",
        "::/0",
        "fe80::1",
    ] {
        assert_eq!(net(text).to_string(), text);
    }
    for wrong in [
        "",
        "10.0.0.5/24",
        "10.0.0.0/33",
        "::1/64",
        "::/129",
        "10.0.0.0/+8",
        "a",
        "1.2.3.4/",
    ] {
        assert!(wrong.parse::<Network>().is_err(), "{wrong}");
    }
}

fn any_ip(v6: bool) -> impl Strategy<Value = u128> {
    // Addresses that are near one another, and those that mean something.
    let known = if v6 {
        vec![
            "::",
            "fe80::1",
            "fe80::2",
            "2001:db8::1",
            "2001:db8:0:1::",
            "ff02::1",
            "2001:db9::",
        ]
    } else {
        vec![
            "0.0.0.0",
            "10.0.0.1",
            "10.0.0.2",
            "10.0.1.0",
            "10.1.0.0",
            "255.255.255.255",
            "0.1.0.0",
        ]
    };
    let known: Vec<u128> = known.into_iter().map(ip).collect();
    let width = if v6 { u128::MAX } else { u128::from(u32::MAX) };
    let flipped = (prop::sample::select(known.clone()), 0..128u32);
    prop_oneof![
        prop::sample::select(known),
        flipped.prop_map(move |(ip, bit)| (ip ^ 1 << bit) & width),
        any::<u128>().prop_map(move |ip| ip & width),
    ]
}

fn any_network() -> impl Strategy<Value = Network> {
    prop::sample::select(vec![
        "10.0.0.1",
        "10.0.0.0/24",
        "10.0.0.0/15",
        "0.0.0.0/0",
        "2001:db8::1",
        "2001:db8::/63",
        "fe80::1",
        "fe80::/10",
        "::/0",
    ])
    .prop_map(net)
}

fn any_port_security() -> impl Strategy<Value = PortSecurity> {
    let macs = prop_oneof![
        Just(Macs::Any),
        Just(Macs::Learned),
        Just(Macs::Only(vec![mac(1).0])),
    ];
    let addresses = prop_oneof![
        Just(Addresses::Any),
        Just(Addresses::Learned),
        prop::collection::vec(any_network(), 1..4).prop_map(Addresses::Only),
    ];
    (macs, addresses, any::<bool>(), any::<bool>()).prop_map(
        |(macs, addresses, no_dhcp_server, no_router)| PortSecurity {
            answers: false,
            macs,
            addresses,
            no_dhcp_server,
            no_router,
        },
    )
}

fn any_frame() -> impl Strategy<Value = FlowKey> {
    (0..4usize).prop_flat_map(|kind| {
        let v6 = kind == 1;
        let protocol = prop::sample::select(vec![1u8, 2, 6, 17, 58]);
        let port = || prop::sample::select(vec![0u16, 67, 68, 4000]);
        let icmp = prop::sample::select(vec![0u16, 128, 131, 133, 134, 135, 143]);
        let state = prop::sample::select(vec![0u16, 1, 2, 4, 8]);
        let upper = (protocol, port(), port(), icmp, state);
        (any_ip(v6), any_ip(v6), 1..3u8, 0..6u8, upper).prop_map(
            move |(src, dst, from, frame_class, (proto, sport, dport, icmp, state))| {
                let types = [
                    EtherType::IPV4,
                    EtherType::IPV6,
                    EtherType::ARP,
                    EtherType(0x88cc),
                ];
                let key = key(1, None, mac(from), MacAddr::BROADCAST)
                    .with_ethertype(types[kind])
                    .with_frame_class(FrameClass::from_bits(frame_class));
                let state = KeyState::from_bits_truncate(state);
                let key = key.with_state(state);
                // A key has no fields of headers that could not be parsed.
                if kind == 3 || state.contains(KeyState::L3_MALFORMED) {
                    return key;
                }
                let key = key.with_src_ip(src).with_dst_ip(dst).with_ip_proto(proto);
                key.with_l4_ports(sport, dport).with_l4_flags(icmp << 8)
            },
        )
    })
}

fn any_bound() -> impl Strategy<Value = Bindings> {
    prop::collection::vec(any_frame(), 0..3).prop_map(|frames| {
        let all = PortSecurity {
            macs: Macs::Learned,
            addresses: Addresses::Learned,
            ..PortSecurity::default()
        };
        let bind = |bound: Bindings, key: &FlowKey| all.bind(&bound, key, None);
        frames.iter().fold(Bindings::default(), bind)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn a_decision_is_true_for_all_frames_that_share_it(
        security in any_port_security(), bound in any_bound(),
        one in any_frame(), other in any_frame(),
    ) {
        let decision = decided(&security, bound, &one);
        let mask = &decision.mask;
        // What the mask counts of the first frame, and all else of the second.
        let words = std::array::from_fn(|at| {
            let bits = mask.words()[at];
            one.words()[at] & bits | other.words()[at] & !bits
        });
        let alike = FlowKey::from_words(words);
        prop_assert_eq!(one.masked(mask), alike.masked(mask));
        let again = decided(&security, bound, &alike);
        let result = |decision: &Decision| (decision.action, decision.learn.is_some());
        prop_assert_eq!(result(&decision), result(&again));
    }

    #[test]
    fn what_is_bound_changes_nothing_for_who_was_bound(
        security in any_port_security(), bound in any_bound(), first in any_frame(),
    ) {
        if refused(&security, bound, &first).is_none() {
            let after = security.bind(&bound, &first, None);
            prop_assert_eq!(refused(&security, after, &first), None);
            prop_assert_eq!(security.bind(&after, &first, None), after);
        }
    }

    #[test]
    fn a_network_has_the_addresses_that_agree_in_its_first_bits(
        text in any_network(), v4 in any_ip(false), v6 in any_ip(true),
    ) {
        let shown = text.to_string();
        let parts = shown.split_once('/');
        let (address, len) = parts.map_or((shown.as_str(), None), |(a, l)| (a, Some(l)));
        let own: IpAddr = address.parse().unwrap();
        let len: u32 = len.map_or(if own.is_ipv4() { 32 } else { 128 }, |len| len.parse().unwrap());
        let same = |a: u128, b: u128, width: u32| {
            (0..len).all(|bit| (a ^ b) >> (width - 1 - bit) & 1 == 0)
        };
        let tried4 = std::net::Ipv4Addr::from_bits(v4 as u32);
        prop_assert_eq!(text.contains(tried4.into()), own.is_ipv4() && same(ip(address), v4, 32));
        let tried6 = std::net::Ipv6Addr::from_bits(v6);
        prop_assert_eq!(text.contains(tried6.into()), own.is_ipv6() && same(ip(address), v6, 128));
    }
}

#[test]
fn neighbour_requests_are_upcalls_with_neighbour_suppression() {
    let security = |answers, addresses| PortSecurity {
        answers,
        addresses,
        ..PortSecurity::default()
    };
    let to_one = key(1, None, mac(1), mac(2));
    let of = |key: FlowKey, frame_class| key.with_frame_class(frame_class);
    for (answers, addresses, discovery, alone) in [
        (false, Addresses::Any, [false, false], false),
        (false, Addresses::Learned, [true, true], false),
        (true, Addresses::Any, [true, false], true),
        (true, Addresses::Learned, [true, true], true),
    ] {
        let security = security(answers, addresses);
        let asks = |key| security.needs_upcalls(&key);
        let found = [frame(), to_one].map(|key| asks(of(key, FrameClass::Neighbour)));
        assert_eq!(found, discovery, "{security:?}");
        assert_eq!(asks(of(frame(), FrameClass::NeighbourRequest)), alone);
        assert!(!asks(of(to_one, FrameClass::NeighbourRequest)) && !asks(frame()));
    }
    // It forbids nothing.
    let answers = security(true, Addresses::Any);
    assert!(!answers.is_open());
    for bits in 0..8 {
        let key = frame().with_frame_class(FrameClass::from_bits(bits));
        assert_eq!(refused(&answers, Bindings::default(), &key), None);
    }
}

#[test]
fn an_address_is_surely_a_guests_when_it_alone_is_said_or_was_bound() {
    let at = |text: &str| text.parse::<IpAddr>().unwrap();
    let one = PortSecurity {
        macs: Macs::Only(vec![mac(1).0]),
        no_router: true,
        ..only(&["10.0.0.1", "10.1.0.0/16", "2001:db8::1"])
    };
    let owner = |n, listed| {
        Some(Owner {
            mac: mac(n),
            listed,
        })
    };
    let nothing = Bindings::default();
    assert_eq!(one.owner_of(&nothing, at("10.0.0.1")), owner(1, true));
    assert_eq!(one.owner_of(&nothing, at("2001:db8::1")), owner(1, true));
    let listed: Vec<IpAddr> = one.listed().collect();
    assert_eq!(listed, [at("10.0.0.1"), at("2001:db8::1")]);
    for other in ["10.0.0.2", "10.1.0.1", "2001:db8::2", "fe80::1", "0.0.0.0"] {
        assert_eq!(one.owner_of(&nothing, at(other)), None, "{other}");
    }
    let bound = Bindings {
        mac: Some(mac(2).0),
        v4: Some("10.0.0.7".parse().unwrap()),
        link_local: Some("fe80::1".parse().unwrap()),
        v6: Some("2001:db8::7".parse().unwrap()),
    };
    assert_eq!(one.owner_of(&bound, at("fe80::1")), owner(1, false));
    let learned = PortSecurity {
        macs: Macs::Learned,
        addresses: Addresses::Learned,
        no_router: true,
        ..PortSecurity::default()
    };
    for own in ["10.0.0.7", "fe80::1", "2001:db8::7"] {
        assert_eq!(learned.owner_of(&bound, at(own)), owner(2, false), "{own}");
        assert_eq!(learned.owner_of(&nothing, at(own)), None, "{own}");
    }
    // Several stations, any addresses, and an IPv6 router, which advertises itself.
    let with = |macs| PortSecurity {
        macs,
        ..one.clone()
    };
    let two = with(Macs::Only(vec![mac(1).0, mac(2).0]));
    let any = PortSecurity {
        addresses: Addresses::Any,
        ..one.clone()
    };
    for security in [with(Macs::Any), two, any] {
        assert_eq!(
            security.owner_of(&bound, at("10.0.0.1")),
            None,
            "{security:?}"
        );
    }
    let router = PortSecurity {
        no_router: false,
        ..one
    };
    assert_eq!(router.owner_of(&nothing, at("10.0.0.1")), owner(1, true));
    assert_eq!(router.owner_of(&nothing, at("2001:db8::1")), None);
}
