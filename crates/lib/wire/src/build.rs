//! Whole frames with right lengths and checksums, for tests and for control. Allocates; not for the
//! hot path.
//!
//! ```
//! use wire::{MacAddr, ParsedHeaders, build::PacketBuilder};
//! let frame = PacketBuilder::new("52:54:00:00:00:01".parse().unwrap(), MacAddr::BROADCAST)
//!     .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
//!     .udp(1000, 53)
//!     .payload(b"query")
//!     .build();
//! assert_eq!(ParsedHeaders::parse(&frame, frame.len()).dst_port, 53);
//! ```

use crate::{EtherType, MacAddr, Sum, VlanTci, arp, bytes::put16, icmp, tcp, udp};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The fields of a TCP header that a test may care about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpFields {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags, see [`crate::tcp`].
    pub flags: u16,
    /// Options, padded with zero to four bytes; at most 40 bytes are taken.
    pub options: Vec<u8>,
}

/// The network header, with source and destination.
#[derive(Clone, Debug)]
enum Network {
    Raw(EtherType),
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

#[derive(Clone, Debug)]
enum Transport {
    Raw(u8),
    Tcp(TcpFields),
    Udp(u16, u16),
    Icmp(u8, u8, [u8; 4]),
}

/// Builds one frame, layer by layer. Without a network layer it is of EtherType 0x88b5 (local
/// experiments).
#[derive(Clone, Debug)]
pub struct PacketBuilder {
    src: MacAddr,
    dst: MacAddr,
    vlan: Option<VlanTci>,
    network: Network,
    transport: Transport,
    tos: u8,
    ttl: u8,
    id: u16,
    fragment: Option<(u16, bool)>,
    extensions: Vec<(u8, Vec<u8>)>,
    payload: Vec<u8>,
    partial: bool,
    pad_to: usize,
}

impl PacketBuilder {
    /// A frame from `src` to `dst`.
    pub fn new(src: MacAddr, dst: MacAddr) -> Self {
        Self {
            src,
            dst,
            vlan: None,
            network: Network::Raw(EtherType(0x88b5)),
            transport: Transport::Raw(253),
            tos: 0,
            ttl: 64,
            id: 0,
            fragment: None,
            extensions: Vec::new(),
            payload: Vec::new(),
            partial: false,
            pad_to: 0,
        }
    }

    /// Puts an 802.1Q tag in.
    pub fn vlan(mut self, tci: VlanTci) -> Self {
        self.vlan = Some(tci);
        self
    }

    /// The payload follows the Ethernet header.
    pub fn ethertype(mut self, ethertype: EtherType) -> Self {
        self.network = Network::Raw(ethertype);
        self
    }

    /// An ARP packet, or RARP for operations 3 and 4 (RFC 903); the frame's source is the sender's
    /// hardware address. It replaces the payload.
    pub fn arp(
        mut self,
        operation: u16,
        sender: impl Into<Ipv4Addr>,
        target_mac: MacAddr,
        target: impl Into<Ipv4Addr>,
    ) -> Self {
        self.network = Network::Raw(match operation {
            3 | 4 => EtherType::RARP,
            _ => EtherType::ARP,
        });
        self.payload = vec![0, 1, 8, 0, 6, 4];
        self.payload.extend(operation.to_be_bytes());
        self.payload.extend(self.src.0);
        self.payload.extend(sender.into().octets());
        self.payload.extend(target_mac.0);
        self.payload.extend(target.into().octets());
        self
    }

    /// Sets another sender hardware address in the ARP packet than the frame's source.
    pub fn arp_sender_mac(mut self, mac: MacAddr) -> Self {
        if let Some(sender) = self.payload.get_mut(8..14) {
            sender.copy_from_slice(&mac.0);
        }
        self
    }

    /// An ARP request for `target`.
    pub fn arp_request(self, sender: impl Into<Ipv4Addr>, target: impl Into<Ipv4Addr>) -> Self {
        self.arp(arp::REQUEST, sender, MacAddr::ZERO, target)
    }

    /// Builds the reverse ARP request by which a station announces its location, as QEMU sends it
    /// after a migration (vhost-user specification, `VHOST_USER_SEND_RARP`): the frame's source
    /// requests its own address.
    pub fn rarp_announce(self) -> Self {
        let own = self.src;
        self.arp(arp::REVERSE_REQUEST, [0; 4], own, [0; 4])
    }

    /// An IPv4 header.
    pub fn ipv4(mut self, src: impl Into<Ipv4Addr>, dst: impl Into<Ipv4Addr>) -> Self {
        self.network = Network::V4(src.into(), dst.into());
        self
    }

