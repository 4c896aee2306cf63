//! Allocation of I/O virtual addresses.

use std::collections::BTreeMap;

use super::{HUGE, PAGE};

/// Which IOVAs mappings get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iovas {
    /// The smallest space: what was given back last is used first. The numbers are also those of
    /// guest memory, so that a device that does not translate hits something.
    Reused,
    /// A large space with gaps, in which nothing is used twice.
    Fresh,
}

/// The space.
#[derive(Debug)]
pub(super) struct Space {
    iovas: Iovas,
    next: u64,
    /// By number of pages.
    free: BTreeMap<u64, Vec<u64>>,
}

impl Space {
    pub(super) fn new(iovas: Iovas) -> Self {
        let next = match iovas {
            Iovas::Reused => 1 << 20,
            Iovas::Fresh => 0x7f00_0000_0000,
        };
        Self {
            iovas,
            next,
            free: BTreeMap::new(),
        }
    }

    /// So many pages; aligned to [`HUGE`] when they fill such blocks.
    pub(super) fn take(&mut self, pages: u64) -> u64 {
        if let Some(iova) = self.free.get_mut(&pages).and_then(Vec::pop) {
            return iova;
        }
        let align = if (pages * PAGE).is_multiple_of(HUGE) {
            HUGE
        } else {
            PAGE
        };
        let iova = self.next.next_multiple_of(align);
        let gap = match self.iovas {
            Iovas::Reused => 0,
            Iovas::Fresh => HUGE + PAGE,
        };
        self.next = iova + pages * PAGE + gap;
        iova
    }

    pub(super) fn give(&mut self, iova: u64, pages: u64) {
        if self.iovas == Iovas::Reused {
            self.free.entry(pages).or_default().push(iova);
        }
    }
}
