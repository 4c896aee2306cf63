//! Packed ring, driver side (virtio 1.3 section 2.8).
//!
//! ```text
//! descriptor ring     16 bytes each: addr u64, len u32, id u16, flags u16
//! driver area         off_wrap u16, flags u16: which used notifications the driver wants
//! device area         off_wrap u16, flags u16: which kicks the device wants
//! ```
//! Positions are counted without wrapping, in descriptors since the reset: position `p` lies in
//! slot `p % size` of lap `p / size`, and the wrap counter is 1 in even laps.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::buffers::{Buffers, Pending};
use super::{
    DESC_AVAIL, DESC_INDIRECT, DESC_NEXT, DESC_USED, DESC_WRITE, EVENT_DESC, EVENT_DISABLE,
    EVENT_ENABLE, PackedDesc, QueueAddrs, QueueOptions, RawDesc, Tables, Used, UsedFault,
};
use crate::guest_ram::GuestRam;

/// Written to `id` where the field is reserved.
const GARBAGE: u16 = 0xbeef;

#[derive(Debug)]
pub(super) struct PackedRing {
    pub(super) ram: GuestRam,
    pub(super) addrs: QueueAddrs,
    pub(super) options: QueueOptions,
    ids: VecDeque<u16>,
    pub(super) buffers: Buffers,
    slots_free: u16,
    avail: u64,
    published: u64,
    kicked: u64,
    used: u64,
    /// Flags of staged heads, which become visible last: slot and flags.
    heads: Vec<(u16, u16)>,
    tables: Tables,
}

impl PackedRing {
    pub(super) fn new(ram: GuestRam, options: QueueOptions) -> Self {
        let addrs = QueueAddrs {
            desc: ram.alloc_shared(16 * u64::from(options.size), 16),
            driver: ram.alloc_shared(4, 4),
            device: ram.alloc_shared(4, 4),
        };
        let mut ring = Self {
            ram,
            addrs,
            options,
            ids: VecDeque::new(),
            buffers: Buffers::new(options),
            slots_free: 0,
            avail: 0,
            published: 0,
            kicked: 0,
            used: 0,
            heads: Vec::new(),
            tables: Tables::default(),
        };
        ring.reset();
        ring
    }

    pub(super) fn reset(&mut self) {
        let size = usize::from(self.options.size);
        self.ram.fill(self.addrs.desc, 16 * size, 0);
        self.ram.fill(self.addrs.driver, 4, 0);
        self.ram.fill(self.addrs.device, 4, 0);
        self.ids = (0..self.options.size).collect();
        self.buffers = Buffers::new(self.options);
        self.heads.clear();
        self.slots_free = self.options.size;
        (self.avail, self.published, self.kicked, self.used) = (0, 0, 0, 0);
    }

    pub(super) fn free_slots(&self) -> u16 {
        self.slots_free
    }

    pub(super) fn add(
        &mut self,
        descs: &[RawDesc],
        direct: usize,
        token: u64,
        writable: u64,
    ) -> Option<u16> {
        if direct == descs.len() {
            return self.add_chain(descs, token, writable, DESC_NEXT);
        }
        let id = *self.ids.front()?;
        let table = (self.slots_free > 0).then(|| self.write_table(id, descs))?;
        self.add_chain(&[table], token, writable, DESC_NEXT)
    }

    pub(super) fn add_raw(&mut self, descs: &[RawDesc], token: u64) -> Option<u16> {
        self.add_chain(descs, token, u64::from(u32::MAX), 0)
    }

