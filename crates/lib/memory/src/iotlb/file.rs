//! The memory file of a table: its map, and the checks before it is used.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use mapping::{Mapping, MappingError};

use super::block::{Block, Class};
use super::owed::OwedAnswers;
use super::slot::Slot;
use super::sync::{AtomicU64, Ordering};

/// `LHIOTLB` and a zero, read as a native number.
const MAGIC: u64 = u64::from_ne_bytes(*b"LHIOTLB\0");
/// Version of the map in [`super`].
pub(super) const VERSION: u64 = 1;
/// Slots of a set: a cache line.
pub(super) const WAYS: usize = 4;
/// Sets of a table.
pub(super) const SETS: usize = super::SLOTS / WAYS;
/// Bytes of the head.
const HEAD: usize = 4096;
/// Bytes of the file.
pub(super) const LEN: u64 = (HEAD + SETS * size_of::<Set>()) as u64;

/// Slots that one block may be in, in a cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Set(pub(super) [Slot; WAYS]);

/// Numbers of what has happened to a table.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) entries: AtomicU64,
    pub(super) updates: AtomicU64,
    pub(super) invalidations: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) refusals: AtomicU64,
}

/// The words that readers need, in a cache line that changes seldom.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct State {
    pub(super) classes: AtomicU64,
    pub(super) generation: AtomicU64,
}

/// The message of the table that was answered last, see [`super::AnsweredMessage`].
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct LastAnswer {
    pub(super) state: AtomicU64,
    pub(super) message: [AtomicU64; 4],
}

#[repr(C, align(64))]
#[derive(Debug)]
struct Identity {
    magic: AtomicU64,
    version: AtomicU64,
    slots: AtomicU64,
}

#[repr(C, align(4096))]
#[derive(Debug)]
pub(super) struct Head {
    identity: Identity,
    pub(super) state: State,
    pub(super) counters: Counters,
    pub(super) answer: LastAnswer,
    pub(super) owed: OwedAnswers,
}

const _: () = assert!(size_of::<Head>() == HEAD && size_of::<Set>() == 64);
const _: () = assert!(offset_of!(Head, state) == 64 && offset_of!(Head, counters) == 128);
const _: () = assert!(offset_of!(Head, answer) == 192 && offset_of!(Head, owed) == 256);
const _: () = assert!(SETS.is_power_of_two() && SETS >= 512 && size_of::<Slot>() == 16);

/// Reason why a file is not used as a table. Its entries are missed then, and the front end is
/// asked for them again.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The file is none of memory, or cannot be read.
    #[error("cannot read the table of translations: {0}")]
    Read(#[from] io::Error),
    /// The file cannot be mapped.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// Another process can change the length of the file under a mapping.
    #[error("the length of the table's file is not sealed")]
    NotSealed,
    /// A file of another length.
    #[error("a table of {0} bytes, not {LEN}")]
    Length(u64),
    /// A file of another kind.
    #[error("no table of translations: it begins with {0:#018x}")]
    Magic(u64),
    /// A table of another version of Lasthop.
    #[error("a table of version {0}, not {VERSION}")]
    Version(u64),
    /// A table with another number of slots.
    #[error("a table of {0} slots, not {slots}", slots = super::SLOTS)]
    Slots(u64),
    /// A slot with the words of no entry, or of one that belongs elsewhere.
    #[error("slot {0} of the table is not as a writer leaves it")]
    Garbage(usize),
}

impl Head {
    /// Makes zeroed memory an empty table. The magic comes last: a file without it is none.
    pub(super) fn initialise(&self) {
        let identity = &self.identity;
        identity.version.store(VERSION, Ordering::Relaxed);
        let slots = super::SLOTS as u64;
        identity.slots.store(slots, Ordering::Relaxed);
        identity.magic.store(MAGIC, Ordering::Release);
    }

    fn check(&self) -> Result<(), AttachError> {
        let identity = &self.identity;
        let words = [&identity.magic, &identity.version, &identity.slots];
        let [magic, version, slots] = words.map(|word| word.load(Ordering::Acquire));
        if magic != MAGIC {
            return Err(AttachError::Magic(magic));
        }
        if version != VERSION {
            return Err(AttachError::Version(version));
        }
        if slots != super::SLOTS as u64 {
            return Err(AttachError::Slots(slots));
        }
        Ok(())
    }
}

