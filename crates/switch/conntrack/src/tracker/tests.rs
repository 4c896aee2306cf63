//! The tracker beside the slow one.

use std::net::IpAddr;

use proptest::prelude::*;

use super::pair::{self, Frame, Pair, Step};
use super::*;
use crate::Invalid;
use crate::packet::{Message, Piece};
use crate::segment::{Options, Segment};
use crate::table::{Layout, LimitKind, MIN_CAPACITY, PortLimits, Rule, Walk};
use crate::tuple::Station;

mod short_way;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

fn tuple(zone: u16, protocol: u8, ports: (u16, u16), v6: bool) -> Tuple {
    let end = |last: u8| match v6 {
        false => IpAddr::from([10, 0, 0, last]),
        true => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last.into()]),
    };
    Tuple::new(zone, protocol, (end(1), ports.0), (end(2), ports.1))
}

/// Segments near the few numbers that the walk uses.
fn segment() -> impl Strategy<Value = Segment> {
    let flags = prop_oneof![
        3 => Just(SYN), 3 => Just(SYN | ACK), 8 => Just(ACK), 2 => Just(FIN | ACK),
        1 => Just(RST), 1 => Just(RST | ACK), 1 => any::<u8>(),
    ];
    let near = || prop_oneof![6 => 1000..1004_u32, 1 => any::<u32>()];
    let size = prop_oneof![3 => Just(0_u32), 2 => 1..3_u32, 1 => 0..70_000_u32];
    (flags, near(), near(), size, any::<u16>(), any::<bool>()).prop_map(
        |(flags, seq, ack, payload, window, scales)| Segment {
            seq,
            ack,
            sack: ack,
            payload,
            window,
            flags,
            options: Options {
                present: scales,
                scale: scales.then_some(2),
                sack_permitted: scales,
            },
        },
    )
}

fn read() -> impl Strategy<Value = Reading> {
    let message = prop_oneof![
        12 => segment().prop_map(Message::Tcp),
        3 => Just(Message::Udp),
        1 => Just(Message::Request),
        1 => Just(Message::Answer),
        1 => Just(Message::Error),
        1 => Just(Message::Other),
    ];
    let place = (1..3_u16, 0..2_u16, any::<bool>(), any::<bool>());
    (message, place, any::<bool>()).prop_map(|(message, (zone, port, v6, back), error)| {
        let protocol = match message {
            Message::Tcp(_) => 6,
            Message::Udp => 17,
            Message::Request | Message::Answer if v6 => 58,
            Message::Request | Message::Answer => 1,
            Message::Error if error => 6,
            Message::Error => 17,
            Message::Other => 47,
        };
        let tuple = tuple(zone, protocol, (40_000 + port, 80), v6);
        let tuple = if back { tuple.reversed() } else { tuple };
        Reading::Packet(Packet {
            tuple,
            message,
            piece: None,
        })
    })
}

/// Fragments of two datagrams of UDP in each direction of a zone.
fn fragment() -> impl Strategy<Value = Reading> {
    let places = prop_oneof![
        4 => Just((0, 1480)),
        1 => Just((0, 8)),
        4 => Just((1480, 2000)),
        1 => Just((8, 2000)),
    ];
    (places, 1..3_u16, (1..3_u16, any::<bool>()), 0..8_u8).prop_map(
        |((start, end), id, (zone, back), kind)| {
            let orient = |tuple: Tuple| if back { tuple.reversed() } else { tuple };
            let mut ports = (0, id);
            if back {
                ports = (id, 0);
            }
            let piece = Piece {
                datagram: orient(tuple(zone, 17, ports, false)),
                start,
                end,
            };
            match (start, kind) {
                (0, 0) => Reading::Invalid(Invalid::TinyFragment, Some(piece)),
                (0, _) => Reading::Packet(Packet {
                    tuple: orient(tuple(zone, 17, (40_000, 80), false)),
                    message: Message::Udp,
                    piece: Some(piece),
                }),
                _ => Reading::Later(piece),
            }
        },
    )
}

