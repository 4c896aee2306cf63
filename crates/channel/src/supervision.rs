//! Messages between the supervisor and the processes it started.
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
//! The new pair is started between `Frozen` and `Quiesce`; its ports have no connections yet:
//!
//! ```text
//!            Ready           SavedDescriptors, SavedSession
//!   started -------> ready ---------------------------------> restoring
//!                                                                 | TakeOver
//!                                                                 v
//!                                      serving <------------ taking over
//!                                               Serving; Thaw (control)
//! ```
//!
//! A failure after `TakeOver` ends both pairs; a new one starts as after a crash.

use std::net::SocketAddr;
use std::path::Path;

pub use api::v1::{GuestStates, Poll, VcpuSource};
use port::PortId;
use serde::{Deserialize, Serialize};

use crate::cores::CoreFacts;
use crate::driving::{
    Calls, DriverCounters, DriverSpec, DriverStart, DriverState, UserForward, UserNetwork,
};
use crate::forwards::ForwardReach;
use crate::keeping::{MAX_RECORD, MAX_SAVED};
use crate::names::PortName;
use crate::owners::{NoSocket, SocketOwner};
use crate::sockets::SocketType;
use crate::user_reports::{UserFigures, UserPage, UserQuestion};

/// The environment variable with the number of a child's supervision descriptor.
pub const LINK_FD: &str = "LASTHOP_LINK_FD";

/// Prefix of the address of a TCP socket in place of a path; a path never contains such a byte.
const TCP: &str = "\0tcp:";

/// Returns the text for a TCP address in place of a socket's path in [`SupervisorRequest::Listen`].
#[must_use]
pub fn tcp_path(address: SocketAddr) -> String {
    format!("{TCP}{address}")
}

/// Returns the TCP address, where a path stands for one.
#[must_use]
pub fn tcp_address(path: &str) -> Option<SocketAddr> {
    path.strip_prefix(TCP)?.parse().ok()
}

