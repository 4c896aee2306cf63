//! Tests of changes of the desired state.

use std::path::Path;

use api::v1::{DesiredState, Iommu, PortKind, PortSpec, Role, SegmentSpec};
use proptest::prelude::*;
use proptest::sample::subsequence;
use serde_json::json;

use super::*;

const DIR: &str = "/run/lasthop";

fn dir() -> &'static Path {
    Path::new(DIR)
}

fn port(name: &str) -> PortSpec {
    PortSpec::vhost_user(name, format!("{name}.sock"))
}

fn segment(name: &str, vlan: Option<u16>) -> SegmentSpec {
    SegmentSpec {
        name: name.to_owned(),
        vlan,
        neighbour_suppression: false,
    }
}

/// Segments blue and red, ports vm1 and vm2.
fn state() -> DesiredState {
    let mut state = DesiredState {
        segments: vec![segment("blue", Some(10)), segment("red", None)],
        ports: vec![port("vm1"), port("vm2")].into(),
        ..DesiredState::default()
    };
    check(&state, dir()).unwrap();
    normalise(&mut state);
    state
}

fn names(state: &DesiredState) -> Vec<&str> {
    state.ports.iter().map(|p| p.name.as_str()).collect()
}

#[test]
fn a_port_is_added_last_and_normalised() {
    let mut vm3 = port("vm3");
    vm3.mac = Some("52:54:00:00:00:AB".to_owned());
    let new = add_port(&state(), vm3, dir()).unwrap();
    assert_eq!(names(&new), ["vm1", "vm2", "vm3"]);
    let vm3 = new.port("vm3").unwrap();
    assert_eq!(vm3.segment.as_deref(), Some("default"));
    assert_eq!(vm3.mac.as_deref(), Some("52:54:00:00:00:ab"));
}

#[test]
fn what_is_taken_is_a_conflict() {
    let problem = add_port(&state(), port("vm1"), dir()).unwrap_err();
    assert_eq!(
        (problem.status, problem.field.as_deref()),
        (409, Some("name"))
    );
    let twin = PortSpec::vhost_user("vm3", format!("{DIR}/vm2.sock"));
    let problem = add_port(&state(), twin, dir()).unwrap_err();
    assert_eq!(
        (problem.status, problem.field.as_deref()),
        (409, Some("socket"))
    );
}

#[test]
fn a_patch_changes_only_what_it_names() {
    let patch = json!({"queues": 4, "mtu": 9000, "weight": 7});
    let new = set_port(&state(), "vm1", &patch, dir()).unwrap();
    assert_eq!(names(&new), ["vm1", "vm2"]);
    let desired = PortSpec {
        queues: 4,
        mtu: Some(9000),
        weight: 7,
        segment: Some("default".to_owned()),
        ..port("vm1")
    };
    assert_eq!(new.ports[0], desired);
    let patch = json!({"mtu": null, "role": "client", "iommu": "off"});
    let new = set_port(&new, "vm1", &patch, dir()).unwrap();
    assert_eq!((new.ports[0].mtu, new.ports[0].role), (None, Role::Client));
    assert_eq!(new.ports[0].iommu, Iommu::Off);
    assert_eq!(new.ports[0].weight, 7);
    let new = set_port(&new, "vm1", &json!({"weight": null}), dir()).unwrap();
    assert_eq!(new.ports[0].weight, 100, "the default");
}

#[test]
fn a_wrong_patch_names_key_expected_and_found() {
    for (patch, field, detail) in [
        (
            json!({"weight": 1001}),
            "weight",
            "expected an integer from 1 to 1000, found 1001",
        ),
        (
            json!({"weight": "7"}),
            "weight",
            "expected an integer from 1 to 1000, found \"7\"",
        ),
        (
            json!({"vcpu_threads": ""}),
            "vcpu_threads",
            "expected a pattern of 1 to 64 characters like \"CPU */KVM\", found \"\"",
        ),
        (
            json!({"cpu_weight": 5}),
            "cpu_weight",
            "expected no cpu_weight with kind \"vhost-user\", found 5",
        ),
        (
            json!({"secret": "s"}),
            "secret",
            "expected no secret with kind \"vhost-user\", found \"(hidden)\"",
        ),
        (
            json!({"name": "vm9"}),
            "name",
            "expected no name, which does not change, found \"vm9\"",
        ),
        (
            json!({"kind": null}),
            "kind",
            "expected no kind, which does not change, found null",
        ),
        (
            json!({"socket": ""}),
            "socket",
            "expected the path of a socket, found \"\"",
        ),
        (
            json!({"socket": null}),
            "socket",
            "expected the path of a socket, found no such key",
        ),
        (
            json!({"limits": {"to_guest": {"bits": 1}}}),
            "limits.to_guest.bits",
            "expected packets_per_second, packets_burst, bits_per_second or bits_burst",
        ),
    ] {
        let problem = set_port(&state(), "vm1", &patch, dir()).unwrap_err();
        assert_eq!(problem.field.as_deref(), Some(field), "{problem:?}");
        assert!(
            field.contains('.') || problem.detail == detail,
            "{problem:?}"
        );
    }
    for unknown in [json!({"weigth": 5}), json!({"weigth": null})] {
        let problem = set_port(&state(), "vm1", &unknown, dir()).unwrap_err();
        assert_eq!(problem.field.as_deref(), Some("weigth"), "{problem:?}");
        assert!(problem.detail.contains("the key weight"), "{problem:?}");
    }
}

