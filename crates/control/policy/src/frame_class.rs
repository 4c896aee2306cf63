//! Frame classes for port security: the part of anti-spoofing that needs no other knowledge than
//! the frame's own.
//!
//! A frame names its sender in several places, and a receiver may trust any of them: the Ethernet
//! header, ARP's sender (RFC 826), the link-layer options of neighbour discovery (RFC 4861).
//! [`classify`] compares them. Whether the Ethernet header itself is permitted, and which port may
//! be a server or a router, is decided by [`crate::port_security`].
//!
//! Frames that a receiver may parse otherwise are never trusted: contents behind tags without a
//! VLAN, behind LLC, or behind more extension headers than are parsed ([`wire::SNAPSHOT`]) are
//! [`FrameClass::Unparseable`], because filters were bypassed that way (CVE-2021-27853,
//! CVE-2021-27854, CVE-2021-27861, CVE-2021-27862; RFC 7113).

use std::net::Ipv6Addr;

use wire::arp::{self, ArpView};
use wire::packet::{Fragment, L3, ParsedHeaders};
use wire::{EtherType, FrameClass, MacAddr, icmp, tcp, udp};

/// Ports of a DHCP server and of a client (RFC 2131, 4.1).
const DHCP: (u16, u16) = (67, 68);
/// Ports of a DHCPv6 server and client (RFC 8415, 7.2).
const DHCPV6: (u16, u16) = (547, 546);

/// ICMP types that only routers send: redirects (RFC 792) and advertisements (RFC 1256, 3).
const ROUTERS_V4: [u8; 2] = [5, 9];
/// ICMPv6 types (RFC 4861, 4).
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
pub(crate) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(crate) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Options that bring a link-layer address (RFC 4861, 4.6.1).
const LINK_LAYER_OPTIONS: [u8; 2] = [1, 2];
/// Bytes of such an option for Ethernet (RFC 2464, 6).
const LINK_LAYER_LEN: usize = 8;
/// Bytes of a solicitation or an advertisement before its options.
const NEIGHBOUR_LEN: usize = 24;
/// Offset of the hop limit in an IPv6 header.
const HOP_LIMIT: usize = 7;

/// Returns the class of a frame of `frame_len` bytes whose first bytes are `headers`: all of it, or
/// as much as is parsed of any frame ([`wire::SNAPSHOT`]). Total: no input panics.
#[must_use]
pub fn classify(headers: &[u8], frame_len: usize) -> FrameClass {
    if is_ordinary(headers) {
        return FrameClass::Ordinary;
    }
    parse(headers, frame_len)
}

fn parse(headers: &[u8], frame_len: usize) -> FrameClass {
    let parsed = ParsedHeaders::parse(headers, frame_len);
    match (parsed.ethertype, parsed.l3) {
        (EtherType::ARP, _) => of_arp(&parsed, headers),
        (_, L3::V4 { .. } | L3::V6 { .. }) => of_datagram(&parsed, headers, frame_len),
        (EtherType::IPV4 | EtherType::IPV6, _) => FrameClass::Unparseable,
        (_, L3::Hidden) => FrameClass::Unparseable,
        _ => FrameClass::Ordinary,
    }
}

/// Returns how many of a frame's first bytes its class and its flow key may depend on. `None`:
/// possibly all of them.
#[must_use]
pub fn parsed_extent(parsed: &ParsedHeaders) -> Option<u16> {
    match (parsed.l3, parsed.l4_proto) {
        (L3::V6 { .. }, icmp::PROTOCOL_V6) => None,
        (L3::V4 { .. } | L3::V6 { .. }, _) => parsed.l4_offset.and(Some(parsed.header_len)),
        (L3::Other | L3::Hidden, _) => Some(parsed.l3_offset + wire::LLC_LEN as u16),
        (L3::Arp { .. } | L3::Malformed, _) => None,
    }
}

/// Returns whether the first bytes of a frame prove that its class is [`FrameClass::Ordinary`]. For
/// the path of every frame: it returns false if it would have to parse further. Lengths are not
/// compared: a frame that is harmless with valid ones is dropped by its receiver with invalid ones.
#[inline(always)]
#[must_use]
pub fn is_ordinary(headers: &[u8]) -> bool {
    match type_at(headers, 12) {
        Some(EtherType::IPV4) => is_ordinary_v4(headers, 14),
        Some(EtherType::IPV6) => is_ordinary_v6(headers, 14),
        Some(EtherType::VLAN) => match type_at(headers, 16) {
            Some(EtherType::IPV4) => is_ordinary_v4(headers, 18),
            Some(EtherType::IPV6) => is_ordinary_v6(headers, 18),
            _ => false,
        },
        _ => false,
    }
}

