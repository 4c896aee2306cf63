//! The link to the supervisor. A supervisor that is gone is as one that requests a stop.

#![expect(
    clippy::result_large_err,
    reason = "an answer to another request is handed on, and fails nothing"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ipc::driving::{DriverSpec, DriverState, UserNetwork};
use ipc::forwards::ForwardReach;
use ipc::link::{Link, LinkEvent};
use ipc::names::{PortName, SocketPath};
use ipc::owners::{NoSocket, SocketOwner};
use ipc::sockets::SocketType;
use ipc::supervision::{
    ControlRequest, EventToControl, FoundVcpus, GuestAnswer, GuestRequest, PortDriverAnswer,
    PortDriverRequest, ProcessInfo, ProcessUsage, SocketAnswer, SocketDir, SocketRequest,
    UserPortAnswer, UserPortRequest, WatchedGuests,
};
use ipc::user_reports::{UserPage, UserQuestion};
use port::PortId;
use sys::foreign::ForeignFd;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Line, closed, reply_of};

/// Sockets of front ends, by port.
pub(in crate::engine) type Dials = Vec<(PortId, String)>;

/// The user that alone may connect, if there is one, and the socket.
pub(in crate::engine) type Listening = Result<(Option<u32>, ForeignFd), NoSocket>;

/// A message with its descriptors.
type Message = (EventToControl, Vec<ForeignFd>);

/// A request without a reply. Replies have no numbers: each is for the oldest request that it
/// fits.
struct Pending {
    deadline: Instant,
    /// Takes the message if it is the reply, or returns it.
    offer: Box<dyn FnMut(Message) -> Option<Message>>,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Pending");
        debug
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// The link to the supervisor. Only [`EventToControl::Stop`], [`EventToControl::Freeze`],
/// [`EventToControl::Thaw`], [`EventToControl::Ping`] and [`EventToControl::Events`] arrive
/// without a request.
#[derive(Debug)]
pub(in crate::engine) struct SupervisorLink {
    line: Line<ControlRequest, EventToControl>,
    timeout: Duration,
    pending: Vec<Pending>,
    stop: bool,
    gone: bool,
    /// A freeze was requested: nothing may be changed.
    frozen: bool,
    /// Events that were received and not taken yet.
    events: Vec<String>,
    /// Sockets were closed since the last [`unlistened`](Self::unlistened).
    unlistening: bool,
}

/// Makes a function that accepts one kind of answer, and returns its value.
macro_rules! accept {
    ($about:ident($answer:pat) => $value:expr) => {
        |(event, fds): Message| match event {
            EventToControl::$about($answer) => Ok($value),
            other => Err((other, fds)),
        }
    };
}

impl SupervisorLink {
    /// Creates the link from the supervision link.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn new(
        link: Link<ControlRequest, EventToControl>,
        timeout: Duration,
    ) -> io::Result<Self> {
        Ok(Self {
            line: Line::new(link)?,
            timeout,
            pending: Vec::new(),
            stop: false,
            gone: false,
            frozen: false,
            events: Vec::new(),
            unlistening: false,
        })
    }

    fn send(&mut self, request: impl Into<ControlRequest>) -> io::Result<()> {
        self.line.send(request.into(), Vec::new())
    }

    /// Sends a request; the future completes with the event that `accept` takes. Replies to earlier
    /// requests, which have timed out, are discarded.
    fn request<
        R: Into<ControlRequest>,
        T: 'static,
        A: Fn(Message) -> Result<T, Message> + 'static,
    >(
        &mut self,
        request: R,
        accept: A,
    ) -> impl Future<Output = io::Result<T>> + use<R, T, A> {
        let (reply, receiver) = oneshot::channel();
        let mut reply = Some(reply);
        let offer = move |message| match accept(message) {
            Ok(answer) => {
                // Sending fails when nobody waits any more.
                if let Some(reply) = reply.take() {
                    drop(reply.send(answer));
                }
                None
            }
            Err(other) => Some(other),
        };
        let deadline = Instant::now() + self.timeout;
        let offer = Box::new(offer);
        let sent = self.send(request).map(|()| {
            self.pending.push(Pending { deadline, offer });
        });
        async move {
            sent?;
            reply_of("supervisor", receiver, deadline).await
        }
    }

