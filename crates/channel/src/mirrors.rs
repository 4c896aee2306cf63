//! Mirrors, as control tells the switch of them: whose frames also go to another port.

use policy::SegmentId;
use port::PortId;
use serde::{Deserialize, Serialize};

use crate::capture::Way;

/// Mirrors at once.
pub const MAX_MIRRORS: usize = 64;

/// One mirror. A frame that it is about in several ways goes to `to` once each time that it is seen: as a port sent it, and as a port was
/// delivered it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mirror {
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
    /// The mirror without a port that there is no more; `None`: nothing is left of it.
    #[must_use]
    pub fn without(mut self, port: PortId) -> Option<Self> {
        self.ports.retain(|one| *one != port);
        let is_of_any = self.everything || !self.ports.is_empty() || !self.segments.is_empty();
        (self.to != port && is_of_any).then_some(self)
    }
}
