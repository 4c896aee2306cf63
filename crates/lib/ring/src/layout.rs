//! The layout of the shared memory, as drawn in the crate's documentation.

use std::mem::{offset_of, size_of};

use crate::fault::SetupError;
use crate::memory::RingMemory;
use crate::sync::Ordering;

/// First word of every ring. The bytes that are not letters keep text files from matching.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"LHRING\0\x01");

/// Version of this layout. Both ends come from one build, so only equality is accepted.
pub const VERSION: u64 = 1;

/// Smallest data area in bytes.
pub const MIN_CAPACITY: u64 = 64;

/// Largest data area in bytes.
pub const MAX_CAPACITY: u64 = 1 << 30;

/// The header of a ring. Never instantiated: it gives the offsets.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`]; written by the creator, after everything else.
    pub magic: u64,
    /// [`VERSION`]; written by the creator.
    pub version: u64,
    /// Bytes of data; written by the creator.
    pub capacity: u64,
    /// Zero. Keeps the producer's line apart, also from the adjacent-line prefetcher.
    pub reserved0: [u64; 13],
    /// Bytes ever produced; written by the producer.
    pub head: u64,
    /// Zero.
    pub reserved1: [u64; 15],
    /// Bytes ever consumed; written by the consumer.
    pub tail: u64,
    /// Number of the consumer's sleep, odd while it lasts; written by the consumer.
    pub sleep: u64,
    /// Zero.
    pub reserved2: [u64; 30],
}

const WORD: usize = size_of::<u64>();

pub(crate) const MAGIC_WORD: usize = offset_of!(Header, magic) / WORD;
pub(crate) const VERSION_WORD: usize = offset_of!(Header, version) / WORD;
pub(crate) const CAPACITY_WORD: usize = offset_of!(Header, capacity) / WORD;
pub(crate) const HEAD_WORD: usize = offset_of!(Header, head) / WORD;
pub(crate) const TAIL_WORD: usize = offset_of!(Header, tail) / WORD;
pub(crate) const SLEEP_WORD: usize = offset_of!(Header, sleep) / WORD;
pub(crate) const DATA_WORD: usize = size_of::<Header>() / WORD;

// The ABI, pinned.
const _: () = assert!(offset_of!(Header, magic) == 0);
const _: () = assert!(offset_of!(Header, version) == 8);
const _: () = assert!(offset_of!(Header, capacity) == 16);
const _: () = assert!(offset_of!(Header, head) == 128);
const _: () = assert!(offset_of!(Header, tail) == 256);
const _: () = assert!(offset_of!(Header, sleep) == 264);
const _: () = assert!(size_of::<Header>() == 512);
const _: () = assert!(MIN_CAPACITY.is_power_of_two() && MAX_CAPACITY.is_power_of_two());

/// Returns the bytes of memory that a ring with `capacity` bytes of data needs.
///
/// # Errors
///
/// [`SetupError::Capacity`] when `capacity` is not allowed.
pub fn memory_len(capacity: u64) -> Result<usize, SetupError> {
    if !capacity.is_power_of_two() || !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) {
        return Err(SetupError::Capacity);
    }
    Ok(size_of::<Header>() + capacity as usize)
}

/// Creates an empty ring with `capacity` bytes of data in `memory`. Call it before either end is
/// attached; both indices start at 0.
///
/// # Errors
///
/// [`SetupError::Capacity`] or [`SetupError::TooShort`].
pub fn format(memory: &RingMemory, capacity: u64) -> Result<(), SetupError> {
    format_at(memory, capacity, 0)
}

/// Creates a ring as [`format()`] does, with both indices at `start`, so that tests reach the
/// overflow.
pub(crate) fn format_at(memory: &RingMemory, capacity: u64, start: u64) -> Result<(), SetupError> {
    if memory.len() < memory_len(capacity)? {
        return Err(SetupError::TooShort);
    }
    memory.word(MAGIC_WORD).store(0, Ordering::Relaxed);
    memory.word(VERSION_WORD).store(VERSION, Ordering::Relaxed);
    memory
        .word(CAPACITY_WORD)
        .store(capacity, Ordering::Relaxed);
    memory.word(HEAD_WORD).store(start, Ordering::Relaxed);
    memory.word(TAIL_WORD).store(start, Ordering::Relaxed);
    memory.word(SLEEP_WORD).store(0, Ordering::Relaxed);
    memory.word(MAGIC_WORD).store(MAGIC, Ordering::Release);
    Ok(())
}

/// Checks the header and returns the capacity. The peer may change the header later, which has
/// no effect: it is never read again.
pub(crate) fn check(memory: &RingMemory) -> Result<u64, SetupError> {
    if memory.len() < size_of::<Header>() {
        return Err(SetupError::TooShort);
    }
    if memory.word(MAGIC_WORD).load(Ordering::Acquire) != MAGIC {
        return Err(SetupError::Magic);
    }
    if memory.word(VERSION_WORD).load(Ordering::Relaxed) != VERSION {
        return Err(SetupError::Version);
    }
    let capacity = memory.word(CAPACITY_WORD).load(Ordering::Relaxed);
    if memory.len() < memory_len(capacity)? {
        return Err(SetupError::TooShort);
    }
    Ok(capacity)
}
