//! Previews of learning, for traces: nothing is changed.

use std::time::Duration;

use policy::{PortId, SegmentId};
use wire::MacAddr;

use super::effect::Refusal;
use super::entry::{Entry, Verdict};
use super::{Fdb, Station};

/// Results of learning a source address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LearnPreview {
    /// The address is known at this port.
    Known,
    /// The address is new.
    New,
    /// The address is known at another port, and would move.
    Moves {
        /// The port.
        from: PortId,
    },
    /// The address would not be learned, for this reason.
    Refused(Refusal),
}

impl Fdb {
    /// Returns what [`Fdb::learn`] would do.
    #[must_use]
    pub fn preview(
        &self,
        now: Duration,
        segment: SegmentId,
        mac: MacAddr,
        port: PortId,
    ) -> LearnPreview {
        let key = (segment, mac);
        if let Some(why) = self.refusal(key, port) {
            return LearnPreview::Refused(why);
        }
        let Some(entry) = self.at(now).entry(key) else {
            let gives_way = self.entries.get(&key).map(Entry::port);
            let full = self.no_room_for(port, gives_way);
            return full.map_or(LearnPreview::New, LearnPreview::Refused);
        };
        let holder = entry.port();
        // Only copies change.
        let (mut entry, mut claim) = (entry.clone(), self.next_claim);
        let mut spent = self.spent.get(&port).copied().unwrap_or_default();
        match entry.observe(now, port, &self.move_rules(key), &mut spent, &mut claim) {
            Verdict::Known => LearnPreview::Known,
            Verdict::Moved => LearnPreview::Moves { from: holder },
            Verdict::Damped { .. } => LearnPreview::Refused(Refusal::Damped),
        }
    }

    /// Returns the entry of an address, if it is known.
    #[must_use]
    pub fn station(&self, now: Duration, segment: SegmentId, mac: MacAddr) -> Option<Station> {
        let entry = self.at(now).entry((segment, mac))?;
        Some(entry.as_station(now, (segment, mac)))
    }

    /// Returns the addresses of a port in a segment. Cost: one pass over all entries.
    pub fn stations_at(
        &self,
        now: Duration,
        segment: SegmentId,
        port: PortId,
    ) -> impl Iterator<Item = MacAddr> + '_ {
        let here = move |key: &super::Key, entry: &Entry| {
            key.0 == segment && entry.port() == port && !entry.is_stale(now, self.limits.age)
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
