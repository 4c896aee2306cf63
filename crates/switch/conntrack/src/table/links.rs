//! Index and entries: look-up, insert and removal, without a lock.
//!
//! An insert fills an entry that no other thread has, publishes it as *pending* by a word of the
//! index, and then looks for others of the same tuple ([`Links::settle`]): a confirmed one wins,
//! and among pending ones that with the smallest number. A thread that finds a pending one with a
//! greater number ends it, so it cannot be confirmed afterwards. Of two inserts one sees the
//! other, because each publishes before it looks; so there are never two winners. There is one
//! always, because a confirmed entry or the smallest number loses to none.
//!
//! One tuple may have several connections, if several ports use it. Those after the first are
//! marked as *second*: a look-up that meets one searches all, and takes the oldest.
//!
//! Look-ups do not see pending entries. `tests/table_loom.rs` has the proofs.

use crate::state::Direction;
use crate::tuple::Tuple;

use super::ends::Ends;
use super::entry::Entry;
use super::index::Index;
use super::memory::Part;
use super::sync::{
    Ordering::{AcqRel, Acquire, Release, SeqCst},
    fence,
};
use super::word::{IndexWord, Life};

/// Index and entries; see the module.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) index: Index,
    pub(crate) entries: Part<Entry>,
}

/// A confirmed entry, valid until the batch of the thread ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryRef<'a> {
    pub(crate) number: u32,
    pub(crate) entry: &'a Entry,
    /// Its state word, as it was when the entry was found.
    pub(crate) life: Life,
    /// Direction of the frame.
    pub(crate) direction: Direction,
}

/// Result of an insert's look at a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meeting {
    /// No connection of the tuple.
    Stranger,
    /// One of the tuple, of other ports.
    OtherPort,
    /// One that the frame is of, which wins.
    Lost,
}

impl EntryRef<'_> {
    /// Its ports and mark.
    #[inline(always)]
    pub(crate) fn ends(&self) -> Ends {
        Ends(self.entry.ends.load(Acquire))
    }

    /// Returns whether a frame from this port is of the connection.
    #[inline(always)]
    pub(crate) fn accepts(&self, port: u16) -> bool {
        self.ends().accepts(self.direction, port)
    }
}

impl Links {
    /// The connections of a tuple, whichever ports they have: guests may use each other's tuples.
    #[inline]
    pub(crate) fn find_all(&self, tuple: &Tuple, hash: u64) -> impl Iterator<Item = EntryRef<'_>> {
        let words = self.index.candidates(hash);
        words.filter_map(|word| self.check(word, tuple))
    }

    /// Returns the connection that a word of the index leads to, if it is the tuple's, whichever
    /// ports it has.
    ///
    /// The generation is looked at once: what is live in a batch is not filled anew before its
    /// end.
    #[inline(always)]
    pub(crate) fn check(&self, word: IndexWord, tuple: &Tuple) -> Option<EntryRef<'_>> {
        let number = word.entry();
        let entry = self.entries.get(number as usize)?;
        let life = Life(entry.life.load(Acquire));
        if !word.leads_to(life) || life.is_pending() {
            return None;
        }
        let direction = entry.direction(tuple)?;
        Some(EntryRef {
            number,
            entry,
            life,
            direction,
        })
    }

    /// Publishes an entry that the caller alone has and has filled; `None` when both sets are
    /// full.
    pub(crate) fn publish(&self, number: u32, content: u64, hash: u64) -> Option<IndexWord> {
        let entry = self.entries.get(number as usize)?;
        let before = Life(entry.life.load(Acquire));
        let generation = match before.generation() {
            0 => before.next_generation(),
            // A dead process has left it.
            _ if before.is_live() => before.next_generation(),
            generation => generation,
        };
        let word = IndexWord::new(hash, generation, number);
        let life = Life::pending(generation, content);
        entry.life.store(life.0, Release);
        if self.index.add(hash, word) {
            return Some(word);
        }
        let dead = Life::dead(life.next_generation());
        entry.life.store(dead.0, Release);
        None
    }

    /// Confirms a published entry for a frame from a port, and returns its state word; `None` when
    /// another one that the frame is of has won. Then it is removed, and the caller has it back.
    pub(crate) fn settle(
        &self,
        word: IndexWord,
        (tuple, hash): (&Tuple, u64),
        port: u16,
    ) -> Option<Life> {
        let entry = self.entries.get(word.entry() as usize)?;
        let pending = Life(entry.life.load(Acquire));
        fence(SeqCst);
        let (mut wins, mut second) = (true, false);
        self.index.meet_candidates(hash, &mut |other| {
            if other != word && !other.is_free() {
                match self.meet(word, other, (tuple, port)) {
                    Meeting::Stranger => {}
                    Meeting::OtherPort => second = true,
                    Meeting::Lost => wins = false,
                }
            }
        });
        let after = match wins {
            true => pending.confirmed(second),
            false => Life::dead(pending.next_generation()),
        };
        // Another thread may have ended it; then it has the next generation already.
        let done = word.leads_to(pending)
            && entry
                .life
                .compare_exchange(pending.0, after.0, AcqRel, Acquire)
                .is_ok();
        if wins && done {
            return Some(after);
        }
        self.index.remove(hash, word);
        None
    }

    /// Looks at another word of the hash; ends a pending entry with a greater number.
    #[cold]
    fn meet(&self, own: IndexWord, other: IndexWord, frame: (&Tuple, u16)) -> Meeting {
        let Some(entry) = self.entries.get(other.entry() as usize) else {
            return Meeting::Stranger;
        };
        let life = Life(entry.life.load(Acquire));
        let (tuple, port) = frame;
        let ends = Ends(entry.ends.load(Acquire));
        let Some(direction) = entry.direction(tuple) else {
            return Meeting::Stranger;
        };
        if !other.leads_to(life) {
            return Meeting::Stranger;
        }
        if !ends.accepts(direction, port) {
            return Meeting::OtherPort;
        }
        if !life.is_pending() || other.entry() < own.entry() {
            return Meeting::Lost;
        }
        let dead = Life::dead(life.next_generation());
        match entry.life.compare_exchange(life.0, dead.0, AcqRel, Acquire) {
            // It is confirmed.
            Err(now) if other.leads_to(Life(now)) => Meeting::Lost,
            // It has ended, by this or another thread.
            _ => Meeting::Stranger,
        }
    }

    /// Ends a confirmed entry and removes its word. Returns its last state word; `None` when
    /// another thread has ended it, or no word has led to it: then it is a dead process's garbage
    /// in an entry that another thread holds.
    pub(crate) fn unlink(&self, number: u32, seen: Life, hash: u64) -> Option<Life> {
        let entry = self.entries.get(number as usize)?;
        let mut life = seen;
        loop {
            let dead = Life::dead(life.next_generation());
            match entry.life.compare_exchange(life.0, dead.0, AcqRel, Acquire) {
                Ok(_) => break,
                Err(now) if Life(now).generation() == seen.generation() => life = Life(now),
                Err(_) => return None,
            }
        }
        let word = IndexWord::new(hash, life.generation(), number);
        self.index.remove(hash, word).then_some(life)
    }
}
