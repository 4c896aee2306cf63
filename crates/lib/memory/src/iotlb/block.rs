//! Blocks: the sizes of entries, their encoding, and the cutting of ranges into them.

use std::ops::Range;

use super::Access;

/// Bits of an address within a page.
pub(super) const PAGE_SHIFT: u32 = 12;
/// Keys have this bit, and values have not.
const IS_KEY: u64 = 1 << 63;
/// Bits of a key that name the class, and of a value that name the access.
const LOW_BITS: u32 = 4;
const LOW: u64 = (1 << LOW_BITS) - 1;

/// Size of an entry. The sizes are those of x86-64's pages, and so of its IOMMUs'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// 4 KiB.
    Small = 0,
    /// 2 MiB.
    Large = 1,
    /// 1 GiB.
    Huge = 2,
}

impl Class {
    /// All classes by ascending size.
    pub(super) const ALL: [Self; 3] = [Self::Small, Self::Large, Self::Huge];

    /// Returns the binary logarithm of the number of pages.
    #[inline]
    pub(super) const fn shift(self) -> u32 {
        9 * self as u32
    }

    /// Returns the number of 4 KiB pages in a block.
    #[inline]
    pub(super) const fn pages(self) -> u64 {
        1 << self.shift()
    }

    /// Returns the bit of the class in the word of classes in use.
    #[inline]
    pub(super) const fn bit(self) -> u64 {
        1 << self as u32
    }

    /// Returns the key of the block that holds a page.
    #[inline]
    pub(super) const fn key(self, page: u64) -> u64 {
        let first = page >> self.shift() << self.shift();
        IS_KEY | first << LOW_BITS | self as u64
    }
}

/// An entry: a block of consecutive pages, aligned in both spaces, and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) class: Class,
    /// First I/O virtual page.
    pub(super) page: u64,
    /// First guest-physical page.
    pub(super) frame: u64,
    pub(super) access: Access,
}

impl Block {
    pub(super) const fn key(&self) -> u64 {
        self.class.key(self.page)
    }

    pub(super) const fn value(&self) -> u64 {
        self.frame << LOW_BITS | self.access.bits()
    }

    /// Returns the block of a key and a value; `None` when they are not those of any.
    pub(super) fn decode(key: u64, value: u64) -> Option<Self> {
        let class = *Class::ALL.get((key & LOW) as usize)?;
        let block = Self {
            class,
            page: (key & !IS_KEY) >> LOW_BITS,
            frame: value >> LOW_BITS,
            access: Access::from_bits(value & LOW)?,
        };
        let most = u64::MAX >> PAGE_SHIFT;
        let valid = block.key() == key && block.page <= most && block.frame <= most;
        (valid && block.frame.is_multiple_of(class.pages())).then_some(block)
    }

    /// Returns the I/O virtual pages of the block.
    pub(super) const fn range(&self) -> Range<u64> {
        self.page..self.page + self.class.pages()
    }

    /// Returns whether one of these I/O virtual pages is in the block.
    pub(super) const fn overlaps(&self, pages: &Range<u64>) -> bool {
        let range = self.range();
        range.start < pages.end && pages.start < range.end
    }

    /// Returns the distance from I/O virtual to guest-physical pages. Blocks that overlap lead to
    /// the same memory when theirs is the same.
    pub(super) const fn offset(&self) -> u64 {
        self.frame.wrapping_sub(self.page)
    }
}

/// Guest-physical address of a byte at an I/O virtual address, for a hit with this value, and the
/// access that the entry gives. Any value is valid here: the result is checked as a guest's
/// address.
#[inline]
pub(super) fn resolve(class: Class, value: u64, iova: u64) -> (u64, u64) {
    let inside = iova & ((class.pages() << PAGE_SHIFT) - 1);
    let base = value >> LOW_BITS << PAGE_SHIFT;
    (base.wrapping_add(inside), value & LOW)
}

/// Iterator over the blocks of a range of pages: the one with a certain page first, then its
/// neighbours after and before it in turn. The blocks that it has returned are one range without
/// gaps at any moment.
#[derive(Debug)]
pub(super) struct BlockIter {
    /// Pages to cut into blocks.
    pages: Range<u64>,
    /// Guest-physical page of each minus the page.
    offset: u64,
    access: Access,
    /// Pages that have been returned; empty at the page to start with.
    done: Range<u64>,
    /// The next block is one after them.
    is_after: bool,
}

impl BlockIter {
    /// Cuts `pages`, which lead to guest-physical pages at a distance of `offset`, from the page
    /// `around`, which is one of them.
    pub(super) fn new(pages: Range<u64>, offset: u64, access: Access, around: u64) -> Self {
        debug_assert!(pages.contains(&around));
        Self {
            pages,
            offset,
            access,
            done: around..around,
            is_after: true,
        }
    }

    /// Returns the largest block that begins with the page that `first` returns for its class.
    fn largest(&self, first: impl Fn(Class) -> Option<u64>) -> Block {
        let fits = |class: Class| {
            let (page, size) = (first(class)?, class.pages());
            let is_aligned = page.is_multiple_of(size) && self.offset.is_multiple_of(size);
            let is_inside = page >= self.pages.start && page + size <= self.pages.end;
            (is_aligned && is_inside).then_some((class, page))
        };
        let largest = Class::ALL.into_iter().rev().find_map(fits);
        let (class, page) = largest.expect("a single page fits wherever there is one");
        Block {
            class,
            page,
            frame: page.wrapping_add(self.offset),
            access: self.access,
        }
    }
}

impl Iterator for BlockIter {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        let Range { start, end } = self.done;
        if start == end {
            let block = self.largest(|class| Some(start >> class.shift() << class.shift()));
            self.done = block.range();
            return Some(block);
        }
        let (before, after) = (start > self.pages.start, end < self.pages.end);
        if !before && !after {
            return None;
        }
        let block = if after && (self.is_after || !before) {
            let block = self.largest(|_| Some(end));
            self.done.end = block.range().end;
            block
        } else {
            let block = self.largest(|class| start.checked_sub(class.pages()));
            self.done.start = block.page;
            block
        };
        self.is_after = !self.is_after;
        Some(block)
    }
}
