//! The memory of a table, in words, and the two hashes.

use wire::flow::VLAN_PRESENT;
use wire::{FlowKey, FlowMask};

use crate::layout::{
    BASE_AT, COUNTS_AT, CPUS, DESTINATIONS, ENTRY_AT, FACTOR, KEY, KEY_AT, LAYOUT, LAYOUT_AT,
    MAGIC, MAGIC_AT, MASK_GENERATIONS_AT, MASKS, MASKS_AT, SEED_AT, SETS, SLOT, SLOTS, SLOTS_AT,
    WANTED_AT, WAYS,
};
use crate::sync::{AtomicU64, Ordering};

/// Memory of [`SIZE`](crate::layout::SIZE) bytes, or of a filter of connections, which other
/// processes and the kernel may read and write at any time.
pub trait Memory {
    /// Returns the word at a multiple of eight below the size.
    fn word(&self, at: usize) -> &AtomicU64;
}

#[cfg(not(loom))]
impl Memory for mapping::SharedWords<{ crate::layout::SIZE }> {
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        Self::word(self, at)
    }
}

#[cfg(not(loom))]
impl Memory for mapping::SharedWords<{ crate::connections::SIZE }> {
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        Self::word(self, at)
    }
}

impl<M: Memory> Memory for &M {
    fn word(&self, at: usize) -> &AtomicU64 {
        (**self).word(at)
    }
}

/// Number of a slot, below [`SLOTS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(u16);

impl Slot {
    /// Returns all slots.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SLOTS as u16).map(Self)
    }

    /// Returns the slots for an entry of this hash.
    pub fn of_hash(hash: u64) -> impl Iterator<Item = Self> {
        let first = (hash as usize % SETS * WAYS) as u16;
        (first..first + WAYS as u16).map(Self)
    }

    /// Returns its number.
    #[must_use]
    pub const fn number(self) -> usize {
        self.0 as usize
    }

    const fn at(self) -> usize {
        SLOTS_AT + self.0 as usize * SLOT
    }
}

/// Number of a mask, below [`MASKS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MaskId(u8);

impl MaskId {
    /// Returns all masks.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..MASKS as u8).map(Self)
    }

    /// Returns its number.
    #[must_use]
    pub const fn number(self) -> usize {
        self.0 as usize
    }

    /// Returns its bit among the masks of a destination.
    #[must_use]
    pub const fn bit(self) -> u8 {
        1 << self.0
    }
}

/// Frames and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Frames.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
}

impl Counts {
    /// Adds others.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            frames: self.frames.wrapping_add(other.frames),
            bytes: self.bytes.wrapping_add(other.bytes),
        }
    }

    /// Subtracts earlier ones.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            frames: self.frames.wrapping_sub(earlier.frames),
            bytes: self.bytes.wrapping_sub(earlier.bytes),
        }
    }
}

/// Fields of a table.
#[derive(Clone, Debug)]
pub struct Page<M>(M);

impl<M: Memory> Page<M> {
    /// Wraps the memory of a table.
    pub const fn new(memory: M) -> Self {
        Self(memory)
    }

    /// Returns whether the memory is a table of this layout.
    pub fn is_table(&self) -> bool {
        [self.load(MAGIC_AT), self.load(LAYOUT_AT)] == [MAGIC, LAYOUT]
    }

