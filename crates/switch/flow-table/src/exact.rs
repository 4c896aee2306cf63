//! Exact-match level: the flow of a whole key, so that not every mask has to be searched.
//!
//! It holds references, no actions. A reference is valid only if its flow still matches the key,
//! bit by bit under the flow's own mask; so a removed flow is never used, and a changed one has its
//! current action. That does not detect a flow of an earlier mask that was installed since;
//! therefore every installation invalidates the references of its ingress port. "Whole key" means
//! all bits in the union of the masks.
//!
//! The level starts with few sets and doubles them, empty, when keys begin to lack a place: the
//! first touch of new memory faults, in which a frame waits, up to some milliseconds where the
//! pages are huge.
//!
//! A reference is one word, so that a cache line holds eight and a set rarely overflows:
//!
//! ```text
//! bits 63..45   44..21   20                            19..0
//!      tag      epoch    the flow's mask is long       slot
//! ```

use super::cache::{LINE, Lines, Use, prefetch};
use super::index::SLOT_BITS;

/// Epoch counters; ingress ports share them modulo this number.
const PORTS: usize = 256;

/// References in a set, which is a cache line.
const WAYS: usize = LINE;
/// Sets at first: 256 KiB.
const FIRST_SETS: usize = 4096;
/// Number of sets per key without a place at which the level grows.
const SETS_PER_UNPLACED: usize = 64;
/// Average keys per set when there are as many keys as flows in the largest table. With twice as
/// many, one key in a hundred would have no place, and searching all masks for that costs more than
/// the memory does.
const KEYS_PER_SET: usize = 2;

const SLOTS: u64 = (1 << SLOT_BITS) - 1;
const LONG: u64 = 1 << SLOT_BITS;
const EPOCH_SHIFT: u32 = SLOT_BITS + 1;
const EPOCH_BITS: u32 = 24;
const LAST_EPOCH: u32 = (1 << EPOCH_BITS) - 1;
/// Installations after which one set is emptied, in turn: before an epoch number is reused, no
/// reference of it is left.
const CALLS_PER_SWEEP: u32 = 16;
const _: () = assert!((CALLS_PER_SWEEP << SLOT_BITS) / KEYS_PER_SET as u32 <= LAST_EPOCH);
/// Tag, in the top bits; sets are chosen from the bottom of the hash.
const TAG: u64 = u64::MAX << (EPOCH_SHIFT + EPOCH_BITS);
/// Bits in which a valid reference equals the expected word.
const COUNTS: u64 = u64::MAX << EPOCH_SHIFT;

/// Slot of the likely flow of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LikelyFlow {
    pub(super) slot: u32,
    /// Whether its mask looks above Ethernet.
    pub(super) long: bool,
}

/// Exact-match level; see the module.
#[derive(Debug)]
pub(super) struct Exact {
    sets: Lines,
    /// Number of sets, a power of two, less one.
    last_set: usize,
    /// Installations so far by ingress port, from 1 on. A reference of another epoch is invalid,
    /// and an empty place has epoch 0.
    epochs: Box<[u32; PORTS]>,
    /// Calls of [`Exact::invalidate`], modulo 2^32.
    calls: u32,
    /// Keys that displaced another one, since the last growth.
    unplaced: usize,
    /// Sets at most.
    most: usize,
}

impl Exact {
    /// Returns a level for `flows` keys.
    pub(super) fn new(flows: usize) -> Self {
        let most = (flows / KEYS_PER_SET).next_power_of_two();
        let sets = most.min(FIRST_SETS);
        Self {
            sets: Lines::new(sets, Use::Scattered),
            last_set: sets - 1,
            epochs: Box::new([1; PORTS]),
            calls: 0,
            unplaced: 0,
            most,
        }
    }

    /// Doubles the sets if too many keys have no place. The new sets are empty: a reference does
    /// not have the bits that choose among more sets. It allocates, so it is not called per frame.
    pub(super) fn make_room(&mut self) {
        let sets = self.last_set + 1;
        if self.unplaced * SETS_PER_UNPLACED < sets || sets >= self.most {
            return;
        }
        self.sets = Lines::new(2 * sets, Use::Scattered);
        self.last_set = 2 * sets - 1;
        self.unplaced = 0;
    }

