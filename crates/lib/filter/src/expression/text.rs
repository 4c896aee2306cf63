//! Filters as texts that can be read again.

use std::fmt;

use wire::{EtherType, icmp, tcp, udp};

use super::{Filter, Holder, Node, Prefix, Primitive, Side, Version, width};

/// Protocols that have a word of their own.
pub(super) const PROTOCOLS: [(&str, Option<Version>, u8); 6] = [
    ("tcp", None, tcp::PROTOCOL),
    ("udp", None, udp::PROTOCOL),
    ("sctp", None, 132),
    ("icmp", Some(Version::V4), icmp::PROTOCOL_V4),
    ("icmp6", Some(Version::V6), icmp::PROTOCOL_V6),
    ("igmp", Some(Version::V4), 2),
];

/// Types of frames that have a word of their own.
pub(super) const ETHERTYPES: [(&str, EtherType); 4] = [
    ("ip", EtherType::IPV4),
    ("ip6", EtherType::IPV6),
    ("arp", EtherType::ARP),
    ("rarp", EtherType::RARP),
];

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.as_ref().map_or(Ok(()), |root| root.fmt(f))
    }
}

impl Node {
    /// Writes it as the right side of an operator.
    fn closed(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(_) | Self::Not(_) => write!(f, "{self}"),
            Self::And(..) | Self::Or(..) => write!(f, "({self})"),
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (left, word, right) = match self {
            Self::Is(primitive) => return primitive.fmt(f),
            Self::Not(node) => {
                f.write_str("not ")?;
                return node.closed(f);
            }
            Self::And(left, right) => (left, "and", right),
            Self::Or(left, right) => (left, "or", right),
        };
        write!(f, "{left} {word} ")?;
        right.closed(f)
    }
}

impl Side {
    fn word(self) -> &'static str {
        match self {
            Self::Either => "",
            Self::Source => "src ",
            Self::Destination => "dst ",
            Self::Both => "src and dst ",
        }
    }
}

impl Version {
    fn word(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.len == width(self.address) {
            return write!(f, "host {}", self.address);
        }
        write!(f, "net {}/{}", self.address, self.len)
    }
}

impl fmt::Display for Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::EtherType(ethertype) => write_ethertype(f, ethertype),
            Self::Ether(side, mac) => write!(f, "ether {}host {mac}", side.word()),
            Self::Broadcast => f.write_str("broadcast"),
            Self::Multicast => f.write_str("multicast"),
            Self::IpMulticast(version) => write!(f, "{} multicast", version.word()),
            Self::Protocol(version, number) => write_protocol(f, version, number),
            Self::Address(holder, side, prefix) => {
                let holder = match holder {
                    Holder::Any => "",
                    Holder::Ip if prefix.address.is_ipv4() => "ip ",
                    Holder::Ip => "ip6 ",
                    Holder::Arp => "arp ",
                };
                write!(f, "{holder}{}{prefix}", side.word())
            }
            Self::Ports(protocol, side, from, to) => {
                let protocol = match protocol {
                    None => "",
                    Some(tcp::PROTOCOL) => "tcp ",
                    Some(_) => "udp ",
                };
                write!(f, "{protocol}{}", side.word())?;
                if from == to {
                    write!(f, "port {from}")
                } else {
                    write!(f, "portrange {from}-{to}")
                }
            }
            Self::Vlan(None) => f.write_str("vlan"),
            Self::Vlan(Some(vid)) => write!(f, "vlan {vid}"),
            Self::Less(most) => write!(f, "less {most}"),
            Self::Greater(least) => write!(f, "greater {least}"),
        }
    }
}

fn write_ethertype(f: &mut fmt::Formatter<'_>, ethertype: EtherType) -> fmt::Result {
    match ETHERTYPES.iter().find(|(_, t)| *t == ethertype) {
        Some((word, _)) => f.write_str(word),
        None => write!(f, "ether proto {:#06x}", ethertype.0),
    }
}

fn write_protocol(f: &mut fmt::Formatter<'_>, version: Option<Version>, n: u8) -> fmt::Result {
    let known = PROTOCOLS
        .iter()
        .find(|(_, v, number)| (*v, *number) == (version, n));
    match (known, version) {
        (Some((word, ..)), _) => f.write_str(word),
        (None, Some(version)) => write!(f, "{} proto {n}", version.word()),
        (None, None) => write!(f, "proto {n}"),
    }
}
