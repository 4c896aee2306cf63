//! Software segmentation: the headers of the frames that a large TCP or UDP frame becomes.
//!
//! Pure header logic: the payload stays in place, in pieces; a segment has the range of its part,
//! and takes that part's sum for the checksum.
//!
//! ```
//! # use wire::{MacAddr, ParsedHeaders, Sum, build::PacketBuilder};
//! # use wire::segment::{GsoKind, Segmenter};
//! # let frame = PacketBuilder::new(MacAddr::ZERO, MacAddr::BROADCAST)
//! #     .ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2).payload(&[7; 3000]).build();
//! let n = usize::from(ParsedHeaders::parse(&frame[..192], frame.len()).header_len);
//! let (headers, payload) = frame.split_at(n);
//! let gso = Segmenter::new(headers, payload.len(), 1400, GsoKind::Udp4, false).unwrap();
//! for segment in gso.iter() {
//!     let mut out = [0; wire::SNAPSHOT];
//!     let n = segment.write_headers(&mut out);
//!     segment.finish_checksum(&mut out[..n], Sum::of(&payload[segment.payload_range()]));
//! }
//! ```

use crate::{
    SNAPSHOT, Sum,
    bytes::{put16, put32},
    packet::{Fragment, L3, ParsedHeaders},
    tcp, udp,
};

/// Limit of segments of one frame: 64 KiB in parts of 128 bytes. A frame with more would be work
/// rather than transport.
///
/// Segment sizes of guests, for 64 KiB:
///
/// * TCP whose peer announces no segment size uses 536 bytes (RFC 9293, 3.7.1), so do Windows' and
///   Linux' stacks: 123 segments. The smallest path MTU that Linux accepts (`min_pmtu`, 552) makes
///   it 131.
/// * UDP: Linux sends 64 segments at most, 128 since 2024 (`UDP_MAX_SEGMENTS`).
/// * DPDK leaves the size to its application; Intel's drivers there take 256 bytes at least
///   (`IAVF_MIN_TSO_MSS`): 256 segments.
///
/// A *peer* may cause Linux to use 36 bytes and less (`TCP_MIN_SND_MSS` is 48, with options;
/// CVE-2019-11479), which would be more than this. Such a connection loses its super-frames and
/// continues with retransmissions, which Linux sends as single segments. Network cards refuse such
/// sizes as well: Linux' driver of gVNIC below 88 bytes, Intel's cards below 64.
pub const MAX_SEGMENTS: usize = 512;

/// Which large frame it is; of virtio's `gso_type` (virtio 1.3 section 5.1.6.2), with UDP split by
/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4: each segment a datagram of its own.
    Udp4,
    /// UDP over IPv6: each segment a datagram of its own.
    Udp6,
}

impl GsoKind {
    /// Returns whether segments are TCP's.
    pub const fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp4 | Self::Tcp6)
    }

    /// Returns whether it is over IPv4.
    pub const fn is_v4(self) -> bool {
        matches!(self, Self::Tcp4 | Self::Udp4)
    }
}

/// Why a frame cannot be segmented. Nothing of it may be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GsoError {
    /// The segment size is zero.
    #[error("segment size is zero")]
    ZeroSize,
    /// More than [`MAX_SEGMENTS`].
    #[error("more than {MAX_SEGMENTS} segments")]
    TooManySegments,
    /// The headers are not those of the kind of frame announced, or are malformed.
    #[error("headers are not of the announced kind")]
    HeaderMismatch,
    /// The headers given do not end where the TCP or UDP header does.
    #[error("header length is wrong")]
    HeaderLength,
    /// The IP length does not end where the frame does.
    #[error("IP length does not match the frame")]
    FrameLength,
    /// An IP fragment.
    #[error("frame is an IP fragment")]
    Fragment,
    /// A routing header hides the destination that the checksum covers.
    #[error("frame has an IPv6 routing header")]
    RoutingHeader,
    /// The ECN bit came with UDP.
    #[error("ECN bit without TCP")]
    EcnWithoutTcp,
}

