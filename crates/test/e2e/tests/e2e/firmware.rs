//! Firmware boots over the network with its own drivers, some of which are legacy virtio. Guests of
//! Linux with such drivers are in `legacy_guests.rs`.
//!
//! The variants that take long run with `LASTHOP_LONG=1`.

use std::path::Path;

use e2e::lasthop::Lasthop;
use e2e::netboot::{Firmware, Image, Machine, Server, efi, multiboot};
use e2e::uplinks::{pattern, tap};
use e2e::{Turn, is_long, machine};
use testkit::netns::Netns;

const VM1: &str = "[[port]]\nname = \"vm1\"\nkind = \"vhost-user\"\nsocket = \"vm1.sock\"\n";

/// Bytes of what is booted.
const LOAD: usize = 3 << 20;

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
    let turn = machine();
    if Netns::allowed() {
        boots(&turn, Firmware::Bios, "", false);
    }
}

#[test]
fn edk2_boots_with_its_own_driver() {
    let turn = machine();
    if Netns::allowed() {
        boots(&turn, Firmware::Edk2, ",romfile=", true);
    }
}

#[test]
fn firmware_boots_with_other_cards() {
    let turn = machine();
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