#[test]
fn every_number_has_the_bounds_of_its_declaration() {
    let mut checked = Vec::new();
    for key in PortSpec::KEYS {
        let Some((least, most)) = key.range else {
            continue;
        };
        let wrong = |number: u64| {
            let port = json!({"name": "p", "kind": "user", key.name: number});
            let port: PortSpec = serde_json::from_value(port).unwrap();
            keys::Keys::of(&port).check_bounds(Place::Port(0)).err()
        };
        assert_eq!((wrong(least), wrong(most)), (None, None), "{}", key.name);
        for beyond in [least - 1, most + 1] {
            let invalid = wrong(beyond).unwrap();
            let expected = key.expected.unwrap();
            let said = (invalid.key, &*invalid.expected, &*invalid.found);
            assert_eq!(said, (key.name, expected, &*beyond.to_string()));
        }
        checked.push(key.name);
    }
    let numbers = [
        "buffers_mib",
        "guest_buffers_mib",
        "queues",
        "mtu",
        "weight",
        "cpu_weight",
        "prefilter_entries",
    ];
    assert_eq!(checked, numbers);
}

#[test]
fn only_guests_are_offered_an_iommu() {
    for kind in PortKind::ALL {
        let offered = iommu_of(&PortSpec::new("p", *kind)) != Iommu::Off;
        assert_eq!(offered, *kind == PortKind::VhostUser, "{kind:?}");
    }
    let required = PortSpec {
        iommu: Iommu::Required,
        ..port("vm1")
    };
    assert_eq!(iommu_of(&required), Iommu::Required);
}

#[test]
fn segment_and_trunk_replace_each_other() {
    let trunk = json!({"trunk": ["blue", "red"]});
    let new = set_port(&state(), "vm2", &trunk, dir()).unwrap();
    let both = Some(vec!["blue".to_owned(), "red".to_owned()]);
    assert_eq!((&new.ports[1].segment, &new.ports[1].trunk), (&None, &both));
    let access = json!({"segment": "red"});
    let new = set_port(&new, "vm2", &access, dir()).unwrap();
    let red = Some("red".to_owned());
    assert_eq!((&new.ports[1].segment, &new.ports[1].trunk), (&red, &None));
    let both = json!({"segment": "red", "trunk": ["blue", "red"]});
    let problem = set_port(&new, "vm2", &both, dir()).unwrap_err();
    assert_eq!(
        problem.to_string(),
        "trunk: expected either a segment or a trunk, found both"
    );
}

#[test]
fn a_clash_is_blamed_on_the_change() {
    let patch = json!({"socket": "vm2.sock"});
    let problem = set_port(&state(), "vm1", &patch, dir()).unwrap_err();
    assert_eq!(problem.status, 409);
    assert_eq!(
        problem.detail,
        "expected a socket that no other port has, found \"vm2.sock\", the socket of port \"vm2\""
    );
}

#[test]
fn a_port_that_is_not_there() {
    let patch = json!({});
    assert_eq!(
        set_port(&state(), "x", &patch, dir()).unwrap_err().status,
        404
    );
    assert_eq!(remove_port(&state(), "x").unwrap_err().status, 404);
    assert_eq!(names(&remove_port(&state(), "vm1").unwrap()), ["vm2"]);
}

/// Returns a valid state with few different names, so that two states have much in common.
fn any_state() -> impl Strategy<Value = DesiredState> {
    let segments = subsequence(vec!["a", "b", "c", "d"], 0..=4).prop_shuffle();
    let ports = subsequence(vec!["p", "q", "r", "s", "t"], 0..=5).prop_shuffle();
    let random = proptest::collection::vec(any::<[u8; 4]>(), 10);
    ("[xy]", segments, ports, random).prop_map(|(name, segments, ports, random)| {
        let mut state = DesiredState::default();
        state.switch.name = name;
        for (i, name) in segments.iter().enumerate() {
            let vlan = 1 + i as u16 * 4 + u16::from(random[i][0] % 4);
            state.segments.push(segment(name, Some(vlan)));
        }
        for (i, name) in ports.iter().enumerate() {
            state.ports.push(any_port(name, random[i + 4], &segments));
        }
        state
    })
}

/// Returns a port with random fields.
fn any_port(name: &str, random: [u8; 4], segments: &[&str]) -> PortSpec {
    let mut spec = port(name);
    spec.queues = 1 + u16::from(random[0] % 3);
    spec.mtu = random[1].is_multiple_of(2).then_some(1500);
    if segments.is_empty() {
        return spec;
    }
    let some = 1 + usize::from(random[2]) % segments.len();
    match random[3] % 3 {
        0 => spec.segment = Some(segments[some - 1].to_owned()),
        1 => spec.trunk = Some(segments[..some].iter().map(|s| (*s).to_owned()).collect()),
        _ => {}
    }
    spec
}

proptest! {
    #[test]
    fn normalising_keeps_a_state_right_and_ends(mut state in any_state()) {
        prop_assert!(check(&state, dir()).is_ok());
        normalise(&mut state);
        prop_assert!(check(&state, dir()).is_ok());
        let once = state.clone();
        normalise(&mut state);
        prop_assert_eq!(state, once);
    }

    #[test]
    fn adding_and_removing_a_port_changes_nothing(mut state in any_state()) {
        normalise(&mut state);
        let more = add_port(&state, port("new"), dir()).unwrap();
        prop_assert_eq!(more.ports.len(), state.ports.len() + 1);
        prop_assert_eq!(remove_port(&more, "new").unwrap(), state);
    }

    #[test]
    fn an_empty_patch_changes_nothing(mut state in any_state()) {
        normalise(&mut state);
        let patch = json!({});
        for name in names(&state) {
            prop_assert_eq!(&set_port(&state, name, &patch, dir()).unwrap(), &state);
        }
    }
}
