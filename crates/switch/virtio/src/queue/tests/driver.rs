//! A driver in the plainest form: written from the standard's text, no batching, no tricks. It
//! lives in the same process, on heap memory.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use memory::iotlb::{IotlbWriter, Miss, Update};
use memory::{DirtyLog, GuestMemory, Region};
use proptest::prelude::ProptestConfig;
use wire::virtio::features::Features;

use crate::queue::{Layout, Queue, QueueFault, QueueMemory};

/// So many cases, fewer under Miri, which has no files.
pub(crate) fn cases(under_miri: u32, otherwise: u32) -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { under_miri } else { otherwise },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Start of the rings.
pub(crate) const RINGS: u64 = 0x10_0000;
/// Start of the indirect tables: one of [`TABLE_LEN`] bytes for each id.
pub(crate) const TABLES: u64 = 0x40_0000;
const TABLE_LEN: u64 = 16 * 8;
/// Two adjacent regions of buffers; [`SEAM`] is where they meet.
pub(crate) const DATA: u64 = 0x80_0000;
pub(crate) const DATA_LEN: u64 = 0x4000;
pub(crate) const SEAM: u64 = DATA + DATA_LEN;
/// An address in no region.
pub(crate) const NOWHERE: u64 = 0xdead_0000;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// One buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    pub(crate) gpa: u64,
    pub(crate) len: u32,
    pub(crate) writable: bool,
}

/// A guest: its memory, and a queue's place in it.
pub(crate) struct Guest {
    pub(crate) mem: Arc<GuestMemory>,
    pub(crate) layout: Layout,
    pub(crate) features: Features,
    /// The IOMMU, of a guest that has one: then all addresses are I/O virtual.
    pub(crate) iommu: Option<Iommu>,
}

impl Guest {
    pub(crate) fn new(size: u16, features: Features) -> Self {
        Self::with_log(size, features, None)
    }

    pub(crate) fn with_log(size: u16, features: Features, log: Option<Arc<DirtyLog>>) -> Self {
        let desc_len = 16 * u64::from(size);
        let driver = RINGS + desc_len;
        let device = (driver + 6 + 2 * u64::from(size)).next_multiple_of(4);
        let end = device + 6 + 8 * u64::from(size);
        let table_len = TABLE_LEN * u64::from(size);
        let regions = vec![
            Arc::new(Region::heap(
                RINGS,
                (end - RINGS).next_multiple_of(64),
                RINGS,
            )),
            Arc::new(Region::heap(TABLES, table_len, TABLES)),
            Arc::new(Region::heap(DATA, DATA_LEN, DATA)),
            Arc::new(Region::heap(SEAM, DATA_LEN, SEAM)),
        ];
        Self {
            mem: Arc::new(GuestMemory::new(regions, log).expect("disjoint regions")),
            layout: Layout {
                size,
                desc: RINGS,
                driver,
                device,
                slots: None,
            },
            features,
            iommu: None,
        }
    }

    /// Creates a guest with an IOMMU at the same addresses, whose pages lie anywhere in one region.
    /// Nothing is granted yet.
    pub(crate) fn with_iommu(size: u16, features: Features, log: Option<Arc<DirtyLog>>) -> Self {
        let layout = Self::new(size, features).layout;
        let end = layout.device + 6 + 8 * u64::from(size);
        let tables = TABLES + TABLE_LEN * u64::from(size);
        let iommu = Iommu::new(&[RINGS..end, TABLES..tables, DATA..DATA + 2 * DATA_LEN]);
        Self {
            mem: iommu.memory(log),
            layout,
            features,
            iommu: Some(iommu),
        }
    }

    /// Returns the queue's memory.
    pub(crate) fn memory(&self) -> QueueMemory {
        QueueMemory {
            memory: self.mem.clone(),
            iotlb: self
                .iommu
                .as_ref()
                .map(|iommu| iommu.writer.table().clone()),
        }
    }

    pub(crate) fn packed(&self) -> bool {
        self.features.contains(Features::RING_PACKED)
    }

    /// The position in which a queue starts.
    pub(crate) fn start(&self) -> u32 {
        if self.packed() { 0x8000_8000 } else { 0 }
    }

