//! State of a supervisor as bytes.
//!
//! ```text
//! 0   version (u32, little-endian)
//! 4   the record (postcard)
//! ```

use std::collections::{BTreeMap, VecDeque};

use channel::driving::{DriverSpec, Refused};
use channel::formats::SUPERVISOR_VERSIONS;
use channel::supervision::{SocketDir, SwitchSettings};
use driver::device::Parts;
use port::PortId;
use serde::{Deserialize, Serialize};

use super::fds::FdIndex;
use crate::supervisor::saved_sessions::Transfer;

/// Record for the next supervisor.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct Record {
    /// Descriptors by index.
    pub(super) fds: Vec<i32>,
    pub(super) runtime_dir: String,
    /// Listening sockets by the requested path.
    pub(super) sockets: BTreeMap<String, FdIndex>,
    /// Directories that may contain sockets.
    pub(super) socket_dirs: Vec<SocketDir>,
    /// Paths of front ends that listen.
    pub(super) dials: BTreeMap<PortId, String>,
    pub(super) lock: FdIndex,
    pub(super) state: FdIndex,
    pub(super) counters: FdIndex,
    pub(super) thread_slots: FdIndex,
    /// Settings; the cores are read again.
    pub(super) settings: SwitchSettings,
    pub(super) control: PassedChild,
    pub(super) switch: PassedChild,
    pub(super) saved_sessions: PassedSessions,
    pub(super) drivers: Vec<PassedDriver>,
    pub(super) uptime_ms: u64,
    /// Running version.
    pub(super) binaries: PassedBinaries,
    pub(super) upgrade: Option<PassedUpgrade>,
    /// Version of the record, in which its writer also understands a reply.
    #[serde(skip)]
    pub(super) version: u32,
}

/// Control, the switch or a driver.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedChild {
    pub(in crate::supervisor) restarts: u32,
    /// `None` if it is to be restarted.
    pub(in crate::supervisor) alive: Option<PassedProcess>,
}

/// Process that runs, or has ended unnoticed.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedProcess {
    pub(in crate::supervisor) pid: u32,
    pub(in crate::supervisor) link: FdIndex,
    pub(in crate::supervisor) uptime_ms: u64,
    pub(in crate::supervisor) proved: bool,
    /// Whether a reply to a ping is outstanding, and whether one has ever come.
    pub(in crate::supervisor) beat: (bool, bool),
}

/// Saved sessions.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedSessions {
    pub(in crate::supervisor) ports: Vec<PassedSession>,
    /// Transfers that a new switch has not received.
    pub(in crate::supervisor) queued: VecDeque<Transfer>,
    pub(in crate::supervisor) crash_counts: PassedCrashCounts,
}

/// Crash counts of the ports.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedCrashCounts {
    /// Ports with their crashes, and the time since the last one in milliseconds.
    pub(in crate::supervisor) ports: Vec<(PortId, u32, u64)>,
    /// Ports whose connections are not continued.
    pub(in crate::supervisor) quarantined: Vec<PortId>,
}

/// Saved session of one port.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedSession {
    pub(in crate::supervisor) port: PortId,
    pub(in crate::supervisor) fds: Vec<(u64, FdIndex)>,
    pub(in crate::supervisor) record: Option<Vec<u8>>,
}

/// Driver with its interface.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedDriver {
    pub(in crate::supervisor) spec: DriverSpec,
    pub(in crate::supervisor) device: Option<Parts<FdIndex>>,
    pub(in crate::supervisor) suspect: bool,
    pub(in crate::supervisor) child: Option<PassedChild>,
    pub(in crate::supervisor) killed: bool,
    /// Path of a dial without an answer.
    pub(in crate::supervisor) dial: Option<String>,
    pub(in crate::supervisor) refused_before: Refused,
    pub(in crate::supervisor) refused: Refused,
    pub(in crate::supervisor) reason: Option<String>,
}

/// Executable files of one installation, in the order of `binaries::Binaries`.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedBinaries {
    pub(in crate::supervisor) dir: String,
    pub(in crate::supervisor) files: [FdIndex; 4],
}

/// Upgrade in progress.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedUpgrade {
    /// Connection of the requesting client.
    pub(in crate::supervisor) client: FdIndex,
    pub(in crate::supervisor) new: PassedBinaries,
    /// Old version.
    pub(in crate::supervisor) from: String,
    /// New version.
    pub(in crate::supervisor) to: String,
    /// Reason of a rollback.
    pub(in crate::supervisor) failed: Option<String>,
}

impl Record {
    /// Encodes the record in a version.
    ///
    /// # Errors
    /// The reason of the failure.
    pub(super) fn to_bytes(&self, version: u32) -> Result<Vec<u8>, String> {
        let head = version.to_le_bytes().to_vec();
        postcard::to_extend(self, head).map_err(|e| e.to_string())
    }

    /// Encodes the record for the self-check of another program, whose version is not known.
    ///
    /// # Errors
    /// The reason of the failure.
    pub(super) fn to_trial_bytes(&self) -> Result<Vec<u8>, String> {
        self.to_bytes(SUPERVISOR_VERSIONS[0])
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// Another version, or malformed bytes.
    pub(in crate::supervisor) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let Some((version, rest)) = bytes.split_first_chunk() else {
            return Err("empty record".into());
        };
        let version = u32::from_le_bytes(*version);
        if !SUPERVISOR_VERSIONS.contains(&version) {
            return Err(format!("unsupported record version {version}"));
        }
        match postcard::take_from_bytes::<Self>(rest) {
            Ok((record, [])) => Ok(Self { version, ..record }),
            Ok(_) => Err("trailing bytes after the record".into()),
            Err(error) => Err(format!("malformed record: {error}")),
        }
    }
}

#[cfg(test)]
mod tests;
