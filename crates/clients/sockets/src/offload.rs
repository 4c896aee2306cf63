//! Checksums and segmentation, left to the other side by the header of virtio-net (virtio 1.3,
//! section 5.1.6).

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use wire::checksum::Sum;
use wire::virtio::net::{FLAG_NEEDS_CSUM, GSO_NONE, GSO_TCPV4, GSO_TCPV6, NetHeader};

/// Bytes of the Ethernet header.
const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const TCP: u8 = 6;
/// Offsets in a TCP header (RFC 9293, section 3.1).
const FLAGS: usize = 13;
const WINDOW: usize = 14;
const SYN: u8 = 2;
const UDP: u8 = 17;

/// The transport header of a frame.
struct Transport {
    /// Offset in the frame.
    start: usize,
    /// Bytes of header and payload.
    len: usize,
    protocol: u8,
    pseudo: Sum,
    is_ipv6: bool,
}

impl Transport {
    /// Finds it. `None`: the frame is not TCP or UDP over IP without extension headers, or too
    /// short for what it says.
    fn of(frame: &[u8]) -> Option<Self> {
        let ip = frame.get(ETHERNET..)?;
        let kind: [u8; 2] = frame[12..14].try_into().ok()?;
        let (header, len, protocol, addresses, is_ipv6) = match kind {
            IPV4 => {
                let fixed: &[u8; 20] = ip.first_chunk()?;
                let header = usize::from(fixed[0] & 0x0f) * 4;
                let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
                // More fragments, or not the first one.
                let is_fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
                if header < 20 || is_fragment {
                    return None;
                }
                let len = total.checked_sub(header)?;
                (header, len, fixed[9], &ip[12..20], false)
            }
            IPV6 => {
                let fixed: &[u8; 40] = ip.first_chunk()?;
                let len = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
                (40, len, fixed[6], &ip[8..40], true)
            }
            _ => return None,
        };
        let is_whole = ip.len() >= header + len && len >= least(protocol)?;
        let mut pseudo = Sum::of(addresses);
        pseudo.add_u16(u16::from(protocol));
        pseudo.add_u32(u32::try_from(len).ok()?);
        is_whole.then_some(Self {
            start: ETHERNET + header,
            len,
            protocol,
            pseudo,
            is_ipv6,
        })
    }

    /// Offset of the checksum from the start.
    fn checksum(&self) -> usize {
        if self.protocol == TCP { 16 } else { 6 }
    }
}

/// Bytes of the shortest header of a protocol that has offloads.
fn least(protocol: u8) -> Option<usize> {
    match protocol {
        TCP => Some(20),
        UDP => Some(8),
        _ => None,
    }
}

/// Whether the transport checksum of a received frame is right, or is left undone by the sender.
pub(crate) fn is_intact(header: &NetHeader, frame: &[u8]) -> bool {
    if header.needs_csum() {
        return true;
    }
    let Some(transport) = Transport::of(frame) else {
        // The stack checks the others, or refuses them.
        return true;
    };
    let end = transport.start + transport.len;
    let bytes = &frame[transport.start..end];
    let field = transport.checksum();
    if transport.protocol == UDP && !transport.is_ipv6 && bytes[field..field + 2] == [0, 0] {
        return true;
    }
    let mut sum = transport.pseudo;
    sum.add_bytes(bytes);
    sum.finish() == 0
}

/// Takes a unit off the window that a segment announces. smoltcp 0.14 rounds windows down to units,
/// so that their end can move back by a few bytes (RFC 7323, section 2.4), and drops what it has
/// permitted before: a sender without fast retransmission would wait a second to send that again.
fn narrow(header: &mut [u8]) {
    // The window of a SYN is in bytes.
    if header[FLAGS] & SYN == 0 {
        let window = u16::from_be_bytes([header[WINDOW], header[WINDOW + 1]]);
        let narrower = window.saturating_sub(1);
        header[WINDOW..WINDOW + 2].copy_from_slice(&narrower.to_be_bytes());
    }
}

/// Of a frame of TCP or UDP: whether it is TCP, its source port, and where it goes.
pub(crate) fn ends(frame: &[u8]) -> Option<(bool, u16, SocketAddr)> {
    let transport = Transport::of(frame)?;
    let port = |at: usize| {
        let at = transport.start + at;
        u16::from_be_bytes([frame[at], frame[at + 1]])
    };
    let ip = &frame[ETHERNET..];
    let to = match transport.is_ipv6 {
        true => IpAddr::from(<[u8; 16]>::try_from(&ip[24..40]).ok()?),
        false => IpAddr::from(<[u8; 4]>::try_from(&ip[16..20]).ok()?),
    };
    let to = SocketAddr::new(to, port(2));
    Some((transport.protocol == TCP, port(0), to))
}

