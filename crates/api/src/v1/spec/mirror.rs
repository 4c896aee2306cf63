//! Mirrors: frames that also go to another port.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which frames of a mirrored port are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MirrorDirection {
    /// Those that it sends and those that it is delivered.
    #[default]
    Both,
    /// Those that it sends, also where they are dropped.
    In,
    /// Those that it is delivered.
    Out,
}

impl MirrorDirection {
    /// The word as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::In => "in",
            Self::Out => "out",
        }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Copies of frames to a port: of ports, of segments, or of all ports where neither is named, and of those the ones that the filter means.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MirrorSpec {
    /// The mirror's name, unique: 1 to 32 characters out of `A-Z a-z 0-9 _ . -`, not only dots.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,32}$")]
    pub name: String,
    /// The port that gets the copies.
    pub to: String,
    /// Ports whose frames are copied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Of these ports, which frames.
    #[serde(default, skip_serializing_if = "MirrorDirection::is_default")]
    pub direction: MirrorDirection,
    /// Segments of which each frame is copied once, as it was sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<String>,
    /// Only frames that this means, in the language of captures; all if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}
