//! Paused queue pairs: their ports have reached a rate limit, or wait for their turn at a scheduled
//! port. They are not polled, and their kicks stay disabled, until the next frame may go. Further
//! frames of the guest wait in its own rings.

use port::PortId;

use crate::forward::switch::Pause;
use crate::ports::coalescing::Nanos;

type Pair = (PortId, u16);

/// Paused pairs, in the order in which they were paused.
#[derive(Debug, Default)]
pub(super) struct PausedPairs {
    pairs: Vec<(Pair, Pause)>,
    /// Time at which they are looked at next.
    look: Nanos,
}

impl PausedPairs {
    /// Adds a pair.
    pub(super) fn add(&mut self, pair: Pair, pause: Pause) {
        self.pairs.push((pair, pause));
        self.look = match pause {
            Pause::Until(until) if self.pairs.len() == 1 => until,
            Pause::Until(until) => self.look.min(until),
            // Its output knows when.
            Pause::Turn(_) => 0,
        };
    }

    /// Returns whether a pair is paused.
    pub(super) fn has(&self, pair: Pair) -> bool {
        self.pairs.iter().any(|(paused, _)| *paused == pair)
    }

    /// Removes a pair, if it is listed. Returns its pause.
    pub(super) fn remove(&mut self, pair: Pair) -> Option<Pause> {
        let at = self.pairs.iter().position(|(paused, _)| *paused == pair)?;
        Some(self.pairs.remove(at).1)
    }

    /// Removes and returns any pair that waits for its turn.
    pub(super) fn take_waiting(&mut self) -> Option<Pair> {
        let waits = |(_, pause): &(Pair, Pause)| matches!(pause, Pause::Turn(_));
        let at = self.pairs.iter().position(waits)?;
        Some(self.pairs.remove(at).0)
    }

    /// Returns the time at which they are to be looked at.
    pub(super) fn next(&self) -> Option<Nanos> {
        (!self.pairs.is_empty()).then_some(self.look)
    }

    /// Removes the pairs whose pauses are over, and passes them on in the order in which they were
    /// paused: of several pairs of a port, the first one is the first to be served. `turns`: the
    /// time at which those that wait for their turn are looked at again.
    pub(super) fn take_over(
        &mut self,
        turns: Option<Nanos>,
        mut is_over: impl FnMut(&Pause) -> bool,
        mut pass: impl FnMut(Pair),
    ) {
        self.look = Nanos::MAX;
        let look = &mut self.look;
        self.pairs.retain(|(pair, pause)| {
            let over = is_over(pause);
            match pause {
                _ if over => pass(*pair),
                Pause::Until(until) => *look = (*look).min(*until),
                Pause::Turn(_) => *look = (*look).min(turns.unwrap_or(0)),
            }
            !over
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(paused: &mut PausedPairs, now: Nanos) -> Vec<Pair> {
        let mut all = Vec::new();
        let is_over = |pause: &Pause| matches!(pause, Pause::Until(until) if *until <= now);
        paused.take_over(Some(now + 7), is_over, |pair| all.push(pair));
        all
    }

    #[test]
    fn the_pair_that_waited_longest_is_first() {
        let [a, b, c] = [(PortId(1), 0), (PortId(1), 1), (PortId(2), 0)];
        let mut paused = PausedPairs::default();
        assert_eq!((paused.next(), over(&mut paused, 1 << 40)), (None, vec![]));
        for (pair, until) in [(a, 20), (b, 10), (c, 30)] {
            paused.add(pair, Pause::Until(until));
        }
        assert_eq!(paused.next(), Some(10));
        assert_eq!(over(&mut paused, 9), []);
        assert_eq!(paused.next(), Some(10));
        assert_eq!(over(&mut paused, 20), [a, b]);
        assert_eq!(paused.next(), Some(30));
        assert!(paused.has(c) && !paused.has(a));
        assert_eq!(paused.remove(c), Some(Pause::Until(30)));
        assert_eq!((paused.remove(c), paused.next()), (None, None));
    }

    #[test]
    fn a_pair_that_waits_for_its_turn_is_looked_at_at_once_and_then_when_turns_come() {
        let mut paused = PausedPairs::default();
        paused.add((PortId(1), 0), Pause::Until(50));
        let turn = crate::forward::egress::Turn {
            output: PortId(9),
            leaf: egress::Leaf(0),
            first: 1,
            all: 1,
            since: 0,
        };
        paused.add((PortId(2), 0), Pause::Turn(turn));
        assert_eq!(paused.next(), Some(0));
        assert_eq!(over(&mut paused, 10), []);
        assert_eq!(paused.next(), Some(17));
        assert_eq!(paused.take_waiting(), Some((PortId(2), 0)));
        assert_eq!(paused.take_waiting(), None);
        assert_eq!(over(&mut paused, 11), []);
        assert_eq!(paused.next(), Some(50));
    }
}
