//! Mapping and unmapping: what the guest's kernel does for its driver.

use std::sync::PoisonError;

use super::{Access, Granted, HUGE, Iommu, Mode, PAGE, Placement, State};
use crate::frontend::IotlbMessage;

/// Memory of the driver that the device can reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    iova: u64,
    pages: u64,
    /// For rings, and for everything in [`Mode::Persistent`].
    lasting: bool,
    /// The time of its latest use.
    used: u64,
}

impl Mapping {
    fn end(&self, first: u64) -> u64 {
        first + self.pages * PAGE
    }
}

/// Pages that are no longer in the table and of which the back end may still know.
#[derive(Debug)]
pub(super) struct Revoked {
    iova: u64,
    pages: Vec<u64>,
}

impl Iommu {
    /// Memory that a driver sees as one piece, aligned to `align` (at most a page).
    pub(crate) fn alloc(&self, len: u64, align: u64) -> u64 {
        if self.config.mode == Mode::Persistent {
            return self.alloc_shared(len, align);
        }
        let (addr, _) = self.place(len, align, false);
        addr
    }

    /// As [`Iommu::alloc`], mapped for good.
    pub(crate) fn alloc_shared(&self, len: u64, align: u64) -> u64 {
        if !self.config.huge {
            let (addr, pages) = self.place(len, align, true);
            self.enter(addr - addr % PAGE, pages, Access::Both, true);
            return addr;
        }
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(addr) = view.carve(len, align) {
            return addr;
        }
        let mut state = self.state();
        let blocks: Vec<u64> = (0..len.div_ceil(HUGE))
            .map(|_| state.pages.huge())
            .collect();
        let first = view.append_huge(&blocks);
        let addr = view.carve(len, align).expect("huge pages were just added");
        drop((view, state));
        let pages = blocks.len() as u64 * (HUGE / PAGE);
        self.enter(first, pages, Access::Both, true);
        addr
    }

    /// Allocates on pages of its own; the address and the number of pages.
    fn place(&self, len: u64, align: u64, ring: bool) -> (u64, u64) {
        let offset = match self.config.placement {
            Placement::Lenient => 0,
            Placement::Scattered => {
                let before = (len / 2).clamp(1, PAGE / 2).next_multiple_of(align);
                PAGE.saturating_sub(before)
            }
        };
        let count = (offset + len).div_ceil(PAGE);
        let mut state = self.state();
        let pages = if ring {
            state.pages.run(count)
        } else {
            (0..count).map(|_| state.pages.page()).collect()
        };
        drop(state);
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        (view.append(pages) + offset, count)
    }

    /// Maps pages of the driver's that are not mapped, and sends UPDATE if the mode does.
    fn enter(&self, first: u64, pages: u64, access: Access, lasting: bool) -> u64 {
        let gpas: Vec<u64> = (0..pages)
            .map(|n| self.physical(first + n * PAGE))
            .collect();
        let mut state = self.state();
        let iova = state.grant(&gpas, access);
        let used = state.tick();
        let mapping = Mapping {
            iova,
            pages,
            lasting,
            used,
        };
        state.mappings.insert(first, mapping);
        if self.config.mode.sends() {
            state.update(self, &iovas(iova, pages));
        }
        iova
    }

    /// Gives memory to the device; returns its address for descriptors.
    pub(crate) fn map(&self, addr: u64, len: u64, access: Access) -> u64 {
        if let Some(at) = self.reuse(addr) {
            return at;
        }
        let first = addr - addr % PAGE;
        let pages = (addr + len - first).div_ceil(PAGE);
        self.make_room(pages);
        self.enter(first, pages, access, false) + addr % PAGE
    }

    /// The device's address of memory that is mapped already.
    fn reuse(&self, addr: u64) -> Option<u64> {
        let mut state = self.state();
        let (first, mapping) = state.mapping_of(addr)?;
        state.inactive.remove(&mapping.used);
        Some(mapping.iova + (addr - first))
    }

