//! Looking at frames: checksums, payload, and what a super-frame becomes on the wire.

use std::net::IpAddr;

use super::{ETH_IPV4, ETH_IPV6, ETH_VLAN, TCP, UDP, complete, fold, pseudo_sum, sum_bytes};
use crate::net::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, NetHeader};

/// Errors in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// The frame ends inside a header or before its IP length.
    #[error("the frame is cut short: {0} bytes")]
    Short(usize),
    /// Not IPv4 or IPv6.
    #[error("ether type {0:#06x} is not IP")]
    NotIp(u16),
    /// The IPv4 header checksum does not add up.
    #[error("wrong IPv4 header checksum")]
    IpChecksum,
    /// The TCP or UDP checksum does not add up.
    #[error("wrong checksum of IP protocol {0}")]
    L4Checksum(u8),
    /// The checksum field of a NEEDS_CSUM frame does not hold the pseudo-header sum.
    #[error("the checksum field holds {found:#06x}, the pseudo-header sum is {desired:#06x}")]
    Seed {
        /// The value found.
        found: u16,
        /// The right value.
        desired: u16,
    },
    /// The offload header does not fit the frame.
    #[error("the offload header does not fit the frame: {0}")]
    Offload(&'static str),
}

/// Offsets and fields of an IP frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the transport header.
    pub l4: usize,
    /// End of the IP packet; padding follows.
    pub end: usize,
    /// IP protocol.
    pub protocol: u8,
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// The packet is a fragment: its transport checksum cannot be checked alone.
    pub fragment: bool,
}

fn be16(frame: &[u8], at: usize) -> Result<u16, FrameFault> {
    let bytes = frame
        .get(at..at + 2)
        .ok_or(FrameFault::Short(frame.len()))?;
    Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn array<const N: usize>(frame: &[u8], at: usize) -> Result<[u8; N], FrameFault> {
    let bytes = frame
        .get(at..at + N)
        .ok_or(FrameFault::Short(frame.len()))?;
    Ok(bytes.try_into().expect("N bytes"))
}

/// Finds the headers of an IP frame behind any number of VLAN tags. IPv6 extension headers are
/// taken for the transport.
///
/// # Errors
/// When the frame is cut short or not IP.
pub fn parse(frame: &[u8]) -> Result<Parsed, FrameFault> {
    let mut l3 = 14;
    while be16(frame, l3 - 2)? == ETH_VLAN {
        l3 += 4;
    }
    let parsed = match be16(frame, l3 - 2)? {
        ETH_IPV4 => {
            let header: [u8; 20] = array(frame, l3)?;
            Parsed {
                l3,
                l4: l3 + usize::from(header[0] & 15) * 4,
                end: l3 + usize::from(be16(frame, l3 + 2)?),
                protocol: header[9],
                src: IpAddr::from(array::<4>(frame, l3 + 12)?),
                dst: IpAddr::from(array::<4>(frame, l3 + 16)?),
                fragment: be16(frame, l3 + 6)? & 0x3fff != 0,
            }
        }
        ETH_IPV6 => {
            let header: [u8; 40] = array(frame, l3)?;
            Parsed {
                l3,
                l4: l3 + 40,
                end: l3 + 40 + usize::from(be16(frame, l3 + 4)?),
                protocol: header[6],
                src: IpAddr::from(array::<16>(frame, l3 + 8)?),
                dst: IpAddr::from(array::<16>(frame, l3 + 24)?),
                fragment: false,
            }
        }
        other => return Err(FrameFault::NotIp(other)),
    };
    let least = match parsed.protocol {
        _ if parsed.fragment => 0,
        TCP => 20,
        UDP => 8,
        _ => 0,
    };
    if parsed.end > frame.len() || parsed.l4 + least > parsed.end || parsed.l4 < l3 + 20 {
        return Err(FrameFault::Short(frame.len()));
    }
    Ok(parsed)
}

/// The TCP or UDP payload of a frame.
///
/// # Errors
/// When the frame is cut short or not IP.
pub fn payload_of(frame: &[u8]) -> Result<&[u8], FrameFault> {
    let parsed = parse(frame)?;
    let header = match parsed.protocol {
        TCP => usize::from(frame[parsed.l4 + 12] >> 4) * 4,
        UDP => 8,
        _ => 0,
    };
    frame
        .get(parsed.l4 + header..parsed.end)
        .ok_or(FrameFault::Short(frame.len()))
}

/// Checks the IPv4 header checksum and the TCP or UDP checksum. Frames that are not IP have none.
///
/// # Errors
/// The first checksum that is wrong.
pub fn verify_checksums(frame: &[u8]) -> Result<(), FrameFault> {
    let parsed = match parse(frame) {
        Err(FrameFault::NotIp(_)) => return Ok(()),
        other => other?,
    };
    verify_ip(frame, &parsed)?;
    if parsed.fragment || !matches!(parsed.protocol, TCP | UDP) {
        return Ok(());
    }
    let l4 = &frame[parsed.l4..parsed.end];
    if parsed.protocol == UDP && parsed.src.is_ipv4() && l4[6..8] == [0, 0] {
        return Ok(());
    }
    let sum = sum_bytes(l4) + pseudo_sum(parsed.src, parsed.dst, parsed.protocol, l4.len());
    if fold(sum) == 0xffff {
        Ok(())
    } else {
        Err(FrameFault::L4Checksum(parsed.protocol))
    }
}

fn verify_ip(frame: &[u8], parsed: &Parsed) -> Result<(), FrameFault> {
    if parsed.src.is_ipv4() && fold(sum_bytes(&frame[parsed.l3..parsed.l4])) != 0xffff {
        return Err(FrameFault::IpChecksum);
    }
    Ok(())
}

/// Checks a received frame against its header: with NEEDS_CSUM the field at `csum_start +
/// csum_offset` must hold the pseudo-header sum (virtio 1.3 section 5.1.6.4), without it all
/// checksums must be right.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify_partial(frame: &[u8], header: &NetHeader) -> Result<(), FrameFault> {
    if header.flags & NEEDS_CSUM == 0 {
        return verify_checksums(frame);
    }
    let parsed = parse(frame)?;
    verify_ip(frame, &parsed)?;
    if usize::from(header.csum_start) != parsed.l4 {
        return Err(FrameFault::Offload(
            "csum_start is not the transport header",
        ));
    }
    if usize::from(header.csum_offset) != csum_offset(parsed.protocol)? {
        return Err(FrameFault::Offload(
            "csum_offset is not the transport's checksum field",
        ));
    }
    let found = be16(frame, parsed.l4 + usize::from(header.csum_offset))?;
    let len = parsed.end - parsed.l4;
    let desired = fold(pseudo_sum(parsed.src, parsed.dst, parsed.protocol, len));
    if found == desired {
        Ok(())
    } else {
        Err(FrameFault::Seed { found, desired })
    }
}

