//! Tests of `export`: the file of a state, and the file read again.

mod qos;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::v1::{
    AccessListSpec, AccessModel, AddressSet, AdminState, AllowedAddresses, AllowedWord,
    CoalescingSpec, ConnectionsSpec, Direction, FloodLimit, Group, Iommu, LimitsSpec, LogSpec,
    MetricsSpec, MirrorDirection, MirrorSpec, Otherwise, Pieces, PipeSpec, PortKind,
    PortSecuritySpec, PortText, PrefilterMode, RateLimit, RuleAction, RuleSpec, SegmentDefault,
    StaticEntry, TimeoutsSpec, UplinkDriver,
};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;

const SEGMENTS: [&str; 4] = ["a", "b", "c", "default"];
const PORTS: [&str; 6] = ["p", "q", "r", "s", "t", "u"];

fn owned(names: Vec<&str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}

/// Texts that need care in a file.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{1,8}", "[\"'\\\\#=\\[\\]{}üλ🦀.,-]{1,6}"]
}

fn path() -> impl Strategy<Value = String> {
    ("(/srv/)?", text()).prop_map(|(at, name)| format!("{at}{name}.sock"))
}

fn mac() -> impl Strategy<Value = String> {
    select(vec!["52:54:00:00:00:0A", "52:54:00:00:00:0b"]).prop_map(str::to_owned)
}

fn switch() -> impl Strategy<Value = SwitchSpec> {
    let words = (
        select(vec![Poll::Adaptive, Poll::Always]),
        prop_oneof![
            Just(PollLimit::Auto),
            (0..=1000u16).prop_map(PollLimit::Micros)
        ],
        prop_oneof![
            Just(Workers::Auto),
            Just(Workers::Count(1)),
            (1..=64u16).prop_map(Workers::Count)
        ],
        select(vec![GuestStates::Auto, GuestStates::Bpf, GuestStates::Off]),
    );
    let coalescing = (any::<bool>(), 1..=10_000u16, 1..=1024u16, 0..=1000u16);
    let timeouts = (
        proptest::option::of(1..=9u32),
        proptest::option::of(1..=9u32),
    );
    let connections = (
        1024..=1u64 << 22,
        any::<bool>(),
        any::<bool>(),
        0..=3600u32,
        timeouts,
    );
    let dirs = vec(text().prop_map(|text| format!("/srv/{text}")), 0..3);
    let name = prop_oneof![Just("lasthop".to_owned()), "[a-z]{1,9}"];
    let addresses = vec(
        any::<std::net::IpAddr>().prop_map(|ip| ip.to_string()),
        0..3,
    );
    let parts = (
        name,
        words,
        of(coalescing),
        of(connections),
        (dirs, addresses),
    );
    parts.prop_map(
        |(name, words, coalescing, connections, (socket_dirs, forward_addresses))| {
            let (poll, poll_us, workers, guest_state) = words;
            let mut spec = SwitchSpec {
                name,
                poll,
                poll_us,
                workers,
                guest_state,
                socket_dirs,
                forward_addresses,
                ..SwitchSpec::default()
            };
            if let Some((enabled, period_us, frames, kick_us)) = coalescing {
                spec.coalescing = CoalescingSpec {
                    enabled,
                    period_us,
                    frames,
                    kick_us,
                };
            }
            if let Some((max, pick_up, strict, recovery, (udp, icmp))) = connections {
                spec.connections = ConnectionsSpec {
                    max,
                    pick_up,
                    strict,
                    recovery,
                    timeouts: TimeoutsSpec {
                        udp,
                        icmp,
                        ..TimeoutsSpec::default()
                    },
                };
            }
            spec
        },
    )
}

