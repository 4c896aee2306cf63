//! Another process's view of the table, read-only.
//!
//! The memory is that of another process, which may be broken: each word is read once and checked,
//! each loop is bounded by the layout, and a connection is shown if the index leads to it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mapping::Mapping;
use wire::MacAddr;

use crate::judgement::Stations;
use crate::timeouts::{Millis, Settings};
use crate::tuple::{Seed, Tuple};

use super::account::{Account, Counts, Kind, PortTotals};
use super::bounds::Occupancy;
use super::connection::Connection;
use super::entry::Entry;
use super::index::Index;
use super::layout::{Layout, MAGIC, MAX_PORTS, VERSION};
use super::removal::ConnectionId;
use super::shared::{Header, Parts, TableError};
use super::sync::Ordering::Relaxed;
use super::used::BITS;
use super::walk::{Part, Walk};
use super::word::IndexWord;

/// A view of the table; see the module.
#[derive(Debug)]
pub struct Reader {
    parts: Parts,
    index: Index,
    seed: Seed,
}

impl Reader {
    /// Maps a memory file read-only.
    ///
    /// # Errors
    /// A file that is no table of this layout, or the error of the system call.
    pub fn map(fd: &OwnedFd, layout: Layout) -> Result<Self, TableError> {
        let mapping = Mapping::read_only(fd, layout.bytes(), 0).map_err(TableError::Memory)?;
        Self::over(Arc::new(mapping), layout)
    }

    /// Reads memory that is mapped already.
    ///
    /// # Errors
    /// Memory that is no table of this layout.
    pub fn over(mapping: Arc<Mapping>, layout: Layout) -> Result<Self, TableError> {
        let parts = || Parts::new(&mapping, layout).ok_or(TableError::Layout);
        let (parts, index) = (parts()?, Index::new(parts()?.index));
        let header = [Header::Magic, Header::Version, Header::Capacity];
        let expected = [MAGIC, VERSION, layout.capacity().into()];
        if header.map(|word| parts.header(word)) != expected {
            return Err(TableError::Layout);
        }
        let seed = Seed::new(parts.header(Header::Seed));
        Ok(Self { parts, index, seed })
    }

    /// Shows connections from a position on, of about `looks` entries, and moves the position.
    pub fn read(
        &self,
        walk: &mut Walk,
        looks: usize,
        (settings, now): (&Settings, Millis),
        mut show: impl FnMut(ConnectionId, &Connection),
    ) -> Part {
        let mut part = Part::default();
        let words = self.parts.used.len();
        let mut looked = 0;
        while walk.at() < words && looked < looks {
            let at = walk.at();
            let mut bits = self.parts.used.get(at).map_or(0, |w| w.load(Relaxed));
            // Words without an entry cost a look, too: a table may be nearly empty.
            looked += 1 + bits.count_ones() as usize;
            while bits != 0 {
                let number = at as u32 * BITS + bits.trailing_zeros();
                bits &= bits - 1;
                let entry = self.parts.entries.get(number as usize);
                let connection = entry.and_then(|entry| self.connection(number, entry));
                if let Some(connection) = connection
                    && connection.remaining(settings, now).is_some()
                {
                    show(ConnectionId::new(number, connection.life), &connection);
                }
            }
            walk.step();
        }
        if walk.at() >= words {
            *walk = Walk::default();
            part.finished = true;
        }
        part
    }

    fn connection(&self, number: u32, entry: &Entry) -> Option<Connection> {
        let connection = Connection::read(entry)?;
        let zone = usize::from(connection.tuple.zone());
        let generation = self.parts.zones.get(zone)?.load(Relaxed);
        let hash = connection.hash(&self.seed);
        let word = IndexWord::new(hash, connection.life.generation(), number);
        let is_there = self.index.candidates(hash).any(|other| other == word);
        (is_there && connection.zone == generation).then_some(connection)
    }

    /// The connections that may be that of a tuple, in either direction.
    pub(super) fn candidates(&self, tuple: &Tuple) -> impl Iterator<Item = Connection> {
        let words = self.index.candidates(tuple.hash(&self.seed));
        words.filter_map(|word| {
            let entry = self.parts.entries.get(word.entry() as usize)?;
            let connection = Connection::read(entry)?;
            let zone = usize::from(connection.tuple.zone());
            let generation = self.parts.zones.get(zone)?.load(Relaxed);
            let is_it = word.leads_to(connection.life) && connection.zone == generation;
            is_it.then_some(connection)
        })
    }

    /// The stations of an Ethernet header.
    #[must_use]
    pub fn stations(&self, source: MacAddr, destination: MacAddr) -> Stations {
        Stations::new(&self.seed, source, destination)
    }

    /// Number of connections that the table holds.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.parts.entries.len() as u32
    }

    /// The switch's clock, as of its last walk: it walks several times a second while there are
    /// connections.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.parts.header(Header::Clock) as Millis
    }

    /// The use of the table, from its accounts.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        let mut occupancy = Occupancy {
            capacity: self.capacity(),
            ..Occupancy::default()
        };
        for port in self.parts.accounts.iter() {
            for kind in [Kind::Opened, Kind::OpenedTo] {
                let all = port.counts(kind).all.min(occupancy.capacity);
                occupancy.taken = occupancy.taken.saturating_add(all);
                occupancy.active += u32::from(all > 0);
            }
        }
        occupancy
    }

    /// The limit that a port's configuration has for each of its accounts, as the switch knows it.
    #[must_use]
    pub fn configured(&self, port: u16) -> u32 {
        let port = self.parts.accounts.get(usize::from(port) % MAX_PORTS);
        port.map_or(u32::MAX, |port| port.configured())
    }

    /// Connections of an account. Right at about the time of the call: the accounts of all ports
    /// together need not be of one moment.
    #[must_use]
    pub fn counts(&self, account: Account) -> Counts {
        let port = self
            .parts
            .accounts
            .get(usize::from(account.port) % MAX_PORTS);
        port.map_or_else(Counts::default, |port| port.counts(account.kind))
    }

    /// Totals of a port.
    #[must_use]
    pub fn totals(&self, port: u16) -> PortTotals {
        let port = self.parts.accounts.get(usize::from(port) % MAX_PORTS);
        port.map_or_else(PortTotals::default, |port| port.totals())
    }
}
