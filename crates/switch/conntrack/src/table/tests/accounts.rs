//! Accounts, limits, and the connections that make room.

use super::*;
use proptest::prelude::*;

const ASSURED: u16 = Progress::REPLIED | Progress::ASSURED;

fn account(port: u16, kind: Kind) -> Account {
    Account { port, kind }
}

#[test]
fn a_connection_is_charged_to_the_guest_that_opens_it_else_to_the_one_it_is_for() {
    let mut world = World::new().guests([1, 2]);
    let cases = [
        ((1, Some(2)), account(1, Kind::Opened)),
        ((1, Some(9)), account(1, Kind::Opened)),
        ((9, Some(2)), account(2, Kind::OpenedTo)),
        ((9, Some(8)), account(9, Kind::Opened)),
        ((8, None), account(8, Kind::Opened)),
    ];
    for (number, (ports, account)) in cases.into_iter().enumerate() {
        let before = world.table.counts(account);
        world.open(tuple(number as u32), ports, 0).unwrap();
        let after = world.table.counts(account);
        assert_eq!(
            (after.all, after.unreplied),
            (before.all + 1, before.unreplied + 1)
        );
    }
    world.check_accounts();
}

#[test]
fn a_flood_ends_its_own_unreplied_connections() {
    let mut world = World::new().guests([1, 2]);
    for number in 0..5000 {
        assert_eq!(world.open(tuple(number), (1, Some(2)), 0), Ok(true));
        if number == 10 {
            for known in 10_000..10_100 {
                world.open(tuple(known), (2, Some(1)), ASSURED).unwrap();
            }
        }
    }
    let counts = world.table.counts(account(1, Kind::Opened));
    assert_eq!((counts.all, counts.unreplied), (64, 64), "a sixteenth");
    assert!((10_000..10_100).all(|known| world.find(tuple(known)).is_some()));
    let totals = world.table.totals(1);
    assert_eq!(totals.evicted_unreplied, 5000 - 64);
    assert_eq!(
        (totals.opened, totals.evicted, totals.refused),
        (5000, 0, 0)
    );
    world.check_accounts();
}

#[test]
fn a_flood_from_outside_stops_nothing_that_the_guest_opens() {
    let mut world = World::new().guests([1]);
    for number in 0..3000 {
        world.open(tuple(number), (9, Some(1)), 0).unwrap();
    }
    for number in 5000..5050 {
        assert_eq!(world.open(tuple(number), (1, Some(9)), ASSURED), Ok(true));
    }
    for number in 6000..9000 {
        world.open(tuple(number), (9, Some(1)), 0).unwrap();
    }
    assert!((5000..5050).all(|number| world.find(tuple(number)).is_some()));
    world.check_accounts();
}

#[test]
fn a_configured_limit_holds_for_each_account() {
    let mut world = World::new();
    let limits = PortLimits {
        guest: true,
        connections: Some(10),
    };
    world.table.set_limits(1, limits);
    for number in 0..100 {
        assert_eq!(world.open(tuple(number), (1, None), ASSURED), Ok(true));
        assert_eq!(world.open(tuple(1000 + number), (9, Some(1)), 0), Ok(true));
        world.now += 10;
    }
    for kind in [Kind::Opened, Kind::OpenedTo] {
        assert_eq!(world.table.counts(account(1, kind)).all, 10);
    }
    assert!(
        (90..100).all(|number| world.find(tuple(number)).is_some()),
        "the oldest has gone"
    );
    assert_eq!(world.table.totals(1).evicted, 90);
    world.check_accounts();
}

#[test]
fn unreplied_and_denied_connections_go_first() {
    let mut world = World::new();
    let limits = PortLimits {
        guest: true,
        connections: Some(20),
    };
    world.table.set_limits(1, limits);
    for number in 0..20 {
        let bits = match number {
            12 => ASSURED | Progress::DENIED,
            15 => 0,
            _ => ASSURED,
        };
        world.open(tuple(number), (1, None), bits).unwrap();
        world.now += 1;
    }
    for number in [100, 101] {
        world.open(tuple(number), (1, None), ASSURED).unwrap();
    }
    for number in 0..20 {
        let stays = ![12, 15].contains(&number);
        assert_eq!(world.find(tuple(number)).is_some(), stays);
    }
}

#[test]
fn a_full_table_has_a_fair_share_for_each() {
    let mut world = World::new().guests(0..100);
    let mut number = 0;
    // Five guests take what they can get.
    for _ in 0..1000 {
        for port in 0..5 {
            number += 1;
            world.open(tuple(number), (port, None), ASSURED).unwrap();
            world.now += 1;
        }
    }
    let usable = world.table.capacity() - world.table.0.reserve();
    let share = usable / 5;
    for port in 0..5 {
        let counts = world.table.counts(account(port, Kind::Opened));
        assert!(
            counts.all >= share - 1 && counts.all <= share + 1,
            "{counts:?}"
        );
    }
    // Others have their shares of it as soon as they open some.
    for opened in 1..=20 {
        for port in 10..20 {
            number += 1;
            world.open(tuple(number), (port, None), ASSURED).unwrap();
            let counts = world.table.counts(account(port, Kind::Opened));
            assert_eq!(counts.all, opened, "none of them went");
        }
    }
    assert!(world.table.len() <= world.table.capacity());
    world.check_accounts();
}

