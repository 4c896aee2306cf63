//! `lasthop reload` and SIGHUP: the configuration file of the start is read again.

use rustix::process::Signal;
use testkit::lasthop::{Place, Running, listens, port};
use testkit::wait::wait_until;

const SWITCH: &str = "[switch]\nname = \"host1\"\n";

fn config(ports: &[&str]) -> String {
    let ports: String = ports.iter().map(|name| port(name, "")).collect();
    format!("{SWITCH}{ports}")
}

/// Returns the names of all ports.
fn ports(lasthop: &Running) -> Vec<String> {
    let list = lasthop.json("port list");
    let all = list["ports"].as_array().unwrap().iter();
    all.map(|port| port["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Writes the configuration file.
fn write(place: &Place, text: &str) {
    std::fs::write(place.path("lasthop.toml"), text).unwrap();
}

fn logged_count(lasthop: &Running, line: &str) -> usize {
    lasthop.log().matches(line).count()
}

#[test]
fn a_signal_reloads_the_file() {
    let place = Place::new();
    let mut lasthop = place.start(&config(&["vm1", "vm2"]));
    let (control, switch) = (lasthop.pid("control"), lasthop.pid("switch"));
    write(&place, &config(&["vm1", "vm3"]));
    lasthop.signal(Signal::HUP);
    wait_until("vm3 has taken the place of vm2", || {
        ports(&lasthop) == ["vm1", "vm3"] && logged_count(&lasthop, " reloaded") == 1
    });
    let socket = |name: &str| place.run_dir().join(name);
    assert!(listens(&socket("vm3.sock")) && !socket("vm2.sock").exists());
    let log = lasthop.log();
    let target = "INFO lasthop::audit: ";
    for line in ["port vm2 removed uid=", "port vm3 added uid="] {
        assert!(log.contains(&format!("{target}{line}")), "{log}");
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
    // Every line has a time stamp.
    let all_have_one = |log: &str| log.lines().all(|line| line.starts_with("20"));
    assert!(all_have_one(&log), "{log}");

    // An error is logged with its place, and changes nothing.
    write(&place, &format!("{}queues = 0\n", config(&["vm1", "vm2"])));
    lasthop.signal(Signal::HUP);
    wait_until("the refusal is logged", || {
        logged_count(&lasthop, "not reloaded, nothing was changed") == 1
    });
    let file = place.path("lasthop.toml").display().to_string();
    let log = lasthop.log();
    let wrong = ":10: port.queues: expected an integer from 1 to 64, found 0";
    assert!(
        log.contains(&format!("ERROR lasthop::cli: {file}:")) && log.contains(wrong),
        "{log}"
    );

    // So is a file whose generator failed.
    write(&place, SWITCH);
    lasthop.signal(Signal::HUP);
    wait_until("the refusal is logged", || {
        logged_count(&lasthop, "not reloaded, nothing was changed") == 2
    });
    let empty = "expected a port, found none: --allow-empty removes all, now 2 ports";
    assert!(lasthop.log().contains(empty), "{}", lasthop.log());
    assert_eq!(ports(&lasthop), ["vm1", "vm3"]);

    std::fs::write(socket("vm9.sock"), "precious").unwrap();
    write(&place, &config(&["vm9"]));
    lasthop.signal(Signal::HUP);
    wait_until("the refusal is logged", || {
        logged_count(&lasthop, "not reloaded, nothing was changed") == 3
    });
    assert!(
        lasthop
            .log()
            .contains("vm9.sock, which exists and is not a socket")
    );
    assert!(all_have_one(&lasthop.log()), "{}", lasthop.log());
    assert_eq!(ports(&lasthop), ["vm1", "vm3"]);
    assert!(listens(&socket("vm1.sock")) && listens(&socket("vm3.sock")));

    // Many signals cause two reloads.
    write(&place, &config(&["vm4"]));
    for _ in 0..50 {
        lasthop.signal(Signal::HUP);
    }
    wait_until("the last file holds", || ports(&lasthop) == ["vm4"]);
    assert_eq!(
        (lasthop.pid("control"), lasthop.pid("switch")),
        (control, switch)
    );
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), ["vm9.sock"]);
}

#[test]
fn a_command_reloads_the_file_also_after_an_upgrade() {
    let place = Place::new();
    let mut lasthop = place.start(&config(&["vm1"]));
    assert_eq!(lasthop.prints("reload"), "nothing to change\n");
    write(&place, &config(&["vm1", "vm2"]));
    let dry = lasthop.cli("reload --dry-run");
    assert_eq!(dry.status.code(), Some(3));
    assert_eq!(ports(&lasthop), ["vm1"]);
    let output = lasthop.prints("reload");
    assert!(output.ends_with("1 change applied\n"), "{output}");
    assert_eq!(ports(&lasthop), ["vm1", "vm2"]);

    lasthop.prints("upgrade");
    write(&place, &config(&["vm2"]));
    assert_eq!(
        lasthop.prints("reload"),
        "- port vm1 (loses its connection)\n1 change applied\n"
    );
    write(&place, &config(&["vm2", "vm3"]));
    lasthop.signal(Signal::HUP);
    wait_until("vm3 is there", || ports(&lasthop) == ["vm2", "vm3"]);

    // A new control has the state that was applied last.
    lasthop.kill_and_wait("control");
    assert_eq!(ports(&lasthop), ["vm2", "vm3"]);
    let failed = lasthop.cli("apply /nonexistent");
    assert_eq!(failed.status.code(), Some(2));
    lasthop.end(Signal::TERM);
}
