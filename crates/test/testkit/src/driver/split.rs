//! Split ring, driver side (virtio 1.3 section 2.7).
//!
//! ```text
//! descriptor table   16 bytes each: addr u64, len u32, flags u16, next u16
//! available ring     flags u16, idx u16, ring[size] u16, used_event u16
//! used ring          flags u16, idx u16, ring[size] {id u32, len u32}, avail_event u16
//! ```

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::buffers::{Buffers, Pending};
use super::{
    DESC_INDIRECT, DESC_NEXT, QueueAddrs, QueueOptions, RawDesc, SplitDesc, Tables, Used, UsedFault,
};
use crate::guest_ram::GuestRam;

const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// Written to `next` where no descriptor follows: the field is meaningless there.
const GARBAGE: u16 = 0xdead;

#[derive(Debug)]
pub(super) struct SplitRing {
    pub(super) ram: GuestRam,
    pub(super) addrs: QueueAddrs,
    pub(super) options: QueueOptions,
    /// Free descriptors; taken from the front when in order, else from the back, which scrambles
    /// chains.
    free: VecDeque<u16>,
    /// The descriptor after each, as the driver wrote it.
    next: Vec<u16>,
    pub(super) buffers: Buffers,
    avail: u16,
    published: u16,
    kicked: u16,
    last_used: u16,
    tables: Tables,
}

impl SplitRing {
    pub(super) fn new(ram: GuestRam, options: QueueOptions) -> Self {
        assert!(
            options.size.is_power_of_two(),
            "a split ring's size is a power of two"
        );
        let size = u64::from(options.size);
        let addrs = QueueAddrs {
            desc: ram.alloc_shared(16 * size, 16),
            driver: ram.alloc_shared(6 + 2 * size, 2),
            device: ram.alloc_shared(6 + 8 * size, 4),
        };
        let mut ring = Self {
            ram,
            addrs,
            options,
            free: VecDeque::new(),
            next: Vec::new(),
            buffers: Buffers::new(options),
            avail: 0,
            published: 0,
            kicked: 0,
            last_used: 0,
            tables: Tables::default(),
        };
        ring.reset();
        ring
    }

    pub(super) fn reset(&mut self) {
        let size = usize::from(self.options.size);
        self.ram.fill(self.addrs.desc, 16 * size, 0);
        self.ram.fill(self.addrs.driver, 6 + 2 * size, 0);
        self.ram.fill(self.addrs.device, 6 + 8 * size, 0);
        self.free = (0..self.options.size).collect();
        self.next = vec![0; size];
        self.buffers = Buffers::new(self.options);
        (self.avail, self.published, self.kicked, self.last_used) = (0, 0, 0, 0);
    }

    pub(super) fn free_slots(&self) -> u16 {
        self.free.len() as u16
    }

    pub(super) fn add(
        &mut self,
        descs: &[RawDesc],
        direct: usize,
        token: u64,
        writable: u64,
    ) -> Option<u16> {
        let slots = direct + usize::from(direct < descs.len());
        let chain = self.take(slots)?;
        for (i, desc) in descs[..direct].iter().enumerate() {
            let more = if i + 1 < slots { DESC_NEXT } else { 0 };
            self.write_ring(
                &chain,
                i,
                RawDesc {
                    flags: desc.flags | more,
                    ..*desc
                },
            );
        }
        if direct < descs.len() {
            let table = self.write_table(chain[0], &descs[direct..]);
            self.write_ring(&chain, direct, table);
        }
        self.stage(&chain, token, writable);
        Some(chain[0])
    }

    pub(super) fn add_raw(&mut self, descs: &[RawDesc], token: u64) -> Option<u16> {
        let chain = self.take(descs.len())?;
        for (i, desc) in descs.iter().enumerate() {
            self.write_ring(&chain, i, *desc);
        }
        self.stage(&chain, token, u64::from(u32::MAX));
        Some(chain[0])
    }

    fn take(&mut self, slots: usize) -> Option<Vec<u16>> {
        if self.free.len() < slots {
            return None;
        }
        let in_order = self.options.in_order;
        let one = |free: &mut VecDeque<u16>| {
            if in_order {
                free.pop_front()
            } else {
                free.pop_back()
            }
        };
        (0..slots).map(|_| one(&mut self.free)).collect()
    }

    fn write_ring(&mut self, chain: &[u16], at: usize, desc: RawDesc) {
        let following = chain.get(at + 1).copied().unwrap_or(GARBAGE);
        self.next[usize::from(chain[at])] = following;
        let next = if desc.flags & DESC_NEXT != 0 {
            following
        } else {
            GARBAGE
        };
        write_desc(&self.ram, self.addrs.desc, chain[at], desc, next);
    }

