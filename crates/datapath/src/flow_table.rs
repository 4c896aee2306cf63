//! The flow cache: decisions of control, found again by the fields that they looked at.
//!
//! Tuple space search: flows with the same mask share one set-associative table, and a lookup asks the
//! tables in turn. Memory is fixed: a full set loses its least recently used entry, and first one of the
//! same ingress port, so that a guest which sprays addresses displaces its own flows.

use channel::switching::FlowRecord;
use policy::{Action, SegmentId};
use wire::flow::{FlowKey, FlowMask};

/// Entries in a set.
const WAYS: usize = 8;
/// Sets in one piece of a dump.
const SETS_PER_PIECE: usize = 256;
/// Different masks at most; control uses a handful.
const MAX_TUPLES: usize = 16;

#[derive(Clone, Debug)]
struct Entry {
    key: FlowKey,
    action: Action,
    segment: Option<SegmentId>,
    packets: u64,
    /// Milliseconds, by the clock of the caller.
    used: u64,
}

#[derive(Clone, Debug, Default)]
struct Set {
    /// Bits of each entry's hash; 0 is an empty way.
    tags: [u16; WAYS],
    entries: [Option<Entry>; WAYS],
}

#[derive(Debug)]
struct Tuple {
    mask: FlowMask,
    sets: Box<[Set]>,
}

/// See the module.
#[derive(Debug)]
pub struct FlowTable {
    tuples: Vec<Tuple>,
    sets: usize,
    seed: u64,
    len: usize,
    /// Some flow depends on more than Ethernet headers.
    deep: bool,
    /// Where the last lookup found its flow: table, set, way.
    last: (usize, usize, usize),
}

fn tag_of(hash: u64) -> u16 {
    (hash >> 48) as u16 | 1
}

impl Tuple {
    fn set_index(&self, hash: u64) -> usize {
        hash as usize & (self.sets.len() - 1)
    }

    fn find(&self, key: &FlowKey, hash: u64) -> Option<(usize, usize)> {
        let index = self.set_index(hash);
        let set = &self.sets[index];
        let tag = tag_of(hash);
        let way = (0..WAYS).find(|&w| {
            set.tags[w] == tag && set.entries[w].as_ref().is_some_and(|e| e.key == *key)
        })?;
        Some((index, way))
    }
}

impl Set {
    /// The way for a new entry: an empty one, else the least recently used of the same port when it
    /// holds at least half of the set, else the least recently used.
    fn victim(&self, in_port: u32) -> usize {
        if let Some(empty) = self.tags.iter().position(|&t| t == 0) {
            return empty;
        }
        let mine = |w: &usize| {
            self.entries[*w]
                .as_ref()
                .is_some_and(|e| e.key.in_port() == in_port)
        };
        let oldest = |w: &usize| self.entries[*w].as_ref().map_or(0, |e| e.used);
        let own = (0..WAYS).filter(mine).count();
        (0..WAYS)
            .filter(|w| own < WAYS / 2 || mine(w))
            .min_by_key(oldest)
            .unwrap_or(0)
    }
}

impl FlowTable {
    /// A table with room for about `flows` flows of each mask. `seed` keys the hash: guests choose the
    /// keys.
    #[must_use]
    pub fn new(flows: usize, seed: u64) -> Self {
        Self {
            tuples: Vec::with_capacity(MAX_TUPLES),
            sets: (flows / WAYS).next_power_of_two().max(1),
            seed,
            len: 0,
            deep: false,
            last: (0, 0, 0),
        }
    }

    /// Cached flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no flow is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether any flow looks at more of a frame than its Ethernet header, so that keys need the rest.
    #[inline]
    #[must_use]
    pub fn looks_above_ethernet(&self) -> bool {
        self.deep
    }

    /// Notes so many more uses of the flow that the last [`FlowTable::lookup`] found.
    #[inline]
    pub fn count_more(&mut self, frames: u64) {
        let (tuple, set, way) = self.last;
        let tuple = self.tuples.get_mut(tuple);
        if let Some(entry) = tuple.and_then(|t| t.sets[set].entries[way].as_mut()) {
            entry.packets += frames;
        }
    }

