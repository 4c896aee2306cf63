//! A slow tracker with the whole semantics, to compare others with: connections in a map, without
//! bounds, threads or shared memory.
//!
//! | a frame | is |
//! |---|---|
//! | of a tuple that is known, from the port of its side | known |
//! | the same, from another port than the other side's, if the side has none yet | known, moved until committed |
//! | the same, from the port that its station has moved to | known, moved until committed |
//! | the same, from another port | looked up no further: of another connection, or new |
//! | an ICMP error that quotes a packet of a known connection | related |
//! | one that opens a connection | new |
//! | a later fragment | what the first one is |
//! | any other | invalid |

use std::collections::HashMap;

use crate::machine::{self, Context, Outcome};
use crate::packet::{Message, Packet, Piece, Reading};
use crate::progress::{Progress, Side};
use crate::timeouts::{Millis, Settings};
use crate::{Direction, Invalid, Tuple};

pub use crate::judgement::{Connection, Ingress, Judgement, Port, Stations};
pub use crate::tuple::Station;

/// Datagrams with a remembered first fragment, in all and of one port.
pub const DATAGRAMS: usize = 1024;
/// The same of one port.
pub const DATAGRAMS_OF_PORT: usize = 64;
/// How long a first fragment is remembered.
pub const DATAGRAM_TIMEOUT: Millis = 30_000;

/// A connection.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Tuple of the original direction.
    pub tuple: Tuple,
    /// Ports of the original and of the reply side.
    pub ports: [Option<Port>; 2],
    /// Stations of both, as the frames name them that have said the ports.
    pub stations: [Station; 2],
    /// The word of both directions.
    pub progress: Progress,
    /// The original and the reply side.
    pub sides: [Side; 2],
    /// When it was committed.
    pub created: Millis,
    /// Epoch of the rules that let it in.
    pub epoch: u16,
}

/// The first fragment of a datagram.
#[derive(Clone, Debug)]
struct First {
    port: Port,
    at: Millis,
    end: u32,
    /// The packet, or the reason that makes all fragments invalid.
    of: Result<Packet, Invalid>,
}

/// Whether a fragment is of this datagram.
fn is_of(datagram: &(Tuple, First), piece: &Piece, from: Ingress, now: Millis) -> bool {
    let (datagram, first) = datagram;
    let alive = now.wrapping_sub(first.at) < DATAGRAM_TIMEOUT;
    *datagram == piece.datagram && first.port == from.port && alive
}

/// The tracker.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    /// Settings.
    pub settings: Settings,
    /// The current epoch of rules.
    pub epoch: u16,
    /// By the tuple of either direction that is smaller as words; in the order of their commits.
    entries: HashMap<[u64; crate::tuple::WORDS], Vec<Entry>>,
    /// In the order of their arrival.
    datagrams: Vec<(Tuple, First)>,
}

fn place(tuple: &Tuple) -> [u64; crate::tuple::WORDS] {
    *tuple.words().min(tuple.reversed().words())
}

const fn index(direction: Direction) -> usize {
    match direction {
        Direction::Original => 0,
        Direction::Reply => 1,
    }
}

impl Entry {
    /// The direction of a frame with this tuple, whichever port it comes from.
    fn direction(&self, tuple: &Tuple) -> Option<Direction> {
        if self.tuple == *tuple {
            Some(Direction::Original)
        } else if self.tuple.reversed() == *tuple {
            Some(Direction::Reply)
        } else {
            None
        }
    }

    /// Gives it the ports of a frame that goes from one port to another. Returns whether it does
    /// so. The side that answers does not say where the other one is, and
    /// a flood not that the known port is left.
    fn renew(&mut self, direction: Direction, (from, to): (Ingress, Option<Port>)) -> bool {
        let before = self.ports;
        let [opener, far] = before;
        let own = Some(from.port);
        self.ports = match (direction, to) {
            (Direction::Original, Some(_)) => [own, to],
            (Direction::Original, None) if far.is_none() => [own, None],
            (Direction::Reply, Some(_)) if opener == to => [opener, own],
            _ => return false,
        };
        self.progress = self.progress.without(Progress::DENIED);
        let Stations {
            source,
            destination,
        } = from.stations;
        let named = match direction {
            Direction::Original => [source, destination],
            Direction::Reply => [destination, source],
        };
        for side in 0..2 {
            if before[side] != self.ports[side] {
                self.stations[side] = named[side];
            }
        }
        true
    }

    /// Milliseconds until it expires.
    #[must_use]
    pub fn remaining(&self, now: Millis, settings: &Settings) -> Option<Millis> {
        let of = (self.tuple.protocol(), self.tuple.is_v6());
        let [original, reply] = &self.sides;
        machine::remaining(of, self.progress, [original, reply], now, settings)
    }
}

