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

/// A copy that is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    /// Where it goes.
    pub(crate) to: PortId,
    /// The number of the mirror.
    pub(crate) mirror: u8,
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
        order.sort();
        let filter = Filter::parse(&order.filter)?;
        Ok(Self { order, filter })
    }

    /// A copy that it makes.
    pub(crate) fn copy(&self) -> Copied {
        Copied {
            to: self.order.to,
            mirror: self.order.number,
        }
    }

    /// Whether it may be about frames of this port that go this way.
    pub(crate) fn is_of(&self, port: PortId, way: Way, program: &Program) -> bool {
        let has = |segment: &SegmentId| self.order.is_of_segment(*segment);
        let in_segment = || match program.ingress(port) {
            Ingress::Closed | Ingress::Down => false,
            Ingress::Access(segment) => has(segment),
            Ingress::Trunk { native, tagged } => {
                native.as_ref().is_some_and(has) || tagged.iter().any(|one| has(&one.segment))
            }
        };
        self.order.names(port, way)
            || self.order.is_of_sender(port, way) && (self.order.everything || in_segment())
    }

    /// Whether a frame is to be copied. What was not delivered to a receiver is not; what was sent is, whatever became of it.
    pub(crate) fn wants(&self, frame: &Passing<'_>) -> bool {
        let Passing { port, way, .. } = *frame;
        (way == Way::In || frame.lost.is_none())
            && self.order.means(port, way, frame.segment)
            && self.filter.matches(frame.parsed, frame.len)
    }
}
