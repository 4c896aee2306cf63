//! Walks over all connections, a part at a time: expiry, flushes by port or filter.

use crate::timeouts::{Millis, Settings};

use super::connection::Connection;
use super::shared::{Header, is_recent, lock};
use super::sync::Ordering::Relaxed;
use super::used::BITS;
use super::worker::{Batch, Worker};

/// Milliseconds after which nothing is new.
const LONG: Millis = 24 * 3600 * 1000;

/// Position of a walk, a word of the bitmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Walk {
    at: usize,
}

/// Result of a part of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// Connections that were removed.
    pub removed: u32,
    /// Whether it has come to the end: the next part begins anew.
    pub finished: bool,
}

impl Walk {
    pub(crate) const fn at(self) -> usize {
        self.at
    }

    pub(crate) const fn step(&mut self) {
        self.at += 1;
    }
}

impl Worker {
    /// Looks at about `looks` connections from a position on, and removes those that are over,
    /// those of flushed zones, and those that `keep` refuses. Entries of threads that rest are
    /// freed.
    pub fn walk(
        &mut self,
        walk: &mut Walk,
        looks: usize,
        (settings, now): (&Settings, Millis),
        mut keep: impl FnMut(&Connection) -> bool,
    ) -> Part {
        self.free_waiting();
        if let Some(clock) = self.shared().header.get(Header::Clock as usize) {
            clock.store(now.into(), Relaxed);
        }
        self.forget_births(now);
        let mut batch = self.begin(settings, now);
        let words = batch.shared.used.len();
        let (mut looked, mut part) = (0, Part::default());
        while walk.at < words && looked < looks {
            let mut bits = batch.shared.used.word(walk.at);
            looked += bits.count_ones() as usize;
            while bits != 0 {
                if !batch.stock.has_room() {
                    // The rest of the word is looked at again.
                    return part;
                }
                let number = walk.at as u32 * BITS + bits.trailing_zeros();
                bits &= bits - 1;
                part.removed += u32::from(batch.visit(number, &mut keep));
            }
            walk.at += 1;
        }
        if walk.at >= words {
            walk.at = 0;
            part.finished = true;
        }
        part
    }

    /// Forgets births of long ago, before the clock has wrapped.
    fn forget_births(&self, now: Millis) {
        let shared = self.shared();
        let table = shared.header.get(Header::Birth as usize);
        for born in table.into_iter().chain(&shared.born) {
            is_recent(born, LONG, now);
        }
    }

    /// Frees entries of threads that rest, once no thread has them any more.
    fn free_waiting(&self) {
        let shared = self.shared();
        let mut waiting = lock(&shared.waiting);
        if waiting.is_empty() {
            return;
        }
        let over = shared.grace.over();
        waiting.retain(|(stamp, entry)| {
            let free = *stamp <= over;
            if free {
                shared.forget(*entry);
                shared.used.release(*entry);
            }
            !free
        });
    }
}

impl Batch<'_> {
    /// Removes an entry unless it is kept; returns whether it was removed.
    fn visit(&mut self, number: u32, keep: &mut impl FnMut(&Connection) -> bool) -> bool {
        let shared = self.shared;
        let entry = shared.links.entries.get(number as usize);
        let Some(connection) = entry.and_then(Connection::read) else {
            return false;
        };
        let stays = connection.zone == shared.zone(connection.tuple.zone())
            && connection.remaining(self.settings, self.now).is_some()
            && keep(&connection);
        if stays {
            return false;
        }
        let hash = connection.hash(&shared.seed);
        self.remove(number, connection.life, hash)
    }
}
