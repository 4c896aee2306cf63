//! A device as simple as possible, for tests of drivers: one buffer at a time, straight from the
//! specification's text, no batching, no checks.

use std::sync::atomic::{Ordering, fence};

use crate::driver::{
    DESC_AVAIL, DESC_INDIRECT, DESC_NEXT, DESC_USED, DESC_WRITE, EVENT_DESC, EVENT_DISABLE,
    EVENT_ENABLE, Layout, Piece, QueueAddrs, QueueOptions,
};
use crate::guest_ram::GuestRam;

/// A buffer that the driver offered.
#[derive(Clone, Debug)]
pub struct ModelChain {
    /// Its ID, which goes into the used ring.
    pub id: u16,
    /// Number of ring entries that it takes.
    pub slots: u16,
    /// Pieces that the device reads.
    pub readable: Vec<Piece>,
    /// Pieces that the device writes.
    pub writable: Vec<Piece>,
}

impl ModelChain {
    fn add(&mut self, piece: Piece, flags: u16) {
        if flags & DESC_WRITE == 0 {
            assert!(self.writable.is_empty(), "readable behind writable");
            self.readable.push(piece);
        } else {
            self.writable.push(piece);
        }
    }

    /// Returns the bytes of the readable pieces.
    #[must_use]
    pub fn read(&self, ram: &GuestRam) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in &self.readable {
            ram.read_onto(piece.gpa, piece.len as usize, &mut out);
        }
        out
    }

    /// Writes as much of `bytes` as fits and returns how much that was.
    pub fn write(&self, ram: &GuestRam, bytes: &[u8]) -> usize {
        let mut done = 0;
        for piece in &self.writable {
            let n = (bytes.len() - done).min(piece.len as usize);
            ram.write(piece.gpa, &bytes[done..done + n]);
            done += n;
        }
        done
    }
}

/// The device's half of a queue. Positions are unwrapped counts: of buffers in a split ring, of
/// descriptors in a packed one.
#[derive(Debug)]
pub struct ModelDevice {
    /// Memory of the guest.
    pub ram: GuestRam,
    options: QueueOptions,
    addrs: QueueAddrs,
    avail: u64,
    used: u64,
    notified: u64,
}

impl ModelDevice {
    /// A device at the start of a queue.
    #[must_use]
    pub fn new(ram: GuestRam, options: QueueOptions, addrs: QueueAddrs) -> Self {
        Self {
            ram,
            options,
            addrs,
            avail: 0,
            used: 0,
            notified: 0,
        }
    }

    fn size(&self) -> u64 {
        u64::from(self.options.size)
    }

    fn wrap(&self, position: u64) -> bool {
        (position / self.size()).is_multiple_of(2)
    }

    fn desc(&self, slot: u64) -> u64 {
        self.addrs.desc + 16 * (slot % self.size())
    }

    /// Resumes at the base of SET_VRING_BASE.
    pub fn resume(&mut self, base: u32) {
        let unwrapped = |half: u32| {
            let lap = if half & 0x8000 == 0 { self.size() } else { 0 };
            u64::from(half & 0x7fff) + lap
        };
        (self.avail, self.used) = match self.options.layout {
            Layout::Split => (
                u64::from(base),
                u64::from(self.ram.load_u16(self.addrs.device + 2)),
            ),
            Layout::Packed => (unwrapped(base & 0xffff), unwrapped(base >> 16)),
        };
        self.notified = self.used;
    }

    /// Returns the base for GET_VRING_BASE.
    #[must_use]
    pub fn base(&self) -> u32 {
        if self.options.layout == Layout::Split {
            return self.avail as u16 as u32;
        }
        let half = |p: u64| (p % self.size()) as u32 | u32::from(self.wrap(p)) << 15;
        half(self.avail) | half(self.used) << 16
    }

    /// Takes the next buffer, if there is one.
    ///
    /// # Panics
    /// When the chain of descriptors is not one that the specification allows.
    pub fn pop(&mut self) -> Option<ModelChain> {
        match self.options.layout {
            Layout::Split => self.pop_split(),
            Layout::Packed => self.pop_packed(),
        }
    }

    fn pop_split(&mut self) -> Option<ModelChain> {
        if self.ram.load_u16(self.addrs.driver + 2) == self.avail as u16 {
            return None;
        }
        let head = self
            .ram
            .load_u16(self.addrs.driver + 4 + 2 * (self.avail % self.size()));
        self.avail += 1;
        let mut chain = ModelChain {
            id: head,
            slots: 1,
            readable: vec![],
            writable: vec![],
        };
        self.walk_split(self.addrs.desc, head, &mut chain);
        Some(chain)
    }

    fn walk_split(&self, table: u64, mut index: u16, chain: &mut ModelChain) {
        loop {
            let at = table + 16 * u64::from(index);
            let (gpa, len) = (self.ram.load_u64(at), self.ram.load_u32(at + 8));
            let (flags, next) = (self.ram.load_u16(at + 12), self.ram.load_u16(at + 14));
            if flags & DESC_INDIRECT != 0 {
                assert_eq!(flags & DESC_NEXT, 0);
                return self.walk_split(gpa, 0, chain);
            }
            chain.add(Piece::new(gpa, len), flags);
            if flags & DESC_NEXT == 0 {
                return;
            }
            index = next;
        }
    }

