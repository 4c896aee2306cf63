//! A guest's memory and the plainest driver of one queue, written from the standard's text (virtio
//! 1.3, sections 2.7 and 2.8), with an IOMMU or without. It lives in this process, in one thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use memory::iotlb::Access;
use memory::{DirtyLog, GuestMemory, Region, Segment};
use virtio::queue::{Layout, QueueMemory};

use crate::guarded::PAGE;
use crate::iommu::{Iommu, MEMORY};

/// Address of the three areas of the queue.
const RINGS: u64 = 0x10_0000;
const RINGS_LEN: u64 = 0x400;
/// Bytes of the areas of a guest with an IOMMU: each area crosses from one page into the next.
const SCATTERED_LEN: u64 = 0x4000;
/// Address of indirect tables: for each id one of [`TABLE_LEN`] bytes.
pub(crate) const TABLES: u64 = 0x40_0000;
pub(crate) const TABLES_LEN: u64 = 0x5000;
const TABLE_LEN: u64 = 0x80;
/// Offset of the tables with an IOMMU, where one of them crosses from one page into the next, in
/// the middle of a descriptor.
const SCATTERED_TABLES: u64 = 0xc38;
/// Two regions of buffers that touch one another.
pub(crate) const DATA: u64 = 0x80_0000;
pub(crate) const DATA_LEN: u64 = 0x1000;
const SEAM: u64 = DATA + DATA_LEN;
/// Pages of buffers with an IOMMU.
pub(crate) const DATA_PAGES: u64 = 9;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// The memory of one guest and what its driver knows.
pub(crate) struct Guest {
    regions: Vec<Arc<Region>>,
    log: Option<Arc<DirtyLog>>,
    pub(crate) mem: Arc<GuestMemory>,
    pub(crate) layout: Layout,
    packed: bool,
    /// The device writes to its buffers.
    writable: bool,
    /// Next available index (split) or slot (packed).
    avail: u16,
    avail_wrap: bool,
    used: u16,
    used_wrap: bool,
    /// Free descriptors (split) or buffer ids (packed).
    free: Vec<u16>,
    /// Free slots of a packed ring.
    slots: u16,
    /// Chains in flight, by id.
    chains: BTreeMap<u16, Offered>,
    /// Chains that were offered so far.
    offered: u64,
    /// The IOMMU, of a guest that has one: then all addresses are I/O virtual.
    pub(crate) iommu: Option<Iommu>,
}

/// A chain.
struct Offered {
    /// The descriptors (split), or as many as its slots (packed).
    slots: Vec<u16>,
    buffers: Vec<u64>,
    /// Bytes of each buffer.
    len: u32,
}

impl Guest {
    pub(crate) fn new(size: u16, packed: bool, writable: bool, logged: bool) -> Self {
        let places = [
            (RINGS, RINGS_LEN),
            (TABLES, TABLES_LEN),
            (DATA, DATA_LEN),
            (SEAM, DATA_LEN),
        ];
        let region = |(at, len)| Arc::new(Region::heap(at, len, at));
        let regions: Vec<Arc<Region>> = places.into_iter().map(region).collect();
        // One bit a page, and too short for the second half of the data.
        let log = logged.then(|| Arc::new(DirtyLog::heap((SEAM >> 12) / 8)));
        let layout = Layout {
            size,
            desc: RINGS,
            driver: RINGS + 0x100,
            device: RINGS + 0x200,
            slots: None,
        };
        Self::over(regions, log, layout, packed, writable)
    }

    /// Creates a guest with an IOMMU, of whose pages nothing is granted yet.
    pub(crate) fn with_iommu(
        size: u16,
        packed: bool,
        writable: bool,
        logged: bool,
        scattered: bool,
    ) -> Self {
        let pages = |start: u64, bytes: u64| start / PAGE..(start + bytes) / PAGE;
        let rings = pages(RINGS, SCATTERED_LEN).chain(pages(TABLES, 2 * PAGE));
        let iommu = Iommu::new(rings.chain(pages(DATA, DATA_PAGES * PAGE)), scattered);
        // Too short for some of the memory.
        let log = logged.then(|| Arc::new(DirtyLog::heap((MEMORY >> 12) / 8 + 3)));
        let layout = Layout {
            size,
            desc: RINGS + 0xf80,
            driver: RINGS + 0x1ff0,
            device: RINGS + 0x2ff0,
            slots: None,
        };
        let regions = iommu.regions().to_vec();
        Self {
            iommu: Some(iommu),
            ..Self::over(regions, log, layout, packed, writable)
        }
    }