    /// Unmaps what [`Mode::Reuse`] has too much, oldest first.
    fn make_room(&self, pages: u64) {
        let Mode::Reuse { pages: most } = self.config.mode else {
            return;
        };
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        while state.streaming_pages() + pages as usize > most
            && let Some((_, first)) = state.inactive.pop_first()
        {
            let revoked = state.leave(&mut view, first);
            state.invalidate(revoked.into_iter().collect());
        }
    }

    /// Takes memory back from the device. It keeps its address and loses its content.
    pub(crate) fn unmap(&self, addr: u64) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        let Some((first, mapping)) = state.mapping_of(addr).filter(|(_, m)| !m.lasting) else {
            return;
        };
        if matches!(self.config.mode, Mode::Reuse { .. }) {
            let now = state.tick();
            state.mappings.insert(
                first,
                Mapping {
                    used: now,
                    ..mapping
                },
            );
            state.inactive.insert(now, first);
            return;
        }
        let revoked = state.leave(&mut view, first);
        drop(view);
        let most = match self.config.mode {
            Mode::Batched(most) => most,
            _ => 1,
        };
        state.limbo.extend(revoked);
        if state.limbo.len() >= most {
            let batch = std::mem::take(&mut state.limbo);
            state.invalidate(batch);
        }
    }

    /// The device's address of memory that is mapped.
    ///
    /// # Panics
    /// When it is not mapped.
    #[must_use]
    pub fn iova(&self, addr: u64) -> u64 {
        let (first, mapping) = self
            .state()
            .mapping_of(addr)
            .unwrap_or_else(|| panic!("{addr:#x} is not mapped"));
        mapping.iova + (addr - first)
    }

    /// Maps guest-physical pages by themselves, apart from the driver's memory; their IOVA.
    #[must_use]
    pub fn map_pages(&self, gpas: &[u64], access: Access) -> u64 {
        let mut state = self.state();
        let iova = state.grant(gpas, access);
        if self.config.mode.sends() {
            state.update(self, &iovas(iova, gpas.len() as u64));
        }
        iova
    }

    /// Unmaps pages of [`Iommu::map_pages`]: INVALIDATE is answered when it returns.
    pub fn unmap_pages(&self, iova: u64, pages: u64) {
        let mut state = self.state();
        state.forget(iova, pages);
        state.say(&[IotlbMessage::invalidate(iova, pages * PAGE)]);
        state.space.give(iova, pages);
    }

    /// A guest-physical page that no driver uses.
    #[must_use]
    pub fn page(&self) -> u64 {
        self.state().pages.page()
    }

    /// IOVAs that lead nowhere, and will not be given out.
    #[must_use]
    pub fn reserve(&self, pages: u64) -> u64 {
        self.state().space.take(pages)
    }

    /// Maps a guest-physical page at an IOVA of the caller's, in place of what was there; UPDATE
    /// follows as the mode says.
    pub fn set(&self, iova: u64, gpa: u64, access: Access) {
        let mut state = self.state();
        state.table.insert(iova, Granted { gpa, access });
        if self.config.mode.sends() {
            state.update(self, &[iova]);
        }
    }

    /// Takes `len` bytes of a ring away from the device, in whole pages: INVALIDATE is answered
    /// when this returns. The pages are moved in guest memory and the old ones watched.
    pub fn revoke(&self, addr: u64, len: u64) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        let (first, iova, pages) = state.whole_pages(addr, len);
        state.forget(iova, pages);
        state.say(&[IotlbMessage::invalidate(iova, pages * PAGE)]);
        for n in 0..pages {
            let fresh = state.pages.page();
            let old = view.replace(first + n * PAGE, fresh);
            let mut bytes = vec![0; PAGE as usize];
            self.ram.read(old, &mut bytes);
            self.ram.write(fresh, &bytes);
            state.let_go(old);
        }
    }

    /// Gives the device back what [`Iommu::revoke`] took; UPDATE follows as the mode says.
    pub fn restore(&self, addr: u64, len: u64) {
        let view = self.view();
        let mut state = self.state();
        let (first, iova, pages) = state.whole_pages(addr, len);
        for n in 0..pages {
            let gpa = view.physical(first + n * PAGE);
            let access = Access::Both;
            state.table.insert(iova + n * PAGE, Granted { gpa, access });
        }
        if self.config.mode.sends() {
            state.update(self, &iovas(iova, pages));
        }
    }

    /// Sends the INVALIDATEs with which QEMU 7.2 flushes a whole domain: the upper one ends at
    /// 2^64. Mappings stay as they are.
    pub fn flush_domain(&self) {
        const UPPER: u64 = 0xfef0_0000;
        let mut state = self.state();
        state.say(&[
            IotlbMessage::invalidate(UPPER, UPPER.wrapping_neg()),
            IotlbMessage::invalidate(0, 0xfee0_0000),
        ]);
    }

    /// Unmaps everything, without a message: what a driver leaves behind whose device is reset.
    pub fn forget_all(&self) {
        let mut state = self.state();
        state.table.clear();
        state.mappings.clear();
        state.inactive.clear();
        state.limbo.clear();
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The mapping that has this address, and its first address.
    fn mapping_of(&self, addr: u64) -> Option<(u64, Mapping)> {
        let (first, mapping) = self.mappings.range(..=addr).next_back()?;
        (addr < mapping.end(*first)).then_some((*first, *mapping))
    }

    fn streaming_pages(&self) -> usize {
        let streaming = self.mappings.values().filter(|mapping| !mapping.lasting);
        streaming.map(|mapping| mapping.pages as usize).sum()
    }

    /// First address, IOVA and number of the pages that have this range of a mapping.
    fn whole_pages(&self, addr: u64, len: u64) -> (u64, u64, u64) {
        let (start, mapping) = self
            .mapping_of(addr)
            .unwrap_or_else(|| panic!("{addr:#x} is not mapped"));
        let first = addr - addr % PAGE;
        let pages = (addr + len - first).div_ceil(PAGE);
        (first, mapping.iova + (first - start), pages)
    }

    /// Enters pages into the table; their IOVA.
    fn grant(&mut self, gpas: &[u64], access: Access) -> u64 {
        let iova = self.space.take(gpas.len() as u64);
        for (at, gpa) in (iova..).step_by(PAGE as usize).zip(gpas) {
            self.table.insert(at, Granted { gpa: *gpa, access });
        }
        iova
    }

    fn forget(&mut self, iova: u64, pages: u64) {
        for page in iovas(iova, pages) {
            self.table.remove(&page);
        }
    }

    /// Unmaps the mapping at `first`; the driver gets other pages there.
    fn leave(&mut self, view: &mut super::View, first: u64) -> Option<Revoked> {
        let mapping = self.mappings.remove(&first)?;
        self.forget(mapping.iova, mapping.pages);
        let pages = (0..mapping.pages)
            .map(|n| view.replace(first + n * PAGE, self.pages.page()))
            .collect();
        Some(Revoked {
            iova: mapping.iova,
            pages,
        })
    }

    /// Sends INVALIDATEs; then addresses and pages are the owner's again.
    fn invalidate(&mut self, batch: Vec<Revoked>) {
        let message = |revoked: &Revoked| {
            IotlbMessage::invalidate(revoked.iova, revoked.pages.len() as u64 * PAGE)
        };
        let messages: Vec<_> = batch.iter().map(message).collect();
        self.say(&messages);
        for revoked in batch {
            self.space.give(revoked.iova, revoked.pages.len() as u64);
            for page in revoked.pages {
                self.let_go(page);
            }
        }
    }

    /// A page that INVALIDATE has taken from the back end.
    fn let_go(&mut self, page: u64) {
        if self.is_acknowledged() {
            self.pages.watch(page);
        } else {
            self.pages.give(page);
        }
    }
}

fn iovas(first: u64, pages: u64) -> Vec<u64> {
    (0..pages).map(|n| first + n * PAGE).collect()
}
