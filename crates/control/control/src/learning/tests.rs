//! Tests: the rules one by one, and random histories against a simple model and the invariants.

mod claims;
mod random;

use std::collections::BTreeMap;
use std::time::Duration;

use policy::{Lookup, PortId, SegmentId};
use wire::MacAddr;

use super::{Allowance, Effect, Fdb, LearnPreview, Limits, Refusal, Station};

const LAN: SegmentId = SegmentId(0);
const DMZ: SegmentId = SegmentId(1);
const A: PortId = PortId(1);
const B: PortId = PortId(2);
const C: PortId = PortId(3);

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn invalidate(segment: SegmentId, mac: MacAddr) -> Effect {
    Effect::Invalidate { segment, mac }
}

fn refused(port: PortId, mac: MacAddr, why: Refusal) -> [Effect; 1] {
    [Effect::Refused {
        segment: LAN,
        mac,
        port,
        why,
    }]
}

#[test]
fn new_station_is_learned_once() {
    let mut fdb = Fdb::default();
    let effects = fdb.learn(secs(1), LAN, mac(1), A);
    let learned = Effect::Learned {
        segment: LAN,
        mac: mac(1),
        port: A,
    };
    assert_eq!(effects, [learned, invalidate(LAN, mac(1))]);
    assert_eq!(fdb.learn(secs(2), LAN, mac(1), A), []);
    let view = fdb.at(secs(2));
    assert_eq!(view.port_of(LAN, mac(1)), Some(A));
    assert_eq!(view.port_of(DMZ, mac(1)), None);
    assert_eq!(view.port_of(LAN, mac(2)), None);
    assert!(!view.is_barred(LAN, mac(1), B), "a guest may move");
}

#[test]
fn segments_are_separate() {
    let mut fdb = Fdb::default();
    fdb.learn(secs(1), LAN, mac(1), A);
    fdb.learn(secs(1), DMZ, mac(1), B);
    assert_eq!(fdb.at(secs(1)).port_of(LAN, mac(1)), Some(A));
    assert_eq!(fdb.flush(Some(LAN), None).0, 1);
    assert_eq!(fdb.at(secs(1)).port_of(LAN, mac(1)), None);
    assert_eq!(fdb.at(secs(1)).port_of(DMZ, mac(1)), Some(B));
}

#[test]
fn group_addresses_are_no_stations() {
    let mut fdb = Fdb::default();
    for mac in [
        MacAddr::BROADCAST,
        MacAddr::ZERO,
        MacAddr([1, 0, 0x5e, 0, 0, 1]),
    ] {
        assert_eq!(fdb.learn(secs(1), LAN, mac, A), []);
        fdb.adopt(secs(1), LAN, mac, A);
    }
    assert_eq!(fdb.list(secs(1)), []);
}

#[test]
fn silence_ages_and_use_refreshes() {
    let mut fdb = Fdb::default();
    fdb.learn(secs(0), LAN, mac(1), A);
    fdb.learn(secs(0), LAN, mac(2), A);
    fdb.refresh(secs(100), LAN, mac(1), A);
    fdb.refresh(secs(50), LAN, mac(1), A);
    fdb.refresh(secs(200), LAN, mac(2), B);
    assert_eq!(fdb.expire(millis(299_999)), []);
    let forgotten = Effect::Forgotten {
        segment: LAN,
        mac: mac(2),
        port: A,
    };
    assert_eq!(fdb.expire(secs(300)), [forgotten, invalidate(LAN, mac(2))]);
    assert_eq!(fdb.at(millis(399_999)).port_of(LAN, mac(1)), Some(A));
    assert_eq!(
        fdb.at(secs(400)).port_of(LAN, mac(1)),
        None,
        "also before expire is called"
    );
    assert_eq!(fdb.list(secs(400)), []);
    // A stale entry is no claim: the address is learned anew, it does not move.
    let effects = fdb.learn(secs(401), LAN, mac(1), B);
    assert!(effects.contains(&Effect::Learned {
        segment: LAN,
        mac: mac(1),
        port: B
    }));
    assert_eq!(fdb.counters().aged, 2);
    assert_eq!(fdb.counters().moved, 0);
}

#[test]
fn a_full_port_learns_no_more_and_others_still_learn() {
    let mut fdb = Fdb::new(Limits {
        per_port: 2,
        total: 3,
        ..Limits::default()
    });
    for last in 1..=2 {
        fdb.learn(secs(1), LAN, mac(last), A);
    }
    assert_eq!(
        fdb.learn(secs(1), LAN, mac(3), A),
        refused(A, mac(3), Refusal::PortFull)
    );
    assert_eq!(
        fdb.at(secs(1)).port_of(LAN, mac(3)),
        None,
        "its frames are flooded"
    );
    assert!(!fdb.at(secs(1)).is_barred(LAN, mac(3), A));
    assert_ne!(fdb.learn(secs(1), LAN, mac(4), B), []);
    assert_eq!(
        fdb.learn(secs(1), LAN, mac(5), B),
        refused(B, mac(5), Refusal::TableFull)
    );
    assert_eq!(
        (fdb.counters().port_full, fdb.counters().table_full),
        (1, 1)
    );
    // A move does not make the table larger.
    fdb.learn(secs(9), LAN, mac(4), A);
    assert_eq!((fdb.learned_at(A), fdb.learned_at(B)), (3, 0));
    fdb.expire(secs(305));
    assert_eq!(fdb.learned_at(A), 1);
    assert_ne!(fdb.learn(secs(305), LAN, mac(3), A), []);
}

