//! Random models and keys, compared with the oracle. `ACL_CASES=200000` in the environment compares
//! millions of keys.

use crate::acl::oracle;

/// Enough bytes for a large case; zeros follow.
const BYTES: usize = 4096;

/// Returns pseudo-random bytes: SplitMix64.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    });
    words.take(BYTES / 8).flat_map(u64::to_le_bytes).collect()
}

#[test]
fn rules_say_what_the_oracle_says() {
    let desired = std::env::var("ACL_CASES").ok();
    let cases = desired.map_or(1000, |text| text.parse().expect("ACL_CASES is a number"));
    let first: u64 = std::env::var("ACL_FIRST").map_or(0, |text| text.parse().expect("a number"));
    let compared: usize = (first..first + cases)
        .map(|seed| oracle::check(&bytes(seed)))
        .sum();
    assert!(compared as u64 >= 40 * cases);
}
