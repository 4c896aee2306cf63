//! Desired topology: segments, and the ports in them.

use std::collections::BTreeMap;
use std::fmt;

use port::PortId;
use serde::{Deserialize, Serialize};

/// Upper bound of segment ids, exclusive.
pub const MAX_SEGMENTS: usize = 4096;

/// Identifier of a segment for as long as it exists: a small number that control assigns, below
/// [`MAX_SEGMENTS`]. It is no VLAN.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct SegmentId(pub u16);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An L2 broadcast domain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Segment {
    /// Its name, for messages.
    pub name: String,
    /// Its tag on trunks, 1 to 4094 (IEEE 802.1Q); without one it is untagged there.
    pub vlan: Option<u16>,
}

/// Segments of a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortMode {
    /// In one segment, untagged.
    Access(SegmentId),
    /// In several segments, distinguished by their tags.
    Trunk(Vec<SegmentId>),
    /// In none for now: it is administratively down.
    Down,
}

impl PortMode {
    /// Returns the segments of the port.
    #[must_use]
    pub fn segments(&self) -> &[SegmentId] {
        match self {
            Self::Access(segment) => std::slice::from_ref(segment),
            Self::Trunk(segments) => segments,
            Self::Down => &[],
        }
    }
}

/// Segments and the ports in them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Model {
    /// All segments, also those without ports.
    pub segments: BTreeMap<SegmentId, Segment>,
    /// All ports.
    pub ports: BTreeMap<PortId, PortMode>,
}
