//! Recorded XML of libvirt 9.0, and what a port gets of it.

use std::path::Path;

use serde_json::{Value, json};

use super::domain::{self, Bandwidth, Interface};
use super::patches::{self, Port};

/// The XML that a hook gets with `started`, and after a restart of libvirtd with `reconnect`.
const STARTED: &str = include_str!("../../../tests/libvirt/started.xml");
/// The XML that a hook gets with `release`.
const RELEASE: &str = include_str!("../../../tests/libvirt/release.xml");
/// The status file of the same domain, in `/run/libvirt/qemu`.
const STATUS: &str = include_str!("../../../tests/libvirt/status.xml");

/// The bandwidth of the recorded domain.
fn recorded() -> Interface {
    Interface {
        socket: "/run/lasthop/vm1.sock".into(),
        inbound: Bandwidth {
            average: 12_500,
            burst: 2500,
            ..Bandwidth::default()
        },
        outbound: Bandwidth {
            average: 25_000,
            peak: 50_000,
            burst: 1024,
            ..Bandwidth::default()
        },
    }
}

/// A port with these limits and this quality of service.
fn port(limits: &Value, qos: &Value) -> Port {
    let port = json!({
        "name": "vm1", "kind": "vhost-user", "socket": "vm1.sock", "state": "up",
        "limits": limits, "qos": qos,
    });
    serde_json::from_value(port).unwrap()
}

fn plain() -> Port {
    port(&Value::Null, &Value::Null)
}

/// A domain with one vhost-user interface that has this `<bandwidth>`.
fn with_bandwidth(bandwidth: &str) -> Result<Interface, String> {
    let xml = format!(
        "<domain><name>vm1</name><devices><interface type='vhostuser'>
           <source type='unix' path='/s'/><bandwidth>{bandwidth}</bandwidth>
         </interface></devices></domain>"
    );
    domain::read(&xml).map(|mut domain| domain.interfaces.remove(0))
}

fn refused(xml: &str) -> String {
    domain::read(xml).unwrap_err()
}

#[test]
fn all_recorded_documents_have_the_same_bandwidth() {
    for xml in [STARTED, RELEASE, STATUS] {
        let domain = domain::read(xml).unwrap();
        assert_eq!(domain.name, "vm1");
        assert_eq!(
            domain.interfaces,
            [recorded()],
            "the other has no bandwidth"
        );
    }
}

#[test]
fn interfaces_without_a_vhost_user_socket_are_left_out() {
    let xml = "<domain><name>x</name><devices>
        <interface type='bridge'><source bridge='br0' path='/a'/><bandwidth/></interface>
        <interface type='vhostuser'><bandwidth/></interface>
        <interface type='vhostuser'><source type='unix' path='/b'/></interface>
        <hostdev><interface type='vhostuser'><source path='/c'/><bandwidth/></interface></hostdev>
        </devices></domain>";
    assert_eq!(domain::read(xml).unwrap().interfaces, []);
    assert_eq!(
        domain::read("<domain><name>x</name></domain>")
            .unwrap()
            .interfaces,
        []
    );
}

#[test]
fn what_is_no_domain_is_refused_with_its_reason() {
    assert!(refused("").starts_with("no XML: "));
    assert!(refused("<domain><name>vm1</name>").starts_with("no XML: "));
    assert!(refused(&STARTED[..STARTED.len() / 2]).starts_with("no XML: "));
    assert_eq!(refused("<network/>"), "no <domain> in the XML");
    assert_eq!(refused("<domstatus/>"), "no <domain> in the XML");
    assert_eq!(refused("<domain/>"), "no <name> in the <domain>");
    let entities = "<!DOCTYPE a [<!ENTITY b 'b'>]><domain><name>&b;</name></domain>";
    assert!(
        refused(entities).starts_with("no XML: "),
        "no entities of its own"
    );
    let many = format!("<domain>{}</domain>", "<a/>".repeat(1 << 20));
    assert!(
        refused(&many).starts_with("no XML: "),
        "a bound on its size"
    );
    let deep = format!("{}{}", "<a>".repeat(100_000), "</a>".repeat(100_000));
    assert_eq!(refused(&deep), "no <domain> in the XML");
    let wrong = with_bandwidth("<inbound average='-1'/>").unwrap_err();
    assert_eq!(
        wrong,
        "/s: inbound: average: expected an integer from 0, found \"-1\""
    );
}

#[test]
fn a_bandwidth_is_set_in_bits() {
    let patches = patches::set(&recorded(), &plain()).unwrap();
    let limits = json!({
        "from_guest": {"bits_per_second": 200_000_000, "bits_burst": 8_388_608},
        "to_guest": {"bits_per_second": 100_000_000, "bits_burst": 20_480_000},
    });
    assert_eq!(
        patches,
        [
            json!({"limits": limits}),
            json!({"qos": {"max": 400_000_000}})
        ]
    );
}

