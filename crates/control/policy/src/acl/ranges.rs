//! Sets of port numbers.

use serde::{Deserialize, Serialize};

use super::prefix::Prefix;

/// Bits of a port number.
pub(super) const WIDTH: u8 = 16;

/// Port numbers as ranges in ascending order, with gaps between them. All numbers are one range.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(super) struct Ranges(Vec<(u16, u16)>);

impl Ranges {
    /// Returns the set of ranges in any order, both ends included.
    pub(super) fn new(mut all: Vec<(u16, u16)>) -> Self {
        all.sort_unstable();
        let mut kept: Vec<(u16, u16)> = Vec::with_capacity(all.len());
        for (from, to) in all {
            match kept.last_mut() {
                Some(last) if u32::from(from) <= u32::from(last.1) + 1 => last.1 = last.1.max(to),
                _ => kept.push((from, to)),
            }
        }
        Self(kept)
    }

    /// Returns whether every number is included.
    pub(super) fn is_all(&self) -> bool {
        self.0 == [(0, u16::MAX)]
    }

    /// Returns the first and last number of each range.
    pub(super) fn as_slice(&self) -> &[(u16, u16)] {
        &self.0
    }

    #[inline]
    fn range_of(&self, port: u16) -> Option<(u16, u16)> {
        let found = self.0.iter().find(|(_, to)| port <= *to)?;
        (found.0 <= port).then_some(*found)
    }

    #[inline]
    pub(super) fn contains(&self, port: u16) -> bool {
        self.range_of(port).is_some()
    }

    /// Returns the prefix length of a port inside that proves it.
    pub(super) fn bits_to_hit(&self, port: u16) -> u8 {
        let Some((from, to)) = self.range_of(port) else {
            return WIDTH;
        };
        let inside = |len: &u8| {
            let low = u16::MAX.checked_shr((*len).into()).unwrap_or(0);
            port & !low >= from && port | low <= to
        };
        (0..=WIDTH).find(inside).unwrap_or(WIDTH)
    }

    /// Returns the prefix length of a port outside that proves it.
    pub(super) fn bits_to_miss(&self, port: u16) -> u8 {
        let differ = |end: u16| (port ^ end).leading_zeros() as u8 + 1;
        let needed = |&(from, to): &(u16, u16)| differ(if port < from { from } else { to });
        self.0.iter().map(needed).max().unwrap_or(0).min(WIDTH)
    }

    pub(super) fn covers(&self, other: &Self) -> bool {
        let within = |&(from, to): &(u16, u16)| self.range_of(from).is_some_and(|r| to <= r.1);
        other.0.iter().all(within)
    }
}

/// Returns the longest prefix that covers a range.
pub(super) fn cover_of((from, to): (u16, u16)) -> Prefix {
    let wide = |port: u16| Prefix::of(port.into(), WIDTH);
    wide(from).join(wide(to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_ranges() -> impl Strategy<Value = Vec<(u16, u16)>> {
        let end = prop_oneof![any::<u16>(), 0..4u16, 65532..=65535u16, 1020..1030u16];
        let range = (end.clone(), end).prop_map(|(a, b)| (a.min(b), a.max(b)));
        prop::collection::vec(range, 1..5)
    }

    fn block(port: u16, len: u8) -> std::ops::RangeInclusive<u16> {
        let low = u16::MAX.checked_shr(len.into()).unwrap_or(0);
        port & !low..=port | low
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn ranges_have_their_ports_and_blocks_are_the_largest(
            all in any_ranges(), near: prop::sample::Index, off in -2..3i32,
        ) {
            let set = Ranges::new(all.clone());
            let (from, to) = *near.get(&all);
            for end in [from, to] {
                let port = (i32::from(end) + off).clamp(0, 65535) as u16;
                let inside = set.contains(port);
                prop_assert_eq!(inside, all.iter().any(|r| r.0 <= port && port <= r.1));
                let len = if inside { set.bits_to_hit(port) } else { set.bits_to_miss(port) };
                prop_assert!(block(port, len).all(|p| set.contains(p) == inside));
                prop_assert!(len == 0 || !block(port, len - 1).all(|p| set.contains(p) == inside));
            }
        }

        #[test]
        fn covering_is_having_all(a in any_ranges(), b in any_ranges()) {
            let (a, b) = (Ranges::new(a), Ranges::new(b));
            let all = (0..=u16::MAX).all(|p| !b.contains(p) || a.contains(p));
            prop_assert_eq!(a.covers(&b), all);
            let cover = |r: &(u16, u16)| cover_of(*r).covers(Prefix::of(r.0.into(), 16));
            prop_assert!(a.as_slice().iter().all(cover));
        }
    }
}
