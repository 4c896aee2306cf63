use std::net::IpAddr;
use std::sync::Arc;

use mapping::Mapping;

use super::*;

struct World {
    fragments: Fragments,
    seed: Seed,
}

fn world() -> World {
    let mapping = Arc::new(Mapping::heap((FRAGMENTS * 64) as u64));
    World {
        fragments: Fragments::new(Part::new(&mapping, 0, FRAGMENTS).unwrap()),
        seed: Seed::new(4),
    }
}

/// A piece of the datagram with an identification.
fn piece(id: u16, start: u32, end: u32) -> Piece {
    let address = |last| IpAddr::from([10, 0, 0, last]);
    Piece {
        datagram: Tuple::new(3, 17, (address(1), 0), (address(2), id)),
        start,
        end,
    }
}

fn udp(port: u16) -> Belongs {
    let address = |last| IpAddr::from([10, 0, 0, last]);
    let tuple = Tuple::new(3, 17, (address(1), port), (address(2), 53));
    Ok((tuple, Message::Udp))
}

impl World {
    fn first(&self, id: u16, port: u16, belongs: Belongs, now: Millis) -> Result<(), Invalid> {
        let time = (&self.seed, now);
        self.fragments
            .remember(&piece(id, 0, 1480), (port, belongs), time)
    }

    fn later(&self, id: u16, port: u16, now: Millis) -> Option<Belongs> {
        self.fragments
            .later(&piece(id, 1480, 2000), port, (&self.seed, now))
    }
}

#[test]
fn later_fragments_are_what_the_first_one_is() {
    let world = world();
    assert_eq!(world.later(1, 5, 100), None);
    assert_eq!(world.first(1, 5, udp(1000), 100), Ok(()));
    assert_eq!(world.first(2, 5, Err(Invalid::TinyFragment), 100), Ok(()));
    assert_eq!(world.later(1, 5, 200), Some(udp(1000)));
    assert_eq!(world.later(2, 5, 200), Some(Err(Invalid::TinyFragment)));
    assert_eq!(world.later(1, 6, 200), None, "of another port");
    assert_eq!(world.later(1, 5, 30_099), Some(udp(1000)));
    assert_eq!(world.later(1, 5, 30_100), None);
    assert_eq!(
        world.first(1, 5, udp(2000), 30_100),
        Ok(()),
        "the number is used again"
    );
    assert_eq!(world.later(1, 5, 30_101), Some(udp(2000)));
}

#[test]
fn fragments_that_overlap_are_invalid_as_is_a_second_first_one() {
    let overlap = Invalid::Overlap;
    let world = world();
    let time = (&world.seed, 0);
    world.first(1, 5, udp(1000), 0).unwrap();
    assert_eq!(world.first(1, 5, udp(1000), 1), Ok(()), "a retransmission");
    assert_eq!(world.first(1, 5, udp(1001), 1), Err(overlap));
    assert_eq!(world.later(1, 5, 2), Some(Err(overlap)));
    world.first(2, 5, udp(1000), 0).unwrap();
    let inside = piece(2, 1472, 1600);
    assert_eq!(world.fragments.later(&inside, 5, time), Some(Err(overlap)));
    assert_eq!(world.first(2, 5, udp(1000), 3), Err(overlap));
    world.first(3, 5, udp(1000), 0).unwrap();
    world
        .fragments
        .refuse(&piece(3, 0, 1480), 5, Invalid::Sequence, time);
    assert_eq!(world.later(3, 5, 2), Some(Err(Invalid::Sequence)));
}

#[test]
fn a_port_has_its_latest_datagrams_and_no_more() {
    let world = world();
    world.first(9999, 6, udp(1), 0).unwrap();
    let last = if cfg!(miri) { 100 } else { 1000 };
    for id in 1..=last {
        world.first(id, 5, udp(id), id.into()).unwrap();
        assert_eq!(world.later(id, 5, 1000), Some(udp(id)));
    }
    let known = |from: u16| {
        let known = |id: &u16| world.later(*id, 5, 1000).is_some();
        (from..=last).filter(known).count()
    };
    assert!(known(1) <= OF_PORT);
    let known = known(last - OF_PORT as u16 + 1);
    // A set of eight lines may have been full by chance.
    assert!(known > 60, "{known}");
    assert_eq!(
        world.later(9999, 6, 1000),
        Some(udp(1)),
        "another port's is still there"
    );
}

#[test]
fn garbage_is_no_datagram() {
    let world = world();
    world.first(1, 5, udp(1000), 0).unwrap();
    for line in world.fragments.lines.iter() {
        line.0[5].store(u64::MAX, Relaxed);
    }
    assert_eq!(world.later(1, 5, 0), None, "there is no such reason");
    for line in world.fragments.lines.iter() {
        line.0[5].store(0xff00, Relaxed);
    }
    assert_eq!(world.later(1, 5, 0), None, "there is no such kind");
}
