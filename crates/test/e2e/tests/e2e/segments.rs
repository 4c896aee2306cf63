//! Segments: guests of two segments do not see each other, and a trunk port sees both.

use e2e::guest::GuestSpec;
use e2e::lasthop::Lasthop;
use e2e::machine;
use e2e::traffic::{iperf_bytes, ping, serve_iperf, unreachable};

const CONFIG: &str = r#"
[switch]
name = "host1"

[[segment]]
name = "blue"
vlan = 10

[[segment]]
name = "red"
vlan = 20

[[port]]
name = "blue1"
kind = "vhost-user"
socket = "blue1.sock"
segment = "blue"
iommu = "off"

[[port]]
name = "red1"
kind = "vhost-user"
socket = "red1.sock"
segment = "red"

[[port]]
name = "trunk"
kind = "vhost-user"
socket = "trunk.sock"
trunk = ["blue", "red"]
"#;

#[test]
fn segments_are_apart_and_a_trunk_joins_them() {
    let turn = machine();
    let lasthop = Lasthop::start(CONFIG);
    turn.step("boot a blue guest, a red guest and one on a trunk port");
    let blue = GuestSpec::at(&lasthop, "blue1", 1).start();
    // The red guest claims the blue one's subnet too, so that only the segment is between them.
    let red = GuestSpec::at(&lasthop, "red1", 2).start();
    let trunk = GuestSpec::dialing("trunk", lasthop.socket_of("trunk"));
    let trunk = trunk.vlans("10:10.0.0.9/24,20:10.0.20.9/24").start();
    let (mut blue, mut red, mut trunk) = (blue.ready(), red.ready(), trunk.ready());
    red.run("ip address add 10.0.20.2/24 dev eth0");

    turn.step("QEMU without iommu_platform has the same features where an IOMMU is offered");
    let features = |port: &str| lasthop.port(port)["features"].clone();
    assert_eq!(features("blue1"), features("red1"));

    turn.step("blue and red do not see each other");
    let before = lasthop.stats();
    assert!(unreachable(&mut blue, "10.0.0.2"));
    let moved = lasthop.stats().since(&before);
    assert!(
        moved.sent("blue1") > 0,
        "the blue guest asked for the address"
    );
    assert_eq!(
        moved.received("red1"),
        0,
        "the red guest saw something of it: {moved:?}"
    );

    turn.step("the trunk sees both");
    assert_eq!(ping(&mut trunk, "10.0.0.1", 30).lost(), 0);
    assert_eq!(ping(&mut trunk, "10.0.20.2", 30).lost(), 0);
    assert_eq!(ping(&mut blue, "10.0.0.9", 30).lost(), 0);

    turn.step("TCP between tagged and untagged");
    serve_iperf(&mut blue);
    serve_iperf(&mut trunk);
    let run = iperf_bytes(&mut trunk, "10.0.0.1", "");
    assert!(run.is_sound(), "{run:?}");
    let run = iperf_bytes(&mut red, "10.0.20.9", "");
    assert!(run.is_sound(), "{run:?}");

    turn.step("what was learned is where it belongs");
    let fdb = lasthop.json(&["fdb", "list"]);
    let entries = fdb["entries"].as_array().expect("fdb lists entries");
    let learned = |segment: &str, port: &str| {
        entries
            .iter()
            .filter(|entry| entry["segment"] == segment && entry["port"] == port)
            .count()
    };
    assert_eq!(
        (
            learned("blue", "blue1"),
            learned("blue", "trunk"),
            learned("blue", "red1")
        ),
        (1, 1, 0),
        "{fdb}"
    );
    assert_eq!(
        (
            learned("red", "red1"),
            learned("red", "trunk"),
            learned("red", "blue1")
        ),
        (1, 1, 0),
        "{fdb}"
    );
    lasthop.stop();
}
