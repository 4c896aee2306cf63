//! Connection tracking: what stateful rules let in continues while processes die, versions change
//! and the table is lost; nothing else gets in; and a change of rules ends what it no longer
//! allows.

use std::path::Path;
use std::time::Duration;

use e2e::documents::blocks;
use e2e::guest::{Guest, two_guests};
use e2e::lasthop::Lasthop;
use e2e::traffic::{IperfRun, Silence, ping, send_checked, serve_iperf_at};
use e2e::{Turn, machine};
use serde_json::Value;
use testkit::lasthop::port;
use testkit::wait::{wait_for, wait_until};

mod arrivals;
mod errors;
mod far_sides;
mod flushes;
mod fragments;
mod frames;
mod hosts;
mod layouts;
mod memory;
mod routers;
mod stations;

/// `vm2` is a web server, as the page about access lists has it.
const RECIPE: &str = "## Recipe: a web server with state\n";
/// Bytes that show the progress of a transfer.
const PROGRESS: u64 = 1 << 20;

/// The port `vm2` and its lists, as the documents have them.
fn recipe() -> String {
    let page = include_str!("../../../../../docs/user/access-lists.md");
    let (_, section) = page.split_once(RECIPE).expect("the recipe");
    blocks(section).swap_remove(0).text
}

/// The recipe beside more ports, with more keys of the switch.
fn config(switch: &str, more: &str) -> String {
    format!("[switch]\nname = \"host1\"\n{switch}\n{more}\n{}", recipe())
}

fn apply(lasthop: &Lasthop, folder: &Path, config: &str) {
    let file = folder.join("lasthop.toml");
    std::fs::write(&file, config).expect("a file");
    lasthop.ok(&["apply", file.to_str().expect("text")]);
}

/// The connections that a filter selects.
fn list(lasthop: &Lasthop, filter: &str) -> Vec<Value> {
    let mut listed = lasthop.json(&["connections", "list", "--limit", "1024", filter]);
    match listed["connections"].take() {
        Value::Array(all) => all,
        other => panic!("no connections: {other}"),
    }
}

fn count(lasthop: &Lasthop, filter: &str) -> u64 {
    let counted = lasthop.json(&["connections", "count", filter]);
    counted["count"].as_u64().expect("a number")
}

/// A TCP transfer between two guests, by the address of the client's end.
struct Transfer {
    client: String,
}

/// Looks of control at a transfer.
#[derive(Debug)]
struct Look {
    bytes: u64,
    state: String,
    /// The list and the rule that have let it in.
    rule: [String; 2],
    /// The ports of the side that has opened it, and of the other one.
    ports: [String; 2],
}

impl Transfer {
    /// Finds the busiest connection to a port.
    fn to_port(lasthop: &Lasthop, server: u16) -> Self {
        let filter = format!("dst port {server}");
        let client = wait_for("a transfer", || {
            let all = list(lasthop, &filter);
            let all = all.iter().map(|of| (bytes(of), client(of)));
            let (bytes, client) = all.max()?;
            (bytes > PROGRESS).then_some(client)
        });
        Self { client }
    }

    fn look(&self, lasthop: &Lasthop) -> Option<Look> {
        let (_, number) = self.client.rsplit_once(':')?;
        // A connection that is picked up may begin with a segment of the server.
        let all = list(lasthop, &format!("tcp port {number}"));
        let of = all.first()?;
        let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
        Some(Look {
            bytes: bytes(of),
            state: text(&of["state"]),
            rule: [text(&of["list"]), text(&of["rule"])],
            ports: ["original", "reply"].map(|side| text(&of[side]["port"])),
        })
    }

    fn bytes(&self, lasthop: &Lasthop) -> u64 {
        self.look(lasthop).map_or(0, |look| look.bytes)
    }

    /// Waits until there are a few retransmissions alone.
    fn ends(&self, lasthop: &Lasthop) {
        wait_until("the transfer ends", || {
            let before = self.bytes(lasthop);
            std::thread::sleep(Duration::from_millis(300));
            self.bytes(lasthop) < before + PROGRESS / 16
        });
    }

    /// Waits until more bytes have come through.
    fn goes_on(&self, lasthop: &Lasthop) -> Look {
        let before = self.bytes(lasthop);
        wait_for("the transfer goes on", || {
            let look = self.look(lasthop)?;
            (look.bytes > before + PROGRESS).then_some(look)
        })
    }
}

fn client(of: &Value) -> String {
    let source = of["original"]["source"].as_str();
    source.expect("an address").to_owned()
}

fn bytes(of: &Value) -> u64 {
    let sides = ["original", "reply"].map(|side| of[side]["traffic"]["bytes"].as_u64());
    sides.into_iter().flatten().sum()
}

