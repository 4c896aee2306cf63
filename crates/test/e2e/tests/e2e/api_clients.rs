//! Clients of the API that stall, flood and send garbage take nothing from guests, and only so much
//! memory.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use e2e::beside;
use e2e::lasthop::{Lasthop, guest_ports};
use e2e::numbered::{Stream, introduce, settle, trickle};
use testkit::packets::{Flow, SequenceChecker};
use testkit::stop::Stop;
use testkit::wait::LIMIT;

/// Memory limit of control for all clients together, in KiB.
const MEMORY_KIB: u64 = 16 << 10;

fn connect(lasthop: &Lasthop) -> UnixStream {
    UnixStream::connect(lasthop.socket("api.sock")).expect("the API listens")
}

/// Sends something, and reads what comes, if anything does.
fn poke(lasthop: &Lasthop, bytes: &[u8]) {
    let mut stream = connect(lasthop);
    // It may hang up at any time.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
}

/// Everything that a client can do wrong, again and again.
fn misbehave(lasthop: &Lasthop, seed: u8, end: &Stop) {
    let noise: Vec<u8> = (0..4096u32)
        .map(|n| (n as u8).wrapping_mul(31) ^ seed)
        .collect();
    let head = |length: usize| {
        format!("PUT /v1/state HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n")
    };
    let deep = "[".repeat(100_000);
    while !end.is_set() {
        poke(lasthop, &noise);
        poke(lasthop, &[head(noise.len()).as_bytes(), &noise].concat());
        poke(
            lasthop,
            &[head(deep.len()).as_bytes(), deep.as_bytes()].concat(),
        );
        poke(lasthop, head(usize::MAX).as_bytes());
        poke(
            lasthop,
            format!("GET /{} HTTP/1.1\r\n", "x".repeat(200_000)).as_bytes(),
        );
        poke(
            lasthop,
            &b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(20),
        );
        // Asked for, and never read.
        let mut deaf = connect(lasthop);
        let _ = deaf.write_all(&b"GET /v1/openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(20));
    }
}

#[test]
fn guests_do_not_notice_them() {
    let turn = beside();
    let lasthop = Lasthop::start(&guest_ports("", &["vm1", "vm2"]));
    let (mut a, mut b) = (lasthop.connect("vm1", 1), lasthop.connect("vm2", 2));
    introduce(&mut a, &mut b, Flow::v4(1, 2));
    let control = lasthop.pid("lasthop-control");
    let held = |lasthop: &Lasthop| {
        let all = lasthop.footprint().into_iter();
        let mut control = all.filter(|print| print.name == "lasthop-control");
        control.next().expect("control runs")
    };
    let before = held(&lasthop);
    let (mut checker, mut steady) = (SequenceChecker::default(), Stream::new(0, Flow::v4(1, 2)));
    let mut last = lasthop.metrics();

    turn.step("a hundred idle clients, and two that do everything wrong");
    let idle: Vec<UnixStream> = (0..100).map(|_| connect(&lasthop)).collect();
    let end = Stop::new();
    std::thread::scope(|scope| {
        let _end = end.at_end();
        for seed in [1, 2] {
            let (lasthop, end) = (&lasthop, &end);
            scope.spawn(move || misbehave(lasthop, seed, end));
        }
        for round in 0..5000 {
            trickle(&mut steady, (&mut a, &mut b), &mut checker, 100);
            std::thread::sleep(Duration::from_micros(200));
            if round % 1000 == 0 {
                // Who behaves is answered all the same, and no counter falls.
                assert_eq!(lasthop.json(&["status"])["name"], "host1");
                let now = lasthop.metrics();
                assert_eq!(now.fallen_since(&last), [""; 0]);
                last = now;
            }
        }
    });
    settle(&mut b, &mut checker, &steady, LIMIT);
    assert_eq!(lasthop.stats().drops(), [].into());
    let received = "lasthop_port_received_frames_total{port=\"vm1\"}";
    assert!(lasthop.metrics().get(received) >= steady.sent() as f64);
    let now = held(&lasthop);
    let grown = now.private_kib.saturating_sub(before.private_kib);
    turn.step(&format!("control has grown by {grown} KiB"));
    assert!(grown < MEMORY_KIB, "{before:?} {now:?}");
    assert!(now.fds <= before.fds + 70, "{before:?} {now:?}");
    assert_eq!(
        lasthop.pid("lasthop-control"),
        control,
        "control was restarted"
    );
    drop((idle, a, b));
    lasthop.stop();
}
