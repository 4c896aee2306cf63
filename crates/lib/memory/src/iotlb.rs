//! Translations of I/O virtual addresses: the pages that a guest with an IOMMU has granted.
//!
//! Such a guest puts I/O virtual addresses (IOVA) into rings and descriptors, and its VMM tells the
//! back end where they lead: by `VHOST_USER_IOTLB_MSG` of type UPDATE a range is granted, by
//! INVALIDATE it is revoked; the back end asks for a missing one by MISS (vhost-user specification,
//! "IOMMU support"; virtio 1.3, 6, `VIRTIO_F_ACCESS_PLATFORM`). That is the grant mechanism of
//! chapter 3 of Ram's thesis: the owner issues and revokes alone, and using a grant is a look-up.
//!
//! Each connection has one table. One thread changes it, the [`IotlbWriter`]; any number of threads
//! look addresses up in it without a lock, by an [`Iotlb`]. A translation leads to a guest-physical
//! address, and [`GuestMemory`] translates that as always. So entries outlive changes of the memory
//! table, and the dirty log needs no change.
//!
//! # Memory map, version 1
//!
//! The table is in a memory file with a sealed length, and a successor of the process continues it.
//! It holds no pointer, and each slot is valid by itself. Numbers are native-endian `u64`.
//!
//! ```text
//!  offset  field          written by        meaning
//!       0  magic          creator, last     "LHIOTLB\0"
//!       8  version        creator           1
//!      16  slots          creator           65536
//!      64  classes        writer            bits of the classes that occur: 1, 2, 4
//!      72  generation     writer            changes when something was revoked
//!     128  entries        writer            entries now
//!     136  updates        writer            UPDATEs that were accepted
//!     144  invalidations  writer            INVALIDATEs that were accepted
//!     152  evictions      writer            entries that lost their slot to another
//!     160  refusals       writer            messages that were refused
//!     192  answered       writer            the message below was answered last: 1; and taken from
//!                                           its socket: 2; 0: another message was
//!     200  message        writer            content of an UPDATE or INVALIDATE, 32 bytes
//!     256  owed           writer            answers that the front end owes
//!     264  questions      writer            those of the latest 256: page << 2 | access; 0: none
//!          (zero)                           reserved up to 4096
//!    4096  sets           writer            16384 sets of 4 slots: check, value
//!
//!  key     1 << 63 | first IOVA page << 4 | class             class: 0 4 KiB, 1 2 MiB, 2 1 GiB
//!  value   first guest-physical page << 4 | access            access: 1 read, 2 write
//!  check   key ^ value; 0: the slot is free
//! ```
//!
//! `file::set_of` has the set of a key, and `slot` the argument why readers need no lock.
//!
//! # Rules of the table
//!
//! * **It is a cache.** An entry may go at any time: a full set evicts its oldest entry, and a file
//!   that cannot be read is not used. A reader that finds nothing notes a [`Miss`].
//! * **Overlapping entries lead to the same memory.** An UPDATE removes those that do not. So a
//!   page may be in blocks of several classes, and has the access that any of them gives.
//! * **Nothing is given that was not asked for**: [`IotlbWriter::update`].
//! * **512 neighbours become one block** of 2 MiB: QEMU grants single pages where it could grant
//!   all of memory. An INVALIDATE of one page then forgets the block.

mod access;
mod answered;
mod block;
mod denials;
mod file;
mod misses;
#[cfg(any(test, feature = "test-utils"))]
pub mod oracle;
mod owed;
mod slot;
mod sync;
mod writer;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub use access::{Access, Miss, Need};
pub use answered::AnsweredMessage;
pub use file::AttachError;
pub use misses::{Misses, NoteResult};
pub use owed::{MOST_OWED, OwedAnswers};
pub use writer::IotlbWriter;

use access::PAGE;
use block::{Block, Class};
use denials::Denials;
use file::Table;
use sync::{AtomicU64, Ordering};

use crate::GuestMemory;

/// Entries of a table at most.
pub const SLOTS: usize = 1 << 16;
/// Blocks that one UPDATE enters at most.
pub const MOST_BLOCKS: usize = 512;
/// Misses that wait for the writer at most.
pub const MOST_MISSES: usize = 64;

