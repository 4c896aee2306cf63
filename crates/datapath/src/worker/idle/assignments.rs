//! Queue pairs that a busy worker assigns to helpers: the one place at which a worker uses them.
//!
//! An assigned pair is not in the list of active pairs, and its kicks stay disabled. The worker has
//! at least one active pair while it has assignments: before it sleeps it takes all of them back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use port::PortId;

use super::core_states::CoreStates;
use super::handoff::Reason;
use super::helper::{Backoff, Helper, Helpers, register_waiter};
use super::system::current_core;
use super::worth::is_worth_it;
use crate::forward::switch::Switch;
use crate::ports::guest::GuestPort;
use crate::worker::guests::Guests;

/// Rounds in a row in which at least two pairs had a long batch, before one is assigned.
const BUSY_ROUNDS: u32 = 4;
/// Time without a chunk after which a helper is regarded as stalled, microseconds.
const STALL_TIMEOUT: Duration = Duration::from_micros(100);
/// Time without a chunk for a helper that has not started one, microseconds: a core in a deep sleep
/// state wakes up slowly.
const PICK_UP_TIMEOUT: Duration = Duration::from_micros(300);
/// Polls of a helper in a chunk before its priority is boosted: a chunk takes about that time,
/// unless the helper does not run.
const SPINS_PER_BOOST: u32 = 1000;
/// Interval between two checks of the vCPU states of all guests, milliseconds.
const VCPU_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Largest number of pairs on the denylist.
const DENYLIST_LEN: usize = 64;

type Pair = (PortId, u16);

/// A pair that a helper has.
#[derive(Debug)]
struct Assignment {
    pair: Pair,
    /// The helper's index.
    helper: usize,
    slot: usize,
    /// Its progress at the last check, and the time by which it has to change.
    progress: u32,
    until: Duration,
}

/// A pair with a long batch of frames that are worth a helper, and the last receiver of them.
type Candidate = (Pair, Option<PortId>);

/// The assignments of a worker.
#[derive(Debug, Default)]
pub(crate) struct Assignments {
    helpers: Option<Arc<Helpers>>,
    list: Vec<Assignment>,
    /// Backoffs by the helpers' indices.
    backoffs: Vec<Backoff>,
    /// Pairs whose frames helpers cannot forward, or that are not worth a helper.
    denylist: Vec<(Pair, Backoff)>,
    /// Earliest times of the next checks of core states: to choose a helper, and for guests beside
    /// helpers.
    choose_after: Duration,
    check_guests_after: Duration,
    /// In this round: the number of pairs with a long batch, and the last of them that is worth a
    /// helper.
    long: u32,
    last: Option<Candidate>,
    /// Rounds in a row with several long batches.
    rounds: u32,
    eager: bool,
    /// Pairs that came back and that the worker does not serve yet.
    returned: Vec<Pair>,
}

impl Assignments {
    fn at(&self, pair: Pair) -> Option<usize> {
        self.list
            .iter()
            .position(|assignment| assignment.pair == pair)
    }

    /// Returns whether a helper has this pair.
    pub(crate) fn has(&self, pair: Pair) -> bool {
        self.at(pair).is_some()
    }

    /// Returns the number of pairs that helpers have.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// Returns the number of helpers.
    pub(crate) fn helpers(&self) -> usize {
        self.helpers
            .as_ref()
            .map_or(0, |helpers| helpers.list.len())
    }

    fn helper(&self, number: usize) -> Option<&Arc<Helper>> {
        self.helpers.as_ref()?.list.get(number)
    }

    /// Notes a batch of so many frames and this load.
    #[inline]
    fn note(
        &mut self,
        (frames, load): (u64, u64),
        backlog: u16,
        candidate: impl FnOnce() -> Candidate,
    ) {
        if load >= u64::from(backlog) || self.eager {
            self.long += 1;
            if is_worth_it(frames, load) || self.eager {
                self.last = Some(candidate());
            }
        }
    }

