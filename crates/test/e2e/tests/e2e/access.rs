//! Access lists: who may talk to whom, with guests of QEMU, under traffic, and when processes die.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use e2e::guest::{Guest, GuestSpec, boot, two_guests};
use e2e::lasthop::Lasthop;
use e2e::numbered::{Stream, introduce, settle, trickle};
use e2e::traffic::{Silence, ping, serve_iperf_at, unreachable};
use e2e::{beside, machine};
use testkit::packets::{Flow, SequenceChecker, udp};
use testkit::wait::{LIMIT, wait_until};

const PORTS: &str = r#"
[switch]
name = "host1"

[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"

[[port]]
name = "vm2"
kind = "vhost-user"
socket = "vm2.sock"

[[port]]
name = "vm3"
kind = "vhost-user"
socket = "vm3.sock"
"#;

/// Only ARP is allowed, and `vm2` gets pings from one address and a web server's port.
const CLOSED: &str = r#"
[[address_set]]
name = "friends"
addresses = ["10.0.0.3/32"]

[[group]]
name = "web"
ports = ["vm2"]

[[acl_default]]
segment = "default"
to_guest = "deny"

[[acl]]
name = "all"
direction = "to-guest"
segments = ["default"]
[[acl.rule]]
name = "arp"
action = "allow"
ether_type = "arp"
[[acl.rule]]
name = "answers"
action = "allow"
protocol = "icmp"
icmp_type = 0

[[acl]]
name = "web-in"
direction = "to-guest"
groups = ["web"]
[[acl.rule]]
name = "ping"
action = "allow"
source = ["@friends"]
protocol = "icmp"
icmp_type = 8
[[acl.rule]]
name = "http"
action = "allow"
protocol = "tcp"
destination_ports = [80]
"#;

fn apply(lasthop: &Lasthop, file: &Path, text: &str) -> String {
    fs::write(file, text).expect("the file can be written");
    lasthop.ok(&["apply", &file.display().to_string()])
}

fn denied(lasthop: &Lasthop) -> u64 {
    let stats = lasthop.stats();
    let drops = stats.drops();
    drops.get("acl-denied").copied().unwrap_or(0)
}

#[test]
fn guests_reach_whom_the_lists_say() {
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("new.toml");
    let lasthop = Lasthop::start(PORTS);
    turn.step("boot three guests");
    let specs = [("vm1", 1), ("vm2", 2), ("vm3", 3)];
    let [mut one, mut two, mut three] = boot(specs.map(|(vm, n)| GuestSpec::at(&lasthop, vm, n)));
    assert_eq!(ping(&mut one, "10.0.0.2", 5).lost(), 0);
    assert_eq!(ping(&mut three, "10.0.0.2", 5).lost(), 0);
    assert_eq!(denied(&lasthop), 0);

    turn.step("lists, while they talk");
    let output = apply(&lasthop, &file, &format!("{PORTS}{CLOSED}"));
    assert!(output.contains("+ rule web-in/http"), "{output}");
    for again in 0..2 {
        let forth = Silence::start(&mut one, "10.0.0.2");
        let back = Silence::start(&mut two, "10.0.0.1");
        assert_eq!(ping(&mut three, "10.0.0.2", 5).lost(), 0);
        assert_eq!((forth.wait(), back.wait()), (true, true), "{again}");
    }
    assert!(denied(&lasthop) > 0);

    turn.step("the rule that decides is counted");
    let before = ping_rule(&lasthop);
    assert!(before.packets >= 10, "of the pings above: {before:?}");
    let (sent, began) = (20, Instant::now());
    assert_eq!(ping(&mut three, "10.0.0.2", sent).lost(), 0);
    let counted = ping_rule(&lasthop);
    let (packets, bytes) = (u64::from(sent), u64::from(sent) * PING_BYTES);
    assert!(
        counted.packets >= before.packets + packets,
        "{counted:?} after {before:?}"
    );
    assert!(
        counted.bytes >= before.bytes + bytes,
        "{counted:?} after {before:?}"
    );
    // Times of hits are known to some seconds.
    let since = began.elapsed() + Duration::from_secs(30);
    let lately = |ms| Duration::from_millis(ms) < since;
    assert!(counted.last_hit_ms_ago.is_some_and(lately), "{counted:?}");
    // Longer than counts are kept in one process alone.
    assert_eq!(ping(&mut three, "10.0.0.2", 600).lost(), 0);

    turn.step("a service behind an open port, and one behind a closed one");
    serve_iperf_at(&mut two, 80);
    serve_iperf_at(&mut two, 81);
    // What comes back is not allowed yet: there is no connection tracking.
    assert!(is_closed(&mut one, 80));
    let answers = "[[acl.rule]]\nname = \"web-answers\"\naction = \"allow\"\nprotocol = \"tcp\"\n\
        source_ports = [80, 81]\n";
    let open = CLOSED.replace(
        "\n[[acl]]\nname = \"web-in\"",
        &format!("\n{answers}\n[[acl]]\nname = \"web-in\""),
    );
    let output = apply(&lasthop, &file, &format!("{PORTS}{open}"));
    assert_eq!(output.lines().count(), 2, "one rule: {output}");
    assert!(connects(&mut one, 80));
    assert!(is_closed(&mut one, 81));

    turn.step("control dies, and the switch");
    lasthop.replace_control();
    lasthop.wait_port("vm2", "up");
    let kept = ping_rule(&lasthop);
    assert!(
        kept.packets >= counted.packets && kept.bytes >= counted.bytes,
        "{kept:?} after {counted:?}"
    );
    assert!(unreachable(&mut one, "10.0.0.2"));
    assert_eq!(ping(&mut three, "10.0.0.2", 5).lost(), 0);
    lasthop.replace_switch();
    lasthop.wait_port("vm2", "up");
    lasthop.wait_port("vm1", "up");
    let kept = ping_rule(&lasthop);
    assert!(
        kept.packets >= counted.packets && kept.bytes >= counted.bytes,
        "{kept:?} after {counted:?}"
    );
    assert!(unreachable(&mut one, "10.0.0.2"));
    assert!(connects(&mut one, 80));
    assert_eq!(ping(&mut three, "10.0.0.2", 5).lost(), 0);

    turn.step("everything is open again");
    apply(&lasthop, &file, PORTS);
    assert_eq!(ping(&mut one, "10.0.0.2", 5).lost(), 0);
    drop((one, two, three));
    lasthop.stop();
}

/// Bytes of a ping's frame: Ethernet, IPv4, ICMP, and 56 bytes of data.
const PING_BYTES: u64 = 14 + 20 + 8 + 56;

/// Counts of a rule.
#[derive(Debug)]
struct Counted {
    packets: u64,
    bytes: u64,
    last_hit_ms_ago: Option<u64>,
}

/// Of the rule by which `vm2` is pinged.
fn ping_rule(lasthop: &Lasthop) -> Counted {
    let counts = lasthop.json(&["acl", "show", "web-in"]);
    let rules = counts["lists"][0]["rules"].as_array();
    let mut rules = rules.into_iter().flatten();
    let rule = rules.find(|rule| rule["name"] == "ping");
    let rule = rule.unwrap_or_else(|| panic!("no such rule: {counts}"));
    let number = |key: &str| rule[key].as_u64();
    Counted {
        packets: number("packets").expect("packets are counted"),
        bytes: number("bytes").expect("bytes are counted"),
        last_hit_ms_ago: number("last_hit_ms_ago"),
    }
}

fn connects(guest: &mut Guest, port: u16) -> bool {
    let options = "-t 1 --connect-timeout 30000";
    guest.status(&format!("iperf3 -c 10.0.0.2 -p {port} {options}")) == 0
}

fn is_closed(guest: &mut Guest, port: u16) -> bool {
    let options = "-t 1 --connect-timeout 500";
    guest.status(&format!("iperf3 -c 10.0.0.2 -p {port} {options}")) != 0
}

/// Returns rules that no packet matches.
fn many_rules(count: usize) -> String {
    let mut text =
        "[[acl]]\nname = \"many\"\ndirection = \"to-guest\"\nsegments = [\"default\"]\n".to_owned();
    for n in 0..count {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "[[acl.rule]]\nname = \"r{n}\"\naction = \"drop\"\nsource = [\"172.{}.{}.0/24\"]\n\
             protocol = \"tcp\"\ndestination_ports = [{}]",
            16 + n / 4096 % 16,
            n / 16 % 256,
            1 + n % 16
        );
    }
    text
}

