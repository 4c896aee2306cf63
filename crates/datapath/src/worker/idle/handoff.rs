//! The slots by which a worker assigns queue pairs to a helper and takes them back. Each slot has
//! one pair, which exactly one side may serve.
//!
//! ```text
//!               assign               claim
//!    [ Free ] --------> [ Assigned ] --------> [ Busy ]      the helper serves it in Busy only,
//!       ^                | ^  ^                 |  | |       a chunk at a time
//!       |   take_back    | |  '---- done: Keep -'  | |
//!       |<---------------' |                       | | take_back: the request is noted
//!       |                  '--------x              | v
//!       |                                          | [ Busy, requested ]
//!       |                 take_back                v       |
//!       '------------------------------------ [ Back ] <---' done
//! ```
//! *Home* is the worker that assigns. It serves a pair only after `take_back` returned it. Between
//! two chunks the pair is Assigned, so home gets it back at once even if the helper lost its core
//! meanwhile; only within a chunk home has to wait, and [`super::boost`] keeps that short.

use port::PortId;

use super::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Largest number of pairs that a helper has at a time.
pub(crate) const SLOTS: usize = 4;

/// The states in a slot's lowest byte; above are the reason of the return, the pair and the port.
const FREE: u64 = 0;
const ASSIGNED: u64 = 1;
const BUSY: u64 = 2;
const REQUESTED: u64 = 3;
const BACK: u64 = 4;
const STATE: u64 = 0xff;
const REASON_SHIFT: u32 = 8;
const PAIR_SHIFT: u32 = 16;
const PORT_SHIFT: u32 = 32;
/// Bits of a receiver's number: more than [`port::counters::MAX_PORTS`] needs.
const RECEIVER_BITS: u32 = 16;

/// The reason for which a pair came back; its number is in the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// Home requested it.
    Requested,
    /// It had no frames for some time.
    Quiet,
    /// The helper has no flow for a frame.
    Unknown,
    /// Its frames are too short to be worth a helper.
    ShortFrames,
}

impl Reason {
    fn code(self) -> u64 {
        (self as u64) << REASON_SHIFT
    }

    fn of(word: u64) -> Self {
        match word >> REASON_SHIFT & 0xff {
            1 => Self::Quiet,
            2 => Self::Unknown,
            3 => Self::ShortFrames,
            _ => Self::Requested,
        }
    }
}

/// The decision about a pair after a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// The helper keeps it.
    Keep,
    /// The helper returns it.
    Back(Reason),
}

/// The slots of one helper.
#[derive(Debug)]
pub(crate) struct HandoffSlots {
    slots: [AtomicU64; SLOTS],
    /// Chunks done in each slot; a hint whether the helper runs.
    progress: [AtomicU32; SLOTS],
    /// The copies of each slot that home has not charged yet: ticks, and the receiver in the lowest
    /// 16 bits.
    copies: [AtomicU64; SLOTS],
    /// The helper sleeps, or is about to.
    asleep: AtomicBool,
}

impl HandoffSlots {
    /// Creates free slots of a helper that is awake.
    pub(crate) fn new() -> Self {
        Self {
            slots: std::array::from_fn(|_| AtomicU64::new(FREE)),
            progress: std::array::from_fn(|_| AtomicU32::new(0)),
            copies: std::array::from_fn(|_| AtomicU64::new(0)),
            asleep: AtomicBool::new(false),
        }
    }

    fn states(&self) -> impl Iterator<Item = u64> {
        let words = self.slots.iter().map(|slot| slot.load(Ordering::Relaxed));
        words.map(|word| word & STATE)
    }

    /// Returns whether any pair is assigned.
    pub(crate) fn is_used(&self) -> bool {
        self.states().any(|state| state != FREE)
    }

    /// Returns whether all slots are used.
    pub(crate) fn is_full(&self) -> bool {
        self.states().all(|state| state != FREE)
    }

