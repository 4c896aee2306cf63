//! Both queue layouts against a driver that is sound until it writes anything anywhere: chains lie
//! in the guest's memory and within their bounds, no more is in flight than the queue holds, every
//! loop ends, a fault is permanent; and a correct driver never causes a fault, and gets each of its
//! buffers back once.
//!
//! With an IOMMU, rings, tables and buffers are scattered page by page, and the front end grants,
//! denies and revokes pages between and during batches. Nothing is touched that is not granted at
//! that moment: such an access ends the process (see `guarded`). A sound driver whose front end
//! answers at last gets all buffers back.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use mapping::Mapping;
use memory::GuestMemory;
use memory::Segment;
use memory::copy::Cursor;
use memory::iotlb::Access;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use virtio::queue::{
    Chain, Inflight, InflightRegion, MAX_CHAIN_BYTES, MAX_CHAIN_DESCRIPTORS, Queue, QueueFault,
};
use wire::virtio::features::Features;

use crate::guarded::PAGE;
use crate::guest::{DATA, DATA_LEN, DATA_PAGES, Guest, TABLES, TABLES_LEN, ranges};
use crate::iommu::Iommu;

/// Rounds in which a driver gets its buffers back when all is granted: each question of each chain
/// takes one.
const MOST_ROUNDS: usize = 200;

/// How the queue is made.
struct Setup {
    /// Its size; bit 7: the pages of a guest with an IOMMU are neighbours in memory, too.
    size: u8,
    /// Event index, in order, writable, logged, tracked, with an IOMMU, of which all is granted at
    /// first, whose front end answers after each step: bits 0 to 7.
    options: u8,
}

impl<'a> Arbitrary<'a> for Setup {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let [size, options] = u.arbitrary()?;
        Ok(Self { size, options })
    }
}

enum Step {
    /// The driver offers a sound chain: buffers, bytes of each, indirect.
    Add(u8, u16, bool),
    Take,
    Drain,
    Put(u8),
    Untake(u8),
    Publish,
    Kicks(bool),
    /// Makes the queue anew where it stood, or in a fresh guest.
    Restart(bool),
    /// Another snapshot of memory; bits of the regions that are gone.
    Memory(u8),
    /// The driver takes back what was used.
    Reap,
    /// Writes a descriptor: into the ring or a table, where, address, length, flags, link.
    Desc(bool, u8, u64, u32, u16, u16),
    /// Writes many descriptors alike, each linked to the next, from the start of the tables.
    Table(u16, u64, u32, u16),
    /// Writes a word into the driver's or the device's area.
    Word(u8, u16),
    /// Writes a word into the inflight region.
    Inflight(u8, u16),
    /// Takes in the wrong direction.
    TakeWrong,
    /// A queue of another layout, size or position.
    Misplace(u8, u16, u32),
    /// The front end answers questions.
    Answer(u8),
    /// The guest unmaps a page, by its number.
    Unmap(u8),
    /// It maps a page, which may move to other memory.
    Map(u8, bool),
    /// The front end revokes some bytes of a page and of those behind it, or everything.
    Invalidate(u8, u16),
    /// It grants a page unasked, with this access.
    Grant(u8, u8),
    /// Denials end.
    EndDenials,
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.arbitrary::<u8>()? % 28 {
            0 | 1 => Self::Add(u.arbitrary()?, u.arbitrary()?, u.arbitrary()?),
            2 | 3 => Self::Take,
            4 => Self::Drain,
            5 | 6 => Self::Put(u.arbitrary()?),
            7 => Self::Untake(u.arbitrary()?),
            8 => Self::Publish,
            9 => Self::Kicks(u.arbitrary()?),
            10 => Self::Restart(u.arbitrary()?),
            11 => Self::Memory(u.arbitrary()?),
            12 => Self::Reap,
            13 | 14 => Self::Desc(
                u.arbitrary()?,
                u.arbitrary()?,
                address(u)?,
                length(u)?,
                u.arbitrary()?,
                small(u)?,
            ),
            15 => Self::Table(u.arbitrary()?, address(u)?, length(u)?, u.arbitrary()?),
            16 => Self::Word(u.arbitrary()?, small(u)?),
            17 => Self::Inflight(u.arbitrary()?, small(u)?),
            18 => Self::TakeWrong,
            19 => Self::Misplace(u.arbitrary()?, u.arbitrary()?, u.arbitrary()?),
            20 | 21 => Self::Answer(u.arbitrary()?),
            22 => Self::Unmap(u.arbitrary()?),
            23 | 24 => Self::Map(u.arbitrary()?, u.arbitrary()?),
            25 => Self::Invalidate(u.arbitrary()?, u.arbitrary()?),
            26 => Self::Grant(u.arbitrary()?, u.arbitrary()?),
            _ => Self::EndDenials,
        })
    }
}

