//! Sockets without descriptors, threads and clocks, over smoltcp: the calls, and their errors as
//! tcp(7), udp(7) and ip(7) have them. None of the calls waits.

mod datagrams;
mod neighbours;
mod options;
mod shares;
mod streams;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use libc::{POLLERR, POLLHUP};
use rustix::io::Errno;
use smoltcp::iface::{Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::{dhcpv4, tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{
    EthernetAddress, HardwareAddress, IpAddress, IpCidr, IpEndpoint, IpListenEndpoint,
};

use wire::MacAddr;

use crate::config::{Config, Network, Route};
use crate::device::{Device, Wire};
use datagrams::Datagrams;
use neighbours::Questions;
pub use options::{Family, KeepAlive, Options};
use streams::{Cause, Orphans, Stream};

/// Sockets at most. The stack looks through all of them for each frame.
pub(crate) const MOST: usize = 256;
/// Frames that are taken between two looks at the listening sockets.
const FRAMES: usize = 8;
/// Time between two attempts to send without room.
const NO_ROOM: Duration = Duration::from_millis(100);
/// First and last of the ports that are given out (ip(7), `ip_local_port_range`).
const PORTS: (u16, u16) = (32768, 60999);

/// A source of random numbers, each as hard to guess for one who knows those before: ports of
/// sockets are made of them (RFC 6056).
pub type Random = fn() -> u64;

/// A socket, by its number.
pub type Id = usize;

/// Kinds of sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// TCP.
    Stream,
    /// UDP.
    Datagram,
}

/// Received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedBytes {
    /// Bytes in the buffer.
    pub len: usize,
    /// Bytes of the datagram, more than those if it was cut.
    pub whole: usize,
    /// The sender.
    pub from: Option<SocketAddr>,
}

/// A socket, with its place in the stack.
#[derive(Debug)]
struct Slot {
    body: Body,
    /// Where it was bound.
    bound: Option<IpListenEndpoint>,
    /// `SO_ERROR`.
    error: Option<Errno>,
    options: Options,
    /// Counts events, for those who wait for changes.
    changes: u64,
    /// The state when events were counted last.
    seen: EventState,
}

#[derive(Debug)]
enum Body {
    Stream(Stream),
    Datagrams(Datagrams),
}

/// The state of a socket that events are counted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct EventState {
    events: i16,
    received: usize,
    /// Bytes that wait to be sent.
    queued: usize,
}

/// Where addresses come from.
#[derive(Debug)]
struct Addressing {
    dhcp: Option<SocketHandle>,
    routes: Vec<Route>,
    /// With the router of DHCP.
    in_use: Vec<Route>,
    dns: Vec<IpAddr>,
    /// Resolvers were given, and those of DHCP do not count.
    has_dns: bool,
}

/// Sockets without descriptors, threads and clocks. Calls do not wait. Times are those of one clock
/// of the caller's.
pub struct Stack<W> {
    pub(crate) device: Device<W>,
    interface: Interface,
    sockets: SocketSet<'static>,
    slots: Vec<Option<Slot>>,
    orphans: Orphans,
    /// Closed UDP sockets with datagrams that have not left, and until when they are there.
    leaving: Vec<(SocketHandle, Instant)>,
    addressing: Addressing,
    /// The address of the interface.
    mac: MacAddr,
    questions: Questions,
    random: Random,
    /// Counts connections of listening sockets that share a port.
    dealt: usize,
    buffer: usize,
    /// Bytes of an IP packet.
    mtu: usize,
    now: Instant,
}

impl<W> std::fmt::Debug for Stack<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = self.slots.iter().flatten().count();
        write!(f, "Stack with {used} sockets")
    }
}

fn cidr(network: Network) -> IpCidr {
    IpCidr::new(network.address.into(), network.prefix)
}

/// An address as programs have it; one without an address has that of the family.
fn address_of(endpoint: IpListenEndpoint) -> SocketAddr {
    let any = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
    SocketAddr::new(endpoint.addr.map_or(any, IpAddr::from), endpoint.port)
}

fn endpoint_of(address: SocketAddr) -> IpListenEndpoint {
    let ip = address.ip();
    IpListenEndpoint {
        addr: (!ip.is_unspecified()).then(|| ip.into()),
        port: address.port(),
    }
}

