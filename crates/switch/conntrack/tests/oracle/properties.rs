//! Properties of judgements on the same random walks, without the kernel.

use std::time::Duration;

use conntrack::reference::{Connection, Entry, Ingress, Judgement};
use conntrack::{Direction, Side};

use crate::ours::{From, Ours, ingress, read, tuple};
use crate::walk;

/// Traces of a run.
const TRACES: u32 = 1500;

impl Ours {
    fn judge(&mut self, from: From, packet: &[u8]) -> Judgement {
        self.judge_at(ingress(from), packet)
    }

    fn judge_at(&mut self, ingress: Ingress, packet: &[u8]) -> Judgement {
        self.tracker.judge(&read(packet, false), ingress, self.now)
    }

    /// All connections.
    fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.tracker.entries(self.now).cloned().collect();
        entries.sort_by_key(|entry| *entry.tuple.words());
        entries
    }
}

/// All packets of a trace, each with its time.
fn walk(number: u32, mut each: impl FnMut(&mut Ours, From, &[u8])) {
    let mut ours = Ours::new();
    let parts = walk::trace(17, number).parts;
    for (packet, millis) in parts.iter().flatten().zip(1..) {
        // Time for UDP to become a stream.
        let pause = if millis > parts[0].len() as u64 {
            2200
        } else {
            0
        };
        ours.set_time(Duration::from_millis(pause + millis));
        each(&mut ours, packet.from, &packet.bytes);
    }
}

/// A frame that is given back by its batch is judged again. Of a second answer it is known that
/// there was one before, as of any answer that is sent again.
#[test]
fn judging_twice_is_judging_once() {
    for number in 0..TRACES {
        walk(number, |ours, from, packet| {
            let state = |ours: &Ours| tuple(packet).and_then(|tuple| ours.connection(&tuple));
            let once = ours.judge(from, packet);
            let after_once = state(ours);
            let twice = ours.judge(from, packet);
            let after_twice = state(ours);
            let verdict = |judged: Judgement| match judged {
                Judgement::Known {
                    connection,
                    refused,
                } => Judgement::Known {
                    connection: Connection {
                        replied: true,
                        ..connection
                    },
                    refused,
                },
                other => other,
            };
            assert_eq!(verdict(once), verdict(twice), "trace {number}");
            let first_answer =
                matches!(once, Judgement::Known { connection, .. } if !connection.replied);
            if first_answer && let Some(((once, a), (twice, b))) = after_once.zip(after_twice) {
                let windows = |sides: [Side; 2]| {
                    sides.map(|mut side| {
                        side.used = 0;
                        side
                    })
                };
                let (a, b) = (windows(a), windows(b));
                assert_eq!((once.tcp(), a), (twice.tcp(), b), "trace {number}");
            } else {
                assert_eq!(after_once, after_twice, "trace {number}");
            }
            let _ = ours.ask(from, packet);
        });
    }
}

/// A frame changes the connection of its own tuple alone, and only what its direction may change.
#[test]
fn frames_change_their_own_side() {
    for number in 0..TRACES {
        walk(number, |ours, from, packet| {
            let before = ours.entries();
            let judged = ours.judge(from, packet);
            let changed: Vec<_> = before
                .iter()
                .zip(ours.entries())
                .filter(|(before, after)| {
                    before.progress != after.progress || before.sides != after.sides
                })
                .map(|(before, after)| (before.clone(), after))
                .collect();
            assert!(changed.len() <= 1, "trace {number}");
            for (before, after) in changed {
                let Judgement::Known { connection, .. } = judged else {
                    panic!("trace {number}: {judged:?} changes a connection")
                };
                let other = match connection.direction {
                    Direction::Original => 1,
                    Direction::Reply => 0,
                };
                assert_eq!(before.sides[other], after.sides[other], "trace {number}");
            }
            let _ = ours.ask(from, packet);
        });
    }
}

/// Frames of a port that the connection has not: none is known.
#[test]
fn no_connection_is_reached_from_a_third_port() {
    for number in 0..TRACES {
        walk(number, |ours, from, packet| {
            let before = ours.entries();
            let third = Ingress {
                port: 9,
                is_home: false,
                ..Ingress::default()
            };
            let judged = ours.judge_at(third, packet);
            let foreign = matches!(judged, Judgement::Known { .. } | Judgement::Related(_));
            assert!(!foreign, "trace {number}: {judged:?}");
            let same = |(a, b): (&Entry, Entry)| {
                a.progress == b.progress && a.sides == b.sides && a.ports == b.ports
            };
            assert!(
                before.iter().zip(ours.entries()).all(same),
                "trace {number}"
            );
            let _ = ours.ask(from, packet);
        });
    }
}
