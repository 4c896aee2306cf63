//! Flows by slot, contiguous, and their number per port.

use std::collections::HashMap;

use ipc::records::SourceRole;
use policy::{Action, SegmentId};
use wire::flow::{FlowKey, LOW_WORDS};

use super::Class;
use super::cache::{Lines, Use, advise_huge_pages, prefetch};
use super::used::SlotBitmap;

/// Words of a key that only long masks cover.
const HIGH_WORDS: usize = 8 - LOW_WORDS;
/// No slot.
pub(super) const NONE: u32 = u32::MAX;
/// Tuple number of a free slot.
const FREE: u8 = u8::MAX;

/// Flow without the high words of its key: one cache line.
#[repr(align(64))]
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// First words of the masked key.
    pub(super) low: [u64; LOW_WORDS],
    /// Hash of the masked key under its tuple. In a free slot: the next free slot.
    pub(super) hash: u64,
    pub(super) packets: u64,
    pub(super) action: Action,
    pub(super) ruled: RuleBytes,
    pub(super) learned_in: LearnedIn,
    /// Last use, milliseconds by the caller's clock, modulo 2^32.
    pub(super) used: u32,
    /// Number of its mask's tuple.
    pub(super) tuple: u8,
    pub(super) class: Class,
}

const _: () = assert!(size_of::<Flow>() == 64);

/// Rule list of the flow (16 bits) and bytes that are not counted for its rules yet (48 bits).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RuleBytes(u64);

impl RuleBytes {
    /// Returns the value for a rule list, without bytes.
    pub(super) fn by(rules: u16) -> Self {
        Self(rules.into())
    }

    /// Returns the number of the rule list; 0: no rule decided.
    pub(super) fn rules(self) -> u16 {
        self.0 as u16
    }

    pub(super) fn bytes(self) -> u64 {
        self.0 >> 16
    }
}

/// Optional segment, and the role of the port for the source, in two bytes: segment numbers are
/// below [`policy::MAX_SEGMENTS`]. See [`Origin`](super::Origin).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LearnedIn(u16);

const HOLDER: u16 = 1 << 15;
const RIVAL: u16 = 1 << 14;
/// No segment.
const NOWHERE: u16 = RIVAL - 1;

const _: () = assert!(policy::MAX_SEGMENTS <= NOWHERE as usize);

impl LearnedIn {
    pub(super) fn new(segment: Option<SegmentId>, source: SourceRole) -> Self {
        let segment = segment.map_or(NOWHERE, |segment| segment.0.min(NOWHERE));
        let role = match source {
            SourceRole::Unlearned => 0,
            SourceRole::Holder => HOLDER,
            SourceRole::Rival => RIVAL,
        };
        Self(segment | role)
    }
}

impl Flow {
    pub(super) fn is_free(&self) -> bool {
        self.tuple == FREE
    }

    /// Returns the milliseconds since the last use.
    pub(super) fn idle(&self, now: u64) -> u32 {
        (now as u32).wrapping_sub(self.used)
    }

    pub(super) fn segment(&self) -> Option<SegmentId> {
        let segment = self.learned_in.0 & NOWHERE;
        (segment != NOWHERE).then_some(SegmentId(segment))
    }

    /// Returns what the ingress port is to the source.
    pub(super) fn source(&self) -> SourceRole {
        match self.learned_in.0 & (HOLDER | RIVAL) {
            HOLDER => SourceRole::Holder,
            RIVAL => SourceRole::Rival,
            _ => SourceRole::Unlearned,
        }
    }

