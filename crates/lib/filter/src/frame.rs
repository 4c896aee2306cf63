//! Text form of one frame, much as tcpdump prints it, for traces.
//!
//! ```text
//! frame  = ["ether" MAC > MAC] ["vlan" N] body ["length" N]
//! body   = icmp A > B [echo-reply | type N [code N]]         without a type an echo request; icmp6 likewise
//!        | tcp A:N > B:N {fin|syn|rst|psh|ack|urg|ece|cwr}    an IPv6 address with a port: [2001:db8::1]:80
//!        | udp A:N > B:N
//!        | ip [proto N] A > B                                  either version; protocol 253 without (RFC 3692)
//!        | arp who-has A tell B | arp reply A is-at MAC tell B
//!        | nd who-has A tell B                                 a neighbor solicitation (RFC 4861)
//!        | type N                                              an Ethernet frame of that type
//! ```
//! `length` counts the bytes of payload behind the last header. Ethernet addresses that are not
//! given must be found by the caller; [`FrameText::implied_destination`] helps. `arp reply`
//! contains its sender's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::build::{PacketBuilder, TcpFields};
use wire::{EtherType, MacAddr, VlanTci, arp};

use crate::ExpressionError;

mod parse;
mod text;

/// Limit of payload bytes in a description.
pub const MAX_PAYLOAD: u16 = 9000;
/// ICMPv6 type of a neighbor solicitation (RFC 4861, section 4.3).
const NEIGHBOR_SOLICITATION: u8 = 135;
/// The protocol number of an IP frame that names none: for experiments (RFC 3692).
const EXPERIMENTAL: u8 = 253;

/// A frame as it was described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameText {
    /// Source and destination address, if they were given.
    pub ether: Option<(MacAddr, MacAddr)>,
    /// Its tag, 0 to 4094.
    pub vlan: Option<u16>,
    /// Its payload.
    pub body: Body,
    /// Bytes of payload, at most [`MAX_PAYLOAD`].
    pub payload: u16,
}

/// Payload of a frame. Both IP addresses have the same version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// ICMP, or ICMPv6 between IPv6 addresses.
    Icmp {
        /// From where.
        src: IpAddr,
        /// To where.
        dst: IpAddr,
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    },
    /// TCP.
    Tcp {
        /// From where.
        src: SocketAddr,
        /// To where.
        dst: SocketAddr,
        /// Flags, see [`wire::tcp`]; the low eight.
        flags: u16,
    },
    /// UDP.
    Udp {
        /// From where.
        src: SocketAddr,
        /// To where.
        dst: SocketAddr,
    },
    /// IP that carries something else.
    Ip {
        /// From where.
        src: IpAddr,
        /// To where.
        dst: IpAddr,
        /// Protocol.
        protocol: u8,
    },
    /// An ARP request.
    ArpRequest {
        /// Requested address.
        target: Ipv4Addr,
        /// Address of the requester.
        sender: Ipv4Addr,
    },
    /// An ARP reply.
    ArpReply {
        /// Address of the replying station.
        sender: Ipv4Addr,
        /// The address, which is the frame's source unless another is given.
        mac: MacAddr,
        /// Address of the requester.
        target: Ipv4Addr,
    },
    /// A neighbor solicitation.
    NeighborSolicitation {
        /// Requested address.
        target: Ipv6Addr,
        /// Address of the requester.
        sender: Ipv6Addr,
    },
    /// Something of that type.
    Other(EtherType),
}

