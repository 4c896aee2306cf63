//! The connections of one socket, and what they send.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use api::v1::{EventKind, PipeChange};
use ipc::peer::Peer;
use pipes::{Answer, Conn, MAX_DESCRIPTORS, MAX_MESSAGE, Note, Output, PipeStatus, Server};
use port::EventLimiter;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::{FileType, SealFlags, fcntl_get_seals, fstat};
use rustix::net::{RecvFlags, SendFlags};
use sys::foreign::ForeignFd;

use super::PipeListener;
use crate::events::Events;

/// Most events about one socket within [`EVENTS_WITHIN`].
const EVENTS_MOST: u32 = 20;
const EVENTS_WITHIN: Duration = Duration::from_secs(10);

/// A descriptor of a pipe's memory.
type Fd = Arc<ForeignFd>;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: ForeignFd,
    user: u32,
    /// The set that has it.
    epoll: Arc<OwnedFd>,
}

/// The socket is closed later, by the closer, and would be ready in the set until then.
impl Drop for Connection {
    fn drop(&mut self) {
        // It is not there if it could not be added.
        let _ = epoll::delete(&self.epoll, &self.socket);
    }
}

/// One socket with its connections.
#[derive(Debug)]
pub(super) struct Meeting {
    pub(super) listener: PipeListener,
    server: Server<Fd>,
    connections: BTreeMap<Conn, Connection>,
    limiter: EventLimiter,
}

impl Meeting {
    pub(super) fn new(listener: PipeListener) -> Self {
        Self {
            server: Server::new(listener.pipe.slots.unwrap_or(0)),
            listener,
            connections: BTreeMap::new(),
            limiter: EventLimiter::new(EVENTS_MOST, EVENTS_WITHIN),
        }
    }

    /// Takes changed settings. Connections of users that may not connect any more are closed;
    /// returns their sockets.
    pub(super) fn change(&mut self, listener: PipeListener, now: Duration, events: &Events) {
        self.server.set_slots(listener.pipe.slots.unwrap_or(0));
        let peer = listener.peer;
        self.listener = listener;
        let others = self.connections.iter();
        let others = others.filter(|(_, one)| peer.is_some_and(|peer| peer != one.user));
        for conn in others.map(|(conn, _)| *conn).collect::<Vec<_>>() {
            self.close(conn, now, events);
        }
    }

    /// Adds a new connection, also to the epoll set, unless its user may not connect. Returns
    /// whether it was added.
    pub(super) fn add(
        &mut self,
        (conn, socket): (Conn, ForeignFd),
        epoll: &Arc<OwnedFd>,
        now: Duration,
        events: &Events,
    ) -> bool {
        let Ok(peer) = Peer::of(&socket) else {
            return false;
        };
        let user = peer.user.as_raw();
        if self.listener.peer.is_some_and(|only| only != user) {
            if let Some(suppressed) = self.limiter.admit(now) {
                let pipe = &self.listener.pipe.name;
                tracing::warn!(
                    pipe,
                    user,
                    suppressed,
                    "end rejected: its user is not peer_user"
                );
            }
            return false;
        }
        let process = peer.process.map(|pid| pid.as_raw_nonzero().get());
        let pid = process.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        let data = EventData::new_u64(conn);
        if let Err(error) = epoll::add(epoll, &socket, data, EventFlags::IN) {
            tracing::error!("server of pipes: {error}");
            return false;
        }
        let epoll = Arc::clone(epoll);
        let connection = Connection {
            socket,
            user,
            epoll,
        };
        self.connections.insert(conn, connection);
        self.with(now, events, |server, now_ms, out| {
            server.connected(conn, pid, now_ms, out);
        });
        true
    }

