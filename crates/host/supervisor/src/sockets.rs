//! Sockets with paths: listening sockets, and connections to front ends.

mod owned;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ipc::owners::SocketOwner;
use ipc::sockets::{MAX_PIPES, SocketType};
use ipc::supervision::{SocketAnswer, SocketDir, SocketRequest, tcp_address};
use ipc::timeouts;
use port::PortId;
use port::counters::MAX_PORTS;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags};
use sys::foreign::ForeignFd;
use sys::{closer, limit};

use self::owned::DefaultOwner;
use super::paths::{Paths, by_descriptor};
use super::record::{FdIndex, OutgoingFds};
use super::reply::opened;

/// Interval of the start's retries with paths of a run that was killed: 100 milliseconds.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Environment variable of tests: sockets are as on a kernel that does not know `SO_PASSRIGHTS`.
const PASSES_RIGHTS: &str = "LASTHOP_TEST_PASSES_RIGHTS";
/// Backlog of a listening socket; the system may allow less.
const BACKLOG: i32 = 4096;
/// Mode of a socket without the bits of the umask; the right to write is the right to connect.
const ANY_USER: Mode = Mode::from_raw_mode(0o777);
const OWNER_ONLY: Mode = Mode::from_raw_mode(0o600);
/// Maximum number of listening sockets: those of all ports and pipes before and after a change, and
/// the others.
const MAX_SOCKETS: usize = 2 * (MAX_PORTS + MAX_PIPES) + 8;

/// Listening socket.
struct Listener {
    /// Its close also releases what lies in connections that were not accepted.
    socket: ForeignFd,
    /// File of the socket; `None` for TCP.
    file: Option<Name>,
    /// Last requested owner, if known, and the only user that may connect.
    requested: Option<(SocketOwner, Option<u32>)>,
}

/// File of a socket.
struct Name {
    path: PathBuf,
    /// Device and inode, which are the same under any name.
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

/// Listening sockets by the requested path, which are removed at the end, and paths of front ends.
pub(super) struct Sockets {
    paths: Paths,
    listening: BTreeMap<String, Listener>,
    /// Paths of front ends by port.
    dials: BTreeMap<PortId, String>,
    default_owner: DefaultOwner,
    /// Time until which a path in use may belong to a dying process of the last run.
    retry_until: Option<Instant>,
}

impl Sockets {
    /// Returns an empty set. Until [`Sockets::settled`], a path in use is retried for a while.
    pub(super) fn new(paths: Paths) -> Self {
        Self {
            paths,
            listening: BTreeMap::new(),
            dials: BTreeMap::new(),
            default_owner: DefaultOwner::now(),
            retry_until: Some(Instant::now() + timeouts::LISTEN),
        }
    }

    /// Adds the sockets to the record for the next supervisor.
    pub(super) fn pass<'a>(&'a self, outgoing: &mut OutgoingFds<'a>) -> BTreeMap<String, FdIndex> {
        let all = self.listening.iter();
        all.map(|(path, listener)| (path.clone(), outgoing.add(listener.socket.as_fd())))
            .collect()
    }

    /// Takes the sockets and the paths of front ends from the previous supervisor's record.
    pub(super) fn take(
        paths: Paths,
        listening: BTreeMap<String, OwnedFd>,
        dials: BTreeMap<PortId, String>,
    ) -> Self {
        let listener = |(path, socket): (String, OwnedFd)| {
            let at = || paths.to_bind(&path).unwrap_or_else(|_| paths.own(&path));
            let file = tcp_address(&path).is_none().then(|| Name::of(at()));
            (path, Listener::new(socket, file))
        };
        Self {
            listening: listening.into_iter().map(listener).collect(),
            dials,
            default_owner: DefaultOwner::now(),
            retry_until: None,
            paths,
        }
    }

    /// Returns the directories that may contain sockets.
    pub(super) fn dirs(&self) -> &[SocketDir] {
        self.paths.dirs()
    }

    /// Returns the paths of front ends by port.
    pub(super) fn dials(&self) -> &BTreeMap<PortId, String> {
        &self.dials
    }

    /// Ends the retries of the start.
    pub(super) fn settled(&mut self) {
        self.retry_until = None;
    }

    /// Handles a request of control; returns the answer, if there is one, and the socket.
    pub(super) fn answer(
        &mut self,
        request: SocketRequest,
    ) -> Option<(SocketAnswer, Option<ForeignFd>)> {
        let answer = match request {
            SocketRequest::Listen { path } => {
                let socket = self.listen(&path);
                let (socket, error) = opened(socket.map_err(|error| limit::in_words(&error)));
                return Some((SocketAnswer::Listening { path, error }, socket));
            }
            SocketRequest::ListenFor {
                path,
                owner,
                socket_type,
            } => {
                let (socket, outcome) = match self.listen_as(&path, &owner, socket_type) {
                    Ok((socket, peer)) => (Some(socket), Ok(peer)),
                    Err(no) => (None, Err(no)),
                };
                return Some((SocketAnswer::ListeningFor { path, outcome }, socket));
            }
            SocketRequest::Unlisten { path } => {
                if let Err(error) = self.unlisten(&path) {
                    tracing::error!("cannot remove a socket for control: {error}");
                }
                return None;
            }
            SocketRequest::Dials(dials) => {
                let dials = dials.into_iter();
                let dials = dials.map(|(port, path)| (port, path.to_string()));
                let error = self.register(dials.collect()).err();
                let error = error.map(|error| error.to_string());
                SocketAnswer::Dials { error }
            }
            SocketRequest::Dirs => SocketAnswer::Dirs(self.dirs().to_vec()),
            SocketRequest::Shared => SocketAnswer::Shared(self.shared()),
        };
        Some((answer, None))
    }

