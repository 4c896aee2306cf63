//! The view of another process: names of connections, and bounds. Its judgements are compared in
//! `tracker/pair.rs`.

use super::*;

/// All connections with their names.
fn named(world: &World) -> Vec<(ConnectionId, Tuple)> {
    let reader = Reader::over(world.memory.clone(), LAYOUT).unwrap();
    let (mut walk, mut all) = (Walk::default(), Vec::new());
    let time = (&world.settings, world.now);
    while !reader
        .read(&mut walk, 10, time, |name, one| all.push((name, one.tuple)))
        .finished
    {}
    all
}

#[test]
fn connections_are_removed_by_their_names() {
    let mut world = World::new();
    let bits = Progress::REPLIED;
    for number in 0..100 {
        world.open(tuple(number), (1, Some(2)), bits).unwrap();
    }
    let all = named(&world);
    let half: Vec<_> = all[..50].iter().map(|(name, _)| *name).collect();
    assert!(
        half.iter()
            .all(|name| ConnectionId::from_bits(name.bits()) == *name)
    );
    let remove = |world: &mut World, names: &[ConnectionId]| {
        let time = (&world.settings, world.now);
        world.worker.remove(names.iter().copied(), time)
    };
    assert_eq!(remove(&mut world, &half), 50);
    assert_eq!(named(&world), all[50..]);
    world.check_accounts();
    // Others have their entries, and no names that exist.
    for number in 200..300 {
        world.open(tuple(number), (1, Some(2)), bits).unwrap();
    }
    let garbage = [0, u64::MAX, 1 << 22].map(ConnectionId::from_bits);
    assert_eq!(remove(&mut world, &half), 50);
    assert_eq!(remove(&mut world, &garbage), 3);
    assert_eq!(named(&world).len(), 150);
}

#[test]
fn a_removal_has_the_room_of_a_batch_and_goes_on_later() {
    let mut world = World::new();
    for number in 0..600 {
        let ports = (1 + number as u16 % 3, Some(9));
        world.open(tuple(number), ports, Progress::REPLIED).unwrap();
    }
    let mut names: Vec<_> = named(&world).into_iter().map(|(name, _)| name).collect();
    let mut thread = world.table.worker().unwrap();
    let mut turns = 0;
    while !names.is_empty() {
        let time = (&world.settings, world.now);
        let done = thread.remove(names.iter().copied(), time);
        names.drain(..done);
        turns += 1;
        assert!(turns < 100);
    }
    assert!(turns > 1 && named(&world).is_empty());
}

#[test]
fn the_reader_has_the_bounds_of_the_switch() {
    let mut world = World::new().guests([1, 2]);
    let limits = PortLimits {
        guest: true,
        connections: Some(7),
    };
    world.table.set_limits(2, limits);
    let reader = Reader::over(world.memory.clone(), LAYOUT).unwrap();
    for number in 0..7 {
        world
            .open(
                tuple(number),
                (2, None),
                Progress::REPLIED | Progress::ASSURED,
            )
            .unwrap();
    }
    let occupancy = reader.occupancy();
    let expected = Occupancy {
        capacity: 1024,
        taken: 7,
        active: 1,
    };
    assert_eq!((occupancy, reader.capacity()), (expected, 1024));
    let (configured, unlimited) = (reader.configured(2), reader.configured(1));
    assert_eq!(occupancy.limit(configured, 7), (LimitKind::Configured, 7));
    assert_eq!(occupancy.limit(unlimited, 0), (LimitKind::Share, 256));
    assert_eq!(occupancy.unreplied(), 64);
    let full = Occupancy {
        taken: 1024,
        active: 3,
        ..occupancy
    };
    assert_eq!(full.limit(unlimited, 5), (LimitKind::Share, 896 / 3));
    assert_eq!(full.limit(unlimited, 0), (LimitKind::Share, 896 / 4));
    world.walk(|_| true);
    assert_eq!(reader.now(), world.now);
}
