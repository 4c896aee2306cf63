//! Tests of checks, admission, and the values for the switch.

use std::collections::BTreeMap;
use std::path::Path;

use api::v1::{DesiredState, PortKind, PortSpec};
use egress::{Beyond, FullAction, OutputConfig};
use serde_json::{Value, json};

use super::super::{Change, changed, check, normalise};
use super::*;

/// A state with the guests `vm1` to `vm3` and the uplink `up` of 10 Gbit/s, with changes.
fn state(change: impl FnOnce(&mut Value)) -> DesiredState {
    let guest = |name: &str| json!({"name": name, "kind": "vhost-user", "socket": name});
    let up = json!({"name": "up", "kind": "uplink", "interface": "eth0",
        "egress": {"rate": 10_000_000_000u64}});
    let mut document = json!({
        "qos_classes": [{"name": "storage", "priority": 6, "dscp": [26, 28], "pcp": 4}],
        "qos_groups": [{"name": "tenant1", "min": 1_000_000_000u64}],
        "ports": [guest("vm1"), guest("vm2"), guest("vm3"), up],
    });
    change(&mut document);
    serde_json::from_value(document).unwrap()
}

fn checked(state: &DesiredState) -> Result<(), Invalid> {
    check(state, Path::new("/run/lasthop"))
}

fn refused(change: impl FnOnce(&mut Value)) -> String {
    checked(&state(change)).unwrap_err().to_string()
}

/// Sets a value in a document, like `ports.0.qos`.
fn set(path: &str, value: Value) -> impl FnOnce(&mut Value) {
    move |document| {
        let steps = path.split('.');
        let at = steps.fold(document, |at, step| match step.parse::<usize>() {
            Ok(index) => &mut at[index],
            Err(_) => &mut at[step],
        });
        *at = value;
    }
}

#[test]
fn numbers_have_prefixes_where_they_are_exact() {
    for (number, text) in [
        (0, "0"),
        (999, "999"),
        (1500, "1.5k"),
        (10_400_000_000, "10.4G"),
        (10_000_000_000, "10G"),
        (1_000_000_000_000, "1T"),
        (1_234_567_000, "1234.567M"),
        (1_234_567, "1234567"),
        (1_234_567_891, "1234567891"),
    ] {
        assert_eq!(si(number), text);
        assert_eq!(api::v1::parse_si(text), Some(number));
    }
}

#[test]
fn what_can_be_kept_is_accepted() {
    let of_ports = json!({"min": 500_000_000, "max": 2_000_000_000u64, "burst": 20_000_000,
        "group": "tenant1", "beyond": "hold", "trust_dscp": false,
        "class_by_pair": ["default", "storage"], "classes": {"storage": {"min": 200_000_000}}});
    let good = state(|document| {
        document["ports"][0]["qos"] = of_ports.clone();
        document["ports"][1]["qos"] = of_ports;
        document["ports"][2]["qos"] = json!({"min": 9_000_000_000u64});
    });
    assert_eq!(checked(&good), Ok(()), "1G for the group and 9G");
}

