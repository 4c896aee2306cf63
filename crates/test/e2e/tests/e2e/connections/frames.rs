//! Many connections of guests of our own, frame by frame.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use e2e::lasthop::{Lasthop, guest_ports};
use e2e::{beside, repetitions};
use testkit::iommu::{IommuConfig, Mode};
use testkit::lasthop::port;
use testkit::net::NetHeader;
use testkit::packets::{Flow, rarp, udp};
use testkit::stop::Stop;
use testkit::wait::wait_until;
use testkit::{FakeGuest, GuestConfig};
use wire::MacAddr;
use wire::build::{PacketBuilder, TcpFields};
use wire::tcp::{ACK, PSH, SYN};

use super::{apply, config, count, list};

/// Connections that are open while processes die.
const CONNECTIONS: u16 = 2000;
/// Frames on their way.
const WINDOW: usize = 64;
/// A frame that has not arrived after this time is sent again.
const SEEMS_LOST: Duration = Duration::from_millis(20);
/// Kills, unless `LASTHOP_KILLS` has another number.
const KILLS: usize = 3;
/// New connections beside a flood.
const NEW: u16 = 100;
/// Frames of a flood, of a connection each, unless `LASTHOP_FLOOD` has another number.
const FLOOD: usize = 20_000;

/// `vm1` gets nothing but answers.
pub(super) const ANSWERS_ALONE: &str = r#"
[[acl]]
name = "vm1-in"
direction = "to-guest"
ports = ["vm1"]
[[acl.rule]]
name = "arp"
action = "allow"
ether_type = "arp"
[[acl.rule]]
name = "rest"
action = "drop"
"#;

/// Each guest gets what opens a connection to port 80, and answers.
pub(super) const SERVERS: &str = r#"
[[acl]]
name = "in"
direction = "to-guest"
segments = ["default"]
[[acl.rule]]
name = "tcp"
action = "allow-stateful"
protocol = "tcp"
destination_ports = [80]
[[acl.rule]]
name = "udp"
action = "allow-stateful"
protocol = "udp"
destination_ports = [80]
[[acl.rule]]
name = "rest"
action = "drop"
"#;

/// A TCP connection, seen from the side that opens it. Data is always the same, as when it is sent
/// again.
#[derive(Clone, Copy)]
pub(super) struct Tcp(pub(super) Flow);

impl Tcp {
    pub(super) fn new((from, to): (u8, u8), ports: (u16, u16)) -> Self {
        Self(Flow::v4(from, to).ports(ports.0, ports.1))
    }

    pub(super) fn syn(&self) -> Vec<u8> {
        segment(&self.0, (100, 0), SYN, &[])
    }

    pub(super) fn syn_ack(&self) -> Vec<u8> {
        segment(&self.0.reversed(), (500, 101), SYN | ACK, &[])
    }

    pub(super) fn ack(&self) -> Vec<u8> {
        segment(&self.0, (101, 501), ACK, &[])
    }

    pub(super) fn data(&self) -> Vec<u8> {
        segment(&self.0, (101, 501), ACK | PSH, b"question")
    }

    pub(super) fn answer(&self) -> Vec<u8> {
        segment(&self.0.reversed(), (501, 109), ACK | PSH, b"answer")
    }
}

pub(super) fn segment(flow: &Flow, (seq, ack): (u32, u32), flags: u16, payload: &[u8]) -> Vec<u8> {
    let fields = TcpFields {
        src_port: flow.src_port,
        dst_port: flow.dst_port,
        seq,
        ack,
        flags,
        options: Vec::new(),
    };
    builder(flow).tcp(fields).payload(payload).build()
}

/// A packet of a flow up to its transport header.
pub(super) fn builder(flow: &Flow) -> PacketBuilder {
    let frame = PacketBuilder::new(MacAddr(flow.src_mac), MacAddr(flow.dst_mac));
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => frame.ipv4(src, dst),
        (IpAddr::V6(src), IpAddr::V6(dst)) => frame.ipv6(src, dst),
        _ => panic!("a flow between two families"),
    }
}

