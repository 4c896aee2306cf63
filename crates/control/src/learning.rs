//! The forwarding database (FDB): the port of each MAC address, learned from source addresses.
//!
//! It does no I/O and has no clock: every call passes `now`, the time since an arbitrary fixed
//! moment, and returns [`Effect`]s for the caller (invalidate cached flows, log, count).
//!
//! # Moves and false claims
//!
//! A guest may move: its address then appears at another port while the old port is silent. A guest
//! may also spoof its neighbour's address: then both ports send. So an address moves at once, and
//! moves back when the old port sends again:
//!
//! ```text
//!              B sends                         A silent for move_window
//!   held by A -----------> held by B, in doubt ------------------------> held by B
//!      ^                        |
//!      |   A sends within move_window
//!      +------------------------+   and B is barred from the address: 30 s, then 60 s, ... 10 min
//! ```
//!
//! Of two ports that both send, the one with the older claim keeps the address. Claims are
//! remembered for `age` after they were lost: a guest that took the address of an idle neighbour
//! loses it when the neighbour sends again, and cannot get the neighbour barred. While a port is
//! barred, its frames with that source are dropped and not learned. Bars end with the entry:
//! without a holder there is nothing to protect.
//!
//! Not covered: an address that its owner has not used for `age` goes to the first port that uses
//! it. Addresses that port security lists are pinned ([`Fdb::pin`]): no other port may use them as
//! a source.

mod effect;
mod entry;
mod limits;
mod pins;
mod preview;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use policy::{Lookup, PortId, SegmentId};
use wire::MacAddr;

pub use effect::{Counters, Effect, Refusal};
use entry::{Entry, Verdict};
pub use limits::Limits;
pub use preview::LearnPreview;

/// A MAC address in its segment.
type Key = (SegmentId, MacAddr);

/// An FDB entry, as a line of `lasthop fdb list`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Station {
    /// Its segment.
    pub segment: SegmentId,
    /// The address.
    pub mac: MacAddr,
    /// Its port.
    pub port: PortId,
    /// Time since the last frame from it; zero for a pinned entry.
    pub age: Duration,
    /// Whether it is pinned: static, it does not age or move.
    pub pinned: bool,
}

/// The forwarding database. See the module.
#[derive(Debug, Default)]
pub struct Fdb {
    limits: Limits,
    entries: HashMap<Key, Entry>,
    /// Pinned entries.
    pinned: BTreeSet<Key>,
    /// Learned entries by port; pinned ones do not count.
    learned: HashMap<PortId, usize>,
    /// Learned entries in total.
    total: usize,
    /// Number of the next claim; claims are totally ordered.
    next_claim: u64,
    counters: Counters,
}

impl Fdb {
    /// Returns an empty database.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Learns the source of a frame: the `learn` of a decision, or an announcement (RARP,
    /// gratuitous ARP). If the result is not empty, the caller has to decide again before it
    /// installs a flow.
    pub fn learn(
        &mut self,
        now: Duration,
        segment: SegmentId,
        mac: MacAddr,
        port: PortId,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let key = (segment, mac);
        self.drop_stale(now, key, &mut effects);
        let Some(entry) = self.entries.get_mut(&key) else {
            self.learn_new(now, key, port, &mut effects);
            return effects;
        };
        let holder = entry.port();
        match entry.observe(now, port, &self.limits, &mut self.next_claim) {
            Verdict::Known => {}
            Verdict::Refused(why) => self.refuse(key, port, why, &mut effects),
            Verdict::Moved => self.moved(key, holder, port, &mut effects),
            Verdict::Returned { until } => {
                self.moved(key, holder, port, &mut effects);
                self.barred(key, holder, until, &mut effects);
            }
            Verdict::Barred { until } => {
                self.barred(key, port, until, &mut effects);
                effects.push(invalidate(key));
            }
        }
        effects
    }