#[test]
fn a_rejected_sender_gets_an_answer_and_the_log_names_it() {
    let _turn = machine();
    let lists = r#"
[[acl]]
name = "in"
direction = "to-guest"
ports = ["vm2"]
[[acl.rule]]
name = "closed"
action = "reject"
protocol = "tcp"
destination_ports = [5201]
log = { per_second = 2 }
[[acl.rule]]
name = "no-ping"
action = "reject"
protocol = "icmp"
"#;
    let lasthop = Lasthop::start(&format!("{PORTS}{lists}"));
    let (mut one, two) = two_guests(&lasthop);
    for again in 0..2 {
        let output = one.run("ping -c 1 -W 1 10.0.0.2 2>&1; iperf3 -c 10.0.0.2 2>&1; true");
        assert!(output.contains("Connection refused"), "{again}: {output}");
    }
    let counts = lasthop.stats();
    assert!(counts.get("vm1.drops.acl-rejected") >= 4, "{counts:?}");
    let line = "acl=in rule=closed port=\"vm1\" flow=tcp 10.0.0.1:";
    wait_until(line, || lasthop.log().contains(line));
    drop((one, two));
    lasthop.stop();
}

#[test]
fn lists_change_under_traffic_and_nothing_allowed_is_lost() {
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("new.toml");
    let lasthop = Lasthop::start(PORTS);
    let (mut a, mut b) = (lasthop.connect("vm1", 1), lasthop.connect("vm2", 2));
    let _c = lasthop.connect("vm3", 3);
    introduce(&mut a, &mut b, Flow::v4(1, 2));
    let (mut checker, mut steady) = (SequenceChecker::default(), Stream::new(0, Flow::v4(1, 2)));
    let only_udp = "[[acl_default]]\nsegment = \"default\"\nto_guest = \"deny\"\n[[acl]]\n\
        name = \"udp\"\ndirection = \"to-guest\"\nports = [\"vm2\"]\n\
        [[acl.rule]]\nname = \"udp\"\naction = \"allow\"\nprotocol = \"udp\"\n";
    let (few, many) = (many_rules(20), many_rules(2000));
    let lists = [
        ("lists that do not match", few.clone()),
        ("many of them", many.clone()),
        ("one of many is another", many.replacen("[1]", "[99]", 1)),
        ("a port that denies all but this", only_udp.to_owned()),
        ("none", String::new()),
    ];
    for round in 0..2 {
        for (what, text) in &lists {
            turn.step(&format!("{what}, time {}", round + 1));
            fs::write(&file, format!("{PORTS}{text}")).expect("the file can be written");
            let file = file.display().to_string();
            std::thread::scope(|scope| {
                let apply = scope.spawn(|| lasthop.ok(&["apply", &file]));
                while !apply.is_finished() {
                    trickle(&mut steady, (&mut a, &mut b), &mut checker, 100);
                    std::thread::sleep(Duration::from_micros(200));
                }
                let output = apply.join().expect("it is applied");
                assert!(output.ends_with(" applied\n"), "{output}");
            });
        }
    }
    settle(&mut b, &mut checker, &steady, LIMIT);
    assert_eq!(lasthop.stats().drops(), [].into());
    drop((a, b));
    lasthop.stop();
}

