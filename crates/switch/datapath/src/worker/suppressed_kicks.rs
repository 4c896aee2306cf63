//! Inactive queue pairs whose kicks stay disabled (Hyper-Switch, 4.3.3 and 4.3.5): the guest kicked
//! or received something a moment ago, so that it runs or is about to. Its further frames wait
//! until the time is over, or until the guest sleeps.
//!
//! That pays for a guest which sends something and sleeps at once: it is spared a kick, and the
//! worker is woken by a core that has just become free for it. For a guest that continues computing
//! it would be a loss, since its frames wait while no worker serves them. So each pair has a record
//! of the results, and its kicks are suppressed again only while that pays.

use std::collections::BTreeMap;

use port::PortId;

use crate::ports::coalescing::{Nanos, Processor, TrialRecord};

/// Longest wait that pays, nanoseconds: a worker that sleeps on another core needs about as long to
/// wake up (25 us on a virtual machine, docs/benchmarks/scheduling.md), and as long again until its
/// work is visible here.
const SHORT_WAIT: Nanos = 50_000;
/// Successes in a row on one core after which the worker moves to that core. It stays until there
/// were as many sleeps without suppressed kicks, or one failure.
const STREAK: u32 = 32;

type Pair = (PortId, u16);

/// The trigger of a suppression: each has a record of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Trigger {
    /// The guest has kicked.
    Kick,
    /// The guest has received frames, and may reply.
    Delivery,
}

/// The pairs with suppressed kicks, and their records.
#[derive(Debug, Default)]
pub(super) struct SuppressedKicks {
    list: Vec<SuppressedPair>,
    records: BTreeMap<(Pair, Trigger), TrialRecord>,
    /// The core of the last success, and the successes in a row there, at most two times
    /// [`STREAK`].
    streak: (usize, u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SuppressedPair {
    pub(super) pair: Pair,
    pub(super) trigger: Trigger,
    /// The vCPU's state before.
    pub(super) processor: Processor,
    pub(super) since: Nanos,
    pub(super) until: Nanos,
}

/// A pair that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DuePair {
    pub(super) pair: Pair,
    trigger: Trigger,
    core: usize,
    /// The guest slept soon.
    soon: bool,
}

impl SuppressedKicks {
    /// Returns whether kicks of a pair are to be suppressed, by its record. To be called once for
    /// each opportunity.
    pub(super) fn should_try(&mut self, pair: Pair, trigger: Trigger) -> bool {
        let record = self.records.get_mut(&(pair, trigger));
        record.is_none_or(TrialRecord::should_try)
    }

    /// Adds a pair that is no longer active.
    pub(super) fn add(&mut self, suppressed: SuppressedPair) {
        self.list.push(suppressed);
    }

    /// Returns whether the kicks of a pair are suppressed.
    pub(super) fn has(&self, pair: Pair) -> bool {
        self.list.iter().any(|suppressed| suppressed.pair == pair)
    }

    /// Removes a pair, if it is listed.
    pub(super) fn remove(&mut self, pair: Pair) {
        self.list.retain(|suppressed| suppressed.pair != pair);
    }

    /// Removes a pair and its records.
    pub(super) fn forget(&mut self, pair: Pair) {
        self.remove(pair);
        self.records.retain(|(of, _), _| *of != pair);
    }

    /// Returns the time when the first pair is due.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.list.iter().map(|suppressed| suppressed.until).min()
    }

    /// Removes a pair that is due: its time is over, its guest sleeps since, or its vCPU state is
    /// unknown.
    pub(super) fn take_due(
        &mut self,
        now: Nanos,
        mut processor: impl FnMut(Pair) -> Option<Processor>,
    ) -> Option<DuePair> {
        let mut is_due = |suppressed: &SuppressedPair| {
            let slept =
                |now: Processor| now.asleep.is_some() && now.asleep != suppressed.processor.asleep;
            suppressed.until <= now || processor(suppressed.pair).is_none_or(slept)
        };
        let at = self.list.iter().position(&mut is_due)?;
        let suppressed = self.list.swap_remove(at);
        Some(DuePair {
            pair: suppressed.pair,
            trigger: suppressed.trigger,
            core: suppressed.processor.core,
            soon: now < suppressed.until && now - suppressed.since <= SHORT_WAIT,
        })
    }

    /// Records whether a due pair had frames.
    pub(super) fn learn(&mut self, due: DuePair, frames: bool) {
        let paid = due.soon && frames;
        let record = self.records.entry((due.pair, due.trigger)).or_default();
        record.learn(paid);
        let (core, times) = self.streak;
        self.streak = if !paid {
            (core, 0)
        } else if core == due.core {
            (core, (times + 1).min(2 * STREAK))
        } else {
            (due.core, 1)
        };
    }

    /// Returns the core on which the worker had better sleep, if there is one. To be called before
    /// a sleep.
    pub(super) fn core(&mut self) -> Option<usize> {
        let (core, times) = &mut self.streak;
        if self.list.is_empty() {
            *times = times.saturating_sub(1);
        }
        (*times >= STREAK).then_some(*core)
    }

