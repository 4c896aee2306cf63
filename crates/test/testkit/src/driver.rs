//! The driver's half of a virtqueue, split (virtio 1.3 section 2.7) or packed (2.8).
//!
//! ```text
//!            add            publish           (device)           poll
//!  free  ---------> staged ---------> available ------> used ---------> free
//! ```
//! `add` writes descriptors that the device cannot see yet, `publish` shows all of them at once,
//! `poll` takes one buffer back and checks what the device wrote. Fields that the specification
//! reserves are filled with garbage, so that a device which looks at them is found out. The
//! `poke_*` functions write ring fields as a hostile driver would; they do not change what the
//! driver believes.

use crate::guest_ram::GuestRam;

mod buffers;
mod packed;
mod pokes;
mod split;

#[cfg(test)]
mod tests;

pub use pokes::{PackedDesc, SplitDesc};

use packed::PackedRing;
use split::SplitRing;

/// Descriptor flag: the chain continues.
pub const DESC_NEXT: u16 = 1;
/// Descriptor flag: the device writes this buffer.
pub const DESC_WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub const DESC_INDIRECT: u16 = 4;
/// Packed descriptor flag: available, when equal to the driver's wrap counter.
pub const DESC_AVAIL: u16 = 1 << 7;
/// Packed descriptor flag: used, when equal to the device's wrap counter and to AVAIL.
pub const DESC_USED: u16 = 1 << 15;

/// Packed event flags: notify always.
pub const EVENT_ENABLE: u16 = 0;
/// Packed event flags: notify never.
pub const EVENT_DISABLE: u16 = 1;
/// Packed event flags: notify when a descriptor position is reached.
pub const EVENT_DESC: u16 = 2;

/// The two layouts of a virtqueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Descriptor table, available ring, used ring (virtio 1.3 section 2.7).
    #[default]
    Split,
    /// One descriptor ring (section 2.8).
    Packed,
}

/// Parameters of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// Split or packed.
    pub layout: Layout,
    /// Entries; a power of two for a split ring.
    pub size: u16,
    /// VIRTIO_F_EVENT_IDX was negotiated.
    pub event_idx: bool,
    /// VIRTIO_F_IN_ORDER was negotiated.
    pub in_order: bool,
}

impl QueueOptions {
    /// Options without event index and in-order use.
    #[must_use]
    pub fn new(layout: Layout, size: u16) -> Self {
        Self {
            layout,
            size,
            event_idx: false,
            in_order: false,
        }
    }
}

/// The driver's addresses of the three areas of a queue: guest-physical ones without an IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueAddrs {
    /// Descriptor table or descriptor ring.
    pub desc: u64,
    /// Available ring or driver event suppression.
    pub driver: u64,
    /// Used ring or device event suppression.
    pub device: u64,
}

/// A part of a buffer that is contiguous for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The device's address: guest-physical without an IOMMU.
    pub gpa: u64,
    /// Length in bytes.
    pub len: u32,
}

impl Piece {
    /// A piece at `gpa`.
    #[must_use]
    pub fn new(gpa: u64, len: u32) -> Self {
        Self { gpa, len }
    }
}

/// How a buffer's pieces become descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// One ring descriptor a piece.
    #[default]
    Direct,
    /// All pieces in an indirect table.
    Indirect,
    /// This many ring descriptors, then one that points to a table with the rest: legal in a split
    /// ring (section 2.7.5.3.2), though no driver does it. A packed ring takes it as `Indirect`.
    Mixed(usize),
}

/// A descriptor for [`DriverQueue::add_raw`]: its fields as they will stand in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawDesc {
    /// Address.
    pub gpa: u64,
    /// Length.
    pub len: u32,
    /// Flags; a packed ring adds AVAIL and USED.
    pub flags: u16,
}

/// A buffer that the device gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Head index (split) or buffer id (packed).
    pub id: u16,
    /// Value that the caller passed to `add`.
    pub token: u64,
    /// Bytes the device wrote.
    pub len: u32,
    /// No used element was written for this buffer: it was skipped by an in-order batch, so `len`
    /// is all of its writable bytes.
    pub implied: bool,
}

