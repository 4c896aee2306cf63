//! Frames for tests, and an independent look at frames that come back.
//!
//! Frames are built with `wire`; checksum verification and segmentation here are written from the
//! RFCs alone, byte by byte, so that they can judge the fast code under test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::build::{PacketBuilder, TcpFields};
use wire::{MacAddr, VlanTci};

use crate::net::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, NetHeader};

mod numbered;
mod verify;

pub use numbered::{
    NUMBERED_MIN, Numbered, SequenceChecker, numbered_fill, numbered_payload, numbered_read,
};
pub use verify::{
    FrameFault, Parsed, on_the_wire, parse, payload_of, verify_checksums, verify_partial,
};

/// IP protocol number of ICMP.
pub const ICMP: u8 = 1;
/// ICMP type of an echo request.
pub const ECHO_REQUEST: u8 = 8;
/// ICMP type of its answer.
pub const ECHO_REPLY: u8 = 0;
/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;

const ETH_IPV4: u16 = 0x0800;
const ETH_IPV6: u16 = 0x86dd;
const ETH_VLAN: u16 = 0x8100;

/// The broadcast address.
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// The address that test guest `n` has by convention.
#[must_use]
pub fn mac(n: u8) -> [u8; 6] {
    [0x02, 0x1a, 0x57, 0, 0, n]
}

/// Addresses and ports of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Source address of the Ethernet header.
    pub src_mac: [u8; 6],
    /// Destination address of the Ethernet header.
    pub dst_mac: [u8; 6],
    /// Source IP address.
    pub src: IpAddr,
    /// Destination IP address, of the same family.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Tag control information of an 802.1Q tag.
    pub vlan: Option<u16>,
}

impl Flow {
    /// From test guest `a` to test guest `b` over IPv4.
    #[must_use]
    pub fn v4(a: u8, b: u8) -> Self {
        let ip = |n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
        Self {
            src_mac: mac(a),
            dst_mac: mac(b),
            src: ip(a),
            dst: ip(b),
            src_port: 1000 + u16::from(a),
            dst_port: 2000 + u16::from(b),
            vlan: None,
        }
    }

    /// From test guest `a` to test guest `b` over IPv6.
    #[must_use]
    pub fn v6(a: u8, b: u8) -> Self {
        let ip = |n: u8| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)));
        Self {
            src: ip(a),
            dst: ip(b),
            ..Self::v4(a, b)
        }
    }

    /// Returns the flow in an 802.1Q tag.
    #[must_use]
    pub fn tagged(self, tci: u16) -> Self {
        Self {
            vlan: Some(tci),
            ..self
        }
    }

    /// Returns the flow between other ports.
    #[must_use]
    pub fn ports(self, src_port: u16, dst_port: u16) -> Self {
        Self {
            src_port,
            dst_port,
            ..self
        }
    }

    /// The way back.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            src_mac: self.dst_mac,
            dst_mac: self.src_mac,
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
            vlan: self.vlan,
        }
    }
}

/// A UDP datagram with valid checksums.
#[must_use]
pub fn udp(flow: &Flow, payload: &[u8]) -> Vec<u8> {
    datagram(flow, payload).build()
}

/// A TCP segment (ACK, PSH) with valid checksums.
#[must_use]
pub fn tcp(flow: &Flow, seq: u32, payload: &[u8]) -> Vec<u8> {
    segment(flow, seq, payload).build()
}

/// A UDP datagram whose checksum the device is to complete.
#[must_use]
pub fn udp_partial(flow: &Flow, payload: &[u8]) -> (Vec<u8>, NetHeader) {
    partial(&datagram(flow, payload), flow, 8, 6)
}

/// A TCP segment (ACK, PSH) whose checksum the device is to complete.
#[must_use]
pub fn tcp_partial(flow: &Flow, seq: u32, payload: &[u8]) -> (Vec<u8>, NetHeader) {
    partial(&segment(flow, seq, payload), flow, 20, 16)
}

