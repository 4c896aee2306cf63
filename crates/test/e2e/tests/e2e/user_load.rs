//! A user port under many connections and an unfriendly guest, what an operator sets at it, and
//! what an operator sees of connections that stall.
//!
//! The guests are stacks of crate `net`, and one of crate `testkit` that sends what it likes.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use e2e::lasthop::Lasthop;
use e2e::machine::raise_open_files;
use e2e::outside::{HOST, OUTSIDE, echo, namespaces, resolve, serve, user_port};
use e2e::{beside, machine, pcapng};
use sockets::{Config, Errno, Id, Kind, Net};
use testkit::lasthop::port;
use testkit::netns::Netns;
use testkit::packets::mac;
use testkit::stop::Stop;
use testkit::wait::{LIMIT, wait_for, wait_until, within};
use testkit::{FakeGuest, GuestConfig};
use wire::MacAddr;
use wire::build::{PacketBuilder, TcpFields};
use wire::tcp::SYN;

/// Connections at once, and the guests that have them.
const CONNECTIONS: usize = 500;
const GUESTS: [&str; 2] = ["vm1", "vm2"];
/// Port of the echo server of the outside.
const ECHO: u16 = 7000;
/// An address of the outside that no machine has: a connection to it stays half open.
const SILENT: [u8; 4] = [192, 0, 2, 99];
const GATEWAY: MacAddr = MacAddr([0x52, 0x55, 10, 0, 2, 2]);
/// Half-open connections of a guest at most, and its connections.
const HALF_OPEN: u64 = 256;
/// Frames of a burst of the guest that sprays, and the time after each.
const BURST: u16 = 64;
const PAUSE: Duration = Duration::from_millis(1);
/// How long a connection may take that is to be denied.
const DENIED: Duration = Duration::from_millis(500);
/// A second resolver, and what the two answer.
const OTHER: &str = "192.0.2.5";
const ANSWERS: [[u8; 4]; 2] = [[192, 0, 2, 77], [192, 0, 2, 78]];

fn plug_in(lasthop: &Lasthop, name: &str) -> Arc<Net> {
    let mut config = Config::new(lasthop.socket_of(name));
    config.buffer = 16 << 10;
    Net::plug_in(config).expect("a guest at a port")
}

fn begin(net: &Net, port: u16) -> Id {
    let to: SocketAddr = format!("{OUTSIDE}:{port}").parse().expect("an address");
    let id = net.open(Kind::Stream).expect("room for a socket");
    assert_eq!(net.connect(id, to), Err(Errno::INPROGRESS));
    id
}

/// Whether a connection is established, or has failed; `None`: neither within `limit`.
fn outcome(net: &Net, id: Id, limit: Duration) -> Option<bool> {
    let ready = || (net.ready(id, libc::POLLOUT) != 0).then_some(());
    within(limit, ready).map(|()| net.peer(id).is_ok())
}

/// Sends bytes over a connection, and checks that they come back.
fn check_echo(net: &Net, id: Id, number: usize) {
    let bytes = vec![number as u8; 3000];
    assert_eq!(net.send(id, &bytes, None), Ok(bytes.len()), "{number}");
    let mut got = vec![0; bytes.len()];
    let mut at = 0;
    while at < got.len() {
        at += wait_for("an echo", || match net.receive(id, &mut got[at..], false) {
            Err(Errno::AGAIN) => None,
            received => Some(received.expect("an open connection").len),
        });
    }
    assert!(got == bytes, "{number}");
}

/// A connection that is made, used and closed.
fn use_once(net: &Net, number: usize) {
    let id = begin(net, ECHO);
    let made = outcome(net, id, LIMIT);
    assert_eq!(made, Some(true), "connection {number}");
    check_echo(net, id, number);
    net.close(id);
}

/// Sends SYNs to an address that does not answer, each from other ports, until it is over.
fn spray(guest: &mut FakeGuest, is_over: &Stop) -> u64 {
    let frame = PacketBuilder::new(MacAddr(guest.mac()), GATEWAY).ipv4([10, 0, 2, 77], SILENT);
    let mut sent = 0;
    while !is_over.is_set() {
        for src_port in 1..=BURST {
            let fields = TcpFields {
                src_port,
                dst_port: (sent % 60_000) as u16 + 1,
                flags: SYN,
                ..TcpFields::default()
            };
            guest
                .send(&frame.clone().tcp(fields).build())
                .expect("room");
            sent += 1;
        }
        while guest
            .recv(Duration::ZERO)
            .expect("a correct device")
            .is_some()
        {}
        thread::sleep(PAUSE);
    }
    sent
}

