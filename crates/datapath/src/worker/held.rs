//! Queue pairs whose guests are not asked to kick although nobody looks at them: each was looked at a moment ago, because its guest had
//! kicked, and the guest runs. What it sends meanwhile waits until the time is up, or until the guest is about to sleep
//! (Hyper-Switch, 4.3.3 and 4.3.5).
//!
//! That pays for a guest which sends something and sleeps at once: it is spared a kick, and the worker is woken by a core that has
//! just become free for it. For one that goes on computing it would be a loss, since its frames wait while nobody works on them. So
//! each pair has a record of how that went, and is held again as long as it went well.

use std::collections::BTreeMap;

use port::PortId;

use crate::batching::Nanos;

/// A guest that sleeps so soon was worth waiting for: waking a worker that sleeps on another core takes about as long (25 us on
/// a virtual machine, docs/SCHEDULING.md).
const SOON: Nanos = 30_000;
/// After the first time that it did not pay, a pair is not held so many times, and twice as many after each other time.
const SPARED: u32 = 8;
const SPARED_MOST: u32 = 1024;

type Pair = (PortId, u16);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HeldPairs {
    list: Vec<Held>,
    records: BTreeMap<Pair, Record>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    pair: Pair,
    since: Nanos,
    until: Nanos,
}

/// A pair that is to be looked at now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Due {
    pub(super) pair: Pair,
    /// Its guest slept soon.
    soon: bool,
}

/// How holding a pair went.
#[derive(Clone, Copy, Default, Debug)]
struct Record {
    /// Times that it did not pay, less those that it did.
    failures: u32,
    /// So many times it is not held.
    spared: u32,
}

impl Record {
    fn learn(&mut self, paid: bool) {
        if paid {
            self.failures = self.failures.saturating_sub(1);
            return;
        }
        let doublings = self.failures.min(SPARED_MOST.ilog2());
        self.spared = (SPARED << doublings).min(SPARED_MOST);
        self.failures += 1;
    }
}

impl HeldPairs {
    /// Whether a pair is to be held, by its record. Asked once each time that it could be.
    pub(super) fn wants(&mut self, pair: Pair) -> bool {
        let Some(record) = self.records.get_mut(&pair) else {
            return true;
        };
        let spared = record.spared > 0;
        record.spared = record.spared.saturating_sub(1);
        !spared
    }

    /// Adds a pair that is active no more.
    pub(super) fn add(&mut self, pair: Pair, since: Nanos, until: Nanos) {
        self.list.push(Held { pair, since, until });
    }

    /// Takes a pair off, if it is there.
    pub(super) fn remove(&mut self, pair: Pair) {
        self.list.retain(|held| held.pair != pair);
    }

    /// Forgets all about a pair.
    pub(super) fn forget(&mut self, pair: Pair) {
        self.remove(pair);
        self.records.remove(&pair);
    }

    /// When the first of them is to be looked at.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.list.iter().map(|held| held.until).min()
    }

    /// Takes off one that is to be looked at now: its time is up, or its guest does not run.
    pub(super) fn take_due(
        &mut self,
        now: Nanos,
        mut runs: impl FnMut(Pair) -> bool,
    ) -> Option<Due> {
        let is_due = |held: &Held| held.until <= now || !runs(held.pair);
        let at = self.list.iter().position(is_due)?;
        let Held { pair, since, until } = self.list.swap_remove(at);
        let soon = now < until && now - since <= SOON;
        Some(Due { pair, soon })
    }

    /// Whether frames lay in the pair that was due.
    pub(super) fn learn(&mut self, due: Due, frames: bool) {
        let record = self.records.entry(due.pair).or_default();
        record.learn(due.soon && frames);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Pair = (PortId(1), 0);
    const B: Pair = (PortId(2), 3);

    fn due(pair: Pair, soon: bool) -> Option<Due> {
        Some(Due { pair, soon })
    }

    #[test]
    fn a_pair_is_due_when_its_time_is_up_or_its_guest_sleeps() {
        let mut held = HeldPairs::default();
        assert_eq!(held.next(), None);
        held.add(A, 10, 100);
        held.add(B, 10, 50);
        assert_eq!(held.next(), Some(50));
        assert_eq!(held.take_due(49, |_| true), None);
        assert_eq!(held.take_due(50, |_| true), due(B, false));
        assert_eq!(held.take_due(50, |_| true), None);
        assert_eq!(held.take_due(50, |_| false), due(A, true));
        assert_eq!(held.next(), None);
        held.add(A, 10, 100_000);
        assert_eq!(held.take_due(11 + SOON, |_| false), due(A, false));
    }

    #[test]
    fn one_that_is_removed_is_not_looked_at() {
        let mut held = HeldPairs::default();
        let other = (A.0, 1);
        held.add(A, 0, 100);
        held.add(other, 0, 100);
        held.remove(A);
        assert_eq!(held.take_due(100, |_| true), due(other, false));
        assert_eq!(held.take_due(100, |_| true), None);
    }

    /// How often a pair is held in so many chances, when holding it goes so.
    fn holds(held: &mut HeldPairs, chances: u32, paid: bool) -> u32 {
        let mut count = 0;
        for _ in 0..chances {
            if held.wants(A) {
                count += 1;
                held.add(A, 0, 1000);
                let due = held.take_due(1, |_| false).unwrap();
                held.learn(due, paid);
            }
        }
        count
    }

    #[test]
    fn a_pair_is_held_as_long_as_that_pays_and_tried_again_now_and_then() {
        let mut held = HeldPairs::default();
        assert_eq!(holds(&mut held, 1000, true), 1000);
        assert_eq!(holds(&mut held, 9, false), 1);
        assert_eq!(holds(&mut held, 17, false), 1);
        // In the long run once in a thousand times.
        holds(&mut held, 5000, false);
        assert_eq!(holds(&mut held, 10_250, false), 10);
        // A pair that pays again is held as before.
        holds(&mut held, 1025, true);
        assert_eq!(holds(&mut held, 100, true), 100);
    }

    #[test]
    fn what_is_forgotten_has_no_record() {
        let mut held = HeldPairs::default();
        holds(&mut held, 100, false);
        held.add(A, 0, 1000);
        held.forget(A);
        assert_eq!(held.next(), None);
        assert!(held.wants(A));
    }
}
