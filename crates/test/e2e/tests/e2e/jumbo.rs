//! MTU 9000 and two queue pairs.

use e2e::guest::GuestSpec;
use e2e::lasthop::Lasthop;
use e2e::machine;
use e2e::traffic::{PingRun, iperf_bytes, ping, serve_iperf};

const CONFIG: &str = r#"
[switch]
name = "host1"
workers = 2

[[segment]]
name = "blue"

[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"
segment = "blue"
queues = 2
mtu = 9000

[[port]]
name = "vm2"
kind = "vhost-user"
socket = "vm2.sock"
segment = "blue"
queues = 2
mtu = 9000
"#;

#[test]
fn jumbo_frames_and_two_queue_pairs() {
    let turn = machine();
    let lasthop = Lasthop::start(CONFIG);
    turn.step(
        "boot two guests with two CPUs and two queue pairs, one of them packed without offloads",
    );
    let vm1 = GuestSpec::at(&lasthop, "vm1", 1).mtu(9000).pairs(2).start();
    let vm2 = GuestSpec::at(&lasthop, "vm2", 2).mtu(9000).pairs(2);
    let vm2 = vm2.packed().no_offloads().start();
    let (mut vm1, mut vm2) = (vm1.ready(), vm2.ready());
    for port in ["vm1", "vm2"] {
        let status = lasthop.wait_port(port, "up");
        assert_eq!(status["queue_pairs"], 2, "{status}");
    }
    assert_eq!(vm1.run("cat /sys/class/net/eth0/mtu"), "9000\n");

    turn.step("ping with 8972 bytes: one frame, no fragments");
    assert_eq!(ping(&mut vm1, "10.0.0.2 -s 8972", 50).lost(), 0);
    assert_eq!(
        vm1.run("awk '/^Ip: [0-9]/ {print $20}' /proc/net/snmp")
            .trim(),
        "0",
        "fragments were made"
    );
    let longest = lasthop.stats().get("vm2.to_guest.bytes");
    assert!(longest > 50 * 9000, "{longest} bytes for 50 pings of 9014");

    turn.step("TCP over four connections");
    serve_iperf(&mut vm2);
    serve_iperf(&mut vm1);
    let run = iperf_bytes(&mut vm1, "10.0.0.2", "-P 4");
    assert!(run.is_sound(), "{run:?}");
    let run = iperf_bytes(&mut vm2, "10.0.0.1", "-P 4");
    assert!(run.is_sound(), "{run:?}");

    turn.step("queue pairs go and come under traffic");
    let before = lasthop.stats();
    let steady = PingRun::start(&mut vm2, "10.0.0.1", 300);
    for pairs in ["1", "2", "1", "2"] {
        vm1.run(&format!("ethtool -L eth0 combined {pairs}; sleep 0.3"));
    }
    let steady = steady.wait();
    // The guest's own driver stops its queues while it changes their number.
    let moved = lasthop.stats().since(&before);
    assert!(steady.lost() <= 8, "{steady:?}, {moved:?}");
    assert_eq!(ping(&mut vm2, "10.0.0.1", 50).lost(), 0);
    lasthop.wait_port("vm1", "up");
    lasthop.stop();
}
