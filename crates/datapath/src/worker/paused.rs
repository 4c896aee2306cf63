//! Queue pairs whose ports have sent all that they may for now: nobody looks at them, and their guests are not asked to kick, until there
//! is enough for the next frame. What they send meanwhile waits in their own rings.

use std::sync::Arc;

use port::PortId;

use super::{Worker, nanos};
use crate::batching::Nanos;
use crate::limits::PortLimits;

type Pair = (PortId, u16);

/// Pairs, and when to look at them again.
#[derive(Debug, Default)]
pub(super) struct PausedPairs(Vec<(Pair, Nanos)>);

impl PausedPairs {
    fn add(&mut self, pair: Pair, until: Nanos) {
        self.0.push((pair, until));
    }

    /// Whether a pair waits.
    pub(super) fn has(&self, pair: Pair) -> bool {
        self.0.iter().any(|(paused, _)| *paused == pair)
    }

    /// Takes a pair off, if it is there.
    pub(super) fn remove(&mut self, pair: Pair) {
        self.0.retain(|(paused, _)| *paused != pair);
    }

    /// When the first of them is to be looked at.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.0.iter().map(|(_, until)| *until).min()
    }

    /// Takes off the one that has waited longest of those whose time has come.
    fn take_due(&mut self, now: Nanos) -> Option<Pair> {
        let at = self.0.iter().position(|(_, until)| *until <= now)?;
        // In their order: of several pairs of a port, the first one that had nothing left is the first one to get more.
        Some(self.0.remove(at).0)
    }
}

impl Worker {
    /// What a port may send and be sent is this from now on.
    pub fn set_limits(&mut self, port: PortId, limits: Option<Arc<PortLimits>>) {
        self.switch.set_limits(port, limits);
        // Helpers serve nobody who may have to wait, and what waited goes by the new limits.
        for pair in 0..64 {
            self.take_back_pair(port, pair);
            if self.paused.has((port, pair)) {
                self.paused.remove((port, pair));
                self.active.add(port, pair);
            }
        }
    }

    /// Has the pair at this place of the list wait, if what it has may not be sent yet.
    #[inline]
    pub(super) fn pauses(&mut self, at: usize, pair: Pair) -> bool {
        let Some(until) = self.switch.take_pause() else {
            return false;
        };
        self.active.remove_at(at);
        self.paused.add(pair, until);
        true
    }

    /// Pairs are looked at again whose time has come.
    pub(super) fn look_at_paused(&mut self) {
        if self.paused.0.is_empty() {
            return;
        }
        let now = nanos(self.started.elapsed());
        while let Some((port, pair)) = self.paused.take_due(now) {
            self.active.add(port, pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_waited_longest_is_first() {
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