    /// Notes that the worker does not sleep: it had better run on a core of its own.
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
        Some(Processor {
            core,
            asleep: None,
            polled_for: false,
        })
    }

    const fn sleeps(since: Nanos) -> Option<Processor> {
        let asleep = Some(since);
        Some(Processor {
            core: 0,
            asleep,
            polled_for: false,
        })
    }

    fn suppressed(pair: Pair, processor: Option<Processor>, until: Nanos) -> SuppressedPair {
        SuppressedPair {
            pair,
            trigger: Trigger::Kick,
            processor: processor.unwrap(),
            since: 10,
            until,
        }
    }

    fn due(pair: Pair, soon: bool) -> Option<DuePair> {
        Some(DuePair {
            pair,
            trigger: Trigger::Kick,
            core: 0,
            soon,
        })
    }

    #[test]
    fn a_pair_is_due_when_its_time_is_up_or_its_guest_sleeps() {
        let mut pairs = SuppressedKicks::default();
        assert_eq!(pairs.next(), None);
        pairs.add(suppressed(A, runs(0), 100));
        pairs.add(suppressed(B, runs(0), 50));
        assert_eq!(pairs.next(), Some(50));
        assert_eq!(pairs.take_due(49, |_| runs(0)), None);
        assert_eq!(pairs.take_due(50, |_| runs(0)), due(B, false));
        assert_eq!(pairs.take_due(50, |_| runs(0)), None);
        assert_eq!(pairs.take_due(50, |_| sleeps(20)), due(A, true));
        assert_eq!(pairs.next(), None);
        pairs.add(suppressed(A, runs(0), 100_000));
        assert_eq!(
            pairs.take_due(11 + SHORT_WAIT, |_| sleeps(20)),
            due(A, false)
        );
        pairs.add(suppressed(A, runs(0), 100));
        assert_eq!(pairs.take_due(50, |_| None), due(A, true));
    }

    #[test]
    fn a_guest_that_still_sleeps_is_about_to_run() {
        let mut pairs = SuppressedKicks::default();
        pairs.add(suppressed(A, sleeps(5), 100));
        assert_eq!(pairs.take_due(50, |_| sleeps(5)), None);
        assert_eq!(pairs.take_due(50, |_| runs(0)), None);
        assert_eq!(pairs.take_due(50, |_| sleeps(30)), due(A, true));
    }

    #[test]
    fn a_removed_pair_is_not_due() {
        let mut pairs = SuppressedKicks::default();
        let other = (A.0, 1);
        pairs.add(suppressed(A, runs(0), 100));
        pairs.add(suppressed(other, runs(0), 100));
        assert!(pairs.has(A) && pairs.has(other));
        pairs.remove(A);
        assert!(!pairs.has(A));
        assert_eq!(pairs.take_due(100, |_| runs(0)), due(other, false));
        assert_eq!(pairs.take_due(100, |_| runs(0)), None);
    }

    /// Returns how often kicks are suppressed in so many opportunities with this result.
    fn times_suppressed(pairs: &mut SuppressedKicks, chances: u32, paid: bool) -> u32 {
        let mut count = 0;
        for _ in 0..chances {
            if pairs.should_try(A, Trigger::Kick) {
                count += 1;
                pairs.add(suppressed(A, runs(0), 1000));
                let due = pairs.take_due(11, |_| sleeps(11)).unwrap();
                pairs.learn(due, paid);
            }
        }
        count
    }

    #[test]
    fn kicks_are_suppressed_as_long_as_that_pays_with_rare_trials() {
        let mut pairs = SuppressedKicks::default();
        assert_eq!(times_suppressed(&mut pairs, 1000, true), 1000);
        assert_eq!(times_suppressed(&mut pairs, 9, false), 1);
        assert!(pairs.should_try(A, Trigger::Delivery), "another record");
        assert_eq!(times_suppressed(&mut pairs, 17, false), 1);
        // In the long run once in a thousand times.
        times_suppressed(&mut pairs, 5000, false);
        assert_eq!(times_suppressed(&mut pairs, 10_250, false), 10);
        // A pair that pays again is suppressed as before.
        times_suppressed(&mut pairs, 1025, true);
        assert_eq!(times_suppressed(&mut pairs, 100, true), 100);
    }

    #[test]
    fn the_worker_moves_to_where_suppressing_pays_and_leaves_otherwise() {
        let mut pairs = SuppressedKicks::default();
        assert_eq!(pairs.core(), None);
        times_suppressed(&mut pairs, STREAK - 1, true);
        assert_eq!(pairs.core(), None);
        times_suppressed(&mut pairs, 3, true);
        assert_eq!(pairs.core(), Some(0));
        times_suppressed(&mut pairs, 1, false);
        assert_eq!(pairs.core(), None, "it did not pay");
        times_suppressed(&mut pairs, 100, true);
        assert_eq!(pairs.core(), Some(0));
        let stays = (0..100).take_while(|_| pairs.core().is_some()).count();
        assert_eq!(stays as u32, STREAK - 1, "no kicks are suppressed any more");
        times_suppressed(&mut pairs, 100, true);
        pairs.add(suppressed(B, runs(3), 1000));
        let due = pairs.take_due(11, |_| sleeps(11)).unwrap();
        pairs.learn(due, true);
        pairs.add(suppressed(B, runs(3), 1000));
        assert_eq!(pairs.core(), None, "another core");
        pairs.remove(B);
        times_suppressed(&mut pairs, 100, true);
        pairs.busy();
        assert_eq!(pairs.core(), None);
    }

    #[test]
    fn a_forgotten_pair_has_no_record() {
        let mut pairs = SuppressedKicks::default();
        times_suppressed(&mut pairs, 100, false);
        pairs.add(suppressed(A, runs(0), 1000));
        pairs.forget(A);
        assert_eq!(pairs.next(), None);
        assert!(pairs.should_try(A, Trigger::Kick));
    }
}
