//! Tests of ports with an interface of the host.

use api::v1::{Iommu, PortKind, UplinkDriver};
use ipc::driving::Choice;
use port::PortId;
use serde_json::json;

use super::*;

fn tap(lines: &str) -> String {
    format!("[[port]]\nname = \"t0\"\nkind = \"tap\"\n{lines}\n")
}

fn uplink(lines: &str) -> String {
    format!("[[port]]\nname = \"up\"\nkind = \"uplink\"\n{lines}\n")
}

#[test]
fn keys_are_read_into_the_desired_state() {
    let text = format!(
        "[[segment]]\nname = \"blue\"\nvlan = 10\n{}{}{}",
        uplink(
            "interface = \"eth0\"\ntrunk = [\"blue\", \"default\"]\nqueues = 4\nmtu = 9000\n\
             driver_process = true\ncpu_weight = 10000"
        ),
        tap("address = \"10.0.0.1/24\"\nnetns = \"red\"\nmac = \"02:00:00:00:00:0A\"\nmtu = 1400"),
        tap("").replace("t0", "t1"),
    );
    let state = read(&text).unwrap();
    let up = PortSpec {
        queues: 4,
        trunk: Some(vec!["blue".to_owned(), "default".to_owned()]),
        mtu: Some(9000),
        cpu_weight: Some(10_000),
        driver_process: Some(true),
        driver: Some(UplinkDriver::Auto),
        interface: Some("eth0".to_owned()),
        ..PortSpec::new("up", PortKind::Uplink)
    };
    let t0 = PortSpec {
        segment: Some("default".to_owned()),
        mac: Some("02:00:00:00:00:0a".to_owned()),
        mtu: Some(1400),
        interface: Some("t0".to_owned()),
        address: Some("10.0.0.1/24".to_owned()),
        netns: Some("red".to_owned()),
        ..PortSpec::new("t0", PortKind::Tap)
    };
    let t1 = PortSpec {
        segment: Some("default".to_owned()),
        interface: Some("t1".to_owned()),
        ..PortSpec::new("t1", PortKind::Tap)
    };
    assert_eq!(state.ports, [up.clone(), t0.clone(), t1]);
    assert!(!state.ports.iter().any(desired::listens));

    let driver = desired::driver_of(&up, PortId(7)).unwrap();
    assert_eq!((driver.port, &*driver.name), (PortId(7), "up"));
    let device = driver.kind.interface().unwrap();
    assert_eq!((device.choice, device.own), (Choice::Auto, false));
    assert_eq!((device.mtu, device.queues), (None, 4));
    let driver = desired::driver_of(&t0, PortId(0)).unwrap();
    let device = driver.kind.interface().unwrap();
    assert_eq!((device.choice, device.own), (Choice::Auto, true));
    assert_eq!(device.address, Some(([10, 0, 0, 1].into(), 24)));
    assert_eq!(
        (device.mtu, device.mac),
        (Some(1400), Some([2, 0, 0, 0, 0, 10]))
    );
    let guest = PortSpec::vhost_user("vm1", "vm1.sock");
    assert_eq!(desired::driver_of(&guest, PortId(0)), None);
}

