//! Queue pairs whose guests are not asked to kick although nobody looks at them: each was looked at a moment ago, because its guest had
//! kicked, and the guest runs. What it sends meanwhile waits until the time is up, or until the guest is about to sleep
//! (Hyper-Switch, 4.3.3 and 4.3.5).

use port::PortId;

use crate::batching::Nanos;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HeldPairs {
    list: Vec<Held>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    port: PortId,
    pair: u16,
    until: Nanos,
}

impl HeldPairs {
    /// Adds a pair that is active no more.
    pub(super) fn add(&mut self, port: PortId, pair: u16, until: Nanos) {
        self.list.push(Held { port, pair, until });
    }

    /// Takes a pair off, if it is there.
    pub(super) fn remove(&mut self, port: PortId, pair: u16) {
        self.list
            .retain(|held| (held.port, held.pair) != (port, pair));
    }

    /// When the first of them is to be looked at.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.list.iter().map(|held| held.until).min()
    }

    /// Takes off one that is to be looked at now: its time is up, or its guest does not run.
    pub(super) fn take_due(
        &mut self,
        now: Nanos,
        mut runs: impl FnMut(PortId, u16) -> bool,
    ) -> Option<(PortId, u16)> {
        let is_due = |held: &Held| held.until <= now || !runs(held.port, held.pair);
        let at = self.list.iter().position(is_due)?;
        let held = self.list.swap_remove(at);
        Some((held.port, held.pair))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PortId = PortId(1);
    const B: PortId = PortId(2);

    #[test]
    fn a_pair_is_due_when_its_time_is_up_or_its_guest_sleeps() {
        let mut held = HeldPairs::default();
        assert_eq!(held.next(), None);
        held.add(A, 0, 100);
        held.add(B, 3, 50);
        assert_eq!(held.next(), Some(50));
        assert_eq!(held.take_due(49, |_, _| true), None);
        assert_eq!(held.take_due(50, |_, _| true), Some((B, 3)));
        assert_eq!(held.take_due(50, |_, _| true), None);
        assert_eq!(held.take_due(50, |_, _| false), Some((A, 0)));
        assert_eq!(held.next(), None);
    }

    #[test]
    fn one_that_is_removed_is_not_looked_at() {
        let mut held = HeldPairs::default();
        held.add(A, 0, 100);
        held.add(A, 1, 100);
        held.remove(A, 0);
        assert_eq!(held.take_due(100, |_, _| true), Some((A, 1)));
        assert_eq!(held.take_due(100, |_, _| true), None);
    }
}
