//! Limits of a receiver, in any order in which the receivers of a batch are locked.

use ipc::limits::{Limit, Limits, Rate};
use port::{DropReason, PortId};
use testkit::packets::{BROADCAST, Flow, ethernet, mac, udp};

use super::bench::Bench;
use crate::forward::limits::PortLimits;

/// Frames of each kind in a batch.
const FRAMES: usize = 20;

fn to(guest: u8) -> Vec<u8> {
    udp(&Flow::v4(1, guest), &[7; 58])
}

fn broadcast() -> Vec<u8> {
    ethernet(BROADCAST, mac(1), 0x88b5, &[0; 86])
}

/// Returns a bench with flows from port 1 to 2, to 3 and to all. Port 2 may get one frame per
/// second, and has got it.
fn bench() -> Bench {
    let mut bench = Bench::with_stations();
    for frame in [to(2), to(3), broadcast()] {
        bench.send_and_decide(1, &frame);
    }
    let one = Rate {
        per_second: 1,
        burst: 1,
    };
    let limits = PortLimits::new(Limits {
        to_guest: Limit {
            packets: Some(one),
            bits: None,
        },
        ..Limits::default()
    });
    bench.switch.set_limits(PortId(2), limits);
    bench.send(1, &to(2));
    (1..=7).for_each(|port| drop(bench.port(port).delivered()));
    bench
}

/// Checks that the limit holds for all `frames` of one batch, of which so many are for port 2,
/// while another worker has the lock of another port.
#[track_caller]
fn check(frames: &[Vec<u8>], limited: usize, elsewhere: u32) {
    let mut bench = bench();
    let key = format!("port 2 drops {}", DropReason::RateLimited);
    let before = bench.reading()[&key];
    frames
        .iter()
        .for_each(|frame| bench.port(1).push(frame, Default::default()));
    bench.port(elsewhere).hold_elsewhere(1);
    bench.serve(1);
    assert_eq!(bench.port(2).frames().len(), 0);
    assert_eq!(bench.reading()[&key] - before, limited as u64);
}

#[test]
fn a_receiver_is_limited_when_another_one_is_locked_elsewhere() {
    let frames = [vec![to(2); FRAMES], vec![to(3); FRAMES]].concat();
    check(&frames, FRAMES, 3);
}

#[test]
fn a_receiver_is_limited_after_a_flood_to_one_that_is_locked_elsewhere() {
    let frames = [vec![broadcast()], vec![to(2); FRAMES]].concat();
    check(&frames, FRAMES + 1, 4);
}
