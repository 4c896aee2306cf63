//! The IOMMU of a fuzzed guest, and the table that its front end has of it. A page of the driver is
//! mapped or not, and may move to another frame of memory. The device's side can reach a frame only
//! while one of its pages is granted, or was when the batch that is under way began.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mapping::Mapping;
use memory::iotlb::oracle::Oracle;
use memory::iotlb::{Access, IotlbWriter, Miss, Update};
use memory::{GuestMemory, Region};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::guarded::{Guarded, PAGE};

/// Guest-physical address of the memory: no I/O virtual address is one.
pub(crate) const MEMORY: u64 = 0x4000_0000;
/// Address of the memory in the front end.
const USER: u64 = 0x7f00_0000_0000;
const FRAMES: usize = 32;
/// Regions of the memory, which touch.
const REGIONS: u64 = 4;

pub(crate) struct Iommu {
    pub(crate) writer: IotlbWriter,
    oracle: Oracle,
    /// Where the driver has each of its pages.
    homes: BTreeMap<u64, usize>,
    mapped: BTreeSet<u64>,
    /// Frames without a page, the oldest first.
    free: VecDeque<usize>,
    /// Frames that will be free when the batch that is under way has ended.
    limbo: Vec<usize>,
    /// A batch is under way.
    busy: bool,
    /// Something was revoked since it began.
    stale: bool,
    guarded: Guarded,
    /// The driver's own mapping.
    window: Mapping,
}

