//! Every interleaving of threads that look up, insert, remove and reuse entries, by loom.
//!
//! Words, entries, index, links and epochs are the crate's own, with loom's atomics; the mapping
//! is left out, and a set has two ways.

use conntrack::state::Direction;
use conntrack::{progress, state, tuple};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use table::account::Kind;
use table::ends::Ends;
use table::entry::{Entry, SideLine};
use table::grace::Grace;
use table::index::Index;
use table::links::{EntryRef, Links};
use table::memory::{LINE, Line, Part};
use table::sync::{AtomicU32, AtomicU64, Ordering};
use table::word::{IndexWord, Life};
use tuple::Tuple;

#[path = "../src/table"]
mod table {
    #![allow(dead_code, unreachable_pub)] // each file is here for what is modelled of it

    pub(crate) mod sync {
        pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    }

    pub(crate) mod layout {
        pub(crate) const MAX_PORTS: usize = 1024;
    }

    pub(crate) mod memory {
        use super::sync::AtomicU64;

        pub(crate) const LINE: usize = 2;

        #[derive(Debug)]
        pub(crate) struct Line(pub(crate) [AtomicU64; LINE]);

        #[derive(Debug)]
        pub(crate) struct Part<T>(pub(crate) Vec<T>);

        impl<T> Part<T> {
            pub(crate) fn len(&self) -> usize {
                self.0.len()
            }

            pub(crate) fn get(&self, at: usize) -> Option<&T> {
                self.0.get(at)
            }

            pub(crate) fn at_hash(&self, hash: u64) -> &T {
                &self.0[hash as usize & (self.0.len() - 1)]
            }

            pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
                self.0.iter()
            }
        }

        pub(crate) fn prefetch<T>(_: &T) {}
    }

    pub(crate) mod account;
    pub(crate) mod ends;
    pub(crate) mod entry;
    pub(crate) mod grace;
    pub(crate) mod index;
    pub(crate) mod links;
    pub(crate) mod word;
}

/// A hash that lies in both sets.
const HASH: u64 = 0x5a5a_0000_0000_0000;

fn model(run: impl Fn() + Sync + Send + 'static) {
    model_within(4, run);
}

/// With this number of switches between threads that do not wait.
fn model_within(switches: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(run);
}

fn word() -> AtomicU64 {
    AtomicU64::new(0)
}

fn side() -> SideLine {
    SideLine {
        words: std::array::from_fn(|_| AtomicU32::new(0)),
        note: AtomicU32::new(0),
        frames: word(),
        bytes: word(),
    }
}

fn entry() -> Entry {
    Entry {
        life: word(),
        tuple: std::array::from_fn(|_| word()),
        ends: word(),
        birth: word(),
        original: side(),
        reply: side(),
    }
}

fn links(entries: usize) -> Links {
    let line = || Line(std::array::from_fn(|_| word()));
    Links {
        index: Index::new(Part((0..2).map(|_| line()).collect())),
        entries: Part((0..entries).map(|_| entry()).collect()),
    }
}

fn tuple(port: u16) -> Tuple {
    let end = |last: u8, port| (std::net::IpAddr::from([10, 0, 0, last]), port);
    Tuple::new(1, 17, end(1, port), end(2, 53))
}

/// The port of a tuple's source.
fn port(tuple: &Tuple) -> u16 {
    if tuple.src_port() == 53 { 2 } else { 1 }
}

/// Publishes entry `number` for a tuple and settles it.
fn insert(links: &Links, number: u32, tuple: &Tuple) -> Option<Life> {
    insert_from(links, number, tuple, port(tuple))
}

/// The same of a frame from a port.
fn insert_from(links: &Links, number: u32, tuple: &Tuple, port: u16) -> Option<Life> {
    let entry = &links.entries.0[number as usize];
    entry.set_tuple(tuple);
    let ends = Ends::new(port, None, Kind::Opened, 0);
    entry.ends.store(ends.0, Ordering::Relaxed);
    let word = links.publish(number, 1, HASH).expect("room");
    links.settle(word, (tuple, HASH), port)
}

fn find_from<'a>(links: &'a Links, tuple: &Tuple, port: u16) -> Option<EntryRef<'a>> {
    let mut all = links.find_all(tuple, HASH);
    all.find(|found| found.accepts(port))
}