    /// The decision for a frame's key, noting its use. The key holds at least what the masks look at; see
    /// [`FlowTable::looks_above_ethernet`].
    #[inline]
    pub fn lookup(&mut self, key: &FlowKey, now: u64) -> Option<Action> {
        for (at, tuple) in self.tuples.iter_mut().enumerate() {
            let masked = key.masked(&tuple.mask);
            let hash = masked.hash(self.seed);
            if let Some((index, way)) = tuple.find(&masked, hash)
                && let Some(entry) = &mut tuple.sets[index].entries[way]
            {
                entry.packets += 1;
                entry.used = now;
                self.last = (at, index, way);
                return Some(entry.action);
            }
        }
        None
    }

    /// Caches a decision, replacing one with the same mask and masked key. `false` when there are too
    /// many different masks.
    pub fn install(
        &mut self,
        key: &FlowKey,
        mask: &FlowMask,
        action: Action,
        segment: Option<SegmentId>,
        now: u64,
    ) -> bool {
        let Some(at) = self.tuple_for(mask) else {
            return false;
        };
        let tuple = &mut self.tuples[at];
        let key = key.masked(mask);
        let hash = key.hash(self.seed);
        let mut entry = Entry {
            key,
            action,
            segment,
            packets: 0,
            used: now,
        };
        let (index, way) = match tuple.find(&key, hash) {
            Some(place) => {
                entry.packets = tuple.sets[place.0].entries[place.1]
                    .as_ref()
                    .map_or(0, |e| e.packets);
                place
            }
            None => {
                let index = tuple.set_index(hash);
                (index, tuple.sets[index].victim(key.in_port()))
            }
        };
        let set = &mut tuple.sets[index];
        self.len += usize::from(set.entries[way].is_none());
        set.tags[way] = tag_of(hash);
        set.entries[way] = Some(entry);
        true
    }

    fn tuple_for(&mut self, mask: &FlowMask) -> Option<usize> {
        if let Some(at) = self.tuples.iter().position(|t| t.mask == *mask) {
            return Some(at);
        }
        if self.tuples.len() == MAX_TUPLES {
            return None;
        }
        self.deep |= !FlowMask::ETHERNET.covers(mask);
        self.tuples.push(Tuple {
            mask: *mask,
            sets: vec![Set::default(); self.sets].into_boxed_slice(),
        });
        Some(self.tuples.len() - 1)
    }

    /// Forgets one flow.
    pub fn remove(&mut self, key: &FlowKey, mask: &FlowMask) {
        let seed = self.seed;
        let Some(tuple) = self.tuples.iter_mut().find(|t| t.mask == *mask) else {
            return;
        };
        let key = key.masked(mask);
        if let Some((index, way)) = tuple.find(&key, key.hash(seed)) {
            tuple.sets[index].tags[way] = 0;
            tuple.sets[index].entries[way] = None;
            self.len -= 1;
        }
    }

    /// Forgets every flow for which `gone` holds.
    pub fn remove_if(&mut self, gone: impl Fn(&FlowKey, &Action) -> bool) {
        for set in self.tuples.iter_mut().flat_map(|t| t.sets.iter_mut()) {
            for way in 0..WAYS {
                if set.entries[way]
                    .as_ref()
                    .is_some_and(|e| gone(&e.key, &e.action))
                {
                    set.tags[way] = 0;
                    set.entries[way] = None;
                    self.len -= 1;
                }
            }
        }
    }

    /// The flows in [`SETS_PER_PIECE`] sets from place `at` on, as control gets them, and the place to go on
    /// from; `None` at the end. A dump starts at place 0.
    #[must_use]
    pub fn records(&self, at: usize, now: u64) -> (Vec<FlowRecord>, Option<usize>) {
        let Some(tuple) = self.tuples.get(at / self.sets) else {
            return (Vec::new(), None);
        };
        let first = at % self.sets;
        let end = (first + SETS_PER_PIECE).min(self.sets);
        let entries = tuple.sets[first..end].iter();
        let entries = entries.flat_map(|s| s.entries.iter().flatten());
        let records = entries.map(|e| FlowRecord {
            key: *e.key.words(),
            mask: *tuple.mask.words(),
            action: e.action,
            segment: e.segment,
            packets: e.packets,
            idle_ms: now.saturating_sub(e.used),
        });
        (records.collect(), Some(at - first + end))
    }
}