/// Segments in any order, the default one among them or not, with tags that differ.
fn segments() -> impl Strategy<Value = Vec<SegmentSpec>> {
    let names = Just(SEGMENTS.to_vec()).prop_shuffle();
    (names, vec((any::<bool>(), any::<bool>()), 4), any::<bool>()).prop_map(
        |(names, random, without)| {
            let all = names.into_iter().zip(random).enumerate();
            let all = all.filter(|(_, (name, _))| !(without && *name == "default"));
            let segment = |(at, (name, (tagged, neighbour_suppression))): (usize, (&str, _))| {
                let vlan = 10 + at as u16;
                SegmentSpec {
                    name: name.to_owned(),
                    vlan: (tagged || name != "default").then_some(vlan),
                    neighbour_suppression,
                }
            };
            all.map(segment).collect()
        },
    )
}

fn rate() -> impl Strategy<Value = RateLimit> {
    let packets = of((1..=1_000_000_000u64, of(64..=1_000_000_000u64)));
    let bits = (1..=1_000_000_000_000u64, of(524_424..=1_000_000_000_000u64));
    (packets, bits).prop_map(|(packets, bits)| RateLimit {
        packets_per_second: packets.map(|p| p.0),
        packets_burst: packets.and_then(|p| p.1),
        bits_per_second: Some(bits.0),
        bits_burst: bits.1,
    })
}

fn flood() -> impl Strategy<Value = FloodLimit> {
    (1..=1_000_000_000u64, of(1..=1_000_000_000u64)).prop_map(|(rate, burst)| FloodLimit {
        packets_per_second: rate,
        packets_burst: burst,
    })
}

fn limits() -> impl Strategy<Value = LimitsSpec> {
    let all = (
        of(rate()),
        of(rate()),
        of(flood()),
        of(flood()),
        of(flood()),
        of(1..=1u64 << 22),
    );
    all.prop_map(|all| LimitsSpec {
        from_guest: all.0,
        to_guest: all.1,
        broadcast: all.2,
        multicast: all.3,
        unknown_unicast: all.4,
        connections: all.5,
    })
}

fn allowed(listed: impl Strategy<Value = String>) -> impl Strategy<Value = AllowedAddresses> {
    prop_oneof![
        Just(AllowedAddresses::Word(AllowedWord::Any)),
        Just(AllowedAddresses::Word(AllowedWord::Sticky)),
        vec(listed, 1..20).prop_map(AllowedAddresses::List),
    ]
}

fn port_security() -> impl Strategy<Value = PortSecuritySpec> {
    let address = select(vec!["10.0.0.5", "10.1.0.0/16", "fd00::/64"]).prop_map(str::to_owned);
    let all = (
        of(allowed(mac())),
        of(allowed(address)),
        of(any::<bool>()),
        of(any::<bool>()),
    );
    all.prop_map(|(macs, addresses, dhcp_server, router)| PortSecuritySpec {
        macs,
        addresses,
        dhcp_server,
        router,
    })
}

/// Returns the fields that all kinds of ports have.
fn common(name: &'static str) -> impl Strategy<Value = PortSpec> {
    let member = prop_oneof![
        Just((None, None)),
        select(SEGMENTS.to_vec()).prop_map(|s| (Some(s.to_owned()), None)),
        subsequence(SEGMENTS.to_vec(), 1..=4).prop_map(|all| (None, Some(owned(all)))),
    ];
    let states = select(vec![AdminState::Up, AdminState::Down]);
    let description = of(text()).prop_map(Option::unwrap_or_default);
    let numbers = (1..=64u16, 1..=1000u16, of(68..=9216u16));
    let notes = (states, description);
    (
        member,
        numbers,
        notes,
        any::<bool>(),
        port_security().boxed(),
        limits().boxed(),
    )
        .prop_map(
            move |(
                (segment, trunk),
                (queues, weight, mtu),
                (admin_state, description),
                usual,
                port_security,
                limits,
            )| {
                let port = PortSpec::new(name, PortKind::VhostUser);
                PortSpec {
                    description,
                    admin_state,
                    segment,
                    trunk,
                    mtu,
                    queues: if usual { port.queues } else { queues },
                    weight: if usual { port.weight } else { weight },
                    port_security,
                    limits,
                    ..port
                }
            },
        )
}

