//! Reading and writing big-endian fields.

/// The two bytes at `at` of a fixed-size header; `at` is a constant of the caller, so the bounds
/// check folds away.
#[inline]
pub(crate) fn be16<const N: usize>(b: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

/// The four bytes at `at` of a fixed-size header.
#[inline]
pub(crate) fn be32<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// `M` bytes at `at` of a fixed-size header.
#[inline]
pub(crate) fn array<const N: usize, const M: usize>(b: &[u8; N], at: usize) -> [u8; M] {
    std::array::from_fn(|i| b[at + i])
}

/// Writes `v` at `at`; nothing when it does not fit.
#[inline]
pub(crate) fn put16(b: &mut [u8], at: usize, v: u16) {
    if let Some(d) = b.get_mut(at..).and_then(|d| d.first_chunk_mut::<2>()) {
        *d = v.to_be_bytes();
    }
}

/// Writes `v` at `at`; nothing when it does not fit.
#[inline]
pub(crate) fn put32(b: &mut [u8], at: usize, v: u32) {
    if let Some(d) = b.get_mut(at..).and_then(|d| d.first_chunk_mut::<4>()) {
        *d = v.to_be_bytes();
    }
}
