//! One address: its holder, its former holders, and the ports that are barred from it.

use std::time::Duration;

use policy::PortId;

use super::effect::Refusal;
use super::limits::Limits;

/// Use of the address by a port. Of two claims the one with the smaller number is older.
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

/// A bar: the port must not use the address. It is kept after its end, to make the next one longer.
#[derive(Clone, Copy, Debug)]
struct Bar {
    port: PortId,
    until: Duration,
    /// Its duration.
    hold: Duration,
    /// Whether its end was reported.
    lifted: bool,
}

/// One address.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    holder: Claim,
    pinned: bool,
    /// Time of the last frame from the holder.
    seen: Duration,
    /// The claim that lost the address in the last move.
    previous: Option<Lost>,
    /// The oldest claim that has lost the address.
    eldest: Option<Lost>,
    bars: Vec<Bar>,
}

/// Results of a frame with this source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The port holds the address.
    Known,
    /// Nothing changes.
    Refused(Refusal),
    /// The address moves to the port.
    Moved,
    /// The address returns to the port; the holder in between is barred.
    Returned { until: Duration },
    /// The port is barred; the holder stays.
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

    /// Returns the time since the last frame from the holder.
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

    /// Returns why `port` must not use the address now, if so.
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

    /// Processes a frame with this source address from `port`.
    pub(super) fn observe(
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
                let loser = self.holder.port;
                self.undo_move(now, lost.claim);
                Verdict::Returned {
                    until: self.bar(now, loser, limits),
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

    /// Moves the address to `port`, with its old claim if one is remembered.
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

    /// Undoes a false move.
    fn undo_move(&mut self, now: Duration, claim: Claim) {
        self.holder = claim;
        self.seen = now;
        self.previous = None;
        self.eldest = self.eldest.filter(|lost| lost.claim.port != claim.port);
    }

    /// Bars `port`, for longer than the last time; returns the end.
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

    /// Marks the bars that have ended; returns whether there are new ones since the last call.
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

    /// Removes all traces of a port, whose number may be reused; returns whether it was barred.
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