#[test]
fn a_web_server_by_the_recipe_lasts_as_long_as_its_rules() {
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = config("", &port("vm1", ""));
    let mut lasthop = Lasthop::start(&config);
    turn.step("boot two guests");
    let (mut vm1, mut vm2) = two_guests(&lasthop);
    serves_the_web(&turn, &lasthop, [&mut vm1, &mut vm2]);

    turn.step("an upload to the server, and a download by it");
    serve_iperf_at(&mut vm2, 443);
    serve_iperf_at(&mut vm1, 5201);
    let runs = [
        IperfRun::start(&mut vm1, "10.0.0.2", 600, "-p 443"),
        IperfRun::start(&mut vm2, "10.0.0.1", 600, "-R"),
    ];
    let upload = Transfer::to_port(&lasthop, 443);
    let download = Transfer::to_port(&lasthop, 5201);
    let look = upload.goes_on(&lasthop);
    assert_eq!(look.state, "ESTABLISHED");
    assert_eq!(look.rule, ["vm2-in", "web"]);
    assert_eq!(look.ports, ["vm1", "vm2"]);
    let look = download.goes_on(&lasthop);
    assert_eq!(look.rule, ["vm2-out", "all"]);
    assert_eq!(look.ports, ["vm2", "vm1"]);

    turn.step("a rule that does not let the upload in any more");
    let http_alone = config.replace("[80, 443]", "[80]");
    assert_ne!(http_alone, config);
    apply(&lasthop, folder.path(), &http_alone);
    upload.ends(&lasthop);
    download.goes_on(&lasthop);
    assert!(lasthop.stats().drops_of("vm1")["acl-denied"] > 0);
    vm1.run("wget -q -O /dev/null http://10.0.0.2/page");
    turn.step("and one that does");
    apply(&lasthop, folder.path(), &config);
    upload.goes_on(&lasthop);

    processes_are_replaced(&turn, &lasthop, [&upload, &download]);
    turn.step("Lasthop dies whole, with its table");
    lasthop.start_again();
    for transfer in [&upload, &download] {
        transfer.goes_on(&lasthop);
    }
    runs.into_iter().for_each(IperfRun::abandon);
    drop((vm1, vm2));
    lasthop.stop();
}

/// The server is reached by its port, and reaches whom it likes.
fn serves_the_web(turn: &Turn, lasthop: &Lasthop, [vm1, vm2]: [&mut Guest; 2]) {
    turn.step("in by the port, out all, answers back");
    assert_eq!(ping(vm2, "10.0.0.1", 5).lost(), 0);
    let in_vain = Silence::start(vm1, "10.0.0.2");
    vm2.run("mkdir -p /tmp/www; seq 100000 >/tmp/www/page; httpd -p 80 -h /tmp/www");
    let page = vm2.run("md5sum </tmp/www/page");
    let got = vm1.run("wget -q -O - http://10.0.0.2/page | md5sum");
    assert_eq!(got, page);
    let listed = list(lasthop, "dst port 80");
    let of = listed.first().expect("a connection");
    assert_eq!(
        (&of["list"], &of["rule"]),
        (&"vm2-in".into(), &"web".into()),
        "{listed:?}"
    );
    send_checked(vm1, "10.0.0.1", vm2, 2);
    let pings = list(lasthop, "icmp");
    assert!(
        pings.iter().all(|of| of["original"]["port"] == "vm2"),
        "{pings:?}"
    );
    assert!(!pings.is_empty());
    serve_iperf_at(vm2, 81);
    let closed = "iperf3 -c 10.0.0.2 -p 81 -t 1 --connect-timeout 500";
    assert_ne!(vm1.status(closed), 0);
    assert!(in_vain.wait(), "a ping of the server is answered");
    assert_eq!(count(lasthop, "dst port 81"), 0);
}

/// No process takes a transfer with it.
fn processes_are_replaced(turn: &Turn, lasthop: &Lasthop, transfers: [&Transfer; 2]) {
    let established = || {
        let all = list(lasthop, "tcp");
        let all = all.iter().filter(|of| of["state"] == "ESTABLISHED");
        all.map(|of| (of["original"]["source"].to_string(), of["age_ms"].as_u64()))
            .collect::<Vec<_>>()
    };
    let replace: [(&str, &dyn Fn()); 3] = [
        ("kill -9 of the switch", &|| lasthop.replace_switch()),
        ("kill -9 of control", &|| lasthop.replace_control()),
        ("an upgrade", &|| _ = lasthop.ok(&["upgrade"])),
    ];
    for (what, replace) in replace {
        turn.step(what);
        let before = established();
        assert!(before.len() >= 4, "two for each transfer: {before:?}");
        replace();
        for transfer in transfers {
            transfer.goes_on(lasthop);
        }
        let after = established();
        for (source, age) in before {
            let same = after.iter().find(|(other, _)| *other == source);
            assert!(
                same.is_some_and(|(_, later)| *later > age),
                "{source}: {after:?}"
            );
        }
    }
}