/// The address that the network's DNS server has for a name; each question has a new name.
fn ask(net: &Net, number: u16) -> [u8; 4] {
    let socket = net.open(Kind::Datagram).expect("room for a socket");
    let name = format!("\x08name{number:04}\x07example\0");
    let head = [&number.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    let question = [&head, name.as_bytes(), &[0, 1, 0, 1]].concat();
    let to = "10.0.2.3:53".parse().expect("an address");
    assert_eq!(net.send(socket, &question, Some(to)), Ok(question.len()));
    let mut answer = [0; 512];
    let len = wait_for("an answer", || net.receive(socket, &mut answer, false).ok()).len;
    net.close(socket);
    assert_eq!(answer[..2], number.to_be_bytes());
    answer[len - 4..len].try_into().expect("four bytes")
}

/// Asks until the second resolver answers.
fn wait_for_other(net: &Net) {
    let mut questions = 1..;
    wait_until("the other resolver answers", || {
        ask(net, questions.next().expect("a number")) == ANSWERS[1]
    });
}

struct World {
    lasthop: Lasthop,
    host: Netns,
    outside: Netns,
}

fn start(folder: &Path, names: &[&str]) -> World {
    start_by(folder, names, OUTSIDE, Lasthop::start)
}

fn start_by(
    folder: &Path,
    names: &[&str],
    dns: &str,
    start: impl FnOnce(&str) -> Lasthop,
) -> World {
    let (host, outside) = namespaces(folder);
    serve(outside.listen(&format!("{OUTSIDE}:{ECHO}")), echo);
    outside.ip(&format!("address add {OTHER}/24 dev in0"));
    for (address, answer) in [OUTSIDE, OTHER].into_iter().zip(ANSWERS) {
        resolve(outside.udp(&format!("{address}:53")), answer);
    }
    let guests: String = names.iter().map(|name| port(name, "")).collect();
    let ports = [guests, user_port(&host, &format!("dns = \"{dns}\""))].concat();
    let lasthop = start(&format!("[switch]\nname = \"host1\"\n{ports}"));
    // A DHCP client asks again after ten seconds.
    lasthop.wait_port("out", "up");
    World {
        lasthop,
        host,
        outside,
    }
}

#[test]
fn guests_have_500_connections_at_once_beside_one_that_sprays() {
    if !Netns::allowed() {
        return;
    }
    raise_open_files();
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let World { lasthop, .. } = &start(folder.path(), &[GUESTS[0], GUESTS[1], "vm3"]);
    turn.step("500 connections at once");
    let guests = GUESTS.map(|name| plug_in(lasthop, name));
    let each = CONNECTIONS / GUESTS.len();
    let all: Vec<(&Net, Id)> = guests
        .iter()
        .flat_map(|net| (0..each).map(|_| (&**net, begin(net, ECHO))))
        .collect();
    for (number, (net, id)) in all.iter().enumerate() {
        let made = outcome(net, *id, LIMIT);
        assert_eq!(made, Some(true), "connection {number}");
    }
    for (number, (net, id)) in all.iter().enumerate() {
        check_echo(net, *id, number);
    }
    turn.step("SYNs by the thousand from another guest");
    for (net, id) in &all[..each] {
        net.close(*id);
    }
    let mut sprayer = lasthop.connect_as("vm3", GuestConfig::default().guest(3));
    assert_eq!(sprayer.mac(), mac(3));
    let is_over = Stop::new();
    thread::scope(|scope| {
        let spraying = scope.spawn(|| spray(&mut sprayer, &is_over));
        let end = is_over.at_end();
        let refused = || lasthop.stats().sum("drops.user-flows");
        wait_until("the bound of half-open connections", || {
            refused() > HALF_OPEN
        });
        let before = refused();
        (0..50).for_each(|number| use_once(&guests[0], number));
        let after = refused();
        drop(end);
        let sent = spraying.join().expect("the port takes frames");
        turn.step(&format!("    {sent} SYNs, {after} refused"));
        assert!(after > before, "SYNs were sent meanwhile");
    });
    turn.step("its neighbour's connections have stayed");
    for (number, (net, id)) in all[each..].iter().enumerate() {
        check_echo(net, *id, number);
    }
}

#[test]
fn resolvers_lists_limits_and_captures_are_those_of_the_operator() {
    if !Netns::allowed() {
        return;
    }
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let world = start(folder.path(), &["vm1"]);
    let lasthop = &world.lasthop;
    let vm1 = plug_in(lasthop, "vm1");

    turn.step("another resolver, under a connection");
    let stays = begin(&vm1, ECHO);
    assert_eq!(outcome(&vm1, stays, LIMIT), Some(true));
    assert_eq!(ask(&vm1, 0), ANSWERS[0]);
    lasthop.ok(&["port", "set", "out", "--dns", OTHER]);
    wait_for_other(&vm1);
    check_echo(&vm1, stays, 1);

    turn.step("a capture has both directions of a connection");
    let file = folder.path().join("capture");
    let path = file.to_str().expect("text");
    let filter = format!("tcp port {ECHO}");
    let words = ["capture", "out", "--write", path, "--filter", &filter];
    let mut capture = lasthop.command(&words).spawn().expect("it starts");
    wait_until("the capture begins", || {
        fs::metadata(&file).is_ok_and(|file| file.len() > 0)
    });
    use_once(&vm1, 2);
    testkit::process::send(capture.id(), rustix::process::Signal::INT);
    assert!(capture.wait().expect("it ends").success());
    let frames = pcapng::read(&fs::read(&file).expect("a file")).packets;
    let with_payload = |from_gateway: bool| {
        let is_right = |bytes: &[u8]| {
            let has_payload = bytes.windows(100).any(|part| part == [2; 100]);
            has_payload && (bytes[6..12] == GATEWAY.0) == from_gateway
        };
        frames.iter().filter(|frame| is_right(&frame.bytes)).count()
    };
    assert!(with_payload(true) > 0 && with_payload(false) > 0);

    turn.step("a list denies new connections to the port, and is taken away");
    let config = folder.path().join("lasthop.toml");
    let own = lasthop.ok(&["export"]);
    let list = format!(
        "{own}\n[[acl]]\nname = \"no-echo\"\ndirection = \"to-guest\"\nports = [\"out\"]\n\
         [[acl.rule]]\nname = \"echo\"\naction = \"drop\"\nprotocol = \"tcp\"\n\
         destination_ports = [{ECHO}]\n"
    );
    let apply = |text: &str| {
        fs::write(&config, text).expect("a file");
        lasthop.ok(&["apply", config.to_str().expect("text")]);
    };
    apply(&list);
    let denied = begin(&vm1, ECHO);
    assert_eq!(outcome(&vm1, denied, DENIED), None);
    wait_until("its SYN is denied", || {
        lasthop.stats().sum("drops.acl-denied") > 0
    });
    apply(&own);
    // It asks again by itself.
    assert_eq!(outcome(&vm1, denied, LIMIT), Some(true));

    turn.step("a limit of what the port is sent");
    let limit = "to-guest:packets=100,packets-burst=64";
    lasthop.ok(&["port", "set", "out", "--limit", limit]);
    let socket = vm1.open(Kind::Datagram).expect("room for a socket");
    let to = format!("{OUTSIDE}:9").parse().expect("an address");
    wait_until("datagrams are dropped", || {
        for _ in 0..200 {
            let _ = vm1.send(socket, b"datagram", Some(to));
        }
        lasthop.stats().get("out.drops.rate-limited") > 0
    });
    lasthop.ok(&["port", "set", "out", "--limit", "to-guest:none"]);
    use_once(&vm1, 3);
    check_echo(&vm1, stays, 4);

    turn.step("the host's own echo server is out of reach");
    let own = world.host.listen(&format!("127.0.0.1:{ECHO}"));
    let gateway: SocketAddr = format!("10.0.2.2:{ECHO}").parse().expect("an address");
    let refused = vm1.open(Kind::Stream).expect("room for a socket");
    assert_eq!(vm1.connect(refused, gateway), Err(Errno::INPROGRESS));
    assert_eq!(outcome(&vm1, refused, LIMIT), Some(false));
    drop(own);
}

#[test]
fn the_hosts_resolvers_are_followed() {
    if !Netns::allowed() {
        return;
    }
    let _turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("resolv.conf");
    fs::write(&file, format!("nameserver {OUTSIDE}\n")).expect("a file");
    let start = |config: &str| Lasthop::start_with_resolvers(config, &file);
    let world = start_by(folder.path(), &["vm1"], "auto", start);
    let vm1 = plug_in(&world.lasthop, "vm1");
    assert_eq!(ask(&vm1, 0), ANSWERS[0]);
    fs::write(&file, format!("search example\nnameserver {OTHER}\n")).expect("a file");
    wait_for_other(&vm1);
    // A byte that is no text, and a first resolver where nothing listens.
    let text = format!("; caf\u{e9}\nnameserver {HOST}\nnameserver {OUTSIDE}\n");
    let latin1: Vec<u8> = text.chars().map(|letter| letter as u8).collect();
    fs::write(&file, latin1).expect("a file");
    let shown = format!("auto ({HOST} closed, asked last; {OUTSIDE})");
    let mut questions = 1..;
    wait_until("the state of the resolvers", || {
        ask(&vm1, questions.next().expect("a number"));
        world.lasthop.ok(&["port", "show", "out"]).contains(&shown)
    });
    assert_eq!(ask(&vm1, 0), ANSWERS[0]);
}

/// Has a peer of the outside send until its connection takes no more.
fn fill(peer: &mut TcpStream) {
    peer.set_nonblocking(true).expect("a socket");
    loop {
        match peer.write(&[7; 4096]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The flow to a port of the outside, of a list of the command line.
fn flow_to(lasthop: &Lasthop, port: u16, options: &[&str]) -> Option<serde_json::Value> {
    let listed = lasthop.json(&[&["user", "flows", "out"], options].concat());
    let mut flows = listed["flows"].as_array().expect("flows").iter();
    let peer = format!("{OUTSIDE}:{port}");
    flows.find(|flow| flow["peer"] == *peer).cloned()
}

/// A guest that does not read, a peer that does not read, and a connection that progresses.
#[test]
fn a_stalled_connection_says_what_it_waits_for() {
    if !Netns::allowed() {
        return;
    }
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let world = start(folder.path(), &["vm1"]);
    let lasthop = &world.lasthop;
    let vm1 = plug_in(lasthop, "vm1");
    const UNREAD: u16 = 7010;
    const UNSENT: u16 = 7011;
    let opened = [UNREAD, UNSENT].map(|port| {
        let listener = world.outside.listen(&format!("{OUTSIDE}:{port}"));
        let id = begin(&vm1, port);
        assert_eq!(outcome(&vm1, id, LIMIT), Some(true));
        (id, listener.accept().expect("a connection").0)
    });
    let [(unread, mut sender), (unsent, _silent)] = opened;
    let goes_on = begin(&vm1, ECHO);
    assert_eq!(outcome(&vm1, goes_on, LIMIT), Some(true));

    turn.step("the guest does not read");
    fill(&mut sender);
    let stalled = ["--stalled=1"];
    let flow = wait_for("it is stalled", || flow_to(lasthop, UNREAD, &stalled));
    let tcp = &flow["tcp"];
    assert_eq!(flow["waits_for"], "guest-window", "{flow}");
    assert_eq!(flow["timer"], "probe", "{flow}");
    assert!(tcp["pending_bytes"].as_u64() > Some(0), "{flow}");
    assert!(flow["progress_ms"].as_u64() >= Some(1000), "{flow}");

    turn.step("the peer does not read");
    let flow = wait_for("it is stalled, too", || {
        while vm1.send(unsent, &[7; 4096], None).is_ok() {}
        let flow = flow_to(lasthop, UNSENT, &stalled)?;
        (vm1.send(unsent, &[7], None) == Err(Errno::AGAIN)).then_some(flow)
    });
    assert_eq!(flow["waits_for"], "host-socket", "{flow}");
    assert!(flow["tcp"]["queued_bytes"].as_u64() > Some(0), "{flow}");

    turn.step("another connection goes on");
    (0..3).for_each(|number| check_echo(&vm1, goes_on, number));
    wait_until("all of it is acknowledged", || {
        let flow = flow_to(lasthop, ECHO, &[]).expect("a connection");
        flow["waits_for"] == "nothing"
    });
    assert_eq!(flow_to(lasthop, ECHO, &["--stalled=0"]), None);
    let table = lasthop.ok(&["user", "flows", "out", "--stalled=1"]);
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let lines: Vec<_> = table.lines().map(words).collect();
    assert_eq!(lines.len(), 3, "{table}");
    for (port, word) in [(UNREAD, "guest-window"), (UNSENT, "host-socket")] {
        let peer = format!("{OUTSIDE}:{port}");
        let mut rows = lines.iter().filter(|row| row.contains(&peer));
        assert!(rows.any(|row| row.iter().any(|of| of == word)), "{table}");
    }

    turn.step("the guest reads, and the connection goes on");
    let mut bytes = vec![0; 64 << 10];
    wait_until("all has come", || {
        while vm1.receive(unread, &mut bytes, false).is_ok() {}
        flow_to(lasthop, UNREAD, &[]).expect("a connection")["waits_for"] == "nothing"
    });
    assert_eq!(flow_to(lasthop, UNREAD, &["--stalled=0"]), None);
}