    /// Fills the indirect table of `head` and returns the descriptor that names it.
    fn write_table(&mut self, head: u16, descs: &[RawDesc]) -> RawDesc {
        let gpa = self.tables.get(&self.ram, head, descs.len());
        for (i, desc) in (0u16..).zip(descs) {
            let last = usize::from(i) + 1 == descs.len();
            let flags = desc.flags | if last { 0 } else { DESC_NEXT };
            let next = if last { GARBAGE } else { i + 1 };
            write_desc(&self.ram, gpa, i, RawDesc { flags, ..*desc }, next);
        }
        RawDesc {
            gpa: self.ram.device_address(gpa),
            len: 16 * descs.len() as u32,
            flags: DESC_INDIRECT,
        }
    }

    fn stage(&mut self, chain: &[u16], token: u64, writable: u64) {
        let head = chain[0];
        let slots = chain.len() as u16;
        let pending = Pending {
            token,
            writable,
            slots,
        };
        self.buffers.stage(head, pending);
        self.ram.store_u16(self.avail_slot(self.avail), head);
        self.avail = self.avail.wrapping_add(1);
    }

    pub(super) fn publish(&mut self) -> u16 {
        self.ram.store_u16(self.addrs.driver + 2, self.avail);
        let count = self.avail.wrapping_sub(self.published);
        self.published = self.avail;
        count
    }

    pub(super) fn needs_kick(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let (old, new) = (self.kicked, self.published);
        self.kicked = new;
        if !self.options.event_idx {
            return old != new && self.ram.load_u16(self.addrs.device) & NO_NOTIFY == 0;
        }
        let event = self.ram.load_u16(self.avail_event());
        // The device requests a notification at index `event`: is it among old..new?
        event.wrapping_sub(old) < new.wrapping_sub(old)
    }

    pub(super) fn used_waiting(&self) -> u16 {
        self.ram
            .load_u16(self.addrs.device + 2)
            .wrapping_sub(self.last_used)
    }

    pub(super) fn has_used(&self) -> bool {
        self.used_waiting() != 0
    }

    pub(super) fn poll(&mut self) -> Result<Option<Used>, UsedFault> {
        if let Some((id, len)) = self.buffers.order.step() {
            return self.finish(id, len).map(Some);
        }
        let ahead = self.used_waiting();
        if ahead == 0 {
            return Ok(None);
        }
        let outstanding = self.buffers.outstanding();
        if ahead > outstanding {
            return Err(UsedFault::Ahead { ahead, outstanding });
        }
        let elem = self.addrs.device + 4 + 8 * u64::from(self.last_used % self.options.size);
        let (raw, len) = (self.ram.load_u32(elem), self.ram.load_u32(elem + 4));
        let id = u16::try_from(raw).map_err(|_| UsedFault::UnknownId(raw))?;
        if !self.options.in_order {
            return self.finish(id, Some(len)).map(Some);
        }
        self.buffers.order.open(id, len, ahead)?;
        self.poll()
    }

    fn finish(&mut self, id: u16, len: Option<u32>) -> Result<Used, UsedFault> {
        let (used, slots) = self.buffers.finish(id, len)?;
        self.release(id, slots);
        Ok(used)
    }

    fn release(&mut self, id: u16, slots: u16) {
        let mut at = id;
        for _ in 0..slots {
            self.free.push_back(at);
            at = self.next[usize::from(at)];
        }
        self.last_used = self.last_used.wrapping_add(1);
    }

    pub(super) fn silence(&mut self) {
        if self.options.event_idx {
            self.ram
                .store_u16(self.used_event(), self.last_used.wrapping_sub(1));
        } else {
            self.ram.store_u16(self.addrs.driver, NO_INTERRUPT);
        }
    }

    pub(super) fn notify_after(&mut self, count: u16) -> bool {
        if self.options.event_idx {
            // An index names the element that is written there; the next one is at last_used.
            let event = self.last_used.wrapping_add(count).wrapping_sub(1);
            self.ram.store_u16(self.used_event(), event);
        }
        self.ram.store_u16(self.addrs.driver, 0);
        fence(Ordering::SeqCst);
        self.has_used()
    }

    pub(super) fn resume_base(&self) -> u32 {
        u32::from(self.ram.load_u16(self.addrs.device + 2))
    }

    pub(super) fn drained_base(&self) -> u32 {
        u32::from(self.published)
    }

    pub(super) fn avail_slot(&self, index: u16) -> u64 {
        self.addrs.driver + 4 + 2 * u64::from(index % self.options.size)
    }

    pub(super) fn used_event(&self) -> u64 {
        self.addrs.driver + 4 + 2 * u64::from(self.options.size)
    }

    pub(super) fn avail_event(&self) -> u64 {
        self.addrs.device + 4 + 8 * u64::from(self.options.size)
    }

    pub(super) fn desc(&self, index: u16) -> u64 {
        self.addrs.desc + 16 * u64::from(index)
    }
}

fn write_desc(ram: &GuestRam, table: u64, index: u16, desc: RawDesc, next: u16) {
    let full = SplitDesc {
        gpa: desc.gpa,
        len: desc.len,
        flags: desc.flags,
        next,
    };
    ram.write(table + 16 * u64::from(index), &full.to_bytes());
}
