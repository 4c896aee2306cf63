//! Tests of moves: of one address to two ports in turn, of shared addresses, and of silence.

use super::*;
use ipc::records::SourceRole;

/// `mac(1)` learned at A, then claimed by B at 10 s.
fn claimed() -> Fdb {
    let mut fdb = Fdb::default();
    fdb.learn(secs(0), LAN, mac(1), A);
    let moved = Effect::Moved {
        segment: LAN,
        mac: mac(1),
        from: A,
        to: B,
    };
    let effects = fdb.learn(secs(10), LAN, mac(1), B);
    assert_eq!(effects, [moved, invalidate(LAN, mac(1))]);
    fdb
}

/// As [`claimed`], but B's moves are spent, and A has the address.
fn damped() -> Fdb {
    let mut fdb = Fdb::default();
    fdb.learn(secs(10), LAN, mac(1), A);
    for _ in 0..6 {
        observe(&mut fdb, secs(10), B);
        observe(&mut fdb, secs(10), A);
    }
    assert_eq!(fdb.counters().damped, 1);
    fdb
}

fn observe(fdb: &mut Fdb, now: Duration, port: PortId) -> Vec<Effect> {
    fdb.learn(now, LAN, mac(1), port)
}

fn holder(fdb: &Fdb, now: Duration) -> Option<PortId> {
    fdb.at(now).port_of(LAN, mac(1))
}

fn owners(of: MacAddr, ports: &[PortId]) -> BTreeMap<(SegmentId, MacAddr), Vec<PortId>> {
    [((LAN, of), ports.to_vec())].into()
}

#[test]
fn a_true_migration_is_instant_and_final() {
    let mut fdb = claimed();
    assert_eq!(holder(&fdb, secs(10)), Some(B));
    assert_eq!(observe(&mut fdb, secs(11), B), []);
    // Much later the guest moves back.
    observe(&mut fdb, secs(200), A);
    assert_eq!(holder(&fdb, secs(200)), Some(A));
    assert_eq!(fdb.counters().damped, 0);
}

#[test]
fn a_late_frame_of_the_port_that_was_left_costs_nothing() {
    let mut fdb = claimed();
    observe(&mut fdb, millis(10_010), A);
    assert_eq!(holder(&fdb, millis(10_010)), Some(A));
    observe(&mut fdb, millis(10_020), B);
    assert_eq!(holder(&fdb, millis(10_020)), Some(B));
    // And back within the second.
    observe(&mut fdb, millis(10_500), A);
    assert_eq!(holder(&fdb, millis(10_500)), Some(A));
    assert_eq!(fdb.counters().damped, 0);
}

#[test]
fn a_port_that_alternates_with_the_owner_is_damped_and_never_barred() {
    let mut fdb = Fdb::default();
    observe(&mut fdb, secs(0), A);
    let mut reports = 0;
    for n in 0..1000 {
        let now = millis(n);
        let effects = observe(&mut fdb, now, B);
        let is_report = |effect: &&Effect| matches!(effect, Effect::Damped { .. });
        reports += effects.iter().filter(is_report).count();
        assert!(!fdb.at(now).is_barred(LAN, mac(1), B));
        observe(&mut fdb, now, A);
        assert_eq!(holder(&fdb, now), Some(A), "the owner pays nothing");
    }
    assert_eq!((fdb.counters().moved, fdb.counters().damped), (10, 995));
    assert_eq!(reports, 1, "of one series");
    assert_eq!((fdb.learned_at(A), fdb.learned_at(B)), (1, 0));
    assert_eq!(
        observe(&mut fdb, secs(1), B),
        refused(B, mac(1), Refusal::Damped)
    );
}

#[test]
fn moves_come_back_with_time() {
    let mut fdb = damped();
    assert_eq!(
        observe(&mut fdb, millis(19_999), B),
        refused(B, mac(1), Refusal::Damped)
    );
    observe(&mut fdb, secs(20), B);
    assert_eq!(holder(&fdb, secs(20)), Some(B));
    observe(&mut fdb, secs(20), A);
    observe(&mut fdb, secs(21), B);
    assert_eq!(holder(&fdb, secs(21)), Some(A));
    // A new series is reported again.
    for now in [100, 100, 100, 100, 100] {
        observe(&mut fdb, secs(now), B);
        observe(&mut fdb, secs(now), A);
    }
    let report = Effect::Damped {
        segment: LAN,
        mac: mac(1),
        port: B,
        holder: A,
    };
    assert_eq!(observe(&mut fdb, secs(100), B)[0], report);
}