    /// Returns the index of a hash's set.
    #[inline]
    fn set(&self, hash: u64) -> usize {
        hash as usize & self.last_set
    }

    /// Returns the expected tag and epoch of a reference.
    #[inline]
    fn expected(&self, hash: u64, in_port: u32) -> u64 {
        hash & TAG | u64::from(self.epochs[in_port as usize % PORTS]) << EPOCH_SHIFT
    }

    /// Prefetches the set of a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(self.sets.get(self.set(hash)));
    }

    /// Returns the flow that a key of this hash had.
    #[inline]
    pub(super) fn find(&self, hash: u64, in_port: u32) -> Option<LikelyFlow> {
        let set = self.sets.get(self.set(hash));
        let place = *set.get(way_of(set, self.expected(hash, in_port))?)?;
        Some(LikelyFlow {
            slot: (place & SLOTS) as u32,
            long: place & LONG != 0,
        })
    }

    /// Stores a key's flow: in its own place, an empty one, or a random one.
    pub(super) fn insert(&mut self, hash: u64, in_port: u32, found: LikelyFlow) {
        let (at, expected) = (self.set(hash), self.expected(hash, in_port));
        let set = self.sets.get_mut(at);
        let own = set.iter().position(|place| *place & TAG == hash & TAG);
        let free = own.or_else(|| set.iter().position(|place| *place == 0));
        let way = free.unwrap_or((hash >> 32) as usize % WAYS);
        self.unplaced += usize::from(free.is_none());
        let long = if found.long { LONG } else { 0 };
        set[way] = expected | long | u64::from(found.slot) & SLOTS;
    }

    /// Invalidates the references of a port, or all.
    pub(super) fn invalidate(&mut self, in_port: Option<u32>) {
        let advance = |epoch: &mut u32| {
            *epoch = if *epoch == LAST_EPOCH { 1 } else { *epoch + 1 };
        };
        match in_port {
            Some(port) => advance(&mut self.epochs[port as usize % PORTS]),
            None => self.epochs.iter_mut().for_each(advance),
        }
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(CALLS_PER_SWEEP) {
            let set = (self.calls / CALLS_PER_SWEEP) as usize & self.last_set;
            *self.sets.get_mut(set) = [0; WAYS];
        }
    }
}

/// Returns the way with a valid reference. All are compared without branches, which could not be
/// predicted.
#[cfg(target_arch = "x86_64")]
#[inline]
fn way_of(set: &[u64; WAYS], expected: u64) -> Option<usize> {
    use std::arch::x86_64::*;
    // SAFETY: every x86-64 processor has SSE2, and the four loads of 16 bytes, which need no
    // alignment, are the set.
    let halves = unsafe {
        let (expected, counts) = (
            _mm_set1_epi64x(expected as i64),
            _mm_set1_epi64x(COUNTS as i64),
        );
        let two = |n: usize| {
            let places = _mm_loadu_si128(set.as_ptr().add(2 * n).cast());
            let differ = _mm_and_si128(_mm_xor_si128(places, expected), counts);
            _mm_cmpeq_epi32(differ, _mm_setzero_si128())
        };
        let low = _mm_packs_epi32(two(0), two(1));
        let high = _mm_packs_epi32(two(2), two(3));
        _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
    };
    // One bit for each half of a word.
    let words = halves & halves >> 1 & 0x5555;
    (words != 0).then(|| words.trailing_zeros() as usize / 2)
}

