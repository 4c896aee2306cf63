//! Segments, port membership and access lists: the models, their compiled program, and the decision
//! for one flow.
//!
//! ```text
//!   Model  --compile-->  Program  --decide(fdb, key)-->  Decision
//!   desired              immutable, with an epoch;       action, the bits it depends on,
//!   topology             used by switch and control      address to learn
//! ```
//!
//! Control decides; the switch caches the [`Action`] and executes it, and looks into the
//! [`Program`] only to flood. Everything here is a pure function of its arguments.
//!
//! # Rules
//!
//! * An access port is in one segment. Its untagged and priority-tagged (VLAN 0) frames belong
//!   to it; any other tag is refused. Frames leave it untagged.
//! * A trunk port is in several segments, distinguished by their VLANs; at most one of them has
//!   none and takes the untagged and priority-tagged frames. Frames leave it as they would enter.
//! * A segment without a VLAN is untagged on trunks.
//! * Frames never cross segments.
//! * Port security limits the source addresses and the protocol roles of a port: see
//!   [`port_security`].
//! * A frame has the class of the first access rule that decides about it and names one, the
//!   sender's before the receiver's; else that of its DSCP, if its sender's port is trusted.
//! * Access lists apply to every frame on ingress from its sender and on egress to a receiver: see
//!   [`acl`]. Frames of a connection that a stateful rule has let in pass without them: see
//!   [`connection`].
//!
//! Of single frames, the crate has what these rules need beyond the flow key: the class
//! ([`frame_class`]), and the replies to neighbour requests ([`neighbour_request`]) and to rejected
//! frames ([`reject`]).

#![forbid(unsafe_code)]

pub mod acl;
mod compile;
pub mod connection;
mod decide;
mod denied;
mod explain;
pub mod frame_class;
mod model;
pub mod neighbour_request;
mod outdated;
pub mod port_security;
mod program;
mod qos_class;
pub mod reject;

#[cfg(test)]
mod tests;

pub use compile::CompileError;
pub use connection::ConnectionChange;
pub use decide::{
    Action, DECISION_MASK, Decision, ExcludeSetId, Lookup, Receiver, decide, decide_exact,
};
pub use denied::{Denial, NamedMacs, denied};
pub use explain::{Destination, ListEvaluation, Step, explain};
pub use model::{MAX_SEGMENTS, Model, PortMode, Segment, SegmentId};
pub use outdated::OutdatedFlows;
pub use port::{DropReason, PortId};
pub use program::{Ingress, Member, Program, VlanSegment};
pub use qos_class::{ClassOrigin, DEFAULT_CLASS, DscpClasses};
