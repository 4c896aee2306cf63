//! Addresses that are used at two ports in turn: a spoofer and its victim, a bond, routers that
//! share an address by VRRP (RFC 9568), with keepalived. Frames of all are delivered.

use std::collections::BTreeMap;
use std::time::Duration;

use e2e::guest::{Guest, GuestSpec, boot};
use e2e::lasthop::Lasthop;
use e2e::machine;
use e2e::stats::Stats;
use testkit::wait::{LIMIT, within};
use testkit::{FakeGuest, GuestConfig};
use wire::build::PacketBuilder;
use wire::{EtherType, MacAddr};

/// The address that ports share.
const SHARED: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const OBSERVER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// Two ports with these `macs`, and an observer.
fn config(macs: &str) -> String {
    let port = |name: &str, macs: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{name}.sock\"\n\
             port_security = {{ macs = {macs} }}\n"
        )
    };
    let ports = [
        port("a", macs),
        port("b", macs),
        port("observer", "\"any\""),
    ];
    format!("[switch]\nname = \"host1\"\n{}", ports.concat())
}

/// Reads frames until this one; returns whether it came.
fn arrives(guest: &mut FakeGuest, frame: &[u8]) -> bool {
    while let Some(got) = guest.recv(LIMIT).expect("the device keeps the rules") {
        if got.frame == frame {
            return true;
        }
    }
    false
}

struct Scene {
    lasthop: Lasthop,
    ports: [FakeGuest; 2],
    observer: FakeGuest,
    number: u32,
}

impl Scene {
    fn new(macs: &str) -> Self {
        let lasthop = Lasthop::start(&config(macs));
        let connect = |name| lasthop.connect_as(name, GuestConfig::default());
        let (ports, observer) = (["a", "b"].map(connect), connect("observer"));
        Self {
            lasthop,
            ports,
            observer,
            number: 0,
        }
    }

    fn frame(&mut self, from: MacAddr, to: MacAddr) -> Vec<u8> {
        self.number += 1;
        let frame = PacketBuilder::new(from, to).payload(&self.number.to_be_bytes());
        frame.pad_to(60).build()
    }

    /// A port sends that many frames from the shared address, and all arrive at both others.
    fn send(&mut self, port: usize, count: usize) {
        for _ in 0..count {
            let frame = self.frame(SHARED, MacAddr::BROADCAST);
            self.ports[port].send(&frame).expect("a guest can send");
            for guest in [&mut self.observer, &mut self.ports[1 - port]] {
                let there = arrives(guest, &frame);
                assert!(there, "{}", self.lasthop.ok(&["stats"]));
            }
        }
    }

    /// A frame to the shared address arrives at this port.
    fn is_at(&mut self, port: usize) {
        let frame = self.frame(OBSERVER, SHARED);
        self.observer.send(&frame).expect("a guest can send");
        let there = arrives(&mut self.ports[port], &frame);
        assert!(there, "{}", self.lasthop.ok(&["fdb", "list"]));
    }

    fn upcalls(&self) -> u64 {
        let status = self.lasthop.json(&["status"]);
        let upcalls = status["switch"]["upcalls"].as_u64();
        upcalls.expect("upcalls are counted")
    }

    fn end(self) {
        let stats = self.lasthop.stats();
        assert!(stats.drops().is_empty(), "{stats:?}");
        self.lasthop.stop();
    }
}

