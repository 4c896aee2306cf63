//! Segments, port membership and access lists: the models, their compiled program, and the decision for one flow.
//!
//! ```text
//!   Model  --compile-->  Program  --decide(fdb, key)-->  Decision
//!   what the operator    immutable, with an epoch;       action, what it depends on,
//!   asked for            switch and control hold it      what to learn from it
//! ```
//!
//! Control decides; the switch caches the [`Action`] and executes it, and looks into the
//! [`Program`] only to flood. Everything here is a pure function of its arguments.
//!
//! # Rules
//!
//! * An access port is in one segment. Its untagged and priority-tagged (VLAN 0) frames belong
//!   to it; any other tag is refused. Frames leave it untagged.
//! * A trunk port is in several segments, told apart by their VLANs; at most one of them has
//!   none and takes the untagged and priority-tagged frames. Frames leave it as they would enter.
//! * A segment without a VLAN is untagged on trunks.
//! * Frames never cross segments.
//! * What a guarded port's guest says of itself must be true; see [`guard`].
//! * Access lists, if there are any, are asked about every frame as it comes from its sender and as it goes to a
//!   receiver; see [`acl`].

#![forbid(unsafe_code)]

pub mod acl;
mod compile;
mod decide;
mod explain;
pub mod guard;
mod model;
mod outdated;
mod program;

#[cfg(test)]
mod tests;

pub use compile::CompileError;
pub use decide::{Action, DECISION_MASK, Decision, LeftOut, Lookup, Receiver, decide};
pub use explain::{Asked, Destination, Step, explain};
pub use model::{MAX_SEGMENTS, Model, PortMode, Segment, SegmentId};
pub use outdated::Outdated;
pub use port::{DropReason, PortId};
pub use program::{Ingress, Member, Program, VlanSegment};
