//! Room for new connections: limits of accounts, and the choice of those that make room.
//!
//! * Unreplied connections of an account: a sixteenth of the table.
//! * All of an account: its configured limit, and a quarter of the table; the fair share, which is
//!   the same for all accounts with connections, once the table is seven eighths full.
//! * The reserve, a sixty-fourth, is for connections that take another's place.
//!
//! An account at its limit loses connections of its own; one below it, where the table is full,
//! takes the place of one of an account above the fair share. Of 64 that are looked at, the first
//! that is over, unreplied or denied goes, else the one that was used last the longest time ago. So
//! an assured connection of an account within its share never goes. A full table has an account
//! above the share whenever another one is below, so more are looked at then.

use std::fmt;

use super::account::Account;
use super::bounds::Occupancy;
use super::connection::{age, last_use};
use super::content::Content;
use super::ends::Ends;
use super::layout::MAX_PORTS;
use super::links::EntryRef;
use super::shared::TableState;
use super::sync::Ordering::{Acquire, Relaxed};
use super::used::BITS;
use super::word::Life;
use super::worker::Batch;

/// Entries that are looked at for one that makes room.
const LOOKS: usize = 64;
/// Entries that are looked at, where none of the first is a victim, for a connection that is
/// within its account's share: victims are about one in as many as there are accounts.
const MORE_LOOKS: usize = 1024;
/// Words of the bitmap that are searched for them.
const WORDS: usize = 512;

/// The bound that a new connection was refused by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LimitKind {
    /// The `connections` of a port.
    Configured,
    /// An account's share of the table.
    Share,
    /// An account's unreplied connections.
    Unreplied,
    /// The table is full of connections that may not go.
    Table,
}

/// A refused connection: the account that it would have been charged to, and the bound.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Refusal {
    /// The account.
    pub account: Account,
    /// The bound that it has reached.
    pub bound: LimitKind,
    /// Its value, in connections.
    pub limit: u32,
}

/// `port 3, opened by it: 20000 connections, its limit`.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = match self.bound {
            LimitKind::Configured => "connections, its limit",
            LimitKind::Share => "connections, its share of the table",
            LimitKind::Unreplied => "unanswered connections, its share of the table",
            LimitKind::Table => "connections, all of the table",
        };
        write!(f, "{}: {} {bound}", self.account, self.limit)
    }
}

/// The origin of a new connection's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// A free entry.
    Free,
    /// A free one of the reserve, too, because another connection has gone.
    ForAnother,
}

/// Connections that may make room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victims {
    /// Those of an account.
    Own(Account),
    /// Those of an account that were not answered.
    OwnUnreplied(Account),
    /// Those of accounts with more connections than this.
    Above(u32),
}

impl TableState {
    /// The use of the table.
    fn occupancy(&self) -> Occupancy {
        Occupancy {
            capacity: self.capacity(),
            taken: self.used.taken(),
            active: self.accounts.active(),
        }
    }

    /// The number of the hand of an account, or of that of all accounts.
    fn hand(&self, victims: Victims) -> usize {
        match victims {
            Victims::Own(account) | Victims::OwnUnreplied(account) => {
                let port = usize::from(account.port) % MAX_PORTS;
                2 * port + account.kind as usize
            }
            Victims::Above(_) => 2 * MAX_PORTS,
        }
    }
}

