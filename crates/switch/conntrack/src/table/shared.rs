//! The table as all threads share it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use mapping::{Mapping, MappingError};

use crate::timeouts::Millis;
use crate::tuple::{Seed, Tuple};

use super::account::{Account, Accounts, Counts, Kind, PortAccounts, PortLimits, PortTotals};
use super::adopt::{self, Adoption};
use super::entry::Entry;
use super::fragments::Fragments;
use super::grace::Grace;
use super::index::Index;
use super::known::KnownConnections;
use super::layout::{FRAGMENTS, Layout, MAX_PORTS, ZONES};
use super::links::Links;
use super::memory::{Line, Part};
use super::sync::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, Release},
};
use super::used::{BITS, UseBitmap};
use super::worker::Worker;

/// Threads that serve batches at the same time.
pub(crate) const THREADS: usize = 128;

/// Reason why there is no table.
#[derive(Debug)]
pub enum TableError {
    /// The file is not of this capacity's length, or not mapped.
    Memory(MappingError),
    /// The memory is shorter than the layout, or not aligned.
    Layout,
    /// There is no filter of connections in that memory.
    Filter(std::io::Error),
}

impl std::fmt::Display for TableError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory(error) => write!(f, "cannot map the table of connections: {error}"),
            Self::Layout => f.write_str("the memory is too short for the table of connections"),
            Self::Filter(error) => write!(f, "cannot map the filter of connections: {error}"),
        }
    }
}

impl std::error::Error for TableError {}

/// Words of the header.
#[derive(Clone, Copy)]
pub(crate) enum Header {
    Magic,
    Version,
    Capacity,
    Seed,
    /// Time of the last writer.
    Clock,
    /// Time when the table was new, above it bit 32; zero once that is long ago.
    Birth,
}

/// The mapped parts of a file.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) header: Part<AtomicU64>,
    pub(crate) accounts: Part<PortAccounts>,
    pub(crate) zones: Part<AtomicU32>,
    pub(crate) fragments: Part<Line>,
    pub(crate) used: Part<AtomicU64>,
    pub(crate) index: Part<Line>,
    pub(crate) entries: Part<Entry>,
}

impl Parts {
    pub(crate) fn new(mapping: &Arc<Mapping>, layout: Layout) -> Option<Self> {
        let capacity = layout.capacity() as usize;
        Some(Self {
            header: Part::new(mapping, 0, 512)?,
            accounts: Part::new(mapping, layout.accounts(), MAX_PORTS)?,
            zones: Part::new(mapping, layout.zones(), ZONES)?,
            fragments: Part::new(mapping, layout.fragments(), FRAGMENTS)?,
            used: Part::new(mapping, layout.used(), capacity / BITS as usize)?,
            index: Part::new(mapping, layout.index(), layout.sets())?,
            entries: Part::new(mapping, layout.entries(), capacity)?,
        })
    }

    pub(crate) fn header(&self, word: Header) -> u64 {
        self.header
            .get(word as usize)
            .map_or(0, |w| w.load(Relaxed))
    }

    pub(crate) fn set_header(&self, word: Header, value: u64) {
        if let Some(cell) = self.header.get(word as usize) {
            cell.store(value, Release);
        }
    }
}

/// The table of connections, shared by the threads of one process. Clones are the same table.
#[derive(Clone, Debug)]
pub struct Table(pub(crate) Arc<TableState>);

/// State that the threads share.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) header: Part<AtomicU64>,
    pub(crate) accounts: Accounts,
    pub(crate) zones: Part<AtomicU32>,
    pub(crate) fragments: Fragments,
    pub(crate) used: UseBitmap,
    pub(crate) links: Links,
    pub(crate) known: KnownConnections,
    pub(crate) seed: Seed,
    pub(crate) grace: Grace,
    /// Slots of threads that are taken.
    slots: Mutex<u128>,
    /// Unlinked entries of threads that rest.
    pub(crate) waiting: Mutex<Vec<(u64, u32)>>,
    /// Births of ports' guests, zero for none.
    pub(crate) born: Box<[AtomicU64]>,
    /// The last of them.
    pub(crate) last_born: AtomicU64,
    /// Entries that the searches for a connection that makes room begin with.
    pub(crate) hands: Box<[AtomicU32]>,
}

impl Table {
    /// Takes over a memory file, whatever it holds: connections of a dead switch, garbage, or
    /// zeros. `seed` is used if the file is new; it must be random and secret.
    ///
    /// # Errors
    /// A file that is too short, or the error of the system call.
    pub fn map(
        fd: &OwnedFd,
        layout: Layout,
        seed: u64,
        now: u32,
    ) -> Result<(Self, Adoption), TableError> {
        let mapping = Mapping::shared(fd, layout.bytes(), 0).map_err(TableError::Memory)?;
        Self::adopt(Arc::new(mapping), layout, seed, now)
    }

