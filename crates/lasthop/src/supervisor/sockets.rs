//! What needs a path in the file system: sockets that listen, and connections to others.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Listening sockets by the path that they were asked for with. They are removed in the end.
pub(super) struct Sockets {
    dir: PathBuf,
    listening: BTreeMap<String, OwnedFd>,
}

impl Sockets {
    /// No sockets; relative paths start at `dir`.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            listening: BTreeMap::new(),
        }
    }

    /// A listening socket: the one that is there, or a new one. One that a dead process left behind is
    /// replaced.
    ///
    /// # Errors
    /// The path is taken or cannot be bound.
    pub(super) fn listen(&mut self, path: &str) -> io::Result<OwnedFd> {
        if let Some(socket) = self.listening.get(path) {
            return socket.try_clone();
        }
        let full = self.dir.join(path);
        let blame = |what: String| io::Error::new(io::ErrorKind::AddrInUse, what);
        let taken = |what| blame(format!("{}, which {what}", full.display()));
        let socket = match UnixListener::bind(&full) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(&full).map_err(taken)?;
                UnixListener::bind(&full)
            }
            other => other,
        };
        let socket = socket.map_err(|e| blame(format!("{}: {e}", full.display())))?;
        let socket = OwnedFd::from(socket);
        let copy = socket.try_clone()?;
        self.listening.insert(path.to_owned(), socket);
        Ok(copy)
    }

    /// Closes and removes a listening socket.
    pub(super) fn unlisten(&mut self, path: &str) {
        if self.listening.remove(path).is_some() {
            let _ = std::fs::remove_file(self.dir.join(path));
        }
    }

    /// A connection to a socket of somebody else.
    ///
    /// # Errors
    /// Nobody listens there.
    pub(super) fn dial(&self, path: &str) -> io::Result<OwnedFd> {
        let full = self.dir.join(path);
        connect(&full).map_err(|e| {
            let error = io::Error::from(e);
            io::Error::new(error.kind(), format!("{}: {error}", full.display()))
        })
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for path in self.listening.keys() {
            let _ = std::fs::remove_file(self.dir.join(path));
        }
    }
}

/// Removes a socket that nobody listens on; says what is in the way otherwise.
fn remove_stale(path: &Path) -> Result<(), &'static str> {
    let kind = path.symlink_metadata().map(|m| m.file_type());
    if !kind.is_ok_and(|t| t.is_socket()) {
        return Err("exists and is not a socket");
    }
    match connect(path) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(|_| "cannot be removed"),
        _ => Err("somebody else listens on"),
    }
}

/// Connects without waiting: a peer whose backlog is full is one that cannot be reached now.
fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}
