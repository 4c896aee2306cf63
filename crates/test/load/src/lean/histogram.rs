//! A histogram whose error is below 1.6 % at every size of value, in a few kilobytes.
//!
//! ```text
//! values   0 ..= 127   128 ..= 255   256 ..= 511   512 ..= 1023 …
//! width        1             2             4             8           64 buckets from 128 on
//! ```

/// Buckets of each power of two, and half of those of width 1.
const HALF: u64 = 64;
const HALF_BITS: u32 = HALF.ilog2();
/// The greatest value has the top bit of 64.
const BUCKETS: usize = bucket(u64::MAX) + 1;

/// Counts of values, for percentiles: recording takes no allocation and no search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    max: u64,
}

/// Returns the bucket of `value`: its top seven bits, and their shift.
const fn bucket(value: u64) -> usize {
    let bits = u64::BITS - value.leading_zeros();
    let shift = bits.saturating_sub(HALF_BITS + 1);
    (shift as u64 * HALF + (value >> shift)) as usize
}

/// The greatest value that is counted in `bucket`.
const fn greatest(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / HALF).saturating_sub(1);
    let top = bucket - shift * HALF;
    (top << shift) + ((1 << shift) - 1)
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: vec![0; BUCKETS].into(),
            count: 0,
            max: 0,
        }
    }
}

impl Histogram {
    /// Counts a value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.buckets[bucket(value)] += 1;
        self.count += 1;
        self.max = self.max.max(value);
    }

    /// How many values were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The greatest value, exactly; 0 without values.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The least value that `share` of all values do not exceed, 0 to 1, or up to 1.6 % more; 0
    /// without values.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            below += count;
            if below >= rank {
                return greatest(index).min(self.max);
            }
        }
        self.max
    }

    /// Adds the values of another.
    pub fn merge(&mut self, other: &Self) {
        for (ours, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *ours += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_values_are_exact() {
        let mut all = Histogram::default();
        (1..=100).for_each(|value| all.record(value));
        assert_eq!((all.count(), all.max()), (100, 100));
        for (share, value) in [(0.0, 1), (0.01, 1), (0.5, 50), (0.99, 99), (1.0, 100)] {
            assert_eq!(all.quantile(share), value);
        }
    }

    #[test]
    fn nothing_is_nothing() {
        let none = Histogram::default();
        assert_eq!((none.count(), none.max(), none.quantile(0.5)), (0, 0, 0));
    }

    #[test]
    fn buckets_follow_one_another() {
        for index in 0..BUCKETS - 1 {
            assert_eq!(bucket(greatest(index)), index);
            assert_eq!(bucket(greatest(index) + 1), index + 1);
        }
        assert_eq!(greatest(BUCKETS - 1), u64::MAX);
    }

    proptest! {
        #[test]
        fn a_bucket_is_narrow(value: u64) {
            let most = greatest(bucket(value));
            prop_assert!(most >= value);
            prop_assert!(most - value <= value / HALF);
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_values(
            mut values in prop::collection::vec(0..1u64 << 40, 1..200),
            share in 0.0..=1.0f64,
        ) {
            let (mut one, mut two) = (Histogram::default(), Histogram::default());
            for (index, value) in values.iter().enumerate() {
                if index % 2 == 0 { one.record(*value) } else { two.record(*value) }
            }
            one.merge(&two);
            values.sort_unstable();
            let rank = (share * values.len() as f64).ceil().max(1.0) as usize;
            let exact = values[rank - 1];
            let found = one.quantile(share);
            prop_assert!(found >= exact && found - exact <= exact / HALF);
            prop_assert_eq!(one.count(), values.len() as u64);
            prop_assert_eq!(one.max(), *values.last().expect("one at least"));
        }
    }
}
