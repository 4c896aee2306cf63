//! The short way and the long one: both have the same judgement, and leave the same state.

use super::*;
use crate::table::Connection;

/// A frame near the numbers of an established connection.
#[derive(Clone, Copy, Debug)]
struct Near {
    /// Whether the answering side sends it.
    back: bool,
    /// Offsets from the ends of its sender and of its receiver.
    seq: i32,
    ack: i32,
    payload: u32,
    window: u16,
    flags: u8,
    /// Offset of a selective acknowledgement from the acknowledgement.
    edge: u32,
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Segment(Near),
    Datagram { back: bool, port: Port },
    Wait(Millis),
    Rules,
    Flush,
}

fn near() -> impl Strategy<Value = Near> {
    let offset = || {
        prop_oneof![
            8 => Just(0),
            3 => -3000..3000_i32,
            2 => -200_000..200_000_i32,
            1 => any::<i32>(),
        ]
    };
    let payload = prop_oneof![3 => Just(0_u32), 5 => Just(1448_u32), 1 => 0..70_000_u32];
    let window = prop_oneof![4 => 500..2000_u16, 1 => Just(0_u16), 1 => any::<u16>()];
    let flags = prop_oneof![20 => Just(ACK), 5 => Just(ACK | 8), 1 => any::<u8>()];
    let edge = prop_oneof![9 => Just(0_u32), 1 => 0..5000_u32];
    let numbers = (offset(), offset(), payload, window);
    (any::<bool>(), numbers, flags, edge).prop_map(
        |(back, (seq, ack, payload, window), flags, edge)| Near {
            back,
            seq,
            ack,
            payload,
            window,
            flags,
            edge,
        },
    )
}

fn next_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        60 => near().prop_map(Move::Segment),
        10 => (any::<bool>(), prop_oneof![9 => Just(0), 1 => 1..4_u16])
            .prop_map(|(back, port)| Move::Datagram { back, port }),
        6 => (0..3000_u32).prop_map(Move::Wait),
        2 => (0..40_000_u32).prop_map(Move::Wait),
        1 => Just(Move::Rules),
        1 => Just(Move::Flush),
    ]
}

/// A table with its thread.
struct Way {
    table: Table,
    tracker: Tracker,
    walker: Worker,
}

impl Way {
    fn new() -> Self {
        let table = Table::heap(LAYOUT, 2);
        Self {
            tracker: Tracker::new(&table).unwrap(),
            walker: table.walker().unwrap(),
            table,
        }
    }

    fn connections(&mut self, time: (&Settings, Millis)) -> Vec<Connection> {
        let mut all = Vec::new();
        let walk = &mut Walk::default();
        self.walker.walk(walk, usize::MAX, time, |connection| {
            all.push(*connection);
            true
        });
        all.sort_by_key(|connection| *connection.tuple.words());
        all
    }
}

/// Both ways side by side.
struct Ways {
    settings: Settings,
    now: Millis,
    epoch: u16,
    long: Way,
    short: Way,
    /// Frames that the short way has not declined.
    passed: usize,
    ends: [u32; 2],
}

impl Ways {
    /// Two tables with an established connection of TCP and one of UDP.
    fn new(now: Millis, ends: [u32; 2], scale: Option<u8>) -> Self {
        let mut ways = Self {
            settings: Settings::default(),
            now,
            epoch: 0,
            long: Way::new(),
            short: Way::new(),
            passed: 0,
            ends,
        };
        let segment = |flags, [seq, ack]: [u32; 2]| Segment {
            seq,
            ack,
            sack: ack,
            window: 1000,
            flags,
            options: Options {
                present: flags & SYN != 0,
                scale: scale.filter(|_| flags & SYN != 0),
                sack_permitted: true,
            },
            ..Segment::default()
        };
        let [a, b] = ends;
        let (before_a, before_b) = (a.wrapping_sub(1), b.wrapping_sub(1));
        for (back, flags, numbers) in [
            (false, SYN, [before_a, 0]),
            (true, SYN | ACK, [before_b, a]),
            (false, ACK, [a, b]),
            (true, ACK, [b, a]),
        ] {
            ways.frame(back, None, Message::Tcp(segment(flags, numbers)));
        }
        for back in [false, true] {
            ways.frame(back, None, Message::Udp);
        }
        ways
    }

