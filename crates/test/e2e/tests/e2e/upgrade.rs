//! `lasthop upgrade` under traffic of real guests, and of the host over each kind of driver.
//!
//! Binaries that differ are in `crates/cli/lasthop/tests/processes/upgrade.rs`; here they are the
//! same, so that none must be built.

use e2e::guest::{GuestSpec, boot};
use e2e::lasthop::{Lasthop, guest_ports, same_footprint};
use e2e::machine;
use e2e::traffic::{PingRun, Transfer, ping, serve_iperf};
use e2e::uplinks::{LOAD, OWN_PROCESS, both_ways, driver_pid, tap, uplink, wire};
use testkit::netns::Netns;
use testkit::stop::Stop;

const UPGRADES: usize = 3;

#[test]
fn virtual_machines_do_not_notice() {
    let turn = machine();
    let lasthop = Lasthop::start(&guest_ports("", &["vm1", "vm2"]));
    turn.step("boot two guests, one with packed queues");
    let [vm1, vm2] = [1, 2].map(|n| GuestSpec::at(&lasthop, &format!("vm{n}"), n));
    let [mut vm1, mut vm2] = boot([vm1, vm2.packed()]);
    assert_eq!(ping(&mut vm1, "10.0.0.2", 20).lost(), 0);
    serve_iperf(&mut vm2);
    let links = [vm1.link_changes(), vm2.link_changes()];
    let before = lasthop.stats();

    turn.step("upgrades under a ping and a TCP flow");
    let steady = PingRun::endless(&mut vm1, "10.0.0.2");
    let stream = Transfer::start(&mut vm1, "10.0.0.2", &lasthop, "vm2");
    for _ in 0..UPGRADES {
        let switch = lasthop.pid("lasthop-switch");
        let said = lasthop.ok(&["upgrade"]);
        turn.step(&format!("    {}", said.lines().last().unwrap_or_default()));
        assert!(said.contains(": 2 connections kept, "), "{said}");
        assert_ne!(lasthop.pid("lasthop-switch"), switch);
        stream.goes_on();
    }
    stream.end(&mut vm1);
    let steady = steady.stop(&mut vm1);
    turn.step(&format!("    {steady:?}"));
    assert_eq!(steady.lost(), 0, "{steady:?}");

    turn.step("no guest has noticed");
    assert_eq!([vm1.link_changes(), vm2.link_changes()], links);
    let log = lasthop.log();
    assert!(!log.contains("disconnected"), "{log}");
    assert_eq!(log.matches("front end connected").count(), 2, "{log}");
    let moved = lasthop.stats().since(&before);
    let sent = u64::from(steady.sent);
    assert!(moved.sent("vm1") >= sent, "counters were reset: {moved:?}");
    assert_eq!(ping(&mut vm1, "10.0.0.2", 50).lost(), 0);
    lasthop.stop();
}

/// Upgrades while connections cross a TAP port and an uplink with this kind of driver: every driver
/// is another process each time, and the XDP program, if there is one, stays.
fn drivers_are_replaced(driver: &str, back_end: &str) {
    if !Netns::allowed() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [host, far, near] = ["host", "far", "near"].map(|name| Netns::new(name, folder.path()));
    wire(&host, &far);
    far.ip("address add 10.1.0.9/24 dev wire0");
    let process = if driver == "xdp" { "" } else { OWN_PROCESS };
    let of_tap = format!("mtu = 1500\n{OWN_PROCESS}");
    let config = [
        tap("t0", &near.path(), "10.1.0.1/24", &of_tap),
        uplink(&host.path(), &format!("driver = \"{driver}\"\n{process}")),
    ];
    let lasthop = Lasthop::start(&config.concat());
    lasthop.wait_port("uplink", "up");
    let program = || {
        let shown = host.ip("-d link show up0");
        let id = shown
            .split_once("prog/xdp ")
            .map(|(_, rest)| rest.to_owned());
        id.and_then(|rest| rest.split_whitespace().nth(1).map(str::to_owned))
    };
    let load = || both_ways((&near, "10.1.0.1"), (&far, "10.1.0.9"), LOAD / 16);
    load();
    // The first one leaves nothing of the start behind.
    lasthop.ok(&["upgrade"]);
    load();
    let (before, attached) = (lasthop.footprint(), program());
    assert_eq!(attached.is_some(), driver == "xdp");
    let over = Stop::new();
    std::thread::scope(|scope| {
        let loaded = scope.spawn(|| {
            while !over.is_set() {
                load();
            }
        });
        let end = over.at_end();
        for _ in 0..UPGRADES {
            let pids = || ["t0", "uplink"].map(|port| driver_pid(&lasthop, port));
            let received = || {
                let driver = &lasthop.port("uplink")["driver_status"];
                driver["received_frames"].as_u64()
            };
            let (old, had) = (pids(), received());
            let said = lasthop.ok(&["upgrade"]);
            assert!(received() >= had, "frames of the drivers before count");
            turn.step(&said);
            assert!(!said.contains("drivers stay"), "{said}");
            for (old, new) in old.into_iter().zip(pids()) {
                assert!(new.is_some() && new != old, "{old:?}, {new:?}");
            }
            assert_eq!(program(), attached);
        }
        drop(end);
        loaded.join().expect("every byte arrives");
    });
    load();
    let status = &lasthop.port("uplink")["driver_status"];
    assert_eq!(status["back_end"], back_end, "{status}");
    assert_eq!(status["restarts"], 0, "{}", lasthop.log());
    same_footprint("upgrades", &before, &lasthop);
    lasthop.stop();
    assert_eq!(program(), None);
}

#[test]
fn drivers_over_packet_sockets_are_replaced() {
    drivers_are_replaced("packet", "packet");
}

#[test]
fn drivers_over_xdp_sockets_are_replaced() {
    drivers_are_replaced("xdp", "xdp (copy)");
}