#[test]
fn a_bond_stays_where_it_is_until_that_member_is_silent() {
    let mut fdb = damped();
    let roles = [A, B, C].map(|port| fdb.role(LAN, mac(1), port));
    let (holder, rival) = (SourceRole::Holder, SourceRole::Rival);
    assert_eq!(roles, [holder, rival, SourceRole::Unlearned]);
    // Both have cached flows, whose use is reported.
    for now in (15..=100).step_by(5) {
        fdb.refresh(secs(now), LAN, mac(1), B);
        fdb.refresh(millis(now * 1000 - 4000), LAN, mac(1), A);
        assert_eq!(fdb.settle(secs(now)), []);
    }
    fdb.refresh(secs(105), LAN, mac(1), B);
    assert_eq!(fdb.settle(secs(105)), [], "A was silent for 9 s");
    fdb.refresh(secs(106), LAN, mac(1), B);
    let moved = Effect::Moved {
        segment: LAN,
        mac: mac(1),
        from: A,
        to: B,
    };
    assert_eq!(fdb.settle(secs(106)), [moved, invalidate(LAN, mac(1))]);
    assert_eq!(fdb.settle(secs(106)), []);
    assert_eq!((fdb.learned_at(A), fdb.learned_at(B)), (0, 1));
}

#[test]
fn a_silent_victim_has_its_address_back_with_its_first_frame() {
    let mut fdb = claimed();
    observe(&mut fdb, secs(60), B);
    observe(&mut fdb, secs(60), A);
    assert_eq!(holder(&fdb, secs(60)), Some(A));
    // Not if it has been silent for so long that it is as new as the other.
    let mut fdb = claimed();
    for now in (20..=400).step_by(20) {
        observe(&mut fdb, secs(now), B);
    }
    fdb.expire(secs(400));
    observe(&mut fdb, secs(401), A);
    observe(&mut fdb, secs(402), B);
    assert_eq!(holder(&fdb, secs(402)), Some(B));
}

#[test]
fn ports_that_list_an_address_take_turns_and_no_other_port_does() {
    let mut fdb = Fdb::default();
    observe(&mut fdb, secs(0), C);
    let effects = fdb.own(secs(0), &owners(mac(1), &[A, B]));
    assert!(effects.contains(&invalidate(LAN, mac(1))), "{effects:?}");
    assert_eq!(holder(&fdb, secs(0)), None, "C must not have it");
    assert!(fdb.at(secs(0)).is_barred(LAN, mac(1), C));
    for n in 0..1000 {
        let now = millis(n);
        for port in [A, B] {
            observe(&mut fdb, now, port);
            assert_eq!(holder(&fdb, now), Some(port));
            assert!(!fdb.at(now).is_barred(LAN, mac(1), port));
        }
        assert_eq!(
            observe(&mut fdb, now, C),
            refused(C, mac(1), Refusal::Pinned)
        );
    }
    assert_eq!(fdb.counters().damped, 0);
    // One is left: the address is pinned to it. None is: anybody may have it.
    fdb.own(secs(2), &owners(mac(1), &[A]));
    assert_eq!(holder(&fdb, secs(2)), Some(A));
    assert!(fdb.at(secs(2)).is_barred(LAN, mac(1), B));
    fdb.own(secs(2), &owners(mac(1), &[A, B]));
    assert_eq!(holder(&fdb, secs(2)), Some(A));
    assert!(!fdb.at(secs(2)).is_barred(LAN, mac(1), B));
    assert_eq!(
        fdb.own(secs(3), &BTreeMap::new()),
        [invalidate(LAN, mac(1))]
    );
    assert!(!fdb.at(secs(3)).is_barred(LAN, mac(1), C));
}

#[test]
fn addresses_of_virtual_routers_are_where_they_were_seen_last() {
    let vrrp = MacAddr([0, 0, 0x5e, 0, 1, 51]);
    let mut fdb = Fdb::default();
    for n in 0..1000 {
        for port in [A, B, C] {
            fdb.learn(millis(n), LAN, vrrp, port);
            assert_eq!(fdb.at(millis(n)).port_of(LAN, vrrp), Some(port));
        }
    }
    // A list of one port is the operator's word.
    fdb.own(secs(1), &owners(vrrp, &[A]));
    assert!(fdb.at(secs(1)).is_barred(LAN, vrrp, B));
}

