//! Static entries of the forwarding database.

use model::objects;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::DEFAULT_SEGMENT;

objects!(StaticEntry);

/// A static FDB entry: the address is not learned, does not age and does not move. No other port
/// may use it as a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct StaticEntry {
    /// The segment. Default: `default`.
    #[serde(default = "default_segment")]
    pub segment: String,
    /// The MAC address, unique in its segment.
    #[schema(pattern = "^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$")]
    pub mac: String,
    /// The port of the address, a member of the segment.
    pub port: String,
}

fn default_segment() -> String {
    DEFAULT_SEGMENT.to_owned()
}
