//! Pending frames: in order, bounded per port, released once.

use std::collections::{BTreeMap, BTreeSet};

use port::{Offload, PortId};
use proptest::prelude::*;
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};
use wire::vlan::HeaderBuf;

use crate::forward::pending_upcalls::{
    Admission, BYTES_PER_PORT, FRAMES_PER_PORT, PendingFrame, PendingUpcalls, UPCALL_TIMEOUT_MS,
    UPCALLS_PER_PORT,
};

fn key(port: u32, n: u64) -> FlowKey {
    FlowKey::default()
        .with_in_port(port)
        .with_smac(MacAddr::from_u64(n))
}

fn frame(mark: u8, bytes: usize) -> PendingFrame {
    let mut headers = HeaderBuf::default();
    headers.fill(bytes.min(64)).fill(mark);
    PendingFrame {
        pair: 0,
        headers,
        payload: vec![mark; bytes.saturating_sub(64)],
        offload: Offload::default(),
    }
}

fn mark(frame: &PendingFrame) -> u8 {
    frame.headers.as_slice()[0]
}

fn marks(frames: &[PendingFrame]) -> Vec<u8> {
    frames.iter().map(mark).collect()
}

/// Returns the numbers of all upcalls that can be sent now.
fn send_all(pending: &mut PendingUpcalls) -> Vec<u64> {
    std::iter::from_fn(|| pending.next_unsent().map(|(id, _)| id)).collect()
}

#[test]
fn open_upcalls_are_bounded_per_port() {
    let mut pending = PendingUpcalls::default();
    let add = |pending: &mut PendingUpcalls, port, n| match pending.add(
        (&key(port, n), None),
        64,
        0,
        || frame(1, 64),
    ) {
        Admission::Upcall(id) => Some(id),
        Admission::Queued => None,
        Admission::Full => panic!("there is room"),
    };
    let sent: Vec<_> = (0..200).filter_map(|n| add(&mut pending, 1, n)).collect();
    assert_eq!(sent.len(), UPCALLS_PER_PORT);
    assert!(send_all(&mut pending).is_empty());
    assert!(
        add(&mut pending, 2, 1).is_some(),
        "another port is not kept"
    );
    // An answer makes room for the next upcalls, in order.
    pending.release(sent[5]);
    assert!(pending.has_unsent());
    assert_eq!(send_all(&mut pending), [UPCALLS_PER_PORT as u64 + 1]);
    assert!(!pending.has_unsent());
    assert_eq!(pending.open().len(), UPCALLS_PER_PORT + 1, "sent upcalls");
    // A flow that covers all keys leaves no upcall.
    pending.release_covered(None, &key(1, 0), &FlowMask::NONE.with_in_port());
    assert!(send_all(&mut pending).is_empty());
    assert_eq!(pending.open().len(), 1);
}

#[test]
fn ports_take_turns_after_a_full_ring() {
    let mut pending = PendingUpcalls::default();
    let mut ids = BTreeMap::new();
    for (port, n) in [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (3, 2)] {
        let Admission::Upcall(id) = pending.add((&key(port, n), None), 64, 0, || frame(1, 64))
        else {
            panic!("no upcall");
        };
        ids.insert(id, port);
    }
    ids.keys().for_each(|id| pending.retry(*id));
    let ports: Vec<_> = send_all(&mut pending).iter().map(|id| ids[id]).collect();
    assert_eq!(ports, [1, 2, 3, 1, 3, 1]);
    // Retries have the same order.
    let again: Vec<_> = pending.open().iter().map(|(id, _)| ids[id]).collect();
    assert_eq!(again, [1, 2, 3, 1, 3, 1]);
}

#[test]
fn frames_of_a_key_wait_for_one_upcall_in_order() {
    let mut pending = PendingUpcalls::default();
    assert!(pending.is_empty());
    let Admission::Upcall(first) = pending.add((&key(1, 1), None), 100, 0, || frame(1, 100)) else {
        panic!("no upcall for the first frame of a key");
    };
    let Admission::Upcall(other) = pending.add((&key(1, 2), None), 100, 0, || frame(2, 100)) else {
        panic!("no upcall for another key");
    };
    assert!(other > first);
    for n in 3..6 {
        let admission = pending.add((&key(1, 1), None), 100, 0, || frame(n, 100));
        assert_eq!(admission, Admission::Queued);
    }
    assert_eq!(pending.len(), 5);
    let open: Vec<_> = pending
        .open()
        .iter()
        .map(|(id, w)| (*id, w.frames.len()))
        .collect();
    assert_eq!(open, [(first, 4), (other, 1)]);
    let released = pending.release(first).expect("it waits");
    assert_eq!((released.key, released.port()), (key(1, 1), PortId(1)));
    assert_eq!(marks(&released.frames), [1, 3, 4, 5]);
    assert!(pending.release(first).is_none(), "given out twice");
    assert_eq!(pending.len(), 1);
    // The next frame of that key has a new upcall.
    let again = pending.add((&key(1, 1), None), 100, 0, || frame(9, 100));
    assert!(matches!(again, Admission::Upcall(id) if id > other));
}

