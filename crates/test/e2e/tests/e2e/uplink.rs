//! Ports with a driver process: TAP ports that the host takes part with, and uplinks over any
//! interface.
//!
//! Everything is in network namespaces of the test's own; where they cannot be had, a test says so
//! and ends.

use std::path::Path;
use std::time::{Duration, Instant};

use e2e::guest::GuestSpec;
use e2e::lasthop::{Lasthop, same_footprint};
use e2e::numbered::{Stream, introduce, settles};
use e2e::traffic::{iperf_bytes, ping, reachable};
use e2e::uplinks::{
    LOAD, OWN_PROCESS, TIMEOUT, ask, both_ways, driver_pid, ethtool_off, pattern, tap, transfer,
    uplink, wire,
};
use e2e::{Turn, beside, machine, paths};
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::lasthop::Place;
use testkit::netns::Netns;
use testkit::packets::{Flow, SequenceChecker};
use testkit::process::{Process, send as signal};
use testkit::procfs;
use testkit::wait::wait_for;
use testkit::{FakeGuest, GuestConfig};

/// Environment of a test.
struct World {
    turn: Turn,
    folder: TempDir,
}

impl World {
    fn step(&self, what: &str) {
        self.turn.step(what);
    }
}

/// A turn, a folder, and so many network namespaces; none where they cannot be had, and the
/// test is to end.
fn world<const N: usize>() -> Option<(World, [Netns; N])> {
    world_with(beside)
}

/// As [`world`], with a turn of this kind.
fn world_with<const N: usize>(turn: fn() -> Turn) -> Option<(World, [Netns; N])> {
    if !Netns::allowed() {
        return None;
    }
    let turn = turn();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let netns = std::array::from_fn(|n| Netns::new(&format!("netns{n}"), folder.path()));
    Some((World { turn, folder }, netns))
}

fn start(parts: &[&str]) -> Lasthop {
    Lasthop::start(&parts.concat())
}

/// A TAP port in `near`, and an uplink in `host` by this driver.
fn with_tap(near: &Netns, host: &Netns, driver: &str) -> Lasthop {
    start(&[
        &tap("t0", &near.path(), "10.1.0.1/24", ""),
        &uplink(&host.path(), &format!("driver = \"{driver}\"")),
    ])
}

/// A wire from the host to a station with an address.
fn wired(host: &Netns, far: &Netns) {
    wire(host, far);
    far.ip("address add 10.1.0.9/24 dev wire0");
}

/// A command that Lasthop must refuse with these words.
fn refuses(lasthop: &Lasthop, command: &str, words: &str) {
    let output = lasthop.cli(&command.split(' ').collect::<Vec<_>>());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && complaint.contains(words),
        "{command}: {complaint}"
    );
}

/// Waits for what happens within microseconds.
fn spin_until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "it does not happen");
        std::thread::yield_now();
    }
}

#[test]
fn tap_ports_join_two_namespaces() {
    let Some((world, [a, b])) = world() else {
        return;
    };
    let more = "mac = \"02:00:00:00:00:77\"\ninterface = \"lan0\"";
    let lasthop = start(&[
        "[switch]\nname = \"host1\"\n",
        &tap("t0", &a.path(), "10.1.0.1/24", "mtu = 1500"),
        &tap("t1", &b.path(), "10.1.0.2/24", more),
    ]);
    for port in ["t0", "t1"] {
        let status = lasthop.wait_port(port, "up");
        assert_eq!(status["driver_status"]["back_end"], "tap", "{status}");
        assert_eq!(status["kind"], "tap");
        assert_eq!(status["ring"], "split");
    }
    assert!(b.ip("link show lan0").contains("02:00:00:00:00:77"));
    assert!(b.ip("address show lan0").contains("10.1.0.2/24"));
    world.step("TCP both ways");
    let before = lasthop.stats();
    both_ways((&a, "10.1.0.1"), (&b, "10.1.0.2"), LOAD);
    let moved = lasthop.stats().since(&before);
    world.step(&format!("{moved:?}"));
    for port in ["t0", "t1"] {
        let (packets, bytes) = (
            moved.sent(port),
            moved.get(&format!("{port}.from_guest.bytes")),
        );
        assert!(bytes > LOAD as u64, "{moved:?}");
        // Acknowledgements included, a cut transfer would take twice as many.
        assert!(
            packets < LOAD as u64 / 1448,
            "super-frames cross whole: {moved:?}"
        );
    }
    world.step("cut and checksummed where an interface wants that");
    b.ip("link set lan0 down");
    b.ip("link set lan0 up");
    transfer(&a, &b, "10.1.0.2:5002", LOAD / 8);
    let list = lasthop.ok(&["port", "list"]);
    assert!(list.contains("lan0") && list.contains(" tap "), "{list}");
    lasthop.stop();
    let left = b.ip("link show");
    assert!(
        !left.contains("lan0"),
        "its interface vanishes with it: {left}"
    );
}

