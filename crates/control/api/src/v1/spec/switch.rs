//! The desired state of the switch as a whole.

use std::fmt;

use model::{GuestStates, KICK_US, Poll, objects};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ConnectionsSpec;

objects!(SwitchSpec, CoalescingSpec);

/// The switch as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct SwitchSpec {
    /// The switch's name, for people: 1 to 32 characters out of `A-Z a-z 0-9 _ . -`, not only dots.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,32}$")]
    pub name: String,
    /// Polling of the workers.
    #[serde(default)]
    pub poll: Poll,
    /// Limit of a worker's look before it sleeps, in microseconds: 0 to 1000, or `auto`.
    #[serde(default, skip_serializing_if = "PollLimit::is_auto")]
    #[schema(value_type = PollLimitText)]
    pub poll_us: PollLimit,
    /// Number of workers: 1 to 64, or `auto`, the default.
    #[serde(default)]
    #[schema(value_type = WorkersText)]
    pub workers: Workers,
    /// Interrupt coalescing.
    #[serde(default)]
    pub coalescing: CoalescingSpec,
    /// The source of the states of guests' vCPUs.
    #[serde(default, skip_serializing_if = "GuestStates::is_auto")]
    pub guest_state: GuestStates,
    /// Connection tracking.
    #[serde(default, skip_serializing_if = "ConnectionsSpec::is_default")]
    pub connections: ConnectionsSpec,
    /// Absolute paths of directories in which, and below which, sockets of ports and of metrics may
    /// be. The runtime directory, and the directories of absolute paths in the configuration with
    /// which Lasthop was started, are always allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 64)]
    pub socket_dirs: Vec<String>,
    /// Addresses of the host at which forwards of user ports may listen, from port 1024 on. So they
    /// may at loopback addresses and at those of the forwards with which Lasthop was started; below
    /// port 1024 they may listen as at the start only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 64)]
    pub forward_addresses: Vec<String>,
}

impl Default for SwitchSpec {
    fn default() -> Self {
        Self {
            name: "lasthop".to_owned(),
            poll: Poll::default(),
            poll_us: PollLimit::default(),
            workers: Workers::default(),
            coalescing: CoalescingSpec::default(),
            guest_state: GuestStates::default(),
            connections: ConnectionsSpec::default(),
            socket_dirs: Vec::new(),
            forward_addresses: Vec::new(),
        }
    }
}

/// Coalescing: the rate of notifications of a guest that runs, and of its kicks. A guest that
/// sleeps is notified at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, default)]
pub struct CoalescingSpec {
    /// Whether notifications are coalesced; if not, the guest is notified whenever it asks for it.
    pub enabled: bool,
    /// Shortest time between two notifications of a guest that works, in microseconds, 1 to 10000.
    pub period_us: u16,
    /// Number of filled buffers, 1 to 1024, that cause a notification before the interval has
    /// passed.
    pub frames: u16,
    /// Time in microseconds, 0 to 1000, in which the frames of a guest that sends steadily gather
    /// for one kick while the worker sleeps. 0: each frame has its kick.
    pub kick_us: u16,
}

impl Default for CoalescingSpec {
    fn default() -> Self {
        Self {
            enabled: true,
            period_us: 250,
            frames: 64,
            kick_us: KICK_US,
        }
    }
}

/// Number of threads that forward frames: 1 to 64, or `"auto"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "WorkersText", into = "WorkersText")]
pub enum Workers {
    /// One worker for four CPUs that the switch may use, at least one and at most eight.
    #[default]
    Auto,
    /// This number of workers.
    Count(u16),
}

/// Number of threads that forward frames: 1 to 64, or `"auto"`: one for four CPUs that the switch
/// may use, at least one and at most eight.
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

/// Limit of a worker's look before it sleeps, in microseconds: 0 to 1000, or `"auto"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "PollLimitText", into = "PollLimitText")]
pub enum PollLimit {
    /// As long as a sleep costs, by measurement.
    #[default]
    Auto,
    /// The limit; 0: the worker sleeps at once.
    Micros(u16),
}

impl PollLimit {
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// Limit of a worker's look before it sleeps, in microseconds: 0 to 1000, or `"auto"`.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected an integer from 0 to 1000, or \"auto\""
)]
#[schema(as = PollLimit)]
enum PollLimitText {
    Micros(u16),
    Word(Auto),
}

impl From<PollLimitText> for PollLimit {
    fn from(text: PollLimitText) -> Self {
        match text {
            PollLimitText::Micros(micros) => Self::Micros(micros),
            PollLimitText::Word(Auto::Auto) => Self::Auto,
        }
    }
}

impl From<PollLimit> for PollLimitText {
    fn from(limit: PollLimit) -> Self {
        match limit {
            PollLimit::Micros(micros) => Self::Micros(micros),
            PollLimit::Auto => Self::Word(Auto::Auto),
        }
    }
}

impl fmt::Display for PollLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Micros(micros) => micros.fmt(f),
        }
    }
}
