//! Tests of the table, its look-up and its masks. The kernel's programs are tested where they are
//! loaded.

#[cfg(not(loom))]
mod connections;
#[cfg(loom)]
mod interleavings;
#[cfg(not(loom))]
mod masks;
#[cfg(not(loom))]
mod table;

#[cfg(loom)]
use crate::layout::SIZE;
#[cfg(loom)]
use crate::page::Memory;
#[cfg(loom)]
use crate::sync::AtomicU64;

/// The words that a test touches: loom has no room for all. The others are zero.
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
        assert!(at < SIZE.max(crate::connections::SIZE), "outside");
        self.words.get(&at).unwrap_or(&self.other)
    }
}
