//! The link to the supervisor. A supervisor that is gone is as one that requests a stop.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use channel::driving::{Calls, DriverSpec, DriverState, UserNetwork};
use channel::forwards::ForwardReach;
use channel::link::{Link, Received};
use channel::names::PortName;
use channel::owners::{NoSocket, SocketOwner};
use channel::sockets::SocketType;
use channel::supervision::{
    FoundVcpus, GuestWatch, ProcessInfo, ProcessUsage, SocketDir, SupervisorEvent,
    SupervisorRequest, WatchedGuests,
};
use channel::user_reports::{UserFigures, UserPage, UserQuestion};
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
type Message = (SupervisorEvent, Vec<ForeignFd>);

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

/// The link to the supervisor. Only [`SupervisorEvent::Stop`], [`SupervisorEvent::Freeze`],
/// [`SupervisorEvent::Thaw`], [`SupervisorEvent::Ping`] and [`SupervisorEvent::Events`] arrive
/// without a request.
#[derive(Debug)]
pub(in crate::engine) struct SupervisorLink {
    line: Line<SupervisorRequest, SupervisorEvent>,
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

/// Makes a function that accepts one kind of event, and returns its value.
macro_rules! accept {
    ($event:pat => $value:expr) => {
        |(event, fds): Message| match event {
            $event => Ok($value),
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
        link: Link<SupervisorRequest, SupervisorEvent>,
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

    fn send(&mut self, request: SupervisorRequest) -> io::Result<()> {
        self.line.send(request, Vec::new())
    }

    /// Sends a request; the future completes with the event that `accept` takes. Replies to earlier
    /// requests, which have timed out, are discarded.
    fn request<T: 'static, A: Fn(Message) -> Result<T, Message> + 'static>(
        &mut self,
        request: SupervisorRequest,
        accept: A,
    ) -> impl Future<Output = io::Result<T>> + use<T, A> {
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
        self.send(SupervisorRequest::Ready)
    }

    /// Requests the events that only the supervisor knows, once. `had`: those of the last reply
    /// were published.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn request_events(&mut self, had: bool) -> io::Result<()> {
        self.send(SupervisorRequest::Events { had })
    }

    /// Returns the events received since the last call.
    pub(in crate::engine) fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// Reports that control ends because the switch is gone.
    pub(in crate::engine) fn report_switch_gone(&mut self) {
        // If the supervisor is gone, the report has no receiver.
        let _ = self.send(SupervisorRequest::SwitchGone);
    }

    /// Requests a listening socket at `path`.
    ///
    /// # Errors
    /// The reason of a refusal.
    pub(in crate::engine) fn listen(
        &mut self,
        path: &str,
    ) -> impl Future<Output = io::Result<ForeignFd>> + use<> {
        let path = path.to_owned();
        let request = SupervisorRequest::Listen { path: path.clone() };
        let reply = self.request(request, move |(event, mut fds)| match event {
            SupervisorEvent::Listening { path: of, error } if of == path => Ok(match error {
                Some(reason) => Err(io::Error::new(io::ErrorKind::AddrInUse, reason)),
                None => fds.pop().ok_or_else(no_socket),
            }),
            other => Err((other, fds)),
        });
        async move { reply.await? }
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
        let path = path.to_owned();
        let request = match socket_type {
            // The supervisor of an upgrade that failed may be one that knows no other type.
            SocketType::Stream => SupervisorRequest::ListenFor {
                path: path.clone(),
                owner,
            },
            SocketType::SeqPacket => SupervisorRequest::ListenAs {
                path: path.clone(),
                owner,
                socket_type,
            },
        };
        let reply = self.request(request, move |(event, mut fds)| match event {
            SupervisorEvent::ListeningFor { path: of, outcome } if of == path => {
                Ok(match outcome {
                    Ok(peer) => fds
                        .pop()
                        .map(|socket| Ok((peer, socket)))
                        .ok_or_else(no_socket),
                    Err(no) => Ok(Err(no)),
                })
            }
            other => Err((other, fds)),
        });
        async move { reply.await? }
    }

    /// Removes a listening socket. It is gone after [`unlistened`](Self::unlistened).
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn unlisten(&mut self, path: &str) -> io::Result<()> {
        let path = path.to_owned();
        self.unlistening = true;
        self.send(SupervisorRequest::Unlisten { path })
    }

    /// Returns a future that completes when the sockets of all [`unlisten`](Self::unlisten) before
    /// are gone; `None` without any. The supervisor handles requests in order, so the reply to a
    /// later one shows that; this one has a reply in every build.
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
        let done = accept!(SupervisorEvent::Drivers { error } => error.map_or(Ok(()), Err));
        self.request(SupervisorRequest::Drivers(desired), done)
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
        let done = accept!(SupervisorEvent::Dials { error } => error.map_or(Ok(()), Err));
        self.request(SupervisorRequest::Dials(all), done)
    }

    /// Requests the directories in which sockets may be.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn socket_dirs(
        &mut self,
    ) -> impl Future<Output = io::Result<Vec<SocketDir>>> + use<> {
        let dirs = accept!(SupervisorEvent::SocketDirs(dirs) => dirs);
        self.request(SupervisorRequest::SocketDirs, dirs)
    }