/// Sends frames by all queue pairs in turn. Returns whether all have arrived soon after; what has
/// is taken away.
fn try_pass(from: &mut FakeGuest, to: &mut FakeGuest, frames: &mut BTreeSet<Vec<u8>>) -> bool {
    while !frames.is_empty() {
        let some: Vec<Vec<u8>> = frames.iter().take(WINDOW).cloned().collect();
        let pairs = from.pairs.len();
        for (n, frame) in some.iter().enumerate() {
            let sent = from.send_on(n % pairs, frame, &NetHeader::default());
            sent.expect("room");
        }
        let mut missing = some.len();
        while missing > 0 {
            let Some(got) = to.recv(SEEMS_LOST).expect("a correct device") else {
                return false;
            };
            missing -= usize::from(frames.remove(&got.frame));
        }
    }
    true
}

/// Sends frames, again and again, until all have arrived.
pub(super) fn pass(
    from: &mut FakeGuest,
    to: &mut FakeGuest,
    frames: impl IntoIterator<Item = Vec<u8>>,
) {
    let mut left: BTreeSet<_> = frames.into_iter().collect();
    wait_until("all frames arrive", || try_pass(from, to, &mut left));
}

/// Sends a frame once, and waits until it arrives.
pub(super) fn pass_once(from: &mut FakeGuest, to: &mut FakeGuest, frame: &[u8]) {
    from.send(frame).expect("room");
    wait_until("the frame arrives", || {
        let got = to.recv(SEEMS_LOST).expect("a correct device");
        got.is_some_and(|got| got.frame == frame)
    });
}

/// Opens connections, and has data and answers pass by each.
pub(super) fn open(a: &mut FakeGuest, b: &mut FakeGuest, all: &[Tcp]) {
    pass(a, b, all.iter().map(Tcp::syn));
    pass(b, a, all.iter().map(Tcp::syn_ack));
    pass(a, b, all.iter().map(Tcp::ack));
    talk(a, b, all);
}

/// Has data and answers of each connection pass.
pub(super) fn talk(a: &mut FakeGuest, b: &mut FakeGuest, all: &[Tcp]) {
    pass(a, b, all.iter().map(Tcp::data));
    pass(b, a, all.iter().map(Tcp::answer));
}

/// Checks that a frame does not arrive, by another one that does.
pub(super) fn is_denied(
    from: &mut FakeGuest,
    to: &mut FakeGuest,
    frame: &[u8],
    passes: &[u8],
) -> bool {
    let mut got = BTreeSet::new();
    for _ in 0..3 {
        from.send(frame).expect("room");
        from.send(passes).expect("room");
        got.remove(passes);
        wait_until("the other frame arrives", || {
            let all = to.recv_all().expect("a correct device");
            got.extend(all.into_iter().map(|got| got.frame));
            got.contains(passes)
        });
    }
    !got.contains(frame)
}

/// Guests at these ports, known to the switch.
pub(super) fn connect<const N: usize>(lasthop: &Lasthop, numbers: [u8; N]) -> [FakeGuest; N] {
    let mut guests = numbers.map(|n| lasthop.connect(&format!("vm{n}"), n));
    announce(lasthop, &mut guests.each_mut());
    guests
}

/// Has the switch learn where guests are.
pub(super) fn announce(lasthop: &Lasthop, guests: &mut [&mut FakeGuest]) {
    for guest in &mut *guests {
        guest.wait_link().expect("a link");
        guest.send(&rarp(guest.mac())).expect("room");
    }
    let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    wait_until("the stations are known", || {
        let fdb = lasthop.ok(&["fdb", "list", "--json"]);
        guests.iter().all(|guest| fdb.contains(&text(guest.mac())))
    });
}

