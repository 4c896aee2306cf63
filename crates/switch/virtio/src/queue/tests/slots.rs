//! Slot queues of both formats against a client in its plainest form, written from the formats'
//! definitions: it keeps indices as plain numbers and copies nothing.

mod faults;
mod flow;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use memory::{GuestMemory, Region, Segment};
use wire::virtio::features::Features;

use crate::queue::{Chain, ChainBatch, Fill, Layout, Limit, Queue, QueueFault, SlotFormat};

const RINGS: u64 = 1 << 32;
/// Region 2 of a memif client; the pool of a netmap client.
const POOL: u64 = 2 << 32;
const BUFFER: u32 = 256;
const BUFFERS: u32 = 64;
const POOL_LEN: u64 = (BUFFER * BUFFERS) as u64;

/// The three kinds of queues: netmap's do not depend on the direction.
const KINDS: [SlotFormat; 3] = [
    SlotFormat::Netmap,
    SlotFormat::Memif { to_client: false },
    SlotFormat::Memif { to_client: true },
];

/// Those that serve a direction.
fn kinds(to_client: bool) -> impl Iterator<Item = SlotFormat> {
    let fits = move |kind: &SlotFormat| {
        *kind == SlotFormat::Netmap || *kind == SlotFormat::Memif { to_client }
    };
    KINDS.into_iter().filter(fits)
}

/// A slot as the client writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    buffer: u32,
    len: u32,
    more: bool,
}

struct Client {
    mem: Arc<GuestMemory>,
    layout: Layout,
    kind: SlotFormat,
    head: u16,
}

impl Client {
    /// A client whose indices start at `start`.
    fn new(kind: SlotFormat, size: u16, start: u16) -> Self {
        let slots = 16 * u64::from(size);
        let region = |gpa, len: u64| Arc::new(Region::heap(gpa, len, gpa));
        let regions = vec![
            region(RINGS, (slots + 192).next_multiple_of(64)),
            region(POOL, POOL_LEN),
        ];
        let at = RINGS + slots;
        let mut client = Self {
            mem: Arc::new(GuestMemory::new(regions, None).expect("disjoint")),
            layout: Layout {
                size,
                desc: RINGS,
                driver: at,
                device: at + 128,
                slots: Some(kind),
            },
            kind,
            head: start,
        };
        match kind {
            SlotFormat::Netmap => client.set_parameters(0, POOL, BUFFER, BUFFERS),
            SlotFormat::Memif { .. } => client.write(at, 0x03e3_1f20u32.to_le_bytes()),
        }
        client.set16(client.layout.device, start);
        client.publish(start);
        client
    }

    fn set_parameters(&self, header: u16, pool: u64, size: u32, buffers: u32) {
        let at = self.layout.driver + 64;
        self.write(at, *b"LHSQ");
        self.write(at + 4, 1u16.to_le_bytes());
        self.write(at + 6, header.to_le_bytes());
        self.write(at + 8, pool.to_le_bytes());
        self.write(at + 16, size.to_le_bytes());
        self.write(at + 20, buffers.to_le_bytes());
    }

    fn queue(&self) -> Queue {
        self.try_queue().expect("a sound queue")
    }

    fn try_queue(&self) -> Result<Queue, QueueFault> {
        Queue::new(self.mem.clone(), self.layout, Features::VERSION_1, 0)
    }

    fn ptr(&self, gpa: u64, len: u32) -> *mut u8 {
        self.mem.translate(gpa, len).expect("mapped").ptr
    }

    fn write<const N: usize>(&self, gpa: u64, bytes: [u8; N]) {
        // SAFETY: `ptr` found N bytes mapped; nobody else uses them now.
        unsafe {
            self.ptr(gpa, N as u32)
                .cast::<[u8; N]>()
                .write_unaligned(bytes)
        };
    }

    fn read<const N: usize>(&self, gpa: u64) -> [u8; N] {
        // SAFETY: as in `write`.
        unsafe { self.ptr(gpa, N as u32).cast::<[u8; N]>().read_unaligned() }
    }

    fn field(&self, gpa: u64) -> &AtomicU16 {
        // SAFETY: `ptr` found the two bytes mapped; fields are aligned.
        unsafe { AtomicU16::from_ptr(self.ptr(gpa, 2).cast()) }
    }

    fn set16(&self, gpa: u64, value: u16) {
        self.field(gpa).store(value.to_le(), Ordering::Release);
    }

    fn get16(&self, gpa: u64) -> u16 {
        u16::from_le(self.field(gpa).load(Ordering::Acquire))
    }

    fn slot_at(&self, at: u16) -> u64 {
        self.layout.desc + 16 * u64::from(at % self.layout.size)
    }

