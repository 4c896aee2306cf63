//! Operator's changes to ports in use: flushing learned addresses and cached flows loses nothing; a
//! port that is administratively down passes nothing, and its guest stays connected.

use e2e::guest::two_guests;
use e2e::lasthop::{Lasthop, guest_ports};
use e2e::machine;
use e2e::traffic::{PingRun, Silence, ping};
use serde_json::Value;
use testkit::wait::wait_for;

fn connections(lasthop: &Lasthop) -> Value {
    lasthop.port("vm2")["front_ends"]["connections"].clone()
}

/// How often control was asked.
fn upcalls(lasthop: &Lasthop) -> u64 {
    let status = lasthop.json(&["status"]);
    let asked = status["switch"]["upcalls"].as_u64();
    asked.expect("upcalls are counted")
}

/// How many addresses were learned.
fn learned(lasthop: &Lasthop) -> usize {
    let fdb = lasthop.json(&["fdb", "list"]);
    fdb["entries"].as_array().map_or(0, Vec::len)
}

#[test]
fn a_port_that_is_down_forwards_nothing_and_comes_up_without_a_reconnect() {
    let turn = machine();
    let lasthop = Lasthop::start(&guest_ports("", &["vm1", "vm2"]));
    turn.step("boot two guests");
    let (mut vm1, mut vm2) = two_guests(&lasthop);
    assert_eq!(ping(&mut vm1, "10.0.0.2", 10).lost(), 0);
    let before = connections(&lasthop);

    turn.step("flows and addresses are forgotten under traffic");
    let steady = PingRun::endless(&mut vm1, "10.0.0.2");
    for _ in 0..3 {
        let decided = upcalls(&lasthop);
        lasthop.ok(&["flows", "purge"]);
        wait_for("flows are decided anew", || {
            (upcalls(&lasthop) > decided).then_some(())
        });
        wait_for("both addresses are known", || {
            (learned(&lasthop) == 2).then_some(())
        });
        let done = lasthop.json(&["fdb", "flush"]);
        assert_eq!(done["flushed"], 2, "{done}");
    }
    let steady = steady.stop(&mut vm1);
    assert_eq!(steady.lost(), 0, "{steady:?}");

    turn.step("down: nothing gets through, either way");
    let done = lasthop.ok(&["port", "set", "vm2", "--down"]);
    assert_eq!(done, "port vm2 changed, admin-down\n");
    let down = |vm1: &mut _, vm2: &mut _| {
        let counted = lasthop.stats();
        let forth = Silence::start(vm1, "10.0.0.2");
        let back = Silence::start(vm2, "10.0.0.1");
        assert_eq!((forth.wait(), back.wait()), (true, true));
        let moved = lasthop.stats().since(&counted);
        assert_eq!((moved.received("vm1"), moved.received("vm2")), (0, 0));
        assert!(moved.get("vm2.drops.port-down") > 0, "{moved:?}");
    };
    down(&mut vm1, &mut vm2);
    let port = lasthop.port("vm2");
    assert_eq!(
        (&port["state"], &port["admin_state"]),
        (&"up".into(), &"down".into())
    );

    turn.step("it stays so without control and without the switch");
    lasthop.replace_control();
    down(&mut vm1, &mut vm2);
    lasthop.replace_switch();
    lasthop.wait_port("vm2", "up");
    down(&mut vm1, &mut vm2);

    turn.step("up: they talk again, over the same connection");
    lasthop.ok(&["port", "set", "vm2", "--up"]);
    assert_eq!(ping(&mut vm1, "10.0.0.2", 10).lost(), 0);
    assert_eq!(ping(&mut vm2, "10.0.0.1", 10).lost(), 0);
    assert_eq!(lasthop.port("vm2")["admin_state"], "up");
    // A new switch counts from zero, and no guest has connected to it anew.
    assert!(connections(&lasthop).as_u64() <= before.as_u64());
    lasthop.stop();
}