    /// Home: assigns a pair. Returns the slot, and whether the helper is to be woken; `None` when
    /// all slots are used.
    pub(crate) fn assign(&self, port: PortId, pair: u16) -> Option<(usize, bool)> {
        let word = u64::from(port.0) << PORT_SHIFT | u64::from(pair) << PAIR_SHIFT | ASSIGNED;
        let assigned = |slot: &AtomicU64| {
            // Home's writes to the pair happen before the helper's.
            slot.compare_exchange(FREE, word, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let at = self.slots.iter().position(assigned)?;
        // Either the helper sees the slot before it sleeps, or home sees that it sleeps.
        fence(Ordering::SeqCst);
        let wake =
            self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed);
        Some((at, wake))
    }

    /// Home: takes a pair back, and returns the reason. Returns `None` while the helper is in a
    /// chunk: the pair comes back after it.
    pub(crate) fn take_back(&self, at: usize) -> Option<Reason> {
        let slot = &self.slots[at];
        let mut word = slot.load(Ordering::Acquire);
        loop {
            let (new, result) = match word & STATE {
                ASSIGNED => (FREE, Some(Reason::Requested)),
                BACK => (FREE, Some(Reason::of(word))),
                BUSY => (word & !STATE | REQUESTED, None),
                _ => return None,
            };
            match slot.compare_exchange(word, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return result,
                Err(now) => word = now,
            }
        }
    }

    /// Home: returns whether the helper has returned a pair.
    #[inline]
    pub(crate) fn is_back(&self, at: usize) -> bool {
        self.slots[at].load(Ordering::Relaxed) & STATE == BACK
    }

    /// Returns a number that changes with each chunk done in this slot.
    #[inline]
    pub(crate) fn progress(&self, at: usize) -> u32 {
        self.progress[at].load(Ordering::Relaxed)
    }

    /// Home: returns the copies in this slot since the last call: their last receiver, and ticks.
    #[inline]
    pub(crate) fn take_copies(&self, at: usize) -> Option<(PortId, u64)> {
        let copies = &self.copies[at];
        if copies.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let word = copies.swap(0, Ordering::Relaxed);
        Some((PortId(word as u32 & 0xffff), word >> RECEIVER_BITS))
    }

    /// Helper: notes the copies of a chunk for this receiver, ticks.
    #[inline]
    pub(crate) fn note_copies(&self, at: usize, receiver: PortId, ticks: u64) {
        let copies = &self.copies[at];
        let note = |word: u64| {
            let sum = (word >> RECEIVER_BITS).saturating_add(ticks);
            Some(sum << RECEIVER_BITS | u64::from(receiver.0 & 0xffff))
        };
        let _ = copies.fetch_update(Ordering::Relaxed, Ordering::Relaxed, note);
    }

    /// Returns whether the helper is in a chunk.
    pub(crate) fn in_chunk(&self) -> bool {
        self.states().any(|state| matches!(state, BUSY | REQUESTED))
    }

    /// Helper: begins a chunk of the pair in a slot, if one is assigned there.
    #[inline]
    pub(crate) fn claim(&self, at: usize) -> Option<(PortId, u16)> {
        let slot = &self.slots[at];
        let word = slot.load(Ordering::Relaxed);
        if word & STATE != ASSIGNED {
            return None;
        }
        let busy = word & !STATE | BUSY;
        slot.compare_exchange(word, busy, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        Some((
            PortId((word >> PORT_SHIFT) as u32),
            (word >> PAIR_SHIFT) as u16,
        ))
    }

    /// Helper: ends the chunk.
    #[inline]
    pub(crate) fn done(&self, at: usize, next: Next) {
        let progress = &self.progress[at];
        progress.store(
            progress.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
        let slot = &self.slots[at];
        let mut word = slot.load(Ordering::Relaxed);
        loop {
            let of = word & !(STATE | 0xff << REASON_SHIFT);
            let new = match (word & STATE, next) {
                (BUSY, Next::Keep) => of | ASSIGNED,
                (_, Next::Back(reason)) => of | reason.code() | BACK,
                // Home has requested the pair meanwhile.
                _ => of | Reason::Requested.code() | BACK,
            };
            match slot.compare_exchange(word, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Helper: announces a sleep. Returns `false` when a pair was assigned meanwhile: then it must
    /// not sleep.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.states().any(|state| state == ASSIGNED) {
            self.woke();
            return false;
        }
        true
    }

    /// Helper: ends a sleep.
    pub(crate) fn woke(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
