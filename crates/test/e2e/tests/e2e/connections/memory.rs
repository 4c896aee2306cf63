//! The memory of the table, in a control group of version 2 with a limit.

use std::fs;
use std::path::Path;

use e2e::lasthop::{Lasthop, guest_ports};
use e2e::nested::{Host, Kernel, is_inside};
use e2e::{is_long, machine};
use testkit::packets::{Flow, udp};
use testkit::wait::wait_until;

use super::frames::{SERVERS, connect, pass_once};
use super::{apply, count};

const GROUP: &str = "/sys/fs/cgroup/table";
/// Too little for the usual table, and enough for a smaller one.
const LIMIT: u64 = 48 << 20;
/// More than a guest has.
const BUFFERS: usize = 1000;
/// Datagrams that open a connection each: more than the table has.
const FLOOD: u16 = 20_000;

/// Runs something in a group with a limit of memory. The caller is in the group above it
/// afterwards, and processes that it has started stay.
fn within_group<T>(run: impl FnOnce() -> T) -> T {
    let enter = |group: &Path| {
        let process = std::process::id().to_string();
        fs::write(group.join("cgroup.procs"), process).expect("we may move");
    };
    enter(Path::new(GROUP));
    let result = run();
    enter(Path::new("/sys/fs/cgroup"));
    result
}

/// A number of a file of the group.
fn number(file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(Path::new(GROUP).join(file)).expect("a file of the kernel");
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let value = line.and_then(|value| value.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{key} in {text}"))
}

fn config(max: &str, rules: &str) -> String {
    let keys = format!("[switch.connections]\nmax = \"{max}\"\nrecovery = 0\n");
    guest_ports(&keys, &["vm1", "vm2"]) + rules
}

/// Run in a host of its own.
#[test]
fn a_guest_grows_no_table() {
    let turn = machine();
    if !is_inside() {
        return;
    }
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory").expect("a controller");
    fs::create_dir(GROUP).expect("a new group");
    fs::write(format!("{GROUP}/memory.max"), LIMIT.to_string()).expect("a limit");
    turn.step("too large a table is refused, with the numbers");
    let (status, complaint) = within_group(|| Lasthop::refused(&config("256k", SERVERS)));
    assert_eq!(status, 2, "{complaint}");
    for part in [
        " bytes of memory, and there are ",
        "memory.max of the control group /sys/fs/cgroup/table",
    ] {
        assert!(complaint.contains(part), "{complaint}");
    }

    turn.step("the memory is taken with the first stateful rule");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lasthop = within_group(|| Lasthop::start(&config("8k", "")));
    let shared = || number("memory.stat", "shmem ");
    let before = shared();
    apply(&lasthop, folder.path(), &config("8k", SERVERS));
    let taken = shared();
    // An entry has 192 bytes, beside the index.
    assert!(taken > before + 8192 * 192, "{before} {taken}");

    turn.step("a guest fills the table");
    let [mut flooder, mut other] = connect(&lasthop, [1, 2]);
    // Pages of a guest's buffers are the group's if the switch is the first one to write to them.
    let one = udp(&Flow::v4(1, 2).ports(9, 80), &[0; 18]);
    for _ in 0..BUFFERS {
        pass_once(&mut flooder, &mut other, &one);
    }
    let connected = shared();
    let mut sent = 0;
    wait_until("the table is as full as a guest can have it", || {
        for _ in 0..FLOOD {
            let flow = Flow::v4(1, 2).ports(1024 + sent % 60_000, 80);
            sent = sent.wrapping_add(1);
            flooder.send(&udp(&flow, &[0; 18])).expect("room");
            if sent % 64 == 0 {
                other.recv_all().expect("a correct device");
            }
        }
        let status = &lasthop.port("vm1")["connections"];
        status["evicted_unreplied"].as_u64() > Some(1000)
    });
    assert!(count(&lasthop, "udp") > 0);
    let after = shared();
    turn.step(&format!(
        "    shared memory: {before}, {taken} with the table, {connected} with guests, {after}"
    ));
    assert!(after < connected + (64 << 10), "{connected} {after}");
    assert_eq!(number("memory.events", "oom_kill "), 0);
    lasthop.stop();
}

#[test]
fn a_guest_grows_no_table_in_a_control_group() {
    if is_inside() || !is_long() {
        return;
    }
    let turn = machine();
    turn.step("boot a host");
    let mut host = Host::start(Kernel::Debian, module_path!());
    host.test("a_guest_grows_no_table");
}