#[test]
fn a_spoofer_and_a_bond_cost_few_upcalls_and_no_frame() {
    let turn = machine();
    let mut scene = Scene::new("\"any\"");
    turn.step("the victim is first, and a spoofer sends many frames for each of its");
    scene.send(0, 1);
    let before = scene.upcalls();
    for _ in 0..30 {
        scene.send(1, 10);
        scene.send(0, 1);
        scene.is_at(0);
    }
    // Five moves, one more each ten seconds: an upcall for each, for its revert, and for the frames
    // to the address, whose flow is removed by both.
    let upcalls = scene.upcalls() - before;
    assert!(upcalls <= 40, "{upcalls}");
    let events = scene
        .lasthop
        .ok(&["events", "--no-follow", "--last", "100"]);
    assert!(events.contains("stays at port a"), "{events}");

    turn.step("a bond sends at both in turn");
    let before = scene.upcalls();
    for _ in 0..500 {
        scene.send(0, 1);
        scene.send(1, 1);
    }
    let upcalls = scene.upcalls() - before;
    assert!(upcalls <= 40, "{upcalls}");
    scene.is_at(0);
    let from = format!("ether {SHARED} > {OBSERVER} type 0x88b5");
    let trace = scene.lasthop.ok(&["trace", "--port", "b", &from]);
    assert!(trace.contains("would stay there"), "{trace}");

    turn.step("control dies");
    scene.lasthop.replace_control();
    scene.send(1, 1);
    scene.send(0, 1);
    scene.is_at(0);

    turn.step("the member with the address goes down");
    let [first, _] = &mut scene.ports;
    first.disconnect().expect("the guest leaves");
    scene.lasthop.wait_port("a", "waiting");
    let frame = scene.frame(SHARED, MacAddr::BROADCAST);
    scene.ports[1].send(&frame).expect("a guest can send");
    assert!(arrives(&mut scene.observer, &frame));
    scene.is_at(1);
    scene.lasthop.stop();
}

#[test]
fn an_address_that_two_ports_list_is_where_it_was_seen_last() {
    let turn = machine();
    let mut scene = Scene::new(&format!("[\"{SHARED}\"]"));
    turn.step("a late frame of the former master, again and again");
    for _ in 0..20 {
        for port in [0, 1, 0, 1] {
            scene.send(port, 1);
            scene.is_at(port);
        }
    }
    turn.step("control dies");
    scene.lasthop.replace_control();
    for port in [0, 1] {
        scene.send(port, 1);
        scene.is_at(port);
    }
    scene.end();
}

/// Virtual routers of a pair of guests: each of these at `eth0`, whose port lists addresses, and,
/// with a number that is higher by [`ANY`], at `eth1`, whose port may use any.
const ROUTERS: [Router; 4] = [
    Router::new(51, 4, true),
    Router::new(52, 4, false),
    Router::new(53, 6, true),
    Router::new(54, 6, false),
];
const ANY: u8 = 10;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Router {
    id: u8,
    version: u8,
    /// It has a MAC address of its own.
    has_mac: bool,
}

impl Router {
    const fn new(id: u8, version: u8, has_mac: bool) -> Self {
        Self {
            id,
            version,
            has_mac,
        }
    }

    fn mac(self) -> MacAddr {
        let family = if self.version == 4 { 1 } else { 2 };
        MacAddr([0, 0, 0x5e, 0, family, self.id])
    }

    /// Its part of keepalived.conf.
    fn instance(self, card: &str, priority: u8) -> String {
        let id = self.id;
        let addresses = match self.version {
            4 => format!("10.0.{}.{id}/24", card_number(card)),
            _ => format!("fe80::{id}\n2001:db8:{}::{id}/64", card_number(card)),
        };
        let mac = if self.has_mac {
            format!("use_vmac vrrp{id}")
        } else {
            String::new()
        };
        format!(
            "vrrp_instance v{id} {{\nstate BACKUP\ninterface {card}\nvirtual_router_id {id}\n\
             priority {priority}\nadvert_int 0.1\n{mac}\n\
             virtual_ipaddress {{\n{addresses}\n}}\n}}\n"
        )
    }
}

fn card_number(card: &str) -> &str {
    card.trim_start_matches("eth")
}

/// The routers of a card.
fn routers(card: &str) -> Vec<Router> {
    let shift = if card == "eth0" { 0 } else { ANY };
    let shifted = ROUTERS.map(|router| Router {
        id: router.id + shift,
        ..router
    });
    shifted.to_vec()
}

