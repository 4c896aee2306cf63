//! Slot queues of both formats against a client that is sound until it writes anything anywhere:
//! buffers lie in its memory and within their bounds, no more slots are taken than the ring has,
//! every loop ends, a fault is permanent; and a sound client never causes a fault.

use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use memory::{GuestMemory, Segment};
use testkit::guest_ram::GuestRam;
use testkit::net::NetHeader;
use testkit::slots::{self, SlotNic, SlotOptions};
use virtio::queue::{
    Chain, ChainBatch, Fill, Layout, Limit, MAX_CHAIN_BYTES, MAX_SLOTS_PER_FRAME, Queue, SlotFormat,
};
use wire::virtio::features::Features;

const SIZE: u16 = 8;
const BUFFER: u32 = 256;

enum Step {
    /// The client sends a sound frame of this length, or gives buffers back.
    Sound(u16),
    /// Writes bytes into a slot: which, where, and what.
    Slot(u8, u8, u32),
    /// Writes a word into the lines of indices and parameters.
    Line(u8, u16),
    Take,
    Put(u8),
    Untake,
    Publish,
    Kicks(bool),
    Threshold(u16),
    /// Sets the same memory again.
    Memory,
    /// Makes the queue anew.
    Again,
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.arbitrary::<u8>()? % 16 {
            0..=3 => Self::Sound(u.arbitrary::<u16>()? % 1200),
            4 | 5 => Self::Slot(u.arbitrary()?, u.arbitrary()?, u.arbitrary()?),
            6 => Self::Line(u.arbitrary()?, u.arbitrary()?),
            7 | 8 => Self::Take,
            9 | 10 => Self::Put(u.arbitrary()?),
            11 => Self::Untake,
            12 => Self::Publish,
            13 => Self::Kicks(u.arbitrary()?),
            14 => Self::Threshold(u.arbitrary()?),
            _ if u.arbitrary()? => Self::Memory,
            _ => Self::Again,
        })
    }
}

/// A frame over the chains that it is given.
struct Spread(u32);

impl Fill for Spread {
    fn fill(&mut self, chain: &Chain) -> Option<u32> {
        let part = self.0.min(chain.bytes);
        self.0 -= part;
        Some(part)
    }

    fn more(&self) -> bool {
        self.0 > 0
    }
}

struct World {
    nic: SlotNic,
    ram: GuestRam,
    mem: Arc<GuestMemory>,
    layout: Layout,
    to_client: bool,
    queue: Queue,
    /// Taken and not returned.
    held: Vec<Chain>,
    /// The client has written something unsound.
    spoilt: bool,
    /// A process died: memif's buffers may have less room than before.
    died: bool,
}

/// A byte of options, then steps.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(options) = u.arbitrary::<u8>() else {
        return;
    };
    let mut world = World::new(options);
    while !u.is_empty() {
        let Ok(step) = u.arbitrary() else { return };
        if !world.step(step) {
            return;
        }
    }
}

impl World {
    /// Bit 0: memif, bit 1: to the client, bits 2 and 3: the header of netmap.
    fn new(options: u8) -> Self {
        let to_client = options & 2 != 0;
        let header = [0, 10, 12, 12][usize::from(options >> 2 & 3)];
        let (theirs, ours) = if options & 1 != 0 {
            (slots::SlotFormat::Memif, SlotFormat::Memif { to_client })
        } else {
            (slots::SlotFormat::Netmap { header }, SlotFormat::Netmap)
        };
        let options = SlotOptions {
            buffer: BUFFER,
            piece: BUFFER,
            ..SlotOptions::new(theirs, SIZE)
        };
        let ram = GuestRam::heap(&[options.region()]);
        let nic = SlotNic::new(&ram, options);
        let addrs = if to_client { &nic.rx } else { &nic.tx }.addrs();
        let layout = Layout {
            size: SIZE,
            desc: addrs.desc,
            driver: addrs.driver,
            device: addrs.device,
            slots: Some(ours),
        };
        let mem = ram.memory();
        let queue = Queue::new(Arc::clone(&mem), layout, Features::VERSION_1, 0);
        Self {
            nic,
            ram,
            mem,
            layout,
            to_client,
            queue: queue.expect("a sound client"),
            held: Vec::new(),
            spoilt: false,
            died: false,
        }
    }