    /// Refreshes an entry whose cached flow was used at time `seen`. A late report about a port
    /// that no longer holds the address is ignored: its flows are being invalidated.
    pub fn refresh(&mut self, seen: Duration, segment: SegmentId, mac: MacAddr, port: PortId) {
        if let Some(entry) = self.entries.get_mut(&(segment, mac)) {
            entry.refresh(seen, port);
        }
    }

    /// Restores an entry after a restart, from a flow that the switch still has, before the first
    /// `learn`. The latest use wins, and no port is barred.
    pub fn adopt(&mut self, seen: Duration, segment: SegmentId, mac: MacAddr, port: PortId) {
        let key = (segment, mac);
        match self.entries.get(&key) {
            Some(entry) if entry.port() == port || entry.pinned() || entry.seen() >= seen => {
                self.refresh(seen, segment, mac, port);
            }
            Some(_) => {
                self.remove(key);
                self.learn_new(seen, key, port, &mut Vec::new());
            }
            None => self.learn_new(seen, key, port, &mut Vec::new()),
        }
    }

    /// Removes aged entries and lifts bars that have ended. Cost: one pass over all entries.
    pub fn expire(&mut self, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        let (before, limits) = (self.entries.len(), self.limits);
        self.forget_where(|_, entry| entry.is_stale(now, &limits), &mut effects);
        self.counters.aged += (before - self.entries.len()) as u64;
        for (&key, entry) in &mut self.entries {
            if entry.lift_bars(now, &limits) {
                effects.push(invalidate(key));
            }
        }
        effects
    }