/// A time of the clock that the stack is given.
pub(crate) fn instant(now: Duration) -> Instant {
    Instant::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

impl Body {
    fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }
}

impl<W: Wire> Stack<W> {
    /// A stack with the settings of a plug-in.
    #[must_use]
    pub fn new(wire: W, config: &Config, random: Random, now: Duration) -> Self {
        let now = instant(now);
        let mut device = Device::new(wire, config.mtu, config.buffer);
        let mac = MacAddr(config.hardware_address());
        let address = HardwareAddress::Ethernet(EthernetAddress(mac.0));
        let mut settings = smoltcp::iface::Config::new(address);
        settings.random_seed = random();
        let mut interface = Interface::new(settings, &mut device, now);
        interface.update_ip_addrs(|addresses| {
            for network in &config.addresses {
                // The CLI and the library refuse more than there is room for.
                let _ = addresses.push(cidr(*network));
            }
        });
        let mut sockets = SocketSet::new(Vec::new());
        let is_given = !config.addresses.is_empty();
        let dhcp = (!is_given).then(|| sockets.add(dhcpv4::Socket::new()));
        let mut stack = Self {
            device,
            interface,
            sockets,
            slots: Vec::new(),
            orphans: Orphans::default(),
            leaving: Vec::new(),
            addressing: Addressing {
                dhcp,
                routes: config.routes.clone(),
                in_use: Vec::new(),
                dns: config.dns.clone(),
                has_dns: !config.dns.is_empty(),
            },
            mac,
            questions: Questions::default(),
            random,
            dealt: 0,
            buffer: config.buffer,
            mtu: config.mtu.into(),
            now,
        };
        stack.set_routes(None);
        stack
    }

    fn set_routes(&mut self, router: Option<IpAddress>) {
        let mut routes = self.addressing.routes.clone();
        if let Some(by) = router
            && let Ok(route) = Route::parse(&by.to_string())
        {
            routes.push(route);
        }
        self.addressing.in_use.clone_from(&routes);
        self.interface.routes_mut().update(|table| {
            table.clear();
            for route in routes {
                // As for addresses.
                let _ = table.push(smoltcp::iface::Route {
                    cidr: cidr(route.to),
                    via_router: route.by.into(),
                    preferred_until: None,
                    expires_at: None,
                });
            }
        });
    }

    /// Whether there is an address.
    pub(crate) fn has_address(&self) -> bool {
        !self.interface.ip_addrs().is_empty()
    }

