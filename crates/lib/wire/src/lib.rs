//! Views and builders for frame headers, the flow key, checksums, segmentation and coalescing, and
//! the formats of virtio network devices. No I/O, no unsafe.
//!
//! Everything here works on a private copy of a frame's headers, at most [`SNAPSHOT`] bytes, and on
//! sums of a payload that lives elsewhere. What crosses the crate's edge is checked once
//! (`new_checked`, [`packet::ParsedHeaders::parse`], [`segment::Segmenter::new`]); after that
//! accessors are total and nothing panics, whatever a guest wrote.
//!
//! Nothing allocates except [`build`], which makes whole frames for tests, and replies for control
//! and the switch.

#![forbid(unsafe_code)]

pub mod arp;
pub mod build;
pub mod checksum;
pub mod coalesce;
pub mod ethernet;
pub mod flow;
pub mod hash;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod packet;
pub mod segment;
pub mod tcp;
pub mod udp;
pub mod virtio;
pub mod vlan;
mod wrapped;

mod bytes;

pub use checksum::Sum;
pub use ethernet::{EtherType, MacAddr};
pub use flow::{FlowKey, FlowMask, FrameClass};
pub use packet::ParsedHeaders;
pub use vlan::{HeaderBuf, VlanTci};
pub use wrapped::LLC_LEN;

/// Bytes of a frame that are copied to private memory and parsed. The longest header the switch
/// acts on (Ethernet 14, tag 4, IPv4 60, TCP 60) is 138; the rest is room for IPv6 extension
/// headers.
pub const SNAPSHOT: usize = 192;

/// Why bytes are not the header they were taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The header does not end within the bytes given.
    #[error("header is truncated")]
    Truncated,
    /// The IP version nibble does not match the EtherType.
    #[error("wrong IP version")]
    Version,
    /// A length field contradicts the header that holds it.
    #[error("length field contradicts the header")]
    Length,
    /// An ARP packet for other hardware or protocol addresses than Ethernet and IPv4.
    #[error("not ARP for Ethernet and IPv4")]
    Unsupported,
}
