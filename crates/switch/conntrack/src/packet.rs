//! What tracking reads of a frame.

use std::net::IpAddr;

use wire::icmp::{self, IcmpView};
use wire::ipv4::Ipv4View;
use wire::ipv6::Ipv6View;
use wire::packet::{Fragment, L3, ParsedHeaders};
use wire::tcp::{self, TcpView};
use wire::udp::{self, UdpView};

use crate::Invalid;
use crate::segment::Segment;
use crate::tuple::{Query, Tuple};

/// The upper layer of a tracked frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A TCP segment.
    Tcp(Segment),
    /// A UDP datagram.
    Udp,
    /// An ICMP message that asks: an echo request.
    Request,
    /// One that answers.
    Answer,
    /// An ICMP error; the tuple is that of the quoted packet's connection, in the direction of the
    /// error.
    Error,
    /// A packet of another protocol, which is tracked by its addresses.
    Other,
}

/// The reason that makes a frame none of a connection, so that a stateful rule is `allow` to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exemption {
    /// No IP packet.
    NotIp,
    /// To several stations.
    Group,
    /// Neighbour discovery (RFC 4861), or listeners of groups (RFC 3810).
    Neighbours,
}

impl Exemption {
    /// The reason in words, for `lasthop trace`.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotIp => "it is no IP packet",
            Self::Group => "it goes to several stations",
            Self::Neighbours => "it is neighbour discovery or multicast listener discovery",
        }
    }
}

/// A fragment's place in its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The datagram: zone, addresses and protocol, with its identification as ports, the upper half
    /// as the source's. Fragments of IPv6 have one without protocol.
    pub datagram: Tuple,
    /// Its first byte in the datagram.
    pub start: u32,
    /// The place after its last byte.
    pub end: u32,
}

/// A frame that a connection is looked up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Tuple in the frame's direction.
    pub tuple: Tuple,
    /// Upper layer.
    pub message: Message,
    /// Its place in its datagram, if it is the first of several fragments.
    pub piece: Option<Piece>,
}

/// The way that tracking takes a frame, before any look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It is not tracked.
    Untracked(Exemption),
    /// It belongs to no connection, whatever is known; all fragments of its datagram neither.
    Invalid(Invalid, Option<Piece>),
    /// A connection is looked up for it.
    Packet(Packet),
    /// A fragment without a transport header: it has the state of the first one.
    Later(Piece),
}

/// Queries with their answers, by ICMP type (RFC 792, RFC 950).
const QUERIES_V4: [(u8, u8); 4] = [(8, 0), (13, 14), (15, 16), (17, 18)];
/// The same of ICMPv6 (RFC 4443, RFC 4620).
const QUERIES_V6: [(u8, u8); 2] = [(128, 129), (139, 140)];
/// IPv6 packets without an upper layer (RFC 8200, 4.7).
const NO_NEXT_HEADER: u8 = 59;
/// Protocol of a fragment header.
const FRAGMENT_HEADER: u8 = 44;
/// Bytes of ports, which TCP and UDP begin with.
const PORTS_LEN: usize = 4;

/// Reads a frame. `parsed` is of `headers`, its first bytes. `trusted` says that its transport
/// checksum needs no look: it is known to be good, or its sender leaves it to the device.
#[must_use]
pub fn read(zone: u16, parsed: &ParsedHeaders, headers: &[u8], trusted: bool) -> Reading {
    let (src, dst) = match parsed.l3 {
        L3::V4 { src, dst, .. } => (IpAddr::V4(src), IpAddr::V4(dst)),
        L3::V6 { src, dst, .. } => (IpAddr::V6(src), IpAddr::V6(dst)),
        L3::Malformed => return Reading::Invalid(Invalid::Header, None),
        L3::Arp { .. } | L3::Other | L3::Hidden => return Reading::Untracked(Exemption::NotIp),
    };
    let broadcast = matches!(dst, IpAddr::V4(address) if address.is_broadcast());
    if parsed.dst.is_multicast() || dst.is_multicast() || broadcast {
        return Reading::Untracked(Exemption::Group);
    }
    let end = headers.len().min(parsed.l3_end as usize);
    let frame = Frame {
        zone,
        parsed,
        headers: headers.get(..end).unwrap_or_default(),
        ends: (src, dst),
    };
    let piece = match parsed.fragment {
        Fragment::No => None,
        Fragment::First | Fragment::Later => match frame.piece() {
            Ok(piece) => piece,
            Err(why) => return Reading::Invalid(why, None),
        },
    };
    match (parsed.fragment, piece) {
        (Fragment::Later, Some(piece)) => return Reading::Later(piece),
        (Fragment::Later, None) => return Reading::Invalid(Invalid::Header, None),
        _ => {}
    }
    match frame.message(piece.is_some(), trusted) {
        Ok((tuple, message)) => Reading::Packet(Packet {
            tuple,
            message,
            piece,
        }),
        Err(Refusal::Untracked(why)) => Reading::Untracked(why),
        Err(Refusal::Invalid(Invalid::Header)) if piece.is_some() => {
            Reading::Invalid(Invalid::TinyFragment, piece)
        }
        Err(Refusal::Invalid(why)) => Reading::Invalid(why, piece),
    }
}