/// The memory of a table, as long as it is mapped.
#[derive(Debug)]
pub(super) struct Table(Mapping);

impl Table {
    /// Creates an empty table and its file.
    pub(super) fn create() -> Result<(Self, OwnedFd), AttachError> {
        let file = sys::file::fixed("lasthop-iotlb", LEN)?;
        let table = Self(Mapping::shared(&file, LEN, 0)?);
        table.head().initialise();
        Ok((table, file))
    }

    /// An empty table on the heap, for tests and Miri.
    #[cfg(any(test, feature = "test-utils"))]
    pub(super) fn heap() -> Self {
        let table = Self(Mapping::heap(LEN));
        table.head().initialise();
        table
    }

    /// Maps the table in a file of another process. Its slots are not checked: readers find a
    /// wrong translation in them at worst, which is checked as a guest's address is.
    pub(super) fn map(file: &OwnedFd) -> Result<Self, AttachError> {
        if !sys::file::is_fixed(file.as_fd())? {
            return Err(AttachError::NotSealed);
        }
        let len = sys::file::len(file)?;
        if len != LEN {
            return Err(AttachError::Length(len));
        }
        let table = Self(Mapping::shared(file, LEN, 0)?);
        table.head().check()?;
        Ok(table)
    }

    #[inline]
    pub(super) fn head(&self) -> &Head {
        // SAFETY: the mapping has LEN bytes, starts on a page, and lives as long as the reference.
        // Its length is sealed (`map` checks it, `create` sets it), so all of it stays there. The
        // head consists of atomics, which permit writers in other processes.
        unsafe { &*self.0.as_ptr().cast::<Head>() }
    }

    /// Returns the set with this number. Panics after the last.
    #[inline]
    pub(super) fn set(&self, number: usize) -> &Set {
        assert!(number < SETS);
        let sets = self.0.as_ptr().wrapping_add(HEAD).cast::<Set>();
        // SAFETY: as above; the sets are behind the head, and aligned as it is.
        unsafe { &*sets.wrapping_add(number) }
    }
}

/// Entries of a table that its last writer has left, each with the number of its slot. They are
/// read from the file, and not from the mapping: an access by a mapping would allocate all pages of
/// the file.
pub(super) fn entries(file: &OwnedFd) -> Result<Vec<(usize, Block)>, AttachError> {
    let mut bytes = vec![0; LEN as usize - HEAD];
    let file = File::from(file.try_clone()?);
    file.read_exact_at(&mut bytes, HEAD as u64)?;
    let slots = bytes.as_chunks::<8>().0.iter();
    let words: Vec<u64> = slots.map(|word| u64::from_ne_bytes(*word)).collect();
    let mut found: Vec<(usize, Block)> = Vec::new();
    for (at, &[check, value]) in words.as_chunks::<2>().0.iter().enumerate() {
        if check == 0 {
            continue;
        }
        let set = at / WAYS;
        let block = Block::decode(check ^ value, value)
            .filter(|block| set_of(block.class, block.page) == set);
        let block = block.ok_or(AttachError::Garbage(at))?;
        let mut others = found.iter().rev().take_while(|(at, _)| at / WAYS == set);
        if others.any(|(_, other)| other.key() == block.key()) {
            return Err(AttachError::Garbage(at));
        }
        found.push((at, block));
    }
    Ok(found)
}

/// Returns the number of the set of the block that holds a page.
///
/// 512 neighbours are in as many sets, in an order of their own, so that they do not displace each
/// other. Groups of 512 are spread by a multiplication, which spreads consecutive ones evenly.
/// There is no secret in it: the addresses of one table are one guest's, which can harm itself
/// only.
#[inline]
pub(super) const fn set_of(class: Class, page: u64) -> usize {
    let number = page >> class.shift();
    let spread = (number >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SETS.ilog2());
    ((number & 511) ^ spread) as usize
}
