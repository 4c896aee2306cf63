//! The command line with the API server of a test engine, and alone.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::sync::mpsc;

use crate::support::{Fake, lasthop};
use serde_json::json;
use testkit::table::rows;
use testkit::wait::LIMIT;

#[test]
fn status() {
    let fake = Fake::start();
    let text = "\
host1: lasthop 0.1.0, up 1 h 1 min
switch connected to control: 12 cached flows, 40 questions to it (0 dropped), 1 worker, adaptive polling
vCPU states: off: no rights

PROCESS     STATE    PID         UP  RESTARTS      OWN  TOUCHED    MAPPED
supervisor  running  100  1 h 1 min         0        -        -         -
control     running  101  1 h 1 min         1        -        -         -
switch      running  102  1 h 1 min         0  2.0 MiB  9.0 MiB  16.0 GiB

PORT  STATE    SEGMENT         KIND        ROLE    QUEUES  RING      MEMORY  SOCKET OR INTERFACE  REASON
vm1   faulted  blue            vhost-user  server     2/2  split  512.0 MiB  vm1.sock             queue 1: descriptor loop
vm2   dialing  trunk blue,red  vhost-user  client     0/1  -            0 B  vm2.sock
";
    assert_eq!(fake.prints("status"), text);
    let status = fake.json("status");
    assert_eq!(status["name"], "host1");
    assert_eq!(status["processes"][1]["restarts"], 1);
    assert_eq!(
        (&status["switch"]["workers"], &status["switch"]["poll"]),
        (&json!(1), &json!("adaptive"))
    );
    assert_eq!(status["switch"]["guest_state"]["by"], "off");
    assert_eq!(status["ports"][0]["vcpus"], 4);
    assert_eq!(status["ports"][0]["reason"], "queue 1: descriptor loop");
}

#[test]
fn ports() {
    let fake = Fake::start();
    let list = fake.prints("port list");
    assert!(fake.prints("status").ends_with(&list), "{list}");
    assert_eq!(fake.json("port list")["ports"][1]["name"], "vm2");
    let text = "\
port         vm1
state        faulted
reason       queue 1: descriptor loop
kind         vhost-user
socket       vm1.sock
role         server
owner        -
segment      blue
mac          -
mtu          -
weight       100
iommu        offered
cpu time     0.0 s; 0 ns per frame from the guest, 0 ns per frame to it
queue pairs  2 of 2
ring         split
memory       512.0 MiB
features     NET_F_CSUM F_VERSION_1
tracked      20107 so far, 12 refused
opened       20000 of 20000, its limit; 3 unanswered: full
opened to    7 of 65536, its share of the table
macs         any
addresses    any
dhcp server  allowed
router       allowed
vcpus        4, found by names
interrupts   1200 to the guest, 30 deferred, 2 of them slept through; 40 kicks, suppressed 5 times, coalesced 6 times
fault        queue 1: descriptor loop
connections  0
";
    assert_eq!(fake.prints("port show vm1"), text);
    assert_eq!(fake.json("port show vm2")["role"], "client");
}

/// Changes vm3 and returns its weight.
fn port_weight(fake: &Fake, change: &str) -> u64 {
    let line = match change {
        "" => "port show vm3".to_owned(),
        change => format!("port set vm3 {change}"),
    };
    fake.json(&line)["weight"].as_u64().unwrap()
}

#[test]
fn a_port_is_added_changed_and_removed() {
    let fake = Fake::start();
    let add = "port add vm3 --kind vhost-user --socket vm3.sock --segment blue --queues 4 \
               --role client --mac 52:54:00:00:00:0A --mtu 9000 --vcpu-threads lcore-*";
    let add = add.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(fake.prints(&add), "port vm3 added, dialing\n");
    let port = fake.json("port show vm3");
    assert_eq!(port["queues"], 4);
    assert_eq!(port["mac"], "52:54:00:00:00:0a");
    assert_eq!(port["mtu"], 9000);

    let set = "port set vm3 --trunk blue,red --no-mac --no-mtu --role server";
    assert_eq!(fake.prints(set), "port vm3 changed, waiting\n");
    assert_eq!(port_weight(&fake, ""), 100);
    assert_eq!(port_weight(&fake, "--weight 1000"), 1000);
    let port = fake.json("port set vm3 --queues 8");
    assert_eq!(port["weight"], 1000);
    assert_eq!(port["trunk"], json!(["blue", "red"]));
    assert_eq!(
        (&port["segment"], &port["mac"]),
        (&json!(null), &json!(null))
    );
    assert_eq!((&port["mtu"], &port["queues"]), (&json!(null), &json!(8)));

    assert_eq!(fake.prints("port remove vm3"), "port vm3 removed\n");
    assert_eq!(fake.prints("port remove vm2 --json"), "");
    let left = fake.json("port list");
    assert_eq!(left["ports"].as_array().unwrap().len(), 1);

    let added = fake.json("port add vm4 --kind vhost-user --socket vm4.sock");
    assert_eq!(added["segment"], "default");
}

#[test]
fn another_iommu_of_a_connected_guest_waits_for_its_next_connection() {
    let fake = Fake::start();
    let changed = fake.prints("port set vm1 --iommu required");
    let waits = "; iommu required from its next connection\n";
    assert!(
        changed.starts_with("port vm1 changed, faulted"),
        "{changed}"
    );
    assert!(changed.ends_with(waits), "{changed}");
    let shown = fake.prints("port show vm1");
    let line = "\niommu        required from its next connection (offered now)\n";
    assert!(shown.contains(line), "{shown}");
    assert_eq!(fake.json("port show vm1")["iommu_of_connection"], "offered");
    // Nothing waits where no guest is connected.
    let changed = fake.prints("port set vm2 --iommu off");
    assert_eq!(changed, "port vm2 changed, dialing\n");
    let port = fake.json("port show vm2");
    assert_eq!(
        (&port["iommu"], &port["iommu_of_connection"]),
        (&json!("off"), &json!(null))
    );
    assert_eq!(fake.fails("port set vm1 --iommu maybe").0, 2);
}

