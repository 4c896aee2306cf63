//! The desired state of the switch as a whole.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::v1::objects::objects;
use crate::v1::words::words;

use super::HelpersSpec;

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
    /// Number of workers: 1 to 64, or `auto`. Default: 1.
    #[serde(default)]
    #[schema(value_type = WorkersText)]
    pub workers: Workers,
    /// Interrupt coalescing.
    #[serde(default)]
    pub coalescing: CoalescingSpec,
    /// The source of the states of guests' vCPUs.
    #[serde(default, skip_serializing_if = "GuestStates::is_auto")]
    pub guest_state: GuestStates,
    /// Threads on idle cores that help busy workers.
    #[serde(default, skip_serializing_if = "HelpersSpec::is_default")]
    pub helpers: HelpersSpec,
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
            workers: Workers::default(),
            coalescing: CoalescingSpec::default(),
            guest_state: GuestStates::default(),
            helpers: HelpersSpec::default(),
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
    #[serde(skip_serializing_if = "is_default_window")]
    pub kick_us: u16,
}

/// Time in which frames gather for one kick, unless it is configured, microseconds.
const KICK_US: u16 = 80;

/// Returns whether it is the default, which earlier versions do not know.
fn is_default_window(kick_us: &u16) -> bool {
    *kick_us == KICK_US
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

words! {
    /// Sources of the states of guests' vCPUs: running, waiting for a core, or sleeping.
    #[derive(Default)]
    pub enum GuestStates {
        /// `bpf`, or `off` if the kernel refuses that.
        #[default]
        Auto = "auto",
        /// BPF programs in the kernel record every change. They need `CAP_BPF` and `CAP_PERFMON`.
        Bpf = "bpf",
        /// No source beside the flags in the guests' queues.
        Off = "off",
    }
}

impl GuestStates {
    /// Returns whether it is the default.
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

words! {
    /// Behaviour of a worker without frames.
    #[derive(Default)]
    pub enum Poll {
        /// It sleeps, unless the next frame is likely to arrive before a sleep pays off.
        #[default]
        Adaptive = "adaptive",
        /// It polls without pause while a queue runs, and occupies a core.
        Always = "always",
    }
}

/// Number of threads that forward frames: 1 to 64, or `"auto"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "WorkersText", into = "WorkersText")]
pub enum Workers {
    /// One worker for each core that the switch may use, at most eight.
    Auto,
    /// This number of workers.
    Count(u16),
}

impl Default for Workers {
    /// One: a core forwards more than most hosts have to forward.
    fn default() -> Self {
        Self::Count(1)
    }
}

/// Number of threads that forward frames: 1 to 64, or `"auto"`.
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
