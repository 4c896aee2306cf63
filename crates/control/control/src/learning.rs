//! The forwarding database (FDB): the port of each MAC address, learned from source addresses.
//!
//! It does no I/O and has no clock: every call passes `now`, the time since an arbitrary fixed
//! moment, and returns [`Effect`]s for the caller (invalidate cached flows, log, count).
//!
//! # Moves
//!
//! An address moves at once to the port that uses it. Where two ports use it in turn, each frame
//! would move it, and each move removes flows. So moves are damped, and frames are forwarded
//! meanwhile:
//!
//! ```text
//!                B sends, and pays
//!   held by A --------------------> held by B ---------------------> held by B alone
//!    |  ^  ^                           |       A is silent for `age`
//!    |  |  +---------------------------+
//!    +--+       A sends: it was first
//!   B sends, and has no move left: it has the address when A is silent for `silence`
//! ```
//!
//! A port whose claim is younger than the holder's pays for the move: a few for each address, and
//! one more each interval ([`Limits::moves`]), and all its moves are limited
//! ([`Limits::port_moves`]). The port with the older claim has the address back for nothing, so
//! no other port can make it pay. When the moves are spent, the address stays at the holder; flows
//! of the other port are cached, and their use is reported like that of the holder's.
//! [`Fdb::settle`] compares both, so that the address follows when the holder is silent.
//!
//! An address is shared if several ports list it ([`Fdb::own`]) or if routers share it by protocol
//! ([`MacAddr::is_virtual_router`]). It is where it was seen last: no claim counts more than
//! another, and the limit ([`Limits::shared_moves`]) is one that only floods reach.
//!
//! An address that one port lists is pinned to it, and one that several list belongs to these: no
//! other port may use it as a source.

mod effect;
mod entry;
mod limits;
mod pins;
mod preview;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use ipc::records::SourceRole;
use policy::{Lookup, PortId, SegmentId};
use wire::MacAddr;

