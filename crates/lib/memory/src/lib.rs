//! Guest memory of the switch: regions that a VMM shared, translation of guest addresses, the dirty
//! log of a live migration, and the table of translations of a guest with an IOMMU.
//!
//! A [`GuestMemory`] is an immutable snapshot. When the VMM adds or removes a region, or starts to
//! log, a new snapshot is built from the same [`Region`]s and given to the users of the queues; the
//! old one unmaps unshared regions when its last user drops it. This crate has no knowledge of
//! packets or queues.
//!
//! # Concurrency
//!
//! Shared memory has other writers: a guest, its VMM, another of our processes. They write at any
//! time and take no lock. Rust calls two accesses from two threads a data race if one of them
//! writes and they are not both atomic, and the compiler may assume that there is none. The
//! following rules leave it nothing to conclude from that, for every crate that reaches shared
//! memory:
//!
//! * **No references.** The memory comes from `mmap` and is no allocation of Rust. Only raw
//!   pointers lead to it, and references to atomics, which permit other writers. So the compiler
//!   knows no value there, and may not keep one.
//! * **Fields are atomics**: ring indices, descriptors, event fields, the words of our own rings,
//!   counters, bits of the dirty log. Each is naturally aligned, and loaded or stored with one
//!   instruction: with acquire and release where it publishes other bytes, else relaxed. An
//!   indirect descriptor without alignment is loaded byte by byte.
//! * **Short pieces are volatile loads.** Frame headers and virtio-net headers have any alignment,
//!   which atomics do not permit. [`copy`] loads pieces of up to 256 bytes as volatile words: each
//!   load happens once, where it is written, and its value stays in a register. A volatile load is
//!   Rust's means for memory that changes by itself, and to this program another process is nothing
//!   else.
//! * **Long pieces are copied with `memmove`** between raw pointers. No code looks at the bytes on
//!   their way. Where they are looked at afterwards, in a private copy, a compiler fence separates
//!   both: the compiler must not read the source in place of its copy.
//! * **Stores are plain**, unless they publish. They are not read back; a compiler that divides or
//!   merges them changes what the guest sees between two publications, which means nothing to it.
//! * **Read once.** The value or the copy is checked, and then used. The same bytes are never read
//!   again for the same purpose.
//!
//! What remains are torn values: a copy may be any mix of old and new bytes. A hostile guest can
//! write each mix itself, so readers expect it.
//!
//! Two threads of this process access the same bytes only where a hostile VMM gives one memory to
//! two guests. If these are copies, Rust's definition has a data race in them: it has no copy of
//! atomic bytes of any alignment yet (RFC 3301). The rules hold for it all the same: no thread
//! concludes anything from a byte that it has not loaded into a private copy.
//!
//! Miri has no second process and takes a volatile load for a plain one. Under it, [`copy`] loads
//! and stores single atomic bytes, and a thread of the tests is the guest.

pub mod copy;
mod dirty;
pub mod iotlb;
mod region;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use dirty::{DirtyLog, LOG_PAGE};
use mapping::MappingError;
use region::Span;
pub use region::{Region, RegionPlan};

/// At most this many regions in one snapshot (vhost-user, `GET_MAX_MEM_SLOTS`).
pub const MAX_REGIONS: usize = 509;

/// Regions consist of pages of this size: those of every front end do, and so a buffer crosses few
/// borders.
pub const REGION_PAGE: u64 = 4096;

/// Reason why a region, or a table of regions, was refused.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The region's file cannot be mapped, or its addresses wrap around.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// Two regions of one table share guest-physical addresses.
    #[error("memory regions at {first:#x} and {second:#x} overlap")]
    Overlap {
        /// Start of the lower region.
        first: u64,
        /// Start of the upper region.
        second: u64,
    },
    /// Addresses, size or offset of a region are not those of whole pages.
    #[error("memory region with {what} {value:#x}, which is no multiple of {REGION_PAGE}")]
    Misaligned {
        /// Kind of the value.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// More regions than [`MAX_REGIONS`].
    #[error("{0} memory regions, at most {MAX_REGIONS} are served")]
    TooMany(usize),
}

/// A contiguous piece of guest memory, mapped by this process, valid while its [`GuestMemory`]
/// lives.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Address of the mapping.
    pub ptr: *mut u8,
    /// Length in bytes.
    pub len: u32,
    /// Guest-physical address of the first byte, for the dirty log; [`Segment::PRIVATE`] and more:
    /// it is no guest's memory.
    pub gpa: u64,
}

