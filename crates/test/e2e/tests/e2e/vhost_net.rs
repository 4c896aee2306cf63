//! TAP ports whose frames the kernel moves (`driver = "vhost-net"`), in a host in a guest of QEMU
//! that has the kernel's module.

use e2e::lasthop::Lasthop;
use e2e::nested::{Host, Kernel, is_inside};
use e2e::uplinks::{both_ways, driver_pid, tap};
use e2e::{is_long, machine};
use rustix::process::Signal;
use testkit::netns::Netns;
use testkit::packets::{self, Flow};
use testkit::process::send as signal;
use testkit::wait::wait_until;

/// Bytes of a transfer: the host is an emulated processor.
const SIZE: usize = 1 << 20;

const SWITCH: &str = "[switch]\nname = \"host1\"\n\n";
const NAMED: &str = "driver = \"vhost-net\"";

fn back_end(lasthop: &Lasthop, port: &str) -> String {
    let driver = &lasthop.port(port)["driver_status"];
    driver["back_end"].as_str().unwrap_or_default().to_owned()
}

/// Waits until a port has a driver process other than `old`, and is up. Returns the process.
fn other_driver(lasthop: &Lasthop, port: &str, old: u32) -> u32 {
    let new = lasthop.other_driver(port, old);
    lasthop.wait_port(port, "up");
    new
}

/// The number of the kernel's threads for a driver process, which are named after it: threads of
/// that process (Linux 6.4), or of the kernel.
fn kernel_threads(driver: u32) -> usize {
    let name = format!("vhost-{driver}\n");
    let count = |folder: String| {
        let entries = std::fs::read_dir(folder).expect("processes").flatten();
        let names = entries.map(|entry| std::fs::read_to_string(entry.path().join("comm")));
        names
            .filter(|comm| comm.as_ref().is_ok_and(|comm| *comm == name))
            .count()
    };
    count("/proc".to_owned()) + count(format!("/proc/{driver}/task"))
}

/// Two ports that name the driver, and one by itself.
#[test]
fn frames_cross_by_the_kernel() {
    if !is_inside() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [one, other] = ["one", "other"].map(|name| Netns::new(name, folder.path()));
    let first = tap("t1", &one.path(), "10.0.0.1/24", NAMED);
    let second = tap("t2", &other.path(), "10.0.0.2/24", NAMED);
    let plain = tap("t3", &other.path(), "10.1.0.3/24", "");
    let lasthop = Lasthop::start(&[SWITCH, &first, &second, &plain].concat());
    for port in ["t1", "t2", "t3"] {
        lasthop.wait_port(port, "up");
    }
    let back_ends = ["t1", "t2", "t3"].map(|port| back_end(&lasthop, port));
    assert_eq!(back_ends, ["vhost-net", "vhost-net", "tap"]);

    turn.step("transfers");
    both_ways((&one, "10.0.0.1"), (&other, "10.0.0.2"), SIZE);

    turn.step("a driver dies");
    let before = driver_pid(&lasthop, "t2").expect("a process");
    signal(before, Signal::KILL);
    other_driver(&lasthop, "t2", before);
    assert_eq!(back_end(&lasthop, "t2"), "vhost-net");
    both_ways((&one, "10.0.0.1"), (&other, "10.0.0.2"), SIZE);
    lasthop.stop();
}

/// Each queue pair has a device of its own.
#[test]
fn two_queue_pairs_have_two_devices() {
    if !is_inside() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [one, other] = ["one", "other"].map(|name| Netns::new(name, folder.path()));
    let several = format!("queues = 2\n{NAMED}");
    let first = tap("t1", &one.path(), "10.0.0.1/24", &several);
    let second = tap("t2", &other.path(), "10.0.0.2/24", NAMED);
    let lasthop = Lasthop::start(&[SWITCH, &first, &second].concat());
    for (port, devices) in [("t1", 2), ("t2", 1)] {
        lasthop.wait_port(port, "up");
        assert_eq!(back_end(&lasthop, port), "vhost-net");
        let driver = driver_pid(&lasthop, port).expect("a process");
        assert_eq!(kernel_threads(driver), devices, "{port}");
    }
    // Connections are spread over the queues.
    for round in 0..4 {
        turn.step(&format!("transfers {round}"));
        both_ways((&one, "10.0.0.1"), (&other, "10.0.0.2"), SIZE / 4);
    }
    lasthop.stop();
}

