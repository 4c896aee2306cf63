//! ARP (RFC 826), neighbour discovery and router advertisements (RFC 4861, RFC 8106) of gateway and
//! DNS server.

use std::net::{IpAddr, Ipv6Addr};

use wire::MacAddr;
use wire::arp::{self, ArpView};
use wire::build::PacketBuilder;

use crate::network::{Network, Refusal};

use super::incoming::{Message, Packet};
use super::search::Search;

/// Types of ICMPv6 messages (RFC 4861, section 4).
pub(super) const ROUTER_SOLICITATION: u8 = 133;
pub(super) const NEIGHBOUR_SOLICITATION: u8 = 135;
const ROUTER_ADVERTISEMENT: u8 = 134;
pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// The flag of an advertisement that answers a solicitation (RFC 4861, section 4.4).
const SOLICITED: u8 = 1 << 6;
/// Hop limit of all of them; a router would have lowered it.
const HOPS: u8 = 255;
/// All nodes of the link (RFC 4291, section 2.7.1), and its group address (RFC 2464, section 7).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
/// Lifetime of a default router in seconds: three times the longest interval between
/// advertisements (RFC 4861, section 6.2.1).
pub const ROUTER_LIFETIME: u16 = 1800;
/// Lifetimes of the prefix's addresses in seconds.
const PREFIX_VALID: u32 = 86_400;
const PREFIX_PREFERRED: u32 = 14_400;

/// Answers an ARP request for gateway or DNS server.
pub(super) fn arp(network: &Network, from: MacAddr, packet: &ArpView<'_>) -> Option<Vec<u8>> {
    let target = packet.target_ip();
    let ours = target == network.gateway() || target == network.dns();
    // A sender that claims one of these addresses itself asks about a conflict (RFC 5227): the
    // answer tells it.
    let honest = packet.operation() == arp::REQUEST && packet.sender_mac() == from;
    (ours && honest).then(|| {
        PacketBuilder::new(network.mac(), from)
            .arp(arp::REPLY, target, from, packet.sender_ip())
            .build()
    })
}

/// Answers a neighbour solicitation for gateway or DNS server (RFC 4861, section 7.2.4). An answer
/// to all nodes goes to the asking station alone (RFC 6085), so that a guest cannot have the
/// gateway flood the segment.
///
/// # Errors
/// [`Refusal::Protocol`] for a message that section 7.1.1 has discarded.
pub(super) fn solicited(
    network: &Network,
    from: MacAddr,
    packet: &Packet<'_>,
    message: &Message<'_>,
) -> Result<Option<Vec<u8>>, Refusal> {
    let IpAddr::V6(asker) = packet.from else {
        return Err(Refusal::Protocol);
    };
    let (target, options) = message
        .body
        .split_first_chunk::<16>()
        .ok_or(Refusal::Protocol)?;
    let target = Ipv6Addr::from(*target);
    let probe = asker.is_unspecified();
    let source = check_options(options)?;
    // Who has no address yet names no station, and asks the group of the address.
    let bad_probe = probe && (source || !packet.to.is_multicast());
    if packet.hops != HOPS || message.code != 0 || target.is_multicast() || bad_probe {
        return Err(Refusal::Protocol);
    }
    let gateway = network.is_gateway(target.into());
    if !gateway && !network.is_dns(target.into()) {
        return Ok(None);
    }
    let to = if probe { ALL_NODES } else { asker };
    // Router, solicited, override.
    let flags = u8::from(gateway) << 7 | u8::from(!probe) << 6 | 1 << 5;
    let mut body = target.octets().to_vec();
    body.extend([2, 1]);
    body.extend(network.mac().0);
    let answer = PacketBuilder::new(network.mac(), from)
        .ipv6(target, to)
        .ttl(HOPS)
        .icmp(NEIGHBOUR_ADVERTISEMENT, 0, [flags, 0, 0, 0])
        .payload(&body);
    Ok(Some(answer.build()))
}

/// Checks a neighbour advertisement, and returns the address that it is about.
///
/// # Errors
/// [`Refusal::Protocol`] for a message that RFC 4861, section 7.1.2, has discarded.
pub(super) fn advertised(packet: &Packet<'_>, message: &Message<'_>) -> Result<Ipv6Addr, Refusal> {
    let (target, options) = message
        .body
        .split_first_chunk::<16>()
        .ok_or(Refusal::Protocol)?;
    let target = Ipv6Addr::from(*target);
    let is_solicited = message.rest[0] & SOLICITED != 0;
    check_options(options)?;
    let is_bad = packet.hops != HOPS
        || message.code != 0
        || target.is_multicast()
        || is_solicited && packet.to.is_multicast();
    if is_bad {
        return Err(Refusal::Protocol);
    }
    Ok(target)
}

