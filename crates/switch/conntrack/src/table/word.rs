//! The state word of an entry, and the words of the index that lead to it.
//!
//! ```text
//!              63..44       43     42        41       40..22   21..0
//! state word   generation   live   pending   second   of the protocol (41 bits)
//! index word   generation   tag (22)                           entry
//! ```
//!
//! An entry takes the next generation when it is unlinked, so the words that have led to it lead
//! nowhere. A generation is never zero, so no index word is: zero is a free way.

/// Bits of a generation, the highest of both words.
const GENERATION: u32 = 44;
/// The last generation.
const LAST: u64 = (1 << (64 - GENERATION)) - 1;
/// Bits of an entry's number.
pub(crate) const ENTRY_BITS: u32 = 22;
/// Mask of the tag.
const TAG: u64 = ((1 << GENERATION) - 1) & !((1 << ENTRY_BITS) - 1);

/// The state word of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Life(pub(crate) u64);

impl Life {
    const LIVE: u64 = 1 << 43;
    const PENDING: u64 = 1 << 42;
    const SECOND: u64 = 1 << 41;
    /// Bits of the protocol.
    pub(crate) const CONTENT: u64 = Self::SECOND - 1;

    /// A generation's word from its publication on; pending until it is confirmed.
    pub(crate) const fn pending(generation: u64, content: u64) -> Self {
        let content = content & Self::CONTENT;
        Self(generation << GENERATION | Self::LIVE | Self::PENDING | content)
    }

    /// The word of an entry that is not in the index.
    pub(crate) const fn dead(generation: u64) -> Self {
        Self(generation << GENERATION)
    }

    #[inline(always)]
    pub(crate) const fn generation(self) -> u64 {
        self.0 >> GENERATION
    }

    /// The generation after this one's end.
    pub(crate) const fn next_generation(self) -> u64 {
        let generation = self.generation();
        if generation == LAST {
            1
        } else {
            generation + 1
        }
    }

    #[inline(always)]
    pub(crate) const fn is_live(self) -> bool {
        self.0 & Self::LIVE != 0
    }

    #[inline(always)]
    pub(crate) const fn is_pending(self) -> bool {
        self.0 & Self::PENDING != 0
    }

    /// Returns whether it is the entry of a connection: live, confirmed, of a possible generation.
    pub(crate) const fn is_confirmed(self) -> bool {
        self.is_live() && !self.is_pending() && self.generation() != 0
    }

    /// The same, confirmed; as the second one of its tuple, if other ports have used that before.
    #[inline]
    pub(crate) const fn confirmed(self, second: bool) -> Self {
        let second = if second { Self::SECOND } else { 0 };
        Self(self.0 & !Self::PENDING | second)
    }

    /// Returns whether other ports have used its tuple before.
    #[inline(always)]
    pub(crate) const fn is_second(self) -> bool {
        self.0 & Self::SECOND != 0
    }

    /// The bits of the protocol.
    #[inline(always)]
    pub(crate) const fn content(self) -> u64 {
        self.0 & Self::CONTENT
    }

    /// The same with other bits of the protocol.
    #[inline(always)]
    pub(crate) const fn with_content(self, content: u64) -> Self {
        Self(self.0 & !Self::CONTENT | content & Self::CONTENT)
    }
}

/// A word of the index; zero is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IndexWord(pub(crate) u64);

impl IndexWord {
    /// No word.
    pub(crate) const FREE: Self = Self(0);

    /// The word for an entry; the tag is taken from the highest bits of the hash.
    pub(crate) const fn new(hash: u64, generation: u64, entry: u32) -> Self {
        let entry = entry as u64 & ((1 << ENTRY_BITS) - 1);
        Self(generation << GENERATION | Self::tag(hash) | entry)
    }

    /// The tag of a hash, at its place in the word.
    #[inline(always)]
    pub(crate) const fn tag(hash: u64) -> u64 {
        hash >> (64 - GENERATION) & TAG
    }

    /// Returns whether it may lead to the connection of a hash with this tag.
    #[inline(always)]
    pub(crate) const fn has(self, tag: u64) -> bool {
        (self.0 ^ tag) & TAG == 0
    }

    pub(crate) const fn is_free(self) -> bool {
        self.0 == 0
    }

    /// The entry's number.
    #[inline(always)]
    pub(crate) const fn entry(self) -> u32 {
        (self.0 & ((1 << ENTRY_BITS) - 1)) as u32
    }

    pub(crate) const fn generation(self) -> u64 {
        self.0 >> GENERATION
    }

    /// Returns whether it leads to the entry with this state word, which is then live.
    #[inline(always)]
    pub(crate) const fn leads_to(self, life: Life) -> bool {
        (self.0 ^ life.0) >> GENERATION == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_fields() {
        let word = IndexWord::new(u64::MAX, LAST, u32::MAX);
        assert_eq!(word.0, u64::MAX);
        let word = IndexWord::new(0x1234_5678_9abc_def0, 7, 99);
        assert_eq!((word.generation(), word.entry()), (7, 99));
        assert!(word.has(IndexWord::tag(0x1234_5678_9abc_def0)));
        assert!(!word.has(IndexWord::tag(0x1234_1678_9abc_def0)));
        let life = Life::pending(7, 5);
        assert!(word.leads_to(life) && word.leads_to(life.confirmed(false)));
        assert!(!word.leads_to(Life::dead(life.next_generation())));
        assert!(life.is_pending() && life.is_live() && !life.is_confirmed());
        assert!(life.confirmed(false).is_confirmed());
        let changed = life.confirmed(false).with_content(u64::MAX);
        assert!(life.confirmed(true).with_content(0).is_second() && !changed.is_second());
        assert_eq!(
            (changed.content(), changed.generation()),
            (Life::CONTENT, 7)
        );
    }

    #[test]
    fn no_generation_is_zero() {
        assert_eq!(Life::dead(LAST).next_generation(), 1);
        assert_eq!(Life::dead(0).next_generation(), 1);
        assert!(!Life::dead(1).is_live());
        assert!(!IndexWord::new(0, 1, 0).is_free());
    }
}
