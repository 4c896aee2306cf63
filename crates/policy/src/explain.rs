//! Why a decision is what it is: [`decide`](crate::decide()) itself, which tells each of its steps.

use std::sync::Arc;

use port::{DropReason, PortId};
use wire::{FlowKey, MacAddr};

use crate::acl::{Direction, Ruling};
use crate::decide::{Decision, Lookup, classify, decide_telling};
use crate::model::SegmentId;
use crate::program::{Member, Program};

/// Something that was found out on the way to a decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// One of the frame's addresses is such that nobody gets it.
    Addresses(DropReason),
    /// The frame's segment, by its port and tag; or why it has none.
    Segment(Result<SegmentId, DropReason>),
    /// The port's guard does not let its guest send this.
    Guard(DropReason),
    /// Whether the port may use the source address now.
    Source {
        /// The address belongs to another port.
        barred: bool,
    },
    /// Nothing in the segment is asked: there are no lists and no denying default.
    Unfiltered,
    /// What the lists of one side say.
    Lists(Asked),
    /// Where the destination is.
    Destination(Destination),
}

/// What was asked for a port, and what came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Whose lists.
    pub port: PortId,
    /// As its frame, or as one to it.
    pub direction: Direction,
    /// Names of the lists, in the order in which they are asked.
    pub lists: Vec<Arc<str>>,
    /// What they say, and by what.
    pub ruling: Ruling,
}

/// What is known of a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// A group of stations, or all.
    Group(MacAddr),
    /// The sender itself.
    Itself,
    /// A station that nobody has learned.
    Unknown,
    /// A station behind the port that the frame came from.
    Reflected,
    /// A station behind another port.
    Behind(Member),
    /// A station behind a port that has left the segment, which counts as unknown.
    Left(PortId),
}

/// Who is told the steps.
pub(crate) trait Witness {
    /// Tells one, if anybody listens.
    fn note(&mut self, step: impl FnOnce() -> Step);
}

/// Nobody.
pub(crate) struct Nobody;

impl Witness for Nobody {
    #[inline]
    fn note(&mut self, _: impl FnOnce() -> Step) {}
}

impl Witness for Vec<Step> {
    fn note(&mut self, step: impl FnOnce() -> Step) {
        self.push(step());
    }
}

/// The decision for the frames of the flow `key`, and how it came about.
#[must_use]
pub fn explain(program: &Program, fdb: &dyn Lookup, key: &FlowKey) -> (Decision, Vec<Step>) {
    let mut steps = Vec::new();
    let decision = decide_telling(program, fdb, key, &mut steps);
    (decision, steps)
}

impl Program {
    /// The segment of a port's frames with this tag; or why they have none.
    ///
    /// # Errors
    /// The reason for which they are dropped.
    pub fn segment_of(&self, port: PortId, vlan: Option<u16>) -> Result<SegmentId, DropReason> {
        classify(self.ingress(port), vlan)
    }
}