/// The client has two queue pairs, the server is behind an IOMMU, and two workers share the table.
#[test]
fn thousands_of_connections_outlive_kills_and_upgrades() {
    let turn = beside();
    let vm1 = port("vm1", "queues = 2");
    let keys = "workers = 2\n[switch.connections]\nrecovery = 0\n";
    let lasthop = Lasthop::start(&config(keys, &(vm1 + ANSWERS_ALONE)));
    let two_pairs = GuestConfig {
        pairs: 2,
        ..GuestConfig::default().guest(1)
    };
    let iommu = IommuConfig::new(Mode::Strict);
    let translated = GuestConfig::default().guest(2);
    let a = &mut lasthop.connect_as("vm1", two_pairs);
    let b = &mut lasthop.connect_translated("vm2", translated, iommu);
    announce(&lasthop, &mut [a, b]);
    turn.step("open them all");
    let number = |n: u16| Tcp::new((1, 2), (10_000 + n, 80));
    let mut all: Vec<Tcp> = (0..CONNECTIONS).map(number).collect();
    open(a, b, &all);
    let known = || usize::try_from(count(&lasthop, "tcp and dst port 80")).unwrap_or(0);
    assert_eq!(known(), all.len());
    let stray = number(u16::MAX - 10_000);
    assert!(is_denied(b, a, &stray.answer(), &all[0].answer()));

    for round in 0..repetitions("LASTHOP_KILLS", KILLS) {
        let (switch, control) = [(true, false), (false, true), (true, true)][round % 3];
        let before = lasthop.pid("lasthop-control").expect("control runs");
        if control {
            lasthop.kill_control();
        }
        if switch {
            lasthop.kill_switch();
        }
        // One more is opened meanwhile.
        all.push(number(all.len() as u16));
        open(a, b, &all[all.len() - 1..]);
        talk(a, b, &all);
        lasthop.wait_control(before);
        assert_eq!(known(), all.len(), "none is forgotten");
    }
    turn.step("an upgrade");
    thread::scope(|scope| {
        let upgrade = scope.spawn(|| lasthop.ok(&["upgrade"]));
        while !upgrade.is_finished() {
            talk(a, b, &all);
        }
        let said = upgrade.join().expect("it succeeds");
        assert!(said.contains(": 2 connections kept, "), "{said}");
    });
    talk(a, b, &all);
    assert_eq!(known(), all.len());
    assert!(is_denied(b, a, &stray.answer(), &all[0].answer()));
    let drops = lasthop.stats();
    assert_eq!(drops.get("drops.connection-invalid"), 0, "{drops:?}");
    lasthop.stop();
}

/// Opens a connection with each frame, at least `all`, and until it is over.
fn flood(guest: &mut FakeGuest, all: u32, is_over: &Stop) {
    let flow = |number: u32| {
        let [_, b, c, _] = (number >> 14 << 8).to_be_bytes();
        let flow = Flow::v4(3, 4).ports(1024 + (number & 0x3fff) as u16, 80);
        Flow {
            src: [10, 64 + b, c, 3].into(),
            ..flow
        }
    };
    let mut sent = 0_u32;
    while sent < all || !is_over.is_set() {
        let flow = flow(sent / 2);
        let frame = match sent % 2 {
            0 => udp(&flow, &[0; 18]),
            _ => Tcp(flow).syn(),
        };
        guest.send(&frame).expect("room");
        sent += 1;
    }
}

