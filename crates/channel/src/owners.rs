//! Owners of listening sockets, and users that may connect to them.
//!
//! Control sends the operator's values. The supervisor, which may open files, looks up names; the
//! switch gets the number of the user whose processes may connect, and compares it with each
//! connection's.

use serde::{Deserialize, Serialize};

/// Requested attributes of a socket; missing ones are the system's defaults.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SocketOwner {
    /// Owner, by name or number.
    pub user: Option<String>,
    /// Group, by name or number.
    pub group: Option<String>,
    /// Its permissions.
    pub mode: Option<u16>,
    /// The only user whose processes may connect, by name or number.
    pub peer_user: Option<String>,
}

/// Attribute that is not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SocketKey {
    /// The path.
    Socket,
    /// The owner.
    User,
    /// The group.
    Group,
    /// The mode.
    Mode,
    /// The only user that may connect.
    PeerUser,
}

impl SocketKey {
    /// Returns the key's name in the configuration and the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::User => "user",
            Self::Group => "group",
            Self::Mode => "mode",
            Self::PeerUser => "peer_user",
        }
    }
}

/// Reason why there is no such socket; then nothing has changed, or no process may connect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NoSocket {
    /// Attribute that is not possible.
    pub key: SocketKey,
    /// The possible values.
    pub expected: String,
    /// The present value.
    pub found: String,
}
