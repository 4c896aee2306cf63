//! What needs a path in the file system: sockets that listen, and connections to others.

mod owned;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use channel::owners::SocketOwner;
use channel::supervision::{SocketDir, tcp_address};
use port::PortId;
use port::counters::MAX_PORTS;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use self::owned::Usual;
use super::paths::{Paths, by_descriptor};
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
/// Listening sockets at most: those of all ports before and after a change, and the others.
const MAX_SOCKETS: usize = 2 * MAX_PORTS + 8;

/// A listening socket.
struct Bound {
    socket: OwnedFd,
    /// Its file; none of a TCP socket.
    file: Option<Name>,
    /// What was asked of it last, where that is known, and the only user who may connect.
    asked: Option<(SocketOwner, Option<u32>)>,
}

/// A socket's file.
struct Name {
    path: PathBuf,
    /// Device and inode, which it has by any other name, too.
    id: Option<(u64, u64)>,
}

impl Name {
    fn of(path: PathBuf) -> Self {
        let id = rustix::fs::lstat(&path).ok();
        Self {
            id: id.map(|file| (file.st_dev, file.st_ino)),
            path,
        }
    }
}

/// Listening sockets by the path that they were asked for with, which are removed in the end; and where others listen.
pub(super) struct Sockets {
    paths: Paths,
    listening: BTreeMap<String, Bound>,
    /// Paths of front ends by the port that they are dialled for.
    dials: BTreeMap<PortId, String>,
    usual: Usual,
    /// Until then, who listens on a path that we want may be a process of the last run that is still dying.
    patience: Option<Instant>,
}

impl Sockets {
    /// No sockets. Until [`Sockets::settled`], a path that is taken is tried again for a while.
    pub(super) fn new(paths: Paths) -> Self {
        Self {
            paths,
            listening: BTreeMap::new(),
            dials: BTreeMap::new(),
            usual: Usual::now(),
            patience: Some(Instant::now() + PATIENCE),
        }
    }

