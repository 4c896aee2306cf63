//! The table `[switch.offload]`.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::spec::Auto;

/// Whether and how cores that idle help busy workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Offload {
    /// Whether there is a helper on each core.
    #[schema(value_type = EnabledText)]
    pub enabled: Enabled,
    /// Frames of a batch (1 to 1024) from which on a queue pair has a backlog, 512 bytes of long ones counting as a frame more.
    pub mark: u16,
    /// How long a helper looks at a queue pair without frames before it gives it back, microseconds, 1 to 1000.
    pub hysteresis_us: u16,
    /// Numbers of cores with a helper; none: all that the switch may use.
    pub cores: Vec<u16>,
}

impl Offload {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Offload {
    fn default() -> Self {
        Self {
            enabled: Enabled::default(),
            mark: 32,
            hysteresis_us: 5,
            cores: Vec::new(),
        }
    }
}

/// `true`, `false` or `"auto"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "EnabledText", into = "EnabledText")]
pub enum Enabled {
    /// Where it is worth it.
    #[default]
    Auto,
    /// Always.
    Yes,
    /// Never.
    No,
}

impl fmt::Display for Enabled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Yes => "true",
            Self::No => "false",
        })
    }
}

/// Whether it is so: `true`, `false` or `"auto"`.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected true, false or \"auto\"")]
#[schema(as = Enabled)]
enum EnabledText {
    Bool(bool),
    Word(Auto),
}

impl From<EnabledText> for Enabled {
    fn from(text: EnabledText) -> Self {
        match text {
            EnabledText::Bool(true) => Self::Yes,
            EnabledText::Bool(false) => Self::No,
            EnabledText::Word(Auto::Auto) => Self::Auto,
        }
    }
}

impl From<Enabled> for EnabledText {
    fn from(enabled: Enabled) -> Self {
        match enabled {
            Enabled::Yes => Self::Bool(true),
            Enabled::No => Self::Bool(false),
            Enabled::Auto => Self::Word(Auto::Auto),
        }
    }
}
