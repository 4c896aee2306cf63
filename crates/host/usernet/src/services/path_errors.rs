//! ICMP errors of the guest's side about packets that went there: a guest that is a router, or a
//! router behind it, says what a router of the outside would say to the host.

use std::net::{IpAddr, SocketAddr};

use wire::MacAddr;
use wire::ipv4::Ipv4View;
use wire::ipv6::Ipv6View;

use super::incoming::{Message, Packet};
use crate::network::{Protocol, Refusal};

/// Types of messages (RFC 792; RFC 4443).
const UNREACHABLE: u8 = 3;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;
const UNREACHABLE6: u8 = 1;
const TOO_BIG6: u8 = 2;
const TIME_EXCEEDED6: u8 = 3;
const PARAMETER_PROBLEM6: u8 = 4;
/// Code of an "unreachable" that means "fragmentation needed".
const TOO_BIG: u8 = 4;

/// A fault of the way to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A link has this MTU in bytes; 0: the router does not say (RFC 1191, section 5).
    TooBig(u32),
    /// The packet does not arrive, for any other reason.
    Unreachable,
}

/// An ICMP error about a packet that went to a guest. Everything in it is the sender's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathError {
    /// The station that sent it.
    pub station: MacAddr,
    /// Protocol of the packet.
    pub protocol: Protocol,
    /// Destination of the packet.
    pub guest: SocketAddr,
    /// Source of the packet.
    pub peer: SocketAddr,
    /// Its sequence number, if it is one of TCP.
    pub seq: u32,
    /// Bytes of the packet as it came to the router.
    pub len: u32,
    /// The error.
    pub trouble: Trouble,
}

/// Returns whether messages of this type are errors about packets.
pub(super) fn is_error(packet: &Packet<'_>, kind: u8) -> bool {
    match packet.to {
        IpAddr::V4(_) => matches!(kind, UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM),
        IpAddr::V6(_) => matches!(
            kind,
            UNREACHABLE6 | TOO_BIG6 | TIME_EXCEEDED6 | PARAMETER_PROBLEM6
        ),
    }
}

/// Reads an error.
///
/// # Errors
/// [`Refusal::Protocol`] if what it quotes is no packet of its receiver's, or of another protocol
/// than TCP and UDP.
pub(super) fn read(
    station: MacAddr,
    packet: &Packet<'_>,
    message: &Message<'_>,
) -> Result<PathError, Refusal> {
    let quoted = match packet.to {
        IpAddr::V4(_) => quoted4(message.body),
        IpAddr::V6(_) => quoted6(message.body),
    };
    let quoted = quoted.filter(|quoted| quoted.from == packet.to);
    let quoted = quoted.ok_or(Refusal::Protocol)?;
    let protocol = match quoted.protocol {
        wire::tcp::PROTOCOL => Protocol::Tcp,
        wire::udp::PROTOCOL => Protocol::Udp,
        _ => return Err(Refusal::Protocol),
    };
    let [from_high, from_low, to_high, to_low, seq @ ..] = quoted.beginning;
    let [_, _, mtu_high, mtu_low] = message.rest;
    let trouble = match (packet.to, message.kind, message.code) {
        (IpAddr::V4(_), UNREACHABLE, TOO_BIG) => {
            Trouble::TooBig(u16::from_be_bytes([mtu_high, mtu_low]).into())
        }
        (IpAddr::V6(_), TOO_BIG6, _) => Trouble::TooBig(u32::from_be_bytes(message.rest)),
        _ => Trouble::Unreachable,
    };
    Ok(PathError {
        station,
        protocol,
        guest: SocketAddr::new(quoted.to, u16::from_be_bytes([to_high, to_low])),
        peer: SocketAddr::new(quoted.from, u16::from_be_bytes([from_high, from_low])),
        seq: u32::from_be_bytes(seq),
        len: quoted.len,
        trouble,
    })
}

/// The beginning of a packet, which an error quotes.
struct QuotedPacket {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    /// Bytes of the whole packet.
    len: u32,
    /// The bytes after the IP header that every error has (RFC 792).
    beginning: [u8; 8],
}

fn quoted4(bytes: &[u8]) -> Option<QuotedPacket> {
    let ip = Ipv4View::new_checked(bytes).ok()?;
    (ip.fragment_offset() == 0).then_some(())?;
    Some(QuotedPacket {
        from: ip.src().into(),
        to: ip.dst().into(),
        protocol: ip.protocol(),
        len: ip.total_len().into(),
        beginning: *ip.payload().first_chunk()?,
    })
}

/// Packets to guests have no extension headers.
fn quoted6(bytes: &[u8]) -> Option<QuotedPacket> {
    let ip = Ipv6View::new_checked(bytes).ok()?;
    Some(QuotedPacket {
        from: ip.src().into(),
        to: ip.dst().into(),
        protocol: ip.next_header(),
        len: u32::from(ip.payload_len()) + wire::ipv6::HEADER_LEN as u32,
        beginning: *ip.payload().first_chunk()?,
    })
}
