//! A NIC over slot queues: the client's half of both formats, over guest memory in this process.
//!
//! Written from netmap's and memif's definitions (`net/netmap.h`; DPDK 22.11,
//! `drivers/net/memif/memif.h`), with Lasthop's index lines for netmap: see
//! `crates/switch/virtio/src/queue/slots`. It uses nothing of them. Buffer *n* of a ring belongs to
//! its slot *n*, and frames are copied.

use std::sync::atomic::{Ordering, fence};

use crate::driver::QueueAddrs;
use crate::guest_ram::{GuestRam, RegionSpec};
use crate::net::{HEADER_LEN, NetHeader};

const LINE: u64 = 64;
/// `NS_MOREFRAG` of netmap.
const NETMAP_MORE: u32 = 0x20;
/// `MEMIF_DESC_FLAG_NEXT`.
const MEMIF_MORE: u32 = 1;
const MEMIF_COOKIE: u32 = 0x03e3_1f20;
/// Guest-physical address of the client's only region: region 1 of a memif client.
pub const BASE: u64 = 1 << 32;

/// The format of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotFormat {
    /// netmap, with a header of 0, 10 or 12 bytes before each frame.
    Netmap {
        /// Bytes of the header.
        header: u16,
    },
    /// memif, without headers.
    Memif,
}

/// Parameters of a NIC.
#[derive(Clone, Copy, Debug)]
pub struct SlotOptions {
    /// The format.
    pub format: SlotFormat,
    /// Slots of each ring, a power of two.
    pub size: u16,
    /// Bytes of each buffer.
    pub buffer: u32,
    /// Most bytes of a frame that the client puts in one slot; at most `buffer`.
    pub piece: u32,
}

impl SlotOptions {
    /// Buffers of 2048 bytes that are filled.
    #[must_use]
    pub fn new(format: SlotFormat, size: u16) -> Self {
        Self {
            format,
            size,
            buffer: 2048,
            piece: 2048,
        }
    }

    fn header(&self) -> usize {
        match self.format {
            SlotFormat::Netmap { header } => header.into(),
            SlotFormat::Memif => 0,
        }
    }

    /// The region that a NIC with these options needs.
    #[must_use]
    pub fn region(&self) -> RegionSpec {
        let ring = 16 * u64::from(self.size) + 4 * LINE;
        let buffers = u64::from(self.size) * u64::from(self.buffer);
        RegionSpec::at(BASE, 2 * (ring + buffers) + (3 << 20))
    }
}

/// One ring: the client's half.
#[derive(Debug)]
pub struct SlotRing {
    ram: GuestRam,
    options: SlotOptions,
    addrs: QueueAddrs,
    /// Guest-physical address of buffer 0.
    buffers: u64,
    /// Slots given to the switch so far.
    head: u16,
    /// Of those, the ones that are visible to it.
    published: u16,
    /// The switch's index up to which slots were taken back.
    seen: u16,
}

impl SlotRing {
    fn new(ram: &GuestRam, options: SlotOptions) -> Self {
        let n = u64::from(options.size);
        let start = ram.alloc(16 * n + 4 * LINE, LINE);
        let buffers = ram.alloc(n * u64::from(options.buffer), 4096);
        let addrs = match options.format {
            SlotFormat::Netmap { .. } => QueueAddrs {
                driver: start,
                device: start + 2 * LINE,
                desc: start + 3 * LINE,
            },
            SlotFormat::Memif => QueueAddrs {
                driver: start,
                device: start + LINE,
                desc: start + 2 * LINE,
            },
        };
        let ring = Self {
            ram: ram.clone(),
            options,
            addrs,
            buffers,
            head: 0,
            published: 0,
            seen: 0,
        };
        match options.format {
            SlotFormat::Netmap { header } => ring.set_parameters(header),
            SlotFormat::Memif => ring.ram.store_u32(start, MEMIF_COOKIE),
        }
        (0..options.size).for_each(|n| ring.name_buffer(n));
        ring
    }