/// Request of control, the switch or a driver to the supervisor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SupervisorRequest {
    /// Control: everything configured is in place.
    Ready,
    /// Control: bind and listen; answered with [`SupervisorEvent::Listening`].
    Listen {
        /// The socket's path, or [`tcp_path`].
        path: String,
    },
    /// Control: close and remove a listening socket, whose other descriptors are closed by then. It
    /// has no answer; those to later requests of control come after it.
    Unlisten {
        /// The socket's path.
        path: String,
    },
    /// Control: report the processes; answered with [`SupervisorEvent::Processes`].
    Processes,
    /// Control: replace the set of drivers; answered with [`SupervisorEvent::Drivers`].
    Drivers(Vec<DriverSpec>),
    /// Control: report the drivers; answered with [`SupervisorEvent::DriverStates`].
    DriverStates,
    /// Driver: the answer to [`SupervisorEvent::Ping`], from all its threads.
    Pong(DriverCounters),
    /// Driver: the last message before it ends.
    DriverEnds {
        /// The reason.
        reason: String,
        /// The interface must be opened anew.
        device_lost: bool,
    },
    /// Switch: store the attached descriptor for the port's session.
    StoreDescriptor {
        /// The port.
        port: PortId,
        /// Its number within the session.
        number: u64,
    },
    /// Switch: store this record for the port's session, in place of the one before, and drop the
    /// port's descriptors that the record does not need.
    StoreSession {
        /// The port.
        port: PortId,
        /// The record, in an encoding that only the switch reads.
        record: Vec<u8>,
        /// The numbers of all descriptors that are still needed.
        numbers: Vec<u64>,
    },
    /// Switch: the port's session is over; drop its descriptors and record.
    DropSession {
        /// The port.
        port: PortId,
    },
    /// Control: the API is closed and the state is in the state file; answers
    /// [`SupervisorEvent::Freeze`].
    Frozen,
    /// Switch: no queue is served any more, and everything that the next switch needs is stored;
    /// answers [`SupervisorEvent::Quiesce`].
    Quiesced {
        /// Time at which the first queue was released, nanoseconds of the machine's monotonic
        /// clock.
        at_ns: u64,
    },
    /// Switch: the connections of the former switch continue; answers
    /// [`SupervisorEvent::TakeOver`].
    Serving {
        /// Time at which all queues were served again, nanoseconds of the machine's monotonic
        /// clock.
        at_ns: u64,
        /// Number of connections that continue.
        connections: u32,
    },
    /// Control and switch: the answer to [`SupervisorEvent::Ping`].
    Heartbeat,
    /// Control: the desired source of vCPU states, and the threads; at its start and after every
    /// change.
    WatchGuests(GuestWatch),
    /// Control: report the source of vCPU states; answered with [`SupervisorEvent::WatchedGuests`].
    WatchedGuests,
    /// Switch: connect to the front end of this port, whose address control has sent
    /// ([`SupervisorRequest::Dials`]), or to a driver ([`SupervisorRequest::Drivers`]); answered
    /// with [`SupervisorEvent::Dialed`]. The switch cannot choose the address: an attacker in it
    /// could connect to any socket that the supervisor may open.
    Dial {
        /// The port.
        port: PortId,
    },
    /// Control: replace the addresses of the ports' front ends; answered with
    /// [`SupervisorEvent::Dials`].
    Dials(Vec<(PortId, String)>),
    /// Control: report the directories that may contain sockets; answered with
    /// [`SupervisorEvent::SocketDirs`].
    SocketDirs,
    /// Control: as [`SupervisorRequest::Listen`], for a port; the attributes of an existing socket
    /// are changed. Answered with [`SupervisorEvent::ListeningFor`].
    ListenFor {
        /// The socket's path.
        path: String,
        /// The requested attributes.
        owner: SocketOwner,
    },
    /// Control: the MAC addresses of the drivers' interfaces; answered with
    /// [`SupervisorEvent::InterfaceAddresses`].
    InterfaceAddresses,
    /// Control: it ends because the switch is gone, without which it cannot work. An exit status
    /// would come too late: a process whose link is closed is killed.
    SwitchGone,
    /// Control: report the resource usage of the processes; answered with
    /// [`SupervisorEvent::ProcessUsage`].
    ProcessUsage,
    /// Control: report the supervisor's events; answered with one [`SupervisorEvent::Events`], as
    /// soon as there is an event.
    Events {
        /// The last events were delivered to all clients. Otherwise they are sent again: the former
        /// control died with them.
        had: bool,
    },
    /// Control: report the vCPUs that were found; answered with [`SupervisorEvent::FoundVcpus`].
    FoundVcpus,
    /// Control: as [`SupervisorRequest::ListenFor`], with a type of socket. An existing socket of
    /// another type is replaced.
    ListenAs {
        /// The socket's path.
        path: String,
        /// The requested attributes.
        owner: SocketOwner,
        /// The type.
        socket_type: SocketType,
    },
    /// Control: the speeds of the drivers' interfaces; answered with
    /// [`SupervisorEvent::InterfaceSpeeds`].
    InterfaceSpeeds,
    /// Control: the bytes that may wait in the interfaces of scheduled ports, by the names of
    /// ports; after [`SupervisorRequest::Drivers`]. Those of others are not bounded.
    Rooms(Vec<(PortName, u64)>),
    /// Control: the CPU weights of drivers, by the names of ports; those of others have the
    /// system's default.
    CpuWeights(Vec<(PortName, u16)>),
    /// Control: report the CPU weights that have no effect; answered with
    /// [`SupervisorEvent::CpuWeightErrors`].
    CpuWeightErrors,
    /// Control: report the frames and calls of the drivers; answered with
    /// [`SupervisorEvent::DriverCalls`].
    DriverCalls,
    /// Driver: the kernel has refused its vhost devices, so its back end is
    /// [`BackEnd::Tap`](crate::driving::BackEnd::Tap) ([`SupervisorEvent::VhostQueue`]).
    VhostRefused {
        /// The kernel's reason.
        reason: String,
    },
    /// Driver: the answer to [`SupervisorEvent::PingDriver`], from all its threads.
    DriverPong {
        /// Its counters, but for the other one.
        counters: DriverCounters,
        /// See [`DriverCounters::dropped_by_kernel`].
        dropped_by_kernel: Option<u64>,
    },
    /// Control: report the frames that the kernel dropped in front of the drivers; answered with
    /// [`SupervisorEvent::KernelDrops`].
    KernelDrops,
    /// Control: the networks of user ports, by the names of ports; before
    /// [`SupervisorRequest::Drivers`].
    UserNetworks(Vec<(PortName, UserNetwork)>),
    /// Driver: keep the attached sockets of flows, by the numbers of their records; answered with
    /// [`SupervisorEvent::FlowsTaken`]. A driver waits for answers to a few messages.
    KeepFlows(Vec<u32>),
    /// Driver: keep sockets no longer; answered with [`SupervisorEvent::FlowsTaken`].
    DropFlows(Vec<u32>),
    /// Driver: pass the next sockets of its predecessor; answered with
    /// [`SupervisorEvent::KeptFlows`].
    NextFlows,
    /// Driver: pass the next forwards with their listening sockets; answered with
    /// [`SupervisorEvent::Forwards`].
    NextForwards,
    /// Driver: the system denies its user port all IP packets (`EPERM`), as the unit of the package
    /// does.
    NetworkDenied,
    /// Driver: the figures of its user port; after each answer to a ping.
    UserFigures(UserFigures),
    /// Control: report the figures of user ports; answered with [`SupervisorEvent::UserFigures`].
    AllUserFigures,
    /// Driver: the answer to [`SupervisorEvent::UserQuestion`].
    UserPage(UserPage),
    /// Control: report a part of a table of a user port; answered with
    /// [`SupervisorEvent::UserPage`].
    UserTable {
        /// The name of the port.
        port: PortName,
        /// The part.
        question: UserQuestion,
    },
    /// Control: report where forwards may listen; answered with
    /// [`SupervisorEvent::ForwardReach`].
    ForwardReach,
    /// Control: report the sockets that more than one user can connect to; answered with
    /// [`SupervisorEvent::SharedSockets`].
    SharedSockets,
}

