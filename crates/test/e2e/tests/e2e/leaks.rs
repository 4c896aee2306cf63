//! Guests come and go fifty times, in order and not, and ports with them: no memory, descriptor,
//! mapping or thread is left behind, and two other guests lose no frame meanwhile.

use e2e::lasthop::{Lasthop, same_footprint};
use e2e::numbered::{Stream, introduce, settle};
use e2e::{Turn, beside};
use testkit::packets::{Flow, SequenceChecker};
use testkit::wait::LIMIT;
use testkit::{FakeGuest, GuestConfig};

const CONFIG: &str = r#"
[switch]
name = "host1"
workers = 2

[[port]]
name = "a"
kind = "vhost-user"
socket = "a.sock"

[[port]]
name = "b"
kind = "vhost-user"
socket = "b.sock"

[[port]]
name = "churn"
kind = "vhost-user"
socket = "churn.sock"
queues = 2
"#;

/// How often guests come and go.
const REPETITIONS: u32 = 50;

/// Two guests that talk while others come and go.
struct Steady {
    a: FakeGuest,
    b: FakeGuest,
    stream: Stream,
    checker: SequenceChecker,
}

impl Steady {
    fn new(lasthop: &Lasthop) -> Steady {
        let (mut a, mut b) = (lasthop.connect("a", 1), lasthop.connect("b", 2));
        introduce(&mut a, &mut b, Flow::v4(1, 2));
        Steady {
            a,
            b,
            stream: Stream::new(0, Flow::v4(1, 2)),
            checker: SequenceChecker::default(),
        }
    }

    fn talk(&mut self) {
        for _ in 0..50 {
            self.stream.send(&mut self.a, 1000);
        }
        settle(&mut self.b, &mut self.checker, &self.stream, LIMIT);
    }
}

/// A guest with two queue pairs, every other time packed, that has exchanged frames with `a`.
fn visitor(lasthop: &Lasthop, steady: &mut Steady, round: u32) -> FakeGuest {
    let config = GuestConfig::default().guest(3).pairs(2);
    let config = if round.is_multiple_of(2) {
        config
    } else {
        config.packed()
    };
    let mut guest = lasthop.connect_as("churn", config);
    introduce(&mut guest, &mut steady.a, Flow::v4(3, 1));
    guest
}

/// A guest that comes, talks and goes: in order, or as one that was killed.
fn come_and_go(lasthop: &Lasthop, steady: &mut Steady, round: u32) {
    let mut guest = visitor(lasthop, steady, round);
    match round % 3 {
        0 => guest.disconnect().expect("the session ends in order"),
        1 => guest.crash(),
        _ => {
            guest.reset().expect("the guest reboots");
            introduce(&mut guest, &mut steady.a, Flow::v4(3, 1));
        }
    }
    drop(guest);
    lasthop.wait_port("churn", "waiting");
    steady.talk();
}

/// A port that is removed while its guest talks, and comes back.
fn unplug_and_plug(lasthop: &Lasthop, steady: &mut Steady, round: u32) {
    let guest = visitor(lasthop, steady, round);
    lasthop.ok(&["port", "remove", "churn"]);
    steady.talk();
    drop(guest);
    lasthop.ok(&[
        "port",
        "add",
        "churn",
        "--kind",
        "vhost-user",
        "--socket",
        "churn.sock",
        "--queues",
        "2",
    ]);
    lasthop.wait_port("churn", "waiting");
}

fn check(turn: &Turn, what: &str, lasthop: &Lasthop, mut once: impl FnMut(u32)) {
    turn.step(&format!("{what}: a few times to warm up"));
    (0..6).for_each(&mut once);
    let before = lasthop.footprint();
    turn.step(&format!("{what}: {REPETITIONS} times; before: {before:#?}"));
    (0..REPETITIONS).for_each(&mut once);
    same_footprint(what, &before, lasthop);
}

#[test]
fn nothing_is_left_behind() {
    let turn = beside();
    let lasthop = Lasthop::start(CONFIG);
    let mut steady = Steady::new(&lasthop);
    check(&turn, "guests", &lasthop, |round| {
        come_and_go(&lasthop, &mut steady, round)
    });
    check(&turn, "ports", &lasthop, |round| {
        unplug_and_plug(&lasthop, &mut steady, round)
    });
    lasthop.stop();
}
