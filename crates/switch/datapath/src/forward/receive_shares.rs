//! Shares of receivers: the time that is spent on copying to one port while others want the worker.
//!
//! A sender pays for switching, and has to wait when it is ahead of others (`worker::fair`). The
//! copy is paid by its receiver, which cannot wait: it does not choose what others send. So frames
//! for a receiver beyond its share are dropped before they are copied ([`ReceiveShares::is_over`]),
//! if several senders want it. A single sender need not lose frames: it pays for the copies beyond
//! the share itself, and waits ([`ReceiveShares::charges_sender`]). So do all senders to a port
//! that is not to lose frames ([`ReceiveShares::set_lossless`]).
//! (Ram, Cox and Rixner: switching in the sender's context, copying in the receiver's; thesis of
//! Ram, 4.2 and 4.3.1. There the scheduler of the receiver's CPU bounds the copies.)
//!
//! ```text
//!                    two or more receivers are backlogged in a round
//!    [ uncontended ] ----------------------------------------------> [ contended ]
//!      nothing is dropped                                              accounts count
//!           ^                                                               |
//!           '----------- a round with one backlogged receiver, or none -----'
//!                             all accounts begin anew
//! ```
//! A receiver is *backlogged* in a round if it is the main receiver of a sender that has more
//! frames than fit its batch, or if frames for it were dropped here. While one receiver is
//! backlogged no other port lacks the worker's time, and all that is left is for that receiver.
//! While several are, they share by weight the time of copying to them and an eighth more, and at
//! least half of all time: an account is over its share if it is further ahead than [`BATCHES`] of
//! its costly batches, and than the costliest batch of any receiver. (A round in which that one is
//! dropped grants much less than the next, so accounts of small batches are ahead by as much.)
//!
//! * The margin of an eighth keeps flows apart from drops whose copies are not equally expensive.
//! * Half of all time is certain, so that a receiver that takes little cannot reduce the share of
//!   others by being backlogged.
//! * A receiver below its share keeps the rest for one round, and saves nothing up.
//!
//! This module reads no clock.

#[cfg(test)]
mod tests;

use port::PortId;

/// The weight of a port without a configured one.
const WEIGHT: u64 = ipc::switching::WEIGHT as u64;
/// Parts of the price of a tick, which is 1 at the weight [`WEIGHT`].
const PARTS: u64 = 1 << 16;
/// The sender of a receiver that no sender has more frames for.
const NO_SENDER: PortId = PortId(u32::MAX);
/// Costly batches by which an account may be ahead.
const BATCHES: u64 = 4;
/// Divisor of the decrease of a batch's highest cost by each batch, down to the cost of batches.
const SHRINK: u64 = 64;
/// Rounds for which a receiver stays backlogged while senders wait for their turn, which may be its
/// own.
const PATIENCE: u64 = 256;
/// Costly batches by which one of the two accounts of a share is behind the other at most.
const BEHIND: u64 = 8;

/// The account of a receiver.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// The cost of copies so far, in ticks at the weight [`WEIGHT`].
    paid: u64,
    /// The charge for the costliest of its recent batches.
    costliest: u64,
    /// The charge for a tick, in [`PARTS`].
    price: u64,
    weight: u64,
    /// The last round in which it was backlogged.
    backlogged: u64,
    /// The sender that had more frames for it last.
    sender: PortId,
    /// Until this round several senders count as wanting it.
    shared_until: u64,
    /// Whether it is listed as backlogged.
    listed: bool,
    /// Whether its senders pay and none of their frames is dropped.
    lossless: bool,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            paid: 0,
            costliest: 0,
            price: PARTS,
            weight: WEIGHT,
            backlogged: 0,
            sender: NO_SENDER,
            shared_until: 0,
            listed: false,
            lossless: false,
        }
    }
}

impl Account {
    /// Returns whether frames beyond the share are dropped; else their senders pay for them.
    fn drops(&self, round: u64) -> bool {
        round < self.shared_until && !self.lossless
    }