#[test]
fn what_is_wrong_has_its_place() {
    let interface = "expected the name of an interface: 1 to 15 characters without blanks, \
                     \"/\", \":\" and \"%\"";
    let own_process = |lines: &str| tap(&format!("{lines}\ndriver_process = true"));
    let cpu_weight = |found: &str| {
        format!("4: port.cpu_weight: expected an integer from 1 to 10000, found {found}")
    };
    let table = [
        (
            uplink(""),
            format!("1: port.interface: {interface}, found no such key"),
        ),
        (
            uplink("interface = \"\""),
            format!("4: port.interface: {interface}, found \"\""),
        ),
        (
            uplink("interface = 7"),
            format!("4: port.interface: {interface}, found 7"),
        ),
        (
            uplink("interface = \"a-name-of-16-chr\""),
            format!("4: port.interface: {interface}, found \"a-name-of-16-chr\""),
        ),
        (
            tap("").replace("t0", "a-name-of-16-chr"),
            format!("1: port.interface: {interface}, found \"a-name-of-16-chr\", the port's name"),
        ),
        (
            tap("interface = \"a/b\""),
            format!("4: port.interface: {interface}, found \"a/b\""),
        ),
        (
            uplink("interface = \"e\"\ndriver = \"dpdk\""),
            "5: port.driver: expected \"tap\", \"packet\", \"xdp\", \"vhost-net\" or \
             \"auto\", found \"dpdk\""
                .to_owned(),
        ),
        (
            uplink("interface = \"e\"\nsegment = \"default\"\ntrunk = [\"default\"]"),
            "6: port.trunk: expected either a segment or a trunk, found both".to_owned(),
        ),
        (
            tap("driver = \"packet\""),
            "4: port.driver: expected \"tap\", \"vhost-net\" or \"auto\" with kind \"tap\", \
             found \"packet\""
                .to_owned(),
        ),
        (
            tap("socket = \"s\""),
            "4: port.socket: expected one of the keys name, kind, description, admin_state, \
             driver, driver_process, interface, address, netns, queues, segment, \
             trunk, mac, mtu, weight, cpu_weight, port_security, limits, egress, qos, \
             found \"socket\", which ports of kind \"vhost-user\", \
             \"netmap\" or \"memif\" have"
                .to_owned(),
        ),
        (
            uplink("interface = \"e\"\nsocket = \"s\""),
            "5: port.socket: expected one of the keys name, kind, description, admin_state, \
             driver, driver_process, interface, netns, queues, segment, \
             trunk, mtu, weight, cpu_weight, prefilter, prefilter_entries, port_security, \
             limits, egress, qos, \
             found \"socket\", which ports of kind \"vhost-user\", \
             \"netmap\" or \"memif\" have"
                .to_owned(),
        ),
        (
            tap("address = \"10.0.0.1\""),
            "4: port.address: expected an address with its prefix length like \"10.0.0.1/24\", \
             found \"10.0.0.1\""
                .to_owned(),
        ),
        (
            tap("netns = \"\""),
            "4: port.netns: expected the name or the path of a network namespace, found \
             \"\""
                .to_owned(),
        ),
        (
            tap("") + &uplink("interface = \"t0\""),
            "8: port.interface: expected an interface that no other port has, \
             found \"t0\", the interface of port \"t0\""
                .to_owned(),
        ),
        (
            tap("queues = 0"),
            "4: port.queues: expected an integer from 1 to 64, found 0".to_owned(),
        ),
        (own_process("cpu_weight = 0"), cpu_weight("0")),
        (own_process("cpu_weight = 20000"), cpu_weight("20000")),
        (tap("cpu_weight = 70000"), cpu_weight("70000")),
        (tap("cpu_weight = \"high\""), cpu_weight("\"high\"")),
    ];
    for (text, message) in table {
        assert_eq!(wrong(&text), message, "{text}");
    }
    // The same name in another namespace is another interface.
    let elsewhere = tap("") + &uplink("interface = \"t0\"\nnetns = \"red\"");
    read(&elsewhere).unwrap();
}

#[test]
fn a_prefilter_needs_a_driver_that_can_have_one() {
    for (text, message) in [
        (
            uplink("interface = \"e\"\ndriver = \"xdp\"\nprefilter = \"socket\""),
            "6: port.prefilter: expected driver \"auto\" or \"packet\" in place of \"xdp\", \
             found \"socket\"",
        ),
        (
            uplink("interface = \"e\"\ndriver = \"tap\"\nprefilter = \"xdp\""),
            "6: port.prefilter: expected driver \"auto\", \"packet\" or \"xdp\" in place of \"tap\", \
             found \"xdp\"",
        ),
        (
            uplink("interface = \"e\"\nprefilter = \"on\""),
            "5: port.prefilter: expected \"auto\", \"off\", \"socket\" or \"xdp\", found \"on\"",
        ),
        (
            uplink("interface = \"e\"\nprefilter_entries = 5000"),
            "5: port.prefilter_entries: expected an integer from 16 to 4096, found 5000",
        ),
        (
            tap("prefilter = \"off\""),
            "4: port.prefilter: expected one of the keys name, kind",
        ),
    ] {
        let error = wrong(&text);
        assert!(error.starts_with(message), "{text}: {error}");
    }
}