    fn take(&mut self, step: Move) {
        match step {
            Move::Wait(time) => self.now = self.now.wrapping_add(time),
            Move::Rules => self.epoch += 1,
            Move::Flush => {
                self.long.table.flush_zone(1);
                self.short.table.flush_zone(1);
            }
            Move::Datagram { back, port } => {
                self.frame(back, (port != 0).then_some(port), Message::Udp);
            }
            Move::Segment(near) => {
                let own = usize::from(near.back);
                let seq = self.ends[own].wrapping_add_signed(near.seq);
                let ack = self.ends[1 - own].wrapping_add_signed(near.ack);
                let segment = Segment {
                    seq,
                    ack,
                    sack: ack.wrapping_add(near.edge),
                    payload: near.payload,
                    window: near.window,
                    flags: near.flags,
                    ..Segment::default()
                };
                if near.seq == 0 {
                    self.ends[own] = self.ends[own].wrapping_add(near.payload);
                }
                self.frame(near.back, None, Message::Tcp(segment));
            }
        }
        self.compare();
    }

    /// Judges a frame in both ways, and commits it as rules that allow all would.
    fn frame(&mut self, back: bool, port: Option<Port>, message: Message) {
        let protocol = if message == Message::Udp { 17 } else { 6 };
        let tuple = tuple(1, protocol, (40_000, 80), false);
        let (usual, far) = if back { (2, 1) } else { (1, 2) };
        let read = Reading::Packet(Packet {
            tuple: if back { tuple.reversed() } else { tuple },
            message,
            piece: None,
        });
        let from = Ingress {
            port: port.unwrap_or(usual),
            is_home: false,
            ..Ingress::default()
        };
        let (rule, now) = (self.rule(), self.now);
        let [long, short] = [(&mut self.long, false), (&mut self.short, true)].map(|way| {
            let (Way { tracker, .. }, is_short) = way;
            let mut tracking = tracker.begin(&self.settings, now);
            let probe = tracking.probe(&read);
            if is_short
                && let Some((ct, far)) = pair::pass(&tracking, &read, (probe, from, rule.epoch))
            {
                self.passed += 1;
                return (ct, Some(far));
            }
            let judged = tracking.judge(&read, probe, from, rule.epoch);
            let asks = CtState::NEW | CtState::STALE | CtState::MOVED;
            if judged.state().intersects(asks) {
                tracking.commit(&read, probe, (from, Some(far)), rule);
            }
            let far = match judged.judgement {
                Judgement::Known { connection, .. } => Some(connection.far),
                _ => None,
            };
            (judged.ct(), far)
        });
        assert_eq!(short, long, "{read:?}");
    }

    fn rule(&self) -> Rule {
        Rule {
            epoch: self.epoch,
            number: 3,
            mark: 0x55,
        }
    }

    fn compare(&mut self) {
        let time = (&self.settings, self.now);
        let long = self.long.connections(time);
        let short = self.short.connections(time);
        assert_eq!(short, long);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 300 }))]

    #[test]
    fn the_short_way_is_the_long_one(
        steps in prop::collection::vec(next_move(), 1..if cfg!(miri) { 20 } else { 100 }),
        ends: [u32; 2],
        scale in prop::option::of(0..15_u8),
        now: Millis,
    ) {
        let mut ways = Ways::new(now, ends, scale);
        for step in steps {
            ways.take(step);
        }
    }
}

#[test]
fn the_short_way_takes_most_frames() {
    let mut ways = Ways::new(0, [1000, 2000], Some(7));
    let before = ways.passed;
    for n in 0..100 {
        let back = n % 3 == 0;
        ways.take(Move::Segment(Near {
            back,
            seq: 0,
            ack: 0,
            payload: if back { 0 } else { 1448 },
            window: 1000,
            flags: ACK,
            edge: 0,
        }));
        ways.take(Move::Datagram { back, port: 0 });
    }
    assert_eq!(ways.passed - before, 200);
}