impl Segment {
    /// The address of private memory of this process, which no queue leases.
    pub const PRIVATE: u64 = 1 << 63;

    /// Returns whether it is private memory of this process, which no queue leases. So is taken a
    /// guest's memory beyond 2^63.
    #[inline]
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.gpa >= Self::PRIVATE
    }
}

// SAFETY: a Segment is an address and a length; dereferencing it is unsafe by itself, and code that
// does so argues that the GuestMemory is alive.
unsafe impl Send for Segment {}

impl Segment {
    /// Returns the piece that starts `offset` bytes in and is `len` long. Panics in debug builds
    /// when it would leave the segment; the caller keeps `offset + len <= self.len`.
    #[inline]
    #[must_use]
    pub fn slice(&self, offset: u32, len: u32) -> Segment {
        debug_assert!(u64::from(offset) + u64::from(len) <= u64::from(self.len));
        Segment {
            ptr: self.ptr.wrapping_add(offset as usize),
            len,
            gpa: self.gpa + u64::from(offset),
        }
    }
}

/// An immutable snapshot of one guest's memory.
#[derive(Debug)]
pub struct GuestMemory {
    /// Sorted by guest-physical address, not overlapping.
    regions: Vec<Arc<Region>>,
    /// The fields of each region that every translation needs, side by side: a descriptor must not
    /// wait for a chain of pointers.
    spans: Box<[Span]>,
    /// Present where a search takes a while.
    last_hit: Option<Box<LastHit>>,
    log: Option<Arc<DirtyLog>>,
}

/// Regions of a usual guest. With more regions (hot-plugged memory), the region that was found last
/// is tried first.
const FEW_REGIONS: usize = 8;

/// The span that was found last, by any thread. It has a cache line of its own: several threads may
/// write it.
#[repr(align(128))]
#[derive(Debug, Default)]
struct LastHit(AtomicUsize);

/// Memory with a copy of what most translations need. A loop that has its own copy reads it once;
/// otherwise it would read it again in every turn, because its stores might have changed it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    last: Span,
    memory: &'a GuestMemory,
}

impl View<'_> {
    /// As [`GuestMemory::translate`].
    #[inline(always)]
    #[must_use]
    pub fn translate(&self, gpa: u64, len: u32) -> Option<Segment> {
        // Most guests have most of their memory in their last region.
        let segment = self.last.whole(gpa, len);
        segment.or_else(|| self.memory.translate_in_any(gpa, len))
    }
}

impl GuestMemory {
    /// Creates a snapshot of `regions`, in any order.
    ///
    /// # Errors
    /// Overlapping guest-physical ranges, or more than [`MAX_REGIONS`].
    pub fn new(
        mut regions: Vec<Arc<Region>>,
        log: Option<Arc<DirtyLog>>,
    ) -> Result<Self, MemoryError> {
        if regions.len() > MAX_REGIONS {
            return Err(MemoryError::TooMany(regions.len()));
        }
        regions.sort_by_key(|r| r.gpa());
        for pair in regions.windows(2) {
            if pair[0].gpa_end() > pair[1].gpa() {
                return Err(MemoryError::Overlap {
                    first: pair[0].gpa(),
                    second: pair[1].gpa(),
                });
            }
        }
        let spans = regions.iter().map(|r| r.span()).collect();
        let many = regions.len() > FEW_REGIONS;
        Ok(Self {
            regions,
            spans,
            last_hit: many.then(Box::default),
            log,
        })
    }

    /// Returns the same regions with another dirty log, or with none.
    #[must_use]
    pub fn with_log(&self, log: Option<Arc<DirtyLog>>) -> Self {
        Self {
            regions: self.regions.clone(),
            spans: self.spans.clone(),
            last_hit: self.last_hit.as_ref().map(|_| Box::default()),
            log,
        }
    }

