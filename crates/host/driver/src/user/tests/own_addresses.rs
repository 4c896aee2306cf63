//! Addresses of the host in a network namespace of the test's own: those of interfaces, and those
//! that only routes make the host's ("AnyIP").

use std::net::IpAddr;
use std::process::Command;

use super::outside::outside;
use super::*;
use crate::user::own_addresses::OwnAddresses;

/// The host's addresses, and how they become that.
const SETUP: [&str; 9] = [
    "link set lo up",
    "route add local 198.51.100.0/24 dev lo",
    "-6 address add 2001:db8:1::1/64 dev up0 nodad",
    "-6 address add 2001:db8:1::2/64 dev up0 nodad",
    "-6 route add local 2001:db8:f::/64 dev lo",
    "-6 route add local 2001:db8:e::/64 dev up0",
    "-6 route add local 2001:db8:d::/64 dev lo mtu 1400",
    "route add default via 192.0.2.9",
    "-6 route add default via 2001:db8:1::9",
];
const OWN_ADDRESSES: [&str; 11] = [
    "127.0.0.1",
    "127.0.0.2",
    "192.0.2.1",
    "192.0.2.255",
    "198.51.100.7",
    "::1",
    "2001:db8:1::1",
    "2001:db8:1::2",
    "2001:db8:f::1",
    "2001:db8:e::1",
    "2001:db8:d::1",
];
/// That of the routers of a subnet (RFC 4291, section 2.6.1), which a host has that forwards.
const ROUTERS: &str = "2001:db8:1::";
const OTHERS: [&str; 6] = [
    "192.0.2.9",
    "203.0.113.5",
    "198.51.101.1",
    "2001:db8:1::9",
    "2001:db8:99::1",
    "2001:db8:f:1::1",
];
const GUEST6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20];

/// Does it with the network of a host that has these addresses, if there can be one.
fn with_network(test: impl FnOnce()) {
    let Some(_outside) = outside() else { return };
    for words in SETUP {
        let done = Command::new("ip").args(words.split(' ')).status();
        if !done.is_ok_and(|status| status.success()) {
            return eprintln!("skipped: ip {words}");
        }
    }
    test();
}

fn set(key: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{key}"), value).unwrap();
}

/// Whatever sockets may be bound to.
#[test]
fn an_address_is_the_hosts_if_packets_to_it_stay_there() {
    with_network(|| {
        for nonlocal in ["0", "1"] {
            set("ipv4/ip_nonlocal_bind", nonlocal);
            set("ipv6/ip_nonlocal_bind", nonlocal);
            let mut own = OwnAddresses::new();
            let mut is_own = |address: &str| own.contains(address.parse().unwrap(), 0);
            for address in OWN_ADDRESSES {
                assert_eq!(is_own(address), Ok(true), "{address}, {nonlocal}");
            }
            for address in OTHERS {
                assert_eq!(is_own(address), Ok(false), "{address}, {nonlocal}");
            }
        }
        let is_own = |address: &str| {
            let mut own = OwnAddresses::new();
            own.contains(address.parse().unwrap(), 0)
        };
        assert_eq!(is_own(ROUTERS), Ok(false));
        set("ipv6/conf/all/forwarding", "1");
        assert_eq!(is_own(ROUTERS), Ok(true));
    });
}

#[test]
fn without_a_way_there_is_an_error() {
    let Some(_outside) = outside() else { return };
    let mut own = OwnAddresses::new();
    for address in ["203.0.113.5", "2001:db8:99::1"] {
        let found = own.contains(address.parse().unwrap(), 0);
        assert_eq!(found, Err(Errno::NETUNREACH), "{address}");
    }
}

/// By any protocol.
#[test]
fn a_guest_reaches_no_address_that_a_route_makes_the_hosts() {
    with_network(|| {
        set("ipv4/ping_group_range", "0 2147483647");
        let network = UserNetwork {
            network6: Some("fd00::/64".to_owned()),
            allow: vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()],
            ..network("tcp 1")
        };
        let mut world = World::of(network, &records(), Vec::new());
        let mut refused = 0;
        let syn = |dst_port| TcpFields {
            src_port: 1000,
            dst_port,
            flags: SYN,
            ..TcpFields::default()
        };
        for to in [
            "192.0.2.1",
            "198.51.100.7",
            "2001:db8:1::1",
            "2001:db8:f::1",
        ] {
            let frame = PacketBuilder::new(GUEST, GATEWAY);
            let frame = match to.parse().unwrap() {
                IpAddr::V4(to) => frame.ipv4(GUEST_IP, to),
                IpAddr::V6(to) => frame.ipv6(GUEST6, to),
            };
            world.give(&frame.clone().tcp(syn(80)));
            world.give(&frame.clone().udp(1000, 53).payload(b"x"));
            world.give(&frame.echo_request(1, 1));
            refused += 3;
            let figures = world.worker.gateway.figures();
            assert_eq!(figures.totals.refused[0], refused, "{to}");
        }
    });
}
