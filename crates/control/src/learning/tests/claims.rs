//! Tests of true and false moves.

use super::*;

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

fn observe(fdb: &mut Fdb, now: Duration, port: PortId) -> Vec<Effect> {
    fdb.learn(now, LAN, mac(1), port)
}

fn holder(fdb: &Fdb, now: Duration) -> Option<PortId> {
    fdb.at(now).port_of(LAN, mac(1))
}

fn barred(fdb: &Fdb, now: Duration, port: PortId) -> bool {
    fdb.at(now).is_barred(LAN, mac(1), port)
}

fn bar(port: PortId, until: Duration) -> Effect {
    Effect::Barred {
        segment: LAN,
        mac: mac(1),
        port,
        until,
    }
}

#[test]
fn a_true_migration_is_instant_and_final() {
    let mut fdb = claimed();
    assert_eq!(holder(&fdb, secs(10)), Some(B));
    assert_eq!(observe(&mut fdb, secs(11), B), []);
    // Much later the guest moves back.
    observe(&mut fdb, secs(200), A);
    assert_eq!(holder(&fdb, secs(200)), Some(A));
    assert_eq!(fdb.counters().false_claims, 0);
}

#[test]
fn a_false_claim_is_taken_back_and_barred() {
    let mut fdb = claimed();
    let until = secs(11) + secs(30);
    let back = Effect::Moved {
        segment: LAN,
        mac: mac(1),
        from: B,
        to: A,
    };
    let both = invalidate(LAN, mac(1));
    assert_eq!(observe(&mut fdb, secs(11), A), [back, both, bar(B, until)]);
    assert_eq!(holder(&fdb, secs(11)), Some(A));
    assert!(barred(&fdb, until - millis(1), B) && !barred(&fdb, until, B));
    assert!(!barred(&fdb, secs(11), A) && !barred(&fdb, secs(11), C));
    assert_eq!(
        observe(&mut fdb, secs(12), B),
        refused(B, mac(1), Refusal::Barred)
    );
    assert_eq!(holder(&fdb, secs(12)), Some(A));
    assert_eq!((fdb.learned_at(A), fdb.learned_at(B)), (1, 0));
}

#[test]
fn the_window_ends() {
    let mut fdb = claimed();
    let effects = observe(&mut fdb, millis(11_001), A);
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Barred { .. }))
    );
    assert_eq!(
        holder(&fdb, millis(11_001)),
        Some(A),
        "a move like any other"
    );
}

#[test]
fn the_end_of_a_bar_is_reported_once() {
    let mut fdb = claimed();
    observe(&mut fdb, secs(11), A);
    assert_eq!(fdb.expire(secs(40)), []);
    assert_eq!(fdb.expire(secs(41)), [invalidate(LAN, mac(1))]);
    assert_eq!(fdb.expire(secs(41)), []);
}

#[test]
fn repeated_claims_are_barred_longer_up_to_a_limit() {
    let mut fdb = Fdb::default();
    observe(&mut fdb, secs(0), A);
    let mut now = secs(1);
    for hold in [30, 60, 120, 240, 480, 600, 600] {
        fdb.refresh(now, LAN, mac(1), A);
        observe(&mut fdb, now, B);
        let effects = observe(&mut fdb, now + millis(500), A);
        assert_eq!(effects[2], bar(B, now + millis(500) + secs(hold)));
        for step in 0..hold {
            fdb.refresh(now + secs(step), LAN, mac(1), A);
        }
        now += millis(500) + secs(hold);
        fdb.expire(now);
    }
    // After the same time without a false claim, the duration starts again at its minimum.
    fdb.refresh(now + secs(599), LAN, mac(1), A);
    now += secs(600);
    fdb.expire(now);
    observe(&mut fdb, now, B);
    assert_eq!(observe(&mut fdb, now, A)[2], bar(B, now + secs(30)));
}

#[test]
fn a_false_claimant_of_an_idle_address_cannot_have_its_owner_barred() {
    let mut fdb = claimed();
    observe(&mut fdb, secs(60), A);
    let effects = observe(&mut fdb, secs(60), B);
    assert_eq!(effects, [bar(B, secs(90)), invalidate(LAN, mac(1))]);
    assert_eq!(holder(&fdb, secs(60)), Some(A));
    assert!(!barred(&fdb, secs(60), A));
}

#[test]
fn two_false_claimants_do_not_displace_the_holder() {
    let mut fdb = claimed();
    observe(&mut fdb, millis(10_100), C);
    assert_eq!(holder(&fdb, millis(10_100)), Some(C));
    observe(&mut fdb, millis(10_200), A);
    observe(&mut fdb, millis(10_300), C);
    assert!(barred(&fdb, millis(10_300), C));
    observe(&mut fdb, millis(10_400), B);
    observe(&mut fdb, millis(10_500), A);
    assert!(barred(&fdb, millis(10_500), B));
    assert_eq!(holder(&fdb, millis(10_500)), Some(A));
    assert!(!barred(&fdb, millis(10_500), A));
}

#[test]
fn an_unused_claim_is_forgotten() {
    let mut fdb = claimed();
    for now in (20..=400).step_by(20) {
        observe(&mut fdb, secs(now), B);
    }
    // A is now the newcomer.
    observe(&mut fdb, secs(401), A);
    assert_eq!(observe(&mut fdb, secs(402), B)[2], bar(A, secs(432)));
}

#[test]
fn bars_end_with_the_holder() {
    let mut fdb = claimed();
    observe(&mut fdb, secs(11), A);
    fdb.forget_port(A);
    assert!(!barred(&fdb, secs(11), B));
    observe(&mut fdb, secs(12), B);
    assert_eq!(holder(&fdb, secs(12)), Some(B));
}

#[test]
fn a_new_port_with_an_old_number_has_a_clean_record() {
    let mut fdb = claimed();
    observe(&mut fdb, secs(11), A);
    assert_eq!(fdb.forget_port(B), [invalidate(LAN, mac(1))]);
    assert!(!barred(&fdb, secs(11), B));
    // It does not inherit the claim of the old port, either.
    let mut fdb = claimed();
    assert_eq!(fdb.forget_port(A), []);
    observe(&mut fdb, millis(10_500), A);
    assert_eq!(holder(&fdb, millis(10_500)), Some(A));
    assert_eq!(
        observe(&mut fdb, millis(10_600), B)[2],
        bar(A, millis(40_600))
    );
}