    /// Writes the line that the switch reads when it starts the queue.
    fn set_parameters(&self, header: u16) {
        let at = self.addrs.driver + LINE;
        self.ram.write(at, b"LHSQ");
        self.ram.store_u16(at + 4, 1);
        self.ram.store_u16(at + 6, header);
        self.ram.write(at + 8, &self.buffers.to_le_bytes());
        self.ram.store_u32(at + 16, self.options.buffer);
        self.ram.store_u32(at + 20, self.options.size.into());
        self.ram.write(at + 24, b"testkit\0");
    }

    /// Writes the fields of a slot that never change.
    fn name_buffer(&self, n: u16) {
        match self.options.format {
            SlotFormat::Netmap { .. } => self.ram.store_u32(self.slot(n), n.into()),
            SlotFormat::Memif => {
                let offset = self.buffer(n) - BASE;
                self.ram.store_u16(self.slot(n) + 2, 1);
                self.ram.store_u32(self.slot(n) + 8, offset as u32);
            }
        }
    }

    /// The areas of the ring.
    #[must_use]
    pub fn addrs(&self) -> QueueAddrs {
        self.addrs
    }

    fn slot(&self, at: u16) -> u64 {
        self.addrs.desc + 16 * u64::from(at % self.options.size)
    }

    fn buffer(&self, at: u16) -> u64 {
        self.buffers + u64::from(at % self.options.size) * u64::from(self.options.buffer)
    }

    /// Slots that the client may give away. netmap's clients keep one.
    fn free(&self) -> u16 {
        let kept = u16::from(self.options.format != SlotFormat::Memif);
        let given = self.head.wrapping_sub(self.seen);
        (self.options.size - kept).saturating_sub(given)
    }

    fn set(&self, at: u16, len: u32, more: bool) {
        let slot = self.slot(at);
        match self.options.format {
            SlotFormat::Netmap { .. } => {
                let flags = if more { NETMAP_MORE } else { 0 };
                self.ram.store_u32(slot + 4, len | flags << 16);
            }
            SlotFormat::Memif => {
                self.ram.store_u16(slot, u16::from(more));
                self.ram.store_u32(slot + 4, len);
            }
        }
    }

    fn get(&self, at: u16) -> (u32, bool) {
        let slot = self.slot(at);
        match self.options.format {
            SlotFormat::Netmap { .. } => {
                let word = self.ram.load_u32(slot + 4);
                (word & 0xffff, word >> 16 & NETMAP_MORE != 0)
            }
            SlotFormat::Memif => {
                let flags = u32::from(self.ram.load_u16(slot));
                (self.ram.load_u32(slot + 4), flags & MEMIF_MORE != 0)
            }
        }
    }

    /// Stages a slot with any contents: offset of the buffer from the first one in units of 64
    /// bytes, length, whether the frame continues. Nothing is checked.
    pub fn give_raw(&mut self, offset: u32, len: u32, more: bool) {
        let slot = self.slot(self.head);
        match self.options.format {
            SlotFormat::Netmap { .. } => self.ram.store_u32(slot, offset),
            SlotFormat::Memif => {
                let start = (self.buffers - BASE) as u32;
                let at = start.wrapping_add(offset.wrapping_mul(64));
                self.ram.store_u32(slot + 8, at);
            }
        }
        self.set(self.head, len, more);
        self.head = self.head.wrapping_add(1);
    }

    /// Makes all slots given away visible to the switch.
    pub fn publish(&mut self) {
        let offset = if self.options.format == SlotFormat::Memif {
            6
        } else {
            0
        };
        self.published = self.head;
        self.ram.store_u16(self.addrs.driver + offset, self.head);
    }

    /// Returns whether the switch is done with all slots.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tail() == self.head
    }

    fn tail(&self) -> u16 {
        self.ram.load_u16(self.addrs.device)
    }

    /// Asks for a call when the switch is done with one more slot.
    pub fn want_call(&self) {
        match self.options.format {
            SlotFormat::Netmap { .. } => self.ram.store_u16(self.addrs.driver + 2, self.tail()),
            SlotFormat::Memif => self.ram.store_u16(self.addrs.driver + 4, 0),
        }
        fence(Ordering::SeqCst);
    }
}

