//! Ports with a driver process: TAP ports that the host takes part with, and uplinks over any interface.
//!
//! Everything is in network namespaces of the test's own; where they cannot be had, a test says so and ends.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use e2e::lasthop::Lasthop;
use e2e::netns::Netns;
use e2e::numbered::{Stream, introduce, settle};
use e2e::process::send as signal;
use e2e::turn;
use e2e::wait::eventually;
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::packets::{Flow, SequenceChecker};
use testkit::{FakeGuest, GuestConfig};

const SOON: Duration = Duration::from_secs(20);
/// Bytes of a checked TCP transfer in each direction.
const LOAD: usize = 32 << 20;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A `[[port]]` of kind `tap` in a namespace.
fn tap(name: &str, netns: &Path, address: &str, more: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"tap\"\nnetns = \"{}\"\naddress = \"{address}\"\n{more}\n",
        netns.display()
    )
}

/// Byte number `at` of a load: a pattern that shows what is missing, doubled or out of place.
fn pattern(at: usize) -> u8 {
    (at ^ (at >> 8).wrapping_mul(7) ^ (at >> 16).wrapping_mul(31)) as u8
}

fn send_load(mut stream: TcpStream, size: usize) {
    let load: Vec<u8> = (0..size).map(pattern).collect();
    stream.write_all(&load).expect("the other end reads");
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("an open connection");
    // Until the other end has checked it all.
    stream.set_read_timeout(Some(SOON)).expect("a time-out");
    let mut verdict = [0];
    stream
        .read_exact(&mut verdict)
        .expect("the other end is content");
}

fn check_load(listener: &TcpListener, size: usize) {
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(SOON)).expect("a time-out");
    let mut got = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let len = stream.read(&mut got).expect("no pause");
        if len == 0 {
            break;
        }
        for byte in &got[..len] {
            assert_eq!(*byte, pattern(at), "byte {at}");
            at += 1;
        }
    }
    assert_eq!(at, size);
    stream.write_all(&[1]).expect("the other end listens");
}

/// A TCP transfer from one namespace to an address of another, every byte checked.
fn transfer(from: &Netns, to: &Netns, address: &str, size: usize) {
    let listener = to.listen(address);
    std::thread::scope(|scope| {
        scope.spawn(|| check_load(&listener, size));
        send_load(from.connect(address), size);
    });
}

/// Asks over UDP until an answer comes; how often it asked.
fn ask(from: &UdpSocket, to: &UdpSocket) -> u32 {
    for socket in [from, to] {
        socket
            .set_read_timeout(Some(Duration::from_millis(5)))
            .expect("a time-out");
    }
    let peer = to.local_addr().expect("bound");
    let start = Instant::now();
    for count in 1u32.. {
        // There may be no way at all for a moment.
        let _ = from.send_to(&count.to_ne_bytes(), peer);
        let mut got = [0; 4];
        while let Ok((4, back)) = to.recv_from(&mut got) {
            let _ = to.send_to(&got, back);
            let mut answer = [0; 4];
            match from.recv_from(&mut answer) {
                Ok(_) if u32::from_ne_bytes(answer) == count => return count,
                Ok(_) => {}
                Err(error) => assert!(
                    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
                    "{error}"
                ),
            }
        }
        assert!(start.elapsed() < SOON, "no answer after {count} questions");
    }
    unreachable!("the loop has no end")
}

fn driver_pid(lasthop: &Lasthop, port: &str) -> Option<u32> {
    let pid = lasthop.port(port)["driver"]["pid"].as_u64()?;
    u32::try_from(pid).ok()
}

