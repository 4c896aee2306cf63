//! First fragments of datagrams: later ones, which have no transport header, are what they are.
//!
//! ```text
//! word 0..4   datagram: its tuple with the identification as ports (packet.rs)
//!      5      connection: form 8 | protocol 8 | ports 32 | kind of message 8 | reason 8
//!      6      time 32 | port 16 | end of the first fragment 16
//!      7      version: odd while the line is written
//! ```
//!
//! A datagram lies in a set of eight lines, and the oldest makes room; as does the oldest of a
//! port makes room for its sixty-fifth. The lines are written under their versions, so a reader
//! sees one datagram whole or none. A datagram that is lost costs its later fragments, nothing
//! else.

use crate::Invalid;
use crate::packet::{Message, Piece};
use crate::timeouts::Millis;
use crate::tuple::{Seed, Tuple, WORDS};

use super::layout::{FRAGMENTS, MAX_PORTS};
use super::memory::{LINE, Line, Part};
use super::sync::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

/// Lines of a set.
const WAYS: usize = 8;
/// Datagrams of a port.
const OF_PORT: usize = 64;
/// How long a first fragment is remembered.
const TIMEOUT: Millis = 30_000;
/// Bits of a line's number, below those of its version, in the ring of a port.
const NUMBER: u32 = FRAGMENTS.trailing_zeros();

/// The connection of a datagram's fragments, or the reason that they have none.
pub(crate) type Belongs = Result<(Tuple, Message), Invalid>;

/// The first fragments; see the module.
#[derive(Debug)]
pub(crate) struct Fragments {
    lines: Part<Line>,
    /// One for each port.
    rings: Box<[Ring]>,
}

/// The latest lines of a port.
#[derive(Debug)]
struct Ring {
    /// Numbers of lines, below the low bits of their versions.
    lines: [AtomicU32; OF_PORT],
    /// Datagrams so far, modulo 2^32.
    count: AtomicU32,
}

impl Ring {
    fn new() -> Self {
        Self {
            lines: [const { AtomicU32::new(0) }; OF_PORT],
            count: AtomicU32::new(0),
        }
    }
}

/// A line's content.
#[derive(Clone, Copy)]
struct First {
    datagram: Tuple,
    belongs: Belongs,
    at: Millis,
    port: u16,
    end: u16,
}

impl First {
    fn words(&self) -> [u64; LINE - 1] {
        let (connection, kind, reason) = match &self.belongs {
            Ok((tuple, message)) => (tuple.words()[0] & ((1 << 48) - 1), kind(message), 0),
            Err(why) => (0, 0, *why as u64 + 1),
        };
        let [a, b, c, d, e] = *self.datagram.words();
        let form = connection << 16 | kind << 8 | reason;
        let low = u64::from(self.port) << 16 | u64::from(self.end);
        [a, b, c, d, e, form, u64::from(self.at) << 32 | low]
    }

    /// The content of these words; `None` if it has a kind or reason that there is not.
    fn of(words: [u64; LINE - 1]) -> Option<Self> {
        let [datagram @ .., form, low] = words;
        let reason = form as u8;
        let belongs = match usize::from(reason).checked_sub(1) {
            Some(at) => Err(*Invalid::ALL.get(at)?),
            None => {
                let mut tuple = datagram;
                // Its zone and addresses are the datagram's.
                tuple[0] = tuple[0] & !((1 << 48) - 1) | form >> 16;
                Ok((Tuple::from_words(tuple), message((form >> 8) as u8)?))
            }
        };
        Some(Self {
            datagram: Tuple::from_words(datagram),
            belongs,
            at: (low >> 32) as u32,
            port: (low >> 16) as u16,
            end: low as u16,
        })
    }

    fn is_alive(&self, now: Millis) -> bool {
        now.wrapping_sub(self.at) < TIMEOUT
    }
}

/// The kind of a message. A segment's numbers are not kept: its later fragments are judged by the
/// connection alone.
fn kind(message: &Message) -> u64 {
    match message {
        Message::Tcp(_) | Message::Other => 0,
        Message::Udp => 1,
        Message::Request => 2,
        Message::Answer => 3,
        Message::Error => 4,
    }
}

fn message(kind: u8) -> Option<Message> {
    Some(match kind {
        0 => Message::Other,
        1 => Message::Udp,
        2 => Message::Request,
        3 => Message::Answer,
        4 => Message::Error,
        _ => return None,
    })
}

const _: () = assert!(WORDS == LINE - 3);

impl Fragments {
    pub(crate) fn new(lines: Part<Line>) -> Self {
        let fragments = Self {
            lines,
            rings: (0..MAX_PORTS).map(|_| Ring::new()).collect(),
        };
        for line in fragments.lines.iter() {
            // A dead thread may have been writing.
            if !line.0[LINE - 1].load(Relaxed).is_multiple_of(2) {
                line.0.iter().for_each(|word| word.store(0, Relaxed));
            }
        }
        fragments
    }

