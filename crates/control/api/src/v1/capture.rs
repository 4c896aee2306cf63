//! Captures of a port's frames.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Directions of captured frames, as seen from the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CaptureDirection {
    /// Frames that the port sends into the switch.
    In,
    /// Frames that the switch delivers to the port, and those that were dropped on the way to it.
    Out,
    /// Both.
    #[default]
    Both,
}

/// Default number of captured bytes of each frame: all of them.
pub const CAPTURE_SNAPLEN: u32 = 262_144;
/// Default size of a capture's ring, in bytes.
pub const CAPTURE_BUFFER: u32 = 16 << 20;

fn snaplen() -> u32 {
    CAPTURE_SNAPLEN
}

fn buffer() -> u32 {
    CAPTURE_BUFFER
}

/// Query of `GET /v1/ports/{name}/capture`: selects frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct CaptureQuery {
    /// Only frames that match this filter, a part of pcap-filter(7):
    /// docs/user/capture-and-mirror.md. Empty: all.
    #[serde(default)]
    #[param(required = false)]
    pub filter: String,
    /// Maximum number of captured bytes of each frame.
    #[serde(default = "snaplen")]
    #[param(required = false, default = 262_144, minimum = 1)]
    pub snaplen: u32,
    /// Number of frames after which the capture ends; without it, the capture has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1)]
    pub count: Option<u64>,
    /// Captured direction.
    #[serde(default)]
    #[param(required = false, inline)]
    pub direction: CaptureDirection,
    /// Only frames that were dropped.
    #[serde(default)]
    #[param(required = false)]
    pub drops: bool,
    /// Bytes that wait for the client in each forwarding thread: a power of two from 4096 to
    /// 67108864.
    #[serde(default = "buffer")]
    #[param(required = false, default = 16_777_216)]
    pub buffer: u32,
    /// Denied frames of an uplink may end before the switch meanwhile, where they are not captured.
    #[serde(default)]
    #[param(required = false)]
    pub keep_prefilter: bool,
}

impl Default for CaptureQuery {
    fn default() -> Self {
        Self {
            filter: String::new(),
            snaplen: snaplen(),
            count: None,
            direction: CaptureDirection::Both,
            drops: false,
            buffer: buffer(),
            keep_prefilter: false,
        }
    }
}