#[inline(always)]
fn type_at(headers: &[u8], at: usize) -> Option<EtherType> {
    let bytes = headers.get(at..)?.first_chunk::<2>()?;
    Some(EtherType(u16::from_be_bytes(*bytes)))
}

/// The two bytes at `at`, a constant of the caller, so that the bounds check folds away.
#[inline(always)]
fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// A header without options, and TCP behind it, or UDP between ports that no server has, or ICMP
/// that not only routers send.
#[inline(always)]
fn is_ordinary_v4(headers: &[u8], at: usize) -> bool {
    let Some(ip) = headers.get(at..).and_then(<[u8]>::first_chunk::<24>) else {
        return false;
    };
    let harmless = match ip[9] {
        tcp::PROTOCOL => true,
        udp::PROTOCOL => !is_server(be16(ip, 20), be16(ip, 22), DHCP),
        icmp::PROTOCOL_V4 => !ROUTERS_V4.contains(&ip[20]),
        _ => false,
    };
    harmless && ip[0] == 0x45
}

/// TCP behind the fixed header, or UDP between ports that no server has, or an echo.
#[inline(always)]
fn is_ordinary_v6(headers: &[u8], at: usize) -> bool {
    let Some(ip) = headers.get(at..).and_then(<[u8]>::first_chunk::<44>) else {
        return false;
    };
    let harmless = match ip[6] {
        tcp::PROTOCOL => true,
        udp::PROTOCOL => !is_server(be16(ip, 40), be16(ip, 42), DHCPV6),
        icmp::PROTOCOL_V6 => ip[40] < ROUTER_SOLICITATION,
        _ => false,
    };
    harmless && ip[0] >> 4 == 6
}

/// Returns whether a datagram between these ports may come from a server: clients listen to one
/// port and do not look at the other; relays are spoken to from the server's port.
#[inline(always)]
fn is_server(src: u16, dst: u16, (server, client): (u16, u16)) -> bool {
    dst == client || src == server
}

/// ARP is true when its sender is the frame's, and it is a request or a reply (RFC 826) of a
/// possible address; only a request may have none (RFC 5227, 1.1).
fn of_arp(parsed: &ParsedHeaders, headers: &[u8]) -> FrameClass {
    let packet = headers.get(usize::from(parsed.l3_offset)..);
    let Ok(arp) = ArpView::new_checked(packet.unwrap_or_default()) else {
        return FrameClass::SpoofedNeighbour;
    };
    let sender = arp.sender_ip();
    let known = match arp.operation() {
        arp::REQUEST => true,
        arp::REPLY => !sender.is_unspecified(),
        _ => false,
    };
    let possible = !sender.is_multicast() && !sender.is_broadcast();
    let asks = arp.operation() == arp::REQUEST && sender != arp.target_ip();
    match known && possible && arp.sender_mac() == parsed.src {
        true if asks && parsed.dst.is_multicast() => FrameClass::NeighbourRequest,
        true => FrameClass::Ordinary,
        false => FrameClass::SpoofedNeighbour,
    }
}

fn of_datagram(parsed: &ParsedHeaders, headers: &[u8], frame_len: usize) -> FrameClass {
    if parsed.fragment == Fragment::Later {
        return FrameClass::Ordinary;
    }
    if parsed.l4_unknown() && parsed.l4_proto != tcp::PROTOCOL {
        return FrameClass::Unparseable;
    }
    let v6 = parsed.ethertype == EtherType::IPV6;
    let ports = if v6 { DHCPV6 } else { DHCP };
    match parsed.l4_proto {
        udp::PROTOCOL if is_server(parsed.src_port, parsed.dst_port, ports) => {
            FrameClass::DhcpServer
        }
        icmp::PROTOCOL_V4 if !v6 && ROUTERS_V4.contains(&icmp_type(parsed)) => FrameClass::Router,
        icmp::PROTOCOL_V6 if v6 => of_icmpv6(parsed, headers, frame_len),
        _ => FrameClass::Ordinary,
    }
}

fn icmp_type(parsed: &ParsedHeaders) -> u8 {
    (parsed.l4_flags >> 8) as u8
}

