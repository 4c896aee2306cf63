//! The header in front of every packet (virtio 1.3 section 5.1.6).

use crate::features::{MRG_RXBUF, VERSION_1};

/// Bytes of the header; always 12 with VERSION_1.
pub const HEADER_LEN: usize = 12;
/// Bytes of the header of a legacy driver without MRG_RXBUF: it ends before `num_buffers`.
pub const SHORT_HEADER_LEN: usize = 10;

/// Bytes of the header of a driver with these features (section 5.1.6.1).
#[must_use]
pub fn header_len(features: u64) -> usize {
    match features & (VERSION_1 | MRG_RXBUF) {
        0 => SHORT_HEADER_LEN,
        _ => HEADER_LEN,
    }
}

/// The checksum is partial: to be completed from `csum_start` on.
pub const NEEDS_CSUM: u8 = 1;
/// The checksum was validated.
pub const DATA_VALID: u8 = 2;

/// Not segmented.
pub const GSO_NONE: u8 = 0;
/// TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// UDP datagrams.
pub const GSO_UDP_L4: u8 = 5;
/// Added to a TCP type: ECN is set.
pub const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr` with `num_buffers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetHeader {
    /// [`NEEDS_CSUM`], [`DATA_VALID`].
    pub flags: u8,
    /// `GSO_*`.
    pub gso_type: u8,
    /// Bytes of all headers, for segmentation; a hint.
    pub hdr_len: u16,
    /// Payload bytes of a segment.
    pub gso_size: u16,
    /// Start of the checksummed bytes.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`.
    pub csum_offset: u16,
    /// Buffers that a received packet was spread over; 0 in transmitted ones.
    pub num_buffers: u16,
}

impl NetHeader {
    /// As it stands in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [self.flags, self.gso_type, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let fields = [
            self.hdr_len,
            self.gso_size,
            self.csum_start,
            self.csum_offset,
            self.num_buffers,
        ];
        for (at, field) in bytes[2..].chunks_exact_mut(2).zip(fields) {
            at.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// From memory.
    #[must_use]
    pub fn from_bytes(bytes: [u8; HEADER_LEN]) -> Self {
        let field = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: field(2),
            gso_size: field(4),
            csum_start: field(6),
            csum_offset: field(8),
            num_buffers: field(10),
        }
    }
}