#[test]
fn a_driver_has_no_rights() {
    let Some((_world, [a])) = world() else {
        return;
    };
    let more = format!("queues = 2\n{OWN_PROCESS}");
    let lasthop = Lasthop::start(&tap("t0", &a.path(), "10.1.0.1/24", &more));
    pairs_run(&lasthop, "t0", 2);
    let pid = driver_pid(&lasthop, "t0").expect("a driver");
    let status = |key: &str| procfs::status(pid, key).unwrap_or_default();
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(status(set), "0000000000000000", "{set}");
    }
    assert_eq!(status("Seccomp"), "2", "a filter");
    assert_eq!(status("NoNewPrivs"), "1");
    assert_eq!(status("Groups"), "");
    let ids: Vec<String> = status("Uid")
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    assert!(ids.iter().all(|id| id != "0" && *id == ids[0]), "{ids:?}");
    // Every thread, not the first alone.
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    let tasks: Vec<_> = tasks.flatten().collect();
    assert_eq!(tasks.len(), 3, "one for each queue pair");
    for task in tasks {
        let status = std::fs::read_to_string(task.path().join("status")).expect("it lives");
        assert!(status.contains("Seccomp:\t2"), "{status}");
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    }
    let networks = ["self", &pid.to_string()]
        .map(|pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).expect("root may look"));
    assert_ne!(networks[0], networks[1], "a network of its own, and empty");
    lasthop.stop();
}

#[test]
fn a_packet_uplink_leads_to_the_wire() {
    let Some((world, [host, far, near])) = world() else {
        return;
    };
    wired(&host, &far);
    let lasthop = with_tap(&near, &host, "auto");
    let status = lasthop.wait_port("uplink", "up");
    assert_eq!(status["driver_status"]["back_end"], "packet", "{status}");
    world.step("TCP both ways");
    let before = lasthop.stats();
    let ends = ((&near, "10.1.0.1"), (&far, "10.1.0.9"));
    both_ways(ends.0, ends.1, LOAD);
    let moved = lasthop.stats().since(&before);
    world.step(&format!("{moved:?}"));
    for port in ["t0", "uplink"] {
        assert!(
            moved.sent(port) < LOAD as u64 / 1448,
            "super-frames cross whole: {moved:?}"
        );
        // Frames that wait for a decision are copied from elsewhere.
        let misaligned = lasthop.port(port)["misaligned_frames"].as_u64();
        let few = moved.received(port) / 10;
        assert!(
            misaligned.is_some_and(|frames| frames <= few),
            "{misaligned:?} of {moved:?}"
        );
    }
    world.step("without offloads on the wire");
    ethtool_off(&far, "wire0", "tx tso gso gro");
    both_ways(ends.0, ends.1, LOAD / 8);
    lasthop.stop();
}

/// One of two hosts: a TAP port in segment blue and one in the default segment, and a trunk to the
/// other host.
fn host_with_trunk(
    blue: &Netns,
    plain: &Netns,
    number: u8,
    interface: &str,
    host: &Netns,
) -> Lasthop {
    let address = |net| format!("10.{net}.0.{number}/24");
    let trunk = "driver = \"packet\"\ntrunk = [\"blue\", \"default\"]\nqueues = 2";
    start(&[
        "[[segment]]\nname = \"blue\"\nvlan = 10\n",
        &tap("blue0", &blue.path(), &address(2), "segment = \"blue\""),
        &tap("plain0", &plain.path(), &address(1), ""),
        &uplink(&host.path(), trunk).replace("up0", interface),
    ])
}

