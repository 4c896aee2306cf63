//! Opening and renewing connections.

use crate::judgement::{Ingress, Judgement, Port, Stations};
use crate::machine;
use crate::packet::{Message, Packet, Piece, Reading};
use crate::progress::{Progress, Side};
use crate::state::Direction;
use crate::table::content::Content;
use crate::table::ends::Ends;
use crate::table::links::EntryRef;
use crate::table::worker::{Insertion, Opening};
use crate::table::{Refusal, Rule};
use crate::tuple::{Station, Tuple};

use super::{CommitResult, Place, Probe, Tracking};

/// Attempts to store an epoch beside other frames of the connection.
const ATTEMPTS: usize = 8;

impl<'a> Tracking<'a> {
    /// Has a frame that both sides' rules allow, and that was judged before, open its connection,
    /// or renew the one that it belongs to. `far` is the port that it goes to, if that is one.
    ///
    /// A known connection has the ports of the frame then, as far as it may say them (see
    /// [`CommitResult::Passed`]), and advances by it.
    pub fn commit(
        &mut self,
        read: &Reading,
        probe: Probe,
        (from, far): (Ingress, Option<Port>),
        rule: Rule,
    ) -> CommitResult {
        let first;
        let (packet, probe, is_whole) = match read {
            // An earlier frame of the batch may have opened it.
            Reading::Packet(packet) => (packet, self.approach(probe), true),
            Reading::Later(piece) => {
                let Some(packet) = self.first(piece, from) else {
                    return CommitResult::Nothing;
                };
                first = packet;
                let probe = self.approach(self.prepare(&first.tuple));
                (&first, probe, false)
            }
            _ => return CommitResult::Nothing,
        };
        // It is no frame of its connection.
        if packet.message == Message::Error {
            return CommitResult::Nothing;
        }
        if let Some((found, _)) = self.connection(packet, probe, from) {
            let judged = self.judge_packet::<false>(packet, probe, from, rule.epoch);
            match judged.judgement {
                Judgement::New => {
                    self.batch.remove(found.number, found.life, probe.hash);
                }
                Judgement::Known { .. } => {
                    let renewed = self.renew(&found, (from, far), rule);
                    if is_whole && matches!(renewed, CommitResult::Renewed(_)) {
                        let probe = self.approach(probe);
                        self.judge_packet::<true>(packet, probe, from, rule.epoch);
                    }
                    return renewed;
                }
                _ => return CommitResult::Nothing,
            }
        }
        // Of a segment in fragments the numbers are in the first one, which opens the connection.
        if packet.message == Message::Other && packet.tuple.protocol() == wire::tcp::PROTOCOL {
            return CommitResult::Nothing;
        }
        let (now, settings) = (self.batch.now, self.batch.settings);
        let Ok(opened) = machine::open(&packet.message, now, settings) else {
            return CommitResult::Nothing;
        };
        let Stations {
            source,
            destination,
        } = from.stations;
        let ends = ((from.port, far), [source, destination]);
        self.open(packet, probe, ends, (opened, rule))
    }

    /// The packet that a later fragment is of.
    fn first(&self, piece: &Piece, from: Ingress) -> Option<Packet> {
        let shared = self.batch.shared;
        let time = (&shared.seed, self.batch.now);
        let (tuple, message) = shared.fragments.belongs(piece, from.port, time)?.ok()?;
        Some(Packet {
            tuple,
            message,
            piece: None,
        })
    }

    /// Has a segment from the middle of an unknown TCP connection open it as the answer that it
    /// is: `opener` is the port that it goes to. See [`Tracking::may_answer`].
    pub fn commit_answer(
        &mut self,
        read: &Reading,
        probe: Probe,
        (from, opener): (Ingress, Port),
        rule: Rule,
    ) -> CommitResult {
        let Reading::Packet(packet) = read else {
            return CommitResult::Nothing;
        };
        let (now, settings) = (self.batch.now, self.batch.settings);
        let Ok((progress, [answering, opening])) = machine::open(&packet.message, now, settings)
        else {
            return CommitResult::Nothing;
        };
        let reversed = Packet {
            tuple: packet.tuple.reversed(),
            ..*packet
        };
        let opened = (progress.with(Progress::REPLIED), [opening, answering]);
        let Stations {
            source,
            destination,
        } = from.stations;
        let ends = ((opener, Some(from.port)), [destination, source]);
        self.open(&reversed, probe, ends, (opened, rule))
    }

    /// Does what [`Tracking::commit`] does for a datagram of this length that was judged as new,
    /// and counts it; `None` if a connection may have been opened for it since.
    #[inline(never)]
    pub fn open_datagram(
        &mut self,
        (tuple, probe): (&Tuple, Probe),
        (ports, stations): ((Port, Option<Port>), Stations),
        rule: Rule,
        bytes: u64,
    ) -> Option<Result<(), Refusal>> {
        let is_udp = tuple.protocol() == wire::udp::PROTOCOL;
        // An earlier frame of the batch may have opened it. Of those of others the table says so.
        if !is_udp || self.batch.may_have_opened(probe.hash) && self.approach(probe).leads() {
            return None;
        }
        let now = self.batch.now;
        let opened = self.batch.open(&Opening {
            tuple,
            hash: probe.hash,
            ports,
            stations: [stations.source, stations.destination],
            progress: Progress::default(),
            sides: [Side::new(now); 2],
            created: now,
            rule,
            traffic: (1, bytes),
        });
        match opened {
            Insertion::New(_) => Some(Ok(())),
            Insertion::Refused(refused) => Some(Err(refused)),
            Insertion::Known(_) => None,
        }
    }