    /// Adds bytes of frames. They wrap at 2^48, a day at 25 Gbit/s without a sweep.
    #[inline]
    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.ruled.0 = self.ruled.0.wrapping_add(bytes << 16);
    }

    /// Takes back bytes that were added.
    pub(super) fn remove_bytes(&mut self, bytes: u64) {
        self.ruled.0 = self.ruled.0.wrapping_sub(bytes << 16);
    }

    pub(super) fn in_port(&self) -> u32 {
        FlowKey::from_words([self.low[0], 0, 0, 0, 0, 0, 0, 0]).in_port()
    }

    fn to(&self) -> Option<u32> {
        match self.action {
            Action::Unicast { port, .. } => Some(port.0),
            Action::Flood { .. } | Action::Drop(_) => None,
        }
    }
}

/// History of a flow, for its age and rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct History {
    /// Time of the decision, on the clock of [`Flow::used`].
    pub(super) made: u32,
    /// Packets at the last count, modulo 2^32.
    pub(super) counted: u32,
    /// Packets that were counted for the rules.
    pub(super) ruled: u64,
}

/// Number of a port's flows.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    from: usize,
    to: usize,
}

/// Flows by slot; see the module.
#[derive(Debug)]
pub(super) struct Flows {
    /// Slots. Capacity is reserved at the start; untouched memory is not allocated.
    slots: Vec<Flow>,
    /// High words of keys by slot, for long masks only.
    high: Lines,
    /// History by slot. Not accessed per frame.
    past: Vec<History>,
    used: SlotBitmap,
    capacity: usize,
    /// First free slot below the used length.
    free: u32,
    len: usize,
    /// Flow counts of the ports with flows.
    shares: HashMap<u32, Share>,
    /// Number of ports with flows from them.
    senders: usize,
}

