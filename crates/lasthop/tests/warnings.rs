//! What is wanted, is right, and may not be meant: whoever wants it is told, and the log.

#[allow(dead_code, reason = "the other tests of this folder use the rest")]
mod running;

use std::process::Output;

use running::{Place, eventually, port};
use rustix::process::Signal;

const MAC: &str = "52:54:00:00:00:01";

fn config(ports: &[&str]) -> String {
    let mac = format!("mac = \"{MAC}\"");
    let ports: String = ports.iter().map(|name| port(name, &mac)).collect();
    format!("[switch]\nname = \"host1\"\n{ports}")
}

/// What is said of two ports with one address.
fn both(one: &str, other: &str) -> String {
    format!("ports \"{one}\" and \"{other}\" of segment \"default\" have the same mac {MAC}")
}

fn told(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn one_mac_at_two_ports_is_told_to_who_wants_it_and_to_the_log_once() {
    let place = Place::new();
    let file = place.path("lasthop.toml").display().to_string();
    let mut check = place.command(&config(&["vm1", "vm2"]));
    let checked = check.arg("--check").output().unwrap();
    assert!(checked.status.success());
    let warning = format!("warning: {}", both("vm1", "vm2"));
    assert!(told(&checked).starts_with(&warning), "{checked:?}");

    let lasthop = place.start(&config(&["vm1", "vm2"]));
    let logged = |one, other| lasthop.log().matches(&both(one, other)).count();
    assert_eq!(logged("vm1", "vm2"), 1);
    let add = |name: &str, mac: &str| {
        let socket = format!("--kind vhost-user --socket {name}.sock");
        told(&lasthop.cli(&format!("port add {name} {socket} --mac {mac}")))
    };
    let said = add("vm3", MAC);
    assert!(said.contains(&both("vm1", "vm3")), "{said}");
    assert_eq!(said.lines().count(), 1, "of this port alone: {said}");
    assert_eq!(add("vm4", "52:54:00:00:00:04"), "");
    assert_eq!(told(&lasthop.cli("port set vm3 --mtu 9000 --no-mac")), "");
    let set = |more: &str| told(&lasthop.cli(&format!("port set vm3 --mac {MAC}{more}")));
    for more in [" --dry-run", ""] {
        assert!(set(more).contains(&both("vm1", "vm3")), "{more}");
    }
    // Nothing is said again of what was so before.
    assert_eq!((logged("vm1", "vm2"), logged("vm1", "vm3")), (1, 2));

    std::fs::write(&file, config(&["vm1", "vm5"])).unwrap();
    let dry = lasthop.cli(&format!("apply {file} --dry-run"));
    assert!(told(&dry).contains(&both("vm1", "vm5")), "{dry:?}");
    assert_eq!(logged("vm1", "vm5"), 0);
    lasthop.signal(Signal::HUP);
    eventually("it is reloaded", || lasthop.log().contains(" reloaded"));
    assert_eq!(logged("vm1", "vm5"), 1);
}
