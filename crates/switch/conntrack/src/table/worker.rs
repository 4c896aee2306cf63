//! A thread's access to the table, a batch at a time.

use std::sync::Arc;

use crate::machine;
use crate::progress::{Progress, Side};
use crate::timeouts::{Millis, Settings};
use crate::tuple::{Station, Tuple};

use super::account::Account;
use super::admit::{Admission, LimitKind, Refusal};
use super::bounds::Occupancy;
use super::content::Content;
use super::ends::Ends;
use super::entry::{Entry, SideLine};
use super::links::EntryRef;
use super::shared::{TableState, lock};
use super::stock::Stock;
use super::sync::Ordering::{AcqRel, Acquire, Relaxed};
use super::word::Life;

/// Attempts of an insert beside others of the same tuple.
const ATTEMPTS: usize = 4;

/// A thread's access to the table. All reads and writes are made in a batch.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<TableState>,
    slot: usize,
    stock: Stock,
}

/// A batch of a thread: what it finds stays what it is until the batch is dropped.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) shared: &'a TableState,
    pub(crate) stock: &'a mut Stock,
    pub(crate) settings: &'a Settings,
    pub(crate) now: Millis,
    /// The shortest timeout.
    shortest: Millis,
    /// A bit for each connection that it has opened; see [`Batch::may_have_opened`].
    opened: u64,
    slot: usize,
}

/// The bit of a hash in the filter of opened connections.
#[inline(always)]
const fn filter_bit(hash: u64) -> u64 {
    1 << (hash >> 58)
}

/// A connection that is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening<'a> {
    /// Tuple of its first frame, and the hash.
    pub(crate) tuple: &'a Tuple,
    pub(crate) hash: u64,
    /// Ports of the first frame: where it comes from, and where it goes if that is known.
    pub(crate) ports: (u16, Option<u16>),
    /// Stations of both sides, the opener's first.
    pub(crate) stations: [Station; 2],
    pub(crate) progress: Progress,
    /// Sides after the first frame, the original first.
    pub(crate) sides: [Side; 2],
    /// When it was committed: now, but for one that takes the place of another.
    pub(crate) created: Millis,
    pub(crate) rule: Rule,
    /// Packets and bytes of the original direction.
    pub(crate) traffic: (u64, u64),
}

/// The rule that let a connection in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rule {
    /// Epoch of its segment's rules.
    pub epoch: u16,
    /// Its number, for listings.
    pub number: u32,
    /// Mark of the connection; its low byte is a field of flow keys.
    pub mark: u32,
}

/// The outcome of an insert.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Insertion<'a> {
    /// It is in the table.
    New(EntryRef<'a>),
    /// The tuple was there already.
    Known(EntryRef<'a>),
    /// There is no room.
    Refused(Refusal),
}

impl Worker {
    pub(crate) fn new(shared: Arc<TableState>, slot: usize, room: usize) -> Self {
        Self {
            shared,
            slot,
            stock: Stock::new(room),
        }
    }

    /// The state that the threads share.
    #[inline(always)]
    pub(crate) fn shared(&self) -> &TableState {
        &self.shared
    }

    /// Begins a batch.
    #[inline]
    pub(crate) fn begin<'a>(&'a mut self, settings: &'a Settings, now: Millis) -> Batch<'a> {
        let shared = &*self.shared;
        if self.stock.has_unlinked() {
            let for_all = shared.is_full(0);
            self.stock
                .collect(&shared.grace, &shared.used, for_all, |entry| {
                    shared.forget(entry);
                });
        }
        shared.grace.begin(self.slot);
        Batch {
            shared,
            stock: &mut self.stock,
            settings,
            now,
            shortest: settings.timeouts.shortest(),
            opened: 0,
            slot: self.slot,
        }
    }

    /// Gives back the entries that the thread holds, before it sleeps.
    pub fn rest(&mut self) {
        if !self.stock.holds_nothing() {
            let mut waiting = lock(&self.shared.waiting);
            self.stock.give_back(&self.shared.used, &mut waiting);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.rest();
        self.shared.leave(self.slot);
    }
}

impl Drop for Batch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.shared.grace.end(self.slot);
    }
}

