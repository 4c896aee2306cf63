//! Prefixes of a field, and sets of them.

use serde::{Deserialize, Serialize};

/// The first `len` bits of a field. Fields of all widths begin at the highest bit, so that a prefix
/// of one is compared as that of any other.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub(super) struct Prefix {
    /// The bits; those behind `len` are zero.
    pub(super) bits: u128,
    pub(super) len: u8,
}

/// Returns a mask of the first `len` bits; 128 at most.
pub(super) fn ones(len: u8) -> u128 {
    match len {
        0 => 0,
        len => u128::MAX << (128 - u32::from(len.min(128))),
    }
}

/// Returns the length of the common prefix of two values.
#[inline]
pub(super) fn common(a: u128, b: u128) -> u8 {
    (a ^ b).leading_zeros() as u8
}

impl Prefix {
    /// All values.
    pub(super) const ANY: Self = Self { bits: 0, len: 0 };

    pub(super) fn new(bits: u128, len: u8) -> Self {
        let len = len.min(128);
        Self {
            bits: bits & ones(len),
            len,
        }
    }

    /// Returns a whole field of `width` bits.
    pub(super) fn of(value: u64, width: u8) -> Self {
        Self::new(u128::from(value) << (128 - u32::from(width)), width)
    }

    #[inline]
    pub(super) fn contains(self, value: u128) -> bool {
        common(self.bits, value) >= self.len
    }

    pub(super) fn covers(self, other: Self) -> bool {
        self.len <= other.len && self.contains(other.bits)
    }

    /// Returns the longest prefix that covers both.
    pub(super) fn join(self, other: Self) -> Self {
        let len = common(self.bits, other.bits);
        Self::new(self.bits, len.min(self.len).min(other.len))
    }

    /// Returns the first bit behind the prefix.
    #[inline]
    pub(super) fn next_bit(self, value: u128) -> usize {
        (value << self.len >> 127) as usize & 1
    }
}

/// Disjoint prefixes in ascending order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub(super) struct Prefixes(Vec<Prefix>);

impl Prefixes {
    /// Removes prefixes covered by others, and joins halves to a shorter prefix.
    pub(super) fn new(mut all: Vec<Prefix>) -> Self {
        all.sort_unstable();
        let mut kept: Vec<Prefix> = Vec::with_capacity(all.len());
        for prefix in all {
            if kept.last().is_some_and(|last| last.covers(prefix)) {
                continue;
            }
            kept.push(prefix);
            while let [.., a, b] = kept[..] {
                let Some(whole) = halves_of(a, b) else { break };
                kept.truncate(kept.len() - 2);
                kept.push(whole);
            }
        }
        Self(kept)
    }

    pub(super) fn as_slice(&self) -> &[Prefix] {
        &self.0
    }

    /// Returns whether every value is included.
    pub(super) fn is_all(&self) -> bool {
        self.0 == [Prefix::ANY]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the longest prefix that covers all of them.
    pub(super) fn cover(&self) -> Prefix {
        match (self.0.first(), self.0.last()) {
            (Some(first), Some(last)) => first.join(*last),
            _ => Prefix::ANY,
        }
    }

    /// Returns the index of the first prefix that begins behind a value.
    #[inline]
    fn behind(&self, value: u128) -> usize {
        match self.0.as_slice() {
            [only] => usize::from(only.bits <= value),
            many => many.partition_point(|prefix| prefix.bits <= value),
        }
    }

    /// Returns the prefix that contains the value.
    #[inline]
    pub(super) fn find(&self, value: u128) -> Option<Prefix> {
        let before = self.behind(value).checked_sub(1)?;
        Some(self.0[before]).filter(|prefix| prefix.contains(value))
    }

    /// Returns the prefix length of a value outside that proves that it is in none of the prefixes.
    pub(super) fn bits_to_miss(&self, value: u128) -> u8 {
        let at = self.behind(value);
        let near = at.checked_sub(1).into_iter().chain([at]);
        let needed = near.filter_map(|i| Some(common(self.0.get(i)?.bits, value) + 1));
        needed.max().unwrap_or(0)
    }

    /// Returns whether all of `other` is included.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let within = |prefix: &Prefix| self.find(prefix.bits).is_some_and(|p| p.covers(*prefix));
        other.0.iter().all(within)
    }
}

/// Returns the prefix with these halves.
fn halves_of(a: Prefix, b: Prefix) -> Option<Prefix> {
    let len = a.len.checked_sub(1)?;
    let whole = Prefix::new(a.bits, len);
    (a.len == b.len && a != b && whole.covers(b)).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Prefixes of a field of 8 bits, small enough to try every value.
    fn any_prefixes() -> impl Strategy<Value = Vec<Prefix>> {
        let prefix = (any::<u8>(), 0..=8u8)
            .prop_map(|(bits, len)| Prefix::new(u128::from(bits) << 120, len));
        prop::collection::vec(prefix, 0..12)
    }

    fn values() -> impl Iterator<Item = u128> {
        (0..=255).map(|v| v << 120)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_set_has_the_values_of_its_prefixes(all in any_prefixes()) {
            let set = Prefixes::new(all.clone());
            for value in values() {
                let found = set.find(value);
                prop_assert_eq!(found.is_some(), all.iter().any(|p| p.contains(value)));
                prop_assert!(found.is_none_or(|p| p.contains(value)));
            }
            prop_assert!(all.iter().all(|p| set.cover().covers(*p)));
        }

        #[test]
        fn so_many_bits_miss_and_one_less_does_not(all in any_prefixes()) {
            let set = Prefixes::new(all);
            for value in values().filter(|v| set.find(*v).is_none()) {
                let len = set.bits_to_miss(value);
                let alike = |len| values().filter(move |v| Prefix::new(value, len).contains(*v));
                prop_assert!(alike(len).all(|v| set.find(v).is_none()));
                prop_assert!(len == 0 || alike(len - 1).any(|v| set.find(v).is_some()));
            }
        }

        #[test]
        fn a_set_covers_what_it_has(a in any_prefixes(), b in any_prefixes()) {
            let (a, b) = (Prefixes::new(a), Prefixes::new(b));
            let all = values().all(|v| b.find(v).is_none() || a.find(v).is_some());
            prop_assert_eq!(a.covers(&b), all);
        }
    }
}