    /// Returns whether the run continues.
    fn step(&mut self, step: Step) -> bool {
        match step {
            Step::Sound(len) => self.act_soundly(len),
            Step::Slot(slot, at, value) => {
                self.spoilt = true;
                let at = u64::from(slot % SIZE as u8) * 16 + u64::from(at % 13);
                self.ram.write(self.layout.desc + at, &value.to_le_bytes());
            }
            Step::Line(at, value) => {
                self.spoilt = true;
                let line = if at & 1 == 0 {
                    self.layout.driver
                } else {
                    self.layout.device
                };
                let room = if at & 1 == 0 { 60 } else { 2 };
                self.ram
                    .store_u16(line + 2 * u64::from(at / 2 % room), value);
            }
            Step::Take => self.take(),
            Step::Put(count) => self.put(count.into()),
            Step::Untake => {
                self.queue.untake(&self.held);
                self.held.clear();
            }
            Step::Publish => {
                self.queue.publish();
                let wants = self.queue.wants_notify();
                assert_eq!(self.queue.needs_notify(), wants);
            }
            Step::Kicks(on) => {
                self.queue.set_kicks(on);
            }
            Step::Threshold(slots) => {
                self.queue.set_kick_threshold(slots);
            }
            Step::Memory => {
                let set = self.queue.set_memory(Arc::clone(&self.mem));
                assert_eq!(set.err(), self.queue.fault());
            }
            Step::Again => return self.restart(),
        }
        if let Some(fault) = self.queue.fault() {
            assert!(self.spoilt, "a sound client gets {fault}");
            self.check_fault();
            return false;
        }
        true
    }

    fn act_soundly(&mut self, len: u16) {
        if self.to_client {
            if !self.spoilt && !self.died {
                while self.nic.receive().is_some() {}
            }
            self.nic.offer();
        } else if self.nic.stage(&vec![7; len.into()], &NetHeader::default()) {
            self.nic.tx.publish();
        }
    }

    fn take(&mut self) {
        let (mut segs, mut chains) = (Vec::new(), Vec::new());
        let mut taken = ChainBatch {
            segs: &mut segs,
            chains: &mut chains,
        };
        let limit = Limit {
            chains: 64,
            bytes: u64::MAX,
        };
        let result = if self.to_client {
            self.queue.take_all_writable(&mut taken, limit, |_| ())
        } else {
            self.queue.take_all_readable(&mut taken, limit, |_| ())
        };
        assert_eq!(result.err(), self.queue.fault());
        self.check_chains(&segs, &chains);
        self.held.extend(chains);
        let slots: u32 = self.held.iter().map(|chain| u32::from(chain.count)).sum();
        assert!(slots <= u32::from(SIZE), "more slots than the ring has");
    }

    fn check_chains(&self, segs: &[Segment], chains: &[Chain]) {
        for seg in segs {
            let inside = self.mem.translate(seg.gpa, seg.len).expect("its memory");
            assert_eq!(inside.ptr, seg.ptr);
        }
        for chain in chains {
            let bytes: u32 = chain.segs.of(segs).iter().map(|seg| seg.len).sum();
            assert_eq!(bytes, chain.bytes);
            assert!(bytes <= MAX_CHAIN_BYTES);
            assert!((1..=MAX_SLOTS_PER_FRAME).contains(&chain.count));
            assert!(!self.to_client || chain.count == 1);
        }
    }

    fn put(&mut self, count: usize) {
        let done: Vec<_> = self.held.drain(..count.min(self.held.len())).collect();
        if self.to_client {
            let bytes: u32 = done.iter().map(|chain| chain.bytes).sum();
            let (filled, _) = self.queue.put_filled(&done, Spread(bytes.max(1) - 1));
            let expected = if self.queue.fault().is_some() {
                0
            } else {
                done.len()
            };
            assert_eq!(filled, expected);
        } else {
            self.queue.put_read(&done);
        }
    }

    /// A process that died, and its successor.
    fn restart(&mut self) -> bool {
        (self.died, self.held) = (true, Vec::new());
        let features = Features::VERSION_1;
        match Queue::resume(Arc::clone(&self.mem), self.layout, features, 0, None) {
            Ok(queue) => {
                self.queue = queue;
                true
            }
            Err(fault) => {
                assert!(self.spoilt, "a sound client gets {fault}");
                false
            }
        }
    }

    /// A queue with a fault does nothing any more.
    fn check_fault(&mut self) {
        let fault = self.queue.fault();
        let tail = self.ram.load_u16(self.layout.device);
        self.take();
        self.put(1);
        self.queue.publish();
        assert!(!self.queue.needs_notify() && !self.queue.set_kicks(true));
        assert_eq!(self.queue.fault(), fault);
        assert_eq!(self.ram.load_u16(self.layout.device), tail);
    }
}
