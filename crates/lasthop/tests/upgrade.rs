//! `lasthop upgrade` under traffic: every process is another one afterwards, and guests have lost nothing, got nothing
//! twice and nothing out of order. Where the new version is no good, the old one goes on.
//!
//! Senders have no more frames on their way than fit into the receiver's queue, and wait when it is so; so no frame may
//! be dropped for any reason. `LASTHOP_UPGRADES=1000` does it more often.

#[allow(dead_code, reason = "the other tests of this folder use the rest")]
mod running;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use running::{Place, Running, eventually, port};
use rustix::process::Signal;
use serde_json::Value;
use testkit::packets::{Flow, Numbered, SequenceChecker, numbered_payload, payload_of, udp};
use testkit::{FakeGuest, GuestConfig};

/// Frames that may be on their way in one direction: fewer than a receiver's 256 buffers.
const WINDOW: u64 = 200;

/// Upgrades of each test.
fn upgrades() -> usize {
    let wanted = std::env::var("LASTHOP_UPGRADES").ok();
    wanted.map_or(10, |n| n.parse().expect("LASTHOP_UPGRADES is a number"))
}

fn config(workers: u16) -> String {
    let switch = format!("[switch]\nname = \"host1\"\nworkers = {workers}\n");
    let segment = "[[segment]]\nname = \"blue\"\n";
    let ports = [1, 2].map(|n| port(&format!("vm{n}"), "segment = \"blue\""));
    format!("{switch}{segment}{}", ports.concat())
}

fn guest(place: &Place, n: u8, config: GuestConfig) -> FakeGuest {
    let path = place.run_dir().join(format!("vm{n}.sock"));
    let mut guest = FakeGuest::connect(&path, config.guest(n)).unwrap();
    guest.wait_link().unwrap();
    guest
}

/// Two guests that talk to each other for as long as a closure runs; then all that was sent must have arrived.
fn under_traffic<T>(
    place: &Place,
    guest_config: GuestConfig,
    during: impl FnOnce(&dyn Fn()) -> T,
) -> T {
    let mut guests = [1, 2].map(|n| guest(place, n, guest_config.clone()));
    let received = [AtomicU64::new(0), AtomicU64::new(0)];
    let stop = AtomicBool::new(false);
    let [a, b] = &mut guests;
    let (result, seen) = std::thread::scope(|scope| {
        let first = scope.spawn(|| talk(a, 1, 2, [&received[0], &received[1]], &stop));
        let second = scope.spawn(|| talk(b, 2, 1, [&received[1], &received[0]], &stop));
        let more = || {
            let before = [0, 1].map(|n| received[n].load(SeqCst));
            eventually("both guests see traffic", || {
                (0..2).all(|n| received[n].load(SeqCst) > before[n] + 2 * WINDOW)
            });
        };
        more();
        let result = during(&more);
        more();
        stop.store(true, SeqCst);
        (result, [first.join().unwrap(), second.join().unwrap()])
    });
    let sent = seen.each_ref().map(|(sent, _)| *sent);
    for (stream, (_, checker)) in [2u16, 1].into_iter().zip(&seen) {
        let sent = sent[usize::from(stream) - 1];
        assert!(
            checker.is_clean(stream, sent),
            "{sent} were sent: {checker:?}"
        );
    }
    println!("{} frames", sent[0] + sent[1]);
    for guest in &mut guests {
        guest.wait_link().expect("the same connection");
        guest.disconnect().expect("a good end");
    }
    result
}

/// Sends numbered frames to `peer`, as many as there is room for, and checks what comes from there. `received`: what this
/// guest has, and what its peer has. After the stop, waits for what is on its way. Frames sent, and what came.
fn talk(
    guest: &mut FakeGuest,
    n: u8,
    peer: u8,
    [own, peers]: [&AtomicU64; 2],
    stop: &AtomicBool,
) -> (u64, SequenceChecker) {
    let mut checker = SequenceChecker::default();
    let flow = Flow::v4(n, peer);
    let (stream, mut seq) = (u16::from(n), 0);
    let mut quiet = 0;
    while quiet < 100 {
        let room = WINDOW - (seq - peers.load(SeqCst)).min(WINDOW);
        let stopped = stop.load(SeqCst);
        for _ in 0..if stopped { 0 } else { room.min(32) } {
            let len = 64 + (seq as usize * 37) % 1300;
            let payload = numbered_payload(Numbered { stream, seq }, len);
            guest.send(&udp(&flow, &payload)).expect("room");
            seq += 1;
        }
        let before = checker.received;
        for got in guest.recv_all().expect("a sound device") {
            let payload = payload_of(&got.frame).expect("a sound frame");
            checker.see(payload).expect("a sound payload");
        }
        own.store(checker.received, SeqCst);
        if stopped && checker.received == before {
            quiet += 1;
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
    (seq, checker)
}

/// Drops of both ports, by any name.
fn drops(lasthop: &Running) -> u64 {
    let stats = lasthop.json("stats");
    let ports = stats["ports"].as_array().unwrap().iter();
    let of_port = |port: &Value| {
        let drops = port["drops"].as_object().unwrap().values();
        drops.map(|n| n.as_u64().unwrap()).sum::<u64>()
    };
    ports.map(of_port).sum()
}

fn pids(lasthop: &Running) -> [i32; 2] {
    ["control", "switch"].map(|name| lasthop.pid(name))
}

/// Upgrades to the binaries that run already; the gap in milliseconds.
fn upgrade(lasthop: &Running, connections: u64) -> f64 {
    let before = pids(lasthop);
    let report = lasthop.json("upgrade");
    let after = pids(lasthop);
    assert_ne!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
    let report = &report["upgraded"];
    assert_eq!(report["connections"], connections, "{report}");
    assert_eq!(report["to"], env!("CARGO_PKG_VERSION"));
    report["gap_ms"].as_f64().unwrap()
}

/// The whole test: guests under load, so many upgrades.
fn nobody_notices(what: &str, workers: u16, guests: GuestConfig) {
    let place = Place::new();
    let mut lasthop = place.start(&config(workers));
    let mut gaps = under_traffic(&place, guests, |more| {
        let mut gaps = Vec::new();
        for _ in 0..upgrades() {
            gaps.push(upgrade(&lasthop, 2));
            more();
        }
        gaps
    });
    gaps.sort_by(f64::total_cmp);
    println!(
        "{what}, {workers} workers: gap p50 {:.2} ms, max {:.2} ms",
        gaps[gaps.len() / 2],
        gaps[gaps.len() - 1]
    );
    assert_eq!(drops(&lasthop), 0, "{}", lasthop.prints("stats"));
    assert!(!lasthop.log().contains("turned a second"));
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn split_queues() {
    nobody_notices("split", 1, GuestConfig::default());
}

#[test]
fn split_queues_in_order_with_three_workers() {
    nobody_notices("split, in order", 3, GuestConfig::default().in_order());
}

#[test]
fn packed_queues() {
    nobody_notices("packed", 1, GuestConfig::default().packed());
}

#[test]
fn packed_queues_in_order_with_three_workers() {
    nobody_notices(
        "packed, in order",
        3,
        GuestConfig::default().packed().in_order(),
    );
}
