//! The guest image by itself: two guests connected back to back, without a switch. When this fails,
//! nothing that the other end-to-end tests say means anything.

use e2e::guest::{Guest, GuestSpec};
use e2e::iommu::Iommu;
use e2e::traffic::{iperf_bytes, ping, send_checked, serve_iperf};
use e2e::{is_long, machine};
use testkit::wait::{LIMIT, wait_for};

#[test]
fn two_guests_talk_back_to_back() {
    let turn = machine();
    turn.step("boot two guests, one after the other");
    let [mut one, mut two] = back_to_back(|spec| spec);

    turn.step("the agent reports output and exit status");
    assert_eq!(one.run("echo out; echo err >&2"), "out\nerr\n");
    assert_eq!(one.status("exit 7"), 7);
    assert_eq!(
        one.run("head -c 20000 /dev/zero | tr '\\0' x").len(),
        20_000
    );
    let slow = two.start("sleep 1; echo slow");
    assert_eq!(two.run("echo fast"), "fast\n");
    assert_eq!(slow.wait(LIMIT), "slow\n");

    turn.step("ping");
    assert_eq!(ping(&mut one, "10.0.0.2", 50).lost(), 0);

    turn.step("iperf3");
    serve_iperf(&mut two);
    let run = iperf_bytes(&mut one, "10.0.0.2", "");
    assert!(run.is_sound(), "{run:?}");

    turn.step("reset, and reboot from inside");
    one.reset();
    assert_eq!(ping(&mut one, "10.0.0.2", 5).lost(), 0);
    one.reboot();
    assert_eq!(ping(&mut one, "10.0.0.2", 5).lost(), 0);
}

/// QEMU's own card uses the IOMMU, too: what fails here is no mistake of the switch.
#[test]
fn guests_with_an_iommu_talk_back_to_back() {
    let turn = machine();
    if !is_long() {
        return;
    }
    let modes = [
        Iommu::PlatformOnly,
        Iommu::Strict,
        Iommu::Lazy,
        Iommu::PassThrough,
        Iommu::Virtio,
    ];
    for mode in modes.into_iter().filter(|mode| mode.has_image()) {
        turn.step(&format!("boot two guests: {mode:?}"));
        let [mut one, mut two] = back_to_back(|spec| spec.iommu(mode));
        one.check_iommu(mode);
        two.check_iommu(mode);
        assert_eq!(ping(&mut one, "10.0.0.2", 20).lost(), 0);
        send_checked(&mut two, "10.0.0.2", &mut one, 2);
        turn.step("another driver, and a reboot");
        one.rebind();
        assert_eq!(ping(&mut one, "10.0.0.2", 20).lost(), 0);
        one.reboot();
        one.check_iommu(mode);
        assert_eq!(ping(&mut one, "10.0.0.2", 20).lost(), 0);
    }
}

/// Two guests that are connected without a switch.
fn back_to_back(config: impl Fn(GuestSpec) -> GuestSpec) -> [Guest; 2] {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("wire");
    let one = GuestSpec::back_to_back("one", socket.clone(), true).ip("10.0.0.1/24");
    let one = config(one).start();
    wait_for("QEMU listens", || socket.exists().then_some(()));
    let one = one.ready();
    let two = GuestSpec::back_to_back("two", socket, false).ip("10.0.0.2/24");
    [one, config(two).start().ready()]
}