    /// Takes over a memory file in the same way, and makes a filter of connections anew for what it
    /// holds. No other process writes to either.
    ///
    /// # Errors
    /// A file or a filter that is too short, or the error of the system call.
    pub fn map_filtered(
        (fd, filter): (&OwnedFd, BorrowedFd<'_>),
        layout: Layout,
        (seed, filter_seed): (u64, u64),
        now: u32,
    ) -> Result<(Self, Adoption), TableError> {
        let mapping = Mapping::shared(fd, layout.bytes(), 0).map_err(TableError::Memory)?;
        let known = KnownConnections::begin(filter, filter_seed)?;
        Self::adopt_with(Arc::new(mapping), known, layout, seed, now)
    }

    /// Takes over memory in the same way.
    ///
    /// # Errors
    /// Memory that is too short.
    pub fn adopt(
        mapping: Arc<Mapping>,
        layout: Layout,
        seed: u64,
        now: u32,
    ) -> Result<(Self, Adoption), TableError> {
        Self::adopt_with(mapping, KnownConnections::NONE, layout, seed, now)
    }

    /// Takes over memory, and raises its connections in an empty filter.
    pub(super) fn adopt_with(
        mapping: Arc<Mapping>,
        known: KnownConnections,
        layout: Layout,
        seed: u64,
        now: u32,
    ) -> Result<(Self, Adoption), TableError> {
        let parts = Parts::new(&mapping, layout).ok_or(TableError::Layout)?;
        let is_new = adopt::prepare(&parts, layout, seed, now);
        let seed = Seed::new(parts.header(Header::Seed));
        let shared = TableState {
            header: parts.header,
            accounts: Accounts::without_connections(parts.accounts),
            zones: parts.zones,
            fragments: Fragments::new(parts.fragments),
            used: UseBitmap::cleared(parts.used),
            links: Links {
                index: Index::new(parts.index),
                entries: parts.entries,
            },
            known,
            seed,
            grace: Grace::new(THREADS),
            slots: Mutex::new(0),
            waiting: Mutex::new(Vec::new()),
            born: (0..MAX_PORTS).map(|_| AtomicU64::new(0)).collect(),
            last_born: AtomicU64::new(0),
            hands: (0..2 * MAX_PORTS + 1).map(|_| AtomicU32::new(0)).collect(),
        };
        let adopted = adopt::rebuild(&shared, is_new, now);
        shared.known.publish();
        Ok((Self(Arc::new(shared)), adopted))
    }

    /// Creates a table on the heap, for tests.
    ///
    /// # Panics
    /// When there is no memory.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn heap(layout: Layout, seed: u64) -> Self {
        let mapping = Arc::new(Mapping::heap(layout.bytes()));
        let (table, _) = Self::adopt(mapping, layout, seed, 0).expect("memory of its length");
        table
    }

