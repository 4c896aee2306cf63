//! The judgement of a frame by another process: it sees the connection, and changes nothing.

use crate::judgement::{self, Ingress, Judgement};
use crate::machine::{self, Context, Outcome};
use crate::packet::{Message, Packet};
use crate::state::Direction;
use crate::timeouts::{Millis, Settings};

use super::connection::{Connection, age};
use super::reader::Reader;

/// The judgement of a frame, and its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sighting {
    /// The judgement that the switch would come to now.
    pub judgement: Judgement,
    /// The connection of a known frame, of an error about one, and of a frame that is invalid in
    /// its connection.
    pub connection: Option<Connection>,
}

impl Reader {
    /// Judges a frame as the switch would. `epoch` is that of the rules of its segment.
    #[must_use]
    pub fn judge(
        &self,
        packet: &Packet,
        from: Ingress,
        epoch: u16,
        (settings, now): (&Settings, Millis),
    ) -> Sighting {
        let message = &packet.message;
        let Some((known, direction)) = self.connection_of(packet, from, (settings, now)) else {
            return unknown(message, (settings, now));
        };
        let context = Context {
            direction,
            progress: known.progress,
            created: known.opened,
        };
        let [original, reply] = &known.sides;
        let (sides, own, far) = match direction {
            Direction::Original => ((original, reply), Some(known.opener()), known.far()),
            Direction::Reply => ((reply, original), known.far(), Some(known.opener())),
        };
        let connection = judgement::Connection {
            direction,
            replied: known.progress.is_replied(),
            stale: known.epoch != epoch || known.progress.is_denied(),
            moved: own != Some(from.port) || far.is_none(),
            far,
        };
        let judgement = if *message == Message::Error {
            Judgement::Related(connection)
        } else {
            let of_connection = |refused| Judgement::Known {
                connection,
                refused,
            };
            match machine::judge(message, context, sides, now, settings).outcome {
                Outcome::Known => of_connection(false),
                Outcome::Refused => of_connection(true),
                Outcome::Reopens => return unknown(message, (settings, now)),
                Outcome::Invalid(why) => Judgement::Invalid(why),
            }
        };
        Sighting {
            judgement,
            connection: Some(known),
        }
    }

    /// The connection of a frame from a port, and the frame's direction: the port's own one, or
    /// that of a station which is at home here now.
    fn connection_of(
        &self,
        packet: &Packet,
        from: Ingress,
        (settings, now): (&Settings, Millis),
    ) -> Option<(Connection, Direction)> {
        let tuple = packet.tuple;
        let direction = |known: &Connection| match known.tuple {
            it if it == tuple => Some(Direction::Original),
            it if it == tuple.reversed() => Some(Direction::Reply),
            _ => None,
        };
        let is_own = |known: &Connection, direction| known.ends.accepts(direction, from.port);
        let is_here = |known: &Connection, direction| {
            let own = known.stations[usize::from(direction == Direction::Reply)];
            from.is_home && own == from.stations.source
        };
        let all = self.candidates(&tuple).filter_map(|known| {
            let direction = direction(&known)?;
            let is_current = known.remaining(settings, now).is_some();
            let is_it = is_own(&known, direction) || is_here(&known, direction);
            (is_current && is_it).then_some((known, direction))
        });
        let rank = |(known, direction): &(Connection, Direction)| {
            let time = u32::MAX - age(known.opened, now);
            (!is_own(known, *direction), known.life.is_second(), time)
        };
        all.min_by_key(rank)
    }
}

/// The judgement of a frame of no known connection.
fn unknown(message: &Message, (settings, now): (&Settings, Millis)) -> Sighting {
    let opens = machine::open(message, now, settings);
    Sighting {
        judgement: opens.map_or_else(Judgement::Invalid, |_| Judgement::New),
        connection: None,
    }
}