#[test]
fn a_guest_that_opens_more_than_its_share_takes_from_no_other() {
    let turn = beside();
    let names = ["vm1", "vm2", "vm3", "vm4"];
    let all = repetitions("LASTHOP_FLOOD", FLOOD) as u32;
    let is_whole = all as usize > FLOOD;
    let new_ones = if is_whole { 10 * NEW } else { NEW };
    // Room for those that must not be lost, within a share.
    let max = if is_whole { 8192 } else { 1024 };
    let keys = format!("[switch.connections]\nmax = {max}\nrecovery = 0\n");
    let lasthop = Lasthop::start(&(guest_ports(&keys, &names) + SERVERS));
    let [mut a, mut b, mut flooder, _silent] = connect(&lasthop, [1, 2, 3, 4]);
    let (a, b) = (&mut a, &mut b);
    let old: Vec<Tcp> = (0..32).map(|n| Tcp::new((1, 2), (5000 + n, 80))).collect();
    open(a, b, &old);

    turn.step("a flood, and others beside it");
    let is_over = Stop::new();
    thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(&mut flooder, all, &is_over));
        let end = is_over.at_end();
        lasthop.wait_sent("vm3", u64::from(all) / 10);
        for port in 6000..6000 + new_ones {
            let new = Tcp::new((1, 2), (port, 80));
            pass_once(a, b, &new.syn());
            pass_once(b, a, &new.syn_ack());
            pass_once(a, b, &new.data());
            pass_once(b, a, &new.answer());
        }
        talk(a, b, &old);
        drop(end);
        flooding.join().expect("the port takes frames");
    });
    assert_eq!(
        count(&lasthop, "src host 10.0.0.1"),
        32 + u64::from(new_ones)
    );

    turn.step("the operator sees the port");
    let full = "connections opened by port vm3 have reached ";
    wait_until("an event", || {
        let kind = ["--kind", "connections_full", "--last", "100", "--no-follow"];
        let said = lasthop.ok(&[&["events"][..], &kind].concat());
        assert!(said.lines().all(|line| line.contains(full)), "{said}");
        said.contains(full)
    });
    let status = &lasthop.port("vm3")["connections"];
    let number = |key: &str| status[key].as_u64().expect("a number");
    let opened = |key: &str| status["opened"][key].as_u64().expect("a number");
    assert!(number("evicted_unreplied") > 0, "{status}");
    assert!(opened("unreplied") <= opened("unreplied_limit"), "{status}");
    let stats = lasthop.stats();
    assert_eq!(number("refused"), stats.get("vm3.drops.connection-full"));
    assert_eq!(stats.get("drops.connection-full"), number("refused"));
    for other in ["vm1", "vm2", "vm4"] {
        let status = &lasthop.port(other)["connections"];
        for key in ["evicted", "evicted_unreplied", "refused"] {
            assert_eq!(status[key], 0, "{other}: {status}");
        }
    }
    lasthop.stop();
}

#[test]
fn connections_go_on_when_their_table_is_lost_and_later_by_the_rules_alone() {
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = |recovery: u16| {
        let keys = format!("[switch.connections]\nrecovery = {recovery}\n");
        config(&keys, &port("vm1", ""))
    };
    let mut lasthop = Lasthop::start(&config(3600));
    let [mut a, mut b] = connect(&lasthop, [1, 2]);
    let (a, b) = (&mut a, &mut b);
    let upload = Tcp::new((1, 2), (4000, 80));
    let download = Tcp::new((2, 1), (4001, 5001));
    open(a, b, &[upload]);
    open(b, a, &[download]);

    turn.step("Lasthop dies whole");
    lasthop.start_again();
    for (port, guest) in [("vm1", &mut *a), ("vm2", &mut *b)] {
        guest.crash();
        let path = lasthop.socket_of(port);
        guest.reconnect(&path).expect("the port takes the guest");
    }
    // The opener of a reply is a station that is known.
    announce(&lasthop, &mut [a, b]);
    turn.step("the other side is the first one to speak");
    pass(a, b, [upload.data(), download.answer()]);
    pass(b, a, [upload.answer(), download.data()]);
    for (filter, list_of, rule) in [
        ("dst port 80", "vm2-in", "web"),
        ("dst port 5001", "vm2-out", "all"),
    ] {
        let all = list(&lasthop, filter);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0]["list"], list_of);
        assert_eq!(all[0]["rule"], rule);
    }
    let knocks = Tcp::new((1, 2), (4002, 22)).syn();
    assert!(is_denied(a, b, &knocks, &upload.data()));

    turn.step("the time for that is over, and the table is lost again");
    apply(&lasthop, folder.path(), &config(0));
    lasthop.ok(&["connections", "flush"]);
    assert!(is_denied(a, b, &download.answer(), &upload.data()));
    pass(b, a, [download.data()]);
    pass(a, b, [download.answer()]);
    lasthop.stop();
}

