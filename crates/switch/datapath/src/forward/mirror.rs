//! Mirrors: copies of frames to another port. This module selects the frames, `tap` sees them, and
//! the fabric delivers the copies.

use filter::{ExpressionError, Filter};
use ipc::capture::Way;
use ipc::mirrors::Mirror as MirrorConfig;
use policy::{Ingress, Program, SegmentId};
use port::{DropReason, PortId};
use wire::ParsedHeaders;

/// One mirror, shared by all workers.
#[derive(Clone, Debug)]
pub struct Mirror {
    config: MirrorConfig,
    filter: Filter,
}

/// Copy to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MirrorCopy {
    /// Destination.
    pub(crate) to: PortId,
    /// Number of the mirror.
    pub(crate) mirror: u8,
}

/// Frame as a mirror sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MirroredFrame<'a> {
    pub(crate) port: PortId,
    pub(crate) way: Way,
    pub(crate) lost: Option<DropReason>,
    /// Segment of a frame that was sent, if it has one.
    pub(crate) segment: Option<SegmentId>,
    pub(crate) parsed: &'a ParsedHeaders,
    pub(crate) len: u32,
}

impl Mirror {
    /// Returns the mirror of this configuration.
    ///
    /// # Errors
    /// The filter cannot be parsed.
    pub fn new(mut config: MirrorConfig) -> Result<Self, ExpressionError> {
        config.sort();
        let filter = Filter::parse(&config.filter)?;
        Ok(Self { config, filter })
    }

    /// Returns the copy that it makes.
    pub(crate) fn copy(&self) -> MirrorCopy {
        MirrorCopy {
            to: self.config.to,
            mirror: self.config.number,
        }
    }

    /// Returns whether the mirror can apply to frames of this port in this direction.
    pub(crate) fn covers(&self, port: PortId, way: Way, program: &Program) -> bool {
        let has = |segment: &SegmentId| self.config.is_of_segment(*segment);
        let in_segment = || match program.ingress(port) {
            Ingress::Closed | Ingress::Down => false,
            Ingress::Access(segment) => has(segment),
            Ingress::Trunk { native, tagged } => {
                native.as_ref().is_some_and(has) || tagged.iter().any(|one| has(&one.segment))
            }
        };
        self.config.names(port, way)
            || self.config.is_of_sender(port, way) && (self.config.everything || in_segment())
    }

    /// Returns whether a frame is to be copied: one that was sent, even if it was dropped later;
    /// one that was delivered.
    pub(crate) fn matches(&self, frame: &MirroredFrame<'_>) -> bool {
        let MirroredFrame { port, way, .. } = *frame;
        (way == Way::In || frame.lost.is_none())
            && self.config.means(port, way, frame.segment)
            && self.filter.matches(frame.parsed, frame.len)
    }
}
