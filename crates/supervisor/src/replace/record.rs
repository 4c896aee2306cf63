//! State of a supervisor as bytes.
//!
//! ```text
//! 0   version (u32, little-endian)
//! 4   the record (postcard)
//!     additions of version 11 (postcard)
//!     additions of version 12 (postcard): vCPU states, and `kick_us` of the settings
//!     additions of version 13 (postcard): drivers
//!     additions of version 15 (postcard): networks and kept flows of user ports, and where their
//!     forwards may listen
//! ```

use std::collections::{BTreeMap, VecDeque};

use channel::driving::{DriverCounters, DriverSpec, Listen, UserNetwork, of_every_build};
use channel::formats::SUPERVISOR_VERSIONS;
use channel::forwards::ForwardReach;
use channel::names::PortName;
use channel::supervision::{GuestWatch, SocketDir, SwitchSettings};
use driver::device::Parts;
use port::PortId;
use serde::{Deserialize, Serialize};

use super::fds::FdIndex;
use super::switch_settings;
use crate::saved_sessions::Transfer;

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
    /// Version of the record, in which its writer also understands a reply.
    #[serde(skip)]
    pub(super) version: u32,
    /// Files of the command line.
    #[serde(skip)]
    pub(super) command_line: CommandLineFiles,
    /// Source of vCPU states; `None` before version 12.
    #[serde(skip)]
    pub(super) guests: Option<PassedGuests>,
    /// User ports; none before version 15.
    #[serde(skip)]
    pub(super) users: PassedUsers,
}

/// Addition of version 11: the files of the command line, which was the supervisor's before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CommandLineFiles {
    /// File of the running version.
    pub(crate) own: Option<FdIndex>,
    /// File of the version of the upgrade in progress.
    pub(crate) new: Option<FdIndex>,
}

/// Addition of version 12: the source of vCPU states.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PassedGuests {
    /// The settings.
    pub(crate) watch: GuestWatch,
    /// Descriptors of the BPF programs by name (`sched::load::Descriptors`); none without states.
    pub(crate) programs: Vec<(String, FdIndex)>,
    /// Reason why there are no states.
    pub(crate) reason: Option<String>,
}

/// Additions of version 13: the drivers.
#[derive(Serialize, Deserialize)]
struct DriverAdditions {
    /// See [`PassedBinaries::has_earlier_driver`].
    has_earlier: bool,
    /// In the order of [`Record::drivers`].
    drivers: Vec<DriverAddition>,
}

/// Addition of version 13 to a driver.
#[derive(Serialize, Deserialize)]
struct DriverAddition {
    /// See [`Parts::by_vhost`].
    by_vhost: bool,
    /// See [`PassedProcess::reports_drops`].
    reports_drops: bool,
    counters_before: AllCounters,
    counters: AllCounters,
}

/// All counters of a driver.
#[derive(Serialize, Deserialize)]
struct AllCounters {
    /// See [`DriverCounters::to_array`].
    values: [u64; 6],
    dropped_by_kernel: Option<u64>,
}

impl AllCounters {
    fn of(counters: &DriverCounters) -> Self {
        Self {
            values: counters.to_array(),
            dropped_by_kernel: counters.dropped_by_kernel,
        }
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters {
            dropped_by_kernel: self.dropped_by_kernel,
            ..DriverCounters::from_array(self.values)
        }
    }
}

impl DriverAddition {
    fn of(driver: &PassedDriver) -> Self {
        let process = driver.child.as_ref().and_then(|child| child.alive.as_ref());
        Self {
            by_vhost: driver.device.as_ref().is_some_and(|parts| parts.by_vhost),
            reports_drops: process.is_some_and(|process| process.reports_drops),
            counters_before: AllCounters::of(&driver.counters_before),
            counters: AllCounters::of(&driver.counters),
        }
    }

    fn add_to(self, driver: &mut PassedDriver) {
        if let Some(parts) = &mut driver.device {
            parts.by_vhost = self.by_vhost;
        }
        if let Some(process) = driver.child.as_mut().and_then(|child| child.alive.as_mut()) {
            process.reports_drops = self.reports_drops;
        }
        driver.counters_before = self.counters_before.counters();
        driver.counters = self.counters.counters();
    }
}

/// Addition of version 15: user ports.
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

/// First version with [`CommandLineFiles`].
const WITH_COMMAND_LINE: u32 = 11;
/// First version with [`PassedGuests`].
const WITH_GUESTS: u32 = 12;
/// First version with [`DriverAdditions`].
const WITH_DRIVERS: u32 = 13;
/// First version with [`PassedUsers`].
const WITH_USERS: u32 = 15;

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
    pub(super) thread_slots: FdIndex,
    /// Settings; the cores are read again.
    #[serde(with = "switch_settings")]
    pub(super) settings: SwitchSettings,
}