impl FrameText {
    /// Reads a text.
    ///
    /// # Errors
    /// What was expected, and at which column.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        parse::parse(text)
    }

    /// The source address that the description has in it.
    #[must_use]
    pub fn source(&self) -> Option<MacAddr> {
        match (self.ether, &self.body) {
            (Some((source, _)), _) => Some(source),
            (None, Body::ArpReply { mac, .. }) => Some(*mac),
            _ => None,
        }
    }

    /// Returns the destination address in the description, or the one that follows from it:
    /// broadcast for an ARP request and 255.255.255.255, a group's for a multicast address (RFC
    /// 1112, section 6.4; RFC 2464, section 7).
    #[must_use]
    pub fn implied_destination(&self) -> Option<MacAddr> {
        if let Some((_, destination)) = self.ether {
            return Some(destination);
        }
        match &self.body {
            Body::ArpRequest { .. } => Some(MacAddr::BROADCAST),
            _ => self.next_hop().and_then(group_mac),
        }
    }

    /// The IP address that the frame goes to on its segment, if it has one: that of the station
    /// whose address is missing.
    #[must_use]
    pub fn next_hop(&self) -> Option<IpAddr> {
        match self.body {
            Body::Icmp { dst, .. } | Body::Ip { dst, .. } => Some(dst),
            Body::Tcp { dst, .. } | Body::Udp { dst, .. } => Some(dst.ip()),
            Body::ArpRequest { target, .. } | Body::ArpReply { target, .. } => Some(target.into()),
            Body::NeighborSolicitation { target, .. } => Some(solicited_node(target).into()),
            Body::Other(_) => None,
        }
    }

    /// Builds the frame, from `source` to `destination` unless the description has other addresses.
    #[must_use]
    pub fn build(&self, source: MacAddr, destination: MacAddr) -> Vec<u8> {
        let (source, destination) = self.ether.unwrap_or((source, destination));
        let mut frame = PacketBuilder::new(source, destination);
        if let Some(vid) = self.vlan {
            frame = frame.vlan(VlanTci::new(vid));
        }
        let payload = vec![0; self.payload.into()];
        self.fill(frame.payload(&payload), source, destination)
            .build()
    }

    fn fill(&self, frame: PacketBuilder, source: MacAddr, destination: MacAddr) -> PacketBuilder {
        match self.body {
            Body::Icmp {
                src,
                dst,
                kind,
                code,
            } => network(frame, src, dst).icmp(kind, code, [0; 4]),
            Body::Tcp { src, dst, flags } => network(frame, src.ip(), dst.ip()).tcp(TcpFields {
                src_port: src.port(),
                dst_port: dst.port(),
                flags,
                ..TcpFields::default()
            }),
            Body::Udp { src, dst } => {
                network(frame, src.ip(), dst.ip()).udp(src.port(), dst.port())
            }
            Body::Ip { src, dst, protocol } => network(frame, src, dst).protocol(protocol),
            Body::ArpRequest { target, sender } => frame.arp_request(sender, target),
            Body::ArpReply {
                sender,
                mac,
                target,
            } => frame
                .arp(arp::REPLY, sender, destination, target)
                .arp_sender_mac(mac),
            Body::NeighborSolicitation { target, sender } => {
                solicitation(frame, source, sender, target)
            }
            Body::Other(ethertype) => frame.ethertype(ethertype),
        }
    }
}

fn network(frame: PacketBuilder, src: IpAddr, dst: IpAddr) -> PacketBuilder {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => frame.ipv4(src, dst),
        (src, dst) => frame.ipv6(in_v6(src), in_v6(dst)),
    }
}

/// An address as IPv6 writes it. Bodies do not mix versions; what one that does would mean is at
/// least a frame.
fn in_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// A neighbor solicitation with its sender's link-layer address (RFC 4861, section 4.3); without
/// that for a sender that has no address yet.
fn solicitation(
    frame: PacketBuilder,
    source: MacAddr,
    sender: Ipv6Addr,
    target: Ipv6Addr,
) -> PacketBuilder {
    let mut body = target.octets().to_vec();
    if !sender.is_unspecified() {
        body.extend([1, 1]);
        body.extend(source.0);
    }
    frame
        .ipv6(sender, solicited_node(target))
        .ttl(255)
        .icmp(NEIGHBOR_SOLICITATION, 0, [0; 4])
        .payload(&body)
}

/// Returns the multicast group of solicitations for an address (RFC 4291, section 2.7.1).
fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    const GROUP: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;
    Ipv6Addr::from_bits(GROUP | target.to_bits() & 0xff_ffff)
}

/// Returns the destination of frames for a group; `None` for a station's address.
fn group_mac(address: IpAddr) -> Option<MacAddr> {
    match address {
        IpAddr::V4(a) if a.is_broadcast() => Some(MacAddr::BROADCAST),
        IpAddr::V4(a) if a.is_multicast() => {
            let group = 0x0100_5e00_0000 | u64::from(a.to_bits() & 0x7f_ffff);
            Some(MacAddr::from_u64(group))
        }
        IpAddr::V6(a) if a.is_multicast() => {
            let group = 0x3333_0000_0000 | a.to_bits() as u64 & 0xffff_ffff;
            Some(MacAddr::from_u64(group))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
