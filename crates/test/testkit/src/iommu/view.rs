//! The driver's view of its memory: contiguous addresses over pages that are not.

use super::{HUGE, PAGE};

/// The first address of a view: far above guest memory.
pub(super) const BASE: u64 = 0x6000_0000_0000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Guest-physical pages, from [`BASE`] on.
    pages: Vec<u64>,
    /// Room in the latest huge pages: first address and end.
    rest: (u64, u64),
}

impl View {
    /// Returns the guest-physical address of an address of the view; others are such addresses.
    pub(super) fn physical(&self, addr: u64) -> u64 {
        let Some(at) = addr.checked_sub(BASE) else {
            return addr;
        };
        let page = self.pages.get((at / PAGE) as usize);
        let page = page.unwrap_or_else(|| panic!("{addr:#x} was never allocated"));
        page + at % PAGE
    }

    /// Shows these pages; the address of the first.
    pub(super) fn append(&mut self, pages: impl IntoIterator<Item = u64>) -> u64 {
        let first = BASE + self.pages.len() as u64 * PAGE;
        self.pages.extend(pages);
        first
    }

    /// Shows another page at this address; the page that was there.
    pub(super) fn replace(&mut self, addr: u64, page: u64) -> u64 {
        std::mem::replace(&mut self.pages[((addr - BASE) / PAGE) as usize], page)
    }

    /// Takes `len` bytes from the latest huge pages, when they have room.
    pub(super) fn carve(&mut self, len: u64, align: u64) -> Option<u64> {
        let (next, end) = self.rest;
        let addr = next.next_multiple_of(align);
        (addr + len <= end).then(|| {
            self.rest.0 = addr + len;
            addr
        })
    }

    /// Shows these huge pages, from which [`View::carve`] takes; the address of the first.
    pub(super) fn append_huge(&mut self, blocks: &[u64]) -> u64 {
        let pages = |block: &u64| {
            let block = *block;
            (0..HUGE / PAGE).map(move |n| block + n * PAGE)
        };
        let first = self.append(blocks.iter().flat_map(pages));
        self.rest = (first, first + blocks.len() as u64 * HUGE);
        first
    }
}
