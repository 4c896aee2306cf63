//! Descriptors as private copies, and the checks that every one of them passes on its way into a
//! chain.

use memory::Segment;

use super::area::fetch_words;
use super::space::{Gap, Lack, Space};
use super::{MAX_CHAIN_BORDERS, MAX_CHAIN_BYTES, MAX_CHAIN_DESCRIPTORS, QueueFault, SegRange};

/// The chain continues (virtio 1.3, sections 2.7.5, 2.8.6).
pub(super) const NEXT: u16 = 1;
/// The device writes the buffer. In a used descriptor of a packed ring: it did.
pub(super) const WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub(super) const INDIRECT: u16 = 4;
/// The flags that decide how the descriptor is read.
pub(super) const KIND: u16 = NEXT | WRITE | INDIRECT;
/// Bytes of one descriptor.
pub(super) const DESC_LEN: u32 = 16;

/// A descriptor as it was fetched, once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Desc {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    /// Split: the next descriptor. Packed: the buffer id.
    pub(super) link: u16,
}

impl Desc {
    /// From the two words of a split descriptor: address; length, flags, next.
    #[inline]
    pub(super) fn split(addr: u64, rest: u64) -> Self {
        Self {
            addr,
            len: rest as u32,
            flags: (rest >> 32) as u16,
            link: (rest >> 48) as u16,
        }
    }

    /// From the two words of a packed descriptor: address; length, id, flags.
    #[inline]
    pub(super) fn packed(addr: u64, rest: u64) -> Self {
        Self {
            addr,
            len: rest as u32,
            flags: (rest >> 48) as u16,
            link: (rest >> 32) as u16,
        }
    }
}

/// Collects the buffers of one chain, checking each descriptor.
pub(super) struct Gather<'a, S> {
    space: &'a S,
    segs: &'a mut Vec<Segment>,
    start: usize,
    bytes: u64,
    descriptors: u32,
    /// Number of borders between regions that the buffers cross.
    borders: u32,
    writable: bool,
    /// The worst answer of the address space about an address.
    gap: Option<Gap>,
}

/// Result of gathering a chain.
pub(super) enum GatherResult {
    /// Its buffers, and their bytes.
    Buffers(SegRange, u32),
    /// The guest has not granted a part of it: it counts as empty. Its place in the arena.
    NotGranted(u32),
    /// A part is not translated yet: it is left where it is.
    Untranslated,
}

impl<'a, S: Space> Gather<'a, S> {
    pub(super) fn new(space: &'a S, segs: &'a mut Vec<Segment>, writable: bool) -> Self {
        Self {
            space,
            start: segs.len(),
            segs,
            bytes: 0,
            descriptors: 0,
            borders: 0,
            writable,
            gap: None,
        }
    }

    /// Checks one direct descriptor and appends its buffer.
    #[inline(never)]
    pub(super) fn add(&mut self, desc: &Desc) -> Result<(), QueueFault> {
        self.check_direction(desc.flags & WRITE != 0)?;
        self.descriptors += 1;
        if self.descriptors > MAX_CHAIN_DESCRIPTORS {
            return Err(QueueFault::ChainTooLong);
        }
        if desc.len == 0 {
            return Err(QueueFault::ZeroLength);
        }
        self.bytes += u64::from(desc.len);
        if self.bytes > u64::from(MAX_CHAIN_BYTES) {
            return Err(QueueFault::ChainTooLarge);
        }
        match self.space.buffer(desc.addr, desc.len, self.writable) {
            Some(segment) => self.segs.push(segment),
            None => self.add_pieces(desc)?,
        }
        Ok(())
    }

