//! Queue pairs whose guests are not asked to kick although nobody looks at them (Hyper-Switch, 4.3.3 and 4.3.5): the guest kicked or was
//! sent something a moment ago, so that it runs, or is about to. What it sends meanwhile waits until the time is up, or until the
//! guest sleeps.
//!
//! That pays for a guest which sends something and sleeps at once: it is spared a kick, and the worker is woken by a core that has
//! just become free for it. For one that goes on computing it would be a loss, since its frames wait while nobody works on them. So
//! each pair has a record of how that went, and is held again as long as it went well.

use std::collections::BTreeMap;

use port::PortId;

use crate::batching::{Nanos, Processor, Record};

/// A guest that sleeps so soon was worth waiting for: a worker that sleeps on another core needs about as long to wake up (25 us on a
/// virtual machine, docs/SCHEDULING.md), and as long again for what was found there to be seen here.
const SOON: Nanos = 50_000;
/// After so many times in a row that holding guests on one core paid, the worker had better be on that core. It stays until there
/// were as many sleeps without, or one that did not pay.
const STREAK: u32 = 32;

type Pair = (PortId, u16);

/// Why a pair is held: each has a record of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum After {
    /// Its guest has kicked.
    Kick,
    /// Its guest was sent something, and may answer.
    Delivery,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HeldPairs {
    list: Vec<Held>,
    records: BTreeMap<(Pair, After), Record>,
    /// Where holding paid last, and how often in a row, [`STREAK`] times two at most.
    streak: (usize, u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) pair: Pair,
    pub(super) after: After,
    /// Its guest's, as it was before.
    pub(super) processor: Processor,
    pub(super) since: Nanos,
    pub(super) until: Nanos,
}

/// A pair that is to be looked at now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Due {
    pub(super) pair: Pair,
    after: After,
    core: usize,
    /// Its guest slept soon.
    soon: bool,
}

impl HeldPairs {
    /// Whether a pair is to be held, by its record. Asked once each time that it could be.
    pub(super) fn wants(&mut self, pair: Pair, after: After) -> bool {
        let record = self.records.get_mut(&(pair, after));
        record.is_none_or(Record::wants)
    }

    /// Adds a pair that is active no more.
    pub(super) fn add(&mut self, held: Held) {
        self.list.push(held);
    }

    /// Whether a pair is held.
    pub(super) fn has(&self, pair: Pair) -> bool {
        self.list.iter().any(|held| held.pair == pair)
    }

    /// Takes a pair off, if it is there.
    pub(super) fn remove(&mut self, pair: Pair) {
        self.list.retain(|held| held.pair != pair);
    }

    /// Forgets all about a pair.
    pub(super) fn forget(&mut self, pair: Pair) {
        self.remove(pair);
        self.records.retain(|(of, _), _| *of != pair);
    }

