//! Decisions and flows for people: from what [`policy::explain`] tells, and what the switch has cached, to the API's documents.
//!
//! Everything here is a pure function; [`crate::engine`] asks for what it needs.

pub(crate) mod beside;
pub(crate) mod flow;
pub(crate) mod frame;
pub(crate) mod steps;
mod words;

use std::collections::{BTreeMap, HashMap};

use policy::SegmentId;
use port::PortId;

pub(crate) use words::time;

/// Names of what has numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    ports: HashMap<PortId, String>,
    segments: HashMap<SegmentId, String>,
}

impl Names {
    /// From the numbers by name.
    pub(crate) fn new(
        ports: &BTreeMap<String, PortId>,
        segments: &BTreeMap<String, SegmentId>,
    ) -> Self {
        let (ports, segments) = (ports.iter(), segments.iter());
        Self {
            ports: ports.map(|(name, id)| (*id, name.clone())).collect(),
            segments: segments.map(|(name, id)| (*id, name.clone())).collect(),
        }
    }

    /// What has no name any more has its number.
    pub(crate) fn port(&self, id: PortId) -> String {
        let number = || format!("port {}", id.0);
        self.ports.get(&id).cloned().unwrap_or_else(number)
    }

    /// Likewise.
    pub(crate) fn segment(&self, id: SegmentId) -> String {
        let number = || format!("segment {}", id.0);
        self.segments.get(&id).cloned().unwrap_or_else(number)
    }
}