fn csum_offset(protocol: u8) -> Result<usize, FrameFault> {
    match protocol {
        TCP => Ok(16),
        UDP => Ok(6),
        _ => Err(FrameFault::Offload("neither TCP nor UDP")),
    }
}

/// Returns the frames that leave a NIC without any offload: checksums completed, super-frames
/// segmented.
///
/// # Errors
/// When the header does not fit the frame.
pub fn on_the_wire(frame: &[u8], header: &NetHeader) -> Result<Vec<Vec<u8>>, FrameFault> {
    if header.gso_type != GSO_NONE {
        return cut(frame, header);
    }
    let mut whole = frame.to_vec();
    if header.flags & NEEDS_CSUM != 0 {
        let (start, offset) = (
            usize::from(header.csum_start),
            usize::from(header.csum_offset),
        );
        if start + offset + 2 > frame.len() {
            return Err(FrameFault::Offload(
                "the checksum field lies behind the frame",
            ));
        }
        complete(&mut whole, start, offset);
    }
    Ok(vec![whole])
}

fn cut(frame: &[u8], header: &NetHeader) -> Result<Vec<Vec<u8>>, FrameFault> {
    let parsed = parse(frame)?;
    let (protocol, v4) = match header.gso_type & !GSO_ECN {
        GSO_TCPV4 => (TCP, true),
        GSO_TCPV6 => (TCP, false),
        GSO_UDP_L4 => (UDP, parsed.src.is_ipv4()),
        _ => return Err(FrameFault::Offload("unknown segmentation")),
    };
    if parsed.protocol != protocol || parsed.src.is_ipv4() != v4 || header.gso_size == 0 {
        return Err(FrameFault::Offload(
            "segmentation of another protocol, or into nothing",
        ));
    }
    let payload = payload_of(frame)?;
    let chunks: Vec<&[u8]> = payload.chunks(usize::from(header.gso_size)).collect();
    let head = &frame[..parsed.end - payload.len()];
    let last = chunks.len() - 1;
    let one = |(i, chunk): (usize, &&[u8])| {
        let mut segment = [head, chunk].concat();
        let done = i * usize::from(header.gso_size);
        renumber(&mut segment, &parsed, i, done, i == last);
        seal(&mut segment, &parsed);
        segment
    };
    Ok(chunks.iter().enumerate().map(one).collect())
}

/// Lengths, IP identification, TCP sequence number and flags of segment `i`, `done` bytes in.
fn renumber(segment: &mut [u8], parsed: &Parsed, i: usize, done: usize, last: bool) {
    let (l3, l4) = (parsed.l3, parsed.l4);
    let put = |segment: &mut [u8], at: usize, v: usize| {
        segment[at..at + 2].copy_from_slice(&(v as u16).to_be_bytes());
    };
    if parsed.src.is_ipv4() {
        let id = usize::from(u16::from_be_bytes([segment[l3 + 4], segment[l3 + 5]]));
        put(segment, l3 + 4, id + i);
        put(segment, l3 + 2, segment.len() - l3);
    } else {
        put(segment, l3 + 4, segment.len() - l4);
    }
    if parsed.protocol == UDP {
        return put(segment, l4 + 4, segment.len() - l4);
    }
    let seq = u32::from_be_bytes(segment[l4 + 4..l4 + 8].try_into().expect("4 bytes"));
    segment[l4 + 4..l4 + 8].copy_from_slice(&seq.wrapping_add(done as u32).to_be_bytes());
    if !last {
        segment[l4 + 13] &= !0x09; // FIN and PSH belong to the last segment
    }
    if i > 0 {
        segment[l4 + 13] &= !0x80; // CWR to the first
    }
}

/// Fresh IPv4 and transport checksums.
fn seal(segment: &mut [u8], parsed: &Parsed) {
    let (l3, l4) = (parsed.l3, parsed.l4);
    if parsed.src.is_ipv4() {
        segment[l3 + 10..l3 + 12].fill(0);
        let sum = !fold(sum_bytes(&segment[l3..l4]));
        segment[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    let offset = if parsed.protocol == TCP { 16 } else { 6 };
    let seed = fold(pseudo_sum(
        parsed.src,
        parsed.dst,
        parsed.protocol,
        segment.len() - l4,
    ));
    segment[l4 + offset..l4 + offset + 2].copy_from_slice(&seed.to_be_bytes());
    complete(segment, l4, offset);
}