fn find<'a>(links: &'a Links, tuple: &Tuple) -> Option<EntryRef<'a>> {
    find_from(links, tuple, port(tuple))
}

/// Both directions of a connection are inserted by two threads: one of them wins, and a look-up
/// finds that one, in both directions.
#[test]
fn of_two_inserts_one_wins() {
    for numbers in [[0, 1], [1, 0]] {
        model(move || {
            let links = Arc::new(links(2));
            let first = tuple(1000);
            let other = {
                let links = Arc::clone(&links);
                thread::spawn(move || insert(&links, numbers[1], &first.reversed()).is_some())
            };
            let here = insert(&links, numbers[0], &first).is_some();
            let there = other.join().unwrap();
            assert!(here != there, "{here} and {there}");
            let winner = numbers[usize::from(there)];
            for tuple in [first, first.reversed()] {
                assert_eq!(find(&links, &tuple).unwrap().number, winner);
            }
            assert_eq!(links.index.candidates(HASH).count(), 1);
        });
    }
}

/// A third port that uses the tuple has a connection of its own, at the same time.
#[test]
fn another_port_has_another_connection() {
    model(|| {
        let links = Arc::new(links(2));
        let one = tuple(1000);
        let other = {
            let links = Arc::clone(&links);
            thread::spawn(move || insert_from(&links, 0, &one, 3).is_some())
        };
        assert!(insert(&links, 1, &one).is_some());
        assert!(other.join().unwrap());
        let of = |port| find_from(&links, &one, port).unwrap();
        assert_eq!((of(3).number, of(1).number), (0, 1));
        assert!(of(3).life.is_second() || of(1).life.is_second());
    });
}

/// The same where the two take ways that neither looks at before: the first one is freed
/// meanwhile. Without the fence between publication and search, both would win.
#[test]
fn of_two_inserts_in_other_ways_one_wins() {
    model(|| {
        let links = Arc::new(links(3));
        let (one, gone) = (tuple(1000), tuple(2000));
        let life = insert(&links, 2, &gone).unwrap();
        let other = {
            let links = Arc::clone(&links);
            thread::spawn(move || insert(&links, 1, &one).is_some())
        };
        links.unlink(2, life, HASH).unwrap();
        let here = insert(&links, 0, &one).is_some();
        assert!(here != other.join().unwrap());
        assert_eq!(links.index.candidates(HASH).count(), 1);
    });
}

/// Three of them: the smallest number may end both others, and not at the same time.
#[test]
fn of_three_inserts_one_wins() {
    model_within(1, || {
        let links = Arc::new(links(3));
        let all = tuple(1000);
        let others: Vec<_> = [2, 0]
            .into_iter()
            .map(|number| {
                let links = Arc::clone(&links);
                thread::spawn(move || insert(&links, number, &all).is_some())
            })
            .collect();
        let mut won = usize::from(insert(&links, 1, &all).is_some());
        for other in others {
            won += usize::from(other.join().unwrap());
        }
        assert_eq!(won, 1);
        assert!(find(&links, &all).is_some());
    });
}

/// An insert beside the removal of a confirmed entry of the tuple: the insert wins, or it has met
/// the other before its end and is repeated by its caller.
#[test]
fn an_insert_beside_a_removal_wins_or_has_lost_to_it() {
    model(|| {
        let links = Arc::new(links(2));
        let one = tuple(1000);
        let life = insert(&links, 0, &one).unwrap();
        let other = {
            let links = Arc::clone(&links);
            thread::spawn(move || assert!(links.unlink(0, life, HASH).is_some()))
        };
        let won = insert(&links, 1, &one).is_some();
        other.join().unwrap();
        let found = find(&links, &one).map(|found| found.number);
        assert_eq!(found, won.then_some(1));
        assert_eq!(links.index.candidates(HASH).count(), usize::from(won));
    });
}

/// Lines that a thread writes while it serves a frame; loom reports another's access beside it.
struct WrittenLines(UnsafeCell<u16>);

// SAFETY: these tests prove that one thread at a time has the entry.
unsafe impl Sync for WrittenLines {}
// SAFETY: as above.
unsafe impl Send for WrittenLines {}

