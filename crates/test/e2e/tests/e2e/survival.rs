//! The switch is killed under traffic of real guests: they see no disconnection and no reset, and
//! continue.

use e2e::guest::{Guest, GuestSpec, boot};
use e2e::lasthop::{Lasthop, guest_ports};
use e2e::traffic::{PingRun, Transfer, ping, reachable, serve_iperf};
use e2e::{Turn, machine};

const KILLS: usize = 5;

#[test]
fn the_switch_may_die() {
    let turn = machine();
    let lasthop = Lasthop::start(&guest_ports("", &["vm1", "vm2"]));
    turn.step("boot two guests, one with packed queues");
    let [vm1, vm2] = [1, 2].map(|n| GuestSpec::at(&lasthop, &format!("vm{n}"), n));
    let [mut vm1, mut vm2] = boot([vm1, vm2.packed()]);
    assert_eq!(ping(&mut vm1, "10.0.0.2", 20).lost(), 0);
    serve_iperf(&mut vm2);
    let links = [vm1.link_changes(), vm2.link_changes()];
    let before = lasthop.stats();

    turn.step("kill -9 of the switch under a ping and a TCP flow");
    let steady = PingRun::endless(&mut vm1, "10.0.0.2");
    let stream = Transfer::start(&mut vm1, "10.0.0.2", &lasthop, "vm2");
    for _ in 0..KILLS {
        lasthop.replace_switch();
        stream.goes_on();
    }
    stream.end(&mut vm1);
    let steady = steady.stop(&mut vm1);
    turn.step(&format!("    {steady:?}"));
    // What waited in the switch for an answer dies with it, and nothing else.
    let moved = lasthop.stats().since(&before);
    assert!(steady.lost() <= 4 * KILLS as u32, "{steady:?}, {moved:?}");

    turn.step("no guest has noticed");
    assert_eq!([vm1.link_changes(), vm2.link_changes()], links);
    let log = lasthop.log();
    assert!(!log.contains("disconnected"), "{log}");
    assert_eq!(log.matches("front end connected").count(), 2, "{log}");
    let sent = u64::from(steady.sent);
    assert!(moved.sent("vm1") >= sent, "counters were reset: {moved:?}");
    assert_eq!(ping(&mut vm1, "10.0.0.2", 50).lost(), 0);

    connections_break(&turn, &lasthop, &mut vm1);
    turn.step("a driver that is reset after all that starts anew");
    vm2.reboot();
    assert!(reachable(&mut vm1, "10.0.0.2"));
    lasthop.stop();
}

/// QEMU offers the start of a packed queue after its connection broke, wherever the queue stands.
fn connections_break(turn: &Turn, lasthop: &Lasthop, vm1: &mut Guest) {
    for round in 1..4 {
        turn.step(&format!(
            "the port of packed queues goes and comes, time {round}"
        ));
        lasthop.ok(&["port", "remove", "vm2"]);
        let add = ["port", "add", "vm2", "--kind", "vhost-user", "--socket"];
        lasthop.ok(&[&add[..], &["vm2.sock"]].concat());
        lasthop.wait_port("vm2", "up");
        assert!(reachable(vm1, "10.0.0.2"), "{}", lasthop.log());
        assert_eq!(ping(vm1, "10.0.0.2", 100).lost(), 0);
    }
}