impl Iommu {
    /// Maps these pages, to neighbouring frames or to scattered ones. Nothing is granted.
    pub(crate) fn new(pages: impl Iterator<Item = u64>, scattered: bool) -> Self {
        let size = FRAMES as u64 * PAGE;
        let file: OwnedFd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&file, size).expect("its size");
        let step = if scattered { 7 } else { 1 };
        let mut frames: VecDeque<usize> = (0..FRAMES).map(|n| n * step % FRAMES).collect();
        let homes: BTreeMap<u64, usize> = pages
            .map(|page| (page, frames.pop_front().expect("a frame for each")))
            .collect();
        Self {
            writer: IotlbWriter::heap(),
            oracle: Oracle::default(),
            mapped: homes.keys().copied().collect(),
            homes,
            free: frames,
            limbo: Vec::new(),
            busy: false,
            stale: false,
            guarded: Guarded::map(&file, MEMORY, USER + MEMORY, size, REGIONS),
            window: Mapping::shared(&file, size, 0).expect("a mapping"),
        }
    }

    pub(crate) fn regions(&self) -> &[Arc<Region>] {
        self.guarded.regions()
    }

    /// Returns the driver's place of an address, and the bytes to the end of its page.
    pub(crate) fn place(&self, addr: u64) -> Option<(*mut u8, u64)> {
        let frame = *self.homes.get(&(addr / PAGE))?;
        let at = frame as u64 * PAGE + addr % PAGE;
        let ptr = self.window.as_ptr().wrapping_add(at as usize);
        Some((ptr, PAGE - addr % PAGE))
    }

    /// Returns the guest-physical address that the guest maps an address to.
    pub(crate) fn gpa(&self, addr: u64) -> Option<u64> {
        let page = addr / PAGE;
        let frame = self
            .homes
            .get(&page)
            .filter(|_| self.mapped.contains(&page))?;
        Some(MEMORY + *frame as u64 * PAGE + addr % PAGE)
    }

    /// Returns the page with this number, of those that the driver has.
    pub(crate) fn page(&self, number: u8) -> u64 {
        let count = self.homes.len();
        let page = self.homes.keys().nth(usize::from(number) % count);
        *page.expect("it has pages")
    }

    /// Returns whether something was revoked since the batch that is under way began.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Returns whether the device may have this access to guest-physical memory now.
    pub(crate) fn permits(&self, gpa: u64, len: u32, access: Access) -> bool {
        let frames = (gpa - MEMORY) / PAGE..(gpa - MEMORY + u64::from(len)).div_ceil(PAGE);
        let permits = |frame| self.guarded.permitted(frame as usize) & access.bits() != 0;
        frames.into_iter().all(permits)
    }

    /// Returns whether a batch is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Begins a batch.
    pub(crate) fn begin(&mut self) {
        self.busy = true;
    }

    /// Ends the batch: INVALIDATEs that came meanwhile are answered.
    pub(crate) fn end(&mut self) {
        self.busy = false;
        self.stale = false;
        self.free.extend(self.limbo.drain(..));
        self.guard();
    }

    /// Permits what is granted, and during a batch also what was.
    fn guard(&mut self) {
        let mut access = [0; FRAMES];
        for page in self.homes.keys() {
            if let Some((frame, given)) = self.oracle.granted(*page) {
                access[(frame - MEMORY / PAGE) as usize] |= given.bits();
            }
        }
        for (frame, access) in access.into_iter().enumerate() {
            let before = if self.busy {
                self.guarded.permitted(frame)
            } else {
                0
            };
            self.guarded.permit(frame, access | before);
        }
    }

    /// Sends an UPDATE for a page that is mapped.
    pub(crate) fn grant(&mut self, mem: &GuestMemory, page: u64, asked: Option<Miss>, access: u8) {
        let Some(gpa) = self.gpa(page * PAGE) else {
            return;
        };
        let update = Update {
            iova: page * PAGE,
            size: PAGE,
            user_addr: USER + gpa,
            permission: access,
        };
        // A snapshot may lack the memory.
        if self.writer.update(mem, &update, asked.as_slice()).is_ok() {
            self.oracle.update(&update, gpa, asked);
            self.guard();
        }
    }

    pub(crate) fn grant_all(&mut self, mem: &GuestMemory) {
        let pages: Vec<u64> = self.mapped.iter().copied().collect();
        pages
            .iter()
            .for_each(|page| self.grant(mem, *page, None, 3));
    }

    /// Answers the questions, each by two bits in turn: as QEMU, by a denial, exactly, or not at
    /// all. Returns how many there were.
    pub(crate) fn answer(&mut self, mem: &GuestMemory, how: u8) -> usize {
        let mut asked = Vec::new();
        self.writer.table().misses().take_some(|miss, need| {
            asked.push((miss, need));
            true
        });
        for (n, &(miss, need)) in asked.iter().enumerate() {
            let page = miss.iova() / PAGE;
            match how >> (n % 4 * 2) & 3 {
                3 => {}
                1 => self.writer.deny(miss, need),
                _ if !self.mapped.contains(&page) => self.writer.deny(miss, need),
                2 => self.grant(mem, page, Some(miss), miss.access().bits() as u8),
                _ => self.grant(mem, page, Some(miss), 3),
            }
        }
        asked.len()
    }

    /// Sends an INVALIDATE, and all that the table finds of the pages is gone.
    pub(crate) fn invalidate(&mut self, iova: u64, size: u64) {
        self.writer.invalidate(iova, size).expect("not empty");
        self.oracle.invalidate(iova, size);
        self.stale |= self.busy;
        self.guard();
    }

    /// The guest unmaps a page.
    pub(crate) fn unmap(&mut self, page: u64) {
        self.mapped.remove(&page);
        self.invalidate(page * PAGE, PAGE);
    }

    /// The guest maps a page, which is moved to another frame before if `moves`.
    pub(crate) fn map(&mut self, page: u64, moves: bool) {
        if moves && let Some(frame) = self.free.pop_front() {
            self.unmap(page);
            let old = self.homes.insert(page, frame).expect("it was somewhere");
            let at = |frame: usize| self.window.as_ptr().wrapping_add(frame * PAGE as usize);
            // SAFETY: both are pages of the driver's mapping, and not the same.
            unsafe { std::ptr::copy_nonoverlapping(at(old), at(frame), PAGE as usize) };
            self.limbo.push(old);
            if !self.busy {
                self.end();
            }
        }
        self.mapped.insert(page);
    }
}
