//! Captures for testpmd to send again and again: frames of many flows with the addresses of their
//! ports.
//!
//! testpmd's own generator sends from one and the same address at both ports, which a switch that
//! learns takes for a station that moves.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};

/// Of a capture file in the classic format: magic number, version 2.4, time zone and its accuracy,
/// longest frame, Ethernet.
const HEAD: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1];
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const SOURCE: u32 = u32::from_be_bytes([10, 254, 0, 0]);
const DESTINATION: u32 = u32::from_be_bytes([10, 253, 0, 0]);

/// Writes `flows` UDP frames of `size` bytes that differ in their IP destination.
pub(crate) fn write(path: &Path, size: u16, flows: u32, from: [u8; 6], to: [u8; 6]) -> Result<()> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    let mut out = BufWriter::new(file);
    for word in HEAD {
        out.write_all(&word.to_ne_bytes())?;
    }
    for flow in 0..flows {
        let length = u32::from(size);
        // Seconds and microseconds, length in the file, length on the wire.
        for word in [0, 0, length, length] {
            out.write_all(&word.to_ne_bytes())?;
        }
        out.write_all(&frame(size, flow, from, to))?;
    }
    out.flush()?;
    Ok(())
}

/// One of them.
pub(crate) fn frame(size: u16, flow: u32, from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let packet = usize::from(size) - ETHERNET;
    let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    let mut ip = [0; IPV4];
    // Version and length of the header, then: total length, hops left, UDP, addresses.
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&length(packet));
    ip[8..10].copy_from_slice(&[64, 17]);
    ip[12..16].copy_from_slice(&SOURCE.to_be_bytes());
    ip[16..20].copy_from_slice(&(DESTINATION + flow).to_be_bytes());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut bytes = [to, from].concat();
    bytes.extend([0x08, 0x00]);
    bytes.extend(ip);
    // Ports 1000 and 1001, and no checksum (RFC 768).
    bytes.extend([0x03, 0xe8, 0x03, 0xe9]);
    bytes.extend(length(packet - IPV4));
    bytes.extend([0, 0]);
    bytes.resize(usize::from(size), 0);
    bytes
}

/// RFC 1071.
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    !u16::try_from((folded + (folded >> 16)) & 0xffff).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_whole_and_differ() {
        let (from, to) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let [first, second] = [0, 1].map(|flow| frame(64, flow, from, to));
        assert_eq!(first.len(), 64);
        assert_eq!(first[..6], to);
        assert_eq!(first[6..12], from);
        assert_eq!(first[30..34], [10, 253, 0, 0]);
        assert_eq!(second[30..34], [10, 253, 0, 1]);
        // A header with its sum in place adds up to nothing.
        assert_eq!(checksum(&first[14..34]), 0);
        assert_eq!(checksum(&second[14..34]), 0);
    }

    #[test]
    fn captures_hold_every_frame() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("a.pcap");
        write(&path, 64, 3, [2; 6], [4; 6])?;
        assert_eq!(std::fs::metadata(&path)?.len(), 24 + 3 * (16 + 64));
        Ok(())
    }
}
