//! Paused queue pairs: their ports have reached a rate limit. They are not polled, and their kicks
//! stay disabled, until the limit allows the next frame. Further frames of the guest wait in its
//! own rings.

use port::PortId;

use crate::ports::coalescing::Nanos;

type Pair = (PortId, u16);

/// Paused pairs, each with the end of its pause.
#[derive(Debug, Default)]
pub(super) struct PausedPairs(Vec<(Pair, Nanos)>);

impl PausedPairs {
    /// Adds a pair.
    pub(super) fn add(&mut self, pair: Pair, until: Nanos) {
        self.0.push((pair, until));
    }

    /// Returns whether no pair is paused.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a pair is paused.
    pub(super) fn has(&self, pair: Pair) -> bool {
        self.0.iter().any(|(paused, _)| *paused == pair)
    }

    /// Removes a pair, if it is listed.
    pub(super) fn remove(&mut self, pair: Pair) {
        self.0.retain(|(paused, _)| *paused != pair);
    }

    /// Returns the earliest end of a pause.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.0.iter().map(|(_, until)| *until).min()
    }

    /// Removes the pair that was paused first, of those whose pause is over.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<Pair> {
        let at = self.0.iter().position(|(_, until)| *until <= now)?;
        // In order: of several pairs of a port, the first one that was paused is the first to be
        // served.
        Some(self.0.remove(at).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pair_that_waited_longest_is_first() {
        let [a, b, c] = [(PortId(1), 0), (PortId(1), 1), (PortId(2), 0)];
        let mut paused = PausedPairs::default();
        assert_eq!((paused.next(), paused.take_due(u64::MAX)), (None, None));
        paused.add(a, 20);
        paused.add(b, 10);
        paused.add(c, 30);
        assert_eq!(paused.next(), Some(10));
        assert_eq!(paused.take_due(9), None);
        assert_eq!(paused.take_due(20), Some(a));
        assert_eq!(paused.take_due(20), Some(b));
        assert_eq!(paused.take_due(20), None);
        assert!(paused.has(c) && !paused.has(a));
        paused.remove(c);
        assert_eq!(paused.next(), None);
    }
}
