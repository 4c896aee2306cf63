//! The table in one thread and in several, on the heap.

mod accounts;
mod garbage;
#[cfg(not(miri))]
mod known;
mod reader;
mod reuse;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use mapping::Mapping;

use crate::progress::{Progress, Side};
use crate::timeouts::Settings;
use crate::tuple::Tuple;

use super::account::{Account, Counts, Kind};
use super::content::Content;
use super::links::EntryRef;
use super::worker::{Batch, Insertion, Opening};
use super::*;

/// A table, its memory and a thread.
struct World {
    table: Table,
    memory: Arc<Mapping>,
    worker: Worker,
    settings: Settings,
    now: u32,
}

const LAYOUT: Layout = Layout::new(MIN_CAPACITY);
const ALL_PORTS: u16 = MAX_PORTS as u16;

impl World {
    fn new() -> Self {
        Self::over(Arc::new(Mapping::heap(LAYOUT.bytes())), 1_000_000).0
    }

    fn over(memory: Arc<Mapping>, now: u32) -> (Self, Adoption) {
        let (table, adopted) = Table::adopt(memory.clone(), LAYOUT, 99, now).unwrap();
        let worker = table.walker().unwrap();
        let world = Self {
            table,
            memory,
            worker,
            settings: Settings::default(),
            now,
        };
        (world, adopted)
    }

    fn guests(self, ports: impl IntoIterator<Item = u16>) -> Self {
        for port in ports {
            let limits = PortLimits {
                guest: true,
                connections: None,
            };
            self.table.set_limits(port, limits);
        }
        self
    }

    fn batch<T>(&mut self, run: impl FnOnce(&mut Batch<'_>) -> T) -> T {
        run(&mut self.worker.begin(&self.settings, self.now))
    }

    /// Opens a connection in a batch of its own.
    fn open(
        &mut self,
        tuple: Tuple,
        ports: (u16, Option<u16>),
        bits: u16,
    ) -> Result<bool, Refusal> {
        let new = new(&self.table, &tuple, ports, bits, self.now);
        self.batch(|batch| match batch.open(&new) {
            Insertion::New(_) => Ok(true),
            Insertion::Known(_) => Ok(false),
            Insertion::Refused(refused) => Err(refused),
        })
    }

    fn find(&mut self, tuple: Tuple) -> Option<u32> {
        let hash = self.table.hash(&tuple);
        self.batch(|batch| batch.any(&tuple, hash).map(|found| found.number))
    }

    fn walk(&mut self, keep: impl FnMut(&Connection) -> bool) -> u32 {
        let (mut walk, mut keep, mut removed) = (Walk::default(), keep, 0);
        loop {
            let time = (&self.settings, self.now);
            let part = self.worker.walk(&mut walk, 100, time, &mut keep);
            removed += part.removed;
            if part.finished {
                return removed;
            }
        }
    }

    /// All connections, as another process sees them.
    fn all(&self) -> Vec<Connection> {
        let reader = Reader::over(self.memory.clone(), LAYOUT).unwrap();
        let (mut walk, mut all) = (Walk::default(), Vec::new());
        loop {
            let time = (&self.settings, self.now);
            let part = reader.read(&mut walk, 50, time, |_, connection| all.push(*connection));
            if part.finished {
                return all;
            }
        }
    }

    /// Checks that the accounts are those of all connections.
    fn check_accounts(&mut self) {
        // What is over or flushed is counted until it is removed.
        self.walk(|_| true);
        let mut expected: BTreeMap<Account, Counts> = BTreeMap::new();
        for connection in self.all() {
            let counts = expected.entry(connection.ends.account()).or_default();
            counts.all += 1;
            counts.unreplied += u32::from(!connection.progress.is_replied());
        }
        for port in 0..ALL_PORTS {
            for kind in [Kind::Opened, Kind::OpenedTo] {
                let account = Account { port, kind };
                let expected = expected.get(&account).copied().unwrap_or_default();
                assert_eq!(self.table.counts(account), expected, "{account}");
            }
        }
        assert_eq!(self.table.is_empty(), expected.is_empty());
        assert_eq!(self.table.0.accounts.active() as usize, expected.len());
    }
}

impl<'a> Batch<'a> {
    /// A connection of a tuple, whichever ports it has.
    fn any(&mut self, tuple: &Tuple, hash: u64) -> Option<EntryRef<'a>> {
        self.find_where(tuple, hash, |_| true)
    }
}

