//! Headers of frames to guests.

use std::net::{IpAddr, SocketAddr};

use wire::virtio::net::{self, NetHeader};
use wire::{EtherType, MacAddr, Sum, ipv4, ipv6, tcp, udp};

use crate::action::{Datagrams, HEADERS, Headers};

/// Reset.
pub(crate) const RST: u16 = 4;

/// The two ends of a flow as the guest sees them, and its stations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    pub(crate) guest: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// Station of the guest.
    pub(crate) station: MacAddr,
    /// Station of the gateway.
    pub(crate) gateway: MacAddr,
}

/// The fields of a TCP header to a guest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u16,
    pub(crate) window: u16,
    /// Maximum segment size and shift of the window, in a SYN.
    pub(crate) options: Option<(u16, Option<u8>)>,
    /// Bytes behind the headers.
    pub(crate) payload: u32,
    /// Bytes of a segment, if the frame may be longer.
    pub(crate) mss: u16,
    /// Identification of the packet, if routers may fragment it.
    pub(crate) id: Option<u16>,
}

impl Ends {
    /// Bytes of Ethernet and IP header.
    fn network_len(&self) -> usize {
        14 + if self.guest.is_ipv4() {
            ipv4::HEADER_LEN
        } else {
            ipv6::HEADER_LEN
        }
    }

    /// Bytes of the headers of a segment without options.
    pub(crate) fn tcp_len(&self) -> u16 {
        (self.network_len() + tcp::HEADER_LEN) as u16
    }

    /// Maximum payload of a frame.
    pub(crate) fn longest(&self) -> u32 {
        let ip = if self.guest.is_ipv4() {
            ipv4::HEADER_LEN
        } else {
            0
        };
        (usize::from(u16::MAX) - ip - tcp::HEADER_LEN) as u32
    }

    /// Writes Ethernet and IP header for `len` bytes behind them; returns the pseudo-header's sum.
    /// With an identification, routers may fragment a packet of IPv4.
    fn network(&self, bytes: &mut [u8; HEADERS], protocol: u8, len: u32, id: Option<u16>) -> Sum {
        bytes[..6].copy_from_slice(&self.station.0);
        bytes[6..12].copy_from_slice(&self.gateway.0);
        match (self.peer.ip(), self.guest.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes[12..14].copy_from_slice(&EtherType::IPV4.0.to_be_bytes());
                let ip = &mut bytes[14..34];
                ip[0] = 0x45;
                let total = len.saturating_add(20).min(u32::from(u16::MAX)) as u16;
                ip[2..4].copy_from_slice(&total.to_be_bytes());
                // Do not fragment: the identification of such a packet is zero (RFC 6864).
                match id {
                    Some(id) => ip[4..6].copy_from_slice(&id.to_be_bytes()),
                    None => ip[6] = 0x40,
                }
                ip[8] = 64;
                ip[9] = protocol;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                let sum = Sum::of(ip).finish();
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                Sum::pseudo_v4(src, dst, protocol, len)
            }
            (src, dst) => {
                let (src, dst) = (as_v6(src), as_v6(dst));
                bytes[12..14].copy_from_slice(&EtherType::IPV6.0.to_be_bytes());
                let ip = &mut bytes[14..54];
                ip[0] = 0x60;
                let len16 = len.min(u32::from(u16::MAX)) as u16;
                ip[4..6].copy_from_slice(&len16.to_be_bytes());
                ip[6] = protocol;
                ip[7] = 64;
                ip[8..24].copy_from_slice(&src.octets());
                ip[24..40].copy_from_slice(&dst.octets());
                Sum::pseudo_v6(src, dst, protocol, len)
            }
        }
    }

    /// The headers of a TCP segment.
    pub(crate) fn tcp(&self, segment: &Segment) -> Headers {
        let mut bytes = [0; HEADERS];
        let at = self.network_len();
        let options = encode_options(segment.options);
        let len = tcp::HEADER_LEN + options.1;
        let sum = self.network(
            &mut bytes,
            tcp::PROTOCOL,
            len as u32 + segment.payload,
            segment.id,
        );
        let header = &mut bytes[at..at + len];
        header[..2].copy_from_slice(&self.peer.port().to_be_bytes());
        header[2..4].copy_from_slice(&self.guest.port().to_be_bytes());
        header[4..8].copy_from_slice(&segment.seq.to_be_bytes());
        header[8..12].copy_from_slice(&segment.ack.to_be_bytes());
        let flags = (len as u16 / 4) << 12 | segment.flags;
        header[12..14].copy_from_slice(&flags.to_be_bytes());
        header[14..16].copy_from_slice(&segment.window.to_be_bytes());
        header[16..18].copy_from_slice(&sum.fold().to_be_bytes());
        header[20..].copy_from_slice(&options.0[..options.1]);
        let mut net = needs_checksum(at, tcp::CHECKSUM_OFFSET);
        if segment.mss != 0 && segment.payload > u32::from(segment.mss) {
            net.gso_type = if self.guest.is_ipv4() {
                net::GSO_TCPV4
            } else {
                net::GSO_TCPV6
            };
            net.gso_size = segment.mss;
        }
        net.hdr_len = (at + len) as u16;
        Headers {
            bytes,
            len: (at + len) as u8,
            net,
        }
    }

    /// A reset at `seq`, for what belongs to no connection (RFC 9293, section 3.10.7).
    pub(crate) fn reset(&self, seq: u32) -> Headers {
        self.tcp(&Segment {
            seq,
            flags: RST,
            ..Segment::default()
        })
    }

    /// The headers of a datagram, or of a super-frame of several. `id`: see [`Segment::id`].
    pub(crate) fn udp(&self, datagrams: Datagrams, id: Option<u16>) -> Headers {
        let mut bytes = [0; HEADERS];
        let at = self.network_len();
        let Datagrams { len, segment } = datagrams;
        let is_one = segment == 0 || len <= segment;
        let len = len.saturating_add(udp::HEADER_LEN as u16);
        let sum = self.network(&mut bytes, udp::PROTOCOL, u32::from(len), id);
        let header = &mut bytes[at..at + udp::HEADER_LEN];
        header[..2].copy_from_slice(&self.peer.port().to_be_bytes());
        header[2..4].copy_from_slice(&self.guest.port().to_be_bytes());
        header[4..6].copy_from_slice(&len.to_be_bytes());
        header[6..8].copy_from_slice(&sum.fold().to_be_bytes());
        let mut net = needs_checksum(at, udp::CHECKSUM_OFFSET);
        net.hdr_len = (at + udp::HEADER_LEN) as u16;
        if !is_one {
            (net.gso_type, net.gso_size) = (net::GSO_UDP_L4, segment);
        }
        Headers {
            bytes,
            len: (at + udp::HEADER_LEN) as u8,
            net,
        }
    }
}

fn as_v6(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn needs_checksum(start: usize, offset: usize) -> NetHeader {
    NetHeader {
        flags: net::FLAG_NEEDS_CSUM,
        csum_start: start as u16,
        csum_offset: offset as u16,
        ..NetHeader::default()
    }
}

fn encode_options(options: Option<(u16, Option<u8>)>) -> ([u8; 8], usize) {
    let Some((mss, scale)) = options else {
        return ([0; 8], 0);
    };
    let [high, low] = mss.to_be_bytes();
    match scale {
        Some(scale) => ([2, 4, high, low, 1, 3, 3, scale], 8),
        None => ([2, 4, high, low, 0, 0, 0, 0], 4),
    }
}