    /// Creates a table on the heap with a filter, for tests.
    ///
    /// # Panics
    /// When there is no memory.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn heap_filtered(layout: Layout, seed: u64) -> Self {
        let mapping = Arc::new(Mapping::heap(layout.bytes()));
        let known = KnownConnections::in_file(seed);
        let adopted = Self::adopt_with(mapping, known, layout, seed, 0);
        adopted.expect("memory of its length").0
    }

    /// Creates a table on the heap and a reader of it, for tests.
    ///
    /// # Panics
    /// When there is no memory.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn heap_with_reader(layout: Layout, seed: u64) -> (Self, super::Reader) {
        let mapping = Arc::new(Mapping::heap(layout.bytes()));
        let adopted = Self::adopt(Arc::clone(&mapping), layout, seed, 0);
        let (table, _) = adopted.expect("memory of its length");
        let reader = super::Reader::over(mapping, layout).expect("a table");
        (table, reader)
    }

    /// Registers a thread that serves frames; `None` when there are 128 threads.
    #[must_use]
    pub fn worker(&self) -> Option<Worker> {
        self.register((self.0.capacity() as usize / 4).min(1024))
    }

    /// Registers a thread that walks: it removes many in one batch.
    #[must_use]
    pub fn walker(&self) -> Option<Worker> {
        self.register((self.0.capacity() as usize).min(8192))
    }

    /// Registers a thread with this room for unlinked entries.
    fn register(&self, room: usize) -> Option<Worker> {
        let mut slots = lock(&self.0.slots);
        let slot = slots.trailing_ones();
        if slot as usize >= THREADS {
            return None;
        }
        *slots |= 1 << slot;
        drop(slots);
        self.0.grace.register(slot as usize);
        Some(Worker::new(Arc::clone(&self.0), slot as usize, room))
    }

    /// Number of connections that it holds.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.0.capacity()
    }

    /// Returns whether there is no connection, so that no walk is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.accounts.active() == 0
    }

    /// Notes that a port's guest is new here: it may have connections that are not known.
    pub fn greet(&self, port: u16, now: Millis) {
        let born = self.0.born.get(usize::from(port));
        let both = born.into_iter().chain([&self.0.last_born]);
        both.for_each(|born| born.store(birth(now), Relaxed));
    }

    /// Returns whether the table, or the guest of one of the ports, is new since less than `grace`
    /// milliseconds. Then a segment from the middle of an unknown connection may be an answer.
    #[must_use]
    pub fn is_new(&self, ports: &[u16], grace: Millis, now: Millis) -> bool {
        self.0.is_new(ports, grace, now)
    }

    /// The hash of a tuple.
    #[inline]
    #[must_use]
    pub fn hash(&self, tuple: &Tuple) -> u64 {
        tuple.hash(&self.0.seed)
    }

    /// Forgets all connections of a zone, at once: they are met no more, and removed by walks.
    pub fn flush_zone(&self, zone: u16) {
        self.0.zones.at_hash(zone.into()).fetch_add(1, Relaxed);
    }

    /// Forgets all connections, at once.
    pub fn flush(&self) {
        self.0.zones.iter().for_each(|zone| {
            zone.fetch_add(1, Relaxed);
        });
    }

    /// Connections of an account.
    #[must_use]
    pub fn counts(&self, account: Account) -> Counts {
        self.0.accounts.counts(account)
    }

    /// Totals of a port.
    #[must_use]
    pub fn totals(&self, port: u16) -> PortTotals {
        self.0.accounts.port(port).totals()
    }

    /// Number of all connections.
    #[must_use]
    pub fn len(&self) -> u32 {
        let of = |port, kind| self.counts(Account { port, kind }).all;
        (0..MAX_PORTS as u16)
            .map(|port| of(port, Kind::Opened).wrapping_add(of(port, Kind::OpenedTo)))
            .fold(0, u32::wrapping_add)
    }

    /// Sets the limits of a port.
    pub fn set_limits(&self, port: u16, limits: PortLimits) {
        self.0.accounts.set_limits(port, limits);
    }

    /// Zeros totals and limits of a port, when its number is assigned anew.
    pub fn clear_port(&self, port: u16) {
        self.0.accounts.clear(port);
    }

    /// Counts invalid frames of a port.
    pub fn count_invalid(&self, port: u16, frames: u64) {
        self.0.accounts.count_invalid(port, frames);
    }
}

impl TableState {
    pub(crate) fn capacity(&self) -> u32 {
        self.links.entries.len() as u32
    }

    /// Returns whether the table or one of the ports is new; see [`Table::is_new`].
    pub(crate) fn is_new(&self, ports: &[u16], grace: Millis, now: Millis) -> bool {
        let table = self.header.get(Header::Birth as usize);
        let ports = ports
            .iter()
            .filter_map(|port| self.born.get(usize::from(*port)));
        let mut births = table.into_iter().chain(ports);
        births.any(|born| is_recent(born, grace, now))
    }

    /// Returns whether the table or any port is new.
    pub(crate) fn is_any_new(&self, grace: Millis, now: Millis) -> bool {
        is_recent(&self.last_born, grace, now) || self.is_new(&[], grace, now)
    }

    /// The generation of a zone.
    #[inline(always)]
    pub(crate) fn zone(&self, zone: u16) -> u32 {
        self.zones.at_hash(zone.into()).load(Relaxed)
    }

    /// Frees the slot of a thread.
    pub(crate) fn leave(&self, slot: usize) {
        *lock(&self.slots) &= !(1 << slot);
    }
}

/// The word of a birth: never zero.
pub(crate) fn birth(now: Millis) -> u64 {
    1 << 32 | u64::from(now)
}

/// Returns whether a birth was less than `grace` milliseconds ago. One that was not is forgotten,
/// because the clock wraps.
pub(crate) fn is_recent(born: &AtomicU64, grace: Millis, now: Millis) -> bool {
    let word = born.load(Relaxed);
    if word == 0 {
        return false;
    }
    let recent = now.wrapping_sub(word as u32) < grace;
    if !recent {
        born.store(0, Relaxed);
    }
    recent
}

/// Locks; no holder panics, and if one does, the content is as good as ever.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
