//! What would come of a frame, without anything coming of it.

use std::time::Duration;

use policy::{PortId, SegmentId};
use wire::MacAddr;

use super::effect::Refusal;
use super::entry::{Entry, Verdict};
use super::{Fdb, Station};

/// What a frame with a source address would teach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hearing {
    /// Nothing: the station is known to be there.
    Known,
    /// The station is new.
    New,
    /// The station is known behind another port, and would move.
    Moves {
        /// The port.
        from: PortId,
    },
    /// Nothing: the port would be barred from the address, which another still uses.
    Barred,
    /// Nothing, for this reason.
    Refused(Refusal),
}

impl Fdb {
    /// What [`Fdb::learn`] would do.
    #[must_use]
    pub fn foresee(
        &self,
        now: Duration,
        segment: SegmentId,
        mac: MacAddr,
        port: PortId,
    ) -> Hearing {
        let Some(entry) = self.at(now).entry((segment, mac)) else {
            let gives_way = self.entries.get(&(segment, mac)).map(Entry::port);
            let full = self.no_room_for(port, gives_way);
            return full.map_or(Hearing::New, Hearing::Refused);
        };
        let holder = entry.port();
        // A copy hears it.
        let (mut entry, mut claim) = (entry.clone(), self.next_claim);
        match entry.hear(now, port, &self.limits, &mut claim) {
            Verdict::Known => Hearing::Known,
            Verdict::Moved | Verdict::Returned { .. } => Hearing::Moves { from: holder },
            Verdict::Barred { .. } => Hearing::Barred,
            Verdict::Refused(why) => Hearing::Refused(why),
        }
    }

    /// A station, if it is known.
    #[must_use]
    pub fn station(&self, now: Duration, segment: SegmentId, mac: MacAddr) -> Option<Station> {
        let entry = self.at(now).entry((segment, mac))?;
        Some(entry.as_station(now, (segment, mac)))
    }

    /// The stations behind a port in a segment. Cost: one pass over all entries.
    pub fn stations_at(
        &self,
        now: Duration,
        segment: SegmentId,
        port: PortId,
    ) -> impl Iterator<Item = MacAddr> + '_ {
        let here = move |key: &super::Key, entry: &Entry| {
            key.0 == segment && entry.port() == port && !entry.is_stale(now, &self.limits)
        };
        let entries = self.entries.iter();
        entries
            .filter(move |(key, entry)| here(key, entry))
            .map(|(key, _)| key.1)
    }
}

impl Entry {
    fn as_station(&self, now: Duration, (segment, mac): super::Key) -> Station {
        Station {
            segment,
            mac,
            port: self.port(),
            age: self.idle(now),
            pinned: self.pinned(),
        }
    }
}
