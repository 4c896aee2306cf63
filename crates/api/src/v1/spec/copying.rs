//! Who copies frames.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What copies the payload of frames of a kilobyte and more; shorter ones are always copied by the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CopyEngine {
    /// The worker.
    #[default]
    Cpu,
    /// A thread beside the workers.
    Thread,
    /// A work queue of Intel's Data Streaming Accelerator.
    Dsa,
    /// Such a queue if there is one that can be used, else the worker.
    Auto,
}

impl CopyEngine {
    /// The word as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Thread => "thread",
            Self::Dsa => "dsa",
            Self::Auto => "auto",
        }
    }

    /// Whether it is what holds when nothing is said.
    pub(super) fn is_cpu(&self) -> bool {
        *self == Self::Cpu
    }
}
