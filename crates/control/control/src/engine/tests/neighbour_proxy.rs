//! Neighbour requests for known addresses get replies, all others are flooded, one by one.

use std::net::Ipv6Addr;

use api::v1::{
    AccessModel, AllowedAddresses, AllowedWord, PortSecuritySpec, PortSpec, TraceAction,
    TraceFrame, TraceRequest,
};
use ipc::records::{Answer, Upcall};
use ipc::switching::{PhaseReport, PortPhase, SwitchEvent};
use port::PortId;
use serde_json::json;
use wire::build::PacketBuilder;
use wire::{FlowKey, MacAddr, ParsedHeaders};

use super::super::Engine;

use super::world::{World, asked, flood, mac, port};
use config::desired::{AccessChange, Change};

const OWNED: [u8; 4] = [10, 0, 0, 2];

/// The guest of port `a` sends requests, that of `b` owns an address, that of `c` has what it
/// announces first, and of `d` nothing is known.
fn world() -> (World, Engine) {
    let with = |name: &str, port_security| PortSpec {
        port_security,
        ..port(name, "blue")
    };
    let owner = PortSecuritySpec {
        macs: Some(AllowedAddresses::List(vec![mac(2).to_string()])),
        addresses: list(&["10.0.0.2", "2001:db8::2", "10.9.0.0/16"]),
        ..PortSecuritySpec::default()
    };
    let learned = PortSecuritySpec {
        addresses: Some(AllowedAddresses::Word(AllowedWord::Sticky)),
        ..PortSecuritySpec::default()
    };
    let mut world = World::new(vec![
        with("a", PortSecuritySpec::open()),
        with("b", owner),
        with("c", learned),
        with("d", PortSecuritySpec::open()),
    ]);
    world.switch().guests_are_there = true;
    let mut engine = world.start().unwrap();
    suppress(&mut engine, "blue", true);
    (0..4).for_each(|port| phase(&world, &mut engine, port, PortPhase::Up));
    (world, engine)
}

fn phase(world: &World, engine: &mut Engine, port: u32, phase: PortPhase) {
    world.report(&SwitchEvent::Phases(vec![PhaseReport {
        port: PortId(port),
        phase,
        reason: None,
    }]));
    world.settle(engine);
    world.answers();
}

fn list(all: &[&str]) -> Option<AllowedAddresses> {
    Some(AllowedAddresses::List(
        all.iter().map(|&text| text.into()).collect(),
    ))
}

fn suppress(engine: &mut Engine, segment: &str, on: bool) {
    let patch = json!({"neighbour_suppression": on});
    let change = Change::SetSegment(segment.to_owned(), patch);
    engine.try_change(&asked(change)).unwrap();
}

/// Returns the answer to a frame.
fn send(world: &World, engine: &mut Engine, port: u32, frame: &PacketBuilder) -> Answer {
    send_numbered(world, engine, port, frame, 9)
}

/// Returns the answer to a frame to which the switch gave this number.
fn send_numbered(
    world: &World,
    engine: &mut Engine,
    port: u32,
    frame: &PacketBuilder,
    number: u16,
) -> Answer {
    let frame = frame.build();
    let parsed = ParsedHeaders::parse(&frame, frame.len());
    let key = FlowKey::new(port, &parsed)
        .with_frame_class(policy::frame_class::classify(&frame, frame.len()));
    let upcall = Upcall {
        id: 7,
        key: *key.with_l4_ports(0, number).words(),
        frame_len: frame.len() as u32,
        headers: frame,
        connection: None,
    };
    world.ask_with(engine, &upcall)
}

fn to_all(from: u8) -> PacketBuilder {
    PacketBuilder::new(mac(from), MacAddr::BROADCAST)
}

fn who_has(target: [u8; 4]) -> PacketBuilder {
    to_all(1).arp_request([10, 0, 0, 1], target)
}

fn solicits(src: &str) -> PacketBuilder {
    let target: Ipv6Addr = "2001:db8::2".parse().unwrap();
    let group: Ipv6Addr = "ff02::1:ff00:2".parse().unwrap();
    PacketBuilder::new(mac(1), MacAddr([0x33, 0x33, 0xff, 0, 0, 2]))
        .ipv6(src.parse::<Ipv6Addr>().unwrap(), group)
        .ttl(255)
        .icmp(135, 0, [0; 4])
        .payload(&target.octets())
}

#[track_caller]
fn is_flooded_alone(answer: Answer) {
    let Answer::Once { upcall, action, .. } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!((upcall, action), (7, flood(1)));
}

/// Returns the owner that a reply names.
#[track_caller]
fn replied(answer: Answer) -> MacAddr {
    let Answer::Reply { upcall, frame } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (upcall, frame[..6] == mac(1).0 || frame[0] == 0x33),
        (7, true)
    );
    ParsedHeaders::parse(&frame, frame.len()).src
}

