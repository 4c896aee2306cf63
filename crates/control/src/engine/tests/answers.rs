//! Questions for known addresses are answered, all others are flooded, one by one.

use std::net::Ipv6Addr;

use api::v1::{Allowed, AllowedWord, GuardSpec, PortSpec, SegmentPatch};
use channel::records::{Answer, Upcall};
use channel::switching::{PortPhase, Report};
use port::PortId;
use wire::build::PacketBuilder;
use wire::{Conduct, FlowKey, MacAddr, Parsed};

use super::super::Engine;

use super::world::{World, asked, flood, mac, port};
use crate::wanted::Change;

const OWNED: [u8; 4] = [10, 0, 0, 2];

/// The guest of port `a` asks, that of `b` owns an address, that of `c` has what it says first, and of `d` nothing is known.
fn world() -> (World, Engine) {
    let with = |name: &str, guard| PortSpec {
        guard,
        ..port(name, "blue")
    };
    let owner = GuardSpec {
        macs: Some(Allowed::List(vec![mac(2).to_string()])),
        addresses: list(&["10.0.0.2", "2001:db8::2", "10.9.0.0/16"]),
        ..GuardSpec::default()
    };
    let learned = GuardSpec {
        addresses: Some(Allowed::Word(AllowedWord::LearnedOnce)),
        ..GuardSpec::default()
    };
    let mut world = World::new(vec![
        with("a", GuardSpec::open()),
        with("b", owner),
        with("c", learned),
        with("d", GuardSpec::open()),
    ]);
    world.switch().guests_are_there = true;
    let mut engine = world.start().unwrap();
    suppress(&mut engine, true);
    (0..4).for_each(|port| phase(&world, &mut engine, port, PortPhase::Up));
    (world, engine)
}

fn phase(world: &World, engine: &mut Engine, port: u32, phase: PortPhase) {
    world.report(&Report::Phase {
        port: PortId(port),
        phase,
        reason: None,
    });
    world.settle(engine);
    world.answers();
}

fn list(all: &[&str]) -> Option<Allowed> {
    Some(Allowed::List(all.iter().map(|&text| text.into()).collect()))
}

fn suppress(engine: &mut Engine, on: bool) {
    let patch = SegmentPatch {
        neighbour_suppression: Some(Some(on)),
        ..SegmentPatch::default()
    };
    let change = Change::SetSegment("blue".to_owned(), patch);
    engine.change(&asked(change)).unwrap();
}

/// What control answers to a frame.
fn send(world: &World, engine: &mut Engine, port: u32, frame: &PacketBuilder) -> Answer {
    let frame = frame.build();
    let parsed = Parsed::parse(&frame, frame.len());
    let key = FlowKey::new(port, &parsed).with_conduct(Conduct::of(&frame, frame.len()));
    let upcall = Upcall {
        id: 7,
        key: *key.with_l4_ports(0, 9).words(),
        frame_len: frame.len() as u32,
        headers: frame,
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

/// Who the answer says it is.
#[track_caller]
fn replied(answer: Answer) -> MacAddr {
    let Answer::Reply { upcall, frame } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (upcall, frame[..6] == mac(1).0 || frame[0] == 0x33),
        (7, true)
    );
    Parsed::parse(&frame, frame.len()).src
}

#[test]
fn what_is_sure_is_answered_and_all_else_is_flooded() {
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
    // The owner's own probe, and an announcement of somebody else, which is no question.
    let own = to_all(2).arp_request([0; 4], OWNED);
    is_flooded_alone(send(&world, engine, 1, &own));
    let announced = send(&world, engine, 0, &to_all(1).arp_request(OWNED, OWNED));
    assert!(matches!(announced, Answer::Install { .. }), "{announced:?}");
    let to_one = PacketBuilder::new(mac(1), mac(2)).arp_request([10, 0, 0, 1], OWNED);
    let asked = send(&world, engine, 0, &to_one);
    assert!(matches!(asked, Answer::Install { .. }), "{asked:?}");
    suppress(engine, false);
    world.settle(engine);
    world.answers();
    let flooded = send(&world, engine, 0, &who_has(OWNED));
    assert!(matches!(flooded, Answer::Install { .. }), "{flooded:?}");
}

#[test]
fn an_answer_is_as_long_true_as_what_it_says() {
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
    // Its guest goes, and with it what was bound; that of the other is configured, but nobody is there.
    for gone in [1, 2] {
        phase(&world, &mut engine, gone, PortPhase::Waiting);
    }
    is_flooded_alone(send(&world, &mut engine, 0, &who_has(third)));
    is_flooded_alone(send(&world, &mut engine, 0, &who_has(OWNED)));
}

#[test]
fn what_two_have_nobody_has_for_sure() {
    let (world, mut engine) = world();
    let second = GuardSpec {
        macs: Some(Allowed::List(vec![mac(5).to_string()])),
        addresses: list(&["10.0.0.2"]),
        ..GuardSpec::default()
    };
    let spec = PortSpec {
        guard: second,
        ..port("e", "blue")
    };
    engine.add_port(spec).unwrap();
    phase(&world, &mut engine, 4, PortPhase::Up);
    is_flooded_alone(send(&world, &mut engine, 0, &who_has(OWNED)));
}
