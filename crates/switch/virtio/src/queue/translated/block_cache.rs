//! Blocks that were found: a small cache before the table. A look-up there is several times the
//! work.

use std::cell::{Cell, RefCell};

use memory::{REGION_PAGE, Segment};

/// Blocks of a cache. Guests use more pages than their rings have buffers: with 4096 pages in use
/// and 1024 places, the switch lost two thirds of its rate.
const PLACES: usize = 4096;
/// Size from which on a block counts as a large one, the least but one of the table's.
const LARGE: u64 = 1 << LARGE_SHIFT;
const LARGE_SHIFT: u32 = 21;
const PAGE_SHIFT: u32 = REGION_PAGE.trailing_zeros();

/// A block of granted pages that lies in one piece of this process' memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) iova: u64,
    /// Bytes; 0: no block.
    pub(super) len: u64,
    pub(super) ptr: *mut u8,
    pub(super) gpa: u64,
}

impl Block {
    const NONE: Self = Self {
        iova: 0,
        len: 0,
        ptr: std::ptr::null_mut(),
        gpa: 0,
    };

    /// Returns a buffer that lies in the block.
    #[inline(always)]
    pub(super) fn buffer(&self, addr: u64, len: u32) -> Option<Segment> {
        let offset = addr.wrapping_sub(self.iova);
        // One comparison for buffers that are too long and those of no byte.
        let fits = offset < self.len && u64::from(len).wrapping_sub(1) < self.len - offset;
        fits.then(|| Segment {
            ptr: self.ptr.wrapping_add(offset as usize),
            len,
            gpa: self.gpa.wrapping_add(offset),
        })
    }
}

/// The blocks that were found for one access, each in the place that the address determines. A
/// look-up is right wherever a block lies; the place decides only whether it is found.
#[derive(Debug)]
pub(super) struct BlockCache {
    blocks: Box<[Cell<Block>; PLACES]>,
    /// Binary logarithm of the bytes that share a place: those of a large block, until a smaller
    /// one is kept. So a guest with large blocks needs few places.
    shift: Cell<u32>,
    /// The places that have a block.
    used: RefCell<Vec<u16>>,
}

// SAFETY: a Block is addresses and lengths, used only by the queue that keeps it, which has one
// user at a time and keeps the GuestMemory.
unsafe impl Send for BlockCache {}

/// The same for many look-ups in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    blocks: &'a [Cell<Block>; PLACES],
    shift: u32,
}

impl BlockCache {
    pub(super) fn new() -> Self {
        Self {
            blocks: Box::new([const { Cell::new(Block::NONE) }; PLACES]),
            shift: Cell::new(LARGE_SHIFT),
            used: RefCell::new(Vec::with_capacity(PLACES)),
        }
    }

    #[inline(always)]
    pub(super) fn view(&self) -> View<'_> {
        View {
            blocks: &self.blocks,
            shift: self.shift.get(),
        }
    }

    /// Keeps the block that holds `addr`.
    pub(super) fn keep(&self, addr: u64, block: Block) {
        if block.len < LARGE {
            self.shift.set(PAGE_SHIFT);
        }
        let place = self.view().place(addr);
        if self.blocks[place].replace(block).len == 0 {
            self.used.borrow_mut().push(place as u16);
        }
    }

    /// Forgets all blocks.
    pub(super) fn forget(&self) {
        for place in self.used.borrow_mut().drain(..) {
            self.blocks[usize::from(place)].set(Block::NONE);
        }
        self.shift.set(LARGE_SHIFT);
    }
}

impl View<'_> {
    #[inline(always)]
    fn place(self, addr: u64) -> usize {
        (addr >> self.shift) as usize % PLACES
    }

    /// Returns a buffer that lies in a block of the cache.
    #[inline(always)]
    pub(super) fn buffer(self, addr: u64, len: u32) -> Option<Segment> {
        self.blocks[self.place(addr)].get().buffer(addr, len)
    }
}
