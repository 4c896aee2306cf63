//! Hashes and pseudo-random numbers that are the same in every process and after every restart.
//! Neither is for secrets, nor for hash tables whose keys others choose.

/// The hash of no bytes: the offset basis of [`fnv1a`].
pub const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a of 64 bits (draft-eastlake-fnv): the hash `before`, at first [`BASIS`], with these bytes
/// added.
#[must_use]
pub fn fnv1a(before: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.into_iter().fold(before, step)
}

/// Pseudo-random numbers that a seed repeats: SplitMix64 (Steele, Lea, Flood: Fast Splittable
/// Pseudorandom Number Generators, 2014).
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number below `end`; zero if `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }

    /// Returns a number above 0 and at most 1.
    pub fn fraction(&mut self) -> f64 {
        ((self.number() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_draft() {
        assert_eq!(fnv1a(BASIS, *b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(BASIS, *b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(BASIS, *b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(
            fnv1a(fnv1a(BASIS, *b"foo"), *b"bar"),
            fnv1a(BASIS, *b"foobar")
        );
    }

    #[test]
    fn numbers_are_those_of_the_reference() {
        let mut numbers = SplitMix64(1_234_567);
        let first = [0; 3].map(|_| numbers.number());
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(first, expected);
    }

    #[test]
    fn numbers_keep_their_bounds() {
        let mut numbers = SplitMix64(0);
        assert_eq!(numbers.below(0), 0);
        for _ in 0..1000 {
            assert!(numbers.below(3) < 3);
            let fraction = numbers.fraction();
            assert!(fraction > 0.0 && fraction <= 1.0);
        }
    }
}
