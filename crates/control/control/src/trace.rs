//! Traces and flows as documents of the API: from the steps of [`policy::explain`] and the cached
//! flows of the switch.
//!
//! This module has pure functions only; the engine collects their input.

pub(crate) mod beside;
pub(crate) mod flow;
pub(crate) mod frame;
pub(crate) mod steps;
pub(crate) mod tracked;
mod words;

use std::collections::{BTreeMap, HashMap};

use api::v1::DEFAULT_CLASS;
use policy::SegmentId;
use port::PortId;

pub(crate) use words::{done, time};

/// Names of ports, segments and classes by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    ports: HashMap<PortId, String>,
    segments: HashMap<SegmentId, String>,
    classes: HashMap<u8, String>,
}

impl Names {
    /// Makes the maps from those of numbers by name.
    pub(crate) fn new(
        ports: &BTreeMap<String, PortId>,
        segments: &BTreeMap<String, SegmentId>,
        classes: &BTreeMap<String, u8>,
    ) -> Self {
        let (ports, segments, classes) = (ports.iter(), segments.iter(), classes.iter());
        Self {
            ports: ports.map(|(name, id)| (*id, name.clone())).collect(),
            segments: segments.map(|(name, id)| (*id, name.clone())).collect(),
            classes: classes.map(|(name, id)| (*id, name.clone())).collect(),
        }
    }

    /// Returns the name of a port, or its number if it was removed.
    pub(crate) fn port(&self, id: PortId) -> String {
        let number = || format!("port {}", id.0);
        self.ports.get(&id).cloned().unwrap_or_else(number)
    }

    /// Returns the name of a class.
    pub(crate) fn class(&self, number: u8) -> &str {
        self.classes
            .get(&number)
            .map_or(DEFAULT_CLASS, String::as_str)
    }

    /// Returns the name of a segment, or its number if it was removed.
    pub(crate) fn segment(&self, id: SegmentId) -> String {
        let number = || format!("segment {}", id.0);
        self.segments.get(&id).cloned().unwrap_or_else(number)
    }
}