fn frame() -> impl Strategy<Value = Frame> {
    let read = prop_oneof![
        30 => read(),
        3 => fragment(),
        1 => Just(Reading::Invalid(Invalid::Header, None)),
    ];
    let usual = prop::bool::weighted(0.9);
    (
        read,
        (usual, 0..4_u16, any::<bool>(), 0..3_u16),
        any::<bool>(),
        prop::bool::weighted(0.8),
    )
        .prop_map(|(read, (usual, port, is_home, number), known, allowed)| {
            // The sides of the tuples are at ports 1 and 2, but for a few frames.
            let back = match &read {
                Reading::Packet(packet) => packet.tuple.src() > packet.tuple.dst(),
                Reading::Later(piece) => piece.datagram.src() > piece.datagram.dst(),
                _ => false,
            };
            let (own, other) = if back { (2, 1) } else { (1, 2) };
            let stations = |source, destination| Stations {
                source: Station(source),
                destination: Station(destination),
            };
            let from = if usual {
                Ingress {
                    port: own,
                    is_home: true,
                    stations: stations(own, other),
                }
            } else {
                Ingress {
                    port,
                    is_home,
                    stations: stations(number, other),
                }
            };
            Frame {
                from,
                read,
                // A frame does not go back to its port.
                far: (known && other != from.port).then_some(other),
                allowed,
            }
        })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => frame().prop_map(Step::Frame),
        3 => (0..5000_u32).prop_map(Step::Wait),
        1 => (0..400_000_u32).prop_map(Step::Wait),
        1 => Just(Step::Rules),
        1 => Just(Step::Walk),
        1 => Just(Step::Restart),
        1 => (1..3_u16).prop_map(Step::Flush),
    ]
}

const LAYOUT: Layout = Layout::new(MIN_CAPACITY);
/// How long the middle of an unknown connection may be an answer.
const GRACE: Millis = 60_000;

fn at(port: Port) -> Ingress {
    Ingress {
        port,
        is_home: true,
        ..Ingress::default()
    }
}

/// A segment from the middle of a connection that a client at port 1 has opened to a server at 2.
fn middle(from: Port, seq: u32, ack: u32) -> Reading {
    let tuple = tuple(1, 6, (40_000, 80), false);
    let segment = Segment {
        seq,
        ack,
        sack: ack,
        payload: 100,
        window: 1000,
        flags: ACK,
        ..Segment::default()
    };
    Reading::Packet(Packet {
        tuple: if from == 1 { tuple } else { tuple.reversed() },
        message: Message::Tcp(segment),
        piece: None,
    })
}

#[test]
fn the_middle_of_a_connection_may_be_an_answer_while_the_table_or_a_guest_is_new() {
    let table = Table::heap(LAYOUT, 1);
    let (settings, mut tracker) = (Settings::default(), Tracker::new(&table).unwrap());
    let mut asks = |now| {
        let mut tracking = tracker.begin(&settings, now);
        let read = middle(2, 1000, 500);
        let probe = tracking.probe(&read);
        let judged = tracking.judge(&read, probe, at(2), 0);
        assert!(judged.is_middle);
        assert_eq!(judged.judgement, Judgement::New);
        tracking.may_answer(at(2), Some(1), GRACE)
    };
    assert!(asks(0) && asks(GRACE - 1));
    assert!(!asks(GRACE));
    assert!(
        !asks(0),
        "it is over for good, also when the clock has wrapped"
    );
    table.greet(1, 500_000);
    assert!(asks(500_000) && asks(559_999) && !asks(560_000));
}

#[test]
fn an_answer_opens_its_connection_for_both_sides() {
    let table = Table::heap(LAYOUT, 1);
    let (settings, mut tracker) = (Settings::default(), Tracker::new(&table).unwrap());
    let mut tracking = tracker.begin(&settings, 10);
    let read = middle(2, 1000, 500);
    let probe = tracking.probe(&read);
    let rule = Rule {
        epoch: 3,
        number: 8,
        mark: 0x77,
    };
    let committed = tracking.commit_answer(&read, probe, (at(2), 1), rule);
    assert!(matches!(committed, CommitResult::Opened(_)));
    for (port, direction) in [(2, Direction::Reply), (1, Direction::Original)] {
        let numbers = if port == 1 { (500, 1100) } else { (1100, 500) };
        let read = middle(port, numbers.0, numbers.1);
        let probe = tracking.probe(&read);
        let judged = tracking.judge(&read, probe, at(port), 3);
        let Judgement::Known { connection, .. } = judged.judgement else {
            panic!("{judged:?}")
        };
        assert_eq!(connection.direction, direction);
        assert!(connection.replied && !connection.stale && !connection.moved);
        assert_eq!(connection.far, Some(3 - port));
        assert_eq!(judged.ct().mark(), 0x77);
        tracking.count(judged.place.unwrap(), 2, 300);
    }
    // Nowhere else.
    let read = middle(2, 1200, 500);
    let probe = tracking.probe(&read);
    let elsewhere = Ingress {
        port: 5,
        is_home: false,
        ..Ingress::default()
    };
    let judged = tracking.judge(&read, probe, elsewhere, 3);
    assert_eq!(judged.judgement, Judgement::New);
    drop(tracking);
    let mut walker = table.walker().unwrap();
    walker.walk(&mut Walk::default(), 9, (&settings, 10), |connection| {
        assert_eq!(connection.traffic, [(2, 300); 2]);
        assert_eq!((connection.opener(), connection.rule), (1, 8));
        true
    });
    assert_eq!(table.len(), 1);
}