    /// Requests the places where forwards may listen.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn forward_reach(
        &mut self,
    ) -> impl Future<Output = io::Result<ForwardReach>> + use<> {
        let reach = accept!(SupervisorEvent::ForwardReach(reach) => reach);
        self.request(SupervisorRequest::ForwardReach, reach)
    }

    /// Requests the sockets that more than one user can connect to, with these users; none: all.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn shared_sockets(
        &mut self,
    ) -> impl Future<Output = io::Result<BTreeMap<String, Vec<String>>>> + use<> {
        let shared = accept!(SupervisorEvent::SharedSockets(shared) => shared);
        let shared = self.request(SupervisorRequest::SharedSockets, shared);
        async move { Ok(shared.await?.into_iter().collect()) }
    }

    /// Requests the states of the drivers; if some are `weighted`, which of these CPU weights have
    /// no effect; and with user ports their figures.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn driver_states(
        &mut self,
        weighted: bool,
        has_users: bool,
    ) -> impl Future<Output = io::Result<Vec<DriverState>>> + use<> {
        let states = accept!(SupervisorEvent::DriverStates(states) => states);
        let states = self.request(SupervisorRequest::DriverStates, states);
        let addresses = accept!(SupervisorEvent::InterfaceAddresses(addresses) => addresses);
        let addresses = self.request(SupervisorRequest::InterfaceAddresses, addresses);
        let calls = accept!(SupervisorEvent::DriverCalls(calls) => calls);
        let calls = self.request(SupervisorRequest::DriverCalls, calls);
        let drops = accept!(SupervisorEvent::KernelDrops(drops) => drops);
        let drops = self.request(SupervisorRequest::KernelDrops, drops);
        // The supervisor of an upgrade that failed may be one without weights.
        let errors = weighted.then(|| {
            let errors = accept!(SupervisorEvent::CpuWeightErrors(errors) => errors);
            self.request(SupervisorRequest::CpuWeightErrors, errors)
        });
        let users = has_users.then(|| self.user_figures());
        async move {
            let mut states = states.await?;
            let addresses: BTreeMap<String, [u8; 6]> = addresses.await?.into_iter().collect();
            let calls: BTreeMap<String, [Calls; 2]> = calls.await?.into_iter().collect();
            let drops: BTreeMap<String, u64> = drops.await?.into_iter().collect();
            let errors = match errors {
                Some(errors) => errors.await?,
                None => Vec::new(),
            };
            let mut errors: BTreeMap<String, String> = errors.into_iter().collect();
            let users = match users {
                Some(users) => users.await?,
                None => BTreeMap::new(),
            };
            for state in &mut states {
                state.mac = addresses.get(&state.name).copied();
                state.cpu_weight_error = errors.remove(&state.name);
                state.user = users.get(&state.name).copied();
                let calls = calls.get(&state.name).copied().unwrap_or_default();
                [state.counters.received, state.counters.sent] = calls;
                state.counters.dropped_by_kernel = drops.get(&state.name).copied();
            }
            Ok(states)
        }
    }

    /// Requests the figures of user ports, by the names of ports.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn user_figures(
        &mut self,
    ) -> impl Future<Output = io::Result<BTreeMap<String, UserFigures>>> + use<> {
        let users = accept!(SupervisorEvent::UserFigures(users) => users);
        let users = self.request(SupervisorRequest::AllUserFigures, users);
        async move { Ok(users.await?.into_iter().collect()) }
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
        let asked = name.map(|port| SupervisorRequest::UserTable { port, question });
        // Answers to equal questions are equal, too.
        let answered = asked.map(|request| {
            self.request(request, move |(event, fds)| match event {
                SupervisorEvent::UserPage {
                    port: of,
                    question: answered,
                    page,
                } if of == port && answered == question => Ok(page),
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
        let speeds = accept!(SupervisorEvent::InterfaceSpeeds(speeds) => speeds);
        self.request(SupervisorRequest::InterfaceSpeeds, speeds)
    }

    /// Requests the processes.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn processes(
        &mut self,
    ) -> impl Future<Output = io::Result<Vec<ProcessInfo>>> + use<> {
        let list = accept!(SupervisorEvent::Processes(list) => list);
        self.request(SupervisorRequest::Processes, list)
    }

    /// Requests the CPU time and memory of the processes.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn process_usage(
        &mut self,
    ) -> impl Future<Output = io::Result<Vec<ProcessUsage>>> + use<> {
        let list = accept!(SupervisorEvent::ProcessUsage(list) => list);
        self.request(SupervisorRequest::ProcessUsage, list)
    }

    /// Sends the configuration of vCPU states.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn watch_guests(&mut self, watch: GuestWatch) -> io::Result<()> {
        self.send(SupervisorRequest::WatchGuests(watch))
    }

    /// Sends the bytes that may wait in the interfaces of scheduled ports.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn set_rooms(&mut self, rooms: Vec<(String, u64)>) -> io::Result<()> {
        self.send(SupervisorRequest::Rooms(named(rooms)?))
    }

    /// Sends the CPU weights of drivers, by the names of ports.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn set_cpu_weights(
        &mut self,
        weights: Vec<(String, u16)>,
    ) -> io::Result<()> {
        self.send(SupervisorRequest::CpuWeights(named(weights)?))
    }

    /// Sends the networks of user ports, by the names of ports.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(in crate::engine) fn set_user_networks(
        &mut self,
        networks: Vec<(String, UserNetwork)>,
    ) -> io::Result<()> {
        self.send(SupervisorRequest::UserNetworks(named(networks)?))
    }

    /// Requests the report on vCPU states.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn watched_guests(
        &mut self,
    ) -> impl Future<Output = io::Result<WatchedGuests>> + use<> {
        let watched = accept!(SupervisorEvent::WatchedGuests(watched) => watched);
        self.request(SupervisorRequest::WatchedGuests, watched)
    }

    /// Requests the report on vCPU threads.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(in crate::engine) fn found_vcpus(
        &mut self,
    ) -> impl Future<Output = io::Result<FoundVcpus>> + use<> {
        let found = accept!(SupervisorEvent::FoundVcpus(found) => found);
        self.request(SupervisorRequest::FoundVcpus, found)
    }

    /// Reads what the supervisor has sent.
    pub(in crate::engine) fn receive(&mut self) {
        let now = Instant::now();
        self.pending.retain(|pending| pending.deadline > now);
        loop {
            let sorted = match self.line.recv() {
                Ok(Received::Nothing) => return,
                Ok(Received::Message(event, fds)) => self.sort((event, fds)),
                Ok(Received::Closed) => Err(closed("supervisor")),
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
            SupervisorEvent::Stop => self.stop = true,
            SupervisorEvent::Freeze => self.frozen = true,
            SupervisorEvent::Thaw => self.frozen = false,
            SupervisorEvent::Ping => {
                self.line.send(SupervisorRequest::Heartbeat, Vec::new())?;
            }
            SupervisorEvent::Events(all) => self.events.extend(all),
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
        self.send(SupervisorRequest::Frozen)
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
