//! The active queue pairs, which are polled without a kick, and whose turn it is.
//!
//! Fair queueing of ports: each port gets worker time by its weight, and a port alone gets all.
//!
//! Every port has an account of the switching of its batches so far, divided by its weight; the
//! copies are paid by their receivers (`forward::receive_shares`). In a round over the active
//! pairs, the pairs of a port wait if its account is more than [`FairQueue::bound`] beyond the
//! *virtual time*: the least account of the ports that had frames in the last round.
//! (Start-time fair queueing, Goyal, Vin and Cheng, SIGCOMM 1996, with rounds in place of a sorted
//! queue.) In the long run the virtual time advances by a 64th of all time, divided among these
//! ports, or faster: a port with few small frames does not wait for those that send super-frames,
//! which cost next to nothing but their copies.
//!
//! * A port with frames is always served: when all wait, the virtual time advances to the first of
//!   them.
//! * A port alone never waits, because its account is the virtual time.
//! * A port without frames saves nothing up: its account advances with the virtual time.
//!
//! Besides, a batch is shorter while several pairs are active: a frame that arrives then waits for
//! the batch before it, at most about [`QUANTUM`] and its notifications. These cost the same for
//! one frame as for many, and waking a guest may take longer than that: shorter batches would only
//! mean more of them.

#[cfg(test)]
mod active_tests;
#[cfg(test)]
mod tests;

use std::time::Duration;

use ipc::keeping::ThreadSlot;
use port::PortId;

use crate::forward::cycles::BatchCost;
use crate::forward::switch::{Switch, UpcallSink};
use crate::ports::batch::{BATCH, BatchLimit};
use crate::ports::port::Port;

/// The weight of a port without a configured one.
const WEIGHT: u16 = ipc::switching::WEIGHT;

/// Desired longest time of a batch while other pairs are active, microseconds.
const QUANTUM: Duration = Duration::from_micros(10);
/// Bytes after which no more frames of a port are taken beside other active pairs until a batch of
/// it was measured: one TSO frame. So it is beside pairs with a priority, which are looked at after
/// each batch.
const BYTES_BEFORE_MEASUREMENT: u64 = 48 << 10;
/// The same with a known cost: four TSO frames, for a port that sent small frames before and
/// begins to send those. Their copies take about [`QUANTUM`] where both ends are in the cache.
const BYTES_AMONG_OTHERS: u64 = 4 * BYTES_BEFORE_MEASUREMENT;
/// Quanta of the most that a batch is charged: a millisecond. A longer one was interrupted, or a
/// system call for an interface did the work of others (softirqs): its port pays for a part of it,
/// and is served again within a second.
const MAX_CHARGE: u64 = 100;
/// Parts of an account's unit, a tick at the weight [`WEIGHT`].
const PARTS: u64 = 1 << 16;
/// Divisor of the bound's decrease by a batch, down to the cost of batches.
const SHRINK: u64 = 64;
/// The part of all time that is certain for the switching of ports with frames: a 64th.
const PART_OF_TIME: u64 = 64;
/// Costly batches by which the account of that part is behind the least account at most.
const BEHIND: u64 = 8;

/// Rounds with frames of other pairs and none of this one, after which its kicks are enabled: that
/// many polls cost about as much as a kick.
const QUIET_ROUNDS: u64 = 256;

/// The account of a port.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// The cost so far, in ticks at the weight [`WEIGHT`].
    paid: u64,
    /// The cost so far beyond that, in parts of a tick.
    rest: u64,
    /// The charge for a tick, in parts of a tick.
    price: u64,
    weight: u64,
    /// The last round in which it had frames, or waited.
    seen: u64,
    /// The limit of its batches beside others: the estimated number of frames that take no longer
    /// than [`QUANTUM`].
    limit: BatchLimit,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            paid: 0,
            rest: 0,
            price: PARTS,
            weight: WEIGHT.into(),
            seen: 0,
            limit: BatchLimit {
                frames: BATCH,
                bytes: BYTES_BEFORE_MEASUREMENT,
            },
        }
    }
}

/// The other pairs of a worker while one is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Others {
    /// None is active.
    Idle,
    /// Some are active.
    Active,
    /// Some are active, and the worker serves pairs with a priority.
    WithPriority,
}

/// The result of a pair's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Its port is ahead of others.
    Waits,
    /// The queue was empty.
    Empty,
    /// A batch was moved.
    Served,
}

/// The accounts of all ports.
#[derive(Debug)]
pub(super) struct FairQueue {
    /// Accounts by port id.
    accounts: Vec<Account>,
    virtual_time: u64,
    /// The account of a port that has had its part of [`PART_OF_TIME`], not far behind the least.
    by_time: u64,
    /// The cost of the costliest recent batch.
    bound: u64,
    /// The least account of a port with frames in this round.
    least: u64,
    /// A port waits in this round.
    waits: bool,
    /// Counted from 1.
    round: u64,
    /// The weights of the ports that had frames in this round, or waited.
    weights: u64,
    /// Ticks of all batches of this round.
    spent: u64,
    /// [`QUANTUM`] in ticks, once it is known.
    quantum: u64,
}

