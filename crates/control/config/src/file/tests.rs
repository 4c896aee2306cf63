//! Tests of the configuration file: every error, word for word.

use std::path::Path;

use api::v1::{
    AdminState, CoalescingSpec, ConnectionsSpec, DesiredState, GuestStates, Iommu, Poll, PollLimit,
    PortSpec, Role, SegmentSpec, SwitchSpec, TimeoutsSpec, Workers,
};
use testkit::table::rows;

use super::*;

mod access;
mod devices;
mod documented;
mod export;
mod owners;
mod processes;
mod qos;
mod readme;

/// The first lines of every port in these tests; the tested line follows.
const PORT: &str = "[[port]]\nname = \"vm1\"\nkind = \"vhost-user\"\nsocket = \"vm1.sock\"\n";

fn read(text: &str) -> Result<DesiredState, ConfigError> {
    parse(text, Path::new("lasthop.toml"), Path::new("/run/lasthop"))
}

/// Reads an invalid `text`; returns the message after the file's name, without the column.
fn wrong(text: &str) -> String {
    let error = read(text).expect_err(text);
    let (line, column) = error.place.unwrap();
    let message = error.to_string();
    let place = format!("lasthop.toml:{line}:{column}:");
    format!("{line}:{}", message.strip_prefix(&place).unwrap())
}

#[test]
fn metrics_are_for_this_host() {
    let listen = |text: &str| read(text).unwrap().metrics.listen;
    assert_eq!(listen("[metrics]\n"), None);
    let text = "[metrics]\nlisten = \"[::1]:9464\"\n";
    assert_eq!(listen(text).as_deref(), Some("[::1]:9464"));
    let text = "[metrics]\nlisten = \"unix:m.sock\"\n";
    assert_eq!(listen(text).as_deref(), Some("unix:m.sock"));
    let address = "2: metrics.listen: expected a loopback address with a port like \
                   \"127.0.0.1:9464\", \
                   or \"unix:\" and the path of a socket, found";
    for bad in [
        "0.0.0.0:9464",
        "10.0.0.1:9464",
        "127.0.0.1",
        "localhost:9464",
        "",
    ] {
        let message = wrong(&format!("[metrics]\nlisten = \"{bad}\"\n"));
        assert_eq!(message, format!("{address} \"{bad}\""));
    }
    assert_eq!(
        wrong("[metrics]\nlisten = 9464\n"),
        format!("{address} 9464")
    );
    check_all(
        r#"
        [metrics]\nlisten = "unix:"\n | 2: metrics.listen: expected the path of a socket, found ""
        [metrics]\nlisten = "unix:api.sock"\n
          | 2: metrics.listen: expected a path of its own, found "api.sock", which Lasthop has for
          .. itself
        [metrics]\nport = 5\n
          | 2: metrics.port: expected the key listen, found the unknown key "port"
        metrics = 5\n                 | 1: metrics: expected the table [metrics], found 5
    "#,
    );
    let message = wrong(&format!("[metrics]\nlisten = \"unix:vm1.sock\"\n{PORT}"));
    let taken = "6: port.socket: expected a socket that no other port has, found \"vm1.sock\", \
                 the socket of the metrics";
    assert_eq!(message, taken);
}

#[test]
fn columns_are_those_of_characters() {
    let column = |text: &str| read(text).expect_err(text).place.unwrap();
    assert_eq!(column("[switch]\nname = 5\n"), (2, 8));
    assert_eq!(column("[switch]\nname = \"ä\", x\n"), (2, 11));
    assert_eq!(column("[switch]\n  nam = 5\n"), (2, 3));
    let port = format!("{PORT}trunk = [\"default\", \"ü\"]\n");
    assert_eq!(column(&port), (5, 21));
}

#[test]
fn a_port_may_be_down() {
    let state = |line: &str| read(&format!("{PORT}{line}\n")).unwrap().ports[0].admin_state;
    assert_eq!(state(""), AdminState::Up);
    assert_eq!(state("admin_state = \"up\""), AdminState::Up);
    assert_eq!(state("admin_state = \"down\""), AdminState::Down);
    let message = "5: port.admin_state: expected \"up\" or \"down\", found \"off\"";
    check_port_lines(&format!("admin_state = \"off\" | {message}"));
}

