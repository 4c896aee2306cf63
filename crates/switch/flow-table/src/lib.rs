//! Flow cache of a worker: decisions of control, indexed by the fields that they depend on.
//!
//! ```text
//!   exact    whole key -> slot       only while there is more than one mask
//!   index    masked key -> slot      sets of 16 tags, one cache line each; grows a set at a time
//!   flows    by slot: masked key, action, use; one cache line each, contiguous
//!   stations lists of the flows from a station and to it, for their removal
//! ```
//!
//! The masked level is a tuple space search: the masks are searched in the order in which they were
//! added (a new one replaces one that has no flows left), and the first with a matching flow
//! decides. While there is one mask, it is searched at once; with more, the exact-match level
//! returns the flow of the last frame with this key.
//!
//! Memory is fixed and reserved at the start, and touched as flows are added. A guest that sprays
//! random headers evicts flows of its own share only: all ingress ports with flows have the same
//! share of the table. A port may exceed it while others leave room. A port loses flows to others
//! only while it exceeds its share, and the least recently used of a set is evicted first. (By
//! chance, once in a million times while the table is full, a set has no room and none of such
//! flows: then a port below its share evicts the oldest.)
//!
//! A lookup has three steps, so that the cache misses of a batch overlap: [`FlowTable::prepare`]
//! for all frames, [`FlowTable::approach`] for all, [`FlowTable::lookup_prepared`] for each.

mod cache;
mod effort;
mod exact;
mod flows;
mod index;
mod lists;
mod rules;
mod stations;
mod top_flows;
mod upkeep;
mod used;

use ipc::records::SourceRole;
use policy::connection::mark_of;
use policy::{Action, ConnectionChange, PortId, SegmentId};
use wire::flow::{FlowKey, FlowMask, LOW_WORDS, MaskedHash, PlainMask};

pub use effort::{CHANGE, Effort, FLOWS_PER_PART, SEEK};
use exact::{Exact, LikelyFlow};
use flows::{Flow, Flows, LearnedIn, NONE, RuleBytes};
use index::Index;
pub use lists::Lists;
pub use rules::RuleCounts;
use stations::Stations;
pub use top_flows::TopFlows;
pub use upkeep::Progress;

/// Ports excluded from floods.
pub type ExcludeSets = Lists<PortId>;

/// Flows in the largest table.
pub const MAX_FLOWS: usize = index::MAX_SLOTS;
/// Different masks at most.
const MAX_TUPLES: usize = 128;
// Masks of former rules may keep flows for a while.
const _: () = assert!(MAX_TUPLES > 3 * policy::acl::MAX_MASKS && MAX_TUPLES <= u8::MAX as usize);
/// Sets that are searched for a flow to evict when the table is full.
const SETS_TO_SEARCH: usize = 64;

/// Class of a flow's frames, and what the decision does to their connection, in one byte: all is
/// compared at once. The lowest bit is zero and left to the users of the table, for a property of
/// the frames.
///
/// ```text
/// bit 7      6        5       4..1     0
/// commit     answer   named   number   0
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Class(u8);

/// Set when the decision commits the connection, or denies it if the frames are dropped.
const COMMIT: u8 = 1 << 7;
/// Set when the frames come from the answering side of the connection that is committed.
const ANSWER: u8 = 1 << 6;
/// Set when a rule has named the class, which the whole connection has then.
const NAMED: u8 = 1 << 5;
/// Classes that can be stored.
const MAX_CLASSES: u8 = NAMED >> 1;
const _: () = assert!(ipc::egress::MAX_CLASSES <= MAX_CLASSES as usize);