    /// Appends a buffer that lies in several pieces.
    #[cold]
    fn add_pieces(&mut self, desc: &Desc) -> Result<(), QueueFault> {
        let before = self.segs.len();
        let space = self.space;
        match space.buffer_into(desc.addr, desc.len, self.writable, self.segs) {
            Ok(()) => {}
            Err(Lack::Unmapped) => return Err(QueueFault::UnmappedAddress),
            Err(Lack::Gap(gap)) => {
                // The rest of the chain is gathered on: all that it lacks is asked for at once.
                self.gap = self.gap.max(Some(gap));
                return Ok(());
            }
        }
        self.borders += (self.segs.len() - before - 1) as u32;
        if self.borders > MAX_CHAIN_BORDERS {
            return Err(QueueFault::TooManyPieces);
        }
        Ok(())
    }

    /// Returns whether the device writes the chain.
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    fn check_direction(&self, writable: bool) -> Result<(), QueueFault> {
        match (self.writable, writable) {
            (false, true) => Err(QueueFault::WritableInReadable),
            (true, false) if self.descriptors > 0 => Err(QueueFault::ReadableAfterWritable),
            (true, false) => Err(QueueFault::ReadableInWritable),
            _ => Ok(()),
        }
    }

    /// Returns the chain: the range of the caller's arena that it fills, and its bytes.
    pub(super) fn finish(&mut self) -> GatherResult {
        match self.gap {
            None => {}
            Some(Gap::NotGranted) => {
                self.abandon();
                return GatherResult::NotGranted(self.start as u32);
            }
            Some(gap) => {
                self.abandon();
                self.space.left(gap);
                return GatherResult::Untranslated;
            }
        }
        let range = SegRange {
            start: self.start as u32,
            len: (self.segs.len() - self.start) as u32,
        };
        // At most MAX_CHAIN_BYTES, checked in `add`.
        GatherResult::Buffers(range, self.bytes as u32)
    }

    /// Returns the number of descriptors.
    pub(super) fn descriptors(&self) -> u32 {
        self.descriptors
    }

    /// Removes the buffers that were appended.
    pub(super) fn abandon(&mut self) {
        self.segs.truncate(self.start);
    }

    /// Opens the indirect table that `desc` refers to.
    pub(super) fn table(&self, desc: &Desc) -> Result<Table, QueueFault> {
        if desc.len == 0 || !desc.len.is_multiple_of(DESC_LEN) {
            return Err(QueueFault::IndirectLength);
        }
        Ok(Table {
            addr: desc.addr,
            whole: self.space.buffer(desc.addr, desc.len, false),
            entries: desc.len / DESC_LEN,
        })
    }

    /// Returns the words of entry `at` of a table, fetched once; `None`, and the chain ends there,
    /// when the guest has not granted it, or it is not translated yet.
    #[inline(always)]
    pub(super) fn entry(
        &mut self,
        table: &Table,
        at: u32,
    ) -> Result<Option<(u64, u64)>, QueueFault> {
        debug_assert!(at < table.entries);
        let offset = at * DESC_LEN;
        let Some(whole) = table.whole else {
            return self.entry_in_pieces(table, offset);
        };
        let piece = whole.slice(offset, DESC_LEN);
        // SAFETY: the table is a piece that was found mapped in the memory of the address space,
        // which is borrowed; `at < entries` keeps the entry inside.
        Ok(Some(unsafe { fetch_words(piece.ptr) }))
    }

    #[cold]
    fn entry_in_pieces(
        &mut self,
        table: &Table,
        offset: u32,
    ) -> Result<Option<(u64, u64)>, QueueFault> {
        let addr = table.addr.checked_add(u64::from(offset));
        match self
            .space
            .descriptor(addr.ok_or(QueueFault::UnmappedTable)?)
        {
            Ok(words) => Ok(Some(words)),
            Err(Lack::Unmapped) => Err(QueueFault::UnmappedTable),
            Err(Lack::Gap(gap)) => {
                self.gap = self.gap.max(Some(gap));
                Ok(None)
            }
        }
    }
}

/// An indirect table in guest memory.
pub(super) struct Table {
    addr: u64,
    /// The table in one piece; a table in several is resolved entry by entry.
    whole: Option<Segment>,
    entries: u32,
}

impl Table {
    pub(super) fn entries(&self) -> u32 {
        self.entries
    }
}
