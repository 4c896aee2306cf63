//! Protocol between `lasthop upgrade`, `lasthop reload` and a running supervisor: lines of JSON
//! over `DIR/supervisor.sock`.
//!
//! It does not use control, which an upgrade replaces, and which must not be able to start
//! programs. The two sides may be of different versions: unknown fields are ignored, and new ones
//! have a default.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::connections::AdoptedTable;

/// Name of the socket in the runtime directory.
pub const SOCKET: &str = crate::sockets::ADMIN_SOCKET;
/// Argument of `lasthop apply` by which the supervisor gets its output as lines of the log.
pub const APPLY_LOG_ARGUMENT: &str = "--log";
/// Maximum size of a request in bytes.
pub const REQUEST_MAX: usize = 8192;

/// Request: the one line that a client sends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Replaces every process by one of another version.
    Upgrade {
        /// Directory of the binaries; by default the directory of the running ones.
        to: Option<PathBuf>,
    },
    /// Returns the configuration file of the start.
    Configuration,
}

/// Answer; the last line ends the exchange.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Step that was done.
    Doing(String),
    /// The upgrade is done.
    Upgraded(Report),
    /// The request is refused, and nothing was changed.
    Refused(String),
    /// The upgrade failed, and everything is as before.
    RolledBack(String),
    /// Configuration file as an absolute path.
    Configuration(PathBuf),
}

/// Result of an upgrade.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Version before the upgrade.
    pub from: String,
    /// Version after the upgrade.
    pub to: String,
    /// Time from when the old switch left its first queue until the new one served all of them, in
    /// milliseconds.
    pub gap_ms: f64,
    /// Number of connections that the new switch took over.
    pub connections: u32,
    /// The table of tracked connections, if there is one, as the new switch found it.
    #[serde(default)]
    pub table: Option<AdoptedTable>,
    /// Replaced drivers, with the time for which each port had none.
    pub drivers: Vec<DriverGap>,
    /// Reason why the other drivers are of the version before.
    pub drivers_stay: Option<String>,
    /// The kernel has programs of prefilters for another layout of tables: denied frames reach the
    /// switch until Lasthop is restarted.
    #[serde(default)]
    pub prefilters_stay: bool,
}

/// Replaced driver.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DriverGap {
    /// Name of its port.
    pub port: String,
    /// Time from the stop of the old process until the first reply of the new one, in milliseconds.
    pub gap_ms: f64,
}
