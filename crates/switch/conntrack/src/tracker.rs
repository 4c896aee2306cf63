//! A thread's frames and the table of connections.
//!
//! ```text
//! batch      Tracker::begin ... drop: what is found stays until then
//! 1 prepare  for each frame: hash of its tuple; prefetch of the index
//! 2 approach for each: word of the index; prefetch of the entry
//! 3 judge    for each: its state, and the connection's new one
//!   commit, deny, count, forget   when its actions are executed
//! ```
//!
//! So the cache misses of all frames of a batch overlap. A frame of the same tuple as the one
//! before has its probe. Judging a frame twice, as when it is given back to its queue, is as a
//! retransmission.

use std::num::NonZeroU64;

use wire::MacAddr;
use wire::flow::{Ct, CtState};

use crate::Direction;
use crate::judgement::{Ingress, Judgement, Port, Stations};
use crate::packet::{Packet, Reading};
use crate::table::content::Content;
use crate::table::links::EntryRef;
use crate::table::word::{IndexWord, Life};
use crate::table::worker::Batch;
use crate::table::{Refusal, Table, Worker};
use crate::timeouts::{Millis, Settings};
use crate::tuple::Tuple;

pub use swift::Run;

mod commit;
mod judge;
#[cfg(any(test, feature = "test-utils"))]
pub mod pair;
mod swift;

#[cfg(test)]
mod tests;

/// A thread's access to the table, for frames.
#[derive(Debug)]
pub struct Tracker {
    worker: Worker,
}

/// A batch of frames; see the module.
#[derive(Debug)]
pub struct Tracking<'a> {
    batch: Batch<'a>,
}

/// A look-up in progress. It is valid until the batch ends, and knows no connection that is opened
/// after it was approached.
///
/// Two words, which are passed in registers.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    hash: u64,
    word: IndexWord,
}

/// The place of a frame's connection, valid as long as the connection lives: then it leads
/// nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(NonZeroU64);

/// The judgement of a frame, and the place of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameJudgement {
    /// The judgement.
    pub judgement: Judgement,
    /// Its connection's place: of known and related frames.
    pub place: Option<Place>,
    /// Low byte of its connection's mark.
    pub mark: u8,
    /// Whether it is new in the middle of a TCP connection; see [`Tracking::may_answer`].
    pub is_middle: bool,
}

/// A known connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The port of the other side; `None` until an answer binds it.
    pub far: Option<Port>,
    /// Epoch of the rules that have let it in.
    pub epoch: u16,
    /// Time since its commit.
    pub age: Millis,
}

/// Result for a frame that opens or renews a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitResult {
    /// Its connection is new in the table.
    Opened(Place),
    /// Its connection was there, and has the epoch and the ports of the frame now.
    Renewed(Place),
    /// Its connection is there, and stays as it is: the frame goes elsewhere than to the other side
    /// of it, and does not say where that is. It is a flood, or comes from the side that answers.
    Passed(Place),
    /// There is no room.
    Refused(Refusal),
    /// It opens none.
    Nothing,
}

impl Probe {
    /// A look-up of nothing.
    pub const NOWHERE: Self = Self {
        hash: 0,
        word: IndexWord::FREE,
    };

    /// Returns whether it may lead to a connection, whatever its ports are.
    #[inline]
    #[must_use]
    pub fn leads(&self) -> bool {
        !self.word.is_free()
    }
}

impl Tracker {
    /// A thread's access to a table; `None` when it has too many threads.
    #[must_use]
    pub fn new(table: &Table) -> Option<Self> {
        table.worker().map(|worker| Self { worker })
    }

    /// Begins a batch.
    #[inline]
    pub fn begin<'a>(&'a mut self, settings: &'a Settings, now: Millis) -> Tracking<'a> {
        Tracking {
            batch: self.worker.begin(settings, now),
        }
    }

    /// Gives back what the thread holds of the table, before it sleeps.
    pub fn rest(&mut self) {
        self.worker.rest();
    }
}

impl Place {
    /// Bit of the reply direction, above the entry's number.
    const REPLY: u64 = 1 << 22;

    fn of(found: &EntryRef<'_>) -> Self {
        let reply = match found.direction {
            Direction::Original => 0,
            Direction::Reply => Self::REPLY,
        };
        let place = Life::dead(found.life.generation()).0 | reply | u64::from(found.number);
        // No generation is zero.
        Self(NonZeroU64::new(place).unwrap_or(NonZeroU64::MIN))
    }
}