    /// Returns all regions by ascending guest-physical address.
    #[must_use]
    pub fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }

    /// Returns the dirty log, while the guest is being migrated.
    #[must_use]
    pub fn log(&self) -> Option<&Arc<DirtyLog>> {
        self.log.as_ref()
    }

    /// Returns the number of bytes in all regions together.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.regions.iter().map(|r| r.size()).sum()
    }

    /// Returns whether the VMM truncated a part of this memory; see
    /// [`mapping::survive_truncation`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let log = self.log.as_ref().is_some_and(|log| log.is_lost());
        log || self.regions.iter().any(|r| r.is_lost())
    }

    #[inline(never)]
    fn span_of(&self, gpa: u64) -> Option<&Span> {
        if let Some(LastHit(last)) = self.last_hit.as_deref() {
            return self.span_of_many(gpa, last);
        }
        let at = self.search(gpa)?;
        Some(&self.spans[at])
    }

    #[inline]
    fn search(&self, gpa: u64) -> Option<usize> {
        let after = self.spans.partition_point(|span| span.gpa <= gpa);
        let at = after.checked_sub(1)?;
        self.spans[at].contains(gpa).then_some(at)
    }

    fn span_of_many(&self, gpa: u64, last: &AtomicUsize) -> Option<&Span> {
        // A value that another thread stored is checked, too.
        let there = self.spans.get(last.load(Ordering::Relaxed));
        if let Some(span) = there.filter(|span| span.contains(gpa)) {
            return Some(span);
        }
        let at = self.search(gpa)?;
        last.store(at, Ordering::Relaxed);
        Some(&self.spans[at])
    }

    /// Translates `len` bytes at `gpa` to one mapped piece, or `None` when they are empty, not all
    /// mapped, or lie in more than one region.
    #[inline]
    #[must_use]
    pub fn translate(&self, gpa: u64, len: u32) -> Option<Segment> {
        self.view().translate(gpa, len)
    }

    fn translate_in_any(&self, gpa: u64, len: u32) -> Option<Segment> {
        self.span_of(gpa)?.whole(gpa, len)
    }

    /// Returns the memory for many translations in a row.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View {
            last: self.spans.last().copied().unwrap_or(Span::NONE),
            memory: self,
        }
    }

    /// Appends the mapped pieces of `len` bytes at `gpa` to `out`; they may cross from one region
    /// into the next when both are adjacent. `false`, with `out` as it was, when a byte is not
    /// mapped or `len` is 0.
    #[inline]
    pub fn translate_into(&self, gpa: u64, len: u32, out: &mut Vec<Segment>) -> bool {
        if let Some(segment) = self.translate(gpa, len) {
            out.push(segment);
            return true;
        }
        self.translate_pieces(gpa, len, out)
    }

    #[cold]
    fn translate_pieces(&self, mut gpa: u64, mut len: u32, out: &mut Vec<Segment>) -> bool {
        let before = out.len();
        while len > 0 {
            let Some(span) = self.span_of(gpa) else {
                out.truncate(before);
                return false;
            };
            let offset = gpa - span.gpa;
            let room = u32::try_from(span.size - offset).unwrap_or(u32::MAX);
            let piece = len.min(room);
            out.push(span.segment(offset, piece));
            gpa = gpa.wrapping_add(u64::from(piece));
            len -= piece;
        }
        out.len() > before
    }

    /// Returns the guest-physical address of an address in the VMM's own space (used by
    /// `SET_VRING_ADDR`).
    #[must_use]
    pub fn user_to_guest(&self, uva: u64) -> Option<u64> {
        self.regions.iter().find_map(|r| {
            let offset = uva.checked_sub(r.uva())?;
            (offset < r.size()).then(|| r.gpa() + offset)
        })
    }

    /// Returns the guest-physical address of a range in the VMM's own space, if all of it is memory
    /// that is contiguous in both spaces (used by UPDATE of an IOTLB).
    #[must_use]
    pub fn user_range_to_guest(&self, uva: u64, size: u64) -> Option<u64> {
        let gpa = self.user_to_guest(uva)?;
        let mut done = 0;
        while done < size {
            let at = self.user_to_guest(uva.checked_add(done)?)?;
            if at != gpa + done {
                return None;
            }
            let span = self.spans[self.search(at)?];
            done += span.gpa + span.size - at;
        }
        Some(gpa)
    }

    /// Marks `len` bytes at `gpa` as written. Nothing happens without a log.
    #[inline]
    pub fn mark_dirty(&self, gpa: u64, len: u64) {
        if let Some(log) = &self.log {
            log.mark(gpa, len);
        }
    }
}
