//! Connections between QEMU and Lasthop break and come back, with either side listening: guests
//! continue without a reset.

use e2e::guest::{Guest, GuestSpec};
use e2e::lasthop::Lasthop;
use e2e::machine;
use e2e::traffic::{ping, reachable};
use testkit::wait::wait_for;

const CONFIG: &str = r#"
[switch]
name = "host1"

[[port]]
name = "split"
kind = "vhost-user"
socket = "split.sock"
mtu = 1400

[[port]]
name = "packed"
kind = "vhost-user"
socket = "packed.sock"

[[port]]
name = "listens"
kind = "vhost-user"
socket = "listens.sock"
role = "client"
"#;

const PORTS: [&str; 3] = ["split", "packed", "listens"];

/// All three talk with each other, and lose nothing once they do.
fn all_talk(lasthop: &Lasthop, guests: [&mut Guest; 2]) {
    for port in PORTS {
        lasthop.wait_port(port, "up");
    }
    for guest in guests {
        wait_for("all answer", || reachable(guest, "10.0.0.3").then_some(()));
        let before = lasthop.stats();
        let lost = ping(guest, "10.0.0.3", 50).lost();
        let moved = lasthop.stats().since(&before);
        assert_eq!(lost, 0, "{moved:?}");
    }
}

#[test]
fn guests_go_on_after_their_connection_broke() {
    let turn = machine();
    let mut lasthop = Lasthop::start(CONFIG);
    turn.step("boot three guests: two dial, one listens; two have packed queues");
    let split = GuestSpec::at(&lasthop, "split", 1).mtu(1400).start();
    let packed = GuestSpec::at(&lasthop, "packed", 2).packed().start();
    let listening = GuestSpec::listening("listens", lasthop.socket("listens.sock"))
        .ip("10.0.0.3/24")
        .packed();
    let mut listens = listening.clone().start().ready();
    let (mut split, mut packed) = (split.ready(), packed.ready());
    all_talk(&lasthop, [&mut split, &mut packed]);

    for round in 1..=2 {
        turn.step(&format!(
            "Lasthop dies whole and is started again, time {round}"
        ));
        lasthop.start_again();
        all_talk(&lasthop, [&mut split, &mut packed]);
    }
    let carrier = |guest: &mut Guest| guest.run("cat /sys/class/net/eth0/carrier");
    assert_eq!([carrier(&mut split), carrier(&mut packed)], ["1\n", "1\n"]);

    turn.step("the QEMU that listens is killed, its socket goes, and another one comes");
    listens.kill();
    lasthop.wait_port("listens", "dialing");
    std::fs::remove_file(lasthop.socket("listens.sock")).expect("QEMU has left its socket");
    listens = listening.start().ready();
    all_talk(&lasthop, [&mut split, &mut packed]);
    let output = lasthop.ok(&[
        "events",
        "--port",
        "listens",
        "--last",
        "100",
        "--no-follow",
    ]);
    let state = |line: &str| match line.split_once(" port listens is ") {
        Some((_, text)) => text.split([' ', ':']).next().map(str::to_owned),
        None => line
            .contains(" address bound to port listens")
            .then(|| "bound".to_owned()),
    };
    let states: Vec<String> = output.lines().filter_map(state).collect();
    // Its address is bound with its first frame.
    let last = ["dialing", "connected", "up", "bound"];
    assert!(states.ends_with(&last.map(str::to_owned)), "{output}");

    turn.step("a port comes back with less than its guest has agreed on, and says so");
    let add = [
        "port",
        "add",
        "split",
        "--kind",
        "vhost-user",
        "--socket",
        "split.sock",
    ];
    lasthop.ok(&["port", "remove", "split"]);
    lasthop.ok(&add);
    lasthop.wait_reason("split", "left without choosing features");
    lasthop.ok(&["port", "remove", "split"]);
    lasthop.ok(&[&add[..], &["--mtu", "1400"]].concat());
    all_talk(&lasthop, [&mut split, &mut packed]);

    turn.step("a port comes back with more than its guest has agreed on");
    lasthop.ok(&["port", "remove", "packed"]);
    let add = [
        "port",
        "add",
        "packed",
        "--kind",
        "vhost-user",
        "--socket",
        "packed.sock",
    ];
    lasthop.ok(&[&add[..], &["--mtu", "1400", "--queues", "4"]].concat());
    all_talk(&lasthop, [&mut split, &mut packed]);
    drop((split, packed, listens));
    lasthop.stop();
}
