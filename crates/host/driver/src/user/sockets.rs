//! The sockets of flows.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ipc::user_reports::UserPage;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, connect, connect_unspec, getsockname,
    shutdown, socket_with, sockopt,
};
use usernet::services::IcmpError;
use usernet::{Failure, Family, FlowId, Nanos, Peek, PeekResult, RECORD_LEN, SocketQueues};
use wire::{MacAddr, ethernet, ipv4, ipv6, udp};

use super::buffers::{Budget, Buffers, SocketBuffers};
use super::calls::{self, SendMemory};
use super::events::{Kind, Tag};
use super::host_ports::HostPorts;
use super::kept::Keeper;
use super::memory::Bytes;
use super::own_addresses::OwnAddresses;
use super::streams::{Stream, Streams};

/// Minimum room that is reported of a writable socket: one with less would be reported again and
/// again.
const LEAST_ROOM: u32 = 4096;
/// Any port, for a datagram socket that sends nothing (RFC 863).
pub(super) const DISCARD: u16 = 9;

/// Bytes of headers in front of a datagram.
pub(super) const HEADERS_V4: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN;
pub(super) const HEADERS_V6: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + udp::HEADER_LEN;

/// Serial of a socket without events of its own: tags have fewer bits.
const NO_EVENTS: u32 = u32::MAX;

/// All events of a socket, as edges.
const EDGES: EventFlags = EventFlags::IN
    .union(EventFlags::PRI)
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// Progress of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// A TCP socket that connects.
    Connecting,
    /// A TCP socket that is connected.
    Connected,
    /// A UDP socket.
    Datagrams,
}

/// A socket.
#[derive(Debug)]
pub(super) struct Socket {
    fd: Arc<OwnedFd>,
    pub(super) flow: FlowId,
    serial: u32,
    pub(super) progress: Progress,
    /// The flow awaits that the socket takes bytes again.
    pub(super) awaits_room: bool,
    /// The peer has closed its half.
    pub(super) ended: bool,
    /// A mapping's datagrams have their turn.
    pub(super) is_queued: bool,
    /// It is the socket of a forward, which receives for all its peers.
    is_shared: bool,
    /// Bytes of headers in front of a datagram of its IP version.
    udp_headers: usize,
    /// The peek offset of the system, if it has one for TCP.
    peek_offset: Option<u32>,
    /// The number under which the supervisor keeps it.
    slot: Option<u32>,
    /// When it was opened; none for one of a predecessor.
    pub(super) opened: Option<Nanos>,
    /// Bytes of datagrams from the guest and to it.
    pub(super) datagrams: [u64; 2],
    /// Its buffers, unless they are those of a forward.
    held: Option<SocketBuffers>,
    /// Bytes that were read since its buffers were counted.
    read: u32,
}

/// The other end of a flow.
#[derive(Debug)]
pub(super) enum End<'a> {
    /// A socket of the host.
    Socket(&'a mut Socket),
    /// A stream that ends in this process.
    Stream(&'a mut Stream),
}

/// The other ends of flows.
#[derive(Debug)]
pub(super) struct Sockets {
    epoll: OwnedFd,
    /// Sockets by the numbers of their flows.
    all: Vec<Option<Socket>>,
    pub(super) streams: Streams,
    serial: u32,
    own: OwnAddresses,
    ports: HostPorts,
    buffers: Buffers,
    keeper: Keeper,
}

/// Translates an error of a connection.
pub(super) fn failure(error: Errno) -> Failure {
    match error {
        Errno::CONNREFUSED | Errno::NOPROTOOPT => Failure::Refused,
        Errno::TIMEDOUT => Failure::Silent,
        Errno::NETUNREACH => Failure::Unreachable(IcmpError::Network.into()),
        Errno::ACCESS | Errno::PERM => Failure::Unreachable(IcmpError::Prohibited.into()),
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => Failure::Descriptors,
        Errno::ADDRINUSE | Errno::ADDRNOTAVAIL => Failure::Ports,
        _ => Failure::Unreachable(IcmpError::Host.into()),
    }
}

fn family_of(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    }
}

/// Opens a socket that does not wait, and takes ports of one IP version alone.
pub(super) fn open(address: IpAddr, kind: SocketType) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(family_of(address), kind, flags, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    Ok(fd)
}

