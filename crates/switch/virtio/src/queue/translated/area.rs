//! Memory of a ring with pages that may lie anywhere.

use std::ptr;
use std::sync::atomic::AtomicU32;

use memory::iotlb::Access;
use memory::{GuestMemory, REGION_PAGE};

use super::TranslatedSpace;
use crate::queue::QueueFault;
use crate::queue::area::{Area, FlatArea};

const PAGE: usize = REGION_PAGE as usize;

/// An area that is contiguous in I/O virtual addresses only. Linux allocates rings of more than a
/// page for an IOMMU from single pages (`iommu_dma_alloc`). A field never crosses a page, because
/// it is aligned to its size in the guest.
#[derive(Debug)]
pub(in crate::queue) struct PagedArea {
    pages: Box<[Page]>,
    flat: *mut u8,
    before: usize,
    len: u32,
}

/// The same, borrowed.
#[derive(Clone, Copy, Debug)]
pub(in crate::queue) struct Pages<'a> {
    /// The area, where its pages are neighbours in this process; else null.
    flat: *mut u8,
    /// Bytes of the first page before the area.
    before: usize,
    pages: &'a [Page],
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    /// Start of the page; of the first and last one only the part of the area may be used.
    ptr: *mut u8,
    gpa: u64,
}

// SAFETY: it consists of addresses; every access goes through the unsafe methods of `Area`, whose
// callers hold the GuestMemory that keeps the addresses mapped.
unsafe impl Send for PagedArea {}

impl PagedArea {
    /// Resolves `len` bytes at `addr`. Asks for all translations that are missing.
    pub(super) fn resolve(
        space: &TranslatedSpace,
        addr: u64,
        len: u32,
        align: usize,
        access: Access,
    ) -> Result<Self, QueueFault> {
        if !addr.is_multiple_of(align as u64) {
            return Err(QueueFault::Misaligned);
        }
        let before = addr as usize % PAGE;
        let count = (before + len as usize).div_ceil(PAGE);
        let mut pages = Vec::with_capacity(count);
        let mut missing = false;
        for number in 0..count {
            match space.ring_page(addr, len, number, access) {
                Some((ptr, gpa)) => pages.push(Page { ptr, gpa }),
                None => missing = true,
            }
        }
        if missing {
            return Err(QueueFault::UnmappedRing);
        }
        if pages
            .iter()
            .any(|page| !page.ptr.addr().is_multiple_of(align))
        {
            return Err(QueueFault::Misaligned);
        }
        Ok(Self {
            flat: flat(&pages).map_or(ptr::null_mut(), |first| first.wrapping_add(before)),
            before,
            pages: pages.into(),
            len,
        })
    }
}

impl Pages<'_> {
    /// Returns the number of a byte's page, and its offset there.
    #[inline]
    fn place(&self, offset: usize) -> (usize, usize) {
        let at = self.before + offset;
        (at / PAGE, at % PAGE)
    }
}

/// Returns the first page, if the others follow it.
fn flat(pages: &[Page]) -> Option<*mut u8> {
    let follows = |pair: &[Page]| pair[0].ptr.wrapping_add(PAGE) == pair[1].ptr;
    let first = pages.first()?;
    pages.windows(2).all(follows).then_some(first.ptr)
}

impl Area for PagedArea {
    type View<'a> = Pages<'a>;

    #[inline(always)]
    fn view(&self) -> Pages<'_> {
        Pages {
            flat: self.flat,
            before: self.before,
            pages: &self.pages,
            len: self.len,
        }
    }

    #[inline(always)]
    fn flat(&self) -> Option<FlatArea> {
        self.view().flat()
    }

    #[inline]
    unsafe fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: this function's contract has the same requirements.
        unsafe { self.view().at(offset) }
    }

    #[inline(always)]
    unsafe fn u32_pair(&self, at: usize) -> [&AtomicU32; 2] {
        match self.flat() {
            // SAFETY: this function's contract has the same requirements.
            Some(flat) => unsafe {
                (*flat.ptr.wrapping_add(at).cast::<[AtomicU32; 2]>()).each_ref()
            },
            // SAFETY: as above.
            None => unsafe { [self.u32(at), self.u32(at + 4)] },
        }
    }

    #[inline]
    fn len(&self) -> u32 {
        self.len
    }

    fn mark(&self, mem: &GuestMemory, offset: usize, len: usize) {
        self.view().mark(mem, offset, len);
    }

    #[inline]
    fn line_of(&self, at: usize) -> *const u8 {
        self.view().line_of(at)
    }
}

impl<'p> Area for Pages<'p> {
    type View<'a>
        = Self
    where
        'p: 'a;

    #[inline(always)]
    fn view(&self) -> Self {
        *self
    }

    /// For reads only: nothing in it is logged, because its pages may lie apart in the guest.
    #[inline(always)]
    fn flat(&self) -> Option<FlatArea> {
        (!self.flat.is_null()).then_some(FlatArea {
            ptr: self.flat,
            gpa: 0,
            len: self.len,
        })
    }

    #[inline]
    unsafe fn at(&self, offset: usize) -> *mut u8 {
        if !self.flat.is_null() {
            return self.flat.wrapping_add(offset);
        }
        let (page, offset) = self.place(offset);
        self.pages[page].ptr.wrapping_add(offset)
    }

    #[inline]
    fn len(&self) -> u32 {
        self.len
    }

    fn mark(&self, mem: &GuestMemory, offset: usize, len: usize) {
        let mut done = 0;
        while done < len {
            let (page, start) = self.place(offset + done);
            let part = (PAGE - start).min(len - done);
            mem.mark_dirty(self.pages[page].gpa + start as u64, part as u64);
            done += part;
        }
    }

    #[inline]
    fn line_of(&self, at: usize) -> *const u8 {
        if !self.flat.is_null() {
            return self.flat.wrapping_add(at);
        }
        let (page, offset) = self.place(at);
        let page = self.pages.get(page);
        page.map_or(ptr::null(), |page| page.ptr.wrapping_add(offset))
    }
}
