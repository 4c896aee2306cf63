//! Prefilters of uplinks: flows of denied frames that end before the switch.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// State of an uplink's prefilter.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrefilterStatus {
    /// Where frames end: `socket` or `xdp`.
    pub back_end: Option<String>,
    /// Why none end.
    pub reason: Option<String>,
    /// Number of entries of its table now.
    pub entries: u64,
    /// Frames that have met an entry. The port's counters and those of rules include them.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Denied frames that were looked at to find entries, since control started.
    pub samples: u64,
    /// Entries that were added since control started.
    pub added: u64,
    /// Entries that went because they met no frame, or for others.
    pub aged: u64,
    /// Entries that went because the policy no longer denied their frames, or by another rule.
    pub outdated: u64,
}

/// Answer of `GET /v1/ports/{name}/prefilter`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrefilterDocument {
    /// The name of the port.
    pub port: String,
    /// The entries, those with the most frames first.
    pub entries: Vec<PrefilterEntry>,
}

/// A flow of frames that end before the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrefilterEntry {
    /// The match in words: `untagged, any > 52:54:00:00:00:02, IPv4, 192.0.2.0/24 > any`. Fields
    /// that are not named match any value.
    #[serde(rename = "match")]
    pub matches: String,
    /// The rules that deny the frames, each as its list and its name: `web/others`. Without a rule
    /// it is the default of the segment.
    pub rules: Vec<String>,
    /// Frames that have met it.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Milliseconds since it was added.
    pub age_ms: u64,
    /// Milliseconds since it was last known to have met a frame, which is looked at once a second.
    pub idle_ms: u64,
}
