//! What a dead switch has left.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::*;
#[cfg(not(miri))]
use proptest::prelude::*;

/// The words of a memory.
fn words(memory: &Mapping) -> &[AtomicU64] {
    // SAFETY: the heap memory is page-aligned, its words are used as atomics alone, and it lives
    // as long as the reference.
    unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), memory.len() / 8) }
}

#[test]
fn all_connections_survive_a_death() {
    let mut world = World::new().guests([1]);
    for number in 0..150 {
        let bits = if number % 2 == 0 {
            0
        } else {
            Progress::REPLIED
        };
        let ports = (1 + number as u16 % 3, Some(7));
        world.open(tuple(number), ports, bits).unwrap();
    }
    let before = world.all();
    let taken = world.memory.clone();
    let (mut after, adopted) = World::over(taken, world.now + 100);
    let expected = Adoption {
        is_new: false,
        connections: 150,
        dropped: 0,
    };
    assert_eq!(adopted, expected);
    assert_eq!(after.all(), before);
    after.check_accounts();
    assert!((0..150).all(|number| after.find(tuple(number).reversed()).is_some()));
    assert_eq!(after.table.0.used.taken(), 150);
}

#[test]
fn what_was_pending_or_ends_is_dropped() {
    let mut world = World::new();
    let settings = Settings::default();
    for number in 0..4 {
        world.open(tuple(number), (1, None), 0).unwrap();
    }
    let hash = world.table.hash(&tuple(9));
    {
        // Published and not settled.
        let mut batch = world.worker.begin(&settings, world.now);
        batch.stock.claim(1, &batch.shared.used);
        let number = batch.stock.take().unwrap();
        let entry = batch.shared.links.entries.get(number as usize).unwrap();
        entry.set_tuple(&tuple(9));
        assert!(batch.shared.links.publish(number, 0, hash).is_some());
        // Ended, with its word still there.
        let found = batch.any(&tuple(0), world.table.hash(&tuple(0))).unwrap();
        let dead = word::Life::dead(found.life.next_generation());
        found.entry.life.store(dead.0, Relaxed);
    }
    let (mut after, adopted) = World::over(world.memory.clone(), world.now);
    assert_eq!((adopted.connections, adopted.dropped), (3, 2));
    assert_eq!(after.find(tuple(9)), None);
    assert_eq!(after.open(tuple(9), (1, None), 0), Ok(true));
    after.check_accounts();
}

#[test]
fn another_layout_or_capacity_makes_an_empty_table() {
    let mut world = World::new();
    world.open(tuple(1), (1, None), 0).unwrap();
    for word in 0..3 {
        let memory = world.memory.clone();
        words(&memory)[word].fetch_add(1, Relaxed);
        assert!(Reader::over(memory.clone(), LAYOUT).is_err());
        let (mut after, adopted) = World::over(memory, 77);
        assert!(adopted.is_new && after.all().is_empty());
        assert!(after.table.is_new(&[], 1000, 1076) && !after.table.is_new(&[], 1000, 1077));
        assert_eq!(after.open(tuple(1), (1, None), 0), Ok(true));
        after.check_accounts();
    }
    let short = Arc::new(Mapping::heap(LAYOUT.bytes() - 64));
    assert!(Table::adopt(short.clone(), LAYOUT, 1, 0).is_err());
    assert!(Reader::over(short, LAYOUT).is_err());
}

#[test]
fn words_that_lead_to_one_entry_count_once() {
    let mut world = World::new();
    for number in 0..50 {
        world.open(tuple(number), (1, None), 0).unwrap();
    }
    let index = world.table.0.links.index.sets();
    // Each word twice: in the free ways of its own set and of the next.
    let sets: Vec<_> = index.collect();
    for (at, set) in sets.iter().enumerate() {
        for way in 0..4 {
            let word = set.0[way].load(Relaxed);
            set.0[7 - way].store(word, Relaxed);
            sets[(at + 1) % sets.len()].0[7 - way].store(word, Relaxed);
        }
    }
    let (mut after, adopted) = World::over(world.memory.clone(), world.now);
    assert_eq!(adopted.connections, 50);
    assert!(adopted.dropped >= 50);
    after.check_accounts();
}

// It writes whole words where the table has halves, which Miri does not know.
#[cfg(not(miri))]
proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever the words are, the table comes up, finds the right connection or none, keeps its
    /// accounts, and works.
    #[test]
    fn garbage_is_no_connection(
        changes in prop::collection::vec((0..usize::MAX, any::<u64>(), 0..4_u8), 1..400),
        now: u32,
    ) {
        let mut world = World::new().guests([1, 2]);
        for number in 0..200 {
            let ports = (1 + number as u16 % 4, Some(number as u16 % 9));
            world.open(tuple(number), ports, (number as u16) << 8).unwrap();
        }
        let (from, used) = (LAYOUT.index() / 8, LAYOUT.used() / 8);
        let all = words(&world.memory);
        for (at, value, kind) in &changes {
            // Most changes hit the index and the entries in use.
            let place = match kind {
                0 => 4 + at % (all.len() - 4),
                1 => from + at % (LAYOUT.sets() * 8),
                2 => used + at % 16,
                _ => LAYOUT.entries() / 8 + at % (200 * 24),
            };
            let value = match value % 3 {
                0 => *value,
                1 => all[place].load(Relaxed) ^ 1 << (value >> 32 & 63),
                _ => all[*at % all.len()].load(Relaxed),
            };
            all[place].store(value, Relaxed);
        }
        // Another process looks at it, too.
        let reader = Reader::over(world.memory.clone(), LAYOUT).unwrap();
        let time = (&world.settings, now);
        let mut seen = 0;
        let part = reader.read(&mut Walk::default(), usize::MAX, time, |_, _| seen += 1);
        prop_assert!(part.finished);
        prop_assert!(seen <= LAYOUT.capacity());
        let (mut after, adopted) = World::over(world.memory.clone(), now);
        prop_assert!(adopted.connections <= 400);
        after.check_accounts();
        for number in 0..300 {
            let one = tuple(number);
            let hash = after.table.hash(&one);
            let found = after.batch(|batch| batch.any(&one, hash).map(|f| f.entry.tuple()));
            prop_assert!(found.is_none_or(|found| found == one || found.reversed() == one));
        }
        for number in 1000..1040 {
            prop_assert_eq!(after.open(tuple(number), (3, None), 0), Ok(true));
            prop_assert!(after.find(tuple(number)).is_some());
        }
        after.walk(|_| false);
        after.check_accounts();
        prop_assert!(after.table.is_empty());
    }
}
