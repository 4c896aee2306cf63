//! Frames that wait: in order, bounded for each port, given out once.

use std::collections::{BTreeMap, BTreeSet};

use port::{Offload, PortId};
use proptest::prelude::*;
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};
use wire::vlan::HeaderBuf;

use crate::parking::{
    ASKED_PER_PORT, BYTES_PER_PORT, FRAMES_PER_PORT, PATIENCE_MS, Parked, ParkedFrame, Parking,
};

fn key(port: u32, n: u64) -> FlowKey {
    FlowKey::default()
        .with_in_port(port)
        .with_smac(MacAddr::from_u64(n))
}

fn frame(mark: u8, bytes: usize) -> ParkedFrame {
    let mut headers = HeaderBuf::default();
    headers.fill(bytes.min(64)).fill(mark);
    ParkedFrame {
        pair: 0,
        headers,
        payload: vec![mark; bytes.saturating_sub(64)],
        offload: Offload::default(),
    }
}

fn mark(frame: &ParkedFrame) -> u8 {
    frame.headers.as_slice()[0]
}

fn marks(frames: &[ParkedFrame]) -> Vec<u8> {
    frames.iter().map(mark).collect()
}

/// Numbers of what is asked now, as far as it may be.
fn ask_all(parking: &mut Parking) -> Vec<u64> {
    std::iter::from_fn(|| parking.next_to_ask().map(|(id, _)| id)).collect()
}

#[test]
fn a_port_has_so_many_questions_open_and_others_have_theirs() {
    let mut parking = Parking::default();
    let ask = |parking: &mut Parking, port, n| match parking
        .park(&key(port, n), 64, 0, || frame(1, 64))
    {
        Parked::Ask(id) => Some(id),
        Parked::Behind => None,
        Parked::Full => panic!("there is room"),
    };
    let asked: Vec<_> = (0..200).filter_map(|n| ask(&mut parking, 1, n)).collect();
    assert_eq!(asked.len(), ASKED_PER_PORT);
    assert!(ask_all(&mut parking).is_empty());
    assert!(
        ask(&mut parking, 2, 1).is_some(),
        "another port is not kept"
    );
    // An answer makes room for the next one, in their order.
    parking.release(asked[5]);
    assert!(parking.has_to_ask());
    assert_eq!(ask_all(&mut parking), [ASKED_PER_PORT as u64 + 1]);
    assert!(!parking.has_to_ask());
    assert_eq!(parking.open().len(), ASKED_PER_PORT + 1, "what was asked");
    // A flow that covers all leaves nothing to ask.
    parking.release_covered(None, &key(1, 0), &FlowMask::NONE.with_in_port());
    assert!(ask_all(&mut parking).is_empty());
    assert_eq!(parking.open().len(), 1);
}

#[test]
fn who_found_the_ring_full_has_turns_with_others() {
    let mut parking = Parking::default();
    let mut ids = BTreeMap::new();
    for (port, n) in [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (3, 2)] {
        let Parked::Ask(id) = parking.park(&key(port, n), 64, 0, || frame(1, 64)) else {
            panic!("it asks");
        };
        ids.insert(id, port);
    }
    ids.keys().for_each(|id| parking.ask_later(*id));
    let ports: Vec<_> = ask_all(&mut parking).iter().map(|id| ids[id]).collect();
    assert_eq!(ports, [1, 2, 3, 1, 3, 1]);
    // Asked again, likewise.
    let again: Vec<_> = parking.open().iter().map(|(id, _)| ids[id]).collect();
    assert_eq!(again, [1, 2, 3, 1, 3, 1]);
}

#[test]
fn frames_of_a_key_wait_behind_one_question_in_order() {
    let mut parking = Parking::default();
    assert!(parking.is_empty());
    let Parked::Ask(first) = parking.park(&key(1, 1), 100, 0, || frame(1, 100)) else {
        panic!("the first of its key asks");
    };
    let Parked::Ask(other) = parking.park(&key(1, 2), 100, 0, || frame(2, 100)) else {
        panic!("another key asks too");
    };
    assert!(other > first);
    for n in 3..6 {
        let parked = parking.park(&key(1, 1), 100, 0, || frame(n, 100));
        assert_eq!(parked, Parked::Behind);
    }
    assert_eq!(parking.len(), 5);
    let open: Vec<_> = parking
        .open()
        .iter()
        .map(|(id, w)| (*id, w.frames.len()))
        .collect();
    assert_eq!(open, [(first, 4), (other, 1)]);
    let released = parking.release(first).expect("it waits");
    assert_eq!((released.key, released.port()), (key(1, 1), PortId(1)));
    assert_eq!(marks(&released.frames), [1, 3, 4, 5]);
    assert!(parking.release(first).is_none(), "given out twice");
    assert_eq!(parking.len(), 1);
    // The next frame of that key is a new question.
    let again = parking.park(&key(1, 1), 100, 0, || frame(9, 100));
    assert!(matches!(again, Parked::Ask(id) if id > other));
}