#[test]
fn what_cannot_be_is_refused_with_place_and_reason() {
    let min = |min: u64| json!({"min": min});
    for (path, value, begins, has) in [
        (
            "ports.0.qos",
            json!({"min": 3, "max": 2}),
            "port.qos.min:",
            "at most the max of 2",
        ),
        (
            "ports.2.qos",
            min(10_400_000_000),
            "port.qos.min: port \"vm3\": 10.4G of the 10G of \"up\" would be promised",
            "",
        ),
        (
            "qos_groups.0.max",
            json!(999_999_999),
            "qos_group.min:",
            "at most the max of 999999999, found 1G",
        ),
        (
            "ports.1.qos",
            json!({"group": "tenant1", "min": 1_000_000_001}),
            "port.qos.min: port \"vm2\": 1000000001 of the min of 1G of group \"tenant1\" would",
            "",
        ),
        (
            "ports.1.qos",
            json!({"min": 100, "classes": {"storage": {"min": 101}}}),
            "port.qos.classes: port \"vm2\": 101 of its own min of 100 would be promised",
            "",
        ),
        (
            "ports.1.qos",
            json!({"classes": {"storage": {"max": 0}}}),
            "port.qos.classes: expected an integer from 1",
            "found class \"storage\": 0",
        ),
        (
            "ports.0.qos",
            json!({"group": "t"}),
            "port.qos.group:",
            "(tenant1), found \"t\"",
        ),
        (
            "ports.0.qos",
            json!({"class_by_pair": ["default", "s"]}),
            "port.qos.class_by_pair:",
            "(default, storage), found \"s\"",
        ),
        (
            "ports.0.qos",
            json!({"classes": {"s": {}}}),
            "port.qos.classes:",
            "found \"s\"",
        ),
        (
            "ports.0.qos",
            json!({"priority": 8}),
            "port.qos.priority:",
            "0 to 7, found 8",
        ),
        (
            "ports.0.qos",
            json!({"weight": 0}),
            "port.qos.weight:",
            "found 0",
        ),
        (
            "ports.0.qos",
            json!({"burst": 524_423}),
            "port.qos.burst:",
            "a frame of 64 KiB",
        ),
        (
            "ports.3.qos",
            json!({"beyond": "hold"}),
            "port.qos.beyond:",
            "cannot be held",
        ),
        (
            "ports.0.egress",
            json!({}),
            "port.egress.rate:",
            "which ports of kind \"vhost-user\"",
        ),
        (
            "ports.0.egress",
            json!({"rate": 1, "full": "hold"}),
            "port.egress.full: expected no full with kind \"vhost-user\"",
            "",
        ),
        (
            "ports.0.egress",
            json!({"rate": 1, "room": 65_553}),
            "port.egress.room:",
            "no room",
        ),
        (
            "ports.3.egress",
            json!({"room": 65_552}),
            "port.egress.room:",
            "the longest frame",
        ),
        (
            "ports.3.egress",
            json!({"rate": 0}),
            "port.egress.rate:",
            "found 0",
        ),
        (
            "ports.3.egress",
            json!({"overhead": 257}),
            "port.egress.overhead:",
            "0 to 256",
        ),
        (
            "qos_classes.0.priority",
            json!(8),
            "qos_class.priority:",
            "found 8",
        ),
        ("qos_classes.0.pcp", json!(8), "qos_class.pcp:", "found 8"),
        (
            "qos_classes.0.dscp",
            json!([64]),
            "qos_class.dscp:",
            "found 64",
        ),
        (
            "qos_classes.0.dscp",
            json!([1, 1]),
            "qos_class.dscp:",
            "a value of class \"storage\"",
        ),
    ] {
        let said = refused(set(path, value.clone()));
        assert!(
            said.starts_with(begins) && said.contains(has),
            "{path} {value}: {said}"
        );
    }
}

#[test]
fn there_are_eight_classes_with_the_default_one() {
    let classes = |names: &[&str]| {
        let all: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
        set("qos_classes", all.into())
    };
    let seven = ["a", "b", "c", "d", "e", "f", "g"];
    assert_eq!(checked(&state(classes(&seven))), Ok(()));
    let with_default = ["default", "a", "b", "c", "d", "e", "f", "g"];
    assert_eq!(checked(&state(classes(&with_default))), Ok(()));
    let eight = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let said = refused(classes(&eight));
    let expected = "qos_class.name: expected at most 8 classes with \"default\", found 9 classes";
    assert_eq!(said, expected);
    assert!(refused(classes(&["a", "a"])).contains("a second time"));
    assert!(refused(classes(&["default", "default"])).contains("a second time"));
}

#[test]
fn guarantees_count_at_the_outputs_that_a_port_can_reach() {
    let elsewhere = |document: &mut Value| {
        document["segments"] = json!([{"name": "red", "vlan": 7}]);
        document["ports"][2]["segment"] = json!("red");
        document["ports"][2]["qos"] = json!({"min": 11_000_000_000u64});
    };
    assert_eq!(checked(&state(elsewhere)), Ok(()), "another segment");
    let trunk = |document: &mut Value| {
        elsewhere(document);
        document["ports"][3]["trunk"] = json!(["default", "red"]);
    };
    assert!(refused(trunk).contains("11G of the 10G"));
    let of_itself = set("ports.3.qos", json!({"min": 11_000_000_000u64}));
    assert_eq!(
        checked(&state(of_itself)),
        Ok(()),
        "no port sends to itself"
    );
}