/// A frame that was checked and can be segmented.
#[derive(Clone, Copy, Debug)]
pub struct Segmenter<'a> {
    headers: &'a [u8],
    parsed: ParsedHeaders,
    l4: usize,
    kind: GsoKind,
    payload_len: usize,
    gso_size: usize,
    count: usize,
}

impl<'a> Segmenter<'a> {
    /// Checks a frame of `headers`, Ethernet to TCP or UDP header inclusive
    /// ([`ParsedHeaders::header_len`] bytes), and `payload_len` bytes, to be cut every `gso_size`
    /// bytes. `ecn` is virtio's `GSO_ECN` bit: only TCP may have it. CWR is kept on the first
    /// segment alone with or without it (RFC 3168 section 6.1.2).
    ///
    /// # Errors
    /// See [`GsoError`].
    pub fn new(
        headers: &'a [u8],
        payload_len: usize,
        gso_size: u16,
        kind: GsoKind,
        ecn: bool,
    ) -> Result<Self, GsoError> {
        if gso_size == 0 {
            return Err(GsoError::ZeroSize);
        }
        if ecn && !kind.is_tcp() {
            return Err(GsoError::EcnWithoutTcp);
        }
        let gso_size = usize::from(gso_size);
        let count = payload_len.div_ceil(gso_size).max(1);
        if count > MAX_SEGMENTS {
            return Err(GsoError::TooManySegments);
        }
        let frame_len = headers.len() + payload_len;
        let parsed = ParsedHeaders::parse(headers, frame_len);
        let l4 = check_headers(&parsed, headers.len(), kind)?;
        if parsed.l3_end as usize != frame_len {
            return Err(GsoError::FrameLength);
        }
        Ok(Self {
            headers,
            parsed,
            l4,
            kind,
            payload_len,
            gso_size,
            count,
        })
    }

    /// Number of segments, at least one and at most [`MAX_SEGMENTS`].
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of headers of every segment, at most [`SNAPSHOT`].
    #[inline]
    pub fn header_len(&self) -> usize {
        self.headers.len()
    }

    /// Segment `index`, counted from zero.
    #[inline]
    pub fn segment(&self, index: usize) -> Option<Segment<'_>> {
        (index < self.count).then_some(Segment { gso: self, index })
    }

    /// All segments in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Segment<'_>> {
        (0..self.count).map(|index| Segment { gso: self, index })
    }
}

/// Returns whether the headers are of `kind` and end at `len`; gives where the transport header
/// begins.
fn check_headers(p: &ParsedHeaders, len: usize, kind: GsoKind) -> Result<usize, GsoError> {
    let version = match p.l3 {
        L3::V4 { .. } => kind.is_v4(),
        L3::V6 { .. } => !kind.is_v4(),
        _ => false,
    };
    let proto = if kind.is_tcp() {
        tcp::PROTOCOL
    } else {
        udp::PROTOCOL
    };
    if !version || p.l4_proto != proto {
        return Err(GsoError::HeaderMismatch);
    }
    if p.fragment != Fragment::No {
        return Err(GsoError::Fragment);
    }
    if matches!(p.l3, L3::V6 { routing: true, .. }) {
        return Err(GsoError::RoutingHeader);
    }
    let l4 = p.l4_offset.ok_or(GsoError::HeaderMismatch)?;
    if usize::from(p.header_len) != len || len > SNAPSHOT {
        return Err(GsoError::HeaderLength);
    }
    Ok(usize::from(l4))
}

/// One frame of those a large frame becomes.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    gso: &'a Segmenter<'a>,
    index: usize,
}