/// The ports of both guests, in a segment for each card, and an observer in each.
fn router_config() -> String {
    let macs: String = routers("eth0")
        .iter()
        .filter(|router| router.has_mac)
        .map(|router| format!(", \"{}\"", router.mac()))
        .collect();
    let mut text = "[switch]\nname = \"host1\"\n".to_owned();
    for segment in ["listed", "any"] {
        text += &format!("[[segment]]\nname = \"{segment}\"\n");
    }
    let mut port = |name: &str, segment: &str, macs: &str| {
        text += &format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{name}.sock\"\n\
             segment = \"{segment}\"\nport_security = {{ macs = {macs} }}\n"
        );
    };
    for guest in ["one", "two"] {
        let own = e2e::guest::mac_of(guest);
        port(guest, "listed", &format!("[\"{own}\"{macs}]"));
        port(&format!("{guest}-any"), "any", "\"any\"");
    }
    port("observer-listed", "listed", "\"any\"");
    port("observer-any", "any", "\"any\"");
    text
}

/// Advertisements of each router, by the priority of the guest that sent them.
#[derive(Default)]
struct Seen(BTreeMap<u8, Vec<u8>>);

impl Seen {
    /// Reads a frame: an advertisement has its router and the priority of its sender.
    fn add(&mut self, frame: &[u8]) {
        const VRRP: u8 = 112;
        let ethertype = EtherType(u16::from_be_bytes([frame[12], frame[13]]));
        let (protocol, body) = match ethertype {
            EtherType::IPV4 => (frame[23], 14 + usize::from(frame[14] & 15) * 4),
            EtherType::IPV6 => (frame[20], 54),
            _ => return,
        };
        if protocol == VRRP && frame.len() > body + 2 {
            let (id, priority) = (frame[body + 1], frame[body + 2]);
            // A router that stops says so with the priority zero.
            if priority > 0 {
                self.0.entry(id).or_default().push(priority);
            }
        }
    }

    /// Returns whether the last advertisements of a router, a second's worth, are of this guest.
    fn is_master(&self, id: u8, priority: u8) -> bool {
        let last = self.0.get(&id).map(|all| all.iter().rev().take(10));
        last.is_some_and(|last| last.len() == 10 && last.copied().all(|p| p == priority))
    }

    /// Returns how often the master changed, for the router where that was most often. Two masters
    /// take turns with each advertisement.
    fn turns(&self) -> usize {
        let turns = self.0.values().map(|all| {
            let pairs = all.windows(2);
            pairs.filter(|two| two[0] != two[1]).count()
        });
        turns.max().unwrap_or_default()
    }
}

struct Pair {
    lasthop: Lasthop,
    guests: [Guest; 2],
    observers: [FakeGuest; 2],
    seen: Seen,
    /// Counters when all guests were up.
    before: Stats,
}

/// Priorities of both guests.
const PRIORITIES: [u8; 2] = [150, 100];

impl Pair {
    fn new() -> Self {
        let lasthop = Lasthop::start(&router_config());
        let guest = |name: &str, number| {
            let spec = GuestSpec::at(&lasthop, name, number).router().ipv6();
            spec.second_card(&lasthop, &format!("{name}-any"))
        };
        let mut guests = boot([guest("one", 1), guest("two", 2)]);
        for (number, guest) in guests.iter_mut().enumerate() {
            let mut text = "global_defs {\nvrrp_version 3\nmax_auto_priority\n}\n".to_owned();
            for card in ["eth0", "eth1"] {
                for router in routers(card) {
                    text += &router.instance(card, PRIORITIES[number]);
                }
            }
            guest.run(&format!(
                "insmod /router-modules/macvlan.ko; mkdir -p /etc /run
                 ip address add 10.0.1.{}/24 dev eth1; ip link set eth1 up
                 printf '%s' '{text}' >/etc/keepalived.conf",
                number + 1
            ));
        }
        let names = ["observer-listed", "observer-any"];
        let observers = names.map(|name| lasthop.connect_as(name, GuestConfig::default()));
        Self {
            before: lasthop.stats(),
            lasthop,
            guests,
            observers,
            seen: Seen::default(),
        }
    }