/// Control and the switch.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedPair {
    pub(super) control: PassedChild,
    pub(super) switch: PassedChild,
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
    /// A driver answers [`SupervisorEvent::PingDriver`]; in records of version 13.
    ///
    /// [`SupervisorEvent::PingDriver`]: channel::supervision::SupervisorEvent::PingDriver
    #[serde(skip)]
    pub(crate) reports_drops: bool,
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
    /// Path of a dial without an answer.
    pub(crate) dial: Option<String>,
    /// Version 13 adds those that the record of a former build does not have.
    #[serde(with = "of_every_build")]
    pub(crate) counters_before: DriverCounters,
    #[serde(with = "of_every_build")]
    pub(crate) counters: DriverCounters,
    pub(crate) reason: Option<String>,
}

/// Executable files of one installation, in the order of `binaries::Binaries`.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PassedBinaries {
    pub(crate) dir: String,
    pub(crate) files: [FdIndex; 4],
    /// The driver is of an earlier installation than the others; in records of version 13, for the
    /// running version.
    #[serde(skip)]
    pub(crate) has_earlier_driver: bool,
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
    /// Encodes the record in a version.
    ///
    /// # Errors
    /// The reason of the failure.
    pub(super) fn to_bytes(&self, version: u32) -> Result<Vec<u8>, String> {
        let head = version.to_le_bytes().to_vec();
        let bytes = postcard::to_extend(self, head).map_err(|e| e.to_string())?;
        if version < WITH_COMMAND_LINE {
            return Ok(bytes);
        }
        let bytes = postcard::to_extend(&self.command_line, bytes).map_err(|e| e.to_string())?;
        if version < WITH_GUESTS {
            return Ok(bytes);
        }
        let guests = self.guests.clone().unwrap_or_default();
        let kick_us = self.setup.settings.coalescing.map(|c| c.kick_us);
        let bytes = postcard::to_extend(&(guests, kick_us), bytes).map_err(|e| e.to_string())?;
        if version < WITH_DRIVERS {
            return Ok(bytes);
        }
        let additions = DriverAdditions {
            has_earlier: self.binaries.has_earlier_driver,
            drivers: self.drivers.iter().map(DriverAddition::of).collect(),
        };
        let bytes = postcard::to_extend(&additions, bytes).map_err(|e| e.to_string())?;
        if version < WITH_USERS {
            return Ok(bytes);
        }
        postcard::to_extend(&self.users, bytes).map_err(|e| e.to_string())
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
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let Some((version, rest)) = bytes.split_first_chunk() else {
            return Err("empty record".into());
        };
        let version = u32::from_le_bytes(*version);
        if !SUPERVISOR_VERSIONS.contains(&version) {
            return Err(format!("unsupported record version {version}"));
        }
        let malformed = |error| format!("malformed record: {error}");
        let (mut record, rest) = postcard::take_from_bytes::<Self>(rest).map_err(malformed)?;
        record.version = version;
        if version < WITH_COMMAND_LINE {
            return record.without(rest);
        }
        let (files, rest) = postcard::take_from_bytes(rest).map_err(malformed)?;
        record.command_line = files;
        if version < WITH_GUESTS {
            return record.without(rest);
        }
        let ((guests, kick_us), rest) = postcard::take_from_bytes(rest).map_err(malformed)?;
        record.guests = Some(guests);
        if let (Some(coalescing), Some(kick_us)) = (&mut record.setup.settings.coalescing, kick_us)
        {
            coalescing.kick_us = kick_us;
        }
        if version < WITH_DRIVERS {
            return record.without(rest);
        }
        let (additions, rest) = postcard::take_from_bytes(rest).map_err(malformed)?;
        record.add(additions)?;
        if version < WITH_USERS {
            return record.without(rest);
        }
        let (users, rest) = postcard::take_from_bytes(rest).map_err(malformed)?;
        record.users = users;
        record.without(rest)
    }

    /// Adds what the drivers lack.
    fn add(&mut self, additions: DriverAdditions) -> Result<(), String> {
        if additions.drivers.len() != self.drivers.len() {
            return Err("malformed record: additions for other drivers".into());
        }
        self.binaries.has_earlier_driver = additions.has_earlier;
        for (driver, addition) in self.drivers.iter_mut().zip(additions.drivers) {
            addition.add_to(driver);
        }
        Ok(())
    }

    /// Checks that no bytes follow the record.
    fn without(self, rest: &[u8]) -> Result<Self, String> {
        if rest.is_empty() {
            Ok(self)
        } else {
            Err("trailing bytes after the record".into())
        }
    }
}

#[cfg(test)]
mod tests;
