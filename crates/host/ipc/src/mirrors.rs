//! Mirrors, from control to the switch: ports and segments whose frames are copied to another port.

use policy::SegmentId;
use port::PortId;
use serde::{Deserialize, Serialize};

use crate::capture::Way;

pub use port::counters::MAX_MIRRORS;

/// One mirror. A frame that it matches in several ways is copied to `to` once each time that it
/// passes: as a port sent it, and as a port received it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mirror {
    /// Its number, under which its copies are counted.
    pub number: u8,
    /// Port that receives the copies. Frames of this port are copied only to the ports of other
    /// mirrors.
    pub to: PortId,
    /// Ports whose frames are copied.
    pub ports: Vec<PortId>,
    /// Sent frames, received frames, or both.
    pub way: Option<Way>,
    /// Segments whose frames are copied, as they were sent.
    pub segments: Vec<SegmentId>,
    /// Copies the frames that any port sends.
    pub everything: bool,
    /// Filter of those frames: a text of the crate `filter`.
    pub filter: String,
}

impl Mirror {
    /// Sorts ports and segments for the lookups.
    pub fn sort(&mut self) {
        self.ports.sort_unstable();
        self.segments.sort_unstable();
    }

    /// Returns whether it names this port, for frames in this direction. It is sorted.
    #[must_use]
    pub fn names(&self, port: PortId, way: Way) -> bool {
        self.way.is_none_or(|desired| desired == way) && self.ports.binary_search(&port).is_ok()
    }

    /// Returns whether a frame is tested as its sender sent it: never for frames of the port that
    /// receives the copies.
    /// sends.
    #[must_use]
    pub fn is_of_sender(&self, port: PortId, way: Way) -> bool {
        way == Way::In && port != self.to
    }

    /// Returns whether it names this segment. It is sorted.
    #[must_use]
    pub fn is_of_segment(&self, segment: SegmentId) -> bool {
        self.segments.binary_search(&segment).is_ok()
    }

    /// Returns whether it matches a frame of this port in this direction and, if it is sent, of
    /// this segment; the filter is applied in addition. It is sorted.
    #[must_use]
    pub fn means(&self, port: PortId, way: Way, segment: Option<SegmentId>) -> bool {
        let in_segment = || segment.is_some_and(|segment| self.is_of_segment(segment));
        self.names(port, way) || self.is_of_sender(port, way) && (self.everything || in_segment())
    }

    /// Returns the mirror without a removed port; `None`: nothing is left of it.
    #[must_use]
    pub fn without(mut self, port: PortId) -> Option<Self> {
        self.ports.retain(|one| *one != port);
        let is_of_any = self.everything || !self.ports.is_empty() || !self.segments.is_empty();
        (self.to != port && is_of_any).then_some(self)
    }
}
