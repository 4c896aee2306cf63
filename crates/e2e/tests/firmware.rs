//! Guests whose drivers are legacy virtio, as firmware's and old systems' are: they boot over the
//! network, talk and survive what modern ones survive.
//!
//! The variants that take long run with `LASTHOP_LONG=1`.

use std::path::Path;

use e2e::guest::GuestSpec;
use e2e::lasthop::Lasthop;
use e2e::netboot::{Firmware, Image, Machine, Server, efi, multiboot};
use e2e::netns::Netns;
use e2e::traffic::{IperfRun, PingRun, iperf, ping, serve_iperf};
use e2e::uplinks::{pattern, tap};
use e2e::{Turn, is_long, turn};

const VM1: &str = "[[port]]\nname = \"vm1\"\nkind = \"vhost-user\"\nsocket = \"vm1.sock\"\n";
const VM2: &str = "[[port]]\nname = \"vm2\"\nkind = \"vhost-user\"\nsocket = \"vm2.sock\"\n";

/// Bytes of what is booted.
const LOAD: usize = 3 << 20;

/// Slower than this, TCP lives on retransmissions: emulated guests reach far more.
const SLOW: f64 = 20e6;

fn load() -> Vec<u8> {
    (0..LOAD).map(pattern).collect()
}

/// A machine boots a program from a server behind a TAP port, whose first file is `file`. `legacy`:
/// as its driver says.
fn boots(turn: &Turn, firmware: Firmware, card: &str, legacy: bool) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let netns = Netns::new("servers", folder.path());
    let lan = tap("lan", &netns.path(), "10.9.0.1/24", "interface = \"lan0\"");
    let lasthop = Lasthop::start(&format!("[switch]\nname = \"host1\"\n{VM1}{lan}"));
    lasthop.wait_port("lan", "up");
    let (image, file) = files(firmware, folder.path());
    let server = Server::start(&netns, "lan0", folder.path(), file);
    turn.step(&format!("{firmware:?}{card} boots"));
    let before = lasthop.stats();
    let mut machine = Machine::start(firmware, &lasthop.socket("vm1.sock"), card);
    // While it loads: the program stops the card.
    let status = lasthop.wait_port("vm1", "up");
    assert_eq!(status["ring"], "split", "{status}");
    let features = status["features"].as_array().expect("a list");
    let modern = features.iter().any(|name| name == "F_VERSION_1");
    assert_eq!(modern, !legacy, "{status}");
    let shown = lasthop.ok(&["port", "show", "vm1"]);
    assert_eq!(shown.contains("legacy"), legacy, "{shown}");
    assert_eq!(machine.digest(), image.digest, "{}", server.log());
    turn.step("every byte came, and was run");
    assert!(server.has_sent("image"), "{}", server.log());
    assert!(server.log().contains("DHCPACK"), "{}", server.log());
    let moved = lasthop.stats().since(&before);
    let bytes = moved.get("vm1.to_guest.bytes");
    assert!(bytes > image.bytes.len() as u64, "{moved:?}");
    assert!(moved.sent("vm1") > 100, "{moved:?}");
    assert_eq!(moved.get("vm1.drops.bad-header"), 0, "{moved:?}");
    drop(machine);
    lasthop.wait_port("vm1", "waiting");
    lasthop.stop();
}

/// Returns the image to boot, and the file that its DHCP server names: iPXE has a script fetch the
/// image.
fn files(firmware: Firmware, folder: &Path) -> (Image, &'static str) {
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.join(name), bytes).expect("a folder of ours");
    };
    let (image, first) = match firmware {
        Firmware::Bios => (multiboot(&load()), "script"),
        Firmware::Edk2 => (efi(&load()), "image"),
    };
    write("image", &image.bytes);
    write("script", b"#!ipxe\nchain tftp://10.9.0.1/image\n");
    (image, first)
}

#[test]
fn ipxe_boots_as_qemu_has_it_by_default() {
    let turn = turn();
    if Netns::allowed() {
        boots(&turn, Firmware::Bios, "", false);
    }
}

#[test]
fn edk2_boots_with_its_own_driver() {
    let turn = turn();
    if Netns::allowed() {
        boots(&turn, Firmware::Edk2, ",romfile=", true);
    }
}

#[test]
fn firmware_boots_with_other_cards() {
    let turn = turn();
    if !is_long() || !Netns::allowed() {
        return;
    }
    for (firmware, card, legacy) in [
        (Firmware::Bios, ",disable-modern=on", true),
        (Firmware::Bios, ",disable-modern=on,mrg_rxbuf=off", true),
        (Firmware::Bios, ",disable-legacy=on", false),
        (Firmware::Edk2, ",romfile=,disable-legacy=on", false),
        (Firmware::Edk2, ",romfile=,mrg_rxbuf=off", true),
    ] {
        boots(&turn, firmware, card, legacy);
    }
}

/// A legacy guest and a modern one talk, while the switch is killed once.
fn linux_talks(turn: &Turn, options: &[&str]) {
    let lasthop = Lasthop::start(&format!("[switch]\nname = \"host1\"\n{VM1}{VM2}"));
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
    let run = iperf(&mut old, "10.0.0.2", 2, "");
    assert!(run.bits_per_second > SLOW, "{run:?}");
    let run = iperf(&mut new, "10.0.0.1", 2, "");
    assert!(run.bits_per_second > SLOW, "{run:?}");

    turn.step("the switch is killed meanwhile");
    let steady = PingRun::start(&mut old, "10.0.0.2", 200);
    let stream = IperfRun::start(&mut old, "10.0.0.2", 3, "");
    std::thread::sleep(std::time::Duration::from_secs(1));
    let control = lasthop.pid("lasthop-control").expect("control runs");
    lasthop.kill_switch();
    lasthop.wait_control(control);
    if is_long() {
        turn.step("    and Lasthop is upgraded");
        lasthop.ok(&["upgrade"]);
    }
    let (steady, stream) = (steady.wait(), stream.wait());
    assert!(steady.lost() <= 4, "{steady:?}");
    assert!(stream.bytes > 1_000_000, "{stream:?}");
    let log = lasthop.log();
    assert!(!log.contains("disconnected"), "{log}");
    assert_eq!(ping(&mut new, "10.0.0.1", 20).lost(), 0);
    assert_eq!(lasthop.port("vm1")["features"].to_string(), features);
    lasthop.stop();
}

#[test]
fn a_legacy_linux_guest_talks() {
    linux_talks(&turn(), &[]);
}

#[test]
fn a_legacy_linux_guest_without_merged_buffers_talks() {
    let turn = turn();
    if is_long() {
        linux_talks(&turn, &["mrg_rxbuf=off"]);
        linux_talks(&turn, &["mrg_rxbuf=off", "any_layout=off"]);
    }
}