fn guest(name: &'static str) -> impl Strategy<Value = PortSpec> {
    let user = || of("[a-zü\"']{1,6}");
    let owner = (user(), user(), of("0[0-7]{3}"), user());
    let role = select(vec![Role::Server, Role::Client]);
    let iommu = select(Iommu::ALL);
    let threads = of(text().prop_map(|text| format!("{text}*")));
    (
        common(name).boxed(),
        path(),
        role,
        owner,
        of(mac()),
        (threads, iommu),
    )
        .prop_map(|(port, socket, role, owner, mac, (vcpu_threads, iommu))| {
            let (user, group, mode, peer_user) = match role {
                Role::Server => owner,
                Role::Client => (None, None, None, None),
            };
            PortSpec {
                // Sockets are unique.
                socket: format!("{socket}-{}", port.name),
                role,
                user,
                group,
                mode,
                peer_user,
                mac,
                vcpu_threads,
                iommu,
                ..port
            }
        })
}

fn slots() -> impl Strategy<Value = Option<u16>> {
    of(select(vec![64, 1024, 2048, 4096]))
}

/// A netmap or memif port.
fn process_port(name: &'static str) -> impl Strategy<Value = PortSpec> {
    let secret = of("[a-zü\"']{1,12}");
    let rings = (1..=16u16, slots(), any::<bool>(), of(any::<u32>()), secret);
    let socket = of(path());
    let is_netmap = any::<bool>();
    (common(name).boxed(), socket, is_netmap, rings).prop_map(
        |(port, socket, is_netmap, (queues, slots, pipes, id, secret))| {
            let socket = socket.map(|path| format!("{path}-{}", port.name));
            let port = PortSpec {
                socket: socket.unwrap_or_default(),
                ..port
            };
            match is_netmap {
                true => PortSpec {
                    kind: PortKind::Netmap,
                    queues,
                    slots,
                    pipes,
                    ..port
                },
                false => PortSpec {
                    kind: PortKind::Memif,
                    id,
                    secret: secret.map(Into::into),
                    ..port
                },
            }
        },
    )
}

fn uplink(name: &'static str) -> impl Strategy<Value = PortSpec> {
    let drivers = vec![
        UplinkDriver::Auto,
        UplinkDriver::Tap,
        UplinkDriver::Packet,
        UplinkDriver::Xdp,
        UplinkDriver::VhostNet,
    ];
    let netns = of(text().prop_map(|text| format!("n{text}")));
    let weight = of(1..=10_000u16);
    let settings = (of(select(drivers)), of(proptest::bool::ANY), netns, weight);
    let entries = of(16..=4096u16);
    let prefilter = (
        of(select(vec![PrefilterMode::Off, PrefilterMode::Socket])),
        entries,
    );
    let all = (common(name).boxed(), settings, prefilter);
    all.prop_map(
        |(port, (driver, process, netns, weight), (mode, entries))| {
            let is_simple = matches!(
                driver,
                None | Some(UplinkDriver::Auto | UplinkDriver::Packet)
            );
            let always = matches!(driver, Some(UplinkDriver::Xdp | UplinkDriver::VhostNet));
            PortSpec {
                kind: PortKind::Uplink,
                interface: Some(format!("if-{}", port.name)),
                driver,
                driver_process: process.filter(|_| !always),
                netns,
                cpu_weight: weight.filter(|_| always || process == Some(true)),
                prefilter: mode.filter(|mode| is_simple || *mode == PrefilterMode::Off),
                prefilter_entries: entries,
                ..port
            }
        },
    )
}