    /// When the first of them is to be looked at.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.list.iter().map(|held| held.until).min()
    }

    /// Takes off one that is to be looked at now: its time is up, its guest sleeps since, or nothing is known of it any more.
    pub(super) fn take_due(
        &mut self,
        now: Nanos,
        mut processor: impl FnMut(Pair) -> Option<Processor>,
    ) -> Option<Due> {
        let mut is_due = |held: &Held| {
            let slept =
                |now: Processor| now.asleep.is_some() && now.asleep != held.processor.asleep;
            held.until <= now || processor(held.pair).is_none_or(slept)
        };
        let at = self.list.iter().position(&mut is_due)?;
        let held = self.list.swap_remove(at);
        Some(Due {
            pair: held.pair,
            after: held.after,
            core: held.processor.core,
            soon: now < held.until && now - held.since <= SOON,
        })
    }

    /// Whether frames lay in the pair that was due.
    pub(super) fn learn(&mut self, due: Due, frames: bool) {
        let paid = due.soon && frames;
        let record = self.records.entry((due.pair, due.after)).or_default();
        record.learn(paid);
        let (core, times) = self.streak;
        self.streak = match paid {
            true if core == due.core => (core, (times + 1).min(2 * STREAK)),
            true => (due.core, 1),
            false => (core, 0),
        };
    }

    /// Before a sleep: the core where the worker had better be, if there is one.
    pub(super) fn core(&mut self) -> Option<usize> {
        let (core, times) = &mut self.streak;
        if self.list.is_empty() {
            *times = times.saturating_sub(1);
        }
        (*times >= STREAK).then_some(*core)
    }

    /// There is so much to do that the worker does not sleep: it had better be on a core of its own.
    pub(super) fn busy(&mut self) {
        self.streak.1 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Pair = (PortId(1), 0);
    const B: Pair = (PortId(2), 3);

    const fn runs(core: usize) -> Option<Processor> {
        Some(Processor { core, asleep: None })
    }

    const fn sleeps(since: Nanos) -> Option<Processor> {
        let asleep = Some(since);
        Some(Processor { core: 0, asleep })
    }

    fn held(pair: Pair, processor: Option<Processor>, until: Nanos) -> Held {
        Held {
            pair,
            after: After::Kick,
            processor: processor.unwrap(),
            since: 10,
            until,
        }
    }

    fn due(pair: Pair, soon: bool) -> Option<Due> {
        Some(Due {
            pair,
            after: After::Kick,
            core: 0,
            soon,
        })
    }

    #[test]
    fn a_pair_is_due_when_its_time_is_up_or_its_guest_sleeps() {
        let mut pairs = HeldPairs::default();
        assert_eq!(pairs.next(), None);
        pairs.add(held(A, runs(0), 100));
        pairs.add(held(B, runs(0), 50));
        assert_eq!(pairs.next(), Some(50));
        assert_eq!(pairs.take_due(49, |_| runs(0)), None);
        assert_eq!(pairs.take_due(50, |_| runs(0)), due(B, false));
        assert_eq!(pairs.take_due(50, |_| runs(0)), None);
        assert_eq!(pairs.take_due(50, |_| sleeps(20)), due(A, true));
        assert_eq!(pairs.next(), None);
        pairs.add(held(A, runs(0), 100_000));
        assert_eq!(pairs.take_due(11 + SOON, |_| sleeps(20)), due(A, false));
        pairs.add(held(A, runs(0), 100));
        assert_eq!(pairs.take_due(50, |_| None), due(A, true));
    }

    #[test]
    fn one_that_sleeps_still_is_about_to_run() {
        let mut pairs = HeldPairs::default();
        pairs.add(held(A, sleeps(5), 100));
        assert_eq!(pairs.take_due(50, |_| sleeps(5)), None);
        assert_eq!(pairs.take_due(50, |_| runs(0)), None);
        assert_eq!(pairs.take_due(50, |_| sleeps(30)), due(A, true));
    }

    #[test]
    fn one_that_is_removed_is_not_looked_at() {
        let mut pairs = HeldPairs::default();
        let other = (A.0, 1);
        pairs.add(held(A, runs(0), 100));
        pairs.add(held(other, runs(0), 100));
        assert!(pairs.has(A) && pairs.has(other));
        pairs.remove(A);
        assert!(!pairs.has(A));
        assert_eq!(pairs.take_due(100, |_| runs(0)), due(other, false));
        assert_eq!(pairs.take_due(100, |_| runs(0)), None);
    }

    /// How often a pair is held in so many chances, when holding it goes so.
    fn holds(pairs: &mut HeldPairs, chances: u32, paid: bool) -> u32 {
        let mut count = 0;
        for _ in 0..chances {
            if pairs.wants(A, After::Kick) {
                count += 1;
                pairs.add(held(A, runs(0), 1000));
                let due = pairs.take_due(11, |_| sleeps(11)).unwrap();
                pairs.learn(due, paid);
            }
        }
        count
    }

    #[test]
    fn a_pair_is_held_as_long_as_that_pays_and_tried_again_now_and_then() {
        let mut pairs = HeldPairs::default();
        assert_eq!(holds(&mut pairs, 1000, true), 1000);
        assert_eq!(holds(&mut pairs, 9, false), 1);
        assert!(pairs.wants(A, After::Delivery), "another record");
        assert_eq!(holds(&mut pairs, 17, false), 1);
        // In the long run once in a thousand times.
        holds(&mut pairs, 5000, false);
        assert_eq!(holds(&mut pairs, 10_250, false), 10);
        // A pair that pays again is held as before.
        holds(&mut pairs, 1025, true);
        assert_eq!(holds(&mut pairs, 100, true), 100);
    }

    #[test]
    fn the_worker_goes_where_holding_pays_and_leaves_when_it_does_not() {
        let mut pairs = HeldPairs::default();
        assert_eq!(pairs.core(), None);
        holds(&mut pairs, STREAK - 1, true);
        assert_eq!(pairs.core(), None);
        holds(&mut pairs, 3, true);
        assert_eq!(pairs.core(), Some(0));
        holds(&mut pairs, 1, false);
        assert_eq!(pairs.core(), None, "it did not pay");
        holds(&mut pairs, 100, true);
        assert_eq!(pairs.core(), Some(0));
        let stays = (0..100).take_while(|_| pairs.core().is_some()).count();
        assert_eq!(stays as u32, STREAK - 1, "nobody is held any more");
        holds(&mut pairs, 100, true);
        pairs.add(held(B, runs(3), 1000));
        let due = pairs.take_due(11, |_| sleeps(11)).unwrap();
        pairs.learn(due, true);
        pairs.add(held(B, runs(3), 1000));
        assert_eq!(pairs.core(), None, "another core");
        pairs.remove(B);
        holds(&mut pairs, 100, true);
        pairs.busy();
        assert_eq!(pairs.core(), None);
    }

    #[test]
    fn what_is_forgotten_has_no_record() {
        let mut pairs = HeldPairs::default();
        holds(&mut pairs, 100, false);
        pairs.add(held(A, runs(0), 1000));
        pairs.forget(A);
        assert_eq!(pairs.next(), None);
        assert!(pairs.wants(A, After::Kick));
    }
}