    /// Reports that everything desired is in place.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn ready(&mut self) -> io::Result<()> {
        self.send(ControlRequest::Ready)
    }

    /// Requests the events that only the supervisor knows, once. `had`: those of the last reply
    /// were published.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn request_events(&mut self, had: bool) -> io::Result<()> {
        self.send(ControlRequest::Events { had })
    }

    /// Returns the events received since the last call.
    pub(in crate::engine) fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// Requests a listening socket at `path`.
    ///
    /// # Errors
    /// The reason of a refusal.
    pub(in crate::engine) fn listen(
        &mut self,
        path: &str,
    ) -> impl Future<Output = io::Result<ForeignFd>> + use<> {
        let reply = socket_path(path).map(|path| {
            let request = SocketRequest::Listen { path: path.clone() };
            self.request(request, move |(event, mut fds)| match event {
                EventToControl::Sockets(SocketAnswer::Listening { path: of, error })
                    if of == path =>
                {
                    Ok(match error {
                        Some(reason) => Err(io::Error::new(io::ErrorKind::AddrInUse, reason)),
                        None => fds.pop().ok_or_else(no_socket),
                    })
                }
                other => Err((other, fds)),
            })
        });
        async move { reply?.await? }
    }

    /// Requests a listening socket of this type at `path` with this owner.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time; the inner error is the reason of its
    /// refusal.
    pub(in crate::engine) fn listen_as(
        &mut self,
        path: &str,
        owner: SocketOwner,
        socket_type: SocketType,
    ) -> impl Future<Output = io::Result<Listening>> + use<> {
        let reply = socket_path(path).map(|path| {
            let request = SocketRequest::ListenFor {
                path: path.clone(),
                owner,
                socket_type,
            };
            self.request(request, move |(event, mut fds)| match event {
                EventToControl::Sockets(SocketAnswer::ListeningFor { path: of, outcome })
                    if of == path =>
                {
                    Ok(match outcome {
                        Ok(peer) => fds
                            .pop()
                            .map(|socket| Ok((peer, socket)))
                            .ok_or_else(no_socket),
                        Err(no) => Ok(Err(no)),
                    })
                }
                other => Err((other, fds)),
            })
        });
        async move { reply?.await? }
    }

    /// Removes a listening socket. It is gone after [`unlistened`](Self::unlistened).
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn unlisten(&mut self, path: &str) -> io::Result<()> {
        let path = socket_path(path)?;
        self.unlistening = true;
        self.send(SocketRequest::Unlisten { path })
    }

    /// Returns a future that completes when the sockets of all [`unlisten`](Self::unlisten) before
    /// are gone; `None` without any. The supervisor handles requests in order, so the reply to a
    /// later one shows that.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn unlistened(
        &mut self,
    ) -> Option<impl Future<Output = io::Result<()>> + use<>> {
        let dirs = std::mem::take(&mut self.unlistening).then(|| self.socket_dirs());
        dirs.map(|dirs| async move { dirs.await.map(drop) })
    }

    /// Starts these drivers and ends all others.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time; the inner error is the first port whose
    /// interface cannot be opened, and the reason.
    pub(in crate::engine) fn drivers(
        &mut self,
        desired: Vec<DriverSpec>,
    ) -> impl Future<Output = io::Result<Result<(), (String, String)>>> + use<> {
        let done = accept!(Drivers(PortDriverAnswer::Set { error }) => error.map_or(Ok(()), Err));
        self.request(PortDriverRequest::Set(desired), done)
    }

    /// Sends the sockets of the front ends to which the switch may connect, by port.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time; the inner error is the reason of its
    /// refusal.
    pub(in crate::engine) fn dials(
        &mut self,
        all: Dials,
    ) -> impl Future<Output = io::Result<Result<(), String>>> + use<> {
        let done = accept!(Sockets(SocketAnswer::Dials { error }) => error.map_or(Ok(()), Err));
        let all = all.into_iter();
        let all = all.map(|(port, path)| Ok((port, socket_path(&path)?)));
        let reply = all
            .collect::<io::Result<_>>()
            .map(|all| self.request(SocketRequest::Dials(all), done));
        async move { reply?.await }
    }

    /// Requests the directories in which sockets may be.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn socket_dirs(
        &mut self,
    ) -> impl Future<Output = io::Result<Vec<SocketDir>>> + use<> {
        let dirs = accept!(Sockets(SocketAnswer::Dirs(dirs)) => dirs);
        self.request(SocketRequest::Dirs, dirs)
    }

    /// Requests the places where forwards may listen.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn forward_reach(
        &mut self,
    ) -> impl Future<Output = io::Result<ForwardReach>> + use<> {
        let reach = accept!(Users(UserPortAnswer::ForwardReach(reach)) => reach);
        self.request(UserPortRequest::ForwardReach, reach)
    }

    /// Requests the sockets that more than one user can connect to, with these users; none: all.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn shared_sockets(
        &mut self,
    ) -> impl Future<Output = io::Result<BTreeMap<String, Vec<String>>>> + use<> {
        let shared = accept!(Sockets(SocketAnswer::Shared(shared)) => shared);
        let shared = self.request(SocketRequest::Shared, shared);
        async move { Ok(shared.await?.into_iter().collect()) }
    }

    /// Requests the states of the drivers.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn driver_states(
        &mut self,
    ) -> impl Future<Output = io::Result<Vec<DriverState>>> + use<> {
        let states = accept!(Drivers(PortDriverAnswer::States(states)) => states);
        self.request(PortDriverRequest::States, states)
    }

    /// Requests a part of a table of the user port of this name.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time; the inner error is the reason why the
    /// driver has not answered.
    pub(in crate::engine) fn user_page(
        &mut self,
        port: &str,
        question: UserQuestion,
    ) -> impl Future<Output = io::Result<Result<UserPage, String>>> + use<> {
        let name = port.parse::<PortName>().map_err(io::Error::other);
        let port = port.to_owned();
        let asked = name.map(|port| UserPortRequest::Table { port, question });
        // Answers to equal questions are equal, too.
        let answered = asked.map(|request| {
            self.request(request, move |(event, fds)| match event {
                EventToControl::Users(UserPortAnswer::Page {
                    port: of,
                    question: answered,
                    page,
                }) if of == port && answered == question => Ok(page),
                other => Err((other, fds)),
            })
        });
        async move { answered?.await }
    }

    /// Requests the speeds of interfaces, in bits a second, by the names of ports.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn interface_speeds(
        &mut self,
    ) -> impl Future<Output = io::Result<Vec<(String, u64)>>> + use<> {
        let speeds = accept!(Drivers(PortDriverAnswer::Speeds(speeds)) => speeds);
        self.request(PortDriverRequest::Speeds, speeds)
    }

    /// Requests the table of a port's prefilter.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time; the inner error is the reason why there is
    /// none.
    pub(in crate::engine) fn prefilter(
        &mut self,
        port: &str,
    ) -> impl Future<Output = io::Result<Result<OwnedFd, String>>> + use<> {
        let name = port.parse::<PortName>().map_err(io::Error::other);
        let port = port.to_owned();
        let reply = name.map(|name| {
            self.request(
                PortDriverRequest::Prefilter(name),
                move |(event, mut fds)| match event {
                    EventToControl::Drivers(PortDriverAnswer::Prefilter { port: of, table })
                        if of == port =>
                    {
                        Ok(table.map(|()| fds.pop()))
                    }
                    other => Err((other, fds)),
                },
            )
        });
        async move {
            let no_map = || io::Error::other("the supervisor sent no table");
            Ok(match reply?.await? {
                Ok(map) => Ok(map.ok_or_else(no_map)?.vouch()),
                Err(why) => Err(why),
            })
        }
    }

    /// Requests the processes.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn processes(
        &mut self,
    ) -> impl Future<Output = io::Result<Vec<ProcessInfo>>> + use<> {
        let list = accept!(Processes(list) => list);
        self.request(ControlRequest::Processes, list)
    }

    /// Requests the CPU time and memory of the processes.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn process_usage(
        &mut self,
    ) -> impl Future<Output = io::Result<Vec<ProcessUsage>>> + use<> {
        let list = accept!(ProcessUsage(list) => list);
        self.request(ControlRequest::ProcessUsage, list)
    }

    /// Sends the names of vCPU threads, by port.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn watch_guests(
        &mut self,
        threads: Vec<(PortId, String)>,
    ) -> io::Result<()> {
        self.send(GuestRequest::Watch(threads))
    }

    /// Sends the bytes that may wait in the interfaces of scheduled ports.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn set_rooms(&mut self, rooms: Vec<(String, u64)>) -> io::Result<()> {
        self.send(PortDriverRequest::Rooms(named(rooms)?))
    }

    /// Sends the networks of user ports, by the names of ports.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn set_user_networks(
        &mut self,
        networks: Vec<(String, UserNetwork)>,
    ) -> io::Result<()> {
        self.send(UserPortRequest::Networks(named(networks)?))
    }

    /// Requests the table of connections, in a file of this length. When the reply comes, the
    /// switch has it.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time; the inner error is the reason of its
    /// refusal.
    pub(in crate::engine) fn connection_table(
        &mut self,
        bytes: u64,
    ) -> impl Future<Output = io::Result<Result<OwnedFd, String>>> + use<> {
        let reply = self.request(
            ControlRequest::ConnectionTable { bytes },
            |(event, mut fds)| match event {
                EventToControl::ConnectionTable(made) => Ok(made.map(|()| fds.pop())),
                other => Err((other, fds)),
            },
        );
        async move {
            let no_file = || io::Error::other("the supervisor sent no file");
            Ok(match reply.await? {
                Ok(file) => Ok(file.ok_or_else(no_file)?.vouch()),
                Err(why) => Err(why),
            })
        }
    }

    /// Requests the report on vCPU states.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn watched_guests(
        &mut self,
    ) -> impl Future<Output = io::Result<WatchedGuests>> + use<> {
        let watched = accept!(Guests(GuestAnswer::Watched(watched)) => watched);
        self.request(GuestRequest::Watched, watched)
    }

    /// Requests the report on vCPU threads.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn found_vcpus(
        &mut self,
    ) -> impl Future<Output = io::Result<FoundVcpus>> + use<> {
        let found = accept!(Guests(GuestAnswer::FoundVcpus(found)) => found);
        self.request(GuestRequest::FoundVcpus, found)
    }

    /// Reads what the supervisor has sent.
    pub(in crate::engine) fn receive(&mut self) {
        let now = Instant::now();
        self.pending.retain(|pending| pending.deadline > now);
        loop {
            let sorted = match self.line.recv() {
                Ok(LinkEvent::Nothing) => return,
                Ok(LinkEvent::Message(event, fds)) => self.sort((event, fds)),
                Ok(LinkEvent::Closed) => Err(closed("supervisor")),
                Err(error) => Err(error),
            };
            if sorted.is_err() {
                return self.end();
            }
        }
    }

    /// Handles an unsolicited event, or completes the request that the event replies to.
    fn sort(&mut self, (event, fds): Message) -> io::Result<()> {
        match event {
            EventToControl::Stop => self.stop = true,
            EventToControl::Freeze => self.frozen = true,
            EventToControl::Thaw => self.frozen = false,
            EventToControl::Ping => {
                self.line.send(ControlRequest::Heartbeat, Vec::new())?;
            }
            EventToControl::Events(all) => self.events.extend(all),
            reply => {
                let mut message = Some((reply, fds));
                let mut pending = self.pending.iter_mut();
                let taken = pending.position(|pending| {
                    message = message.take().and_then(&mut pending.offer);
                    message.is_none()
                });
                if let Some(at) = taken {
                    self.pending.remove(at);
                }
            }
        }
        Ok(())
    }

    /// Nothing more arrives: the requests have failed.
    fn end(&mut self) {
        self.gone = true;
        self.pending.clear();
    }

    /// Returns whether nothing may be changed: another control takes over, or still serves.
    pub(in crate::engine) fn is_freezing(&self) -> bool {
        self.frozen
    }

    /// Sets the state that the supervisor sent at the start.
    pub(in crate::engine) fn start_frozen(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// Reports that nothing is changed any more.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn report_frozen(&mut self) -> io::Result<()> {
        self.send(ControlRequest::Frozen)
    }

    /// Returns whether the supervisor has requested a stop, or is gone.
    pub(in crate::engine) fn is_stopping(&self) -> bool {
        self.stop || self.gone
    }

    /// Returns whether nothing arrives any more.
    pub(in crate::engine) fn is_gone(&self) -> bool {
        self.gone
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.line.unsent.is_empty()
    }

    pub(super) fn flush(&mut self) {
        if self.line.flush().is_err() {
            self.end();
        }
    }
}

/// Returns a checked path of a socket.
fn socket_path(path: &str) -> io::Result<SocketPath> {
    path.parse().map_err(io::Error::other)
}

/// Returns values with checked names of ports.
fn named<T>(all: Vec<(String, T)>) -> io::Result<Vec<(PortName, T)>> {
    let name = |name: String| PortName::try_from(name).map_err(io::Error::other);
    all.into_iter()
        .map(|(text, value)| Ok((name(text)?, value)))
        .collect()
}

fn no_socket() -> io::Error {
    io::Error::other("the supervisor sent no socket")
}

impl AsFd for SupervisorLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}