impl Class {
    /// Returns a class by its number; one that cannot be stored is the default class. It commits
    /// no connection.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self(if number < MAX_CLASSES { number << 1 } else { 0 })
    }

    /// Returns its number.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u8 {
        (self.0 & (NAMED - 1)) >> 1
    }

    /// Returns the class of a decision with this effect on the connection of its frames.
    #[must_use]
    pub const fn with_change(self, change: ConnectionChange) -> Self {
        let number = self.0 & (NAMED - 1);
        Self(match change {
            ConnectionChange::None => number,
            ConnectionChange::Deny => number | COMMIT,
            ConnectionChange::Commit { mark, reply } => {
                let answer = if reply { ANSWER } else { 0 };
                let named = if mark != 0 { NAMED } else { 0 };
                number | COMMIT | answer | named
            }
        })
    }

    /// Returns the class with the number of another one, which no rule has named.
    #[must_use]
    pub const fn renumbered(self, other: Self) -> Self {
        Self(self.0 & (COMMIT | ANSWER) | other.0 & (NAMED - 1))
    }

    /// Returns whether the decision commits the connection of its frames, or denies it.
    #[inline]
    #[must_use]
    pub const fn commits(self) -> bool {
        self.0 & COMMIT != 0
    }

    /// Returns whether the frames come from the answering side of what is committed.
    #[inline]
    #[must_use]
    pub const fn is_answer(self) -> bool {
        self.0 & ANSWER != 0
    }

    /// Returns the low byte of the connection's mark.
    #[inline]
    #[must_use]
    pub const fn mark(self) -> u8 {
        let named = self.0 & NAMED != 0;
        mark_of(if named { Some(self.number()) } else { None })
    }

    /// Returns the class in these bits, whatever the lowest is.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & !1)
    }

    /// Returns the bits.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// Cached decision.
pub type CachedDecision = (Action, Class);

/// Origin and class of a decision, as control sends them with its action.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Origin {
    /// Class of the frames.
    pub class: Class,
    /// Segment of the decision.
    pub segment: Option<SegmentId>,
    /// Role of the ingress port for the source.
    pub source: SourceRole,
    /// Number of the list of rules that decided, see [`FlowTable::intern_rules`].
    pub rules: u16,
}

/// Flows of one mask.
#[derive(Debug)]
struct Tuple {
    hash: MaskedHash,
    flows: usize,
}

impl Tuple {
    fn mask(&self) -> &FlowMask {
        self.hash.mask()
    }
}

/// Lookup in progress. It is valid until the next installation; a later use costs time, no more.
///
/// Two words, which are passed in registers: stored in smaller parts and loaded whole, they would
/// stall the core.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    hash: u64,
    /// The table's `installations`, and below them the slot of the likely flow, or [`NONE`].
    place: u64,
}

impl Probe {
    #[inline]
    fn new(hash: u64, installations: u32, slot: u32) -> Self {
        let place = u64::from(installations) << 32 | u64::from(slot);
        Self { hash, place }
    }
}

/// Flow cache of one switch; see the module.
#[derive(Debug)]
pub struct FlowTable {
    tuples: Vec<Tuple>,
    index: Index,
    flows: Flows,
    stations: Stations,
    /// Exclude sets, to which the actions of flows refer.
    pub excluded: ExcludeSets,
    /// Counts of the rules that decided.
    pub rules: RuleCounts,
    /// Present while there is more than one tuple.
    exact: Option<Exact>,
    /// Hash of the level that is searched first: of the only mask, or of the union of all masks.
    first: MaskedHash,
    seed: u64,
    /// Installations so far, modulo 2^32.
    installations: u32,
    /// Whether a flow depends on more than Ethernet headers.
    deep: bool,
    /// Bits in which plain packets of one flow batch agree.
    plain: PlainMask,
    /// Position of the next expiry sweep.
    sweep: u32,
    /// Time at which the flows' packets were counted last.
    counted: Option<u32>,
}