#[test]
fn a_change_of_a_port_has_a_dry_run() {
    let fake = Fake::start();
    let before = fake.json("port list");
    let dry_run = |change: &str| {
        let mut command = fake.command(&format!("port set vm1 {change} --dry-run"));
        let done = command.output().unwrap();
        assert_eq!(String::from_utf8(done.stderr).unwrap(), "");
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    };
    let text = "~ port vm1: queues 2 -> 4 (loses its connection)\n1 change to apply\n";
    assert_eq!(dry_run("--queues 4"), (Some(3), text.to_owned()));
    let text = "~ port vm1: mtu - -> 9000, weight - -> 7\n1 change to apply\n";
    assert_eq!(dry_run("--mtu 9000 --weight 7"), (Some(3), text.to_owned()));
    for (change, loses) in [
        ("--role client", true),
        ("--socket x.sock", true),
        ("--segment red", false),
    ] {
        let (status, message) = dry_run(change);
        assert_eq!(status, Some(3), "{change}");
        assert_eq!(
            message.contains("(loses its connection)"),
            loses,
            "{message}"
        );
    }
    let text = "~ port vm1: iommu - -> required (iommu: from its next connection)\n\
                1 change to apply\n";
    assert_eq!(dry_run("--iommu required"), (Some(3), text.to_owned()));
    let (status, message) = dry_run("--queues 4 --json");
    let message: serde_json::Value = serde_json::from_str(&message).unwrap();
    assert_eq!((status, &message["applied"]), (Some(3), &json!(false)));
    assert_eq!(message["changes"][0]["disconnects"], true);
    let help = fake.prints("port set --help");
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for option in ["--queues <N>", "--socket <PATH>", "--role <ROLE>"] {
        let (_, about) = help.split_once(option).unwrap();
        let about = about.split("--").next().unwrap();
        assert!(about.contains("the guest loses"), "{option}: {about}");
    }
    assert_eq!(
        dry_run("--queues 2"),
        (Some(0), "nothing to change\n".to_owned())
    );
    let green =
        "lasthop: segment: expected the name of a segment (default, blue, red), found \"green\"\n";
    let fails = fake.fails("port set vm1 --segment green --dry-run");
    assert_eq!(fails, (2, green.to_owned()));
    assert_eq!(fake.fails("port set vm9 --mtu 1500 --dry-run").0, 2);
    assert_eq!(fake.json("port list"), before);
}

