//! Ranges of pages of an area that are free or taken, and the free buffers of a pool.

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// First-fit allocation of whole pages.
#[derive(Debug)]
pub(crate) struct Pages {
    /// Free ranges, start and length in bytes, in order and never adjacent.
    free: Vec<(u64, u64)>,
}

impl Pages {
    /// All pages of an area, offsets from `start`.
    pub(crate) fn new(start: u64, len: u64) -> Self {
        Self {
            free: vec![(start, len)],
        }
    }

    /// Takes `len` bytes, in whole pages; `None`: there is no such range.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        let len = len.next_multiple_of(PAGE);
        let at = self.free.iter().position(|(_, room)| *room >= len)?;
        let (start, room) = self.free[at];
        if room == len {
            self.free.remove(at);
        } else {
            self.free[at] = (start + len, room - len);
        }
        Some(start)
    }

    /// Returns what was taken.
    pub(crate) fn give(&mut self, start: u64, len: u64) {
        let len = len.next_multiple_of(PAGE);
        let at = self.free.partition_point(|(other, _)| *other < start);
        self.free.insert(at, (start, len));
        if let Some((next, more)) = self.free.get(at + 1).copied()
            && start + len == next
        {
            self.free[at].1 += more;
            self.free.remove(at + 1);
        }
        if let Some(before) = at.checked_sub(1)
            && self.free[before].0 + self.free[before].1 == start
        {
            self.free[before].1 += self.free[at].1;
            self.free.remove(at);
        }
    }
}

/// Buffers below this number are never handed out, as in netmap.
const RESERVED: u32 = 2;

/// The free buffers of a region.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The last one is taken next.
    free: Vec<u32>,
    is_free: Vec<bool>,
}

impl Pool {
    /// All of `count` buffers, except for the reserved ones.
    pub(crate) fn new(count: u32) -> Self {
        Self {
            free: (RESERVED..count).rev().collect(),
            is_free: (0..count).map(|index| index >= RESERVED).collect(),
        }
    }

    /// Free buffers.
    pub(crate) fn len(&self) -> usize {
        self.free.len()
    }

    /// Takes a buffer.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let index = self.free.pop()?;
        self.is_free[index as usize] = false;
        Some(index)
    }

    /// Returns a buffer, whose number a program wrote: numbers that are none, or of free buffers,
    /// change nothing. Returns whether it was one.
    pub(crate) fn give(&mut self, index: u32) -> bool {
        let is_taken = index >= RESERVED && self.is_free.get(index as usize) == Some(&false);
        if is_taken {
            self.is_free[index as usize] = true;
            self.free.push(index);
        }
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_buffer_is_returned_once() {
        let mut pool = Pool::new(5);
        assert_eq!((pool.take(), pool.take()), (Some(2), Some(3)));
        assert!(pool.give(2) && !pool.give(2));
        for none in [0, 1, 4, 5, u32::MAX] {
            assert!(!pool.give(none), "{none}");
        }
        assert_eq!(
            (pool.take(), pool.take(), pool.take()),
            (Some(2), Some(4), None)
        );
    }

    proptest! {
        /// Taken ranges never overlap, and everything can be taken again once it was returned.
        #[test]
        fn pages_are_taken_once(steps in prop::collection::vec((any::<bool>(), 1u64..5), 1..60)) {
            const AREA: u64 = 16 * PAGE;
            let mut pages = Pages::new(PAGE, AREA);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (take, count) in steps {
                if take {
                    if let Some(start) = pages.take(count * PAGE) {
                        let end = start + count * PAGE;
                        prop_assert!(start >= PAGE && end <= PAGE + AREA);
                        for (other, len) in &taken {
                            prop_assert!(end <= *other || start >= other + len);
                        }
                        taken.push((start, count * PAGE));
                    }
                } else if !taken.is_empty() {
                    let (start, len) = taken.swap_remove(count as usize % taken.len());
                    pages.give(start, len);
                }
            }
            for (start, len) in taken {
                pages.give(start, len);
            }
            prop_assert_eq!(pages.take(AREA), Some(PAGE));
        }
    }
}
