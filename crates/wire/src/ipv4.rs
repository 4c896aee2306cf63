//! IPv4 header view (RFC 791).

use crate::{
    WireError,
    bytes::{array, be16},
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

    /// Type of service: DSCP and ECN.
    #[inline]
    pub fn tos(&self) -> u8 {
        self.fixed[1]
    }

    /// Bytes of the datagram, header included; at least the header's.
    #[inline]
    pub fn total_len(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// Identification.
    #[inline]
    pub fn id(&self) -> u16 {
        be16(self.fixed, 4)
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

    /// Time to live.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.fixed[8]
    }

    /// Protocol number of the payload.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.fixed[9]
    }

    /// The header checksum as found; the view does not verify it.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.fixed, 10)
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<20, 4>(self.fixed, 12))
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<20, 4>(self.fixed, 16))
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