    /// Reads one message of a connection. Returns whether the connection is there still.
    pub(super) fn receive(&mut self, conn: Conn, now: Duration, events: &Events) -> bool {
        let Some(connection) = self.connections.get(&conn) else {
            return false;
        };
        let (mut bytes, mut fds) = ([0; MAX_MESSAGE], Vec::new());
        let flags = RecvFlags::DONTWAIT;
        let into = (&mut fds, connection.socket.author());
        match sys::descriptors::receive(&connection.socket, &mut bytes, into, flags) {
            Ok(None) => {}
            Ok(Some(got)) if got.bytes > 0 => {
                // Others are refused by their number.
                let fits = !got.lost_descriptors && fds.len() <= MAX_DESCRIPTORS;
                let fds = if fits && are_memory(&fds) {
                    fds
                } else {
                    Vec::new()
                };
                let fds = fds.into_iter().map(Arc::new).collect();
                let message = bytes.get(..got.bytes).unwrap_or_default();
                self.with(now, events, |server, now_ms, out| {
                    server.received(conn, message, fds, now_ms, out);
                });
            }
            Ok(_) | Err(_) => self.close(conn, now, events),
        }
        self.connections.contains_key(&conn)
    }

    /// Closes a connection whose end is gone.
    pub(super) fn close(&mut self, conn: Conn, now: Duration, events: &Events) {
        self.connections.remove(&conn);
        self.with(now, events, |server, now_ms, out| {
            server.closed(conn, now_ms, out);
        });
    }

    /// Closes the connections whose time is over.
    pub(super) fn expire(&mut self, now: Duration, events: &Events) {
        self.with(now, events, Server::expire);
    }

    /// Returns the time until the next connection's is over.
    pub(super) fn next_expiry(&self) -> Option<Duration> {
        self.server.next_expiry().map(Duration::from_millis)
    }

    /// Returns the number of descriptors that it has open.
    pub(super) fn descriptors(&self) -> usize {
        self.connections.len() + self.server.descriptors()
    }

    /// Returns whether there is such a connection.
    pub(super) fn has(&self, conn: Conn) -> bool {
        self.connections.contains_key(&conn)
    }

    /// Returns the pipes with an end.
    pub(super) fn pipes(&self) -> impl Iterator<Item = PipeStatus> {
        self.server.pipes()
    }

    /// Runs a step of the server, and does what comes out of it.
    fn with(
        &mut self,
        now: Duration,
        events: &Events,
        step: impl FnOnce(&mut Server<Fd>, u64, &mut Vec<Output<Fd>>),
    ) {
        let mut out = Vec::new();
        step(&mut self.server, millis(now), &mut out);
        let mut lost = Vec::new();
        for output in out {
            match output {
                Output::Send(conn, answer, fds) => {
                    if !self.send(conn, &answer, &fds) {
                        lost.push(conn);
                    }
                }
                Output::Close(conn) => drop(self.connections.remove(&conn)),
                Output::Log(note) => self.log(note, now, events),
            }
        }
        for conn in lost {
            if self.connections.contains_key(&conn) {
                self.close(conn, now, events);
            }
        }
    }

    /// Sends a message; returns whether the connection has taken it.
    fn send(&self, conn: Conn, answer: &Answer, fds: &[Fd]) -> bool {
        let Some(connection) = self.connections.get(&conn) else {
            return true;
        };
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
        let bytes = answer.to_bytes();
        let flags = SendFlags::DONTWAIT;
        sys::descriptors::send(&connection.socket, &bytes, &fds, flags).is_ok()
    }

    fn log(&mut self, note: Note, now: Duration, events: &Events) {
        let Some(suppressed) = self.limiter.admit(now) else {
            return;
        };
        let pipe = self.listener.pipe.name.clone();
        let (id, end, status, state) = match note {
            Note::Joined { id, end, status } => (id, end, status, PipeChange::Connected),
            Note::Left { id, end, status } => (id, end, status, PipeChange::Disconnected),
            Note::Refused { pid, reason } => {
                tracing::warn!(pipe, pid, suppressed, "end refused: {reason}");
                return;
            }
        };
        let what = EventKind::Pipe {
            pipe,
            id,
            end: end.as_str().to_owned(),
            state,
            program: status.program,
            pid: status.pid,
        };
        events.emit(what, suppressed);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns whether descriptors are those of a pipe, as far as a process that maps nothing can tell:
/// a memory file that cannot be cut off, and descriptors without a file, such as eventfds.
fn are_memory(fds: &[ForeignFd]) -> bool {
    let Some((file, others)) = fds.split_first() else {
        return true;
    };
    let is_sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    // The system gives anonymous files no type.
    let is_anonymous = |fd: &ForeignFd| {
        let kind = fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        kind.is_ok_and(|kind| kind == FileType::Unknown)
    };
    is_sealed && others.iter().all(is_anonymous)
}
