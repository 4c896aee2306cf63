//! IPv6 header view and the bounded walk over extension headers (RFC 8200).

use crate::{
    WireError,
    bytes::{array, be16, header_fields},
};
use std::net::Ipv6Addr;

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;
/// Extension headers followed before the walk gives up. RFC 8200 section 4.1 recommends no chain
/// longer than six.
pub const MAX_EXTENSIONS: usize = 8;

/// Hop-by-hop options.
const HOP_BY_HOP: u8 = 0;
/// Routing header.
const ROUTING: u8 = 43;
/// Fragment header.
const FRAGMENT: u8 = 44;
/// Authentication header (RFC 4302). What it authenticates is not encrypted, and follows it.
const AUTHENTICATION: u8 = 51;
/// Destination options.
const DEST_OPTS: u8 = 60;

/// A checked fixed header; what follows may be cut short by the snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6View<'a> {
    fixed: &'a [u8; HEADER_LEN],
    rest: &'a [u8],
}

/// Result of the walk over the extension headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// Protocol at the end: the upper layer's, or the extension header that could not be followed.
    pub protocol: u8,
    /// Bytes of fixed and extension headers walked.
    pub len: usize,
    /// Whether `protocol` is the upper layer and begins at `len`.
    pub complete: bool,
    /// Fragment offset in units of eight bytes and the more-fragments bit, with a fragment header.
    pub fragment: Option<(u16, bool)>,
    /// Identification of the fragment header; zero without one.
    pub identification: u32,
    /// Bytes before what is fragmented: of all headers up to the fragment header.
    pub unfragmented: usize,
    /// Whether there is a routing header: the checksum's destination is then not the header's
    /// (section 8.1).
    pub routing: bool,
}

header_fields! {
    Ipv6View:
    /// Bytes after the fixed header.
    payload_len: u16 = 4;
    /// Protocol number of the first header after the fixed one.
    next_header: u8 = 6;
    /// Source address.
    src: Ipv6Addr = 8;
    /// Destination address.
    dst: Ipv6Addr = 24;
}

impl<'a> Ipv6View<'a> {
    /// A view of the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`] or [`WireError::Version`].
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, rest) = bytes.split_first_chunk().ok_or(WireError::Truncated)?;
        if fixed[0] >> 4 != 6 {
            return Err(WireError::Version);
        }
        Ok(Self { fixed, rest })
    }

    /// Traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (be16(self.fixed, 0) >> 4) as u8
    }

    /// Returns the captured payload: neither past the payload length nor past the bytes given.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.rest[..self.rest.len().min(self.payload_len() as usize)]
    }

    /// Follows hop-by-hop, routing, fragment, authentication and destination-option headers, at
    /// most [`MAX_EXTENSIONS`] of them. A later fragment ends the walk: what follows is payload.
    ///
    /// # Errors
    /// [`WireError::Length`] when an extension header runs past the datagram, or for a second
    /// fragment header.
    #[inline]
    pub fn extensions(&self) -> Result<Extensions, WireError> {
        let mut walk = Extensions {
            protocol: self.next_header(),
            len: HEADER_LEN,
            ..Extensions::default()
        };
        for _ in 0..MAX_EXTENSIONS {
            if !is_extension(walk.protocol) {
                walk.complete = true;
                return Ok(walk);
            }
            match self.step(&mut walk)? {
                Step::On => {}
                Step::LaterFragment => {
                    walk.complete = true;
                    return Ok(walk);
                }
                Step::OutOfSight => return Ok(walk),
            }
        }
        walk.complete = !is_extension(walk.protocol);
        Ok(walk)
    }

    /// Follows one extension header.
    fn step(&self, walk: &mut Extensions) -> Result<Step, WireError> {
        let at = walk.len - HEADER_LEN;
        let left = (self.payload_len() as usize).saturating_sub(at);
        if left < 8 {
            return Err(WireError::Length);
        }
        let Some(head) = self.payload().get(at..).and_then(|b| b.first_chunk::<8>()) else {
            return Ok(Step::OutOfSight);
        };
        if walk.protocol == FRAGMENT {
            return fragment_step(walk, head);
        }
        let len = match walk.protocol {
            AUTHENTICATION => (usize::from(head[1]) + 2) * 4,
            _ => (usize::from(head[1]) + 1) * 8,
        };
        if len > left {
            return Err(WireError::Length);
        }
        if len > self.payload().len() - at {
            return Ok(Step::OutOfSight);
        }
        walk.routing |= walk.protocol == ROUTING;
        walk.protocol = head[0];
        walk.len += len;
        Ok(Step::On)
    }
}

enum Step {
    On,
    LaterFragment,
    /// The header lies beyond the snapshot.
    OutOfSight,
}

fn fragment_step(walk: &mut Extensions, head: &[u8; 8]) -> Result<Step, WireError> {
    if walk.fragment.is_some() {
        return Err(WireError::Length);
    }
    let bits = be16(head, 2);
    walk.fragment = Some((bits >> 3, bits & 1 != 0));
    walk.identification = u32::from_be_bytes(array(head, 4));
    walk.protocol = head[0];
    walk.len += 8;
    walk.unfragmented = walk.len;
    Ok(if bits >> 3 != 0 {
        Step::LaterFragment
    } else {
        Step::On
    })
}

/// Returns whether what follows a header with this number is a header with a number of its own.
#[inline]
pub(crate) fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DEST_OPTS
    )
}