fn datagram(flow: &Flow, payload: &[u8]) -> PacketBuilder {
    network(flow, 8 + payload.len())
        .udp(flow.src_port, flow.dst_port)
        .payload(payload)
}

fn segment(flow: &Flow, seq: u32, payload: &[u8]) -> PacketBuilder {
    let fields = TcpFields {
        src_port: flow.src_port,
        dst_port: flow.dst_port,
        seq,
        ack: 1,
        flags: wire::tcp::ACK | wire::tcp::PSH,
        options: Vec::new(),
    };
    network(flow, 20 + payload.len())
        .tcp(fields)
        .payload(payload)
}

/// A TCP super-frame that the device is to cut into segments of at most `mss` payload bytes.
///
/// # Panics
/// When the payload does not fit one IP packet.
#[must_use]
pub fn tcp_super(flow: &Flow, seq: u32, payload: &[u8], mss: u16) -> (Vec<u8>, NetHeader) {
    let (frame, header) = tcp_partial(flow, seq, payload);
    let gso_type = if flow.src.is_ipv4() {
        GSO_TCPV4
    } else {
        GSO_TCPV6
    };
    (
        frame,
        NetHeader {
            gso_type,
            gso_size: mss,
            ..header
        },
    )
}

/// A UDP super-frame that the device is to cut into datagrams of at most `size` payload bytes.
///
/// # Panics
/// When the payload does not fit one IP packet.
#[must_use]
pub fn udp_super(flow: &Flow, payload: &[u8], size: u16) -> (Vec<u8>, NetHeader) {
    let (frame, header) = udp_partial(flow, payload);
    (
        frame,
        NetHeader {
            gso_type: GSO_UDP_L4,
            gso_size: size,
            ..header
        },
    )
}

/// An ARP request that asks for `target`.
#[must_use]
pub fn arp_request(sender_mac: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    PacketBuilder::new(MacAddr(sender_mac), MacAddr::BROADCAST)
        .arp_request(sender, target)
        .build()
}

/// The answer to an ARP request.
#[must_use]
pub fn arp_reply(from: ([u8; 6], Ipv4Addr), to: ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    let target = MacAddr(to.0);
    PacketBuilder::new(MacAddr(from.0), target)
        .arp(2, from.1, target, to.1)
        .build()
}

/// The reverse ARP frame that announces where `mac` is now, as a switch sends it after migration.
#[must_use]
pub fn rarp(mac: [u8; 6]) -> Vec<u8> {
    PacketBuilder::new(MacAddr(mac), MacAddr::BROADCAST)
        .rarp_announce()
        .build()
}