/// Reason why an UPDATE or an INVALIDATE is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IotlbError {
    /// A size of 0.
    #[error("an IOTLB message of size 0")]
    Empty,
    /// The permission is none of read, write and both.
    #[error("an IOTLB message with permission {0}")]
    Permission(u8),
    /// Not whole pages.
    #[error("an IOTLB message with {what} {value:#x}, which is no multiple of {PAGE}")]
    Misaligned {
        /// Kind of the value.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// The I/O virtual addresses wrap around.
    #[error("an IOTLB message for {size:#x} bytes at {iova:#x}, which wraps around")]
    Wraps {
        /// First address.
        iova: u64,
        /// Bytes.
        size: u64,
    },
    /// The user address is not in the memory of this connection.
    #[error("an IOTLB message with user address {0:#x}, where the guest has no memory")]
    Outside(u64),
    /// The memory ends, or continues elsewhere, before the range does.
    #[error("an IOTLB message with {size:#x} bytes at user address {user_addr:#x}, across a gap")]
    Gap {
        /// First user address.
        user_addr: u64,
        /// Bytes.
        size: u64,
    },
}

/// The fields of an UPDATE as they came (vhost-user specification, "An IOTLB message").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// First I/O virtual address.
    pub iova: u64,
    /// Bytes.
    pub size: u64,
    /// Address of the first byte in the front end.
    pub user_addr: u64,
    /// 1: read, 2: write, 3: both.
    pub permission: u8,
}

impl Update {
    /// Returns the I/O virtual pages, the guest-physical page of the first, and the access.
    fn check(&self, memory: &GuestMemory) -> Result<(Range<u64>, u64, Access), IotlbError> {
        let Self {
            iova,
            size,
            user_addr,
            permission,
        } = *self;
        let Some(last) = size.checked_sub(1) else {
            return Err(IotlbError::Empty);
        };
        let access = Access::from_bits(permission.into());
        let access = access.ok_or(IotlbError::Permission(permission))?;
        let fields = [
            ("address", iova),
            ("size", size),
            ("user address", user_addr),
        ];
        if let Some((what, value)) = fields.into_iter().find(|(_, v)| !v.is_multiple_of(PAGE)) {
            return Err(IotlbError::Misaligned { what, value });
        }
        if iova.checked_add(last).is_none() {
            return Err(IotlbError::Wraps { iova, size });
        }
        if memory.user_to_guest(user_addr).is_none() {
            return Err(IotlbError::Outside(user_addr));
        }
        let gpa = memory.user_range_to_guest(user_addr, size);
        let gpa = gpa.ok_or(IotlbError::Gap { user_addr, size })?;
        let first = iova / PAGE;
        Ok((first..first + size / PAGE, gpa / PAGE, access))
    }
}

/// A translation that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Guest-physical address. The caller looks it up in the guest's memory, which may have lost
    /// it.
    pub gpa: u64,
    /// Bytes from there to the end of the block, at least 1.
    pub len: u64,
    /// Bytes from the start of the block to there.
    pub offset: u64,
}

/// Numbers of what has happened to a table, for all processes that it has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries now.
    pub entries: u64,
    /// UPDATEs that were accepted.
    pub updates: u64,
    /// INVALIDATEs that were accepted.
    pub invalidations: u64,
    /// Entries that lost their slot to another.
    pub evictions: u64,
    /// UPDATEs and INVALIDATEs that were refused.
    pub refusals: u64,
}

/// A table, for the threads that look addresses up in it.
#[derive(Debug)]
pub struct Iotlb {
    table: Table,
    misses: Misses,
    denials: Denials,
    /// Rung by the first miss since the writer took them. None under Miri, which has no such
    /// system call.
    asked: Option<OwnedFd>,
    answers: AtomicU64,
    flushes: AtomicU64,
}

impl Iotlb {
    /// Attaches to the table in a file of another process, which changes it. What it holds is not
    /// trusted: at worst, a look-up finds a guest-physical address that the guest's memory has not.
    ///
    /// # Errors
    /// A file that is not such a table.
    pub fn attach(file: &OwnedFd) -> Result<Self, AttachError> {
        let asked = sys::event::create()?;
        Table::map(file).map(|table| Self::over(table, Some(asked)))
    }

    fn over(table: Table, asked: Option<OwnedFd>) -> Self {
        Self {
            table,
            misses: Misses::default(),
            denials: Denials::default(),
            asked,
            answers: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
        }
    }