    /// The addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Network> {
        self.interface.ip_addrs().iter().map(|cidr| Network {
            address: cidr.address().into(),
            prefix: cidr.prefix_len(),
        })
    }

    /// The resolvers.
    pub(crate) fn resolvers(&self) -> &[IpAddr] {
        &self.addressing.dns
    }

    /// Sees to it that the neighbour is asked for that a packet goes to.
    fn note_neighbour(&mut self, to: IpAddress) {
        let ways = (&self.interface, &self.addressing.in_use[..]);
        self.questions.note_packet(to, ways, self.now);
    }

    /// Handles the frames that have come, sends what there is to send, and counts events. `true`:
    /// something may have changed.
    pub fn poll(&mut self, now: Duration) -> bool {
        self.now = instant(now);
        self.interface.poll_maintenance(self.now);
        let from = (&self.interface, self.mac);
        self.questions.ask(&mut self.device.wire, from, self.now);
        options::mark_frames(&mut self.device.marks, &self.slots, &self.sockets);
        let mut has_changed = false;
        loop {
            let more = self.take_frames();
            has_changed |= more;
            if more {
                self.look_after_streams(Cause::Peer);
                self.fill_listeners();
                self.share_datagrams();
                while let Some(by) = self.device.take_answered() {
                    self.questions.answered(by);
                }
            }
            self.cork_streams();
            let sent = self
                .interface
                .poll_egress(self.now, &mut self.device, &mut self.sockets);
            let is_idle = !more && sent == PollResult::None;
            has_changed |= sent != PollResult::None;
            if is_idle {
                break;
            }
        }
        // A time limit ends a connection without a frame.
        has_changed |= self.look_after_streams(Cause::Time);
        has_changed |= self.look_after_datagrams();
        if has_changed {
            self.follow_dhcp();
            self.count_events();
        }
        has_changed
    }

    /// Takes a few frames. `true`: there were some.
    fn take_frames(&mut self) -> bool {
        for taken in 0..FRAMES {
            let result =
                self.interface
                    .poll_ingress_single(self.now, &mut self.device, &mut self.sockets);
            if result == PollIngressSingleResult::None {
                return taken > 0;
            }
        }
        true
    }

    /// Sets the bytes of each buffer of the connections that are opened from here on.
    pub fn set_buffer(&mut self, bytes: usize) {
        self.buffer = bytes;
    }

    /// The way of its frames.
    pub fn wire_mut(&mut self) -> &mut W {
        &mut self.device.wire
    }

    /// Time until the next call of [`Stack::poll`] without a frame. `None`: never.
    pub fn delay(&mut self, now: Duration) -> Option<Duration> {
        if !self.device.wire.has_room() {
            // The stack would send at once. The switch's call comes before, if it is alive.
            return Some(NO_ROOM);
        }
        let now = instant(now);
        let delay = self.interface.poll_delay(now, &self.sockets);
        let question = self.questions.due().map(|due| match due > now {
            true => due - now,
            false => smoltcp::time::Duration::ZERO,
        });
        let delay = [delay, question].into_iter().flatten().min();
        delay.map(|delay| Duration::from_micros(delay.total_micros()))
    }

    fn follow_dhcp(&mut self) {
        let Some(handle) = self.addressing.dhcp else {
            return;
        };
        let event = self.sockets.get_mut::<dhcpv4::Socket<'_>>(handle).poll();
        let (address, router, dns) = match event {
            None => return,
            Some(dhcpv4::Event::Deconfigured) => (None, None, Vec::new()),
            Some(dhcpv4::Event::Configured(lease)) => {
                let dns = lease.dns_servers.iter().copied().map(IpAddr::V4);
                (Some(lease.address), lease.router, dns.collect())
            }
        };
        self.interface.update_ip_addrs(|addresses| {
            addresses.clear();
            if let Some(address) = address {
                let _ = addresses.push(IpCidr::Ipv4(address));
            }
        });
        self.set_routes(router.map(IpAddress::Ipv4));
        if !self.addressing.has_dns {
            self.addressing.dns = dns;
        }
    }

    fn count_events(&mut self) {
        for id in 0..self.slots.len() {
            if self.slots[id].is_none() {
                continue;
            }
            let now = self.see(id);
            if let Some(socket) = &mut self.slots[id] {
                // What the program itself has done is seen by `note`.
                if now != socket.seen {
                    socket.changes += 1;
                    socket.seen = now;
                }
            }
        }
    }

    fn see(&self, id: Id) -> EventState {
        let Some(Some(socket)) = self.slots.get(id) else {
            return EventState::default();
        };
        let (received, queued) = match &socket.body {
            Body::Stream(stream) => stream.queues(&self.sockets),
            Body::Datagrams(datagrams) => datagrams.queues(&self.sockets),
        };
        EventState {
            events: self.events(id),
            received,
            queued,
        }
    }

    /// A change by a call is no event for the program that has made it.
    fn note(&mut self, id: Id) {
        let now = self.see(id);
        if let Some(Some(socket)) = self.slots.get_mut(id) {
            socket.seen = now;
        }
    }

    fn socket(&self, id: Id) -> Result<&Slot, Errno> {
        self.slots
            .get(id)
            .and_then(Option::as_ref)
            .ok_or(Errno::BADF)
    }

    fn socket_mut(&mut self, id: Id) -> Result<&mut Slot, Errno> {
        let slot = self.slots.get_mut(id);
        slot.and_then(Option::as_mut).ok_or(Errno::BADF)
    }

    fn insert(&mut self, body: Body, options: Options) -> Result<Id, Errno> {
        let free = self.slots.iter().position(Option::is_none);
        let id = free.unwrap_or(self.slots.len());
        if id >= MOST {
            return Err(Errno::MFILE);
        }
        let socket = Slot {
            body,
            bound: None,
            error: None,
            options,
            changes: 1,
            seen: EventState::default(),
        };
        match self.slots.get_mut(id) {
            Some(slot) => *slot = Some(socket),
            None => self.slots.push(Some(socket)),
        }
        self.note(id);
        Ok(id)
    }

    /// Opens a socket.
    ///
    /// # Errors
    /// `EMFILE`: there are too many.
    pub fn open(&mut self, kind: Kind) -> Result<Id, Errno> {
        let body = match kind {
            Kind::Stream => Body::Stream(Stream::Idle),
            Kind::Datagram => {
                let sizes = (self.buffer, self.buffer);
                let datagrams = Datagrams::new(&mut self.sockets, sizes);
                Body::Datagrams(datagrams)
            }
        };
        self.insert(body, Options::default())
    }

    /// Closes a socket. A connection ends by itself, after what was sent.
    pub fn close(&mut self, id: Id) {
        let Some(socket) = self.slots.get_mut(id).and_then(Option::take) else {
            return;
        };
        match socket.body {
            Body::Stream(stream) => self.close_stream(stream, socket.options.abort),
            Body::Datagrams(datagrams) => self.close_datagrams(&datagrams),
        }
    }

    /// Closes all sockets. `true` when nothing is left to send.
    pub(crate) fn close_all(&mut self) -> bool {
        for id in 0..self.slots.len() {
            self.close(id);
        }
        self.orphans.are_done(&self.sockets) && self.leaving.is_empty()
    }

    /// bind(2).
    ///
    /// # Errors
    /// `EINVAL`: it is bound already. `EADDRNOTAVAIL`, `EADDRINUSE`.
    pub(crate) fn bind(&mut self, id: Id, address: SocketAddr) -> Result<(), Errno> {
        let mut endpoint = endpoint_of(address);
        let socket = self.socket(id)?;
        let is_stream = socket.body.is_stream();
        if socket.bound.is_some() {
            return Err(Errno::INVAL);
        }
        if let Some(own) = endpoint.addr
            && !own.is_multicast()
            && !self.interface.has_ip_addr(own)
        {
            return Err(Errno::ADDRNOTAVAIL);
        }
        if endpoint.port == 0 {
            endpoint.port = self.free_port(is_stream)?;
        } else if self.is_taken(id, endpoint)? {
            return Err(Errno::ADDRINUSE);
        }
        let socket = self.socket_mut(id)?;
        socket.bound = Some(endpoint);
        if let Body::Datagrams(datagrams) = &socket.body {
            let handle = datagrams.handle;
            Datagrams::bind(&mut self.sockets, handle, endpoint)?;
        }
        self.note(id);
        Ok(())
    }

    /// Whether another socket has a port.
    pub(super) fn is_taken(&self, id: Id, endpoint: IpListenEndpoint) -> Result<bool, Errno> {
        let own = self.socket(id)?;
        let (is_stream, place) = (own.body.is_stream(), (endpoint, own.options.only));
        let others = self.slots.iter().enumerate();
        let mut others = others.filter(|(other, _)| *other != id);
        Ok(others.any(|(_, other)| {
            let at_it = other.as_ref().filter(|other| other.is_at(is_stream, place));
            at_it.is_some_and(|other| !other.shares(&own.options))
        }))
    }

    /// A port that no socket has: any of them, so that one who knows others cannot guess it.
    fn free_port(&self, is_stream: bool) -> Result<u16, Errno> {
        let (first, last) = PORTS;
        let count = last - first + 1;
        let start = ((self.random)() % u64::from(count)) as u16;
        let is_free = |port: &u16| {
            let has = |socket: &Slot| {
                socket.body.is_stream() == is_stream
                    && socket.bound.is_some_and(|bound| bound.port == *port)
            };
            let is_orphans = is_stream && self.orphans.have(&self.sockets, *port);
            !self.slots.iter().flatten().any(has) && !is_orphans
        };
        let mut ports = (0..count).map(|n| first + (start + n) % count);
        ports.find(is_free).ok_or(Errno::ADDRINUSE)
    }

    /// connect(2); of TCP, its beginning: `EINPROGRESS`.
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn connect(&mut self, id: Id, to: SocketAddr) -> Result<(), Errno> {
        let result = match self.socket(id)?.body {
            Body::Stream(_) => self.connect_stream(id, to),
            Body::Datagrams(_) => self.connect_datagrams(id, to),
        };
        self.note(id);
        result
    }

    /// Takes a connected UDP socket's peer away (`AF_UNSPEC`).
    pub(crate) fn disconnect(&mut self, id: Id) -> Result<(), Errno> {
        match &mut self.socket_mut(id)?.body {
            Body::Stream(_) => Err(Errno::AFNOSUPPORT),
            Body::Datagrams(datagrams) => {
                datagrams.peer = None;
                Ok(())
            }
        }
    }

    /// sendto(2).
    ///
    /// # Errors
    /// Those of sendto(2); `EAGAIN`: no room.
    pub fn send(&mut self, id: Id, bytes: &[u8], to: Option<SocketAddr>) -> Result<usize, Errno> {
        let result = match self.socket(id)?.body {
            Body::Stream(_) => self.send_stream(id, bytes),
            Body::Datagrams(_) => self.send_datagram(id, bytes, to),
        };
        self.note(id);
        result
    }

    /// recvfrom(2); `peek`: what is received stays.
    ///
    /// # Errors
    /// Those of recvfrom(2); `EAGAIN`: nothing is there.
    pub fn receive(
        &mut self,
        id: Id,
        bytes: &mut [u8],
        peek: bool,
    ) -> Result<ReceivedBytes, Errno> {
        let result = match self.socket(id)?.body {
            Body::Stream(_) => self.receive_stream(id, bytes, peek),
            Body::Datagrams(_) => self.receive_datagram(id, bytes, peek),
        };
        self.note(id);
        result
    }

    /// Bytes that can be received at once (`FIONREAD`), and bytes that wait to be sent.
    pub(crate) fn queued(&self, id: Id) -> (usize, usize) {
        let seen = self.see(id);
        (seen.received, seen.queued)
    }

    /// shutdown(2).
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub(crate) fn shutdown(&mut self, id: Id, reads: bool, writes: bool) -> Result<(), Errno> {
        let result = match &mut self.socket_mut(id)?.body {
            Body::Stream(_) => self.shutdown_stream(id, reads, writes),
            Body::Datagrams(datagrams) => datagrams.shutdown(reads, writes),
        };
        self.note(id);
        result
    }

    /// The events of poll(2) that a socket has.
    #[must_use]
    pub fn events(&self, id: Id) -> i16 {
        let Ok(socket) = self.socket(id) else {
            return libc::POLLNVAL;
        };
        let events = match &socket.body {
            Body::Stream(stream) => stream.events(&self.sockets),
            Body::Datagrams(datagrams) => datagrams.events(&self.sockets),
        };
        match socket.error {
            Some(_) => events | POLLERR | libc::POLLIN | libc::POLLOUT,
            None => events,
        }
    }

    /// The events of a socket that a wait for `requested` is over for.
    pub(crate) fn ready(&self, id: Id, requested: i16) -> i16 {
        let both = requested
            | if requested & libc::POLLRDNORM != 0 {
                libc::POLLIN
            } else {
                0
            }
            | if requested & libc::POLLWRNORM != 0 {
                libc::POLLOUT
            } else {
                0
            };
        let mut found = self.events(id) & (both | POLLERR | POLLHUP | libc::POLLNVAL);
        if found & libc::POLLIN != 0 {
            found |= requested & libc::POLLRDNORM;
        }
        if found & libc::POLLOUT != 0 {
            found |= requested & libc::POLLWRNORM;
        }
        found & (requested | POLLERR | POLLHUP | libc::POLLNVAL)
    }

    /// Number of events of a socket so far.
    pub(crate) fn changes(&self, id: Id) -> u64 {
        self.socket(id).map_or(0, |socket| socket.changes)
    }

    /// Takes the error of a socket (`SO_ERROR`).
    pub fn take_error(&mut self, id: Id) -> Option<Errno> {
        let error = self.socket_mut(id).ok()?.error.take();
        self.note(id);
        error
    }

    /// getsockname(2).
    pub(crate) fn local(&self, id: Id) -> Result<SocketAddr, Errno> {
        let socket = self.socket(id)?;
        let own = match &socket.body {
            Body::Stream(stream) => stream.local(&self.sockets),
            Body::Datagrams(datagrams) => datagrams.local(socket.bound, &self.interface),
        };
        let nothing = IpListenEndpoint::default();
        let listens = || address_of(socket.bound.unwrap_or(nothing));
        Ok(own.map_or_else(listens, SocketAddr::from))
    }

    /// getpeername(2).
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub(crate) fn peer(&self, id: Id) -> Result<SocketAddr, Errno> {
        let peer: Option<IpEndpoint> = match &self.socket(id)?.body {
            Body::Stream(stream) => stream.peer(&self.sockets),
            Body::Datagrams(datagrams) => datagrams.peer,
        };
        peer.map(SocketAddr::from).ok_or(Errno::NOTCONN)
    }

    /// The state of a connection, as Linux numbers it; of UDP that without one.
    pub(crate) fn state(&self, id: Id) -> u8 {
        match self.socket(id).map(|socket| &socket.body) {
            Ok(Body::Stream(stream)) => stream.number(&self.sockets),
            _ => Stream::Idle.number(&self.sockets),
        }
    }

    /// The options of a socket.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn options(&self, id: Id) -> Result<Options, Errno> {
        self.socket(id).map(|socket| socket.options)
    }

    /// Sets the options of a socket.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_options(&mut self, id: Id, options: Options) -> Result<(), Errno> {
        let socket = self.socket_mut(id)?;
        let before = std::mem::replace(&mut socket.options, options);
        let is_bound = socket.bound.is_some();
        let sizes = self.sizes(&options);
        let Self { slots, sockets, .. } = self;
        match slots[id].as_mut().map(|socket| &mut socket.body) {
            Some(Body::Stream(stream)) => {
                if let Some(handle) = stream.connection() {
                    streams::apply(sockets, handle, &options);
                }
            }
            Some(Body::Datagrams(socket)) => {
                if before.buffers != options.buffers && !is_bound {
                    drop(sockets.remove(socket.handle));
                    *socket = datagrams::Datagrams::new(sockets, sizes);
                }
                datagrams::apply(sockets, socket.handle, &options);
            }
            None => {}
        }
        self.device.is_scaled |= sizes.0 > u16::MAX.into();
        options::mark_frames(&mut self.device.marks, &self.slots, &self.sockets);
        Ok(())
    }

    /// Bytes of the buffers of a socket with these options that is connected or bound from here on:
    /// for what is received, and for what is sent.
    pub(super) fn sizes(&self, options: &Options) -> (usize, usize) {
        let (receives, sends) = options.buffers;
        (
            receives.unwrap_or(self.buffer),
            sends.unwrap_or(self.buffer),
        )
    }

    /// Bytes of the buffers that a socket has.
    pub(crate) fn buffers(&self, id: Id) -> (usize, usize) {
        let Ok(socket) = self.socket(id) else {
            return (0, 0);
        };
        match &socket.body {
            Body::Stream(stream) => match stream.connection() {
                Some(handle) => {
                    let socket = self.sockets.get::<tcp::Socket<'_>>(handle);
                    (socket.recv_capacity(), socket.send_capacity())
                }
                None => self.sizes(&socket.options),
            },
            Body::Datagrams(datagrams) => {
                let socket = self.sockets.get::<udp::Socket<'_>>(datagrams.handle);
                let sends = socket.payload_send_capacity();
                (socket.payload_recv_capacity(), sends)
            }
        }
    }

    /// Bytes that can be sent at once.
    pub(crate) fn room(&self, id: Id) -> usize {
        let queued = self.queued(id).1;
        self.buffers(id).1.saturating_sub(queued)
    }

    /// Whether a socket listens.
    pub(crate) fn listens(&self, id: Id) -> bool {
        self.socket(id).is_ok_and(Slot::listens)
    }

    /// Whether a socket is TCP and has no connection and no place yet.
    pub(crate) fn is_fresh(&self, id: Id) -> bool {
        self.socket(id).is_ok_and(|socket| {
            let is_idle = match &socket.body {
                Body::Stream(stream) => matches!(stream, Stream::Idle),
                Body::Datagrams(datagrams) => datagrams.peer.is_none(),
            };
            is_idle && socket.bound.is_none()
        })
    }
}

impl Slot {
    fn listens(&self) -> bool {
        matches!(&self.body, Body::Stream(Stream::Listening(_)))
    }
}
