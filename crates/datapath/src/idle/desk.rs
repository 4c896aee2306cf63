//! Where queue pairs are lent to a helper and come back: a few slots, each with one pair that exactly one side may serve.
//!
//! ```text
//!               lend                 claim
//!    [ Free ] --------> [ Lent ] ------------> [ Busy ]        the helper serves it in Busy only,
//!       ^                | ^  ^                 |  | |         a piece at a time
//!       |   take_back    | |  '---- done: Keep -'  | |
//!       |<---------------' |                       | | take_back: Asked is noted
//!       |                  '--------x              | v
//!       |                                          | [ Busy, asked ]
//!       |                 take_back                v       |
//!       '------------------------------------ [ Back ] <---' done
//! ```
//! *Home* is the worker that lends. It serves a pair only after `take_back` gave it back. Between pieces the pair is Lent, so home
//! gets it back at once even if the helper's core was given to others meanwhile; only in the middle of a piece it has to wait,
//! and [`super::boost`] sees to it that this is short.

use port::PortId;

use super::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Pairs that a helper has at a time.
pub(crate) const SLOTS: usize = 4;

/// What a slot's lowest byte says; above is why it came back, then the pair, then the port.
const FREE: u64 = 0;
const LENT: u64 = 1;
const BUSY: u64 = 2;
const ASKED: u64 = 3;
const BACK: u64 = 4;
const STATE: u64 = 0xff;
const REASON_SHIFT: u32 = 8;
const PAIR_SHIFT: u32 = 16;
const PORT_SHIFT: u32 = 32;

/// Why a pair came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// Home wanted it.
    Asked,
    /// It had no frames for some time.
    Quiet,
    /// The helper does not know what to do with a frame.
    Unknown,
    /// Its frames are not worth a helper.
    Unworthy,
}

impl Reason {
    fn code(self) -> u64 {
        (match self {
            Self::Asked => 0,
            Self::Quiet => 1,
            Self::Unknown => 2,
            Self::Unworthy => 3,
        }) << REASON_SHIFT
    }

    fn of(word: u64) -> Self {
        match word >> REASON_SHIFT & 0xff {
            1 => Self::Quiet,
            2 => Self::Unknown,
            3 => Self::Unworthy,
            _ => Self::Asked,
        }
    }
}

/// What becomes of a pair behind a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// More pieces of it.
    Keep,
    /// It goes back.
    Back(Reason),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Desk {
    slots: [AtomicU64; SLOTS],
    /// Pieces done in each slot; a hint for who looks whether the helper gets on.
    beats: [AtomicU32; SLOTS],
    /// The helper sleeps, or is about to.
    asleep: AtomicBool,
}

impl Desk {
    /// All slots are free, and the helper is awake.
    pub(crate) fn new() -> Self {
        Self {
            slots: std::array::from_fn(|_| AtomicU64::new(FREE)),
            beats: std::array::from_fn(|_| AtomicU32::new(0)),
            asleep: AtomicBool::new(false),
        }
    }

    /// Whether a pair is lent here.
    pub(crate) fn is_used(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| slot.load(Ordering::Relaxed) & STATE != FREE)
    }

    /// Whether nothing more can be lent here now.
    pub(crate) fn is_full(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.all(|slot| slot.load(Ordering::Relaxed) & STATE != FREE)
    }

    /// Home: lends a pair. The slot, and whether the helper is to be woken; `None` when all are taken.
    pub(crate) fn lend(&self, port: PortId, pair: u16) -> Option<(usize, bool)> {
        let word = u64::from(port.0) << PORT_SHIFT | u64::from(pair) << PAIR_SHIFT | LENT;
        let lent = |slot: &AtomicU64| {
            // What home did with the pair comes before what the helper does.
            slot.compare_exchange(FREE, word, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let at = self.slots.iter().position(lent)?;
        // Either the helper sees the slot before it sleeps, or we see that it sleeps.
        fence(Ordering::SeqCst);
        let wake =
            self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed);
        Some((at, wake))
    }

    /// Home: gets its pair back, with the reason if it was the helper's wish. `None` while the helper is in a piece: it will
    /// come back behind that.
    pub(crate) fn take_back(&self, at: usize) -> Option<Reason> {
        let slot = &self.slots[at];
        let mut word = slot.load(Ordering::Acquire);
        loop {
            let (new, result) = match word & STATE {
                LENT => (FREE, Some(Reason::Asked)),
                BACK => (FREE, Some(Reason::of(word))),
                BUSY => (word & !STATE | ASKED, None),
                _ => return None,
            };
            match slot.compare_exchange(word, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return result,
                Err(now) => word = now,
            }
        }
    }

    /// Home: whether a pair waits to be taken back, by the helper's wish.
    #[inline]
    pub(crate) fn is_back(&self, at: usize) -> bool {
        self.slots[at].load(Ordering::Relaxed) & STATE == BACK
    }

    /// A number that changes with each piece done in this slot.
    #[inline]
    pub(crate) fn beat(&self, at: usize) -> u32 {
        self.beats[at].load(Ordering::Relaxed)
    }

    /// Whether the helper is in a piece.
    pub(crate) fn in_piece(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| matches!(slot.load(Ordering::Relaxed) & STATE, BUSY | ASKED))
    }

    /// Helper: begins a piece of the pair in a slot, if one is lent there.
    #[inline]
    pub(crate) fn claim(&self, at: usize) -> Option<(PortId, u16)> {
        let slot = &self.slots[at];
        let word = slot.load(Ordering::Relaxed);
        if word & STATE != LENT {
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

    /// Helper: ends the piece.
    #[inline]
    pub(crate) fn done(&self, at: usize, next: Next) {
        let beat = &self.beats[at];
        beat.store(
            beat.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
        let slot = &self.slots[at];
        let mut word = slot.load(Ordering::Relaxed);
        loop {
            let of = word & !(STATE | 0xff << REASON_SHIFT);
            let new = match (word & STATE, next) {
                (BUSY, Next::Keep) => of | LENT,
                (_, Next::Back(reason)) => of | reason.code() | BACK,
                // Asked for meanwhile.
                _ => of | Reason::Asked.code() | BACK,
            };
            match slot.compare_exchange(word, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Helper: about to sleep. `false` when something was lent meanwhile: then it is awake.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let lent = |slot: &AtomicU64| slot.load(Ordering::Relaxed) & STATE == LENT;
        if self.slots.iter().any(lent) {
            self.woke();
            return false;
        }
        true
    }

    /// Helper: sleeps no more.
    pub(crate) fn woke(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