/// A frame as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotFrame {
    /// Bytes from the Ethernet header on.
    pub frame: Vec<u8>,
    /// The header; zeros without one.
    pub header: NetHeader,
    /// Slots that the frame took.
    pub slots: u16,
}

/// A ring pair with its buffers.
#[derive(Debug)]
pub struct SlotNic {
    /// Frames to the switch.
    pub tx: SlotRing,
    /// Frames from the switch.
    pub rx: SlotRing,
    options: SlotOptions,
}

impl SlotNic {
    /// Creates a NIC in the memory of [`SlotOptions::region`], with all receive buffers given away.
    #[must_use]
    pub fn new(ram: &GuestRam, options: SlotOptions) -> Self {
        let mut nic = Self {
            tx: SlotRing::new(ram, options),
            rx: SlotRing::new(ram, options),
            options,
        };
        nic.offer();
        nic
    }

    /// Returns whether frames have a header.
    #[must_use]
    pub fn has_header(&self) -> bool {
        self.options.header() > 0
    }

    /// Gives all free receive buffers to the switch.
    pub fn offer(&mut self) {
        let rx = &mut self.rx;
        for _ in 0..rx.free() {
            rx.set(rx.head, self.options.buffer, false);
            rx.head = rx.head.wrapping_add(1);
        }
        rx.publish();
    }

    /// Stages a frame; false when the ring has no room. Nothing is visible before
    /// [`SlotRing::publish`].
    pub fn stage(&mut self, frame: &[u8], header: &NetHeader) -> bool {
        self.tx.seen = self.tx.tail();
        let header = &header.to_bytes()[..self.options.header().min(HEADER_LEN)];
        let len = header.len() + frame.len();
        let piece = self.options.piece.min(self.options.buffer) as usize;
        let slots = len.div_ceil(piece).max(1);
        if slots > usize::from(self.tx.free()) {
            return false;
        }
        if slots == 1 {
            let gpa = self.tx.buffer(self.tx.head);
            self.tx.ram.write(gpa, header);
            self.tx.ram.write(gpa + header.len() as u64, frame);
            self.give(len as u32, false);
            return true;
        }
        let bytes = [header, frame].concat();
        for (n, part) in bytes.chunks(piece).enumerate() {
            self.tx.ram.write(self.tx.buffer(self.tx.head), part);
            self.give(part.len() as u32, n + 1 < slots);
        }
        true
    }

    fn give(&mut self, len: u32, more: bool) {
        self.tx.set(self.tx.head, len, more);
        self.tx.head = self.tx.head.wrapping_add(1);
    }

    /// Takes the next frame; its slots go back with [`SlotNic::offer`].
    ///
    /// # Panics
    /// When the switch broke a rule of the ring: an index outside its window, an incomplete frame,
    /// a slot longer than its buffer.
    pub fn receive(&mut self) -> Option<SlotFrame> {
        let mut bytes = Vec::new();
        let slots = self.receive_into(&mut bytes)?;
        let len = self.options.header();
        let mut header = [0; HEADER_LEN];
        header[..len].copy_from_slice(&bytes[..len]);
        Some(SlotFrame {
            frame: bytes.split_off(len),
            header: NetHeader::from_bytes(header),
            slots,
        })
    }

    /// As [`SlotNic::receive`], with header and frame in the caller's buffer, which is cleared
    /// first. Returns the number of slots.
    ///
    /// # Panics
    /// As [`SlotNic::receive`].
    pub fn receive_into(&mut self, bytes: &mut Vec<u8>) -> Option<u16> {
        bytes.clear();
        let rx = &mut self.rx;
        let done = rx.tail().wrapping_sub(rx.seen);
        assert!(done <= rx.published.wrapping_sub(rx.seen), "a tail beyond");
        if done == 0 {
            return None;
        }
        for n in 1..=done {
            let at = rx.seen;
            let (len, more) = rx.get(at);
            assert!(len <= self.options.buffer, "{len} bytes in a buffer");
            rx.ram.read_onto(rx.buffer(at), len as usize, bytes);
            rx.seen = at.wrapping_add(1);
            if !more {
                return Some(n);
            }
            assert_eq!(len, self.options.buffer, "a part that is not full");
        }
        panic!("an incomplete frame is visible");
    }
}
