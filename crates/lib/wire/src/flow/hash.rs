//! A keyed hash of eight words by multiply and fold.
//!
//! Each pair of words is mixed with two secret words and multiplied to 128 bits, whose halves are
//! then folded. Every factor contains secret bits: a guest cannot choose a word that makes a factor
//! zero and so hides the other one, as it could with constants that everybody knows.

use super::{FlowKey, FlowMask};

/// Odd constants with about half of their bits set (fractions of square roots of primes), one a
/// word.
const SALT: [u64; 8] = [
    0x6a09_e667_f3bc_c909,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    wide as u64 ^ (wide >> 64) as u64
}

#[inline]
pub(super) fn hash(w: &[u64; 8], seed: u64) -> u64 {
    // Eight secrets from one: the seed goes through a multiplication first, so that near seeds
    // differ everywhere.
    let secret = fold(seed ^ SALT[1], SALT[2]) ^ seed;
    let s = |i: usize| secret.rotate_left(8 * i as u32 + 1) ^ SALT[i];
    let pair = |i: usize| fold(w[i] ^ s(i), w[i + 1] ^ s(i + 1));
    let left = fold(pair(0) ^ s(5), pair(2).rotate_left(29) ^ s(6));
    let right = fold(pair(4) ^ s(3), pair(6).rotate_left(31) ^ s(7));
    fold(left ^ s(1), right ^ s(4))
}

/// Hashes the bits of a key that one mask counts.
///
/// The words are added to secret ones, multiplied in pairs, and the 128-bit products summed: the NH
/// hash of UMAC (RFC 4418, section 5.2, there with 32-bit words), for which the chance that two
/// keys meet is 2^-64 over the secrets, whatever the keys are. A guest that does not know the seed
/// cannot aim at a set. Masks that look at Ethernet alone need two products, others four.
#[derive(Clone, Copy, Debug)]
pub struct MaskedHash {
    mask: FlowMask,
    secrets: [u64; 10],
    long: bool,
}

impl MaskedHash {
    /// A hash for `mask`. `seed` must be secret and random; another `seed` gives another hash.
    #[must_use]
    pub fn new(mask: &FlowMask, seed: u64) -> Self {
        let mut state = fold(seed ^ SALT[1], SALT[2]) ^ seed;
        let secrets = std::array::from_fn(|i| {
            state = state.wrapping_add(SALT[3]);
            fold(state ^ SALT[i % 8], state.rotate_left(23) ^ SALT[7 - i % 8]) ^ seed
        });
        Self {
            mask: *mask,
            secrets,
            long: mask.is_long(),
        }
    }

    /// The mask.
    #[inline]
    #[must_use]
    pub const fn mask(&self) -> &FlowMask {
        &self.mask
    }

    /// [`FlowMask::is_long`], known beforehand.
    #[inline]
    #[must_use]
    pub const fn is_long(&self) -> bool {
        self.long
    }

    /// The hash of what the mask counts of `key`: the same for all keys that agree there.
    // Always: for each frame; with more callers the compiler would keep it apart.
    #[inline(always)]
    #[must_use]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        // Word by word: keys are hashed right after they were stored in words, and a core that
        // loads two of them at once, as the compiler would have it, waits until they have reached
        // the cache.
        let term = |i: usize| {
            let word = std::hint::black_box(key.words()[i]) & self.mask.words()[i];
            u128::from(word.wrapping_add(self.secrets[i]))
        };
        let product = |i: usize| term(i) * term(i + 1);
        let mut sum = product(0).wrapping_add(product(2));
        if self.long {
            sum = sum.wrapping_add(product(4)).wrapping_add(product(6));
        }
        fold(
            sum as u64 ^ self.secrets[8],
            (sum >> 64) as u64 ^ self.secrets[9],
        )
    }
}
