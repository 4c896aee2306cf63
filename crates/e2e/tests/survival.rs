//! The switch is killed under traffic of real guests: they see no disconnection and no reset, and
//! continue.

use std::time::Duration;

use e2e::guest::{Guest, GuestSpec};
use e2e::lasthop::{Lasthop, TWO_PORTS};
use e2e::traffic::{IperfRun, PingRun, ping, reachable, serve_iperf};
use e2e::turn;

const KILLS: usize = 5;

/// How often the driver has seen its link go or come.
fn link_changes(guest: &mut Guest) -> String {
    guest.run("cat /sys/class/net/eth0/carrier_changes")
}

#[test]
fn the_switch_may_die() {
    let turn = turn();
    let lasthop = Lasthop::start(TWO_PORTS);
    turn.step("boot two guests, one with packed queues");
    let vm1 = GuestSpec::dialing("vm1", lasthop.socket("vm1.sock"))
        .ip("10.0.0.1/24")
        .start();
    let vm2 = GuestSpec::dialing("vm2", lasthop.socket("vm2.sock"))
        .ip("10.0.0.2/24")
        .packed()
        .start();
    let (mut vm1, mut vm2) = (vm1.ready(), vm2.ready());
    assert_eq!(ping(&mut vm1, "10.0.0.2", 20).lost(), 0);
    serve_iperf(&mut vm2);
    let links = [link_changes(&mut vm1), link_changes(&mut vm2)];
    let before = lasthop.stats();

    turn.step("kill -9 of the switch under a ping and a TCP flow");
    let steady = PingRun::start(&mut vm1, "10.0.0.2", 400);
    let stream = IperfRun::start(&mut vm1, "10.0.0.2", 5, "");
    for _ in 0..KILLS {
        std::thread::sleep(Duration::from_millis(700));
        let control = lasthop.pid("lasthop-control").expect("control runs");
        lasthop.kill_switch();
        lasthop.wait_control(control);
    }
    let (steady, stream) = (steady.wait(), stream.wait());
    turn.step(&format!("    {steady:?}, {stream:?}"));
    // What waited in the switch for an answer dies with it, and nothing else.
    assert!(steady.lost() <= 4 * KILLS as u32, "{steady:?}");
    assert!(stream.bytes > 5_000_000, "{stream:?}");

    turn.step("no guest has noticed");
    assert_eq!([link_changes(&mut vm1), link_changes(&mut vm2)], links);
    let log = lasthop.log();
    assert!(!log.contains("disconnected"), "{log}");
    assert_eq!(log.matches("front end connected").count(), 2, "{log}");
    let moved = lasthop.stats().since(&before);
    assert!(moved.sent("vm1") >= 350, "counters were reset: {moved:?}");
    assert_eq!(ping(&mut vm1, "10.0.0.2", 50).lost(), 0);

    turn.step("a driver that is reset after all that starts anew");
    vm2.reboot();
    assert!(reachable(&mut vm1, "10.0.0.2"));
    lasthop.stop();
    turn.step("done");
}

/// QEMU offers the start of a packed queue after its connection broke, wherever the queue stands.
#[test]
fn packed_queues_survive_a_connection_that_breaks() {
    let turn = turn();
    let lasthop = Lasthop::start(TWO_PORTS);
    turn.step("boot two guests with packed queues");
    let guest = |name: &str, ip: &str| {
        let socket = lasthop.socket(&format!("{name}.sock"));
        GuestSpec::dialing(name, socket).ip(ip).packed().start()
    };
    let (vm1, vm2) = (guest("vm1", "10.0.0.1/24"), guest("vm2", "10.0.0.2/24"));
    let (mut vm1, vm2) = (vm1.ready(), vm2.ready());
    assert_eq!(ping(&mut vm1, "10.0.0.2", 100).lost(), 0);
    for round in 1..4 {
        turn.step(&format!("its port goes and comes, time {round}"));
        lasthop.ok(&["port", "remove", "vm2"]);
        let add = ["port", "add", "vm2", "--kind", "vhost-user", "--socket"];
        lasthop.ok(&[&add[..], &["vm2.sock"]].concat());
        lasthop.wait_port("vm2", "up");
        assert!(reachable(&mut vm1, "10.0.0.2"), "{}", lasthop.log());
        assert_eq!(ping(&mut vm1, "10.0.0.2", 100).lost(), 0);
    }
    drop(vm2);
    lasthop.stop();
    turn.step("done");
}
