//! Changes of uplinks and TAP ports at run time.
//!
//! Everything is in network namespaces of the test's own; where they cannot be had, a test says so
//! and ends.

use std::path::Path;

use e2e::lasthop::Lasthop;
use e2e::netns::Netns;
use e2e::turn;
use e2e::uplinks::{driver_pid, tap};

/// A command that Lasthop must refuse with these words, and this exit status.
fn refuses(lasthop: &Lasthop, command: &str, (words, status): (&str, i32)) {
    let output = lasthop.cli(&command.split(' ').collect::<Vec<_>>());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains(words), "{command}: {complaint}");
    assert_eq!(output.status.code(), Some(status), "{command}: {complaint}");
}

/// The weight in the control group of a process (cgroups(7)), if it has one of version 2.
fn weight_of(pid: u32) -> Option<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let file = Path::new("/sys/fs/cgroup").join(group).join("cpu.weight");
    Some(std::fs::read_to_string(file).ok()?.trim().to_owned())
}

#[test]
fn a_driver_has_a_cpu_weight_or_says_why_not() {
    if !Netns::allowed() {
        return;
    }
    let turn = turn();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let near = Netns::new("near", folder.path());
    let port = |weight: u32| {
        let weight = format!("cpu_weight = {weight}");
        tap("t0", &near.path(), "10.1.0.1/24", &weight)
    };
    let lasthop = Lasthop::start(&port(300));
    lasthop.wait_port("t0", "up");
    let pid = driver_pid(&lasthop, "t0").expect("a driver");
    let check = |weight: &str| {
        let status = lasthop.port("t0");
        let error = status["driver_process"]["cpu_weight_error"].as_str();
        let show = lasthop.ok(&["port", "show", "t0"]);
        let line = match error {
            Some(error) => format!("\ncpu weight   {weight} (no effect: {error})\n"),
            None => format!("\ncpu weight   {weight}\n"),
        };
        assert!(show.contains(&line), "{show}");
        if error.is_none() {
            assert_eq!(weight_of(pid).as_deref(), Some(weight));
        }
        turn.step(line.trim());
    };
    check("300");
    lasthop.ok(&["port", "set", "t0", "--cpu-weight", "10000"]);
    check("10000");
    assert_eq!(driver_pid(&lasthop, "t0"), Some(pid), "the same process");
    lasthop.ok(&["port", "set", "t0", "--no-cpu-weight"]);
    let show = lasthop.ok(&["port", "show", "t0"]);
    assert!(!show.contains("cpu weight"), "{show}");
    let file = folder.path().join("lasthop.toml");
    for weight in [0, 20_000] {
        std::fs::write(&file, port(weight)).expect("a file");
        let path = file.display();
        let range = "expected an integer from 1 to 10000";
        let words = format!("{path}:6:14: port.cpu_weight: {range}, found {weight}");
        refuses(&lasthop, &format!("apply {path}"), (&words, 2));
    }
    lasthop.stop();
}