    pub(crate) fn queue(&self) -> Queue {
        self.queue_at(self.start()).expect("a sound queue")
    }

    pub(crate) fn queue_at(&self, position: u32) -> Result<Queue, QueueFault> {
        Queue::new(self.memory(), self.layout, self.features, position)
    }

    fn ptr(&self, addr: u64, len: u32) -> *mut u8 {
        let gpa = self.iommu.as_ref().map_or(addr, |iommu| iommu.gpa(addr));
        self.mem.translate(gpa, len).expect("mapped").ptr
    }

    pub(crate) fn write<const N: usize>(&self, gpa: u64, bytes: [u8; N]) {
        if self.iommu.is_some() && gpa % PAGE + N as u64 > PAGE {
            return (gpa..)
                .zip(bytes)
                .for_each(|(at, byte)| self.write(at, [byte]));
        }
        let at = self.ptr(gpa, N as u32);
        // SAFETY: `ptr` found N bytes mapped; the test has one thread.
        unsafe { at.cast::<[u8; N]>().write_unaligned(bytes) };
    }

    pub(crate) fn read<const N: usize>(&self, gpa: u64) -> [u8; N] {
        let at = self.ptr(gpa, N as u32);
        // SAFETY: as in `write`.
        unsafe { at.cast::<[u8; N]>().read_unaligned() }
    }

    /// Stores a field; what was written before it is visible to who reads it.
    pub(crate) fn set16(&self, gpa: u64, value: u16) {
        let at = self.ptr(gpa, 2);
        if !at.addr().is_multiple_of(2) {
            return self.write(gpa, value.to_le_bytes());
        }
        // SAFETY: `ptr` found the bytes mapped, and they are aligned.
        unsafe { AtomicU16::from_ptr(at.cast()) }.store(value.to_le(), Ordering::Release);
    }

    pub(crate) fn get16(&self, gpa: u64) -> u16 {
        // SAFETY: `ptr` finds the bytes mapped, and only aligned fields are read this way.
        let field = unsafe { AtomicU16::from_ptr(self.ptr(gpa, 2).cast()) };
        u16::from_le(field.load(Ordering::Acquire))
    }

    /// Writes a descriptor of either layout at `gpa`; `link` is the next index or the buffer id.
    pub(crate) fn set_desc(&self, gpa: u64, addr: u64, len: u32, flags: u16, link: u16) {
        self.write(gpa, addr.to_le_bytes());
        self.write(gpa + 8, len.to_le_bytes());
        let (id_at, flags_at) = if self.packed() { (12, 14) } else { (14, 12) };
        self.set16(gpa + id_at, link);
        self.set16(gpa + flags_at, flags);
    }

    /// Writes ring descriptor `at`; on a packed ring it becomes available in the lap of `true`.
    pub(crate) fn set_ring_desc(&self, at: u16, addr: u64, len: u32, flags: u16, link: u16) {
        let lap = if self.packed() { 0x80 } else { 0 };
        let gpa = self.layout.desc + 16 * u64::from(at);
        self.set_desc(gpa, addr, len, flags | lap, link);
    }

    /// Offers the chain at descriptor 0: the first that this queue's driver offers.
    pub(crate) fn offer_first(&self) {
        if !self.packed() {
            self.set16(self.layout.driver + 4, 0);
            self.set16(self.layout.driver + 2, 1);
        }
    }
}

/// The driver's side of one queue.
pub(crate) struct Driver {
    pub(crate) guest: Guest,
    /// Split: the available index. Packed: the next slot.
    avail: u16,
    avail_wrap: bool,
    used: u16,
    used_wrap: bool,
    /// Free descriptors (split) or buffer ids (packed).
    free: Vec<u16>,
    /// Free slots of a packed ring.
    slots: usize,
    /// By id: the descriptors (split) or slots (packed) of a chain.
    chains: HashMap<u16, Vec<u16>>,
}

impl Driver {
    pub(crate) fn new(guest: Guest) -> Self {
        let size = guest.layout.size;
        Self {
            guest,
            avail: 0,
            avail_wrap: true,
            used: 0,
            used_wrap: true,
            free: (0..size).collect(),
            slots: usize::from(size),
            chains: HashMap::new(),
        }
    }

