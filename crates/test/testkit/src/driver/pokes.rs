//! Raw access to every ring field, for tests of what a device does with a hostile or broken driver.

use super::{DriverQueue, Ring, packed::PackedRing, split::SplitRing};
use crate::guest_ram::GuestRam;

/// A split descriptor, all fields (virtio 1.3 section 2.7.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitDesc {
    /// Guest-physical address.
    pub gpa: u64,
    /// Length in bytes.
    pub len: u32,
    /// `DESC_*`.
    pub flags: u16,
    /// Index of the next descriptor.
    pub next: u16,
}

impl SplitDesc {
    /// As it stands in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        desc_bytes(self.gpa, self.len, self.flags, self.next)
    }

    fn read(ram: &GuestRam, at: u64) -> Self {
        Self {
            gpa: ram.load_u64(at),
            len: ram.load_u32(at + 8),
            flags: ram.load_u16(at + 12),
            next: ram.load_u16(at + 14),
        }
    }
}

/// A packed descriptor, all fields (virtio 1.3 section 2.8.13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedDesc {
    /// Guest-physical address.
    pub gpa: u64,
    /// Length in bytes.
    pub len: u32,
    /// Buffer id.
    pub id: u16,
    /// `DESC_*`.
    pub flags: u16,
}

impl PackedDesc {
    /// As it stands in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        desc_bytes(self.gpa, self.len, self.id, self.flags)
    }

    fn read(ram: &GuestRam, at: u64) -> Self {
        let flags = ram.load_u16(at + 14);
        Self {
            gpa: ram.load_u64(at),
            len: ram.load_u32(at + 8),
            id: ram.load_u16(at + 12),
            flags,
        }
    }
}

fn desc_bytes(gpa: u64, len: u32, third: u16, fourth: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&gpa.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&third.to_le_bytes());
    bytes[14..].copy_from_slice(&fourth.to_le_bytes());
    bytes
}

/// Every function here panics when the queue has the other layout.
impl DriverQueue {
    fn split(&self) -> &SplitRing {
        match &self.ring {
            Ring::Split(ring) => ring,
            Ring::Packed(_) => panic!("a split ring's field, but the queue is packed"),
        }
    }

    fn packed(&self) -> &PackedRing {
        match &self.ring {
            Ring::Packed(ring) => ring,
            Ring::Split(_) => panic!("a packed ring's field, but the queue is split"),
        }
    }

    /// Overwrites entry `index` of a split descriptor table.
    pub fn poke_desc(&self, index: u16, desc: SplitDesc) {
        let ring = self.split();
        ring.ram.write(ring.desc(index), &desc.to_bytes());
    }

    /// Reads entry `index` of a split descriptor table.
    #[must_use]
    pub fn peek_desc(&self, index: u16) -> SplitDesc {
        let ring = self.split();
        SplitDesc::read(&ring.ram, ring.desc(index))
    }

    /// Overwrites the available index.
    pub fn poke_avail_idx(&self, value: u16) {
        self.split().ram.store_u16(self.addrs().driver + 2, value);
    }

    /// Reads the available index.
    #[must_use]
    pub fn peek_avail_idx(&self) -> u16 {
        self.split().ram.load_u16(self.addrs().driver + 2)
    }

    /// Overwrites the available ring's flags.
    pub fn poke_avail_flags(&self, value: u16) {
        self.split().ram.store_u16(self.addrs().driver, value);
    }

    /// Overwrites the available ring's element for `index` (modulo the size) with a head.
    pub fn poke_avail_ring(&self, index: u16, head: u16) {
        let ring = self.split();
        ring.ram.store_u16(ring.avail_slot(index), head);
    }

    /// Overwrites the used event index.
    pub fn poke_used_event(&self, value: u16) {
        let ring = self.split();
        ring.ram.store_u16(ring.used_event(), value);
    }

    /// Reads the used event index.
    #[must_use]
    pub fn peek_used_event(&self) -> u16 {
        let ring = self.split();
        ring.ram.load_u16(ring.used_event())
    }

    /// Overwrites the used ring's flags, which belong to the device.
    pub fn poke_used_flags(&self, value: u16) {
        self.split().ram.store_u16(self.addrs().device, value);
    }

    /// Reads the used ring's flags.
    #[must_use]
    pub fn peek_used_flags(&self) -> u16 {
        self.split().ram.load_u16(self.addrs().device)
    }

    /// Overwrites the used index, which belongs to the device.
    pub fn poke_used_idx(&self, value: u16) {
        self.split().ram.store_u16(self.addrs().device + 2, value);
    }

    /// Reads the used index.
    #[must_use]
    pub fn peek_used_idx(&self) -> u16 {
        self.split().ram.load_u16(self.addrs().device + 2)
    }

    /// Reads the used element for `index` (modulo the size): id and length.
    #[must_use]
    pub fn peek_used_ring(&self, index: u16) -> (u32, u32) {
        let ring = self.split();
        let at = self.addrs().device + 4 + 8 * u64::from(index % self.options.size);
        (ring.ram.load_u32(at), ring.ram.load_u32(at + 4))
    }

    /// Overwrites the used element for `index` (modulo the size).
    pub fn poke_used_ring(&self, index: u16, id: u32, len: u32) {
        let ring = self.split();
        let at = self.addrs().device + 4 + 8 * u64::from(index % self.options.size);
        ring.ram.store_u32(at, id);
        ring.ram.store_u32(at + 4, len);
    }

    /// Overwrites the available event index, which belongs to the device.
    pub fn poke_avail_event(&self, value: u16) {
        let ring = self.split();
        ring.ram.store_u16(ring.avail_event(), value);
    }

    /// Reads the available event index.
    #[must_use]
    pub fn peek_avail_event(&self) -> u16 {
        let ring = self.split();
        ring.ram.load_u16(ring.avail_event())
    }

    /// Overwrites a descriptor of a packed ring; its flags last.
    pub fn poke_packed(&self, slot: u16, desc: PackedDesc) {
        let ring = self.packed();
        let at = ring.desc(slot);
        ring.ram.write(at, &desc.to_bytes()[..14]);
        ring.ram.store_u16(at + 14, desc.flags);
    }

    /// Reads a descriptor of a packed ring.
    #[must_use]
    pub fn peek_packed(&self, slot: u16) -> PackedDesc {
        let ring = self.packed();
        PackedDesc::read(&ring.ram, ring.desc(slot))
    }

    /// Overwrites the driver event suppression structure.
    pub fn poke_driver_event(&self, off_wrap: u16, flags: u16) {
        poke_event(&self.packed().ram, self.addrs().driver, off_wrap, flags);
    }

    /// Reads the driver event suppression structure: `off_wrap` and flags.
    #[must_use]
    pub fn peek_driver_event(&self) -> (u16, u16) {
        peek_event(&self.packed().ram, self.addrs().driver)
    }

    /// Overwrites the device event suppression structure, which belongs to the device.
    pub fn poke_device_event(&self, off_wrap: u16, flags: u16) {
        poke_event(&self.packed().ram, self.addrs().device, off_wrap, flags);
    }

    /// Reads the device event suppression structure: `off_wrap` and flags.
    #[must_use]
    pub fn peek_device_event(&self) -> (u16, u16) {
        peek_event(&self.packed().ram, self.addrs().device)
    }
}

fn poke_event(ram: &GuestRam, at: u64, off_wrap: u16, flags: u16) {
    ram.store_u16(at, off_wrap);
    ram.store_u16(at + 2, flags);
}

fn peek_event(ram: &GuestRam, at: u64) -> (u16, u16) {
    (ram.load_u16(at), ram.load_u16(at + 2))
}