#[test]
fn a_flood_of_moves_of_a_shared_address_is_damped() {
    let mut fdb = Fdb::default();
    fdb.own(secs(0), &owners(mac(1), &[A, B]));
    for _ in 0..5000 {
        observe(&mut fdb, secs(10), A);
        observe(&mut fdb, secs(10), B);
    }
    assert_eq!(fdb.counters().moved, 2 * 1024 - 1 + 1);
    let last = holder(&fdb, secs(10)).unwrap();
    let other = if last == A { B } else { A };
    fdb.refresh(secs(11), LAN, mac(1), other);
    fdb.settle(secs(11));
    assert_eq!(holder(&fdb, secs(11)), Some(other), "a second of silence");
}

#[test]
fn a_port_pays_for_all_addresses_that_it_takes_over() {
    let mut fdb = Fdb::default();
    let station = |n: u64| MacAddr::from_u64(0x0200_0000_0000 + n);
    for n in 0..4096 {
        fdb.learn(secs(0), LAN, station(n), A);
        fdb.learn(secs(0), DMZ, station(n), C);
    }
    // As when an uplink fails, and another has its stations.
    for n in 0..4096 {
        fdb.learn(secs(1), LAN, station(n), B);
    }
    assert_eq!((fdb.counters().moved, fdb.counters().damped), (4096, 0));
    for n in 0..4096 {
        fdb.learn(secs(1), DMZ, station(n), B);
    }
    assert_eq!((fdb.counters().moved, fdb.counters().damped), (4096, 4096));
    for n in 0..4096 {
        fdb.learn(secs(1), LAN, station(n), A);
    }
    assert_eq!(fdb.counters().moved, 2 * 4096, "the victim does not pay");
    fdb.learn(secs(1), LAN, station(1), PortId(4));
    assert_eq!(fdb.counters().moved, 2 * 4096 + 1, "nor does another port");
    // The rest follows when the uplink is silent, as far as the port's moves go.
    for n in 0..4096 {
        fdb.refresh(secs(21), DMZ, station(n), B);
    }
    fdb.settle(secs(21));
    assert_eq!(fdb.counters().moved, 2 * 4096 + 1 + 2000);
}

#[test]
fn the_addresses_of_a_port_that_goes_down_are_free_for_those_who_use_them_too() {
    let mut fdb = damped();
    fdb.learn(secs(10), LAN, mac(2), A);
    let forgotten = Effect::Forgotten {
        segment: LAN,
        mac: mac(1),
        port: A,
    };
    assert_eq!(fdb.port_down(A), [forgotten, invalidate(LAN, mac(1))]);
    observe(&mut fdb, secs(10), B);
    assert_eq!(holder(&fdb, secs(10)), Some(B));
    assert_eq!(fdb.at(secs(10)).port_of(LAN, mac(2)), Some(A));
}

#[test]
fn a_new_port_with_an_old_number_has_a_clean_record() {
    let mut fdb = damped();
    fdb.forget_port(B);
    observe(&mut fdb, secs(11), B);
    assert_eq!(holder(&fdb, secs(11)), Some(B));
    // It does not inherit the claim of the old port, either.
    let mut fdb = claimed();
    assert_eq!(fdb.forget_port(A), []);
    observe(&mut fdb, millis(10_500), A);
    for _ in 0..10 {
        observe(&mut fdb, millis(10_600), B);
        observe(&mut fdb, millis(10_600), A);
    }
    observe(&mut fdb, millis(10_600), B);
    assert_eq!(holder(&fdb, millis(10_600)), Some(B), "the elder");
}

#[test]
fn claims_of_an_address_are_few() {
    let mut fdb = Fdb::default();
    for port in 1..=100 {
        observe(&mut fdb, secs(1), PortId(port));
    }
    let known =
        (1..=100).filter(|port| fdb.role(LAN, mac(1), PortId(*port)) != SourceRole::Unlearned);
    let known: Vec<u32> = known.collect();
    assert_eq!(
        known,
        [1, 2, 3, 4, 5, 6, 7, 99, 100],
        "the eldest, and the last"
    );
    observe(&mut fdb, secs(1), A);
    assert_eq!(holder(&fdb, secs(1)), Some(A));
}

#[test]
fn a_restart_keeps_a_contested_address_where_it_was() {
    let mut fdb = Fdb::default();
    fdb.adopt(secs(90), LAN, mac(1), A);
    fdb.adopt_claim(secs(100), LAN, mac(1), B);
    fdb.adopt_claim(secs(99), LAN, mac(1), A);
    assert_eq!(holder(&fdb, secs(100)), Some(A));
    assert_eq!(fdb.role(LAN, mac(1), B), SourceRole::Rival);
    fdb.refresh(secs(109), LAN, mac(1), B);
    fdb.settle(secs(109));
    assert_eq!(holder(&fdb, secs(109)), Some(B), "if it is silent now");
}