#[test]
fn keys_about_a_process_need_one() {
    let vhost = |own| format!("driver = \"vhost-net\"\n{own}");
    for (text, message) in [
        (
            tap("driver_process = 1"),
            "4: port.driver_process: expected true or false, found 1",
        ),
        (
            uplink("interface = \"e\"\ndriver = \"xdp\"\ndriver_process = true"),
            "6: port.driver_process: expected no driver_process with driver \"xdp\", which \
             always has one, found true",
        ),
        (
            tap(&vhost("driver_process = false")),
            "5: port.driver_process: expected no driver_process with driver \"vhost-net\", which \
             always has one, found false",
        ),
        (
            tap("cpu_weight = 200\ndriver_process = false"),
            "4: port.cpu_weight: expected no cpu_weight without driver_process = true, because \
             the switch itself serves the port, found 200",
        ),
        (
            uplink(
                "interface = \"e\"\ndriver = \"packet\"\ncpu_weight = 7\ndriver_process = false",
            ),
            "6: port.cpu_weight: expected no cpu_weight without driver_process = true, because \
             the switch itself serves the port, found 7",
        ),
    ] {
        assert_eq!(wrong(&text), message, "{text}");
    }
    for kind in ["user", "vhost-user"] {
        let text = tap("driver_process = true").replace("\"tap\"", &format!("{kind:?}"));
        let message = wrong(&text);
        let end = "found \"driver_process\", which ports of kind \"uplink\" or \"tap\" have";
        assert!(message.ends_with(end), "{message}");
    }
    let has_process = |text: &str| {
        let state = read(text).unwrap();
        desired::driver_of(&state.ports[0], PortId(0))
            .unwrap()
            .process
    };
    for text in [
        tap("driver_process = true\ncpu_weight = 200"),
        tap(&vhost("cpu_weight = 200")),
        uplink("interface = \"e\"\ndriver = \"xdp\"\ncpu_weight = 200"),
    ] {
        assert!(has_process(&text), "{text}");
    }
    assert!(!has_process(&tap("driver_process = false")));
    assert!(!has_process(&tap("")));
    assert!(read(&tap("cpu_weight = 200")).is_err());
}

#[test]
fn a_process_comes_and_goes_by_a_patch() {
    let dir = Path::new("/run/lasthop");
    let state = read(&tap("")).unwrap();
    let set = |patch| desired::set_port(&state, "t0", &patch, dir);
    let changed = set(json!({"driver_process": true})).unwrap();
    let step = &desired::Difference::between(&state, &changed).changes[0];
    assert!(step.disconnects && step.fields[0].field == "driver_process");
    for same in [json!(false), json!(null)] {
        let changed = set(json!({"driver_process": same})).unwrap();
        assert!(desired::Difference::between(&state, &changed).is_empty());
    }
    let problem = set(json!({"driver_process": false, "cpu_weight": 7})).unwrap_err();
    assert_eq!(problem.field.as_deref(), Some("cpu_weight"));
}