#[test]
fn tap_ports_join_two_namespaces() {
    if !Netns::allowed() {
        return;
    }
    let turn = turn();
    let folder = folder();
    let [a, b] = ["a", "b"].map(|name| Netns::new(name, folder.path()));
    let config = [
        "[switch]\nname = \"host1\"\n",
        &tap("t0", &a.path(), "10.1.0.1/24", "mtu = 1500"),
        &tap(
            "t1",
            &b.path(),
            "10.1.0.2/24",
            "mac = \"02:00:00:00:00:77\"\ninterface = \"lan0\"",
        ),
    ]
    .concat();
    let lasthop = Lasthop::start(&config);
    for port in ["t0", "t1"] {
        let status = lasthop.wait_port(port, "up");
        assert_eq!(status["driver"]["back_end"], "tap", "{status}");
        assert_eq!(status["kind"], "tap");
        assert_eq!(status["ring"], "split");
    }
    assert!(b.ip("link show lan0").contains("02:00:00:00:00:77"));
    assert!(b.ip("address show lan0").contains("10.1.0.2/24"));
    turn.step("TCP both ways");
    let before = lasthop.stats();
    transfer(&a, &b, "10.1.0.2:5001", LOAD);
    transfer(&b, &a, "10.1.0.1:5001", LOAD);
    let moved = lasthop.stats().since(&before);
    turn.step(&format!("{moved:?}"));
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
    turn.step("cut and checksummed where an interface wants that");
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

/// A process's line in its status file.
fn proc_status(pid: u32, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_default()
        .trim_start_matches(':')
        .trim()
        .to_owned()
}

#[test]
fn a_driver_has_no_rights() {
    if !Netns::allowed() {
        return;
    }
    let _turn = turn();
    let folder = folder();
    let a = Netns::new("a", folder.path());
    let lasthop = Lasthop::start(&tap("t0", &a.path(), "10.1.0.1/24", "queues = 2"));
    lasthop.wait_port("t0", "up");
    let pid = driver_pid(&lasthop, "t0").expect("a driver");
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(proc_status(pid, set), "0000000000000000", "{set}");
    }
    assert_eq!(proc_status(pid, "Seccomp"), "2", "a filter");
    assert_eq!(proc_status(pid, "NoNewPrivs"), "1");
    assert_eq!(proc_status(pid, "Groups"), "");
    let ids: Vec<String> = proc_status(pid, "Uid")
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

/// A veth pair between two namespaces: `up0` with a Lasthop uplink, `wire0` at the other end.
fn wire(near: &Netns, far: &Netns) {
    near.ip(&format!(
        "link add up0 type veth peer name wire0 netns {}",
        far.pid()
    ));
    near.ip("link set up0 up");
    far.ip("link set wire0 up");
}

fn uplink(netns: &Path, more: &str) -> String {
    format!(
        "[[port]]\nname = \"uplink\"\nkind = \"uplink\"\ninterface = \"up0\"\nnetns = \"{}\"\n{more}\n",
        netns.display()
    )
}

#[test]
fn a_packet_uplink_leads_to_the_wire() {
    if !Netns::allowed() {
        return;
    }
    let turn = turn();
    let folder = folder();
    let [host, far, near] = ["host", "far", "near"].map(|name| Netns::new(name, folder.path()));
    wire(&host, &far);
    far.ip("address add 10.1.0.9/24 dev wire0");
    let config = [
        &tap("t0", &near.path(), "10.1.0.1/24", ""),
        &uplink(&host.path(), "driver = \"auto\""),
    ]
    .map(String::as_str)
    .concat();
    let lasthop = Lasthop::start(&config);
    let status = lasthop.wait_port("uplink", "up");
    assert_eq!(status["driver"]["back_end"], "packet", "{status}");
    turn.step("TCP both ways");
    let before = lasthop.stats();
    transfer(&near, &far, "10.1.0.9:5001", LOAD);
    transfer(&far, &near, "10.1.0.1:5001", LOAD);
    let moved = lasthop.stats().since(&before);
    turn.step(&format!("{moved:?}"));
    for port in ["t0", "uplink"] {
        assert!(
            moved.sent(port) < LOAD as u64 / 1448,
            "super-frames cross whole: {moved:?}"
        );
    }
    turn.step("without offloads on the wire");
    far.run(|| {
        let off = [
            "-K", "wire0", "tx", "off", "tso", "off", "gso", "off", "gro", "off",
        ];
        let output = std::process::Command::new("ethtool").args(off).output();
        assert!(output.expect("ethtool runs").status.success());
    });
    transfer(&near, &far, "10.1.0.9:5002", LOAD / 8);
    transfer(&far, &near, "10.1.0.1:5002", LOAD / 8);
    lasthop.stop();
}

/// One of two hosts: a TAP port in segment blue and one in the default segment, and a trunk to the other host.
fn host_with_trunk(
    blue: &Netns,
    plain: &Netns,
    number: u8,
    interface: &str,
    host: &Netns,
) -> Lasthop {
    let tap = |name, netns: &Netns, net: &str, more: &str| {
        tap(
            name,
            &netns.path(),
            &format!("10.{net}.0.{number}/24"),
            more,
        )
    };
    let config = [
        "[[segment]]\nname = \"blue\"\nvlan = 10\n",
        &tap("blue0", blue, "2", "segment = \"blue\""),
        &tap("plain0", plain, "1", ""),
        &uplink(
            &host.path(),
            "driver = \"packet\"\ntrunk = [\"blue\", \"default\"]\nqueues = 2",
        )
        .replace("up0", interface),
    ]
    .concat();
    Lasthop::start(&config)
}

#[test]
fn a_trunk_uplink_carries_tags() {
    if !Netns::allowed() {
        return;
    }
    let turn = turn();
    let folder = folder();
    let netns = |name| Netns::new(name, folder.path());
    let [host, blue, plain] = ["host", "blue", "plain"].map(netns);
    let [far, far_blue, far_plain] = ["far", "far_blue", "far_plain"].map(netns);
    wire(&host, &far);
    let here = host_with_trunk(&blue, &plain, 1, "up0", &host);
    let there = host_with_trunk(&far_blue, &far_plain, 9, "wire0", &far);
    for lasthop in [&here, &there] {
        let status = lasthop.wait_port("uplink", "up");
        assert_eq!(status["queue_pairs"], 2, "{status}");
    }
    turn.step("the tagged segment, both ways");
    let before = here.stats();
    transfer(&blue, &far_blue, "10.2.0.9:5001", LOAD / 4);
    transfer(&far_blue, &blue, "10.2.0.1:5001", LOAD / 4);
    turn.step("the untagged one");
    transfer(&plain, &far_plain, "10.1.0.9:5001", LOAD / 4);
    transfer(&far_plain, &plain, "10.1.0.1:5001", LOAD / 4);
    let moved = here.stats().since(&before);
    turn.step(&format!("{moved:?}"));
    let sent = moved.sent("uplink");
    assert!(
        sent < LOAD as u64 / 1448,
        "super-frames cross whole: {moved:?}"
    );
    turn.step("nobody is in both");
    plain.ip("address add 10.2.0.7/24 dev plain0");
    let stranger = plain.udp("10.2.0.7:0");
    let asked = far_blue.udp("10.2.0.9:0");
    asked
        .set_read_timeout(Some(Duration::from_millis(300)))
        .expect("a time-out");
    let _ = stranger.send_to(b"hello", asked.local_addr().expect("bound"));
    assert!(asked.recv_from(&mut [0; 16]).is_err());
    turn.step("without offloads for tags");
    for (netns, interface) in [(&host, "up0"), (&far, "wire0")] {
        netns.run(|| {
            let off = [
                "-K", interface, "txvlan", "off", "rxvlan", "off", "tso", "off", "tx", "off",
            ];
            let output = std::process::Command::new("ethtool").args(off).output();
            assert!(output.expect("ethtool runs").status.success());
        });
    }
    transfer(&blue, &far_blue, "10.2.0.9:5002", LOAD / 8);
    transfer(&far_blue, &blue, "10.2.0.1:5002", LOAD / 8);
    here.stop();
    there.stop();
}

const GUESTS: &str = "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"a.sock\"\n\
                      [[port]]\nname = \"b\"\nkind = \"vhost-user\"\nsocket = \"b.sock\"\n";

fn guest(lasthop: &Lasthop, name: &str, number: u8) -> FakeGuest {
    let config = GuestConfig::default().guest(number);
    let socket = lasthop.socket(&format!("{name}.sock"));
    FakeGuest::connect(&socket, config).expect("the port takes a guest")
}

#[test]
fn a_driver_that_dies_is_replaced_and_guests_do_not_notice() {
    if !Netns::allowed() {
        return;
    }
    let turn = turn();
    let folder = folder();
    let [host, far, near] = ["host", "far", "near"].map(|name| Netns::new(name, folder.path()));
    wire(&host, &far);
    far.ip("address add 10.1.0.9/24 dev wire0");
    let config = [
        // Apart from the guests, whose checker takes what the namespaces broadcast for damage.
        "[[segment]]\nname = \"net\"\n",
        GUESTS,
        &tap("t0", &near.path(), "10.1.0.1/24", "segment = \"net\""),
        &uplink(&host.path(), "driver = \"packet\"\nsegment = \"net\""),
    ]
    .concat();
    let lasthop = Lasthop::start(&config);
    let (mut a, mut b) = (guest(&lasthop, "a", 1), guest(&lasthop, "b", 2));
    let flow = Flow::v4(1, 2);
    introduce(&mut a, &mut b, flow);
    lasthop.wait_port("uplink", "up");
    let (asking, asked) = (near.udp("10.1.0.1:0"), far.udp("10.1.0.9:0"));
    ask(&asking, &asked);
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
        let restarts = lasthop.port(port)["driver"]["restarts"]
            .as_u64()
            .expect("a number");
        let died = Instant::now();
        signal(old, how);
        if how == Signal::SEGV {
            // The first one ends in the runtime's handler, which lets the instruction try again: a real fault comes
            // again, one from outside does not.
            eventually("the handler is gone", SOON, || {
                let caught = u64::from_str_radix(&proc_status(old, "SigCgt"), 16).unwrap_or(0);
                (caught & 1 << 10 == 0).then_some(())
            });
            signal(old, how);
        }
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
        turn.step(&format!(
            "{port} after {how:?}: {questions} questions, {:.1} ms until the answer",
            died.elapsed().as_secs_f64() * 1e3
        ));
        let new = eventually("a new driver", SOON, || driver_pid(&lasthop, port));
        assert_ne!(new, old);
        let after = lasthop.port(port)["driver"]["restarts"].as_u64();
        assert_eq!(after, Some(restarts + 1));
        let clean = settle(&mut b, &mut checker, &stream, SOON);
        let stats = lasthop.stats();
        assert!(clean, "of {} frames: {checker:?}, {stats:?}", stream.sent());
    }
    assert!(stream.sent() > 1000);
    near.ip("address show t0 to 10.1.0.1");
    lasthop.stop();
}

