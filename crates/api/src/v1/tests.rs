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
    assert!(from_str::<PortPatch>(r#"{"name":"b"}"#).is_err());
    assert!(from_str::<SegmentSpec>(r#"{"name":"b","tag":1}"#).is_err());
    assert!(from_str::<FdbFilter>(r#"{"mac":"b"}"#).is_err());
}

#[test]
fn a_patch_tells_null_from_absent() {
    let patch: PortPatch = from_str(r#"{"mtu":null,"mac":"52:54:00:00:00:01"}"#).unwrap();
    assert_eq!(patch.mtu, Some(None));
    assert_eq!(patch.mac, Some(Some("52:54:00:00:00:01".to_owned())));
    assert_eq!(patch.queues, None);
    let text = json!({"mtu": null, "mac": "52:54:00:00:00:01"});
    assert_eq!(to_value(&patch).unwrap(), text);
    assert_eq!(from_str::<PortPatch>("{}").unwrap(), PortPatch::default());
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
        r#"{"ports":[{"name":"vm1","state":"up","from_guest":{"packets":1,"bytes":60},"#,
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
