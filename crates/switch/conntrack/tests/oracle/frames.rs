//! IP packets with right lengths and checksums, but where they are to be wrong.

use std::fmt;
use std::net::IpAddr;

use wire::Sum;

/// TCP flags.
pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

/// Addresses and ports of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) src: (IpAddr, u16),
    pub(crate) dst: (IpAddr, u16),
}

impl Ends {
    pub(crate) fn reversed(self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
        }
    }
}

/// A TCP segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tcp {
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: usize,
    pub(crate) wrong_checksum: bool,
}

impl fmt::Display for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["F", "S", "R", "P", "A", "U", "E", "C"];
        for (bit, name) in names.iter().enumerate() {
            if self.flags >> bit & 1 != 0 {
                f.write_str(name)?;
            }
        }
        write!(
            f,
            " {}+{} ack {} win {}",
            self.seq, self.payload, self.ack, self.window
        )?;
        if !self.options.is_empty() {
            write!(f, " options {:?}", self.options)?;
        }
        if self.wrong_checksum {
            f.write_str(" wrong checksum")?;
        }
        Ok(())
    }
}

/// An IP packet.
pub(crate) fn ip(ends: Ends, protocol: u8, payload: &[u8]) -> Vec<u8> {
    piece(ends, protocol, payload, None)
}

/// A fragment: its offset in units of eight bytes, whether more follow, and the identification.
pub(crate) fn piece(
    ends: Ends,
    protocol: u8,
    payload: &[u8],
    fragment: Option<(u16, bool, u16)>,
) -> Vec<u8> {
    let (offset, more, id) = fragment.unwrap_or((0, false, 1));
    match (ends.src.0, ends.dst.0) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut header = vec![0x45, 0];
            header.extend(((20 + payload.len()) as u16).to_be_bytes());
            header.extend(id.to_be_bytes());
            header.extend((offset | u16::from(more) << 13).to_be_bytes());
            header.extend([64, protocol, 0, 0]);
            header.extend(src.octets());
            header.extend(dst.octets());
            let sum = Sum::of(&header).finish();
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header.extend(payload);
            header
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut extension = Vec::new();
            if fragment.is_some() {
                extension.extend([protocol, 0]);
                extension.extend((offset << 3 | u16::from(more)).to_be_bytes());
                extension.extend(u32::from(id).to_be_bytes());
            }
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(((extension.len() + payload.len()) as u16).to_be_bytes());
            header.extend([if fragment.is_some() { 44 } else { protocol }, 64]);
            header.extend(src.octets());
            header.extend(dst.octets());
            header.extend(extension);
            header.extend(payload);
            header
        }
        _ => unreachable!("both addresses are of one version"),
    }
}

/// Sets the checksum at `at`.
fn summed(ends: Ends, protocol: u8, mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let len = bytes.len() as u32;
    let mut sum = match (ends.src.0, ends.dst.0) {
        (IpAddr::V4(_), _) if protocol == 1 => Sum::new(),
        (IpAddr::V4(src), IpAddr::V4(dst)) => Sum::pseudo_v4(src, dst, protocol, len),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Sum::pseudo_v6(src, dst, protocol, len),
        _ => unreachable!("both addresses are of one version"),
    };
    sum.add_bytes(&bytes);
    bytes[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
    bytes
}

pub(crate) fn tcp(ends: Ends, tcp: &Tcp) -> Vec<u8> {
    let words = 5 + tcp.options.len().div_ceil(4);
    let mut bytes = Vec::new();
    bytes.extend(ends.src.1.to_be_bytes());
    bytes.extend(ends.dst.1.to_be_bytes());
    bytes.extend(tcp.seq.to_be_bytes());
    bytes.extend(tcp.ack.to_be_bytes());
    bytes.extend([(words as u8) << 4, tcp.flags]);
    bytes.extend(tcp.window.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(&tcp.options);
    bytes.resize(words * 4 + tcp.payload, b'x');
    let mut bytes = summed(ends, 6, bytes, 16);
    if tcp.wrong_checksum {
        bytes[16] ^= 0x5a;
    }
    ip(ends, 6, &bytes)
}

/// A UDP datagram, without IP; `length` may be wrong.
pub(crate) fn udp_bytes(ends: Ends, payload: usize, length: Option<u16>) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(ends.src.1.to_be_bytes());
    bytes.extend(ends.dst.1.to_be_bytes());
    bytes.extend(length.unwrap_or(8 + payload as u16).to_be_bytes());
    bytes.extend([0; 2]);
    bytes.resize(8 + payload, b'x');
    summed(ends, 17, bytes, 6)
}

/// An ICMP or ICMPv6 message: type, code, and what follows the checksum.
pub(crate) fn icmp(ends: Ends, kind: u8, code: u8, rest: &[u8]) -> Vec<u8> {
    let protocol = if ends.src.0.is_ipv4() { 1 } else { 58 };
    let mut bytes = vec![kind, code, 0, 0];
    bytes.extend(rest);
    ip(ends, protocol, &summed(ends, protocol, bytes, 2))
}