#[test]
fn a_trunk_uplink_carries_tags() {
    let Some((world, [host, blue, plain, far, far_blue, far_plain])) = world() else {
        return;
    };
    wire(&host, &far);
    let here = host_with_trunk(&blue, &plain, 1, "up0", &host);
    let there = host_with_trunk(&far_blue, &far_plain, 9, "wire0", &far);
    for lasthop in [&here, &there] {
        pairs_run(lasthop, "uplink", 2);
    }
    world.step("the tagged segment, both ways");
    let before = here.stats();
    let tagged = ((&blue, "10.2.0.1"), (&far_blue, "10.2.0.9"));
    both_ways(tagged.0, tagged.1, LOAD / 4);
    world.step("the untagged one");
    both_ways((&plain, "10.1.0.1"), (&far_plain, "10.1.0.9"), LOAD / 4);
    let moved = here.stats().since(&before);
    world.step(&format!("{moved:?}"));
    let sent = moved.sent("uplink");
    assert!(
        sent < LOAD as u64 / 1448,
        "super-frames cross whole: {moved:?}"
    );
    world.step("frames for neither");
    plain.ip("address add 10.2.0.7/24 dev plain0");
    let stranger = plain.udp("10.2.0.7:0");
    let asked = far_blue.udp("10.2.0.9:0");
    asked
        .set_read_timeout(Some(Duration::from_millis(300)))
        .expect("a time-out");
    let _ = stranger.send_to(b"hello", asked.local_addr().expect("bound"));
    assert!(asked.recv_from(&mut [0; 16]).is_err());
    world.step("without offloads for tags");
    for (netns, interface) in [(&host, "up0"), (&far, "wire0")] {
        ethtool_off(netns, interface, "txvlan rxvlan tso tx");
    }
    both_ways(tagged.0, tagged.1, LOAD / 8);
    here.stop();
    there.stop();
}

const GUESTS: &str = "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"a.sock\"\n\
                      [[port]]\nname = \"b\"\nkind = \"vhost-user\"\nsocket = \"b.sock\"\n";

#[test]
fn a_driver_that_dies_is_replaced_and_guests_do_not_notice() {
    let Some((world, [host, far, near])) = world() else {
        return;
    };
    wired(&host, &far);
    let net = format!("segment = \"net\"\n{OWN_PROCESS}");
    let lasthop = start(&[
        // Apart from the guests, whose checker takes what the namespaces broadcast for damage.
        "[[segment]]\nname = \"net\"\n",
        GUESTS,
        &tap("t0", &near.path(), "10.1.0.1/24", &net),
        &uplink(&host.path(), &format!("driver = \"packet\"\n{net}")),
    ]);
    let (mut a, mut b) = (lasthop.connect("a", 1), lasthop.connect("b", 2));
    let flow = Flow::v4(1, 2);
    introduce(&mut a, &mut b, flow);
    lasthop.wait_port("uplink", "up");
    let (asking, asked) = (near.udp("10.1.0.1:0"), far.udp("10.1.0.9:0"));
    ask(&asking, &asked);
    let before = lasthop.footprint();
    let mut stream = Stream::new(0, flow);
    let mut checker = SequenceChecker::default();
    for (port, how) in [
        ("uplink", Signal::KILL),
        ("t0", Signal::KILL),
        ("uplink", Signal::SEGV),
        // It hangs, until the supervisor loses its patience.
        ("t0", Signal::STOP),
        ("uplink", Signal::KILL),
    ] {
        let old = driver_pid(&lasthop, port).expect("a driver");
        let restarts = lasthop.port(port)["driver_status"]["restarts"]
            .as_u64()
            .expect("a number");
        let died = Instant::now();
        signal(old, how);
        if how == Signal::SEGV {
            // The first one ends in the runtime's handler, which lets the instruction try again: a
            // real fault comes again, one from outside does not.
            spin_until(|| {
                let caught =
                    u64::from_str_radix(&procfs::status(old, "SigCgt").unwrap_or_default(), 16)
                        .unwrap_or(0);
                caught & 1 << 10 == 0
            });
            signal(old, how);
        }
        spin_until(|| {
            matches!(
                procfs::status(old, "State").and_then(|state| state.chars().next()),
                None | Some('T' | 'Z' | 'X')
            )
        });
        let questions = std::thread::scope(|scope| {
            let back = scope.spawn(|| ask(&asking, &asked));
            // Guests talk all the while, with no more on the way than the receiver has room for.
            while !back.is_finished() {
                if stream.sent() < checker.next_of(0) + 64 {
                    stream.send(&mut a, 200);
                }
                e2e::numbered::collect(&mut b, &mut checker);
            }
            back.join().expect("an answer in the end")
        });
        world.step(&format!(
            "{port} after {how:?}: {questions} questions, {:.1} ms until the answer",
            died.elapsed().as_secs_f64() * 1e3
        ));
        lasthop.other_driver(port, old);
        let after = lasthop.port(port)["driver_status"]["restarts"].as_u64();
        assert_eq!(after, Some(restarts + 1));
        let clean = settles(&mut b, &mut checker, &stream, TIMEOUT);
        let stats = lasthop.stats();
        assert!(clean, "of {} frames: {checker:?}, {stats:?}", stream.sent());
    }
    assert!(stream.sent() > 1000);
    // Once its connection is up, nothing is left of those before.
    lasthop.wait_port("uplink", "up");
    ask(&asking, &asked);
    same_footprint("drivers", &before, &lasthop);
    near.ip("address show t0 to 10.1.0.1");
    lasthop.stop();
}