/// Violations of a device in a used ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsedFault {
    /// The used element names no buffer that is with the device.
    #[error("used element names buffer {0}, which is not with the device")]
    UnknownId(u32),
    /// More bytes written than the buffer has room for.
    #[error("used element says {len} bytes written, the buffer holds {writable}")]
    TooLong {
        /// Bytes according to the device.
        len: u32,
        /// Writable bytes of the buffer.
        writable: u64,
    },
    /// The used index is further ahead than there are buffers with the device.
    #[error("used index is {ahead} ahead with {outstanding} buffers with the device")]
    Ahead {
        /// Elements between the driver's position and the used index.
        ahead: u16,
        /// Buffers with the device.
        outstanding: u16,
    },
    /// An in-order batch ends behind the used index.
    #[error("an in-order batch of {batch} buffers, but the used index moved by {ahead}")]
    ShortBatch {
        /// Buffers up to the one named.
        batch: u16,
        /// Elements between the driver's position and the used index.
        ahead: u16,
    },
    /// Bytes written to a buffer that has no writable ones.
    #[error("used element of a buffer without writable bytes says {0} bytes written")]
    WroteReadOnly(u32),
}

/// Descriptors as they go into a ring or an indirect table: readable pieces first.
fn flagged<'a>(readable: &'a [Piece], writable: &'a [Piece]) -> impl Iterator<Item = RawDesc> + 'a {
    let raw = |flags| {
        move |p: &Piece| RawDesc {
            gpa: p.gpa,
            len: p.len,
            flags,
        }
    };
    readable
        .iter()
        .map(raw(0))
        .chain(writable.iter().map(raw(DESC_WRITE)))
}

fn writable_bytes(descs: &[RawDesc]) -> u64 {
    descs
        .iter()
        .filter(|d| d.flags & DESC_WRITE != 0)
        .map(|d| u64::from(d.len))
        .sum()
}

/// Indirect tables, one for each buffer id, grown as needed.
#[derive(Debug, Default)]
struct Tables(Vec<(u64, usize)>);

impl Tables {
    fn get(&mut self, ram: &GuestRam, id: u16, entries: usize) -> u64 {
        let id = usize::from(id);
        if self.0.len() <= id {
            self.0.resize(id + 1, (0, 0));
        }
        if self.0[id].1 < entries {
            let room = entries.next_power_of_two().max(8);
            self.0[id] = (ram.alloc_shared(16 * room as u64, 16), room);
        }
        self.0[id].0
    }
}

#[derive(Debug)]
enum Ring {
    Split(SplitRing),
    Packed(PackedRing),
}

/// The driver's half of one virtqueue.
#[derive(Debug)]
pub struct DriverQueue {
    ring: Ring,
    options: QueueOptions,
    scratch: Vec<RawDesc>,
}

macro_rules! each {
    ($self:expr, $ring:ident => $do:expr) => {
        match &$self.ring {
            Ring::Split($ring) => $do,
            Ring::Packed($ring) => $do,
        }
    };
    (mut $self:expr, $ring:ident => $do:expr) => {
        match &mut $self.ring {
            Ring::Split($ring) => $do,
            Ring::Packed($ring) => $do,
        }
    };
}

impl DriverQueue {
    /// A fresh queue with its areas allocated in `ram`.
    ///
    /// # Panics
    /// When the size is 0, or not a power of two for a split ring, or when memory is exhausted.
    #[must_use]
    pub fn new(ram: &GuestRam, options: QueueOptions) -> Self {
        assert!(
            options.size > 0 && options.size <= 32768,
            "a queue size within 1..=32768"
        );
        let ring = match options.layout {
            Layout::Split => Ring::Split(SplitRing::new(ram.clone(), options)),
            Layout::Packed => Ring::Packed(PackedRing::new(ram.clone(), options)),
        };
        Self {
            ring,
            options,
            scratch: Vec::new(),
        }
    }

    /// Starts over in the same memory, as after a device reset: all buffers are the driver's again.
    pub fn reset(&mut self) {
        each!(mut self, ring => ring.reset());
    }

    /// Replaces the memory that buffers lie in, after hot-plug; the queue's own areas must be in
    /// it.
    pub fn set_ram(&mut self, ram: &GuestRam) {
        each!(mut self, ring => ring.ram = ram.clone());
    }

    /// Returns the parameters of the queue.
    #[must_use]
    pub fn options(&self) -> QueueOptions {
        self.options
    }

    /// Returns the addresses of the queue's areas.
    #[must_use]
    pub fn addrs(&self) -> QueueAddrs {
        each!(self, ring => ring.addrs)
    }

    /// Free ring descriptors.
    #[must_use]
    pub fn free(&self) -> u16 {
        each!(self, ring => ring.free_slots())
    }

