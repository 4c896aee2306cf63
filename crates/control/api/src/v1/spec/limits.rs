//! Rate limits of a port.

use model::objects;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use super::si;

objects!(RateLimit, FloodLimit, LimitsSpec);

/// Rate limits in one direction. A segmentation-offload frame counts as the frames that it becomes
/// on the wire.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct RateLimit {
    /// Frames a second, 1 to 10^9.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub packets_per_second: Option<u64>,
    /// Burst in frames, 64 to 10^9. Default: the frames of 10 ms, at least 64; to the guest those
    /// of 400 ms, at least 368.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub packets_burst: Option<u64>,
    /// Bits a second, 1 to 10^12, of Ethernet frames without preamble and checksum.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub bits_per_second: Option<u64>,
    /// Burst in bits, 524424 to 10^12; the minimum is the longest frame (64 KiB with its headers).
    /// Default: the bits of 10 ms, at least two such frames; to the guest those of 400 ms, at least
    /// eight such frames.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub bits_burst: Option<u64>,
}

/// Limit of frames that are flooded (storm control).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct FloodLimit {
    /// Frames a second, 1 to 10^9.
    #[serde(deserialize_with = "si::number")]
    #[schema(value_type = si::Number)]
    pub packets_per_second: u64,
    /// Burst in frames, 1 to 10^9. Default: the frames of 100 ms, at least 16.
    #[serde(
        default,
        deserialize_with = "si::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<si::Number>)]
    pub packets_burst: Option<u64>,
}

/// All limits of a port. Without a field there is no limit.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct LimitsSpec {
    /// Limit of frames from the guest. Frames above it wait in the guest's own queue; none is
    /// dropped.
    pub from_guest: Option<RateLimit>,
    /// Limit of frames to the guest. Frames above it are dropped as `rate-limited`.
    pub to_guest: Option<RateLimit>,
    /// Limit of broadcast frames from the guest. Frames above it are dropped as `storm-control`.
    pub broadcast: Option<FloodLimit>,
    /// Limit of multicast frames from the guest, likewise.
    pub multicast: Option<FloodLimit>,
    /// Limit of frames from the guest for unknown unicast addresses, which are flooded; likewise.
    pub unknown_unicast: Option<FloodLimit>,
    /// Maximum number of connections, 1 to 4194304: of those that the guest opens, and of those
    /// that are opened to it.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub connections: Option<u64>,
}

impl LimitsSpec {
    /// Returns whether there is no limit.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
