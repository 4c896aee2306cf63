//! Descriptors as private copies, and the checks that every one of them passes on its way into a
//! chain.

use memory::{GuestMemory, Segment};

use super::area::fetch_words;
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
pub(super) struct Gather<'a> {
    mem: &'a GuestMemory,
    segs: &'a mut Vec<Segment>,
    start: usize,
    bytes: u64,
    descriptors: u32,
    /// Number of borders between regions that the buffers cross.
    borders: u32,
    writable: bool,
}

impl<'a> Gather<'a> {
    pub(super) fn new(mem: &'a GuestMemory, segs: &'a mut Vec<Segment>, writable: bool) -> Self {
        Self {
            mem,
            start: segs.len(),
            segs,
            bytes: 0,
            descriptors: 0,
            borders: 0,
            writable,
        }
    }

    /// Checks one direct descriptor and appends its buffer.
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
        match self.mem.translate(desc.addr, desc.len) {
            Some(segment) => self.segs.push(segment),
            None => self.add_across(desc)?,
        }
        Ok(())
    }

    /// Appends a buffer that lies in several regions.
    #[cold]
    fn add_across(&mut self, desc: &Desc) -> Result<(), QueueFault> {
        let before = self.segs.len();
        if !self.mem.translate_into(desc.addr, desc.len, self.segs) {
            return Err(QueueFault::UnmappedAddress);
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

    /// Returns the range of the caller's arena that the chain fills, and its bytes.
    pub(super) fn finish(&self) -> (SegRange, u32) {
        let range = SegRange {
            start: self.start as u32,
            len: (self.segs.len() - self.start) as u32,
        };
        // At most MAX_CHAIN_BYTES, checked in `add`.
        (range, self.bytes as u32)
    }

    /// Removes the buffers that were appended.
    pub(super) fn abandon(&mut self) {
        self.segs.truncate(self.start);
    }

    /// Opens the indirect table that `desc` refers to.
    pub(super) fn table(&self, desc: &Desc) -> Result<Table<'a>, QueueFault> {
        if desc.len == 0 || !desc.len.is_multiple_of(DESC_LEN) {
            return Err(QueueFault::IndirectLength);
        }
        Ok(Table {
            mem: self.mem,
            addr: desc.addr,
            whole: self.mem.translate(desc.addr, desc.len),
            entries: desc.len / DESC_LEN,
        })
    }
}

/// An indirect table in guest memory.
pub(super) struct Table<'a> {
    mem: &'a GuestMemory,
    addr: u64,
    /// The table in one piece; a table across two regions is resolved entry by entry.
    whole: Option<Segment>,
    entries: u32,
}

impl Table<'_> {
    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the words of entry `at`, fetched once.
    pub(super) fn entry(&self, at: u32) -> Result<(u64, u64), QueueFault> {
        debug_assert!(at < self.entries);
        let offset = at * DESC_LEN;
        let piece = match self.whole {
            Some(whole) => whole.slice(offset, DESC_LEN),
            None => self
                .addr
                .checked_add(u64::from(offset))
                .and_then(|addr| self.mem.translate(addr, DESC_LEN))
                .ok_or(QueueFault::UnmappedTable)?,
        };
        // SAFETY: `piece` is 16 bytes that `translate` found mapped in `mem`, which is borrowed for
        // the table's life; `at < entries` keeps it inside `whole`.
        Ok(unsafe { fetch_words(piece.ptr) })
    }
}