#[test]
fn ports_with_drivers_come_and_go() {
    let Some((world, [a, b])) = world() else {
        return;
    };
    let lasthop = Lasthop::start(&tap("t0", &a.path(), "10.1.0.1/24", ""));
    lasthop.wait_port("t0", "up");
    world.step("a TAP port at run time");
    let netns = b.path().display().to_string();
    let add = ["port", "add", "t1", "--kind", "tap", "--netns", &netns];
    lasthop.ok(&[&add[..], &["--address", "10.1.0.2/24"]].concat());
    lasthop.wait_port("t1", "up");
    transfer(&a, &b, "10.1.0.2:5001", 1 << 20);
    world.step("control is killed: its successor has the drivers as they are");
    let pids = ["t0", "t1"].map(|port| driver_pid(&lasthop, port));
    lasthop.replace_control();
    assert_eq!(pids, ["t0", "t1"].map(|port| driver_pid(&lasthop, port)));
    transfer(&b, &a, "10.1.0.1:5001", 1 << 20);
    world.step("what cannot be had changes nothing");
    let add = "port add x --kind";
    let loopback = format!("{add} uplink --interface lo");
    refuses(&lasthop, &loopback, "lo: not an Ethernet interface");
    let taken = format!("{add} tap --interface t1 --netns {netns}");
    refuses(&lasthop, &taken, "the interface of port \"t1\"");
    assert_eq!(pids, ["t0", "t1"].map(|port| driver_pid(&lasthop, port)));
    world.step("it goes");
    lasthop.ok(&["port", "remove", "t1"]);
    wait_for("its interface goes", || {
        (!b.ip("link show").contains("t1")).then_some(())
    });
    world.step("the interface is removed: it is made again");
    a.ip("link delete t0");
    wait_for("t0 is back", || {
        a.ip("address show").contains("10.1.0.1/24").then_some(())
    });
    lasthop.wait_port("t0", "up");
    lasthop.stop();
}

#[test]
fn an_uplink_waits_for_its_interface() {
    let Some((world, [host, far, near])) = world() else {
        return;
    };
    wired(&host, &far);
    let lasthop = with_tap(&near, &host, "packet");
    lasthop.wait_port("uplink", "up");
    world.step("switched off");
    host.ip("link set up0 down");
    lasthop.wait_reason("uplink", "interface up0 is down");
    host.ip("link set up0 up");
    lasthop.wait_port("uplink", "up");
    world.step("removed");
    host.ip("link delete up0");
    lasthop.wait_reason("uplink", "interface up0: No such device");
    wired(&host, &far);
    lasthop.wait_port("uplink", "up");
    transfer(&near, &far, "10.1.0.9:5001", 1 << 20);
    lasthop.stop();
}

#[test]
fn an_uplink_may_come_before_its_interface() {
    let Some((world, [host, far, near])) = world() else {
        return;
    };
    let missing = "interface up0: No such device";
    let lasthop = start(&[
        GUESTS,
        &tap("t0", &near.path(), "10.1.0.1/24", ""),
        &uplink(&host.path(), ""),
    ]);
    lasthop.wait_reason("uplink", missing);
    let list = lasthop.ok(&["port", "list"]);
    assert!(list.contains(missing), "{list}");
    let log = lasthop.log();
    let warning = |line: &str| line.contains("WARN") && line.contains(missing);
    assert!(log.lines().any(warning), "{log}");
    world.step("a change and a new control are as good as ever");
    near.ip("address add 10.1.0.3/24 dev t0");
    lasthop.ok(&["port", "set", "uplink", "--queues", "2"]);
    lasthop.ok(&["port", "set", "t0", "--mtu", "1400"]);
    lasthop.replace_control();
    lasthop.wait_reason("uplink", missing);
    world.step("the interface comes");
    wired(&host, &far);
    pairs_run(&lasthop, "uplink", 2);
    both_ways((&near, "10.1.0.3"), (&far, "10.1.0.9"), 1 << 20);
    world.step("it goes, and while it is away another port with one comes");
    host.ip("link delete up0");
    lasthop.wait_reason("uplink", missing);
    let netns = far.path().display().to_string();
    let add = ["port", "add", "up1", "--kind", "uplink", "--netns", &netns];
    lasthop.ok(&[&add[..], &["--interface", "wire1"]].concat());
    lasthop.wait_reason("up1", "interface wire1: No such device");
    lasthop.ok(&["port", "set", "uplink", "--queues", "1"]);
    far.ip("link add wire1 type veth peer name wire2");
    lasthop.wait_reason("up1", "interface wire1 is down");
    far.ip("link set wire1 up");
    lasthop.wait_port("up1", "up");
    assert_eq!(lasthop.port("up1")["driver_status"]["restarts"], 0);
    lasthop.stop();
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    let Some((world, [host, near])) = world() else {
        return;
    };
    // For one queue, and so not for two.
    host.ip("tuntap add dev up0 mode tap");
    host.ip("address add 10.1.0.9/24 dev up0");
    host.ip("link set up0 up");
    let lasthop = start(&[
        &tap("t0", &near.path(), "10.1.0.1/24", ""),
        &uplink(&host.path(), ""),
    ]);
    lasthop.wait_port("uplink", "up");
    near.ip("address add 10.1.0.3/24 dev t0");
    let before = driver_pid(&lasthop, "t0");
    let words = "TAP device up0: Invalid argument";
    refuses(&lasthop, "port set uplink --queues 2", words);
    assert_eq!(driver_pid(&lasthop, "t0"), before);
    lasthop.wait_port("uplink", "up");
    both_ways((&near, "10.1.0.3"), (&host, "10.1.0.9"), 1 << 20);
    world.step("what can be changed in place is");
    lasthop.ok(&["port", "set", "t0", "--mac", "02:00:00:00:00:99"]);
    let link = near.ip("address show t0");
    assert!(
        link.contains("02:00:00:00:00:99") && link.contains("10.1.0.3"),
        "{link}"
    );
    assert_eq!(driver_pid(&lasthop, "t0"), before);
    lasthop.stop();
}

