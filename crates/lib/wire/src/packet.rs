//! One pass over a frame's header snapshot: what the switch needs to know, and no more.

use crate::{
    EtherType, MacAddr, Sum, VlanTci,
    arp::ArpView,
    ethernet::EthernetView,
    icmp::{self, IcmpView},
    ipv4::Ipv4View,
    ipv6::{self, Ipv6View},
    tcp::{self, TcpView},
    udp::{self, UdpView},
    wrapped,
};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Payload of the Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L3 {
    /// An IPv4 header whose lengths agree with the frame.
    V4 {
        /// Source address.
        src: Ipv4Addr,
        /// Destination address.
        dst: Ipv4Addr,
        /// Type of service.
        tos: u8,
    },
    /// An IPv6 header whose lengths agree with the frame.
    V6 {
        /// Source address.
        src: Ipv6Addr,
        /// Destination address.
        dst: Ipv6Addr,
        /// Traffic class.
        tos: u8,
        /// Whether a routing header was seen: `dst` may not be the final destination.
        routing: bool,
    },
    /// ARP for Ethernet and IPv4.
    Arp {
        /// Operation.
        operation: u16,
        /// Hardware address the sender claims.
        sender_mac: MacAddr,
        /// Protocol address the sender claims.
        sender_ip: Ipv4Addr,
        /// Requested protocol address.
        target_ip: Ipv4Addr,
    },
    /// Something the switch does not look into.
    #[default]
    Other,
    /// Nor into this; but a receiver may take it for IP or ARP: a tag without a VLAN, or LLC.
    Hidden,
    /// The EtherType is IP or ARP and the bytes do not agree, or there is no whole Ethernet header.
    Malformed,
}

/// Whether the frame is a piece of a larger datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragment {
    /// A whole datagram.
    #[default]
    No,
    /// A piece that begins with the transport header. An atomic fragment (RFC 6946) counts as one.
    First,
    /// A piece without a transport header.
    Later,
}

/// Result of one pass over a header snapshot. Offsets count from the frame's first byte.
///
/// A frame that is malformed above Ethernet is no error to an L2 switch: [`l3`](Self::l3) is
/// malformed then, and the fields above stay zero or `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParsedHeaders {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// The outer 802.1Q tag.
    pub vlan: Option<VlanTci>,
    /// The type after the outer tag.
    pub ethertype: EtherType,
    /// Network layer.
    pub l3: L3,
    /// Offset of the network header: 14 or 18; 0 for a frame without a whole Ethernet header.
    pub l3_offset: u16,
    /// End of the IP datagram; what follows in the frame is Ethernet padding. The frame's length
    /// for anything but IP.
    pub l3_end: u32,
    /// Protocol number behind the IP headers; of an IPv6 chain that could not be followed to its
    /// end, where it broke off.
    pub l4_proto: u8,
    /// Offset of the transport header. `None` without IP, in a later fragment, or when a TCP, UDP
    /// or ICMP header is malformed or not wholly within the snapshot.
    pub l4_offset: Option<u16>,
    /// TCP or UDP source port.
    pub src_port: u16,
    /// TCP or UDP destination port.
    pub dst_port: u16,
    /// TCP's twelve flag bits, or ICMP's type and code as `type << 8 | code`.
    pub l4_flags: u16,
    /// Fragmentation.
    pub fragment: Fragment,
    /// Bytes of all headers understood, a TCP or UDP header included.
    pub header_len: u16,
}

impl ParsedHeaders {
    /// Parses `headers`, the first bytes of a frame of `frame_len` bytes. Total: no input panics.
    #[inline]
    pub fn parse(headers: &[u8], frame_len: usize) -> Self {
        let headers = &headers[..headers.len().min(frame_len).min(usize::from(u16::MAX))];
        let Ok(eth) = EthernetView::new_checked(headers) else {
            return Self::malformed();
        };
        let mut p = Self::of_ethernet(&eth, frame_len);
        let available = frame_len - eth.header_len();
        let network = match p.ethertype {
            EtherType::IPV4 => p.ipv4(eth.payload(), available),
            EtherType::IPV6 => p.ipv6(eth.payload(), available),
            EtherType::ARP => p.arp(eth.payload()),
            other if wrapped::hides(other, eth.payload()) => Some(L3::Hidden),
            _ => Some(L3::Other),
        };
        p.l3 = network.unwrap_or(L3::Malformed);
        p
    }

    fn malformed() -> Self {
        Self {
            l3: L3::Malformed,
            ..Self::default()
        }
    }

    #[inline]
    fn of_ethernet(eth: &EthernetView<'_>, frame_len: usize) -> Self {
        Self {
            dst: eth.dst(),
            src: eth.src(),
            vlan: eth.vlan(),
            ethertype: eth.ethertype(),
            l3_offset: eth.header_len() as u16,
            l3_end: u32::try_from(frame_len).unwrap_or(u32::MAX),
            header_len: eth.header_len() as u16,
            ..Self::default()
        }
    }

    /// Returns whether there is a whole Ethernet header, the outer tag included.
    #[inline]
    pub fn has_ethernet(&self) -> bool {
        self.l3_offset != 0
    }

    /// Returns whether a transport header should be there and could not be parsed: malformed, cut
    /// off, or beyond the snapshot. A policy that matches ports must not take the zero ports of
    /// such a frame for its ports. Also true if a later fragment does not contain its protocol,
    /// because an extension header of IPv6 comes before it in the first.
    #[inline]
    pub fn l4_unknown(&self) -> bool {
        let later = self.fragment == Fragment::Later;
        self.l4_offset.is_none()
            && match self.l3 {
                L3::V4 { .. } => !later,
                L3::V6 { .. } => !later || ipv6::is_extension(self.l4_proto),
                _ => false,
            }
    }