#[test]
fn guests_that_use_one_tuple_leave_room_for_its_owner() {
    let mut world = World::new().guests(0..64);
    let one = tuple(1);
    world.open(one, (1, Some(2)), ASSURED).unwrap();
    // Each of them has two connections of it, one of either direction; two sets have 16 ways.
    for port in 10..60 {
        for tuple in [one, one.reversed()] {
            world.now += 1;
            assert_eq!(world.open(tuple, (port, Some(9)), 0), Ok(true));
        }
    }
    let hash = world.table.hash(&one);
    for (tuple, port) in [(one, 1), (one.reversed(), 2)] {
        let ends = world.batch(|batch| batch.find(&tuple, hash, port).map(|found| found.ends()));
        assert_eq!(ends.map(|ends| ends.opener()), Some(1));
    }
    assert_eq!(world.open(one, (3, Some(4)), 0), Ok(true), "and for others");
    world.check_accounts();
}

#[test]
fn a_refusal_says_whose_limit_it_was() {
    let refused = Refusal {
        account: account(3, Kind::OpenedTo),
        bound: LimitKind::Configured,
        limit: 20_000,
    };
    assert_eq!(
        refused.to_string(),
        "port 3, opened to it: 20000 connections, its limit"
    );
}

/// A step of a random walk.
#[derive(Clone, Debug)]
enum Step {
    Open(u32, u16, Option<u16>),
    Answer(u32, bool),
    Move(u32, u16),
    Remove(u32),
    Wait(u32),
    FlushZone(u16),
    Walk,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0..60_u32;
    let port = 0..6_u16;
    prop_oneof![
        8 => (number.clone(), port.clone(), proptest::option::of(port.clone()))
            .prop_map(|(n, a, b)| Step::Open(n, a, b)),
        6 => (number.clone(), any::<bool>()).prop_map(|(n, a)| Step::Answer(n, a)),
        2 => (number.clone(), port).prop_map(|(n, p)| Step::Move(n, p)),
        3 => number.prop_map(Step::Remove),
        1 => (0..40_000_u32).prop_map(Step::Wait),
        1 => (1..3_u16).prop_map(Step::FlushZone),
        1 => Just(Step::Walk),
        1 => Just(Step::Restart),
    ]
}

/// The port of a flood, that which it goes to, the kind of its connections, and their number.
fn flood() -> impl Strategy<Value = (u16, Option<u16>, u16, u32)> {
    (
        0..4_u16,
        proptest::option::of(0..8_u16),
        0..3_u16,
        1..400_u32,
    )
}

fn take(world: &mut World, step: &Step) {
    match *step {
        Step::Open(number, opener, far) => {
            world.open(tuple(number), (opener, far), 0).unwrap();
        }
        Step::Wait(time) => world.now += time,
        Step::FlushZone(zone) => world.table.flush_zone(zone),
        Step::Walk => {
            world.walk(|_| true);
        }
        Step::Restart => {
            let (other, adopted) = World::over(world.memory.clone(), world.now);
            assert!(!adopted.is_new);
            *world = other.guests([0, 1, 2]);
        }
        Step::Answer(number, _) | Step::Move(number, _) | Step::Remove(number) => {
            let one = tuple(number);
            let hash = world.table.hash(&one);
            world.batch(|batch| {
                let Some(found) = batch.any(&one, hash) else {
                    return;
                };
                match *step {
                    Step::Answer(_, assured) => answer(batch, &found, assured),
                    Step::Move(_, port) if Content::of(found.life).progress().is_replied() => {
                        let load = found.entry.ends.load(std::sync::atomic::Ordering::Relaxed);
                        let before = ends::Ends(load);
                        assert!(batch.set_ends(&found, before, before.with_opener(port)));
                    }
                    Step::Remove(_) => assert!(batch.remove(found.number, found.life, hash)),
                    _ => {}
                }
            });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 100 }))]

    #[test]
    fn accounts_always_add_up(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new().guests([0, 1, 2]);
        for step in &steps {
            take(&mut world, step);
        }
        world.check_accounts();
        world.walk(|_| false);
        world.check_accounts();
        prop_assert!(world.table.is_empty());
    }

    #[test]
    fn no_flood_ends_an_assured_connection_of_others(
        floods in prop::collection::vec(flood(), 1..30),
        owned in 1..100_u32,
    ) {
        let mut world = World::new().guests(0..8);
        for number in 0..owned {
            world.open(tuple(number), (7, Some(6)), ASSURED).unwrap();
        }
        let mut number = 1000;
        for (port, far, kind, count) in floods {
            let bits = [0, Progress::REPLIED, ASSURED][usize::from(kind)];
            for _ in 0..count {
                number += 1;
                let _ = world.open(tuple(number), (port, far.filter(|far| *far != 6)), bits);
            }
        }
        for number in 0..owned {
            prop_assert!(world.find(tuple(number)).is_some());
        }
        // And the others open more.
        for number in 500..510 {
            prop_assert_eq!(world.open(tuple(number), (6, Some(7)), 0), Ok(true));
            prop_assert!(world.find(tuple(number)).is_some());
        }
        prop_assert!(world.table.len() <= world.table.capacity());
        world.check_accounts();
    }
}
