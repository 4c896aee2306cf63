//! IPv4 header view (RFC 791).

use crate::{
    WireError,
    bytes::{be16, header_fields},
};
use std::net::Ipv4Addr;

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// A checked IPv4 header; the bytes after it may be cut short by the snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4View<'a> {
    fixed: &'a [u8; HEADER_LEN],
    rest: &'a [u8],
}

header_fields! {
    Ipv4View:
    /// Type of service: DSCP and ECN.
    tos: u8 = 1;
    /// Bytes of the datagram, header included; at least the header's.
    total_len: u16 = 2;
    /// Identification.
    id: u16 = 4;
    /// Time to live.
    ttl: u8 = 8;
    /// Protocol number of the payload.
    protocol: u8 = 9;
    /// The header checksum as found; the view does not verify it.
    checksum: u16 = 10;
    /// Source address.
    src: Ipv4Addr = 12;
    /// Destination address.
    dst: Ipv4Addr = 16;
}

impl<'a> Ipv4View<'a> {
    /// A view of the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`] when the header or its options do not fit, [`WireError::Version`],
    /// or [`WireError::Length`] when the header length is below 20 or the total length below the
    /// header's.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, rest) = bytes.split_first_chunk().ok_or(WireError::Truncated)?;
        let view = Self { fixed, rest };
        if fixed[0] >> 4 != 4 {
            return Err(WireError::Version);
        }
        if view.header_len() < HEADER_LEN || (view.total_len() as usize) < view.header_len() {
            return Err(WireError::Length);
        }
        if bytes.len() < view.header_len() {
            return Err(WireError::Truncated);
        }
        Ok(view)
    }

    /// Bytes of header with options, 20 to 60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.fixed[0] & 0xf) * 4
    }

    /// Returns whether more fragments follow.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.fixed[6] & 0x20 != 0
    }

    /// Fragment offset in units of eight bytes.
    #[inline]
    pub fn fragment_offset(&self) -> u16 {
        be16(self.fixed, 6) & 0x1fff
    }

    /// Returns the captured payload: neither past the total length nor past the bytes given.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let end = (self.total_len() as usize - HEADER_LEN).min(self.rest.len());
        self.rest
            .get(self.header_len() - HEADER_LEN..end)
            .unwrap_or_default()
    }
}
