//! The flows themselves, one beside the other, and how many of them each port has.

use std::collections::HashMap;

use policy::{Action, SegmentId};
use wire::flow::{FlowKey, LOW_WORDS};

use super::cache::{Lines, Use, prefetch, want_huge_pages};
use super::used::Used;

/// Words of a key that only long masks count.
const HIGH_WORDS: usize = 8 - LOW_WORDS;
/// No slot.
pub(super) const NONE: u32 = u32::MAX;
/// No tuple: the slot is free.
const FREE: u8 = u8::MAX;

/// A flow, but for the high words of its key: one cache line.
#[repr(align(64))]
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// First words of the masked key.
    pub(super) low: [u64; LOW_WORDS],
    /// Of the masked key, by its tuple's hash. In a free slot: the next free one.
    pub(super) hash: u64,
    pub(super) packets: u64,
    pub(super) action: Action,
    pub(super) ruled: Ruled,
    pub(super) segment: MaybeSegment,
    /// Milliseconds by the clock of the caller, modulo 2^32.
    pub(super) used: u32,
    /// Number of its mask.
    pub(super) tuple: u8,
    /// See [`Origin`](super::Origin).
    pub(super) learned: bool,
}

const _: () = assert!(size_of::<Flow>() == 64);

/// The rules that decided, and the bytes of frames since they were counted for these: a number of 16 bits, and above it one of 48.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ruled(u64);

impl Ruled {
    /// By the rules of the list of this number; no bytes yet.
    pub(super) fn by(rules: u16) -> Self {
        Self(rules.into())
    }

    /// The number of their list; 0: no rule decided.
    pub(super) fn rules(self) -> u16 {
        self.0 as u16
    }

    pub(super) fn bytes(self) -> u64 {
        self.0 >> 16
    }
}

/// A segment or none, in two bytes: numbers of segments end below [`policy::MAX_SEGMENTS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MaybeSegment(u16);

const _: () = assert!(policy::MAX_SEGMENTS <= u16::MAX as usize);

impl From<Option<SegmentId>> for MaybeSegment {
    fn from(segment: Option<SegmentId>) -> Self {
        Self(segment.map_or(u16::MAX, |segment| segment.0))
    }
}

impl From<MaybeSegment> for Option<SegmentId> {
    fn from(segment: MaybeSegment) -> Self {
        (segment.0 != u16::MAX).then_some(SegmentId(segment.0))
    }
}

impl Flow {
    pub(super) fn is_free(&self) -> bool {
        self.tuple == FREE
    }

    /// Milliseconds since the last use.
    pub(super) fn idle(&self, now: u64) -> u32 {
        (now as u32).wrapping_sub(self.used)
    }

    pub(super) fn segment(&self) -> Option<SegmentId> {
        self.segment.into()
    }

    /// Notes bytes of frames. Above 2^48, which is a day at 25 Gbit/s without anybody asking, they begin again at 0.
    #[inline]
    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.ruled.0 = self.ruled.0.wrapping_add(bytes << 16);
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

/// What was, for those who ask how old and how busy a flow is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Past {
    /// When it was decided, in the same time as [`Flow::used`].
    pub(super) made: u32,
    /// Packets when they were counted last, modulo 2^32.
    pub(super) counted: u32,
    /// Packets that were counted for the rules that decided.
    pub(super) ruled: u64,
}

/// A port's flows.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    from: usize,
    to: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Flows {
    /// By slot. Room for all is reserved at the start; the system gives memory to what was touched.
    slots: Vec<Flow>,
    /// By slot: the high words of a key, for long masks alone.
    high: Lines,
    /// By slot, as many as there are slots. No frame looks at it.
    past: Vec<Past>,
    used: Used,
    capacity: usize,
    /// The first of the free slots among those that were in use.
    free: u32,
    len: usize,
    /// Ports from or to which there is a flow.
    shares: HashMap<u32, Share>,
    /// Ports from which there is one.
    senders: usize,
}