/// Checks that each text of a table gets its message.
fn check_all(table: &str) {
    for [text, message] in rows(table) {
        assert_eq!(wrong(&text), message, "{text}");
    }
}

/// Checks that a port with each line of a table, which is line 5, gets its message.
fn check_port_lines(table: &str) {
    for [line, message] in rows(table) {
        assert_eq!(wrong(&format!("{PORT}{line}\n")), message, "{line}");
    }
}

#[test]
fn the_documented_configuration_is_read() {
    let state = read(
        r#"
        [switch]
        name = "host1"
        poll = "always"
        poll_us = 50
        workers = 4
        guest_state = "bpf"
        socket_dirs = ["/srv/vms"]
        forward_addresses = ["192.0.2.9"]
        [switch.coalescing]
        enabled = false
        period_us = 50
        frames = 8
        kick_us = 20

        [switch.connections]
        max = 4096
        timeouts = { udp = "1m" }

        [[segment]]            # an L2 broadcast domain
        name = "blue"
        vlan = 10
        [[segment]]
        name = "red"

        [[port]]
        name = "vm1"
        kind = "vhost-user"
        socket = "vm1.sock"
        role = "client"
        queues = 2
        segment = "blue"
        mac = "52:54:00:00:00:0A"
        mtu = 1500
        vcpu_threads = "CPU */KVM"
        iommu = "required"
        description = "web server, rack 4"
        weight = 250

        [[port]]
        name = "vm2"
        kind = "vhost-user"
        socket = "vm2.sock"
        trunk = ["blue", "red"]

        [[port]]
        name = "vm3"
        kind = "vhost-user"
        socket = "/run/vm3.sock"
        "#,
    )
    .unwrap();
    let segment = |name: &str, vlan| SegmentSpec {
        name: name.to_owned(),
        vlan,
        neighbour_suppression: false,
    };
    let switch = SwitchSpec {
        name: "host1".to_owned(),
        poll: Poll::Always,
        poll_us: PollLimit::Micros(50),
        workers: Workers::Count(4),
        coalescing: CoalescingSpec {
            enabled: false,
            period_us: 50,
            frames: 8,
            kick_us: 20,
        },
        guest_state: GuestStates::Bpf,
        connections: ConnectionsSpec {
            max: 4096,
            timeouts: TimeoutsSpec {
                udp: Some(60),
                ..TimeoutsSpec::default()
            },
            ..ConnectionsSpec::default()
        },
        socket_dirs: vec!["/srv/vms".to_owned()],
        forward_addresses: vec!["192.0.2.9".to_owned()],
    };
    assert_eq!(state.switch, switch);
    assert_eq!(
        state.segments,
        [
            segment("default", None),
            segment("blue", Some(10)),
            segment("red", None)
        ]
    );
    let vm1 = PortSpec {
        role: Role::Client,
        queues: 2,
        segment: Some("blue".to_owned()),
        mac: Some("52:54:00:00:00:0a".to_owned()),
        mtu: Some(1500),
        vcpu_threads: Some("CPU */KVM".to_owned()),
        iommu: Iommu::Required,
        description: "web server, rack 4".to_owned(),
        weight: 250,
        ..PortSpec::vhost_user("vm1", "vm1.sock")
    };
    let vm2 = PortSpec {
        trunk: Some(vec!["blue".to_owned(), "red".to_owned()]),
        ..PortSpec::vhost_user("vm2", "vm2.sock")
    };
    let vm3 = PortSpec {
        segment: Some("default".to_owned()),
        ..PortSpec::vhost_user("vm3", "/run/vm3.sock")
    };
    assert_eq!(state.ports, [vm1, vm2, vm3]);
}

#[test]
fn an_empty_file_is_a_switch_without_ports() {
    let state = read("# nothing\n").unwrap();
    assert_eq!(state.switch, SwitchSpec::default());
    assert_eq!(state.switch.name, "lasthop");
    assert_eq!(state.segments.len(), 1);
    assert_eq!(state.ports, []);
}

