//! Messages between the supervisor and the processes it started, by the kind of process.
//!
//! The supervisor handles requests that need a path in the file system: it binds and removes
//! listening sockets and connects to peers. Paths are relative to the runtime directory unless
//! absolute.
//!
//! An upgrade, as each pair of control and switch goes through it. The old pair:
//!
//! ```text
//!              Freeze            Frozen             Quiesce
//!   serving ----------> freezing -------> frozen -----------> quiescing
//!      ^                                    |                     | Quiesced
//!      |                                    |                     v
//!      +------- Thaw (control), Resume (switch): failure ----- quiesced --> Stop
//! ```
//!
//! The new pair is started after `Frozen`; its ports have no connections yet. It prepares the
//! saved sessions while the old switch serves them, and gets what has changed since after
//! `Quiesced`:
//!
//! ```text
//!            Ready           SavedSessions, Prepare
//!   started -------> ready -------------------------> preparing
//!                                                         | Prepared
//!                                                         v
//!                         restoring <---------------- prepared    (Quiesce, Quiesced)
//!                             |         SavedSessions
//!                             | TakeOver
//!                             v
//!                         taking over ----------> serving
//!                                       Serving; Thaw (control)
//! ```
//!
//! A failure after `TakeOver` ends both pairs; a new one starts as after a crash.

mod control;
mod driver;
mod switch;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::num::NonZero;
use std::path::Path;

pub use model::{GuestStates, Poll, VcpuSource};
use port::PortId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::control::{
    ControlRequest, EventToControl, GuestAnswer, GuestRequest, PortDriverAnswer, PortDriverRequest,
    SocketAnswer, SocketRequest, UserPortAnswer, UserPortRequest,
};
pub use self::driver::{DriverRequest, EventToDriver, UserDriverRequest};
pub use self::switch::{EventToSwitch, SavedPart, SessionRequest, SwitchRequest};

/// The environment variable with the number of a child's supervision descriptor.
pub const LINK_FD: &str = "LASTHOP_LINK_FD";

/// The environment variable of a child that may wait long for its first message, for `ps`.
pub const SPARE: &str = "LASTHOP_SPARE";

/// Prefix of the address of a TCP socket in place of a path; a path never contains such a byte.
const TCP: &str = "\0tcp:";

/// Returns the text for a TCP address in place of a socket's path in [`SocketRequest::Listen`].
#[must_use]
pub fn tcp_path(address: SocketAddr) -> String {
    format!("{TCP}{address}")
}

/// Returns the TCP address, where a path stands for one.
#[must_use]
pub fn tcp_address(path: &str) -> Option<SocketAddr> {
    path.strip_prefix(TCP)?.parse().ok()
}

/// Requests of one kind of process. Each kind has a type of its own, so that none can make a
/// request of another: control and the switch are not trusted with each other's paths, interfaces
/// and descriptors of guests, and a driver with none of them.
pub trait Request: Serialize + DeserializeOwned {
    /// Maximum number of bytes of a message: the supervisor decodes no longer one. That also bounds
    /// the memory of a decoded message.
    const MAX_BYTES: usize;
}

/// Makes the request of a process of one about a matter.
macro_rules! requests_about {
    ($($about:ident => $request:ident::$matter:ident;)*) => {$(
        impl From<$about> for $request {
            fn from(request: $about) -> Self {
                Self::$matter(request)
            }
        }
    )*};
}

requests_about! {
    SocketRequest => ControlRequest::Sockets;
    PortDriverRequest => ControlRequest::Drivers;
    GuestRequest => ControlRequest::Guests;
    UserPortRequest => ControlRequest::Users;
    SessionRequest => SwitchRequest::Sessions;
    UserDriverRequest => DriverRequest::User;
}

/// A directory that may contain sockets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SocketDir {
    /// Its path, absolute.
    pub path: String,
    /// Whether its subdirectories may, too.
    pub below: bool,
}

impl SocketDir {
    /// Returns whether entries of a directory of this path, which contains no link, are in it.
    #[must_use]
    pub fn has(&self, dir: &Path) -> bool {
        if self.below {
            dir.starts_with(&self.path)
        } else {
            dir == Path::new(&self.path)
        }
    }
}