fn tap(name: &'static str) -> impl Strategy<Value = PortSpec> {
    let netns = of(text().prop_map(|text| format!("n{text}")));
    let interface = of(prop_oneof![
        Just(name.to_owned()),
        Just(format!("if-{name}"))
    ]);
    let drivers = vec![
        UplinkDriver::Auto,
        UplinkDriver::Tap,
        UplinkDriver::VhostNet,
    ];
    let device = (interface, of(select(drivers)));
    let address = of(Just("fd00::1/64".to_owned()));
    (common(name).boxed(), device, netns, of(mac()), address).prop_map(
        |(port, (interface, driver), netns, mac, address)| PortSpec {
            kind: PortKind::Tap,
            interface,
            driver,
            netns,
            mac,
            address,
            ..port
        },
    )
}

fn ports() -> impl Strategy<Value = Vec<PortSpec>> {
    let one = |name| {
        let kinds = prop_oneof![
            2 => guest(name).boxed(),
            1 => uplink(name).boxed(),
            1 => tap(name).boxed(),
            2 => process_port(name).boxed(),
        ];
        kinds.boxed()
    };
    PORTS.map(one).prop_map(Vec::from).prop_shuffle()
}

fn port_texts() -> impl Strategy<Value = Vec<PortText>> {
    let one = prop_oneof![
        (0..=65535i64).prop_map(PortText::Number),
        (0..1000u16, 0..1000u16)
            .prop_map(|(from, more)| PortText::Text(format!("{from}-{}", from + more))),
    ];
    vec(one, 0..30)
}

/// Returns matches whose fields are valid together.
fn about() -> impl Strategy<Value = RuleSpec> {
    let addresses = || {
        let some = vec!["10.0.0.0/8", "192.168.0.1", "@set"];
        subsequence(some, 0..=3).prop_map(owned)
    };
    let tcp = (addresses(), addresses(), port_texts(), port_texts()).prop_map(
        |(source, destination, source_ports, destination_ports)| RuleSpec {
            ether_type: Some("ipv4".to_owned()),
            protocol: Some("tcp".to_owned()),
            tcp_flags: Some("syn/syn,ack".to_owned()),
            source,
            destination,
            source_ports,
            destination_ports,
            ..RuleSpec::default()
        },
    );
    let icmp = (any::<u8>(), of(any::<u8>())).prop_map(|(icmp_type, icmp_code)| RuleSpec {
        ether_type: Some("ipv4".to_owned()),
        protocol: Some("icmp".to_owned()),
        icmp_type: Some(icmp_type),
        icmp_code,
        ..RuleSpec::default()
    });
    let pieces = select(vec![Pieces::Whole, Pieces::First, Pieces::Later]);
    let pieces = pieces.prop_map(|pieces| RuleSpec {
        ether_type: Some("ipv4".to_owned()),
        fragment: Some(pieces),
        ..RuleSpec::default()
    });
    prop_oneof![tcp, icmp, pieces, Just(RuleSpec::default())]
}

fn rules(direction: Direction) -> impl Strategy<Value = Vec<RuleSpec>> {
    let actions = vec![RuleAction::Allow, RuleAction::Drop, RuleAction::Reject];
    let place = (
        of(mac()),
        of(mac()),
        of(0..=4094i64),
        subsequence(PORTS.to_vec(), 0..=2),
        of(Just("group".to_owned())),
    );
    let log = of((1..=1000u32).prop_map(|per_second| LogSpec { per_second }));
    let rule = (about().boxed(), select(actions), 0..3u32, log, place);
    vec(rule, 0..4).prop_map(move |all| {
        let rule =
            |(at, (about, action, priority, log, place)): (usize, (RuleSpec, _, _, _, _))| {
                let (source_mac, destination_mac, vlan, peer_ports, peer_group) = place;
                let peers = direction == Direction::ToGuest;
                RuleSpec {
                    name: format!("rule-{at}"),
                    action,
                    priority,
                    log,
                    source_mac,
                    destination_mac,
                    vlan,
                    peer_ports: owned(peer_ports).into_iter().filter(|_| peers).collect(),
                    peer_groups: Option::into_iter(peer_group).filter(|_| peers).collect(),
                    class: (at % 2 == 0).then(|| "default".to_owned()),
                    ..about
                }
            };
        all.into_iter().enumerate().map(rule).collect()
    })
}

