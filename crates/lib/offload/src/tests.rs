//! Tests of the table, its look-up and its masks. The kernel's programs are tested where they are
//! loaded.

#[cfg(loom)]
mod interleavings;
#[cfg(not(loom))]
mod masks;
#[cfg(not(loom))]
mod table;

use crate::layout::SIZE;
use crate::page::Memory;
use crate::sync::AtomicU64;

/// The memory of a table on the heap: all its words.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Words(Vec<AtomicU64>);

#[cfg(not(loom))]
impl Words {
    pub(crate) fn all() -> Self {
        Self((0..SIZE / 8).map(|_| AtomicU64::new(0)).collect())
    }
}

#[cfg(not(loom))]
impl Memory for Words {
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8));
        &self.0[at / 8]
    }
}

/// The same, but only the words that a test touches: loom has no room for all. The others are zero.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Words {
    words: std::collections::BTreeMap<usize, AtomicU64>,
    other: AtomicU64,
}

#[cfg(loom)]
impl Words {
    pub(crate) fn new(places: impl IntoIterator<Item = usize>) -> Self {
        let words = places.into_iter().map(|at| (at, AtomicU64::new(0)));
        Self {
            words: words.collect(),
            other: AtomicU64::new(0),
        }
    }
}

#[cfg(loom)]
impl Memory for Words {
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < SIZE, "outside");
        self.words.get(&at).unwrap_or(&self.other)
    }
}
