//! A worker with more to do than it can: it lends queue pairs to helpers on idle cores (see `idle`).
//!
//! A pair that is lent is not on the list of active ones, and its guest is not asked for kicks. The worker has one active pair at
//! least while it has loans: before it sleeps it takes all of them back.

use std::sync::Arc;
use std::time::Duration;

use port::PortId;

use super::Worker;
use super::handle::ring;
use crate::idle::desk::Reason;
use crate::idle::helper::{Backoff, Helper, Helpers, depend_on};
use crate::idle::seen::Seen;
use crate::idle::system::current_core;
use crate::idle::worth::is_worth_it;

/// Rounds in a row in which at least two pairs had a long batch, before one is lent.
const ROUNDS: u32 = 4;
/// Time without a piece after which a helper is taken for one that does not run.
const STALLED: Duration = Duration::from_micros(100);
/// The same before its first piece: a core that sleeps deeply takes its time to wake up.
const PICK_UP: Duration = Duration::from_micros(300);
/// Looks at a helper in a piece before it is raised: a piece is done in about that time, unless it does not run.
const LOOKS: u32 = 1000;
/// Between two looks at what the processors of all guests do.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Pairs that are remembered as not for helpers.
const STRANGERS: usize = 64;

type Pair = (PortId, u16);

/// A pair that a helper has.
#[derive(Debug)]
struct Loan {
    pair: Pair,
    /// The helper's place.
    helper: usize,
    slot: usize,
    /// Its beat when it was looked at last, and when it has to be another one.
    beat: u32,
    until: Duration,
}

/// A pair with a long batch of frames that are worth it, and who got the last of them.
type Candidate = (Pair, Option<PortId>);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lending {
    helpers: Option<Arc<Helpers>>,
    loans: Vec<Loan>,
    /// By the helpers' places.
    backoffs: Vec<Backoff>,
    /// Pairs with frames that helpers do not know, or that are not worth one.
    strangers: Vec<(Pair, Backoff)>,
    /// Before that, the kernel's states are not looked at again for somebody who helps, and for guests beside helpers.
    look_after: Duration,
    guests_after: Duration,
    /// Of this round: pairs with a long batch, and the last of them that is worth a helper.
    long: u32,
    last: Option<Candidate>,
    /// Rounds in a row with several.
    rounds: u32,
    eager: bool,
    /// This one is a helper itself.
    pub(super) helps: bool,
}

impl Lending {
    fn at(&self, pair: Pair) -> Option<usize> {
        self.loans.iter().position(|loan| loan.pair == pair)
    }

    /// Whether a helper has this pair.
    pub(super) fn has(&self, pair: Pair) -> bool {
        self.at(pair).is_some()
    }

    /// How many pairs helpers have.
    pub(super) fn count(&self) -> usize {
        self.loans.len()
    }

    /// How many helpers there are.
    pub(super) fn helpers(&self) -> usize {
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
        mark: u16,
        candidate: impl FnOnce() -> Candidate,
    ) {
        if load >= u64::from(mark) || self.eager {
            self.long += 1;
            if is_worth_it(frames, load) || self.eager {
                self.last = Some(candidate());
            }
        }
    }

    /// Ends the round. The pair to lend, if it is time.
    fn end_round(&mut self, now: Duration) -> Option<Candidate> {
        let (long, last) = (std::mem::take(&mut self.long), self.last.take());
        self.rounds = if long > 1 { self.rounds + 1 } else { 0 };
        if self.rounds < ROUNDS && !self.eager {
            return None;
        }
        self.rounds = 0;
        let known = |(pair, _): &Candidate| {
            let mut strangers = self.strangers.iter();
            strangers.all(|(stranger, backoff)| stranger != pair || backoff.is_over(now))
        };
        last.filter(known)
    }

    /// Notes what a pair's coming back says of it and of the helper.
    fn learn(&mut self, loan: &Loan, reason: Reason, now: Duration) {
        if matches!(reason, Reason::Unknown | Reason::Unworthy) {
            let at = self
                .strangers
                .iter()
                .position(|(pair, _)| *pair == loan.pair);
            let at = at.unwrap_or_else(|| {
                self.strangers.truncate(STRANGERS - 1);
                self.strangers.insert(0, (loan.pair, Backoff::default()));
                0
            });
            self.strangers[at].1.failed(now);
        } else {
            self.strangers.retain(|(pair, _)| *pair != loan.pair);
        }
    }
}

impl Worker {
    /// Whether this is a helper. It may lose its core at any time, so it leaves nothing to be done later.
    #[must_use]
    pub fn helps(&self) -> bool {
        self.lending.helps
    }

