//! A host in a guest of QEMU by itself. When this fails, other tests in such hosts say nothing.

use e2e::lasthop::Lasthop;
use e2e::nested::{Host, Kernel, is_inside};
use e2e::{is_long, machine};
use testkit::lasthop::port;

/// Starts Lasthop where the test runs, and exchanges a frame.
#[test]
fn lasthop_starts_here() {
    let _turn = machine();
    let lasthop = Lasthop::start(&[port("a", ""), port("b", "")].concat());
    let (mut one, mut two) = (lasthop.connect("a", 1), lasthop.connect("b", 2));
    let frame = testkit::packets::udp(&testkit::packets::Flow::v4(1, 2), b"hello");
    one.send(&frame).expect("room");
    let got = two.recv(e2e::uplinks::TIMEOUT).expect("an honest device");
    assert_eq!(got.expect("a frame").frame, frame);
    lasthop.stop();
}

#[test]
fn a_host_in_a_guest_has_what_tests_need() {
    if is_inside() {
        return;
    }
    let turn = machine();
    for kernel in [Kernel::Debian, Kernel::Newer] {
        if kernel == Kernel::Newer && !(is_long() && kernel.has_image()) {
            continue;
        }
        turn.step("boot");
        let mut host = Host::start(kernel, module_path!());
        turn.step("devices, control groups, exit status");
        host.run("test -c /dev/net/tun && test -c /dev/vhost-net");
        let controllers = host.run("cat /sys/fs/cgroup/cgroup.controllers");
        assert!(controllers.contains("cpu"), "{controllers}");
        assert_eq!(host.answer("echo bad; exit 3").status, 3);
        turn.step(host.run("uname -r; free -m").trim());
        turn.step("a test");
        host.test("lasthop_starts_here");
        turn.step("end");
    }
}
