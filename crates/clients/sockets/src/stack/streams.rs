//! TCP.

use std::collections::VecDeque;
use std::net::SocketAddr;

use libc::{POLLHUP, POLLIN, POLLOUT, POLLRDHUP};
use rustix::io::Errno;
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, RecvError, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{IpEndpoint, IpListenEndpoint};

use super::{Body, Family, Id, Options, ReceivedBytes, Slot, Stack};
use crate::device::Wire;

/// Sockets of the stack that wait for a SYN, for each listening one: more SYNs than these are not
/// taken between two looks.
const WAITING: usize = super::FRAMES;
/// Connections that wait to be accepted, at most.
const MOST_BACKLOG: usize = 128;
/// Time for the answer to a SYN (tcp(7), `tcp_syn_retries`), for that to a SYN of another, and for
/// an acknowledgement (`tcp_retries2`).
const SYN_TIME: Duration = Duration::from_secs(127);
const OPENING_TIME: Duration = Duration::from_secs(30);
const ANSWER_TIME: Duration = Duration::from_secs(924);
/// Maximum time until a closed connection ends.
const END_TIME: Duration = Duration::from_secs(60);
/// A connection that sends asks for its neighbour as often.
const ASKS: Duration = Duration::from_secs(30);
/// Connections that are closed and wait to end, at most: the oldest is forgotten.
const MOST_ORPHANS: usize = 128;

/// Bytes on their way beyond which small segments wait to become larger ones, also with
/// `TCP_NODELAY` (as Linux has it, tcp(7) and `tcp_autocorking`): a queue of the switch holds few
/// frames, of whatever length. With two segments of Ethernet more, there is always one to send, or
/// an acknowledgement that is not delayed.
const CORK: usize = 4096;

/// A TCP socket.
#[derive(Debug)]
pub(super) enum Stream {
    Idle,
    Listening(Listener),
    Open(Connection),
}

#[derive(Debug)]
pub(super) struct Listener {
    endpoint: IpListenEndpoint,
    backlog: usize,
    /// Sockets of the stack that wait for a SYN, or are half open.
    sockets: Vec<SocketHandle>,
    /// Connections that wait to be accepted.
    ready: VecDeque<SocketHandle>,
}

/// The cause of the end of a connection: one of the two things that are handled in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// Frames of peers.
    Peer,
    /// The time.
    Time,
}

#[derive(Debug)]
pub(super) struct Connection {
    handle: SocketHandle,
    /// Time of the next question for its neighbour.
    asks: Instant,
    /// It was not established yet.
    is_opening: bool,
    /// When it was looked at last.
    state: State,
    /// Shut down for reading.
    is_shut: bool,
}

/// Sockets of the stack that programs have closed.
#[derive(Debug, Default)]
pub(super) struct Orphans(Vec<(SocketHandle, Instant)>);

fn of<'a>(sockets: &'a SocketSet<'static>, handle: SocketHandle) -> &'a tcp::Socket<'static> {
    sockets.get(handle)
}

fn of_mut<'a>(
    sockets: &'a mut SocketSet<'static>,
    handle: SocketHandle,
) -> &'a mut tcp::Socket<'static> {
    sockets.get_mut(handle)
}

/// Whether a connection was established.
fn is_established(state: State) -> bool {
    use State::{Closed, Listen, SynReceived, SynSent};
    !matches!(state, Closed | Listen | SynReceived | SynSent)
}

