//! Warnings about a valid configuration are reported to the client and logged.

use std::process::Output;

use rustix::process::Signal;
use testkit::lasthop::{Place, port};
use testkit::wait::wait_until;

const MAC: &str = "52:54:00:00:00:01";

fn config(ports: &[&str]) -> String {
    let mac = format!("mac = \"{MAC}\"");
    let ports: String = ports.iter().map(|name| port(name, &mac)).collect();
    format!("[switch]\nname = \"host1\"\n{ports}")
}

/// Returns the warning about two ports with one address.
fn both(one: &str, other: &str) -> String {
    format!("ports \"{one}\" and \"{other}\" of segment \"default\" have the same mac {MAC}")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_duplicate_mac_is_reported_and_logged_once() {
    let place = Place::new();
    let file = place.path("lasthop.toml").display().to_string();
    let mut check = place.command(&config(&["vm1", "vm2"]));
    let checked = check.arg("--check").output().unwrap();
    assert!(checked.status.success());
    let warning = format!("warning: {}", both("vm1", "vm2"));
    assert!(stderr(&checked).starts_with(&warning), "{checked:?}");

    let lasthop = place.start(&config(&["vm1", "vm2"]));
    let logged = |one, other| lasthop.log().matches(&both(one, other)).count();
    assert_eq!(logged("vm1", "vm2"), 1);
    let add = |name: &str, mac: &str| {
        let socket = format!("--kind vhost-user --socket {name}.sock");
        stderr(&lasthop.cli(&format!("port add {name} {socket} --mac {mac}")))
    };
    let message = add("vm3", MAC);
    assert!(message.contains(&both("vm1", "vm3")), "{message}");
    assert_eq!(message.lines().count(), 1, "of this port alone: {message}");
    assert_eq!(add("vm4", "52:54:00:00:00:04"), "");
    assert_eq!(stderr(&lasthop.cli("port set vm3 --mtu 9000 --no-mac")), "");
    let set = |more: &str| stderr(&lasthop.cli(&format!("port set vm3 --mac {MAC}{more}")));
    for more in [" --dry-run", ""] {
        assert!(set(more).contains(&both("vm1", "vm3")), "{more}");
    }
    // Warnings are not repeated for earlier changes.
    assert_eq!((logged("vm1", "vm2"), logged("vm1", "vm3")), (1, 2));

    std::fs::write(&file, config(&["vm1", "vm5"])).unwrap();
    let dry = lasthop.cli(&format!("apply {file} --dry-run"));
    assert!(stderr(&dry).contains(&both("vm1", "vm5")), "{dry:?}");
    assert_eq!(logged("vm1", "vm5"), 0);
    lasthop.signal(Signal::HUP);
    wait_until("it is reloaded", || lasthop.log().contains(" reloaded"));
    assert_eq!(logged("vm1", "vm5"), 1);
}