    /// Ends the round. Returns the pair to assign, if it is time.
    fn end_round(&mut self, now: Duration) -> Option<Candidate> {
        let (long, last) = (std::mem::take(&mut self.long), self.last.take());
        self.rounds = if long > 1 { self.rounds + 1 } else { 0 };
        if self.rounds < BUSY_ROUNDS && !self.eager {
            return None;
        }
        self.rounds = 0;
        let known = |(pair, _): &Candidate| {
            let mut denylist = self.denylist.iter();
            denylist.all(|(denied, backoff)| denied != pair || backoff.is_over(now))
        };
        last.filter(known)
    }

    /// Updates the denylist by the reason for which a pair came back.
    fn learn(&mut self, assignment: &Assignment, reason: Reason, now: Duration) {
        if matches!(reason, Reason::Unknown | Reason::ShortFrames) {
            let at = self
                .denylist
                .iter()
                .position(|(pair, _)| *pair == assignment.pair);
            let at = at.unwrap_or_else(|| {
                self.denylist.truncate(DENYLIST_LEN - 1);
                self.denylist
                    .insert(0, (assignment.pair, Backoff::default()));
                0
            });
            self.denylist[at].1.failed(now);
        } else {
            self.denylist.retain(|(pair, _)| *pair != assignment.pair);
        }
    }
}

impl Assignments {
    /// Sets the helpers of this worker.
    pub(crate) fn set_helpers(&mut self, helpers: Arc<Helpers>) {
        register_waiter(Arc::clone(&helpers));
        self.backoffs = vec![Backoff::default(); helpers.list.len()];
        self.eager = helpers.help.eager;
        self.helpers = Some(helpers);
    }

    /// Notes the last batch of the switch, which was of this pair.
    #[inline]
    pub(crate) fn note_batch(&mut self, switch: &Switch<GuestPort>, pair: Pair) {
        let Some(helpers) = &self.helpers else {
            return;
        };
        // A port with a rate limit stays here: only its home worker has a timer for it.
        if switch.may_hold(pair.0) {
            return;
        }
        let backlog = helpers.help.settings.backlog;
        let batch = (switch.last_frames() as u64, switch.last_load());
        self.note(batch, backlog, || (pair, switch.last_receiver()));
    }

    /// Ends a round of a worker that started at `started`: checks the assignments, and assigns
    /// another pair if there is too much to do. `leave` is called with that pair before a helper
    /// may serve it. [`Assignments::next_returned`] has the pairs that came back.
    #[inline]
    pub(crate) fn end_worker_round(
        &mut self,
        (started, now): (Instant, Duration),
        switch: &mut Switch<GuestPort>,
        guests: &Guests,
        leave: impl FnOnce(Pair),
    ) {
        if !self.list.is_empty() {
            self.check_assignments((started, now), switch, guests);
        }
        if self.long > 1 || self.rounds > 0 || self.eager {
            let candidate = self.end_round(now);
            // Later frames must not overtake pending ones.
            if let Some(candidate) = candidate
                && !switch.has_pending()
            {
                self.assign(candidate, now, guests, leave);
            }
        } else {
            (self.long, self.last) = (0, None);
        }
    }

    /// Returns a pair that came back from a helper: its home serves it again.
    #[inline]
    pub(crate) fn next_returned(&mut self) -> Option<Pair> {
        self.returned.pop()
    }

