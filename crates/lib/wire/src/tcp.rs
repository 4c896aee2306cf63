//! TCP header view (RFC 9293).

use crate::{
    WireError,
    bytes::{be16, header_fields},
};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// IP protocol number.
pub const PROTOCOL: u8 = 6;
/// Offset of the checksum field.
pub const CHECKSUM_OFFSET: usize = 16;

/// No more data from the sender.
pub const FIN: u16 = 0x01;
/// Opens a connection.
pub const SYN: u16 = 0x02;
/// Resets the connection.
pub const RST: u16 = 0x04;
/// Push.
pub const PSH: u16 = 0x08;
/// The acknowledgement number counts.
pub const ACK: u16 = 0x10;
/// The urgent pointer counts.
pub const URG: u16 = 0x20;
/// Congestion window reduced (RFC 3168).
pub const CWR: u16 = 0x80;

/// The flags with the words for them.
pub const FLAGS: [(&str, u16); 8] = [
    ("fin", FIN),
    ("syn", SYN),
    ("rst", RST),
    ("psh", PSH),
    ("ack", ACK),
    ("urg", URG),
    ("ece", 0x40),
    ("cwr", CWR),
];

/// A checked TCP header with all of its options present.
#[derive(Clone, Copy, Debug)]
pub struct TcpView<'a> {
    fixed: &'a [u8; HEADER_LEN],
    rest: &'a [u8],
}

header_fields! {
    TcpView:
    /// Source port.
    src_port: u16 = 0;
    /// Destination port.
    dst_port: u16 = 2;
    /// Sequence number.
    seq: u32 = 4;
    /// Acknowledgement number.
    ack: u32 = 8;
    /// Window as it stands there, unscaled.
    window: u16 = 14;
    /// The checksum as found; the view does not verify it.
    checksum: u16 = CHECKSUM_OFFSET;
}

impl<'a> TcpView<'a> {
    /// A view of the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`], or [`WireError::Length`] for a data offset below five.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, rest) = bytes.split_first_chunk().ok_or(WireError::Truncated)?;
        let view = Self { fixed, rest };
        if view.header_len() < HEADER_LEN {
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
        usize::from(self.fixed[12] >> 4) * 4
    }

    /// The 12 bits after the data offset: control bits and the reserved ones.
    #[inline]
    pub fn flags(&self) -> u16 {
        be16(self.fixed, 12) & 0x0fff
    }

    /// The bytes of the options.
    #[inline]
    pub fn options(&self) -> &'a [u8] {
        self.rest
            .get(..self.header_len() - HEADER_LEN)
            .unwrap_or_default()
    }

    /// Returns the captured payload after the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.rest
            .get(self.header_len() - HEADER_LEN..)
            .unwrap_or_default()
    }
}