impl Tracker {
    /// A tracker with these settings.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// The connections that have not expired.
    pub fn entries(&self, now: Millis) -> impl Iterator<Item = &Entry> {
        let all = self.entries.values().flatten();
        all.filter(move |entry| entry.remaining(now, &self.settings).is_some())
    }

    /// The connection of a tuple of either direction, whichever ports it has.
    #[must_use]
    pub fn entry(&self, tuple: &Tuple, now: Millis) -> Option<&Entry> {
        let all = self.entries.get(&place(tuple))?;
        let mut all = all.iter();
        all.find(|entry| entry.remaining(now, &self.settings).is_some())
    }

    /// Judges a frame, and has its connection advance.
    pub fn judge(&mut self, read: &Reading, from: Ingress, now: Millis) -> Judgement {
        match read {
            Reading::Untracked(why) => Judgement::Untracked(*why),
            Reading::Invalid(why, piece) => {
                if let Some(piece) = piece {
                    // The answer is the reason that is known already.
                    let _ = self.remember(piece, Err(*why), from, now);
                }
                Judgement::Invalid(*why)
            }
            Reading::Later(piece) => self.judge_later(piece, from, now),
            Reading::Packet(packet) => {
                if let Some(piece) = &packet.piece
                    && let Err(why) = self.remember(piece, Ok(*packet), from, now)
                {
                    return Judgement::Invalid(why);
                }
                self.judge_packet(packet, from, now, true)
            }
        }
    }

    /// The position of a frame's connection, and its direction.
    fn find(&self, tuple: &Tuple, from: Ingress, now: Millis) -> Option<(usize, Direction)> {
        let all = self.entries.get(&place(tuple))?;
        // The port's own connections come before those that it would take over.
        let own = |entry: &Entry, direction| match entry.ports[index(direction)] {
            Some(port) => port == from.port,
            None => entry.ports[index(direction.other())] != Some(from.port),
        };
        let moved = |entry: &Entry, direction| {
            from.is_home && entry.stations[index(direction)] == from.stations.source
        };
        let by = |accepts: &dyn Fn(&Entry, Direction) -> bool| {
            all.iter().enumerate().find_map(|(at, entry)| {
                entry.remaining(now, &self.settings)?;
                let direction = entry.direction(tuple)?;
                accepts(entry, direction).then_some((at, direction))
            })
        };
        by(&own).or_else(|| by(&moved))
    }

    fn judge_packet(
        &mut self,
        packet: &Packet,
        from: Ingress,
        now: Millis,
        advance: bool,
    ) -> Judgement {
        let Packet { tuple, message, .. } = packet;
        let Some((at, direction)) = self.find(tuple, from, now) else {
            return match machine::open(message, now, &self.settings) {
                Ok(_) => Judgement::New,
                Err(why) => Judgement::Invalid(why),
            };
        };
        let (settings, epoch) = (self.settings, self.epoch);
        let all = self.entries.get_mut(&place(tuple)).expect("it was found");
        let entry = &mut all[at];
        let (own, far) = (index(direction), index(direction.other()));
        let is_own = entry.ports[own] == Some(from.port);
        let connection = Connection {
            direction,
            replied: entry.progress.is_replied(),
            stale: entry.epoch != epoch || entry.progress.is_denied(),
            moved: !is_own || entry.ports[far].is_none(),
            far: entry.ports[far],
        };
        if *message == Message::Error {
            return Judgement::Related(connection);
        }
        let known = Context {
            direction,
            progress: entry.progress,
            created: entry.created,
        };
        let sides = (&entry.sides[own], &entry.sides[far]);
        let step = machine::judge(message, known, sides, now, &settings);
        let refused = match step.outcome {
            Outcome::Known => false,
            Outcome::Refused => true,
            Outcome::Reopens => return Judgement::New,
            Outcome::Invalid(why) => return Judgement::Invalid(why),
        };
        if advance && is_own && !entry.progress.is_denied() {
            entry.progress = step.progress;
            entry.sides[own] = step.own;
        }
        Judgement::Known {
            connection,
            refused,
        }
    }

    /// The packet that decides about a frame: of a later fragment that is the first one.
    fn subject(&self, read: &Reading, from: Ingress, now: Millis) -> Option<Packet> {
        match read {
            Reading::Untracked(_) | Reading::Invalid(..) => None,
            Reading::Packet(packet) => Some(*packet),
            Reading::Later(piece) => {
                let mut all = self.datagrams.iter();
                let (_, first) = all.find(|datagram| is_of(datagram, piece, from, now))?;
                first.of.ok()
            }
        }
    }

