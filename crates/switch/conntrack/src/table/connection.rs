//! A connection as listings, walks and rebuilds see it: a checked copy of an entry.

use crate::machine;
use crate::progress::{Progress, Side};
use crate::timeouts::{Millis, Settings};
use crate::tuple::{Seed, Station, Tuple};

use super::account::Account;
use super::content::Content;
use super::ends::Ends;
use super::entry::{Entry, SideLine};
use super::sync::{
    Ordering::{Acquire, Relaxed},
    fence,
};
use super::word::Life;

/// A copy of an entry: its words were read once, and its numbers are in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Tuple in the original direction.
    pub tuple: Tuple,
    /// Progress of the protocol.
    pub progress: Progress,
    /// Epoch of the rules that have let it in.
    pub epoch: u16,
    pub(crate) life: Life,
    pub(crate) ends: Ends,
    /// Generation of its zone when it was let in.
    pub(crate) zone: u32,
    /// Time of its commit.
    pub opened: Millis,
    /// Number of the rule that has let it in.
    pub rule: u32,
    /// Sides of both directions, the original first.
    pub(crate) sides: [Side; 2],
    /// Packets and bytes of both directions, the original first.
    pub traffic: [(u64, u64); 2],
    /// Stations of both sides, the opener's first.
    pub(crate) stations: [Station; 2],
}

impl Connection {
    /// Copies a confirmed entry; `None` where it is not one, changes owner meanwhile, or has
    /// numbers that no connection has. Reads nothing twice but the state word, which must stay the
    /// same generation.
    pub(crate) fn read(entry: &Entry) -> Option<Self> {
        let life = Life(entry.life.load(Acquire));
        if !life.is_confirmed() {
            return None;
        }
        let content = Content::of(life);
        let birth = entry.birth.load(Relaxed);
        let lines = [&entry.original, &entry.reply];
        let copy = Self {
            tuple: entry.tuple(),
            progress: content.progress(),
            epoch: content.epoch(),
            life,
            ends: Ends(entry.ends.load(Relaxed)),
            zone: (birth >> 32) as u32,
            opened: birth as u32,
            rule: entry.original.note(),
            sides: [entry.original.side(), entry.reply.side()],
            traffic: lines.map(SideLine::traffic),
            stations: lines.map(SideLine::station),
        };
        fence(Acquire);
        let again = Life(entry.life.load(Relaxed));
        let is_same = again.is_confirmed() && again.generation() == life.generation();
        let is_sound = copy.ends.is_sound() && !content.is_strange();
        (is_same && is_sound).then_some(copy)
    }

    /// Port of the opener.
    #[must_use]
    pub const fn opener(&self) -> u16 {
        self.ends.opener()
    }

    /// Port of the other side; `None` until an answer has bound it.
    #[must_use]
    pub const fn far(&self) -> Option<u16> {
        self.ends.far()
    }

    /// The account that it is charged to.
    #[must_use]
    pub const fn charged(&self) -> Account {
        self.ends.account()
    }

    /// Mark; its low byte is a field of flow keys.
    #[must_use]
    pub const fn mark(&self) -> u32 {
        self.ends.mark()
    }

    /// Time of the last frame of either direction.
    #[must_use]
    pub fn used(&self, now: Millis) -> Millis {
        last_use(self.sides[0].used, self.sides[1].used, now)
    }

    /// Milliseconds until it is forgotten; `None` when it is over.
    #[must_use]
    pub fn remaining(&self, settings: &Settings, now: Millis) -> Option<Millis> {
        let protocol = (self.tuple.protocol(), self.tuple.is_v6());
        let [original, reply] = &self.sides;
        machine::remaining(protocol, self.progress, [original, reply], now, settings)
    }

    /// The hash of its tuple.
    pub(crate) fn hash(&self, seed: &Seed) -> u64 {
        self.tuple.hash(seed)
    }
}

/// Time since then; zero for what lies ahead.
#[inline(always)]
pub(crate) const fn age(then: Millis, now: Millis) -> Millis {
    let age = now.wrapping_sub(then);
    if age > i32::MAX as u32 { 0 } else { age }
}

/// The later one of two times.
#[inline(always)]
pub(crate) fn last_use(one: Millis, other: Millis, now: Millis) -> Millis {
    if age(one, now) < age(other, now) {
        one
    } else {
        other
    }
}
