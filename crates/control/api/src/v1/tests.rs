//! Tests of documents, byte for byte where clients depend on the bytes.

use serde_json::{from_str, json, to_value};

use super::*;

#[test]
fn a_minimal_port_gets_the_defaults() {
    let text = r#"{"name":"vm1","kind":"vhost-user","socket":"vm1.sock"}"#;
    let port: PortSpec = from_str(text).unwrap();
    assert_eq!(port, PortSpec::vhost_user("vm1", "vm1.sock"));
    assert_eq!(port.queues, 1);
    assert_eq!(port.role, Role::Server);
    assert_eq!(port.segments().collect::<Vec<_>>(), ["default"]);
}

#[test]
fn requests_refuse_unknown_fields() {
    let port = r#"{"name":"a","kind":"vhost-user","socket":"a","queue":2}"#;
    let error = from_str::<PortSpec>(port).unwrap_err().to_string();
    assert!(error.starts_with("unknown field `queue`"), "{error}");
    assert!(from_str::<SegmentSpec>(r#"{"name":"b","tag":1}"#).is_err());
    assert!(from_str::<FdbFilter>(r#"{"mac":"b"}"#).is_err());
}

#[test]
fn kinds_share_the_keys_that_no_row_names() {
    let has = |key: &str| {
        let kinds = PortKind::ALL.iter().filter(|kind| kind.may_have(key));
        kinds.map(|kind| kind.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(has("queues"), PortKind::WORDS);
    assert_eq!(has("vcpu_threads"), ["vhost-user"]);
    assert_eq!(has("cpu_weight"), ["uplink", "tap", "user"]);
    assert_eq!(has("socket"), ["vhost-user", "netmap", "memif"]);
    assert_eq!(has("secret"), ["memif"]);
    for kind in PortKind::ALL {
        assert_eq!(kind.may_have("socket"), !kind.has_driver(), "{kind:?}");
        assert_eq!(kind.may_have("interface"), kind.has_interface(), "{kind:?}");
        assert_eq!(kind.may_have("netns"), kind.has_driver(), "{kind:?}");
    }
}

#[test]
fn a_key_has_its_bounds_in_its_declaration() {
    let key = |name: &str| PortSpec::KEYS.iter().find(|key| key.name == name).unwrap();
    assert_eq!(key("mtu").range, Some((68, 9216)));
    assert_eq!(key("mtu").expected, Some("an integer from 68 to 9216"));
    assert_eq!(key("vcpu_threads").length, Some((1, 64)));
    assert_eq!(key("mac").expected, None);
    let all = to_value(PortSpec::new("a", PortKind::User)).unwrap();
    for key in all.as_object().unwrap().keys() {
        let known = PortSpec::KEYS.iter().any(|known| known.name == key);
        assert!(known || ["name", "kind"].contains(&key.as_str()), "{key}");
    }
}

#[test]
fn trunk_and_access_name_their_segments() {
    let mut port = PortSpec::vhost_user("a", "a.sock");
    port.trunk = Some(vec!["blue".to_owned(), "red".to_owned()]);
    assert_eq!(port.segments().collect::<Vec<_>>(), ["blue", "red"]);
    port.trunk = None;
    port.segment = Some("red".to_owned());
    assert_eq!(port.segments().collect::<Vec<_>>(), ["red"]);
}

#[test]
fn stats_have_exactly_the_promised_shape() {
    let stats = StatsDocument {
        ports: vec![PortStats {
            neighbour_replies: 11,
            name: "vm1".to_owned(),
            state: PortState::Up,
            admin_state: AdminState::Down,
            from_guest: Traffic {
                packets: 1,
                bytes: 60,
            },
            to_guest: Traffic {
                packets: 2,
                bytes: 120,
            },
            drops: [("runt".to_owned(), 3)].into(),
            work: Work {
                cycles_switching: 4,
                cycles_copying: 5,
                switching_ns_per_frame: 6,
                copying_ns_per_frame: 7,
                cpu_us: 8,
                skipped_batches: 9,
            },
        }],
        drops: [("runt".to_owned(), 3)].into(),
        mirrors: vec![MirrorStats {
            name: "m1".to_owned(),
            copied: Traffic {
                packets: 1,
                bytes: 60,
            },
            lost: [("receiver-full".to_owned(), 2)].into(),
        }],
    };
    let text = concat!(
        r#"{"ports":[{"name":"vm1","state":"up","admin_state":"down","#,
        r#""from_guest":{"packets":1,"bytes":60},"#,
        r#""to_guest":{"packets":2,"bytes":120},"drops":{"runt":3},"#,
        r#""neighbour_replies":11,"#,
        r#""work":{"cycles_switching":4,"cycles_copying":5,"switching_ns_per_frame":6,"#,
        r#""copying_ns_per_frame":7,"cpu_us":8,"skipped_batches":9}}],"drops":{"runt":3},"#,
        r#""mirrors":[{"name":"m1","copied":{"packets":1,"bytes":60},"lost":{"receiver-full":2}}]}"#
    );
    assert_eq!(serde_json::to_string(&stats).unwrap(), text);
    assert_eq!(from_str::<StatsDocument>(text).unwrap(), stats);
}

#[test]
fn words_in_documents_are_the_words_of_as_str() {
    for state in [
        PortState::Starting,
        PortState::Waiting,
        PortState::Dialing,
        PortState::Connected,
        PortState::Up,
        PortState::Faulted,
        PortState::Unknown,
    ] {
        assert_eq!(to_value(state).unwrap(), state.as_str());
    }
    assert_eq!(AdminState::Up.shown(PortState::Up), "up");
    assert_eq!(AdminState::Down.shown(PortState::Up), "admin-down");
    for role in [Role::Server, Role::Client] {
        assert_eq!(to_value(role).unwrap(), role.as_str());
    }
    for ring in [
        RingFormat::Split,
        RingFormat::Packed,
        RingFormat::Netmap,
        RingFormat::Memif,
    ] {
        assert_eq!(to_value(ring).unwrap(), ring.as_str());
    }
    for state in [
        ProcessState::Running,
        ProcessState::Restarting,
        ProcessState::Stopped,
        ProcessState::Unknown,
    ] {
        assert_eq!(to_value(state).unwrap(), state.as_str());
    }
    assert_eq!(
        to_value(PortKind::VhostUser).unwrap(),
        PortKind::VhostUser.as_str()
    );
}

#[test]
fn an_old_client_reads_a_new_servers_answer() {
    assert_eq!(
        from_str::<PortState>(r#""paused""#).unwrap(),
        PortState::Unknown
    );
    let more = r#"{"segment":"a","mac":"b","port":"c","age_seconds":1,"static":true}"#;
    assert!(from_str::<FdbEntry>(more).is_ok());
}

#[test]
fn problems_follow_rfc_9457() {
    let problem = Problem::conflict("name", "there is a port `vm1` already");
    let text = json!({
        "type": "urn:lasthop:problem:conflict",
        "title": "Conflict",
        "status": 409,
        "detail": "there is a port `vm1` already",
        "field": "name",
    });
    assert_eq!(to_value(&problem).unwrap(), text);
    assert_eq!(problem.to_string(), "name: there is a port `vm1` already");
    let problem = Problem::no_such("port", "x");
    assert_eq!(problem.status, 404);
    assert_eq!(problem.to_string(), "there is no port `x`");
}

#[test]
fn names_and_addresses() {
    let long = "x".repeat(NAME_MAX + 1);
    for bad in ["", ".", "..", "a b", "a/b", "ä", "a\n", &long] {
        assert!(!valid_name(bad), "{bad:?}");
    }
    for good in ["a", "A-z_0.9", ".a", "-", &long[1..]] {
        assert!(valid_name(good), "{good:?}");
    }
    for bad in [
        "",
        "52:54:0:0:0:1",
        "52:54:00:00:00:01:",
        "52:54:00:00:00:+1",
        "52:54:00:00:00",
    ] {
        assert_eq!(parse_mac(bad), None, "{bad:?}");
    }
    assert_eq!(parse_mac("01:02:03:04:05:fF"), Some([1, 2, 3, 4, 5, 255]));
}

#[test]
fn a_filter_narrows() {
    let entry = FdbEntry {
        segment: "blue".to_owned(),
        mac: "52:54:00:00:00:01".to_owned(),
        port: "vm1".to_owned(),
        age_seconds: 0,
        is_static: false,
    };
    let filter = |segment: Option<&str>, port: Option<&str>| FdbFilter {
        segment: segment.map(str::to_owned),
        port: port.map(str::to_owned),
    };
    assert!(filter(None, None).accepts(&entry));
    assert!(filter(Some("blue"), Some("vm1")).accepts(&entry));
    assert!(!filter(Some("blue"), Some("vm2")).accepts(&entry));
    assert!(!filter(Some("red"), None).accepts(&entry));
}

#[test]
fn a_structure_is_an_object() {
    let text = r#"{"name":"blue","vlan":7}"#;
    let segment: SegmentSpec = from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&segment).unwrap(), text);
    for array in ["[]", r#"["blue",7]"#] {
        let error = from_str::<SegmentSpec>(array).unwrap_err().to_string();
        let expected = "invalid type: sequence, expected an object";
        assert!(error.starts_with(expected), "{error}");
    }
    assert!(from_str::<DesiredState>(r#"{"segments":[["blue"]]}"#).is_err());
    assert!(from_str::<DesiredState>(r#"{"switch":["a"]}"#).is_err());
}