/// The packet sockets in a namespace, by their numbers (`/proc/net/packet`).
fn packet_sockets(netns: &Netns) -> Vec<String> {
    let table = netns.run(|| std::fs::read_to_string("/proc/thread-self/net/packet"));
    let table = table.expect("there are packet sockets");
    let number = |line: &str| line.split_whitespace().last().map(str::to_owned);
    table.lines().skip(1).filter_map(number).collect()
}

#[test]
fn sockets_of_an_interface_that_is_down_are_kept() {
    let Some((_world, [host, far])) = world() else {
        return;
    };
    wire(&host, &far);
    let lasthop = start(&[&uplink(&host.path(), "")]);
    lasthop.wait_port("uplink", "up");
    let before = packet_sockets(&host);
    assert_eq!(before.len(), 1);
    host.ip("link set up0 down");
    lasthop.wait_reason("uplink", "interface up0 is down");
    // Some dials long.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        assert_eq!(packet_sockets(&host), before);
    }
    host.ip("link set up0 up");
    lasthop.wait_port("uplink", "up");
    assert_eq!(packet_sockets(&host).len(), 1);
    lasthop.stop();
}

/// Returns a message of at most 64 KiB with this many bytes, in which a missing byte can be
/// located.
fn message(size: usize) -> Vec<u8> {
    (0..size).map(pattern).collect()
}

#[test]
fn a_guest_without_offloads_talks_with_the_host() {
    let Some((world, [netns])) = world() else {
        return;
    };
    let lasthop = start(&[GUESTS, &tap("t0", &netns.path(), "10.0.0.9/24", "")]);
    lasthop.wait_port("t0", "up");
    let shown = netns.ip("-o link show t0");
    let (_, mac) = shown
        .split_once("link/ether ")
        .expect("an Ethernet interface");
    let mac = &mac[..17];
    let mut bytes = mac.split(':').map(|pair| u8::from_str_radix(pair, 16));
    let mut host = [0; 6];
    host.fill_with(|| bytes.next().expect("six pairs").expect("hexadecimal"));
    for (number, offloads) in [(1, testkit::features::ALL_OFFLOADS), (2, 0)] {
        world.step(&format!("guest {number}"));
        let name = if number == 1 { "a" } else { "b" };
        let all = testkit::features::ALL_OFFLOADS;
        let config = GuestConfig::default()
            .guest(number)
            .without(all)
            .with(offloads);
        let mut guest = lasthop.connect_as(name, config);
        let mut flow = Flow::v4(number, 9);
        flow.dst_mac = host;
        let its_mac = testkit::packets::mac(number)
            .map(|b| format!("{b:02x}"))
            .join(":");
        netns.ip(&format!(
            "neigh replace 10.0.0.{number} lladdr {its_mac} dev t0"
        ));
        let socket = netns.udp(&format!("10.0.0.9:{}", flow.dst_port));
        socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
        world.step("guest to host, the checksum left to the receiver where that was agreed");
        let sent = message(1000);
        if offloads == 0 {
            guest
                .send(&testkit::packets::udp(&flow, &sent))
                .expect("room");
        } else {
            let (frame, header) = testkit::packets::udp_partial(&flow, &sent);
            guest.send_on(0, &frame, &header).expect("room");
        }
        let mut got = vec![0; 2000];
        let (len, from) = socket.recv_from(&mut got).expect("the kernel checked it");
        assert!(got[..len] == sent, "{len} bytes");
        world.step("host to guest, which the kernel leaves without a checksum");
        socket.send_to(&sent, from).expect("a neighbour");
        let answer = loop {
            let received = guest
                .recv(TIMEOUT)
                .expect("an honest device")
                .expect("an answer");
            // The namespace has things of its own to say.
            if testkit::packets::payload_of(&received.frame).is_ok_and(|p| p == sent) {
                break received;
            }
        };
        if offloads == 0 {
            testkit::packets::verify_checksums(&answer.frame).expect("a complete checksum");
        }
    }
    lasthop.stop();
}