impl FlowTable {
    /// Returns a table for `flows` flows, [`MAX_FLOWS`] at most. `seed` keys the hash: guests
    /// choose the keys.
    #[must_use]
    pub fn new(flows: usize, seed: u64) -> Self {
        let flows = flows.clamp(1, MAX_FLOWS);
        Self {
            tuples: Vec::with_capacity(MAX_TUPLES),
            index: Index::new(flows),
            flows: Flows::new(flows),
            stations: Stations::new(flows, seed),
            excluded: ExcludeSets::default(),
            rules: RuleCounts::default(),
            exact: None,
            first: MaskedHash::new(&FlowMask::NONE, seed),
            seed,
            installations: 0,
            deep: false,
            plain: PlainMask::new(&FlowMask::NONE),
            sweep: 0,
            counted: None,
        }
    }

    /// Returns an empty table for as many flows, with the same seed.
    #[must_use]
    pub fn empty_like(&self) -> Self {
        Self::new(self.flows.capacity(), self.seed)
    }

    /// Returns the number of flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns whether there is no flow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flows.len() == 0
    }

    /// Returns whether any flow depends on more of a frame than its Ethernet header, so that keys
    /// need the rest.
    #[inline]
    #[must_use]
    pub fn looks_above_ethernet(&self) -> bool {
        self.deep
    }

    /// Returns the bits of a plain packet on which any flow depends: packets that agree in them
    /// have the same decision.
    #[inline]
    pub fn plain_mask(&self) -> &PlainMask {
        &self.plain
    }

    /// Hashes the key and prefetches its set: first step of a lookup. The key has at least the
    /// fields of the masks; see [`FlowTable::looks_above_ethernet`].
    #[inline]
    #[must_use]
    pub fn prepare(&self, key: &FlowKey) -> Probe {
        let hash = self.first.hash(key);
        match &self.exact {
            None => self.index.prefetch(hash),
            Some(exact) => exact.prefetch(hash),
        }
        Probe::new(hash, self.installations, NONE)
    }

    /// Reads the prefetched set and prefetches the flow: second step of a lookup, optional.
    #[inline(always)]
    #[must_use]
    pub fn approach(&self, key: &FlowKey, probe: Probe) -> Probe {
        let (slot, long) = match &self.exact {
            None => {
                let slot = self.index.candidates(probe.hash).next();
                (slot.unwrap_or(NONE), self.first.is_long())
            }
            Some(exact) => {
                let found = exact.find(probe.hash, key.in_port());
                found.map_or((NONE, false), |found| (found.slot, found.long))
            }
        };
        self.flows.prefetch(slot, long);
        Probe::new(probe.hash, (probe.place >> 32) as u32, slot)
    }

    /// Returns the decision for so many frames with the key, and notes their use: last step of a
    /// lookup. The probe is of this key.
    // Always inlined: runs for each flow batch, at several places.
    #[inline(always)]
    pub fn lookup_prepared(
        &mut self,
        key: &FlowKey,
        probe: Probe,
        frames: u64,
        now: u64,
    ) -> Option<CachedDecision> {
        let flow = self.use_flow(key, probe, frames, now)?;
        Some((flow.action, flow.class))
    }

    /// Does the same where [rules are counted](Self::counts_rules), and adds the frames' bytes.
    #[inline(always)]
    pub fn lookup_counting_bytes(
        &mut self,
        key: &FlowKey,
        probe: Probe,
        (frames, bytes): (u64, u64),
        now: u64,
    ) -> Option<CachedDecision> {
        let flow = self.use_flow(key, probe, frames, now)?;
        flow.add_bytes(bytes);
        Some((flow.action, flow.class))
    }

    /// Does the same, and returns the list of the rules that decided. `bytes`: they are added.
    #[inline(always)]
    pub fn lookup_with_rules(
        &mut self,
        key: &FlowKey,
        probe: Probe,
        (frames, bytes): (u64, Option<u64>),
        now: u64,
    ) -> Option<(CachedDecision, u16)> {
        let flow = self.use_flow(key, probe, frames, now)?;
        if let Some(bytes) = bytes {
            flow.add_bytes(bytes);
        }
        Some(((flow.action, flow.class), flow.ruled.rules()))
    }

    /// Takes back that these frames of the key were counted: they were not forwarded after all.
    #[cold]
    pub fn uncount(&mut self, key: &FlowKey, (frames, bytes): (u64, u64)) {
        let counts = self.counts_rules();
        let slot = self.search(key);
        let Some(flow) = slot.and_then(|slot| self.flows.get_mut(slot)) else {
            return;
        };
        flow.packets = flow.packets.saturating_sub(frames);
        if counts {
            flow.remove_bytes(bytes);
        }
    }

    #[inline(always)]
    fn use_flow(
        &mut self,
        key: &FlowKey,
        probe: Probe,
        frames: u64,
        now: u64,
    ) -> Option<&mut Flow> {
        let (installations, mut slot) = ((probe.place >> 32) as u32, probe.place as u32);
        if installations != self.installations || !self.matches(slot, key) {
            slot = self.search(key)?;
        }
        let flow = self.flows.get_mut(slot)?;
        flow.packets += frames;
        flow.used = now as u32;
        Some(flow)
    }

    /// Returns the decision for a frame's key, and notes its use.
    #[cfg(test)]
    #[inline]
    pub fn lookup(&mut self, key: &FlowKey, now: u64) -> Option<Action> {
        let probe = self.prepare(key);
        let probe = self.approach(key, probe);
        let (action, _) = self.lookup_prepared(key, probe, 1, now)?;
        Some(action)
    }

    /// Returns whether the slot has a flow that matches the key.
    // Always inlined: runs for each frame, and with several callers it would become a call.
    #[inline(always)]
    fn matches(&self, slot: u32, key: &FlowKey) -> bool {
        let Some(flow) = self.flows.get(slot) else {
            return false;
        };
        // A free slot has no tuple.
        let Some(tuple) = self.tuples.get(usize::from(flow.tuple)) else {
            return false;
        };
        let mask = tuple.mask().words();
        let differ = |i: usize| (key.words()[i] & mask[i]) ^ flow.low[i];
        (0..LOW_WORDS).fold(0, |all, i| all | differ(i)) == 0
            && (!tuple.hash.is_long() || self.flows.has_high(slot, key, mask))
    }

    /// Searches all masks, and updates the exact-match level.
    #[inline(never)]
    fn search(&mut self, key: &FlowKey) -> Option<u32> {
        let tuples = 0..self.tuples.len();
        let (at, slot) = tuples
            .into_iter()
            .find_map(|at| Some((at, self.find(at, key)?)))?;
        if let Some(exact) = &mut self.exact {
            let long = self.tuples[at].hash.is_long();
            exact.insert(
                self.first.hash(key),
                key.in_port(),
                LikelyFlow { slot, long },
            );
        }
        Some(slot)
    }

    /// Returns a tuple's flow for a key.
    fn find(&self, at: usize, key: &FlowKey) -> Option<u32> {
        let tuple = &self.tuples[at];
        if tuple.flows == 0 {
            return None;
        }
        let mut slots = self.index.candidates(tuple.hash.hash(key));
        slots.find(|&slot| {
            let here = self.flows.get(slot);
            here.is_some_and(|flow| usize::from(flow.tuple) == at) && self.matches(slot, key)
        })
    }

    /// Caches a decision, and replaces one with the same mask and masked key. Returns `false` when
    /// there are too many masks, or when the only room belongs to another port's share.
    pub fn install(
        &mut self,
        key: &FlowKey,
        mask: &FlowMask,
        action: Action,
        origin: Origin,
        now: u64,
    ) -> bool {
        let Some(at) = self.tuple_for(mask) else {
            return false;
        };
        let key = key.masked(mask);
        if let Some(slot) = self.find(at, &key) {
            self.change(slot, action, origin, now);
            return true;
        }
        let hash = self.tuples[at].hash.hash(&key);
        if !self.make_room(hash, key.in_port(), now) {
            return false;
        }
        let [low @ .., _, _, _, _, _] = *key.words();
        let flow = Flow {
            low,
            hash,
            packets: 0,
            action,
            ruled: RuleBytes::by(origin.rules),
            learned_in: LearnedIn::new(origin.segment, origin.source),
            used: now as u32,
            tuple: at as u8,
            class: origin.class,
        };
        self.add(flow, &key);
        true
    }

    /// Changes the decision of a flow.
    fn change(&mut self, slot: u32, action: Action, origin: Origin, now: u64) {
        self.count_for_rules(slot);
        let Some(mut flow) = self.flows.get(slot).cloned() else {
            return;
        };
        self.stations.remove(slot, &flow);
        self.excluded.incref(action.excluded().0);
        self.excluded.decref(flow.action.excluded().0);
        self.rules.lists.incref(origin.rules);
        self.rules.lists.decref(flow.ruled.rules());
        (flow.action, flow.used) = (action, now as u32);
        flow.learned_in = LearnedIn::new(origin.segment, origin.source);
        flow.class = origin.class;
        flow.ruled = RuleBytes::by(origin.rules);
        self.stations.add(slot, &flow);
        self.flows.change(slot, flow);
    }

    /// Adds a new flow, for which there is room.
    fn add(&mut self, flow: Flow, key: &FlowKey) {
        let tuple = &mut self.tuples[usize::from(flow.tuple)];
        tuple.flows += 1;
        let first = tuple.flows == 1;
        self.excluded.incref(flow.action.excluded().0);
        self.rules.lists.incref(flow.ruled.rules());
        let high = tuple.hash.is_long().then_some(key.words());
        let every_port = tuple.mask().with_in_port() != *tuple.mask();
        let hash = flow.hash;
        let slot = self.flows.insert(flow, high);
        if let Some(flow) = self.flows.get(slot) {
            self.stations.add(slot, flow);
        }
        let (index, flows) = (&mut self.index, &self.flows);
        let hash_of = |slot| flows.get(slot).map_or(0, |flow| flow.hash);
        index.insert(hash, slot, flows.len(), hash_of);
        self.installations = self.installations.wrapping_add(1);
        if first {
            self.update_used_masks();
        }
        if let Some(exact) = &mut self.exact {
            exact.invalidate((!every_port).then_some(key.in_port()));
        }
    }

    /// Returns the index of a mask's tuple. A new mask replaces one without flows, if there is one.
    fn tuple_for(&mut self, mask: &FlowMask) -> Option<usize> {
        if let Some(at) = self.tuples.iter().position(|t| t.mask() == mask) {
            return Some(at);
        }
        let unused = self.tuples.iter().position(|t| t.flows == 0);
        let at = unused.unwrap_or(self.tuples.len());
        if at == MAX_TUPLES {
            return None;
        }
        // Each mask has its own hash, so that flows of two masks are in different sets.
        let seed = self.seed.wrapping_add(1 + at as u64);
        let tuple = Tuple {
            hash: MaskedHash::new(mask, seed),
            flows: 0,
        };
        match self.tuples.get_mut(at) {
            Some(old) => *old = tuple,
            None => self.tuples.push(tuple),
        }
        self.masks_changed();
        Some(at)
    }

    fn masks_changed(&mut self) {
        let masks = self.tuples.iter().map(Tuple::mask);
        let all = masks.fold(FlowMask::NONE, |all, mask| all.union(mask));
        if let [only] = self.tuples.as_slice() {
            self.first = only.hash;
            return;
        }
        self.first = MaskedHash::new(&all, self.seed);
        let flows = self.flows.capacity();
        let exact = self.exact.get_or_insert_with(|| Exact::new(flows));
        exact.invalidate(None);
        // Probes of the old masks have another hash.
        self.installations = self.installations.wrapping_add(1);
    }

    /// Makes room for a port's flow, by evicting another one if necessary.
    fn make_room(&mut self, hash: u64, in_port: u32, now: u64) -> bool {
        let sets = if self.index.is_full_at(hash) {
            1
        } else if self.flows.is_full() {
            SETS_TO_SEARCH
        } else {
            return true;
        };
        match self.victim(hash, sets, in_port, now) {
            Some(slot) => self.forget(slot),
            None => return false,
        }
        true
    }

    /// Returns the flow to evict, the least recently used in the first set that has a candidate: of
    /// ports above their share that have more than this one; else of the port itself; else, for a
    /// port below its share, of any port.
    fn victim(&self, hash: u64, sets: usize, in_port: u32, now: u64) -> Option<u32> {
        let (mine, share) = (self.flows.count_from(in_port), self.flows.fair_share());
        let oldest = |may_go: &dyn Fn(u32) -> bool| {
            (0..sets).find_map(|set| {
                let slots = self.index.neighbours(hash, set);
                let flows = slots.filter_map(|slot| Some((slot, self.flows.get(slot)?)));
                let theirs = flows.filter(|(_, flow)| may_go(flow.in_port()));
                let (slot, _) = theirs.max_by_key(|(_, flow)| flow.idle(now))?;
                Some(slot)
            })
        };
        let above = share.max(mine);
        let richer = self.flows.any_has_more_than(above);
        richer
            .then(|| oldest(&|owner| self.flows.count_from(owner) > above))
            .flatten()
            .or_else(|| oldest(&|owner| owner == in_port))
            .or_else(|| oldest(&|_| mine < share))
    }

    fn forget(&mut self, slot: u32) {
        self.count_for_rules(slot);
        let Some(flow) = self.flows.get(slot) else {
            return;
        };
        let tuple = &mut self.tuples[usize::from(flow.tuple)];
        tuple.flows -= 1;
        let last = tuple.flows == 0;
        self.excluded.decref(flow.action.excluded().0);
        self.rules.lists.decref(flow.ruled.rules());
        self.stations.remove(slot, flow);
        self.index.remove(flow.hash, slot);
        self.flows.remove(slot);
        if last {
            self.update_used_masks();
        }
    }

    /// Updates the masks in use, when a mask got its first flow or lost its last.
    fn update_used_masks(&mut self) {
        let used = self.tuples.iter().filter(|tuple| tuple.flows > 0);
        let all = used.fold(FlowMask::NONE, |all, tuple| all.union(tuple.mask()));
        self.deep = !FlowMask::ETHERNET.covers(&all);
        self.plain = PlainMask::new(&all);
    }
}