#[test]
fn the_default_segment_may_have_a_tag() {
    let state = read("[[segment]]\nname = \"default\"\nvlan = 7\n").unwrap();
    assert_eq!(state.segments.len(), 1);
    assert_eq!(state.segments[0].vlan, Some(7));
}

#[test]
fn syntax() {
    check_all(
        r#"
        [switch]\nname\n                   | 2: expected "=" and a value behind a key, found none
        [switch]\nname = "a"\nname = "b"\n | 3: expected each key once, found this one a second time
    "#,
    );
}

#[test]
fn keys() {
    check_all(
        r#"
        [switch]\n[swich]\n
          | 2: swich: expected the key switch, or another of switch, metrics, segment, qos_class,
          .. qos_group, port, address_set, group, acl_default, acl, mirror, pipe, fdb, found the unknown key "swich"
        [switch]\nname = "a"\ncolour = 1\n
          | 3: switch.colour: expected one of the keys name, poll, poll_us, workers,
          .. coalescing, guest_state, connections, socket_dirs, forward_addresses, found the unknown key "colour"
        [[segment]]\nname = "a"\ntag = 1\n
          | 3: segment.tag: expected one of the keys name, vlan, neighbour_suppression, found the
          .. unknown key "tag"
        [[segment]]\n\n[[segment]]\nname = "a"\n
          | 1: segment.name: expected a name of 1 to 32 characters out of A-Z a-z 0-9 _ . -, found
          .. no such key
        \n[[port]]\nname = "a"\nsocket = "a"\n
          | 2: port.kind: expected "vhost-user", "uplink", "tap", "netmap", "memif" or "user", found no such key
        \n\n[[port]]\nname = "a"\nkind = "vhost-user"\n
          | 3: port.socket: expected the path of a socket, found no such key
    "#,
    );
    check_port_lines(
        r#"
        queue = 2
          | 5: port.queue: expected the key queues, or another of name, kind, description,
          .. admin_state, socket, role, user, group, mode, peer_user, queues, segment, trunk, mac,
          .. mtu, weight, vcpu_threads, iommu, port_security, limits, egress, qos, found the
          .. unknown key "queue"
    "#,
    );
}

#[test]
fn a_description_is_a_line_of_at_most_255_bytes() {
    let longest = "d".repeat(255);
    let text = format!(
        "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"a\"\n\
         description = \"{longest}\"\n"
    );
    assert_eq!(read(&text).unwrap().ports[0].description, longest);
    let expected = "5: port.description: expected at most 255 bytes of text without control \
                    characters, found";
    for (text, found) in [
        (format!("{longest}d"), format!("\"{longest}d\"")),
        ("\\u001b[2J".to_owned(), "\"\\u{1b}[2J\"".to_owned()),
    ] {
        let line = format!("description = \"{text}\"");
        check_port_lines(&format!("{line} | {expected} {found}"));
    }
}

