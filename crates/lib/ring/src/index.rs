//! Index arithmetic. Indices count bytes since the ring was made, modulo 2^64, and are always
//! multiples of [`ALIGN`]; the difference of two of them is meaningful across the overflow.

use std::ops::RangeInclusive;

use crate::fault::RingFault;

/// Records start at multiples of this many bytes; their length word takes as many.
pub(crate) const ALIGN: u64 = 8;

/// Returns the bytes that a record with `len` bytes of content takes in the ring; `None` when the
/// sum does not fit in 64 bits.
pub(crate) fn record_bytes(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(ALIGN)?.checked_add(ALIGN)
}

/// Returns the word of the data area at which `index` lies. `capacity` is a power of two.
pub(crate) fn data_word(capacity: u64, index: u64) -> usize {
    ((index & (capacity - 1)) / ALIGN) as usize
}

/// Returns the number of the `count` words from `index` on that lie before the end of the data
/// area; the others are at its begin. `capacity` is a power of two, and `count` words fit in it.
pub(crate) fn words_to_end(capacity: u64, index: u64, count: usize) -> usize {
    count.min((capacity / ALIGN) as usize - data_word(capacity, index))
}

/// Returns the bytes in the ring between `tail` and `head`, if they are among the `possible`: after
/// the consumer has moved they can only be fewer, after the producer has moved only more.
pub(crate) fn filled(
    capacity: u64,
    head: u64,
    tail: u64,
    possible: RangeInclusive<u64>,
) -> Result<u64, RingFault> {
    let filled = head.wrapping_sub(tail);
    if filled <= capacity && !(head | tail).is_multiple_of(ALIGN) {
        return Err(RingFault::IndexAlignment);
    }
    if filled > capacity || !possible.contains(&filled) {
        return Err(RingFault::IndexJump);
    }
    Ok(filled)
}

/// Checks a record's length word against the `available` bytes from its start on (a multiple of
/// [`ALIGN`]); returns the bytes that the record takes in the ring.
pub(crate) fn check_record(len: u64, available: u64) -> Result<u64, RingFault> {
    match record_bytes(len) {
        Some(bytes) if bytes <= available => Ok(bytes),
        _ => Err(RingFault::RecordLength),
    }
}
