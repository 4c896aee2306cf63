//! Memory that the device's side can reach only where it is permitted, page by page. Another access
//! ends the process by SIGSEGV, also a read, without a sanitizer.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::Region;
use memory::iotlb::Access;
use rustix::mm::{MprotectFlags, mprotect};

pub(crate) const PAGE: u64 = 4096;

/// The device's mapping of a memory file, in regions of the same size. Nothing is permitted at
/// first.
pub(crate) struct Guarded {
    regions: Vec<Arc<Region>>,
    /// Bits of access, by page.
    permitted: Vec<u64>,
}

impl Guarded {
    /// Maps a file at `gpa`, and at `uva` in the front end, in so many regions.
    pub(crate) fn map(file: &OwnedFd, gpa: u64, uva: u64, size: u64, regions: u64) -> Self {
        let part = size / regions;
        let region = |at: u64| {
            let file = file.try_clone().expect("a descriptor");
            let at = at * part;
            Arc::new(Region::map(file, gpa + at, part, uva + at, at).expect("a region"))
        };
        let pages = (size / PAGE) as usize;
        let mut guarded = Self {
            regions: (0..regions).map(region).collect(),
            permitted: vec![u64::MAX; pages],
        };
        (0..pages).for_each(|page| guarded.permit(page, 0));
        guarded
    }

    pub(crate) fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }

    /// Returns the bits of the access to a page.
    pub(crate) fn permitted(&self, page: usize) -> u64 {
        self.permitted[page]
    }

    /// Permits this access to a page; there is none to write only.
    pub(crate) fn permit(&mut self, page: usize, access: u64) {
        if self.permitted[page] == access {
            return;
        }
        self.permitted[page] = access;
        let flags = if access & Access::WRITE.bits() != 0 {
            MprotectFlags::READ | MprotectFlags::WRITE
        } else if access != 0 {
            MprotectFlags::READ
        } else {
            MprotectFlags::empty()
        };
        let part = self.regions[0].size() / PAGE;
        let region = &self.regions[page / part as usize];
        let at = page % part as usize * PAGE as usize;
        // SAFETY: the page is in the mapping of a region that lives as long as this. No reference
        // of Rust leads there.
        let set = unsafe {
            mprotect(
                region.as_ptr().wrapping_add(at).cast(),
                PAGE as usize,
                flags,
            )
        };
        set.expect("a page of a mapping");
    }
}