#[test]
fn a_request_may_not_mix_kinds() {
    let dir = Path::new("/run/lasthop");
    let refused = |port: PortSpec| {
        let state = DesiredState::default();
        let problem = desired::add_port(&state, port, dir).unwrap_err();
        (problem.field.unwrap(), problem.detail)
    };
    let tap = PortSpec::new("t0", PortKind::Tap);
    let socket = PortSpec {
        socket: "s".to_owned(),
        ..tap.clone()
    };
    let detail = "expected no socket with kind \"tap\", found \"s\"";
    assert_eq!(refused(socket), ("socket".to_owned(), detail.to_owned()));
    let role = PortSpec {
        role: Role::Client,
        ..tap.clone()
    };
    assert_eq!(refused(role).0, "role");
    let iommu = PortSpec {
        iommu: Iommu::Required,
        ..tap.clone()
    };
    let detail = "expected no iommu with kind \"tap\", found \"required\"";
    assert_eq!(refused(iommu), ("iommu".to_owned(), detail.to_owned()));
    let driver = PortSpec {
        driver: Some(UplinkDriver::Xdp),
        ..tap
    };
    assert_eq!(refused(driver).0, "driver");
    let weighted = PortSpec {
        cpu_weight: Some(200),
        ..PortSpec::vhost_user("vm1", "vm1.sock")
    };
    let detail = "expected no cpu_weight with kind \"vhost-user\", found 200";
    assert_eq!(
        refused(weighted),
        ("cpu_weight".to_owned(), detail.to_owned())
    );
    let guest = PortSpec {
        interface: Some("e".to_owned()),
        ..PortSpec::vhost_user("vm1", "vm1.sock")
    };
    assert_eq!(refused(guest).0, "interface");
    assert_eq!(refused(PortSpec::vhost_user("vm1", "")).0, "socket");
}

#[test]
fn an_interface_changes_by_a_patch() {
    let dir = Path::new("/run/lasthop");
    let text = uplink("interface = \"eth0\"") + &tap("interface = \"lan0\"");
    let state = read(&text).unwrap();
    let interface = |name: Option<&str>| json!({"interface": name});
    let set = |port, name| desired::set_port(&state, port, &interface(name), dir);
    let of = |state: &DesiredState, port| state.port(port).unwrap().interface.clone();
    let changed = set("up", Some("eth1")).unwrap();
    assert_eq!(of(&changed, "up").as_deref(), Some("eth1"));
    let changed = set("t0", None).unwrap();
    assert_eq!(of(&changed, "t0").as_deref(), Some("t0"), "the default");
    let step = &desired::Difference::between(&state, &changed).changes[0];
    assert!(step.disconnects);
    let set = |port, patch| desired::set_port(&state, port, &patch, dir);
    let driver = |driver: Option<&str>| json!({"driver": driver});
    let address = |address: Option<&str>| json!({"address": address});
    let netns = |netns: Option<&str>| json!({"netns": netns});
    for (port, patch) in [
        ("up", driver(Some("packet"))),
        ("up", netns(Some("blue"))),
        ("t0", netns(Some("blue"))),
        ("t0", address(Some("10.0.0.1/24"))),
    ] {
        let changed = set(port, patch).unwrap();
        let step = &desired::Difference::between(&state, &changed).changes[0];
        assert!(step.disconnects);
    }
    let default = set("up", driver(None)).unwrap();
    assert_eq!(default.port("up").unwrap().driver, Some(UplinkDriver::Auto));
    for (port, patch, field) in [
        ("t0", driver(Some("packet")), "driver"),
        ("up", address(Some("10.0.0.1/24")), "address"),
        ("t0", address(Some("10.0.0.1")), "address"),
        ("up", netns(Some("")), "netns"),
    ] {
        let problem = set(port, patch).unwrap_err();
        assert_eq!(
            (problem.status, problem.field.as_deref()),
            (422, Some(field))
        );
    }
    let set = |port, name| desired::set_port(&state, port, &interface(name), dir);
    for (name, status) in [(Some("lan0"), 409), (Some("a/b"), 422), (None, 422)] {
        let problem = set("up", name).unwrap_err();
        assert_eq!(problem.status, status, "{problem}");
        assert_eq!(problem.field.as_deref(), Some("interface"));
    }
}
