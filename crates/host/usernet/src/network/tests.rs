//! Addresses of a network, and which destinations are allowed.

use super::*;

fn network() -> Network {
    let prefix6 = Some("fd12:3456:789a:1::/64".parse().unwrap());
    let mac = MacAddr([0x52, 0x54, 0, 1, 2, 3]);
    Network::new("10.0.2.0/24".parse().unwrap(), prefix6, mac, 1500).unwrap()
}

fn access(allow: &[&str], deny: &[&str], host: &[&str]) -> Access {
    let rules = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    Access {
        allow: if allow.is_empty() {
            Access::default().allow
        } else {
            rules(allow)
        },
        deny: rules(deny),
        host: host.iter().map(|text| text.parse().unwrap()).collect(),
    }
}

#[test]
fn addresses_are_those_that_guests_of_qemu_know() {
    let network = network();
    assert_eq!(network.gateway().to_string(), "10.0.2.2");
    assert_eq!(network.dns().to_string(), "10.0.2.3");
    assert_eq!(
        network.host(network.leases().start).to_string(),
        "10.0.2.15"
    );
    assert_eq!(network.leases().end, 255);
    assert_eq!(
        network.gateway6().unwrap().to_string(),
        "fd12:3456:789a:1::2"
    );
    assert_eq!(network.link_local().to_string(), "fe80::5054:ff:fe01:203");
    for (address, may) in [
        ("10.0.2.15", true),
        ("10.0.2.0", false),
        ("10.0.2.2", false),
        ("10.0.2.3", false),
        ("10.0.2.255", false),
        ("10.0.3.1", false),
        ("fd12:3456:789a:1::", false),
        ("fd12:3456:789a:1::3", false),
        ("fd12:3456:789a:1:5054:ff:fe00:1", true),
        ("fe80::1", false),
    ] {
        assert_eq!(
            network.may_be_guest(address.parse().unwrap()),
            may,
            "{address}"
        );
    }
}

#[test]
fn the_smallest_network_has_leases() {
    let of = |text: &str| {
        Network::new(text.parse().unwrap(), None, MacAddr::ZERO, 1500).map(|n| n.leases())
    };
    assert_eq!(of("192.168.7.8/29"), Ok(4..7));
    assert_eq!(of("10.0.0.0/8"), Ok(15..0xff_ffff));
    for (text, error) in [
        ("10.0.0.0/30", NetworkError::Size),
        ("0.0.0.0/7", NetworkError::Size),
        ("fd00::/64", NetworkError::Size),
        ("127.0.0.0/8", NetworkError::Reserved),
        ("169.254.0.0/16", NetworkError::Reserved),
        ("224.0.0.0/8", NetworkError::Reserved),
        ("250.0.0.0/8", NetworkError::Reserved),
    ] {
        assert_eq!(of(text), Err(error), "{text}");
    }
}

#[test]
fn texts_of_rules_are_read_and_written() {
    for text in [
        "10.0.0.0/8 tcp 1-1023",
        "::/0",
        "1.2.3.4/32 icmp",
        "fd00::/8 udp 53",
    ] {
        assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
    }
    assert_eq!("1.2.3.4".parse::<Rule>().unwrap().to_string(), "1.2.3.4/32");
    for (text, error) in [
        ("", ParseError::Prefix),
        ("10.0.0.1/8", ParseError::HostBits),
        ("10.0.0.0/33", ParseError::Prefix),
        ("10.0.0.0/+8", ParseError::Prefix),
        ("10.0.0.0/8 sctp", ParseError::Protocol),
        ("10.0.0.0/8 tcp 0", ParseError::Ports),
        ("10.0.0.0/8 tcp 9-3", ParseError::Ports),
        ("10.0.0.0/8 tcp +3", ParseError::Ports),
        ("10.0.0.0/8 icmp 3", ParseError::NoPorts),
        ("10.0.0.0/8 tcp 3 4", ParseError::Words),
    ] {
        assert_eq!(text.parse::<Rule>(), Err(error), "{text}");
    }
    assert!("tcp 5432".parse::<HostRule>().is_ok());
}

#[test]
fn the_most_specific_network_decides() {
    let access = access(
        &["0.0.0.0/0", "10.1.0.0/16", "10.2.0.0/16 udp"],
        &["10.0.0.0/8", "10.1.2.0/24 tcp 1-1023", "10.2.0.0/16"],
        &[],
    );
    for (protocol, to, allowed) in [
        (Protocol::Tcp, "8.8.8.8:53", true),
        (Protocol::Tcp, "10.9.0.1:80", false),
        (Protocol::Tcp, "10.1.9.1:80", true),
        (Protocol::Tcp, "10.1.2.1:80", false),
        (Protocol::Tcp, "10.1.2.1:1024", true),
        (Protocol::Udp, "10.1.2.1:80", true),
        (Protocol::Udp, "10.2.0.1:80", false),
        (Protocol::Tcp, "[2001:db8::1]:80", false),
    ] {
        assert_eq!(
            access.allows(protocol, to.parse().unwrap()),
            allowed,
            "{protocol} {to}"
        );
    }
}

