//! Control dies under traffic: flows that exist lose nothing, and new ones work again in less than
//! half a second.

use std::time::{Duration, Instant};

use e2e::guest::two_guests;
use e2e::lasthop::Lasthop;
use e2e::numbered::{Stream, collect, introduce, settle};
use e2e::traffic::{IperfRun, PingRun, ping, serve_iperf};
use e2e::turn;
use testkit::FakeGuest;
use testkit::packets::{Flow, SequenceChecker};

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
    let turn = turn();
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
    let steady = PingRun::start(&mut vm1, "10.0.0.2", 300);
    let stream = IperfRun::start(&mut vm1, "10.0.0.2", 3, "");
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(700));
        let control = lasthop.pid("lasthop-control").expect("control runs");
        lasthop.kill_control();
        lasthop.wait_control(control);
    }
    let steady = steady.wait();
    assert_eq!(steady.lost(), 0, "{steady:?}");
    let stream = stream.wait();
    assert!(stream.bytes > 5_000_000, "{stream:?}");
    assert_eq!(
        lasthop.pid("lasthop-switch"),
        Some(switch),
        "the switch was restarted"
    );

    turn.step("the new control knows ports, addresses and counters");
    lasthop.wait_port("late", "waiting");
    lasthop.wait_port("vm1", "up");
    let moved = lasthop.stats().since(&before);
    assert!(moved.sent("vm1") >= 300, "counters were reset: {moved:?}");
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
    let turn = turn();
    let lasthop = Lasthop::start(CONFIG);
    let (mut a, mut b) = (lasthop.connect("vm1", 1), lasthop.connect("vm2", 2));
    introduce(&mut a, &mut b, Flow::v4(1, 2));

    let (mut checker, mut steady) = (SequenceChecker::default(), Stream::new(0, Flow::v4(1, 2)));
    for round in 0..5 {
        turn.step(&format!("kill -9 of control, time {}", round + 1));
        let before = lasthop.pid("lasthop-control").expect("control runs");
        lasthop.kill_control();
        let recovery = recover(&mut a, &mut b, &mut steady, &mut checker, round);
        turn.step(&format!("    new flows work again after {recovery:?}"));
        assert!(recovery < RECOVERY, "{recovery:?}");
        lasthop.wait_control(before);
    }
    let clean = settle(&mut b, &mut checker, &steady, Duration::from_secs(2));
    assert!(
        clean,
        "of {} frames on a flow that exists: {checker:?}",
        steady.sent()
    );
    lasthop.stop();
}

/// Sends for a second; gives the time until the first frame of a new flow arrived.
fn recover(
    a: &mut FakeGuest,
    b: &mut FakeGuest,
    steady: &mut Stream,
    checker: &mut SequenceChecker,
    round: u8,
) -> Duration {
    const NEW: u16 = 1000;
    let began = Instant::now();
    let mut first = None;
    for tick in 0..2000_u16 {
        steady.send(a, 100);
        if tick.is_multiple_of(20) {
            // A source that the switch has never seen: no cached flow matches.
            let [high, low] = tick.to_be_bytes();
            let flow = Flow {
                src_mac: [2, 0xee, 0, round, high, low],
                ..Flow::v4(1, 2)
            };
            Stream::new(NEW + u16::from(round) * 2000 + tick, flow).send(a, 100);
        }
        while began.elapsed() < Duration::from_micros(500) * u32::from(tick) {
            let new = collect(b, checker).into_iter().any(|key| key.stream >= NEW);
            first = first.or(new.then(|| began.elapsed()));
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    first.expect("a new flow works again within a second")
}
