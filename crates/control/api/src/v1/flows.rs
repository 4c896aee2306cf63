//! Cached flows.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::{IntoParams, ToSchema};

/// Maximum number of flows in an answer.
pub const FLOWS_MAX: u16 = 1024;
/// Default number of flows in an answer.
pub const FLOWS_DEFAULT: u16 = 100;

/// Query of `GET /v1/flows`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FlowsFilter {
    /// Only flows from or to this port.
    pub port: Option<String>,
    /// Maximum number of flows, 1 to 1024. Default: 100.
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
    /// Cached flows, the busiest first. Flows of several workers with the same match are merged.
    pub flows: Vec<FlowEntry>,
}

/// A cached flow: its match, its action and its counters.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowEntry {
    /// The match in words: `from vm1, untagged, 52:54:00:00:00:01 > 52:54:00:00:00:02`. Fields that
    /// are not named match any value.
    #[serde(rename = "match")]
    pub matches: String,
    /// The action in words.
    pub action: String,
    /// Name of the port that the frames come from, if the flow matches one.
    pub from: Option<String>,
    /// Name of the port that the frames go to, if it is exactly one.
    pub to: Option<String>,
    /// Frames that have matched.
    pub packets: u64,
    /// Frames per 1000 seconds, since the last request for flows; without one, since the flow was
    /// cached.
    pub packets_per_1000_s: u64,
    /// Milliseconds since the last frame.
    pub idle_ms: u32,
    /// Milliseconds since the flow was cached.
    pub age_ms: u32,
}

impl FlowEntry {
    /// Returns the recent rate in frames a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.packets_per_1000_s as f64 / 1000.0
    }
}