fn new<'a>(
    table: &Table,
    tuple: &'a Tuple,
    ports: (u16, Option<u16>),
    bits: u16,
    now: u32,
) -> Opening<'a> {
    Opening {
        tuple,
        hash: table.hash(tuple),
        ports,
        stations: Default::default(),
        progress: Progress::from_bits(bits),
        sides: [Side::new(now); 2],
        created: now,
        rule: Rule {
            epoch: 7,
            number: 11,
            mark: 0x55,
        },
        traffic: (0, 0),
    }
}

/// The tuple of a number, of IPv4 or IPv6, in zone 1 or 2.
fn tuple(number: u32) -> Tuple {
    let last = number.to_be_bytes();
    let (src, dst): (IpAddr, IpAddr) = if number.is_multiple_of(3) {
        let address = |n| IpAddr::from([0xfd00, 0, 0, n, 0, 0, 0, (number >> 16) as u16]);
        (address(1), address(2))
    } else {
        let [_, a, ..] = last;
        (IpAddr::from([10, 1, 0, a]), IpAddr::from([10, 2, 0, a]))
    };
    let zone = 1 + u16::from(number.is_multiple_of(2));
    Tuple::new(zone, 17, (src, number as u16), (dst, 53))
}

/// Notes that a connection was answered, and is assured if so.
fn answer(batch: &Batch<'_>, found: &EntryRef<'_>, assured: bool) {
    let bits = Progress::REPLIED | if assured { Progress::ASSURED } else { 0 };
    let content = Content::of(found.life);
    let after = Content::new(content.progress().with(bits), content.epoch());
    assert!(batch.advance(found, after).is_ok());
}

#[test]
fn what_is_opened_is_found_in_both_directions() {
    let mut world = World::new();
    for number in 0..200 {
        assert_eq!(world.find(tuple(number)), None);
        let ports = (1, Some(2));
        assert_eq!(
            world.open(tuple(number), ports, Progress::REPLIED),
            Ok(true)
        );
        assert_eq!(
            world.open(tuple(number).reversed(), (2, None), 0),
            Ok(false)
        );
    }
    for number in 0..200 {
        let found = world.find(tuple(number));
        assert!(found.is_some());
        assert_eq!(world.find(tuple(number).reversed()), found);
    }
    world.check_accounts();
    let all = world.all();
    assert_eq!(all.len(), 200);
    let one = all.iter().find(|one| one.tuple == tuple(9)).unwrap();
    assert_eq!((one.opener(), one.far()), (1, Some(2)));
    assert_eq!((one.epoch, one.rule, one.mark()), (7, 11, 0x55));
    assert_eq!((one.opened, one.used(world.now)), (world.now, world.now));
}

#[test]
fn what_is_over_is_met_no_more_and_a_walk_removes_it() {
    let mut world = World::new();
    for number in 0..100 {
        world
            .open(tuple(number), (1, None), Progress::REPLIED)
            .unwrap();
    }
    world.now += 20_000;
    for number in 100..150 {
        world.open(tuple(number), (1, None), 0).unwrap();
    }
    world.now += 10_001;
    assert_eq!(world.find(tuple(5)), None, "and it is removed at once");
    assert!(world.find(tuple(105)).is_some());
    assert_eq!(world.open(tuple(6), (1, None), 0), Ok(true), "anew");
    assert_eq!(world.walk(|_| true), 98);
    assert_eq!(world.table.len(), 51);
    world.check_accounts();
    world.now = world.now.wrapping_add(1 << 30);
    world.walk(|_| true);
    assert!(world.table.is_empty());
}

