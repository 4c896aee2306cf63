//! Frames of several ports in any order, with any bytes, at the slow tracker: between them time
//! passes, rules change, stations move and zones are flushed.
//!
//! * A frame that is judged twice is judged as once.
//! * It changes one connection at most: that of its own tuple, and of that its own side.
//! * What is invalid, new or not tracked changes nothing.
//! * A frame changes a connection at its own ports alone.
//! * The words of a side are all of it.
//! * What is committed is known; what is forgotten, flushed or expired is not.

use arbitrary::{Result, Unstructured};
use conntrack::packet::{self, Message, Reading};
use conntrack::reference::{Entry, Ingress, Judgement, Tracker};
use conntrack::{Direction, Settings, Side};
use wire::build::{PacketBuilder, TcpFields};
use wire::flow::CtState;
use wire::{MacAddr, ParsedHeaders};

/// Steps of a run.
const STEPS: usize = 200;
/// A port that sends nothing.
const SERVER: u16 = 9;
/// Zones, of which frames choose one.
const ZONES: u16 = 2;

/// The target.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut run = Run {
        tracker: Tracker::new(Settings::default()),
        now: u32::MAX - 100_000,
    };
    for _ in 0..STEPS {
        if input.is_empty() || run.step(&mut input).is_err() {
            return;
        }
    }
}

struct Run {
    tracker: Tracker,
    now: u32,
}

/// A sequence number near those of others, or any.
fn number(u: &mut Unstructured<'_>) -> Result<u32> {
    let near = u32::from(u.arbitrary::<u8>()?);
    Ok(match u.int_in_range(0..=5u8)? {
        0..=2 => near.wrapping_sub(8),
        3 => near * 1000,
        4 => near << 24,
        _ => u.arbitrary()?,
    })
}

/// A frame of one of few hosts: whole, and near those of others.
fn built(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let station = |n: u8| MacAddr([2, 0, 0, 0, 0, n]);
    let (from, to) = (u.int_in_range(1..=3u8)?, u.int_in_range(1..=3u8)?);
    let builder = PacketBuilder::new(station(from), station(to));
    let six = |n: u8| [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)];
    let builder = if u.arbitrary()? {
        builder.ipv4([10, 0, 0, from], [10, 0, 0, to])
    } else {
        builder.ipv6(six(from), six(to))
    };
    let (src, dst) = (u.int_in_range(1..=2u16)?, u.int_in_range(1..=2u16)?);
    let payload = usize::from(u.int_in_range(0..=200u8)?);
    let options = u.int_in_range(0..=12usize)?;
    let builder = match u.int_in_range(0..=6u8)? {
        0..=2 => builder.tcp(TcpFields {
            src_port: src,
            dst_port: dst,
            seq: number(u)?,
            ack: number(u)?,
            flags: u.arbitrary::<u8>()?.into(),
            options: u.bytes(options)?.to_vec(),
        }),
        3 => builder.udp(src, dst),
        4 => builder.icmp(u.arbitrary()?, 0, [0, src as u8, 0, 1]),
        5 => builder.echo_request(src, 1),
        _ => builder.protocol(u.arbitrary()?),
    };
    let builder = builder.payload(&vec![0; payload]);
    let builder = match u.int_in_range(0..=5u8)? {
        0 => builder
            .ip_id(1)
            .fragment(u.int_in_range(0..=6)?, u.arbitrary()?),
        _ => builder,
    };
    Ok(builder.build())
}

