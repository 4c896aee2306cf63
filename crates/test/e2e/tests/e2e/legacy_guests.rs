//! Guests of Linux whose drivers are legacy virtio, as old systems' are: they talk and survive what
//! modern ones survive.
//!
//! The variants that take long run with `LASTHOP_LONG=1`.

use e2e::guest::GuestSpec;
use e2e::lasthop::{Lasthop, guest_ports};
use e2e::traffic::{PingRun, Transfer, iperf_bytes, ping, serve_iperf};
use e2e::{Turn, is_long, machine};

/// A legacy guest and a modern one talk, while the switch is killed once.
fn linux_talks(turn: &Turn, options: &[&str]) {
    let lasthop = Lasthop::start(&guest_ports("", &["vm1", "vm2"]));
    turn.step(&format!(
        "boot a legacy guest, {options:?}, and a modern one"
    ));
    let old = GuestSpec::at(&lasthop, "vm1", 1);
    let old = old.device_option("disable-modern=on");
    let old = options
        .iter()
        .fold(old, |spec, option| spec.device_option(option));
    let new = GuestSpec::at(&lasthop, "vm2", 2);
    let (old, new) = (old.start(), new.start());
    let (mut old, mut new) = (old.ready(), new.ready());
    let status = lasthop.wait_port("vm1", "up");
    let features = status["features"].to_string();
    assert!(!features.contains("F_VERSION_1"), "{features}");
    assert!(features.contains("NET_F_HOST_TSO4"), "{features}");

    turn.step("ping, and TCP both ways");
    assert_eq!(ping(&mut old, "10.0.0.2", 50).lost(), 0);
    for guest in [&mut old, &mut new] {
        serve_iperf(guest);
    }
    let run = iperf_bytes(&mut old, "10.0.0.2", "");
    assert!(run.is_sound(), "{run:?}");
    let run = iperf_bytes(&mut new, "10.0.0.1", "");
    assert!(run.is_sound(), "{run:?}");

    turn.step("the switch is killed meanwhile");
    let before = lasthop.stats();
    let steady = PingRun::endless(&mut old, "10.0.0.2");
    let stream = Transfer::start(&mut old, "10.0.0.2", &lasthop, "vm2");
    lasthop.replace_switch();
    stream.goes_on();
    if is_long() {
        turn.step("    and Lasthop is upgraded");
        lasthop.ok(&["upgrade"]);
        stream.goes_on();
    }
    stream.end(&mut old);
    let steady = steady.stop(&mut old);
    let moved = lasthop.stats().since(&before);
    assert!(steady.lost() <= 4, "{steady:?}, {moved:?}");
    let log = lasthop.log();
    assert!(!log.contains("disconnected"), "{log}");
    assert_eq!(ping(&mut new, "10.0.0.1", 20).lost(), 0);
    assert_eq!(lasthop.port("vm1")["features"].to_string(), features);
    lasthop.stop();
}

#[test]
fn a_legacy_linux_guest_talks() {
    linux_talks(&machine(), &[]);
}

#[test]
fn a_legacy_linux_guest_without_merged_buffers_talks() {
    let turn = machine();
    if is_long() {
        linux_talks(&turn, &["mrg_rxbuf=off"]);
        linux_talks(&turn, &["mrg_rxbuf=off", "any_layout=off"]);
    }
}
