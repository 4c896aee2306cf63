//! Random models and keys, compared with the oracle. `ACL_CASES=200000` in the environment compares
//! millions of keys.

use wire::hash::SplitMix64;

use crate::acl::oracle;

/// Enough bytes for a large case; zeros follow.
const BYTES: usize = 4096;

/// Returns pseudo-random bytes.
fn bytes(seed: u64) -> Vec<u8> {
    let mut numbers = SplitMix64(seed);
    let words = std::iter::repeat_with(|| numbers.number());
    words.take(BYTES / 8).flat_map(u64::to_le_bytes).collect()
}

/// Runs a check of cases, this number by default; returns the numbers of compared keys and cases.
fn compared(default: u64, check: impl Fn(&[u8]) -> usize) -> (u64, u64) {
    let desired = std::env::var("ACL_CASES").ok();
    let cases = desired.map_or(default, |text| text.parse().expect("ACL_CASES is a number"));
    let first: u64 = std::env::var("ACL_FIRST").map_or(0, |text| text.parse().expect("a number"));
    let compared = (first..first + cases).map(|seed| check(&bytes(seed)));
    (compared.sum::<usize>() as u64, cases)
}

#[test]
fn rules_say_what_the_oracle_says() {
    let (compared, cases) = compared(1000, oracle::check);
    assert!(compared >= 40 * cases);
}

#[test]
fn frames_that_agree_with_a_denied_one_are_dropped() {
    let tracked = std::cell::Cell::new(0);
    let (denied, cases) = compared(1000, |data| {
        let (denied, of_new) = oracle::check_denied(data);
        tracked.set(tracked.get() + of_new);
        denied
    });
    assert!(denied >= cases, "{denied}");
    assert!(tracked.get() as u64 >= cases / 20, "{tracked:?}");
}

#[test]
fn connections_are_let_in_as_the_oracle_says() {
    let (compared, cases) = compared(300, oracle::check_connections);
    assert!(compared >= 20 * cases);
}
