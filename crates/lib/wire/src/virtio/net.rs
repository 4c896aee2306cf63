//! The header in front of every frame on a virtio-net queue (virtio 1.3, section 5.1.6): 12 bytes,
//! little endian. A legacy driver's ends before `num_buffers` where buffers are not merged
//! (5.1.6.1), and is in the guest's own byte order, which on x86-64 is the same.

use super::features::Features;

/// Length of the header in bytes; of a legacy one, the longest.
pub const LEN: usize = 12;
/// Length of the legacy header without `num_buffers`, in bytes.
pub const SHORT_LEN: usize = 10;

/// Length in bytes of the header in front of the frames of a driver that took `features`.
#[inline]
#[must_use]
pub const fn len(features: Features) -> usize {
    if !features.are_legacy() || features.contains(Features::NET_MRG_RXBUF) {
        LEN
    } else {
        SHORT_LEN
    }
}

/// Flag: the checksum from `csum_start` on is to be completed at `csum_start + csum_offset`.
pub const FLAG_NEEDS_CSUM: u8 = 1;

/// The frame is one packet, no segmentation.
pub const GSO_NONE: u8 = 0;
/// TCP over IPv4, to be segmented.
pub const GSO_TCPV4: u8 = 1;
/// UDP to be fragmented (UFO).
pub const GSO_UDP: u8 = 3;
/// TCP over IPv6, to be segmented.
pub const GSO_TCPV6: u8 = 4;
/// UDP to be segmented into datagrams (USO).
pub const GSO_UDP_L4: u8 = 5;
/// Bit beside the type: the TCP segments carry ECN.
pub const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr_v1`, as a private copy in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetHeader {
    /// `FLAG_*` bits.
    pub flags: u8,
    /// `GSO_*` type, with or without [`GSO_ECN`].
    pub gso_type: u8,
    /// Length of all headers up to the payload in bytes; a hint, not to be trusted.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Start of the checksummed bytes, in bytes from the start of the frame.
    pub csum_start: u16,
    /// Place of the checksum, in bytes from `csum_start`.
    pub csum_offset: u16,
    /// Receive buffers that the frame is spread over; 1 without `NET_MRG_RXBUF`, 0 from the driver.
    pub num_buffers: u16,
}

impl NetHeader {
    /// Reads the header from its wire form. Any bytes are a header; the caller checks the values.
    #[inline]
    #[must_use]
    pub const fn decode(b: &[u8; LEN]) -> Self {
        Self {
            flags: b[0],
            gso_type: b[1],
            hdr_len: u16::from_le_bytes([b[2], b[3]]),
            gso_size: u16::from_le_bytes([b[4], b[5]]),
            csum_start: u16::from_le_bytes([b[6], b[7]]),
            csum_offset: u16::from_le_bytes([b[8], b[9]]),
            num_buffers: u16::from_le_bytes([b[10], b[11]]),
        }
    }

    /// The header in its wire form.
    #[inline]
    #[must_use]
    pub const fn encode(&self) -> [u8; LEN] {
        let h = self.hdr_len.to_le_bytes();
        let g = self.gso_size.to_le_bytes();
        let s = self.csum_start.to_le_bytes();
        let o = self.csum_offset.to_le_bytes();
        let n = self.num_buffers.to_le_bytes();
        [
            self.flags,
            self.gso_type,
            h[0],
            h[1],
            g[0],
            g[1],
            s[0],
            s[1],
            o[0],
            o[1],
            n[0],
            n[1],
        ]
    }

    /// The segmentation type without the ECN bit.
    #[inline]
    #[must_use]
    pub const fn gso(&self) -> u8 {
        self.gso_type & !GSO_ECN
    }

    /// Returns whether a checksum is left to complete.
    #[inline]
    #[must_use]
    pub const fn needs_csum(&self) -> bool {
        self.flags & FLAG_NEEDS_CSUM != 0
    }
}

impl From<[u8; LEN]> for NetHeader {
    fn from(bytes: [u8; LEN]) -> Self {
        Self::decode(&bytes)
    }
}

impl From<NetHeader> for [u8; LEN] {
    fn from(header: NetHeader) -> Self {
        header.encode()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_legacy_header_without_merged_buffers_is_short() {
        let (modern, merge) = (Features::VERSION_1, Features::NET_MRG_RXBUF);
        assert_eq!(len(Features::empty()), 10);
        assert_eq!(len(!(modern | merge)), 10);
        for features in [modern, merge, modern | merge] {
            assert_eq!(len(features), 12, "{features:?}");
        }
    }

    #[test]
    fn fields_lie_where_the_standard_puts_them() {
        let header = NetHeader {
            flags: FLAG_NEEDS_CSUM,
            gso_type: GSO_TCPV4 | GSO_ECN,
            hdr_len: 0x0102,
            gso_size: 0x0304,
            csum_start: 0x0506,
            csum_offset: 0x0708,
            num_buffers: 0x090a,
        };
        let bytes = [1, 0x81, 2, 1, 4, 3, 6, 5, 8, 7, 0x0a, 9];
        assert_eq!(header.encode(), bytes);
        assert_eq!(NetHeader::decode(&bytes), header);
        assert_eq!(header.gso(), GSO_TCPV4);
        assert!(header.needs_csum());
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn every_byte_string_survives(bytes: [u8; LEN]) {
            prop_assert_eq!(NetHeader::from(bytes).encode(), bytes);
        }
    }
}