pub use effect::{Counters, Effect, Refusal};
use entry::{Entry, MoveRules, Verdict};
use limits::SpentAllowance;
pub use limits::{Allowance, Limits};
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
    /// Addresses that belong to several ports.
    shared: BTreeMap<Key, Vec<PortId>>,
    /// Moves to each port.
    spent: HashMap<PortId, SpentAllowance>,
    /// Learned entries by port; pinned ones do not count.
    learned: HashMap<PortId, usize>,
    /// Learned entries in total.
    total: usize,
    /// Number of the next claim; claims are totally ordered.
    next_claim: u64,
    counters: Counters,
    /// Number of calls that may have changed an entry.
    changes: u64,
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
        if let Some(why) = self.refusal(key, port) {
            self.refuse(key, port, why, &mut effects);
            return effects;
        }
        self.changes += 1;
        self.drop_stale(now, key, &mut effects);
        let rules = self.move_rules(key);
        let Some(entry) = self.entries.get_mut(&key) else {
            self.learn_new(now, key, port, &mut effects);
            return effects;
        };
        let holder = entry.port();
        let spent = self.spent.entry(port).or_default();
        match entry.observe(now, port, &rules, spent, &mut self.next_claim) {
            Verdict::Known => {}
            Verdict::Moved => self.moved(key, holder, port, &mut effects),
            Verdict::Damped { first } => {
                if first {
                    effects.push(Effect::Damped {
                        segment,
                        mac,
                        port,
                        holder,
                    });
                }
                self.refuse(key, port, Refusal::Damped, &mut effects);
            }
        }
        effects
    }

    fn move_rules(&self, key: Key) -> MoveRules {
        let limits = &self.limits;
        let shared = self.shared.contains_key(&key) || key.1.is_virtual_router();
        let (allowance, silence) = if shared {
            (limits.shared_moves, limits.shared_silence)
        } else {
            (limits.moves, limits.silence)
        };
        MoveRules {
            shared,
            allowance,
            port_allowance: limits.port_moves,
            silence,
            age: limits.age,
        }
    }

    /// Returns why `port` must not use the address, if so: it belongs to other ports.
    fn refusal(&self, key: Key, port: PortId) -> Option<Refusal> {
        let pinned = self.entries.get(&key).filter(|entry| entry.pinned());
        let is_owner = match pinned {
            Some(entry) => entry.port() == port,
            None => self
                .shared
                .get(&key)
                .is_none_or(|owners| owners.contains(&port)),
        };
        (!is_owner).then_some(Refusal::Pinned)
    }

    /// Returns what the port is to the address. A port that had or claimed it is a rival.
    #[must_use]
    pub fn role(&self, segment: SegmentId, mac: MacAddr, port: PortId) -> SourceRole {
        let entry = self.entries.get(&(segment, mac));
        entry.map_or(SourceRole::Unlearned, |entry| entry.role(port))
    }

    /// Records that a cached flow from the address was used at time `seen`. Ports without a claim
    /// are ignored: their flows are being invalidated.
    pub fn refresh(&mut self, seen: Duration, segment: SegmentId, mac: MacAddr, port: PortId) {
        if let Some(entry) = self.entries.get_mut(&(segment, mac)) {
            entry.refresh(seen, port);
            self.changes += 1;
        }
    }

    /// Moves addresses whose holders are silent to the ports that still use them. The uses of all
    /// flows must be recorded. Cost: one pass over all entries.
    pub fn settle(&mut self, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        let contested = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.is_contested());
        let moves = contested.filter_map(|(key, entry)| {
            let to = entry.successor(self.move_rules(*key).silence)?;
            Some((*key, to))
        });
        for (key, to) in moves.collect::<Vec<_>>() {
            let total = self.spent.entry(to).or_default();
            let Some(spent) = self.limits.port_moves.spend(*total, now) else {
                continue;
            };
            *total = spent;
            if let Some(entry) = self.entries.get_mut(&key) {
                let from = entry.port();
                entry.move_to(to);
                self.moved(key, from, to, &mut effects);
            }
        }
        effects
    }

    /// Restores an entry after a restart, from the state file or from a flow that the switch still
    /// has, before the first `learn`. The latest use wins.
    pub fn adopt(&mut self, seen: Duration, segment: SegmentId, mac: MacAddr, port: PortId) {
        let key = (segment, mac);
        if self.refusal(key, port).is_some() {
            return;
        }
        self.changes += 1;
        let Some(entry) = self.entries.get_mut(&key) else {
            return self.learn_new(seen, key, port, &mut Vec::new());
        };
        let holder = entry.port();
        if holder == port {
            return entry.refresh(seen, port);
        }
        entry.claim(seen, port, &mut self.next_claim);
        if seen > entry.seen() {
            entry.move_to(port);
            self.count_move(holder, port);
        }
    }

    /// Restores a claim after a restart, from a flow of a port that had lost the address.
    pub fn adopt_claim(&mut self, seen: Duration, segment: SegmentId, mac: MacAddr, port: PortId) {
        let key = (segment, mac);
        if let (None, Some(entry)) = (self.refusal(key, port), self.entries.get_mut(&key)) {
            if entry.port() != port {
                entry.claim(seen, port, &mut self.next_claim);
            }
            entry.refresh(seen, port);
        }
    }

    /// Removes aged entries and claims. Cost: one pass over all entries.
    pub fn expire(&mut self, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        let (before, age) = (self.entries.len(), self.limits.age);
        self.forget_where(|_, entry| entry.is_stale(now, age), &mut effects);
        self.counters.aged += (before - self.entries.len()) as u64;
        for entry in self.entries.values_mut() {
            entry.forget_old_claims(now, age);
        }
        self.spent.retain(|_, spent| !spent.is_none(now));
        effects
    }

    /// Removes the entries, pins and claims of a port.
    pub fn forget_port(&mut self, port: PortId) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.forget_where(|_, entry| entry.port() == port, &mut effects);
        for entry in self.entries.values_mut() {
            entry.keep_claims(|other| other != port);
        }
        self.spent.remove(&port);
        effects
    }

    /// Forgets the addresses of a port that has gone down where other ports use them, too: these
    /// have them as soon as they send.
    pub fn port_down(&mut self, port: PortId) -> Vec<Effect> {
        let mut effects = Vec::new();
        let given_up = |_: &Key, entry: &Entry| {
            entry.port() == port && !entry.pinned() && entry.is_contested()
        };
        self.forget_where(given_up, &mut effects);
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
            .filter(|(_, entry)| !entry.is_stale(now, self.limits.age));
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

    /// Returns a number that differs when [`Fdb::list`] does, but for the ages that grow with time.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
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
        self.changes += 1;
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
        self.count_move(from, to);
        self.changes += 1;
        self.counters.moved += 1;
        effects.push(Effect::Moved {
            segment: key.0,
            mac: key.1,
            from,
            to,
        });
        effects.push(invalidate(key));
    }

    fn count_move(&mut self, from: PortId, to: PortId) {
        self.count_down(from);
        *self.learned.entry(to).or_default() += 1;
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
            .is_some_and(|entry| entry.is_stale(now, self.limits.age))
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
        self.changes += 1;
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
            .filter(|entry| !entry.is_stale(self.now, self.fdb.limits.age))
    }
}

impl Lookup for View<'_> {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        self.entry((segment, mac)).map(Entry::port)
    }

    fn is_barred(&self, segment: SegmentId, mac: MacAddr, port: PortId) -> bool {
        self.fdb.refusal((segment, mac), port).is_some()
    }
}