    /// Returns a listening socket, an existing or a new one. One of a dead process is replaced.
    ///
    /// # Errors
    /// The path is not permitted, in use, or cannot be bound.
    pub(super) fn listen(&mut self, path: &str) -> io::Result<ForeignFd> {
        if let Some(address) = tcp_address(path) {
            return self.listen_on(path, |sockets| {
                let is_start = sockets.retry_until.is_some();
                Ok((bind_tcp(address, is_start)?, None))
            });
        }
        let full = self.paths.to_bind(path)?;
        self.listen_for(path, full, Kind::without_rights(ANY_USER))
    }

    /// Returns one of Lasthop's own sockets, for processes of our own user only, whatever the
    /// umask: users that may connect to ports must not administrate Lasthop.
    ///
    /// # Errors
    /// As [`Sockets::listen`].
    pub(super) fn listen_for_owner(&mut self, name: &str) -> io::Result<ForeignFd> {
        let full = self.paths.own(name);
        self.listen_for(name, full, Kind::without_rights(OWNER_ONLY))
    }

    fn listen_for(&mut self, path: &str, full: PathBuf, kind: Kind) -> io::Result<ForeignFd> {
        self.listen_on(path, |sockets| {
            let in_use = |what: String| io::Error::new(io::ErrorKind::AddrInUse, what);
            let taken = |what| in_use(format!("{}, which {what}", full.display()));
            let socket = match bind(&full, kind) {
                Err(Errno::ADDRINUSE) => {
                    sockets.remove_stale(&full).map_err(taken)?;
                    bind(&full, kind)
                }
                other => other,
            };
            let socket = socket.map_err(|e| {
                let error = io::Error::from(e);
                in_use(format!("{}: {}", full.display(), limit::in_words(&error)))
            })?;
            Ok((socket, Some(Name::of(full))))
        })
    }

    /// Returns the socket of this path, or makes one.
    fn listen_on(
        &mut self,
        path: &str,
        make: impl FnOnce(&Self) -> io::Result<(OwnedFd, Option<Name>)>,
    ) -> io::Result<ForeignFd> {
        if let Some(listener) = self.listening.get(path) {
            return listener.socket.try_clone();
        }
        if self.listening.len() >= MAX_SOCKETS {
            return Err(io::Error::other("there are too many listening sockets"));
        }
        let (socket, file) = make(self)?;
        let listener = Listener::new(socket, file);
        let copy = listener.socket.try_clone()?;
        self.listening.insert(path.to_owned(), listener);
        Ok(copy)
    }

    /// Removes a socket without a listener; returns the obstacle otherwise.
    fn remove_stale(&self, path: &Path) -> Result<(), &'static str> {
        loop {
            let kind = path.symlink_metadata().map(|m| m.file_type());
            if !kind.is_ok_and(|t| t.is_socket()) {
                return Err("exists and is not a socket");
            }
            if matches!(connect(path), Err(Errno::CONNREFUSED)) {
                return std::fs::remove_file(path).map_err(|_| "cannot be removed");
            }
            if self.retry_until.is_none_or(|end| end < Instant::now()) {
                return Err("is in use by another process");
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Closes and removes a listening socket.
    ///
    /// # Errors
    /// It is one of Lasthop's own.
    pub(super) fn unlisten(&mut self, path: &str) -> io::Result<()> {
        if tcp_address(path).is_none() {
            self.paths.check(path)?;
        }
        if let Some(listener) = self.listening.remove(path) {
            listener.remove();
        }
        Ok(())
    }

    /// Sets the front ends that may be dialled.
    ///
    /// # Errors
    /// The first path that is not permitted; nothing was changed.
    pub(super) fn register(&mut self, dials: Vec<(PortId, String)>) -> io::Result<()> {
        let is_port = |(port, _): &(PortId, String)| (port.0 as usize) < MAX_PORTS;
        if !dials.iter().all(is_port) {
            return Err(io::Error::other("no such port"));
        }
        for (_, path) in &dials {
            self.paths.check(path)?;
        }
        self.dials = dials.into_iter().collect();
        Ok(())
    }

    /// Returns the path of a port's front end.
    pub(super) fn dialled(&self, port: PortId) -> Option<&str> {
        self.dials.get(&port).map(String::as_str)
    }

    /// Connects to the front end of a port, a process that is not ours.
    ///
    /// # Errors
    /// No path is registered or permitted, or there is no listener.
    pub(super) fn dial(&self, port: PortId) -> io::Result<ForeignFd> {
        let Some(path) = self.dials.get(&port) else {
            return Err(io::Error::other("no front end is registered for this port"));
        };
        let about = |error: io::Error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT | Errno::CONNREFUSED) => format!("no listener on {path}"),
            Some(Errno::AGAIN) => format!("backlog full on {path}"),
            Some(_) => format!("{path}: {}", limit::in_words(&error)),
            None => error.to_string(),
        };
        let connected = self.paths.to_dial(path).and_then(|file| {
            self.is_others(&file)?;
            Ok(connect(&by_descriptor(&file))?)
        });
        connected.map_err(|error| io::Error::new(error.kind(), about(error)))
    }