    /// Starts a split queue's indices at `index`, as if it had run before.
    pub(crate) fn start_at(&mut self, index: u16) {
        assert!(!self.guest.packed());
        (self.avail, self.used) = (index, index);
        self.guest.set16(self.guest.layout.driver + 2, index);
        self.guest.set16(self.guest.layout.device + 2, index);
    }

    /// Makes one chain available; `pick` chooses among the free ids. `None` when there is no room.
    pub(crate) fn add(&mut self, buffers: &[Buffer], indirect: bool, pick: usize) -> Option<u16> {
        let need = if indirect { 1 } else { buffers.len() };
        if self.free.len() < need || self.slots < need {
            return None;
        }
        let pick = pick % self.free.len();
        self.free.rotate_left(pick);
        let id = if self.guest.packed() {
            self.add_packed(buffers, indirect, need)
        } else {
            self.add_split(buffers, indirect, need)
        };
        Some(id)
    }

    fn write_table(&self, id: u16, buffers: &[Buffer]) -> (u64, u32) {
        let table = TABLES + TABLE_LEN * u64::from(id);
        for (i, b) in buffers.iter().enumerate() {
            let mut flags = if b.writable { WRITE } else { 0 };
            let mut link = 0;
            if !self.guest.packed() && i + 1 < buffers.len() {
                flags |= NEXT;
                link = i as u16 + 1;
            }
            let gpa = table + 16 * i as u64;
            self.guest.set_desc(gpa, b.gpa, b.len, flags, link);
        }
        (table, 16 * buffers.len() as u32)
    }

    fn add_split(&mut self, buffers: &[Buffer], indirect: bool, need: usize) -> u16 {
        let descs: Vec<u16> = self.free.drain(..need).collect();
        let head = descs[0];
        if indirect {
            let (table, len) = self.write_table(head, buffers);
            self.guest.set_ring_desc(head, table, len, INDIRECT, 0xffff);
        } else {
            for (i, b) in buffers.iter().enumerate() {
                let next = descs.get(i + 1).copied();
                let more = if next.is_some() { NEXT } else { 0 };
                let flags = more | if b.writable { WRITE } else { 0 };
                let link = next.unwrap_or(0xffff);
                self.guest
                    .set_ring_desc(descs[i], b.gpa, b.len, flags, link);
            }
        }
        let slot = self.avail % self.guest.layout.size;
        let driver = self.guest.layout.driver;
        self.guest.set16(driver + 4 + 2 * u64::from(slot), head);
        self.avail = self.avail.wrapping_add(1);
        self.guest.set16(driver + 2, self.avail);
        self.chains.insert(head, descs);
        head
    }

    fn add_packed(&mut self, buffers: &[Buffer], indirect: bool, need: usize) -> u16 {
        let id = self.free.remove(0);
        self.slots -= need;
        let mut ring = Vec::new();
        if indirect {
            let (table, len) = self.write_table(id, buffers);
            ring.push((table, len, INDIRECT));
        } else {
            for (i, b) in buffers.iter().enumerate() {
                let more = if i + 1 < buffers.len() { NEXT } else { 0 };
                ring.push((b.gpa, b.len, more | if b.writable { WRITE } else { 0 }));
            }
        }
        let mut writes = Vec::new();
        for (addr, len, flags) in ring {
            let lap = if self.avail_wrap { 0x80 } else { 0x8000 };
            writes.push((self.avail, addr, len, flags | lap));
            self.avail += 1;
            if self.avail == self.guest.layout.size {
                self.avail = 0;
                self.avail_wrap = !self.avail_wrap;
            }
        }
        // The first descriptor makes the chain available, so it is written last.
        for &(slot, addr, len, flags) in writes.iter().rev() {
            let gpa = self.guest.layout.desc + 16 * u64::from(slot);
            self.guest.set_desc(gpa, addr, len, flags, id);
        }
        self.chains.insert(id, vec![0; need]);
        id
    }

    /// Takes the next used element: its id, and how many bytes the device says it has written.
    pub(crate) fn reap(&mut self) -> Option<(u16, u32)> {
        if self.guest.packed() {
            self.reap_packed()
        } else {
            self.reap_split()
        }
    }

