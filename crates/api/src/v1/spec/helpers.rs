//! The table `[switch.helpers]`.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::v1::objects::objects;

use super::switch::Auto;

objects!(HelpersSpec);

/// Helpers: threads on idle cores that help busy workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, default)]
pub struct HelpersSpec {
    /// Whether helpers run.
    #[schema(value_type = EnabledText)]
    pub enabled: Enabled,
    /// The number of frames in a batch, 1 to 1024, at which a queue pair counts as backlogged. Of
    /// long frames, each 512 bytes count as one more.
    pub backlog: u16,
    /// Time in microseconds, 1 to 1000, for which a helper polls an empty queue pair before it
    /// returns the pair to its worker.
    pub hysteresis_us: u16,
    /// Numbers of the cores with a helper. Default: all cores that the switch may use.
    pub cores: Vec<u16>,
}

impl HelpersSpec {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for HelpersSpec {
    fn default() -> Self {
        Self {
            enabled: Enabled::default(),
            backlog: 32,
            hysteresis_us: 5,
            cores: Vec::new(),
        }
    }
}

/// `true`, `false` or `"auto"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "EnabledText", into = "EnabledText")]
pub enum Enabled {
    /// Helpers run if the switch expects a benefit.
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

/// `true`, `false` or `"auto"`.
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
