//! Accounts: the number of connections that a port has opened, and of those opened to it.
//!
//! Each connection is charged to one account: that of the guest that has opened it, or, if the
//! opener is no guest, that of the guest that it is for. So a flood from outside fills the account
//! of what is opened *to* a guest, and what the guest opens itself has the other one.

use std::fmt;

use super::layout::MAX_PORTS;
use super::memory::Part;
use super::sync::{AtomicU64, Ordering::Relaxed};

/// A port's accounts, one cache line: see the fields.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct PortAccounts {
    /// Connections of both accounts: 32 bits of them unreplied, 32 bits all.
    counts: [AtomicU64; 2],
    /// Bit 32: the port is a guest's. Below: its `connections`, zero for no limit.
    limits: AtomicU64,
    /// Connections that were opened so far, charged to either account.
    opened: AtomicU64,
    /// Unreplied ones that made room for others.
    evicted_unreplied: AtomicU64,
    /// Others that did.
    evicted: AtomicU64,
    /// Connections refused.
    refused: AtomicU64,
    /// Invalid frames from the port.
    invalid: AtomicU64,
}

const GUEST: u64 = 1 << 32;
/// One connection in a word of counts.
const ONE: u64 = 1;
/// One that is unreplied, beyond its [`ONE`].
const UNREPLIED: u64 = 1 << 32;

/// The connections that an account stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Connections that the port has opened.
    Opened = 0,
    /// Connections that others, which are no guests, have opened to the port.
    OpenedTo = 1,
}

/// An account: a port, and the kind of its connections.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Account {
    /// Number of the port.
    pub port: u16,
    /// Kind of its connections.
    pub kind: Kind,
}

/// `port 3, opened to it`.
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Opened => "opened by it",
            Kind::OpenedTo => "opened to it",
        };
        write!(f, "port {}, {kind}", self.port)
    }
}

/// Connections of an account.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// All.
    pub all: u32,
    /// Those that were not answered yet.
    pub unreplied: u32,
}

impl Counts {
    #[inline]
    const fn of(word: u64) -> Self {
        Self {
            all: word as u32,
            unreplied: (word >> 32) as u32,
        }
    }
}

/// Limits of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortLimits {
    /// Whether it is a guest's: connections are charged to guests where one takes part.
    pub guest: bool,
    /// Limit of each of its accounts; `None` for the table's limits alone.
    pub connections: Option<u32>,
}

/// Totals of a port, since the table is new.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortTotals {
    /// Connections that were opened, charged to the port.
    pub opened: u64,
    /// Unreplied connections that made room for others.
    pub evicted_unreplied: u64,
    /// Answered connections that did.
    pub evicted: u64,
    /// Connections that found no room.
    pub refused: u64,
    /// Invalid frames.
    pub invalid: u64,
}

impl PortAccounts {
    /// Zeros the counts of connections, which a rebuild adds, and the limits, which are set again.
    fn restart(&self) {
        self.counts.iter().for_each(|count| count.store(0, Relaxed));
        self.limits.store(0, Relaxed);
    }

    /// Zeros totals and limits.
    pub(crate) fn clear(&self) {
        for cell in [
            &self.limits,
            &self.opened,
            &self.evicted_unreplied,
            &self.evicted,
            &self.refused,
            &self.invalid,
        ] {
            cell.store(0, Relaxed);
        }
    }

    /// Reads the totals.
    pub(crate) fn totals(&self) -> PortTotals {
        PortTotals {
            opened: self.opened.load(Relaxed),
            evicted_unreplied: self.evicted_unreplied.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
            refused: self.refused.load(Relaxed),
            invalid: self.invalid.load(Relaxed),
        }
    }

    /// The limit that the port's configuration has for each of its accounts.
    #[inline]
    pub(crate) fn configured(&self) -> u32 {
        match self.limits.load(Relaxed) as u32 {
            0 => u32::MAX,
            limit => limit,
        }
    }

    /// Reads the counts of one account.
    pub(crate) fn counts(&self, kind: Kind) -> Counts {
        Counts::of(self.counts[kind as usize].load(Relaxed))
    }
}

