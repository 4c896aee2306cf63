//! Control dies under traffic: flows that exist lose nothing, and new ones work again, in less than
//! half a second on a machine without other load (`make timing`).

use std::time::{Duration, Instant};

use e2e::guest::two_guests;
use e2e::lasthop::Lasthop;
use e2e::machine;
use e2e::numbered::{Stream, collect, introduce, settle, trickle};
use e2e::traffic::{PingRun, Transfer, ping, serve_iperf};
use testkit::FakeGuest;
use testkit::packets::{Flow, SequenceChecker};
use testkit::wait::{LIMIT, assert_faster};

const CONFIG: &str = r#"
[switch]
name = "host1"

[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"
port_security = { macs = "any" }

[[port]]
name = "vm2"
kind = "vhost-user"
socket = "vm2.sock"
"#;

/// The longest that new flows may take to work again.
const RECOVERY: Duration = Duration::from_millis(500);

#[test]
fn control_may_die() {
    let turn = machine();
    let lasthop = Lasthop::start(CONFIG);
    turn.step("boot two guests");
    let (mut vm1, mut vm2) = two_guests(&lasthop);
    assert_eq!(ping(&mut vm1, "10.0.0.2", 20).lost(), 0);
    serve_iperf(&mut vm2);

    turn.step("a port that was added at run time, to see whether it survives");
    lasthop.ok(&[
        "port",
        "add",
        "late",
        "--kind",
        "vhost-user",
        "--socket",
        "late.sock",
    ]);

    turn.step("kill -9 of control under a ping and a TCP flow");
    let switch = lasthop.pid("lasthop-switch").expect("the switch runs");
    let before = lasthop.stats();
    let steady = PingRun::endless(&mut vm1, "10.0.0.2");
    let stream = Transfer::start(&mut vm1, "10.0.0.2", &lasthop, "vm2");
    for _ in 0..3 {
        lasthop.replace_control();
        stream.goes_on();
    }
    stream.end(&mut vm1);
    let steady = steady.stop(&mut vm1);
    assert_eq!(steady.lost(), 0, "{steady:?}");
    assert_eq!(
        lasthop.pid("lasthop-switch"),
        Some(switch),
        "the switch was restarted"
    );

    turn.step("the new control knows ports, addresses and counters");
    lasthop.wait_port("late", "waiting");
    lasthop.wait_port("vm1", "up");
    let moved = lasthop.stats().since(&before);
    let sent = u64::from(steady.sent);
    assert!(moved.sent("vm1") >= sent, "counters were reset: {moved:?}");
    assert!(moved.drops().is_empty(), "dropped: {:?}", moved.drops());

    turn.step("an unknown destination");
    vm2.run("ip address add 10.0.0.22/24 dev eth0");
    assert_eq!(ping(&mut vm1, "10.0.0.22", 20).lost(), 0);
    lasthop.stop();
}

/// One frame every half a millisecond on a flow that exists, and a new flow every ten, while
/// control is killed.
#[test]
fn flows_that_exist_lose_nothing_and_new_ones_work_again_soon() {
    let turn = machine();
    let lasthop = Lasthop::start(CONFIG);
    let (mut a, mut b) = (lasthop.connect("vm1", 1), lasthop.connect("vm2", 2));
    introduce(&mut a, &mut b, Flow::v4(1, 2));

    let (mut checker, mut steady) = (SequenceChecker::default(), Stream::new(0, Flow::v4(1, 2)));
    let mut new = NewFlows { count: 0 };
    for round in 0..5 {
        turn.step(&format!("kill -9 of control, time {}", round + 1));
        let before = lasthop.pid("lasthop-control").expect("control runs");
        lasthop.kill_control();
        let recovery = recover(&mut a, &mut b, (&mut steady, &mut new), &mut checker);
        turn.step(&format!("    new flows work again after {recovery:?}"));
        assert_faster(recovery, RECOVERY);
        lasthop.wait_control(before);
    }
    settle(&mut b, &mut checker, &steady, LIMIT);
    lasthop.stop();
}

/// Flows of stations that the switch has never seen: no cached flow matches.
struct NewFlows {
    count: u16,
}

impl NewFlows {
    /// The number of their first stream.
    const FIRST: u16 = 1000;

    fn send(&mut self, from: &mut FakeGuest) {
        let [high, low] = self.count.to_be_bytes();
        let flow = Flow {
            src_mac: [2, 0xee, 0, 0, high, low],
            ..Flow::v4(1, 2)
        };
        Stream::new(Self::FIRST + self.count, flow).send(from, 100);
        self.count += 1;
    }
}

/// Sends for a second, or until a frame of a new flow arrives; gives the time until the first one
/// did.
fn recover(
    a: &mut FakeGuest,
    b: &mut FakeGuest,
    (steady, new): (&mut Stream, &mut NewFlows),
    checker: &mut SequenceChecker,
) -> Duration {
    let (began, since) = (Instant::now(), NewFlows::FIRST + new.count);
    let mut first = None;
    for tick in 0_u32.. {
        if let Some(first) = first.filter(|_| tick >= 2000) {
            return first;
        }
        assert!(began.elapsed() < LIMIT, "no new flow works");
        if tick.is_multiple_of(20) {
            new.send(a);
        }
        let mut keys = trickle(steady, (&mut *a, &mut *b), checker, 100);
        loop {
            let came = keys.iter().any(|key| key.stream >= since);
            first = first.or(came.then(|| began.elapsed()));
            if began.elapsed() >= Duration::from_micros(500) * tick {
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
            keys = collect(b, checker);
        }
    }
    unreachable!("the loop has no end")
}
