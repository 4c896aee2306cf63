//! One address: who holds it, who held it, who is barred from it.

use std::time::Duration;

use policy::PortId;

use super::effect::Refusal;
use super::limits::Limits;

/// That a port uses the address. Of two claims the one with the smaller number is older.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Claim {
    port: PortId,
    number: u64,
}

/// A claim that another port has taken over.
#[derive(Clone, Copy, Debug)]
struct Lost {
    claim: Claim,
    at: Duration,
}

impl Lost {
    fn within(&self, now: Duration, time: Duration) -> bool {
        now.saturating_sub(self.at) <= time
    }
}

/// That a port must not use the address. Stays after its end, to make the next one longer.
#[derive(Clone, Copy, Debug)]
struct Bar {
    port: PortId,
    until: Duration,
    /// How long it was.
    hold: Duration,
    /// Its end was reported.
    lifted: bool,
}

/// One address.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    holder: Claim,
    pinned: bool,
    /// When the holder was last heard.
    seen: Duration,
    /// The claim that the last move took over.
    previous: Option<Lost>,
    /// The oldest claim that was taken over.
    eldest: Option<Lost>,
    bars: Vec<Bar>,
}

/// What came of hearing a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It holds the address.
    Known,
    /// Nothing changes.
    Refused(Refusal),
    /// It holds the address now.
    Moved,
    /// It holds the address again; who held it in between is barred.
    Returned { until: Duration },
    /// It is barred; the holder stays.
    Barred { until: Duration },
}

impl Entry {
    pub(super) fn learn(now: Duration, port: PortId, next_claim: &mut u64) -> Self {
        let holder = Claim {
            port,
            number: take_number(next_claim),
        };
        Self {
            holder,
            pinned: false,
            seen: now,
            previous: None,
            eldest: None,
            bars: Vec::new(),
        }
    }

    pub(super) fn pin(port: PortId) -> Self {
        let mut entry = Self::learn(Duration::ZERO, port, &mut 0);
        entry.pinned = true;
        entry
    }

    pub(super) fn port(&self) -> PortId {
        self.holder.port
    }

    pub(super) fn pinned(&self) -> bool {
        self.pinned
    }

    pub(super) fn seen(&self) -> Duration {
        self.seen
    }

    /// Time since the holder was heard.
    pub(super) fn idle(&self, now: Duration) -> Duration {
        if self.pinned {
            Duration::ZERO
        } else {
            now.saturating_sub(self.seen)
        }
    }

    pub(super) fn is_stale(&self, now: Duration, limits: &Limits) -> bool {
        self.idle(now) >= limits.age && !self.pinned
    }

    pub(super) fn refresh(&mut self, seen: Duration, port: PortId) {
        if self.port() == port {
            self.seen = self.seen.max(seen);
        }
    }

    /// Why `port` must not use the address now, if it must not.
    pub(super) fn refusal(&self, now: Duration, port: PortId) -> Option<Refusal> {
        if self.pinned {
            return (self.port() != port).then_some(Refusal::Pinned);
        }
        let barred = self
            .bars
            .iter()
            .any(|bar| bar.port == port && now < bar.until);
        barred.then_some(Refusal::Barred)
    }

    /// A frame with this source address came from `port`.
    pub(super) fn hear(
        &mut self,
        now: Duration,
        port: PortId,
        limits: &Limits,
        next_claim: &mut u64,
    ) -> Verdict {
        if port == self.port() {
            self.refresh(now, port);
            return Verdict::Known;
        }
        if let Some(why) = self.refusal(now, port) {
            return Verdict::Refused(why);
        }
        let contested = self
            .previous
            .filter(|lost| lost.claim.port == port && lost.within(now, limits.move_window));
        match contested {
            Some(lost) if lost.claim.number < self.holder.number => {
                let pretender = self.holder.port;
                self.give_back(now, lost.claim);
                Verdict::Returned {
                    until: self.bar(now, pretender, limits),
                }
            }
            Some(_) => Verdict::Barred {
                until: self.bar(now, port, limits),
            },
            None => {
                self.take_over(now, port, limits, next_claim);
                Verdict::Moved
            }
        }
    }

    /// A move: `port` is believed, with its old claim if it has one that is remembered.
    fn take_over(&mut self, now: Duration, port: PortId, limits: &Limits, next_claim: &mut u64) {
        let remembered = |lost: &Lost| lost.within(now, limits.age);
        let own = [self.eldest, self.previous]
            .into_iter()
            .flatten()
            .find(|lost| lost.claim.port == port && remembered(lost));
        let number = own.map_or_else(|| take_number(next_claim), |lost| lost.claim.number);
        let lost = Lost {
            claim: self.holder,
            at: now,
        };
        let eldest = self
            .eldest
            .filter(|lost| lost.claim.port != port && remembered(lost));
        self.eldest = match eldest {
            Some(eldest) if eldest.claim.number < lost.claim.number => Some(eldest),
            _ => Some(lost),
        };
        self.previous = Some(lost);
        self.holder = Claim { port, number };
        self.seen = now;
    }

    /// A false move undone: as if it had not been.
    fn give_back(&mut self, now: Duration, claim: Claim) {
        self.holder = claim;
        self.seen = now;
        self.previous = None;
        self.eldest = self.eldest.filter(|lost| lost.claim.port != claim.port);
    }

    /// Bars `port`, longer than last time, and says until when.
    fn bar(&mut self, now: Duration, port: PortId, limits: &Limits) -> Duration {
        self.drop_old_bars(now, limits);
        let last = self.bars.iter().position(|bar| bar.port == port);
        let last = last.map(|at| self.bars.swap_remove(at));
        let hold = last
            .map_or(limits.hold, |bar| bar.hold.saturating_mul(2))
            .min(limits.max_hold);
        let until = now.saturating_add(hold);
        self.bars.push(Bar {
            port,
            until,
            hold,
            lifted: false,
        });
        until
    }

    fn drop_old_bars(&mut self, now: Duration, limits: &Limits) {
        self.bars
            .retain(|bar| now < bar.until.saturating_add(limits.max_hold));
    }

    /// Notes the bars that have ended. `true`: one or more have since the last call.
    pub(super) fn lift_bars(&mut self, now: Duration, limits: &Limits) -> bool {
        let mut any = false;
        for bar in self
            .bars
            .iter_mut()
            .filter(|bar| bar.until <= now && !bar.lifted)
        {
            bar.lifted = true;
            any = true;
        }
        self.drop_old_bars(now, limits);
        any
    }

    /// When the entry becomes stale or a bar ends.
    pub(super) fn next_expiry(&self, limits: &Limits) -> Option<Duration> {
        let stale = (!self.pinned).then(|| self.seen.saturating_add(limits.age));
        let bars = self
            .bars
            .iter()
            .filter(|bar| !bar.lifted)
            .map(|bar| bar.until);
        stale.into_iter().chain(bars).min()
    }

    /// The port is gone, and its number may be another port's soon. `true`: it was barred.
    pub(super) fn forget_claims_of(&mut self, port: PortId) -> bool {
        let barred = self.bars.iter().any(|bar| bar.port == port && !bar.lifted);
        self.previous = self.previous.filter(|lost| lost.claim.port != port);
        self.eldest = self.eldest.filter(|lost| lost.claim.port != port);
        self.bars.retain(|bar| bar.port != port);
        barred
    }
}

fn take_number(next_claim: &mut u64) -> u64 {
    let number = *next_claim;
    *next_claim += 1;
    number
}