fn lists() -> impl Strategy<Value = Vec<AccessListSpec>> {
    let list = select(vec![Direction::FromGuest, Direction::ToGuest]).prop_flat_map(|direction| {
        let members = (
            subsequence(SEGMENTS.to_vec(), 0..=2),
            of(Just("group".to_owned())),
            subsequence(PORTS.to_vec(), 0..=2),
        );
        (Just(direction), members, rules(direction).boxed())
    });
    vec(list, 0..3).prop_map(|all| {
        let list = |(at, (direction, (segments, group, ports), rules)): (
            usize,
            (_, (_, _, _), Vec<_>),
        )| {
            AccessListSpec {
                name: format!("list-{at}"),
                direction,
                segments: owned(segments),
                groups: Option::into_iter(group).collect(),
                ports: owned(ports),
                rules: rules.into(),
            }
        };
        all.into_iter().enumerate().map(list).collect()
    })
}

fn access() -> impl Strategy<Value = AccessModel> {
    let otherwise = || select(vec![Otherwise::Allow, Otherwise::Deny]);
    let addresses = vec("10\\.[1-9]\\.0\\.[1-9]", 0..30);
    let group = subsequence(PORTS.to_vec(), 0..=6);
    let default = of((select(SEGMENTS.to_vec()), otherwise(), otherwise()));
    (addresses, group, default, lists().boxed()).prop_map(|(addresses, group, default, lists)| {
        let name = "set".to_owned();
        let default = default.map(|(segment, from_guest, to_guest)| SegmentDefault {
            segment: segment.to_owned(),
            from_guest,
            to_guest,
        });
        AccessModel {
            address_sets: vec![AddressSet { name, addresses }].into(),
            groups: vec![Group {
                name: "group".to_owned(),
                ports: owned(group),
            }],
            defaults: default.into_iter().collect(),
            lists,
        }
    })
}

fn mirrors() -> impl Strategy<Value = Vec<MirrorSpec>> {
    let ways = vec![
        MirrorDirection::Both,
        MirrorDirection::In,
        MirrorDirection::Out,
    ];
    let filter = of(select(vec![
        "arp",
        "tcp port 80",
        "host 10.0.0.1 and not udp",
    ]));
    let parts = (
        subsequence(PORTS[1..].to_vec(), 0..=3),
        subsequence(SEGMENTS.to_vec(), 0..=2),
        select(ways),
        filter,
    );
    vec(parts, 0..3).prop_map(|all| {
        let mirror =
            |(at, (ports, segments, way, filter)): (usize, (Vec<_>, Vec<_>, _, Option<&str>))| {
                let something = !(ports.is_empty() && segments.is_empty());
                MirrorSpec {
                    name: format!("mirror-{at}"),
                    to: PORTS[0].to_owned(),
                    direction: if ports.is_empty() {
                        MirrorDirection::Both
                    } else {
                        way
                    },
                    ports: owned(ports),
                    segments: owned(segments),
                    filter: filter.or((!something).then_some("arp")).map(str::to_owned),
                }
            };
        all.into_iter().enumerate().map(mirror).collect()
    })
}

fn static_entries() -> impl Strategy<Value = Vec<StaticEntry>> {
    let parts = (select(SEGMENTS.to_vec()), mac(), select(PORTS.to_vec()));
    let entry = |(segment, mac, port): (&str, String, &str)| StaticEntry {
        segment: segment.to_owned(),
        mac,
        port: port.to_owned(),
    };
    vec(parts.prop_map(entry), 0..3)
}