/// Sets the traffic class of a frame that [`ends`] knows (RFC 2474, section 3).
pub(crate) fn set_class(frame: &mut [u8], class: u8) {
    let is_ipv6 = frame[12..14] == IPV6;
    let ip = &mut frame[ETHERNET..];
    if is_ipv6 {
        ip[0] = ip[0] & 0xf0 | class >> 4;
        ip[1] = ip[1] & 0x0f | class << 4;
        return;
    }
    ip[1] = class;
    ip[10..12].fill(0);
    let header = usize::from(ip[0] & 0x0f) * 4;
    let sum = Sum::of(&ip[..header]).finish();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Leaves checksum and segmentation of a frame to the switch: writes the pseudo-header's sum into
/// it, and returns the header to go with it. `is_scaled`: windows are in units of several bytes.
pub(crate) fn leave(frame: &mut [u8], segment: Option<NonZeroU16>, is_scaled: bool) -> NetHeader {
    let Some(transport) = Transport::of(frame) else {
        return NetHeader::default();
    };
    if is_scaled && transport.protocol == TCP {
        narrow(&mut frame[transport.start..]);
    }
    let field = transport.start + transport.checksum();
    frame[field..field + 2].copy_from_slice(&transport.pseudo.fold().to_be_bytes());
    let mut header = NetHeader {
        flags: FLAG_NEEDS_CSUM,
        gso_type: GSO_NONE,
        csum_start: transport.start as u16,
        csum_offset: transport.checksum() as u16,
        ..NetHeader::default()
    };
    if let Some(segment) = segment.filter(|_| transport.protocol == TCP) {
        let tcp = usize::from(frame[transport.start + 12] >> 4) * 4;
        header.gso_type = if transport.is_ipv6 {
            GSO_TCPV6
        } else {
            GSO_TCPV4
        };
        header.gso_size = segment.get();
        header.hdr_len = (transport.start + tcp) as u16;
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of TCP over IPv4 with this payload, without a checksum.
    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend(IPV4);
        let total = (40 + payload.len()) as u16;
        frame.extend([0x45, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([
            0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0,
        ]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn what_is_left_can_be_completed() {
        let mut whole = frame(b"odd");
        let header = leave(&mut whole, NonZeroU16::new(2), false);
        assert!(header.needs_csum() && header.gso_type == GSO_TCPV4);
        assert_eq!((header.gso_size, header.hdr_len), (2, 54));
        assert!(is_intact(&header, &whole));
        assert!(!is_intact(&NetHeader::default(), &whole));
        let (start, offset) = (header.csum_start, header.csum_offset);
        wire::checksum::complete_partial(&mut whole, start, offset, Sum::new()).unwrap();
        assert!(is_intact(&NetHeader::default(), &whole));
        whole[56] ^= 1;
        assert!(!is_intact(&NetHeader::default(), &whole));
    }

    #[test]
    fn a_class_changes_its_byte_and_the_checksum_of_the_header() {
        let mut marked = frame(b"odd");
        let to = SocketAddr::from(([10, 0, 0, 2], 2));
        assert_eq!(ends(&marked), Some((true, 1, to)));
        set_class(&mut marked, 0xb8);
        assert_eq!(marked[ETHERNET + 1], 0xb8);
        assert_eq!(Sum::of(&marked[ETHERNET..ETHERNET + 20]).finish(), 0);
        let mut six = vec![2; 12];
        six.extend(IPV6);
        six.extend([0x60, 0, 0x12, 0x34, 0, 8, UDP, 64]);
        six.extend([0xfd; 32]);
        six.extend([0, 7, 0, 9, 0, 8, 0, 0]);
        let to = SocketAddr::from(([0xfd; 16], 9));
        assert_eq!(ends(&six), Some((false, 7, to)));
        set_class(&mut six, 0xb8);
        assert_eq!(six[ETHERNET..ETHERNET + 4], [0x6b, 0x80, 0x12, 0x34]);
        assert_eq!(ends(&[0; 60]), None);
    }

    #[test]
    fn windows_are_a_unit_narrower_but_for_those_of_a_syn() {
        let left = |flags: u8, window: u16, is_scaled: bool| {
            let mut segment = frame(b"");
            segment[47] = flags;
            segment[48..50].copy_from_slice(&window.to_be_bytes());
            leave(&mut segment, None, is_scaled);
            u16::from_be_bytes([segment[48], segment[49]])
        };
        assert_eq!(left(0x10, 256, true), 255);
        assert_eq!(left(0x10, 0, true), 0);
        assert_eq!(left(0x10 | SYN, 256, true), 256);
        assert_eq!(left(0x10, 256, false), 256);
    }

    #[test]
    fn what_is_no_tcp_or_udp_is_left_to_the_stack() {
        let none = NetHeader::default();
        let whole = frame(b"1234");
        for len in 0..whole.len() {
            let mut part = whole[..len].to_vec();
            assert!(is_intact(&none, &part), "{len} bytes");
            assert_eq!(leave(&mut part, None, true), none, "{len} bytes");
        }
        let mut fragment = whole.clone();
        fragment[20] = 0x20;
        assert_eq!(leave(&mut fragment, None, true), none);
    }
}