    /// From now on these may be asked for help.
    pub(super) fn set_helpers(&mut self, helpers: Arc<Helpers>) {
        depend_on(Arc::clone(&helpers));
        self.lending.backoffs = vec![Backoff::default(); helpers.list.len()];
        self.lending.eager = helpers.eager;
        self.lending.helpers = Some(helpers);
    }

    /// A pair had a batch in this round.
    #[inline]
    pub(super) fn note_batch(&mut self, port: PortId, pair: u16) {
        let Some(helpers) = &self.lending.helpers else {
            return;
        };
        // Who may have to wait stays here, where there is a clock to wake it.
        if self.switch.holds_back(port) {
            return;
        }
        let (mark, switch) = (helpers.settings.mark, &self.switch);
        let batch = (switch.last_frames() as u64, switch.last_load());
        let candidate = || ((port, pair), switch.last_receiver());
        self.lending.note(batch, mark, candidate);
    }

    /// A round is over: looks after what is lent, and lends more if there is too much to do.
    #[inline]
    pub(super) fn lend_or_take_back(&mut self, now: Duration) {
        if !self.lending.loans.is_empty() {
            self.look_after_loans(now);
        }
        if self.lending.long > 1 || self.lending.rounds > 0 || self.lending.eager {
            let candidate = self.lending.end_round(now);
            // What waits for control must not be overtaken.
            if let Some(candidate) = candidate
                && !self.switch.has_parked()
            {
                self.lend(candidate, now);
            }
        } else {
            (self.lending.long, self.lending.last) = (0, None);
        }
    }

    #[cold]
    fn lend(&mut self, (pair, receiver): Candidate, now: Duration) {
        let Some(helpers) = self.lending.helpers.clone() else {
            return;
        };
        let backoffs = &self.lending.backoffs;
        let ready = |at: usize| backoffs[at].is_over(now) && !helpers.list[at].desk.is_full();
        if now < self.lending.look_after || !(0..helpers.list.len()).any(ready) {
            return;
        }
        let (seen, hash) = (Seen::now(&self.guests), spread(pair));
        let chosen = helpers.choose(seen.as_ref(), receiver, current_core(), hash, ready);
        let Some(number) = chosen else {
            if seen.is_some() {
                self.lending.look_after = now + LOOK_AGAIN;
            }
            return;
        };
        let helper = &helpers.list[number];
        // From here on it is the helper's: all that this worker does with it is done.
        self.active.remove(pair.0, pair.1);
        let Some((slot, wake)) = helper.desk.lend(pair.0, pair.1) else {
            self.activate(pair.0, pair.1);
            return;
        };
        self.lending.loans.push(Loan {
            pair,
            helper: number,
            slot,
            beat: helper.desk.beat(slot),
            until: now + PICK_UP,
        });
        if wake {
            ring(&helper.bell);
        }
    }

    fn look_after_loans(&mut self, now: Duration) {
        if now >= self.lending.guests_after {
            self.lending.guests_after = now + LOOK_AGAIN;
            self.give_way_to_guests();
        }
        let mut at = 0;
        while let Some(loan) = self.lending.loans.get_mut(at) {
            let helpers = self.lending.helpers.as_ref();
            let Some(helper) = helpers.and_then(|helpers| helpers.list.get(loan.helper)) else {
                return;
            };
            let beat = helper.desk.beat(loan.slot);
            if beat != loan.beat {
                (loan.beat, loan.until) = (beat, now + STALLED);
                self.lending.backoffs[loan.helper].helped();
            }
            let stalled = now > loan.until;
            if helper.desk.is_back(loan.slot) || stalled {
                if stalled {
                    self.lending.backoffs[loan.helper].failed(now);
                }
                self.take_back(at);
            } else {
                at += 1;
            }
        }
    }

    /// Takes pairs back from cores beside which a guest runs by now, if the kernel says so.
    #[cold]
    fn give_way_to_guests(&mut self) {
        let (Some(seen), Some(helpers)) = (Seen::now(&self.guests), &self.lending.helpers) else {
            return;
        };
        let beside: Vec<Pair> = (self.lending.loans.iter())
            .filter(|loan| helpers.is_beside_a_guest(loan.helper, &seen))
            .map(|loan| loan.pair)
            .collect();
        for (port, pair) in beside {
            self.take_back_pair(port, pair);
        }
    }