#[test]
fn a_port_has_room_for_so_many_frames() {
    let mut parking = Parking::default();
    for n in 0..FRAMES_PER_PORT {
        let parked = parking.park(&key(1, n as u64 % 3), 60, 0, || frame(0, 60));
        assert_ne!(parked, Parked::Full, "frame {n}");
    }
    let full = parking.park(&key(1, 9), 60, 0, || panic!("copied without room"));
    assert_eq!(full, Parked::Full);
    // Another port is not concerned.
    assert!(matches!(
        parking.park(&key(2, 9), 60, 0, || frame(0, 60)),
        Parked::Ask(_)
    ));
    assert_eq!(parking.len(), FRAMES_PER_PORT + 1);
    let gone = parking.forget_port(PortId(1));
    assert_eq!(
        gone.iter().map(|w| w.frames.len()).sum::<usize>(),
        FRAMES_PER_PORT
    );
    assert_eq!(parking.len(), 1);
    assert!(matches!(
        parking.park(&key(1, 9), 60, 0, || frame(0, 60)),
        Parked::Ask(_)
    ));
}

#[test]
fn a_port_has_room_for_so_many_bytes() {
    let mut parking = Parking::default();
    let large = 60_000;
    let fit = BYTES_PER_PORT / large;
    for n in 0..fit {
        let parked = parking.park(&key(1, n as u64), large, 0, || frame(0, large));
        assert!(matches!(parked, Parked::Ask(_)));
    }
    assert_eq!(
        parking.park(&key(1, 99), large, 0, || panic!("no room")),
        Parked::Full
    );
    let rest = BYTES_PER_PORT - fit * large;
    assert!(matches!(
        parking.park(&key(1, 99), rest, 0, || frame(0, rest)),
        Parked::Ask(_)
    ));
    assert_eq!(
        parking.park(&key(1, 98), 1, 0, || panic!("no room")),
        Parked::Full
    );
    assert!(matches!(
        parking.park(&key(2, 1), large, 0, || frame(0, large)),
        Parked::Ask(_)
    ));
}

#[test]
fn patience_ends_counted_from_the_first_frame() {
    let mut parking = Parking::default();
    parking.park(&key(1, 1), 60, 1_000, || frame(1, 60));
    parking.park(&key(1, 1), 60, 1_000 + PATIENCE_MS, || frame(2, 60));
    parking.park(&key(2, 1), 60, 1_001, || frame(3, 60));
    assert!(parking.expire(1_000 + PATIENCE_MS).is_empty());
    let gone = parking.expire(1_001 + PATIENCE_MS);
    assert_eq!(gone.len(), 1);
    assert_eq!(marks(&gone[0].frames), [1, 2]);
    assert_eq!(parking.len(), 1);
    // A clock that stands before the frame came is no reason to give up.
    assert!(parking.expire(0).is_empty());
    assert_eq!(parking.expire(u64::MAX).len(), 1);
    assert!(parking.is_empty() && parking.open().is_empty());
}

proptest! {
    /// Every frame that was taken in comes out exactly once, and in the order of its key.
    #[test]
    fn nothing_is_lost_or_doubled(steps in prop::collection::vec((0..3u32, 0..3u64, 0..10u8), 1..300)) {
        let mut parking = Parking::default();
        let mut model: BTreeMap<u64, (u32, u64, Vec<u8>)> = BTreeMap::new();
        let mut ids = BTreeSet::new();
        for (n, (port, k, what)) in steps.into_iter().enumerate() {
            let mark = n as u8;
            match what {
                0..7 => match parking.park(&key(port, k), 1500, n as u64, || frame(mark, 1500)) {
                    Parked::Ask(id) => {
                        prop_assert!(ids.insert(id), "a number came twice");
                        model.insert(id, (port, k, vec![mark]));
                    }
                    Parked::Behind => {
                        let waiting = model.values_mut().find(|w| (w.0, w.1) == (port, k));
                        waiting.expect("a question is open").2.push(mark);
                    }
                    Parked::Full => {
                        let mine = model.values().filter(|w| w.0 == port);
                        prop_assert_eq!(mine.map(|w| w.2.len()).sum::<usize>(), FRAMES_PER_PORT);
                    }
                },
                7 | 8 => {
                    let id = model.keys().nth(k as usize).copied().unwrap_or(u64::MAX);
                    let wanted = model.remove(&id).map(|w| w.2);
                    let got = parking.release(id).map(|w| marks(&w.frames));
                    prop_assert_eq!(got, wanted);
                }
                _ => {
                    let gone = parking.forget_port(PortId(port));
                    let wanted = model.values().filter(|w| w.0 == port).count();
                    prop_assert_eq!(gone.len(), wanted);
                    model.retain(|_, w| w.0 != port);
                }
            }
            prop_assert_eq!(parking.len(), model.values().map(|w| w.2.len()).sum::<usize>());
            let mut open: Vec<u64> = parking.open().iter().map(|(id, _)| *id).collect();
            open.sort_unstable();
            prop_assert_eq!(open, model.keys().copied().collect::<Vec<_>>());
        }
    }
}