impl Flows {
    pub(super) fn new(capacity: usize) -> Self {
        let slots = Vec::with_capacity(capacity);
        advise_huge_pages(&slots);
        Self {
            slots,
            high: Lines::new(capacity, Use::InTurn),
            past: Vec::with_capacity(capacity),
            used: SlotBitmap::new(capacity),
            capacity,
            free: NONE,
            len: 0,
            shares: HashMap::new(),
            senders: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    /// Returns the first slot with a flow at a position or behind it.
    pub(super) fn next(&self, at: usize) -> Option<usize> {
        self.used.next(at)
    }

    /// Prefetches a flow, and the high words of its key if `high`.
    #[inline]
    pub(super) fn prefetch(&self, slot: u32, high: bool) {
        let Some(flow) = self.slots.get(slot as usize) else {
            return;
        };
        prefetch(flow);
        if high {
            prefetch(self.high.get(slot as usize));
        }
    }

    /// Returns the content of a slot: a flow, or a free slot, see [`Flow::is_free`].
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&Flow> {
        self.slots.get(slot as usize)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Flow> {
        self.slots.get_mut(slot as usize)
    }

    /// Returns whether the slot has these high words.
    #[inline]
    pub(super) fn has_high(&self, slot: u32, key: &FlowKey, mask: &[u64; 8]) -> bool {
        let words = self.high.get(slot as usize);
        let differ = |i: usize| (key.words()[LOW_WORDS + i] & mask[LOW_WORDS + i]) ^ words[i];
        (0..HIGH_WORDS).fold(0, |all, i| all | differ(i)) == 0
    }

    /// Returns the masked key. `long`: the mask is long, so there are high words.
    pub(super) fn key(&self, slot: u32, long: bool) -> FlowKey {
        let mut words = [0; 8];
        let (low, high) = words.split_at_mut(LOW_WORDS);
        low.copy_from_slice(&self.slots[slot as usize].low);
        if long {
            high.copy_from_slice(&self.high.get(slot as usize)[..HIGH_WORDS]);
        }
        FlowKey::from_words(words)
    }

    /// Inserts a flow into a free slot, which must exist; `high` with a long mask.
    pub(super) fn insert(&mut self, flow: Flow, high: Option<&[u64; 8]>) -> u32 {
        self.count(&flow, true);
        self.len += 1;
        let (slot, made) = (self.free, flow.used);
        let slot = match self.slots.get_mut(slot as usize) {
            Some(free) => {
                self.free = free.hash as u32;
                *free = flow;
                slot
            }
            None => {
                self.slots.push(flow);
                self.past.push(History::default());
                (self.slots.len() - 1) as u32
            }
        };
        self.past[slot as usize] = History {
            made,
            ..History::default()
        };
        self.used.set(slot, true);
        if let Some(words) = high {
            self.high.get_mut(slot as usize)[..HIGH_WORDS].copy_from_slice(&words[LOW_WORDS..]);
        }
        slot
    }

    /// Replaces the flow in a slot by another with the same key.
    pub(super) fn change(&mut self, slot: u32, flow: Flow) {
        let old = self.slots[slot as usize].clone();
        self.count(&old, false);
        self.count(&flow, true);
        let past = &mut self.past[slot as usize];
        (past.made, past.ruled) = (flow.used, flow.packets);
        self.slots[slot as usize] = flow;
    }

    /// Notes that the frames of the flow in a slot were counted for its rules.
    pub(super) fn ruled(&mut self, slot: u32) {
        let flow = &mut self.slots[slot as usize];
        flow.ruled = RuleBytes::by(flow.ruled.rules());
        self.past[slot as usize].ruled = flow.packets;
    }

    /// Returns the history of the flow in a slot.
    pub(super) fn past_mut(&mut self, slot: u32) -> &mut History {
        &mut self.past[slot as usize]
    }

    pub(super) fn past(&self, slot: u32) -> History {
        self.past[slot as usize]
    }

    /// Frees a slot.
    pub(super) fn remove(&mut self, slot: u32) {
        let flow = self.slots[slot as usize].clone();
        self.count(&flow, false);
        self.len -= 1;
        let place = &mut self.slots[slot as usize];
        place.tuple = FREE;
        place.hash = self.free.into();
        self.free = slot;
        self.used.set(slot, false);
    }

    fn count(&mut self, flow: &Flow, more: bool) {
        self.adjust(flow.in_port(), |share| &mut share.from, more);
        if let Some(to) = flow.to() {
            self.adjust(to, |share| &mut share.to, more);
        }
    }

    fn adjust(&mut self, port: u32, side: impl Fn(&mut Share) -> &mut usize, more: bool) {
        let share = self.shares.entry(port).or_default();
        let sent = share.from > 0;
        let count = side(share);
        *count = if more { *count + 1 } else { *count - 1 };
        let sends = share.from > 0;
        if share.from == 0 && share.to == 0 {
            self.shares.remove(&port);
        }
        self.senders = self.senders + usize::from(sends) - usize::from(sent);
    }

    /// Returns the number of flows from a port.
    pub(super) fn count_from(&self, port: u32) -> usize {
        self.shares.get(&port).map_or(0, |share| share.from)
    }

    /// Returns whether a port has more flows than this.
    pub(super) fn any_has_more_than(&self, flows: usize) -> bool {
        self.shares.values().any(|share| share.from > flows)
    }

    /// Returns the share of each port when the table is full: the same for all ports with flows.
    pub(super) fn fair_share(&self) -> usize {
        self.capacity / self.senders.max(1)
    }

    /// Returns whether there is a flow from or to a port.
    pub(super) fn concern(&self, port: u32) -> bool {
        self.shares.contains_key(&port)
    }

    /// Returns the segment of the flow in a slot, if it is flooded or dropped.
    pub(super) fn goes_to_not_one(&self, slot: u32) -> Option<SegmentId> {
        let flow = &self.slots[slot as usize];
        flow.segment()
            .filter(|_| !flow.is_free() && flow.to().is_none())
    }

    /// Returns whether the flow in a slot is from or to a matching port.
    pub(super) fn concerns(&self, slot: u32, is_one: impl Fn(u32) -> bool) -> bool {
        let flow = &self.slots[slot as usize];
        !flow.is_free() && (is_one(flow.in_port()) || flow.to().is_some_and(is_one))
    }
}
