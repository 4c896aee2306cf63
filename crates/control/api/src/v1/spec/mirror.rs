//! Mirrors: frames that also go to another port.

use model::objects;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

objects!(MirrorSpec);

/// Directions of a mirrored port, as seen from the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MirrorDirection {
    /// Frames that the port sends, and frames that are delivered to it.
    #[default]
    Both,
    /// Frames that the port sends, including dropped ones.
    In,
    /// Frames that are delivered to the port.
    Out,
}

impl MirrorDirection {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A mirror: copies frames of ports or of segments to a port; without ports and segments, frames of
/// all ports. Only frames that match the filter are copied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct MirrorSpec {
    /// The mirror's name, unique: 1 to 32 characters out of `A-Z a-z 0-9 _ . -`, not only dots.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,32}$")]
    pub name: String,
    /// The port that receives the copies.
    pub to: String,
    /// Ports whose frames are copied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// The direction of the frames of these ports. Default: both.
    #[serde(default, skip_serializing_if = "MirrorDirection::is_default")]
    pub direction: MirrorDirection,
    /// Segments. Each of their frames is copied once, as it was sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<String>,
    /// A filter, in the language of captures. Default: all frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}
