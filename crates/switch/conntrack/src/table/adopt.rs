//! What a dead switch has left: nothing in the file is trusted.
//!
//! One pass over the index takes over the words that lead to a sound, confirmed entry of their
//! generation and hash, once for each entry; all others are removed, pending ones too. The bitmap
//! and the accounts are made from what is left.

use crate::timeouts::Millis;

use super::connection::Connection;
use super::layout::{Layout, MAGIC, VERSION};
use super::memory::Line;
use super::shared::{Header, Parts, TableState, birth};
use super::sync::Ordering::Relaxed;
use super::word::IndexWord;

/// Findings in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Adoption {
    /// Whether the file was new, or of another layout or capacity: the table is empty.
    pub is_new: bool,
    /// Connections that it holds.
    pub connections: u32,
    /// Words of the index that led to none: connections that were being opened or closed, and
    /// garbage.
    pub dropped: u32,
}

/// Checks the header; makes an empty table of memory that is none of this layout. Generations of
/// zones may begin anywhere, and entries may hold anything.
pub(crate) fn prepare(parts: &Parts, layout: Layout, seed: u64, now: Millis) -> bool {
    let expected = [
        (Header::Magic, MAGIC),
        (Header::Version, VERSION),
        (Header::Capacity, layout.capacity().into()),
    ];
    if expected
        .iter()
        .all(|(at, value)| parts.header(*at) == *value)
    {
        return false;
    }
    parts.set_header(Header::Magic, 0);
    for line in parts.index.iter().chain(parts.fragments.iter()) {
        line.0.iter().for_each(|word| word.store(0, Relaxed));
    }
    parts.accounts.iter().for_each(|port| port.clear());
    parts.set_header(Header::Seed, seed);
    parts.set_header(Header::Birth, birth(now));
    parts.set_header(Header::Clock, now.into());
    for (at, value) in expected.into_iter().rev() {
        parts.set_header(at, value);
    }
    true
}

/// Makes bitmap and accounts from the index, and the index sound.
pub(crate) fn rebuild(shared: &TableState, is_new: bool, now: Millis) -> Adoption {
    let mut adopted = Adoption {
        is_new,
        ..Adoption::default()
    };
    for set in shared.links.index.sets() {
        for way in &set.0 {
            let word = IndexWord(way.load(Relaxed));
            if word.is_free() {
                continue;
            }
            let Some(connection) = sound(shared, set, word, now) else {
                way.store(0, Relaxed);
                adopted.dropped += 1;
                continue;
            };
            let unreplied = !connection.progress.is_replied();
            shared.accounts.add(connection.ends.account(), unreplied);
            shared.known.raise(&connection.tuple);
            adopted.connections += 1;
        }
    }
    adopted
}

/// Returns the connection that a word leads to, and marks its entry; `None` unless all is right.
fn sound(shared: &TableState, set: &Line, word: IndexWord, now: Millis) -> Option<Connection> {
    let entry = shared.links.entries.get(word.entry() as usize)?;
    let connection = Connection::read(entry)?;
    let hash = connection.hash(&shared.seed);
    let is_past = |then: Millis| now.wrapping_sub(then) <= i32::MAX as u32;
    let is_here = word.generation() == connection.life.generation()
        && word.has(IndexWord::tag(hash))
        && shared.links.index.is_of(set, hash);
    let is_sound = is_here && connection.sides.iter().all(|side| is_past(side.used));
    (is_sound && shared.used.mark(word.entry())).then_some(connection)
}