/// An address in the data, the tables, or anywhere.
fn address(u: &mut Unstructured<'_>) -> Result<u64> {
    let (kind, at) = (u.arbitrary::<u8>()?, u64::from(u.arbitrary::<u16>()?));
    Ok(match kind % 4 {
        0 => DATA + at % (2 * DATA_LEN + 16),
        1 => DATA + at % (DATA_PAGES * DATA_LEN + 16),
        2 => TABLES + at % (TABLES_LEN + 16),
        _ => u.arbitrary()?,
    })
}

/// A length of a few descriptors, of a buffer, or anything.
fn length(u: &mut Unstructured<'_>) -> Result<u32> {
    let (kind, n) = (u.arbitrary::<u8>()?, u32::from(u.arbitrary::<u16>()?));
    Ok(match kind % 4 {
        0 => 16 * (n % 1300),
        1 | 2 => n % (2 * DATA_LEN as u32 + 2),
        _ => n << 16 | n,
    })
}

/// A number near the sizes of queues, or any.
fn small(u: &mut Unstructured<'_>) -> Result<u16> {
    let n = u.arbitrary::<u8>()?;
    if n < 0xc0 {
        Ok(u16::from(n % 24))
    } else {
        u.arbitrary()
    }
}

/// A region of in-flight chains, with the descriptor to spoil it through.
struct Tracked {
    part: Inflight,
    window: Mapping,
}

impl Tracked {
    fn new(size: u16, packed: bool) -> Self {
        let len = Inflight::region_size(size, packed);
        let fd: OwnedFd = memfd_create("inflight", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&fd, len).expect("its size");
        let window = Mapping::shared(&fd, len, 0).expect("a mapping");
        let region = InflightRegion::over(Mapping::shared(&fd, len, 0).expect("a region"));
        let part = Inflight::new(Arc::new(region), 0, size, packed).expect("a part that fits");
        Self { part, window }
    }

    fn write(&self, at: u8, value: u16) {
        let at = usize::from(at) * 2 % self.window.len();
        // SAFETY: `at` is even and below the mapping's even length, and there is one thread.
        unsafe {
            self.window
                .as_ptr()
                .add(at)
                .cast::<u16>()
                .write_unaligned(value)
        };
    }
}

/// A chain that was taken, by the order of takes.
struct Held {
    chain: Chain,
    order: u64,
    segs: Vec<Segment>,
    /// It was taken to be written: the access that was looked up.
    writable: bool,
}

struct Rig {
    guest: Guest,
    queue: std::result::Result<Queue, QueueFault>,
    features: Features,
    packed: bool,
    writable: bool,
    size: u16,
    logged: bool,
    tracked: Option<Tracked>,
    held: Vec<Held>,
    order: u64,
    /// The youngest chain that was put.
    last_put: u64,
    /// The driver has done nothing wrong so far.
    sound: bool,
    /// The queue's position when it was last known.
    position: u32,
    /// With an IOMMU: chains were in use when the queue was made anew, and nothing tracked them.
    lost: bool,
    /// With an IOMMU, on scattered pages; all is granted at first.
    iommu: Option<(bool, bool)>,
    answers: bool,
}

/// Size, options, then steps.
pub(crate) fn run(data: &[u8], packed: bool) {
    let mut u = Unstructured::new(data);
    let Ok(setup) = Setup::arbitrary(&mut u) else {
        return;
    };
    let mut rig = Rig::new(&setup, packed);
    while !u.is_empty() {
        let Ok(step) = u.arbitrary() else {
            break;
        };
        rig.step(&step);
    }
    rig.finish();
}

