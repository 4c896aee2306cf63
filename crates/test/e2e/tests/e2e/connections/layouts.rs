//! Upgrades to a version with another layout of the table, and back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::beside;
use e2e::lasthop::Lasthop;
use e2e::paths::binary;
use testkit::lasthop::port;

use super::config;
use super::frames::{Tcp, connect, is_denied, open, talk};

const PROGRAMS: [&str; 5] = [
    "lasthop",
    "lasthop-supervisor",
    "lasthop-control",
    "lasthop-switch",
    "lasthop-driver",
];
/// Puts another first word into the table's file. Its bytes are in one piece in the programs.
const CHANGE: &str = "s/LHCONNS1/LHCONNS9/g";

fn run(program: &str, arguments: &[&Path]) -> bool {
    let mut command = Command::new(program);
    let status = command.args(arguments).env("LC_ALL", "C").status();
    status.expect("a program of the system").success()
}

/// Makes a folder with the programs of a version with another layout. Other processes write them:
/// a file that this one had open might be so in a process that another test starts.
fn other_version(root: &Path) -> PathBuf {
    let folder = root.join("other");
    fs::create_dir(&folder).expect("a folder");
    for name in PROGRAMS {
        let (own, other) = (binary(name), folder.join(name));
        assert!(run("cp", &[&own, &other]));
        if matches!(name, "lasthop-control" | "lasthop-switch") {
            assert!(run("sed", &["-i".as_ref(), CHANGE.as_ref(), &other]));
            assert!(!run("cmp", &["-s".as_ref(), &own, &other]), "{name}");
        }
    }
    folder
}

#[test]
fn another_layout_starts_empty_and_no_guest_is_disconnected() {
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other = other_version(folder.path());
    let own = binary("lasthop");
    let own = own.parent().expect("a folder");
    let lasthop = Lasthop::start(&config("", &port("vm1", "")));
    let [mut a, mut b] = connect(&lasthop, [1, 2]);
    let (a, b) = (&mut a, &mut b);
    let upload = Tcp::new((1, 2), (4000, 80));
    let download = Tcp::new((2, 1), (4001, 5001));
    open(a, b, &[upload]);
    open(b, a, &[download]);
    for to in [&*other, own] {
        turn.step(&format!("an upgrade to {}", to.display()));
        let said = lasthop.ok(&["upgrade", "--to", to.to_str().expect("text")]);
        assert!(said.contains(": 2 connections kept, "), "{said}");
        assert!(said.contains("starts empty"), "{said}");
        // What was open is met in its middle.
        talk(a, b, &[upload]);
        talk(b, a, &[download]);
        let knocks = Tcp::new((1, 2), (4002, 22)).syn();
        assert!(is_denied(a, b, &knocks, &upload.data()));
    }
    let log = lasthop.log();
    assert!(!log.contains("disconnected"), "{log}");
    lasthop.stop();
}
