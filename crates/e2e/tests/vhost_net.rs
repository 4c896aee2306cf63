//! TAP ports whose frames the kernel moves (`driver = "vhost-net"`), in a host in a guest of QEMU
//! that has the kernel's module.

use e2e::lasthop::Lasthop;
use e2e::nested::{Host, Kernel, is_inside};
use e2e::netns::Netns;
use e2e::uplinks::{both_ways, driver_pid, tap};
use e2e::{is_long, turn};
use rustix::process::{Pid, Signal, kill_process};
use testkit::wait::wait_until;

/// Bytes of a transfer: the host is an emulated processor.
const SIZE: usize = 1 << 20;

fn back_end(lasthop: &Lasthop, port: &str) -> String {
    let driver = &lasthop.port(port)["driver_process"];
    driver["back_end"].as_str().unwrap_or_default().to_owned()
}

/// A port by itself and one that names the driver, then one that is to be without.
#[test]
fn frames_cross_by_the_kernel() {
    if !is_inside() {
        return;
    }
    let turn = turn();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (one, other) = (
        Netns::new("one", folder.path()),
        Netns::new("other", folder.path()),
    );
    let named = "driver = \"vhost-net\"";
    let first = tap("t1", &one.path(), "10.0.0.1/24", "");
    let second = tap("t2", &other.path(), "10.0.0.2/24", named);
    let plain = tap("t3", &other.path(), "10.1.0.3/24", "driver = \"tap\"");
    let switch = "[switch]\nname = \"host1\"\n\n";
    let lasthop = Lasthop::start(&[switch, &first, &second, &plain].concat());
    for port in ["t1", "t2", "t3"] {
        lasthop.wait_port(port, "up");
    }
    let back_ends = ["t1", "t2", "t3"].map(|port| back_end(&lasthop, port));
    assert_eq!(back_ends, ["vhost-net", "vhost-net", "tap"]);

    turn.step("transfers");
    both_ways((&one, "10.0.0.1"), (&other, "10.0.0.2"), SIZE);

    turn.step("a driver dies");
    let before = driver_pid(&lasthop, "t2").expect("a process");
    let pid = Pid::from_raw(before as i32).expect("a process id");
    kill_process(pid, Signal::KILL).expect("it runs");
    wait_until("another driver", || {
        driver_pid(&lasthop, "t2").is_some_and(|pid| pid != before)
    });
    lasthop.wait_port("t2", "up");
    assert_eq!(back_end(&lasthop, "t2"), "vhost-net");
    both_ways((&one, "10.0.0.1"), (&other, "10.0.0.2"), SIZE);
    lasthop.stop();
}

/// Where there is no device, a port that names it is refused, and others do without.
#[test]
fn without_the_device_there_is_a_reason() {
    if !is_inside() {
        return;
    }
    let _turn = turn();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let netns = Netns::new("one", folder.path());
    let port = |more| {
        let port = tap("t1", &netns.path(), "10.0.0.1/24", more);
        format!("[switch]\nname = \"host1\"\n\n{port}")
    };
    let (_, error) = Lasthop::refused(&port("driver = \"vhost-net\""));
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
    let turn = turn();
    for kernel in [Kernel::Debian, Kernel::Newer] {
        if kernel == Kernel::Newer && !(is_long() && kernel.has_image()) {
            continue;
        }
        let mut host = Host::start(kernel);
        turn.step("with the device");
        host.test("frames_cross_by_the_kernel");
        turn.step("without the device");
        host.run("rm /dev/vhost-net");
        host.test("without_the_device_there_is_a_reason");
    }
}
