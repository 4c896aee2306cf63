//! The filter of connections: which conversations may be known to the switch. Entries of tracked
//! segments ask it, because a frame of a known connection passes without a look at lists.
//!
//! It is the only value of a BPF map of its own, one for all tables of a host. The switch writes
//! it, and no table:
//!
//! ```text
//! 0             magic, seed of the hash (u64 each)
//! GENERATION_AT 0: nothing is known, all frames pass. Else the number of the present contents
//! NEXT_AT       next generation; none is used twice
//! COUNTERS_AT   a byte for each hash: connections whose frames have it, in both directions; 255
//!               stays until the filter is made anew
//! ```
//!
//! A connection is counted before it is in the switch's table, and until its place there is free
//! again. So a counter of zero says that no frame with this hash is of a known connection. A
//! counter above zero says nothing: the frame passes, and the switch decides.
//!
//! A reader loads the generation before the seed and the counter, and once more after that: on any
//! difference the frame passes. `programs/prefilter.c` does the same.

use wire::{FlowKey, icmp};

use crate::layout::FACTOR;
use crate::page::Memory;
use crate::sync::{AtomicU64, Ordering, fence};

/// "LHCONNF1".
pub const MAGIC: u64 = u64::from_le_bytes(*b"LHCONNF1");
/// Offset of the seed.
pub const SEED_AT: usize = 8;
/// Offset of the generation, on a line of its own with that of the next one.
pub const GENERATION_AT: usize = 64;
/// Offset of the next generation.
pub const NEXT_AT: usize = 72;
/// Offset of the counters.
pub const COUNTERS_AT: usize = 4096;
/// Number of counters, a power of two. With a quarter of a million connections, which the usual
/// table holds, one of nine is above zero.
pub const COUNTERS: usize = 1 << 21;
/// Bytes of the whole filter, in whole pages.
pub const SIZE: usize = COUNTERS_AT + COUNTERS;

/// A counter with this value is not changed any more.
const FULL: u64 = 0xff;

/// Fields that all frames of a connection share: their protocol, and their ends without order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conversation {
    protocol: u8,
    /// Address, its low half first, and port of each end.
    ends: [(u64, u64, u16); 2],
}

impl Conversation {
    /// Returns that of a protocol between two ends: the halves of their addresses, the low ones
    /// first, and their ports. ICMP has no ports: all messages between two hosts are one
    /// conversation.
    #[must_use]
    pub const fn new(protocol: u8, mut ends: [(u64, u64, u16); 2]) -> Self {
        if protocol == icmp::PROTOCOL_V4 || protocol == icmp::PROTOCOL_V6 {
            (ends[0].2, ends[1].2) = (0, 0);
        }
        Self { protocol, ends }
    }

    /// Returns that of the frames with a key.
    #[must_use]
    pub const fn of(key: &FlowKey) -> Self {
        let [.., source, source_high, destination, destination_high] = *key.words();
        Self::new(
            key.ip_proto(),
            [
                (source, source_high, key.l4_src()),
                (destination, destination_high, key.l4_dst()),
            ],
        )
    }

    /// Returns the hash, which is that of both directions. A chosen collision has frames pass.
    #[must_use]
    pub fn hash(&self, seed: u64) -> u64 {
        let mix = |hash: u64, word: u64| {
            let mixed = (hash ^ word).wrapping_mul(FACTOR);
            mixed ^ mixed >> 32
        };
        let of_end = |(low, high, port)| mix(mix(mix(seed, low), high), u64::from(port));
        let both = of_end(self.ends[0]).wrapping_add(of_end(self.ends[1]));
        mix(both, self.protocol.into())
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct ConnectionFilter<M>(M);

/// Makes a filter of zeros: nothing is known.
pub fn create<M: Memory>(memory: M) {
    memory.word(0).store(MAGIC, Ordering::Relaxed);
}

impl<M: Memory> ConnectionFilter<M> {
    /// Wraps the memory of a filter, for readers.
    pub const fn new(memory: M) -> Self {
        Self(memory)
    }

    /// Empties a filter, for a writer that knows all connections. All frames pass until the writer
    /// has raised these and [publishes](Self::publish) it. `seed` is random. `None`: the memory is
    /// no filter.
    pub fn begin(memory: M, seed: u64) -> Option<Self> {
        if memory.word(0).load(Ordering::Relaxed) != MAGIC {
            return None;
        }
        let filter = Self(memory);
        filter.withdraw(seed);
        for at in (COUNTERS_AT..SIZE).step_by(8) {
            filter.0.word(at).store(0, Ordering::Relaxed);
        }
        Some(filter)
    }

    /// Has all frames pass, with another seed.
    pub(crate) fn withdraw(&self, seed: u64) {
        self.0.word(GENERATION_AT).store(0, Ordering::SeqCst);
        // A reader that meets one of the words of later finds the generation changed.
        fence(Ordering::SeqCst);
        self.0.word(SEED_AT).store(seed, Ordering::Relaxed);
    }

    /// Has readers use it: all known connections are raised.
    pub fn publish(&self) {
        let next = self.0.word(NEXT_AT);
        // Stored first: a writer that dies uses none twice.
        let generation = next.load(Ordering::Relaxed).wrapping_add(1).max(1);
        next.store(generation, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let of_all = self.0.word(GENERATION_AT);
        of_all.store(generation, Ordering::Release);
    }

    /// Counts a connection: from here on no frame of it is taken for one of none.
    #[inline]
    pub fn raise(&self, of: &Conversation) {
        let (word, shift) = self.counter(of);
        let more = |value: u64| (value >> shift & FULL != FULL).then(|| value + (1 << shift));
        // The connection is visible to no one before this is.
        let _ = word.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more);
    }

    /// Counts a connection no more, which was raised and is known no longer.
    #[inline]
    pub fn lower(&self, of: &Conversation) {
        let (word, shift) = self.counter(of);
        let less = |value: u64| {
            let count = value >> shift & FULL;
            (count != 0 && count != FULL).then(|| value - (1 << shift))
        };
        let _ = word.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
    }

    /// Returns whether a frame may be of a known connection, as the programs do.
    #[must_use]
    pub fn may_know(&self, of: &Conversation) -> bool {
        let generation = self.0.word(GENERATION_AT);
        let before = generation.load(Ordering::Acquire);
        let (word, shift) = self.counter(of);
        let count = word.load(Ordering::Acquire) >> shift & FULL;
        fence(Ordering::Acquire);
        before == 0 || count != 0 || generation.load(Ordering::Relaxed) != before
    }

    /// Returns the word of a counter, and its first bit there.
    #[inline]
    pub(crate) fn counter(&self, of: &Conversation) -> (&AtomicU64, u32) {
        let seed = self.0.word(SEED_AT).load(Ordering::Relaxed);
        let place = of.hash(seed) as usize & (COUNTERS - 1);
        // Programs read bytes, on a little-endian machine.
        let shift = if cfg!(target_endian = "little") {
            place % 8
        } else {
            7 - place % 8
        };
        (self.0.word(COUNTERS_AT + place / 8 * 8), 8 * shift as u32)
    }
}