#[test]
fn requests_for_known_owners_get_replies_and_all_others_are_flooded() {
    let (world, mut engine) = world();
    let engine = &mut engine;
    assert_eq!(replied(send(&world, engine, 0, &who_has(OWNED))), mac(2));
    let probe = to_all(1).arp_request([0; 4], OWNED);
    assert_eq!(replied(send(&world, engine, 0, &probe)), mac(2), "RFC 5227");
    for src in ["2001:db8::1", "::"] {
        assert_eq!(replied(send(&world, engine, 0, &solicits(src))), mac(2));
    }
    for unknown in [[10, 0, 0, 3], [10, 9, 0, 1], [10, 0, 0, 9]] {
        is_flooded_alone(send(&world, engine, 0, &who_has(unknown)));
    }
    // The owner's own probe, and an announcement of another host, which is no request.
    let own = to_all(2).arp_request([0; 4], OWNED);
    is_flooded_alone(send(&world, engine, 1, &own));
    let announced = send(&world, engine, 0, &to_all(1).arp_request(OWNED, OWNED));
    assert!(matches!(announced, Answer::Install { .. }), "{announced:?}");
    let to_one = PacketBuilder::new(mac(1), mac(2)).arp_request([10, 0, 0, 1], OWNED);
    let asked = send(&world, engine, 0, &to_one);
    assert!(matches!(asked, Answer::Install { .. }), "{asked:?}");
    suppress(engine, "blue", false);
    world.settle(engine);
    world.answers();
    let flooded = send(&world, engine, 0, &who_has(OWNED));
    assert!(matches!(flooded, Answer::Install { .. }), "{flooded:?}");
}

#[test]
fn a_reply_holds_as_long_as_the_binding() {
    let (mut world, mut engine) = world();
    let third = [10, 0, 0, 3];
    is_flooded_alone(send(&world, &mut engine, 0, &who_has(third)));
    let speaks = to_all(3).arp_request(third, [10, 0, 0, 1]);
    is_flooded_alone(send(&world, &mut engine, 2, &speaks));
    assert_eq!(
        replied(send(&world, &mut engine, 0, &who_has(third))),
        mac(3)
    );
    world.seconds(&mut engine, 2);
    drop(engine);
    let mut engine = world.start().unwrap();
    assert_eq!(
        replied(send(&world, &mut engine, 0, &who_has(third))),
        mac(3)
    );
    // Its guest disconnects, and its binding ends; the other address is configured, but its port is
    // not up.
    for gone in [1, 2] {
        phase(&world, &mut engine, gone, PortPhase::Waiting);
    }
    is_flooded_alone(send(&world, &mut engine, 0, &who_has(third)));
    is_flooded_alone(send(&world, &mut engine, 0, &who_has(OWNED)));
}

/// A port for which the operator lists the address [`OWNED`] and this MAC address.
fn listed(name: &str, segment: &str, station: u8) -> PortSpec {
    PortSpec {
        port_security: PortSecuritySpec {
            macs: Some(AllowedAddresses::List(vec![mac(station).to_string()])),
            addresses: list(&["10.0.0.2"]),
            ..PortSecuritySpec::default()
        },
        ..port(name, segment)
    }
}

#[test]
fn an_address_with_two_owners_is_contested() {
    let (world, mut engine) = world();
    engine.add_port(listed("e", "blue", 5)).unwrap();
    phase(&world, &mut engine, 4, PortPhase::Up);
    is_flooded_alone(send(&world, &mut engine, 0, &who_has(OWNED)));
    // The guest of a trunk may be in any of its segments: it owns nothing, and contests other
    // owners.
    engine.remove_port("e").unwrap();
    let mut trunk = listed("e", "blue", 5);
    (trunk.segment, trunk.trunk) = (None, Some(vec!["blue".to_owned(), "red".to_owned()]));
    engine.add_port(trunk).unwrap();
    phase(&world, &mut engine, 4, PortPhase::Up);
    is_flooded_alone(send(&world, &mut engine, 0, &who_has(OWNED)));
    engine.remove_port("b").unwrap();
    is_flooded_alone(send(&world, &mut engine, 0, &who_has(OWNED)));
}

#[test]
fn there_is_no_reply_for_a_port_that_is_not_up() {
    let (world, mut engine) = world();
    for down in [PortPhase::Connected, PortPhase::Faulted] {
        phase(&world, &mut engine, 1, down);
        is_flooded_alone(send(&world, &mut engine, 0, &who_has(OWNED)));
        phase(&world, &mut engine, 1, PortPhase::Up);
        let answer = send(&world, &mut engine, 0, &who_has(OWNED));
        assert_eq!(replied(answer), mac(2), "{down:?}");
    }
    engine.remove_port("b").unwrap();
    is_flooded_alone(send(&world, &mut engine, 0, &who_has(OWNED)));
}