    /// Checks that an open file is no socket of ours, under any name.
    fn is_others(&self, file: &OwnedFd) -> io::Result<()> {
        let file = rustix::fs::fstat(file)?;
        let id = Some((file.st_dev, file.st_ino));
        let names = self
            .listening
            .values()
            .filter_map(|listener| listener.file.as_ref());
        if names.map(|name| name.id).any(|own| own == id) {
            return Err(io::Error::other("Lasthop's own sockets are no front ends"));
        }
        Ok(())
    }
}

impl Listener {
    fn new(socket: OwnedFd, file: Option<Name>) -> Self {
        let requested = None;
        Self {
            socket: socket.into(),
            file,
            requested,
        }
    }

    /// Returns whether it is a socket of this type.
    fn is(&self, of: SocketType) -> bool {
        rustix::net::sockopt::socket_type(&self.socket) == Ok(system_type(of))
    }

    fn remove(&self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(&file.path);
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.listening.values().for_each(Listener::remove);
        self.listening.clear();
        // The next supervisor binds the same addresses.
        let _ = closer::settle(Instant::now() + RETRY_INTERVAL);
    }
}

/// Returns the system's constant for a type of sockets.
const fn system_type(of: SocketType) -> rustix::net::SocketType {
    match of {
        SocketType::Stream => rustix::net::SocketType::STREAM,
        SocketType::SeqPacket => rustix::net::SocketType::SEQPACKET,
    }
}

/// Kind of a new socket.
#[derive(Clone, Copy)]
struct Kind {
    of: SocketType,
    mode: Mode,
    /// Whether clients may send descriptors.
    rights: bool,
}

impl Kind {
    /// Returns the kind of a socket for clients that send bytes only.
    const fn without_rights(mode: Mode) -> Self {
        let (of, rights) = (SocketType::Stream, false);
        Self { of, mode, rights }
    }
}

/// Refuses messages with descriptors at the sender (`SO_PASSRIGHTS`, Linux 6.16). Before, the
/// reader must receive them, and hands them to the closer.
fn refuse_rights(socket: &OwnedFd) {
    /// `asm-generic/socket.h`
    const SO_PASSRIGHTS: c_int = 83;
    if std::env::var_os(PASSES_RIGHTS).is_some() {
        return;
    }
    let no: c_int = 0;
    let (value, len) = ((&raw const no).cast(), size_of_val(&no) as libc::socklen_t);
    let (socket, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: the kernel reads `len` bytes. It refuses an option that it does not know.
    unsafe { libc::setsockopt(socket, level, SO_PASSRIGHTS, value, len) };
}

/// Binds and listens. The socket gets its mode before its name, so that no other user can connect
/// in between.
fn bind(path: &Path, Kind { of, mode, rights }: Kind) -> Result<OwnedFd, Errno> {
    let (of, flags) = (system_type(of), SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, of, flags, None)?;
    if !rights {
        refuse_rights(&socket);
    }
    rustix::fs::fchmod(&socket, mode)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// First TCP port of loopback that is bound for a later change: those below are for the host's own
/// services (ip(7), `ip_unprivileged_port_start`).
const FIRST_PORT: u16 = 1024;

/// Binds and listens on an address of this host. Another address did not pass the check of the
/// configuration. A port below [`FIRST_PORT`] is the start's.
fn bind_tcp(address: SocketAddr, is_start: bool) -> io::Result<OwnedFd> {
    let in_use = |what: &str| {
        let text = format!("{address}: {what}");
        io::Error::new(io::ErrorKind::AddrInUse, text)
    };
    if !address.ip().is_loopback() {
        return Err(in_use("not a loopback address"));
    }
    if !is_start && address.port() < FIRST_PORT {
        return Err(in_use("a port below 1024 takes a restart"));
    }
    match TcpListener::bind(address) {
        Ok(socket) => Ok(socket.into()),
        Err(error) => Err(in_use(&limit::in_words(&error))),
    }
}

/// Connects without waiting: a peer with a full backlog is not reachable now.
fn connect(path: &Path) -> Result<ForeignFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = system_type(SocketType::Stream);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, stream, flags, None)?;
    let socket = ForeignFd::from(socket);
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}