/// Present observation of guests.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WatchedGuests {
    /// "bpf" or "off".
    pub by: String,
    /// Reason why it is not "bpf".
    pub reason: Option<String>,
    /// With "bpf", reason why halts of vCPUs of KVM are not counted.
    pub no_halts: Option<String>,
    /// Followed threads, by port.
    pub threads: Vec<(PortId, u32)>,
}

/// vCPU threads that the supervisor has found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FoundVcpus {
    /// The ports with a connection.
    pub ports: Vec<(PortId, PortVcpus)>,
    /// Sources that cannot be used, with the reasons.
    pub missing: Vec<String>,
}

/// vCPU threads of one port's VMM.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortVcpus {
    /// Their number.
    pub found: u32,
    /// The word of the [`VcpuSource`] by which they were found.
    pub by: String,
    /// Reason why they are unknown.
    pub reason: Option<String>,
}

/// Interrupt coalescing for running guests: rules of the Hyper-Switch (4.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Coalescing {
    /// Least time between two notifications, microseconds.
    pub period_us: u32,
    /// Number of buffers that are notified at once.
    pub threshold: u32,
    /// Time in which frames of a guest gather for one kick while its worker sleeps, microseconds;
    /// 0: each frame has its kick.
    pub kick_us: u32,
}

/// Configuration of the switch process; it holds for as long as the process lives.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SwitchSettings {
    /// Sleep policy of the workers.
    pub poll: Poll,
    /// Longest look before a sleep, microseconds; `None`: as long as a sleep costs.
    pub poll_us: Option<u16>,
    /// Workers to start, 1 to 64; `None`: one for four CPUs that the process may use, at least one
    /// and at most eight.
    pub workers: Option<u16>,
    /// Interrupt coalescing, if enabled.
    pub coalescing: Option<Coalescing>,
    /// There was a switch before this one: counters continue.
    pub successor: bool,
    /// The former switch still runs. Its saved sessions come with [`EventToSwitch::TakeOver`];
    /// until then no port takes or makes a connection.
    pub waits: bool,
}

/// CPUs for each worker without a configured number: the others are for the guests and the drivers.
const CPUS_PER_WORKER: usize = 4;
/// Limit of workers without a configured number: more were never measured.
const AUTO_WORKERS_MAX: usize = 8;

impl SwitchSettings {
    /// Returns the number of workers to start. Where none is configured it depends on the CPUs of
    /// this process: those of its affinity (sched_getaffinity(2)), or fewer by a quota of its
    /// control group, which it sees only where it can open paths.
    #[must_use]
    pub fn worker_count(&self) -> u16 {
        self.workers.unwrap_or_else(|| {
            let cpus = std::thread::available_parallelism();
            workers_for(cpus.map_or(1, NonZero::get))
        })
    }
}

/// Returns the number of workers for these CPUs where none is configured.
fn workers_for(cpus: usize) -> u16 {
    (cpus / CPUS_PER_WORKER).clamp(1, AUTO_WORKERS_MAX) as u16
}

/// One process, as `lasthop status` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// "supervisor", "control", "switch", or "driver" and the name of its port.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// Number of restarts.
    pub restarts: u32,
    /// Milliseconds since its last start.
    pub uptime_ms: u64,
}

/// Name of the switch's threads that move frames.
pub const WORKER_THREAD: &str = "worker";
/// Name of a driver's threads that move frames, one for each queue pair.
pub const PAIR_THREAD: &str = "pair";
/// Names of all threads that move frames. They live as long as their process.
pub const FRAME_THREADS: [&str; 2] = [WORKER_THREAD, PAIR_THREAD];

/// Resource usage of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// Its process id.
    pub pid: u32,
    /// CPU time of all its threads since it started, milliseconds.
    pub cpu_ms: u64,
    /// How often its threads that move frames ([`FRAME_THREADS`]) have slept since it started.
    pub wake_ups: u64,
    /// Resident memory in bytes, shared memory (like that of guests) included.
    pub resident_bytes: u64,
    /// Resident memory in bytes that is backed by no file and not shared.
    pub anonymous_bytes: u64,
    /// Address space in bytes: what is mapped, touched or not.
    pub mapped_bytes: u64,
}
