//! Cached flows.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Flows in one answer at most.
pub const FLOWS_MAX: u16 = 1024;
/// Flows in an answer when nobody says how many.
pub const FLOWS_DEFAULT: u16 = 100;

/// Query of `GET /v1/flows`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FlowsFilter {
    /// Only flows from or to this port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// How many at most, 1 to 1024; 100 without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u16>,
}

/// Query of `DELETE /v1/flows`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PurgeFilter {
    /// Only flows from or to this port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

/// Answer of `GET /v1/flows`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowsDocument {
    /// Cached flows, the busiest first. Those of several workers with the same match are one.
    pub flows: Vec<FlowEntry>,
}

/// A cached decision, and the frames that it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowEntry {
    /// Which frames, in words: `from vm1, untagged, 52:54:00:00:00:01 > 52:54:00:00:00:02`. What is not said may be anything.
    #[serde(rename = "match")]
    pub matches: String,
    /// What happens to them, in words.
    pub action: String,
    /// Name of the port that they come from, where the flow is for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Name of the port that they go to, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Frames so far.
    pub packets: u64,
    /// Frames in a thousand seconds, since the last time that somebody asked; from the beginning, where nobody has.
    pub packets_per_1000_s: u64,
    /// Milliseconds since the last frame.
    pub idle_ms: u32,
    /// Milliseconds since it was decided.
    pub age_ms: u32,
}

impl FlowEntry {
    /// Frames a second, of late.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.packets_per_1000_s as f64 / 1000.0
    }
}