#[test]
fn ports_with_drivers_come_and_go() {
    if !Netns::allowed() {
        return;
    }
    let turn = turn();
    let folder = folder();
    let [a, b] = ["a", "b"].map(|name| Netns::new(name, folder.path()));
    let lasthop = Lasthop::start(&tap("t0", &a.path(), "10.1.0.1/24", ""));
    lasthop.wait_port("t0", "up");
    turn.step("a TAP port at run time");
    let netns = b.path().display().to_string();
    let add = ["port", "add", "t1", "--kind", "tap", "--netns", &netns];
    lasthop.ok(&[&add[..], &["--address", "10.1.0.2/24"]].concat());
    lasthop.wait_port("t1", "up");
    transfer(&a, &b, "10.1.0.2:5001", 1 << 20);
    turn.step("control is killed: its successor has the drivers as they are");
    let pids = ["t0", "t1"].map(|port| driver_pid(&lasthop, port));
    let control = lasthop.pid("lasthop-control").expect("control runs");
    lasthop.kill_control();
    lasthop.wait_control(control);
    assert_eq!(pids, ["t0", "t1"].map(|port| driver_pid(&lasthop, port)));
    transfer(&b, &a, "10.1.0.1:5001", 1 << 20);
    turn.step("what cannot be had changes nothing");
    let missing = [
        "port",
        "add",
        "x",
        "--kind",
        "uplink",
        "--interface",
        "nowhere0",
    ];
    let refused = lasthop.cli(&missing);
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && complaint.contains("interface nowhere0: No such device"),
        "{complaint}"
    );
    let taken = [
        "port",
        "add",
        "x",
        "--kind",
        "tap",
        "--interface",
        "t1",
        "--netns",
        &netns,
    ];
    let refused = lasthop.cli(&taken);
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        complaint.contains("the interface of port \"t1\""),
        "{complaint}"
    );
    assert_eq!(pids, ["t0", "t1"].map(|port| driver_pid(&lasthop, port)));
    turn.step("it goes");
    lasthop.ok(&["port", "remove", "t1"]);
    assert!(!b.ip("link show").contains("t1"));
    turn.step("somebody removes the interface: it is made again");
    a.ip("link delete t0");
    eventually("t0 is back", SOON, || {
        a.ip("address show").contains("10.1.0.1/24").then_some(())
    });
    lasthop.wait_port("t0", "up");
    lasthop.stop();
}