/// The frame that asks for the station at an address: an ARP request, or a neighbour solicitation
/// to the group of the address (RFC 4291, section 2.7.1; RFC 2464, section 7).
pub(super) fn ask(network: &Network, address: IpAddr) -> Vec<u8> {
    let own = network.mac();
    let address = match address {
        IpAddr::V4(address) => {
            let request = PacketBuilder::new(own, MacAddr::BROADCAST);
            return request.arp_request(network.gateway(), address).build();
        }
        IpAddr::V6(address) => address,
    };
    let [.., a, b, c] = address.octets();
    let low = [u16::from_be_bytes([0xff, a]), u16::from_be_bytes([b, c])];
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, low[0], low[1]);
    let body = [&address.octets()[..], &[1, 1], &own.0].concat();
    PacketBuilder::new(own, MacAddr([0x33, 0x33, 0xff, a, b, c]))
        .ipv6(network.link_local(), group)
        .ttl(HOPS)
        .icmp(NEIGHBOUR_SOLICITATION, 0, [0; 4])
        .payload(&body)
        .build()
}

/// Answers a router solicitation (RFC 4861, section 6.1.1), the asking station alone, as
/// [`solicited`] does.
///
/// # Errors
/// [`Refusal::Protocol`] for a message that must be discarded.
pub(super) fn router_solicited(
    network: &Network,
    offer: &Offer,
    from: MacAddr,
    packet: &Packet<'_>,
    message: &Message<'_>,
) -> Result<Option<Vec<u8>>, Refusal> {
    let IpAddr::V6(asker) = packet.from else {
        return Err(Refusal::Protocol);
    };
    let source = check_options(message.body)?;
    let bad = packet.hops != HOPS || message.code != 0;
    if bad || source && asker.is_unspecified() {
        return Err(Refusal::Protocol);
    }
    let to = match asker.is_unspecified() {
        true => ALL_NODES,
        false => asker,
    };
    Ok(advertisement(network, offer, Some((from, to))))
}

/// Checks the lengths of options; returns whether one is the sender's own station.
fn check_options(mut options: &[u8]) -> Result<bool, Refusal> {
    let mut source = false;
    while let Some(&[kind, units]) = options.first_chunk::<2>() {
        let len = usize::from(units) * 8;
        if len == 0 || len > options.len() {
            return Err(Refusal::Protocol);
        }
        source |= kind == 1;
        options = &options[len..];
    }
    if options.is_empty() {
        Ok(source)
    } else {
        Err(Refusal::Protocol)
    }
}

/// The offer of router advertisements and DHCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Whether the host has a route for IPv6. Without, guests get addresses but no default route.
    pub route6: bool,
    /// Whether the DNS server answers.
    pub dns: bool,
    /// The search domains of guests.
    pub search: Search,
}

/// Returns a router advertisement to one guest, or to all; `None` without IPv6.
pub(super) fn advertisement(
    network: &Network,
    offer: &Offer,
    to: Option<(MacAddr, Ipv6Addr)>,
) -> Option<Vec<u8>> {
    let IpAddr::V6(prefix) = network.prefix6()?.address() else {
        return None;
    };
    let (mac, to) = to.unwrap_or((ALL_NODES_MAC, ALL_NODES));
    let lifetime = if offer.route6 { ROUTER_LIFETIME } else { 0 };
    // The current hop limit; other configuration by DHCPv6, and no addresses by it.
    let [high, low] = lifetime.to_be_bytes();
    let mut body = vec![0; 8];
    body.extend([1, 1]);
    body.extend(network.mac().0);
    body.extend([5, 1, 0, 0]);
    body.extend(u32::from(network.mtu()).to_be_bytes());
    body.extend([3, 4, 64, 0xc0]);
    body.extend(PREFIX_VALID.to_be_bytes());
    body.extend(PREFIX_PREFERRED.to_be_bytes());
    body.extend([0; 4]);
    body.extend(prefix.octets());
    // The domains, with zeros to a multiple of 8 bytes (RFC 8106, section 5.2).
    let mut search = offer.search.wire();
    if !search.is_empty() {
        search.resize(search.len().next_multiple_of(8), 0);
        body.extend([31, 1 + (search.len() / 8) as u8, 0, 0]);
        body.extend(u32::from(ROUTER_LIFETIME).to_be_bytes());
        body.extend(search);
    }
    if let Some(dns) = network.dns6().filter(|_| offer.dns) {
        body.extend([25, 3, 0, 0]);
        body.extend(u32::from(ROUTER_LIFETIME).to_be_bytes());
        body.extend(dns.octets());
    }
    let frame = PacketBuilder::new(network.mac(), mac)
        .ipv6(network.link_local(), to)
        .ttl(HOPS)
        .icmp(ROUTER_ADVERTISEMENT, 0, [64, 0x40, high, low])
        .payload(&body);
    Some(frame.build())
}
