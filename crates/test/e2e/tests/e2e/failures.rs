//! One guest misbehaves, dies or is unplugged under traffic: two others that talk notice nothing.

use e2e::guest::{Guest, GuestSpec, boot};
use e2e::lasthop::{Lasthop, guest_ports, same_footprint};
use e2e::traffic::{IperfRun, PingRun, end_iperf, ping, reachable, serve_iperf};
use e2e::{Turn, machine};

struct World {
    lasthop: Lasthop,
    vm1: Guest,
    vm2: Guest,
    vm3: Guest,
}

impl World {
    fn third(lasthop: &Lasthop) -> Guest {
        GuestSpec::at(lasthop, "vm3", 3).start()
    }

    fn new() -> World {
        let lasthop = Lasthop::start(&guest_ports("workers = 2", &["vm1", "vm2", "vm3"]));
        let [vm1, vm2, vm3] = [1, 2, 3].map(|n| GuestSpec::at(&lasthop, &format!("vm{n}"), n));
        let [vm1, mut vm2, vm3] = boot([vm1, vm2.packed(), vm3]);
        serve_iperf(&mut vm2);
        World {
            lasthop,
            vm1,
            vm2,
            vm3,
        }
    }

    /// Lets vm3 send TCP to vm2 while vm1 pings vm2, does something to vm3, and checks that vm1
    /// lost nothing.
    fn unnoticed(&mut self, turn: &Turn, what: &str, disturb: impl FnOnce(&mut World)) {
        turn.step(what);
        assert!(reachable(&mut self.vm3, "10.0.0.2"), "before: {what}");
        let steady = PingRun::start(&mut self.vm1, "10.0.0.2", 300);
        let load = IperfRun::start(&mut self.vm3, "10.0.0.2", 60, "");
        self.lasthop.wait_sent("vm3", 100);
        disturb(self);
        load.abandon();
        let steady = steady.wait();
        assert_eq!(steady.lost(), 0, "{what}: {steady:?}");
        // The server in vm2 is still with its lost client; the next step gets a fresh one.
        end_iperf(&mut self.vm2);
        serve_iperf(&mut self.vm2);
    }
}

#[test]
fn others_notice_nothing() {
    let turn = machine();
    turn.step("boot three guests");
    let mut world = World::new();
    assert_eq!(ping(&mut world.vm1, "10.0.0.2", 20).lost(), 0);

    let before = world.lasthop.footprint();
    world.unnoticed(&turn, "reset under traffic", |world| world.vm3.reset());
    world.unnoticed(&turn, "reboot from inside under traffic", |world| {
        world.vm3.reboot()
    });
    world.unnoticed(&turn, "kill -9 of QEMU under traffic", |world| {
        world.vm3.kill();
        world.lasthop.wait_port("vm3", "waiting");
        world.vm3 = World::third(&world.lasthop).ready();
    });
    world.unnoticed(&turn, "removal of the port under traffic", |world| {
        world.lasthop.ok(&["port", "remove", "vm3"]);
        assert!(
            !world.lasthop.socket("vm3.sock").exists(),
            "the socket of a removed port is left behind"
        );
        world.lasthop.ok(&[
            "port",
            "add",
            "vm3",
            "--kind",
            "vhost-user",
            "--socket",
            "vm3.sock",
        ]);
        // QEMU dials again by itself.
        world.lasthop.wait_port("vm3", "up");
    });
    assert!(
        reachable(&mut world.vm3, "10.0.0.2"),
        "after the port came back"
    );
    same_footprint("after all that", &before, &world.lasthop);

    turn.step("a guest that is paused: the others continue");
    world.vm3.pause();
    assert_eq!(ping(&mut world.vm1, "10.0.0.2", 100).lost(), 0);
    world.vm3.resume();
    assert!(reachable(&mut world.vm3, "10.0.0.2"));

    turn.step("QEMU ends in order, and Lasthop too");
    world.vm3.quit();
    world.lasthop.wait_port("vm3", "waiting");
    assert_eq!(ping(&mut world.vm1, "10.0.0.2", 50).lost(), 0);
    world.lasthop.stop();
}
