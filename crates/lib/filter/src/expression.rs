//! Frame filters: a subset of pcap-filter(7), evaluated on a [`ParsedHeaders`] frame.
//!
//! ```text
//! filter    = [ term { ("and" | "or") term } ]                both bind alike, from left to right
//! term      = ["not"] ( primitive | "(" filter ")" )          also written && || !
//! primitive = ether [src|dst] [host] MAC | ether proto TYPE | [ether] broadcast | [ether] multicast
//!           | [ip|ip6|arp] [src|dst] (host ADDRESS | net PREFIX) | (ip|ip6) multicast
//!           | [tcp|udp] [src|dst] (port N | portrange N-N)
//!           | ip | ip6 | arp | rarp | tcp | udp | sctp | icmp | icmp6 | igmp | [ip|ip6] proto N
//!           | vlan [N] | less N | greater N
//! ```
//! `src or dst` (the default) and `src and dst` may stand for `[src|dst]`. A value alone behind
//! `and` or `or` has the kind of the one before it: `port 80 or 443`. An empty text matches every
//! frame. A filter is printed in full, which may be longer than its source text, and than
//! [`MAX_TEXT`](crate::MAX_TEXT).
//!
//! Differences: all but `vlan` looks through the outer tag, so `ip` matches tagged frames too, and
//! `vlan 5 and ip` reads naturally; names of hosts and services are not resolved; `sctp` has no
//! ports; bytes (`tcp[13]`) cannot be matched.

use std::net::IpAddr;

use wire::packet::{Fragment, L3};
use wire::{EtherType, MacAddr, ParsedHeaders};

use crate::ExpressionError;

mod connection;
mod parse;
mod text;

pub use connection::{ConnectionEnds, ConnectionFilter};
use parse::About;

/// Which frames are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// `None` means every frame.
    root: Option<Node>,
}

impl Filter {
    /// Reads a text.
    ///
    /// # Errors
    /// What was expected, and at which column.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        let root = parse::parse(text, About::Frames)?;
        Ok(Self { root })
    }

    /// Returns a filter for `root`.
    #[must_use]
    pub fn new(root: Node) -> Self {
        Self { root: Some(root) }
    }

    /// Returns whether every frame is meant.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.root.is_none()
    }

    /// Returns whether a frame of `len` bytes is meant. Allocates nothing.
    #[must_use]
    pub fn matches(&self, frame: &ParsedHeaders, len: u32) -> bool {
        self.root.as_ref().is_none_or(|n| n.matches(frame, len))
    }
}

/// A filter, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A primitive.
    Is(Primitive),
    /// Frames that the operand does not match.
    Not(Box<Node>),
    /// Frames that both match.
    And(Box<Node>, Box<Node>),
    /// Frames that either matches.
    Or(Box<Node>, Box<Node>),
}

impl Node {
    fn matches(&self, frame: &ParsedHeaders, len: u32) -> bool {
        match self {
            Self::Is(primitive) => primitive.matches(frame, len),
            Self::Not(node) => !node.matches(frame, len),
            Self::And(a, b) => a.matches(frame, len) && b.matches(frame, len),
            Self::Or(a, b) => a.matches(frame, len) || b.matches(frame, len),
        }
    }
}

/// Which of a frame's two addresses or ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// One of them.
    #[default]
    Either,
    /// The source.
    Source,
    /// The destination.
    Destination,
    /// Both.
    Both,
}

impl Side {
    fn asks(self, source: bool, destination: bool) -> bool {
        match self {
            Self::Either => source || destination,
            Self::Source => source,
            Self::Destination => destination,
            Self::Both => source && destination,
        }
    }
}

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Protocol whose addresses are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holder {
    /// In IP headers and ARP.
    #[default]
    Any,
    /// In an IP header.
    Ip,
    /// In ARP.
    Arp,
}

