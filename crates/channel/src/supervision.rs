//! Between the supervisor and the processes it started.
//!
//! The supervisor answers what needs a path in the file system: it binds and removes listening sockets and
//! dials peers. Paths are relative to the runtime directory unless absolute.

use std::net::SocketAddr;
use std::path::Path;

use port::PortId;
use serde::{Deserialize, Serialize};

use crate::cores::CoreFacts;
use crate::driving::{DriverSpec, DriverStart, DriverState, Refused};
use crate::keeping::{MAX_KEPT, MAX_RECORD};
use crate::owners::{NoSocket, SocketOwner};

/// The environment variable with the number of a child's supervision descriptor.
pub const LINK_FD: &str = "LASTHOP_LINK_FD";

/// What stands before the address of a TCP socket in the place of a path, which never has such a byte.
const TCP: &str = "\0tcp:";

/// In place of a socket's path in [`Ask::Listen`]: an address.
#[must_use]
pub fn tcp_path(address: SocketAddr) -> String {
    format!("{TCP}{address}")
}

/// The address, where a path stands for one.
#[must_use]
pub fn tcp_address(path: &str) -> Option<SocketAddr> {
    path.strip_prefix(TCP)?.parse().ok()
}

/// Nanoseconds of the machine's monotonic clock: the same for all processes.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// From control or the switch to the supervisor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Control: everything configured is in place.
    Ready,
    /// Control: bind and listen; answered with [`Tell::Listening`].
    Listen {
        /// The socket's path, or [`tcp_path`].
        path: String,
    },
    /// Control: close and remove a listening socket, which is closed everywhere else by then.
    Unlisten {
        /// The socket's path.
        path: String,
    },
    /// As [`Ask::Dial`], by a switch of a version that knew only this: it is heard while an upgrade replaces that one.
    DialPath {
        /// For which port.
        port: PortId,
        /// Where; of no effect unless that is what was registered for the port.
        path: String,
    },
    /// Control: how the processes are; answered with [`Tell::Processes`].
    Processes,
    /// Control: have these drivers and no others; answered with [`Tell::Drivers`].
    Drivers(Vec<DriverSpec>),
    /// Control: how the drivers are; answered with [`Tell::DriverStates`].
    DriverStates,
    /// Driver: the answer to [`Tell::Ping`], from all its threads.
    Pong(Refused),
    /// Driver: its last words.
    DriverEnds {
        /// Why.
        reason: String,
        /// The interface must be opened anew.
        device_lost: bool,
    },
    /// Switch: keep this descriptor for the port's session. Descriptor: it.
    Keep {
        /// Whose.
        port: PortId,
        /// Its number within the session.
        number: u64,
    },
    /// Switch: keep this record for the port's session, in place of the one before, and of the port's descriptors
    /// only those that the record needs.
    KeepRecord {
        /// Whose.
        port: PortId,
        /// Bytes that mean something to the switch alone.
        record: Vec<u8>,
        /// The numbers of all descriptors that are still needed.
        numbers: Vec<u64>,
    },
    /// Switch: the port's session is over, drop what was kept for it.
    Forget {
        /// Whose.
        port: PortId,
    },
    /// Control: nobody changes anything by us any more, and what we know is in the state file; answers
    /// [`Tell::Freeze`].
    Frozen,
    /// Switch: no queue is served any more, and all that the next switch needs is deposited; answers [`Tell::Rest`].
    Rested {
        /// When the first queue was left, nanoseconds of the machine's monotonic clock.
        at_ns: u64,
    },
    /// Switch: the connections of the one before go on; answers [`Tell::GoOn`].
    GoesOn {
        /// When all queues were served again, nanoseconds of the machine's monotonic clock.
        at_ns: u64,
        /// Connections that go on.
        connections: u32,
    },
    /// Control and switch: the answer to [`Tell::Ping`].
    Alive,
    /// Control: how guests are to be looked at, and which threads; at its start and after every change.
    WatchGuests(GuestWatch),
    /// Control: how guests are looked at; answered with [`Tell::WatchedGuests`].
    WatchedGuests,
    /// Switch: connect to the front end of this port, which is where control has said ([`Ask::Dials`]), or a driver
    /// ([`Ask::Drivers`]); answered with [`Tell::Dialed`]. The switch cannot say where: who takes it over would connect to
    /// whatever the supervisor may.
    Dial {
        /// For which port.
        port: PortId,
    },
    /// Control: where the front ends of these ports are, and of no others; answered with [`Tell::Dials`].
    Dials(Vec<(PortId, String)>),
    /// Control: in which directories sockets may be; answered with [`Tell::SocketDirs`].
    SocketDirs,
    /// Control: as [`Ask::Listen`], for a port; what is asked of a socket that is there already is changed. Answered with
    /// [`Tell::ListeningFor`].
    ListenFor {
        /// The socket's path.
        path: String,
        /// What is asked of it.
        owner: SocketOwner,
    },
    /// Control: the MAC addresses of the drivers' interfaces; answered with [`Tell::InterfaceAddresses`].
    InterfaceAddresses,
    /// Control: it ends because the switch is gone, without which it can do nothing. An exit status would come too late: whose
    /// link is closed is killed.
    Bereft,
    /// Control: what the processes use; answered with [`Tell::ProcessUsage`].
    ProcessUsage,
    /// Control: what happens of which only the supervisor knows; answered with one [`Tell::Events`], as soon as there is something.
    Events {
        /// Those that came before were told to everybody. Without that they are said again: whoever had them has died of something.
        had: bool,
    },
}