#[test]
fn a_port_has_room_for_so_many_frames() {
    let mut pending = PendingUpcalls::default();
    for n in 0..FRAMES_PER_PORT {
        let admission = pending.add((&key(1, n as u64 % 3), None), 60, 0, || frame(0, 60));
        assert_ne!(admission, Admission::Full, "frame {n}");
    }
    let full = pending.add((&key(1, 9), None), 60, 0, || panic!("copied without room"));
    assert_eq!(full, Admission::Full);
    // Other ports are not affected.
    assert!(matches!(
        pending.add((&key(2, 9), None), 60, 0, || frame(0, 60)),
        Admission::Upcall(_)
    ));
    assert_eq!(pending.len(), FRAMES_PER_PORT + 1);
    let gone = pending.forget_port(PortId(1));
    assert_eq!(
        gone.iter().map(|w| w.frames.len()).sum::<usize>(),
        FRAMES_PER_PORT
    );
    assert_eq!(pending.len(), 1);
    assert!(matches!(
        pending.add((&key(1, 9), None), 60, 0, || frame(0, 60)),
        Admission::Upcall(_)
    ));
}

#[test]
fn a_port_has_room_for_so_many_bytes() {
    let mut pending = PendingUpcalls::default();
    let large = 60_000;
    let fit = BYTES_PER_PORT / large;
    for n in 0..fit {
        let admission = pending.add((&key(1, n as u64), None), large, 0, || frame(0, large));
        assert!(matches!(admission, Admission::Upcall(_)));
    }
    assert_eq!(
        pending.add((&key(1, 99), None), large, 0, || panic!("no room")),
        Admission::Full
    );
    let rest = BYTES_PER_PORT - fit * large;
    assert!(matches!(
        pending.add((&key(1, 99), None), rest, 0, || frame(0, rest)),
        Admission::Upcall(_)
    ));
    assert_eq!(
        pending.add((&key(1, 98), None), 1, 0, || panic!("no room")),
        Admission::Full
    );
    assert!(matches!(
        pending.add((&key(2, 1), None), large, 0, || frame(0, large)),
        Admission::Upcall(_)
    ));
}

#[test]
fn the_timeout_counts_from_the_first_frame() {
    let mut pending = PendingUpcalls::default();
    pending.add((&key(1, 1), None), 60, 1_000, || frame(1, 60));
    pending.add((&key(1, 1), None), 60, 1_000 + UPCALL_TIMEOUT_MS, || {
        frame(2, 60)
    });
    pending.add((&key(2, 1), None), 60, 1_001, || frame(3, 60));
    assert!(pending.expire(1_000 + UPCALL_TIMEOUT_MS).is_empty());
    let gone = pending.expire(1_001 + UPCALL_TIMEOUT_MS);
    assert_eq!(gone.len(), 1);
    assert_eq!(marks(&gone[0].frames), [1, 2]);
    assert_eq!(pending.len(), 1);
    // A clock that is behind the frame's arrival causes no timeout.
    assert!(pending.expire(0).is_empty());
    assert_eq!(pending.expire(u64::MAX).len(), 1);
    assert!(pending.is_empty() && pending.open().is_empty());
}

proptest! {
    /// Every frame is released exactly once, and in the order of its key.
    #[test]
    fn nothing_is_lost_or_doubled(
        steps in prop::collection::vec((0..3u32, 0..3u64, 0..10u8), 1..300),
    ) {
        let mut pending = PendingUpcalls::default();
        let mut model: BTreeMap<u64, (u32, u64, Vec<u8>)> = BTreeMap::new();
        let mut ids = BTreeSet::new();
        for (n, (port, k, what)) in steps.into_iter().enumerate() {
            let mark = n as u8;
            match what {
                0..7 => match pending.add((&key(port, k), None), 1500, n as u64, || {
                    frame(mark, 1500)
                }) {
                    Admission::Upcall(id) => {
                        prop_assert!(ids.insert(id), "a number came twice");
                        model.insert(id, (port, k, vec![mark]));
                    }
                    Admission::Queued => {
                        let waiting = model.values_mut().find(|w| (w.0, w.1) == (port, k));
                        waiting.expect("an open upcall").2.push(mark);
                    }
                    Admission::Full => {
                        let mine = model.values().filter(|w| w.0 == port);
                        prop_assert_eq!(mine.map(|w| w.2.len()).sum::<usize>(), FRAMES_PER_PORT);
                    }
                },
                7 | 8 => {
                    let id = model.keys().nth(k as usize).copied().unwrap_or(u64::MAX);
                    let desired = model.remove(&id).map(|w| w.2);
                    let got = pending.release(id).map(|w| marks(&w.frames));
                    prop_assert_eq!(got, desired);
                }
                _ => {
                    let gone = pending.forget_port(PortId(port));
                    let desired = model.values().filter(|w| w.0 == port).count();
                    prop_assert_eq!(gone.len(), desired);
                    model.retain(|_, w| w.0 != port);
                }
            }
            prop_assert_eq!(pending.len(), model.values().map(|w| w.2.len()).sum::<usize>());
            let mut open: Vec<u64> = pending.open().iter().map(|(id, _)| *id).collect();
            open.sort_unstable();
            prop_assert_eq!(open, model.keys().copied().collect::<Vec<_>>());
        }
    }
}
