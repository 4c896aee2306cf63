//! The list of active pairs.

use super::*;

const A: PortId = PortId(3);
const B: PortId = PortId(700);

fn pairs(active: &mut ActivePairs) -> Vec<(PortId, u16)> {
    (0..).map_while(|at| active.get(at)).collect()
}

#[test]
fn a_pair_is_listed_once() {
    let mut active = ActivePairs::default();
    assert!(active.is_empty());
    assert!(active.add(A, 0) && active.add(A, 63) && active.add(B, 0));
    assert!(!active.add(A, 63) && !active.add(A, 64));
    active.remove(A, 0);
    active.remove(A, 1);
    assert_eq!(pairs(&mut active), [(B, 0), (A, 63)]);
    assert!(active.add(A, 0));
    active.remove_at(0);
    assert_eq!(pairs(&mut active), [(A, 0), (A, 63)]);
}

#[test]
fn the_slot_names_the_port_of_the_current_pair_only() {
    let file = rustix::fs::memfd_create("marks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, ipc::keeping::CRASH_RECORD_LEN).unwrap();
    let slots = ipc::keeping::ThreadSlots::map(&file).unwrap();
    let mut active = ActivePairs::default();
    active.set_thread_slot(slots.of(1));
    active.add(A, 0);
    active.add(B, 0);
    let slot = slots.of(1);
    assert_eq!(slot.served(), None);
    for (at, served) in [(0, Some(A)), (1, Some(B)), (2, None)] {
        active.get(at);
        assert_eq!(slot.served(), served, "at {at}");
    }
}

#[test]
fn a_pair_that_had_to_wait_comes_first_in_the_next_round() {
    let mut active = ActivePairs::default();
    assert!((0..5).all(|pair| active.add(A, pair)));
    // Two of the pairs are served in each round.
    let mut turns = [0; 5];
    for _ in 0..50 {
        for at in 0..5 {
            let (_, pair) = active.get(at).unwrap();
            match at {
                0 | 1 => turns[usize::from(pair)] += 1,
                _ => active.waits(at),
            }
        }
    }
    // The turns differ, but a waiting pair only moves forward in the list.
    assert!(turns.iter().all(|turns| *turns >= 10), "{turns:?}");
}

#[test]
fn only_rounds_with_frames_of_others_make_a_pair_quiet() {
    let mut active = ActivePairs::default();
    active.add(A, 0);
    active.add(B, 0);
    for _ in 0..QUIET_ROUNDS {
        assert!(!active.is_quiet(1));
        active.had_frames(0);
        active.end_round();
    }
    assert!(active.is_quiet(1) && !active.is_quiet(0));
    active.remove_at(1);
    active.add(B, 0);
    assert!(!active.is_quiet(1), "it starts anew");
}