#[test]
fn a_denied_connection_is_opened_anew_by_a_syn_alone() {
    let table = Table::heap(LAYOUT, 1);
    let (settings, mut tracker) = (Settings::default(), Tracker::new(&table).unwrap());
    let rule = |epoch| Rule {
        epoch,
        ..Rule::default()
    };
    let judge = |tracking: &mut Tracking<'_>, read: &Reading, from, epoch| {
        let probe = tracking.probe(read);
        let judged = tracking.judge(read, probe, at(from), epoch);
        (probe, judged)
    };
    // In the middle of a closing connection, which would be over in a minute.
    let mut tracking = tracker.begin(&settings, 10);
    let data = [middle(1, 500, 1000), middle(2, 1000, 600)];
    let opened = tracking.probe(&data[0]);
    tracking.commit(&data[0], opened, (at(1), Some(2)), rule(0));
    judge(&mut tracking, &data[1], 2, 0);
    judge(
        &mut tracking,
        &with_flags(middle(1, 600, 1100), FIN | ACK),
        1,
        0,
    );
    drop(tracking);
    let mut tracking = tracker.begin(&settings, 20);
    let (_, judged) = judge(&mut tracking, &data[0], 1, 1);
    tracking.deny(judged.place.unwrap(), 2);
    assert!(tracking.about(judged.place.unwrap()).is_some());
    tracking.deny(judged.place.unwrap(), 1);
    drop(tracking);
    let hour = 3_600_000;
    let stale = CtState::TRACKED | CtState::ESTABLISHED | CtState::STALE;
    for now in [hour, 20 * hour] {
        let mut tracking = tracker.begin(&settings, now);
        for (read, from, reply) in [
            (&data[0], 1, CtState::empty()),
            (&data[1], 2, CtState::REPLY),
            (&with_flags(middle(1, 600, 1100), RST), 1, CtState::empty()),
        ] {
            let (_, judged) = judge(&mut tracking, read, from, 1);
            assert_eq!(judged.state(), stale | reply, "{read:?}");
        }
        for from in [1, 2] {
            let syn = with_flags(middle(from, 9000, 0), SYN);
            assert_eq!(
                judge(&mut tracking, &syn, from, 1).1.judgement,
                Judgement::New
            );
        }
    }
    // What rules allow opens at once, in place of it.
    let mut tracking = tracker.begin(&settings, 21 * hour);
    let syn = with_flags(middle(2, 9000, 0), SYN);
    let (probe, _) = judge(&mut tracking, &syn, 2, 1);
    let committed = tracking.commit(&syn, probe, (at(2), Some(1)), rule(1));
    assert!(matches!(committed, CommitResult::Opened(_)));
    assert_eq!(table.len(), 1);
    // By the established connection's time a denied one ends.
    let (_, judged) = judge(&mut tracking, &syn, 2, 2);
    tracking.deny(judged.place.unwrap(), 2);
    drop(tracking);
    let mut tracking = tracker.begin(&settings, 46 * hour);
    assert!(judge(&mut tracking, &data[1], 2, 2).1.is_middle);
}

fn with_flags(read: Reading, flags: u8) -> Reading {
    let Reading::Packet(mut packet) = read else {
        return read;
    };
    if let Message::Tcp(segment) = &mut packet.message {
        segment.flags = flags;
        segment.payload = 0;
    }
    Reading::Packet(packet)
}

#[test]
fn a_refusal_says_which_limit_was_reached() {
    let table = Table::heap(Layout::new(8192), 1);
    let limits = PortLimits {
        guest: true,
        connections: Some(2),
    };
    table.set_limits(1, limits);
    let (settings, mut tracker) = (Settings::default(), Tracker::new(&table).unwrap());
    let read = |port| {
        Reading::Packet(Packet {
            tuple: tuple(1, 17, (port, 80), false),
            message: Message::Udp,
            piece: None,
        })
    };
    let mut tracking = tracker.begin(&settings, 0);
    // An own one makes room, until nothing more can be unlinked in this batch.
    let refused = (0..3000).find_map(|port| {
        let read = read(port);
        let probe = tracking.probe(&read);
        match tracking.commit(&read, probe, (at(1), None), Rule::default()) {
            CommitResult::Refused(refused) => Some(refused),
            _ => None,
        }
    });
    let refused = refused.expect("one");
    assert_eq!((refused.bound, refused.limit), (LimitKind::Configured, 2));
    assert_eq!(table.totals(1).refused, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 400 }))]

    #[test]
    fn the_tracker_judges_as_the_slow_one(
        steps in prop::collection::vec(step(), 1..if cfg!(miri) { 20 } else { 200 }),
        pick_up: bool,
        now: Millis,
    ) {
        let mut pair = Pair::new(pick_up, now);
        for step in &steps {
            pair.take(step);
        }
        pair.check();
    }
}