    fn pop_packed(&mut self) -> Option<ModelChain> {
        let flags = self.ram.load_u16(self.desc(self.avail) + 14);
        let wrap = self.wrap(self.avail);
        if (flags & DESC_AVAIL != 0) != wrap || (flags & DESC_USED != 0) == wrap {
            return None;
        }
        let mut chain = ModelChain {
            id: 0,
            slots: 0,
            readable: vec![],
            writable: vec![],
        };
        loop {
            let at = self.desc(self.avail);
            self.avail += 1;
            chain.slots += 1;
            chain.id = self.ram.load_u16(at + 12);
            let flags = self.ram.load_u16(at + 14);
            let (gpa, len) = (self.ram.load_u64(at), self.ram.load_u32(at + 8));
            if flags & DESC_INDIRECT != 0 {
                for entry in (gpa..gpa + u64::from(len)).step_by(16) {
                    let piece = Piece::new(self.ram.load_u64(entry), self.ram.load_u32(entry + 8));
                    chain.add(piece, self.ram.load_u16(entry + 14));
                }
            } else {
                chain.add(Piece::new(gpa, len), flags);
            }
            if flags & DESC_NEXT == 0 {
                return Some(chain);
            }
        }
    }

    /// Gives a buffer back, into which `len` bytes were written.
    pub fn push(&mut self, chain: &ModelChain, len: u32) {
        self.push_batch(std::slice::from_ref(chain), len);
    }

    /// Gives buffers back with one used element: a single one, or several in order (IN_ORDER).
    ///
    /// # Panics
    /// When there is no buffer.
    pub fn push_batch(&mut self, chains: &[ModelChain], len: u32) {
        let last = chains.last().expect("a buffer");
        match self.options.layout {
            Layout::Split => {
                let at = self.addrs.device + 4 + 8 * (self.used % self.size());
                self.ram.store_u32(at, u32::from(last.id));
                self.ram.store_u32(at + 4, len);
                self.used += chains.len() as u64;
                self.ram.store_u16(self.addrs.device + 2, self.used as u16);
            }
            Layout::Packed => {
                let at = self.desc(self.used);
                let lap = if self.wrap(self.used) {
                    DESC_AVAIL | DESC_USED
                } else {
                    0
                };
                let wrote = if len > 0 { DESC_WRITE } else { 0 };
                self.ram.store_u32(at + 8, len);
                self.ram.store_u16(at + 12, last.id);
                self.ram.store_u16(at + 14, lap | wrote);
                self.used += chains.iter().map(|c| u64::from(c.slots)).sum::<u64>();
            }
        }
    }

    /// Returns whether the driver requests a notification of buffers used since the last call.
    ///
    /// # Panics
    /// When the driver's event flags are none that the specification has.
    pub fn needs_notify(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let (old, new) = (self.notified, self.used);
        self.notified = new;
        let event = match (self.options.layout, self.options.event_idx) {
            (Layout::Split, false) => {
                return old != new && self.ram.load_u16(self.addrs.driver) & 1 == 0;
            }
            (Layout::Split, true) => {
                u64::from(self.ram.load_u16(self.addrs.driver + 4 + 2 * self.size()))
            }
            (Layout::Packed, _) => match self.ram.load_u16(self.addrs.driver + 2) {
                EVENT_ENABLE => return old != new,
                EVENT_DISABLE => return false,
                flags => {
                    assert!(flags == EVENT_DESC && self.options.event_idx);
                    let off = self.ram.load_u16(self.addrs.driver);
                    u64::from(off & 0x7fff) + if off & 0x8000 == 0 { self.size() } else { 0 }
                }
            },
        };
        let period = if self.options.layout == Layout::Split {
            1 << 16
        } else {
            2 * self.size()
        };
        (old..new).any(|p| p % period == event)
    }

    /// Asks for (at the next buffer) or declines kicks.
    pub fn want_kicks(&mut self, on: bool) {
        match self.options.layout {
            Layout::Split if self.options.event_idx => {
                let event = if on {
                    self.avail as u16
                } else {
                    (self.avail as u16).wrapping_sub(1)
                };
                self.ram
                    .store_u16(self.addrs.device + 4 + 8 * self.size(), event);
            }
            Layout::Split => self.ram.store_u16(self.addrs.device, u16::from(!on)),
            Layout::Packed if !on => self.ram.store_u16(self.addrs.device + 2, EVENT_DISABLE),
            Layout::Packed if self.options.event_idx => {
                let off =
                    (self.avail % self.size()) as u16 | u16::from(self.wrap(self.avail)) << 15;
                self.ram.store_u16(self.addrs.device, off);
                self.ram.store_u16(self.addrs.device + 2, EVENT_DESC);
            }
            Layout::Packed => self.ram.store_u16(self.addrs.device + 2, EVENT_ENABLE),
        }
        fence(Ordering::SeqCst);
    }
}