/// A thread that has found an entry writes to it until its batch ends; meanwhile another unlinks
/// it, and fills it for another connection as soon as that is allowed. Neither writes beside the
/// other, and no look-up finds a foreign connection.
#[test]
fn an_entry_is_reused_after_the_batches_that_found_it() {
    model(|| {
        let links = Arc::new(links(1));
        let grace = Arc::new(Grace::new(2));
        let lines = Arc::new(WrittenLines(UnsafeCell::new(1000)));
        let (old, new) = (tuple(1000), tuple(2000));
        let life = insert(&links, 0, &old).unwrap();
        let reader = {
            let (links, grace, lines) = (links.clone(), grace.clone(), lines.clone());
            thread::spawn(move || {
                grace.register(0);
                grace.begin(0);
                for (tuple, port) in [(old, 1000), (new, 2000)] {
                    if find(&links, &tuple).is_some() {
                        // SAFETY: what this test proves.
                        lines
                            .0
                            .with_mut(|owner| assert_eq!(unsafe { *owner }, port));
                    }
                }
                grace.end(0);
            })
        };
        grace.begin(1);
        assert!(links.unlink(0, life, HASH).is_some());
        let stamp = grace.stamp();
        grace.end(1);
        for _ in 0..3 {
            if grace.over() >= stamp {
                grace.begin(1);
                // SAFETY: what this test proves.
                lines.0.with_mut(|owner| unsafe { *owner = 2000 });
                assert!(insert(&links, 0, &new).is_some());
                grace.end(1);
                break;
            }
        }
        reader.join().unwrap();
    });
}

/// Two threads change a state word as two frames do, and a third ends the entry: no change is
/// lost, none is made to the next generation, and the end is one thread's.
#[test]
fn a_state_word_has_every_change_or_its_end() {
    model(|| {
        let links = Arc::new(links(1));
        let one = tuple(1000);
        let life = insert(&links, 0, &one).unwrap();
        let change = |bit: u64| {
            let links = Arc::clone(&links);
            move || {
                let mut life = life;
                let cell = &links.entries.0[0].life;
                loop {
                    let next = life.with_content(life.content() | bit);
                    let done =
                        cell.compare_exchange(life.0, next.0, Ordering::AcqRel, Ordering::Acquire);
                    match done {
                        Ok(_) => return true,
                        Err(now) if Life(now).generation() == life.generation() => {
                            life = Life(now);
                        }
                        Err(_) => return false,
                    }
                }
            }
        };
        let (two, four) = (thread::spawn(change(2)), thread::spawn(change(4)));
        let last = links.unlink(0, life, HASH).unwrap();
        let changed = [(two.join().unwrap(), 2), (four.join().unwrap(), 4)];
        let all = changed.iter().filter(|(done, _)| *done).map(|(_, bit)| bit);
        assert_eq!(last.content(), all.fold(1, |all, bit| all | bit));
        let now = Life(links.entries.0[0].life.load(Ordering::Acquire));
        assert_eq!(now, Life::dead(life.next_generation()));
        assert!(find(&links, &one).is_none());
    });
}

/// A frame of the other direction may be served while its entry is unlinked: it is found in its
/// own direction or not at all.
#[test]
fn a_look_up_has_its_own_connection_or_none() {
    model(|| {
        let links = Arc::new(links(2));
        let (one, two) = (tuple(1000), tuple(2000));
        let life = insert(&links, 0, &one).unwrap();
        let other = {
            let links = Arc::clone(&links);
            thread::spawn(move || {
                links.unlink(0, life, HASH).unwrap();
                insert(&links, 1, &two).unwrap();
            })
        };
        if let Some(found) = find(&links, &one.reversed()) {
            assert_eq!((found.number, found.direction), (0, Direction::Reply));
        }
        if let Some(found) = find(&links, &two) {
            assert_eq!((found.number, found.direction), (1, Direction::Original));
        }
        other.join().unwrap();
        assert!(find(&links, &two).is_some());
    });
}

/// Sets that are full refuse a word, and lose none.
#[test]
fn full_sets_refuse() {
    model(|| {
        let links = links(2 * LINE + 1);
        for number in 0..2 * LINE as u16 {
            assert!(insert(&links, number.into(), &tuple(number)).is_some());
        }
        let last = 2 * LINE as u32;
        links.entries.0[last as usize].set_tuple(&tuple(99));
        assert_eq!(links.publish(last, 1, HASH), None::<IndexWord>);
        for number in 0..2 * LINE as u16 {
            assert!(find(&links, &tuple(number)).is_some());
        }
    });
}