/// Bytes of a message that says no more than a number.
const MOST_OF_A_WORD: usize = 64;
/// Bytes of a message with one path or reason.
const MOST_OF_A_LINE: usize = 8 << 10;
/// Bytes of a message about all ports.
const MOST_OF_A_LIST: usize = 1 << 20;
/// Bytes of a message with a record of [`MAX_RECORD`](crate::keeping::MAX_RECORD) bytes and
/// [`MAX_KEPT`](crate::keeping::MAX_KEPT) numbers, each of ten bytes at most.
const MOST_OF_A_RECORD: usize = MAX_RECORD + 10 * MAX_KEPT + MOST_OF_A_WORD;

impl Ask {
    /// Bytes of a message that begins with this one, at most: the supervisor decodes nothing longer, whoever sends it. What a
    /// message becomes in memory is bounded by that, too.
    #[must_use]
    pub fn most_bytes(first: u8) -> usize {
        // The number of a variant, as postcard writes it.
        match first {
            1..=3 | 8 | 21 => MOST_OF_A_LINE,
            5 | 16 | 19 => MOST_OF_A_LIST,
            10 => MOST_OF_A_RECORD,
            _ => MOST_OF_A_WORD,
        }
    }
}

/// A directory in which sockets may be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SocketDir {
    /// Its path, absolute.
    pub path: String,
    /// Those below it, too.
    pub below: bool,
}

impl SocketDir {
    /// Whether what is in a directory of this path, which leads nowhere else, is in it.
    #[must_use]
    pub fn has(&self, dir: &Path) -> bool {
        match self.below {
            true => dir.starts_with(&self.path),
            false => dir == Path::new(&self.path),
        }
    }
}

/// By what the switch is to know what the processors of guests do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum GuestStates {
    /// A program in the kernel, else samples of `/proc`.
    #[default]
    Auto,
    /// Only the one.
    Bpf,
    /// Only the other.
    Proc,
    /// By nothing.
    Off,
}

impl GuestStates {
    /// As it is spelt.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bpf => "bpf",
            Self::Proc => "proc",
            Self::Off => "off",
        }
    }
}

/// How guests are to be looked at.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GuestWatch {
    /// By what; the first that is said holds for as long as the supervisor lives.
    pub by: GuestStates,
    /// For ports of which it is known: the names of the threads that are processors (`sched::threads::matches`).
    pub threads: Vec<(PortId, String)>,
}

/// How guests are looked at.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WatchedGuests {
    /// "bpf", "proc" or "off".
    pub by: String,
    /// Why it is not "bpf".
    pub reason: Option<String>,
    /// Threads that are followed, by port.
    pub threads: Vec<(PortId, u32)>,
}

/// Whether the switch's workers may sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Poll {
    /// When that costs less than looking for frames.
    #[default]
    Adaptive,
    /// Never, while a queue runs.
    Always,
}

/// What copies long frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum CopyEngine {
    /// The worker that forwards them.
    #[default]
    Cpu,
    /// A thread beside the workers.
    Thread,
}

/// When guests hear of frames, as long as they run: rules of the Hyper-Switch (4.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Batching {
    /// Between two notifications, microseconds.
    pub period_us: u32,
    /// Buffers that do not wait.
    pub threshold: u32,
}

/// Whether idle cores help the workers, and how.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offload {
    /// They do.
    pub enabled: bool,
    /// Load of a batch, in frames (and for long ones their bytes), from which on a queue pair counts as one with a backlog.
    pub mark: u16,
    /// How long a helper looks at a queue pair without frames before it gives it back, microseconds.
    pub hysteresis_us: u16,
    /// Cores with a helper; none: all that the switch may use.
    pub cores: Vec<u16>,
}

impl Default for Offload {
    fn default() -> Self {
        Self {
            enabled: false,
            mark: 32,
            hysteresis_us: 5,
            cores: Vec::new(),
        }
    }
}

