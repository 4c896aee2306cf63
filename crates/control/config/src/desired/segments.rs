//! Segments and their members.

use api::v1::{DEFAULT_SEGMENT, DesiredState, SegmentSpec, SegmentStatus};

use super::invalid::expect;

/// Returns the segments with their members.
#[must_use]
pub fn segments(state: &DesiredState) -> Vec<SegmentStatus> {
    let members = |name: &str| {
        let ports = state.ports.iter();
        let inside = ports.filter(|port| port.segments().any(|s| s == name));
        inside.map(|port| port.name.clone()).collect()
    };
    let status = |segment: &SegmentSpec| SegmentStatus {
        name: segment.name.clone(),
        vlan: segment.vlan,
        neighbour_suppression: segment.neighbour_suppression,
        ports: members(&segment.name),
    };
    state.segments.iter().map(status).collect()
}

/// Returns whether a segment exists.
pub(super) fn exists(state: &DesiredState, segment: &str) -> bool {
    segment == DEFAULT_SEGMENT || state.segment(segment).is_some()
}

/// Describes the existing segments; of many, the first ones.
pub(super) fn one_of_segments(state: &DesiredState) -> String {
    let mut names: Vec<&str> = state.segments.iter().map(|s| s.name.as_str()).collect();
    if !names.contains(&DEFAULT_SEGMENT) {
        names.insert(0, DEFAULT_SEGMENT);
    }
    let more = if names.len() > 8 { ", …" } else { "" };
    names.truncate(8);
    format!("{} ({}{more})", expect::SEGMENT, names.join(", "))
}
