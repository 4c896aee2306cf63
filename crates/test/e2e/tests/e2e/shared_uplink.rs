//! Two Lasthops with one interface of the host: the later one warns as long as both have it, and
//! only that one.

use e2e::beside;
use e2e::lasthop::Lasthop;
use e2e::uplinks::{OWN_PROCESS, driver_pid, uplink, wire};
use rustix::process::Signal;
use testkit::netns::Netns;
use testkit::process::send as signal;
use testkit::wait::wait_for;

const WARNING: &str = "interface up0 is in use by another port, most likely of another Lasthop: ";

fn start(netns: &Netns, driver: &str) -> Lasthop {
    let process = if driver == "xdp" { "" } else { OWN_PROCESS };
    let more = format!("driver = \"{driver}\"\n{process}");
    let lasthop = Lasthop::start(&uplink(&netns.path(), &more));
    lasthop.wait_port("uplink", "up");
    lasthop
}

/// Returns the reason at the port of an uplink whose driver runs.
fn reason(lasthop: &Lasthop) -> Option<String> {
    let port = lasthop.wait_port("uplink", "up");
    let reason = &port["driver_status"]["reason"];
    reason.as_str().map(str::to_owned)
}

fn kill_driver(lasthop: &Lasthop) {
    let killed = driver_pid(lasthop, "uplink").expect("a driver");
    signal(killed, Signal::KILL);
    wait_for("another driver", || {
        let pid = driver_pid(lasthop, "uplink")?;
        (pid != killed).then_some(())
    });
    lasthop.wait_port("uplink", "up");
}

/// Starts a first with a packet socket, and a second with this driver, which then reports the
/// effect.
fn the_second_is_warned(driver: &str, outcome: &str) {
    if !Netns::allowed() {
        return;
    }
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [host, far, other, beyond] =
        ["host", "far", "other", "beyond"].map(|name| Netns::new(name, folder.path()));
    // Both interfaces have the same name, and the same number.
    wire(&host, &far);
    wire(&other, &beyond);
    let (first, elsewhere) = (start(&host, "packet"), start(&other, "packet"));

    turn.step("a second one");
    let second = start(&host, driver);
    let said = reason(&second).expect("a reason");
    assert_eq!(said, format!("{WARNING}{outcome}"));
    let listed = second.ok(&["port", "list"]);
    assert!(listed.contains(&said), "{listed}");
    let warned = |lasthop: &Lasthop| lasthop.log().matches(WARNING).count();
    assert_eq!(warned(&second), 1, "{}", second.log());

    turn.step("drivers die, and both Lasthops are upgraded");
    for lasthop in [&second, &first] {
        kill_driver(lasthop);
        lasthop.ok(&["upgrade"]);
    }
    // Who upgrades parts with its claim for a moment, so that it may be the other's by now.
    let sharing = || [&first, &second].map(reason).iter().flatten().count();
    wait_for("one that knows", || (sharing() == 1).then_some(()));
    assert_eq!((reason(&elsewhere), warned(&elsewhere)), (None, 0));

    turn.step("the first is gone");
    first.stop();
    wait_for("an interface of one", || {
        reason(&second).is_none().then_some(())
    });

    turn.step("one alone has nothing to say, whatever happens to it");
    let before = warned(&second);
    kill_driver(&second);
    second.ok(&["upgrade"]);
    kill_driver(&second);
    assert_eq!((reason(&second), warned(&second)), (None, before));
    second.stop();
    elsewhere.stop();
}

#[test]
fn with_packet_sockets_both_get_every_frame() {
    let outcome = "both get all its frames, or the other all, if its driver is \"xdp\"";
    the_second_is_warned("packet", outcome);
}

#[test]
fn with_xdp_sockets_one_gets_every_frame() {
    the_second_is_warned("xdp", "this one alone gets its frames");
}