/// What the switch is told of the configuration; it holds for as long as the process lives.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SwitchSettings {
    /// Whether workers may sleep.
    pub poll: Poll,
    /// Workers to start, 1 to 64; `None`: one for each core that the process may use, at most eight.
    pub workers: Option<u16>,
    /// Whether guests that run are notified less often.
    pub batching: Option<Batching>,
    /// What copies long frames.
    pub copy_engine: CopyEngine,
    /// Whether idle cores help them.
    pub offload: Offload,
    /// The host's cores, which the switch cannot look up.
    pub cores: Vec<CoreFacts>,
    /// There was a switch before this one: counters go on.
    pub successor: bool,
    /// It runs still. What it has kept comes with [`Tell::GoOn`]; until then no port takes or makes a connection.
    pub waits: bool,
}

/// One process, as `lasthop status` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// "supervisor", "control", "switch", or "driver" and the name of its port.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// How often it was started again.
    pub restarts: u32,
    /// Milliseconds since its last start.
    pub uptime_ms: u64,
}

/// What a process uses of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// Its process id.
    pub pid: u32,
    /// Processor time of all its threads since it started, milliseconds.
    pub cpu_ms: u64,
    /// Memory that it has in RAM, in bytes, shared memory (like that of guests) included.
    pub resident_bytes: u64,
    /// Of that, what is backed by no file and shared with nobody, in bytes.
    pub anonymous_bytes: u64,
}

