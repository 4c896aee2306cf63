//! The buffers of a queue that the driver owns.
//!
//! The buffer at the lowest address is used first, so consecutive frames lie at ascending
//! addresses, which the prefetchers of all cores on their way follow, and few buffers stay in the
//! caches. A stack would turn the order around whenever a batch comes back.

/// Bits of a word.
const BITS: u16 = u64::BITS as u16;

/// See the module.
#[derive(Debug)]
pub(crate) struct FreeBuffers {
    /// A bit for each buffer, by number.
    words: Box<[u64]>,
    /// No word before this one has a bit.
    first: usize,
    len: u16,
}

impl FreeBuffers {
    /// Returns room for buffers with numbers below `entries`; none is free.
    pub(crate) fn none_of(entries: u16) -> Self {
        let words = entries.div_ceil(BITS).into();
        Self {
            words: vec![0; words].into(),
            first: words,
            len: 0,
        }
    }

    /// Returns all buffers with numbers below `entries`.
    pub(crate) fn all_of(entries: u16) -> Self {
        let mut free = Self::none_of(entries);
        (0..entries).for_each(|id| free.put(id));
        free
    }

    /// Returns the number of free buffers.
    pub(crate) fn len(&self) -> u16 {
        self.len
    }

    /// Adds a buffer.
    ///
    /// # Panics
    /// When there is no such buffer, or it is free already.
    pub(crate) fn put(&mut self, id: u16) {
        let word = usize::from(id / BITS);
        let bit = 1 << (id % BITS);
        assert!(self.words[word] & bit == 0, "buffer {id} is free already");
        self.words[word] |= bit;
        self.first = self.first.min(word);
        self.len += 1;
    }

    /// Takes the buffer at the lowest address.
    pub(crate) fn take(&mut self) -> Option<u16> {
        let ahead = self.words[self.first..].iter();
        self.first += ahead.take_while(|word| **word == 0).count();
        let word = self.words.get_mut(self.first)?;
        let bit = word.trailing_zeros() as u16;
        *word &= *word - 1;
        self.len -= 1;
        Some(self.first as u16 * BITS + bit)
    }

    /// Returns the buffers in the order in which they will be taken.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u16> {
        let words = self.words.iter().enumerate().skip(self.first);
        words.flat_map(|(at, word)| {
            let behind = |left: &u64| Some(left & left.wrapping_sub(1));
            std::iter::successors(Some(*word), behind)
                .take_while(|left| *left != 0)
                .map(move |left| at as u16 * BITS + left.trailing_zeros() as u16)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_lowest_is_taken_first(
            entries in 1..400u16,
            steps in prop::collection::vec((any::<bool>(), 0..400u16), 0..200),
        ) {
            let mut free = FreeBuffers::all_of(entries);
            let mut model: BTreeSet<u16> = (0..entries).collect();
            for (takes, id) in steps {
                if takes {
                    prop_assert_eq!(free.take(), model.pop_first());
                } else if id < entries && model.insert(id) {
                    free.put(id);
                }
                prop_assert_eq!(usize::from(free.len()), model.len());
                prop_assert!(free.iter().eq(model.iter().copied()));
            }
        }
    }
}