    /// Writes the descriptors but for the head's flags; `more` is set in all but the last.
    fn add_chain(
        &mut self,
        descs: &[RawDesc],
        token: u64,
        writable: u64,
        more: u16,
    ) -> Option<u16> {
        if descs.len() > usize::from(self.slots_free) {
            return None;
        }
        let id = self.ids.pop_front()?;
        let slots = descs.len() as u16;
        for (i, desc) in (0..slots).zip(descs) {
            let last = i + 1 == slots;
            let flags = desc.flags | if last { 0 } else { more };
            let id = if last { id } else { GARBAGE };
            self.write_ring(i == 0, RawDesc { flags, ..*desc }, id);
        }
        let pending = Pending {
            token,
            writable,
            slots,
        };
        self.buffers.stage(id, pending);
        self.slots_free -= slots;
        Some(id)
    }

    fn write_ring(&mut self, head: bool, desc: RawDesc, id: u16) {
        let slot = self.slot(self.avail);
        let lap = if self.wrap(self.avail) {
            DESC_AVAIL
        } else {
            DESC_USED
        };
        let flags = desc.flags | lap;
        let gpa = self.desc(slot);
        let body = PackedDesc {
            gpa: desc.gpa,
            len: desc.len,
            id,
            flags,
        }
        .to_bytes();
        self.ram.write(gpa, &body[..14]);
        if head {
            self.heads.push((slot, flags));
        } else {
            self.ram.store_u16(gpa + 14, flags);
        }
        self.avail += 1;
    }

    /// Fills the indirect table of buffer `id` and returns the descriptor that names it. The
    /// table's order is the chain; only WRITE counts there (section 2.8.7).
    fn write_table(&mut self, id: u16, descs: &[RawDesc]) -> RawDesc {
        let gpa = self.tables.get(&self.ram, id, descs.len());
        for (at, desc) in (gpa..).step_by(16).zip(descs) {
            let full = PackedDesc {
                gpa: desc.gpa,
                len: desc.len,
                id: GARBAGE,
                flags: desc.flags,
            };
            self.ram.write(at, &full.to_bytes());
        }
        RawDesc {
            gpa: self.ram.device_address(gpa),
            len: 16 * descs.len() as u32,
            flags: DESC_INDIRECT,
        }
    }

    pub(super) fn publish(&mut self) -> u16 {
        // Newest first: the device stops at the oldest head, so the whole batch appears with its
        // flags.
        let count = self.heads.len() as u16;
        while let Some((slot, flags)) = self.heads.pop() {
            self.ram.store_u16(self.desc(slot) + 14, flags);
        }
        self.published = self.avail;
        count
    }

    pub(super) fn needs_kick(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let (old, new) = (self.kicked, self.published);
        self.kicked = new;
        let flags = self.ram.load_u16(self.addrs.device + 2);
        match flags & 3 {
            EVENT_ENABLE => old != new,
            EVENT_DESC if self.options.event_idx => {
                self.passed(self.ram.load_u16(self.addrs.device), old, new)
            }
            _ => false,
        }
    }

    /// Returns whether the position that `off_wrap` names lies among `old..new`; both laps' worth
    /// of positions repeat after `2 * size`.
    fn passed(&self, off_wrap: u16, old: u64, new: u64) -> bool {
        let size = u64::from(self.options.size);
        let lap = if off_wrap & 0x8000 != 0 { 0 } else { size };
        let event = u64::from(off_wrap & 0x7fff) + lap;
        (event + 2 * size - old % (2 * size)) % (2 * size) < new - old
    }

    pub(super) fn has_used(&self) -> bool {
        self.buffers.order.batch.is_some() || self.used_at(self.used)
    }

    fn used_at(&self, position: u64) -> bool {
        let flags = self.ram.load_u16(self.desc(self.slot(position)) + 14);
        let wrap = self.wrap(position);
        self.buffers.outstanding() > 0
            && (flags & DESC_AVAIL != 0) == wrap
            && (flags & DESC_USED != 0) == wrap
    }

    pub(super) fn used_waiting(&self) -> u16 {
        self.used_run().0
    }

