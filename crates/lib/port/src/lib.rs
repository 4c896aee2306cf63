//! What several processes know of a port: its number, its [`counters`], the names of all drops, and
//! the work that a sender of frames leaves to the receiver.
//!
//! This crate has no knowledge of guest memory, policy and sessions.

pub mod counters;
mod drops;
mod limiter;

#[cfg(test)]
mod tests;

pub use drops::{DropReason, REASONS, losses};
pub use limiter::EventLimiter;

use wire::segment::GsoKind;

/// The longest frame: an IP packet of 65535 bytes with Ethernet header and one tag.
pub const MAX_FRAME: u32 = 65_535 + 14 + 4;
/// The longest outgoing frame: the longest frame without a tag, with the tag of its receiver.
pub const MAX_OUTGOING: u32 = MAX_FRAME + 4;

/// Number of one port for as long as it exists: an index that control assigns, below
/// [`counters::MAX_PORTS`].
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct PortId(pub u32);

/// A checksum that the sender left to be completed: the 16-bit field at `start + offset` holds the
/// pseudo header's sum (virtio 1.3, 5.1.6.2, `VIRTIO_NET_HDR_F_NEEDS_CSUM`). Bytes from the frame's
/// start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialChecksum {
    /// Start of the summed bytes.
    pub start: u16,
    /// Offset of the field, from `start`.
    pub offset: u16,
}

/// A frame that stands for several: the receiver, or the switch for it, cuts it into segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    /// Protocol of the segments, which decides how their headers change.
    pub kind: GsoKind,
    /// Payload bytes of a segment.
    pub size: u16,
    /// The TCP header carries CWR, which belongs to the first segment alone (RFC 3168).
    pub ecn: bool,
    /// Bytes of all headers, Ethernet to TCP or UDP: set by the switch from its own parsing, never
    /// taken from a sender.
    pub header_len: u16,
}

/// Work that the sender left to the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// A checksum to complete.
    pub checksum: Option<PartialChecksum>,
    /// A segmentation to do; always comes with `checksum`.
    pub gso: Option<Gso>,
}

impl Offload {
    /// Returns whether the frame is complete as it is. A segmentation comes with a checksum: only
    /// that is examined.
    #[inline]
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        debug_assert!(self.checksum.is_some() || self.gso.is_none());
        self.checksum.is_none()
    }
}
