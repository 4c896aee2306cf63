//! Names in the runtime directory, and the directories in which sockets may be. These are
//! restricted because Lasthop binds and connects with the rights of its supervisor.
//!
//! Sockets may be in the runtime directory and in the directories of `[switch] socket_dirs`, and
//! below these; and in the directories of the absolute paths in the configuration with which
//! Lasthop was started. This module compares names; the supervisor, which sees the file system,
//! checks what they lead to.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::forwards::ForwardReach;
use crate::supervision::SocketDir;

/// File name of the API's socket inside the runtime directory.
pub const API_SOCKET: &str = "api.sock";
/// File name of the supervisor's socket for administrators.
pub const ADMIN_SOCKET: &str = "supervisor.sock";
/// File name of the lock that keeps a second Lasthop out of the directory.
pub const LOCK_FILE: &str = "lasthop.lock";
/// Reserved names in the runtime directory.
pub const RESERVED: [&str; 3] = [API_SOCKET, ADMIN_SOCKET, LOCK_FILE];

/// Most sockets of pipes: `[[pipe]]` tables, and ports with pipes.
pub const MAX_PIPES: usize = 256;

/// Types of listening sockets (unix(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum SocketType {
    /// `SOCK_STREAM`: vhost-user, HTTP.
    #[default]
    Stream,
    /// `SOCK_SEQPACKET`: memif, pipes.
    SeqPacket,
}

/// Returns the path of a port's socket. A relative one starts at the runtime directory.
#[must_use]
pub fn socket_path(runtime_dir: &Path, socket: &str) -> PathBuf {
    runtime_dir.join(socket)
}

/// Bounds that the start sets to later changes: directories in which sockets may be, and places
/// where forwards may listen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    runtime_dir: PathBuf,
    dirs: Vec<SocketDir>,
    forwards: ForwardReach,
}

impl Reach {
    /// Returns the set of these directories; forwards listen on loopback only.
    #[must_use]
    pub fn new(runtime_dir: &Path, dirs: Vec<SocketDir>) -> Self {
        Self {
            runtime_dir: runtime_dir.to_owned(),
            dirs,
            forwards: ForwardReach::default(),
        }
    }

    /// Adds where forwards may listen.
    #[must_use]
    pub fn with_forwards(self, forwards: ForwardReach) -> Self {
        Self { forwards, ..self }
    }

    /// Returns where forwards may listen.
    #[must_use]
    pub fn forwards(&self) -> &ForwardReach {
        &self.forwards
    }

    /// Returns the directory at which relative paths start.
    #[must_use]
    pub fn runtime_dir(&self) -> &Path {
        &self.runtime_dir
    }

    /// Returns the directories.
    #[must_use]
    pub fn dirs(&self) -> &[SocketDir] {
        &self.dirs
    }

    /// Returns whether a path is in these directories, by its name.
    #[must_use]
    pub fn has(&self, socket: &str) -> bool {
        let path = socket_path(&self.runtime_dir, socket);
        let dir = path.parent();
        !climbs(&path) && dir.is_some_and(|dir| self.dirs.iter().any(|own| own.has(dir)))
    }
}

/// Returns whether a path leads upwards somewhere.
#[must_use]
pub fn climbs(path: &Path) -> bool {
    path.components().any(|part| part == Component::ParentDir)
}