#[test]
fn the_speed_of_an_interface_is_the_rate_of_an_uplink_without_one() {
    let state = state(|document| {
        document["ports"][3]["egress"] = json!({});
        document["ports"][0]["qos"] = json!({"min": 2_000_000_000u64});
    });
    assert_eq!(checked(&state), Ok(()), "it is not known here");
    let speeds = |speed: Option<u64>| -> Speeds {
        speed
            .map(|speed| ("up".to_owned(), speed))
            .into_iter()
            .collect()
    };
    let before = DesiredState::default();
    let admit = |state: &DesiredState, speed| super::admit(state, &before, &speeds(speed));
    assert_eq!(admit(&state, Some(2_000_000_000)), Ok(()));
    let slow = admit(&state, Some(1_000_000_000)).unwrap_err();
    assert!(slow.found.contains("2G of the 1G of \"up\""), "{slow}");
    let unknown = admit(&state, None).unwrap_err();
    assert_eq!((unknown.place, unknown.key), (Place::Qos(0), "min"));
    assert!(unknown.found.contains("the rate of \"up\""), "{unknown}");
    assert_eq!(
        foresee(&state, &before, &speeds(None)),
        Ok(()),
        "it may become known"
    );
    assert!(foresee(&state, &before, &speeds(Some(1_000_000_000))).is_err());
    // A state in effect is not refused because of a link that is down.
    let mut changed = state.clone();
    changed.ports[0].mtu = Some(9000);
    changed.ports.remove(1);
    changed.ports.push(PortSpec::vhost_user("vm4", "vm4.sock"));
    let admit = |new: &DesiredState| super::admit(new, &state, &speeds(None));
    assert_eq!(admit(&changed), Ok(()));
    changed.ports[1].qos.min = Some(1);
    assert!(admit(&changed).is_err(), "it promises more");
}

struct Numbered(BTreeMap<String, u32>);

impl Names for Numbered {
    fn port(&self, name: &str) -> u32 {
        self.0[name]
    }

    fn class(&self, name: &str) -> u8 {
        u8::from(name != "default")
    }
}

fn output(state: &DesiredState, port: &str, speed: Option<u64>) -> Option<OutputConfig> {
    let names = state.ports.iter().map(|port| port.name.clone()).zip(10..);
    output_of(
        state,
        state.port(port).unwrap(),
        &Numbered(names.collect()),
        speed,
    )
}

#[test]
fn frames_of_an_uplink_that_are_dropped_have_a_longer_burst() {
    let state = state(|document| {
        document["ports"][0]["egress"] = json!({"rate": 200_000_000});
    });
    let to_guest = output(&state, "vm1", None).unwrap();
    let up = to_guest.senders.last().unwrap();
    assert_eq!((up.port, up.beyond), (13, Beyond::Drop));
    assert_eq!(up.rates.burst, 80_000_000, "400 ms");
}

#[test]
fn an_output_has_all_ports_that_reach_it_as_senders() {
    let state = state(|document| {
        document["ports"][0]["qos"] = json!({"min": 500_000_000, "group": "tenant1"});
        document["ports"][1]["qos"] = json!({"max": 2_000_000_000u64, "priority": 2,
            "classes": {"storage": {"max": 1_000_000_000, "burst": 600_000}}});
        document["ports"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "t", "kind": "tap"}));
    });
    let up = output(&state, "up", None).unwrap();
    assert_eq!(
        (up.rate, up.overhead, up.full),
        (Some(10_000_000_000), 24, FullAction::Hold)
    );
    assert_eq!(up.priorities, [0, 6, 0, 0, 0, 0, 0, 0]);
    let ports: Vec<u32> = up.senders.iter().map(|sender| sender.port).collect();
    assert_eq!(ports, [10, 11, 12, 14], "all but itself");
    let groups: Vec<_> = up.senders.iter().map(|sender| sender.group).collect();
    assert_eq!(groups, [Some(0), None, None, None]);
    assert_eq!(up.groups[0].rates.min, 1_000_000_000);
    let [vm1, vm2, vm3, tap] = &up.senders[..] else {
        panic!()
    };
    assert_eq!(
        (vm1.rates.min, vm1.rates.burst),
        (500_000_000, 5_000_000),
        "10 ms"
    );
    assert_eq!(
        (vm2.rates.max, vm2.rates.burst),
        (Some(2_000_000_000), 20_000_000)
    );
    assert_eq!(
        (vm2.priority, vm2.classes[0].0, vm2.classes[0].1.burst),
        (2, 1, 600_000)
    );
    assert_eq!((vm3.rates.burst, vm3.rates.weight), (2 * FRAME, 100));
    assert_eq!((vm3.beyond, tap.beyond), (Beyond::Hold, Beyond::Hold));
    assert_eq!(output(&state, "vm1", None), None);
}

#[test]
fn a_slower_link_scales_guarantees_down() {
    let state = state(set("ports.0.qos", json!({"min": 4_000_000_000u64})));
    let up = output(&state, "up", Some(1_000_000_000)).unwrap();
    assert_eq!(
        (up.rate, up.senders[0].rates.min),
        (Some(1_000_000_000), 1_000_000_000)
    );
    let up = output(&state, "up", Some(25_000_000_000)).unwrap();
    assert_eq!(
        (up.rate, up.senders[0].rates.min),
        (Some(10_000_000_000), 4_000_000_000)
    );
}

