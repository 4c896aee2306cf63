//! Whose turn it is: each port's guests get processor time by the port's weight, and a port alone gets all.
//!
//! Every port has an account of what its batches have cost so far, divided by its weight. In a round over the active
//! pairs, those wait whose port has paid more than [`Fair::bound`] beyond the *present*: that is what the port has paid
//! that has paid least, of those that had frames in the last round. (Start-time fair queueing, Goyal, Vin and Cheng,
//! SIGCOMM 1996, with rounds in place of a sorted queue.)
//!
//! * Somebody who has frames is always served: when all wait, the present moves on to the first of them.
//! * A port alone never waits, because the present is what it has paid.
//! * Who had nothing to send saves nothing up: its account moves on with the present.
//!
//! Besides, a batch is cut short while there are others: a frame that comes then waits for the batch before it, so
//! [`QUANTUM`] says how long that may be.

#[cfg(test)]
mod tests;

use std::time::Duration;

use port::{BATCH, BatchLimit, Port, PortId};

use crate::switch::{Switch, UpcallSink};

/// What a port has whose configuration says nothing.
const WEIGHT: u16 = channel::switching::WEIGHT;

/// A batch is to take no longer than about this while others are active, whatever its frames cost.
const QUANTUM: Duration = Duration::from_micros(10);
/// While others are active, no frame is taken after so many bytes: one super-frame. What frames cost is known only
/// after the first of them.
const BYTES_AMONG_OTHERS: u64 = 48 << 10;
/// Costs are kept in units of a tick at the weight of [`WEIGHT`], which has so many parts.
const PARTS: u64 = 1 << 16;
/// The bound shrinks by 1 / 64 a batch, down to what batches cost.
const SHRINK: u64 = 64;

/// What a port has used.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// In ticks at the weight of [`WEIGHT`].
    paid: u64,
    /// Parts of a tick that are paid, too.
    rest: u64,
    /// Parts of a tick that are paid for a tick.
    price: u64,
    /// Frames of a batch that take no longer than [`QUANTUM`], as far as is known.
    frames: usize,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            paid: 0,
            rest: 0,
            price: PARTS,
            frames: BATCH,
        }
    }
}

/// What became of a pair's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Its port has had more than others.
    Waits,
    /// There were no frames.
    Empty,
    /// A batch was moved.
    Served,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Fair {
    /// By port id.
    accounts: Vec<Account>,
    present: u64,
    /// What the costliest of the latest batches cost.
    bound: u64,
    /// The least that a port has paid that had frames in this round.
    least: u64,
    /// A port waits in this round.
    waits: bool,
    /// [`QUANTUM`] in ticks, once it is known.
    quantum: u64,
}

impl Default for Fair {
    fn default() -> Self {
        Self {
            accounts: Vec::new(),
            present: 0,
            bound: 0,
            least: u64::MAX,
            waits: false,
            quantum: u64::MAX,
        }
    }
}

impl Fair {
    /// A port's weight is this from now on; also of one that is new under a number that another port had.
    pub(super) fn set_weight(&mut self, port: PortId, weight: u16) {
        let present = self.present;
        let account = self.account(port);
        account.price = PARTS * u64::from(WEIGHT) / u64::from(weight.max(1));
        account.paid = account.paid.min(present);
    }

    /// The counter is so fast.
    pub(super) fn set_ticks_per_second(&mut self, ticks: u64) {
        self.quantum = (QUANTUM.as_secs_f64() * ticks as f64) as u64;
    }

    fn account(&mut self, port: PortId) -> &mut Account {
        let index = port.0 as usize;
        if self.accounts.len() <= index {
            self.accounts.resize(index + 1, Account::default());
        }
        &mut self.accounts[index]
    }

    /// Serves a port's pair if it is its turn; `alone`: no other pair is active.
    #[inline]
    pub(super) fn serve<P: Port>(
        &mut self,
        switch: &mut Switch<P>,
        (port, pair): (PortId, u16),
        alone: bool,
        now: u64,
        upcalls: &mut dyn UpcallSink,
    ) -> Turn {
        if !self.may_go(port) {
            return Turn::Waits;
        }
        switch.set_limit(match alone {
            true => BatchLimit::MOST,
            false => BatchLimit {
                frames: self.account(port).frames,
                bytes: BYTES_AMONG_OTHERS,
            },
        });
        if !switch.serve(port, pair, now, upcalls) {
            return Turn::Empty;
        }
        self.charge(port, switch.last_cost(), switch.last_frames());
        Turn::Served
    }

    /// Whether a port has not had too much. One that has waits until the end of the round at least.
    #[inline]
    fn may_go(&mut self, port: PortId) -> bool {
        let paid = self.account(port).paid;
        let waits = paid > self.present.saturating_add(self.bound);
        if waits {
            self.least = self.least.min(paid);
            self.waits = true;
        }
        !waits
    }

    /// A port's batch of `frames` cost so many ticks.
    #[inline]
    fn charge(&mut self, port: PortId, cost: u64, frames: usize) {
        let (present, quantum) = (self.present, self.quantum);
        let account = self.account(port);
        let parts = cost
            .saturating_mul(account.price)
            .saturating_add(account.rest);
        let price = parts / PARTS;
        account.rest = parts % PARTS;
        account.paid = account.paid.max(present) + price;
        if cost > quantum {
            // Division only where it is about long batches.
            account.frames = (frames as u64 * quantum / cost).max(1) as usize;
        } else if frames >= account.frames && cost < quantum / 2 {
            account.frames = (2 * account.frames).min(BATCH);
        }
        let paid = account.paid;
        self.least = self.least.min(paid);
        self.bound = price.max(self.bound - self.bound / SHRINK);
    }

    /// A round over all active pairs is over. `true` if a port had to wait, so that there may be frames still.
    #[inline]
    pub(super) fn end_round(&mut self) -> bool {
        if self.least != u64::MAX {
            self.present = self.present.max(self.least);
            self.least = u64::MAX;
        }
        std::mem::take(&mut self.waits)
    }
}