/// From the supervisor to control or the switch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Tell {
    /// Control's first message. Descriptors: the link to the switch, the API's listening socket, the
    /// state file, the counters.
    StartControl {
        /// The runtime directory, absolute.
        runtime_dir: String,
        /// As after [`Tell::Freeze`]: another control serves the API still.
        frozen: bool,
    },
    /// The switch's first message. Descriptors: the counters, and the marks by which it says whom it serves (see
    /// [`crate::keeping::MARKS`]). What was kept follows, and then [`Tell::ControlLink`].
    StartSwitch(SwitchSettings),
    /// Switch: descriptors that the one before had kept for a port's session. Descriptors: as many.
    Kept {
        /// Whose.
        port: PortId,
        /// Their numbers.
        numbers: Vec<u64>,
    },
    /// Switch: the record that the one before had kept for a port's session, after its descriptors.
    KeptRecord {
        /// Whose.
        port: PortId,
        /// As it was given.
        record: Vec<u8>,
        /// The session is to be ended: the switch has died of serving it again and again.
        condemned: bool,
    },
    /// Switch: a new control process. Descriptor: the link to it.
    ControlLink,
    /// Control: the answer to [`Ask::Listen`]; with the socket, or a reason.
    Listening {
        /// The path asked for.
        path: String,
        /// Why there is no socket.
        error: Option<String>,
    },
    /// Switch: the answer to [`Ask::Dial`]; with the connection, or a reason.
    Dialed {
        /// For which port.
        port: PortId,
        /// The path that is registered for it; empty where none is.
        path: String,
        /// Why there is no connection.
        error: Option<String>,
    },
    /// Control: the answer to [`Ask::Processes`].
    Processes(Vec<ProcessInfo>),
    /// End now.
    Stop,
    /// Control: the answer to [`Ask::Drivers`].
    Drivers {
        /// The first interface that cannot be had, and why; by the name of its port.
        error: Option<(String, String)>,
    },
    /// Control: the answer to [`Ask::DriverStates`].
    DriverStates(Vec<DriverState>),
    /// A driver's first message. Descriptor: the connection to the switch.
    StartDriver(DriverStart),
    /// Driver: a queue of its interface. Descriptor: the queue.
    DriverQueue,
    /// Say that all threads are alive: a driver with [`Ask::Pong`], the others with [`Ask::Alive`].
    Ping,
    /// Control: serve the API no more, save what is known, and go on answering the switch. Answered with
    /// [`Ask::Frozen`].
    Freeze,
    /// Control: serve the API, and save.
    Thaw,
    /// Switch: serve no queue and hear nobody but the supervisor. Answered with [`Ask::Rested`].
    Rest,
    /// Switch: go on after [`Tell::Rest`].
    Unrest,
    /// Switch: all was said that the one before has kept, and it serves nobody any more. Answered with [`Ask::GoesOn`].
    GoOn,
    /// Switch: where the states of guests' processors are kept. Descriptors: the memory (`sched::View`), and
    /// where the kernel keeps it the ring of bells (`sched::Bells`).
    GuestStates,
    /// Switch: which of them are those of a port's guest, in place of what was said before.
    GuestThreads {
        /// Whose.
        port: PortId,
        /// Their slots.
        slots: Vec<u16>,
    },
    /// Control: the answer to [`Ask::WatchedGuests`].
    WatchedGuests(WatchedGuests),
    /// Control: the answer to [`Ask::Dials`].
    Dials {
        /// Why all is as it was.
        error: Option<String>,
    },
    /// Control: the answer to [`Ask::SocketDirs`].
    SocketDirs(Vec<SocketDir>),
    /// Control: the answer to [`Ask::ListenFor`]; with the socket, or a reason.
    ListeningFor {
        /// The path asked for.
        path: String,
        /// The number of the only user whose processes may connect, if there is but one; or why there is no such socket.
        outcome: Result<Option<u32>, NoSocket>,
    },
    /// Control: the answer to [`Ask::InterfaceAddresses`], by the names of ports; without those whose interface is gone.
    InterfaceAddresses(Vec<(String, [u8; 6])>),
    /// Control: the answer to [`Ask::ProcessUsage`]; without processes that do not run.
    ProcessUsage(Vec<ProcessUsage>),
    /// Control: what has happened, the oldest first: events of the API as JSON, without ids. Once each time that it asks
    /// ([`Ask::Events`]): those who do not, do not know it.
    Events(Vec<String>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest() -> Vec<(Ask, usize)> {
        let port = PortId(1023);
        let path = || "x".repeat(MOST_OF_A_LINE - 16);
        let number = u64::MAX;
        let refused = Refused {
            by_interface: number,
            too_long: number,
        };
        let record = Ask::KeepRecord {
            port,
            record: vec![7; MAX_RECORD],
            numbers: vec![number; MAX_KEPT],
        };
        let goes_on = Ask::GoesOn {
            at_ns: number,
            connections: u32::MAX,
        };
        let reason = Ask::DriverEnds {
            reason: path(),
            device_lost: true,
        };
        let dials = (0..1024).map(|n| (PortId(n), "y".repeat(107))).collect();
        let watch = GuestWatch {
            by: GuestStates::Auto,
            threads: (0..1024).map(|n| (PortId(n), "z".repeat(64))).collect(),
        };
        let name = || Some("u".repeat(256));
        let listen_for = Ask::ListenFor {
            path: "x".repeat(MOST_OF_A_LINE - 1024),
            owner: SocketOwner {
                user: name(),
                group: name(),
                mode: Some(0o777),
                peer_user: name(),
            },
        };
        let (word, line, list) = (MOST_OF_A_WORD, MOST_OF_A_LINE, MOST_OF_A_LIST);
        vec![
            (Ask::Ready, word),
            (Ask::Listen { path: path() }, line),
            (Ask::Unlisten { path: path() }, line),
            (Ask::DialPath { port, path: path() }, line),
            (Ask::Processes, word),
            (Ask::Drivers(Vec::new()), list),
            (Ask::DriverStates, word),
            (Ask::Pong(refused), word),
            (reason, line),
            (Ask::Keep { port, number }, word),
            (record, MOST_OF_A_RECORD),
            (Ask::Forget { port }, word),
            (Ask::Frozen, word),
            (Ask::Rested { at_ns: number }, word),
            (goes_on, word),
            (Ask::Alive, word),
            (Ask::WatchGuests(watch), list),
            (Ask::WatchedGuests, word),
            (Ask::Dial { port }, word),
            (Ask::Dials(dials), list),
            (Ask::SocketDirs, word),
            (listen_for, line),
            (Ask::InterfaceAddresses, word),
            (Ask::Bereft, word),
            (Ask::ProcessUsage, word),
            (Ask::Events { had: true }, word),
        ]
    }

    #[test]
    fn every_message_has_room_for_the_longest_of_its_kind() {
        for (number, (ask, most)) in longest().into_iter().enumerate() {
            let bytes = postcard::to_allocvec(&ask).unwrap();
            assert_eq!(usize::from(bytes[0]), number, "its place is its number");
            assert_eq!(Ask::most_bytes(bytes[0]), most, "{number}");
            assert!(bytes.len() <= most, "{number}: {}", bytes.len());
        }
    }

    #[test]
    fn a_directory_has_what_is_in_it_and_what_is_below_if_it_says_so() {
        let dir = |below| SocketDir {
            path: "/run/vm".to_owned(),
            below,
        };
        for (path, alone, with_below) in [
            ("/run/vm", true, true),
            ("/run/vm/sub", false, true),
            ("/run/vmx", false, false),
            ("/run", false, false),
        ] {
            assert_eq!(dir(false).has(Path::new(path)), alone, "{path}");
            assert_eq!(dir(true).has(Path::new(path)), with_below, "{path}");
        }
    }
}
