//! Copies that are under way, and tickets for them.

use std::sync::Arc;

use super::{Copier, Copies, Engines, LEAST, SLOTS, Tickets};

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| ((n + seed) % 251 + 1) as u8).collect()
}

/// Has `from` copied as a frame of one piece.
fn begin(copier: &Copier, from: &[u8], to: &mut [u8]) -> Tickets {
    let mut frame = copier.frame();
    // SAFETY: `to` is as long as `from`, and both outlive the copy.
    unsafe { frame.copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
    frame.tickets()
}

fn by_hand() -> (Arc<Engines>, Copier) {
    let engines = Engines::by_hand(1);
    let copier = Copier::new(&engines, 0);
    (engines, copier)
}

#[test]
fn nothing_is_handed_over_outside_of_a_lease_or_when_it_is_small() {
    let (engines, copier) = by_hand();
    let from = pattern(LEAST, 0);
    let mut to = vec![0; LEAST];
    assert!(begin(&copier, &from, &mut to).is_empty());
    assert_eq!(to, from);
    copier.begin_lease();
    assert!(begin(&copier, &from[1..], &mut to[1..]).is_empty());
    assert!(!begin(&copier, &from, &mut to).is_empty());
    assert_eq!(engines.under_way(), 1);
    let tickets = copier.end_lease();
    assert!(!tickets.is_empty());
    engines.wait(tickets);
    assert!(begin(&copier, &from, &mut to).is_empty());
    assert!(
        copier.end_lease().is_empty(),
        "no lease, nothing to wait for"
    );
}

#[test]
fn a_lease_is_over_when_its_last_copy_is_in_whatever_order() {
    let (engines, copier) = by_hand();
    let from = pattern(4096, 0);
    let mut to = vec![vec![0; 4096]; 5];
    copier.begin_lease();
    let frames: Vec<Tickets> = to.iter_mut().map(|to| begin(&copier, &from, to)).collect();
    let mut all = copier.end_lease();
    for left in (0..5).rev() {
        assert!(!engines.are_done(&mut all));
        let open = frames
            .iter()
            .filter(|one| !engines.are_done(&mut { **one }));
        assert_eq!(open.count(), left + 1);
        assert!(engines.finish_one(left / 2));
    }
    assert!(engines.are_done(&mut all) && !engines.finish_one(0));
    assert!(to.iter().all(|to| *to == from));
}

#[test]
fn no_more_is_under_way_than_there_are_slots() {
    let (engines, copier) = by_hand();
    let from = pattern(LEAST, 3);
    let mut to = vec![vec![0; LEAST]; SLOTS + 2];
    copier.begin_lease();
    let mut tickets: Vec<Tickets> = to.iter_mut().map(|to| begin(&copier, &from, to)).collect();
    assert_eq!(engines.under_way(), SLOTS);
    assert!(tickets[SLOTS].is_empty() && tickets[SLOTS + 1].is_empty());
    // A slot in the middle is free: the next copy is another slot's turn, and nobody mistakes one for the other.
    assert!(engines.finish_one(7));
    assert!(engines.are_done(&mut { tickets[6] }) && !engines.are_done(&mut { tickets[0] }));
    engines.wait(copier.end_lease());
    assert!(tickets.iter_mut().all(|one| engines.are_done(one)));
    assert!(to.iter().all(|to| *to == from));
}

#[test]
fn the_thread_copies_everything_and_so_does_whoever_waits() {
    let rounds = if cfg!(miri) { 3 } else { 300 };
    let engines = Engines::thread(2, 0x5eed);
    let copiers = [Copier::new(&engines, 0), Copier::new(&engines, 1)];
    std::thread::scope(|scope| {
        for (number, copier) in copiers.iter().enumerate() {
            let engines = &engines;
            scope.spawn(move || {
                for round in 0..rounds {
                    let from = pattern(LEAST + 13 * (round % 50), round + number);
                    let mut to = vec![vec![0; from.len()]; 1 + round % 40];
                    copier.begin_lease();
                    for to in &mut to {
                        begin(copier, &from, to);
                    }
                    let mut tickets = copier.end_lease();
                    if round % 3 == 0 {
                        engines.wait(tickets);
                    }
                    while !engines.are_done(&mut tickets) {
                        std::thread::yield_now();
                    }
                    assert!(to.iter().all(|to| *to == from));
                }
            });
        }
    });
}

#[test]
fn the_end_of_an_engine_waits_for_what_is_under_way() {
    for engines in [Engines::by_hand(1), Engines::thread(1, 1)] {
        let from = pattern(60_000, 1);
        let mut to = vec![0; 60_000];
        let copier = Copier::new(&engines, 0);
        copier.begin_lease();
        begin(&copier, &from, &mut to);
        drop((copier, engines));
        assert_eq!(to, from);
    }
}

/// Who has looked at one copy and is late finishes no other one in the same slot.
#[test]
fn a_late_claim_is_of_no_later_copy() {
    let (engines, copier) = by_hand();
    let from = pattern(LEAST, 5);
    let mut to = vec![vec![0; LEAST]; SLOTS + 1];
    copier.begin_lease();
    let (last, before) = to.split_last_mut().expect("there are some");
    for to in before {
        begin(&copier, &from, to);
    }
    engines.wait(copier.end_lease());
    copier.begin_lease();
    let tickets = begin(&copier, &from, last);
    let slot = engines.slot_of(&tickets);
    assert!(slot.claim_of(1).is_none() && slot.claim_of(2 * SLOTS as u64 + 1).is_none());
    engines.wait(tickets);
    assert_eq!(to[SLOTS], from);
}