#[test]
fn each_segment_has_its_own_owners() {
    let (world, mut engine) = world();
    engine.add_port(listed("e", "red", 5)).unwrap();
    engine.add_port(port("f", "red")).unwrap();
    [4, 5]
        .into_iter()
        .for_each(|port| phase(&world, &mut engine, port, PortPhase::Up));
    let asked = send(&world, &mut engine, 5, &who_has(OWNED));
    assert!(matches!(asked, Answer::Install { .. }), "{asked:?}");
    suppress(&mut engine, "red", true);
    let asks = |engine: &mut Engine, port| replied(send(&world, engine, port, &who_has(OWNED)));
    assert_eq!(asks(&mut engine, 5), mac(5));
    assert_eq!(asks(&mut engine, 0), mac(2));
    suppress(&mut engine, "blue", false);
    assert_eq!(asks(&mut engine, 5), mac(5));
    let asked = send(&world, &mut engine, 0, &who_has(OWNED));
    assert!(matches!(asked, Answer::Install { .. }), "{asked:?}");
}

#[test]
fn a_learned_owner_counts_less_than_a_listed_one_and_is_contested_by_another() {
    let (world, mut engine) = world();
    // The third guest announces the second one's address.
    let says = |who: u8, address| to_all(who).arp_request(address, [10, 0, 0, 99]);
    send(&world, &mut engine, 2, &says(3, OWNED));
    assert_eq!(
        replied(send(&world, &mut engine, 0, &who_has(OWNED))),
        mac(2)
    );
    phase(&world, &mut engine, 2, PortPhase::Waiting);
    phase(&world, &mut engine, 2, PortPhase::Up);
    // It takes the address of the fourth, of which nothing is known, and which sends then.
    let fourth = [10, 0, 0, 4];
    send(&world, &mut engine, 2, &says(3, fourth));
    let asks = |engine: &mut Engine| send(&world, engine, 0, &who_has(fourth));
    assert_eq!(replied(asks(&mut engine)), mac(3));
    send(&world, &mut engine, 3, &says(4, fourth));
    is_flooded_alone(asks(&mut engine));
}

#[test]
fn there_is_no_reply_where_access_lists_forbid_it() {
    let (world, mut engine) = world();
    let rule = r#"{"name": "arp", "action": "drop", "ether_type": "arp"}"#;
    for (direction, port) in [("to-guest", "b"), ("from-guest", "b"), ("to-guest", "a")] {
        let access: AccessModel = serde_json::from_str(&format!(
            r#"{{"lists": [{{"name": "one", "direction": "{direction}", "ports": ["{port}"],
                "rules": [{rule}]}}]}}"#
        ))
        .unwrap();
        let change = AccessChange::All(Box::new(access));
        engine.try_change(&asked(Change::Access(change))).unwrap();
        let answer = send(&world, &mut engine, 0, &who_has(OWNED));
        assert!(matches!(answer, Answer::Once { .. }), "{answer:?}");
        let solicited = send(&world, &mut engine, 0, &solicits("2001:db8::1"));
        assert_eq!(replied(solicited), mac(2));
    }
}

#[test]
fn a_switch_with_an_older_program_queues_other_requests_behind_an_upcall() {
    let (world, mut engine) = world();
    for question in [who_has(OWNED), solicits("2001:db8::1")] {
        is_flooded_alone(send_numbered(&world, &mut engine, 0, &question, 0));
    }
}

#[test]
fn a_trace_shows_a_proxied_neighbour_request() {
    let (world, mut engine) = world();
    let traced = |engine: &mut Engine, frame: &PacketBuilder| {
        let bytes = frame.build();
        let headers = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let request = TraceRequest {
            port: "a".to_owned(),
            frames: vec![TraceFrame {
                headers,
                length: None,
            }],
            ..TraceRequest::default()
        };
        let trace = engine.trace(&request).unwrap().traces.remove(0);
        let step = trace.steps.last().unwrap().text.clone();
        (step, trace.outcome)
    };
    let (step, outcome) = traced(&mut engine, &who_has(OWNED));
    let at = format!("10.0.0.2 is at {}", mac(2));
    assert_eq!(
        step,
        format!("{at} behind b by port security: neighbour suppression answers")
    );
    assert_eq!(outcome.text, format!("answered to a alone: {at}"));
    assert_eq!(
        (outcome.action, outcome.reason.as_deref()),
        (TraceAction::Answer, Some("neighbour-reply"))
    );
    let to: Vec<_> = outcome.receivers.iter().map(|r| r.port.as_str()).collect();
    assert_eq!(to, ["a"]);
    assert_eq!(
        traced(&mut engine, &solicits("::")).1.action,
        TraceAction::Answer
    );
    let (_, unknown) = traced(&mut engine, &who_has([10, 0, 0, 7]));
    assert_eq!(unknown.action, TraceAction::Flood);
    assert_eq!(world.answers(), vec![]);
}