/// Returns the way with a valid reference.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn way_of(set: &[u64; WAYS], expected: u64) -> Option<usize> {
    set.iter()
        .position(|place| (place ^ expected) & COUNTS == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a hash with this tag, of set 5.
    fn hash(tag: u64) -> u64 {
        tag << (EPOCH_SHIFT + EPOCH_BITS) | 5
    }

    fn found(slot: u32) -> LikelyFlow {
        let long = slot % 2 == 1;
        LikelyFlow { slot, long }
    }

    #[test]
    fn every_way_is_found_until_its_port_has_a_new_flow() {
        let mut exact = Exact::new(1 << SLOT_BITS);
        assert_eq!(exact.sets.get(0).as_ptr().addr() % 64, 0);
        for n in 0..WAYS as u32 {
            assert_eq!(exact.find(hash(n.into()), n % 2), None);
            exact.insert(hash(n.into()), n % 2, found(SLOTS as u32 - n));
        }
        for n in 0..WAYS as u32 {
            let flow = Some(found(SLOTS as u32 - n));
            assert_eq!(exact.find(hash(n.into()), n % 2), flow);
            assert_eq!(exact.find(hash(n.into()) ^ 1, n % 2), None, "another set");
        }
        exact.invalidate(Some(1));
        let known = |n: &u32| exact.find(hash((*n).into()), n % 2).is_some();
        let left: Vec<u32> = (0..WAYS as u32).filter(known).collect();
        assert_eq!(left, [0, 2, 4, 6]);
        exact.insert(hash(1), 1, found(3));
        assert_eq!(exact.find(hash(1), 1), Some(found(3)), "in its old place");
        exact.invalidate(None);
        assert!((0..WAYS as u32).all(|n| exact.find(hash(n.into()), n % 2).is_none()));
    }

    fn spread(n: u64) -> u64 {
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes()
    }

    #[test]
    fn there_are_as_many_sets_as_keys_need() {
        let mut exact = Exact::new(1 << SLOT_BITS);
        let mut sets = Vec::new();
        for keys in [1_000, 8_000, 100_000, 1 << SLOT_BITS] {
            // Keys that are not found are looked up in the masks and inserted again.
            for _ in 0..12 {
                exact.make_room();
                for n in 0..keys {
                    if exact.find(spread(n), 0).is_none() {
                        exact.insert(spread(n), 0, found(n as u32));
                    }
                }
            }
            let known = |n: &u64| exact.find(spread(*n), 0) == Some(found(*n as u32));
            let known = (0..keys).filter(known).count() as u64;
            assert!(known * 100 >= keys * 99, "{known} of {keys}");
            sets.push(exact.last_set + 1);
        }
        assert_eq!(sets[..2], [FIRST_SETS; 2]);
        assert!(sets[2] < 1 << 16, "{sets:?}");
        assert!(sets[3] <= (1 << SLOT_BITS) / KEYS_PER_SET, "{sets:?}");
        assert_eq!(Exact::new(1).last_set, 0);
    }

    #[test]
    fn a_reused_epoch_matches_no_old_reference() {
        let mut exact = Exact::new(64);
        exact.insert(7, 3, found(9));
        for _ in 0..LAST_EPOCH {
            exact.invalidate(Some(3));
        }
        assert_eq!(exact.find(7, 3), None);
    }

    #[test]
    fn an_installation_empties_one_set_at_most_and_each_has_its_turn() {
        let mut exact = Exact::new(1 << SLOT_BITS);
        let sets = exact.last_set as u64 + 1;
        let known = |exact: &Exact| {
            (0..sets)
                .filter(|set| exact.find(*set, 0).is_some())
                .count()
        };
        for round in 0..2 {
            // By another port, whose epoch wraps meanwhile.
            exact.epochs[1] = LAST_EPOCH - 100;
            for set in 0..sets {
                exact.insert(set, 0, found(1));
            }
            let mut before = known(&exact);
            for call in 0..64 * CALLS_PER_SWEEP {
                exact.invalidate(Some(1));
                if call % CALLS_PER_SWEEP == CALLS_PER_SWEEP - 1 {
                    let left = known(&exact);
                    assert_eq!(before - left, 1, "round {round}");
                    before = left;
                }
            }
        }
        for _ in 0..sets as u32 * CALLS_PER_SWEEP {
            exact.invalidate(Some(1));
        }
        assert_eq!(known(&exact), 0);
    }
}
