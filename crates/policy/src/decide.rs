//! The decision for one flow.

use port::{DropReason, PortId};
use serde::{Deserialize, Serialize};
use wire::{FlowKey, FlowMask, MacAddr};

use crate::model::SegmentId;
use crate::program::{Ingress, Program};

/// What to do with the frames of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Deliver to one port.
    Unicast {
        /// The receiver.
        port: PortId,
        /// The tag that the frame leaves with; `None`: untagged. Replaces the tag it came with.
        tag: Option<u16>,
    },
    /// Deliver to all ports of the segment but the sender, each with its own tag: see
    /// [`Program::flood`].
    Flood {
        /// The segment.
        segment: SegmentId,
    },
    /// Deliver to nobody.
    Drop(DropReason),
}

/// An [`Action`] and its reasons.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// What of the key the decision depends on: all flows that agree in these bits share it.
    pub mask: FlowMask,
    /// The segment in which it was decided; `None` if it was dropped before that was known.
    pub segment: Option<SegmentId>,
    /// The source address to be learned at the ingress port, also if the frame is dropped as a
    /// reflection. `None`: nothing to be learned from this frame.
    pub learn: Option<(SegmentId, MacAddr)>,
}

/// What [`decide`] needs to know of the forwarding database.
pub trait Lookup {
    /// The port behind which the station is, if that is known.
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId>;

    /// Whether frames of `port` must not use `mac` as their source now, because the address
    /// belongs to another port that still uses it.
    fn is_barred(&self, segment: SegmentId, mac: MacAddr, port: PortId) -> bool;
}

/// The part of a key that [`decide`] looks at: ingress port, VLAN, both Ethernet addresses.
pub const DECISION_MASK: FlowMask = FlowMask::NONE
    .with_in_port()
    .with_vlan()
    .with_smac()
    .with_dmac();

/// Decides what happens to the frames of the flow `key`.
#[must_use]
pub fn decide(program: &Program, fdb: &dyn Lookup, key: &FlowKey) -> Decision {
    let ingress = PortId(key.in_port());
    if !key.smac().is_station() {
        return refuse(DropReason::BadSource, None);
    }
    if key.dmac().is_link_local_reserved() {
        return refuse(DropReason::LinkLocal, None);
    }
    let segment = match classify(program.ingress(ingress), key.vlan()) {
        Ok(segment) => segment,
        Err(reason) => return refuse(reason, None),
    };
    if fdb.is_barred(segment, key.smac(), ingress) {
        return refuse(DropReason::MacClaim, Some(segment));
    }
    Decision {
        action: forward(program, fdb, segment, key),
        mask: DECISION_MASK,
        segment: Some(segment),
        learn: Some((segment, key.smac())),
    }
}

fn refuse(reason: DropReason, segment: Option<SegmentId>) -> Decision {
    Decision {
        action: Action::Drop(reason),
        mask: DECISION_MASK,
        segment,
        learn: None,
    }
}

/// The segment of a frame with this tag.
fn classify(ingress: &Ingress, vlan: Option<u16>) -> Result<SegmentId, DropReason> {
    let vid = vlan.unwrap_or(0);
    match ingress {
        Ingress::Closed => Err(DropReason::VlanUnknown),
        Ingress::Access(segment) if vid == 0 => Ok(*segment),
        Ingress::Access(_) => Err(DropReason::VlanNotAllowed),
        Ingress::Trunk { native, .. } if vid == 0 => native.ok_or(DropReason::VlanUnknown),
        Ingress::Trunk { tagged, .. } => tagged
            .binary_search_by_key(&vid, |entry| entry.vid)
            .ok()
            .and_then(|at| tagged.get(at))
            .map(|entry| entry.segment)
            .ok_or(DropReason::VlanUnknown),
    }
}

/// Where a frame with a good source goes.
fn forward(program: &Program, fdb: &dyn Lookup, segment: SegmentId, key: &FlowKey) -> Action {
    let flood = Action::Flood { segment };
    if key.dmac().is_multicast() {
        return flood;
    }
    // A station that sends to itself is behind its own port, learned or not.
    if key.dmac() == key.smac() {
        return Action::Drop(DropReason::Reflection);
    }
    let Some(port) = fdb.port_of(segment, key.dmac()) else {
        return flood;
    };
    if port == PortId(key.in_port()) {
        return Action::Drop(DropReason::Reflection);
    }
    // A port that has left the segment since it was learned counts as unknown.
    match program.member(segment, port) {
        Some(member) => Action::Unicast {
            port,
            tag: member.tag,
        },
        None => flood,
    }
}