    /// Buffers with the device, staged ones included.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        each!(self, ring => ring.buffers.outstanding())
    }

    /// Stages a buffer; `token` comes back with it. None when the ring has no room for it.
    ///
    /// # Panics
    /// When there is no piece at all.
    pub fn add(
        &mut self,
        readable: &[Piece],
        writable: &[Piece],
        shape: Shape,
        token: u64,
    ) -> Option<u16> {
        let mut descs = std::mem::take(&mut self.scratch);
        descs.clear();
        descs.extend(flagged(readable, writable));
        let id = self.add_descs(&descs, shape, token);
        self.scratch = descs;
        id
    }

    /// Returns whether the ring has room for a buffer of so many pieces.
    #[must_use]
    pub fn fits(&self, pieces: usize, shape: Shape) -> bool {
        let direct = self.direct(pieces, shape);
        direct + usize::from(direct < pieces) <= usize::from(self.free())
    }

    /// How many pieces get ring descriptors.
    fn direct(&self, pieces: usize, shape: Shape) -> usize {
        match (shape, self.options.layout) {
            (Shape::Direct, _) => pieces,
            (Shape::Mixed(n), Layout::Split) if n < pieces => n,
            _ => 0,
        }
    }

    fn add_descs(&mut self, descs: &[RawDesc], shape: Shape, token: u64) -> Option<u16> {
        assert!(!descs.is_empty(), "a buffer without pieces");
        let direct = self.direct(descs.len(), shape);
        let writable = writable_bytes(descs);
        each!(mut self, ring => ring.add(descs, direct, token, writable))
    }

    /// Stages a chain of direct descriptors with exactly these flags, for hostile tests: NEXT is
    /// not added, and the order of readable and writable descriptors is not checked. In a split
    /// ring each `next` field names the following descriptor of the chain.
    ///
    /// # Panics
    /// When `descs` is empty.
    pub fn add_raw(&mut self, descs: &[RawDesc], token: u64) -> Option<u16> {
        assert!(!descs.is_empty(), "a chain without descriptors");
        each!(mut self, ring => ring.add_raw(descs, token))
    }

    /// Makes everything staged visible to the device; returns how many buffers that were.
    pub fn publish(&mut self) -> u16 {
        each!(mut self, ring => ring.publish())
    }

    /// After `publish`: whether the device asked to be kicked for what was published since the last
    /// call.
    pub fn needs_kick(&mut self) -> bool {
        each!(mut self, ring => ring.needs_kick())
    }

    /// Returns whether a used buffer waits to be polled.
    #[must_use]
    pub fn has_used(&self) -> bool {
        each!(self, ring => ring.has_used())
    }

    /// Used elements that are visible and not yet polled, as far as the ring shows them. In a
    /// packed ring the count walks used descriptors, so it costs time in proportion.
    #[must_use]
    pub fn used_waiting(&self) -> u16 {
        each!(self, ring => ring.used_waiting())
    }

    /// Takes back the next used buffer.
    ///
    /// # Errors
    /// When the device broke a rule of the used ring; the queue is then good for inspection only.
    pub fn poll(&mut self) -> Result<Option<Used>, UsedFault> {
        each!(mut self, ring => ring.poll())
    }

    /// Asks for or declines used-buffer notifications; when asking, returns whether a used buffer
    /// is there already (the device may have missed the request). With EVENT_IDX a request is good
    /// for one notification.
    pub fn set_notifications(&mut self, on: bool) -> bool {
        if on {
            self.notify_after(1)
        } else {
            each!(mut self, ring => ring.silence());
            false
        }
    }

    /// Asks for a notification once `count` more ring positions are used (with EVENT_IDX; otherwise
    /// at the next one). Returns whether a used buffer is there already.
    pub fn notify_after(&mut self, count: u16) -> bool {
        each!(mut self, ring => ring.notify_after(count))
    }

    /// The base for SET_VRING_BASE that makes a back end process all unfinished buffers (again):
    /// split: the used index; packed: the position behind the used descriptors, in both halves,
    /// which is right for a device that had used everything in order.
    #[must_use]
    pub fn resume_base(&self) -> u32 {
        each!(self, ring => ring.resume_base())
    }

    /// The position that GET_VRING_BASE returns from a device that has taken all published buffers
    /// and returned all but those still outstanding, in order.
    #[must_use]
    pub fn drained_base(&self) -> u32 {
        each!(self, ring => ring.drained_base())
    }

    /// Which heads are with the device, oldest first where the order is known (IN_ORDER), else by
    /// id.
    #[must_use]
    pub fn outstanding_ids(&self) -> Vec<u16> {
        each!(self, ring => ring.buffers.ids())
    }
}
