//! Frames of guests, checked once: from here on every length agrees with the bytes.

use std::net::IpAddr;

use wire::arp::ArpView;
use wire::ethernet::EthernetView;
use wire::ipv4::Ipv4View;
use wire::ipv6::{self, Ipv6View};
use wire::{EtherType, MacAddr, Sum, icmp, udp};

use crate::network::Refusal;

/// The side that vouches for the checksum of UDP and ICMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The frame has it.
    InFrame,
    /// The guest's driver left it to us (`VIRTIO_NET_HDR_F_NEEDS_CSUM`, virtio 1.3, 5.1.6.2).
    Left,
}

/// A frame of a guest.
pub(super) struct Incoming<'a> {
    pub(super) src: MacAddr,
    pub(super) dst: MacAddr,
    pub(super) body: Body<'a>,
}

/// The content of the frame after its Ethernet header.
pub(super) enum Body<'a> {
    Arp(ArpView<'a>),
    Ip(Packet<'a>),
}

/// An IP packet that is no fragment.
pub(super) struct Packet<'a> {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) hops: u8,
    pub(super) protocol: u8,
    pub(super) payload: &'a [u8],
}

/// A UDP datagram with the right length and checksum.
pub(super) struct Datagram<'a> {
    pub(super) from: u16,
    pub(super) to: u16,
    pub(super) payload: &'a [u8],
}

impl<'a> Incoming<'a> {
    /// Reads a whole frame.
    ///
    /// # Errors
    /// [`Refusal::Fragment`]; [`Refusal::Protocol`] for tags, unknown types, and headers that
    /// contradict themselves.
    pub(super) fn parse(frame: &'a [u8]) -> Result<Self, Refusal> {
        let ethernet = EthernetView::new_checked(frame).map_err(|_| Refusal::Protocol)?;
        if ethernet.vlan().is_some() || !ethernet.src().is_station() {
            return Err(Refusal::Protocol);
        }
        let payload = ethernet.payload();
        let body = match ethernet.ethertype() {
            EtherType::ARP => {
                let arp = ArpView::new_checked(payload).map_err(|_| Refusal::Protocol)?;
                Body::Arp(arp)
            }
            EtherType::IPV4 => Body::Ip(packet4(payload)?),
            EtherType::IPV6 => Body::Ip(packet6(payload)?),
            _ => return Err(Refusal::Protocol),
        };
        Ok(Self {
            src: ethernet.src(),
            dst: ethernet.dst(),
            body,
        })
    }
}

fn packet4(bytes: &[u8]) -> Result<Packet<'_>, Refusal> {
    let ip = Ipv4View::new_checked(bytes).map_err(|_| Refusal::Protocol)?;
    let header = bytes.get(..ip.header_len()).ok_or(Refusal::Protocol)?;
    if usize::from(ip.total_len()) > bytes.len() || Sum::of(header).finish() != 0 {
        return Err(Refusal::Protocol);
    }
    if ip.more_fragments() || ip.fragment_offset() != 0 {
        return Err(Refusal::Fragment);
    }
    Ok(Packet {
        from: ip.src().into(),
        to: ip.dst().into(),
        hops: ip.ttl(),
        protocol: ip.protocol(),
        payload: ip.payload(),
    })
}

fn packet6(bytes: &[u8]) -> Result<Packet<'_>, Refusal> {
    let ip = Ipv6View::new_checked(bytes).map_err(|_| Refusal::Protocol)?;
    let all = ip.payload();
    if usize::from(ip.payload_len()) != all.len() {
        return Err(Refusal::Protocol);
    }
    let walk = ip.extensions().map_err(|_| Refusal::Protocol)?;
    if walk.fragment.is_some() {
        return Err(Refusal::Fragment);
    }
    if !walk.complete || walk.routing {
        return Err(Refusal::Protocol);
    }
    let payload = all.get(walk.len - ipv6::HEADER_LEN..);
    Ok(Packet {
        from: ip.src().into(),
        to: ip.dst().into(),
        hops: hop_limit(bytes),
        protocol: walk.protocol,
        payload: payload.ok_or(Refusal::Protocol)?,
    })
}

/// The hop limit of a checked IPv6 header (RFC 8200, section 3).
fn hop_limit(bytes: &[u8]) -> u8 {
    bytes.get(7).copied().unwrap_or_default()
}

impl<'a> Packet<'a> {
    /// The sum of the pseudo-header, and of `bytes`.
    fn sum(&self, bytes: &[u8]) -> Sum {
        let len = bytes.len() as u32;
        let mut sum = match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Sum::pseudo_v4(from, to, self.protocol, len),
            (IpAddr::V6(from), IpAddr::V6(to)) => Sum::pseudo_v6(from, to, self.protocol, len),
            _ => Sum::new(),
        };
        sum.add_bytes(bytes);
        sum
    }

    /// The payload as a UDP datagram.
    ///
    /// # Errors
    /// [`Refusal::Protocol`] if its length or its checksum is wrong. Over IPv6 a checksum is
    /// needed (RFC 8200, section 8.1).
    pub(super) fn udp(&self, checksum: Checksum) -> Result<Datagram<'a>, Refusal> {
        let view = udp::UdpView::new_checked(self.payload).map_err(|_| Refusal::Protocol)?;
        let len = usize::from(view.length());
        if len < udp::HEADER_LEN {
            return Err(Refusal::Protocol);
        }
        let all = self.payload.get(..len).ok_or(Refusal::Protocol)?;
        let none = view.checksum() == 0 && self.from.is_ipv4();
        if checksum == Checksum::InFrame && !none {
            let absent = view.checksum() == 0;
            if absent || self.sum(all).finish() != 0 {
                return Err(Refusal::Protocol);
            }
        }
        Ok(Datagram {
            from: view.src_port(),
            to: view.dst_port(),
            payload: &all[udp::HEADER_LEN..],
        })
    }

    /// The payload as an ICMP or ICMPv6 message: type, code, and all behind the checksum.
    ///
    /// # Errors
    /// [`Refusal::Protocol`] if it is too short or its checksum is wrong.
    pub(super) fn icmp(&self, checksum: Checksum) -> Result<Message<'a>, Refusal> {
        let view = icmp::IcmpView::new_checked(self.payload).map_err(|_| Refusal::Protocol)?;
        let sum = match self.from {
            IpAddr::V4(_) => Sum::of(self.payload),
            IpAddr::V6(_) => self.sum(self.payload),
        };
        if checksum == Checksum::InFrame && sum.finish() != 0 {
            return Err(Refusal::Protocol);
        }
        let fixed = self.payload.get(4..icmp::HEADER_LEN);
        Ok(Message {
            kind: view.kind(),
            code: view.code(),
            rest: fixed.and_then(|b| b.try_into().ok()).unwrap_or_default(),
            body: view.payload(),
        })
    }
}

/// An ICMP or ICMPv6 message.
pub(super) struct Message<'a> {
    pub(super) kind: u8,
    pub(super) code: u8,
    /// The four bytes behind the checksum.
    pub(super) rest: [u8; 4],
    /// The bytes that follow them.
    pub(super) body: &'a [u8],
}
