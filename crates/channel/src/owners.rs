//! Whose listening sockets are, and who may connect to them.
//!
//! Control says it as the operator does. Names are looked up by the supervisor, which may open files; the switch is told the number
//! of the user whose processes may connect, which it reads of each connection.

use serde::{Deserialize, Serialize};

/// What is asked of a socket; what is not said is as the system makes it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SocketOwner {
    /// The user whose it is, by name or number.
    pub user: Option<String>,
    /// The group whose it is, by name or number.
    pub group: Option<String>,
    /// Its permissions.
    pub mode: Option<u16>,
    /// The only user whose processes may connect, by name or number.
    pub peer_user: Option<String>,
}

/// What of it cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SocketKey {
    /// A socket of this path.
    Socket,
    /// One of this user.
    User,
    /// One of this group.
    Group,
    /// One with this mode.
    Mode,
    /// That only this user connects.
    PeerUser,
}

impl SocketKey {
    /// As the configuration and the API spell it.
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

/// Why there is no such socket; nothing has changed then, or nobody may connect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NoSocket {
    /// What of it cannot be had.
    pub key: SocketKey,
    /// What could be.
    pub expected: String,
    /// What is there.
    pub found: String,
}
