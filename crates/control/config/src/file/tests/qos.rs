//! Scheduled ports in the file.

use api::v1::{Beyond, FullAction};

use super::*;

/// Every key.
const FILE: &str = r#"
[[qos_class]]
name = "storage"
priority = 6
dscp = [26, 28]
pcp = 4

[[qos_group]]
name = "tenant1"
min = "1G"
max = "4G"
burst = "40M"
weight = 200

[[port]]
name = "up"
kind = "uplink"
interface = "eth1"

[port.egress]
rate = "10G"
overhead = 24
full = "hold"
room = "256k"

[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"

[port.qos]
min = "500M"
max = "2G"
burst = "20M"
priority = 0
weight = 100
group = "tenant1"
beyond = "hold"
trust_dscp = false
class_by_pair = ["default", "storage"]
classes.storage = { min = "200M" }
"#;

#[test]
fn numbers_may_have_prefixes() {
    let state = read(FILE).unwrap();
    let group = &state.qos_groups[0];
    assert_eq!(
        (group.min, group.max),
        (Some(1_000_000_000), Some(4_000_000_000))
    );
    assert_eq!((group.burst, group.weight), (Some(40_000_000), 200));
    let class = &state.qos_classes[0];
    assert_eq!(
        (class.priority, class.pcp, &class.dscp[..]),
        (6, Some(4), &[26, 28][..])
    );
    let egress = state.ports[0].egress.unwrap();
    assert_eq!(
        (egress.rate, egress.room),
        (Some(10_000_000_000), Some(256_000))
    );
    assert_eq!(
        (egress.overhead, egress.full),
        (Some(24), Some(FullAction::Hold))
    );
    let qos = &state.ports[1].qos;
    assert_eq!((qos.min, qos.max), (Some(500_000_000), Some(2_000_000_000)));
    assert_eq!(
        (qos.burst, qos.beyond),
        (Some(20_000_000), Some(Beyond::Hold))
    );
    assert_eq!(qos.classes["storage"].min, Some(200_000_000));
    assert_eq!(qos.class_by_pair, ["default", "storage"]);
    assert_eq!(read(&export(&state)), Ok(state));
}

#[test]
fn an_empty_table_schedules_an_uplink_at_its_speed() {
    let text = "[[port]]\nname = \"up\"\nkind = \"uplink\"\ninterface = \"eth1\"\n[port.egress]\n";
    let state = read(text).unwrap();
    assert_eq!(state.ports[0].egress, Some(Default::default()));
    let file = export(&state);
    assert!(file.ends_with("\n[port.egress]\n"), "{file}");
    assert_eq!(read(&file), Ok(state));
}

#[test]
fn mistakes_have_their_place() {
    let line = |text: &str| FILE.lines().position(|line| line == text).unwrap() + 1;
    for (is, wrong_line, message) in [
        (
            "min = \"500M\"",
            "min = \"3G\"",
            "port.qos.min: expected at most the max of 2G, found 3G",
        ),
        (
            "priority = 6",
            "priority = 8",
            "qos_class.priority: expected an integer from 0 to 7, found 8",
        ),
        (
            "priority = 6",
            "priority = \"high\"",
            "qos_class.priority: expected an integer from 0 to 7, found \"high\"",
        ),
        (
            "burst = \"20M\"",
            "burst = \"20Mi\"",
            "port.qos.burst: expected an integer from 524424, the bits of a frame of 64 KiB, to \
             1000000000000, or a text like \"10M\", found \"20Mi\"",
        ),
        (
            "group = \"tenant1\"",
            "group = \"tenant2\"",
            "port.qos.group: expected the name of a group (tenant1), found \"tenant2\"",
        ),
        (
            "class_by_pair = [\"default\", \"storage\"]",
            "class_by_pair = [\"default\", \"fast\"]",
            "port.qos.class_by_pair: expected the name of a class (default, storage), found \
             \"fast\"",
        ),
        (
            "full = \"hold\"",
            "full = \"wait\"",
            "port.egress.full: expected \"hold\" or \"drop\", found \"wait\"",
        ),
        (
            "room = \"256k\"",
            "room = \"1k\"",
            "port.egress.room: expected an integer from 65553, the bytes of the longest frame, to \
             1000000000, or a text like \"256k\", found 1000",
        ),
        (
            "trust_dscp = false",
            "trust = false",
            "port.qos.trust: expected the key trust_dscp, or another of min, max, burst, \
             priority, weight, group, beyond, trust_dscp, class_by_pair, classes, found the unknown key \"trust\"",
        ),
        (
            "classes.storage = { min = \"200M\" }",
            "classes.storage = { min = \"600M\" }",
            "port.qos.classes: port \"vm1\": 600M of its own min of 500M would be promised",
        ),
    ] {
        let text = FILE.replacen(&format!("\n{is}\n"), &format!("\n{wrong_line}\n"), 1);
        assert_eq!(wrong(&text), format!("{}: {message}", line(is)));
    }
    // The group is right by itself, and its member is promised too much.
    let text = FILE.replacen("min = \"1G\"", "min = \"400M\"", 1);
    let expected = "port.qos.min: port \"vm1\": 500M of the min of 400M of group \"tenant1\" \
                    would be promised";
    assert_eq!(
        wrong(&text),
        format!("{}: {expected}", line("min = \"500M\""))
    );
}
