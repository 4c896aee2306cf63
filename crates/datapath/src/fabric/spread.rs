//! Distribution of frames over the queue pairs of a receiver.

use port::SHALLOW;
use wire::flow::{FlowKey, FlowMask};
use wire::packet::Parsed;

use super::TAG;

/// Returns a hash of the frame's conversation: all frames of a conversation take the same queue
/// pair. Used only for receivers with more than one pair.
#[inline(never)]
pub(super) fn spread(headers: &[u8], payload_len: u32) -> u64 {
    let frame_len = headers.len() + payload_len as usize;
    // The hash must not depend on how deep the head was copied, nor on a tag in it.
    let headers = &headers[..headers.len().min(SHALLOW - usize::from(TAG))];
    let key = FlowKey::new(0, &Parsed::parse(headers, frame_len));
    key.masked(&FlowMask::CONVERSATION).hash(0) >> 32
}