    /// An IPv6 header.
    pub fn ipv6(mut self, src: impl Into<Ipv6Addr>, dst: impl Into<Ipv6Addr>) -> Self {
        self.network = Network::V6(src.into(), dst.into());
        self
    }

    /// Type of service or traffic class.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn tos(mut self, tos: u8) -> Self {
        self.tos = tos;
        self
    }

    /// Time to live or hop limit; 64 without.
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// Identification of an IPv4 header or an IPv6 fragment header.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn ip_id(mut self, id: u16) -> Self {
        self.id = id;
        self
    }

    /// Marks a fragment; `offset` counts units of eight bytes. IPv6 gets a fragment header after
    /// the other extensions.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        self.fragment = Some((offset & 0x1fff, more));
        self
    }

    /// Adds an IPv6 extension header of type `protocol`. `body` is what follows its first two
    /// bytes, padded with zero to a multiple of eight bytes in all. An authentication header (51)
    /// counts its length as RFC 4302 has it.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn extension(mut self, protocol: u8, body: &[u8]) -> Self {
        self.extensions.push((protocol, body.to_vec()));
        self
    }

    /// The payload follows the IP header as `protocol`.
    pub fn protocol(mut self, protocol: u8) -> Self {
        self.transport = Transport::Raw(protocol);
        self
    }

    /// A TCP header.
    pub fn tcp(mut self, fields: TcpFields) -> Self {
        self.transport = Transport::Tcp(fields);
        self
    }

    /// A UDP header.
    pub fn udp(mut self, src_port: u16, dst_port: u16) -> Self {
        self.transport = Transport::Udp(src_port, dst_port);
        self
    }

    /// An ICMP or, over IPv6, ICMPv6 header.
    pub fn icmp(mut self, kind: u8, code: u8, rest: [u8; 4]) -> Self {
        self.transport = Transport::Icmp(kind, code, rest);
        self
    }

    /// An echo request of the IP version chosen before.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn echo_request(self, id: u16, seq: u16) -> Self {
        let ([a, b], [c, d]) = (id.to_be_bytes(), seq.to_be_bytes());
        let kind = if matches!(self.network, Network::V6(..)) {
            128
        } else {
            8
        };
        self.icmp(kind, 0, [a, b, c, d])
    }

    /// The payload behind the last header.
    pub fn payload(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self
    }

    /// Leaves the pseudo-header's sum in a TCP or UDP checksum, as a virtio driver does.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn partial_checksum(mut self) -> Self {
        self.partial = true;
        self
    }

    /// Pads the frame with zero to `len` bytes.
    pub fn pad_to(mut self, len: usize) -> Self {
        self.pad_to = len;
        self
    }

    /// The frame. IP and UDP lengths above 65535 wrap.
    pub fn build(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.payload.len() + 128);
        out.extend(self.dst.0);
        out.extend(self.src.0);
        if let Some(tci) = self.vlan {
            out.extend(EtherType::VLAN.0.to_be_bytes());
            out.extend(tci.to_bits().to_be_bytes());
        }
        out.extend(self.ethertype_of_network().0.to_be_bytes());
        self.build_network(&mut out);
        out.resize(out.len().max(self.pad_to), 0);
        out
    }

    fn ethertype_of_network(&self) -> EtherType {
        match self.network {
            Network::Raw(t) => t,
            Network::V4(..) => EtherType::IPV4,
            Network::V6(..) => EtherType::IPV6,
        }
    }

    fn build_network(&self, out: &mut Vec<u8>) {
        match self.network {
            Network::Raw(_) => out.extend(&self.payload),
            Network::V4(src, dst) => self.build_v4(out, src, dst),
            Network::V6(src, dst) => self.build_v6(out, src, dst),
        }
    }

    fn build_v4(&self, out: &mut Vec<u8>, src: Ipv4Addr, dst: Ipv4Addr) {
        let l4 = self.build_transport(icmp::PROTOCOL_V4, |proto, len| {
            Sum::pseudo_v4(src, dst, proto, len)
        });
        let (offset, more) = self.fragment.unwrap_or_default();
        let mut header = [0; 20];
        header[0] = 0x45;
        header[1] = self.tos;
        put16(&mut header, 2, (20 + l4.len()) as u16);
        put16(&mut header, 4, self.id);
        put16(&mut header, 6, offset | u16::from(more) << 13);
        header[8] = self.ttl;
        header[9] = self.protocol_number(icmp::PROTOCOL_V4);
        header[12..16].copy_from_slice(&src.octets());
        header[16..20].copy_from_slice(&dst.octets());
        let checksum = Sum::of(&header).finish();
        put16(&mut header, 10, checksum);
        out.extend(header);
        out.extend(l4);
    }

    fn build_v6(&self, out: &mut Vec<u8>, src: Ipv6Addr, dst: Ipv6Addr) {
        let l4 = self.build_transport(icmp::PROTOCOL_V6, |proto, len| {
            Sum::pseudo_v6(src, dst, proto, len)
        });
        let (first, extensions) = self.build_extensions(self.protocol_number(icmp::PROTOCOL_V6));
        out.extend([0x60 | self.tos >> 4, self.tos << 4, 0, 0]);
        out.extend(((extensions.len() + l4.len()) as u16).to_be_bytes());
        out.extend([first, self.ttl]);
        out.extend(src.octets());
        out.extend(dst.octets());
        out.extend(extensions);
        out.extend(l4);
    }

    /// The chain of extension headers before `protocol`, and the type of its first.
    fn build_extensions(&self, protocol: u8) -> (u8, Vec<u8>) {
        let (mut next, mut chain) = (protocol, Vec::new());
        if let Some((offset, more)) = self.fragment {
            chain.extend([next, 0]);
            chain.extend((offset << 3 | u16::from(more)).to_be_bytes());
            chain.extend(u32::from(self.id).to_be_bytes());
            next = 44;
        }
        for (kind, body) in self.extensions.iter().rev() {
            let len = (body.len() + 2).next_multiple_of(8);
            let units = if *kind == 51 {
                len / 4 - 2
            } else {
                len / 8 - 1
            };
            let mut header = vec![next, units as u8];
            header.extend(body);
            header.resize(len, 0);
            header.extend(chain);
            (next, chain) = (*kind, header);
        }
        (next, chain)
    }

    fn protocol_number(&self, icmp: u8) -> u8 {
        match self.transport {
            Transport::Raw(p) => p,
            Transport::Tcp(_) => tcp::PROTOCOL,
            Transport::Udp(..) => udp::PROTOCOL,
            Transport::Icmp(..) => icmp,
        }
    }

    /// Transport header and payload, checksummed.
    fn build_transport(&self, icmp: u8, pseudo: impl Fn(u8, u32) -> Sum) -> Vec<u8> {
        let (mut l4, field) = self.transport_header();
        l4.extend(&self.payload);
        let Some(field) = field else { return l4 };
        let mut sum = match (icmp, &self.transport) {
            (icmp::PROTOCOL_V4, Transport::Icmp(..)) => Sum::new(),
            _ => pseudo(self.protocol_number(icmp), l4.len() as u32),
        };
        let icmp = matches!(self.transport, Transport::Icmp(..));
        if self.partial && !icmp {
            put16(&mut l4, field, sum.fold());
            return l4;
        }
        sum.add_bytes(&l4);
        let udp = matches!(self.transport, Transport::Udp(..));
        put16(
            &mut l4,
            field,
            if udp { sum.finish_udp() } else { sum.finish() },
        );
        l4
    }

    /// The header with a zero checksum, and where that is.
    fn transport_header(&self) -> (Vec<u8>, Option<usize>) {
        let mut h = Vec::new();
        match &self.transport {
            Transport::Raw(_) => (h, None),
            Transport::Udp(src, dst) => {
                h.extend([src.to_be_bytes(), dst.to_be_bytes()].concat());
                h.extend(((udp::HEADER_LEN + self.payload.len()) as u16).to_be_bytes());
                h.extend([0, 0]);
                (h, Some(udp::CHECKSUM_OFFSET))
            }
            Transport::Icmp(kind, code, rest) => {
                h.extend([*kind, *code, 0, 0]);
                h.extend(rest);
                (h, Some(icmp::CHECKSUM_OFFSET))
            }
            Transport::Tcp(fields) => (tcp_header(fields), Some(tcp::CHECKSUM_OFFSET)),
        }
    }
}

fn tcp_header(t: &TcpFields) -> Vec<u8> {
    let options = &t.options[..t.options.len().min(40)];
    let len = tcp::HEADER_LEN + options.len().next_multiple_of(4);
    let mut h = Vec::with_capacity(len);
    h.extend([t.src_port.to_be_bytes(), t.dst_port.to_be_bytes()].concat());
    h.extend([t.seq.to_be_bytes(), t.ack.to_be_bytes()].concat());
    h.extend(((len as u16 / 4) << 12 | t.flags & 0xfff).to_be_bytes());
    h.extend([0xff, 0xff, 0, 0, 0, 0]);
    h.extend(options);
    h.resize(len, 0);
    h
}