#[test]
fn no_rule_allows_what_is_never_reached() {
    let access = access(
        &["0.0.0.0/0", "::/0", "127.0.0.1", "169.254.169.254", "::1"],
        &[],
        &[],
    );
    for address in [
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "0.0.0.0",
        "0.1.2.3",
        "224.0.0.251",
        "255.255.255.255",
        "100.100.100.200",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::127.0.0.1",
        "fe80::1",
        "febf::1",
        "ff02::1",
        "fd00:ec2::254",
        "64:ff9b::127.0.0.1",
        "64:ff9b::169.254.169.254",
        "2002:7f00:1::1",
        "2002:a9fe:a9fe::1",
        // Of a network's own prefix of 96, 48 and 64 bits.
        "64:ff9b:1::169.254.169.254",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1:0:7f:0:100:0",
        // The client's address is inverted; the server's is not.
        "2001:0:808:808::80ff:fffe",
        "2001:0:7f00:1::f7f7:f7f7",
        "2001:db8::5efe:127.0.0.1",
        "2001:db8::200:5efe:169.254.169.254",
    ] {
        let to = SocketAddr::new(address.parse().unwrap(), 80);
        assert!(!access.allows(Protocol::Tcp, to), "{address}");
    }
    for address in [
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
        "64:ff9b:1::8.8.8.8",
        "64:ff9b:1:808:8:800::",
        "2001:0:808:808::f7f7:f7f7",
        "2001:db8::5efe:8.8.8.8",
    ] {
        let to = SocketAddr::new(address.parse().unwrap(), 80);
        assert!(access.allows(Protocol::Tcp, to), "{address}");
    }
}

#[test]
fn what_is_denied_is_not_reached_by_a_translator() {
    let anything = ["0.0.0.0/0", "::/0"];
    let denied = access(&anything, &["10.0.0.0/8"], &[]);
    let but_one = access(
        &[anything[0], anything[1], "10.1.0.0/16"],
        &["10.0.0.0/8"],
        &[],
    );
    let by_name = access(&["::/0"], &[], &[]);
    for address in [
        "10.1.2.3",
        "64:ff9b::10.1.2.3",
        "64:ff9b:1::10.1.2.3",
        "64:ff9b:1:a01:2:300::",
        "2002:a01:203::1",
        "2001:0:808:808::f5fe:fdfc",
        "2001:db8::5efe:10.1.2.3",
    ] {
        let to = SocketAddr::new(address.parse().unwrap(), 80);
        assert!(!denied.allows(Protocol::Tcp, to), "{address}");
        assert!(but_one.allows(Protocol::Tcp, to), "{address}");
        assert_eq!(by_name.allows(Protocol::Tcp, to), to.is_ipv6(), "{address}");
    }
}

#[test]
fn packets_lead_to_the_gateway_the_host_or_the_outside() {
    let network = network();
    let access = access(&[], &["10.0.0.0/8"], &["tcp 5432"]);
    let to = |text: &str| destination(&network, &access, Protocol::Tcp, text.parse().unwrap());
    assert_eq!(to("10.0.2.3:53"), Destination::Dns);
    assert_eq!(to("10.0.2.2:80"), Destination::Gateway);
    let host = "127.0.0.1:5432".parse().unwrap();
    assert_eq!(to("10.0.2.2:5432"), Destination::Host(host));
    let host6 = "[::1]:5432".parse().unwrap();
    assert_eq!(to("[fd12:3456:789a:1::2]:5432"), Destination::Host(host6));
    assert_eq!(
        to("10.0.2.77:80"),
        Destination::Refused(Refusal::Unreachable)
    );
    assert_eq!(to("10.1.2.77:80"), Destination::Refused(Refusal::Denied));
    assert_eq!(to("127.0.0.1:80"), Destination::Refused(Refusal::Denied));
    let outside = "93.184.216.34:80".parse().unwrap();
    assert_eq!(to("93.184.216.34:80"), Destination::Outside(outside));
}

#[test]
fn the_prefix_of_a_switch_is_the_same_after_every_restart() {
    let prefix = Prefix::unique_local("host1", "out");
    assert_eq!(prefix, Prefix::unique_local("host1", "out"));
    let all: Prefix = "fd00::/8".parse().unwrap();
    assert!(prefix.len() == 64 && all.contains(prefix.address()));
    assert!(is_network6(prefix));
    for (switch, port) in [("host2", "out"), ("host1", "other"), ("", "")] {
        assert!(!prefix.overlaps(Prefix::unique_local(switch, port)));
    }
    // Another switch differs in the global id, 40 bits behind the first octet.
    let other = Prefix::unique_local("host2", "out").address();
    assert!(!Prefix::around(prefix.address(), 48).contains(other));
}