impl FrameJudgement {
    /// The field of flow keys.
    #[must_use]
    pub fn ct(&self) -> Ct {
        Ct::new(self.judgement.state(), self.mark)
    }

    const fn without_connection(judgement: Judgement) -> Self {
        Self {
            judgement,
            place: None,
            mark: 0,
            is_middle: false,
        }
    }

    /// The state alone.
    #[must_use]
    pub fn state(&self) -> CtState {
        self.judgement.state()
    }
}

impl<'a> Tracking<'a> {
    /// Hashes a tuple and prefetches its set of the index: the first step of a look-up.
    #[inline(always)]
    #[must_use]
    pub fn prepare(&self, tuple: &Tuple) -> Probe {
        let hash = tuple.hash(&self.batch.shared.seed);
        self.batch.shared.links.index.prefetch(hash);
        let word = IndexWord::FREE;
        Probe { hash, word }
    }

    /// Reads the set and prefetches the entry: the second step.
    #[inline(always)]
    #[must_use]
    pub fn approach(&self, probe: Probe) -> Probe {
        let links = &self.batch.shared.links;
        let Some(word) = links.index.candidate(probe.hash) else {
            return probe;
        };
        if let Some(entry) = links.entries.get(word.entry() as usize) {
            entry.prefetch();
        }
        Probe { word, ..probe }
    }

    /// Both steps for a frame, for callers that have one.
    #[must_use]
    pub fn probe(&self, read: &Reading) -> Probe {
        match read {
            Reading::Packet(Packet { tuple, .. }) => self.approach(self.prepare(tuple)),
            _ => Probe::NOWHERE,
        }
    }

    /// The stations of an Ethernet header.
    #[inline]
    #[must_use]
    pub fn stations(&self, source: MacAddr, destination: MacAddr) -> Stations {
        Stations::new(&self.batch.shared.seed, source, destination)
    }

    /// The stations of a frame with these first bytes.
    #[inline(always)]
    #[must_use]
    pub fn stations_of(&self, head: &[u8; 16]) -> Stations {
        Stations::of(&self.batch.shared.seed, head)
    }

    /// Counts frames of a connection, as the thread that serves their queue does.
    #[inline]
    pub fn count(&mut self, place: Place, packets: u64, bytes: u64) {
        if let Some(found) = self.at(place) {
            found.entry.line(found.direction).count(packets, bytes);
        }
    }

    /// Forgets a connection that a frame has refused. A frame from another port than that of its
    /// side forgets nothing.
    pub fn forget(&mut self, place: Place, from: Port) {
        if let Some(found) = self.at(place)
            && found.ends().seen(found.direction).0 == Some(from)
        {
            let hash = found.entry.tuple().hash(&self.batch.shared.seed);
            self.batch.remove(found.number, found.life, hash);
        }
    }

    /// Returns what control decides by of a connection; `None` when it has ended.
    #[must_use]
    pub fn about(&self, place: Place) -> Option<Summary> {
        let found = self.at(place)?;
        let (_, far) = found.ends().seen(found.direction);
        Some(Summary {
            far,
            epoch: Content::of(found.life).epoch(),
            age: self.batch.now.wrapping_sub(found.entry.created()),
        })
    }

    /// Returns whether a frame that is new in the middle of a TCP connection is judged as the
    /// answer that it may be, too: while the table is new, or the guest of one of its two ports. As
    /// long as the far port is not known, that may be any.
    #[must_use]
    pub fn may_answer(&self, from: Ingress, far: Option<Port>, grace: Millis) -> bool {
        let (shared, now) = (self.batch.shared, self.batch.now);
        match far {
            Some(far) => shared.is_new(&[from.port, far], grace, now),
            None => shared.is_any_new(grace, now),
        }
    }

    fn at(&self, place: Place) -> Option<EntryRef<'a>> {
        let place = place.0.get();
        let number = place as u32 & (Place::REPLY as u32 - 1);
        let direction = match place & Place::REPLY {
            0 => Direction::Original,
            _ => Direction::Reply,
        };
        let links = &self.batch.shared.links;
        let entry = links.entries.get(number as usize)?;
        let life = Life(entry.life.load(std::sync::atomic::Ordering::Acquire));
        let is_same = life.generation() == Life(place).generation();
        (is_same && life.is_confirmed()).then_some(EntryRef {
            number,
            entry,
            life,
            direction,
        })
    }
}