    #[cold]
    fn assign(
        &mut self,
        (pair, receiver): Candidate,
        now: Duration,
        guests: &Guests,
        leave: impl FnOnce(Pair),
    ) {
        let Some(helpers) = self.helpers.clone() else {
            return;
        };
        let backoffs = &self.backoffs;
        let ready = |at: usize| backoffs[at].is_over(now) && !helpers.list[at].handoff.is_full();
        if now < self.choose_after || !(0..helpers.list.len()).any(ready) {
            return;
        }
        let (states, hash) = (CoreStates::now(guests), spread(pair));
        let chosen = helpers.choose(states.as_ref(), receiver, current_core(), hash, ready);
        let Some(number) = chosen else {
            if states.is_some() {
                self.choose_after = now + VCPU_CHECK_INTERVAL;
            }
            return;
        };
        let helper = &helpers.list[number];
        // The pair belongs to the helper when it is in a slot.
        leave(pair);
        let Some((slot, wake)) = helper.handoff.assign(pair.0, pair.1) else {
            self.returned.push(pair);
            return;
        };
        self.list.push(Assignment {
            pair,
            helper: number,
            slot,
            progress: helper.handoff.progress(slot),
            until: now + PICK_UP_TIMEOUT,
        });
        if wake {
            let _ = sys::event::ring(&helper.bell);
        }
    }

    fn check_assignments(
        &mut self,
        (started, now): (Instant, Duration),
        switch: &mut Switch<GuestPort>,
        guests: &Guests,
    ) {
        if now >= self.check_guests_after {
            self.check_guests_after = now + VCPU_CHECK_INTERVAL;
            self.yield_to_guests(started, guests);
        }
        let mut at = 0;
        while let Some(assignment) = self.list.get_mut(at) {
            let helpers = self.helpers.as_ref();
            let Some(helper) = helpers.and_then(|helpers| helpers.list.get(assignment.helper))
            else {
                return;
            };
            if let Some((receiver, ticks)) = helper.handoff.take_copies(assignment.slot) {
                switch.charge_copies(receiver, ticks);
            }
            let progress = helper.handoff.progress(assignment.slot);
            if progress != assignment.progress {
                (assignment.progress, assignment.until) = (progress, now + STALL_TIMEOUT);
                self.backoffs[assignment.helper].succeeded();
            }
            let stalled = now > assignment.until;
            if helper.handoff.is_back(assignment.slot) || stalled {
                if stalled {
                    self.backoffs[assignment.helper].failed(now);
                }
                self.take_back(at, started);
            } else {
                at += 1;
            }
        }
    }

    /// Takes pairs back from helpers beside which a guest runs now, if the kernel reports that.
    #[cold]
    fn yield_to_guests(&mut self, started: Instant, guests: &Guests) {
        let (Some(states), Some(helpers)) = (CoreStates::now(guests), &self.helpers) else {
            return;
        };
        let near_guests: Vec<Pair> = (self.list.iter())
            .filter(|assignment| helpers.is_beside_a_guest(assignment.helper, &states))
            .map(|assignment| assignment.pair)
            .collect();
        for pair in near_guests {
            self.take_back_pair(pair, started);
        }
    }

    /// Takes a pair back, if a helper has it.
    pub(crate) fn take_back_pair(&mut self, pair: Pair, started: Instant) {
        if let Some(at) = self.at(pair) {
            self.take_back(at, started);
        }
    }

    /// Takes all pairs back.
    #[inline]
    pub(crate) fn take_back_all(&mut self, started: Instant) {
        while !self.list.is_empty() {
            self.take_back(0, started);
        }
    }

