//! Memory that outlives this process and lists the chains that were in flight when it died.
//!
//! The layout is fixed by the vhost-user specification ("Inflight I/O tracking"); fields are in
//! host byte order. One region holds all queues of a device, one after the other:
//!
//! ```text
//! split   0 features u64  8 version u16  10 desc_num u16  12 last_batch_head u16  14 used_idx u16
//!         16 + 16 i:  0 inflight u8   6 next u16   8 counter u64
//! packed  0 features u64  8 version u16  10 desc_num u16  12 free_head u16  14 old_free_head u16
//!         16 used_idx u16   18 old_used_idx u16   20 used_wrap u8   21 old_used_wrap u8
//!         32 + 32 i:  0 inflight u8   2 next u16   4 last u16   6 num u16   8 counter u64
//!                     16 id u16   18 flags u16   20 len u32   24 addr u64
//! ```
//!
//! The front end shares this memory, so it is as hostile as a ring: recovery reads each field once
//! and checks it; while a queue runs, the region is only written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use mapping::{Amount, Mapping};

use super::{MAX_SIZE, QueueFault};

pub(super) mod packed;
pub(super) mod split;
#[cfg(test)]
mod tests;

/// The only version; 0 means that the region is unused.
const VERSION: u16 = 1;
const AT_VERSION: usize = 8;
const AT_NUM: usize = 10;
/// Each queue's part starts on a cache line.
const ALIGN: u64 = 64;

/// The shared memory of `GET_INFLIGHT_FD` and `SET_INFLIGHT_FD`: all queues of one device.
#[derive(Debug)]
pub struct InflightRegion {
    mapping: Mapping,
}

impl InflightRegion {
    /// A region in memory that the front end shares.
    #[must_use]
    pub fn over(mapping: Mapping) -> Self {
        Self { mapping }
    }

    /// A zeroed region on the heap, for tests.
    ///
    /// # Panics
    /// When `size` is 0.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn heap(size: u64) -> Self {
        Self {
            mapping: Mapping::heap(size),
        }
    }

    /// Returns the amount that the region takes of a quota.
    #[must_use]
    pub fn amount(&self) -> Amount {
        self.mapping.amount()
    }

    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.mapping.len() as u64
    }
}

/// One queue's part of an [`InflightRegion`].
#[derive(Clone, Debug)]
pub struct Inflight {
    region: Arc<InflightRegion>,
    offset: usize,
    len: usize,
    queue_size: u16,
    packed: bool,
}

impl Inflight {
    /// Returns the number of bytes that one queue of this size needs, rounded up so that the next
    /// queue's part is aligned.
    #[must_use]
    pub fn region_size(queue_size: u16, packed: bool) -> u64 {
        let (header, entry) = if packed { (32, 32) } else { (16, 16) };
        (header + entry * u64::from(queue_size)).next_multiple_of(ALIGN)
    }

    /// Returns the part of `region` at `offset`, for a queue of `queue_size`. The usual offset of
    /// queue `i` is `i * region_size(queue_size, packed)`.
    ///
    /// # Errors
    /// [`QueueFault::BadSize`]; [`QueueFault::InflightMismatch`] when the part leaves the region
    /// (CVE-2021-3839) or is not aligned.
    pub fn new(
        region: Arc<InflightRegion>,
        offset: u64,
        queue_size: u16,
        packed: bool,
    ) -> Result<Self, QueueFault> {
        if queue_size == 0 || queue_size > MAX_SIZE {
            return Err(QueueFault::BadSize);
        }
        let len = Self::region_size(queue_size, packed);
        let fits = offset
            .checked_add(len)
            .is_some_and(|end| end <= region.size());
        let start = (region.mapping.as_ptr().addr() as u64).wrapping_add(offset);
        if !fits || !start.is_multiple_of(8) {
            return Err(QueueFault::InflightMismatch);
        }
        Ok(Self {
            region,
            offset: offset as usize,
            len: len as usize,
            queue_size,
            packed,
        })
    }

    /// Refuses to serve a queue of another size or layout (CVE-2026-86565).
    fn check(&self, size: u16, packed: bool) -> Result<(), QueueFault> {
        if self.queue_size != size || self.packed != packed {
            return Err(QueueFault::InflightMismatch);
        }
        Ok(())
    }

    /// Returns whether an earlier process used this part for a queue of the same size; `false` for
    /// a zeroed one.
    fn used_before(&self) -> Result<bool, QueueFault> {
        match self.get16(AT_VERSION) {
            0 => Ok(false),
            VERSION if self.get16(AT_NUM) == self.queue_size => Ok(true),
            _ => Err(QueueFault::InflightMismatch),
        }
    }

    /// Declares the part initialised; the last write of an initialisation.
    fn seal(&self) {
        self.set16(AT_NUM, self.queue_size);
        self.set16(AT_VERSION, VERSION);
    }

    fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at + len <= self.len && at.is_multiple_of(len));
        self.region.mapping.as_ptr().wrapping_add(self.offset + at)
    }
}

/// Access to the fields of a part. Writes are releases, so that a process that dies leaves them in
/// program order.
macro_rules! fields {
    ($($get:ident $set:ident $atomic:ident $type:ident)*) => {
        impl Inflight {$(
            fn $get(&self, at: usize) -> $type {
                // SAFETY: `at` checks the bounds, and that the place is a multiple of the width, to
                // which `new` aligned the start; the mapping lives as long as `self.region`.
                unsafe { $atomic::from_ptr(self.at(at, size_of::<$type>()).cast()) }
                    .load(Ordering::Acquire)
            }

            fn $set(&self, at: usize, value: $type) {
                // SAFETY: as above.
                unsafe { $atomic::from_ptr(self.at(at, size_of::<$type>()).cast()) }
                    .store(value, Ordering::Release);
            }
        )*}
    };
}

fields! {
    get8 set8 AtomicU8 u8
    get16 set16 AtomicU16 u16
    get32 set32 AtomicU32 u32
    get64 set64 AtomicU64 u64
}

/// Chains that a former process left behind; they are taken again, oldest first, before any new
/// one.
#[derive(Debug, Default)]
struct Pending {
    heads: Vec<u16>,
    next: usize,
    /// New chains taken since the last of `heads` was; they are newer than all of them.
    fresh: u32,
}

impl Pending {
    /// Sorts `(counter, head)` pairs by age. Also returns the counter for the next new chain.
    fn new(mut found: Vec<(u64, u16)>) -> (Self, u64) {
        found.sort_unstable();
        let counter = found.last().map_or(0, |(c, _)| c.wrapping_add(1));
        let pending = Self {
            heads: found.into_iter().map(|(_, head)| head).collect(),
            next: 0,
            fresh: 0,
        };
        (pending, counter)
    }

    fn peek(&self) -> Option<u16> {
        self.heads.get(self.next).copied()
    }

    /// Untakes one chain. Returns `true` when it was a new one, `false` when it is pending again.
    fn untake(&mut self) -> bool {
        if self.fresh > 0 {
            self.fresh -= 1;
            return true;
        }
        if self.next > 0 {
            self.next -= 1;
            return false;
        }
        true
    }
}
