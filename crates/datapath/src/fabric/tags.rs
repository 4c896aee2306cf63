//! Outer VLAN tags: popped at the ingress, pushed at the egress.

use port::Offload;
use wire::vlan::{HeaderBuf, VlanTci};

use super::{ETHERNET, TAG};

/// Returns the length of the link header of a frame with this egress tag.
pub(super) fn link_header(tag: Option<u16>) -> u32 {
    ETHERNET + if tag.is_some() { u32::from(TAG) } else { 0 }
}

/// Pops the outer tag. Returns its TCI, whose priority is kept for a tagged egress.
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

/// Returns the offload after the network header moved by so many bytes.
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