#[test]
fn ports_of_a_kind_have_their_defaults() {
    let kinds = [
        PortKind::VhostUser,
        PortKind::Uplink,
        PortKind::Tap,
        PortKind::Memif,
    ];
    let of = |kind| {
        let port = PortSpec {
            egress: Some(EgressSpec::default()),
            ..PortSpec::new("p", kind)
        };
        let spec = EgressSpec::default();
        (
            overhead_of(&port, &spec),
            trusts_dscp(&port),
            room_of(&port, None),
        )
    };
    let expected = [
        (0, false, None),
        (24, true, Some(ROOM / 2)),
        (0, false, Some(ROOM / 2)),
    ];
    assert_eq!(kinds.map(of)[..3], expected);
    assert_eq!(of(PortKind::Memif), expected[0]);
    assert_eq!(
        room_of(&PortSpec::new("p", PortKind::Uplink), None),
        None,
        "not scheduled"
    );
    let fast = |rate, room| PortSpec {
        egress: Some(EgressSpec {
            rate,
            room,
            ..EgressSpec::default()
        }),
        ..PortSpec::new("p", PortKind::Uplink)
    };
    let speed = Some(25_000_000_000);
    assert_eq!(room_of(&fast(None, None), speed), Some(625_000));
    let slow = Some(10_000_000_000);
    assert_eq!(room_of(&fast(slow, None), speed), Some(250_000));
    assert_eq!(room_of(&fast(None, Some(100_000)), speed), Some(50_000));
}

#[test]
fn classes_have_code_points_and_dscps_by_number() {
    let state = state(|_| {});
    let names = Numbered(BTreeMap::new());
    assert_eq!(code_points(&state, &names), [None, Some(4)]);
    let dscps: Vec<_> = dscp_of_classes(&state, &names).collect();
    assert_eq!(dscps, [(26, 1), (28, 1)]);
    assert_eq!(code_points(&DesiredState::default(), &names), []);
}

#[test]
fn the_default_class_is_there_and_listed_with_settings_only() {
    let change = |state: &DesiredState, change| {
        changed(state, &Change::Qos(change), Path::new("/run/lasthop"))
    };
    let set = |priority: Option<u8>| json!({"priority": priority});
    let mut before = state(|_| {});
    normalise(&mut before);
    let with = change(
        &before,
        QosChange::SetClass("default".to_owned(), set(Some(1))),
    )
    .unwrap();
    assert_eq!(with.qos_class("default").unwrap().priority, 1);
    let again = change(&with, QosChange::SetClass("default".to_owned(), set(None))).unwrap();
    assert_eq!(again, before);
    assert_eq!(classes_of(&again)[0], QosClassSpec::new("default"));
    let refused = change(&with, QosChange::RemoveClass("default".to_owned())).unwrap_err();
    assert_eq!(refused.status, 409);
    let unknown = change(&with, QosChange::RemoveClass("other".to_owned())).unwrap_err();
    assert_eq!(unknown.status, 404);
}

#[test]
fn a_change_of_a_group_is_refused_at_its_own_field_or_with_the_other_object() {
    let change = |state: &DesiredState, patch: Value| {
        let change = Change::Qos(QosChange::SetGroup("tenant1".to_owned(), patch));
        let refused = changed(state, &change, Path::new("/run/lasthop")).unwrap_err();
        assert_eq!(refused.status, 422);
        (refused.field, refused.detail)
    };
    let state = state(set(
        "ports.0.qos",
        json!({"min": 500_000_000, "group": "tenant1"}),
    ));
    let (field, detail) = change(&state, json!({"weight": 0}));
    assert_eq!(
        (field.as_deref(), detail.contains("found 0")),
        (Some("weight"), true)
    );
    let (field, detail) = change(&state, json!({"min": 11_000_000_000u64}));
    assert_eq!(field.as_deref(), Some("min"));
    assert_eq!(
        detail,
        "group \"tenant1\": 11G of the 10G of \"up\" would be promised"
    );
    let (field, detail) = change(&state, json!({"min": null}));
    assert_eq!(field, None);
    assert!(
        detail.starts_with("port.qos.min: port \"vm1\": 500M of the min of 0"),
        "{detail}"
    );
    let remove = Change::Qos(QosChange::RemoveGroup("tenant1".to_owned()));
    let refused = changed(&state, &remove, Path::new("/run/lasthop")).unwrap_err();
    assert_eq!(refused.status, 422);
    assert!(refused.detail.contains("port `vm1` is in it"), "{refused}");
}