fn of_icmpv6(parsed: &ParsedHeaders, headers: &[u8], frame_len: usize) -> FrameClass {
    match icmp_type(parsed) {
        ROUTER_ADVERTISEMENT | REDIRECT => FrameClass::Router,
        ROUTER_SOLICITATION | NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => {
            match Neighbour::of(parsed, headers, frame_len) {
                Some(Neighbour { target: None, .. }) => FrameClass::Ordinary,
                Some(_) => FrameClass::Neighbour,
                None => FrameClass::SpoofedNeighbour,
            }
        }
        _ => FrameClass::Ordinary,
    }
}

/// A solicitation or an advertisement of neighbour discovery that does not contradict itself (RFC
/// 4861, 6.1.1, 7.1.1 and 7.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The address that its sender claims: that of an advertisement, and of a solicitation from the
    /// unspecified address, which probes for duplicates (RFC 4862, 5.4). Otherwise only the source
    /// address is claimed.
    pub claims: Option<Ipv6Addr>,
    /// The address that it is about; none for a router solicitation.
    pub target: Option<Ipv6Addr>,
}

impl Neighbour {
    /// Parses the message of a frame of `frame_len` bytes with these first bytes. `None` if it
    /// contradicts itself or its frame, is a fragment (RFC 6980), or no neighbour discovery at all.
    #[must_use]
    pub fn in_frame(headers: &[u8], frame_len: usize) -> Option<Self> {
        Self::of(
            &ParsedHeaders::parse(headers, frame_len),
            headers,
            frame_len,
        )
    }

    fn of(parsed: &ParsedHeaders, headers: &[u8], frame_len: usize) -> Option<Self> {
        let L3::V6 { src, dst, .. } = parsed.l3 else {
            return None;
        };
        let hop_limit = headers.get(usize::from(parsed.l3_offset) + HOP_LIMIT)?;
        let whole = (parsed.l3_end as usize).min(frame_len);
        // What was not copied cannot be checked.
        let message = headers.get(usize::from(parsed.l4_offset?)..whole)?;
        let icmp6 = parsed.l4_proto == icmp::PROTOCOL_V6 && parsed.fragment == Fragment::No;
        let [kind, code] = parsed.l4_flags.to_be_bytes();
        if !icmp6 || *hop_limit != 255 || code != 0 {
            return None;
        }
        let asks = kind == NEIGHBOUR_SOLICITATION;
        let target = match kind {
            ROUTER_SOLICITATION => None,
            NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => Some(target(message)?),
            _ => return None,
        };
        let fixed = target.map_or(icmp::HEADER_LEN, |_| NEIGHBOUR_LEN);
        let addresses = link_layer_addresses(message.get(fixed..)?, parsed.src)?;
        let nobody = src.is_unspecified();
        let silent = !nobody || (addresses == 0 && (kind != NEIGHBOUR_ADVERTISEMENT));
        let asked_rightly = !(nobody && asks) || is_solicited_node(dst);
        let solicited = message[4] & SOLICITED != 0;
        let answers_rightly = kind != NEIGHBOUR_ADVERTISEMENT || !(solicited && dst.is_multicast());
        let claims = target.filter(|_| !asks || nobody);
        (silent && asked_rightly && answers_rightly).then_some(Self { claims, target })
    }
}

/// The flag of an advertisement that answers (RFC 4861, 4.4).
const SOLICITED: u8 = 0x40;

/// The target of a solicitation or an advertisement, which is one node's.
fn target(message: &[u8]) -> Option<Ipv6Addr> {
    let bytes = message.get(icmp::HEADER_LEN..)?.first_chunk::<16>()?;
    let target = Ipv6Addr::from(*bytes);
    (!target.is_multicast()).then_some(target)
}

/// ff02::1:ff00:0/104 (RFC 4291, 2.7.1).
fn is_solicited_node(address: Ipv6Addr) -> bool {
    address.to_bits() >> 24 == 0xff02_0000_0000_0000_0000_0001_ff00_0000 >> 24
}

/// How many link-layer addresses options bring, if all are `own` and the options are whole.
fn link_layer_addresses(mut options: &[u8], own: MacAddr) -> Option<usize> {
    let mut found = 0;
    while let Some((&kind, rest)) = options.split_first() {
        let len = usize::from(*rest.first()?) * 8;
        if len == 0 || len > options.len() {
            return None;
        }
        if LINK_LAYER_OPTIONS.contains(&kind) {
            let address = options.get(2..)?.first_chunk::<6>()?;
            if len != LINK_LAYER_LEN || MacAddr(*address) != own {
                return None;
            }
            found += 1;
        }
        options = &options[len..];
    }
    Some(found)
}

#[cfg(test)]
mod tests;