    /// Used buffers that wait to be polled, and the position behind them.
    fn used_run(&self) -> (u16, u64) {
        if self.options.in_order {
            return self.used_run_in_order();
        }
        let (mut at, mut count) = (self.used, 0);
        while count < self.buffers.outstanding() && self.used_at(at) {
            let id = self.id_at(at);
            let Some(pending) = self.buffers.get(id) else {
                break;
            };
            at += u64::from(pending.slots);
            count += 1;
        }
        (count, at)
    }

    /// Follows batches: one descriptor stands for all buffers up to the one it names.
    fn used_run_in_order(&self) -> (u16, u64) {
        let (mut at, mut count, mut open) =
            (self.used, 0, self.buffers.order.batch.map(|(id, _)| id));
        for id in &self.buffers.order.heads {
            if open.is_none() {
                if !self.used_at(at) {
                    break;
                }
                open = Some(self.id_at(at));
            }
            let slots = self.buffers.get(*id).map_or(0, |p| p.slots);
            at += u64::from(slots);
            count += 1;
            open = open.filter(|last| last != id);
        }
        (count, at)
    }

    fn id_at(&self, position: u64) -> u16 {
        self.ram.load_u16(self.desc(self.slot(position)) + 12)
    }

    pub(super) fn poll(&mut self) -> Result<Option<Used>, UsedFault> {
        if let Some((id, len)) = self.buffers.order.step() {
            return self.finish(id, len).map(Some);
        }
        if !self.used_at(self.used) {
            return Ok(None);
        }
        let gpa = self.desc(self.slot(self.used));
        let (id, flags) = (self.ram.load_u16(gpa + 12), self.ram.load_u16(gpa + 14));
        // The length is reserved unless WRITE says that something was written (section 2.8.5).
        let len = if flags & DESC_WRITE != 0 {
            self.ram.load_u32(gpa + 8)
        } else {
            0
        };
        if !self.options.in_order {
            return self.finish(id, Some(len)).map(Some);
        }
        self.buffers.order.open(id, len, u16::MAX)?;
        self.poll()
    }

    fn finish(&mut self, id: u16, len: Option<u32>) -> Result<Used, UsedFault> {
        let (used, slots) = self.buffers.finish(id, len)?;
        self.slots_free += slots;
        self.used += u64::from(slots);
        self.give_id(id);
        Ok(used)
    }

    /// In order, ids go round; otherwise the latest is used again first, so that ids lose their
    /// order.
    fn give_id(&mut self, id: u16) {
        if self.options.in_order {
            self.ids.push_back(id);
        } else {
            self.ids.push_front(id);
        }
    }

    pub(super) fn silence(&mut self) {
        self.ram.store_u16(self.addrs.driver + 2, EVENT_DISABLE);
    }

    pub(super) fn notify_after(&mut self, count: u16) -> bool {
        let flags = if self.options.event_idx {
            let at = self.used + u64::from(count.max(1)) - 1;
            self.ram.store_u16(
                self.addrs.driver,
                self.slot(at) | u16::from(self.wrap(at)) << 15,
            );
            EVENT_DESC
        } else {
            EVENT_ENABLE
        };
        self.ram.store_u16(self.addrs.driver + 2, flags);
        fence(Ordering::SeqCst);
        self.has_used()
    }

    pub(super) fn resume_base(&self) -> u32 {
        let half = self.half(self.used_run().1);
        half | half << 16
    }

    pub(super) fn drained_base(&self) -> u32 {
        self.half(self.published) | self.half(self.used) << 16
    }

    fn half(&self, position: u64) -> u32 {
        u32::from(self.slot(position)) | u32::from(self.wrap(position)) << 15
    }

    fn slot(&self, position: u64) -> u16 {
        (position % u64::from(self.options.size)) as u16
    }

    fn wrap(&self, position: u64) -> bool {
        (position / u64::from(self.options.size)).is_multiple_of(2)
    }

    pub(super) fn desc(&self, slot: u16) -> u64 {
        self.addrs.desc + 16 * u64::from(slot)
    }
}
