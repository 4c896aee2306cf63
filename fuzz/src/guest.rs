//! A guest's memory and the plainest driver of one queue, written from the standard's text (virtio
//! 1.3, sections 2.7 and 2.8). It lives on the heap of this process, in one thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use memory::{DirtyLog, GuestMemory, Region};
use virtio::queue::Layout;

/// Address of the three areas of the queue.
pub(crate) const RINGS: u64 = 0x10_0000;
const RINGS_LEN: u64 = 0x400;
const DRIVER: u64 = RINGS + 0x100;
const DEVICE: u64 = RINGS + 0x200;
/// Address of indirect tables: for each id one of [`TABLE_LEN`] bytes.
pub(crate) const TABLES: u64 = 0x40_0000;
pub(crate) const TABLES_LEN: u64 = 0x5000;
const TABLE_LEN: u64 = 0x80;
/// Two regions of buffers that touch one another.
pub(crate) const DATA: u64 = 0x80_0000;
pub(crate) const DATA_LEN: u64 = 0x1000;
const SEAM: u64 = DATA + DATA_LEN;

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
    /// For each id in flight the descriptors (split) or how many slots (packed), and its bytes.
    chains: BTreeMap<u16, (Vec<u16>, u32)>,
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
        let mem = GuestMemory::new(regions.clone(), log.clone()).expect("disjoint");
        Self {
            regions,
            log,
            mem: Arc::new(mem),
            layout: Layout {
                size,
                desc: RINGS,
                driver: DRIVER,
                device: DEVICE,
                slots: None,
            },
            packed,
            writable,
            avail: 0,
            avail_wrap: true,
            used: 0,
            used_wrap: true,
            free: (0..size).rev().collect(),
            slots: size,
            chains: BTreeMap::new(),
        }
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

    /// Writes bytes; those that fall outside of memory are lost.
    pub(crate) fn write(&self, gpa: u64, bytes: &[u8]) {
        if let Some(to) = self.mem.translate(gpa, bytes.len() as u32) {
            // SAFETY: `translate` found the bytes mapped, `self.mem` lives, and there is one
            // thread.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.ptr, bytes.len()) };
        }
    }

    fn read<const N: usize>(&self, gpa: u64) -> [u8; N] {
        let from = self
            .mem
            .translate(gpa, N as u32)
            .expect("only our own areas are read");
        let mut bytes = [0; N];
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from.ptr, bytes.as_mut_ptr(), N) };
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
        // The buffers overlap and run across the seam of the regions.
        let buffers: Vec<u64> = (0..count).map(|i| DATA + 0x380 * u64::from(i)).collect();
        let kind = if self.writable { WRITE } else { 0 };
        if self.packed {
            self.add_packed(&buffers, len, kind, indirect);
        } else {
            self.add_split(&buffers, len, kind, indirect);
        }
    }

    fn write_table(&self, id: u16, buffers: &[u64], len: u32, kind: u16) -> (u64, u32) {
        let table = TABLES + TABLE_LEN * u64::from(id);
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
            self.set_desc(RINGS + 16 * u64::from(head), table, bytes, INDIRECT, 0xffff);
        } else {
            for (i, addr) in buffers.iter().enumerate() {
                let next = descs.get(i + 1).copied();
                let flags = kind | if next.is_some() { NEXT } else { 0 };
                let at = RINGS + 16 * u64::from(descs[i]);
                self.set_desc(at, *addr, len, flags, next.unwrap_or(0xffff));
            }
        }
        let slot = u64::from(self.avail % self.layout.size);
        self.set16(DRIVER + 4 + 2 * slot, head);
        self.avail = self.avail.wrapping_add(1);
        self.set16(DRIVER + 2, self.avail);
        self.chains
            .insert(head, (descs, len * buffers.len() as u32));
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
                RINGS + 16 * u64::from(self.avail),
                addr,
                len,
                flags | lap,
                id,
            );
            (self.avail, self.avail_wrap) = self.next(self.avail, self.avail_wrap, 1);
        }
        self.slots -= need as u16;
        self.chains
            .insert(id, (vec![0; need], len * buffers.len() as u32));
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
        if self.get16(DEVICE + 2) == self.used {
            return None;
        }
        let at = DEVICE + 4 + 8 * u64::from(self.used % self.layout.size);
        let id = u32::from_le_bytes(self.read(at));
        let len = u32::from_le_bytes(self.read(at + 4));
        let Some((descs, bytes)) = u16::try_from(id)
            .ok()
            .and_then(|id| self.chains.remove(&id))
        else {
            return Some(false);
        };
        self.used = self.used.wrapping_add(1);
        self.free.extend(descs);
        Some(len <= bytes)
    }

    fn reap_packed(&mut self) -> Option<bool> {
        let at = RINGS + 16 * u64::from(self.used);
        let desired = if self.used_wrap { 0x8080 } else { 0 };
        if self.get16(at + 14) & 0x8080 != desired || self.chains.is_empty() {
            return None;
        }
        let id = self.get16(at + 12);
        let len = u32::from_le_bytes(self.read(at + 8));
        let Some((slots, bytes)) = self.chains.remove(&id) else {
            return Some(false);
        };
        let count = slots.len() as u16;
        (self.used, self.used_wrap) = self.next(self.used, self.used_wrap, count);
        self.slots += count;
        self.free.push(id);
        Some(len <= bytes)
    }
}
