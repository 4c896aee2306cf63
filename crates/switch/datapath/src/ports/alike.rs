//! Consecutive plain packets that need one lookup, compared in registers.

use wire::flow::{PLAIN_HEAD, PlainHead, PlainMask};

use super::batch::Frame;

/// Bits that all of them share; see [`PlainHead`].
#[derive(Clone, Copy, Debug)]
pub struct CommonBits {
    own: Block,
    mask: Block,
    plain: PlainHead,
}

impl CommonBits {
    /// Returns the comparison with a frame, which has a key by
    /// [`FlowKey::of_plain_ipv4`](wire::flow::FlowKey::of_plain_ipv4). `None` if more of the frame
    /// than its first bytes must be examined.
    #[inline(always)]
    #[must_use]
    pub fn new(mask: &PlainMask, frame: &Frame) -> Option<Self> {
        let head = frame.plain_head()?;
        let plain = PlainHead::new(mask, head);
        Some(Self {
            own: Block::new(head),
            mask: Block::of_words(&plain.mask),
            plain,
        })
    }

    /// Returns whether a frame is equal in these bits.
    #[inline(always)]
    #[must_use]
    pub fn has(&self, frame: &Frame) -> bool {
        let Some(head) = frame.plain_head() else {
            return false;
        };
        self.own.agrees(&Block::new(head), &self.mask)
            && self.plain.fits(head, frame.len() as usize)
    }
}

/// The first bytes of a packet.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
struct Block([std::arch::x86_64::__m128i; PLAIN_HEAD / 16]);

#[cfg(target_arch = "x86_64")]
impl Block {
    #[inline(always)]
    fn new(head: &[u8; PLAIN_HEAD]) -> Self {
        let (thirds, _) = head.as_chunks::<16>();
        Self(std::array::from_fn(|i| {
            // SAFETY: every x86-64 CPU has SSE2, and the load, of any alignment, is of these 16
            // bytes.
            unsafe { std::arch::x86_64::_mm_loadu_si128(thirds[i].as_ptr().cast()) }
        }))
    }

    /// Returns whether both are equal in the bits of a mask.
    #[inline(always)]
    fn agrees(&self, other: &Self, mask: &Self) -> bool {
        use std::arch::x86_64::*;
        // SAFETY: every x86-64 CPU has SSE2.
        unsafe {
            let differ = |i: usize| _mm_and_si128(_mm_xor_si128(self.0[i], other.0[i]), mask.0[i]);
            let all = _mm_or_si128(_mm_or_si128(differ(0), differ(1)), differ(2));
            _mm_movemask_epi8(_mm_cmpeq_epi8(all, _mm_setzero_si128())) == 0xffff
        }
    }
}

/// The first bytes of a packet.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug)]
struct Block([u64; PLAIN_HEAD / 8]);

#[cfg(not(target_arch = "x86_64"))]
impl Block {
    #[inline(always)]
    fn new(head: &[u8; PLAIN_HEAD]) -> Self {
        let (words, _) = head.as_chunks::<8>();
        Self(std::array::from_fn(|i| u64::from_le_bytes(words[i])))
    }

    /// Returns whether both are equal in the bits of a mask.
    #[inline(always)]
    fn agrees(&self, other: &Self, mask: &Self) -> bool {
        let differ = |i: usize| (self.0[i] ^ other.0[i]) & mask.0[i];
        (0..self.0.len()).fold(0, |all, i| all | differ(i)) == 0
    }
}

impl Block {
    #[inline(always)]
    fn of_words(words: &[u64; PLAIN_HEAD / 8]) -> Self {
        let mut bytes = [0; PLAIN_HEAD];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        Self::new(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_counts_that_the_mask_has_and_no_other() {
        let head: [u8; PLAIN_HEAD] = std::array::from_fn(|i| (i as u8).wrapping_mul(7));
        for at in 0..PLAIN_HEAD * 8 {
            let mut other = head;
            other[at / 8] ^= 1 << (at % 8);
            for counted in [at, (at + 1) % (PLAIN_HEAD * 8)] {
                let mut mask = [0; PLAIN_HEAD];
                mask[counted / 8] = 1 << (counted % 8);
                let agrees = Block::new(&head).agrees(&Block::new(&other), &Block::new(&mask));
                assert_eq!(agrees, counted != at, "bit {at} with {counted}");
            }
        }
        let words = std::array::from_fn(|i| u64::from_le_bytes(head.as_chunks().0[i]));
        let (own, all) = (Block::new(&head), Block::new(&[0xff; PLAIN_HEAD]));
        assert!(Block::of_words(&words).agrees(&own, &all));
    }
}
