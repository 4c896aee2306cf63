//! The entries that a thread holds: free ones, and unlinked ones that wait for their reuse.

use std::collections::VecDeque;

use super::grace::Grace;
use super::used::{BITS, UseBitmap};

/// Free entries that a thread holds at most: the bits of a word, and as many that it has back.
const FREE: usize = 2 * BITS as usize;

/// Entries of a thread; see the module. Nothing is allocated after its making.
#[derive(Debug)]
pub(crate) struct Stock {
    free: Vec<u32>,
    /// Unlinked entries with their stamps, the oldest first.
    unlinked: VecDeque<(u64, u32)>,
    /// Room for unlinked entries.
    room: usize,
}

impl Stock {
    /// An empty stock with this room for unlinked entries.
    pub(crate) fn new(room: usize) -> Self {
        Self {
            free: Vec::with_capacity(FREE),
            unlinked: VecDeque::with_capacity(room),
            room,
        }
    }

    /// Returns whether there is no free entry.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Takes a free entry.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Has a free entry back that no other thread has known.
    pub(crate) fn put(&mut self, entry: u32, used: &UseBitmap) {
        if self.free.len() < FREE {
            self.free.push(entry);
        } else {
            used.release(entry);
        }
    }

    /// Claims free entries.
    pub(crate) fn claim(&mut self, entries: u32, used: &UseBitmap) {
        let (word, mut bits) = used.claim(entries);
        while bits != 0 {
            // The lowest is taken first.
            let bit = BITS - 1 - bits.leading_zeros();
            bits ^= 1 << bit;
            self.put(word as u32 * BITS + bit, used);
        }
    }

    /// Returns whether unlinked entries wait.
    #[inline]
    pub(crate) fn has_unlinked(&self) -> bool {
        !self.unlinked.is_empty()
    }

    /// Returns whether another entry may be unlinked.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.unlinked.len() < self.room
    }

    /// Has an entry that was unlinked. There is room for it, see [`Stock::has_room`].
    pub(crate) fn retire(&mut self, entry: u32, grace: &Grace) {
        self.unlinked.push_back((grace.stamp(), entry));
    }

    /// Frees the unlinked entries that no other thread has any more: for this thread, or for all
    /// if `for_all`. `forget` is called for each before.
    pub(crate) fn collect(
        &mut self,
        grace: &Grace,
        used: &UseBitmap,
        for_all: bool,
        forget: impl Fn(u32),
    ) {
        let over = grace.over();
        while let Some(&(stamp, entry)) = self.unlinked.front() {
            if stamp > over {
                break;
            }
            self.unlinked.pop_front();
            forget(entry);
            if for_all {
                used.release(entry);
            } else {
                self.put(entry, used);
            }
        }
    }

    /// Gives all back; unlinked entries are moved to `waiting`.
    pub(crate) fn give_back(&mut self, used: &UseBitmap, waiting: &mut Vec<(u64, u32)>) {
        self.free.drain(..).for_each(|entry| used.release(entry));
        waiting.extend(self.unlinked.drain(..));
    }

    /// Returns whether it holds nothing.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.free.is_empty() && self.unlinked.is_empty()
    }
}