    /// Looks an I/O virtual address up; `None` when no entry gives this access to it. Nothing that
    /// was found may be used, or kept, longer than the writer waits for its readers; see
    /// [`IotlbWriter::invalidate`].
    #[inline]
    #[must_use]
    pub fn look_up(&self, iova: u64, access: Access) -> Option<Hit> {
        // A bit that is not there yet is a miss, and one that is still there a look-up in vain.
        let classes = self.table.head().state.classes.load(Ordering::Relaxed);
        for class in Class::ALL {
            if classes & class.bit() == 0 {
                continue;
            }
            let Some(value) = self.value(class, iova / PAGE) else {
                continue;
            };
            let (gpa, given) = block::resolve(class, value, iova);
            if given & access.bits() == access.bits() {
                let size = class.pages() * PAGE;
                let offset = iova % size;
                let len = size - offset;
                return Some(Hit { gpa, len, offset });
            }
        }
        None
    }

    /// Returns the value of the entry of this class for a page.
    #[inline]
    fn value(&self, class: Class, page: u64) -> Option<u64> {
        let key = class.key(page);
        let set = self.table.set(file::set_of(class, page));
        set.0.iter().find_map(|slot| slot.find(key))
    }

    /// Returns the entry of this class for a page.
    fn entry(&self, class: Class, page: u64) -> Option<Block> {
        let value = self.value(class, page)?;
        Block::decode(class.key(page), value)
    }

    /// Returns the number of the table's state: another one when something was revoked since. A
    /// reader may keep a translation together with the number that it has read *before* it looked
    /// up. It may use it again while it finds that number, asked anew each time when it has marked
    /// itself as busy; see [`IotlbWriter::invalidate`]. An evicted entry is still granted, so one
    /// eviction does not count; many do, because the writer remembers a few only.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        // Acquire: a later look-up finds none of the entries that were removed before this number.
        self.table.head().state.generation.load(Ordering::Acquire)
    }

    /// Notes a translation that a reader lacks, and notifies the writer by [`Iotlb::asked`] if it
    /// must know. Returns `false` when there is no room for it: then the reader notes it again when
    /// it looks again, which it does after [`Iotlb::answers`] has changed.
    #[inline(never)]
    pub fn ask(&self, miss: Miss, need: Need) -> bool {
        let noted = self.misses.note(miss, need);
        if noted == NoteResult::Notify
            && let Some(asked) = &self.asked
        {
            // An event descriptor of our own takes it, however often.
            let _ = sys::event::ring(asked);
        }
        noted != NoteResult::Full
    }

    /// Returns the event descriptor that is readable when the writer must take the misses. `None`
    /// under Miri.
    #[must_use]
    pub fn asked(&self) -> Option<BorrowedFd<'_>> {
        self.asked.as_ref().map(AsFd::as_fd)
    }

    /// Takes the denial of a miss, if there is one: the front end has no mapping for it, or did not
    /// answer. The reader then does without that page once, and may ask for it again later.
    #[must_use]
    pub fn take_denial(&self, miss: Miss) -> bool {
        self.denials.take(miss)
    }

    /// Returns whether there is a denial of a miss, and leaves it.
    #[must_use]
    pub fn is_denied(&self, miss: Miss) -> bool {
        self.denials.has(miss)
    }

    /// Returns a number that changes with each UPDATE, each denial and whatever revokes. A reader
    /// that lacks a translation need not look again while it finds the number that it has read
    /// *before* it looked up.
    #[inline]
    #[must_use]
    pub fn answers(&self) -> u64 {
        // Acquire: a later look-up finds the entry or the denial that the number stands for.
        self.answers.load(Ordering::Acquire)
    }

    /// Returns a number that changes when a reader that asks ahead must look at all again: an
    /// INVALIDATE removed many entries, as Linux does every few milliseconds when it defers
    /// invalidations (`iommu.strict=0`), or denials have ended.
    #[inline]
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }

    /// Returns the translations that readers lack.
    #[inline]
    #[must_use]
    pub fn misses(&self) -> &Misses {
        &self.misses
    }

    /// Returns the questions that have no answer yet.
    #[must_use]
    pub fn owed(&self) -> &OwedAnswers {
        &self.table.head().owed
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let counters = &self.table.head().counters;
        Counts {
            entries: counters.entries.load(Ordering::Relaxed),
            updates: counters.updates.load(Ordering::Relaxed),
            invalidations: counters.invalidations.load(Ordering::Relaxed),
            evictions: counters.evictions.load(Ordering::Relaxed),
            refusals: counters.refusals.load(Ordering::Relaxed),
        }
    }
}
