//! Trace of a decision: [`decide`](crate::decide()) itself, with each of its steps recorded.

use std::sync::Arc;

use port::{DropReason, PortId};
use wire::{FlowKey, MacAddr};

use crate::acl::{Direction, Ruling};
use crate::connection::Standing;
use crate::decide::{Decision, Lookup, Precision, classify, decide_traced};
use crate::model::SegmentId;
use crate::program::{Member, Program};
use crate::qos_class::ClassOrigin;

/// One step of a decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// One of the frame's addresses is never forwarded.
    Addresses(DropReason),
    /// The frame's segment, by its port and tag, or the drop reason.
    Segment(Result<SegmentId, DropReason>),
    /// Port security drops the frame.
    PortSecurity(DropReason),
    /// Whether the port may use the source address now.
    Source {
        /// The address belongs to another port.
        barred: bool,
    },
    /// The segment is not filtered: it has neither lists nor a denying default.
    Unfiltered,
    /// Standing of the frame in its connection, in a tracked segment.
    Connection(Standing),
    /// Ruling of the lists of one direction.
    Lists(ListEvaluation),
    /// Location of the destination.
    Destination(Destination),
    /// Class of the frame, by number, unless it has the default one because nothing gives it any.
    Class(u8, ClassOrigin),
}

/// Access lists of a port in one direction, and their ruling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListEvaluation {
    /// The port with these lists.
    pub port: PortId,
    /// `FromGuest` at the sender, `ToGuest` at a receiver.
    pub direction: Direction,
    /// Names of the lists, in the order in which they apply.
    pub lists: Vec<Arc<str>>,
    /// The verdict, and its origin.
    pub ruling: Ruling,
}

/// Location of a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// Multicast or broadcast.
    Group(MacAddr),
    /// The sender itself.
    Itself,
    /// An unknown unicast address.
    Unknown,
    /// A station behind the ingress port.
    Reflected,
    /// A station behind another port.
    Behind(Member),
    /// A station behind a port that has left the segment, which counts as unknown.
    Left(PortId),
}

/// Recorder of the steps of a decision.
pub(crate) trait DecisionTrace {
    /// Records one step, if recording is on.
    fn record(&mut self, step: impl FnOnce() -> Step);
}

/// Recorder that drops all steps.
pub(crate) struct NoTrace;

impl DecisionTrace for NoTrace {
    #[inline]
    fn record(&mut self, _: impl FnOnce() -> Step) {}
}

impl DecisionTrace for Vec<Step> {
    fn record(&mut self, step: impl FnOnce() -> Step) {
        self.push(step());
    }
}

/// Returns the decision for the frames of the flow `key`, and its steps.
#[must_use]
pub fn explain(program: &Program, fdb: &dyn Lookup, key: &FlowKey) -> (Decision, Vec<Step>) {
    let mut steps = Vec::new();
    let decision = decide_traced(program, fdb, key, (Precision::Rounded, &mut steps));
    (decision, steps)
}

impl Program {
    /// Returns the segment of a port's frames with this tag, or the drop reason.
    ///
    /// # Errors
    /// The drop reason.
    pub fn segment_of(&self, port: PortId, vlan: Option<u16>) -> Result<SegmentId, DropReason> {
        classify(self.ingress(port), vlan)
    }
}