/// Sets the options of a connection's socket.
pub(super) fn prepare(fd: &OwnedFd) -> Result<(), Errno> {
    // The guest has waited for more already, if it wants to.
    sockopt::set_tcp_nodelay(fd, true)?;
    // Urgent bytes stay in the stream, so that they are counted as others.
    sockopt::set_socket_oobinline(fd, true)?;
    // Probes of the guest are answered here: they do not find out that the peer is gone.
    sockopt::set_socket_keepalive(fd, true)
}

impl Sockets {
    /// None yet; events of theirs come to `epoll`.
    pub(super) fn new(
        epoll: OwnedFd,
        (ports, budget): (HostPorts, Budget),
        keeper: Keeper,
    ) -> Self {
        Self {
            epoll,
            all: Vec::new(),
            streams: Streams::default(),
            serial: 0,
            own: OwnAddresses::new(),
            ports,
            buffers: Buffers::new(budget),
            keeper,
        }
    }

    /// Connects a TCP socket of a guest. An event follows.
    ///
    /// # Errors
    /// Why it failed at once.
    pub(super) fn connect(
        &mut self,
        (flow, station): (FlowId, MacAddr),
        (to, hops): (SocketAddr, Option<u8>),
        is_outside: bool,
        now: Nanos,
    ) -> Result<(), Failure> {
        if is_outside && self.own.contains(to.ip(), now).map_err(failure)? {
            return Err(Failure::Own);
        }
        let opened = || -> Result<OwnedFd, Errno> {
            let fd = self.ports.open(to.ip(), SocketType::STREAM)?;
            prepare(&fd)?;
            if hops.is_some() {
                calls::set_hops(fd.as_fd(), to.is_ipv4(), hops)?;
            }
            if to.is_ipv6() {
                calls::keep_errors(fd.as_fd(), false, true)?;
            }
            Ok(fd)
        };
        let fd = opened().map_err(failure)?;
        let held = self.buffers.give(station, &fd).map_err(failure)?;
        let connected = match connect(&fd, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {
                let peek_offset = calls::set_peek_offset(fd.as_fd(), 0).is_ok().then_some(0);
                self.insert(flow, fd, (Progress::Connecting, peek_offset), held)
            }
            Err(error) => {
                self.buffers.take_back(held);
                Err(error)
            }
        };
        connected.map_err(failure)
    }