    /// Takes all used elements, when chains are used in the order of `offered`: an element stands
    /// for all chains up to its own (sections 2.7.9 and 2.8.9). Each chain's id, with what the
    /// element says was written.
    pub(crate) fn reap_in_order(&mut self, offered: &mut VecDeque<u16>) -> Vec<(u16, u32)> {
        let mut used = Vec::new();
        while let Some((last, len)) = self.peek_used() {
            loop {
                let id = offered.pop_front().expect("an id in flight");
                self.retire(id);
                used.push((id, len));
                if id == last {
                    break;
                }
            }
        }
        used
    }

    /// The next used element, left where it is.
    fn peek_used(&self) -> Option<(u16, u32)> {
        let Layout { desc, device, .. } = self.guest.layout;
        let (at, id_at, len_at) = if self.guest.packed() {
            let at = desc + 16 * u64::from(self.used);
            let desired = if self.used_wrap { 0x8080 } else { 0 };
            if self.guest.get16(at + 14) & 0x8080 != desired {
                return None;
            }
            (at, 12, 8)
        } else {
            if self.guest.get16(device + 2) == self.used {
                return None;
            }
            let slot = self.used % self.guest.layout.size;
            (device + 4 + 8 * u64::from(slot), 0, 4)
        };
        let len = u32::from_le_bytes(self.guest.read(at + len_at));
        Some((self.guest.get16(at + id_at), len))
    }

    /// Moves on behind the chain `id`, whose place is free again.
    fn retire(&mut self, id: u16) {
        let places = self.chains.remove(&id).expect("an id in flight");
        if !self.guest.packed() {
            self.used = self.used.wrapping_add(1);
            self.free.extend(places);
            return;
        }
        self.slots += places.len();
        self.used += places.len() as u16;
        if self.used >= self.guest.layout.size {
            self.used -= self.guest.layout.size;
            self.used_wrap = !self.used_wrap;
        }
        self.free.push(id);
    }

    fn reap_split(&mut self) -> Option<(u16, u32)> {
        let device = self.guest.layout.device;
        if self.guest.get16(device + 2) == self.used {
            return None;
        }
        let at = device + 4 + 8 * u64::from(self.used % self.guest.layout.size);
        let id = u32::from_le_bytes(self.guest.read(at)) as u16;
        let len = u32::from_le_bytes(self.guest.read(at + 4));
        self.used = self.used.wrapping_add(1);
        let descs = self.chains.remove(&id).expect("an id in flight");
        self.free.extend(descs);
        Some((id, len))
    }

    fn reap_packed(&mut self) -> Option<(u16, u32)> {
        let at = self.guest.layout.desc + 16 * u64::from(self.used);
        let flags = self.guest.get16(at + 14);
        let desired = if self.used_wrap { 0x8080 } else { 0 };
        if flags & 0x8080 != desired {
            return None;
        }
        let id = self.guest.get16(at + 12);
        let len = u32::from_le_bytes(self.guest.read(at + 8));
        assert_eq!(
            flags & WRITE != 0,
            len > 0,
            "the flag says whether len counts"
        );
        let slots = self.chains.remove(&id).expect("an id in flight").len();
        self.slots += slots;
        self.used += slots as u16;
        if self.used >= self.guest.layout.size {
            self.used -= self.guest.layout.size;
            self.used_wrap = !self.used_wrap;
        }
        self.free.push(id);
        Some((id, len))
    }
}

/// The pages of an IOMMU: I/O virtual, and guest-physical ones far from each other.
const PAGE: u64 = 4096;
const MEMORY: u64 = 0x4000_0000;
/// Address of the memory in the front end.
const USER: u64 = 0x7f00_0000_0000;

/// The IOMMU of a guest, and the table that the front end has of it.
pub(crate) struct Iommu {
    /// Guest-physical page by I/O virtual one.
    pages: BTreeMap<u64, u64>,
    pub(crate) writer: IotlbWriter,
}

impl Iommu {
    /// Maps these I/O virtual addresses.
    fn new(ranges: &[Range<u64>]) -> Self {
        let pages = ranges
            .iter()
            .flat_map(|r| r.start / PAGE..r.end.div_ceil(PAGE));
        // Neighbours are never neighbours.
        let scattered = (0u64..).map(|n| MEMORY / PAGE + if n % 2 == 0 { 4000 - n } else { n });
        Self {
            pages: pages.zip(scattered).collect(),
            writer: IotlbWriter::heap(),
        }
    }