#[test]
fn pinned_stations_do_not_move_or_age() {
    let mut fdb = Fdb::default();
    fdb.learn(secs(1), LAN, mac(1), B);
    let moved = Effect::Moved {
        segment: LAN,
        mac: mac(1),
        from: B,
        to: A,
    };
    let both = invalidate(LAN, mac(1));
    assert_eq!(fdb.pin(LAN, mac(1), A), [moved, both]);
    assert_eq!(fdb.pin(LAN, mac(1), A), []);
    assert_eq!((fdb.learned_at(A), fdb.learned_at(B)), (0, 0));
    assert_eq!(
        fdb.learn(secs(2), LAN, mac(1), B),
        refused(B, mac(1), Refusal::Pinned)
    );
    assert_eq!(fdb.learn(secs(2), LAN, mac(1), A), []);
    assert_eq!(fdb.expire(secs(9999)), []);
    let view = fdb.at(secs(9999));
    assert_eq!(view.port_of(LAN, mac(1)), Some(A));
    assert!(view.is_barred(LAN, mac(1), B) && !view.is_barred(LAN, mac(1), A));
    let line = Station {
        segment: LAN,
        mac: mac(1),
        port: A,
        age: secs(0),
        pinned: true,
    };
    assert_eq!(fdb.list(secs(9999)), [line]);
    assert_eq!(fdb.unpin(secs(9999), LAN, mac(1)), [both]);
    assert_eq!(fdb.unpin(secs(9999), LAN, mac(1)), []);
    let line = Station {
        age: secs(1),
        pinned: false,
        ..line
    };
    assert_eq!(
        fdb.list(secs(10_000)),
        [line],
        "age zero when it was unpinned"
    );
    assert_eq!(fdb.learned_at(A), 1);
}

#[test]
fn these_are_pinned_and_no_others() {
    let mut fdb = Fdb::default();
    fdb.learn(secs(1), LAN, mac(1), B);
    let all = |pins: &[(u8, PortId)]| {
        pins.iter()
            .map(|(n, port)| ((LAN, mac(*n)), vec![*port]))
            .collect()
    };
    fdb.own(secs(1), &all(&[(1, A), (2, A)]));
    let at = |fdb: &Fdb| [1, 2].map(|n| fdb.at(secs(2)).port_of(LAN, mac(n)));
    assert_eq!(at(&fdb), [Some(A), Some(A)]);
    assert_eq!(fdb.own(secs(1), &all(&[(1, A), (2, A)])), []);
    let moved = fdb.own(secs(1), &all(&[(2, B)]));
    assert!(moved.contains(&invalidate(LAN, mac(1))), "{moved:?}");
    assert!(moved.contains(&invalidate(LAN, mac(2))), "{moved:?}");
    assert_eq!(at(&fdb), [Some(A), Some(B)]);
    assert!(!fdb.at(secs(2)).is_barred(LAN, mac(1), B));
    assert!(fdb.at(secs(2)).is_barred(LAN, mac(2), A));
    fdb.forget_port(B);
    assert_eq!(at(&fdb), [Some(A), None]);
    fdb.own(secs(1), &all(&[(2, B)]));
    assert_eq!(at(&fdb), [Some(A), Some(B)], "again");
}

#[test]
fn unpin_leaves_learned_stations_alone() {
    let mut fdb = Fdb::default();
    fdb.learn(secs(1), LAN, mac(1), A);
    assert_eq!(fdb.unpin(secs(1), LAN, mac(1)), []);
    assert_eq!(fdb.at(secs(1)).port_of(LAN, mac(1)), Some(A));
}

#[test]
fn a_port_that_goes_takes_everything_along() {
    let mut fdb = Fdb::default();
    fdb.learn(secs(1), LAN, mac(1), A);
    fdb.learn(secs(1), DMZ, mac(2), A);
    fdb.pin(LAN, mac(3), A);
    fdb.learn(secs(1), LAN, mac(4), B);
    assert_eq!(fdb.forget_port(A).len(), 6);
    let left: Vec<_> = fdb
        .list(secs(1))
        .iter()
        .map(|station| station.mac)
        .collect();
    assert_eq!(left, [mac(4)]);
    assert_eq!(fdb.forget_port(A), []);
}

#[test]
fn a_restart_adopts_the_latest_use_and_bars_no_port() {
    let mut fdb = Fdb::default();
    fdb.pin(LAN, mac(9), A);
    for (seen, port) in [(10, B), (20, A), (15, B), (20, B)] {
        fdb.adopt(secs(seen), LAN, mac(1), port);
    }
    fdb.adopt(secs(5), LAN, mac(9), B);
    let view = fdb.at(secs(21));
    assert_eq!(view.port_of(LAN, mac(1)), Some(A));
    assert_eq!(view.port_of(LAN, mac(9)), Some(A));
    assert!(!view.is_barred(LAN, mac(1), B));
    assert_eq!((fdb.learned_at(A), fdb.learned_at(B)), (1, 0));
    assert_eq!(fdb.list(secs(21))[0].age, secs(1));
}

#[test]
fn stations_are_listed_in_order() {
    let mut fdb = Fdb::default();
    for (segment, last) in [(DMZ, 1), (LAN, 7), (LAN, 3)] {
        fdb.learn(secs(1), segment, mac(last), A);
    }
    let keys: Vec<_> = fdb
        .list(secs(4))
        .iter()
        .map(|s| (s.segment, s.mac, s.age))
        .collect();
    assert_eq!(
        keys,
        [
            (LAN, mac(3), secs(3)),
            (LAN, mac(7), secs(3)),
            (DMZ, mac(1), secs(3))
        ]
    );
}
