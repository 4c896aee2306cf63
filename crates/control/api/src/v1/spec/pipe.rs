//! Pipes: shared memory of two processes that trust each other.

use model::objects;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

objects!(PipeSpec);

/// A pipe: processes with the netmap API that open `NAME{ID` and `NAME}ID` share memory. Every
/// process that may connect to its socket can read and write all that the other end shares.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct PipeSpec {
    /// The pipe's name, unique, and not the name of a port: 1 to 32 characters out of
    /// `A-Z a-z 0-9 _ . -`, not only dots.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,32}$")]
    pub name: String,
    /// Slots of each ring: a power of two from 64 to 4096. Default: 2048.
    #[serde(default = "slots", skip_serializing_if = "is_usual")]
    #[schema(minimum = 64, maximum = 4096)]
    pub slots: u16,
    /// Path of the unix socket at which the ends meet; a relative one starts at the runtime
    /// directory. Default: the pipe's name with `.pipes`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub socket: String,
    /// The owner of the socket, by name or number. Default: the user of Lasthop.
    pub user: Option<String>,
    /// The group of the socket, by name or number. Default: the group of Lasthop.
    pub group: Option<String>,
    /// The socket's mode, an octal number like `0660`. Users with the right to write may connect.
    /// Default: given by the umask.
    #[schema(pattern = "^[0-7]{3}$|^0[0-7]{3}$")]
    pub mode: Option<String>,
    /// The only user whose processes may connect, by name or number.
    pub peer_user: Option<String>,
}

impl PipeSpec {
    /// Returns a pipe with all other fields at their defaults.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            slots: slots(),
            socket: String::new(),
            user: None,
            group: None,
            mode: None,
            peer_user: None,
        }
    }
}

/// The default number of slots.
const fn slots() -> u16 {
    2048
}

/// Returns whether it is the default number of slots.
const fn is_usual(value: &u16) -> bool {
    *value == slots()
}
