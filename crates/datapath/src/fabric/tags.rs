//! Outer tags: taken off as a frame comes, put on as its receiver wants it.

use port::Offload;
use wire::vlan::{HeaderBuf, VlanTci};

use super::{ETHERNET, TAG};

/// Bytes before the IP packet of a frame that goes out with this tag.
pub(super) fn link_header(tag: Option<u16>) -> u32 {
    ETHERNET + if tag.is_some() { u32::from(TAG) } else { 0 }
}

/// Takes the outer tag off; what is left of it is the priority, for a receiver that wants a tag.
#[inline]
pub(super) fn strip_tag(headers: &mut HeaderBuf, offload: &mut Offload) -> VlanTci {
    match headers.pop_vlan() {
        Some(tci) => {
            *offload = shifted(*offload, -i32::from(TAG));
            tci
        }
        None => VlanTci::new(0),
    }
}

/// The offload of a frame whose headers grew or shrank in front of the network header.
pub(super) fn shifted(mut offload: Offload, by: i32) -> Offload {
    let shift = |v: u16| (i32::from(v) + by) as u16;
    if let Some(checksum) = &mut offload.checksum {
        checksum.start = shift(checksum.start);
    }
    if let Some(gso) = &mut offload.gso {
        gso.header_len = shift(gso.header_len);
    }
    offload
}