#[test]
fn an_uplink_waits_for_its_interface() {
    if !Netns::allowed() {
        return;
    }
    let turn = turn();
    let folder = folder();
    let [host, far, near] = ["host", "far", "near"].map(|name| Netns::new(name, folder.path()));
    wire(&host, &far);
    far.ip("address add 10.1.0.9/24 dev wire0");
    let config = [
        tap("t0", &near.path(), "10.1.0.1/24", ""),
        uplink(&host.path(), "driver = \"xdp\""),
    ]
    .concat();
    let lasthop = Lasthop::start(&config);
    lasthop.wait_port("uplink", "up");
    assert!(
        lasthop.log().contains("\"packet\" is used"),
        "{}",
        lasthop.log()
    );
    turn.step("switched off");
    host.ip("link set up0 down");
    lasthop.wait_reason("uplink", "interface up0 is down");
    host.ip("link set up0 up");
    lasthop.wait_port("uplink", "up");
    turn.step("removed");
    host.ip("link delete up0");
    lasthop.wait_reason("uplink", "interface up0: No such device");
    wire(&host, &far);
    far.ip("address add 10.1.0.9/24 dev wire0");
    lasthop.wait_port("uplink", "up");
    transfer(&near, &far, "10.1.0.9:5001", 1 << 20);
    lasthop.stop();
}