    fn set_slot(&self, at: u16, slot: Slot) {
        let gpa = self.slot_at(at);
        if self.kind == SlotFormat::Netmap {
            let flags = if slot.more { 0x20u16 } else { 0 };
            self.write(gpa, slot.buffer.to_le_bytes());
            self.write(gpa + 4, (slot.len as u16).to_le_bytes());
            self.write(gpa + 6, flags.to_le_bytes());
        } else {
            self.write(gpa, u16::from(slot.more).to_le_bytes());
            self.write(gpa + 2, 2u16.to_le_bytes());
            self.write(gpa + 4, slot.len.to_le_bytes());
            self.write(gpa + 8, (slot.buffer * BUFFER).to_le_bytes());
        }
    }

    fn slot(&self, at: u16) -> Slot {
        let gpa = self.slot_at(at);
        let word = |at| u32::from_le_bytes(self.read(gpa + at));
        if self.kind == SlotFormat::Netmap {
            Slot {
                buffer: word(0),
                len: word(4) & 0xffff,
                more: word(4) >> 16 == 0x20,
            }
        } else {
            Slot {
                buffer: word(8) / BUFFER,
                len: word(4),
                more: word(0) & 1 != 0,
            }
        }
    }

    fn head_at(&self) -> u64 {
        let offset = if self.kind == SlotFormat::Netmap {
            0
        } else {
            6
        };
        self.layout.driver + offset
    }

    fn publish(&mut self, head: u16) {
        self.head = head;
        self.set16(self.head_at(), head);
    }

    /// Makes slots available, all at once.
    fn add(&mut self, slots: &[Slot]) {
        for (n, slot) in slots.iter().enumerate() {
            self.set_slot(self.head.wrapping_add(n as u16), *slot);
        }
        self.publish(self.head.wrapping_add(slots.len() as u16));
    }

    /// A frame of these lengths, in the buffers from `first` on.
    fn frame(first: u32, lens: &[u32]) -> Vec<Slot> {
        let slot = |(n, len): (usize, &u32)| Slot {
            buffer: first + n as u32,
            len: *len,
            more: n + 1 < lens.len(),
        };
        lens.iter().enumerate().map(slot).collect()
    }

    /// An empty buffer.
    fn empty(buffer: u32) -> Slot {
        Slot {
            buffer,
            len: BUFFER,
            more: false,
        }
    }

    fn tail(&self) -> u16 {
        self.get16(self.layout.device)
    }

    /// Asks for a call when `tail` passes `event` (netmap), or for calls (memif).
    fn want_call(&self, event: u16) {
        if self.kind == SlotFormat::Netmap {
            self.set16(self.layout.driver + 2, event);
        } else {
            self.set16(self.layout.driver + 4, 0);
        }
    }

    /// Returns whether the switch wants a kick for the slots from `before` to `head`.
    fn must_kick(&self, before: u16) -> bool {
        if self.kind == SlotFormat::Netmap {
            let event = self.get16(self.layout.device + 2);
            self.head.wrapping_sub(event).wrapping_sub(1) < self.head.wrapping_sub(before)
        } else {
            self.get16(self.layout.driver + 4) & 1 == 0
        }
    }
}

/// Returns the buffers of a chain: index and length.
fn buffers(client: &Client, chain: &Chain, segs: &[Segment]) -> Vec<(u32, u32)> {
    let pool = client.ptr(POOL, 1).addr();
    let place = |seg: &Segment| ((seg.ptr.addr() - pool) as u32 / BUFFER, seg.len);
    chain.segs.of(segs).iter().map(place).collect()
}

/// Takes everything that is available.
fn take_all(queue: &mut Queue, to_client: bool) -> Result<(Vec<Segment>, Vec<Chain>), QueueFault> {
    let (mut segs, mut chains) = (Vec::new(), Vec::new());
    let mut taken = ChainBatch {
        segs: &mut segs,
        chains: &mut chains,
    };
    let limit = Limit {
        chains: 4096,
        bytes: u64::MAX,
    };
    let result = if to_client {
        queue.take_all_writable(&mut taken, limit, |_| ())
    } else {
        queue.take_all_readable(&mut taken, limit, |_| ())
    };
    result.map(|()| (segs, chains))
}

/// A frame that is spread over the chains that it is given.
struct Spread {
    left: u32,
}

impl Fill for Spread {
    fn fill(&mut self, chain: &Chain) -> Option<u32> {
        let part = self.left.min(chain.bytes);
        self.left -= part;
        Some(part)
    }

    fn more(&self) -> bool {
        self.left > 0
    }
}
