//! Mirrors, as control tells the switch of them: whose frames also go to another port.

use policy::SegmentId;
use port::PortId;
use serde::{Deserialize, Serialize};

use crate::capture::Way;

pub use port::counters::MAX_MIRRORS;

/// One mirror. A frame that it is about in several ways goes to `to` once each time that it is seen: as a port sent it, and as a port was
/// delivered it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mirror {
    /// Its number, under which its copies are counted.
    #[serde(default)]
    pub number: u8,
    /// Where copies go. What this port sends is copied only to where another mirror says so.
    pub to: PortId,
    /// Ports whose frames are meant.
    pub ports: Vec<PortId>,
    /// Those that they sent, those that they were delivered, or both.
    pub way: Option<Way>,
    /// Segments whose frames are meant, as they were sent.
    pub segments: Vec<SegmentId>,
    /// What every port sends is meant.
    pub everything: bool,
    /// Which of those frames: a text of [`wire::expression::filter`].
    pub filter: String,
}

impl Mirror {
    /// Puts ports and segments in the order in which they are looked up.
    pub fn sort(&mut self) {
        self.ports.sort_unstable();
        self.segments.sort_unstable();
    }

    /// Whether it is about this port by name, for frames that go this way. It is sorted.
    #[must_use]
    pub fn names(&self, port: PortId, way: Way) -> bool {
        self.way.is_none_or(|wanted| wanted == way) && self.ports.binary_search(&port).is_ok()
    }

    /// Whether a frame is looked at as its sender sent it: not what the receiver of the copies sends.
    #[must_use]
    pub fn is_of_sender(&self, port: PortId, way: Way) -> bool {
        way == Way::In && port != self.to
    }

    /// Whether it is about this segment. It is sorted.
    #[must_use]
    pub fn is_of_segment(&self, segment: SegmentId) -> bool {
        self.segments.binary_search(&segment).is_ok()
    }

    /// Whether a frame of this port is meant that goes this way and, if it is sent, belongs to this segment; if the filter means it, too. It is
    /// sorted.
    #[must_use]
    pub fn means(&self, port: PortId, way: Way, segment: Option<SegmentId>) -> bool {
        let in_segment = || segment.is_some_and(|segment| self.is_of_segment(segment));
        self.names(port, way) || self.is_of_sender(port, way) && (self.everything || in_segment())
    }

    /// The mirror without a port that there is no more; `None`: nothing is left of it.
    #[must_use]
    pub fn without(mut self, port: PortId) -> Option<Self> {
        self.ports.retain(|one| *one != port);
        let is_of_any = self.everything || !self.ports.is_empty() || !self.segments.is_empty();
        (self.to != port && is_of_any).then_some(self)
    }
}