    /// Opens the socket of a guest's mapping.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn open_udp(
        &mut self,
        (flow, station): (FlowId, MacAddr),
        family: Family,
    ) -> Result<(), Errno> {
        let fd = self.ports.open_udp(family)?;
        calls::coalesce(fd.as_fd());
        calls::keep_errors(fd.as_fd(), family == Family::V4, true)?;
        let held = self.buffers.give(station, &fd)?;
        self.insert(flow, fd, (Progress::Datagrams, None), held)?;
        if let Some(socket) = self.socket(flow) {
            socket.udp_headers = match family {
                Family::V4 => HEADERS_V4,
                Family::V6 => HEADERS_V6,
            };
        }
        Ok(())
    }

    fn insert(
        &mut self,
        flow: FlowId,
        fd: OwnedFd,
        progress: (Progress, Option<u32>),
        held: SocketBuffers,
    ) -> Result<(), Errno> {
        self.serial = self.serial.wrapping_add(1);
        let tag = Tag::new(Kind::Flow, self.serial, flow.index() as u32);
        if let Err(error) = epoll::add(&self.epoll, &fd, tag.data(), EDGES) {
            self.buffers.take_back(held);
            return Err(error);
        }
        self.put(flow, Arc::new(fd), progress, tag.serial(), Some(held));
        Ok(())
    }

    fn put(
        &mut self,
        flow: FlowId,
        fd: Arc<OwnedFd>,
        (progress, peek_offset): (Progress, Option<u32>),
        serial: u32,
        held: Option<SocketBuffers>,
    ) {
        if self.all.len() <= flow.index() {
            self.all.resize_with(flow.index() + 1, || None);
        }
        self.all[flow.index()] = Some(Socket {
            fd,
            flow,
            serial,
            progress,
            awaits_room: false,
            ended: false,
            is_queued: false,
            is_shared: held.is_none(),
            udp_headers: HEADERS_V4,
            peek_offset,
            slot: None,
            opened: Some(sys::time::monotonic_ns()),
            datagrams: [0; 2],
            held,
            read: 0,
        });
    }

    /// Gives a mapping the socket of its peer's forward. Events of the socket are the forward's.
    pub(super) fn share(&mut self, flow: FlowId, fd: Arc<OwnedFd>) {
        // No event has the number of a serial that is none.
        self.put(flow, fd, (Progress::Datagrams, None), NO_EVENTS, None);
    }

    /// Returns the other end of a flow.
    pub(super) fn get(&mut self, flow: FlowId) -> Option<End<'_>> {
        let socket = self.all.get_mut(flow.index()).and_then(Option::as_mut);
        match socket.filter(|socket| socket.flow == flow) {
            Some(socket) => Some(End::Socket(socket)),
            None => self.streams.get(flow).map(End::Stream),
        }
    }

    /// Returns the socket of a flow, if that is its other end.
    pub(super) fn socket(&mut self, flow: FlowId) -> Option<&mut Socket> {
        let socket = self.all.get_mut(flow.index())?.as_mut();
        socket.filter(|socket| socket.flow == flow)
    }

    #[cfg(test)]
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Socket> {
        self.all.iter_mut().flatten()
    }

    /// The socket of an event; `None` if it was closed meanwhile.
    pub(super) fn of_event(&mut self, tag: Tag) -> Option<&mut Socket> {
        let socket = self.all.get_mut(tag.index() as usize)?.as_mut();
        socket.filter(|socket| socket.serial == tag.serial())
    }

    /// Has the next event of the socket reported, also of a state that it has already.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn await_room(&mut self, flow: FlowId) -> Result<(), Errno> {
        let Some(socket) = self.all.get_mut(flow.index()).and_then(Option::as_mut) else {
            return Ok(());
        };
        socket.awaits_room = true;
        let tag = Tag::new(Kind::Flow, socket.serial, flow.index() as u32);
        epoll::modify(&self.epoll, &socket.fd, tag.data(), EDGES)
    }

    /// Closes the socket of a flow, with a reset of the peer or without.
    pub(super) fn close(&mut self, flow: FlowId, reset: bool) {
        if self.socket(flow).is_none() {
            return;
        }
        let Some(socket) = self.all.get_mut(flow.index()).and_then(Option::take) else {
            return;
        };
        if let Some(held) = socket.held {
            self.buffers.take_back(held);
        }
        // Others may have a descriptor of it, so that it ends before the last one is closed. A
        // failure means that it has ended already.
        if reset {
            let _ = connect_unspec(&socket.fd);
        } else if socket.progress == Progress::Connected {
            let _ = shutdown(&socket.fd, Shutdown::Both);
        }
        if let Some(slot) = socket.slot {
            if !socket.is_shared {
                // The supervisor's descriptor would keep its events.
                let _ = epoll::delete(&self.epoll, &socket.fd);
            }
            self.keeper.drop(slot);
        }
    }

    /// Has a flow outlive the process, if it has a socket and there is a number for it.
    pub(super) fn keep(&mut self, flow: FlowId, record: &[u8; RECORD_LEN]) {
        let socket = self.all.get_mut(flow.index()).and_then(Option::as_mut);
        let socket = socket.filter(|socket| socket.flow == flow && socket.slot.is_none());
        if let Some(socket) = socket.filter(|of| of.progress != Progress::Connecting) {
            socket.slot = self.keeper.keep(record, socket.fd.clone());
        }
    }

    /// Returns how many flows outlive the process, and the most.
    pub(super) fn kept(&self) -> (u32, u32) {
        self.keeper.kept()
    }

    /// Leaves an answer about a table for the main thread.
    pub(super) fn answer(&self, page: UserPage) {
        self.keeper.answer(page);
    }

    /// The record of a predecessor's flow.
    pub(super) fn record(&self, slot: u32) -> [u8; RECORD_LEN] {
        self.keeper.record(slot)
    }

    /// Continues a predecessor's flow. `is_shared`: its socket is that of a forward.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn inherit(
        &mut self,
        (flow, station): (FlowId, MacAddr),
        fd: OwnedFd,
        slot: u32,
        (progress, is_shared): (Progress, bool),
    ) -> Result<(), Errno> {
        if is_shared {
            self.share(flow, Arc::new(fd));
            if let Some(socket) = self.socket(flow) {
                socket.slot = Some(slot);
            }
            return Ok(());
        }
        let peeks = progress == Progress::Connected;
        let peek_offset = peeks.then(|| calls::set_peek_offset(fd.as_fd(), 0).ok().map(|()| 0));
        let is_v6 = sockopt::socket_domain(&fd)? == AddressFamily::INET6;
        let held = self.buffers.adopt(station, &fd);
        self.insert(flow, fd, (progress, peek_offset.flatten()), held)?;
        if let Some(socket) = self.socket(flow) {
            (socket.slot, socket.opened) = (Some(slot), None);
            socket.udp_headers = if is_v6 { HEADERS_V6 } else { HEADERS_V4 };
        }
        Ok(())
    }

    /// Adds the socket of a connection that was accepted.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn accepted(
        &mut self,
        (flow, station): (FlowId, MacAddr),
        fd: OwnedFd,
    ) -> Result<(), Errno> {
        let peek_offset = calls::set_peek_offset(fd.as_fd(), 0).is_ok().then_some(0);
        let held = self.buffers.give(station, &fd)?;
        self.insert(flow, fd, (Progress::Connected, peek_offset), held)
    }

    /// Reads bytes of a flow without consuming them.
    ///
    /// # Errors
    /// The connection failed, or there is none.
    pub(super) fn peek(
        &mut self,
        flow: FlowId,
        peek: Peek,
        into: Bytes,
    ) -> Result<PeekResult, Errno> {
        let Some(socket) = self.prepare(flow) else {
            let stream = self.streams.get(flow).ok_or(Errno::BADF)?;
            return Ok(stream.peek(peek, into));
        };
        let peeked = socket.peek(peek, into);
        // The system may only look now at what was consumed before.
        if socket.is_due() {
            socket.read = 0;
            self.count(flow);
        }
        peeked
    }

    /// Consumes bytes of a flow's socket that were peeked.
    ///
    /// # Errors
    /// The connection failed.
    pub(super) fn discard(&mut self, flow: FlowId, len: u32) -> Result<(), Errno> {
        let Some(socket) = self.prepare(flow) else {
            return Ok(());
        };
        socket.discard(len)?;
        socket.read = socket.read.saturating_add(len);
        if socket.is_due() {
            self.count(flow);
        }
        Ok(())
    }

    /// Returns the socket of a flow before it is read.
    fn prepare(&mut self, flow: FlowId) -> Option<&mut Socket> {
        let socket = self.all.get_mut(flow.index())?.as_mut();
        let socket = socket.filter(|socket| socket.flow == flow)?;
        if let Some(held) = &mut socket.held {
            self.buffers.prepare(&socket.fd, held);
        }
        Some(socket)
    }

    /// Counts the buffers of a flow after a change of sizes, and has them grow no more at the end
    /// of the budget.
    pub(super) fn count(&mut self, flow: FlowId) {
        let socket = self.all.get_mut(flow.index()).and_then(Option::as_mut);
        if let Some(socket) = socket.filter(|socket| socket.flow == flow)
            && let Some(held) = &mut socket.held
        {
            self.buffers.count(&socket.fd, held);
            self.buffers.prepare(&socket.fd, held);
        }
    }

    /// As [`Self::count`], with what is known of the memory of a flow's socket.
    pub(super) fn note(&mut self, flow: FlowId, memory: SendMemory) {
        let socket = self.all.get_mut(flow.index()).and_then(Option::as_mut);
        if let Some(socket) = socket.filter(|socket| socket.flow == flow)
            && let Some(held) = &mut socket.held
        {
            self.buffers.note(&socket.fd, held, memory.buffers());
        }
    }

    /// Returns the bytes of the buffers of all flows.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        self.buffers.all()
    }

    /// Changes the budgets of buffers.
    pub(super) fn set_budget(&mut self, budget: Budget) {
        self.buffers.set(budget);
    }

    /// The ports of the host that sockets may have.
    pub(super) fn ports(&self) -> HostPorts {
        self.ports
    }

    /// The descriptor with the events of all sockets.
    pub(super) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Ends a predecessor's flow that cannot be continued.
    pub(super) fn disinherit(&mut self, slot: u32) {
        self.keeper.drop(slot);
    }

    /// Returns whether the host itself has an address.
    ///
    /// # Errors
    /// The system has no way to it.
    pub(super) fn is_own(&mut self, address: IpAddr, now: Nanos) -> Result<bool, Errno> {
        self.own.contains(address, now)
    }
}