enum Refusal {
    Untracked(Exemption),
    Invalid(Invalid),
}

impl From<Invalid> for Refusal {
    fn from(why: Invalid) -> Self {
        Self::Invalid(why)
    }
}

/// A frame with IP, and its private bytes up to the end of the datagram.
struct Frame<'a> {
    zone: u16,
    parsed: &'a ParsedHeaders,
    headers: &'a [u8],
    ends: (IpAddr, IpAddr),
}

impl<'a> Frame<'a> {
    /// The bytes from an offset on.
    fn from(&self, offset: u16) -> &'a [u8] {
        self.headers.get(usize::from(offset)..).unwrap_or_default()
    }

    /// The place of a fragment; nothing for a datagram in one piece (RFC 6946).
    fn piece(&self) -> Result<Option<Piece>, Invalid> {
        let network = self.from(self.parsed.l3_offset);
        let total = self.parsed.l3_end - u32::from(self.parsed.l3_offset);
        let (protocol, identification, before, offset, more) = if self.ends.0.is_ipv4() {
            let ip = Ipv4View::new_checked(network).map_err(|_| Invalid::Header)?;
            let (id, len) = (u32::from(ip.id()), ip.header_len());
            (
                ip.protocol(),
                id,
                len,
                ip.fragment_offset(),
                ip.more_fragments(),
            )
        } else {
            let walk = Ipv6View::new_checked(network).and_then(|ip| ip.extensions());
            let walk = walk.map_err(|_| Invalid::Header)?;
            let (offset, more) = walk.fragment.unwrap_or_default();
            (
                FRAGMENT_HEADER,
                walk.identification,
                walk.unfragmented,
                offset,
                more,
            )
        };
        if offset == 0 && !more {
            return Ok(None);
        }
        let (src, dst) = self.ends;
        let (high, low) = ((identification >> 16) as u16, identification as u16);
        let start = u32::from(offset) * 8;
        Ok(Some(Piece {
            datagram: Tuple::new(self.zone, protocol, (src, high), (dst, low)),
            start,
            end: start + total.saturating_sub(before as u32),
        }))
    }

    /// Tuple and upper layer. `fragment`: the rest of the datagram is in other frames.
    fn message(&self, fragment: bool, trusted: bool) -> Result<(Tuple, Message), Refusal> {
        let ParsedHeaders {
            l4_proto,
            src_port,
            dst_port,
            ..
        } = *self.parsed;
        let at = self.parsed.l4_offset.ok_or(Invalid::Header)?;
        let len = self.parsed.l4_len().unwrap_or_default();
        let bytes = self.from(at);
        let (src, dst) = self.ends;
        let message = match l4_proto {
            tcp::PROTOCOL => {
                let view = TcpView::new_checked(bytes).map_err(|_| Invalid::Header)?;
                let segment = Segment::read(&view, len);
                let decides = segment.has(tcp::SYN | tcp::FIN | tcp::RST);
                if decides && !trusted && !fragment && self.has_wrong_checksum(bytes, len) {
                    return Err(Invalid::Checksum.into());
                }
                Message::Tcp(segment)
            }
            udp::PROTOCOL => {
                let view = UdpView::new_checked(bytes).map_err(|_| Invalid::Header)?;
                let length = u32::from(view.length());
                if length < udp::HEADER_LEN as u32 || length > len && !fragment {
                    return Err(Invalid::Header.into());
                }
                Message::Udp
            }
            icmp::PROTOCOL_V4 if src.is_ipv4() => return self.icmp(bytes),
            icmp::PROTOCOL_V6 if src.is_ipv6() => return self.icmp(bytes),
            NO_NEXT_HEADER if src.is_ipv6() => return Err(Invalid::Header.into()),
            _ => Message::Other,
        };
        let tuple = Tuple::new(self.zone, l4_proto, (src, src_port), (dst, dst_port));
        Ok((tuple, message))
    }

    /// Whether the checksum of a segment that is here as a whole is wrong.
    fn has_wrong_checksum(&self, bytes: &[u8], len: u32) -> bool {
        let Some(mut sum) = self.parsed.pseudo_header(len) else {
            return false;
        };
        sum.add_bytes(bytes);
        bytes.len() == len as usize && sum.finish() != 0
    }

    fn icmp(&self, bytes: &[u8]) -> Result<(Tuple, Message), Refusal> {
        let view = IcmpView::new_checked(bytes).map_err(|_| Invalid::Header)?;
        let (kind, (src, dst)) = (view.kind(), self.ends);
        let is_error = match src {
            // Destination unreachable, source quench, redirect, time exceeded, parameter problem.
            IpAddr::V4(_) => matches!(kind, 3 | 4 | 5 | 11 | 12),
            IpAddr::V6(_) => kind < 128,
        };
        if is_error {
            let quoted = quoted(self.zone, src.is_ipv6(), view.payload())?;
            if quoted.src() != dst {
                return Err(Invalid::WrongSide.into());
            }
            return Ok((quoted.reversed(), Message::Error));
        }
        if src.is_ipv6() && matches!(kind, 130..=137 | 143) {
            return Err(Refusal::Untracked(Exemption::Neighbours));
        }
        let query = query(src.is_ipv6(), &view).ok_or(Invalid::Icmp)?;
        let message = match query.asks {
            true => Message::Request,
            false => Message::Answer,
        };
        let protocol = self.parsed.l4_proto;
        Ok((
            Tuple::of_query(self.zone, protocol, src, dst, query),
            message,
        ))
    }
}