impl Batch<'_> {
    /// Makes room for a connection of an account.
    #[inline(always)]
    pub(crate) fn admit(&mut self, account: Account) -> Result<Admission, Refusal> {
        let shared = self.shared;
        let counts = shared.accounts.counts(account);
        let occupancy = shared.occupancy();
        let configured = shared.accounts.configured(account.port);
        let (bound, limit) = occupancy.limit(configured, counts.all);
        let unreplied = occupancy.unreplied();
        let (victims, bound, limit) = if counts.all >= limit {
            (Victims::Own(account), bound, limit)
        } else if counts.unreplied >= unreplied {
            (
                Victims::OwnUnreplied(account),
                LimitKind::Unreplied,
                unreplied,
            )
        } else if self.stock.is_empty() && shared.is_full(shared.chunk()) {
            let share = occupancy.fair_share(counts.all);
            (Victims::Above(share), LimitKind::Table, shared.capacity())
        } else {
            return Ok(Admission::Free);
        };
        self.replace(
            victims,
            Refusal {
                account,
                bound,
                limit,
            },
        )
    }

    /// Makes room by removing one of the victims.
    #[cold]
    fn replace(&mut self, victims: Victims, refusal: Refusal) -> Result<Admission, Refusal> {
        match self.evict(victims) {
            true => Ok(Admission::ForAnother),
            false => Err(refusal),
        }
    }

    /// Removes one of the victims, if there is one among those that are looked at.
    fn evict(&mut self, victims: Victims) -> bool {
        let shared = self.shared;
        let Some(hand) = shared.hands.get(shared.hand(victims)) else {
            return false;
        };
        let words = shared.used.len();
        let from = hand.load(Relaxed);
        let (first, before) = ((from / BITS) as usize % words, from % BITS);
        let (mut looks, mut oldest, mut at) = (0, None, first);
        for ahead in 0..=words.min(WORDS) {
            at = (first + ahead) % words;
            let mut bits = shared.used.word(at);
            // What was looked at before comes at the end.
            match ahead {
                0 => bits &= u64::MAX << before,
                _ if ahead == words => bits &= !(u64::MAX << before),
                _ => {}
            }
            while bits != 0 {
                let number = at as u32 * BITS + bits.trailing_zeros();
                bits &= bits - 1;
                looks += 1;
                match self.look(number, victims) {
                    Look::Go => {
                        hand.store(number + 1, Relaxed);
                        return true;
                    }
                    Look::Idle(idle) if oldest.is_none_or(|(most, _)| idle > most) => {
                        oldest = Some((idle, number));
                    }
                    Look::Idle(_) | Look::Stays => {}
                }
            }
            let most = match victims {
                Victims::Above(_) if oldest.is_none() => MORE_LOOKS,
                _ => LOOKS,
            };
            if looks >= most {
                break;
            }
        }
        hand.store((at as u32 + 1) * BITS, Relaxed);
        oldest.is_some_and(|(_, number)| self.remove_for_room(number))
    }

    /// Looks at an entry, and removes it if it is over, or a victim that is unreplied or denied.
    fn look(&mut self, number: u32, victims: Victims) -> Look {
        let shared = self.shared;
        let Some(entry) = shared.links.entries.get(number as usize) else {
            return Look::Stays;
        };
        let life = Life(entry.life.load(Acquire));
        if !life.is_confirmed() {
            return Look::Stays;
        }
        let ends = Ends(entry.ends.load(Relaxed));
        let found = EntryRef {
            number,
            entry,
            life,
            direction: crate::Direction::Original,
        };
        if !self.is_current(&found) {
            let hash = entry.tuple().hash(&shared.seed);
            return Look::after(self.remove(number, life, hash));
        }
        let progress = Content::of(life).progress();
        let account = ends.account();
        let is_victim = match victims {
            Victims::Own(own) => account == own,
            Victims::OwnUnreplied(own) => account == own && !progress.is_replied(),
            Victims::Above(share) => shared.accounts.counts(account).all > share,
        };
        if !is_victim {
            return Look::Stays;
        }
        if progress.goes_first() {
            return Look::after(self.remove_for_room(number));
        }
        let used = last_use(entry.original.used(), entry.reply.used(), self.now);
        Look::Idle(age(used, self.now))
    }

    /// Removes a connection from the full sets of a hash: guests that use one tuple fill them. It
    /// is one that is over, unreplied or denied, or of an account above the fair share.
    #[cold]
    pub(crate) fn make_way(&mut self, hash: u64) -> bool {
        let shared = self.shared;
        let share = shared.occupancy().fair_share(1);
        let mut oldest = None;
        for word in shared.links.index.words(hash) {
            let number = word.entry();
            match self.look(number, Victims::Above(share)) {
                Look::Go => return true,
                Look::Idle(idle) if oldest.is_none_or(|(most, _)| idle > most) => {
                    oldest = Some((idle, number));
                }
                Look::Idle(_) => {}
                Look::Stays => {
                    let entry = shared.links.entries.get(number as usize);
                    let life = entry.map(|entry| Life(entry.life.load(Acquire)));
                    let first = |life| Content::of(life).progress().goes_first();
                    if life.is_some_and(|life| life.is_confirmed() && first(life)) {
                        oldest = Some((u32::MAX, number));
                    }
                }
            }
        }
        oldest.is_some_and(|(_, number)| self.remove_for_room(number))
    }

    fn remove_for_room(&mut self, number: u32) -> bool {
        let shared = self.shared;
        let Some(entry) = shared.links.entries.get(number as usize) else {
            return false;
        };
        let life = Life(entry.life.load(Acquire));
        if !life.is_confirmed() {
            return false;
        }
        let account = Ends(entry.ends.load(Relaxed)).account();
        let hash = entry.tuple().hash(&shared.seed);
        let gone = self.remove(number, life, hash);
        if gone {
            let unreplied = !Content::of(life).progress().is_replied();
            shared.accounts.count_evicted(account, unreplied);
        }
        gone
    }
}

/// Result of a look at an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    /// It has gone.
    Go,
    /// It may go; these milliseconds have passed since its last frame.
    Idle(u32),
    /// It may not go.
    Stays,
}

impl Look {
    const fn after(gone: bool) -> Self {
        if gone { Self::Go } else { Self::Stays }
    }
}