impl<'a> Batch<'a> {
    /// Returns the connection of a tuple that accepts frames from this port. One that is over is
    /// removed.
    pub(crate) fn find(&mut self, tuple: &Tuple, hash: u64, port: u16) -> Option<EntryRef<'a>> {
        self.find_where(tuple, hash, |found| found.accepts(port))
    }

    /// Returns the oldest connection of a tuple that is accepted. Those that are over are removed.
    pub(crate) fn find_where(
        &mut self,
        tuple: &Tuple,
        hash: u64,
        accepts: impl Fn(&EntryRef<'_>) -> bool,
    ) -> Option<EntryRef<'a>> {
        let (shared, now) = (self.shared, self.now);
        let mut oldest: Option<EntryRef<'a>> = None;
        for found in shared.links.find_all(tuple, hash) {
            let rank = |found: &EntryRef<'_>| {
                let age = now.wrapping_sub(found.entry.created());
                (found.life.is_second(), u32::MAX - age)
            };
            if !self.is_current(&found) {
                self.remove(found.number, found.life, hash);
            } else if accepts(&found) && oldest.is_none_or(|oldest| rank(&found) < rank(&oldest)) {
                oldest = Some(found);
            }
        }
        oldest
    }

    /// Returns whether a connection is neither over nor flushed.
    #[inline]
    pub(crate) fn is_current(&self, found: &EntryRef<'_>) -> bool {
        self.sides(found).is_some()
    }

    /// Returns whether a connection was opened since its zone was flushed.
    #[inline(always)]
    pub(crate) fn is_of_zone(&self, entry: &Entry) -> bool {
        let birth = entry.birth.load(Relaxed);
        (birth >> 32) as u32 == self.shared.zone(entry.zone())
    }

    /// Reads both sides of a connection, the original first; `None` if it is over or flushed.
    #[inline(always)]
    pub(crate) fn sides(&self, found: &EntryRef<'_>) -> Option<[Side; 2]> {
        let entry = found.entry;
        if !self.is_of_zone(entry) {
            return None;
        }
        let sides = if entry.has_windows() {
            [entry.original.side(), entry.reply.side()]
        } else {
            let side = |line: &SideLine| line.side_without_windows();
            [side(&entry.original), side(&entry.reply)]
        };
        let [original, reply] = &sides;
        if self.idle([original.used, reply.used]) >= self.shortest {
            let progress = Content::of(found.life).progress();
            let (protocol, now) = (entry.protocol(), self.now);
            machine::remaining(protocol, progress, [original, reply], now, self.settings)?;
        }
        Some(sides)
    }

    /// Returns whether the batch may have opened the connection of a hash.
    #[inline(always)]
    pub(crate) fn may_have_opened(&self, hash: u64) -> bool {
        self.opened & filter_bit(hash) != 0
    }

    /// The shortest timeout.
    #[inline(always)]
    pub(crate) fn shortest(&self) -> Millis {
        self.shortest
    }

    /// Milliseconds since the later of two times; zero if one lies ahead.
    #[inline(always)]
    pub(crate) fn idle(&self, used: [Millis; 2]) -> Millis {
        let [one, other] = used.map(|used| self.now.wrapping_sub(used) as i32);
        one.min(other).max(0) as Millis
    }

    /// Opens a connection, unless there is one that its first frame is of. The caller has looked
    /// for it before.
    #[inline(always)]
    pub(crate) fn open(&mut self, new: &Opening<'_>) -> Insertion<'a> {
        let account = self.shared.accounts.charged(new.ports.0, new.ports.1);
        for attempt in 0..ATTEMPTS {
            if attempt > 0
                && let Some(found) = self.find(new.tuple, new.hash, new.ports.0)
            {
                return Insertion::Known(found);
            }
            let number = match self.admit(account) {
                Ok(admitted) => self.take(admitted),
                Err(refused) => return self.refuse(refused),
            };
            let Some(number) = number else { break };
            if let Some(found) = self.insert(number, new, account) {
                self.shared.accounts.count_opened(account);
                self.opened |= filter_bit(new.hash);
                return Insertion::New(found);
            }
        }
        self.refuse(Refusal {
            account,
            bound: LimitKind::Table,
            limit: self.shared.capacity(),
        })
    }

    #[cold]
    fn refuse(&self, refused: Refusal) -> Insertion<'a> {
        self.shared.accounts.count_refused(refused.account);
        Insertion::Refused(refused)
    }

    /// Takes a free entry; from the reserve, too, if another one was unlinked for it.
    #[inline(always)]
    fn take(&mut self, admitted: Admission) -> Option<u32> {
        if self.stock.is_empty() {
            self.claim(admitted);
        }
        self.stock.take()
    }

    #[cold]
    fn claim(&mut self, admitted: Admission) {
        let entries = match admitted {
            Admission::ForAnother => 1,
            Admission::Free => self.shared.chunk(),
        };
        self.stock.claim(entries, &self.shared.used);
    }

    /// Fills an entry and puts it in the index; `None` when another one of the tuple has won, or
    /// there is no way.
    #[inline(always)]
    fn insert(&mut self, number: u32, new: &Opening<'_>, account: Account) -> Option<EntryRef<'a>> {
        let shared = self.shared;
        let entry = shared.links.entries.get(number as usize)?;
        let unreplied = !new.progress.is_replied();
        self.fill(entry, new, account);
        shared.known.raise(new.tuple);
        // Counted first: it may be removed as soon as it is there.
        shared.accounts.add(account, unreplied);
        let content = Content::new(new.progress, new.rule.epoch).bits();
        let mut word = shared.links.publish(number, content, new.hash);
        if word.is_none() && self.make_way(new.hash) {
            word = shared.links.publish(number, content, new.hash);
        }
        let won = match word {
            Some(word) => shared
                .links
                .settle(word, (new.tuple, new.hash), new.ports.0),
            None => None,
        };
        let Some(life) = won else {
            shared.accounts.remove(account, unreplied);
            self.stock.retire(number, &shared.grace);
            return None;
        };
        Some(EntryRef {
            number,
            entry,
            life,
            direction: crate::Direction::Original,
        })
    }

    #[inline(always)]
    fn fill(&self, entry: &Entry, new: &Opening<'_>, account: Account) {
        entry.set_tuple(new.tuple);
        let (opener, far) = new.ports;
        let ends = Ends::new(opener, far, account.kind, new.rule.mark);
        entry.ends.store(ends.0, Relaxed);
        let zone = self.shared.zone(new.tuple.zone());
        let birth = u64::from(zone) << 32 | u64::from(new.created);
        entry.birth.store(birth, Relaxed);
        let [original, reply] = new.stations;
        let original = (new.rule.number, original);
        entry.original.fill(&new.sides[0], original, new.traffic);
        entry.reply.fill(&new.sides[1], (0, reply), (0, 0));
    }

    /// Removes a confirmed connection; `false` when another thread has done so, or nothing more
    /// can be removed in this batch.
    pub(crate) fn remove(&mut self, number: u32, seen: Life, hash: u64) -> bool {
        let shared = self.shared;
        if !self.stock.has_room() {
            return false;
        }
        let Some(entry) = shared.links.entries.get(number as usize) else {
            return false;
        };
        let Some(life) = shared.links.unlink(number, seen, hash) else {
            return false;
        };
        // No other thread changes the ends any more, so the account is the last one.
        let ends = Ends(entry.ends.swap(Ends::GONE.0, AcqRel));
        let unreplied = !Content::of(life).progress().is_replied();
        shared.accounts.remove(ends.account(), unreplied);
        self.stock.retire(number, &shared.grace);
        true
    }

    /// Stores the progress that a frame has made. Returns the new state word; else that which
    /// another thread has stored, or none if the connection has ended.
    #[inline(always)]
    pub(crate) fn advance(
        &self,
        found: &EntryRef<'_>,
        after: Content,
    ) -> Result<Life, Option<Life>> {
        let before = Content::of(found.life);
        let next = found.life.with_content(after.bits());
        let answers = !before.progress().is_replied() && after.progress().is_replied();
        // The account changes for answered connections only, so this is the one to credit.
        let ends = Ends(found.entry.ends.load(Acquire));
        let cell = &found.entry.life;
        match cell.compare_exchange(found.life.0, next.0, AcqRel, Acquire) {
            Ok(_) => {
                if answers {
                    self.shared.accounts.answered(ends.account());
                }
                Ok(next)
            }
            Err(now) => {
                let now = Life(now);
                let same = now.generation() == found.life.generation();
                Err(same.then_some(now))
            }
        }
    }

    /// Changes the ports of an answered connection, and its account with them; `false` when it
    /// has ended or another thread has changed them.
    pub(crate) fn set_ends(&self, found: &EntryRef<'_>, before: Ends, after: Ends) -> bool {
        let accounts = &self.shared.accounts;
        let (from, to) = (before.account(), after.account());
        if from != to {
            accounts.add(to, false);
        }
        let cell = &found.entry.ends;
        let done = cell
            .compare_exchange(before.0, after.0, AcqRel, Acquire)
            .is_ok();
        if from != to {
            accounts.remove(if done { from } else { to }, false);
        }
        done
    }
}

impl TableState {
    /// Forgets the connection of an entry that is about to be free.
    #[inline]
    pub(crate) fn forget(&self, number: u32) {
        self.known.lower(self.links.entries.get(number as usize));
    }

    /// Entries that a claim takes: fewer where the table is small.
    pub(crate) fn chunk(&self) -> u32 {
        (self.capacity() / 256).clamp(4, 64)
    }

    /// Entries that are kept free, for connections that take another's place while that one cannot
    /// be reused yet.
    pub(crate) fn reserve(&self) -> u32 {
        let occupancy = Occupancy {
            capacity: self.capacity(),
            ..Occupancy::default()
        };
        occupancy.reserve()
    }

    /// Returns whether this number of further entries would come from the reserve.
    #[inline]
    pub(crate) fn is_full(&self, further: u32) -> bool {
        self.used.taken() + further > self.capacity() - self.reserve()
    }
}
