//! Flushes of many connections beside others that continue.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use e2e::lasthop::{Lasthop, guest_ports};
use e2e::{Turn, beside, repetitions};
use serde_json::Value;
use testkit::FakeGuest;
use testkit::packets::{Flow, Numbered, SequenceChecker, numbered_payload, payload_of, udp};
use testkit::stop::Stop;
use testkit::wait::wait_until;

use super::count;
use super::frames::{SERVERS, connect};

/// Connections that are flushed, unless `LASTHOP_CONNECTIONS` has another number.
const CONNECTIONS: usize = 5000;
/// Datagrams of the other connection that are on their way.
const WINDOW: u64 = 100;
/// Datagrams on their way that open connections.
const OPENING: usize = 128;
/// How often connections are opened that are not there yet.
const ATTEMPTS: usize = 5;

/// The datagram that opens a connection of `vm1`, by its number.
fn question(number: u32) -> Flow {
    let [_, b, c, _] = (number >> 14 << 8).to_be_bytes();
    let flow = Flow::v4(1, 2).ports(1024 + (number & 0x3fff) as u16, 80);
    Flow {
        src: [10, 64 + b, c, 1].into(),
        ..flow
    }
}

/// Takes what has arrived; returns how much that is.
fn take(guest: &mut FakeGuest) -> usize {
    guest.recv_all().expect("a correct device").len()
}

/// Opens all connections, and has each answered. A lost datagram comes again.
pub(super) fn open_all(lasthop: &Lasthop, a: &mut FakeGuest, b: &mut FakeGuest, all: u32) {
    let mut there = 0;
    for _ in 0..ATTEMPTS {
        for first in (0..all).step_by(OPENING) {
            let some = first..all.min(first + OPENING as u32);
            for number in some.clone() {
                a.send(&udp(&question(number), b"question")).expect("room");
            }
            wait_until("questions arrive", || take(b) > 0);
            for number in some {
                let answer = udp(&question(number).reversed(), b"answer");
                b.send(&answer).expect("room");
            }
            take(a);
        }
        there = count(lasthop, "net 10.64.0.0/10");
        if there == u64::from(all) {
            return;
        }
    }
    panic!("{there} connections of {all}");
}

/// Sends numbered datagrams until it is over. Returns their number.
fn talk(guest: &mut FakeGuest, arrived: &AtomicU64, is_over: &Stop) -> u64 {
    let flow = Flow::v4(3, 4).ports(7, 80);
    let mut seq = 0;
    while !is_over.is_set() {
        if seq - arrived.load(SeqCst) < WINDOW {
            let payload = numbered_payload(Numbered { stream: 1, seq }, 200);
            guest.send(&udp(&flow, &payload)).expect("room");
            seq += 1;
        } else {
            thread::yield_now();
        }
    }
    seq
}

/// Checks the datagrams until they have stopped.
fn listen(guest: &mut FakeGuest, arrived: &AtomicU64, is_over: &Stop) -> SequenceChecker {
    let mut checker = SequenceChecker::default();
    let mut quiet = 0;
    while quiet < 20 {
        match guest.recv(Duration::from_millis(10)) {
            Ok(Some(got)) => {
                let payload = payload_of(&got.frame).expect("a datagram");
                checker.see(payload);
                arrived.store(checker.received, SeqCst);
                quiet = 0;
            }
            Ok(None) => quiet += u32::from(is_over.is_set()),
            Err(error) => panic!("{error}"),
        }
    }
    checker
}

/// The last flush that an event reports.
fn reported(lasthop: &Lasthop) -> Option<Value> {
    let kind = [
        "--kind",
        "connections_flushed",
        "--last",
        "1",
        "--no-follow",
    ];
    let said = lasthop.ok(&[&["events", "--json"][..], &kind].concat());
    said.lines()
        .last()
        .map(|line| serde_json::from_str(line).expect("JSON"))
}

/// Runs a flush beside a stream of datagrams, none of which is lost.
fn beside_others(
    turn: &Turn,
    (sender, receiver): (&mut FakeGuest, &mut FakeGuest),
    flush: impl FnOnce(),
) {
    let (arrived, is_over) = (AtomicU64::new(0), Stop::new());
    let (sent, checker) = thread::scope(|scope| {
        let listening = scope.spawn(|| listen(receiver, &arrived, &is_over));
        let talking = scope.spawn(|| talk(sender, &arrived, &is_over));
        let end = is_over.at_end();
        let more = || {
            let before = arrived.load(SeqCst);
            wait_until("others go on", || {
                arrived.load(SeqCst) > before + 2 * WINDOW
            });
        };
        more();
        flush();
        more();
        drop(end);
        let sent = talking.join().expect("the port takes frames");
        (sent, listening.join().expect("frames as they were"))
    });
    turn.step(&format!(
        "    {sent} datagrams of another connection, {checker:?}"
    ));
    assert!(checker.is_clean(1, sent), "{sent} were sent: {checker:?}");
}

#[test]
fn flushes_of_many_connections_disturb_no_other() {
    let turn = beside();
    let all = repetitions("LASTHOP_CONNECTIONS", CONNECTIONS) as u32;
    let names = ["vm1", "vm2", "vm3", "vm4"];
    let max = (4 * all).next_power_of_two().clamp(1024, 1 << 22);
    let keys = format!(
        "[switch.connections]\nmax = {max}\nrecovery = 0\n\
         timeouts = {{ udp = \"1h\", udp_stream = \"1h\" }}\n"
    );
    let lasthop = Lasthop::start(&(guest_ports(&keys, &names) + SERVERS));
    let [mut a, mut b, mut c, mut d] = connect(&lasthop, [1, 2, 3, 4]);
    let (a, b, c, d) = (&mut a, &mut b, &mut c, &mut d);
    let flushes: [(&str, &[&str], &str); 3] = [
        ("with a port", &["--port", "vm1"], "flushing"),
        ("with a filter", &["net 10.64.0.0/10"], "flushing"),
        ("of all", &[], "flushed"),
    ];
    for (what, selection, said) in flushes {
        turn.step(&format!("{all} connections"));
        open_all(&lasthop, a, b, all);
        turn.step(&format!("a flush {what}"));
        beside_others(&turn, (&mut *c, &mut *d), || {
            let before = reported(&lasthop);
            let start = Instant::now();
            let answer = lasthop.ok(&[&["connections", "flush"], selection].concat());
            let accepted = start.elapsed();
            assert!(answer.contains(said), "{answer}");
            let mut event = None;
            wait_until("the end is reported", || {
                event = reported(&lasthop);
                event != before
            });
            let finished = start.elapsed();
            let event = event.expect("an event");
            turn.step(&format!(
                "    accepted {accepted:?}, finished {finished:?}: {event}"
            ));
            if said == "flushing" {
                assert_eq!(event["count"], u64::from(all), "{event}");
            }
            assert_eq!(count(&lasthop, "net 10.64.0.0/10"), 0);
        });
    }
    lasthop.stop();
}
