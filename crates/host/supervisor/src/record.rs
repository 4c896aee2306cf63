//! State of a supervisor as bytes.
//!
//! ```text
//! 0   version (u32, little-endian)
//! 4   the record (postcard)
//! ```

mod fds;

use std::collections::{BTreeMap, VecDeque};
use std::io;

use interfaces::device::Parts;
use interfaces::prefilter::PrefilterParts;
use ipc::driving::{DriverCounters, DriverSpec, Listen, UserNetwork};
use ipc::formats::SUPERVISOR;
use ipc::forwards::ForwardReach;
use ipc::names::PortName;
use ipc::supervision::{GuestStates, SocketDir, SwitchSettings};
use port::PortId;
use serde::{Deserialize, Serialize};

use fds::FdError;
pub(super) use fds::{FdIndex, IncomingFds, OutgoingFds, check_descriptor_limit};

/// Reason why a record cannot be written, or why the next supervisor cannot continue from it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("cannot write the record: {0}")]
    Write(io::Error),
    #[error("cannot read the record: {0}")]
    Read(io::Error),
    #[error("cannot encode the record: {0}")]
    Encode(postcard::Error),
    #[error("empty record")]
    Empty,
    #[error("unsupported record version {0}")]
    Version(u32),
    #[error("malformed record: {0}")]
    Malformed(postcard::Error),
    #[error("trailing bytes after the record")]
    Trailing,
    #[error("no listening socket for {0}")]
    NoSocket(&'static str),
    #[error(transparent)]
    Descriptor(#[from] FdError),
    /// A part cannot be taken over.
    #[error("{0}")]
    Part(#[from] io::Error),
}

/// Record for the next supervisor.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Descriptors by index.
    pub(super) fds: Vec<i32>,
    pub(super) runtime_dir: String,
    pub(super) sockets: PassedSockets,
    pub(super) lock: FdIndex,
    pub(super) setup: PassedSetup,
    pub(super) pair: PassedPair,
    pub(super) saved_sessions: PassedSessions,
    pub(super) drivers: Vec<PassedDriver>,
    pub(super) uptime_ms: u64,
    /// Running version.
    pub(super) binaries: PassedBinaries,
    pub(super) upgrade: Option<PassedUpgrade>,
    pub(super) guests: PassedGuests,
    pub(super) users: PassedUsers,
    pub(super) prefilters: PassedPrefilters,
}

/// Source of vCPU states.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PassedGuests {
    /// The configured source.
    pub(crate) by: GuestStates,
    /// Names of vCPU threads, by port.
    pub(crate) threads: Vec<(PortId, String)>,
    /// Descriptors of the BPF programs by name (`vcpus::load::Descriptors`); none without states.
    pub(crate) programs: Vec<(String, FdIndex)>,
    /// Reason why there are no states.
    pub(crate) reason: Option<String>,
}

/// Prefilters.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PassedPrefilters {
    /// The filter of connections.
    pub(crate) connections: Option<FdIndex>,
    /// Those without a port.
    pub(crate) spares: Vec<PrefilterParts<FdIndex>>,
    /// Those of ports, by name.
    pub(crate) used: Vec<(PortName, PrefilterParts<FdIndex>)>,
    /// Reason why there are no more.
    pub(crate) reason: Option<String>,
}

/// User ports.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PassedUsers {
    /// Networks by the names of ports.
    pub(crate) networks: Vec<(PortName, UserNetwork)>,
    /// Kept flows.
    pub(crate) flows: Vec<PassedFlows>,
    /// Where forwards may listen.
    pub(crate) reach: ForwardReach,
}

/// Kept flows of a user port, and its listening sockets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedFlows {
    /// The name of the port.
    pub(crate) port: PortName,
    /// The memory for records of flows and leases, and the number of the former.
    pub(crate) records: FdIndex,
    pub(crate) slots: u32,
    /// Sockets by the numbers of their records.
    pub(crate) sockets: Vec<(u32, FdIndex)>,
    /// Sockets of forwards.
    pub(crate) listening: Vec<(Listen, FdIndex)>,
}