#[test]
fn the_switchs_own_keys() {
    let switch = |line: &str| read(&format!("[switch]\n{line}\n")).unwrap().switch;
    assert_eq!(switch("poll = \"adaptive\"").poll, Poll::Adaptive);
    assert_eq!(switch("workers = \"auto\"").workers, Workers::Auto);
    assert_eq!(switch("workers = 0x40").workers, Workers::Count(64));
    assert_eq!(switch("poll_us = \"auto\"").poll_us, PollLimit::Auto);
    assert_eq!(switch("poll_us = 0").poll_us, PollLimit::Micros(0));
    assert_eq!(switch("").poll_us, PollLimit::Auto);
    let limit = "2: switch.poll_us: expected an integer from 0 to 1000 or \"auto\", found";
    let workers = "2: switch.workers: expected an integer from 1 to 64 or \"auto\", found";
    let poll = "2: switch.poll: expected \"adaptive\" or \"always\", found";
    for (line, message) in [
        ("workers = 0", format!("{workers} 0")),
        ("workers = 65", format!("{workers} 65")),
        ("workers = -1", format!("{workers} -1")),
        ("workers = \"all\"", format!("{workers} \"all\"")),
        ("workers = [1]", format!("{workers} an array")),
        ("poll_us = 1001", format!("{limit} 1001")),
        ("poll_us = -1", format!("{limit} -1")),
        ("poll_us = \"off\"", format!("{limit} \"off\"")),
        ("poll = \"never\"", format!("{poll} \"never\"")),
        ("poll = true", format!("{poll} true")),
        (
            "coalescing = 125",
            "2: switch.coalescing: expected the table [switch.coalescing], found 125".to_owned(),
        ),
    ] {
        assert_eq!(wrong(&format!("[switch]\n{line}\n")), message);
    }
    assert_eq!(switch("").coalescing, CoalescingSpec::default());
    let coalescing = |key: &str, message: &str| {
        let text = format!("[switch.coalescing]\n{key}\n");
        assert_eq!(wrong(&text), format!("2: switch.coalescing.{message}"));
    };
    coalescing(
        "period_us = 0",
        "period_us: expected an integer from 1 to 10000, found 0",
    );
    coalescing(
        "frames = 1025",
        "frames: expected an integer from 1 to 1024, found 1025",
    );
    coalescing(
        "kick_us = 1001",
        "kick_us: expected an integer from 0 to 1000, found 1001",
    );
    coalescing("enabled = 1", "enabled: expected true or false, found 1");
    coalescing(
        "timer = 1",
        "timer: expected one of the keys enabled, period_us, frames, kick_us, found the unknown \
         key \"timer\"",
    );
}

#[test]
fn the_table_about_connections() {
    let connections = |line: &str| {
        let state = read(&format!("[switch.connections]\n{line}\n")).unwrap();
        state.switch.connections
    };
    assert_eq!(connections(""), ConnectionsSpec::default());
    let usual = ConnectionsSpec::default();
    assert_eq!((usual.max, usual.recovery), (262_144, 60));
    assert_eq!(connections("max = \"1M\"").max, 1_000_000);
    assert!(!connections("strict = false").strict && !connections("pick_up = false").pick_up);
    let timeouts = connections("timeouts = { tcp_established = \"24h\", udp = 30 }").timeouts;
    assert_eq!(timeouts.tcp_established, Some(86_400));
    assert_eq!((timeouts.udp, timeouts.icmp), (Some(30), None));
    for (line, message) in [
        (
            "max = 1023",
            "max: expected an integer from 1024 to 4194304, or a text like \"100k\", found 1023",
        ),
        (
            "max = \"many\"",
            "max: expected an integer from 1024 to 4194304, or a text like \"100k\", found \"many\"",
        ),
        (
            "recovery = \"2h\"",
            "recovery: expected seconds from 0 to 3600, or a text like \"60s\", found 7200",
        ),
        (
            "timeouts = { udp = 0 }",
            "timeouts.udp: expected seconds from 1 to 2147483, or a text like \"24h\", found 0",
        ),
        (
            "timeouts = { icmp = \"30\" }",
            "timeouts.icmp: expected seconds, or a text like \"24h\", found \"30\"",
        ),
    ] {
        let text = format!("[switch.connections]\n{line}\n");
        assert_eq!(wrong(&text), format!("2: switch.connections.{message}"));
    }
}