/// Most bytes of a message with no more than numbers.
const MAX_NUMBER: usize = 80;
/// Most bytes of a message with one path or reason.
const MAX_LINE: usize = 8 << 10;
/// Most bytes of a message about all ports.
const MAX_LIST: usize = 1 << 20;
/// Most bytes of a message with a record of [`MAX_RECORD`] bytes and [`MAX_SAVED`] numbers, each of
/// ten bytes at most.
const MAX_SESSION: usize = MAX_RECORD + 10 * MAX_SAVED + MAX_NUMBER;

impl SupervisorRequest {
    /// Returns the most bytes of a message that begins with this one: the supervisor decodes no
    /// longer message, from any process. That also bounds the memory of the decoded message.
    #[must_use]
    pub fn most_bytes(first: u8) -> usize {
        // The number of a variant, as postcard writes it.
        match first {
            1..=2 | 7 | 20 | 26 | 32 | 36 | 37 | 41 | 43 | 44 => MAX_LINE,
            4 | 15 | 18 | 28 | 29 | 35 => MAX_LIST,
            9 => MAX_SESSION,
            _ => MAX_NUMBER,
        }
    }
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

/// Desired observation of guests.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GuestWatch {
    /// The source. The supervisor has it since its start; here it learns it only after an upgrade
    /// from a version that did not hand it over.
    #[serde(with = "source_number")]
    pub by: GuestStates,
    /// For ports with such a setting: the names of the vCPU threads
    /// (`sched::vcpus::names::matches`).
    pub threads: Vec<(PortId, String)>,
}

/// Sources of vCPU states as numbers.
mod source_number {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::GuestStates;

    /// Samples of `/proc`, which are not taken any longer: of a control process from before.
    const SAMPLES: u32 = 2;

    pub(super) fn serialize<S: Serializer>(by: &GuestStates, out: S) -> Result<S::Ok, S::Error> {
        let number = match by {
            GuestStates::Auto => 0_u32,
            GuestStates::Bpf => 1,
            GuestStates::Off => 3,
        };
        number.serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GuestStates, D::Error> {
        match u32::deserialize(from)? {
            0 => Ok(GuestStates::Auto),
            1 => Ok(GuestStates::Bpf),
            SAMPLES | 3 => Ok(GuestStates::Off),
            other => Err(D::Error::custom(format!("unknown source {other}"))),
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

/// Parameters of the helper threads on idle cores.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HelpersConfig {
    /// Whether there are helpers.
    pub enabled: bool,
    /// Load of a batch, in frames (and for long ones their bytes), from which on a queue pair
    /// counts as one with a backlog.
    pub backlog: u16,
    /// Time for which a helper polls a queue pair without frames before it returns it,
    /// microseconds.
    pub hysteresis_us: u16,
    /// Cores with a helper; none: all cores that the switch may use.
    pub cores: Vec<u16>,
}

impl Default for HelpersConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            backlog: 32,
            hysteresis_us: 5,
            cores: Vec::new(),
        }
    }
}

/// Configuration of the switch process; it holds for as long as the process lives.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SwitchSettings {
    /// Sleep policy of the workers.
    pub poll: Poll,
    /// Workers to start, 1 to 64; `None`: one for each core that the process may use, at most
    /// eight.
    pub workers: Option<u16>,
    /// Interrupt coalescing, if enabled.
    pub coalescing: Option<Coalescing>,
    /// Parameters of the helper threads.
    pub helpers: HelpersConfig,
    /// The host's cores, which the switch cannot read.
    pub cores: Vec<CoreFacts>,
    /// There was a switch before this one: counters continue.
    pub successor: bool,
    /// The former switch still runs. Its saved sessions come with [`SupervisorEvent::TakeOver`];
    /// until then no port takes or makes a connection.
    pub waits: bool,
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