    fn start(&mut self, guest: usize) {
        // An address that is being probed cannot be the source of IPv6. Without a syslog daemon,
        // each line of the log would go to the console, which is slow.
        self.guests[guest].run(
            "while ip address show | grep -q tentative; do sleep 0.05; done
             keepalived -f /etc/keepalived.conf -n -G -l >>/tmp/log 2>&1 &",
        );
    }

    fn stop(&mut self, guest: usize) {
        self.guests[guest].run(
            "kill $(cat /run/keepalived.pid)
             while [ -e /run/keepalived.pid ]; do sleep 0.05; done",
        );
    }

    /// Waits until a guest is the master of all routers, and their addresses are at its ports.
    fn has_master(&mut self, guest: usize) {
        self.seen = Seen::default();
        let all = || ["eth0", "eth1"].into_iter().flat_map(routers);
        let done = within(LIMIT, || {
            for observer in &mut self.observers {
                while let Some(got) = observer.recv(Duration::ZERO).expect("a frame") {
                    self.seen.add(&got.frame);
                }
            }
            let is_master = |router: Router| self.seen.is_master(router.id, PRIORITIES[guest]);
            all().all(is_master).then_some(())
        });
        if done.is_none() {
            let log = self.guests[guest].run("tail -n 30 /tmp/log");
            panic!("{:?}\n{log}", self.seen.0);
        }
        // The old master has to receive an advertisement of the new one, which takes an emulated
        // guest on a busy machine a while. If they do not reach each other, there is no end to it.
        let turns = self.seen.turns();
        eprintln!("           {turns} changes");
        assert!(turns <= 40, "two masters: {:?}", self.seen.0);
        let names = [["one", "one-any"], ["two", "two-any"]][guest];
        let mut list = String::new();
        let there = within(LIMIT, || {
            list = self.lasthop.ok(&["fdb", "list"]);
            let is_there = |(card, name): (&str, &str)| {
                let with_mac = routers(card).into_iter().filter(|router| router.has_mac);
                let lines = with_mac.map(|router| format!("{}  {name} ", router.mac()));
                lines.into_iter().all(|line| list.contains(&line))
            };
            ["eth0", "eth1"]
                .into_iter()
                .zip(names)
                .all(is_there)
                .then_some(())
        });
        assert!(there.is_some(), "{list}");
    }

    /// No frame of a router was dropped.
    fn lost_nothing(&self) {
        let stats = self.lasthop.stats().since(&self.before);
        for port in ["one", "one-any", "two", "two-any"] {
            let mut dropped = stats.drops_of(port);
            // A reply to the former master, when its sender has the address already.
            dropped.remove("reflection");
            assert!(dropped.is_empty(), "{port}: {dropped:?}");
        }
    }
}

#[test]
fn routers_that_share_addresses_by_vrrp_fail_over_and_return() {
    let turn = machine();
    turn.step("boot two guests");
    let mut pair = Pair::new();
    turn.step("the one with the lower priority is there first, and the other one takes over");
    pair.start(1);
    pair.has_master(1);
    pair.start(0);
    pair.has_master(0);
    let times = if testkit::is_complete_run() { 20 } else { 1 };
    for time in 0..times {
        turn.step(&format!("failover {time}"));
        pair.stop(0);
        pair.has_master(1);
        turn.step(&format!("return {time}"));
        pair.start(0);
        pair.has_master(0);
    }
    pair.lost_nothing();
    pair.lasthop.stop();
}