    fn over(
        regions: Vec<Arc<Region>>,
        log: Option<Arc<DirtyLog>>,
        layout: Layout,
        packed: bool,
        writable: bool,
    ) -> Self {
        let mem = GuestMemory::new(regions.clone(), log.clone()).expect("disjoint");
        let size = layout.size;
        Self {
            regions,
            log,
            mem: Arc::new(mem),
            layout,
            packed,
            writable,
            avail: 0,
            avail_wrap: true,
            used: 0,
            used_wrap: true,
            free: (0..size).rev().collect(),
            slots: size,
            chains: BTreeMap::new(),
            offered: 0,
            iommu: None,
        }
    }

    /// Returns the queue's memory.
    pub(crate) fn memory(&self) -> QueueMemory {
        let table = |iommu: &Iommu| Arc::clone(iommu.writer.table());
        QueueMemory {
            memory: self.mem.clone(),
            iotlb: self.iommu.as_ref().map(table),
        }
    }

    /// Returns whether a page of the rings is not translated for reads and writes.
    pub(crate) fn lacks_rings(&self) -> bool {
        let mut pages = (RINGS..RINGS + SCATTERED_LEN).step_by(PAGE as usize);
        self.iommu.as_ref().is_some_and(|iommu| {
            let table = iommu.writer.table();
            pages.any(|page| table.look_up(page, Access::READ_WRITE).is_none())
        })
    }

    /// Returns whether a page has rings or tables: what is in them matters.
    pub(crate) fn is_ring(page: u64) -> bool {
        page < DATA / PAGE
    }

    /// Maps all pages of rings and tables.
    pub(crate) fn map_rings(&mut self) {
        if let Some(iommu) = &mut self.iommu {
            let rings = (0..=u8::MAX)
                .map(|n| iommu.page(n))
                .filter(|p| Self::is_ring(*p));
            let rings: Vec<u64> = rings.collect();
            rings.into_iter().for_each(|page| iommu.map(page, false));
        }
    }

    /// Returns whether the driver has got all of its buffers back.
    pub(crate) fn is_idle(&self) -> bool {
        self.chains.is_empty()
    }

    /// Returns the guest-physical ranges of a chain's buffers, neighbours merged; `None` when it is
    /// not in flight, or not mapped.
    pub(crate) fn ranges(&self, id: u16) -> Option<Vec<(u64, u32)>> {
        let Offered { buffers, len, .. } = self.chains.get(&id)?;
        let mut pieces = Vec::new();
        for buffer in buffers {
            let (mut at, end) = (*buffer, buffer + u64::from(*len));
            while at < end {
                let part = (PAGE - at % PAGE).min(end - at);
                let gpa = match &self.iommu {
                    Some(iommu) => iommu.gpa(at)?,
                    None => at,
                };
                pieces.push((gpa, part as u32));
                at += part;
            }
        }
        Some(merge(pieces.into_iter()))
    }

    /// Another snapshot of the same memory, with the regions whose bit is set.
    pub(crate) fn snapshot(&self, mask: u8) -> Arc<GuestMemory> {
        let chosen = self
            .regions
            .iter()
            .enumerate()
            .filter(|(at, _)| mask >> at & 1 == 1);
        let chosen = chosen.map(|(_, region)| region.clone()).collect();
        Arc::new(GuestMemory::new(chosen, self.log.clone()).expect("disjoint"))
    }

    /// Returns the driver's place of an address, and how many bytes of `len` lie there in a row.
    fn place(&self, addr: u64, len: usize) -> Option<(*mut u8, usize)> {
        match &self.iommu {
            Some(iommu) => {
                let (ptr, room) = iommu.place(addr)?;
                Some((ptr, len.min(room as usize)))
            }
            None => Some((self.mem.translate(addr, len as u32)?.ptr, len)),
        }
    }