#[test]
fn a_denied_scan_of_all_ports_costs_a_handful_of_flows() {
    let _turn = beside();
    let list = "[[acl]]\nname = \"in\"\ndirection = \"to-guest\"\nports = [\"vm2\"]\n\
        [[acl.rule]]\nname = \"open\"\naction = \"allow\"\nprotocol = \"udp\"\n\
        destination_ports = [53, 123]\n\
        [[acl.rule]]\nname = \"rest\"\naction = \"drop\"\nprotocol = \"udp\"\n";
    // What is for a DHCP client would be dropped before.
    let socket = "socket = \"vm1.sock\"";
    let ports = PORTS.replace(
        socket,
        &format!("{socket}\nport_security = {{ dhcp_server = true }}"),
    );
    let lasthop = Lasthop::start(&format!("{ports}{list}"));
    let (mut a, mut b) = (lasthop.connect("vm1", 1), lasthop.connect("vm2", 2));
    let open = Flow {
        dst_port: 53,
        ..Flow::v4(1, 2)
    };
    introduce(&mut a, &mut b, open);
    b.recv_all().expect("the guest is served");
    let before = lasthop.stats();
    let upcalls = |lasthop: &Lasthop| lasthop.json(&["status"])["switch"]["upcalls"].as_u64();
    let (asked, mut sent) = (upcalls(&lasthop), 0_u64);
    for port in 0..=u16::MAX {
        let flow = Flow {
            dst_port: port,
            ..Flow::v4(1, 2)
        };
        a.send(&udp(&flow, &[0; 18])).expect("the guest sends");
        sent += 1;
        // As many wait for their answers as a port may ask at once.
        if sent.is_multiple_of(64) {
            served("all that was sent is decided", || {
                let moved = lasthop.quick_stats().since(&before);
                moved.get("drops.acl-denied") + moved.received("vm2") == sent
            });
        }
    }
    let moved = lasthop.stats().since(&before);
    assert_eq!(
        (moved.received("vm2"), moved.drops().len()),
        (2, 1),
        "{moved:?}"
    );
    let status = lasthop.json(&["status"]);
    let flows = status["switch"]["flows"]
        .as_u64()
        .expect("flows are counted");
    assert!(flows < 200, "{flows} flows for {sent} ports");
    let asked = upcalls(&lasthop).unwrap_or(0) - asked.unwrap_or(0);
    assert!(asked < 20_000, "{asked} questions for {sent} ports");
    drop((a, b));
    lasthop.stop();
}