    /// Remembers what the first fragment of a datagram belongs to.
    ///
    /// # Errors
    /// What makes all fragments of the datagram invalid: another first fragment, too.
    pub(crate) fn remember(
        &self,
        piece: &Piece,
        (port, belongs): (u16, Belongs),
        (seed, now): (&Seed, Millis),
    ) -> Result<(), Invalid> {
        let end = u16::try_from(piece.end).unwrap_or(u16::MAX);
        if let Some((number, first)) = self.find(piece, port, (seed, now)) {
            // The same once more is a retransmission.
            let tuple = |of: Belongs| of.map(|(tuple, _)| tuple);
            if first.end != end || tuple(first.belongs) != tuple(belongs) {
                let belongs = Err(Invalid::Overlap);
                self.write(number, &First { belongs, ..first });
                return Err(Invalid::Overlap);
            }
            return first.belongs.map(|_| ());
        }
        let first = First {
            datagram: piece.datagram,
            belongs,
            at: now,
            port,
            end,
        };
        let number = self.victim(piece, seed, now);
        if let Some(version) = self.write(number, &first) {
            self.enter(port, number, version);
        }
        Ok(())
    }

    /// Notes that a datagram is invalid.
    pub(crate) fn refuse(&self, piece: &Piece, port: u16, why: Invalid, time: (&Seed, Millis)) {
        if let Some((number, first)) = self.find(piece, port, time) {
            let belongs = Err(why);
            self.write(number, &First { belongs, ..first });
        }
    }

    /// Returns what a datagram belongs to, if its first fragment is known.
    pub(crate) fn belongs(
        &self,
        piece: &Piece,
        port: u16,
        time: (&Seed, Millis),
    ) -> Option<Belongs> {
        self.find(piece, port, time).map(|(_, first)| first.belongs)
    }

    /// Returns what a later fragment belongs to, if the first one is known.
    pub(crate) fn later(&self, piece: &Piece, port: u16, time: (&Seed, Millis)) -> Option<Belongs> {
        let (number, first) = self.find(piece, port, time)?;
        if first.belongs.is_ok() && piece.start < u32::from(first.end) {
            let belongs = Err(Invalid::Overlap);
            self.write(number, &First { belongs, ..first });
            return Some(belongs);
        }
        Some(first.belongs)
    }

    /// The numbers of a datagram's set.
    fn set(piece: &Piece, seed: &Seed) -> impl Iterator<Item = usize> {
        let set = piece.datagram.hash(seed) as usize % (FRAGMENTS / WAYS);
        (0..WAYS).map(move |way| set * WAYS + way)
    }

    fn find(
        &self,
        piece: &Piece,
        port: u16,
        (seed, now): (&Seed, Millis),
    ) -> Option<(usize, First)> {
        Self::set(piece, seed).find_map(|number| {
            let first = self.read(number)?;
            let is_it = first.datagram == piece.datagram && first.port == port;
            (is_it && first.is_alive(now)).then_some((number, first))
        })
    }

    /// The line of a set that is free, or the oldest.
    fn victim(&self, piece: &Piece, seed: &Seed, now: Millis) -> usize {
        let age = |number: &usize| {
            let first = self.read(*number);
            first.map_or(Millis::MAX, |first| now.wrapping_sub(first.at))
        };
        Self::set(piece, seed).max_by_key(age).unwrap_or(0)
    }

    /// Enters a line as the latest of a port, and frees the one that leaves its ring.
    fn enter(&self, port: u16, number: usize, version: u64) {
        let ring = &self.rings[usize::from(port) % MAX_PORTS];
        let at = ring.count.fetch_add(1, Relaxed) as usize % OF_PORT;
        let entry = (version as u32) << NUMBER | number as u32;
        let before = ring.lines[at].swap(entry, Relaxed);
        let oldest = before as usize % FRAGMENTS;
        let Some(line) = self.lines.get(oldest) else {
            return;
        };
        let version = line.0[LINE - 1].load(Relaxed);
        if before != 0 && (version as u32) << NUMBER | oldest as u32 == before {
            self.store(oldest, version, [0; LINE - 1]);
        }
    }

    fn read(&self, number: usize) -> Option<First> {
        let [words @ .., version] = &self.lines.get(number)?.0;
        let before = version.load(Acquire);
        let copy: [u64; LINE - 1] = std::array::from_fn(|at| words[at].load(Relaxed));
        fence(Acquire);
        let is_whole = before.is_multiple_of(2) && version.load(Relaxed) == before;
        // A free line has no datagram: the words are zero.
        (is_whole && copy[0] != 0).then(|| First::of(copy))?
    }

    /// Writes a line, unless another thread does; returns its version.
    fn write(&self, number: usize, first: &First) -> Option<u64> {
        let version = self.lines.get(number)?.0[LINE - 1].load(Relaxed);
        self.store(number, version, first.words())
    }

    fn store(&self, number: usize, before: u64, words: [u64; LINE - 1]) -> Option<u64> {
        let [cells @ .., version] = &self.lines.get(number)?.0;
        if !before.is_multiple_of(2) {
            return None;
        }
        let odd = before.wrapping_add(1);
        version
            .compare_exchange(before, odd, Acquire, Relaxed)
            .ok()?;
        fence(Release);
        for (cell, word) in cells.iter().zip(words) {
            cell.store(word, Relaxed);
        }
        version.store(odd.wrapping_add(1), Release);
        Some(odd.wrapping_add(1))
    }
}

#[cfg(test)]
mod tests;