impl Segment<'_> {
    /// Returns the offset of this segment's payload in the large frame's.
    #[inline]
    pub fn payload_offset(&self) -> usize {
        self.index * self.gso.gso_size
    }

    /// Bytes of payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        (self.gso.payload_len - self.payload_offset()).min(self.gso.gso_size)
    }

    /// The part of the large frame's payload that is this segment's.
    #[cfg(any(test, feature = "test-utils"))]
    #[inline]
    pub fn payload_range(&self) -> std::ops::Range<usize> {
        self.payload_offset()..self.payload_offset() + self.payload_len()
    }

    /// Returns whether this is the last segment.
    #[inline]
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.gso.count
    }

    /// Writes this segment's headers and gives their length, [`Segmenter::header_len`]. The
    /// transport checksum is not right yet: call [`finish_checksum`](Self::finish_checksum) next.
    /// Zero, with nothing written, when `out` is too short.
    #[inline]
    pub fn write_headers(&self, out: &mut [u8]) -> usize {
        let n = self.gso.headers.len();
        let Some(out) = out.get_mut(..n) else {
            return 0;
        };
        out.copy_from_slice(self.gso.headers);
        self.write_ip(out);
        if self.gso.kind.is_tcp() {
            self.write_tcp(&mut out[self.gso.l4..]);
        } else {
            put16(out, self.gso.l4 + 4, self.l4_len() as u16);
        }
        n
    }

    /// Completes the transport checksum in what [`write_headers`](Self::write_headers) wrote;
    /// `payload` is the sum of its [`payload_len`](Self::payload_len) bytes of payload.
    #[inline]
    pub fn finish_checksum(&self, out: &mut [u8], payload: Sum) {
        let Some(l4) = out.get_mut(self.gso.l4..self.gso.headers.len()) else {
            return;
        };
        put16(l4, self.checksum_field(), 0);
        let mut sum = self.pseudo_header();
        sum.add_bytes(l4);
        sum.add_sum(payload);
        let done = if self.gso.kind.is_tcp() {
            sum.finish()
        } else {
            sum.finish_udp()
        };
        put16(l4, self.checksum_field(), done);
    }

    /// Leaves the transport checksum to a receiver that completes it itself (virtio's
    /// `GUEST_CSUM`): writes the pseudo-header's sum and gives `csum_start` and `csum_offset`.
    #[cfg(any(test, feature = "test-utils"))]
    #[inline]
    pub fn partial_checksum(&self, out: &mut [u8]) -> (u16, u16) {
        put16(
            out,
            self.gso.l4 + self.checksum_field(),
            self.pseudo_header().fold(),
        );
        (self.gso.l4 as u16, self.checksum_field() as u16)
    }

    /// Bytes of transport header and payload; with a checked frame below 2^16.
    fn l4_len(&self) -> usize {
        self.gso.headers.len() - self.gso.l4 + self.payload_len()
    }

    fn checksum_field(&self) -> usize {
        if self.gso.kind.is_tcp() {
            tcp::CHECKSUM_OFFSET
        } else {
            udp::CHECKSUM_OFFSET
        }
    }

    fn pseudo_header(&self) -> Sum {
        // The constructor admits only headers that have one.
        self.gso
            .parsed
            .pseudo_header(self.l4_len() as u32)
            .unwrap_or_default()
    }

    /// IPv4: total length, identification counted up, header checksum. IPv6: payload length.
    fn write_ip(&self, out: &mut [u8]) {
        let l3 = usize::from(self.gso.parsed.l3_offset);
        let after_fixed = self.gso.l4 - l3 + self.l4_len();
        if !self.gso.kind.is_v4() {
            put16(out, l3 + 4, (after_fixed - crate::ipv6::HEADER_LEN) as u16);
            return;
        }
        let header = &mut out[l3..self.gso.l4];
        let id = u16::from_be_bytes([header[4], header[5]]).wrapping_add(self.index as u16);
        put16(header, 2, after_fixed as u16);
        put16(header, 4, id);
        put16(header, 10, 0);
        let checksum = Sum::of(header).finish();
        put16(header, 10, checksum);
    }

    /// Sequence number; FIN and PSH on the last segment only, CWR on the first only.
    fn write_tcp(&self, l4: &mut [u8]) {
        let seq = u32::from_be_bytes([l4[4], l4[5], l4[6], l4[7]]);
        put32(l4, 4, seq.wrapping_add(self.payload_offset() as u32));
        if !self.is_last() {
            l4[13] &= !((tcp::FIN | tcp::PSH) as u8);
        }
        if self.index > 0 {
            l4[13] &= !(tcp::CWR as u8);
        }
    }
}

#[cfg(test)]
mod tests;