fn pipes() -> impl Strategy<Value = Vec<PipeSpec>> {
    let owner = (of("[a-z]{1,6}"), of("0[0-7]{3}"));
    let parts = (slots(), of(path()), owner);
    vec(parts, 0..3).prop_map(|all| {
        let pipe =
            |(at, (slots, socket, (group, mode))): (usize, (Option<u16>, Option<String>, _))| {
                let usual = PipeSpec::new(format!("pipe-{at}"));
                let socket = socket.map(|path| format!("{path}-pipe-{at}"));
                PipeSpec {
                    slots: slots.unwrap_or(usual.slots),
                    socket: socket.unwrap_or_default(),
                    group,
                    mode,
                    ..usual
                }
            };
        all.into_iter().enumerate().map(pipe).collect()
    })
}

/// Any state with a few names.
fn any_state() -> impl Strategy<Value = DesiredState> {
    let listens = select(vec![
        "127.0.0.1:9464",
        "[::1]:1",
        "unix:m.sock",
        "unix:/srv/m.sock",
    ]);
    let listen = of(listens.prop_map(str::to_owned));
    let none = (
        Just(Vec::new()),
        Just(AccessModel::default()),
        Just(Vec::new()),
        Just(Vec::new()),
        Just(Vec::new()),
    );
    let some = (
        ports().boxed(),
        access().boxed(),
        mirrors().boxed(),
        static_entries().boxed(),
        pipes().boxed(),
    );
    let all = (
        switch(),
        listen,
        segments(),
        prop_oneof![1 => none, 9 => some],
    );
    let state = all.prop_map(
        |(switch, listen, segments, (ports, access, mirrors, fdb, pipes))| DesiredState {
            switch,
            metrics: MetricsSpec { listen },
            segments,
            access: Arc::new(access),
            mirrors,
            pipes,
            fdb: fdb
                .into_iter()
                .filter(|entry| is_member(&ports, entry))
                .collect(),
            ports: ports.into(),
            ..DesiredState::default()
        },
    );
    let state = (state, qos::scheduling()).prop_map(|(state, with)| with.of(state));
    // Some drawn states are invalid: equal rules, directories with dots.
    state.prop_filter("invalid", is_right)
}

fn is_member(ports: &[PortSpec], entry: &StaticEntry) -> bool {
    let port = ports.iter().find(|port| port.name == entry.port);
    port.is_some_and(|port| port.segments().any(|name| name == entry.segment))
}

fn is_right(state: &DesiredState) -> bool {
    let checked = desired::check(state, Path::new("/run/lasthop"));
    checked
        .and_then(|()| desired::check_access(state).map(drop))
        .is_ok()
}

proptest! {
    /// The file of any state reads as the same state.
    #[test]
    fn a_state_is_read_from_its_file(mut state in any_state()) {
        let raw = export(&state);
        desired::normalise(&mut state);
        let file = export(&state);
        let again = read(&file);
        prop_assert_eq!(again.as_ref().ok(), Some(&state), "{:?}\n{}", again.as_ref().err(), file);
        // A state that was not normalised before has the same file.
        prop_assert_eq!(read(&raw), Ok(state));
    }

    /// A file that was read and written has the same meaning, and is then written without change.
    #[test]
    fn a_file_is_written_once_and_for_all(state in any_state()) {
        let first = export(&state);
        let second = export(&read(&first).unwrap());
        let third = export(&read(&second).unwrap());
        prop_assert_eq!(second, third);
    }
}

/// Returns the keys that a table may have, from the error about an unknown one.
fn keys_of(table: &str) -> Vec<String> {
    let error = read(&format!("{table}\nunheard_of = 1\n")).unwrap_err();
    let words = error.expected.split([',', ' ', '"']);
    let words = words.filter(|word| !["", "one", "of", "the", "key", "keys", "or"].contains(word));
    words.map(str::to_owned).collect()
}