    /// Removes the entries, pins, claims and bars of a port.
    pub fn forget_port(&mut self, port: PortId) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.forget_where(|_, entry| entry.port() == port, &mut effects);
        self.forget_claims(port, &mut effects);
        effects
    }

    /// Removes learned entries: those of a segment, of a port, or all. Pinned ones stay. Returns
    /// their number.
    pub fn flush(
        &mut self,
        segment: Option<SegmentId>,
        port: Option<PortId>,
    ) -> (usize, Vec<Effect>) {
        let mut effects = Vec::new();
        let before = self.entries.len();
        let is_one = |key: &Key, entry: &Entry| {
            !entry.pinned()
                && segment.is_none_or(|segment| segment == key.0)
                && port.is_none_or(|port| port == entry.port())
        };
        self.forget_where(is_one, &mut effects);
        (before - self.entries.len(), effects)
    }

    /// Returns the database as of `now`, for [`policy::decide`].
    #[must_use]
    pub fn at(&self, now: Duration) -> View<'_> {
        View { fdb: self, now }
    }

    /// Returns all entries, sorted by segment and address.
    #[must_use]
    pub fn list(&self, now: Duration) -> Vec<Station> {
        let fresh = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.is_stale(now, &self.limits));
        let mut all: Vec<_> = fresh
            .map(|(&(segment, mac), entry)| Station {
                segment,
                mac,
                port: entry.port(),
                age: entry.idle(now),
                pinned: entry.pinned(),
            })
            .collect();
        all.sort_unstable();
        all
    }

    /// Returns the number of addresses learned at a port; pinned ones do not count.
    #[must_use]
    pub fn learned_at(&self, port: PortId) -> usize {
        self.learned.get(&port).copied().unwrap_or(0)
    }

    /// Counters of the database.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn learn_new(&mut self, now: Duration, key: Key, port: PortId, effects: &mut Vec<Effect>) {
        if !key.1.is_station() {
            return; // A decision never asks for this; an announcement may.
        }
        if let Some(why) = self.no_room_for(port, None) {
            return self.refuse(key, port, why, effects);
        }
        let entry = Entry::learn(now, port, &mut self.next_claim);
        self.insert_learned(key, entry);
        self.counters.learned += 1;
        effects.push(Effect::Learned {
            segment: key.0,
            mac: key.1,
            port,
        });
        // Flows of frames to it flood, and flows of frames from it have an unknown source: both are
        // outdated.
        effects.push(invalidate(key));
    }

    fn insert_learned(&mut self, key: Key, entry: Entry) {
        *self.learned.entry(entry.port()).or_default() += 1;
        self.total += 1;
        self.entries.insert(key, entry);
    }

    /// Returns why no new address can be learned at a port, if so; an old entry of the port
    /// `gives_way` is replaced.
    fn no_room_for(&self, port: PortId, gives_way: Option<PortId>) -> Option<Refusal> {
        let own = usize::from(gives_way == Some(port));
        if self.learned_at(port) - own >= self.limits.per_port {
            return Some(Refusal::PortFull);
        }
        let total = self.total - usize::from(gives_way.is_some());
        (total >= self.limits.total).then_some(Refusal::TableFull)
    }

    fn moved(&mut self, key: Key, from: PortId, to: PortId, effects: &mut Vec<Effect>) {
        self.count_down(from);
        *self.learned.entry(to).or_default() += 1;
        self.counters.moved += 1;
        effects.push(Effect::Moved {
            segment: key.0,
            mac: key.1,
            from,
            to,
        });
        effects.push(invalidate(key));
    }

    fn barred(&mut self, key: Key, port: PortId, until: Duration, effects: &mut Vec<Effect>) {
        self.counters.false_claims += 1;
        effects.push(Effect::Barred {
            segment: key.0,
            mac: key.1,
            port,
            until,
        });
    }

    fn refuse(&mut self, key: Key, port: PortId, why: Refusal, effects: &mut Vec<Effect>) {
        *self.counters.refused_for(why) += 1;
        effects.push(Effect::Refused {
            segment: key.0,
            mac: key.1,
            port,
            why,
        });
    }

    fn drop_stale(&mut self, now: Duration, key: Key, effects: &mut Vec<Effect>) {
        if self
            .entries
            .get(&key)
            .is_some_and(|entry| entry.is_stale(now, &self.limits))
        {
            self.counters.aged += 1;
            self.forget(key, effects);
        }
    }

    fn forget_where(
        &mut self,
        mut which: impl FnMut(&Key, &Entry) -> bool,
        effects: &mut Vec<Effect>,
    ) {
        let gone = self.entries.iter().filter(|(key, entry)| which(key, entry));
        for key in gone.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.forget(key, effects);
        }
    }

    fn forget_claims(&mut self, port: PortId, effects: &mut Vec<Effect>) {
        for (&key, entry) in &mut self.entries {
            if entry.forget_claims_of(port) {
                effects.push(invalidate(key));
            }
        }
    }

    fn forget(&mut self, key: Key, effects: &mut Vec<Effect>) {
        if let Some(entry) = self.remove(key) {
            let (segment, mac) = key;
            effects.push(Effect::Forgotten {
                segment,
                mac,
                port: entry.port(),
            });
            effects.push(invalidate(key));
        }
    }

    fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        if entry.pinned() {
            self.pinned.remove(&key);
        } else {
            self.count_down(entry.port());
            self.total -= 1;
        }
        Some(entry)
    }

    fn count_down(&mut self, port: PortId) {
        if let Slot::Occupied(mut count) = self.learned.entry(port) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

fn invalidate((segment, mac): Key) -> Effect {
    Effect::Invalidate { segment, mac }
}

/// The database at a point in time.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    fdb: &'a Fdb,
    now: Duration,
}

impl<'a> View<'a> {
    fn entry(&self, key: Key) -> Option<&'a Entry> {
        self.fdb
            .entries
            .get(&key)
            .filter(|entry| !entry.is_stale(self.now, &self.fdb.limits))
    }
}

impl Lookup for View<'_> {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        self.entry((segment, mac)).map(Entry::port)
    }

    fn is_barred(&self, segment: SegmentId, mac: MacAddr, port: PortId) -> bool {
        let refusal = self
            .entry((segment, mac))
            .and_then(|entry| entry.refusal(self.now, port));
        refusal.is_some()
    }
}