#[test]
fn what_the_interface_refuses_is_counted() {
    let Some((_world, [host, far])) = world() else {
        return;
    };
    wire(&host, &far);
    let lasthop = start(&[GUESTS, &uplink(&host.path(), "")]);
    lasthop.wait_port("uplink", "up");
    let mut a = lasthop.connect("a", 1);
    // The MTU changes while it is served.
    host.ip("link set up0 mtu 1000");
    for _ in 0..3 {
        a.send(&testkit::packets::udp(&Flow::v4(1, 9), &message(1200)))
            .expect("room");
    }
    let show = wait_for("three are refused", || {
        let driver = &lasthop.port("uplink")["driver_status"];
        (driver["rejected_by_interface"] == 3).then(|| lasthop.ok(&["port", "show", "uplink"]))
    });
    let refused = || lasthop.stats().get("uplink.drops.interface-refused");
    assert_eq!(refused(), 3);
    for line in [
        "3 by the interface, 0 oversized, 0 dropped by the kernel",
        "up0",
        "back end     packet",
        "driver       auto",
    ] {
        assert!(show.contains(line), "{line}: {show}");
    }
    turn_mtu(&lasthop, &mut a);
    assert_eq!(refused(), 3);
    lasthop.stop();
}

/// The system refuses each frame for a TAP device that is switched off (`EIO`). The port stays up,
/// and continues when it is on again.
#[test]
fn a_tap_device_that_is_down_refuses_frames_by_name() {
    let Some((_world, [near])) = world() else {
        return;
    };
    let lasthop = start(&[GUESTS, &tap("t0", &near.path(), "10.1.0.1/24", "")]);
    lasthop.wait_port("t0", "up");
    let mut a = lasthop.connect("a", 1);
    let frame = testkit::packets::udp(&Flow::v4(1, 9), &message(1200));
    near.ip("link set t0 down");
    for _ in 0..3 {
        a.send(&frame).expect("room");
    }
    let refused = || lasthop.stats().get("t0.drops.interface-refused");
    wait_for("three are refused", || (refused() == 3).then_some(()));
    near.ip("link set t0 up");
    let status = lasthop.port("t0");
    assert_eq!(status["state"], "up", "{status}");
    let sent = || lasthop.port("t0")["driver_status"]["sent_frames"].as_u64();
    let before = sent();
    a.send(&frame).expect("room");
    wait_for("one leaves", || (sent() > before).then_some(()));
    assert_eq!(refused(), 3);
    lasthop.stop();
}

/// Waits until so many queue pairs of a port run. It is up with the first queue already.
fn pairs_run(lasthop: &Lasthop, port: &str, pairs: u64) {
    wait_for("all queue pairs run", || {
        (lasthop.port(port)["queue_pairs"] == pairs).then_some(())
    });
}

/// A configured MTU makes the switch drop what is too long, by name.
fn turn_mtu(lasthop: &Lasthop, a: &mut FakeGuest) {
    lasthop.ok(&["port", "set", "uplink", "--mtu", "1000"]);
    let before = lasthop.stats();
    a.send(&testkit::packets::udp(&Flow::v4(1, 9), &message(1200)))
        .expect("room");
    wait_for("it is dropped by name", || {
        let moved = lasthop.stats().since(&before);
        (moved.get("uplink.drops.exceeds-mtu") == 1).then_some(())
    });
    assert_eq!(
        lasthop.port("uplink")["driver_status"]["rejected_by_interface"],
        3
    );
    assert_eq!(lasthop.port("uplink")["driver_status"]["restarts"], 0);
}