#[test]
fn scheduled_ports() {
    let fake = Fake::start();
    let add = "qos-class add storage --priority 6 --dscp 26,28 --pcp 4";
    assert_eq!(fake.prints(add), "class storage added\n");
    let set = fake.json("qos-class set storage --priority 5 --no-pcp");
    assert_eq!(
        set,
        json!({"name": "storage", "priority": 5, "dscp": [26, 28]})
    );
    assert_eq!(
        fake.prints("qos-group add tenant1 --min 1G --max 4G"),
        "group tenant1 added\n"
    );
    assert_eq!(
        fake.prints("qos-group set tenant1 --no-max"),
        "group tenant1 changed\n"
    );
    fake.prints("port set vm2 --egress rate=10G");
    fake.prints("port set vm1 --qos min=500M,group=tenant1 --qos storage:min=200M,weight=50");
    let text = "\
CLASS    PRIORITY  DSCP   PCP
default         0  -        -
storage         5  26,28    -
";
    assert_eq!(fake.prints("qos-class list"), text);
    let text = "\
GROUP           MIN  MAX  WEIGHT  PORTS
tenant1  1.0 Gbit/s    -     100  vm1
";
    assert_eq!(fake.prints("qos-group list"), text);
    let shown = fake.prints("port show vm1");
    for line in [
        "min 500.0 Mbit/s, group tenant1",
        "class storage: min 200.0 Mbit/s, weight 50",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    for (command, error) in [
        (
            "port set vm1 --qos group=none,min=10.4G",
            "qos.min: port \"vm1\": 10.4G of the 10G of \"vm2\" would be promised",
        ),
        (
            "qos-class remove storage",
            "class `storage` cannot be removed: port `vm1` names it; change or remove that first",
        ),
        (
            "qos-group remove tenant1",
            "group `tenant1` cannot be removed: port `vm1` is in it; change or remove that first",
        ),
        ("qos-class remove other", "there is no class `other`"),
    ] {
        assert_eq!(
            fake.fails(command),
            (2, format!("lasthop: {error}\n")),
            "{command}"
        );
    }
    for usage in [
        "qos-class set storage",
        "port set vm1 --qos min",
        "qos-class add a --pcp 8",
    ] {
        assert_eq!(fake.fails(usage).0, 2, "{usage}");
    }
    let text = fake.prints("egress show vm2");
    let head = "vm2: 10.0 Gbit/s, overhead 0 bytes, full drop, 500.0 Mbit/s guaranteed\n";
    assert!(text.starts_with(head), "{text}");
    assert!(
        text.lines().any(|line| line.starts_with("vm1     default")),
        "{text}"
    );
    assert_eq!(
        fake.json("egress show vm2")["shares"][0]["min"],
        500_000_000
    );
    fake.prints("port set vm1 --qos none");
    assert_eq!(
        fake.prints("qos-class remove storage"),
        "class storage removed\n"
    );
    assert_eq!(
        fake.prints("qos-group remove tenant1"),
        "group tenant1 removed\n"
    );
}

#[test]
fn segments_and_fdb_entries() {
    let fake = Fake::start();
    let text = "\
SEGMENT  VLAN  NEIGHBOUR SUPPRESSION  PORTS
default     -  off
blue       10  off                    vm1,vm2
red         -  off                    vm2
";
    assert_eq!(fake.prints("segment list"), text);
    let red = json!({"name": "red", "vlan": null, "ports": ["vm2"]});
    assert_eq!(fake.json("segment list")["segments"][2], red);

    assert_eq!(
        fake.prints("segment add green --vlan 30"),
        "segment green added\n"
    );
    assert_eq!(
        fake.prints("segment set green --vlan 31"),
        "segment green changed\n"
    );
    assert_eq!(
        fake.json("segment set green --no-vlan")["vlan"],
        json!(null)
    );
    let (status, error) = fake.fails("segment remove blue");
    assert_eq!(
        (status, &*error),
        (
            2,
            "lasthop: segment `blue` cannot be removed: port `vm1` is in it, \
             port `vm2` is in it; change or remove these first\n"
        )
    );
    assert_eq!(fake.fails("segment set green").0, 2);
    assert_eq!(
        fake.prints("segment remove green"),
        "segment green removed\n"
    );

    let text = "\
SEGMENT  MAC                PORT     AGE
blue     52:54:00:00:00:01  vm1      3 s
red      52:54:00:00:00:02  vm2      3 s
red      52:54:00:00:00:03  vm2   static
";
    assert_eq!(fake.prints("fdb list"), text);
    let one = fake.json("fdb list --segment red --port vm2");
    let entry = json!({
        "segment": "red", "mac": "52:54:00:00:00:02", "port": "vm2", "age_seconds": 3,
    });
    let own = json!({
        "segment": "red", "mac": "52:54:00:00:00:03", "port": "vm2", "age_seconds": 0,
        "static": true,
    });
    assert_eq!(one, json!({"entries": [entry, own]}));
    assert_eq!(
        fake.prints("fdb list --port vm1 --segment red"),
        "no entries\n"
    );
}

#[test]
fn a_mirror_is_added_replaced_and_removed() {
    let fake = Fake::start();
    assert_eq!(fake.prints("mirror list"), "no mirrors\n");
    assert_eq!(fake.json("mirror list"), json!({"mirrors": []}));
    let added = "mirror m1 added, copies go to vm1\n";
    assert_eq!(
        fake.prints("mirror add m1 --to vm1 --ports vm2 --direction in --filter icmp"),
        added
    );
    let m2 = fake.json("mirror add m2 --to vm1 --segments blue,red");
    let spec = json!({"name": "m2", "to": "vm1", "segments": ["blue", "red"]});
    assert_eq!(m2, spec);
    fake.prints("mirror add m3 --to vm1 --filter arp");
    fake.prints("mirror add m4 --to vm1 --ports vm2 --segments blue");
    let text = "\
MIRROR  COPIES                FILTER  TO   STATE  COPIED    BYTES  LOST
m1      vm2 (in)              icmp    vm1  up          3  3.0 KiB     0
m2      segment blue,red      -       vm1  up          3  3.0 KiB     5
m3      all                   arp     vm1  up          3  3.0 KiB     0
m4      vm2 and segment blue  -       vm1  up          3  3.0 KiB     5

LOST BY  REASON         FRAMES
m2       receiver-full       5
m4       receiver-full       5
";
    assert_eq!(fake.prints("mirror list"), text);
    let list = fake.json("mirror list");
    assert_eq!(list["mirrors"][0]["ports"], json!(["vm2"]));
    assert_eq!(list["mirrors"][0]["drops"]["runt"], 7);
    assert_eq!(list["mirrors"][0]["copied"]["packets"], 3);

    let (status, message) = fake.fails("mirror add m1 --to vm1 --filter arp");
    let taken =
        "lasthop: name: expected a name that no other mirror has, found \"m1\" a second time\n";
    assert_eq!((status, &*message), (2, taken));
    let replaced = "mirror m1 set, copies go to vm1\n";
    let line = "mirror add m1 --replace --to vm1 --ports vm2 --direction out";
    assert_eq!(fake.prints(line), replaced);
    let list = fake.json("mirror list");
    assert_eq!(list["mirrors"][0]["direction"], "out");
    assert_eq!(list["mirrors"][0]["filter"], json!(null));

    assert_eq!(fake.prints("mirror remove m1"), "mirror m1 removed\n");
    assert_eq!(fake.prints("mirror remove m3 --json"), "");
    let (status, message) = fake.fails("mirror remove m1");
    let none = "lasthop: there is no mirror `m1`\n";
    assert_eq!((status, &*message), (2, none));
    let left = fake.json("mirror list");
    assert_eq!(left["mirrors"].as_array().unwrap().len(), 2);
}

#[test]
fn access_lists_are_shown_with_their_hits() {
    let fake = Fake::start();
    assert_eq!(fake.prints("acl list"), "no access lists\n");
    let lists = r#"
[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"
[[group]]
name = "web"
ports = ["vm1"]
[[acl]]
name = "in"
direction = "to-guest"
groups = ["web"]
ports = ["vm1"]
[[acl.rule]]
name = "rest"
action = "drop"
[[acl.rule]]
name = "http"
action = "allow"
priority = 9
protocol = "tcp"
destination_ports = [80, "8000-8010"]
[[acl]]
name = "empty"
direction = "from-guest"
segments = ["default"]
"#;
    let file = write(&fake, lists);
    fake.prints(&format!("apply {file}"));
    let text = "\
LIST   DIRECTION   ATTACHED TO        RULES  PACKETS    BYTES      LAST HIT
in     to-guest    vm1 and group web      2        3  3.0 KiB  1 min 5 s ago
empty  from-guest  segment default        0        0      0 B             -
";
    let columns = |text: &str| text.lines().map(squeezed).collect::<Vec<_>>();
    assert_eq!(columns(&fake.prints("acl list")), columns(text));
    let text = "\
PRIORITY  RULE  ACTION  MATCHES                                         PACKETS    BYTES      LAST HIT
       9  http  allow   destination_ports=80,8000-8010 protocol=tcp           0      0 B             -
       0  rest  drop    everything                                            3  3.0 KiB  1 min 5 s ago
";
    assert_eq!(columns(&fake.prints("acl show in")), columns(text));
    assert_eq!(fake.prints("acl show empty"), "no rules\n");
    let counts = fake.json("acl show in");
    let rest = json!({"name": "rest", "packets": 3, "bytes": 3072, "last_hit_ms_ago": 65_000});
    assert_eq!(counts["lists"][0]["rules"][0], rest);
    assert_eq!(fake.json("acl list")["lists"].as_array().unwrap().len(), 2);
    let (status, message) = fake.fails("acl show none");
    let none = "lasthop: list: there is no access list `none`\n";
    assert_eq!((status, &*message), (2, none));
}

#[test]
fn a_static_entry_is_added_moved_and_removed() {
    let fake = Fake::start();
    let desired = |fake: &Fake| fake.prints("export").matches("[[fdb]]").count();
    let line = "fdb add 52:54:00:00:00:0A --port vm1 --segment blue";
    assert_eq!(
        fake.prints(line),
        "static entry 52:54:00:00:00:0A added at port vm1\n"
    );
    fake.prints(line);
    assert_eq!(desired(&fake), 1);
    let (status, message) = fake.fails("port remove vm1");
    assert_eq!(status, 2);
    assert!(
        message.contains("the static entry `52:54:00:00:00:0a` is behind it"),
        "{message}"
    );
    for [line, error] in &rows(
        r#"
        fdb add 52:54 --port vm1 | mac: expected a MAC address like 52:54:00:00:00:01, found "52:54"
        fdb add ff:ff:ff:ff:ff:ff --port vm1 --segment blue
          | mac: expected a unicast MAC address like "52:54:00:00:00:01", found the group address
          .. "ff:ff:ff:ff:ff:ff"
        fdb add 52:54:00:00:00:0a --port vm1 --segment red
          | port: expected a port in segment "red", found "vm1", which is in another
        fdb remove 52:54:00:00:00:0b --segment blue
          | there is no static entry `52:54:00:00:00:0b` in segment `blue`
    "#,
    ) {
        let (status, message) = fake.fails(line);
        assert_eq!((status, message), (2, format!("lasthop: {error}\n")));
    }
    assert_eq!(
        fake.prints("fdb remove 52:54:00:00:00:0a --segment blue"),
        "static entry 52:54:00:00:00:0a removed\n"
    );
    assert_eq!(desired(&fake), 0);
}

/// Returns a line with single blanks.
fn squeezed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn an_invalid_mirror_is_refused_with_its_field() {
    let fake = Fake::start();
    fake.prints("mirror add m1 --to vm1 --ports vm2");
    let before = fake.json("mirror list");
    for [line, error] in &rows(
        r#"
        --to vm9 --ports vm2 | to: expected the name of a port, found "vm9"
        --to vm1 --ports vm2,vm9 | ports[1]: expected the name of a port, found "vm9"
        --to vm1 --ports vm1 | ports[0]: expected another port, found "vm1", which gets the copies
        --to vm2 --segments blue
          | to: expected a port that no mirror copies by name, found "vm2", which mirror "m1"
          .. copies
        --to vm1 --segments green
          | segments[0]: expected the name of a segment (default, blue, red), found "green"
    "#,
    ) {
        for replace in ["", " --replace"] {
            let (status, message) = fake.fails(&format!("mirror add m2 {line}{replace}"));
            assert_eq!((status, message), (2, format!("lasthop: {error}\n")));
        }
    }
    let (status, message) = fake.fails("mirror add m2 --to vm1 --filter tcp(");
    assert_eq!(status, 2);
    assert!(
        message.starts_with("lasthop: filter: column 4: "),
        "{message}"
    );
    assert_eq!(fake.json("mirror list"), before);
    let (status, message) = fake.fails("port remove vm2");
    let needed = "lasthop: port `vm2` cannot be removed: mirror `m1` copies its frames; \
                  change or remove that first\n";
    assert_eq!((status, &*message), (2, needed));
}

/// Writes a file to the runtime directory and returns its path.
fn write(fake: &Fake, text: &str) -> String {
    let file = fake.dir().join("new.toml");
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

#[test]
fn a_file_is_applied_with_its_difference() {
    let fake = Fake::start();
    let vm1 = "[[port]]\nname = \"vm1\"\nkind = \"vhost-user\"\nsocket = \"vm1.sock\"\n\
               queues = 2\nmtu = 9000\n";
    let tap = "[[port]]\nname = \"host0\"\nkind = \"tap\"\naddress = \"10.0.0.1/24\"\n";
    let file = write(&fake, &format!("[switch]\nname = \"host1\"\n{vm1}{tap}"));
    let text = "\
- segment blue
- segment red
- port vm2 (loses its connection)
~ port vm1: mtu - -> 9000, segment blue -> default
+ port host0: address 10.0.0.1/24, interface host0, kind tap, queues 1, segment default
";
    let before = fake.json("port list");
    let mut dry = fake.command(&format!("apply {file} --dry-run"));
    let dry = dry.output().unwrap();
    assert_eq!(dry.status.code(), Some(3));
    assert_eq!(
        String::from_utf8(dry.stdout).unwrap(),
        format!("{text}5 changes to apply\n")
    );
    assert_eq!(String::from_utf8(dry.stderr).unwrap(), "");
    assert_eq!(fake.json("port list"), before);

    let done = fake.prints(&format!("apply {file}"));
    assert_eq!(done, format!("{text}5 changes applied\n"));
    assert_eq!(fake.json("port list")["ports"][1]["name"], "host0");
    assert_eq!(fake.prints(&format!("apply {file}")), "nothing to change\n");
    assert_eq!(
        fake.prints(&format!("apply {file} --dry-run")),
        "nothing to change\n"
    );
    let none = json!({"changes": [], "applied": false, "warnings": []});
    assert_eq!(fake.json(&format!("apply {file}")), none);
    let file = write(&fake, &format!("[switch]\nname = \"other\"\n{vm1}{tap}"));
    let change = json!({
        "action": "change",
        "subject": "switch",
        "fields": [{"field": "name", "from": "host1", "to": "other"}],
        "disconnects": false,
    });
    let document = json!({"changes": [change], "applied": true, "warnings": []});
    assert_eq!(fake.json(&format!("apply {file}")), document);
}

#[test]
fn a_port_goes_down_and_up() {
    let fake = Fake::start();
    let down = fake.prints("port set vm1 --down");
    assert_eq!(down, "port vm1 changed, admin-down\n");
    assert!(fake.prints("port list").contains("vm1   admin-down"));
    let shown = fake.prints("port show vm1");
    assert!(shown.contains("\nadmin state  down\n"), "{shown}");
    assert!(shown.contains("admin-down\n"), "{shown}");
    assert!(fake.prints("stats").contains("vm1   admin-down"));
    assert_eq!(fake.json("port show vm1")["admin_state"], "down");
    assert!(fake.prints("export").contains("\nadmin_state = \"down\"\n"));
    fake.prints("port set vm1 --up");
    assert_eq!(fake.json("port show vm1")["admin_state"], "up");
    assert!(!fake.prints("port show vm1").contains("admin"));
    assert_eq!(fake.fails("port set vm1 --up --down").0, 2);
}

#[test]
fn a_port_has_a_description() {
    let fake = Fake::start();
    assert_eq!(fake.json("port show vm1").get("description"), None);
    fake.prints("port set vm1 --description web-server");
    let shown = fake.prints("port show vm1");
    assert!(shown.contains("\ndescription  web-server\n"), "{shown}");
    assert_eq!(fake.json("port show vm1")["description"], "web-server");
    assert!(
        fake.prints("export")
            .contains("\ndescription = \"web-server\"\n")
    );
    fake.prints("port add vm3 --kind vhost-user --socket vm3.sock --description db");
    assert_eq!(fake.json("port show vm3")["description"], "db");
    fake.prints("port set vm3 --description=");
    assert_eq!(fake.json("port show vm3").get("description"), None);
}

#[test]
fn export_has_all_changes() {
    let fake = Fake::start();
    fake.prints("port set vm1 --mtu 9000 --limit from-guest:packets=100k");
    let file = fake.prints("export");
    assert!(file.contains("\nmtu = 9000\n"), "{file}");
    let limit = "\n[port.limits]\nfrom_guest = { packets_per_second = 100000 }\n";
    assert!(file.contains(limit), "{file}");
    let file = write(&fake, &file);
    let dry = fake.prints(&format!("apply {file} --dry-run"));
    assert_eq!(dry, "nothing to change\n");
    // The exported file restores the value after another change.
    fake.prints("port set vm1 --no-mtu");
    let text = "~ port vm1: mtu - -> 9000\n1 change applied\n";
    assert_eq!(fake.prints(&format!("apply {file}")), text);
}

#[test]
fn a_file_may_come_from_standard_input() {
    let fake = Fake::start();
    let before = fake.json("port list");
    let apply = |line: &str, text: &str| {
        let mut command = fake.command(line);
        command.write_stdin(text).output().unwrap()
    };
    let text = "[switch]\nname = \"host1\"\n[[port]]\nname = \"vm1\"\nkind = \"vhost-user\"\n\
                socket = \"vm1.sock\"\nqueues = 2\n";
    let shown = "- segment blue\n- segment red\n- port vm2 (loses its connection)\n\
                 ~ port vm1: segment blue -> default\n4 changes";
    for (line, status, end) in [
        ("apply - --dry-run", 3, "to apply"),
        ("apply -", 0, "applied"),
    ] {
        assert_eq!(fake.json("port list"), before);
        let done = apply(line, text);
        assert_eq!(done.status.code(), Some(status));
        let message = String::from_utf8(done.stdout).unwrap();
        assert_eq!(message, format!("{shown} {end}\n"));
    }
    let before = fake.json("port list");
    for (text, error) in [
        (
            "[switch]\nname = 5\n",
            "<stdin>:2:8: switch.name: expected a name",
        ),
        (
            "[switch]\nname = \"host1\"\nworkers = 3\n",
            "<stdin>:3:11: switch.workers: expected \"auto\", with which",
        ),
        ("", "<stdin>: empty input\n"),
        (" \n", "<stdin>: empty input\n"),
    ] {
        let done = apply("apply -", text);
        let message = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{message}");
        assert!(
            message.starts_with(&format!("lasthop: {error}")),
            "{message}"
        );
    }
    assert_eq!(fake.json("port list"), before);
}

#[test]
fn a_terminal_is_no_file() {
    let fake = Fake::start();
    let Ok(terminal) = std::fs::File::open("/dev/ptmx") else {
        return testkit::skip::skipped("no pseudo-terminals here");
    };
    let done = std::process::Command::new(testkit::programs::program("lasthop"))
        .arg("--runtime-dir")
        .arg(fake.dir())
        .args(["apply", "-"])
        .stdin(terminal)
        .output()
        .unwrap();
    let message = String::from_utf8(done.stderr).unwrap();
    let expected = "lasthop: standard input is a terminal: name a file, or pipe one in\n";
    assert_eq!((done.status.code(), &*message), (Some(2), expected));
}

#[test]
fn an_invalid_file_is_refused_with_file_line_and_column() {
    let fake = Fake::start();
    let before = fake.json("port list");
    for [text, error] in &rows(
        r#"
        [switch]\nname = 5\n | {}:2:8: switch.name: expected a name
        [switch]\nname = "host1"\nworkers = 3\n
          | {}:3:11: switch.workers: expected "auto", with which Lasthop was started: another takes a
          .. restart, found 3
        [[port]]\nname = "a"\nkind = "tap"\nsegment = "x"\n
          | {}:4:11: port.segment: expected the name of a segment (default), found "x"
        [[port]\n            | {}:1:8: expected "]]" behind the name of a table
    "#,
    ) {
        let file = write(&fake, text);
        let (status, message) = fake.fails(&format!("apply {file}"));
        let error = error.replace("{}", &file);
        assert_eq!(status, 2, "{message}");
        assert!(
            message.starts_with(&format!("lasthop: {error}")),
            "{message}"
        );
    }
    let (status, message) = fake.fails("apply /nonexistent.toml");
    assert_eq!(status, 2);
    assert!(
        message.contains("/nonexistent.toml: expected a file that can be read"),
        "{message}"
    );
    let (status, message) = fake.fails("reload");
    assert_eq!(status, 1, "the fake has no supervisor");
    let unreachable = "supervisor.sock: is `lasthop run` running?\n";
    assert!(message.ends_with(unreachable), "{message}");
    assert_eq!(fake.json("port list"), before);
}

#[test]
fn stats() {
    let fake = Fake::start();
    let text = "\
PORT  STATE    FROM-GUEST PACKETS       BYTES  TO-GUEST PACKETS  BYTES  DROPS    CPU
vm1   up                     1000  1000.0 KiB                 0    0 B      7  0.5 s
vm2   dialing                   0         0 B                 0    0 B      0  0.0 s

DROPPED BY  REASON  FRAMES
vm1         runt         7
(all)       runt         7
";
    assert_eq!(fake.prints("stats"), text);
    let text = concat!(
        r#"{"ports":[{"name":"vm1","state":"up","admin_state":"up","#,
        r#""from_guest":{"packets":2000,"bytes":2048000},"#,
        r#""to_guest":{"packets":0,"bytes":0},"drops":{"runt":7,"unused":0},"#,
        r#""neighbour_replies":0,"work":{"cycles_switching":0,"cycles_copying":0,"switching_ns_per_frame":0,"#,
        r#""copying_ns_per_frame":0,"cpu_us":1000000,"skipped_batches":0}},"#,
        r#"{"name":"vm2","state":"dialing","admin_state":"up","#,
        r#""from_guest":{"packets":0,"bytes":0},"to_guest":{"packets":0,"bytes":0},"drops":{},"#,
        r#""neighbour_replies":0,"work":{"cycles_switching":0,"cycles_copying":0,"switching_ns_per_frame":0,"#,
        r#""copying_ns_per_frame":0,"cpu_us":0,"skipped_batches":0}}],"#,
        r#""drops":{"runt":7,"unused":0}}"#,
        "\n"
    );
    assert_eq!(fake.prints("stats --json"), text);
}

#[test]
fn every_reason_for_a_drop_is_explained() {
    // No Lasthop runs.
    let printed = |line: &str| {
        let done = lasthop().args(line.split_whitespace()).assert().success();
        String::from_utf8(done.get_output().stdout.clone()).unwrap()
    };
    let text = printed("stats --explain");
    let document: serde_json::Value =
        serde_json::from_str(&printed("stats --explain --json")).unwrap();
    assert_eq!(text.lines().count(), port::losses().count() + 1);
    for (at, reason) in port::losses().enumerate() {
        let line = text.lines().nth(at + 1).unwrap();
        assert!(
            line.starts_with(reason.name()) && line.ends_with(reason.help()),
            "{line}"
        );
        assert_eq!(document["drops"][at]["reason"], reason.name());
    }
}

#[test]
fn stats_of_one_port() {
    let fake = Fake::start();
    let text = "\
PORT  STATE  FROM-GUEST PACKETS       BYTES  TO-GUEST PACKETS  BYTES  DROPS    CPU
vm1   up                   1000  1000.0 KiB                 0    0 B      7  0.5 s

DROPPED BY  REASON  FRAMES
vm1         runt         7
";
    assert_eq!(fake.prints("stats vm1"), text);
    assert_eq!(fake.json("stats vm1")["drops"]["runt"], 7);
    let (status, message) = fake.fails("stats vm9");
    assert_eq!(
        (status, &*message),
        (2, "lasthop: there is no port `vm9`\n")
    );
}

#[test]
fn fdb_flush_and_flows_purge() {
    let fake = Fake::start();
    let flushed = fake.json("fdb flush --port vm1")["flushed"]
        .as_u64()
        .unwrap();
    let all = fake.json("fdb flush")["flushed"].as_u64().unwrap();
    assert!(flushed > 0 && flushed < all, "{flushed} of {all}");
    let message = fake.prints("fdb flush --port vm1");
    assert!(message.starts_with(&format!("{flushed} ent")), "{message}");
    assert_eq!(fake.fails("fdb flush --segment none").0, 2);
    assert_eq!(fake.prints("flows purge"), "flows purged\n");
    assert_eq!(fake.prints("flows purge --port vm1"), "flows purged\n");
    assert_eq!(fake.fails("flows purge --port vm9").0, 2);
    assert_eq!(fake.fails("flows --limit 3 purge").0, 2);
}

#[test]
fn watching_shows_rates_and_ends_quietly_when_unread() {
    let fake = Fake::start();
    let table: [(&[&str], &str); 2] = [
        (&["stats", "--watch"], "PORT"),
        (&["stats", "--watch", "--json"], "{\"ports\""),
    ];
    for (line, starts) in table {
        let mut child = std::process::Command::new(testkit::programs::program("lasthop"))
            .arg("--runtime-dir")
            .arg(fake.dir())
            .args(line)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut first).unwrap();
        assert!(first.starts_with(starts), "{first}");
        drop(out);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

#[test]
fn refusals_of_the_server_are_2() {
    let fake = Fake::start();
    let table = rows(
        r#"
        port show vm9              | there is no port `vm9`
        port remove vm9            | there is no port `vm9`
        port set vm9 --queues 2    | there is no port `vm9`
        fdb list --port vm9        | port: there is no port `vm9`
        fdb list --segment green   | segment: there is no segment `green`
        segment remove green       | there is no segment `green`
        segment set green --vlan 2 | there is no segment `green`
        mirror remove m9           | there is no mirror `m9`
        port add vm1 --kind vhost-user --socket x
          | name: expected a name that no other port has, found "vm1" a second time
        port add vm3 --kind vhost-user --socket vm1.sock
          | socket: expected a socket that no other port has, found "vm1.sock", the socket of port
          .. "vm1"
        port set vm1 --segment green
          | segment: expected the name of a segment (default, blue, red), found "green"
    "#,
    );
    for [line, error] in &table {
        let error = format!("lasthop: {error}\n");
        assert_eq!(fake.fails(line), (2, error), "{line}");
    }
}

#[test]
fn with_json_a_failure_is_a_document() {
    let fake = Fake::start();
    let fails = |line: &str| {
        let (status, message) = fake.fails(line);
        let document: serde_json::Value = serde_json::from_str(&message).unwrap();
        (status, document)
    };
    let refused = json!({
        "type": "urn:lasthop:problem:invalid",
        "title": api::v1::Problem::new(api::v1::ProblemKind::Invalid, "").title,
        "status": 422,
        "detail": "expected the name of a segment (default, blue, red), found \"green\"",
        "field": "segment",
    });
    assert_eq!(fails("port set vm1 --segment green --json"), (2, refused));
    let (status, message) = fails("trace --port vm1 --json icmp 10.0.0.1 > ::1");
    assert_eq!((status, &message["column"]), (2, &json!(17)));
    let (status, message) = fails("apply /nonexistent --json");
    let title = json!("Invalid request");
    assert_eq!((status, &message["title"]), (2, &title));
    assert!(message["detail"].as_str().unwrap().contains("/nonexistent"));
    assert_eq!(message.as_object().unwrap().len(), 2, "{message}");
    // Usage errors are plain text.
    let (status, message) = fake.fails("port show --json");
    assert!(status == 2 && message.starts_with("error: "), "{message}");

    let output = lasthop()
        .args(["status", "--json", "--runtime-dir", "/nonexistent"])
        .output()
        .unwrap();
    let message: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(message["title"], "Failed");
}

#[test]
fn an_unreachable_lasthop_is_1() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("api.sock");
    let error = format!(
        "lasthop: cannot reach Lasthop at {}: is `lasthop run` running?\n",
        socket.display()
    );
    let status = || {
        let mut command = lasthop();
        command.arg("status").env("LASTHOP_RUNTIME_DIR", dir.path());
        command
    };
    status().assert().code(1).stdout("").stderr(error.clone());
    // A socket without a listener.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    status().assert().code(1).stdout("").stderr(error);
}

#[test]
fn wrong_usage_is_2_with_a_reason() {
    let table = [
        ("", "Usage: lasthop"),
        ("frobnicate", "unrecognized subcommand 'frobnicate'"),
        ("run", "--config <FILE>"),
        ("port add vm1 --socket a", "--kind <KIND>"),
        (
            "port add vm1 --kind veth --socket a",
            "possible values: vhost-user, uplink, tap",
        ),
        ("port add vm1 --kind vhost-user", "--socket <PATH>"),
        ("port add up0 --kind uplink", "--interface <NAME>"),
        (
            "port add up0 --kind uplink --interface e --driver dpdk",
            "possible values: auto, tap, packet, xdp",
        ),
        (
            "port add a/b --kind vhost-user --socket a",
            "expected 1 to 32 characters",
        ),
        (
            "port add a --kind vhost-user --socket a --queues 65",
            "expected an integer from 1 to 64",
        ),
        (
            "port add a --kind vhost-user --socket a --weight 1001",
            "expected an integer from 1 to 1000",
        ),
        (
            "port add a --kind tap --cpu-weight 20000",
            "expected an integer from 1 to 10000",
        ),
        (
            "port add a --kind vhost-user --socket a --mtu 67",
            "expected an integer from 68 to 9216",
        ),
        (
            "port add a --kind vhost-user --socket a --mac x",
            "expected a MAC address",
        ),
        (
            "port add a --kind vhost-user --socket a --segment b --trunk c",
            "cannot be used with",
        ),
        (
            "port set vm1",
            "nothing to change: see lasthop port set --help",
        ),
        ("port set vm1 --mtu 1500 --no-mtu", "cannot be used with"),
        (
            "port set up --cpu-weight 0",
            "expected an integer from 1 to 10000",
        ),
        ("port show", "<NAME>"),
        ("mirror add m1 --ports vm1", "--to <PORT>"),
        (
            "mirror add m1 --to vm1",
            "<--ports <PORTS>|--segments <SEGMENTS>|--filter <EXPR>>",
        ),
        (
            "mirror add m1 --to vm1 --filter arp --direction in",
            "--ports <PORTS>",
        ),
        (
            "mirror add m1 --to vm1 --ports vm2 --direction up",
            "possible values: in, out, both",
        ),
        (
            "mirror add a/b --to vm1 --ports vm2",
            "expected 1 to 32 characters",
        ),
        (
            "mirror add m1 --to vm1 --ports vm2,",
            "expected 1 to 32 characters",
        ),
        ("completions tcsh", "invalid value 'tcsh'"),
        ("run --config a --json", "unexpected argument '--json'"),
    ];
    for (line, error) in table {
        let done = lasthop().args(line.split_whitespace()).assert();
        let done = done.code(2).stdout("");
        let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert!(text.contains(error), "{line}: {text}");
    }
}

#[test]
fn usage_names_only_what_is_required() {
    for dir in [None, Some("/nowhere")] {
        let mut command = lasthop();
        command.args(["port", "remove"]);
        if let Some(dir) = dir {
            command.env("LASTHOP_RUNTIME_DIR", dir);
        }
        let message = command.output().unwrap().stderr;
        let message = String::from_utf8(message).unwrap();
        assert!(
            message.contains("Usage: lasthop port remove <NAME>\n"),
            "{message}"
        );
    }
}

#[test]
fn a_configuration_is_checked_without_starting_anything() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lasthop.toml");
    let check = || {
        let mut command = lasthop();
        command.args(["run", "--check", "--config"]).arg(&file);
        command.arg("--runtime-dir").arg(dir.path().join("run"));
        command
    };
    std::fs::write(&file, "[switch]\nname = \"host1\"\n").unwrap();
    let fine = format!("{}: ok, 1 segment, 0 ports\n", file.display());
    check().assert().code(0).stdout(fine).stderr("");
    let idle = "[[acl]]\nname = \"idle\"\ndirection = \"to-guest\"\n\
        [[acl.rule]]\nname = \"all\"\naction = \"allow\"\n\
        [[acl.rule]]\nname = \"web\"\naction = \"allow\"\nprotocol = \"tcp\"\n";
    std::fs::write(&file, format!("[switch]\nname = \"host1\"\n{idle}")).unwrap();
    let warnings = "warning: acl \"idle\" has no ports, groups or segments, and does nothing\n\
        warning: acl \"idle\", rule \"web\" is never reached: \"all\" comes first\n";
    check().assert().code(0).stderr(warnings);
    std::fs::write(&file, "[switch]\nname = \"host 1\"\n").unwrap();
    let error = format!(
        "lasthop: {}:2:8: switch.name: expected a name of 1 to 32 characters out of \
         A-Z a-z 0-9 _ . -, found \"host 1\"\n",
        file.display()
    );
    check().assert().code(2).stdout("").stderr(error);
    // A terminal would interpret the raw key.
    std::fs::write(&file, "[switch]\n\"\\u001b[31mfoo\" = 1\n").unwrap();
    let error = format!(
        "lasthop: {}:2:1: switch.\\u{{1b}}[31mfoo: expected one of the keys name, poll, \
         poll_us, workers, coalescing, guest_state, connections, socket_dirs, forward_addresses, found the unknown key \"\\u{{1b}}[31mfoo\"\n",
        file.display()
    );
    check().assert().code(2).stdout("").stderr(error);
    assert!(!dir.path().join("run").exists());
}

#[test]
fn the_example_of_the_man_page_is_right() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/example.toml");
    let mut command = lasthop();
    command.args(["run", "--check", "--config", example]);
    let fine = format!("{example}: ok, 3 segments, 5 ports\n");
    command.assert().success().stdout(fine);
}

#[test]
fn the_package_has_what_its_unit_starts() {
    let read = |path: &str| {
        let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    let unit = read("../../../packaging/lasthop.service");
    let manifest = read("Cargo.toml");
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/"));
    let words: Vec<&str> = start.unwrap().split(' ').collect();
    let link = format!(
        r#"{{ dest = "{}", link_name = "../lib/lasthop/lasthop" }}"#,
        words[0]
    );
    assert!(manifest.contains(&link), "{link}");
    for name in ["", "-control", "-switch", "-driver"] {
        let binary = format!(r#"["target/release/lasthop{name}", "usr/lib/lasthop/", "755"]"#);
        assert!(manifest.contains(&binary), "{binary}");
    }
    for name in ["netmap", "net"] {
        let path = format!("target/release/liblasthop_{name}.so");
        let library = format!(r#"["{path}", "usr/lib/lasthop/", "644"]"#);
        assert!(manifest.contains(&library), "{library}");
    }
    assert_eq!(words[1..], ["run", "--config", "/etc/lasthop/lasthop.toml"]);
    let file = r#"["../../../packaging/lasthop.toml", "etc/lasthop/lasthop.toml", "644"]"#;
    assert!(manifest.contains(file));
    let file = r#"["../../../packaging/vcpu-states-off.conf", "usr/share/lasthop/vcpu-states-off.conf", "644"]"#;
    assert!(manifest.contains(file));
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../packaging/lasthop.toml"
    );
    let mut command = lasthop();
    command.args(["run", "--check", "--config", file]);
    command.assert().success();
}

#[test]
fn help_and_version() {
    let version = format!("lasthop {}\n", env!("CARGO_PKG_VERSION"));
    lasthop()
        .arg("--version")
        .assert()
        .success()
        .stdout(version);
    let help = lasthop().arg("--help").assert().success();
    let text = String::from_utf8_lossy(&help.get_output().stdout).into_owned();
    for word in [
        "run",
        "status",
        "port",
        "mirror",
        "stats",
        "fdb",
        "LASTHOP_RUNTIME_DIR",
    ] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn completions_of_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = lasthop().args(["completions", shell]).assert().success();
        let text = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
        assert!(text.contains("--runtime-dir") || text.contains("runtime-dir"));
        assert!(text.contains("fdb"), "{shell}");
    }
}

#[test]
fn man_pages() {
    let done = lasthop().arg("man").assert().success();
    let text = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    for part in [
        ".TH lasthop 1",
        ".SH CONFIGURATION",
        "vhost\\-user",
        "LASTHOP_RUNTIME_DIR",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }

    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("share/man1");
    let mut command = lasthop();
    command.arg("man").arg("--out").arg(&out);
    command.assert().success().stdout("").stderr("");
    for page in [
        "lasthop.1",
        "lasthop-run.1",
        "lasthop-port-add.1",
        "lasthop-mirror-add.1",
        "lasthop-stats.1",
    ] {
        let text = std::fs::read_to_string(out.join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }

    let mut command = lasthop();
    command.args(["man", "--out", "/dev/null/man"]);
    command.assert().code(2).stdout("");
}

#[test]
fn connections_are_a_table() {
    let fake = Fake::start();
    let listed = fake.prints("connections list --port vm1 tcp or icmp");
    let text = "\
PROTOCOL  STATE        FROM  SOURCE           TO   DESTINATION  SEGMENT  RULE         AGE    EXPIRES  SENT             ANSWERED
tcp       ESTABLISHED  vm1   10.0.0.1:40000   vm2  10.0.0.2:80  default  web-in/http  1 min 5 s 23 h 59 min  5 frames, 5.0 KiB  7 frames, 7.0 KiB
icmp      unreplied    vm1   10.0.0.1 id 7    -    10.0.0.9     default  -            0 s     29 s      1 frame, 1.0 KiB  0 frames, 0 B
";
    let rows = |text: &str| text.lines().map(squeezed).collect::<Vec<_>>();
    assert_eq!(rows(&listed), rows(text), "{listed}");
    let one = fake.prints("connections list --limit 1");
    assert!(
        one.ends_with("\n\nmore than 1 connections: --limit shows up to 1024\n"),
        "{one}"
    );
    let document = fake.json("connections list");
    assert_eq!(document["connections"][0]["original"]["port"], "vm1");
    assert_eq!(document["table"]["max"], 262_144);
    assert_eq!(
        fake.prints("connections count --segment default"),
        "123456\n"
    );
    assert_eq!(fake.json("connections count udp")["count"], 123_456);
    assert_eq!(fake.prints("connections flush"), "connections flushed\n");
    let parts = "flushing; the event connections_flushed has their number at the end\n";
    assert_eq!(fake.prints("connections flush --port vm1"), parts);
    assert_eq!(
        fake.json("connections flush dst port 80"),
        json!({"done": false})
    );
    for wrong in [
        "connections",
        "connections list --limit 0",
        "connections count --port vm9",
    ] {
        assert_eq!(fake.fails(wrong).0, 2, "{wrong}");
    }
}

#[test]
fn trace_and_flows() {
    let fake = Fake::start();
    assert_eq!(fake.prints("flows --limit 7"), "no cached flows\n");
    assert_eq!(fake.json("flows --port vm1"), json!({"flows": []}));
    let (status, message) = fake.fails("trace --port vm1 icmp 10.0.0.1 > ::1");
    assert_eq!(status, 2);
    assert_eq!(message, "lasthop: expression: column 17: nonsense\n");
    for wrong in [
        "trace --port vm1",
        "trace icmp",
        "trace --port vm1 --pcap /dev/null icmp",
        "trace --port vm1 --filter icmp icmp",
        "trace --port vm1 --filter icmp --pcap /dev/null",
        "trace --port vm1 --expect nothing icmp",
        "flows --limit 0",
        "flows --limit 1025",
    ] {
        assert_eq!(fake.fails(wrong).0, 2, "{wrong}");
    }
    // The test server traces "drop" as a drop and "deliver" as a delivery.
    let trace = |line: &str| {
        let mut command = fake.command(&format!("trace --port vm1 {line}"));
        let done = command.output().unwrap();
        let message = String::from_utf8(done.stderr).unwrap();
        (done.status.code().unwrap(), message)
    };
    assert_eq!(trace("--expect pass deliver"), (0, String::new()));
    assert_eq!(trace("--expect drop drop"), (0, String::new()));
    let otherwise = "lasthop: expected pass: 1 of 1 frame would be dropped\n".to_owned();
    assert_eq!(trace("--expect pass drop"), (4, otherwise));
    let otherwise = "lasthop: expected drop: 1 of 1 frame would pass\n".to_owned();
    assert_eq!(trace("--expect drop deliver"), (4, otherwise));
    let (status, message) = trace("--expect drop deliver --json");
    let message: serde_json::Value = serde_json::from_str(&message).unwrap();
    assert_eq!(
        (status, &message["title"]),
        (4, &json!("Unexpected result"))
    );

    let (status, message) = fake.fails("trace --port vm1 --pcap /dev/null");
    let expected = "lasthop: /dev/null: neither pcap nor pcapng\n";
    assert_eq!((status, message.as_str()), (2, expected));
}

#[test]
fn top_needs_a_terminal() {
    let fake = Fake::start();
    let (status, message) = fake.fails("top");
    let expected = "lasthop: `lasthop top` needs a terminal; `lasthop stats --watch` does not\n";
    assert_eq!((status, message.as_str()), (2, expected));
}

/// The state is requested while the file is parsed, and an error in the file does not wait for it.
#[test]
fn an_invalid_file_is_refused_while_the_server_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // Connections wait in its backlog.
    let _silent = UnixListener::bind(dir.path().join("api.sock")).unwrap();
    let file = dir.path().join("a.toml");
    std::fs::write(&file, "[[port]]\nnmae = 1\n").unwrap();
    let mut apply = lasthop();
    apply.arg("--runtime-dir").arg(dir.path()).arg("apply");
    let output = apply.arg(&file).timeout(LIMIT).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("a.toml:2:1: port.nmae:"), "{error}");
}

/// Runs a command with a server that closes its first connections after the request and then
/// responds; returns the number of requests.
fn dying(deaths: usize, arguments: &[&str]) -> (std::process::Output, usize) {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("api.sock")).unwrap();
    let (seen, count) = mpsc::channel();
    std::thread::spawn(move || {
        for number in 0.. {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            let _ = seen.send(());
            if number >= deaths {
                let body = "{\"segments\":[]}";
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all((head + body).as_bytes()).unwrap();
            }
        }
    });
    let output = lasthop()
        .arg("--runtime-dir")
        .arg(dir.path())
        .args(arguments)
        .output()
        .unwrap();
    (output, count.try_iter().count())
}

#[test]
fn a_get_is_repeated_once_when_the_server_dies() {
    let list = ["segment", "list", "--json"];
    let (output, requests) = dying(1, &list);
    assert_eq!((output.status.code(), requests), (Some(0), 2), "{output:?}");
    let (output, requests) = dying(2, &list);
    assert_eq!((output.status.code(), requests), (Some(1), 2), "{output:?}");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("broke off"), "{message}");
    // A change is not repeated: the first attempt may have been done.
    let (output, requests) = dying(1, &["segment", "remove", "blue"]);
    assert_eq!((output.status.code(), requests), (Some(1), 1), "{output:?}");
}
