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
use crate::idle::system::current_core;

/// Rounds in a row in which at least two pairs had a long batch, before one is lent.
const ROUNDS: u32 = 4;
/// Time without a piece after which a helper is taken for one that does not run.
const STALLED: Duration = Duration::from_micros(100);
/// The same before its first piece: a core that sleeps deeply takes its time to wake up.
const PICK_UP: Duration = Duration::from_micros(300);
/// Looks at a helper in a piece before it is raised: a piece is done in about that time, unless it does not run.
const LOOKS: u32 = 1000;
/// Pairs that are remembered as unknown to helpers.
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

/// A pair with a long batch, and who got its last frame.
type Candidate = (Pair, Option<PortId>);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lending {
    helpers: Option<Arc<Helpers>>,
    loans: Vec<Loan>,
    /// By the helpers' places.
    backoffs: Vec<Backoff>,
    /// Pairs with frames that helpers do not know.
    strangers: Vec<(Pair, Backoff)>,
    /// Of this round: pairs with a long batch, and the last of them.
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

    fn helper(&self, number: usize) -> Option<&Arc<Helper>> {
        self.helpers.as_ref()?.list.get(number)
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
        if reason == Reason::Unknown {
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
        if self.switch.last_load() >= u64::from(helpers.settings.mark) || self.lending.eager {
            self.lending.long += 1;
            self.lending.last = Some(((port, pair), self.switch.last_receiver()));
        }
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
        let hash = spread(pair);
        let Some(number) = helpers.choose(receiver, current_core(), hash, ready) else {
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

    /// Ends so many rounds in which these pairs had long batches; what is to be lent.
    fn rounds(lending: &mut Lending, count: u32, ports: &[u32], now: Duration) -> Option<Pair> {
        let mut last = None;
        for _ in 0..count {
            for port in ports {
                lending.long += 1;
                lending.last = Some(((PortId(*port), 0), None));
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
        lending.learn(&loan(2), Reason::Unknown, us(1000));
        assert_eq!(rounds(lending, ROUNDS, &[1, 2], us(2999)), None);
        lending.learn(&loan(2), Reason::Quiet, us(2999));
        assert!(rounds(lending, ROUNDS, &[1, 2], us(2999)).is_some());
        for port in 0..1000 {
            lending.learn(&loan(port), Reason::Unknown, us(3000));
        }
        assert_eq!(lending.strangers.len(), STRANGERS, "bounded");
    }
}
