//! Recorded XML of libvirt 9.0, and what a port gets of it.

use std::path::Path;

use serde_json::{Value, json};

use super::domain::{self, Bandwidth, Interface};
use super::patches::{self, Call, Plan, Port};
use super::records::{Record, Records, ValueChange, ValueChanges};

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
    let mut domain = domain::read(&xml)?;
    match domain.bad.pop() {
        Some(reason) => Err(reason),
        None => Ok(domain.interfaces.remove(0)),
    }
}

fn refused(xml: &str) -> String {
    domain::read(xml).unwrap_err()
}

#[test]
fn all_recorded_documents_have_the_same_bandwidth() {
    for xml in [STARTED, RELEASE, STATUS] {
        let domain = domain::read(xml).unwrap();
        assert_eq!(domain.name, "vm1");
        assert_eq!(domain.id, "4f3bfe5e-2c55-4b6a-9d0e-6a1b5f0c0001");
        let [first, second] = &domain.interfaces[..] else {
            panic!("{domain:?}")
        };
        assert_eq!(*first, recorded());
        assert!(first.is_limited() && !second.is_limited());
    }
}

#[test]
fn a_bad_interface_costs_that_interface() {
    let interface = |path: &str, average: &str| {
        format!(
            "<interface type='vhostuser'><source type='unix' path='{path}'/>
             <bandwidth><inbound average='{average}'/></bandwidth></interface>"
        )
    };
    let all = [("/a", "1"), ("/b", "x"), ("/c", "3"), ("/d", "")];
    let all = all.map(|(path, average)| interface(path, average)).concat();
    let xml = format!("<domain><name>x</name><devices>{all}</devices></domain>");
    let domain = domain::read(&xml).unwrap();
    let sockets: Vec<_> = domain
        .interfaces
        .iter()
        .map(|of| of.socket.to_str())
        .collect();
    assert_eq!(sockets, [Some("/a"), Some("/c")]);
    let expected = [
        "/b: inbound: average: expected an integer from 0, found \"x\"",
        "/d: inbound: average: expected an integer from 0, found \"\"",
    ];
    assert_eq!(domain.bad, expected);
}