impl Rig {
    fn new(setup: &Setup, packed: bool) -> Self {
        let mut features = Features::VERSION_1 | Features::RING_INDIRECT_DESC;
        features.set(Features::RING_PACKED, packed);
        features.set(Features::RING_EVENT_IDX, setup.options & 1 != 0);
        features.set(Features::IN_ORDER, setup.options & 2 != 0);
        let size = if packed {
            1 + u16::from(setup.size % 16)
        } else {
            1 << (setup.size % 5)
        };
        let (writable, logged) = (setup.options & 4 != 0, setup.options & 8 != 0);
        let tracked = (setup.options & 16 != 0).then(|| Tracked::new(size, packed));
        let granted = setup.options & 64 != 0;
        let iommu = (setup.options & 32 != 0).then_some((setup.size & 0x80 == 0, granted));
        let position = if packed { 0x8000_8000 } else { 0 };
        let mut rig = Self {
            guest: new_guest(size, packed, writable, logged, iommu),
            queue: Err(QueueFault::BadSize),
            features,
            packed,
            writable,
            size,
            logged,
            tracked,
            held: Vec::new(),
            order: 0,
            last_put: 0,
            sound: true,
            position,
            lost: false,
            iommu,
            answers: setup.options & 128 != 0,
        };
        rig.start(position);
        rig
    }

    fn first_position(&self) -> u32 {
        if self.packed { 0x8000_8000 } else { 0 }
    }

    /// Makes the queue; one in sound memory at a sound position must be to be had.
    fn start(&mut self, position: u32) {
        let (mem, layout) = (self.guest.memory(), self.guest.layout);
        self.held.clear();
        self.end_batch();
        self.last_put = self.order;
        self.queue = match &self.tracked {
            Some(t) => Queue::with_inflight(mem, layout, self.features, position, t.part.clone()),
            None => Queue::new(mem, layout, self.features, position),
        };
        if let Err(fault) = &self.queue {
            let waits = *fault == QueueFault::UnmappedRing && self.guest.lacks_rings();
            assert!(!self.sound || waits, "no queue for a sound driver: {fault}");
        }
    }