/// Resource usage of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// Its process id.
    pub pid: u32,
    /// CPU time of all its threads since it started, milliseconds.
    pub cpu_ms: u64,
    /// Resident memory in bytes, shared memory (like that of guests) included.
    pub resident_bytes: u64,
    /// Resident memory in bytes that is backed by no file and not shared.
    pub anonymous_bytes: u64,
}

/// Event or answer of the supervisor to control, the switch or a driver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SupervisorEvent {
    /// Control's first message. Descriptors: the link to the switch, the API's listening socket,
    /// the state file, the counters.
    StartControl {
        /// The runtime directory, absolute.
        runtime_dir: String,
        /// As after [`SupervisorEvent::Freeze`]: another control still serves the API.
        frozen: bool,
    },
    /// The switch's first message. Descriptors: the counters, and the crash record (see
    /// [`crate::keeping::CRASH_RECORD_LEN`]). The saved sessions follow, and then
    /// [`SupervisorEvent::ControlLink`].
    StartSwitch(SwitchSettings),
    /// Switch: saved descriptors of a port's session. Descriptors: as many.
    SavedDescriptors {
        /// The port.
        port: PortId,
        /// Their numbers.
        numbers: Vec<u64>,
    },
    /// Switch: the saved record of a port's session, after its descriptors.
    SavedSession {
        /// The port.
        port: PortId,
        /// The record as it was stored.
        record: Vec<u8>,
        /// The session is to be ended: the switch has crashed repeatedly while it served the port,
        /// or was given up while it closed a descriptor of the connection.
        quarantined: bool,
    },
    /// Switch: a new control process. Descriptor: the link to it.
    ControlLink,
    /// Control: the answer to [`SupervisorRequest::Listen`]; with the socket, or a reason.
    Listening {
        /// The requested path.
        path: String,
        /// The error, if there is no socket.
        error: Option<String>,
    },
    /// Switch: the answer to [`SupervisorRequest::Dial`]; with the connection, or a reason.
    Dialed {
        /// The port.
        port: PortId,
        /// The registered path; empty where there is none.
        path: String,
        /// The error, if there is no connection.
        error: Option<String>,
    },
    /// Control: the answer to [`SupervisorRequest::Processes`].
    Processes(Vec<ProcessInfo>),
    /// End the process.
    Stop,
    /// Control: the answer to [`SupervisorRequest::Drivers`].
    Drivers {
        /// The first interface that is not available, with the reason; by the name of its port.
        error: Option<(String, String)>,
    },
    /// Control: the answer to [`SupervisorRequest::DriverStates`].
    DriverStates(Vec<DriverState>),
    /// A driver's first message. Descriptor: the connection to the switch.
    StartDriver(DriverStart),
    /// Driver: a queue of its interface. Descriptors: the queue; its vhost device, if it has one.
    DriverQueue,
    /// Confirm that all threads are alive: a driver that may be of another build with
    /// [`SupervisorRequest::Pong`], the others with [`SupervisorRequest::Heartbeat`].
    Ping,
    /// Control: close the API, save the state, and continue to answer upcalls. Answered with
    /// [`SupervisorRequest::Frozen`].
    Freeze,
    /// Control: open the API, and save again.
    Thaw,
    /// Switch: release all queues and handle only messages of the supervisor. Answered with
    /// [`SupervisorRequest::Quiesced`].
    Quiesce,
    /// Switch: serve the queues again after [`SupervisorEvent::Quiesce`].
    Resume,
    /// Switch: all saved sessions were sent, and the former switch has released its queues.
    /// Answered with [`SupervisorRequest::Serving`].
    TakeOver,
    /// Switch: the memory with the vCPU states. Descriptors: the memory (`sched::View`), and with
    /// BPF the ring of block events (`sched::BlockEvents`).
    GuestStates,
    /// Switch: the slots of a port's vCPUs, in place of the former ones.
    GuestThreads {
        /// The port.
        port: PortId,
        /// Their slots.
        slots: Vec<u16>,
    },
    /// Control: the answer to [`SupervisorRequest::WatchedGuests`].
    WatchedGuests(WatchedGuests),
    /// Control: the answer to [`SupervisorRequest::Dials`].
    Dials {
        /// The error; then nothing has changed.
        error: Option<String>,
    },
    /// Control: the answer to [`SupervisorRequest::SocketDirs`].
    SocketDirs(Vec<SocketDir>),
    /// Control: the answer to [`SupervisorRequest::ListenFor`] or
    /// [`SupervisorRequest::ListenAs`]; with the socket, or a reason.
    ListeningFor {
        /// The requested path.
        path: String,
        /// The number of the only user whose processes may connect, if it is restricted; or the
        /// reason why there is no such socket.
        outcome: Result<Option<u32>, NoSocket>,
    },
    /// Control: the answer to [`SupervisorRequest::InterfaceAddresses`], by the names of ports;
    /// without those whose interface is gone.
    InterfaceAddresses(Vec<(String, [u8; 6])>),
    /// Control: the answer to [`SupervisorRequest::ProcessUsage`]; without processes that do not
    /// run.
    ProcessUsage(Vec<ProcessUsage>),
    /// Control: the supervisor's events, the oldest first: events of the API as JSON, without ids.
    /// Sent once per request ([`SupervisorRequest::Events`]).
    Events(Vec<String>),
    /// Control: the answer to [`SupervisorRequest::FoundVcpus`].
    FoundVcpus(FoundVcpus),
    /// Control: the answer to [`SupervisorRequest::InterfaceSpeeds`], in bits a second, by the
    /// names of ports; without those that are not known.
    InterfaceSpeeds(Vec<(String, u64)>),
    /// Control: the answer to [`SupervisorRequest::CpuWeightErrors`]: the reasons, by the names of
    /// ports; without those whose weight has an effect.
    CpuWeightErrors(Vec<(String, String)>),
    /// Control: the answer to [`SupervisorRequest::DriverCalls`]: frames that drivers have received
    /// and sent since their ports exist, by the names of ports.
    DriverCalls(Vec<(String, [Calls; 2])>),
    /// Driver: as [`SupervisorEvent::DriverQueue`], with the descriptors of a queue of a TAP device
    /// and of a vhost device for it.
    VhostQueue {
        /// [`BackEnd::Tap`](crate::driving::BackEnd::Tap) may be used where the kernel refuses the
        /// device; reported with [`SupervisorRequest::VhostRefused`].
        or_tap: bool,
    },
    /// Driver that the supervisor has started from its own installation: confirm that all threads
    /// are alive with [`SupervisorRequest::DriverPong`].
    PingDriver,
    /// Control: the answer to [`SupervisorRequest::KernelDrops`]:
    /// [`DriverCounters::dropped_by_kernel`] since their ports exist, by the names of ports;
    /// without those for which it is not known.
    KernelDrops(Vec<(String, u64)>),
    /// Driver: the network of its user port, after its queue, and after each change.
    UserNetwork(Box<UserNetwork>),
    /// Driver: the memory for records of flows and leases of its user port, after the network.
    /// Descriptor: the memory.
    FlowRecords {
        /// Number of records of flows; leases are behind them
        /// ([`crate::driving::records_len`]).
        slots: u32,
    },
    /// Driver: sockets of its predecessor's flows, by the numbers of their records; none behind the
    /// last. Descriptors: as many.
    KeptFlows(Vec<u32>),
    /// Driver: one message about flows was handled.
    FlowsTaken,
    /// Driver: forwards of its user port; none behind the last. Descriptors: as many listening
    /// sockets.
    Forwards(Vec<UserForward>),
    /// Driver: the forwards have changed, and are to be asked for from the first.
    ForwardsChanged,
    /// Control: the answer to [`SupervisorRequest::AllUserFigures`], by the names of ports; without
    /// those that have none yet.
    UserFigures(Vec<(String, UserFigures)>),
    /// Driver: a question for a part of a table of its user port; answered with
    /// [`SupervisorRequest::UserPage`]. The next one comes after the answer.
    UserQuestion(UserQuestion),
    /// Control: the answer to [`SupervisorRequest::UserTable`].
    UserPage {
        /// The name of the port.
        port: String,
        /// The part.
        question: UserQuestion,
        /// Its rows, or the reason why there are none.
        page: Result<UserPage, String>,
    },
    /// Control: the answer to [`SupervisorRequest::ForwardReach`].
    ForwardReach(ForwardReach),
    /// Control: the answer to [`SupervisorRequest::SharedSockets`]: the requested paths of sockets
    /// without a user that alone may connect, with the names of the users that can, root excepted;
    /// no name means all users.
    SharedSockets(Vec<(String, Vec<String>)>),
}

#[cfg(test)]
mod tests;