#[test]
fn interfaces_without_a_vhost_user_socket_are_left_out() {
    let xml = "<domain><name>x</name><devices>
        <interface type='bridge'><source bridge='br0' path='/a'/><bandwidth/></interface>
        <interface type='vhostuser'><bandwidth/></interface>
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

/// The changes of a port by a started domain.
fn started(interface: &Interface, port: &Port) -> Result<Vec<Value>, String> {
    let requested = patches::requested(interface)?;
    let plan = Plan::new(port, None, "a", &requested, Call::Start, || Value::Null);
    Ok(plan.patches(port))
}

#[test]
fn a_bandwidth_is_set_in_bits() {
    let patches = started(&recorded(), &plain()).unwrap();
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
        started(&interface, &plain()).unwrap()
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
    let set = |bandwidth: &str| started(&with_bandwidth(bandwidth).unwrap(), &plain());
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
    let patches = started(&recorded(), &port).unwrap();
    assert_eq!(patches, [json!({"qos": {"max": 400_000_000}})]);
}

/// A port over time, with the record of what domains have set at it.
struct Story {
    document: Value,
    record: Option<Record>,
    configured: Value,
}

impl Story {
    fn new(configured: &Value) -> Self {
        let document = json!({"limits": configured["limits"], "qos": configured["qos"]});
        Self {
            document,
            record: None,
            configured: configured.clone(),
        }
    }

    fn port(&self) -> Port {
        port(&self.document["limits"], &self.document["qos"])
    }

    fn carry_out(&mut self, domain: &str, plan: Plan) {
        for patch in plan.patches(&self.port()) {
            merge(&mut self.document, &patch);
        }
        let domain = domain.to_owned();
        let given = plan.given;
        self.record = (!given.is_empty()).then_some(Record { domain, given });
    }

    /// A domain with this interface is started, or seen again.
    fn domain(&mut self, domain: &str, interface: &Interface, call: Call) {
        let requested = patches::requested(interface).unwrap();
        let configured = || self.configured.clone();
        let record = self.record.as_ref();
        let plan = Plan::new(&self.port(), record, domain, &requested, call, configured);
        self.carry_out(domain, plan);
    }

    fn starts(&mut self, domain: &str, bandwidth: &str) {
        self.domain(domain, &with_bandwidth(bandwidth).unwrap(), Call::Start);
    }

    fn again(&mut self, domain: &str, bandwidth: &str) {
        self.domain(domain, &with_bandwidth(bandwidth).unwrap(), Call::Again);
    }

    /// Takes back all values.
    fn ends(&mut self) {
        let record = self.record.take().expect("something was set");
        let plan = Plan::end(&self.port(), &record);
        self.carry_out("", plan);
    }

    fn command(&mut self, patch: &Value) {
        merge(&mut self.document, patch);
    }

    fn bits(&self, limit: &str) -> &Value {
        &self.document["limits"][limit]["bits_per_second"]
    }
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
fn a_port_is_as_it_was_before_the_domain() {
    let bits = json!({"from_guest": {"bits_per_second": 7, "bits_burst": 600_000}});
    let packets = json!({"to_guest": {"packets_per_second": 9}});
    for limits in [json!({}), bits, packets] {
        let configured = json!({"limits": limits, "qos": {"max": 3, "weight": 2}});
        let mut story = Story::new(&configured);
        story.domain("a", &recorded(), Call::Start);
        assert_eq!(story.document["qos"]["max"], 400_000_000);
        story.domain("a", &recorded(), Call::Again);
        let storm = json!({"limits": {"broadcast": {"packets_per_second": 5}}});
        story.command(&storm);
        story.ends();
        story.command(&json!({"limits": {"broadcast": null}}));
        assert_eq!(story.document, configured);
    }
}

#[test]
fn a_domain_without_bandwidth_is_free_of_the_one_before() {
    let mut story = Story::new(&json!({"limits": {}, "qos": {}}));
    story.starts(
        "a",
        "<inbound average='1'/><outbound average='2' peak='3'/>",
    );
    story.starts("b", "<inbound average='4'/>");
    assert_eq!(
        (story.bits("to_guest"), story.bits("from_guest")),
        (&json!(32_000), &Value::Null)
    );
    assert_eq!(story.document["qos"], json!({}));
    story.starts("c", "");
    assert_eq!(story.document, json!({"limits": {}, "qos": {}}));
    assert_eq!(story.record, None);
}

#[test]
fn what_the_operator_changed_meanwhile_stays() {
    let operator = json!({"limits": {"to_guest": {"bits_per_second": 5000}}, "qos": {"max": 9}});
    let bandwidth = "<inbound average='1'/><outbound average='2' peak='3'/>";
    let mut story = Story::new(&json!({"limits": {}, "qos": {"max": 4}}));
    story.starts("a", bandwidth);
    story.command(&operator);
    story.again("a", bandwidth);
    assert_eq!(
        (story.bits("to_guest"), story.bits("from_guest")),
        (&json!(5000), &json!(16_000))
    );
    story.ends();
    assert_eq!(story.document, operator);
    // A burst alone is a change, too.
    story.starts("a", bandwidth);
    story.command(&json!({"limits": {"to_guest": {"bits_burst": 700_000}}}));
    story.starts("b", "");
    assert_eq!(story.bits("to_guest"), &json!(8000));
    assert_eq!(story.bits("from_guest"), &Value::Null);
}

#[test]
fn after_a_reload_the_domain_has_its_bandwidth_again() {
    let bandwidth = "<inbound average='1'/>";
    let mut story = Story::new(&json!({"limits": {}, "qos": {}}));
    story.starts("a", bandwidth);
    for configured in [json!({}), json!({"to_guest": {"bits_per_second": 777}})] {
        story.configured = json!({"limits": configured});
        story.document["limits"] = configured.clone();
        story.again("a", bandwidth);
        assert_eq!(story.bits("to_guest"), &json!(8000));
    }
    story.ends();
    assert_eq!(story.bits("to_guest"), &json!(777), "as configured now");
}

#[test]
fn a_value_that_was_there_already_is_not_taken_back() {
    let mut story = Story::new(&json!({"limits": {"to_guest": {"bits_per_second": 8000}}}));
    story.starts("a", "<inbound average='1'/>");
    assert_eq!(story.record, None);
    // And limits of packets are no business of a domain's.
    let mut story = Story::new(&json!({"limits": {}}));
    story.starts("a", "<inbound average='1'/>");
    let packets = json!({"limits": {"to_guest": {"packets_per_second": 5}}});
    story.command(&packets);
    story.ends();
    assert_eq!(story.document["limits"], packets["limits"]);
}

#[test]
fn records_are_kept_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let read = || Records::read(dir.path());
    let given: ValueChanges = [(
        "qos.max".to_owned(),
        ValueChange {
            set: json!(7),
            before: Value::Null,
        },
    )]
    .into();
    let mut records = read().unwrap();
    assert!(records.is_empty());
    records.note("vm1", "a", given.clone()).unwrap();
    records.note("vm2", "b", given.clone()).unwrap();
    drop(records);
    let mut records = read().unwrap();
    assert_eq!(records.of("vm1").unwrap().given, given);
    assert_eq!(records.ports_of(|domain| domain == "b"), ["vm2"]);
    records.note("vm2", "", ValueChanges::new()).unwrap();
    drop(records);
    assert_eq!(read().unwrap().ports_of(|_| true), ["vm1"]);
    for wrong in ["", "{\"version\":0,\"ports\":{}}"] {
        std::fs::write(dir.path().join("libvirt-hook.json"), wrong).unwrap();
        assert!(read().unwrap_err().contains("/libvirt-hook.json: "));
    }
    assert!(Records::read(Path::new("/nowhere")).unwrap().is_empty());
}

#[test]
fn operations_have_their_tasks() {
    use super::Task;
    let task = |operation| Task::of(operation);
    assert_eq!(task("started"), Some(Task::Set(Call::Start)));
    assert_eq!(task("reconnect"), Some(Task::Set(Call::Again)));
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
