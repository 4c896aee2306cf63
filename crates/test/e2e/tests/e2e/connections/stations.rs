//! Addresses that move between ports of one switch, as with VRRP or a migration: their connections
//! go along, and nowhere else.

use e2e::beside;
use e2e::lasthop::Lasthop;
use testkit::FakeGuest;
use testkit::lasthop::port;
use testkit::packets::{Flow, arp_request, mac, rarp};
use testkit::wait::wait_until;

use super::frames::{SERVERS, Tcp, announce, connect, is_denied, open, pass_once, talk};
use super::{count, list};

/// The address that the ports `vm2` and `vm3` share, beside one of their own.
const SHARED: u8 = 9;

fn text(number: u8) -> String {
    format!("02:1a:57:00:00:{number:02x}")
}

/// The connections of the address: one to its server, and one that it has opened.
const OPENED_TO: fn() -> Tcp = || Tcp::new((1, SHARED), (4000, 80));
const OPENED: fn() -> Tcp = || Tcp::new((SHARED, 1), (4001, 80));

/// The address moves to a port, which says so by a frame.
fn moves(lasthop: &Lasthop, to: &mut FakeGuest, name: &str, by: &[u8]) {
    to.send(by).expect("room");
    wait_until("the address has moved", || {
        let list = lasthop.json(&["fdb", "list"]);
        let mut entries = list["entries"].as_array().expect("a list").iter();
        entries.any(|of| of["mac"] == text(SHARED) && of["port"] == name)
    });
}

/// Both connections continue, whichever side speaks first, and nothing arrives elsewhere.
fn go_on(lasthop: &Lasthop, peer: &mut FakeGuest, here: &mut FakeGuest, there: &mut FakeGuest) {
    there.recv_all().expect("a correct device");
    for frame in [OPENED_TO().answer(), OPENED().data()] {
        pass_once(here, peer, &frame);
    }
    talk(peer, here, &[OPENED_TO()]);
    talk(here, peer, &[OPENED()]);
    let stray = there.recv_all().expect("a correct device");
    assert!(stray.is_empty(), "at the other port, too: {stray:?}");
    let all = list(lasthop, "tcp and host 10.0.0.9");
    assert_eq!(all.len(), 2, "{all:?}");
}

/// No frame of the connection passes from a port where the address is not.
fn is_theirs_alone(peer: &mut FakeGuest, other: &mut FakeGuest) {
    let own = other.mac();
    let mut stolen = OPENED_TO().answer();
    stolen[6..12].copy_from_slice(&own);
    let flow = Flow::v4(own[5], 1).ports(9, 80);
    assert!(is_denied(other, peer, &stolen, &Tcp(flow).syn()));
}

#[test]
fn the_connections_of_an_address_that_moves_go_on_at_its_new_port_and_nowhere_else() {
    let turn = beside();
    let ports = [1, 2, 3, 4].map(|n| {
        let macs = format!(
            "port_security = {{ macs = [\"{}\", \"{}\"] }}",
            text(n),
            text(SHARED)
        );
        let shares = matches!(n, 2 | 3);
        port(&format!("vm{n}"), if shares { &macs } else { "" })
    });
    let keys = "[switch]\nname = \"host1\"\n[switch.connections]\nrecovery = 0\n";
    let lasthop = Lasthop::start(&(keys.to_owned() + &ports.concat() + SERVERS));
    let [mut peer, mut second, mut third, mut fourth] = connect(&lasthop, [1, 2, 3, 4]);
    let (peer, second, third) = (&mut peer, &mut second, &mut third);
    moves(&lasthop, second, "vm2", &rarp(mac(SHARED)));
    open(peer, second, &[OPENED_TO()]);
    open(second, peer, &[OPENED()]);

    let ip = [10, 0, 0, SHARED].into();
    let gratuitous = arp_request(mac(SHARED), ip, ip);
    for (what, by) in [("ARP", &gratuitous), ("RARP", &rarp(mac(SHARED)))] {
        turn.step(&format!("there and back, by {what}"));
        moves(&lasthop, third, "vm3", by);
        go_on(&lasthop, peer, third, second);
        is_theirs_alone(peer, &mut fourth);
        is_theirs_alone(peer, second);
        moves(&lasthop, second, "vm2", by);
        go_on(&lasthop, peer, second, third);
        is_theirs_alone(peer, third);
    }

    turn.step("another port opens one of the same addresses and ports");
    let mut stolen = OPENED().syn();
    stolen[6..12].copy_from_slice(&fourth.mac());
    pass_once(&mut fourth, peer, &stolen);
    assert_eq!(count(&lasthop, "tcp and host 10.0.0.9"), 3);
    fourth.recv_all().expect("a correct device");
    talk(second, peer, &[OPENED()]);
    let stray = fourth.recv_all().expect("a correct device");
    assert!(stray.is_empty(), "{stray:?}");

    turn.step("the address moves, and the switch dies at once");
    moves(&lasthop, third, "vm3", &gratuitous);
    lasthop.replace_switch();
    third.send(&gratuitous).expect("room");
    announce(&lasthop, &mut [&mut *third]);
    talk(peer, third, &[OPENED_TO()]);
    talk(third, peer, &[OPENED()]);
    is_theirs_alone(peer, second);
    lasthop.stop();
}