    /// Takes an assignment back, as soon as the helper is not in a chunk.
    #[cold]
    fn take_back(&mut self, at: usize, started: Instant) {
        let assignment = self.list.swap_remove(at);
        let Some(helper) = self.helper(assignment.helper).cloned() else {
            return;
        };
        let mut looks = 0u32;
        let reason = loop {
            if let Some(reason) = helper.handoff.take_back(assignment.slot) {
                break reason;
            }
            looks += 1;
            if looks.is_multiple_of(SPINS_PER_BOOST) {
                helper.boost.raise(current_core());
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        };
        self.learn(&assignment, reason, started.elapsed());
        self.returned.push(assignment.pair);
    }
}

/// Returns a hash that spreads pairs over helpers (Fibonacci hashing; the upper bits are good).
fn spread((port, pair): Pair) -> u64 {
    (u64::from(port.0) << 16 | u64::from(pair)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// A batch of 64 frames of 64 bytes, and one of a TSO frame: frames and load.
    const SHORT: (u64, u64) = (64, 64 + 8);
    const BULK: (u64, u64) = (1, 1 + 127);

    /// Ends so many rounds in which these pairs had long batches; returns the pair to assign.
    fn rounds(
        assignments: &mut Assignments,
        count: u32,
        ports: &[u32],
        now: Duration,
    ) -> Option<Pair> {
        let mut last = None;
        for _ in 0..count {
            for port in ports {
                assignments.note(BULK, 32, || ((PortId(*port), 0), None));
            }
            last = last.or(assignments.end_round(now));
        }
        last.map(|(pair, _)| pair)
    }

    #[test]
    fn only_several_pairs_with_long_batches_for_many_rounds_ask_for_help() {
        let assignments = &mut Assignments::default();
        assert_eq!(rounds(assignments, 10 * BUSY_ROUNDS, &[1], us(0)), None);
        assert_eq!(rounds(assignments, BUSY_ROUNDS - 1, &[1, 2], us(0)), None);
        assert_eq!(rounds(assignments, 1, &[1], us(0)), None, "it begins anew");
        assert_eq!(rounds(assignments, BUSY_ROUNDS - 1, &[1, 2], us(0)), None);
        assert_eq!(rounds(assignments, 1, &[1, 2], us(0)), Some((PortId(2), 0)));
        assert_eq!(rounds(assignments, BUSY_ROUNDS - 1, &[1, 2], us(0)), None);
    }

    #[test]
    fn an_assigned_pair_is_worth_a_helper_whatever_others_send() {
        let assignments = &mut Assignments::default();
        let mut assigned = |batches: &[(u64, u64)]| {
            let mut last = None;
            for _ in 0..BUSY_ROUNDS {
                for (port, batch) in (1..).zip(batches) {
                    assignments.note(*batch, 32, || ((PortId(port), 0), None));
                }
                last = assignments.end_round(us(0));
            }
            last.map(|((port, _), _)| port.0)
        };
        assert_eq!(assigned(&[SHORT, SHORT]), None);
        assert_eq!(assigned(&[BULK, SHORT]), Some(1));
        assert_eq!(assigned(&[SHORT, BULK, SHORT]), Some(2));
        assert_eq!(
            assigned(&[BULK, (1, 1)]),
            None,
            "there is little else to do"
        );
    }

    #[test]
    fn a_pair_with_unknown_frames_stays_for_a_while() {
        let assignments = &mut Assignments::default();
        let assignment = |port| Assignment {
            pair: (PortId(port), 0),
            helper: 0,
            slot: 0,
            progress: 0,
            until: us(0),
        };
        assignments.learn(&assignment(2), Reason::Unknown, us(0));
        assert_eq!(rounds(assignments, BUSY_ROUNDS, &[1, 2], us(999)), None);
        assert!(rounds(assignments, BUSY_ROUNDS, &[2, 1], us(999)).is_some());
        assert!(rounds(assignments, BUSY_ROUNDS, &[1, 2], us(1000)).is_some());
        assignments.learn(&assignment(2), Reason::ShortFrames, us(1000));
        assert_eq!(rounds(assignments, BUSY_ROUNDS, &[1, 2], us(2999)), None);
        assignments.learn(&assignment(2), Reason::Quiet, us(2999));
        assert!(rounds(assignments, BUSY_ROUNDS, &[1, 2], us(2999)).is_some());
        for port in 0..1000 {
            assignments.learn(&assignment(port), Reason::Unknown, us(3000));
        }
        assert_eq!(assignments.denylist.len(), DENYLIST_LEN, "bounded");
    }
}