#[test]
fn an_interface_and_a_driver_change_while_lasthop_runs() {
    if !is_inside() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [one, other] = ["one", "other"].map(|name| Netns::new(name, folder.path()));
    let first = tap("t1", &one.path(), "10.0.0.1/24", "");
    let second = tap("t2", &other.path(), "10.0.0.2/24", NAMED);
    let lasthop = Lasthop::start(&[SWITCH, &first, &second].concat());
    for port in ["t1", "t2"] {
        lasthop.wait_port(port, "up");
    }
    for (option, value, moved_by) in [
        ("--interface", "new0", "vhost-net"),
        ("--driver", "auto", "tap"),
        ("--driver", "vhost-net", "vhost-net"),
    ] {
        turn.step(value);
        lasthop.ok(&["port", "set", "t2", option, value]);
        wait_until("the other back end", || {
            back_end(&lasthop, "t2") == moved_by
        });
        lasthop.wait_port("t2", "up");
        assert_eq!(back_end(&lasthop, "t2"), moved_by, "{option} {value}");
        assert_eq!(lasthop.port("t2")["interface"], "new0");
        both_ways((&one, "10.0.0.1"), (&other, "10.0.0.2"), SIZE / 4);
    }
    lasthop.stop();
}

#[test]
fn frames_in_the_rings_of_a_driver_that_dies_are_counted() {
    if !is_inside() {
        return;
    }
    let _turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let netns = Netns::new("one", folder.path());
    let guest = "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"a.sock\"\n\n";
    let port = tap("t1", &netns.path(), "10.0.0.9/24", NAMED);
    let lasthop = Lasthop::start(&[SWITCH, guest, &port].concat());
    lasthop.wait_port("t1", "up");
    let mut guest = lasthop.connect("a", 1);
    let frame = packets::udp(&Flow::v4(1, 9), b"hello");
    guest.send(&frame).expect("room");
    wait_until("the first frame is on the wire", || {
        lasthop.port("t1")["driver_status"]["sent_frames"].as_u64() > Some(0)
    });
    let driver = driver_pid(&lasthop, "t1").expect("a process");
    signal(driver, Signal::STOP);
    let before = lasthop.stats().received("t1");
    for _ in 0..7 {
        guest.send(&frame).expect("room");
    }
    wait_until("the frames are in the ring", || {
        lasthop.stats().received("t1") == before + 7
    });
    signal(driver, Signal::KILL);
    other_driver(&lasthop, "t1", driver);
    assert_eq!(lasthop.stats().get("t1.drops.driver-ended"), 7);
    lasthop.stop();
}

/// Where there is no device, a port that names it is refused.
#[test]
fn without_the_device_there_is_a_reason() {
    if !is_inside() {
        return;
    }
    let _turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let netns = Netns::new("one", folder.path());
    let port = |more| {
        let port = tap("t1", &netns.path(), "10.0.0.1/24", more);
        format!("{SWITCH}{port}")
    };
    let (_, error) = Lasthop::refused(&port(NAMED));
    assert!(error.contains("/dev/vhost-net: No such file"), "{error}");
    let lasthop = Lasthop::start(&port(""));
    lasthop.wait_port("t1", "up");
    assert_eq!(back_end(&lasthop, "t1"), "tap");
    lasthop.stop();
}

#[test]
fn a_host_with_vhost_net() {
    if is_inside() {
        return;
    }
    let turn = machine();
    for kernel in [Kernel::Debian, Kernel::Newer] {
        if kernel == Kernel::Newer && !(is_long() && kernel.has_image()) {
            continue;
        }
        let mut host = Host::start(kernel, module_path!());
        turn.step("with the device");
        host.test("frames_cross_by_the_kernel");
        if is_long() {
            host.test("two_queue_pairs_have_two_devices");
            host.test("an_interface_and_a_driver_change_while_lasthop_runs");
            host.test("frames_in_the_rings_of_a_driver_that_dies_are_counted");
        }
        turn.step("without the device");
        host.run("rm /dev/vhost-net");
        host.test("without_the_device_there_is_a_reason");
    }
}
