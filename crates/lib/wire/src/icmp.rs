//! The part that ICMP (RFC 792) and ICMPv6 (RFC 4443) messages share.

use crate::{WireError, bytes::header_fields};

/// Bytes of type, code, checksum and the four that depend on the type.
pub const HEADER_LEN: usize = 8;
/// IP protocol number of ICMP.
pub const PROTOCOL_V4: u8 = 1;
/// IP protocol number of ICMPv6.
pub const PROTOCOL_V6: u8 = 58;
/// Offset of the checksum field.
pub const CHECKSUM_OFFSET: usize = 2;

/// The first eight bytes of an ICMP or ICMPv6 message.
#[derive(Clone, Copy, Debug)]
pub struct IcmpView<'a> {
    fixed: &'a [u8; HEADER_LEN],
    rest: &'a [u8],
}

header_fields! {
    IcmpView:
    /// Message type.
    kind: u8 = 0;
    /// Code within the type.
    code: u8 = 1;
    /// The checksum as found; the view does not verify it.
    checksum: u16 = CHECKSUM_OFFSET;
    /// Identifier of a message that asks or answers.
    identifier: u16 = 4;
}

impl<'a> IcmpView<'a> {
    /// A view of the message at the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, rest) = bytes.split_first_chunk().ok_or(WireError::Truncated)?;
        Ok(Self { fixed, rest })
    }

    /// Returns the captured payload after the eight bytes.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.rest
    }
}