#[test]
fn a_flush_of_a_zone_is_one_store_and_of_all_a_few() {
    let mut world = World::new();
    for number in 0..100 {
        world
            .open(tuple(number), (1, None), Progress::REPLIED)
            .unwrap();
    }
    world.table.flush_zone(2);
    for number in 0..100 {
        assert_eq!(world.find(tuple(number)).is_some(), number % 2 == 1);
    }
    assert_eq!(world.all().len(), 50);
    assert_eq!(world.open(tuple(0), (1, None), 0), Ok(true));
    world.table.flush();
    assert!(world.all().is_empty());
    assert_eq!(world.walk(|_| true), 51);
    assert!(world.table.is_empty());
}

#[test]
fn a_port_is_flushed_in_parts() {
    let mut world = World::new();
    for number in 0..300 {
        let ports = (number as u16 % 3, Some(3 + number as u16 % 2));
        world.open(tuple(number), ports, Progress::REPLIED).unwrap();
    }
    let removed = world.walk(|one| one.opener() != 2 && one.far() != Some(3));
    assert_eq!(removed, 100 + 100);
    assert_eq!(world.all().len(), 100);
    world.check_accounts();
}

#[test]
fn a_station_moves_with_its_account() {
    let mut world = World::new().guests([1, 2, 3]);
    for (number, ports) in [(0, (1, Some(2))), (1, (9, Some(2)))] {
        let tuple = tuple(number);
        world.open(tuple, ports, 0).unwrap();
        let hash = world.table.hash(&tuple);
        world.batch(|batch| {
            let found = batch.any(&tuple, hash).unwrap();
            answer(batch, &found, true);
            let before = ends::Ends(found.entry.ends.load(std::sync::atomic::Ordering::Relaxed));
            let after = before.with_far(3);
            assert!(batch.set_ends(&found, before, after));
            assert!(
                !batch.set_ends(&found, before, after),
                "it is there already"
            );
        });
    }
    world.check_accounts();
    let kind = Kind::OpenedTo;
    assert_eq!(world.table.counts(Account { port: 2, kind }).all, 0);
    assert_eq!(world.table.counts(Account { port: 3, kind }).all, 1);
    world.walk(|_| false);
    world.check_accounts();
}

#[test]
fn no_thread_beyond_the_slots() {
    let table = Table::heap(LAYOUT, 1);
    let workers: Vec<_> = std::iter::from_fn(|| table.worker()).collect();
    assert_eq!(workers.len(), 128);
    drop(workers);
    assert!(table.worker().is_some());
}

/// The supervisor's file in two processes: the switch writes, control maps it read-only.
#[cfg(not(miri))]
#[test]
fn a_file_is_read_by_another_process() {
    let file = sys::file::fixed("connections", LAYOUT.bytes()).unwrap();
    let (table, adopted) = Table::map(&file, LAYOUT, 7, 100).unwrap();
    assert!(adopted.is_new);
    let mut worker = table.worker().unwrap();
    let settings = Settings::default();
    let opened = tuple(1);
    let new = new(&table, &opened, (1, Some(2)), 0, 100);
    assert!(matches!(
        worker.begin(&settings, 100).open(&new),
        Insertion::New(_)
    ));
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let readable = std::fs::File::open(path).unwrap().into();
    let reader = Reader::map(&readable, LAYOUT).unwrap();
    let mut seen = Vec::new();
    let part = reader.read(&mut Walk::default(), 100, (&settings, 100), |_, one| {
        seen.push(one.tuple)
    });
    assert!(part.finished && seen == [tuple(1)]);
    let account = Account {
        port: 1,
        kind: Kind::Opened,
    };
    assert_eq!(reader.counts(account), table.counts(account));
    assert_eq!(reader.totals(1).opened, 1);
    let larger = Layout::new(2 * MIN_CAPACITY);
    assert!(Reader::map(&readable, larger).is_err() && Table::map(&file, larger, 7, 0).is_err());
    drop((worker, table));
    let (table, adopted) = Table::map(&file, LAYOUT, 8, 200).unwrap();
    assert_eq!((adopted.connections, table.len()), (1, 1));
}