impl Flows {
    pub(super) fn new(capacity: usize) -> Self {
        let slots = Vec::with_capacity(capacity);
        want_huge_pages(&slots);
        Self {
            slots,
            high: Lines::new(capacity, Use::InTurn),
            past: Vec::with_capacity(capacity),
            used: Used::new(capacity),
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

    /// The first slot with a flow at a place or behind it.
    pub(super) fn next(&self, at: usize) -> Option<usize> {
        self.used.next(at)
    }

    /// Fetches a flow, and the high words of its key if they may be needed.
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

    /// What is in a slot: a flow, or what is left of one; see [`Flow::is_free`].
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&Flow> {
        self.slots.get(slot as usize)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Flow> {
        self.slots.get_mut(slot as usize)
    }

    /// Whether the high words are these.
    #[inline]
    pub(super) fn has_high(&self, slot: u32, key: &FlowKey, mask: &[u64; 8]) -> bool {
        let words = self.high.get(slot as usize);
        let differ = |i: usize| (key.words()[LOW_WORDS + i] & mask[LOW_WORDS + i]) ^ words[i];
        (0..HIGH_WORDS).fold(0, |all, i| all | differ(i)) == 0
    }

    /// The masked key. Whether the mask is long says whether there are high words.
    pub(super) fn key(&self, slot: u32, long: bool) -> FlowKey {
        let mut words = [0; 8];
        let (low, high) = words.split_at_mut(LOW_WORDS);
        low.copy_from_slice(&self.slots[slot as usize].low);
        if long {
            high.copy_from_slice(&self.high.get(slot as usize)[..HIGH_WORDS]);
        }
        FlowKey::from_words(words)
    }

    /// Puts a flow into a free slot, which there must be; `high` with a long mask.
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
                self.past.push(Past::default());
                (self.slots.len() - 1) as u32
            }
        };
        self.past[slot as usize] = Past {
            made,
            ..Past::default()
        };
        self.used.set(slot, true);
        if let Some(words) = high {
            self.high.get_mut(slot as usize)[..HIGH_WORDS].copy_from_slice(&words[LOW_WORDS..]);
        }
        slot
    }

    /// Puts another flow with the same key into a slot.
    pub(super) fn change(&mut self, slot: u32, flow: Flow) {
        let old = self.slots[slot as usize].clone();
        self.count(&old, false);
        self.count(&flow, true);
        let past = &mut self.past[slot as usize];
        (past.made, past.ruled) = (flow.used, flow.packets);
        self.slots[slot as usize] = flow;
    }

    /// The frames of the flow in a slot were counted for its rules.
    pub(super) fn ruled(&mut self, slot: u32) {
        let flow = &mut self.slots[slot as usize];
        flow.ruled = Ruled::by(flow.ruled.rules());
        self.past[slot as usize].ruled = flow.packets;
    }

    /// What was with the flow in a slot.
    pub(super) fn past_mut(&mut self, slot: u32) -> &mut Past {
        &mut self.past[slot as usize]
    }

    pub(super) fn past(&self, slot: u32) -> Past {
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

    /// Flows from a port.
    pub(super) fn count_from(&self, port: u32) -> usize {
        self.shares.get(&port).map_or(0, |share| share.from)
    }

    /// Whether more flows than this are from one port.
    pub(super) fn any_has_more_than(&self, flows: usize) -> bool {
        self.shares.values().any(|share| share.from > flows)
    }

    /// Flows that a port may have when all are wanted: the same for all that have any.
    pub(super) fn fair_share(&self) -> usize {
        self.capacity / self.senders.max(1)
    }

    /// Whether there is a flow from or to a port.
    pub(super) fn concern(&self, port: u32) -> bool {
        self.shares.contains_key(&port)
    }

    /// The segment of the flow in a slot, if that goes to several ports or to nobody.
    pub(super) fn goes_to_not_one(&self, slot: u32) -> Option<SegmentId> {
        let flow = &self.slots[slot as usize];
        flow.segment()
            .filter(|_| !flow.is_free() && flow.to().is_none())
    }

    /// Whether the flow in a slot is from or to a port like that.
    pub(super) fn concerns(&self, slot: u32, is_one: impl Fn(u32) -> bool) -> bool {
        let flow = &self.slots[slot as usize];
        !flow.is_free() && (is_one(flow.in_port()) || flow.to().is_some_and(is_one))
    }
}