impl Socket {
    /// Returns the error that waits at the socket, which has none then.
    pub(super) fn take_error(&self) -> Option<Errno> {
        match sockopt::socket_error(&self.fd) {
            Ok(Ok(())) => None,
            Ok(Err(error)) | Err(error) => Some(error),
        }
    }

    /// Returns why the socket could not be connected, by the error of a router if there is one.
    pub(super) fn take_failure(&self) -> Option<Failure> {
        let error = self.take_error();
        let said = calls::next_error(self.fd.as_fd(), &mut []);
        match (error, said.ok().flatten().map(|said| said.notice)) {
            (Some(error), None) => Some(failure(error)),
            (None, None) => None,
            (_, Some(notice)) if notice.error == IcmpError::Port => Some(Failure::Refused),
            (_, Some(notice)) => Some(Failure::Unreachable(notice)),
        }
    }

    /// The socket is connected. Errors of the way, which come and go, do not end it then.
    pub(super) fn connected(&mut self) {
        self.progress = Progress::Connected;
        if sockopt::socket_domain(&self.fd) == Ok(AddressFamily::INET6) {
            let _ = calls::keep_errors(self.fd.as_fd(), false, false);
        }
    }

    /// Has the system probe the peer after these seconds of silence.
    pub(super) fn probe(&self, seconds: u32) {
        // It fails if the peer has reset the connection, and an event reports that.
        let _ = calls::set_probes(self.fd.as_fd(), seconds);
    }

