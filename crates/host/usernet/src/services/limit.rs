//! A bound on errors that are sent to guests (RFC 4443, section 2.4 f): a token bucket, as that
//! section describes it.

use std::hash::BuildHasher;

use wire::MacAddr;

use crate::{Nanos, Secret};

/// Errors to a guest at once, and errors a second, as the section has them for a small device.
const BURST: u32 = 10;
const RATE: u64 = 10;
const INTERVAL: Nanos = 1_000_000_000 / RATE;
/// Buckets of a port. Guests with the same hash of the station share one, so that made-up stations
/// take no memory.
const BUCKETS: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u32,
    /// Up to when tokens have been added.
    filled: Nanos,
}

/// The buckets of all guests.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    secret: Secret,
    buckets: [Bucket; BUCKETS],
}

impl Limit {
    pub(super) fn new(secret: Secret) -> Self {
        let bucket = Bucket {
            tokens: BURST,
            filled: 0,
        };
        Self {
            secret,
            buckets: [bucket; BUCKETS],
        }
    }

    /// Takes a token; false if there is none.
    pub(super) fn take(&mut self, guest: MacAddr, now: Nanos) -> bool {
        let at = self.secret.hash_one(guest) as usize % BUCKETS;
        let Some(bucket) = self.buckets.get_mut(at) else {
            return false;
        };
        let due = now.saturating_sub(bucket.filled) / INTERVAL;
        if u64::from(bucket.tokens) + due >= u64::from(BURST) {
            (bucket.tokens, bucket.filled) = (BURST, bucket.filled.max(now));
        } else {
            bucket.tokens += due as u32;
            bucket.filled += due * INTERVAL;
        }
        let is_left = bucket.tokens > 0;
        bucket.tokens -= u32::from(is_left);
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_at_once_and_ten_a_second() {
        let mut limit = Limit::new(Secret([1, 2]));
        let guest = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut taken = |now: Nanos| (0..100).filter(|_| limit.take(guest, now)).count();
        assert_eq!([taken(0), taken(0), taken(INTERVAL - 1)], [10, 0, 0]);
        assert_eq!([taken(INTERVAL), taken(INTERVAL * 7 / 2)], [1, 2]);
        // What is left of an interval counts.
        assert_eq!([taken(INTERVAL * 4), taken(INTERVAL * 1000)], [1, 10]);
    }
}