fn micros(time: std::time::Duration) -> Duration {
    Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// Time for the answer to a SYN.
fn syn_time(options: &Options) -> Duration {
    let limit = options.user_timeout.or(options.syn_time);
    limit.map_or(SYN_TIME, micros)
}

/// Time that an acknowledgement waits for data to go with, or for another one (RFC 9293, section
/// 3.8.6.3).
const ACK_DELAY: Duration = Duration::from_millis(10);

/// Sets how long the peer may say nothing. The stack counts that of idle connections too, which may
/// last as long as they like.
fn limit_time(socket: &mut tcp::Socket<'static>, options: &Options) {
    let of_user = options.user_timeout.map(micros);
    let expects = socket.send_queue() > 0;
    let answer = expects.then(|| of_user.unwrap_or(ANSWER_TIME));
    let idle = options.keep_alive;
    let idle = idle.map(|idle| of_user.unwrap_or_else(|| micros(idle.idle + idle.answer)));
    let limit = match socket.state() {
        State::SynSent => Some(syn_time(options)),
        _ => [answer, idle].into_iter().flatten().min(),
    };
    socket.set_timeout(limit);
}

/// Sets whether small segments wait for an acknowledgement (RFC 9293, section 3.7.4).
fn cork(socket: &mut tcp::Socket<'static>, options: &Options) {
    let waits = !options.no_delay || options.cork || socket.send_queue() > CORK;
    socket.set_nagle_enabled(waits);
}

/// Applies options to a socket of the stack.
pub(super) fn apply(sockets: &mut SocketSet<'static>, handle: SocketHandle, options: &Options) {
    let socket = of_mut(sockets, handle);
    cork(socket, options);
    socket.set_keep_alive(options.keep_alive.map(|idle| micros(idle.idle)));
    socket.set_ack_delay((!options.quick_ack).then_some(ACK_DELAY));
    limit_time(socket, options);
    socket.set_hop_limit((options.hop_limit > 0).then_some(options.hop_limit));
}

impl Orphans {
    fn add(&mut self, sockets: &mut SocketSet<'static>, handle: SocketHandle, now: Instant) {
        self.0.push((handle, now + END_TIME));
        if self.0.len() > MOST_ORPHANS {
            let (oldest, _) = self.0.remove(0);
            drop(sockets.remove(oldest));
        }
    }

    /// Forgets those that have ended.
    fn look_after(&mut self, sockets: &mut SocketSet<'static>, now: Instant) {
        self.0.retain(|(handle, until)| {
            let socket = of_mut(sockets, *handle);
            // A closed one with an endpoint has a reset to send yet.
            let has_ended = !socket.is_open() && socket.remote_endpoint().is_none();
            if now >= *until && socket.is_open() {
                socket.abort();
            }
            let is_over = has_ended || now >= *until + END_TIME;
            if is_over {
                drop(sockets.remove(*handle));
            }
            !is_over
        });
    }

    /// Whether all have sent what they had, and their peers know.
    pub(super) fn are_done(&self, sockets: &SocketSet<'static>) -> bool {
        self.0.iter().all(|(handle, _)| {
            let socket = of(sockets, *handle);
            let is_sent = matches!(socket.state(), State::FinWait2 | State::TimeWait);
            is_sent || !socket.is_open() && socket.remote_endpoint().is_none()
        })
    }

    /// Whether there are none.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one has this port.
    pub(super) fn have(&self, sockets: &SocketSet<'static>, port: u16) -> bool {
        self.0.iter().any(|(handle, _)| {
            let local = of(sockets, *handle).local_endpoint();
            local.is_some_and(|local| local.port == port)
        })
    }
}

/// Where a socket of the stack waits for SYNs: at its endpoint, or where it has one family only, at
/// each address of that.
fn places(
    interface: &Interface,
    endpoint: IpListenEndpoint,
    only: Option<Family>,
) -> impl Iterator<Item = IpListenEndpoint> + Clone {
    let only = only.filter(|_| endpoint.addr.is_none());
    let addresses = interface.ip_addrs().iter().map(|own| own.address());
    let of_family = addresses.filter(move |own| only == Some(own.version()));
    let of_family = of_family.map(move |own| IpListenEndpoint {
        addr: Some(own),
        port: endpoint.port,
    });
    only.is_none()
        .then_some(endpoint)
        .into_iter()
        .chain(of_family)
}

impl Listener {
    /// Takes connections that are established now.
    fn take_established(&mut self, sockets: &mut SocketSet<'static>) -> Vec<SocketHandle> {
        let mut taken = Vec::new();
        self.sockets.retain(|handle| {
            let socket = of_mut(sockets, *handle);
            let is_over = !socket.is_open();
            if is_over {
                drop(sockets.remove(*handle));
            } else if is_established(socket.state()) {
                // It may wait to be accepted.
                socket.set_timeout(None);
                taken.push(*handle);
                return false;
            }
            !is_over
        });
        self.ready.retain(|handle| {
            let is_open = of(sockets, *handle).is_open();
            if !is_open {
                drop(sockets.remove(*handle));
            }
            is_open
        });
        taken
    }

    /// Adds a connection that waits to be accepted.
    pub(super) fn add(&mut self, connection: SocketHandle) {
        self.ready.push_back(connection);
    }

    /// Sees to it that enough sockets wait for a SYN at these places, and none at others.
    fn fill(
        &mut self,
        sockets: &mut SocketSet<'static>,
        places: impl Iterator<Item = IpListenEndpoint> + Clone,
        make: impl Fn() -> tcp::Socket<'static>,
    ) {
        self.sockets.retain(|handle| {
            let socket = of(sockets, *handle);
            let place = socket.listen_endpoint();
            let is_left = socket.is_listening() && !places.clone().any(|other| other == place);
            if is_left {
                drop(sockets.remove(*handle));
            }
            !is_left
        });
        let is_listening = |handle: &&SocketHandle| of(sockets, **handle).is_listening();
        let listening = self.sockets.iter().filter(is_listening).count();
        let pending = self.sockets.len() - listening + self.ready.len();
        let room = self.backlog.saturating_sub(pending).min(WAITING);
        for place in places {
            let is_here = |handle: &&SocketHandle| {
                let socket = of(sockets, **handle);
                socket.is_listening() && socket.listen_endpoint() == place
            };
            let waiting = self.sockets.iter().filter(is_here).count();
            for _ in waiting..room {
                let mut socket = make();
                socket.set_timeout(Some(OPENING_TIME));
                // The port is not 0, and the socket is closed: it can listen.
                let _ = socket.listen(place);
                self.sockets.push(sockets.add(socket));
            }
        }
    }
}

impl Connection {
    fn events(&self, sockets: &SocketSet<'static>) -> i16 {
        let socket = of(sockets, self.handle);
        if self.is_opening {
            return 0;
        }
        let mut events = 0;
        let has_ended = !socket.may_recv() || self.is_shut;
        if socket.can_recv() || has_ended {
            events |= POLLIN;
        }
        let room = socket.send_capacity() - socket.send_queue();
        if !socket.may_send() || room >= socket.send_capacity() / 4 {
            events |= POLLOUT;
        }
        let peer_has_ended = !matches!(
            socket.state(),
            State::Established | State::FinWait1 | State::FinWait2
        );
        if peer_has_ended || self.is_shut {
            events |= POLLRDHUP;
        }
        if peer_has_ended && !socket.may_send() {
            events |= POLLHUP;
        }
        events
    }
}

impl Stream {
    /// The state as Linux numbers it (`enum` of `net/tcp_states.h`).
    pub(super) fn number(&self, sockets: &SocketSet<'static>) -> u8 {
        const LISTEN: u8 = 10;
        const CLOSE: u8 = 7;
        match self {
            Self::Idle => CLOSE,
            Self::Listening(_) => LISTEN,
            Self::Open(connection) => match of(sockets, connection.handle).state() {
                State::Established => 1,
                State::SynSent => 2,
                State::SynReceived => 3,
                State::FinWait1 => 4,
                State::FinWait2 => 5,
                State::TimeWait => 6,
                State::Closed => CLOSE,
                State::CloseWait => 8,
                State::LastAck => 9,
                State::Listen => LISTEN,
                State::Closing => 11,
            },
        }
    }

    /// The socket of the stack that is connected, or will be.
    pub(super) fn connection(&self) -> Option<SocketHandle> {
        match self {
            Self::Open(connection) => Some(connection.handle),
            _ => None,
        }
    }

    pub(super) fn queues(&self, sockets: &SocketSet<'static>) -> (usize, usize) {
        match self {
            Self::Open(connection) => {
                let socket = of(sockets, connection.handle);
                (socket.recv_queue(), socket.send_queue())
            }
            Self::Listening(listener) => (listener.ready.len(), 0),
            Self::Idle => (0, 0),
        }
    }

    pub(super) fn events(&self, sockets: &SocketSet<'static>) -> i16 {
        match self {
            Self::Idle => POLLOUT | POLLHUP,
            Self::Listening(listener) if !listener.ready.is_empty() => POLLIN,
            Self::Listening(_) => 0,
            Self::Open(connection) => connection.events(sockets),
        }
    }

    pub(super) fn local(&self, sockets: &SocketSet<'static>) -> Option<IpEndpoint> {
        of(sockets, self.connection()?).local_endpoint()
    }

    pub(super) fn peer(&self, sockets: &SocketSet<'static>) -> Option<IpEndpoint> {
        let Self::Open(connection) = self else {
            return None;
        };
        let peer = of(sockets, connection.handle).remote_endpoint();
        peer.filter(|_| !connection.is_opening)
    }
}

impl<W: Wire> Stack<W> {
    fn connection(&mut self, id: Id) -> Result<&mut Connection, Errno> {
        match &mut self.socket_mut(id)?.body {
            Body::Stream(Stream::Open(connection)) => Ok(connection),
            _ => Err(Errno::NOTCONN),
        }
    }

    pub(super) fn connect_stream(&mut self, id: Id, to: SocketAddr) -> Result<(), Errno> {
        match &self.socket(id)?.body {
            Body::Stream(Stream::Open(connection)) if connection.is_opening => {
                return Err(Errno::ALREADY);
            }
            Body::Stream(Stream::Open(_)) => return Err(Errno::ISCONN),
            Body::Stream(Stream::Listening(_)) => return Err(Errno::OPNOTSUPP),
            _ => {}
        }
        if to.port() == 0 || to.ip().is_unspecified() {
            return Err(Errno::CONNREFUSED);
        }
        if to.ip().is_multicast() {
            return Err(Errno::NETUNREACH);
        }
        let from = match self.socket(id)?.bound {
            Some(bound) => bound,
            None => {
                let port = self.free_port(true)?;
                IpListenEndpoint { addr: None, port }
            }
        };
        let options = self.options(id)?;
        let mut socket = new_stream(self.sizes(&options));
        socket
            .connect(self.interface.context(), IpEndpoint::from(to), from)
            .map_err(|_| Errno::NETUNREACH)?;
        let state = socket.state();
        let handle = self.sockets.add(socket);
        self.note_neighbour(to.ip().into());
        apply(&mut self.sockets, handle, &options);
        let began = self.now;
        let own = self.socket_mut(id)?;
        own.bound = Some(from);
        own.error = None;
        own.body = Body::Stream(Stream::Open(Connection {
            handle,
            asks: began + ASKS,
            is_opening: true,
            state,
            is_shut: false,
        }));
        Err(Errno::INPROGRESS)
    }

    /// listen(2).
    ///
    /// # Errors
    /// `EADDRINUSE`, `EINVAL`, `EOPNOTSUPP`.
    pub(crate) fn listen(&mut self, id: Id, backlog: i32) -> Result<(), Errno> {
        let backlog = usize::try_from(backlog).unwrap_or(0).clamp(1, MOST_BACKLOG);
        match &mut self.socket_mut(id)?.body {
            Body::Stream(Stream::Idle) => {}
            Body::Stream(Stream::Listening(listener)) => {
                listener.backlog = backlog;
                return Ok(());
            }
            Body::Stream(Stream::Open(_)) => return Err(Errno::INVAL),
            Body::Datagrams(_) => return Err(Errno::OPNOTSUPP),
        }
        if self.socket(id)?.bound.is_none() {
            self.bind(id, SocketAddr::from(([0, 0, 0, 0], 0)))?;
        }
        let endpoint = self.socket(id)?.bound.ok_or(Errno::INVAL)?;
        if self.is_listened_at(id, endpoint)? {
            return Err(Errno::ADDRINUSE);
        }
        self.socket_mut(id)?.body = Body::Stream(Stream::Listening(Listener {
            endpoint,
            backlog,
            sockets: Vec::new(),
            ready: VecDeque::new(),
        }));
        self.fill_listeners();
        self.note(id);
        Ok(())
    }

    /// Notes connections that wait to be accepted, and sees to it that enough sockets wait for
    /// SYNs.
    pub(super) fn fill_listeners(&mut self) {
        let mut established = Vec::new();
        for (id, socket) in self.slots.iter_mut().enumerate() {
            let body = socket.as_mut().map(|socket| &mut socket.body);
            if let Some(Body::Stream(Stream::Listening(listener))) = body {
                let taken = listener.take_established(&mut self.sockets);
                established.extend(taken.into_iter().map(|handle| (id, handle)));
            }
        }
        self.deal(established);
        for id in 0..self.slots.len() {
            let Some(options) = self.slots[id].as_ref().map(|socket| socket.options) else {
                continue;
            };
            let sizes = self.sizes(&options);
            let body = self.slots[id].as_mut().map(|socket| &mut socket.body);
            if let Some(Body::Stream(Stream::Listening(listener))) = body {
                let places = places(&self.interface, listener.endpoint, options.only);
                listener.fill(&mut self.sockets, places, || new_stream(sizes));
            }
        }
    }

    /// Whether another socket listens at a place, and shares it not.
    pub(super) fn is_listened_at(&self, id: Id, endpoint: IpListenEndpoint) -> Result<bool, Errno> {
        let own = self.socket(id)?.options;
        let mut all = self.slots.iter().flatten();
        Ok(all.any(|other| {
            let is_shared = other.options.reuse_port && own.reuse_port;
            other.listens() && other.is_at(true, (endpoint, own.only)) && !is_shared
        }))
    }

    /// Deals connections to those of the listening sockets at their place, in turn.
    pub(super) fn deal(&mut self, connections: Vec<(Id, SocketHandle)>) {
        for (id, handle) in connections {
            let place = |socket: &Slot| (socket.bound, socket.options.only);
            let own = self.slots[id].as_ref();
            let (own_place, is_shared) = own.map_or(((None, None), false), |own| {
                (place(own), own.options.reuse_port)
            });
            let is_member = |(_, socket): &(Id, &Slot)| {
                socket.listens() && socket.options.reuse_port && place(socket) == own_place
            };
            let all = self.slots.iter().enumerate();
            let all = all.filter_map(|(id, socket)| Some((id, socket.as_ref()?)));
            let members: Vec<_> = match is_shared {
                true => all.filter(is_member).map(|(id, _)| id).collect(),
                false => Vec::new(),
            };
            let to = match members.is_empty() {
                true => id,
                false => members[self.dealt % members.len()],
            };
            self.dealt = self.dealt.wrapping_add(1);
            let body = self.slots[to].as_mut().map(|socket| &mut socket.body);
            if let Some(Body::Stream(Stream::Listening(listener))) = body {
                listener.add(handle);
            }
        }
    }

    /// The connections of a listening socket that wait to be accepted.
    fn backlog(&mut self, id: Id) -> Result<&mut VecDeque<SocketHandle>, Errno> {
        match &mut self.socket_mut(id)?.body {
            Body::Stream(Stream::Listening(listener)) => Ok(&mut listener.ready),
            _ => Err(Errno::INVAL),
        }
    }

    /// accept(2).
    ///
    /// # Errors
    /// `EAGAIN`: there is no connection. `EINVAL`: the socket does not listen. `EMFILE`.
    pub(crate) fn accept(&mut self, id: Id) -> Result<Id, Errno> {
        let own = self.socket(id)?;
        let (options, bound) = (own.options, own.bound);
        if !own.listens() {
            let is_stream = own.body.is_stream();
            return Err(if is_stream {
                Errno::INVAL
            } else {
                Errno::OPNOTSUPP
            });
        }
        let handle = self.backlog(id)?.front().copied().ok_or(Errno::AGAIN)?;
        let state = of(&self.sockets, handle).state();
        let connection = Connection {
            handle,
            asks: self.now + ASKS,
            is_opening: false,
            state,
            is_shut: false,
        };
        let body = Body::Stream(Stream::Open(connection));
        let accepted = self.insert(body, options)?;
        self.backlog(id)?.pop_front();
        apply(&mut self.sockets, handle, &options);
        let own = self.socket_mut(accepted)?;
        // As in Linux, a listening socket and its connections can have one port.
        (own.bound, own.options.reuse_address) = (bound, true);
        self.fill_listeners();
        self.note(id);
        self.note(accepted);
        Ok(accepted)
    }

    pub(super) fn send_stream(&mut self, id: Id, bytes: &[u8]) -> Result<usize, Errno> {
        if let Some(error) = self.socket_mut(id)?.error.take() {
            return Err(error);
        }
        if matches!(&self.socket(id)?.body, Body::Stream(Stream::Idle)) {
            return Err(Errno::PIPE);
        }
        let connection = self.connection(id)?;
        if connection.is_opening {
            return Err(Errno::AGAIN);
        }
        let handle = connection.handle;
        let now = self.now;
        if now >= self.connection(id)?.asks {
            self.connection(id)?.asks = self.now + ASKS;
            if let Some(peer) = of(&self.sockets, handle).remote_endpoint() {
                self.note_neighbour(peer.addr);
            }
        }
        let options = self.options(id)?;
        let socket = of_mut(&mut self.sockets, handle);
        if bytes.is_empty() {
            return Ok(0);
        }
        match socket.send_slice(bytes) {
            Ok(0) => Err(Errno::AGAIN),
            Ok(sent) => {
                limit_time(socket, &options);
                Ok(sent)
            }
            Err(tcp::SendError::InvalidState) => Err(Errno::PIPE),
        }
    }

    pub(super) fn receive_stream(
        &mut self,
        id: Id,
        bytes: &mut [u8],
        peek: bool,
    ) -> Result<ReceivedBytes, Errno> {
        if matches!(&self.socket(id)?.body, Body::Stream(Stream::Idle)) {
            let error = self.socket_mut(id)?.error.take();
            return Err(error.unwrap_or(Errno::NOTCONN));
        }
        let connection = self.connection(id)?;
        let (handle, is_shut) = (connection.handle, connection.is_shut);
        if connection.is_opening {
            return Err(Errno::AGAIN);
        }
        let socket = of_mut(&mut self.sockets, handle);
        // The stack says by the other call only that nothing will come any more.
        let result = match peek && socket.can_recv() {
            true => socket.peek_slice(bytes),
            false => socket.recv_slice(bytes),
        };
        let received = |len| ReceivedBytes {
            len,
            whole: len,
            from: None,
        };
        match result {
            Ok(0) if !bytes.is_empty() && !is_shut => Err(Errno::AGAIN),
            Ok(len) => Ok(received(len)),
            Err(RecvError::Finished) => Ok(received(0)),
            Err(RecvError::InvalidState) => match self.socket_mut(id)?.error.take() {
                Some(error) => Err(error),
                None => Ok(received(0)),
            },
        }
    }

    pub(super) fn shutdown_stream(
        &mut self,
        id: Id,
        reads: bool,
        writes: bool,
    ) -> Result<(), Errno> {
        let connection = self.connection(id)?;
        if connection.is_opening {
            return Err(Errno::NOTCONN);
        }
        connection.is_shut |= reads;
        let handle = connection.handle;
        if writes {
            of_mut(&mut self.sockets, handle).close();
        }
        Ok(())
    }

    pub(super) fn close_stream(&mut self, stream: Stream, abort: bool) {
        let handles = match stream {
            Stream::Idle => return,
            Stream::Listening(listener) => {
                let ready = listener.ready.into_iter();
                listener.sockets.into_iter().chain(ready).collect()
            }
            Stream::Open(connection) => {
                let socket = of_mut(&mut self.sockets, connection.handle);
                // What was not read is lost, and the peer is to know (RFC 2525, 2.17).
                if abort || socket.can_recv() || connection.is_opening {
                    socket.abort();
                } else {
                    socket.close();
                }
                vec![connection.handle]
            }
        };
        for handle in handles {
            let socket = of_mut(&mut self.sockets, handle);
            if matches!(socket.state(), State::Listen | State::SynReceived) {
                socket.abort();
            } else if is_established(socket.state()) && socket.may_send() {
                // Of a listening socket: it was never accepted.
                socket.abort();
            }
            self.orphans.add(&mut self.sockets, handle, self.now);
        }
    }

    /// Sets for all streams whether small segments wait.
    pub(super) fn cork_streams(&mut self) {
        for socket in self.slots.iter().flatten() {
            if let Body::Stream(Stream::Open(connection)) = &socket.body {
                cork(
                    of_mut(&mut self.sockets, connection.handle),
                    &socket.options,
                );
            }
        }
    }

    /// Notes which connections were established, refused or reset, and forgets those that have
    /// ended. `true`: one was. The stack does not say why one has ended: it is asked after each of
    /// the two things that may be the cause.
    pub(super) fn look_after_streams(&mut self, cause: Cause) -> bool {
        let mut has_changed = false;
        for socket in self.slots.iter_mut().flatten() {
            let options = socket.options;
            let Body::Stream(Stream::Open(connection)) = &mut socket.body else {
                continue;
            };
            let stack = of_mut(&mut self.sockets, connection.handle);
            limit_time(stack, &options);
            let state = stack.state();
            let before = std::mem::replace(&mut connection.state, state);
            connection.is_opening &= !is_established(state);
            has_changed |= state != before;
            if state != State::Closed || before == State::Closed {
                continue;
            }
            let (handle, has_failed) = (connection.handle, connection.is_opening);
            socket.error = match (before, cause) {
                (State::LastAck | State::TimeWait | State::Closing, _) => None,
                (_, Cause::Time) => Some(Errno::TIMEDOUT),
                (State::SynSent, Cause::Peer) => Some(Errno::CONNREFUSED),
                (_, Cause::Peer) => Some(Errno::CONNRESET),
            };
            if has_failed {
                // It can be connected again.
                socket.body = Body::Stream(Stream::Idle);
                self.orphans.add(&mut self.sockets, handle, self.now);
            }
        }
        self.orphans.look_after(&mut self.sockets, self.now);
        has_changed
    }
}

fn new_stream((receives, sends): (usize, usize)) -> tcp::Socket<'static> {
    let room = |bytes| SocketBuffer::new(vec![0; bytes]);
    tcp::Socket::new(room(receives), room(sends))
}