/// Sockets and their paths.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedSockets {
    /// Listening sockets by the requested path.
    pub(super) listening: BTreeMap<String, FdIndex>,
    /// Directories that may contain sockets.
    pub(super) dirs: Vec<SocketDir>,
    /// Paths of front ends that listen.
    pub(super) dials: BTreeMap<PortId, String>,
}

/// Resources of each pair of control and switch.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedSetup {
    pub(super) state: FdIndex,
    pub(super) counters: FdIndex,
    /// The table of connections, if there is one.
    pub(super) table: Option<FdIndex>,
    pub(super) thread_slots: FdIndex,
    /// Settings; the cores are read again.
    pub(super) settings: SwitchSettings,
}

/// Control and the switch.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedPair {
    pub(super) control: PassedChild,
    pub(super) switch: PassedChild,
    /// The switch's end of their link, if it has not got that yet.
    pub(super) link: Option<FdIndex>,
}

/// Control, the switch or a driver.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedChild {
    pub(crate) restarts: u32,
    /// `None` if it is to be restarted.
    pub(crate) alive: Option<PassedProcess>,
}

/// Process that runs, or has ended unnoticed.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedProcess {
    pub(crate) pid: u32,
    pub(crate) link: FdIndex,
    pub(crate) uptime_ms: u64,
    pub(crate) proved: bool,
    /// Whether a reply to a ping is outstanding, and whether one has ever come.
    pub(crate) beat: (bool, bool),
}

/// Contents of one message to a new switch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Transfer {
    /// Descriptors with these numbers.
    Descriptors(PortId, Vec<u64>),
    Record(PortId),
}

/// Saved sessions.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedSessions {
    pub(crate) ports: Vec<PassedSession>,
    /// Transfers that a new switch has not received.
    pub(crate) queued: VecDeque<Transfer>,
    pub(crate) crash_counts: PassedCrashCounts,
}

/// Crash counts of the ports.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PassedCrashCounts {
    /// Ports with their crashes, and the time since the last one in milliseconds.
    pub(crate) ports: Vec<(PortId, u32, u64)>,
    /// Ports whose connections are not continued.
    pub(crate) quarantined: Vec<PortId>,
}

/// Saved session of one port.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedSession {
    pub(crate) port: PortId,
    pub(crate) fds: Vec<(u64, FdIndex)>,
    pub(crate) record: Option<Vec<u8>>,
}

/// Driver with its interface.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedDriver {
    pub(crate) spec: DriverSpec,
    pub(crate) device: Option<Parts<FdIndex>>,
    pub(crate) suspect: bool,
    pub(crate) child: Option<PassedChild>,
    pub(crate) killed: bool,
    /// The switch has the interface.
    pub(crate) in_switch: bool,
    /// Path of a dial without an answer.
    pub(crate) dial: Option<String>,
    pub(crate) counters_before: DriverCounters,
    pub(crate) counters: DriverCounters,
    pub(crate) reason: Option<String>,
}

/// Executable files of one installation, in the order of `binaries::Binaries`.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedBinaries {
    pub(crate) dir: String,
    pub(crate) files: [FdIndex; 5],
}

/// Upgrade in progress.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedUpgrade {
    /// Connection of the requesting client.
    pub(crate) client: FdIndex,
    pub(crate) new: PassedBinaries,
    /// Old version.
    pub(crate) from: String,
    /// New version.
    pub(crate) to: String,
    /// Reason of a rollback.
    pub(crate) failed: Option<String>,
}

impl Record {
    /// Encodes the record.
    ///
    /// # Errors
    /// The reason of the failure.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, RecordError> {
        let head = SUPERVISOR.to_le_bytes().to_vec();
        postcard::to_extend(self, head).map_err(RecordError::Encode)
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// Another version, or malformed bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        let Some((version, rest)) = bytes.split_first_chunk() else {
            return Err(RecordError::Empty);
        };
        match u32::from_le_bytes(*version) {
            SUPERVISOR => {}
            version => return Err(RecordError::Version(version)),
        }
        match postcard::take_from_bytes(rest) {
            Ok((record, [])) => Ok(record),
            Ok(_) => Err(RecordError::Trailing),
            Err(error) => Err(RecordError::Malformed(error)),
        }
    }
}

#[cfg(test)]
mod tests;