    /// Has a frame that both sides' rules allow, and that was judged before, open its connection;
    /// or renew that which it belongs to.
    pub fn commit(&mut self, read: &Reading, from: Ingress, far: Option<Port>, now: Millis) {
        let Some(packet) = self.subject(read, from, now) else {
            return;
        };
        let Packet { tuple, message, .. } = &packet;
        let epoch = self.epoch;
        let found = self.find(tuple, from, now);
        let judgement = self.judge_packet(&packet, from, now, false);
        let all = self.entries.entry(place(tuple)).or_default();
        if let Some((at, direction)) = found {
            match judgement {
                Judgement::New => {
                    all.remove(at);
                }
                Judgement::Known { .. } => {
                    if all[at].renew(direction, (from, far)) {
                        all[at].epoch = epoch;
                        let advance = !matches!(read, Reading::Later(_));
                        self.judge_packet(&packet, from, now, advance);
                    }
                    return;
                }
                _ => return,
            }
        }
        let Ok((progress, sides)) = machine::open(message, now, &self.settings) else {
            return;
        };
        let settings = self.settings;
        all.retain(|entry| entry.remaining(now, &settings).is_some());
        all.push(Entry {
            tuple: *tuple,
            ports: [Some(from.port), far],
            stations: [from.stations.source, from.stations.destination],
            progress,
            sides,
            created: now,
            epoch,
        });
    }

    /// Forgets the connection of a frame from the port of its side, which the frame has refused.
    pub fn forget(&mut self, read: &Reading, from: Ingress, now: Millis) {
        if let Some((all, at)) = self.own(read, from, now) {
            all.remove(at);
        }
    }

    /// Notes that rules deny the connection of a frame from the port of its side.
    pub fn deny(&mut self, read: &Reading, from: Ingress, now: Millis) {
        if let Some((all, at)) = self.own(read, from, now) {
            all[at].progress = all[at].progress.with(Progress::DENIED);
        }
    }

    /// The connection of a frame from the port of its side, among those of its tuple.
    fn own(
        &mut self,
        read: &Reading,
        from: Ingress,
        now: Millis,
    ) -> Option<(&mut Vec<Entry>, usize)> {
        let packet = self.subject(read, from, now)?;
        let (at, direction) = self.find(&packet.tuple, from, now)?;
        let all = self.entries.get_mut(&place(&packet.tuple))?;
        (all[at].ports[index(direction)] == Some(from.port)).then_some((all, at))
    }

    /// Forgets all connections of a zone.
    pub fn flush(&mut self, zone: u16) {
        self.entries.retain(|_, all| {
            all.retain(|entry| entry.tuple.zone() != zone);
            !all.is_empty()
        });
    }

    /// Remembers the first fragment of a datagram.
    fn remember(
        &mut self,
        piece: &Piece,
        of: Result<Packet, Invalid>,
        from: Ingress,
        now: Millis,
    ) -> Result<(), Invalid> {
        self.datagrams
            .retain(|(_, first)| now.wrapping_sub(first.at) < DATAGRAM_TIMEOUT);
        let ours = |datagram: &&mut (Tuple, First)| is_of(datagram, piece, from, now);
        if let Some((_, first)) = self.datagrams.iter_mut().find(ours) {
            // The same once more is a retransmission.
            let tuple = |of: &Result<Packet, Invalid>| of.map(|packet| packet.tuple);
            if first.end != piece.end || tuple(&first.of) != tuple(&of) {
                first.of = Err(Invalid::Overlap);
            }
            return first.of.map(|_| ());
        }
        let of_port = |(_, first): &&(Tuple, First)| first.port == from.port;
        let oldest = |all: &[(Tuple, First)]| {
            if all.iter().filter(of_port).count() >= DATAGRAMS_OF_PORT {
                return all.iter().position(|datagram| of_port(&datagram));
            }
            (all.len() >= DATAGRAMS).then_some(0)
        };
        if let Some(at) = oldest(&self.datagrams) {
            self.datagrams.remove(at);
        }
        let first = First {
            port: from.port,
            at: now,
            end: piece.end,
            of,
        };
        self.datagrams.push((piece.datagram, first));
        Ok(())
    }

    /// A later fragment is what the first one is, without an effect on the connection.
    fn judge_later(&mut self, piece: &Piece, from: Ingress, now: Millis) -> Judgement {
        let ours = |datagram: &&mut (Tuple, First)| is_of(datagram, piece, from, now);
        let Some((_, first)) = self.datagrams.iter_mut().find(ours) else {
            return Judgement::EarlyFragment;
        };
        if first.of.is_ok() && piece.start < first.end {
            first.of = Err(Invalid::Overlap);
        }
        match first.of {
            Ok(packet) => self.judge_packet(&packet, from, now, false),
            Err(why) => Judgement::Invalid(why),
        }
    }
}

#[cfg(test)]
mod tests;