#[test]
fn a_tap_port_keeps_its_interface_through_changes_and_a_restart_of_the_switch() {
    let Some((world, [a, b])) = world() else {
        return;
    };
    let lasthop = start(&[
        "[[segment]]\nname = \"blue\"\n",
        &tap("t0", &a.path(), "fd00::1/64", ""),
        &tap("t1", &b.path(), "10.1.0.2/24", "queues = 4"),
    ]);
    pairs_run(&lasthop, "t1", 4);
    assert!(a.ip("address show t0").contains("fd00::1/64"));
    a.ip("address add 10.1.0.1/24 dev t0");
    transfer(&a, &b, "10.1.0.2:5001", 1 << 20);
    world.step("another MTU");
    lasthop.ok(&["port", "set", "t0", "--mtu", "1300"]);
    assert!(a.ip("link show t0").contains("mtu 1300"));
    assert!(
        a.ip("address show t0").contains("10.1.0.1/24"),
        "the same interface"
    );
    transfer(&a, &b, "10.1.0.2:5002", 1 << 20);
    lasthop.ok(&["port", "set", "t0", "--no-mtu"]);
    assert!(a.ip("link show t0").contains("mtu 1500"));
    world.step("another segment, and back");
    lasthop.ok(&["port", "set", "t0", "--segment", "blue"]);
    lasthop.ok(&["port", "set", "t0", "--segment", "default"]);
    transfer(&b, &a, "10.1.0.1:5001", 1 << 20);
    world.step("a socket is nothing for it");
    let words = "expected no socket with kind \"tap\"";
    refuses(&lasthop, "port set t0 --socket s", words);
    world.step("the switch is killed");
    lasthop.replace_switch();
    for port in ["t0", "t1"] {
        lasthop.wait_port(port, "up");
    }
    assert!(
        a.ip("address show t0").contains("10.1.0.1/24"),
        "the same interface"
    );
    transfer(&a, &b, "10.1.0.2:5003", 1 << 20);
    lasthop.stop();
}

#[test]
fn an_interface_has_the_same_address_at_every_start() {
    let Some((_world, [a])) = world() else {
        return;
    };
    let addresses = [1, 2].map(|_| {
        let lasthop = start(&[
            &tap("t0", &a.path(), "10.1.0.1/24", ""),
            &tap("t1", &a.path(), "10.1.1.1/24", ""),
        ]);
        let addresses = ["t0", "t1"].map(|port| {
            let status = lasthop.wait_port(port, "up");
            let mac = status["driver_status"]["mac"].as_str();
            let mac = mac.expect("an address").to_owned();
            assert!(a.ip(&format!("link show {port}")).contains(&mac), "{mac}");
            assert!(lasthop.ok(&["port", "show", port]).contains(&mac), "{mac}");
            mac
        });
        lasthop.stop();
        addresses
    });
    assert_eq!(addresses[0], addresses[1]);
    assert_ne!(addresses[0][0], addresses[0][1]);
}

#[test]
fn as_many_queues_as_a_port_may_have() {
    let Some((_world, [a, b])) = world() else {
        return;
    };
    let lasthop = start(&[
        &tap("t0", &a.path(), "10.1.0.1/24", "queues = 64"),
        &tap("t1", &b.path(), "10.1.0.2/24", ""),
    ]);
    pairs_run(&lasthop, "t0", 64);
    both_ways((&a, "10.1.0.1"), (&b, "10.1.0.2"), 1 << 20);
    assert_eq!(lasthop.port("t0")["driver_status"]["restarts"], 0);
    lasthop.stop();
}

#[test]
fn a_foreign_tap_device_is_an_uplink() {
    let Some((_world, [host, near])) = world() else {
        return;
    };
    for (how, driver) in [("multi_queue", "auto"), ("", "tap")] {
        host.ip(&format!("tuntap add dev up0 mode tap {how}"));
        host.ip("address add 10.1.0.9/24 dev up0");
        host.ip("link set up0 up");
        let lasthop = start(&[
            &tap("t0", &near.path(), "10.1.0.1/24", ""),
            &uplink(&host.path(), &format!("driver = \"{driver}\"")),
        ]);
        let status = lasthop.wait_port("uplink", "up");
        assert_eq!(status["driver_status"]["back_end"], "tap", "{status}");
        transfer(&near, &host, "10.1.0.9:5001", 1 << 20);
        lasthop.stop();
        let left = host.ip("address show up0");
        assert!(left.contains("10.1.0.9/24"), "it is not ours: {left}");
        host.ip("link delete up0");
    }
}