    fn memory(&self, log: Option<Arc<DirtyLog>>) -> Arc<GuestMemory> {
        let region = |gpa: u64| Region::heap(gpa, PAGE, USER + gpa);
        let regions = self
            .pages
            .values()
            .map(|page| Arc::new(region(page * PAGE)));
        Arc::new(GuestMemory::new(regions.collect(), log).expect("disjoint regions"))
    }

    pub(crate) fn gpa(&self, iova: u64) -> u64 {
        self.pages.get(&(iova / PAGE)).expect("mapped") * PAGE + iova % PAGE
    }

    /// Returns whether the guest maps an address.
    pub(crate) fn maps(&self, iova: u64) -> bool {
        self.pages.contains_key(&(iova / PAGE))
    }

    /// Maps a page to that of another address.
    pub(crate) fn remap(&mut self, iova: u64, to: u64) {
        let page = self.pages[&(to / PAGE)];
        self.pages.insert(iova / PAGE, page);
    }

    /// Grants the page of an address, as the answer to `asked` if there is one.
    pub(crate) fn grant(&mut self, mem: &GuestMemory, iova: u64, asked: Option<Miss>) {
        let update = Update {
            iova: iova / PAGE * PAGE,
            size: PAGE,
            user_addr: USER + self.gpa(iova / PAGE * PAGE),
            permission: 3,
        };
        self.writer
            .update(mem, &update, asked.as_slice())
            .expect("the guest's memory");
    }

    pub(crate) fn grant_all(&mut self, mem: &GuestMemory) {
        let pages: Vec<u64> = self.pages.keys().copied().collect();
        pages
            .iter()
            .for_each(|page| self.grant(mem, page * PAGE, None));
    }

    /// Revokes the page of an address. No queue is in use.
    pub(crate) fn revoke(&mut self, iova: u64) {
        self.writer.invalidate(iova, 1).expect("not empty");
    }

    /// Answers all questions of the queue, by a grant or by none. Returns them.
    pub(crate) fn answer(&mut self, mem: &GuestMemory) -> Vec<Miss> {
        let mut asked = Vec::new();
        self.writer.table().misses().take_some(|miss, need| {
            asked.push((miss, need));
            true
        });
        for &(miss, need) in &asked {
            if self.maps(miss.iova()) {
                self.grant(mem, miss.iova(), Some(miss));
            } else {
                self.writer.deny(miss, need);
            }
        }
        asked.into_iter().map(|(miss, _)| miss).collect()
    }

    /// Returns guest-physical ranges for I/O virtual ones, neighbours merged.
    pub(crate) fn translate(&self, ranges: &[(u64, u32)]) -> Vec<(u64, u32)> {
        let pieces = ranges.iter().flat_map(|&(start, len)| {
            let end = start + u64::from(len);
            let pages = start / PAGE..end.div_ceil(PAGE);
            pages.map(move |page| (start.max(page * PAGE), end.min((page + 1) * PAGE)))
        });
        merge(pieces.map(|(start, end)| (self.gpa(start), (end - start) as u32)))
    }
}

/// The bytes of `segs` as ranges of guest-physical addresses, neighbours merged.
pub(crate) fn ranges(segs: &[memory::Segment]) -> Vec<(u64, u32)> {
    merge(segs.iter().map(|s| (s.gpa, s.len)))
}

/// The bytes of `buffers`, likewise.
pub(crate) fn wanted_ranges(buffers: &[Buffer]) -> Vec<(u64, u32)> {
    merge(buffers.iter().map(|b| (b.gpa, b.len)))
}

fn merge(pieces: impl Iterator<Item = (u64, u32)>) -> Vec<(u64, u32)> {
    let mut out: Vec<(u64, u32)> = Vec::new();
    for (gpa, len) in pieces {
        match out.last_mut() {
            Some(last) if last.0 + u64::from(last.1) == gpa => last.1 += len,
            _ => out.push((gpa, len)),
        }
    }
    out
}

/// Both layouts with these features beside.
pub(crate) fn both(features: Features) -> [Features; 2] {
    let base = Features::VERSION_1 | features;
    [base, base | Features::RING_PACKED]
}