#[test]
fn shapes() {
    check_all(
        r#"
        switch = 1\n             | 1: switch: expected the table [switch], found 1
        [[switch]]\nname = "a"\n | 1: switch: expected the table [switch], found an array
        \n[port]\nname = "a"\n   | 2: port: expected tables [[port]], found a table
        segment = ["a"]\n        | 1: segment: expected tables [[segment]], found "a"
        [switch]\nname = 5\n
          | 2: switch.name: expected a name of 1 to 32 characters out of A-Z a-z 0-9 _ . -, found
          .. 5
        [[segment]]\nname = "a"\nvlan = "10"\n
          | 3: segment.vlan: expected an integer from 1 to 4094, found "10"
    "#,
    );
    check_port_lines(
        r#"
        queues = 2.5        | 5: port.queues: expected an integer from 1 to 64, found 2.5
        queues = true       | 5: port.queues: expected an integer from 1 to 64, found true
        trunk = "a"         | 5: port.trunk: expected an array of names of segments, found "a"
        trunk = [\n"a",\n1] | 7: port.trunk: expected the name of a segment, found 1
        role = "both"       | 5: port.role: expected "server" or "client", found "both"
        iommu = "maybe"     | 5: port.iommu: expected "off", "offered" or "required", found "maybe"
        iommu = true        | 5: port.iommu: expected "off", "offered" or "required", found true
        mac = 2026-01-01
          | 5: port.mac: expected a unicast MAC address like "52:54:00:00:00:01", found the time
          .. 2026-01-01
    "#,
    );
}

#[test]
fn segments() {
    check_all(
        r#"
        [switch]\nname = "host 1"\n
          | 2: switch.name: expected a name of 1 to 32 characters out of A-Z a-z 0-9 _ . -, found
          .. "host 1"
        [[segment]]\nname = "a"\n[[segment]]\nname = "a"\n
          | 4: segment.name: expected a name that no other segment has, found "a" a second time
        [[segment]]\nname = "a"\nvlan = 0\n
          | 3: segment.vlan: expected an integer from 1 to 4094, found 0
        [[segment]]\nname = "a"\nvlan = 4095\n
          | 3: segment.vlan: expected an integer from 1 to 4094, found 4095
        [[segment]]\nname = "a"\nvlan = -1\n
          | 3: segment.vlan: expected an integer from 1 to 4094, found -1
        [[segment]]\nname = "a"\nvlan = 0x1_0000\n
          | 3: segment.vlan: expected an integer from 1 to 4094, found 0x10000
        [[segment]]\nname = "a"\nvlan = 7\n[[segment]]\nname = "b"\nvlan = 7\n
          | 6: segment.vlan: expected a tag that no other segment has, found 7, the tag of segment
          .. "a"
    "#,
    );
}

#[test]
fn ports() {
    check_port_lines(
        r#"
        queues = 0        | 5: port.queues: expected an integer from 1 to 64, found 0
        queues = 65       | 5: port.queues: expected an integer from 1 to 64, found 65
        weight = 0        | 5: port.weight: expected an integer from 1 to 1000, found 0
        mtu = 67          | 5: port.mtu: expected an integer from 68 to 9216, found 67
        mtu = 9217        | 5: port.mtu: expected an integer from 68 to 9216, found 9217
        segment = "green" | 5: port.segment: expected the name of a segment (default), found "green"
        mac = "52-54-00-00-00-01"
          | 5: port.mac: expected a unicast MAC address like "52:54:00:00:00:01", found
          .. "52-54-00-00-00-01"
        mac = "01:00:5e:00:00:01"
          | 5: port.mac: expected a unicast MAC address like "52:54:00:00:00:01", found the group
          .. address "01:00:5e:00:00:01"
        mac = "00:00:00:00:00:00"
          | 5: port.mac: expected a unicast MAC address like "52:54:00:00:00:01", found the zero
          .. address
        [[port]]\nname = "vm1"\nkind = "vhost-user"\nsocket = "b"
          | 6: port.name: expected a name that no other port has, found "vm1" a second time
        [[port]]\nname = "vm2"\nkind = "vhost-user"\nsocket = "./vm1.sock"
          | 8: port.socket: expected a socket that no other port has, found "./vm1.sock", the
          .. socket of port "vm1"
        [[port]]\nname = ".."\nkind = "vhost-user"\nsocket = "b"
          | 6: port.name: expected a name of 1 to 32 characters out of A-Z a-z 0-9 _ . -, found
          .. ".."
        [[port]]\nname = "vm2"\nkind = "veth"\nsocket = "b"
          | 7: port.kind: expected "vhost-user", "uplink", "tap", "netmap", "memif" or "user", found "veth"
    "#,
    );
}