    /// For the supervisor that takes the place of this one.
    pub(super) fn pass<'a>(&'a self, giving: &mut Giving<'a>) -> BTreeMap<String, Place> {
        let all = self.listening.iter();
        all.map(|(path, bound)| (path.clone(), giving.give(bound.socket.as_fd())))
            .collect()
    }

    /// Those that the supervisor before this one has bound, and whom it dialled.
    pub(super) fn take(
        paths: Paths,
        listening: BTreeMap<String, OwnedFd>,
        dials: BTreeMap<PortId, String>,
    ) -> Self {
        let bound = |(path, socket): (String, OwnedFd)| {
            let at = || paths.to_bind(&path).unwrap_or_else(|_| paths.own(&path));
            let file = tcp_address(&path).is_none().then(|| Name::of(at()));
            let asked = None;
            (
                path,
                Bound {
                    socket,
                    file,
                    asked,
                },
            )
        };
        Self {
            listening: listening.into_iter().map(bound).collect(),
            dials,
            usual: Usual::now(),
            patience: None,
            paths,
        }
    }

    /// Directories in which sockets may be.
    pub(super) fn dirs(&self) -> &[SocketDir] {
        self.paths.dirs()
    }

    /// Where front ends are, by port.
    pub(super) fn dials(&self) -> &BTreeMap<PortId, String> {
        &self.dials
    }

    /// The start is over: nobody can be waited for any more.
    pub(super) fn settled(&mut self) {
        self.patience = None;
    }

    /// A listening socket: the one that is there, or a new one. One that a dead process left behind is
    /// replaced.
    ///
    /// # Errors
    /// No socket may be there, or the path is taken or cannot be bound.
    pub(super) fn listen(&mut self, path: &str) -> io::Result<OwnedFd> {
        if let Some(address) = tcp_address(path) {
            return self.listen_on(path, |_| Ok((bind_tcp(address)?, None)));
        }
        let full = self.paths.to_bind(path)?;
        self.listen_for(path, full, EVERYBODY)
    }

    /// One of our own, for processes of our own user only, whatever the umask says: who may connect to a guest's port need
    /// not be one who may change everything.
    ///
    /// # Errors
    /// As [`Sockets::listen`].
    pub(super) fn listen_for_owner(&mut self, name: &str) -> io::Result<OwnedFd> {
        let full = self.paths.own(name);
        self.listen_for(name, full, OWNER)
    }

    fn listen_for(&mut self, path: &str, full: PathBuf, who: Mode) -> io::Result<OwnedFd> {
        self.listen_on(path, |sockets| {
            let blame = |what: String| io::Error::new(io::ErrorKind::AddrInUse, what);
            let taken = |what| blame(format!("{}, which {what}", full.display()));
            let socket = match bind(&full, who) {
                Err(Errno::ADDRINUSE) => {
                    sockets.remove_stale(&full).map_err(taken)?;
                    bind(&full, who)
                }
                other => other,
            };
            let socket = socket.map_err(|e| {
                let error = io::Error::from(e);
                blame(format!("{}: {error}", full.display()))
            })?;
            Ok((socket, Some(Name::of(full))))
        })
    }

    /// The socket of this path, or one that is made.
    fn listen_on(
        &mut self,
        path: &str,
        make: impl FnOnce(&Self) -> io::Result<(OwnedFd, Option<Name>)>,
    ) -> io::Result<OwnedFd> {
        if let Some(bound) = self.listening.get(path) {
            return bound.socket.try_clone();
        }
        if self.listening.len() >= MAX_SOCKETS {
            return Err(io::Error::other("there are too many listening sockets"));
        }
        let (socket, file) = make(self)?;
        let copy = socket.try_clone()?;
        let asked = None;
        let bound = Bound {
            socket,
            file,
            asked,
        };
        self.listening.insert(path.to_owned(), bound);
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
    ///
    /// # Errors
    /// It is one of our own.
    pub(super) fn unlisten(&mut self, path: &str) -> io::Result<()> {
        if tcp_address(path).is_none() {
            self.paths.check(path)?;
        }
        if let Some(bound) = self.listening.remove(path) {
            bound.remove();
        }
        Ok(())
    }

    /// From now on, these are the front ends that are dialled.
    ///
    /// # Errors
    /// The first that may not be; all is as it was then.
    pub(super) fn register(&mut self, dials: Vec<(PortId, String)>) -> io::Result<()> {
        let is_port = |(port, _): &(PortId, String)| (port.0 as usize) < MAX_PORTS;
        if !dials.iter().all(is_port) {
            return Err(io::Error::other("there is no such port"));
        }
        for (_, path) in &dials {
            self.paths.check(path)?;
        }
        self.dials = dials.into_iter().collect();
        Ok(())
    }

    /// Where the front end of a port is.
    pub(super) fn dialled(&self, port: PortId) -> Option<&str> {
        self.dials.get(&port).map(String::as_str)
    }

    /// A connection to the front end of a port, which is a process of somebody else.
    ///
    /// # Errors
    /// It is not known where that is; or it may not be there, or nobody listens there.
    pub(super) fn dial(&self, port: PortId) -> io::Result<OwnedFd> {
        let Some(path) = self.dials.get(&port) else {
            return Err(io::Error::other("no front end is registered for this port"));
        };
        let about = |error: io::Error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT | Errno::CONNREFUSED) => format!("nobody listens on {path}"),
            Some(Errno::AGAIN) => format!("nobody accepts on {path}"),
            Some(_) => format!("{path}: {error}"),
            None => error.to_string(),
        };
        let connected = self.paths.to_dial(path).and_then(|file| {
            self.is_others(&file)?;
            Ok(connect(&by_descriptor(&file))?)
        });
        connected.map_err(|error| io::Error::new(error.kind(), about(error)))
    }

    /// Checks that what is open is no socket of ours, by whatever name.
    fn is_others(&self, file: &OwnedFd) -> io::Result<()> {
        let file = rustix::fs::fstat(file)?;
        let id = Some((file.st_dev, file.st_ino));
        let names = self
            .listening
            .values()
            .filter_map(|bound| bound.file.as_ref());
        match names.map(|name| name.id).any(|own| own == id) {
            true => Err(io::Error::other(
                "a socket of Lasthop's own is no front end",
            )),
            false => Ok(()),
        }
    }
}

impl Bound {
    fn remove(&self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(&file.path);
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.listening.values().for_each(Bound::remove);
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