/// A range of IP addresses: those that begin with the first `len` bits of `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// The prefix; `None` if it is too long, or bits behind it are set.
    #[must_use]
    pub fn new(address: IpAddr, len: u8) -> Option<Self> {
        let prefix = Self { address, len };
        let whole = width(address);
        (len <= whole && bits(address) & !prefix.mask() == 0).then_some(prefix)
    }

    /// One address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        let len = width(address);
        Self { address, len }
    }

    fn mask(&self) -> u128 {
        let whole = u32::from(width(self.address));
        let behind = whole - u32::from(self.len);
        u128::MAX.checked_shl(behind).unwrap_or(0)
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && bits(address) & self.mask() == bits(self.address)
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => a.to_bits().into(),
        IpAddr::V6(a) => a.to_bits(),
    }
}

/// One question about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// Its type, behind the outer tag.
    EtherType(EtherType),
    /// Its Ethernet addresses.
    Ether(Side, MacAddr),
    /// Whether it goes to all stations.
    Broadcast,
    /// Whether it goes to a group of stations, or to all.
    Multicast,
    /// Whether its IP destination is a group (RFC 1112, RFC 4291).
    IpMulticast(Version),
    /// The protocol that IP carries, of one version or any.
    Protocol(Option<Version>, u8),
    /// Its IP addresses.
    Address(Holder, Side, Prefix),
    /// Its TCP or UDP ports, from one to another; of one protocol or either. Pieces without ports
    /// have none.
    Ports(Option<u8>, Side, u16, u16),
    /// Its outer tag.
    Vlan(Option<u16>),
    /// Whether it has at most that many bytes.
    Less(u32),
    /// Whether it has at least that many bytes.
    Greater(u32),
}

impl Primitive {
    fn matches(&self, p: &ParsedHeaders, len: u32) -> bool {
        match *self {
            Self::EtherType(ethertype) => p.has_ethernet() && p.ethertype == ethertype,
            Self::Ether(side, mac) => p.has_ethernet() && side.asks(p.src == mac, p.dst == mac),
            Self::Broadcast => p.dst.is_broadcast(),
            Self::Multicast => p.dst.is_multicast(),
            Self::IpMulticast(version) => to_group(p, version),
            Self::Protocol(version, number) => {
                version_of(p).is_some_and(|v| version.is_none_or(|desired| desired == v))
                    && p.l4_proto == number
            }
            Self::Address(holder, side, prefix) => {
                addresses(p, holder).is_some_and(|(source, destination)| {
                    side.asks(prefix.contains(source), prefix.contains(destination))
                })
            }
            Self::Ports(protocol, side, from, to) => {
                let desired = from..=to;
                has_ports(p, protocol)
                    && side.asks(desired.contains(&p.src_port), desired.contains(&p.dst_port))
            }
            Self::Vlan(desired) => p
                .vlan
                .is_some_and(|tag| desired.is_none_or(|vid| vid == tag.vid)),
            Self::Less(most) => len <= most,
            Self::Greater(least) => len >= least,
        }
    }
}

fn version_of(p: &ParsedHeaders) -> Option<Version> {
    match p.l3 {
        L3::V4 { .. } => Some(Version::V4),
        L3::V6 { .. } => Some(Version::V6),
        _ => None,
    }
}

fn to_group(p: &ParsedHeaders, version: Version) -> bool {
    match p.l3 {
        L3::V4 { dst, .. } => version == Version::V4 && dst.is_multicast(),
        L3::V6 { dst, .. } => version == Version::V6 && dst.is_multicast(),
        _ => false,
    }
}

fn addresses(p: &ParsedHeaders, holder: Holder) -> Option<(IpAddr, IpAddr)> {
    match p.l3 {
        L3::V4 { src, dst, .. } if holder != Holder::Arp => Some((src.into(), dst.into())),
        L3::V6 { src, dst, .. } if holder != Holder::Arp => Some((src.into(), dst.into())),
        L3::Arp {
            sender_ip,
            target_ip,
            ..
        } if holder != Holder::Ip => Some((sender_ip.into(), target_ip.into())),
        _ => None,
    }
}

fn has_ports(p: &ParsedHeaders, protocol: Option<u8>) -> bool {
    let known = matches!(p.l4_proto, wire::tcp::PROTOCOL | wire::udp::PROTOCOL);
    known
        && p.l4_offset.is_some()
        && p.fragment != Fragment::Later
        && protocol.is_none_or(|desired| desired == p.l4_proto)
}

#[cfg(test)]
mod tests;