#[test]
fn trunks() {
    let segments = "segment = [{name = \"a\", vlan = 1}, {name = \"b\"}, {name = \"c\"}]\n";
    let table = rows(
        r#"
        segment = "a"\ntrunk = ["b"]
          | 7: port.trunk: expected either a segment or a trunk, found both
        trunk = []           | 6: port.trunk: expected at least one segment, found an empty array
        trunk = ["a",\n "a"] | 7: port.trunk: expected each segment once, found "a" a second time
        trunk = ["a", "b",\n"d"]
          | 7: port.trunk: expected the name of a segment (default, a, b, c), found "d"
        trunk = ["b", "a",\n\n"c"]
          | 8: port.trunk: expected at most one segment without a vlan, found two: "b" and "c"
        trunk = ["default", "b"]
          | 6: port.trunk: expected at most one segment without a vlan, found two: "default" and
          .. "b"
    "#,
    );
    for [line, message] in &table {
        assert_eq!(&wrong(&format!("{segments}{PORT}{line}\n")), message);
    }
    let good = format!("{segments}{PORT}trunk = [\"default\", \"a\"]\n");
    assert!(read(&good).is_ok());
}

#[test]
fn sockets() {
    let port = |socket: &str| format!("[[port]]\nname='a'\nkind='vhost-user'\nsocket='{socket}'\n");
    for socket in ["", "dir/", "/", ".", "..", "a/.."] {
        let message = format!("4: port.socket: expected the path of a socket, found \"{socket}\"");
        assert_eq!(wrong(&port(socket)), message);
    }
    for socket in [
        "api.sock",
        "supervisor.sock",
        "lasthop.lock",
        "./supervisor.sock",
        "/run//lasthop/./api.sock",
    ] {
        let message = format!(
            "4: port.socket: expected a path of its own, found \"{socket}\", which Lasthop has \
             for itself"
        );
        assert_eq!(wrong(&port(socket)), message);
    }
    for socket in ["../a.sock", "/srv/vms/../a.sock"] {
        let message = format!("4: port.socket: expected a path without \"..\", found \"{socket}\"");
        assert_eq!(wrong(&port(socket)), message);
    }
    assert!(read(&port("/srv/vms/a.sock")).is_ok());
    for (socket, shown) in [("a\\nb", "a\\nb"), ("\\u001b[2Ja", "\\u{1b}[2Ja")] {
        let port = port("").replace("''", &format!("\"{socket}\""));
        let message = format!("4: port.socket: expected the path of a socket, found \"{shown}\"");
        assert_eq!(wrong(&port), message);
    }
    // "/run/lasthop/" has 13 bytes: 94 more are the most that fit.
    assert!(read(&port(&"x".repeat(94))).is_ok());
    let long = "x".repeat(95);
    let message = format!(
        "4: port.socket: expected a path of at most 107 bytes with the runtime directory, \
         found 108 bytes: \"/run/lasthop/{long}\""
    );
    assert_eq!(wrong(&port(&long)), message);
}

#[test]
fn control_characters_are_escaped_everywhere() {
    let texts = [
        "\"\\u001b[31mfoo\" = 1",
        "[switch]\n\"\\u001b[31m\\nfoo\" = 1",
        "[switch.\"\\u001b[31mfoo\"]\na = 1",
        "[switch.coalescing]\n\"\\u009bfoo\" = 1",
        "[switch]\nname = \"\\u001b]0;foo\\u0007\"",
        "[[acl]]\n\"\\u001bfoo\" = 1",
        "[[acl]]\nname = \"\\u001bfoo\"\ndirection = \"to-guest\"",
        "[[acl]]\nname = \"l\"\ndirection = \"\\u001bfoo\"",
        "[[acl]]\nname = \"l\"\ndirection = \"to-guest\"\n[[acl.rule]]\nname = \"r\"\naction = \
         \"drop\"\nsource = [\"\\u001bfoo\"]",
        "[[group]]\nname = \"g\"\nports = [\"\\u001bfoo\"]",
        "[[acl_default]]\nsegment = \"\\u001bfoo\"",
        "[[mirror]]\nname = \"\\u001bfoo\"\nto = \"a\"",
        "[[port]]\nname = \"\\u001bfoo\"\nkind = \"tap\"",
        "[[port]]\nname = \"a\"\nkind = \"tap\"\nnetns = \"\\u001bfoo\"",
        "foo = \u{1b}",
    ];
    for text in texts {
        let error = read(text).unwrap_err().to_string();
        assert!(!error.contains(char::is_control), "{error:?}");
        assert!(
            text.ends_with('\u{1b}') || error.contains("foo"),
            "{error:?}"
        );
    }
    let strange = Path::new("\u{1b}[31m.toml");
    let error = load(strange, strange).unwrap_err().to_string();
    assert!(error.starts_with("\\u{1b}[31m.toml:"), "{error:?}");
}