/// Cached flow, as tests compare it.
#[cfg(any(test, feature = "test-utils"))]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowRecord {
    /// Masked key.
    pub key: [u64; 8],
    /// Its mask.
    pub mask: [u64; 8],
    /// Decision.
    pub action: Action,
    /// Origin of the decision.
    pub origin: Origin,
    /// Frames so far.
    pub packets: u64,
    /// Milliseconds since the last frame.
    pub idle_ms: u32,
}

#[cfg(any(test, feature = "test-utils"))]
impl FlowTable {
    /// Returns all flows.
    #[must_use]
    pub fn records(&self, now: u64) -> Vec<FlowRecord> {
        let next = |slot: &usize| self.flows.next(slot + 1);
        let slots = std::iter::successors(self.flows.next(0), next);
        slots
            .filter_map(|slot| self.record(slot as u32, now))
            .collect()
    }

    fn record(&self, slot: u32, now: u64) -> Option<FlowRecord> {
        let flow = self.flows.get(slot)?;
        let tuple = self.tuples.get(usize::from(flow.tuple))?;
        Some(FlowRecord {
            key: *self.flows.key(slot, tuple.hash.is_long()).words(),
            mask: *tuple.mask().words(),
            action: flow.action,
            origin: Origin {
                class: flow.class,
                segment: flow.segment(),
                source: flow.source(),
                rules: flow.ruled.rules(),
            },
            packets: flow.packets,
            idle_ms: flow.idle(now),
        })
    }
}

#[cfg(test)]
mod tests;