#[test]
fn what_is_wrong_is_said_with_its_line_and_changes_nothing() {
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("new.toml");
    let lasthop = Lasthop::start(&format!("{PORTS}{CLOSED}"));
    let before = lasthop.ok(&[
        "apply",
        "--dry-run",
        &write(&file, &format!("{PORTS}{CLOSED}")),
    ]);
    assert_eq!(before, "nothing to change\n");
    let rule = |more: &str| format!("{PORTS}{CLOSED}[[acl.rule]]\nname = \"new\"\n{more}\n");
    for (text, complaint) in [
        (
            rule("action = \"drop\"\nprotocol = \"tcp\"\ndestination_ports = [80]"),
            "acl.rule.action: acl \"web-in\", rule \"new\": acl \"web-in\", rule \"http\" matches \
             the same",
        ),
        (
            rule("action = \"drop\"\nsource = [\"@foes\"]"),
            "there is no address_set \"foes\"",
        ),
        (
            rule("action = \"drop\"\nsource = [\"10.0.0.0/33\"]"),
            "the prefix has at most 32 bits",
        ),
        (
            rule("action = \"drop\"\nlog = { per_second = 0 }"),
            "expected a limit of at least one line a second, found 0",
        ),
        (
            format!(
                "{PORTS}{CLOSED}[[group]]\nname = \"other\"\nports = [\"vm2\"]\n[[acl]]\n\
                 name = \"other-in\"\ndirection = \"to-guest\"\ngroups = [\"other\"]\n\
                 [[acl.rule]]\nname = \"no\"\naction = \"drop\"\nprotocol = \"tcp\"\n"
            ),
            "port \"vm2\" is in another group, too",
        ),
    ] {
        let output = lasthop.cli(&["apply", &write(&file, &text)]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(complaint), "{complaint}: {errors}");
        assert!(errors.contains("new.toml:"), "{errors}");
    }
    turn.step("a rule that is never reached is a warning");
    let text = rule(
        "action = \"allow\"
protocol = \"tcp\"\ndestination_ports = [80]\nsource = [\"10.0.0.1\"]",
    );
    let output = lasthop.cli(&["apply", &write(&file, &text)]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let warning = "warning: acl \"web-in\", rule \"new\" is never reached: \"http\" comes first\n";
    assert_eq!(errors, warning);
    assert_eq!(
        lasthop.ok(&["reload"]).lines().last(),
        Some("1 change applied")
    );
    lasthop.stop();
}

/// Asks without a pause: a thousand pauses would be most of the test.
fn served(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
    }
}

fn write(file: &Path, text: &str) -> String {
    fs::write(file, text).expect("the file can be written");
    file.display().to_string()
}