impl Default for FairQueue {
    fn default() -> Self {
        Self {
            accounts: Vec::new(),
            virtual_time: 0,
            by_time: 0,
            bound: 0,
            least: u64::MAX,
            waits: false,
            round: 1,
            weights: 0,
            spent: 0,
            quantum: u64::MAX,
        }
    }
}

impl FairQueue {
    /// Sets the weight of a port, also of a new one whose number was used before.
    pub(super) fn set_weight(&mut self, port: PortId, weight: u16) {
        let virtual_time = self.virtual_time;
        let account = self.account(port);
        account.weight = u64::from(weight.max(1));
        account.price = PARTS * u64::from(WEIGHT) / account.weight;
        account.paid = account.paid.min(virtual_time);
        account.limit.bytes = BYTES_BEFORE_MEASUREMENT;
    }

    /// Sets the rate of the tick counter.
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

    /// Serves a port's pair if it is its turn.
    #[inline]
    pub(super) fn serve<P: Port>(
        &mut self,
        switch: &mut Switch<P>,
        (port, pair): (PortId, u16),
        others: Others,
        now: u64,
        upcalls: &mut dyn UpcallSink,
    ) -> Turn {
        if !self.is_eligible(port) {
            return Turn::Waits;
        }
        let limit = self.account(port).limit;
        switch.set_limit(match others {
            Others::Idle => BatchLimit::MOST,
            Others::Active => limit,
            Others::WithPriority => BatchLimit {
                bytes: BYTES_BEFORE_MEASUREMENT,
                ..limit
            },
        });
        if !switch.serve(port, pair, now, upcalls) {
            return Turn::Empty;
        }
        self.charge(port, switch.last_cost(), switch.last_frames());
        Turn::Served
    }

    /// Returns whether a port may be served now. One that is ahead waits at least until the end of
    /// the round.
    #[inline]
    fn is_eligible(&mut self, port: PortId) -> bool {
        let paid = self.account(port).paid;
        let waits = paid > self.virtual_time.saturating_add(self.bound);
        if waits {
            self.least = self.least.min(paid);
            self.waits = true;
            self.see(port);
        }
        !waits
    }

    /// Notes that a port has frames in this round.
    #[inline]
    fn see(&mut self, port: PortId) {
        let round = self.round;
        let account = self.account(port);
        if account.seen != round {
            account.seen = round;
            self.weights += account.weight;
        }
    }

    /// Charges a batch of `frames` to a port: the sender's part of its `cost`.
    #[inline]
    fn charge(&mut self, port: PortId, cost: BatchCost, frames: usize) {
        let (virtual_time, quantum) = (self.virtual_time, self.quantum);
        let account = self.account(port);
        let of_sender = cost.of_sender.min(quantum.saturating_mul(MAX_CHARGE));
        let parts = of_sender
            .saturating_mul(account.price)
            .saturating_add(account.rest);
        let price = parts / PARTS;
        account.rest = parts % PARTS;
        account.paid = account.paid.max(virtual_time) + price;
        let of_frames = cost.all.saturating_sub(cost.notifying);
        let limit = &mut account.limit;
        if of_frames > quantum {
            // A division only for long batches.
            limit.frames = (frames as u64 * quantum / of_frames).max(1) as usize;
        } else if cost.copied && frames >= limit.frames && of_frames < quantum / 2 {
            limit.frames = (2 * limit.frames).min(BATCH);
        }
        if cost.copied && quantum != u64::MAX {
            limit.bytes = BYTES_AMONG_OTHERS;
        }
        let paid = account.paid;
        self.see(port);
        self.spent += cost.all;
        self.least = self.least.min(paid);
        self.bound = price.max(self.bound - self.bound / SHRINK);
    }

