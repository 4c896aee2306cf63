//! A token bucket of one thread, in bits.

use crate::Nanos;

const SECOND: u128 = 1_000_000_000;

/// Token bucket. It starts full, and may go into debt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tokens {
    rate: u64,
    depth: i64,
    level: i64,
    /// Part of a bit that has come since the last whole one, in billionths.
    part: u64,
    at: Nanos,
}

impl Tokens {
    /// Returns a full bucket for `rate` bits a second and `depth` bits at once.
    pub(crate) fn new(rate: u64, depth: u64) -> Self {
        let depth = i64::try_from(depth).unwrap_or(i64::MAX / 4).max(1);
        Self {
            rate,
            depth,
            level: depth,
            part: 0,
            at: 0,
        }
    }

    /// Returns a bucket with other settings that is as full as this one.
    pub(crate) fn with(&self, rate: u64, depth: u64) -> Self {
        let new = Self::new(rate, depth);
        Self {
            level: self.level.min(new.depth),
            at: self.at,
            ..new
        }
    }

    /// Adds the tokens that have come until `now`. Returns those that are too many.
    pub(crate) fn refill(&mut self, now: Nanos) -> u64 {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let come = u128::from(passed) * u128::from(self.rate) + u128::from(self.part);
        let bits = i64::try_from(come / SECOND).unwrap_or(i64::MAX);
        self.part = (come % SECOND) as u64;
        self.level = self.level.saturating_add(bits);
        let beyond = self.level.saturating_sub(self.depth);
        if beyond >= 0 {
            (self.level, self.part) = (self.depth, 0);
        }
        u64::try_from(beyond).unwrap_or(0)
    }

    /// Returns whether there are so many tokens, or the bucket is full.
    pub(crate) fn has(&self, bits: u64) -> bool {
        self.level >= self.need(bits)
    }

    /// Takes so many tokens, at most one depth more than there are.
    pub(crate) fn take(&mut self, bits: u64) {
        let bits = i64::try_from(bits).unwrap_or(i64::MAX);
        self.level = self.level.saturating_sub(bits);
    }

    /// Returns all tokens.
    pub(crate) fn available(&self) -> u64 {
        u64::try_from(self.level).unwrap_or(0)
    }

    /// Returns the nanoseconds until [`Tokens::has`] holds, counted from the last refill.
    pub(crate) fn ready_in(&self, bits: u64) -> Nanos {
        let missing = self.need(bits).saturating_sub(self.level);
        match u64::try_from(missing) {
            Err(_) | Ok(0) => 0,
            Ok(missing) => {
                let time = u128::from(missing) * SECOND - u128::from(self.part);
                let time = time.div_ceil(u128::from(self.rate.max(1)));
                u64::try_from(time).unwrap_or(u64::MAX)
            }
        }
    }

    fn need(&self, bits: u64) -> i64 {
        i64::try_from(bits).unwrap_or(i64::MAX).min(self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_above_the_depth_waits_for_a_full_bucket_and_leaves_a_debt() {
        let mut tokens = Tokens::new(1000, 100);
        assert!(tokens.has(5000));
        tokens.take(5000);
        assert_eq!(tokens.ready_in(1), 4_901_000_000);
        tokens.refill(4_900_999_999);
        assert!(!tokens.has(1));
        tokens.refill(4_901_000_000);
        assert!(tokens.has(1) && !tokens.has(2));
    }

    proptest! {
        /// In no window of time is more granted than depth and rate allow together, and while
        /// any request waits, no less than the rate.
        #[test]
        fn no_window_has_more_than_depth_and_rate(
            (rate, depth) in (1u64..10_000_000_000, 1000u64..10_000_000),
            steps in prop::collection::vec((0u64..2_000_000, 1u64..1000), 1..200),
        ) {
            let mut tokens = Tokens::new(rate, depth);
            let (mut now, mut log) = (0, Vec::new());
            for (passed, bits) in steps {
                now += passed;
                tokens.refill(now);
                if tokens.has(bits) {
                    tokens.take(bits);
                    log.push((now, bits));
                } else {
                    let wait = tokens.ready_in(bits);
                    let mut later = tokens.clone();
                    later.refill(now + wait);
                    prop_assert!(later.has(bits));
                    let mut earlier = tokens.clone();
                    earlier.refill(now + wait - 1);
                    prop_assert!(!earlier.has(bits));
                }
            }
            for (at, (begin, _)) in log.iter().enumerate() {
                let mut sum = 0;
                for (end, bits) in &log[at..] {
                    sum += bits;
                    let most = u128::from(end - begin) * u128::from(rate) / SECOND;
                    prop_assert!(u128::from(sum) <= most + u128::from(depth) + 1);
                }
            }
        }
    }
}
