//! A keyed hash of eight words by multiply and fold.
//!
//! Each pair of words is mixed with two secret words and multiplied to 128 bits, whose halves are
//! then folded. Every factor contains secret bits: a guest cannot choose a word that makes a factor
//! zero and so hides the other one, as it could with constants that everybody knows.

/// Odd constants with about half of their bits set (fractions of square roots of primes), one a word.
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
    // Eight secrets from one: the seed goes through a multiplication first, so that near seeds differ everywhere.
    let secret = fold(seed ^ SALT[1], SALT[2]) ^ seed;
    let s = |i: usize| secret.rotate_left(8 * i as u32 + 1) ^ SALT[i];
    let pair = |i: usize| fold(w[i] ^ s(i), w[i + 1] ^ s(i + 1));
    let left = fold(pair(0) ^ s(5), pair(2).rotate_left(29) ^ s(6));
    let right = fold(pair(4) ^ s(3), pair(6).rotate_left(31) ^ s(7));
    fold(left ^ s(1), right ^ s(4))
}