    /// Notes that it is backlogged in this round. Returns whether it is to be listed.
    #[inline]
    fn note(&mut self, round: u64) -> bool {
        self.backlogged = round;
        !std::mem::replace(&mut self.listed, true)
    }

    /// Notes another sender than the last one.
    #[cold]
    fn change_sender(&mut self, sender: PortId, round: u64) {
        let before = std::mem::replace(&mut self.sender, sender);
        if before != NO_SENDER && round - self.backlogged <= PATIENCE {
            self.shared_until = round + PATIENCE;
        }
    }
}

/// The accounts of all receivers of a worker; see the module.
#[derive(Debug, Default)]
pub(crate) struct ReceiveShares {
    /// Accounts by port id.
    accounts: Vec<Account>,
    /// The backlogged receivers.
    backlogged: Vec<PortId>,
    /// The account of a receiver that has had its share: the larger one of two.
    virtual_time: u64,
    /// Such an account by half of all time, and by the time of copies.
    by_time: u64,
    by_copies: u64,
    /// Accounts behind this are moved up to it: the virtual time of the last round.
    floor: u64,
    /// The account that is furthest ahead.
    most: u64,
    /// Some receivers may be over their shares.
    contended: bool,
    /// The charge for the costliest recent batch to any receiver.
    costliest: u64,
    /// Ticks of all batches of this round.
    spent: u64,
    /// Ticks of copies in this round, with contention to backlogged receivers only.
    copied: u64,
    round: u64,
    /// Frames were dropped in this round.
    dropped: bool,
}

impl ReceiveShares {
    /// Adds a port, also one whose number was used before. Later charges allocate nothing.
    pub(crate) fn add(&mut self, port: PortId) {
        let floor = self.floor;
        let account = self.account(port);
        (account.paid, account.lossless) = (floor, false);
    }

    /// Sets whether senders to an added port pay for the copies beyond its share, and lose nothing,
    /// even if they are several.
    pub(crate) fn set_lossless(&mut self, port: PortId, lossless: bool) {
        self.account(port).lossless = lossless;
    }

    /// Sets the weight of a port, also before it is added.
    pub(crate) fn set_weight(&mut self, port: PortId, weight: u16) {
        let account = self.account(port);
        account.weight = u64::from(weight.max(1));
        account.price = PARTS * WEIGHT / account.weight;
    }

    fn account(&mut self, port: PortId) -> &mut Account {
        let index = port.0 as usize;
        if self.accounts.len() <= index {
            self.accounts.resize(index + 1, Account::default());
            self.backlogged
                .reserve(self.accounts.len() - self.backlogged.len());
        }
        &mut self.accounts[index]
    }

    /// Returns whether frames for this port are beyond its share and are to be dropped, while
    /// others want the worker and several senders want this port.
    #[inline]
    pub(crate) fn is_over(&self, port: PortId) -> bool {
        self.contended && self.is_ahead(port, true)
    }

    /// Returns whether the sender of a batch to this port pays for its copies: it alone wants a
    /// port that has had its share, or the port is not to lose frames.
    #[inline]
    pub(crate) fn charges_sender(&self, port: PortId) -> bool {
        self.contended && self.is_ahead(port, false)
    }

    /// Returns whether a port has had its share, and more for it is dropped (`drops`), or paid by
    /// its senders.
    #[cold]
    fn is_ahead(&self, port: PortId, drops: bool) -> bool {
        self.accounts.get(port.0 as usize).is_some_and(|account| {
            let ahead = (BATCHES * account.costliest).max(self.costliest);
            account.drops(self.round) == drops && account.paid > self.virtual_time + ahead
        })
    }

    /// Notes ticks of a batch, those of its sender or of its receivers.
    #[inline]
    pub(crate) fn spend(&mut self, ticks: u64) {
        self.spent += ticks;
    }