/// An Ethernet frame with any type and payload.
#[must_use]
pub fn ethernet(dst: [u8; 6], src: [u8; 6], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(14 + payload.len());
    frame.extend(dst);
    frame.extend(src);
    frame.extend(ether_type.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The frame with an 802.1Q tag put behind its addresses.
///
/// # Panics
/// When the frame is shorter than two addresses.
#[must_use]
pub fn vlan_tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    let mut tagged = frame[..12].to_vec();
    tagged.extend(ETH_VLAN.to_be_bytes());
    tagged.extend(tci.to_be_bytes());
    tagged.extend(&frame[12..]);
    tagged
}

/// The frame without its 802.1Q tag, and the tag's control information, if it has one.
#[must_use]
pub fn vlan_stripped(frame: &[u8]) -> (Vec<u8>, Option<u16>) {
    if frame.len() < 18 || frame[12..14] != ETH_VLAN.to_be_bytes() {
        return (frame.to_vec(), None);
    }
    let tci = u16::from_be_bytes([frame[14], frame[15]]);
    ([&frame[..12], &frame[16..]].concat(), Some(tci))
}

/// An ICMP echo request (RFC 792), which any IP stack answers with the same identifier, number and
/// payload. The ports of `flow`, which is one of IPv4, do not count.
#[must_use]
pub fn echo_request(flow: &Flow, id: u16, seq: u16, payload: &[u8]) -> Vec<u8> {
    network(flow, 8 + payload.len())
        .echo_request(id, seq)
        .payload(payload)
        .build()
}

/// The answer to an echo request that came without IP options, from who was asked.
#[must_use]
pub fn echo_reply(request: &[u8]) -> Option<Vec<u8>> {
    let (kind, [i0, i1, s0, s1], payload) = echo_of(request)?;
    let parsed = parse(request).ok()?;
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (parsed.src, parsed.dst) else {
        return None;
    };
    let (to, from) = (
        request[..6].try_into().ok()?,
        request[6..12].try_into().ok()?,
    );
    let reply = PacketBuilder::new(MacAddr(to), MacAddr(from))
        .ipv4(dst, src)
        .icmp(ECHO_REPLY, 0, [i0, i1, s0, s1])
        .payload(payload);
    (kind == ECHO_REQUEST).then(|| reply.build())
}

/// Type, identifier with number, and payload of an ICMP message; none of any other frame.
#[must_use]
pub fn echo_of(frame: &[u8]) -> Option<(u8, [u8; 4], &[u8])> {
    let parsed = parse(frame).ok()?;
    let message = frame.get(parsed.l4..parsed.end)?;
    let (head, payload) = message.split_first_chunk::<8>()?;
    let [kind, _, _, _, rest @ ..] = *head;
    (parsed.protocol == ICMP && !parsed.fragment).then_some((kind, rest, payload))
}

/// Ethernet and IP in front of `l4_len` bytes of transport.
fn network(flow: &Flow, l4_len: usize) -> PacketBuilder {
    let builder = PacketBuilder::new(MacAddr(flow.src_mac), MacAddr(flow.dst_mac)).ip_id(0x1234);
    let builder = match flow.vlan {
        Some(tci) => builder.vlan(VlanTci::from_bits(tci)),
        None => builder,
    };
    let header = if flow.src.is_ipv4() { 20 } else { 0 };
    assert!(
        header + l4_len <= 65535,
        "a payload that fits one IP packet"
    );
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => builder.ipv4(src, dst),
        (IpAddr::V6(src), IpAddr::V6(dst)) => builder.ipv6(src, dst),
        _ => panic!("a flow between two address families"),
    }
}

/// The frame with the pseudo-header sum in its checksum field, and the header that says so.
fn partial(
    builder: &PacketBuilder,
    flow: &Flow,
    l4_header: u16,
    csum_offset: u16,
) -> (Vec<u8>, NetHeader) {
    let tag = if flow.vlan.is_some() { 4 } else { 0 };
    let csum_start = 14 + tag + if flow.src.is_ipv4() { 20 } else { 40 };
    let header = NetHeader {
        flags: NEEDS_CSUM,
        hdr_len: csum_start + l4_header,
        csum_start,
        csum_offset,
        ..NetHeader::default()
    };
    (builder.clone().partial_checksum().build(), header)
}

/// Sums from `start` to the end, the seed in the field included, and stores the complement.
fn complete(frame: &mut [u8], start: usize, offset: usize) {
    let sum = !fold(sum_bytes(&frame[start..]));
    let stored = if sum == 0 { 0xffff } else { sum };
    frame[start + offset..start + offset + 2].copy_from_slice(&stored.to_be_bytes());
}

/// RFC 1071, the slow way.
fn sum_bytes(bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)))
        .sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn pseudo_sum(src: IpAddr, dst: IpAddr, protocol: u8, l4_len: usize) -> u64 {
    let bytes = |ip| match ip {
        IpAddr::V4(ip) => sum_bytes(&ip.octets()),
        IpAddr::V6(ip) => sum_bytes(&ip.octets()),
    };
    bytes(src) + bytes(dst) + u64::from(protocol) + l4_len as u64
}

#[cfg(test)]
mod tests;
