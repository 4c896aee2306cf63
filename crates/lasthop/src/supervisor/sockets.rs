//! What needs a path in the file system: sockets that listen, and connections to others.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use channel::supervision::tcp_address;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::replace::{Giving, Place};

/// How long the start waits for the sockets of a run that was killed.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks at such a socket.
const AGAIN: Duration = Duration::from_millis(100);

/// Connections that wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 4096;
/// Modes of a socket, less what the umask takes away: who may write may connect.
const EVERYBODY: Mode = Mode::from_raw_mode(0o777);
const OWNER: Mode = Mode::from_raw_mode(0o600);

/// Listening sockets by the path that they were asked for with. They are removed in the end.
pub(super) struct Sockets {
    dir: PathBuf,
    listening: BTreeMap<String, OwnedFd>,
    /// Until then, who listens on a path that we want may be a process of the last run that is still dying.
    patience: Option<Instant>,
}

impl Sockets {
    /// No sockets; relative paths start at `dir`. Until [`Sockets::settled`], a path that is taken is tried
    /// again for a while.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            listening: BTreeMap::new(),
            patience: Some(Instant::now() + PATIENCE),
        }
    }

    /// For the supervisor that takes the place of this one.
    pub(super) fn pass<'a>(&'a self, giving: &mut Giving<'a>) -> BTreeMap<String, Place> {
        let all = self.listening.iter();
        all.map(|(path, socket)| (path.clone(), giving.give(socket.as_fd())))
            .collect()
    }

    /// Those that the supervisor before this one has bound.
    pub(super) fn take(dir: PathBuf, listening: BTreeMap<String, OwnedFd>) -> Self {
        Self {
            dir,
            listening,
            patience: None,
        }
    }

    /// The start is over: nobody can be waited for any more.
    pub(super) fn settled(&mut self) {
        self.patience = None;
    }

    /// A listening socket: the one that is there, or a new one. One that a dead process left behind is
    /// replaced.
    ///
    /// # Errors
    /// The path is taken or cannot be bound.
    pub(super) fn listen(&mut self, path: &str) -> io::Result<OwnedFd> {
        self.listen_for(path, EVERYBODY)
    }

    /// The same, for processes of our own user only, whatever the umask says: who may connect to a guest's port need
    /// not be one who may change everything.
    ///
    /// # Errors
    /// As [`Sockets::listen`].
    pub(super) fn listen_for_owner(&mut self, path: &str) -> io::Result<OwnedFd> {
        self.listen_for(path, OWNER)
    }

    fn listen_for(&mut self, path: &str, who: Mode) -> io::Result<OwnedFd> {
        if let Some(socket) = self.listening.get(path) {
            return socket.try_clone();
        }
        if let Some(address) = tcp_address(path) {
            let socket = bind_tcp(address)?;
            let copy = socket.try_clone()?;
            self.listening.insert(path.to_owned(), socket);
            return Ok(copy);
        }
        let full = self.dir.join(path);
        let blame = |what: String| io::Error::new(io::ErrorKind::AddrInUse, what);
        let taken = |what| blame(format!("{}, which {what}", full.display()));
        let socket = match bind(&full, who) {
            Err(Errno::ADDRINUSE) => {
                self.remove_stale(&full).map_err(taken)?;
                bind(&full, who)
            }
            other => other,
        };
        let socket = socket.map_err(|e| {
            let error = io::Error::from(e);
            blame(format!("{}: {error}", full.display()))
        })?;
        let copy = socket.try_clone()?;
        self.listening.insert(path.to_owned(), socket);
        Ok(copy)
    }

    /// Removes a socket that nobody listens on; says what is in the way otherwise.
    fn remove_stale(&self, path: &Path) -> Result<(), &'static str> {
        loop {
            let kind = path.symlink_metadata().map(|m| m.file_type());
            if !kind.is_ok_and(|t| t.is_socket()) {
                return Err("exists and is not a socket");
            }
            if matches!(connect(path), Err(Errno::CONNREFUSED)) {
                return std::fs::remove_file(path).map_err(|_| "cannot be removed");
            }
            if self.patience.is_none_or(|end| end < Instant::now()) {
                return Err("somebody else listens on");
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Closes and removes a listening socket.
    pub(super) fn unlisten(&mut self, path: &str) {
        if self.listening.remove(path).is_some() && tcp_address(path).is_none() {
            let _ = std::fs::remove_file(self.dir.join(path));
        }
    }

    /// A connection to a socket of somebody else.
    ///
    /// # Errors
    /// Nobody listens there.
    pub(super) fn dial(&self, path: &str) -> io::Result<OwnedFd> {
        connect(&self.dir.join(path)).map_err(|errno| {
            let error = io::Error::from(errno);
            let text = match errno {
                Errno::NOENT | Errno::CONNREFUSED => format!("nobody listens on {path}"),
                Errno::AGAIN => format!("nobody accepts on {path}"),
                _ => format!("{path}: {error}"),
            };
            io::Error::new(error.kind(), text)
        })
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let paths = self.listening.keys();
        for path in paths.filter(|path| tcp_address(path).is_none()) {
            let _ = std::fs::remove_file(self.dir.join(path));
        }
    }
}

/// Binds and listens. The socket has its mode before it has its name: nobody else can be in between.
fn bind(path: &Path, who: Mode) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::fs::fchmod(&socket, who)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Binds and listens on an address of this host itself: who asks for another has not checked the configuration.
fn bind_tcp(address: SocketAddr) -> io::Result<OwnedFd> {
    let blame = |what: &str| {
        let text = format!("{address}: {what}");
        io::Error::new(io::ErrorKind::AddrInUse, text)
    };
    match address.ip().is_loopback() {
        true => match TcpListener::bind(address) {
            Ok(socket) => Ok(socket.into()),
            Err(error) => Err(blame(&error.to_string())),
        },
        false => Err(blame("not an address of this host itself")),
    }
}

/// Connects without waiting: a peer whose backlog is full is one that cannot be reached now.
fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}