    /// Returns a word.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        self.0.word(at)
    }

    /// Loads a word.
    #[inline]
    pub(crate) fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    /// Stores a word.
    #[inline]
    pub(crate) fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Relaxed);
    }

    /// Returns the seed.
    pub(crate) fn seed(&self) -> u64 {
        self.load(SEED_AT)
    }

    /// Returns the generation of a slot.
    pub(crate) fn generation(&self, slot: Slot) -> &AtomicU64 {
        self.word(slot.at())
    }

    /// Returns the word of a slot with what its entry is.
    pub(crate) fn entry(&self, slot: Slot) -> &AtomicU64 {
        self.word(slot.at() + ENTRY_AT)
    }

    /// Returns the counters of a slot, since ever.
    pub(crate) fn counts(&self, slot: Slot) -> Counts {
        (0..CPUS).fold(Counts::default(), |all, cpu| {
            let at = slot.at() + COUNTS_AT + 16 * cpu;
            let (frames, bytes) = (self.load(at), self.load(at + 8));
            all.plus(Counts { frames, bytes })
        })
    }

    /// Returns the counters of a slot before its entry.
    pub(crate) fn base(&self, slot: Slot) -> Counts {
        let at = slot.at() + BASE_AT;
        let (frames, bytes) = (self.load(at), self.load(at + 8));
        Counts { frames, bytes }
    }

    /// Stores the counters of a slot before its entry.
    pub(crate) fn set_base(&self, slot: Slot, base: Counts) {
        let at = slot.at() + BASE_AT;
        self.store(at, base.frames);
        self.store(at + 8, base.bytes);
    }

    /// Counts a frame, as the programs do.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn count(&self, slot: Slot, cpu: usize, bytes: u64) {
        let at = slot.at() + COUNTS_AT + 16 * (cpu % CPUS);
        self.word(at).fetch_add(1, Ordering::Relaxed);
        self.word(at + 8).fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the key of a slot.
    pub(crate) fn key(&self, slot: Slot) -> FlowKey {
        FlowKey::from_words(self.words(slot.at() + KEY_AT))
    }

    /// Stores the key of a slot.
    pub(crate) fn set_key(&self, slot: Slot, key: &FlowKey) {
        self.set_words(slot.at() + KEY_AT, key.words());
    }

    /// Returns a mask.
    pub(crate) fn mask(&self, mask: MaskId) -> FlowMask {
        FlowMask::from_words(self.words(MASKS_AT + KEY * mask.number()))
    }

    /// Stores a mask.
    pub(crate) fn set_mask(&self, at: MaskId, mask: &FlowMask) {
        self.set_words(MASKS_AT + KEY * at.number(), mask.words());
    }

    /// Returns the generation of a mask.
    pub(crate) fn mask_generation(&self, mask: MaskId) -> &AtomicU64 {
        self.word(MASK_GENERATIONS_AT + 8 * mask.number())
    }

    /// Returns the masks of entries for a destination.
    pub(crate) fn wanted(&self, destination: usize) -> u8 {
        let word = self.load(WANTED_AT + destination / 8 * 8);
        word.to_le_bytes()[destination % 8]
    }

    /// Stores the masks of entries for a destination.
    pub(crate) fn set_wanted(&self, destination: usize, masks: u8) {
        let at = WANTED_AT + destination / 8 * 8;
        let mut bytes = self.load(at).to_le_bytes();
        bytes[destination % 8] = masks;
        self.store(at, u64::from_le_bytes(bytes));
    }

    pub(crate) fn words(&self, at: usize) -> [u64; 8] {
        std::array::from_fn(|word| self.load(at + 8 * word))
    }

    fn set_words(&self, at: usize, words: &[u64; 8]) {
        for (word, value) in words.iter().enumerate() {
            self.store(at + 8 * word, *value);
        }
    }
}

/// Returns the hash of a masked key: the lower half gives the set, the upper is compared. A chosen
/// collision costs a place in the table, never a verdict.
#[must_use]
pub fn hash(key: &FlowKey, seed: u64) -> u64 {
    key.words().iter().fold(seed, |hash, word| {
        let mixed = (hash ^ word).wrapping_mul(FACTOR);
        mixed ^ mixed >> 32
    })
}

/// Returns the number of a key's destination: of its VLAN and its destination address.
#[must_use]
pub fn destination(key: &FlowKey) -> usize {
    let vlan = key.vlan().map_or(0, |vid| VLAN_PRESENT | vid);
    let both = key.dmac().to_u64() | u64::from(vlan) << 48;
    (both.wrapping_mul(FACTOR) >> (64 - DESTINATIONS.ilog2())) as usize
}