/// `export` writes every key that a file may have. The property tests above cover the other
/// direction.
#[test]
fn every_key_is_written() {
    let mut runner = TestRunner::deterministic();
    let mut written = BTreeSet::new();
    for _ in 0..100 {
        let state = any_state().new_tree(&mut runner).unwrap().current();
        let mut table = String::new();
        for line in export(&state).lines() {
            match line.split_once(" = ") {
                Some((key, _)) if !line.starts_with(' ') => {
                    written.insert((table.clone(), key.to_owned()));
                }
                _ if line.starts_with('[') => {
                    line.clone_into(&mut table);
                    written.insert((table.clone(), String::new()));
                }
                _ => {}
            }
        }
    }
    for (before, table) in [
        ("", "[switch]"),
        ("", "[switch.coalescing]"),
        ("", "[switch.connections]"),
        ("", "[metrics]"),
        ("", "[[segment]]"),
        (PORT, "[port.port_security]"),
        (PORT, "[port.limits]"),
        (PORT, "[port.egress]"),
        (PORT, "[port.qos]"),
        ("", "[[qos_class]]"),
        ("", "[[qos_group]]"),
        ("", "[[port]]\nkind = \"vhost-user\""),
        ("", "[[port]]\nkind = \"uplink\""),
        ("", "[[port]]\nkind = \"tap\""),
        ("", "[[address_set]]"),
        ("", "[[group]]"),
        ("", "[[acl_default]]"),
        ("", "[[acl]]"),
        ("[[acl]]\n", "[[acl.rule]]"),
        ("", "[[mirror]]"),
        ("", "[[fdb]]"),
    ] {
        let keys = keys_of(&format!("{before}{table}"));
        assert!(keys.len() > 1 || table == "[metrics]", "{table}: {keys:?}");
        let header = table.lines().next().unwrap();
        for key in keys {
            // Nested tables.
            let within = [
                "coalescing",
                "connections",
                "port_security",
                "limits",
                "egress",
                "qos",
                "rules",
                "rule",
            ];
            let is_within = within.contains(&key.as_str());
            let said = written.contains(&(header.to_owned(), key.clone()));
            assert!(said || is_within, "{table}: no {key}");
        }
    }
}

#[test]
fn a_file_looks_as_people_write_it() {
    let text = r#"[switch]
name = "host1"
workers = 2

[[segment]]
name = "blue"
vlan = 10

[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"
queues = 2
segment = "blue"
mac = "52:54:00:00:00:01"

[port.port_security]
addresses = ["10.0.0.5"]

[port.limits]
from_guest = { packets_per_second = 100000, bits_per_second = 1000000000 }

[[port]]
name = "up"
kind = "uplink"
interface = "eth1"
trunk = ["blue", "default"]

[[group]]
name = "web"
ports = ["vm1"]

[[acl]]
name = "web-in"
direction = "to-guest"
groups = ["web"]

[[acl.rule]]
name = "http"
action = "allow"
protocol = "tcp"
destination_ports = [80, "8000-8010"]
log = { per_second = 5 }

[[mirror]]
name = "m1"
to = "up"
ports = ["vm1"]
filter = "tcp port 80"

[[fdb]]
segment = "blue"
mac = "52:54:00:00:00:99"
port = "up"
"#;
    assert_eq!(export(&read(text).unwrap()), text);
    assert_eq!(export(&read("").unwrap()), "");
    assert_eq!(export(&DesiredState::default()), "");
}

#[test]
fn what_may_not_stand_in_a_string_is_escaped() {
    let text = "a\"\\\u{7f}\n\u{1b}\u{9b}ü";
    let mut state = DesiredState::default();
    state.ports.push(PortSpec::vhost_user("vm1", text));
    let file = export(&state);
    let line = r#"socket = "a\"\\\u007F\u000A\u001B\u009Bü""#;
    assert!(file.lines().any(|said| said == line), "{file}");
    let again = document::read(&file).ok().unwrap();
    assert_eq!(again.ports[0].socket, text);
}
