//! Entries return to all, and threads share one table.

use super::*;

#[test]
fn entries_are_used_again_and_again() {
    let mut world = World::new();
    let rounds = if cfg!(miri) { 100 } else { 20_000 };
    for number in 0..rounds {
        world.open(tuple(number), (1, None), 0).unwrap();
        let hash = world.table.hash(&tuple(number));
        world.batch(|batch| {
            let found = batch.any(&tuple(number), hash).unwrap();
            assert!(batch.remove(found.number, found.life, hash));
            assert!(!batch.remove(found.number, found.life, hash), "once");
        });
    }
    assert!(world.table.is_empty());
    // Low entries are used first, and each batch frees those of the one before the last.
    assert!(
        world.table.0.used.taken() < 64,
        "{}",
        world.table.0.used.taken()
    );
}

#[test]
fn a_thread_that_rests_has_given_all_back() {
    let mut world = World::new();
    let mut other = world.table.worker().unwrap();
    let settings = Settings::default();
    {
        let mut batch = other.begin(&settings, world.now);
        let opened = tuple(1);
        let new = new(&world.table, &opened, (1, None), 0, world.now);
        let Insertion::New(found) = batch.open(&new) else {
            panic!("room")
        };
        assert!(batch.remove(found.number, found.life, new.hash));
    }
    assert!(world.table.0.used.taken() > 0);
    other.rest();
    for _ in 0..4 {
        world.walk(|_| true);
    }
    assert_eq!(world.table.0.used.taken(), 0);
}

#[test]
fn a_batch_that_goes_on_holds_entries_back() {
    let mut world = World::new();
    world.open(tuple(1), (1, None), 0).unwrap();
    let mut other = world.table.worker().unwrap();
    let settings = Settings::default();
    let mut batch = other.begin(&settings, world.now);
    let hash = world.table.hash(&tuple(1));
    let found = batch.any(&tuple(1), hash).unwrap();
    world.walk(|_| false);
    for number in 2..500 {
        world.open(tuple(number), (1, None), 0).unwrap_or(false);
    }
    assert_eq!(found.entry.tuple(), tuple(1), "it is not filled anew");
    assert!(batch.any(&tuple(1), hash).is_none());
}

/// Threads open and remove the same few tuples; whatever they meet is the tuple's.
#[test]
fn threads_share_the_table() {
    let rounds = if cfg!(miri) { 100 } else { 20_000 };
    let table = Table::heap(LAYOUT, 5);
    std::thread::scope(|scope| {
        for thread in 0..3_u32 {
            let mut worker = table.worker().unwrap();
            let table = table.clone();
            scope.spawn(move || {
                let settings = Settings::default();
                let mut state = thread + 1;
                for _ in 0..rounds {
                    state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
                    // Each side of a connection opens it.
                    let (mut one, mut ports) = (tuple(state >> 16 & 31), (1, Some(2)));
                    if state >> 21 & 1 == 1 {
                        (one, ports) = (one.reversed(), (2, Some(1)));
                    }
                    let new = new(&table, &one, ports, 0, 5);
                    let mut batch = worker.begin(&settings, 5);
                    if state >> 30 == 0 {
                        if let Some(found) = batch.any(&one, new.hash) {
                            batch.remove(found.number, found.life, new.hash);
                        }
                    } else if let Insertion::New(found) | Insertion::Known(found) = batch.open(&new)
                    {
                        let tuple = found.entry.tuple();
                        assert!(tuple == one || tuple == one.reversed());
                    }
                }
            });
        }
    });
    // One entry for each tuple that is there, and accounts of exactly these.
    let mut walker = table.walker().unwrap();
    let mut seen = std::collections::HashSet::new();
    let settings = Settings::default();
    walker.walk(&mut Walk::default(), usize::MAX, (&settings, 5), |one| {
        let either = *one.tuple.words().min(one.tuple.reversed().words());
        assert!(seen.insert(either));
        true
    });
    assert_eq!(table.len() as usize, seen.len());
    assert!(seen.len() <= 32);
}
