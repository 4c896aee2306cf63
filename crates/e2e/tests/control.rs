//! Control dies under traffic: flows that exist lose nothing, and new ones work again in less than half a second.

use std::time::{Duration, Instant};

use e2e::guest::GuestSpec;
use e2e::lasthop::Lasthop;
use e2e::traffic::{IperfRun, PingRun, ping, serve_iperf};
use e2e::turn;

const CONFIG: &str = r#"
[switch]
name = "host1"

[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"

[[port]]
name = "vm2"
kind = "vhost-user"
socket = "vm2.sock"
"#;

/// The longest that new flows may take to work again, as the issue asks.
const RECOVERY: Duration = Duration::from_millis(500);

#[test]
fn control_may_die() {
    let turn = turn();
    let lasthop = Lasthop::start(CONFIG);
    turn.step("boot two guests");
    let vm1 = GuestSpec::dialing("vm1", lasthop.socket("vm1.sock"))
        .ip("10.0.0.1/24")
        .start();
    let vm2 = GuestSpec::dialing("vm2", lasthop.socket("vm2.sock"))
        .ip("10.0.0.2/24")
        .start();
    let (mut vm1, mut vm2) = (vm1.ready(), vm2.ready());
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

    turn.step("a new flow right after the kill");
    vm2.run("ip address add 10.0.0.22/24 dev eth0");
    let began = Instant::now();
    let control = lasthop.pid("lasthop-control").expect("control runs");
    lasthop.kill_control();
    // A new destination: its ARP request is a broadcast that no cached flow matches after the guest's address changed.
    vm1.run("ip link set eth0 address 52:54:00:99:99:99; ping -c 1 -W 5 10.0.0.22");
    let guest = began.elapsed();
    lasthop.wait_control(control);
    turn.step(&format!(
        "answered after {guest:?}; the new control after {:?}",
        began.elapsed()
    ));
    assert!(
        guest < RECOVERY + Duration::from_millis(300),
        "{guest:?}; 300 ms are the guest's own commands"
    );

    lasthop.stop();
    turn.step("done");
}
