//! All that a supervisor knows, as bytes.
//!
//! ```text
//! 0   version (u32, little-endian)
//! 4   the record (postcard)
//! ```

use std::collections::{BTreeMap, VecDeque};

use channel::driving::{BackEnd, DriverSpec, Refused};
use channel::supervision::SwitchSettings;
use port::PortId;
use serde::{Deserialize, Serialize};

use super::fds::Place;
use crate::admin::Report;
use crate::supervisor::deposits::Parcel;

/// The version of [`Record`]; also the format "supervisor" in `channel::formats`.
const VERSION: u32 = channel::formats::SUPERVISOR;

/// See the module.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct Record {
    /// Descriptors by their places.
    pub(super) fds: Vec<i32>,
    pub(super) runtime_dir: String,
    /// Listening sockets by the paths that they were asked for with.
    pub(super) sockets: BTreeMap<String, Place>,
    pub(super) lock: Place,
    pub(super) state: Place,
    pub(super) counters: Place,
    pub(super) marks: Place,
    pub(super) settings: SwitchSettings,
    pub(super) control: PassedChild,
    pub(super) switch: PassedChild,
    pub(super) deposits: PassedDeposits,
    pub(super) drivers: Vec<PassedDriver>,
    pub(super) uptime_ms: u64,
    /// What runs.
    pub(super) binaries: PassedBinaries,
    pub(super) upgrade: Option<PassedUpgrade>,
}

/// Control, the switch or a driver.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedChild {
    pub(in crate::supervisor) restarts: u32,
    /// None: it is to be started again.
    pub(in crate::supervisor) alive: Option<PassedProcess>,
}

/// A process that runs, or has ended and was not noticed yet.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedProcess {
    pub(in crate::supervisor) pid: u32,
    pub(in crate::supervisor) link: Place,
    pub(in crate::supervisor) uptime_ms: u64,
    pub(in crate::supervisor) proved: bool,
    /// Whether it owes an answer to a ping, and whether it has ever given one.
    pub(in crate::supervisor) beat: (bool, bool),
}

/// What the switch has deposited.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedDeposits {
    pub(in crate::supervisor) ports: Vec<PassedDeposit>,
    /// What a new switch has not got yet.
    pub(in crate::supervisor) leaving: VecDeque<Parcel>,
}

/// What the switch has deposited for a port.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedDeposit {
    pub(in crate::supervisor) port: PortId,
    pub(in crate::supervisor) fds: Vec<(u64, Place)>,
    pub(in crate::supervisor) record: Option<Vec<u8>>,
}

/// A driver with its interface.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedDriver {
    pub(in crate::supervisor) spec: DriverSpec,
    pub(in crate::supervisor) device: Option<PassedDevice>,
    pub(in crate::supervisor) suspect: bool,
    pub(in crate::supervisor) child: Option<PassedChild>,
    pub(in crate::supervisor) doomed: bool,
    /// The path of a dial without an answer.
    pub(in crate::supervisor) dial: Option<String>,
    /// Whether it owes an answer to a ping, and whether it has ever given one.
    pub(in crate::supervisor) heart: (bool, bool),
    pub(in crate::supervisor) refused_before: Refused,
    pub(in crate::supervisor) refused: Refused,
    pub(in crate::supervisor) reason: Option<String>,
}

/// An open interface.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedDevice {
    pub(in crate::supervisor) interface: String,
    pub(in crate::supervisor) back_end: BackEnd,
    pub(in crate::supervisor) uso: bool,
    pub(in crate::supervisor) provisional: bool,
    pub(in crate::supervisor) queues: Vec<Place>,
    pub(in crate::supervisor) control: Place,
}

/// Executable files of one installation, in the order of `binaries::Binaries`.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedBinaries {
    pub(in crate::supervisor) dir: String,
    pub(in crate::supervisor) files: [Place; 4],
}

/// The upgrade that is under way.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedUpgrade {
    /// Who asked for it.
    pub(in crate::supervisor) client: Place,
    pub(in crate::supervisor) new: PassedBinaries,
    pub(in crate::supervisor) report: Report,
    /// Why everything is to be as it was.
    pub(in crate::supervisor) failed: Option<String>,
}

impl Record {
    /// As bytes.
    ///
    /// # Errors
    /// What cannot be written.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let version = VERSION.to_le_bytes().to_vec();
        postcard::to_extend(self, version).map_err(|e| e.to_string())
    }

    /// Out of bytes.
    ///
    /// # Errors
    /// Another version, or bytes that are no record.
    pub(in crate::supervisor) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let Some((version, rest)) = bytes.split_first_chunk() else {
            return Err("an empty record".into());
        };
        match u32::from_le_bytes(*version) {
            VERSION => match postcard::take_from_bytes(rest) {
                Ok((record, [])) => Ok(record),
                Ok(_) => Err("a record with something behind it".into()),
                Err(error) => Err(format!("a record that makes no sense: {error}")),
            },
            other => Err(format!("a record of version {other}")),
        }
    }
}