#[test]
fn directories_of_sockets() {
    let dirs = |dirs: &str| format!("[switch]\nsocket_dirs = {dirs}\n");
    let good = read(&dirs("[\"/srv/vms\", \"/run/vms/\"]")).unwrap();
    assert_eq!(good.switch.socket_dirs, ["/srv/vms", "/run/vms/"]);
    let expected = "2: switch.socket_dirs: expected an array of at most 64 absolute paths of \
                    directories, without \"..\", found";
    for (bad, found) in [
        ("5", "5"),
        ("[5]", "5"),
        ("[\"/a\", \"b\"]", "\"b\""),
        ("[\"\"]", "\"\""),
        ("[\"/a/../b\"]", "\"/a/../b\""),
    ] {
        assert_eq!(wrong(&dirs(bad)), format!("{expected} {found}"));
    }
    let many = vec!["\"/a\""; 65].join(",");
    assert_eq!(wrong(&dirs(&format!("[{many}]"))), format!("{expected} 65"));
}

#[test]
fn addresses_of_forwards() {
    let addresses = |all: &str| format!("[switch]\nforward_addresses = {all}\n");
    let good = read(&addresses("[\"192.0.2.9\", \"::\"]")).unwrap();
    assert_eq!(good.switch.forward_addresses, ["192.0.2.9", "::"]);
    let expected = "2: switch.forward_addresses: expected an array of at most 64 IP addresses, \
                    found";
    for (bad, found) in [
        ("5", "5"),
        ("[\"192.0.2.0/24\"]", "\"192.0.2.0/24\""),
        ("[\"localhost\"]", "\"localhost\""),
    ] {
        assert_eq!(wrong(&addresses(bad)), format!("{expected} {found}"));
    }
    let many = vec!["\"::1\""; 65].join(",");
    assert_eq!(
        wrong(&addresses(&format!("[{many}]"))),
        format!("{expected} 65")
    );
}

#[test]
fn files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.toml");
    let name = file.display();
    let error = load(&file, dir.path()).unwrap_err().to_string();
    let message =
        format!("{name}: expected a file that can be read, found No such file or directory");
    assert!(error.starts_with(&message), "{error}");

    std::fs::write(&file, b"# one\n# \xff\n").unwrap();
    let error = load(&file, dir.path()).unwrap_err().to_string();
    let message = format!("{name}:2:3: expected UTF-8 text, found a byte that is not");
    assert_eq!(error, message);

    std::fs::write(&file, "[switch]\nname = \"a\"\n").unwrap();
    assert_eq!(load(&file, dir.path()).unwrap().switch.name, "a");
}

proptest::proptest! {
    /// Reading any text ends; errors have a line of the file, and no control characters.
    #[test]
    fn no_text_panics(text in "([a-z\\[\\]\"='., \
                               \n0-9]|\\\\u001b|\x1b|\\\\n|\"|port|name|segment|\\[\\[port\\]\\]\n){0,60}") {
        if let Err(error) = read(&text) {
            let lines = text.split('\n').count();
            let (line, _) = error.place.unwrap();
            proptest::prop_assert!((1..=lines).contains(&line), "{error}");
            proptest::prop_assert!(!error.to_string().contains(char::is_control), "{error:?}");
        }
    }
}