    #[inline(never)]
    fn open(
        &mut self,
        packet: &Packet,
        probe: Probe,
        (ports, stations): ((Port, Option<Port>), [Station; 2]),
        ((progress, sides), rule): ((Progress, [Side; 2]), Rule),
    ) -> CommitResult {
        let new = Opening {
            tuple: &packet.tuple,
            hash: probe.hash,
            ports,
            stations,
            progress,
            sides,
            created: self.batch.now,
            rule,
            traffic: (0, 0),
        };
        match self.batch.open(&new) {
            Insertion::New(found) => CommitResult::Opened(Place::of(&found)),
            Insertion::Known(found) => CommitResult::Renewed(Place::of(&found)),
            Insertion::Refused(refused) => CommitResult::Refused(refused),
        }
    }

    /// Gives a connection the ports of a frame, and then the epoch of the rules.
    #[cold]
    fn renew(
        &mut self,
        found: &EntryRef<'a>,
        (from, to): (Ingress, Option<Port>),
        rule: Rule,
    ) -> CommitResult {
        let mut found = *found;
        let before = found.ends();
        let Some(after) = before.committed(found.direction, (from.port, to)) else {
            return CommitResult::Passed(Place::of(&found));
        };
        if before != after {
            let replied = Content::of(found.life).progress().is_replied();
            let stations = stations_of(&found, after, from.stations);
            if !replied && before.account() != after.account() {
                return self.replace(&found, (after, stations), rule);
            }
            if !self.batch.set_ends(&found, before, after) {
                return CommitResult::Nothing;
            }
            found.entry.original.set_station(stations[0]);
            found.entry.reply.set_station(stations[1]);
        }
        for _ in 0..ATTEMPTS {
            let content = Content::of(found.life);
            if !content.is_stale(rule.epoch) {
                return CommitResult::Renewed(Place::of(&found));
            }
            let progress = content.progress().without(Progress::DENIED);
            match self
                .batch
                .advance(&found, Content::new(progress, rule.epoch))
            {
                Ok(life) | Err(Some(life)) => found.life = life,
                Err(None) => return CommitResult::Nothing,
            }
        }
        CommitResult::Renewed(Place::of(&found))
    }

    /// Notes that rules deny a connection. It stays, so that no frame of the other side opens it
    /// anew in its middle, until its time is over, without what its frames say, or until rules let
    /// one of them in. A frame from another port than that of its side notes nothing.
    pub fn deny(&mut self, place: Place, from: Port) {
        let Some(mut found) = self.at(place) else {
            return;
        };
        if found.ends().seen(found.direction).0 != Some(from) {
            return;
        }
        for _ in 0..ATTEMPTS {
            let content = Content::of(found.life);
            if content.progress().is_denied() {
                return;
            }
            let denied = content.progress().with(Progress::DENIED);
            match self
                .batch
                .advance(&found, Content::new(denied, content.epoch()))
            {
                Ok(life) | Err(Some(life)) => found.life = life,
                Err(None) => return,
            }
        }
    }

    /// Opens a connection anew with other ports: an unreplied one, which is in the account of
    /// those while another thread may note its answer.
    fn replace(
        &mut self,
        found: &EntryRef<'a>,
        (ends, stations): (Ends, [Station; 2]),
        rule: Rule,
    ) -> CommitResult {
        let Some(sides) = self.batch.sides(found) else {
            return CommitResult::Nothing;
        };
        let tuple = found.entry.tuple();
        let new = Opening {
            tuple: &tuple,
            hash: tuple.hash(&self.batch.shared.seed),
            ports: (ends.opener(), ends.far()),
            stations,
            progress: Content::of(found.life).progress().without(Progress::DENIED),
            sides,
            created: found.entry.created(),
            rule: Rule {
                mark: found.ends().mark(),
                number: found.entry.original.note(),
                ..rule
            },
            traffic: (0, 0),
        };
        if !self.batch.remove(found.number, found.life, new.hash) {
            return CommitResult::Nothing;
        }
        match self.batch.open(&new) {
            Insertion::New(new) | Insertion::Known(new) => {
                let direction = found.direction;
                CommitResult::Renewed(Place::of(&EntryRef { direction, ..new }))
            }
            Insertion::Refused(refused) => CommitResult::Refused(refused),
        }
    }
}

/// The stations of a connection that gets these ends by a frame: a side has that of the frame which
/// has said its port.
fn stations_of(found: &EntryRef<'_>, after: Ends, of: Stations) -> [Station; 2] {
    let before = found.ends();
    let (opener, far) = match found.direction {
        Direction::Original => (of.source, of.destination),
        Direction::Reply => (of.destination, of.source),
    };
    let line = |direction| found.entry.line(direction).station();
    let keep = |stays: bool, direction, new| if stays { line(direction) } else { new };
    [
        keep(
            before.opener() == after.opener(),
            Direction::Original,
            opener,
        ),
        keep(before.far() == after.far(), Direction::Reply, far),
    ]
}