#[test]
fn what_an_interface_leaves_out_is_left_alone() {
    let set = |bandwidth: &str| {
        let interface = with_bandwidth(bandwidth).unwrap();
        patches::set(&interface, &plain()).unwrap()
    };
    let to_guest = json!({"bits_per_second": 8000, "bits_burst": null});
    let only = json!({"limits": {"to_guest": to_guest}});
    assert_eq!(set("<inbound average='1'/>"), [only]);
    assert_eq!(
        set("<inbound floor='1000'/>"),
        [json!({"qos": {"min": 8_000_000}})]
    );
    assert_eq!(set("<inbound average='0' burst='7'/>"), [] as [Value; 0]);
    assert_eq!(set(""), [] as [Value; 0]);
}

#[test]
fn bursts_have_room_for_a_frame_and_numbers_do_not_wrap() {
    let set = |bandwidth: &str| patches::set(&with_bandwidth(bandwidth).unwrap(), &plain());
    let patches = set("<outbound average='1000' burst='1'/>").unwrap();
    assert_eq!(patches[0]["limits"]["from_guest"]["bits_burst"], 524_424);
    let all = format!("<outbound average='{}'/>", u64::MAX);
    assert_eq!(
        set(&all).unwrap_err(),
        format!("average: {} is too much", u64::MAX)
    );
    let all = format!("<outbound average='1' burst='{}'/>", u64::MAX / 8000);
    assert!(set(&all).unwrap_err().starts_with("burst: "));
}

#[test]
fn what_a_port_has_already_is_not_set_again() {
    let port = port(
        &json!({
            "from_guest": {"bits_per_second": 200_000_000, "bits_burst": 8_388_608},
            "to_guest": {"packets_per_second": 5, "bits_per_second": 100_000_000,
                         "bits_burst": 20_480_000},
        }),
        &json!({"max": 1}),
    );
    let patches = patches::set(&recorded(), &port).unwrap();
    assert_eq!(patches, [json!({"qos": {"max": 400_000_000}})]);
}

/// The limits and the quality of service that are left of those of the recorded domain, with others
/// that were configured, and others that came by command.
fn left(configured: &Value, by_command: &Value) -> Value {
    let mut port = json!({"limits": configured["limits"], "qos": configured["qos"]});
    let merge = |port: &mut Value, patches: &[Value]| {
        patches.iter().for_each(|patch| merge(port, patch));
    };
    let parsed = |document: &Value| self::port(&document["limits"], &document["qos"]);
    let set = patches::set(&recorded(), &parsed(&port)).unwrap();
    merge(&mut port, &set);
    assert_eq!(port["qos"]["max"], 400_000_000);
    merge(&mut port, std::slice::from_ref(by_command));
    let back = patches::take_back(&recorded(), &parsed(&port), configured);
    merge(&mut port, &back);
    port
}

/// RFC 7396, 2.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        match value {
            Value::Null => drop(target.as_object_mut().unwrap().remove(key)),
            value => merge(&mut target[key], value),
        }
    }
}

#[test]
fn a_port_is_as_configured_again() {
    let nothing = json!({"limits": {}, "qos": {}});
    let none = json!({});
    assert_eq!(left(&Value::Null, &none), nothing);
    let bits = json!({"from_guest": {"bits_per_second": 7, "bits_burst": 600_000}});
    let packets = json!({"to_guest": {"packets_per_second": 9}});
    for limits in [bits, packets] {
        let configured = json!({"limits": limits, "qos": {"max": 3, "weight": 2}});
        assert_eq!(left(&configured, &none), configured);
    }
    let storm = json!({"limits": {"broadcast": {"packets_per_second": 5}}});
    let kept = json!({"limits": storm["limits"], "qos": {}});
    assert_eq!(
        left(&Value::Null, &storm),
        kept,
        "the rest of the port stays"
    );
}

#[test]
fn limits_of_packets_by_command_stay() {
    let command = json!({"limits": {"from_guest": {"packets_per_second": 5}}});
    assert_eq!(left(&Value::Null, &command)["limits"], command["limits"]);
    let configured = json!({"limits": {"from_guest": {"packets_per_second": 9}}});
    let removed = json!({"limits": {"from_guest": {"packets_per_second": null}}});
    let left = left(&configured, &removed);
    assert_eq!(left["limits"], json!({}), "no limit without a rate");
}

#[test]
fn operations_have_their_tasks() {
    use super::Task;
    let task = |operation| Task::of(operation);
    assert_eq!([task("started"), task("reconnect")], [Some(Task::Set); 2]);
    assert_eq!(task("release"), Some(Task::TakeBack));
    for other in [
        "prepare", "start", "stopped", "migrate", "restore", "attach", "",
    ] {
        assert_eq!(task(other), None, "{other}");
    }
}

#[test]
fn links_to_the_directory_of_a_socket_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    std::fs::create_dir(dir.path().join("run")).unwrap();
    std::os::unix::fs::symlink("run", &link).unwrap();
    let resolved = |path: &Path| super::resolved(path);
    let there = resolved(&dir.path().join("run/a.sock"));
    assert_eq!(resolved(&link.join("a.sock")), there);
    assert_ne!(resolved(&link.join("b.sock")), there);
    assert_eq!(resolved(Path::new("/nowhere/a")), Path::new("/nowhere/a"));
}
