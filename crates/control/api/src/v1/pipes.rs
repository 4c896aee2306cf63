//! The current state of pipes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Answer of `GET /v1/pipes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PipesDocument {
    /// The sockets at which ends of pipes meet: those of ports, and those of `[[pipe]]`.
    pub pipes: Vec<PipeStatus>,
}

/// A `[[pipe]]`, or the pipes of a port, and its current state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PipeStatus {
    /// Name of the pipe, or of the port.
    pub name: String,
    /// The socket path.
    pub socket: String,
    /// The configured slots of each ring of new pipes; `null` for those of a port.
    pub slots: Option<u16>,
    /// Pipes with at least one connected end.
    pub open: Vec<OpenPipe>,
}

/// A pipe with at least one connected end. Ends that are not connected may use it nevertheless:
/// they connect again after a restart of control.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenPipe {
    /// Its number, `1` of `NAME{1`.
    pub id: u16,
    /// Slots of each ring; `null` until the first end has made the memory.
    pub slots: Option<u16>,
    /// Bytes of the file in which it lies; `null` until the first end has made it.
    pub memory_bytes: Option<u64>,
    /// The connected ends, the master first.
    pub ends: Vec<PipeEnd>,
}

/// A connected end of a pipe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PipeEnd {
    /// `master`, `NAME{1`, or `slave`, `NAME}1`.
    pub end: String,
    /// The name of the program, as it says itself.
    pub program: String,
    /// Its process id, as the system says; 0 if it is not visible.
    pub pid: u32,
    /// Seconds since it has connected.
    pub connected_seconds: u64,
}