/// The query of an ICMP message that asks or answers.
fn query(v6: bool, view: &IcmpView<'_>) -> Option<Query> {
    let known: &[(u8, u8)] = if v6 { &QUERIES_V6 } else { &QUERIES_V4 };
    let is = |&(asks, answers): &(u8, u8)| view.kind() == asks || view.kind() == answers;
    let at = known.iter().position(is)?;
    Some(Query {
        asks: view.kind() == known[at].0,
        kind: at as u8,
        code: view.code(),
        identifier: view.identifier(),
    })
}

/// The tuple of the packet that an ICMP error quotes. Of its transport header the first eight bytes
/// may be all there is (RFC 792), of ports the first four.
fn quoted(zone: u16, v6: bool, bytes: &[u8]) -> Result<Tuple, Invalid> {
    let (src, dst, protocol, rest): (IpAddr, IpAddr, _, _) = if v6 {
        let ip = Ipv6View::new_checked(bytes).map_err(|_| Invalid::Quote)?;
        let walk = ip.extensions().map_err(|_| Invalid::Quote)?;
        if !walk.complete || walk.fragment.is_some_and(|(offset, _)| offset != 0) {
            return Err(Invalid::Quote);
        }
        let rest = ip.payload().get(walk.len - wire::ipv6::HEADER_LEN..);
        (ip.src().into(), ip.dst().into(), walk.protocol, rest)
    } else {
        let ip = Ipv4View::new_checked(bytes).map_err(|_| Invalid::Quote)?;
        if ip.fragment_offset() != 0 {
            return Err(Invalid::Quote);
        }
        (
            ip.src().into(),
            ip.dst().into(),
            ip.protocol(),
            Some(ip.payload()),
        )
    };
    let rest = rest.unwrap_or_default();
    match protocol {
        tcp::PROTOCOL | udp::PROTOCOL => {
            let [a, b, c, d]: [u8; PORTS_LEN] = *rest.first_chunk().ok_or(Invalid::Quote)?;
            let ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            Ok(Tuple::new(zone, protocol, (src, ports.0), (dst, ports.1)))
        }
        icmp::PROTOCOL_V4 | icmp::PROTOCOL_V6 if v6 == (protocol == icmp::PROTOCOL_V6) => {
            let view = IcmpView::new_checked(rest).map_err(|_| Invalid::Quote)?;
            let query = query(v6, &view).ok_or(Invalid::Quote)?;
            Ok(Tuple::of_query(zone, protocol, src, dst, query))
        }
        _ => Ok(Tuple::new(zone, protocol, (src, 0), (dst, 0))),
    }
}

#[cfg(test)]
mod tests;
