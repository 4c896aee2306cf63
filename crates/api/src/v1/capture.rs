//! Captures of a port's frames.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Which way frames go that are captured, as their port sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CaptureDirection {
    /// What the port sends into the switch.
    In,
    /// What the switch delivers to the port, or wanted to.
    Out,
    /// Both.
    #[default]
    Both,
}

/// Bytes of each frame in a capture where nothing else is said: all.
pub const CAPTURE_SNAPLEN: u32 = 262_144;
/// Bytes of a capture's ring where nothing else is said.
pub const CAPTURE_BUFFER: u32 = 16 << 20;

fn snaplen() -> u32 {
    CAPTURE_SNAPLEN
}

fn buffer() -> u32 {
    CAPTURE_BUFFER
}

/// Query of `GET /v1/ports/{name}/capture`: which frames are wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct CaptureQuery {
    /// Only frames that this filter means, in the words of pcap-filter(7): see docs/CAPTURE.md. Empty: all.
    #[serde(default)]
    #[param(required = false)]
    pub filter: String,
    /// Bytes of each frame at most.
    #[serde(default = "snaplen")]
    #[param(required = false, default = 262_144, minimum = 1)]
    pub snaplen: u32,
    /// Frames after which it ends; without it, it goes on until somebody ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1)]
    pub count: Option<u64>,
    /// Only one way.
    #[serde(default)]
    #[param(required = false, inline)]
    pub direction: CaptureDirection,
    /// Only frames that were dropped.
    #[serde(default)]
    #[param(required = false)]
    pub drops: bool,
    /// Bytes that wait for the client in each forwarding thread: a power of two from 4096 to 67108864.
    #[serde(default = "buffer")]
    #[param(required = false, default = 16_777_216)]
    pub buffer: u32,
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
        }
    }
}
