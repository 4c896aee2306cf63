//! Entries: three cache lines a connection.
//!
//! ```text
//! line 0   state word (word.rs); tuple, 5 words, as the first frame had it; ends; birth
//! line 1   side of the original direction
//! line 2   side of the reply direction
//! ends     far port 16 | account 1 | opener's port 15 | mark 32 (ends.rs)
//! birth    generation of the zone 32 | time of the commit 32
//! side     11 words of 32 bits, see progress.rs: the last is the time of its last frame; note 32;
//!          packets 48 | station 16; bytes
//! note     original: rule that let the connection in; reply: number of the extension
//! ```
//!
//! Line 0 is written once, before the entry is in the index; the state word and the ends by
//! compare and exchange. A side is written by the frames of its direction alone, with plain
//! stores; its station by the frame that changes the port. Where a count comes between the two, one
//! of them is lost: a count, or the new station, and then the side's next move is not recognised.

use crate::progress::{SIDE_WORDS, Side, place};
use crate::state::Direction;
use crate::tuple::{Station, Tuple, WORDS};

use super::memory::prefetch;
use super::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// An entry; see the module.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) life: AtomicU64,
    pub(crate) tuple: [AtomicU64; WORDS],
    pub(crate) ends: AtomicU64,
    pub(crate) birth: AtomicU64,
    pub(crate) original: SideLine,
    pub(crate) reply: SideLine,
}

/// State of one direction; see the module.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct SideLine {
    pub(crate) words: [AtomicU32; SIDE_WORDS],
    pub(crate) note: AtomicU32,
    pub(crate) frames: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl SideLine {
    /// Reads the side.
    #[inline(always)]
    pub(crate) fn side(&self) -> Side {
        Side::from_words(self.words.each_ref().map(|word| word.load(Relaxed)))
    }

    /// Reads the time alone: the side of a protocol without windows.
    #[inline(always)]
    pub(crate) fn side_without_windows(&self) -> Side {
        Side::new(self.used())
    }

    /// Writes the side, as its own direction does.
    #[inline(always)]
    pub(crate) fn set(&self, side: &Side) {
        for (cell, word) in self.words.iter().zip(side.words()) {
            cell.store(word, Relaxed);
        }
    }

    /// Reads one word of the side.
    #[inline(always)]
    pub(crate) fn word(&self, at: usize) -> u32 {
        self.words[at].load(Relaxed)
    }

    /// Writes one word of the side.
    #[inline(always)]
    pub(crate) fn set_word(&self, at: usize, word: u32) {
        self.words[at].store(word, Relaxed);
    }

    /// Writes the time alone.
    #[inline(always)]
    pub(crate) fn set_used(&self, now: u32) {
        self.set_word(place::USED, now);
    }

    /// Fills the line before its entry is in the index.
    #[inline(always)]
    pub(crate) fn fill(
        &self,
        side: &Side,
        (note, station): (u32, Station),
        (packets, bytes): (u64, u64),
    ) {
        self.set(side);
        self.note.store(note, Relaxed);
        let frames = packets << PACKETS | u64::from(station.0);
        self.frames.store(frames, Relaxed);
        self.bytes.store(bytes, Relaxed);
    }

    /// Time of its last frame.
    #[inline(always)]
    pub(crate) fn used(&self) -> u32 {
        self.word(place::USED)
    }

    /// The note.
    pub(crate) fn note(&self) -> u32 {
        self.note.load(Relaxed)
    }

    /// Adds frames to its counts, as its own direction does.
    #[inline(always)]
    pub(crate) fn count(&self, packets: u64, bytes: u64) {
        for (cell, more) in [(&self.frames, packets << PACKETS), (&self.bytes, bytes)] {
            cell.store(cell.load(Relaxed).wrapping_add(more), Relaxed);
        }
    }
}

/// Position of the number of packets.
const PACKETS: u32 = 16;

impl SideLine {
    /// Packets and bytes so far.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        let frames = self.frames.load(Relaxed);
        (frames >> PACKETS, self.bytes.load(Relaxed))
    }

    /// The station of the side.
    pub(crate) fn station(&self) -> Station {
        Station(self.frames.load(Relaxed) as u16)
    }

    /// Changes the station.
    pub(crate) fn set_station(&self, station: Station) {
        let packets = self.frames.load(Relaxed) >> PACKETS << PACKETS;
        self.frames.store(packets | u64::from(station.0), Relaxed);
    }
}

impl Entry {
    /// The line of a direction.
    #[inline(always)]
    pub(crate) fn line(&self, direction: Direction) -> &SideLine {
        match direction {
            Direction::Original => &self.original,
            Direction::Reply => &self.reply,
        }
    }

    /// Returns the direction of a frame with this tuple, if it is of this connection.
    #[inline(always)]
    pub(crate) fn direction(&self, tuple: &Tuple) -> Option<Direction> {
        if self.has(tuple) {
            Some(Direction::Original)
        } else if self.has(&tuple.reversed()) {
            Some(Direction::Reply)
        } else {
            None
        }
    }

    #[inline(always)]
    fn has(&self, tuple: &Tuple) -> bool {
        let words = tuple.words();
        let differ = |at: usize| self.tuple[at].load(Relaxed) ^ words[at];
        // The high halves of IPv4's addresses are zero.
        differ(0) | differ(1) | differ(3) == 0 && (!tuple.is_v6() || differ(2) | differ(4) == 0)
    }

    /// The tuple in the original direction.
    #[inline]
    pub(crate) fn tuple(&self) -> Tuple {
        Tuple::from_words(std::array::from_fn(|at| self.tuple[at].load(Relaxed)))
    }

    /// Its IP protocol, and whether its addresses are of IPv6.
    #[inline(always)]
    pub(crate) fn protocol(&self) -> (u8, bool) {
        let first = self.tuple[0].load(Relaxed);
        ((first >> 32) as u8, first >> 40 & 1 != 0)
    }

    /// Its zone.
    #[inline(always)]
    pub(crate) fn zone(&self) -> u16 {
        (self.tuple[0].load(Relaxed) >> 48) as u16
    }

    /// Returns whether its sides have windows: TCP.
    #[inline(always)]
    pub(crate) fn has_windows(&self) -> bool {
        self.protocol().0 == wire::tcp::PROTOCOL
    }

    /// Prefetches all three lines.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch(self);
        prefetch(&self.original);
        prefetch(&self.reply);
    }

    /// Time of the commit.
    #[inline(always)]
    pub(crate) fn created(&self) -> u32 {
        self.birth.load(Relaxed) as u32
    }

    /// Writes the tuple, before the entry is in the index.
    pub(crate) fn set_tuple(&self, tuple: &Tuple) {
        for (cell, word) in self.tuple.iter().zip(tuple.words()) {
            cell.store(*word, Relaxed);
        }
    }
}