    /// Returns whether it is time to count its buffers.
    fn is_due(&self) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| self.read >= held.interval())
    }

    /// Returns what the system says of the memory of the socket.
    pub(super) fn memory(&self) -> Option<SendMemory> {
        SendMemory::of(self.fd.as_fd())
    }

    /// Returns the free bytes of the send buffer, see [`room_of`], and whether to ask the system
    /// for an event when there is more: it enlarges a send buffer only for a program that waits.
    pub(super) fn room_and_need(&self, memory: Option<SendMemory>) -> (u32, bool) {
        match memory {
            Some(memory) => (memory.room(), memory.is_short() && !self.awaits_room),
            None => (estimated_room(&self.fd), false),
        }
    }

    /// Returns the free bytes of a socket that the system calls writable.
    pub(super) fn room_of_writable(&self) -> u32 {
        room_of(&self.fd).max(LEAST_ROOM)
    }

    /// Sends bytes; returns how many the system took.
    ///
    /// # Errors
    /// The connection failed.
    pub(super) fn send(&self, pieces: &[Bytes]) -> Result<u32, Errno> {
        match calls::send(self.fd.as_fd(), pieces) {
            Ok(taken) => Ok(taken as u32),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Returns what is needed to receive datagrams.
    pub(super) fn receiver(&self) -> (Arc<OwnedFd>, usize) {
        (self.fd.clone(), self.udp_headers)
    }

    /// Reads bytes without consuming them.
    ///
    /// # Errors
    /// The connection failed.
    fn peek(&mut self, peek: Peek, into: Bytes) -> Result<PeekResult, Errno> {
        let into = into.part(0, into.len().min(peek.len as usize));
        let Some(into) = into.filter(|into| into.len() > 0) else {
            return Ok(PeekResult::Empty);
        };
        let got = match self.peek_offset {
            Some(at) => {
                if at != peek.offset {
                    calls::set_peek_offset(self.fd.as_fd(), peek.offset)?;
                    self.peek_offset = Some(peek.offset);
                }
                calls::peek(self.fd.as_fd(), into)
            }
            None => match calls::peek_at(self.fd.as_fd(), peek.offset, into) {
                Some(got) => got,
                None => return Ok(PeekResult::Empty),
            },
        };
        match got {
            Ok(0) => Ok(PeekResult::End),
            Ok(len) => {
                if let Some(at) = &mut self.peek_offset {
                    *at = at.wrapping_add(len as u32);
                }
                Ok(PeekResult::Bytes(len as u32))
            }
            Err(Errno::AGAIN) if self.peek_offset.is_none() && self.ended => Ok(PeekResult::End),
            Err(Errno::AGAIN | Errno::INTR) => Ok(PeekResult::Empty),
            Err(error) => Err(error),
        }
    }

    /// Consumes bytes that were peeked.
    ///
    /// # Errors
    /// The connection failed.
    fn discard(&mut self, len: u32) -> Result<(), Errno> {
        let mut left = len as usize;
        while left > 0 {
            match calls::discard(self.fd.as_fd(), left) {
                Ok(0) => return Err(Errno::CONNRESET),
                Ok(done) => left = left.saturating_sub(done),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        // The system keeps the place of the next peek.
        if let Some(at) = &mut self.peek_offset {
            *at = at.saturating_sub(len);
        }
        Ok(())
    }

    /// Returns the bytes of a TCP connection that went from the guest and to it, by what the system
    /// knows. `connected`: it was not accepted.
    pub(super) fn moved(&self, connected: bool) -> Option<[u64; 2]> {
        calls::moved(self.fd.as_fd(), connected)
    }

    /// Returns the bytes that lie in the socket of a TCP connection.
    pub(super) fn queues(&self) -> SocketQueues {
        calls::queues(self.fd.as_fd())
    }

    /// Returns whether datagrams wait in the socket of a mapping; those in the socket of a forward
    /// may be for others.
    pub(super) fn has_datagrams(&self) -> bool {
        !self.is_shared && self.queues().unread > 0
    }

    /// Returns the bytes of a mapping from the guest and to it, if this process has opened it.
    pub(super) fn datagram_bytes(&self) -> Option<[u64; 2]> {
        self.opened.map(|_| self.datagrams)
    }

    /// Returns the memory of both buffers that is used.
    #[cfg(test)]
    pub(super) fn used_memory(&self) -> u64 {
        calls::used_memory(self.fd.as_fd()).unwrap()
    }

    /// Works as on a system without a peek offset for TCP.
    #[cfg(test)]
    pub(super) fn forget_peek_offset(&mut self) {
        self.peek_offset = None;
        let none = calls::set_peek_offset(self.fd.as_fd(), u32::MAX);
        assert_eq!(none, Ok(()), "-1 switches it off (socket(7))");
    }

    /// Sends no more bytes.
    pub(super) fn shut_down(&self) {
        // It fails if the peer has reset the connection, and an event reports that.
        let _ = shutdown(&self.fd, Shutdown::Write);
    }
}

/// Returns the address of a socket of UDP; `None` for another one.
pub(super) fn datagrams_at(fd: &OwnedFd) -> Option<SocketAddr> {
    let is_datagram = sockopt::socket_type(fd) == Ok(SocketType::DGRAM);
    let name = getsockname(fd).ok().filter(|_| is_datagram)?;
    SocketAddr::try_from(name).ok()
}

/// Returns bytes that the send buffer of a socket certainly takes: what is promised and not taken
/// is lost, and a guest may need a second to send it again.
pub(super) fn room_of(fd: &OwnedFd) -> u32 {
    SendMemory::of(fd.as_fd()).map_or_else(|| estimated_room(fd), SendMemory::room)
}

/// The same on a system that does not say how much memory is used.
fn estimated_room(fd: &OwnedFd) -> u32 {
    let size = sockopt::socket_send_buffer_size(fd).unwrap_or(0);
    let used = calls::unacknowledged(fd.as_fd()).unwrap_or(0);
    let size = u32::try_from(size / 2).unwrap_or(u32::MAX);
    size.saturating_sub(used)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_peer_that_is_gone_is_found_out() {
        let fd = open(Ipv4Addr::LOCALHOST.into(), SocketType::STREAM).unwrap();
        prepare(&fd).unwrap();
        assert_eq!(sockopt::socket_keepalive(&fd), Ok(true));
    }
}