    /// Bytes of transport header and payload in this frame, padding excluded.
    #[inline]
    pub fn l4_len(&self) -> Option<u32> {
        self.l4_offset
            .map(|at| self.l3_end.saturating_sub(u32::from(at)))
    }

    /// Returns the offset of the TCP, UDP or ICMP checksum in the frame.
    #[inline]
    pub fn checksum_offset(&self) -> Option<u16> {
        let field = match (self.l3, self.l4_proto) {
            (_, tcp::PROTOCOL) => tcp::CHECKSUM_OFFSET,
            (_, udp::PROTOCOL) => udp::CHECKSUM_OFFSET,
            (L3::V4 { .. }, icmp::PROTOCOL_V4) | (L3::V6 { .. }, icmp::PROTOCOL_V6) => {
                icmp::CHECKSUM_OFFSET
            }
            _ => return None,
        };
        self.l4_offset.map(|at| at + field as u16)
    }

    /// The pseudo-header's sum for `len` bytes of transport header and payload. `None` without IP,
    /// or when a routing header hides the final destination.
    #[inline]
    pub fn pseudo_header(&self, len: u32) -> Option<Sum> {
        match self.l3 {
            L3::V4 { src, dst, .. } => Some(Sum::pseudo_v4(src, dst, self.l4_proto, len)),
            L3::V6 {
                src,
                dst,
                routing: false,
                ..
            } => Some(Sum::pseudo_v6(src, dst, self.l4_proto, len)),
            _ => None,
        }
    }

    /// Reads an IPv4 header; `available` is the bytes of frame behind the Ethernet header.
    #[inline]
    fn ipv4(&mut self, bytes: &[u8], available: usize) -> Option<L3> {
        let ip = Ipv4View::new_checked(bytes).ok()?;
        let total = usize::from(ip.total_len());
        if total > available {
            return None;
        }
        self.l3_end = u32::from(self.l3_offset) + total as u32;
        self.fragment = fragment(ip.fragment_offset(), ip.more_fragments());
        self.l4_proto = ip.protocol();
        self.header_len += ip.header_len() as u16;
        self.transport(ip.payload(), icmp::PROTOCOL_V4);
        Some(L3::V4 {
            src: ip.src(),
            dst: ip.dst(),
            tos: ip.tos(),
        })
    }

    /// Reads an IPv6 header and its extensions.
    #[inline]
    fn ipv6(&mut self, bytes: &[u8], available: usize) -> Option<L3> {
        let ip = Ipv6View::new_checked(bytes).ok()?;
        let total = ipv6::HEADER_LEN + usize::from(ip.payload_len());
        if total > available {
            return None;
        }
        let walk = ip.extensions().ok()?;
        self.l3_end = u32::from(self.l3_offset) + total as u32;
        self.fragment = walk
            .fragment
            .map_or(Fragment::No, |(offset, _)| fragment(offset, true));
        self.l4_proto = walk.protocol;
        self.header_len += walk.len as u16;
        if walk.complete {
            let rest = ip.payload().get(walk.len - ipv6::HEADER_LEN..);
            self.transport(rest.unwrap_or_default(), icmp::PROTOCOL_V6);
        }
        Some(L3::V6 {
            src: ip.src(),
            dst: ip.dst(),
            tos: ip.traffic_class(),
            routing: walk.routing,
        })
    }

    #[inline]
    fn arp(&mut self, bytes: &[u8]) -> Option<L3> {
        let arp = ArpView::new_checked(bytes).ok()?;
        Some(L3::Arp {
            operation: arp.operation(),
            sender_mac: arp.sender_mac(),
            sender_ip: arp.sender_ip(),
            target_ip: arp.target_ip(),
        })
    }

    /// Reads the transport header at `header_len`; `bytes` ends with the datagram or the snapshot.
    #[inline]
    fn transport(&mut self, bytes: &[u8], icmp_proto: u8) {
        if self.fragment == Fragment::Later {
            return;
        }
        let len = match self.l4_proto {
            tcp::PROTOCOL => self.tcp(bytes),
            udp::PROTOCOL => self.udp(bytes),
            p if p == icmp_proto => self.icmp(bytes),
            _ => Some(0),
        };
        if let Some(len) = len {
            self.l4_offset = Some(self.header_len);
            self.header_len += len as u16;
        }
    }

    #[inline]
    fn tcp(&mut self, bytes: &[u8]) -> Option<usize> {
        let tcp = TcpView::new_checked(bytes).ok()?;
        (self.src_port, self.dst_port) = (tcp.src_port(), tcp.dst_port());
        self.l4_flags = tcp.flags();
        Some(tcp.header_len())
    }

    #[inline]
    fn udp(&mut self, bytes: &[u8]) -> Option<usize> {
        let udp = UdpView::new_checked(bytes).ok()?;
        (self.src_port, self.dst_port) = (udp.src_port(), udp.dst_port());
        Some(udp::HEADER_LEN)
    }

    #[inline]
    fn icmp(&mut self, bytes: &[u8]) -> Option<usize> {
        let icmp = IcmpView::new_checked(bytes).ok()?;
        self.l4_flags = u16::from_be_bytes([icmp.kind(), icmp.code()]);
        Some(icmp::HEADER_LEN)
    }
}

#[inline]
fn fragment(offset: u16, first: bool) -> Fragment {
    match (offset, first) {
        (0, false) => Fragment::No,
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    }
}

#[cfg(test)]
mod tests;