#[test]
fn a_rule_that_goes_ends_its_connections_whichever_side_speaks() {
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = config("[switch.connections]\nrecovery = 0\n", &port("vm1", ""));
    let http_alone = whole.replace("[80, 443]", "[80]");
    assert_ne!(http_alone, whole);
    let lasthop = Lasthop::start(&whole);
    let [mut a, mut b] = connect(&lasthop, [1, 2]);
    let (a, b) = (&mut a, &mut b);
    let [stays, ends] = [80, 443].map(|port| Tcp::new((1, 2), (4000, port)));
    open(a, b, &[stays, ends]);

    turn.step("the rule goes, and processes die before the next frames");
    apply(&lasthop, folder.path(), &http_alone);
    for processes_die in [true, false, true] {
        if processes_die {
            lasthop.replace_switch();
            lasthop.replace_control();
        }
        // The server may open any connection, but has not opened this one.
        b.send(&ends.answer()).expect("room");
        pass(b, a, [stays.answer()]);
        assert!(is_denied(a, b, &ends.data(), &stays.data()));
    }
    let denied = list(&lasthop, "dst port 443");
    assert_eq!(denied.len(), 1, "{denied:?}");
    assert_eq!(denied[0]["flags"], serde_json::json!(["assured", "denied"]));
    turn.step("and comes back");
    apply(&lasthop, folder.path(), &whole);
    talk(a, b, &[stays, ends]);
    turn.step("it goes, and the server opens what it may between the same ends");
    apply(&lasthop, folder.path(), &http_alone);
    assert!(is_denied(a, b, &ends.data(), &stays.data()));
    pass(b, a, [segment(&ends.0.reversed(), (9000, 0), SYN, &[])]);
    pass(a, b, [segment(&ends.0, (700, 9001), SYN | ACK, &[])]);
    assert_eq!(list(&lasthop, "src port 443").len(), 1);
    lasthop.stop();
}

/// The far side of a download is silent but for its answers: it sends nothing that tells where it
/// is, and gets nothing but the frames of its connections.
#[test]
fn a_download_goes_on_when_its_table_is_lost_and_the_guest_is_silent() {
    let turn = beside();
    let mut lasthop = Lasthop::start(&config("", &(port("vm1", "") + &port("vm3", ""))));
    let [mut a, mut b, mut other] = connect(&lasthop, [1, 2, 3]);
    let (a, b) = (&mut a, &mut b);
    let download = Tcp::new((2, 1), (4001, 5001));
    open(b, a, &[download]);

    turn.step("Lasthop dies whole");
    lasthop.start_again();
    for (port, guest) in [("vm1", &mut *a), ("vm2", &mut *b), ("vm3", &mut other)] {
        guest.crash();
        let path = lasthop.socket_of(port);
        guest.reconnect(&path).expect("the port takes the guest");
        guest.wait_link().expect("a link");
    }
    turn.step("the server sends again");
    pass(a, b, [download.answer()]);
    assert_eq!(
        list(&lasthop, "tcp").len(),
        0,
        "no connection by that alone"
    );
    let knocks = Tcp::new((1, 2), (4002, 22)).syn();
    assert!(is_denied(a, b, &knocks, &download.answer()));
    turn.step("and the guest acknowledges it");
    pass(b, a, [download.data()]);
    pass(a, b, [download.answer()]);
    let all = list(&lasthop, "dst port 5001");
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0]["original"]["port"], "vm2");
    lasthop.stop();
}
