//! The Internet checksum (RFC 1071) over bytes that come in pieces.

use crate::bytes::put16;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A one's complement sum in progress.
///
/// Pieces of any length may follow each other: a piece after an odd number of bytes is swapped into
/// place (RFC 1071 section 2 (B)). Fields added as numbers count as if at an even offset and do not
/// move the position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Sum of big-endian 16-bit words, not folded. Each addition is below 2^32, so 2^32 of them
    /// fit.
    acc: u64,
    /// Whether an odd number of bytes was added.
    odd: bool,
}

impl Sum {
    /// An empty sum.
    #[inline]
    pub const fn new() -> Self {
        Self { acc: 0, odd: false }
    }

    /// The sum of `bytes` alone.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        let mut s = Self::new();
        s.add_bytes(bytes);
        s
    }

    /// Adds the bytes that follow those added before.
    #[inline]
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        // Summed as little-endian words; in one's complement that is the big-endian sum, swapped.
        self.append(
            fold(sum_le(bytes)).swap_bytes(),
            !bytes.len().is_multiple_of(2),
        );
    }

    /// Adds what `next` has summed, as bytes that follow those added before.
    #[inline]
    pub fn add_sum(&mut self, next: Sum) {
        self.append(next.fold(), next.odd);
    }

    #[inline]
    fn append(&mut self, words: u16, odd: bool) {
        self.acc += u64::from(if self.odd { words.swap_bytes() } else { words });
        self.odd ^= odd;
    }

    /// Adds a 16-bit field.
    #[inline]
    pub fn add_u16(&mut self, v: u16) {
        self.acc += u64::from(v);
    }

    /// Adds a 32-bit field.
    #[inline]
    pub fn add_u32(&mut self, v: u32) {
        self.acc += u64::from(v >> 16) + u64::from(v & 0xffff);
    }

    /// The IPv4 pseudo-header (RFC 9293 section 3.1); `len` is the bytes of transport header and
    /// payload.
    #[inline]
    pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u32) -> Self {
        let mut s = Self::new();
        s.add_u32(src.to_bits());
        s.add_u32(dst.to_bits());
        s.add_u16(u16::from(protocol));
        s.add_u32(len);
        s
    }

    /// The IPv6 pseudo-header (RFC 8200 section 8.1); `len` is the bytes of transport header and
    /// payload.
    #[inline]
    pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u32) -> Self {
        let mut s = Self::of(&src.octets());
        s.add_bytes(&dst.octets());
        s.add_u16(u16::from(protocol));
        s.add_u32(len);
        s
    }

    /// The sum in 16 bits, not complemented: what a virtio driver leaves in the checksum field.
    #[inline]
    pub fn fold(self) -> u16 {
        fold(self.acc)
    }

    /// The checksum. Over data with a right checksum in place it is zero.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.fold()
    }

    /// The checksum for a field where zero means "none" (UDP): zero becomes 0xffff, its other form.
    #[inline]
    pub fn finish_udp(self) -> u16 {
        match self.finish() {
            0 => 0xffff,
            v => v,
        }
    }
}

/// Returns the sum of 32-bit little-endian words, so also of 16-bit ones. Four accumulators, which
/// the compiler vectorises.
#[inline]
fn sum_le(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut lanes = [0u64; 4];
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane += halves(u64::from_le_bytes(*word));
        }
    }
    let (words, rest) = rest.as_chunks::<8>();
    let words: u64 = words.iter().map(|w| halves(u64::from_le_bytes(*w))).sum();
    lanes.iter().sum::<u64>() + words + sum_tail(rest)
}

/// Returns the sum of fewer than eight bytes.
#[inline]
fn sum_tail(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let words: u64 = words
        .iter()
        .map(|w| u64::from(u16::from_le_bytes(*w)))
        .sum();
    words + rest.first().map_or(0, |b| u64::from(*b))
}

#[inline]
fn halves(w: u64) -> u64 {
    (w & 0xffff_ffff) + (w >> 32)
}

/// Folds with end-around carry.
#[inline]
fn fold(v: u64) -> u16 {
    let v = halves(halves(v));
    let v = (v & 0xffff) + (v >> 16);
    let v = (v & 0xffff) + (v >> 16);
    ((v & 0xffff) + (v >> 16)) as u16
}

/// The checksum field or its start does not lie within the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checksum field lies outside the headers")]
pub struct PartialError;

/// Completes a checksum that a virtio driver left to the device (`VIRTIO_NET_HDR_F_NEEDS_CSUM`,
/// virtio 1.3 section 5.1.6.2): the field at `csum_start + csum_offset` holds the pseudo-header's
/// sum; the checksum covers everything from `csum_start`. `payload` is the sum of the frame's bytes
/// after `headers`, up to the end of what the checksum covers.
///
/// A zero result is written as 0xffff, which is the same number and right for UDP too.
///
/// # Errors
/// [`PartialError`], with nothing changed, when the field ends beyond `headers`.
pub fn complete_partial(
    headers: &mut [u8],
    csum_start: u16,
    csum_offset: u16,
    payload: Sum,
) -> Result<(), PartialError> {
    let start = usize::from(csum_start);
    let field = start + usize::from(csum_offset);
    if field + 2 > headers.len() {
        return Err(PartialError);
    }
    let mut sum = Sum::of(&headers[start..]);
    sum.add_sum(payload);
    put16(headers, field, sum.finish_udp());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071, word by word.
    fn slow(bytes: &[u8]) -> u16 {
        let mut acc = 0u32;
        for pair in bytes.chunks(2) {
            acc += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            acc = (acc & 0xffff) + (acc >> 16);
        }
        acc as u16
    }

    #[test]
    fn example_of_rfc_1071() {
        assert_eq!(
            Sum::of(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]).fold(),
            0xddf2
        );
        assert_eq!((Sum::new().fold(), Sum::new().finish()), (0, 0xffff));
        assert_eq!(
            (
                Sum::of(&[0xff, 0xff]).finish(),
                Sum::of(&[0xff, 0xff]).finish_udp()
            ),
            (0, 0xffff)
        );
    }

    #[test]
    fn a_long_run_of_ones_does_not_overflow() {
        let ones = vec![0xff; 1 << 20];
        assert_eq!(Sum::of(&ones).fold(), 0xffff);
    }

    #[test]
    fn a_partial_checksum_outside_the_headers_is_refused() {
        for (start, offset) in [(19, 0), (0, 19), (20, 0), (u16::MAX, u16::MAX)] {
            let mut headers = [7; 20];
            assert_eq!(
                complete_partial(&mut headers, start, offset, Sum::new()),
                Err(PartialError)
            );
            assert_eq!(headers, [7; 20]);
        }
        assert_eq!(complete_partial(&mut [0; 20], 18, 0, Sum::new()), Ok(()));
    }

    proptest! {
        #[test]
        fn equals_the_slow_sum(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(Sum::of(&bytes).fold(), slow(&bytes));
        }

        #[test]
        fn pieces_add_up(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            mut cuts in prop::collection::vec(0usize..200, 0..6),
        ) {
            cuts.sort_unstable();
            let (mut by_bytes, mut by_sums, mut at) = (Sum::new(), Sum::new(), 0);
            for cut in cuts.into_iter().chain([bytes.len()]) {
                let cut = cut.min(bytes.len());
                by_bytes.add_bytes(&bytes[at..cut]);
                by_sums.add_sum(Sum::of(&bytes[at..cut]));
                at = cut;
            }
            prop_assert_eq!(by_bytes.fold(), slow(&bytes));
            prop_assert_eq!(by_sums.fold(), slow(&bytes));
        }
    }
}