/// A frame with any bytes, or with some of another one that are damaged or quoted.
fn frame(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut bytes = built(u)?;
    match u.int_in_range(0..=7u8)? {
        0 => {
            let len = u.int_in_range(0..=160usize)?;
            return Ok(u.bytes(len.min(u.len()))?.to_vec());
        }
        1 => {
            let at = u.int_in_range(0..=80usize)?;
            let value = u.arbitrary()?;
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        2 => bytes.truncate(u.int_in_range(0..=100)?),
        3 => {
            let (dst, src) = (bytes[5], bytes[11]);
            let cut = u.int_in_range(14..=90usize)?.min(bytes.len());
            let error =
                PacketBuilder::new(MacAddr([2, 0, 0, 0, 0, dst]), MacAddr([2, 0, 0, 0, 0, src]))
                    .ipv4([10, 0, 0, dst], [10, 0, 0, src])
                    .icmp(3, 3, [0; 4])
                    .payload(bytes.get(14..cut).unwrap_or_default());
            bytes = error.build();
        }
        _ => {}
    }
    Ok(bytes)
}

fn read(zone: u16, bytes: &[u8]) -> Reading {
    let headers = &bytes[..bytes.len().min(wire::SNAPSHOT)];
    packet::read(
        zone,
        &ParsedHeaders::parse(headers, bytes.len()),
        headers,
        true,
    )
}

impl Run {
    fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=20u8)? {
            0 => self.now = self.now.wrapping_add(u.arbitrary::<u16>()?.into()),
            1 => self.now = self.now.wrapping_add(200_000),
            2 => self.tracker.epoch = self.tracker.epoch.wrapping_add(1),
            3 => self.flush(u.int_in_range(0..=ZONES - 1)?),
            _ => {
                let bytes = frame(u)?;
                let read = read(u.int_in_range(0..=ZONES - 1)?, &bytes);
                // Mostly the port of its station; other ports are those of thieves.
                let port = match u.int_in_range(0..=9u8)? {
                    0 => u.int_in_range(1..=4)?,
                    _ => u16::from(bytes.get(11).copied().unwrap_or_default() & 3),
                };
                let from = Ingress {
                    port,
                    is_home: u.ratio(1, 16)?,
                    ..Ingress::default()
                };
                self.judge(&read, from);
                self.act(&read, from, u.arbitrary()?);
            }
        }
        Ok(())
    }

    fn flush(&mut self, zone: u16) {
        self.tracker.flush(zone);
        let left = self.entries();
        assert!(left.iter().all(|entry| entry.tuple.zone() != zone));
    }

    fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<_> = self.tracker.entries(self.now).cloned().collect();
        entries.sort_by_key(|entry| (*entry.tuple.words(), entry.ports));
        entries
    }

    /// Judges a frame, and checks all that it may change.
    fn judge(&mut self, read: &Reading, from: Ingress) {
        let before = self.entries();
        let once = self.tracker.judge(read, from, self.now);
        let after = self.entries();
        let state = once.state();
        assert_eq!(
            state.contains(CtState::TRACKED),
            !matches!(once, Judgement::Untracked(_))
        );
        let mut changed = before
            .iter()
            .zip(&after)
            .filter(|(a, b)| (a.progress, a.sides, a.ports) != (b.progress, b.sides, b.ports));
        if let Some((old, new)) = changed.next() {
            assert!(changed.next().is_none(), "two connections");
            let Judgement::Known { connection, .. } = once else {
                panic!("{once:?} changes {old:?} to {new:?}")
            };
            let (own, other) = match connection.direction {
                Direction::Original => (0, 1),
                Direction::Reply => (1, 0),
            };
            assert_eq!(old.sides[other], new.sides[other]);
            let mine = old.ports[own] == Some(from.port);
            assert!(mine && old.ports == new.ports, "{from:?} of {old:?}");
            for side in new.sides {
                assert_eq!(Side::from_words(side.words()), side);
            }
        }
        let again = self.tracker.judge(read, from, self.now);
        assert_eq!(again.state(), state, "judged again");
        // What was judged twice is as it was, but for the answer that is no longer the first one.
        let answer = matches!(once, Judgement::Known { connection, .. } if !connection.replied);
        for (a, b) in after.iter().zip(self.entries()) {
            assert_eq!(a.progress.tcp(), b.progress.tcp());
            if !answer {
                assert_eq!(
                    (a.progress, a.sides, a.ports),
                    (b.progress, b.sides, b.ports)
                );
            }
        }
    }

    /// Does what the decision about a frame asks for.
    fn act(&mut self, read: &Reading, from: Ingress, allowed: bool) {
        let judged = self.tracker.judge(read, from, self.now);
        match judged {
            Judgement::Known {
                refused: true,
                connection,
            } if !connection.moved => self.tracker.forget(read, from, self.now),
            Judgement::Known { connection, .. } if connection.stale || connection.moved => {
                if allowed {
                    let far = connection.far.or(Some(SERVER));
                    self.tracker.commit(read, from, far, self.now);
                    let judged = self.tracker.judge(read, from, self.now).state();
                    assert!(
                        !judged.intersects(CtState::STALE | CtState::MOVED),
                        "{judged:?}"
                    );
                } else {
                    self.tracker.deny(read, from, self.now);
                }
            }
            Judgement::New if allowed => {
                self.tracker.commit(read, from, None, self.now);
                let known = self.tracker.judge(read, from, self.now).state();
                // Of a later fragment there is nothing to commit.
                let whole =
                    matches!(read, Reading::Packet(packet) if packet.message != Message::Error);
                assert!(
                    !whole || known.contains(CtState::ESTABLISHED),
                    "{known:?} of {read:?}"
                );
            }
            _ => {}
        }
    }
}