    /// Charges the copies of a batch to a receiver. Nothing is counted as long as no other one is
    /// backlogged: all accounts begin anew with contention.
    #[inline]
    pub(crate) fn charge(&mut self, port: PortId, ticks: u64) {
        let alone = match self.backlogged.as_slice() {
            [] => true,
            [only] => *only == port,
            _ => false,
        };
        if self.contended || !alone {
            self.count(port, ticks);
        }
    }

    #[cold]
    fn count(&mut self, port: PortId, ticks: u64) {
        let Some(account) = self.accounts.get_mut(port.0 as usize) else {
            return;
        };
        let charge = ticks.saturating_mul(account.price) / PARTS;
        account.paid = account.paid.max(self.floor).saturating_add(charge);
        self.most = self.most.max(account.paid);
        account.costliest = charge.max(account.costliest - account.costliest / SHRINK);
        self.costliest = charge.max(self.costliest);
        if account.listed || !self.contended {
            self.copied += ticks;
        }
    }

    /// Notes the main receiver of a sender that has more frames than fit its batch.
    #[inline]
    pub(crate) fn note_backlog(&mut self, port: PortId, sender: PortId) {
        let round = self.round;
        let Some(account) = self.accounts.get_mut(port.0 as usize) else {
            return;
        };
        if account.sender != sender {
            account.change_sender(sender, round);
        }
        if account.note(round) {
            self.backlogged.push(port);
        }
    }

    /// Notes a receiver for which frames of a batch were dropped.
    #[cold]
    pub(crate) fn note_dropped(&mut self, port: PortId) {
        self.dropped = true;
        let round = self.round;
        let account = self.accounts.get_mut(port.0 as usize);
        if account.is_some_and(|account| account.note(round)) {
            self.backlogged.push(port);
        }
    }

    /// Ends a round over all active pairs; `waits`: the turn of some has not come. Returns whether
    /// frames were dropped in it.
    #[inline]
    pub(crate) fn end_round(&mut self, waits: bool) -> bool {
        if self.backlogged.len() < 2 && !self.contended {
            if self.backlogged.is_empty() {
                self.spent = 0;
            } else {
                self.begin_anew(waits);
            }
            return false;
        }
        self.share(waits);
        std::mem::take(&mut self.dropped)
    }

    /// Ends a round without contention in which a receiver was backlogged.
    #[inline]
    fn begin_anew(&mut self, waits: bool) {
        if !waits && let Some(port) = self.backlogged.pop() {
            self.accounts[port.0 as usize].listed = false;
        }
        self.virtual_time = self.most;
        (self.by_time, self.by_copies) = (self.most, self.most);
        self.floor = self.most;
        (self.spent, self.copied) = (0, 0);
        self.round += 1;
    }

    /// Ends a round in which there was contention, or several receivers were backlogged.
    #[cold]
    fn share(&mut self, waits: bool) {
        let (round, patience) = (self.round, if waits { PATIENCE } else { 0 });
        let accounts = &mut self.accounts;
        let mut weights = 0;
        self.backlogged.retain(|port| {
            let account = &mut accounts[port.0 as usize];
            account.listed = round - account.backlogged <= patience;
            weights += if account.listed { account.weight } else { 0 };
            account.listed
        });
        if self.backlogged.len() < 2 {
            self.contended = false;
            return self.begin_anew(waits);
        }
        let share = |ticks: u64| ticks.saturating_mul(WEIGHT) / weights;
        self.by_time += share(self.spent / 2);
        self.by_copies += share(self.copied + self.copied / 8);
        // Rounds differ by the batches that are dropped in them, so the larger part of each would
        // be too much: the larger account counts, and the other may be behind.
        let most = self.by_time.max(self.by_copies);
        let behind = most.saturating_sub(BEHIND * self.costliest);
        self.by_time = self.by_time.max(behind);
        self.by_copies = self.by_copies.max(behind);
        self.floor = self.virtual_time;
        self.virtual_time = most;
        self.contended = true;
        self.costliest -= self.costliest / SHRINK;
        (self.spent, self.copied) = (0, 0);
        self.round += 1;
    }
}
