//! One address: its holder, and the other ports that use it.

use std::time::Duration;

use ipc::records::SourceRole;
use policy::PortId;

use super::limits::{Allowance, SpentAllowance};

/// Claims that are remembered beside the holder's. A further port replaces the newest.
const RIVALS: usize = 8;

/// Use of the address by a port. Of two claims the one with the smaller number is older.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    port: PortId,
    number: u64,
    /// Time of the last frame.
    used: Duration,
    /// Moves to the port.
    spent: SpentAllowance,
    /// A move was refused since the last time that none were spent.
    damped: bool,
}

/// One address.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    holder: Claim,
    pinned: bool,
    /// Claims of other ports.
    rivals: Vec<Claim>,
}

/// Rules for moves of an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoveRules {
    /// Ports share the address: it is where it was seen last, and no claim is worth more.
    pub(super) shared: bool,
    /// Moves of the address to a port.
    pub(super) allowance: Allowance,
    /// Moves of all addresses to a port.
    pub(super) port_allowance: Allowance,
    /// Silence of the holder after which a damped rival has the address.
    pub(super) silence: Duration,
    /// Time after which a claim is forgotten.
    pub(super) age: Duration,
}

/// Results of a frame with this source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The port holds the address.
    Known,
    /// The address moves to the port.
    Moved,
    /// The address stays, because the port's moves are used up.
    Damped {
        /// Whether this is the first time in a series.
        first: bool,
    },
}

impl Entry {
    pub(super) fn learn(now: Duration, port: PortId, next_claim: &mut u64) -> Self {
        Self {
            holder: Claim::new(now, port, next_claim),
            pinned: false,
            rivals: Vec::new(),
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
        self.holder.used
    }

    /// Returns the time since the last frame from the holder.
    pub(super) fn idle(&self, now: Duration) -> Duration {
        if self.pinned {
            Duration::ZERO
        } else {
            now.saturating_sub(self.seen())
        }
    }

    pub(super) fn is_stale(&self, now: Duration, age: Duration) -> bool {
        self.idle(now) >= age && !self.pinned
    }

    /// Returns whether other ports use the address, too.
    pub(super) fn is_contested(&self) -> bool {
        !self.rivals.is_empty()
    }

    /// Returns what a port is to the address.
    pub(super) fn role(&self, port: PortId) -> SourceRole {
        if self.holder.port == port {
            SourceRole::Holder
        } else if self.rivals.iter().any(|claim| claim.port == port) {
            SourceRole::Rival
        } else {
            SourceRole::Unlearned
        }
    }

    /// Records that a port with a claim has used the address at time `seen`.
    pub(super) fn refresh(&mut self, seen: Duration, port: PortId) {
        let mut all = self.rivals.iter_mut().chain([&mut self.holder]);
        if let Some(claim) = all.find(|claim| claim.port == port) {
            claim.used = claim.used.max(seen);
        }
    }

    /// Processes a frame with this source address from `port`, which has spent `port_spent` moves
    /// and may use the address.
    pub(super) fn observe(
        &mut self,
        now: Duration,
        port: PortId,
        rules: &MoveRules,
        port_spent: &mut SpentAllowance,
        next_claim: &mut u64,
    ) -> Verdict {
        if port == self.port() {
            self.holder.used = now.max(self.holder.used);
            return Verdict::Known;
        }
        self.forget_old_claims(now, rules.age);
        let holder = self.holder.number;
        let claim = self.claim(now, port, next_claim);
        // Who had the address first need not pay to have it back.
        if rules.shared || claim.number > holder {
            let spent = rules.allowance.spend(claim.spent, now);
            let port_total = rules.port_allowance.spend(*port_spent, now);
            let (Some(spent), Some(port_total)) = (spent, port_total) else {
                let first = !std::mem::replace(&mut claim.damped, true);
                return Verdict::Damped { first };
            };
            claim.damped &= !claim.spent.is_none(now);
            claim.spent = spent;
            *port_spent = port_total;
        }
        self.move_to(port);
        Verdict::Moved
    }

    /// Returns the port that has used the address later than the holder, by the time of silence.
    pub(super) fn successor(&self, silence: Duration) -> Option<PortId> {
        let last = self.rivals.iter().max_by_key(|claim| claim.used)?;
        (!self.pinned && last.used >= self.seen() + silence).then_some(last.port)
    }

    /// Makes a port with a claim the holder.
    pub(super) fn move_to(&mut self, port: PortId) {
        if let Some(rival) = self.rivals.iter_mut().find(|claim| claim.port == port) {
            std::mem::swap(rival, &mut self.holder);
        }
    }

    /// Records that a port other than the holder has used the address. Returns its claim.
    pub(super) fn claim(&mut self, used: Duration, port: PortId, next: &mut u64) -> &mut Claim {
        let place = self.rivals.iter().position(|claim| claim.port == port);
        let place = place.unwrap_or_else(|| {
            let newest = (0..self.rivals.len()).max_by_key(|at| self.rivals[*at].number);
            if let Some(newest) = newest.filter(|_| self.rivals.len() == RIVALS) {
                self.rivals.swap_remove(newest);
            }
            self.rivals.push(Claim::new(used, port, next));
            self.rivals.len() - 1
        });
        let claim = &mut self.rivals[place];
        claim.used = claim.used.max(used);
        claim
    }

    /// Forgets the claims of ports that have not used the address for `age`.
    pub(super) fn forget_old_claims(&mut self, now: Duration, age: Duration) {
        self.rivals
            .retain(|claim| now.saturating_sub(claim.used) < age);
    }

    /// Forgets the claims of other ports than these. The holder keeps the address.
    pub(super) fn keep_claims(&mut self, is_owner: impl Fn(PortId) -> bool) {
        self.rivals.retain(|claim| is_owner(claim.port));
    }
}

impl Claim {
    fn new(used: Duration, port: PortId, next_claim: &mut u64) -> Self {
        let number = *next_claim;
        *next_claim += 1;
        Self {
            port,
            number,
            used,
            spent: SpentAllowance::default(),
            damped: false,
        }
    }
}