/// All accounts; see the module.
#[derive(Debug)]
pub(crate) struct Accounts {
    ports: Part<PortAccounts>,
    /// Accounts with connections, modulo 2^64: it may be below zero for a moment.
    active: AtomicU64,
}

impl Accounts {
    /// The accounts, without connections and limits; totals stay.
    pub(crate) fn without_connections(ports: Part<PortAccounts>) -> Self {
        ports.iter().for_each(PortAccounts::restart);
        Self {
            ports,
            active: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn port(&self, port: u16) -> &PortAccounts {
        const { assert!(MAX_PORTS.is_power_of_two()) };
        self.ports.at_hash(port.into())
    }

    /// The number of accounts with connections.
    #[inline]
    pub(crate) fn active(&self) -> u32 {
        let active = self.active.load(Relaxed) as i64;
        u32::try_from(active).unwrap_or(0)
    }

    /// Connections of an account.
    #[inline]
    pub(crate) fn counts(&self, account: Account) -> Counts {
        self.port(account.port).counts(account.kind)
    }

    /// The account that a connection between two ports is charged to.
    pub(crate) fn charged(&self, opener: u16, far: Option<u16>) -> Account {
        let is_guest = |port| self.port(port).limits.load(Relaxed) & GUEST != 0;
        match far {
            Some(far) if !is_guest(opener) && is_guest(far) => Account {
                port: far,
                kind: Kind::OpenedTo,
            },
            _ => Account {
                port: opener,
                kind: Kind::Opened,
            },
        }
    }

    /// Adds a connection, unreplied if so.
    pub(crate) fn add(&self, account: Account, unreplied: bool) {
        let word = &self.port(account.port).counts[account.kind as usize];
        let more = if unreplied { ONE + UNREPLIED } else { ONE };
        if word.fetch_add(more, Relaxed) as u32 == 0 {
            self.active.fetch_add(1, Relaxed);
        }
    }

    /// Removes a connection, unreplied if so.
    pub(crate) fn remove(&self, account: Account, unreplied: bool) {
        let word = &self.port(account.port).counts[account.kind as usize];
        let less = if unreplied { ONE + UNREPLIED } else { ONE };
        if word.fetch_sub(less, Relaxed) as u32 == 1 {
            self.active.fetch_sub(1, Relaxed);
        }
    }

    /// Notes that an unreplied connection was answered.
    pub(crate) fn answered(&self, account: Account) {
        let word = &self.port(account.port).counts[account.kind as usize];
        word.fetch_sub(UNREPLIED, Relaxed);
    }

    /// Counts an opened connection.
    pub(crate) fn count_opened(&self, account: Account) {
        self.port(account.port).opened.fetch_add(1, Relaxed);
    }

    /// Counts a connection that made room for another.
    pub(crate) fn count_evicted(&self, account: Account, unreplied: bool) {
        let port = self.port(account.port);
        let cell = match unreplied {
            true => &port.evicted_unreplied,
            false => &port.evicted,
        };
        cell.fetch_add(1, Relaxed);
    }

    /// Counts a connection without room.
    pub(crate) fn count_refused(&self, account: Account) {
        self.port(account.port).refused.fetch_add(1, Relaxed);
    }

    /// Counts invalid frames from a port.
    pub(crate) fn count_invalid(&self, port: u16, frames: u64) {
        self.port(port).invalid.fetch_add(frames, Relaxed);
    }

    /// The limit that a port's configuration has for each of its accounts.
    #[inline]
    pub(crate) fn configured(&self, port: u16) -> u32 {
        self.port(port).configured()
    }

    /// Sets the limits of a port.
    pub(crate) fn set_limits(&self, port: u16, limits: PortLimits) {
        let guest = if limits.guest { GUEST } else { 0 };
        // A limit of zero connections would be none: one is as good as nothing.
        let connections = limits.connections.map_or(0, |limit| limit.max(1));
        let word = guest | u64::from(connections);
        self.port(port).limits.store(word, Relaxed);
    }

    /// Zeros the totals and limits of a port, when its number is assigned anew.
    pub(crate) fn clear(&self, port: u16) {
        self.port(port).clear();
    }
}
