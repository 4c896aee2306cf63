//! Scheduled ports: what a sender may send to them now.
//!
//! ```text
//! fund     a worker pays for the frames of a batch with the credit of their leaf; at the first
//!          one that has none the batch is cut, and the queue pair waits for its turn
//! ask      the leaf asks for what its frames need
//! allot    a worker that needs credit lets the tree grant it, to all leaves that ask, when that
//!          is due
//! ```
//!
//! All workers share an output. None waits for its tree: a worker that finds it taken looks at its
//! leaf's credit again soon. Frames that cannot wait (floods, copies of mirrors, frames that
//! waited for control) leave a debt, up to one burst.

mod credit;
mod room;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use egress::{LONGEST, Leaf, Need, QUANTUM, Tree};
use ipc::egress::{Beyond, EgressUse, FullAction, MAX_CLASSES, OutputConfig};
use port::PortId;
use port::counters::MAX_PORTS;

use crate::ports::budget::Cost;
use crate::ports::coalescing::Nanos;
use crate::ports::port::Buffers;
use credit::Credit;
use room::{Room, Unspent};

/// Least time between two allotments to waiting pairs, nanoseconds: that in which the output sends
/// a fourth of a quantum, within these bounds. More often would be one frame for each wake-up.
const ALLOTMENT: std::ops::RangeInclusive<Nanos> = 50_000..=250_000;
/// Longest time after which a waiting pair is looked at, nanoseconds.
const LOOK: Nanos = 1_000_000;
/// Time after which an interface that takes nothing is looked at again, nanoseconds.
pub(crate) const FULL_LOOK: Nanos = 100_000;
/// Longest time for which senders wait for an interface that takes nothing, nanoseconds.
const FULL_LIMIT: Nanos = 50_000_000;
/// Rounds of allotments after which credit that its sender does not use is taken back while others
/// wait for an interface. Not a time: a worker that lost its core has not looked at its senders.
const UNUSED: u32 = 16;

/// Bytes of the shortest frame of Ethernet, without its checksum (IEEE 802.3, 4.4.2): shorter
/// ones are padded.
const ETHERNET_MIN: u32 = 60;

/// State of a leaf, shared by all workers.
#[repr(align(64))]
#[derive(Debug, Default)]
struct LeafState {
    credit: Credit,
    /// Credit that it keeps for frames that cannot wait; 0: its frames can.
    reserve: u64,
    /// Round in which credit came or was taken, where senders wait for the interface.
    touched: AtomicU32,
    /// Bits of its first frame when credit was taken last, there.
    frame: AtomicU32,
    sent: AtomicU64,
    held: AtomicU64,
    dropped: AtomicU64,
}

/// The tree, and its requests while it is asked.
#[derive(Debug)]
struct Scheduler {
    tree: Tree,
    needs: Vec<Need>,
}

/// A scheduled port; see the module.
#[derive(Debug)]
pub struct Output {
    config: OutputConfig,
    /// Index of the sender for each port number.
    by_port: Box<[Option<u16>]>,
    leaves: Box<[LeafState]>,
    /// Leaves that ask for credit, one bit each.
    asking: Box<[AtomicU64]>,
    /// Leaves with credit for room in the interface, one bit each.
    unspent: Box<[AtomicU64]>,
    scheduler: Mutex<Scheduler>,
    /// Time at which the next allotment is due.
    due: AtomicU64,
    /// Allotments that were due.
    round: AtomicU32,
    /// Least time until then.
    pace: Nanos,
    room: Room,
}

/// Checks that an output can be made of these settings.
///
/// # Errors
/// The first sender or class that there cannot be.
pub fn check(config: &OutputConfig) -> Result<(), String> {
    for sender in &config.senders {
        if sender.port as usize >= MAX_PORTS {
            return Err(format!("a sender with number {}", sender.port));
        }
        if sender
            .classes
            .iter()
            .any(|(class, _)| usize::from(*class) >= MAX_CLASSES)
        {
            return Err(format!(
                "a class of port {} beyond the last one",
                sender.port
            ));
        }
    }
    match config.senders.len() {
        ..=MAX_PORTS => Ok(()),
        more => Err(format!("{more} senders")),
    }
}

fn burst(config: &OutputConfig, leaf: Leaf) -> u64 {
    config.senders[leaf.sender()].rates.burst.max(LONGEST)
}

