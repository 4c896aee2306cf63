//! Echo of the gateway, and errors (RFC 792, RFC 1122, RFC 4443).

use std::net::IpAddr;

use wire::build::PacketBuilder;
use wire::{MacAddr, icmp};

use crate::network::Network;

use super::incoming::{Body, Incoming, Message, Packet};

/// Echo request and reply, each of IPv4 and IPv6.
const ECHO: u8 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO6: u8 = 128;
const ECHO_REPLY6: u8 = 129;
/// Maximum number of bytes that an error quotes of a packet: the whole error has at most 576 bytes
/// (RFC 1812, section 4.3.2.3), or IPv6's minimum MTU (RFC 4443, section 3.1).
const QUOTED: usize = 576 - 20 - 8;
const QUOTED6: usize = 1280 - 40 - 8;

/// The content of an error about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// No route leads there.
    Network,
    /// The host does not answer.
    Host,
    /// The host has nothing at that port (ECONNREFUSED).
    Port,
    /// The configuration forbids it.
    Prohibited,
    /// The packet is longer than this MTU in bytes (EMSGSIZE, with `IP_MTU` of the socket).
    TooBig(u32),
    /// Its time to live, or hop limit, has ended on the way.
    HopLimit,
}

/// An error for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its content.
    pub error: IcmpError,
    /// The router or host of the outside that has sent it; `None`: it is the gateway's own.
    pub from: Option<IpAddr>,
}

impl From<IcmpError> for Notice {
    fn from(error: IcmpError) -> Self {
        Self { error, from: None }
    }
}

/// Answers an echo request to gateway or DNS server.
pub(super) fn echo(
    network: &Network,
    from: MacAddr,
    packet: &Packet<'_>,
    message: &Message<'_>,
) -> Option<Vec<u8>> {
    let ours = network.is_gateway(packet.to) || network.is_dns(packet.to);
    if !ours || message.code != 0 || packet.from.is_unspecified() || packet.from.is_multicast() {
        return None;
    }
    let builder = PacketBuilder::new(network.mac(), from);
    let answer = match (packet.from, packet.to, message.kind) {
        (IpAddr::V4(guest), IpAddr::V4(own), ECHO) => {
            builder.ipv4(own, guest).icmp(ECHO_REPLY, 0, message.rest)
        }
        (IpAddr::V6(guest), IpAddr::V6(own), ECHO6) => {
            builder.ipv6(own, guest).icmp(ECHO_REPLY6, 0, message.rest)
        }
        _ => return None,
    };
    Some(answer.payload(message.body).build())
}

/// Returns the error about a whole frame of a guest that was refused. What the gateway has no
/// service for is a port without one. `None`: see [`error`]; and for TCP, where a reset answers.
pub(super) fn refused(network: &Network, frame: &[u8], refused: IcmpError) -> Option<Vec<u8>> {
    let incoming = Incoming::parse(frame).ok()?;
    let Body::Ip(packet) = &incoming.body else {
        return None;
    };
    let ours = network.is_gateway(packet.to) || network.is_dns(packet.to);
    match packet.protocol {
        wire::tcp::PROTOCOL if refused != IcmpError::HopLimit => None,
        wire::udp::PROTOCOL if ours => error(network, frame, IcmpError::Port.into()),
        _ => error(network, frame, refused.into()),
    }
}

/// Returns the error about a whole frame of a guest; `None` for
/// frames about which none may be sent: those to groups, from no host, of ICMP other than echo
/// requests, fragments, and what is no IP packet (RFC 1122, section 3.2.2; RFC 4443, section 2.4).
pub(super) fn error(network: &Network, frame: &[u8], notice: Notice) -> Option<Vec<u8>> {
    let incoming = Incoming::parse(frame).ok()?;
    let Body::Ip(packet) = &incoming.body else {
        return None;
    };
    if incoming.dst.is_multicast() || !may_answer(network, packet) {
        return None;
    }
    let quoted = frame.get(wire::ethernet::HEADER_LEN..)?;
    let error = notice.error;
    // An address that no router outside has would be one that the guest knows as another's.
    let router = notice
        .from
        .filter(|from| network.may_be_peer(*from) && !network.contains(*from));
    let builder = PacketBuilder::new(network.mac(), incoming.src);
    let answer = match (packet.from, packet.to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let (kind, code, mtu) = code4(error);
            let own = match router {
                Some(IpAddr::V4(router)) => router,
                _ if error == IcmpError::Port => to,
                _ => network.gateway(),
            };
            let [high, low] = mtu.to_be_bytes();
            let quoted = &quoted[..quoted.len().min(QUOTED)];
            builder
                .ipv4(own, from)
                .icmp(kind, code, [0, 0, high, low])
                .payload(quoted)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let (kind, code, rest) = code6(error);
            let own = match router {
                Some(IpAddr::V6(router)) => router,
                _ if error == IcmpError::Port => to,
                _ => network.gateway6()?,
            };
            let quoted = &quoted[..quoted.len().min(QUOTED6)];
            builder
                .ipv6(own, from)
                .icmp(kind, code, rest)
                .payload(quoted)
        }
        _ => return None,
    };
    Some(answer.build())
}

fn may_answer(network: &Network, packet: &Packet<'_>) -> bool {
    let kind = packet.payload.first().copied();
    let allowed = match packet.protocol {
        icmp::PROTOCOL_V4 => kind == Some(ECHO),
        icmp::PROTOCOL_V6 => kind == Some(ECHO6),
        _ => true,
    };
    let broadcast = packet.to == IpAddr::V4(std::net::Ipv4Addr::BROADCAST)
        || packet.to == IpAddr::V4(network.host(u32::MAX));
    allowed && !broadcast && !packet.to.is_multicast() && network.may_be_guest(packet.from)
}

/// Minimum MTU of IPv4 and of IPv6 (RFC 791, section 3.2; RFC 8200, section 5): no error says less.
const LEAST_MTU: u32 = 68;
const LEAST_MTU6: u32 = 1280;

/// Type and code (RFC 792), and the MTU in an error (RFC 1191, section 4).
fn code4(error: IcmpError) -> (u8, u8, u16) {
    match error {
        IcmpError::Network => (3, 0, 0),
        IcmpError::Host => (3, 1, 0),
        IcmpError::Port => (3, 3, 0),
        IcmpError::Prohibited => (3, 13, 0),
        IcmpError::TooBig(mtu) => (3, 4, mtu.clamp(LEAST_MTU, u32::from(u16::MAX)) as u16),
        IcmpError::HopLimit => (11, 0, 0),
    }
}

/// Type, code and MTU (RFC 4443, sections 3.1 to 3.3).
fn code6(error: IcmpError) -> (u8, u8, [u8; 4]) {
    match error {
        IcmpError::Network => (1, 0, [0; 4]),
        IcmpError::Prohibited => (1, 1, [0; 4]),
        IcmpError::Host => (1, 3, [0; 4]),
        IcmpError::Port => (1, 4, [0; 4]),
        IcmpError::TooBig(mtu) => (2, 0, mtu.max(LEAST_MTU6).to_be_bytes()),
        IcmpError::HopLimit => (3, 0, [0; 4]),
    }
}
