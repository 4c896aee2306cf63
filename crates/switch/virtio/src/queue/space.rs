//! Address spaces: what the addresses in descriptors, and those of rings, lead to.
//!
//! Most guests put guest-physical addresses there: the memory itself is the address space. A guest
//! with an IOMMU puts I/O virtual ones there, and grants single pages
//! (`translated::TranslatedSpace`).

use std::fmt::Debug;
use std::sync::Arc;

use memory::iotlb::{Access, Iotlb};
use memory::{GuestMemory, Segment, View};

use super::QueueFault;
use super::area::{Area, FlatArea, fetch_words};
use super::descriptor::DESC_LEN;

/// The memory of a queue, and the table that translates its addresses.
#[derive(Clone, Debug)]
pub struct QueueMemory {
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// The translations of a guest with an IOMMU: its descriptors and rings have I/O virtual
    /// addresses (virtio 1.3, 6, `VIRTIO_F_ACCESS_PLATFORM`). `None`: they are guest-physical.
    pub iotlb: Option<Arc<Iotlb>>,
}

impl From<Arc<GuestMemory>> for QueueMemory {
    fn from(memory: Arc<GuestMemory>) -> Self {
        Self {
            memory,
            iotlb: None,
        }
    }
}

/// A part of a chain that cannot be reached; the greater one decides about the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gap {
    /// There is no translation yet, and the front end is asked for it.
    Untranslated,
    /// The front end has none. The chain is left for now: one before it is not used yet.
    Denied,
    /// The guest has not granted it: the chain counts as empty.
    NotGranted,
}

/// Reason why an address does not lead to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The guest has no memory there.
    Unmapped,
    Gap(Gap),
}

/// The look-up of buffers.
pub trait Lookup {
    /// Returns a buffer that lies in one piece; the device writes it if `writable`, else it reads.
    fn buffer(&self, addr: u64, len: u32, writable: bool) -> Option<Segment>;
}

impl<T: Lookup> Lookup for &T {
    #[inline(always)]
    fn buffer(&self, addr: u64, len: u32, writable: bool) -> Option<Segment> {
        (**self).buffer(addr, len, writable)
    }
}

/// An address space.
pub trait Space: Lookup + Debug + Sized {
    /// The descriptors of buffers to write were looked at before they are taken: their lines are
    /// here.
    const LOOKS_AHEAD: bool = false;

    /// Memory of a ring.
    type Area: Area + Debug;
    /// The space for many look-ups in a row; see [`memory::View`]. It may find less.
    type View<'a>: Lookup
    where
        Self: 'a;

    fn view(&self) -> Self::View<'_>;

    fn memory(&self) -> &Arc<GuestMemory>;

    /// Returns the same address space over another snapshot of the memory.
    fn with_memory(&self, mem: Arc<GuestMemory>) -> Self;

    /// Appends the pieces of a buffer to `out`, which is as before after an error.
    fn buffer_into(
        &self,
        addr: u64,
        len: u32,
        writable: bool,
        out: &mut Vec<Segment>,
    ) -> Result<(), Lack>;

    /// Returns the two words of a descriptor in an indirect table, fetched once.
    fn descriptor(&self, addr: u64) -> Result<(u64, u64), Lack>;

    /// Returns the area of a ring at `addr`, aligned to `align` here as in the guest.
    fn area(
        &self,
        addr: u64,
        len: u32,
        align: usize,
        access: Access,
    ) -> Result<Self::Area, QueueFault>;

    /// Notes that a chain was left where it is for this reason.
    fn left(&self, gap: Gap);

    /// Logs a write to `len` bytes at `addr`; parts of them may be unmapped.
    fn mark(&self, addr: u64, len: u32);
}

impl Lookup for Arc<GuestMemory> {
    #[inline(always)]
    fn buffer(&self, addr: u64, len: u32, writable: bool) -> Option<Segment> {
        (**self).view().buffer(addr, len, writable)
    }
}

impl Lookup for View<'_> {
    #[inline(always)]
    fn buffer(&self, addr: u64, len: u32, _writable: bool) -> Option<Segment> {
        self.translate(addr, len)
    }
}

/// Guest-physical addresses.
impl Space for Arc<GuestMemory> {
    type Area = FlatArea;
    type View<'a> = View<'a>;

    #[inline(always)]
    fn view(&self) -> View<'_> {
        (**self).view()
    }

    #[inline(always)]
    fn memory(&self) -> &Arc<GuestMemory> {
        self
    }

    fn with_memory(&self, mem: Arc<GuestMemory>) -> Self {
        mem
    }

    fn buffer_into(
        &self,
        addr: u64,
        len: u32,
        _writable: bool,
        out: &mut Vec<Segment>,
    ) -> Result<(), Lack> {
        let mapped = (**self).translate_into(addr, len, out);
        mapped.then_some(()).ok_or(Lack::Unmapped)
    }

    fn descriptor(&self, addr: u64) -> Result<(u64, u64), Lack> {
        let piece = (**self).translate(addr, DESC_LEN).ok_or(Lack::Unmapped)?;
        // SAFETY: the piece is 16 bytes that were found mapped in the memory, which is borrowed.
        Ok(unsafe { fetch_words(piece.ptr) })
    }

    fn area(
        &self,
        addr: u64,
        len: u32,
        align: usize,
        _access: Access,
    ) -> Result<FlatArea, QueueFault> {
        FlatArea::resolve(self, addr, len, align)
    }

    #[inline(always)]
    fn left(&self, _gap: Gap) {}

    fn mark(&self, addr: u64, len: u32) {
        (**self).mark_dirty(addr, u64::from(len));
    }
}
