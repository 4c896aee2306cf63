//! Mirrors: frames that also go to another port. Whose they are is said here; [`crate::watch`] sees them, and the fabric delivers them.

use channel::capture::Way;
use channel::mirrors::Mirror as Order;
use policy::{Ingress, Program, SegmentId};
use port::{DropReason, PortId};
use wire::Parsed;
use wire::expression::{ExpressionError, Filter};

/// One mirror. All workers share it.
#[derive(Clone, Debug)]
pub struct Mirror {
    order: Order,
    filter: Filter,
}

/// A frame as a mirror sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passing<'a> {
    pub(crate) port: PortId,
    pub(crate) way: Way,
    pub(crate) lost: Option<DropReason>,
    /// Of a frame that was sent, if it is in one.
    pub(crate) segment: Option<SegmentId>,
    pub(crate) parsed: &'a Parsed,
    pub(crate) len: u32,
}

impl Mirror {
    /// What control has ordered.
    ///
    /// # Errors
    /// The filter's, where it makes no sense.
    pub fn new(mut order: Order) -> Result<Self, ExpressionError> {
        order.ports.sort_unstable();
        order.segments.sort_unstable();
        let filter = Filter::parse(&order.filter)?;
        Ok(Self { order, filter })
    }

    /// Where copies go.
    pub(crate) fn to(&self) -> PortId {
        self.order.to
    }

    /// Whether it may be about frames of this port that go this way.
    pub(crate) fn is_of(&self, port: PortId, way: Way, program: &Program) -> bool {
        let has = |segment| self.order.segments.binary_search(segment).is_ok();
        let in_segment = || match program.ingress(port) {
            Ingress::Closed => false,
            Ingress::Access(segment) => has(segment),
            Ingress::Trunk { native, tagged } => {
                native.as_ref().is_some_and(has) || tagged.iter().any(|one| has(&one.segment))
            }
        };
        self.names(port, way)
            || self.is_of_sender(port, way) && (self.order.everything || in_segment())
    }

    /// Whether a frame is to be copied. What was not delivered to a receiver is not; what was sent is, whatever became of it.
    pub(crate) fn wants(&self, frame: &Passing<'_>) -> bool {
        let Passing { port, way, .. } = *frame;
        let in_segment = || {
            let segments = &self.order.segments;
            frame
                .segment
                .is_some_and(|s| segments.binary_search(&s).is_ok())
        };
        (way == Way::In || frame.lost.is_none())
            && (self.names(port, way)
                || self.is_of_sender(port, way) && (self.order.everything || in_segment()))
            && self.filter.matches(frame.parsed, frame.len)
    }

    /// Whether it is about this port by name.
    fn names(&self, port: PortId, way: Way) -> bool {
        self.order.way.is_none_or(|wanted| wanted == way)
            && self.order.ports.binary_search(&port).is_ok()
    }

    /// Whether a frame is looked at as its sender sent it: not what the receiver of the copies sends.
    fn is_of_sender(&self, port: PortId, way: Way) -> bool {
        way == Way::In && port != self.order.to
    }
}
