//! Static entries of the forwarding database.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::DEFAULT_SEGMENT;

/// Where a station is because the operator says so: it is not learned, does not age and does not move, and no other port may
/// use its address as a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StaticEntry {
    /// Its segment; the default one if it is absent.
    #[serde(default = "default_segment")]
    pub segment: String,
    /// Its MAC address, once in a segment.
    #[schema(pattern = "^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$")]
    pub mac: String,
    /// The port behind which it is, which is in the segment.
    pub port: String,
}

fn default_segment() -> String {
    DEFAULT_SEGMENT.to_owned()
}
