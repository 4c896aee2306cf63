//! UDP header view (RFC 768).

use crate::{WireError, bytes::header_fields};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// IP protocol number.
pub const PROTOCOL: u8 = 17;
/// Offset of the checksum field.
pub const CHECKSUM_OFFSET: usize = 6;

/// A UDP header that is all there.
#[derive(Clone, Copy, Debug)]
pub struct UdpView<'a> {
    fixed: &'a [u8; HEADER_LEN],
    rest: &'a [u8],
}

header_fields! {
    UdpView:
    /// Source port.
    src_port: u16 = 0;
    /// Destination port.
    dst_port: u16 = 2;
    /// Bytes of header and payload as the header claims; the view does not verify it.
    length: u16 = 4;
    /// The checksum as found; zero means none over IPv4.
    checksum: u16 = CHECKSUM_OFFSET;
}

impl<'a> UdpView<'a> {
    /// A view of the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, rest) = bytes.split_first_chunk().ok_or(WireError::Truncated)?;
        Ok(Self { fixed, rest })
    }

    /// Returns the captured payload after the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.rest
    }
}