    /// No chain is in use any more, and nothing is staged.
    fn end_batch(&mut self) {
        self.guest.iommu.iter_mut().for_each(Iommu::end);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Add(count, len, indirect) => {
                self.guest.add(u16::from(count % 4) + 1, len, indirect)
            }
            Step::Take => drop(self.take(self.writable)),
            Step::Drain => self.drain(),
            Step::Put(which) => self.put(usize::from(which)),
            Step::Untake(count) => self.untake(usize::from(count % 4) + 1),
            Step::Publish => self.publish(),
            Step::Kicks(on) => {
                if let Ok(queue) = &mut self.queue {
                    let waiting = queue.set_kicks(on);
                    assert!(on || !waiting);
                }
            }
            Step::Restart(fresh) => self.restart(fresh),
            Step::Memory(gone) => self.set_memory(gone),
            Step::Reap => self.reap(),
            Step::Answer(_)
            | Step::Unmap(_)
            | Step::Map(..)
            | Step::Invalidate(..)
            | Step::Grant(..)
            | Step::EndDenials => {
                let mem = self.guest.mem.clone();
                if let Some(iommu) = &mut self.guest.iommu {
                    translate(iommu, &mem, step);
                }
            }
            _ => {
                self.sound = false;
                self.hostile(step);
            }
        }
        if self.answers {
            self.answer();
        }
        if let Ok(queue) = &self.queue {
            assert!(
                !self.sound || queue.fault().is_none(),
                "{:?}",
                queue.fault()
            );
        }
    }

    fn hostile(&mut self, step: &Step) {
        match *step {
            Step::Desc(table, at, addr, len, flags, link) => {
                let base = if table {
                    TABLES
                } else {
                    self.guest.layout.desc
                };
                // The flags that mean something, and the laps of a packed ring.
                self.guest
                    .set_desc(base + 16 * u64::from(at), addr, len, flags & 0x8087, link);
            }
            Step::Table(count, addr, len, flags) => {
                for at in 0..count % 1300 {
                    let gpa = TABLES + 16 * u64::from(at);
                    self.guest.set_desc(gpa, addr, len, flags & 7, at + 1);
                }
            }
            Step::Word(at, value) => {
                let layout = self.guest.layout;
                let area = if at & 0x80 == 0 {
                    layout.driver
                } else {
                    layout.device
                };
                self.guest.set16(area + 2 * u64::from(at & 0x7f), value);
            }
            Step::Inflight(at, value) => {
                if let Some(tracked) = &self.tracked {
                    tracked.write(at, value);
                }
            }
            Step::TakeWrong => drop(self.take(!self.writable)),
            Step::Misplace(which, by, position) => self.misplace(which, by, position),
            _ => {}
        }
    }

    fn misplace(&mut self, which: u8, by: u16, position: u32) {
        let layout = self.guest.layout;
        match which % 5 {
            0 => self.guest.layout.size = by,
            1 => self.guest.layout.desc += u64::from(by % 64) * 4,
            2 => self.guest.layout.driver += u64::from(by % 64),
            3 => self.guest.layout.device |= u64::from(by) << 48,
            _ => {}
        }
        self.start(position);
        self.guest.layout = layout;
        if which % 5 != 4 {
            self.start(self.first_position());
        }
    }

    /// Takes one chain; whether there was one.
    fn take(&mut self, writable: bool) -> bool {
        let Ok(queue) = &mut self.queue else {
            return false;
        };
        self.guest.iommu.iter_mut().for_each(Iommu::begin);
        let before = queue.fault();
        let mut segs = Vec::new();
        let taken = if writable {
            queue.take_writable(&mut segs)
        } else {
            queue.take_readable(&mut segs)
        };
        match taken {
            Ok(Some(chain)) => {
                assert!(before.is_none(), "a fault is permanent");
                self.check(&chain, &segs, writable);
                touch(&segs, writable);
                self.order += 1;
                self.held.push(Held {
                    chain,
                    order: self.order,
                    segs,
                    writable,
                });
                let slots: u32 = self
                    .held
                    .iter()
                    .map(|held| u32::from(held.chain.count))
                    .sum();
                assert!(
                    slots <= u32::from(self.size),
                    "more in flight than the queue holds"
                );
                true
            }
            Ok(None) => {
                assert!(segs.is_empty());
                false
            }
            Err(fault) => {
                assert!(segs.is_empty());
                assert_eq!(queue.fault(), Some(fault));
                assert!(before.is_none() || before == Some(fault));
                false
            }
        }
    }

    fn check(&self, chain: &Chain, segs: &[Segment], writable: bool) {
        let sum: u64 = segs.iter().map(|s| u64::from(s.len)).sum();
        assert_eq!(u64::from(chain.bytes), sum);
        assert_eq!((chain.segs.start, chain.segs.len as usize), (0, segs.len()));
        assert!(chain.bytes <= MAX_CHAIN_BYTES);
        assert!(chain.count > 0 && chain.count <= self.size && chain.id < self.size);
        if chain.bytes == 0 {
            // It is not granted. Those to the guest go back at once.
            assert!(self.guest.iommu.is_some() && segs.is_empty() && !writable);
            return;
        }
        // A buffer may lie in two regions, or in many pages.
        let most = 2 * MAX_CHAIN_DESCRIPTORS as usize;
        assert!(segs.len() <= most);
        for seg in segs {
            let place = self.guest.mem.translate(seg.gpa, seg.len).expect("mapped");
            assert_eq!(place.ptr, seg.ptr);
        }
        let Some(iommu) = &self.guest.iommu else {
            return;
        };
        let access = if writable {
            Access::WRITE
        } else {
            Access::READ
        };
        let permits = |seg: &Segment| iommu.permits(seg.gpa, seg.len, access);
        assert!(segs.iter().all(permits), "not granted");
        if self.sound && !iommu.is_stale() {
            assert_eq!(Some(ranges(segs)), self.guest.ranges(chain.id));
        }
    }

    fn drain(&mut self) {
        let mut taken = 0;
        while self.take(self.writable) {
            taken += 1;
            assert!(taken <= self.size, "an endless queue");
        }
    }

    fn put(&mut self, which: usize) {
        if self.held.is_empty() {
            return;
        }
        let held = self
            .held
            .remove(if self.features.contains(Features::IN_ORDER) {
                0
            } else {
                which % self.held.len()
            });
        self.last_put = self.last_put.max(held.order);
        if let Ok(queue) = &mut self.queue {
            let written = if self.writable {
                held.chain.bytes.min(which as u32 * 16)
            } else {
                0
            };
            touch(&held.segs, held.writable);
            queue.mark_written(&held.segs, written);
            queue.put(held.chain, written);
        }
    }

    /// The front end answers all questions as it should. Returns how many there were.
    fn answer(&mut self) -> usize {
        let mem = self.guest.mem.clone();
        let iommu = self.guest.iommu.as_mut();
        iommu.map_or(0, |iommu| iommu.answer(&mem, 0))
    }

    /// Gives the last chains back, of those that may be.
    fn untake(&mut self, count: usize) {
        let may = self
            .held
            .iter()
            .filter(|held| held.order > self.last_put)
            .count();
        let back = self.held.split_off(self.held.len() - count.min(may));
        let chains: Vec<Chain> = back.iter().map(|held| held.chain).collect();
        if let Ok(queue) = &mut self.queue {
            queue.untake(&chains);
        }
    }

    fn publish(&mut self) {
        if let Ok(queue) = &mut self.queue {
            queue.publish();
            let _ = queue.needs_notify();
            assert!(!queue.needs_notify(), "nothing was published since");
        }
        if self.held.is_empty() {
            self.end_batch();
        }
    }

    fn restart(&mut self, fresh: bool) {
        if let Ok(queue) = &self.queue {
            self.position = queue.position();
        }
        // Chains that were not published are taken again only where they are tracked.
        let in_use = self.guest.iommu.as_ref().is_some_and(Iommu::is_busy);
        self.lost |= in_use && self.tracked.is_none();
        if fresh {
            let (size, packed) = (self.size, self.packed);
            self.guest = new_guest(size, packed, self.writable, self.logged, self.iommu);
            self.tracked = self
                .tracked
                .as_ref()
                .map(|_| Tracked::new(self.size, self.packed));
            self.sound = true;
            self.lost = false;
            self.position = self.first_position();
        }
        self.start(self.position);
    }

    /// A snapshot without some regions; a sound one keeps all of them.
    fn set_memory(&mut self, gone: u8) {
        self.sound &= gone & 15 == 0;
        let mem = self.guest.snapshot(!gone);
        if let Ok(queue) = &mut self.queue {
            let result = queue.set_memory(mem);
            assert_eq!(result.err(), queue.fault());
        }
    }

    fn reap(&mut self) {
        let sensible = self.guest.reap();
        assert!(
            sensible || !self.sound,
            "a used element that was not in flight"
        );
    }

    /// The guest maps its rings, and the front end answers all questions: a sound driver gets its
    /// buffers back.
    fn settle(&mut self) {
        if self.guest.iommu.is_none() || !self.sound {
            return;
        }
        self.guest.map_rings();
        for _ in 0..MOST_ROUNDS {
            if self.queue.is_err() {
                self.restart(false);
            }
            self.drain();
            while !self.held.is_empty() {
                self.put(0);
            }
            self.publish();
            self.reap();
            if self.guest.is_idle() {
                return;
            }
            let asked = self.answer();
            if let Some(iommu) = self.guest.iommu.as_mut().filter(|_| asked == 0) {
                // A second has passed.
                iommu.writer.end_denials();
            }
        }
        assert!(self.lost, "buffers that do not come back");
    }

    fn finish(mut self) {
        self.settle();
        self.drain();
        while !self.held.is_empty() {
            self.put(0);
        }
        self.publish();
        self.reap();
        assert!(!self.take(self.writable) || !self.sound, "all was drained");
    }
}

