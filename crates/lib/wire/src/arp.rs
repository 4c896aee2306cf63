//! ARP and RARP for Ethernet and IPv4 (RFC 826, RFC 903).

use crate::{
    MacAddr, WireError,
    bytes::{array, header_fields},
};
use std::net::Ipv4Addr;

/// Bytes of a packet for Ethernet and IPv4.
pub const PACKET_LEN: usize = 28;
/// Opcode of a request.
pub const REQUEST: u16 = 1;
/// Opcode of a reply.
pub const REPLY: u16 = 2;
/// Opcode of a reverse request.
pub const REVERSE_REQUEST: u16 = 3;

/// An ARP packet for Ethernet and IPv4.
#[derive(Clone, Copy, Debug)]
pub struct ArpView<'a> {
    fixed: &'a [u8; PACKET_LEN],
}

header_fields! {
    ArpView:
    /// Operation, [`REQUEST`], [`REPLY`] or another.
    operation: u16 = 6;
    /// Hardware address the sender claims.
    sender_mac: MacAddr = 8;
    /// Protocol address the sender claims.
    sender_ip: Ipv4Addr = 14;
    /// Requested protocol address, or the receiver of a reply.
    target_ip: Ipv4Addr = 24;
}

impl<'a> ArpView<'a> {
    /// A view of the packet at the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`], or [`WireError::Unsupported`] for other address types.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, WireError> {
        let fixed = bytes.first_chunk().ok_or(WireError::Truncated)?;
        match array::<PACKET_LEN, 6>(fixed, 0) {
            [0, 1, 8, 0, 6, 4] => Ok(Self { fixed }),
            _ => Err(WireError::Unsupported),
        }
    }
}