#[test]
fn an_interface_that_cannot_be_had_is_named_before_anything_starts() {
    let Some((_world, [host])) = world() else {
        return;
    };
    host.ip("link add there0 type veth peer name there1");
    let path = host.path().display().to_string();
    // The first port's interface is made before the second one's is found out about.
    let first = tap("first0", &host.path(), "10.1.0.1/24", "");
    let at = |kind: &str, interface: &str, more: &str| {
        format!(
            "{first}[[port]]\nname = \"p\"\nkind = \"{kind}\"\nnetns = \"{path}\"\n\
             interface = \"{interface}\"\n{more}\n"
        )
    };
    let line = first.lines().count() + 5;
    let expected =
        format!(":{line}:13: port.interface: expected an interface that can be opened, found ");
    let mac = "mac = \"02:00:00:00:00:01\"";
    let nowhere =
        at("tap", "t0", mac).replace(&format!("{path}\"\ninterface"), "nowhere\"\ninterface");
    for (config, found) in [
        (
            at("uplink", "lo", ""),
            "interface lo: not an Ethernet interface",
        ),
        (
            at("uplink", "there0", "driver = \"tap\""),
            "TAP device there0: Invalid argument",
        ),
        (at("tap", "there0", ""), "interface there0 exists already"),
        (nowhere, "network namespace /run/netns/nowhere"),
    ] {
        let (status, complaint) = Lasthop::refused(&config);
        assert_eq!(status, 2, "{complaint}");
        assert!(
            complaint.contains(&expected) && complaint.contains(found),
            "{found}: {complaint}"
        );
        assert!(!host.ip("link show").contains("first0"), "nothing is left");
    }
}

/// iperf3's server in a namespace, one client after the other.
fn serve_iperf(netns: &Netns, folder: &Path, name: &str) -> Process {
    let net = format!("--net={}", netns.path().display());
    let args = [&net, "iperf3", "-s", "--forceflush"].map(str::to_owned);
    let mut server = Process::start(name, "nsenter", &args, &folder.join(format!("{name}.log")));
    server.printed("its port", TIMEOUT, |line| {
        line.contains("listening on 5201")
    });
    server
}

#[test]
fn virtual_machines_talk_with_the_host_and_the_wire() {
    let Some((world, [host, far, near])) = world_with(machine) else {
        return;
    };
    wire(&host, &far);
    far.ip("address add 10.0.0.8/24 dev wire0");
    let lasthop = start(&[
        GUESTS,
        &tap("t0", &near.path(), "10.0.0.9/24", ""),
        &uplink(&host.path(), ""),
    ]);
    world.step("boot a guest with all offloads and one without");
    let full = GuestSpec::at(&lasthop, "a", 1).start();
    let plain = GuestSpec::dialing("b", lasthop.socket_of("b"));
    let plain = plain.ip("10.0.0.2/24").no_offloads().start();
    let _servers = [
        serve_iperf(&near, world.folder.path(), "near_iperf"),
        serve_iperf(&far, world.folder.path(), "far_iperf"),
    ];
    for (what, guest) in [("full", &mut full.ready()), ("plain", &mut plain.ready())] {
        for address in ["10.0.0.9", "10.0.0.8"] {
            world.step(&format!("{what} guest and {address}"));
            assert!(reachable(guest, address));
            assert_eq!(ping(guest, address, 50).lost(), 0);
            for options in ["", "-R"] {
                let run = iperf_bytes(guest, address, options);
                world.step(&format!("TCP {options}: {run:?}"));
                assert!(run.is_sound(), "{run:?}");
            }
        }
    }
    let stats = lasthop.stats();
    let bad: Vec<_> = stats
        .drops()
        .into_iter()
        .filter(|(why, _)| why.starts_with("bad"))
        .collect();
    assert!(bad.is_empty(), "{stats:?}");
    lasthop.stop();
}

#[test]
fn an_interface_that_is_about_to_go_is_waited_for() {
    let Some((_world, [host])) = world() else {
        return;
    };
    let config = tap("going0", &host.path(), "10.1.0.1/24", "");
    let lasthop = wait_for("a run in which it was removed in time", || {
        host.ip("link add going0 type veth peer name going1");
        let since = Instant::now();
        let (started, removed) = std::thread::scope(|scope| {
            // As the driver of a Lasthop that was killed, which ends after its supervisor.
            let removed = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                host.ip("link del going0");
                since.elapsed()
            });
            let place = Place::of(paths::binary("lasthop"));
            let started = Lasthop::start_in(place, &config);
            (started, removed.join().expect("it is removed"))
        });
        match started {
            // It is waited for 200 ms, and a busy machine may take longer to remove it: then anew.
            Err(error)
                if removed > Duration::from_millis(150)
                    && error.to_string().contains("going0 exists already") =>
            {
                None
            }
            started => Some(started.expect("it waits for the interface")),
        }
    });
    assert!(host.ip("link show").contains("going0"), "the new one");
    lasthop.stop();
}
