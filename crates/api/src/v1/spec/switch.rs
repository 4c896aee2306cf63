//! What is wanted of the switch as a whole.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::CopyEngine;
use crate::v1::offload::Offload;

/// The switch as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchSpec {
    /// How the switch calls itself towards people: 1 to 32 characters out of `A-Z a-z 0-9 _ . -`, not only dots.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,32}$")]
    pub name: String,
    /// Whether its workers may sleep.
    #[serde(default)]
    pub poll: Poll,
    /// How many workers forward: a number from 1 to 64, or `auto`.
    #[serde(default)]
    #[schema(value_type = WorkersText)]
    pub workers: Workers,
    /// How often guests are notified.
    #[serde(default)]
    pub batching: BatchingSpec,
    /// By what it knows what the processors of guests do.
    #[serde(default, skip_serializing_if = "GuestStates::is_auto")]
    pub guest_state: GuestStates,
    /// What copies long frames.
    #[serde(default, skip_serializing_if = "CopyEngine::is_cpu")]
    pub copy_engine: CopyEngine,
    /// Whether idle cores help them.
    #[serde(default, skip_serializing_if = "Offload::is_default")]
    pub offload: Offload,
    /// Absolute paths of directories in which, and below which, sockets of ports and of metrics may be, beside the runtime directory
    /// and those of the absolute paths in the configuration with which Lasthop was started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 64)]
    pub socket_dirs: Vec<String>,
}

impl Default for SwitchSpec {
    fn default() -> Self {
        Self {
            name: "lasthop".to_owned(),
            poll: Poll::default(),
            workers: Workers::default(),
            batching: BatchingSpec::default(),
            guest_state: GuestStates::default(),
            copy_engine: CopyEngine::default(),
            offload: Offload::default(),
            socket_dirs: Vec::new(),
        }
    }
}

/// How often a guest is notified of frames while it runs. One that sleeps is woken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchingSpec {
    /// Without it, whenever the guest wishes to be.
    pub enabled: bool,
    /// Once in so many microseconds, 1 to 10000, unless
    pub period_us: u16,
    /// so many buffers were filled meanwhile, 1 to 1024.
    pub threshold: u16,
}

impl Default for BatchingSpec {
    fn default() -> Self {
        Self {
            enabled: true,
            period_us: 125,
            threshold: 64,
        }
    }
}

/// By what the switch knows whether the processors of guests run, wait for a core or sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum GuestStates {
    /// By the kernel, or by `/proc` where the kernel refuses.
    #[default]
    Auto,
    /// A program in the kernel notes every change; needs the right to load it (`CAP_BPF` and `CAP_PERFMON`).
    Bpf,
    /// The supervisor looks at `/proc` some times a second.
    Proc,
    /// By what guests say of their own accord, in their queues.
    Off,
}

impl GuestStates {
    /// The word as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bpf => "bpf",
            Self::Proc => "proc",
            Self::Off => "off",
        }
    }

    /// Whether it is what holds when nothing is said.
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// What a worker of the switch does when there are no frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Poll {
    /// It sleeps, unless the next frame is likely to come sooner than a sleep is worth.
    #[default]
    Adaptive,
    /// It looks for them on and on while a queue runs, and takes a core for that.
    Always,
}

impl Poll {
    /// The word as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Always => "always",
        }
    }
}

/// How many threads forward frames: a number from 1 to 64, or `"auto"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "WorkersText", into = "WorkersText")]
pub enum Workers {
    /// One for each core that the switch may use, at most eight.
    Auto,
    /// So many.
    Count(u16),
}

impl Default for Workers {
    /// One: a core forwards more than most hosts have to forward.
    fn default() -> Self {
        Self::Count(1)
    }
}

/// How many threads forward frames: a number from 1 to 64, or `"auto"`.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected an integer from 1 to 64, or \"auto\"")]
#[schema(as = Workers)]
enum WorkersText {
    Count(u16),
    Word(Auto),
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::v1) enum Auto {
    Auto,
}

impl From<WorkersText> for Workers {
    fn from(text: WorkersText) -> Self {
        match text {
            WorkersText::Count(count) => Self::Count(count),
            WorkersText::Word(Auto::Auto) => Self::Auto,
        }
    }
}

impl From<Workers> for WorkersText {
    fn from(workers: Workers) -> Self {
        match workers {
            Workers::Count(count) => Self::Count(count),
            Workers::Auto => Self::Word(Auto::Auto),
        }
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => count.fmt(f),
        }
    }
}