fn new_guest(
    size: u16,
    packed: bool,
    writable: bool,
    logged: bool,
    iommu: Option<(bool, bool)>,
) -> Guest {
    let Some((scattered, granted)) = iommu else {
        return Guest::new(size, packed, writable, logged);
    };
    let mut guest = Guest::with_iommu(size, packed, writable, logged, scattered);
    if let Some(iommu) = guest.iommu.as_mut().filter(|_| granted) {
        iommu.grant_all(&guest.mem);
    }
    guest
}

/// Steps of the guest and its front end about translations.
fn translate(iommu: &mut Iommu, mem: &GuestMemory, step: &Step) {
    match *step {
        Step::Answer(how) => _ = iommu.answer(mem, how),
        Step::Unmap(page) => {
            let page = iommu.page(page);
            iommu.unmap(page);
        }
        Step::Map(page, moves) => {
            let page = iommu.page(page);
            // A driver that moves its rings while they are in use is not sound.
            let may = !Guest::is_ring(page) || !iommu.is_busy();
            iommu.map(page, moves && may);
        }
        Step::Invalidate(page, size) => {
            let start = if size == 0 {
                0
            } else {
                iommu.page(page) * PAGE
            };
            let size = if size == 0 { u64::MAX } else { size.into() };
            iommu.invalidate(start, size);
        }
        Step::Grant(page, access) => {
            let page = iommu.page(page);
            iommu.grant(mem, page, None, access % 3 + 1);
        }
        Step::EndDenials => iommu.writer.end_denials(),
        _ => {}
    }
}

/// Reads or writes the first bytes of a chain, as a copy would.
fn touch(segs: &[Segment], writable: bool) {
    let mut bytes = [0x5a; 256];
    // SAFETY: the segments were found mapped in regions that the rig keeps.
    let mut cursor = unsafe { Cursor::new(segs) };
    if writable {
        cursor.write(&bytes);
    } else {
        cursor.read(&mut bytes);
    }
}
