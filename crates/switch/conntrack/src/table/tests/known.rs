//! The filter of connections: no frame of a known connection is ruled out, whatever happens.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use mapping::SharedWords;
use offload::connections::{SIZE, create};
use offload::{ConnectionFilter, Conversation};
use wire::hash::SplitMix64;

use crate::table::known::KnownConnections;

use super::*;

type Filter = ConnectionFilter<SharedWords<SIZE>>;

/// Returns the memory of a filter, and a reader of it.
fn filter() -> (OwnedFd, Filter) {
    let file = sys::file::fixed("filter", SIZE as u64).unwrap();
    let map = || SharedWords::map(file.as_fd(), true).unwrap();
    create(map());
    let filter = Filter::new(map());
    (file, filter)
}

fn may_know(filter: &Filter, tuple: &Tuple) -> bool {
    let conversation = |tuple: &Tuple| {
        let [_, src, src_high, dst, dst_high] = *tuple.words();
        let ends = [
            (src, src_high, tuple.src_port()),
            (dst, dst_high, tuple.dst_port()),
        ];
        Conversation::new(tuple.protocol(), ends)
    };
    let both = [*tuple, tuple.reversed()].map(|tuple| filter.may_know(&conversation(&tuple)));
    assert_eq!(both[0], both[1]);
    both[0]
}

impl World {
    /// Has a switch take the table over, with a filter.
    fn filtered(memory: Arc<Mapping>, file: &OwnedFd, now: u32) -> Self {
        let known = KnownConnections::begin(file.as_fd(), now.into()).unwrap();
        let (table, _) = Table::adopt_with(memory.clone(), known, LAYOUT, 99, now).unwrap();
        let worker = table.walker().unwrap();
        Self {
            table,
            memory,
            worker,
            settings: Settings::default(),
            now,
        }
    }

    /// Checks that each connection of the table may be known.
    fn check(&self, filter: &Filter) {
        for connection in self.all() {
            assert!(
                may_know(filter, &connection.tuple),
                "{:?}",
                connection.tuple
            );
        }
    }
}

#[test]
fn a_connection_is_counted_until_its_entry_is_free() {
    let (file, filter) = filter();
    let memory = Arc::new(Mapping::heap(LAYOUT.bytes()));
    let mut world = World::filtered(memory, &file, 1_000_000);
    let of = |number| may_know(&filter, &tuple(number));
    assert!(!of(1) && !of(2));
    world.open(tuple(1), (1, Some(2)), 0).unwrap();
    assert!(of(1) && !of(2));
    // Of two connections of one tuple one is left.
    world.open(tuple(1), (3, None), 0).unwrap();
    world.walk(|connection| connection.opener() == 1);
    for _ in 0..4 {
        world.walk(|_| true);
    }
    assert!(of(1));
    world.walk(|_| false);
    for _ in 0..4 {
        world.walk(|_| true);
    }
    assert!(!of(1), "its entry is free");
    // A flush is seen by the next walk, and what rests by the one after.
    world.open(tuple(2), (1, None), 0).unwrap();
    world.table.flush();
    assert!(of(2));
    world.walk(|_| true);
    world.worker.rest();
    for _ in 0..4 {
        world.walk(|_| true);
    }
    assert!(!of(2));
}

#[test]
fn a_successor_counts_what_it_takes_over_and_nothing_else() {
    let (file, filter) = filter();
    let memory = Arc::new(Mapping::heap(LAYOUT.bytes()));
    let mut world = World::filtered(memory.clone(), &file, 1_000_000);
    for number in 1..100 {
        world.open(tuple(number), (1, Some(2)), 0).unwrap();
    }
    world.walk(|connection| connection.tuple.src_port() > 50);
    // It dies with entries that are not free yet.
    std::mem::forget(world);
    let world = World::filtered(memory, &file, 1_000_100);
    world.check(&filter);
    for number in 1..100 {
        assert_eq!(may_know(&filter, &tuple(number)), number > 50, "{number}");
    }
    let other = sys::file::fixed("none", SIZE as u64).unwrap();
    assert!(KnownConnections::begin(other.as_fd(), 1).is_err());
}

/// Commits, removals, expiry, evictions, flushes, deaths and successors, in any order.
#[test]
fn no_known_connection_is_ruled_out() {
    for seed in 0..20 {
        let mut random = SplitMix64(seed);
        let (file, filter) = filter();
        let memory = Arc::new(Mapping::heap(LAYOUT.bytes()));
        let mut world = World::filtered(memory.clone(), &file, 1_000_000).guests([1, 2]);
        for _ in 0..300 {
            match random.below(12) {
                0 => {
                    world.walk(|connection| connection.tuple.src_port() % 3 != 0);
                }
                1 => world.now += random.below(60_000) as u32,
                2 => world.table.flush_zone(1 + random.below(2) as u16),
                3 => world.worker.rest(),
                4 => {
                    let now = world.now;
                    match random.below(2) {
                        0 => std::mem::forget(world),
                        _ => drop(world),
                    }
                    world = World::filtered(memory.clone(), &file, now).guests([1, 2]);
                }
                _ => {
                    for _ in 0..random.below(40) {
                        let number = random.below(600) as u32;
                        let ports = (1 + random.below(3) as u16, Some(4));
                        let _ = world.open(tuple(number), ports, random.below(2) as u16);
                    }
                }
            }
            world.check(&filter);
        }
        world.walk(|_| false);
        for _ in 0..4 {
            world.walk(|_| true);
        }
        let left = (0..600).filter(|number| may_know(&filter, &tuple(*number)));
        assert_eq!(left.collect::<Vec<_>>(), [0; 0]);
    }
}

/// Threads open and remove the same few tuples while others look.
#[test]
fn threads_rule_out_no_connection_of_theirs() {
    let (file, filter) = filter();
    let memory = Arc::new(Mapping::heap(LAYOUT.bytes()));
    let world = World::filtered(memory, &file, 1_000_000);
    let table = &world.table;
    std::thread::scope(|scope| {
        for thread in 0..3_u32 {
            let (mut worker, filter) = (table.worker().unwrap(), &filter);
            scope.spawn(move || {
                let settings = Settings::default();
                let mut random = SplitMix64(thread.into());
                for _ in 0..20_000 {
                    let of = tuple(random.below(8) as u32);
                    let hash = table.hash(&of);
                    let mut batch = worker.begin(&settings, 1_000_000);
                    let found = match batch.any(&of, hash) {
                        Some(found) => Some(found),
                        None => match batch.open(&new(table, &of, (1, None), 0, 1_000_000)) {
                            Insertion::New(found) | Insertion::Known(found) => Some(found),
                            Insertion::Refused(_) => None,
                        },
                    };
                    // What was found in a batch is not free before its end, removed or not.
                    assert!(found.is_none() || may_know(filter, &of), "{of:?}");
                    if let Some(found) = found
                        && random.below(2) == 0
                    {
                        batch.remove(found.number, found.life, hash);
                        assert!(may_know(filter, &of));
                    }
                }
            });
        }
    });
    let mut world = world;
    world.walk(|_| false);
    for _ in 0..4 {
        world.walk(|_| true);
    }
    let left = BTreeSet::from_iter((0..8).filter(|number| may_know(&filter, &tuple(*number))));
    assert!(left.is_empty(), "{left:?}");
}
