//! Which of a receiver's queue pairs a frame goes to.

use port::SHALLOW;
use wire::flow::{FlowKey, FlowMask};
use wire::packet::Parsed;

use super::TAG;

/// Spreads conversations over a receiver's queue pairs; all frames of one take the same. Looked at only
/// where there is more than one pair.
#[inline(never)]
pub(super) fn spread(headers: &[u8], payload_len: u32) -> u64 {
    let frame_len = headers.len() + payload_len as usize;
    // The same bytes whether or not the frame's head was copied deeper, and whether or not a tag was in it.
    let headers = &headers[..headers.len().min(SHALLOW - usize::from(TAG))];
    let key = FlowKey::new(0, &Parsed::parse(headers, frame_len));
    key.masked(&FlowMask::CONVERSATION).hash(0) >> 32
}
