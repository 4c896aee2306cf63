//! Answers to a rejected frame's sender: a TCP reset (RFC 9293, 3.10.7.1), or an ICMP error for
//! administratively prohibited destinations (RFC 1812, 5.2.7.1; RFC 4443, 3.1).

use std::net::{Ipv4Addr, Ipv6Addr};

use wire::build::{PacketBuilder, TcpFields};
use wire::packet::{Fragment, L3, ParsedHeaders};
use wire::{icmp, tcp};

/// ICMP's "destination unreachable", and of its codes "communication administratively prohibited".
const UNREACHABLE_V4: (u8, u8) = (3, 13);
/// ICMPv6 type and code: destination unreachable, administratively prohibited.
const UNREACHABLE_V6: (u8, u8) = (1, 1);
/// Limit of bytes of the refused datagram in an ICMP error: enough to recognise it.
const QUOTE: usize = 128;
/// Bytes of the longest frame of [`refusal`]: Ethernet, IPv6 and ICMPv6 headers, and the quoted
/// bytes.
pub const MAX: usize = 14 + 40 + icmp::HEADER_LEN + QUOTE;
/// `RST` of TCP's flags.
const RST: u16 = 0x04;

/// Returns the frame that reports the rejection of a frame, which begins with these bytes, to its
/// sender; untagged, and with the receiver's address as its source. `None` where no answer may be
/// sent (RFC 1122, 3.2.2; RFC 4443, 2.4): to multicast and broadcast, later fragments, resets and
/// errors, neighbour discovery, and frames without IP.
#[must_use]
pub fn refusal(headers: &[u8], frame_len: usize) -> Option<Vec<u8>> {
    let parsed = ParsedHeaders::parse(headers, frame_len);
    if parsed.dst.is_multicast() || !parsed.src.is_station() || parsed.fragment == Fragment::Later {
        return None;
    }
    let frame = PacketBuilder::new(parsed.dst, parsed.src);
    let (frame, unreachable) = match parsed.l3 {
        L3::V4 { src, dst, .. } if is_one(src) && is_one(dst) => {
            (frame.ipv4(dst, src), UNREACHABLE_V4)
        }
        L3::V6 { src, dst, .. } if is_one_v6(src) && is_one_v6(dst) => {
            (frame.ipv6(dst, src), UNREACHABLE_V6)
        }
        _ => return None,
    };
    if parsed.l4_proto == tcp::PROTOCOL {
        return Some(frame.tcp(reset(&parsed, headers)?).build());
    }
    if is_not_to_be_answered(&parsed) {
        return None;
    }
    let datagram = headers.get(usize::from(parsed.l3_offset)..)?;
    let end = (parsed.l3_end as usize).saturating_sub(parsed.l3_offset.into());
    let quote = &datagram[..datagram.len().min(end).min(QUOTE)];
    let (kind, code) = unreachable;
    Some(frame.icmp(kind, code, [0; 4]).payload(quote).build())
}

/// Returns whether an address is that of one host of a network: not unspecified, loopback,
/// multicast, class E or broadcast (RFC 1122, 3.2.1.3).
fn is_one(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

/// Returns whether an address is that of one host: not unspecified, loopback or multicast.
fn is_one_v6(address: Ipv6Addr) -> bool {
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}

/// The answer to a TCP segment of a connection that there is not.
fn reset(parsed: &ParsedHeaders, headers: &[u8]) -> Option<TcpFields> {
    let at = usize::from(parsed.l4_offset?);
    let segment = tcp::TcpView::new_checked(headers.get(at..)?).ok()?;
    let flags = segment.flags();
    if flags & RST != 0 {
        return None;
    }
    let fields = TcpFields {
        src_port: segment.dst_port(),
        dst_port: segment.src_port(),
        ..TcpFields::default()
    };
    if flags & tcp::ACK != 0 {
        return Some(TcpFields {
            seq: segment.ack(),
            flags: RST,
            ..fields
        });
    }
    let payload = (parsed.l3_end as usize).saturating_sub(at + segment.header_len());
    let counted = |flag| u32::from(flags & flag != 0);
    let length = payload as u32 + counted(tcp::SYN) + counted(tcp::FIN);
    Some(TcpFields {
        ack: segment.seq().wrapping_add(length),
        flags: RST | tcp::ACK,
        ..fields
    })
}

/// ICMP's errors and redirects, and ICMPv6's errors, neighbour discovery and redirects; and what
/// may be one of them: it does not show.
fn is_not_to_be_answered(parsed: &ParsedHeaders) -> bool {
    let kind = parsed.l4_flags >> 8;
    let is_one = match parsed.l4_proto {
        icmp::PROTOCOL_V4 => matches!(kind, 3 | 4 | 5 | 11 | 12),
        icmp::PROTOCOL_V6 => kind < 128 || (133..=137).contains(&kind),
        _ => false,
    };
    is_one || parsed.l4_unknown()
}

#[cfg(test)]
mod tests;