    /// Ends a round over all active pairs. Returns `true` if a port had to wait, so that there may
    /// be more frames.
    #[inline]
    pub(super) fn end_round(&mut self) -> bool {
        if self.least != u64::MAX {
            let weights = self.weights.max(1);
            let part = (self.spent / PART_OF_TIME).saturating_mul(WEIGHT.into()) / weights;
            let behind = self.least.saturating_sub(BEHIND * self.bound);
            self.by_time = behind.max(self.by_time + part);
            self.virtual_time = self.virtual_time.max(self.least).max(self.by_time);
            self.least = u64::MAX;
            (self.spent, self.weights) = (0, 0);
            self.round += 1;
        }
        std::mem::take(&mut self.waits)
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    port: PortId,
    pair: u16,
    /// The last round in which it had frames.
    last: u64,
    /// Until then its guest need not kick, if it runs: nanoseconds.
    quiet_until: u64,
}

/// The active pairs, each once, in no order.
#[derive(Debug, Default)]
pub(super) struct ActivePairs {
    list: Vec<Entry>,
    /// By port id: a bit for each of its pairs in the list.
    by_port: Vec<u64>,
    /// Rounds in which any pair had frames.
    rounds: u64,
    /// The number of pairs at the front of the list that wait in this round.
    waiting: usize,
    /// The slot that records the port of the current pair.
    slot: Option<ThreadSlot>,
}

impl ActivePairs {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Sets the slot that records the port of the current pair.
    pub(super) fn set_thread_slot(&mut self, slot: ThreadSlot) {
        self.slot = Some(slot);
    }

    /// Returns the pair at an index, which is about to be served; `None` behind the end.
    #[inline]
    pub(super) fn get(&mut self, at: usize) -> Option<(PortId, u16)> {
        if at == 0 {
            self.waiting = 0;
        }
        let entry = self.list.get(at);
        if let Some(slot) = &self.slot {
            match entry {
                Some(entry) => slot.serve(entry.port),
                None => slot.rest(),
            }
        }
        entry.map(|entry| (entry.port, entry.pair))
    }

    /// Returns all pairs, in no order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (PortId, u16)> + '_ {
        self.list.iter().map(|entry| (entry.port, entry.pair))
    }

    /// Adds a pair. Returns `false` if it is listed already, or beyond the 64 pairs of a port.
    pub(super) fn add(&mut self, port: PortId, pair: u16) -> bool {
        let index = port.0 as usize;
        if self.by_port.len() <= index {
            self.by_port.resize(index + 1, 0);
        }
        let new = pair < 64 && self.by_port[index] & (1 << pair) == 0;
        if new {
            self.by_port[index] |= 1 << pair;
            let last = self.rounds;
            self.list.push(Entry {
                port,
                pair,
                last,
                quiet_until: 0,
            });
        }
        new
    }

    /// Returns whether a pair is active.
    pub(super) fn has(&self, port: PortId, pair: u16) -> bool {
        let pairs = self.by_port.get(port.0 as usize);
        pair < 64 && pairs.is_some_and(|pairs| pairs & (1 << pair) != 0)
    }

    /// Notes a kick for an active pair: its guest need not kick again until then.
    pub(super) fn keep_quiet(&mut self, port: PortId, pair: u16, until: u64) {
        let of_pair = |entry: &&mut Entry| (entry.port, entry.pair) == (port, pair);
        if let Some(entry) = self.list.iter_mut().find(of_pair) {
            entry.quiet_until = until;
        }
    }

    /// Returns the time until which the guest of the pair at this index need not kick.
    pub(super) fn quiet_until(&self, at: usize) -> u64 {
        self.list[at].quiet_until
    }

    /// Removes a pair, if it is listed.
    pub(super) fn remove(&mut self, port: PortId, pair: u16) {
        let here = |entry: &Entry| (entry.port, entry.pair) == (port, pair);
        if let Some(at) = self.list.iter().position(here) {
            self.remove_at(at);
        }
    }

    /// Removes the pair at this index; another one moves there.
    pub(super) fn remove_at(&mut self, mut at: usize) {
        if at < self.waiting {
            self.waiting -= 1;
            self.list.swap(at, self.waiting);
            at = self.waiting;
        }
        let Entry { port, pair, .. } = self.list.swap_remove(at);
        self.by_port[port.0 as usize] &= !(1 << pair);
    }

    /// Makes the current pair at this index wait. It is among the first in the next round, so that
    /// the pairs of a port take turns before the port's turn is over.
    pub(super) fn waits(&mut self, at: usize) {
        self.list.swap(self.waiting, at);
        self.waiting += 1;
    }

    /// Moves the first pair that did not wait behind all others: a receiver's share that is free
    /// again at the end of a round is not always for the same sender.
    #[cold]
    pub(super) fn rotate(&mut self) {
        if let Some(served @ [_, ..]) = self.list.get_mut(self.waiting..) {
            served.rotate_left(1);
        }
    }

    /// Notes that the pair at this index had frames in this round.
    pub(super) fn had_frames(&mut self, at: usize) {
        self.list[at].last = self.rounds;
    }

    /// Returns whether the pair at this index had no frames for so long that a kick is cheaper.
    pub(super) fn is_quiet(&self, at: usize) -> bool {
        self.rounds - self.list[at].last >= QUIET_ROUNDS
    }

    /// Ends a round in which any pair had frames.
    pub(super) fn end_round(&mut self) {
        self.rounds += 1;
    }
}
