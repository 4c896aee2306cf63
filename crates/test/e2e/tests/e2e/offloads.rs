//! Guests with different offloads, queue layouts and socket roles talk: nothing is lost, and what
//! was offloaded by the sender arrives right at a receiver that cannot take it.

use e2e::guest::GuestSpec;
use e2e::lasthop::Lasthop;
use e2e::machine;
use e2e::traffic::{checksum_errors, iperf_bytes, ping, serve_iperf};

const CONFIG: &str = r#"
[switch]
name = "host1"

[[port]]
name = "full"
kind = "vhost-user"
socket = "full.sock"

[[port]]
name = "packed"
kind = "vhost-user"
socket = "packed.sock"
role = "client"

[[port]]
name = "plain"
kind = "vhost-user"
socket = "plain.sock"
"#;

#[test]
fn offloads_come_out_right_between_guests_that_differ() {
    let turn = machine();
    let lasthop = Lasthop::start(CONFIG);
    turn.step(
        "boot three guests: all offloads split; all offloads packed, QEMU listening; no offloads",
    );
    let full = GuestSpec::at(&lasthop, "full", 1).ipv6().start();
    let packed = GuestSpec::listening("packed", lasthop.socket("packed.sock"));
    let packed = packed.ip("10.0.0.2/24").packed().ipv6().start();
    let plain = GuestSpec::dialing("plain", lasthop.socket_of("plain"));
    let plain = plain.ip("10.0.0.3/24").no_offloads().ipv6().start();
    let (mut full, mut packed, mut plain) = (full.ready(), packed.ready(), plain.ready());

    turn.step("status knows what was negotiated");
    assert_eq!(lasthop.wait_port("full", "up")["ring"], "split");
    let status = lasthop.wait_port("packed", "up");
    assert_eq!(status["ring"], "packed");
    assert!(
        status["memory_bytes"].as_u64() >= Some(96 << 20),
        "{status}"
    );
    let features = |port: &str| lasthop.port(port)["features"].to_string();
    assert!(
        features("full").contains("NET_F_HOST_TSO4"),
        "{}",
        features("full")
    );
    assert!(!features("plain").contains("TSO"), "{}", features("plain"));

    turn.step("ping in every direction");
    assert_eq!(ping(&mut full, "10.0.0.2", 50).lost(), 0);
    assert_eq!(ping(&mut full, "10.0.0.3", 50).lost(), 0);
    assert_eq!(ping(&mut plain, "10.0.0.2", 50).lost(), 0);

    turn.step("TCP between the two with offloads: frames of 64 KiB cross whole");
    for guest in [&mut full, &mut packed, &mut plain] {
        serve_iperf(guest);
    }
    let before = lasthop.stats();
    let run = iperf_bytes(&mut full, "10.0.0.2", "");
    assert!(run.is_sound(), "{run:?}");
    let moved = lasthop.stats().since(&before);
    let average = moved.get("packed.to_guest.bytes") / moved.received("packed").max(1);
    assert!(
        average > 3000,
        "the receiver was given frames of {average} bytes on average"
    );
    let run = iperf_bytes(&mut packed, "10.0.0.1", "");
    assert!(run.is_sound(), "{run:?}");

    turn.step("TCP towards the guest without offloads: segmented and summed in software");
    let before = lasthop.stats();
    let run = iperf_bytes(&mut full, "10.0.0.3", "");
    assert!(run.is_sound(), "{run:?}");
    let moved = lasthop.stats().since(&before);
    let average = moved.get("plain.to_guest.bytes") / moved.received("plain").max(1);
    assert!(
        average <= 1518,
        "the plain guest was given frames of {average} bytes on average"
    );
    let run = iperf_bytes(&mut packed, "10.0.0.3", "");
    assert!(run.is_sound(), "{run:?}");

    turn.step("TCP from it");
    let run = iperf_bytes(&mut plain, "10.0.0.1", "");
    assert!(run.is_sound(), "{run:?}");

    turn.step("the same over IPv6");
    // Without the second that a host waits before it uses an address.
    for guest in [&mut full, &mut packed, &mut plain] {
        guest.run("echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad");
    }
    for (guest, address) in [
        (&mut full, "fd00::1"),
        (&mut packed, "fd00::2"),
        (&mut plain, "fd00::3"),
    ] {
        guest.run(&format!("ip -6 address add {address}/64 dev eth0"));
    }
    let run = iperf_bytes(&mut full, "fd00::3", "");
    assert!(run.is_sound(), "{run:?}");
    let run = iperf_bytes(&mut packed, "fd00::1", "");
    assert!(run.is_sound(), "{run:?}");

    turn.step("no guest saw a wrong checksum");
    for (name, guest) in [
        ("full", &mut full),
        ("packed", &mut packed),
        ("plain", &mut plain),
    ] {
        assert_eq!(checksum_errors(guest), 0, "checksum errors at {name}");
    }
    lasthop.stop();
}