/// Returns the credit that a leaf keeps for frames that cannot wait: those of a millisecond at the
/// output's rate, or one of 64 KiB. More would be taken from the others, and sent at once later,
/// beyond the rate.
fn reserve(config: &OutputConfig, leaf: Leaf) -> u64 {
    match config.senders[leaf.sender()].beyond {
        Beyond::Hold => 0,
        Beyond::Drop => burst(config, leaf).min((config.rate.unwrap_or(0) / 1000).max(LONGEST)),
    }
}

/// Returns the least time between two allotments at this rate.
fn pace(rate: Option<u64>) -> Nanos {
    let sent_in = |rate: u64| QUANTUM / 4 * 1_000_000_000 / rate.max(1);
    rate.map_or(0, sent_in)
        .clamp(*ALLOTMENT.start(), *ALLOTMENT.end())
}

/// Turn of a queue pair whose first frame has no credit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    /// The scheduled port.
    pub(crate) output: PortId,
    pub(crate) leaf: Leaf,
    /// Bits of the first frame.
    pub(crate) first: u64,
    /// Bits of all frames that were ready.
    pub(crate) all: u64,
    /// Time since when it waits.
    pub(crate) since: Nanos,
}

impl Output {
    /// Returns an output. Senders and classes that `old` has, too, keep their credit and counters.
    #[must_use]
    pub fn new(config: OutputConfig, old: Option<&Self>) -> Self {
        let senders = &config.senders;
        let ports = senders.iter().map(|sender| sender.port + 1).max();
        let mut by_port = vec![None; ports.unwrap_or(0) as usize];
        for (at, sender) in senders.iter().enumerate() {
            by_port[sender.port as usize] = Some(at as u16);
        }
        let count = senders.len() * MAX_CLASSES;
        let leaf = |at| LeafState {
            reserve: reserve(&config, Leaf(at as u16)),
            ..LeafState::default()
        };
        let leaves: Box<[LeafState]> = (0..count).map(leaf).collect();
        let former = old.and_then(|old| Some((&old.config, old.scheduler.lock().ok()?)));
        let former = former
            .as_ref()
            .map(|(config, former)| (*config, &former.tree));
        let tree = Tree::new(&config, former);
        let output = Self {
            by_port: by_port.into(),
            leaves,
            asking: (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            scheduler: Mutex::new(Scheduler {
                tree,
                needs: Vec::with_capacity(count),
            }),
            unspent: (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            due: AtomicU64::new(0),
            round: AtomicU32::new(0),
            pace: pace(config.rate),
            room: Room::new(config.room, patience(&config)),
            config,
        };
        output.keep(old);
        output
    }

    /// Takes over the credit and the counters of a former output.
    fn keep(&self, old: Option<&Self>) {
        if let Some(old) = old {
            self.room.keep(&old.room);
        }
        for (at, leaf) in self.leaves.iter().enumerate() {
            let own = Leaf(at as u16);
            let port = PortId(self.config.senders[own.sender()].port);
            let former = old.and_then(|old| Some(old.state(old.leaf(port, own.class())?)));
            let Some(former) = former else { continue };
            let bits = former.credit.bits();
            leaf.credit.set(bits);
            self.note_unspent(own);
            leaf.sent.store(former.sent.load(Relaxed), Relaxed);
            leaf.held.store(former.held.load(Relaxed), Relaxed);
            leaf.dropped.store(former.dropped.load(Relaxed), Relaxed);
        }
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &OutputConfig {
        &self.config
    }

    /// Returns the leaf of a class of a sender; `None` for a port whose frames are not scheduled.
    #[inline]
    pub(crate) fn leaf(&self, sender: PortId, class: u8) -> Option<Leaf> {
        let sender = *self.by_port.get(sender.0 as usize)?;
        Some(Leaf::of(usize::from(sender?), class))
    }

    /// Returns the bytes to which frames are padded behind this port. One with an overhead leads to
    /// Ethernet.
    #[inline]
    pub(crate) fn shortest(&self) -> u32 {
        match self.config.overhead {
            0 => 0,
            _ => ETHERNET_MIN,
        }
    }

    /// Returns the bits on the wire behind this port of frames that are padded.
    #[inline]
    pub(crate) fn bits(&self, cost: Cost) -> u64 {
        cost.bits + cost.packets * u64::from(self.config.overhead) * 8
    }

    /// Returns the fate of a leaf's frames that may not go yet.
    pub(crate) fn beyond(&self, leaf: Leaf) -> Beyond {
        self.config.senders[leaf.sender()].beyond
    }

    fn burst(&self, leaf: Leaf) -> u64 {
        burst(&self.config, leaf)
    }

    fn state(&self, leaf: Leaf) -> &LeafState {
        &self.leaves[usize::from(leaf.0)]
    }

    fn mark(&self, leaf: Leaf) -> (&AtomicU64, u64) {
        let at = usize::from(leaf.0);
        (&self.asking[at / 64], 1 << (at % 64))
    }

    /// Takes credit for `all` bits of frames, of which the first has `first`, or as much as there
    /// is, at least for that one. Returns the amount, of which the rest is to be given back; 0 if
    /// the first frame has to wait.
    pub(crate) fn take(&self, leaf: Leaf, (first, all): (u64, u64), now: Nanos) -> u64 {
        if self.is_for_room(leaf) {
            let state = self.state(leaf);
            state.touched.store(self.round.load(Relaxed), Relaxed);
            let frame = u32::try_from(first).unwrap_or(u32::MAX);
            state.frame.store(frame, Relaxed);
        }
        self.take_credit(leaf, (first, all), now)
    }

    /// Returns whether the credit of a leaf is for room in the interface. Senders that never wait
    /// have some in store.
    #[inline]
    fn is_for_room(&self, leaf: Leaf) -> bool {
        self.holds_when_full() && self.beyond(leaf) == Beyond::Hold
    }

    /// Notes that a leaf has credit, which is for room in the interface until it is taken.
    fn note_unspent(&self, leaf: Leaf) {
        if self.is_for_room(leaf) {
            let at = usize::from(leaf.0);
            self.unspent[at / 64].fetch_or(1 << (at % 64), Relaxed);
        }
    }

    /// Returns the least bits that a leaf asks for: those of several batches of short frames,
    /// unless the interface has room for few.
    fn least(&self) -> u64 {
        match self.holds_when_full() && self.room.is_scarce() {
            true => 0,
            false => QUANTUM,
        }
    }

    fn take_credit(&self, leaf: Leaf, (first, all): (u64, u64), now: Nanos) -> u64 {
        let LeafState {
            credit, reserve, ..
        } = self.state(leaf);
        // It keeps the credit that it has until more was granted: that is for room in the
        // interface, which would be granted to another sender, too.
        let has = u64::try_from(credit.bits()).unwrap_or(0);
        if has < all {
            let more = (all - has).max(self.least()).max(*reserve);
            credit.ask(first, has + more, self.mark(leaf));
            self.allot(now);
        }
        let taken = credit.take(all);
        if taken == all && *reserve > 0 && credit.bits() < (*reserve / 2) as i64 {
            credit.ask(0, *reserve, self.mark(leaf));
        }
        if taken < first {
            credit.add(taken);
            credit.ask(first, all, self.mark(leaf));
            return 0;
        }
        taken
    }

    /// Notes that so many bits of the taken ones were sent, and gives back the rest.
    pub(crate) fn settle(&self, leaf: Leaf, taken: u64, sent: u64) {
        let state = self.state(leaf);
        if taken > sent {
            state.credit.add(taken - sent);
            self.note_unspent(leaf);
        }
        state.sent.fetch_add(sent, Relaxed);
    }

    /// Pays for a frame that cannot wait. Returns `false` if its sender's debt would exceed one
    /// burst: then it is to be dropped.
    pub(crate) fn pay_later(&self, leaf: Leaf, bits: u64, now: Nanos) -> bool {
        let state = self.state(leaf);
        let burst = self.burst(leaf);
        let mut paid = state.credit.owe(bits, burst);
        if state.credit.bits() < 0 {
            let (marks, mark) = self.mark(leaf);
            if marks.load(Relaxed) & mark == 0 {
                // No pair waits: the debt is all that is missing.
                state.credit.ask(0, 0, (marks, mark));
            }
            if now >= self.due() {
                self.allot(now);
            }
            paid = paid || state.credit.owe(bits, burst);
        }
        if paid && self.holds_when_full() {
            self.room.add(1, bits, false);
        }
        match paid {
            true => state.sent.fetch_add(bits, Relaxed),
            false => state.dropped.fetch_add(1, Relaxed),
        };
        paid
    }

    /// Counts frames that were dropped because their turn had not come, and asks for credit for the
    /// next ones.
    pub(crate) fn note_dropped(&self, leaf: Leaf, frames: u64, now: Nanos) {
        let state = self.state(leaf);
        state.dropped.fetch_add(frames, Relaxed);
        // The frame that was asked for is gone.
        state.credit.take_back(self.mark(leaf));
        state.credit.ask(0, state.reserve, self.mark(leaf));
        self.allot(now);
    }

    /// Asks for credit for a pair that has to wait: its first frame and all that were ready lack so
    /// many bits. Returns its turn.
    pub(crate) fn wait(
        &self,
        (output, leaf): (PortId, Leaf),
        (first, all): (u64, u64),
        now: Nanos,
    ) -> Turn {
        let turn = Turn {
            output,
            leaf,
            first,
            all: all.max(self.least()),
            since: now,
        };
        self.state(leaf)
            .credit
            .ask(first, turn.all, self.mark(leaf));
        self.due.fetch_min(now + self.pace, Relaxed);
        turn
    }

    /// Returns whether a pair's turn has come. If not, its leaf asks again, should it have been
    /// answered for another pair.
    pub(crate) fn has_turn(&self, turn: &Turn) -> bool {
        let credit = &self.state(turn.leaf).credit;
        let ready = credit.bits() >= i64::try_from(turn.first).unwrap_or(i64::MAX);
        let (marks, mark) = self.mark(turn.leaf);
        if !ready && (marks.load(Relaxed) & mark == 0 || !credit.asks_for(turn.first)) {
            credit.ask(turn.first, turn.all, (marks, mark));
        }
        ready
    }

    /// Counts the time for which a pair has waited, and takes back its request: the pair asks for
    /// its next frames itself, if there are any, and another pair of the leaf asks again when it is
    /// looked at.
    pub(crate) fn end_turn(&self, turn: &Turn, now: Nanos) {
        let held = now.saturating_sub(turn.since);
        let state = self.state(turn.leaf);
        state.held.fetch_add(held, Relaxed);
        state.credit.take_back(self.mark(turn.leaf));
    }

    /// Returns the time at which the next allotment is due.
    pub(crate) fn due(&self) -> Nanos {
        self.due.load(Relaxed)
    }

    /// Grants credit to all leaves that ask, unless another worker does.
    pub(crate) fn allot(&self, now: Nanos) {
        let Ok(mut scheduler) = self.scheduler.try_lock() else {
            return;
        };
        if now >= self.due() {
            self.round.fetch_add(1, Relaxed);
        }
        let Scheduler { tree, needs } = &mut *scheduler;
        needs.clear();
        for (word, asking) in self.asking.iter().enumerate() {
            let mut marks = match asking.load(Relaxed) {
                0 => continue,
                // The amounts are read after the marks are gone.
                _ => asking.swap(0, std::sync::atomic::Ordering::Acquire),
            };
            while marks != 0 {
                let leaf = Leaf((word * 64) as u16 + marks.trailing_zeros() as u16);
                marks &= marks - 1;
                let credit = &self.state(leaf).credit;
                if let Some(missing) = credit.missing() {
                    needs.push(Need {
                        leaf,
                        first: missing.first,
                        all: missing.all,
                    });
                }
            }
        }
        let grant = |grant: egress::Grant| {
            let state = self.state(grant.leaf);
            state.credit.add(grant.bits);
            state.touched.store(self.round.load(Relaxed), Relaxed);
            self.note_unspent(grant.leaf);
        };
        let room = self.room_bits(now, needs);
        let wait = tree.allot(now, room, needs, grant);
        for need in needs.iter().filter(|need| self.still_asks(need)) {
            let (marks, mark) = self.mark(need.leaf);
            marks.fetch_or(mark, Relaxed);
        }
        let most = match room {
            Some(_) => FULL_LOOK,
            None => LOOK,
        };
        let wait = wait.unwrap_or(most).max(self.pace).min(most);
        self.due.store(now + wait, Relaxed);
    }

    /// Returns whether senders wait while the interface takes no more frames.
    #[inline]
    pub(crate) fn holds_when_full(&self) -> bool {
        self.config.full == FullAction::Hold
    }

    /// Notes the buffers of the interface, if they are known, and the bits of a frame.
    pub(crate) fn note_room(&self, buffers: Option<Buffers>, frame_bits: Option<u64>, now: Nanos) {
        self.room.note(buffers, frame_bits, now);
    }

    /// Returns how many of these frames, each with its bits, the interface takes.
    pub(crate) fn fitting(&self, bits: impl Iterator<Item = u64>, now: Nanos) -> usize {
        if !self.room.is_waited_for(now) {
            return usize::MAX;
        }
        let free = usize::try_from(self.room.free()).unwrap_or(usize::MAX);
        let mut left = self.room.bits_left();
        let fits = |bits: &u64| {
            let fits = left > 0;
            left = left.saturating_sub(*bits);
            fits
        };
        bits.take(free).take_while(fits).count()
    }

    /// Notes frames that were paid for, and are delivered later.
    pub(crate) fn note_sent(&self, frames: usize, bits: u64) {
        self.room.add(frames as u64, bits, true);
    }

    /// Notes that frames of [`Output::note_sent`] were delivered.
    pub(crate) fn note_delivered(&self, frames: usize) {
        self.room.delivered(frames as u64);
    }

    /// Returns the bits that the interface takes beside those that were granted already; `None` if
    /// senders do not wait for it.
    fn room_bits(&self, now: Nanos, needs: &[Need]) -> Option<u64> {
        if !self.holds_when_full() || !self.room.is_waited_for(now) {
            return None;
        }
        let frame = |need: &Need| u64::from(self.state(need.leaf).frame.load(Relaxed));
        let shortest = needs.iter().filter(|need| need.first > 0).map(frame).min();
        Some(self.room.takes(shortest, self.unspent(needs)))
    }

    /// Returns the room for which there is credit that was not taken yet. Credit that is too little
    /// for its sender's frame is for none, and who has left it unused for a while loses it.
    fn unspent(&self, needs: &[Need]) -> Unspent {
        let round = self.round.load(Relaxed);
        let mut all = Unspent::default();
        for (word, marks) in self.unspent.iter().enumerate() {
            let mut left = marks.load(Relaxed);
            while left != 0 {
                let at = left.trailing_zeros();
                left &= left - 1;
                let leaf = Leaf((word * 64) as u16 + at as u16);
                let state = self.state(leaf);
                // They are in the order of their leaves.
                let need = needs.binary_search_by_key(&leaf, |need| need.leaf);
                if need.is_ok_and(|at| needs[at].first > 0) {
                    continue;
                }
                let age = round.wrapping_sub(state.touched.load(Relaxed));
                if age >= UNUSED && need.is_err() {
                    marks.fetch_and(!(1 << at), Relaxed);
                    state.credit.take(u64::MAX);
                    continue;
                }
                match u64::try_from(state.credit.bits()) {
                    Ok(bits) if bits > 0 => all.add(bits, state.frame.load(Relaxed).into()),
                    _ => drop(marks.fetch_and(!(1 << at), Relaxed)),
                }
            }
        }
        all
    }

    /// Returns whether a leaf asks on: a frame waits, it is in debt, or its frames do not wait.
    fn still_asks(&self, need: &Need) -> bool {
        let in_debt = || self.state(need.leaf).credit.bits() < 0;
        need.first > 0 || (need.all > 0 && (in_debt() || self.beyond(need.leaf) == Beyond::Drop))
    }

    /// Returns the use of all leaves that were used.
    #[must_use]
    pub fn uses(&self) -> Vec<EgressUse> {
        let leaves = self.leaves.iter().enumerate().map(|(at, state)| {
            let leaf = Leaf(at as u16);
            let (marks, mark) = self.mark(leaf);
            let missing = state
                .credit
                .missing()
                .filter(|_| marks.load(Relaxed) & mark != 0);
            EgressUse {
                sender: PortId(self.config.senders[leaf.sender()].port),
                class: leaf.class(),
                bits: state.sent.load(Relaxed),
                held_ns: state.held.load(Relaxed),
                dropped_frames: state.dropped.load(Relaxed),
                waiting_bits: missing.map_or(0, |missing| missing.first),
            }
        });
        let used =
            |one: &EgressUse| one.bits | one.held_ns | one.dropped_frames | one.waiting_bits != 0;
        leaves.filter(used).collect()
    }
}

/// Returns the longest time for which senders wait for an interface that takes nothing.
fn patience(config: &OutputConfig) -> Nanos {
    // The longest frame takes its time on a slow wire.
    let frame = |rate: u64| u128::from(2 * LONGEST) * 1_000_000_000 / u128::from(rate.max(1));
    let frame = config.rate.map_or(0, frame);
    FULL_LIMIT.max(u64::try_from(frame).unwrap_or(u64::MAX))
}
