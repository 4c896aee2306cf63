//! What `lasthop upgrade`, `lasthop reload` and a running supervisor say to each other: lines of JSON over `DIR/supervisor.sock`.
//!
//! It does not go through control, which an upgrade replaces, and which must not be able to have the supervisor start
//! anything. The two may be of different versions: fields that are not known are ignored, and new ones have a default.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The socket's name in the runtime directory.
pub(crate) const SOCKET: &str = control::wanted::ADMIN_SOCKET;
/// Bytes of a request at most.
pub(crate) const REQUEST_MAX: usize = 8192;

/// The one line that a client sends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Replace every process by one of another version.
    Upgrade {
        /// The directory of its binaries; by default that from which this Lasthop was started.
        #[serde(default)]
        to: Option<PathBuf>,
    },
    /// Say with which file Lasthop was started.
    Configuration,
}

/// What it gets: the end of it is the last line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// What is being done.
    Doing(String),
    /// It is done.
    Upgraded(Report),
    /// It cannot be done now, or not for this client; nothing was touched.
    Refused(String),
    /// It failed, and everything is as it was.
    RolledBack(String),
    /// The file, as an absolute path.
    Configuration(PathBuf),
}

/// What an upgrade has done.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The version before.
    pub(crate) from: String,
    /// The version now.
    pub(crate) to: String,
    /// The time between the old switch's leaving its queues and the new one's serving all of them, milliseconds.
    pub(crate) gap_ms: f64,
    /// Connections that the new switch went on with.
    pub(crate) connections: u32,
    /// Drivers that were replaced, and for how long each port had none.
    #[serde(default)]
    pub(crate) drivers: Vec<DriverGap>,
    /// Why the others are of the version before.
    #[serde(default)]
    pub(crate) drivers_stay: Option<String>,
}

/// A driver that was replaced.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct DriverGap {
    /// Its port.
    pub(crate) port: String,
    /// The time from when the old one was told to stop until the new one answered, milliseconds.
    pub(crate) gap_ms: f64,
}