    /// Takes a pair back, if a helper has it.
    pub(super) fn take_back_pair(&mut self, port: PortId, pair: u16) {
        if let Some(at) = self.lending.at((port, pair)) {
            self.take_back(at);
        }
    }

    /// Takes all pairs back.
    pub(super) fn take_back_all(&mut self) {
        while !self.lending.loans.is_empty() {
            self.take_back(0);
        }
    }

    /// Takes the loan at this place back, as soon as the helper is not in a piece, and has its pair active.
    #[cold]
    fn take_back(&mut self, at: usize) {
        let loan = self.lending.loans.swap_remove(at);
        let Some(helper) = self.lending.helper(loan.helper).cloned() else {
            return;
        };
        let mut looks = 0u32;
        let reason = loop {
            if let Some(reason) = helper.desk.take_back(loan.slot) {
                break reason;
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                helper.boost.raise(current_core());
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        };
        let now = self.started.elapsed();
        self.lending.learn(&loan, reason, now);
        self.activate(loan.pair.0, loan.pair.1);
    }
}

/// Spreads pairs over helpers (Fibonacci hashing; the upper bits are good).
fn spread((port, pair): Pair) -> u64 {
    (u64::from(port.0) << 16 | u64::from(pair)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// A batch of 64 frames of 64 bytes, and one of a super-frame: frames and load.
    const SHORT: (u64, u64) = (64, 64 + 8);
    const BULK: (u64, u64) = (1, 1 + 127);

    /// Ends so many rounds in which these pairs had long batches; what is to be lent.
    fn rounds(lending: &mut Lending, count: u32, ports: &[u32], now: Duration) -> Option<Pair> {
        let mut last = None;
        for _ in 0..count {
            for port in ports {
                lending.note(BULK, 32, || ((PortId(*port), 0), None));
            }
            last = last.or(lending.end_round(now));
        }
        last.map(|(pair, _)| pair)
    }

    #[test]
    fn only_several_pairs_with_long_batches_for_many_rounds_ask_for_help() {
        let lending = &mut Lending::default();
        assert_eq!(rounds(lending, 10 * ROUNDS, &[1], us(0)), None);
        assert_eq!(rounds(lending, ROUNDS - 1, &[1, 2], us(0)), None);
        assert_eq!(rounds(lending, 1, &[1], us(0)), None, "it begins anew");
        assert_eq!(rounds(lending, ROUNDS - 1, &[1, 2], us(0)), None);
        assert_eq!(rounds(lending, 1, &[1, 2], us(0)), Some((PortId(2), 0)));
        assert_eq!(rounds(lending, ROUNDS - 1, &[1, 2], us(0)), None);
    }

    #[test]
    fn what_is_lent_is_worth_it_whatever_there_is_to_do_besides() {
        let lending = &mut Lending::default();
        let mut lent = |batches: &[(u64, u64)]| {
            let mut last = None;
            for _ in 0..ROUNDS {
                for (port, batch) in (1..).zip(batches) {
                    lending.note(*batch, 32, || ((PortId(port), 0), None));
                }
                last = lending.end_round(us(0));
            }
            last.map(|((port, _), _)| port.0)
        };
        assert_eq!(lent(&[SHORT, SHORT]), None);
        assert_eq!(lent(&[BULK, SHORT]), Some(1));
        assert_eq!(lent(&[SHORT, BULK, SHORT]), Some(2));
        assert_eq!(lent(&[BULK, (1, 1)]), None, "there is little else to do");
    }

    #[test]
    fn a_pair_with_unknown_frames_stays_for_a_while() {
        let lending = &mut Lending::default();
        let loan = |port| Loan {
            pair: (PortId(port), 0),
            helper: 0,
            slot: 0,
            beat: 0,
            until: us(0),
        };
        lending.learn(&loan(2), Reason::Unknown, us(0));
        assert_eq!(rounds(lending, ROUNDS, &[1, 2], us(999)), None);
        assert!(rounds(lending, ROUNDS, &[2, 1], us(999)).is_some());
        assert!(rounds(lending, ROUNDS, &[1, 2], us(1000)).is_some());
        lending.learn(&loan(2), Reason::Unworthy, us(1000));
        assert_eq!(rounds(lending, ROUNDS, &[1, 2], us(2999)), None);
        lending.learn(&loan(2), Reason::Quiet, us(2999));
        assert!(rounds(lending, ROUNDS, &[1, 2], us(2999)).is_some());
        for port in 0..1000 {
            lending.learn(&loan(port), Reason::Unknown, us(3000));
        }
        assert_eq!(lending.strangers.len(), STRANGERS, "bounded");
    }
}