    /// Writes bytes; those that fall outside of memory are lost.
    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let Some((to, count)) = self.place(addr.wrapping_add(done as u64), rest.len()) else {
                return;
            };
            // SAFETY: `place` found the bytes mapped, the memory lives, and there is one thread.
            unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to, count) };
            done += count;
        }
    }

    fn read<const N: usize>(&self, addr: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let mut done = 0;
        while done < N {
            let place = self.place(addr + done as u64, N - done);
            let (from, count) = place.expect("only our own areas are read");
            let to = bytes[done..].as_mut_ptr();
            // SAFETY: as in `write`.
            unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
            done += count;
        }
        bytes
    }

    pub(crate) fn get16(&self, gpa: u64) -> u16 {
        u16::from_le_bytes(self.read(gpa))
    }

    pub(crate) fn set16(&self, gpa: u64, value: u16) {
        self.write(gpa, &value.to_le_bytes());
    }

    /// Writes a descriptor of either layout; `link` is the next index or the buffer id.
    pub(crate) fn set_desc(&self, gpa: u64, addr: u64, len: u32, flags: u16, link: u16) {
        let (first, second) = if self.packed {
            (link, flags)
        } else {
            (flags, link)
        };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&first.to_le_bytes());
        bytes[14..].copy_from_slice(&second.to_le_bytes());
        self.write(gpa, &bytes);
    }

    /// Makes a sound chain of `count` buffers of `len` bytes available, if there is room.
    pub(crate) fn add(&mut self, count: u16, len: u16, indirect: bool) {
        let count = count.clamp(1, 8);
        let need = if indirect { 1 } else { count };
        self.reap();
        if self.free.len() < usize::from(need) || self.slots < need {
            return;
        }
        let len = u32::from(len) % 0x800 + 1;
        let buffers: Vec<u64> = (0..u64::from(count)).map(|i| self.buffer(i)).collect();
        self.offered += 1;
        let kind = if self.writable { WRITE } else { 0 };
        if self.packed {
            self.add_packed(&buffers, len, kind, indirect);
        } else {
            self.add_split(&buffers, len, kind, indirect);
        }
    }

    /// Returns the address of a chain's buffer. They run across the seam of the regions and
    /// overlap, or, with an IOMMU, cross from one page into the next.
    fn buffer(&self, number: u64) -> u64 {
        if self.iommu.is_none() {
            return DATA + 0x380 * number;
        }
        DATA + PAGE * ((self.offered + number) % (DATA_PAGES - 1)) + 0xc80
    }

    fn table(&self, id: u16) -> u64 {
        let offset = if self.iommu.is_some() {
            SCATTERED_TABLES
        } else {
            0
        };
        TABLES + offset + TABLE_LEN * u64::from(id)
    }

    fn write_table(&self, id: u16, buffers: &[u64], len: u32, kind: u16) -> (u64, u32) {
        let table = self.table(id);
        for (i, addr) in buffers.iter().enumerate() {
            let more = if !self.packed && i + 1 < buffers.len() {
                NEXT
            } else {
                0
            };
            self.set_desc(table + 16 * i as u64, *addr, len, kind | more, i as u16 + 1);
        }
        (table, 16 * buffers.len() as u32)
    }

    fn add_split(&mut self, buffers: &[u64], len: u32, kind: u16, indirect: bool) {
        let need = if indirect { 1 } else { buffers.len() };
        let descs = self.free.split_off(self.free.len() - need);
        let head = descs[0];
        if indirect {
            let (table, bytes) = self.write_table(head, buffers, len, kind);
            let at = self.layout.desc + 16 * u64::from(head);
            self.set_desc(at, table, bytes, INDIRECT, 0xffff);
        } else {
            for (i, addr) in buffers.iter().enumerate() {
                let next = descs.get(i + 1).copied();
                let flags = kind | if next.is_some() { NEXT } else { 0 };
                let at = self.layout.desc + 16 * u64::from(descs[i]);
                self.set_desc(at, *addr, len, flags, next.unwrap_or(0xffff));
            }
        }
        let slot = u64::from(self.avail % self.layout.size);
        self.set16(self.layout.driver + 4 + 2 * slot, head);
        self.avail = self.avail.wrapping_add(1);
        self.set16(self.layout.driver + 2, self.avail);
        self.offer(head, descs, buffers, len);
    }

    fn add_packed(&mut self, buffers: &[u64], len: u32, kind: u16, indirect: bool) {
        let Some(id) = self.free.pop() else { return };
        let need = if indirect { 1 } else { buffers.len() };
        let mut ring: Vec<(u64, u32, u16)> = Vec::new();
        if indirect {
            let (table, bytes) = self.write_table(id, buffers, len, kind);
            ring.push((table, bytes, INDIRECT));
        } else {
            let flags = |i| kind | if i + 1 < buffers.len() { NEXT } else { 0 };
            ring.extend(
                buffers
                    .iter()
                    .enumerate()
                    .map(|(i, addr)| (*addr, len, flags(i))),
            );
        }
        for (addr, len, flags) in ring {
            let lap = if self.avail_wrap { 0x80 } else { 0x8000 };
            self.set_desc(
                self.layout.desc + 16 * u64::from(self.avail),
                addr,
                len,
                flags | lap,
                id,
            );
            (self.avail, self.avail_wrap) = self.next(self.avail, self.avail_wrap, 1);
        }
        self.slots -= need as u16;
        self.offer(id, vec![0; need], buffers, len);
    }

    fn offer(&mut self, id: u16, slots: Vec<u16>, buffers: &[u64], len: u32) {
        let buffers = buffers.to_vec();
        let chain = Offered {
            slots,
            buffers,
            len,
        };
        self.chains.insert(id, chain);
    }

    fn next(&self, at: u16, wrap: bool, slots: u16) -> (u16, bool) {
        let next = at + slots;
        if next >= self.layout.size {
            (next - self.layout.size, !wrap)
        } else {
            (next, wrap)
        }
    }

    /// Takes all used elements. Stops at the first invalid one, and returns false.
    pub(crate) fn reap(&mut self) -> bool {
        for _ in 0..=self.layout.size {
            let sound = if self.packed {
                self.reap_packed()
            } else {
                self.reap_split()
            };
            match sound {
                Some(true) => {}
                Some(false) => return false,
                None => return true,
            }
        }
        false
    }

    /// `None` when there is nothing, else whether it makes sense.
    fn reap_split(&mut self) -> Option<bool> {
        let device = self.layout.device;
        if self.get16(device + 2) == self.used {
            return None;
        }
        let at = device + 4 + 8 * u64::from(self.used % self.layout.size);
        let id = u32::from_le_bytes(self.read(at));
        let len = u32::from_le_bytes(self.read(at + 4));
        let Some(chain) = u16::try_from(id)
            .ok()
            .and_then(|id| self.chains.remove(&id))
        else {
            return Some(false);
        };
        self.used = self.used.wrapping_add(1);
        let bytes = chain.bytes();
        self.free.extend(chain.slots);
        Some(len <= bytes)
    }

    fn reap_packed(&mut self) -> Option<bool> {
        let at = self.layout.desc + 16 * u64::from(self.used);
        let desired = if self.used_wrap { 0x8080 } else { 0 };
        if self.get16(at + 14) & 0x8080 != desired || self.chains.is_empty() {
            return None;
        }
        let id = self.get16(at + 12);
        let len = u32::from_le_bytes(self.read(at + 8));
        let Some(chain) = self.chains.remove(&id) else {
            return Some(false);
        };
        let count = chain.slots.len() as u16;
        (self.used, self.used_wrap) = self.next(self.used, self.used_wrap, count);
        self.slots += count;
        self.free.push(id);
        Some(len <= chain.bytes())
    }
}

impl Offered {
    fn bytes(&self) -> u32 {
        self.len * self.buffers.len() as u32
    }
}

/// Returns the guest-physical ranges of segments, neighbours merged.
pub(crate) fn ranges(segs: &[Segment]) -> Vec<(u64, u32)> {
    merge(segs.iter().map(|seg| (seg.gpa, seg.len)))
}

fn merge(pieces: impl Iterator<Item = (u64, u32)>) -> Vec<(u64, u32)> {
    let mut merged: Vec<(u64, u32)> = Vec::new();
    for (at, len) in pieces {
        match merged.last_mut() {
            Some(last) if last.0 + u64::from(last.1) == at => last.1 += len,
            _ => merged.push((at, len)),
        }
    }
    merged
}
