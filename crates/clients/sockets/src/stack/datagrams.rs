//! UDP.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;

use libc::{POLLHUP, POLLIN, POLLOUT, POLLRDHUP};
use rustix::io::Errno;
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::socket::udp::{self, PacketBuffer, PacketMetadata};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{IpAddress, IpEndpoint, IpListenEndpoint};

use super::{Body, Id, Options, ReceivedBytes, Slot, Stack};
use crate::device::Wire;

/// Datagrams that a buffer holds.
const DATAGRAMS: usize = 256;
/// Time for a datagram to leave. A neighbour that is not there has not answered three questions
/// then, and what waits for it, and all after it, is lost.
const LEAVES: Duration = Duration::from_secs(3);
/// Closed sockets with datagrams that have not left, at most: the oldest is forgotten.
const MOST_LEAVING: usize = 64;

/// A UDP socket.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) handle: SocketHandle,
    /// The only sender that counts, and the receiver of what is sent without an address.
    pub(super) peer: Option<IpEndpoint>,
    /// Shut down for reading, and for writing.
    is_shut: (bool, bool),
    /// Bytes that were given to the stack.
    given: usize,
    /// Bytes of them that have left, and when that was seen; none: no datagram waits.
    left: Option<(usize, Instant)>,
    /// Received by the stack before it lost what waited, or for another socket of the port.
    early: VecDeque<(IpEndpoint, Vec<u8>)>,
}

/// Applies options to a socket of the stack.
pub(super) fn apply(sockets: &mut SocketSet<'_>, handle: SocketHandle, options: &Options) {
    let hop_limit = (options.hop_limit > 0).then_some(options.hop_limit);
    let socket = sockets.get_mut::<udp::Socket<'_>>(handle);
    socket.set_hop_limit(hop_limit);
}

impl Datagrams {
    /// One with these sizes of the receive and send buffers, in bytes.
    pub(super) fn new(sockets: &mut SocketSet<'static>, (receives, sends): (usize, usize)) -> Self {
        let room = |bytes| {
            let metadata = vec![PacketMetadata::EMPTY; DATAGRAMS];
            PacketBuffer::new(metadata, vec![0; bytes])
        };
        Self {
            handle: sockets.add(udp::Socket::new(room(receives), room(sends))),
            peer: None,
            is_shut: (false, false),
            given: 0,
            left: None,
            early: VecDeque::new(),
        }
    }

    /// Adds a datagram that the stack has given to another socket of the port. One that has many
    /// loses it.
    pub(super) fn add(&mut self, from: IpEndpoint, payload: Vec<u8>) {
        if self.early.len() < DATAGRAMS {
            self.early.push_back((from, payload));
        }
    }

    /// Loses what waits for a neighbour that is not there. `true`: it has.
    fn look_after(
        &mut self,
        sockets: &mut SocketSet<'static>,
        bound: Option<IpListenEndpoint>,
        now: Instant,
    ) -> bool {
        let socket = sockets.get_mut::<udp::Socket<'_>>(self.handle);
        if socket.send_queue() == 0 {
            self.left = None;
            return false;
        }
        // The queue has padding in it at times.
        let left = self.given.saturating_sub(socket.send_queue());
        match self.left {
            Some((before, since)) if left <= before => {
                if now < since + LEAVES {
                    return false;
                }
            }
            _ => {
                self.left = Some((left, now));
                return false;
            }
        }
        // The stack has no way to lose the one without what was received.
        while self.early.len() < DATAGRAMS
            && let Ok((payload, metadata)) = socket.recv()
        {
            self.early.push_back((metadata.endpoint, payload.to_vec()));
        }
        socket.close();
        // The port was bound before, and is not 0.
        let _ = bound.map(|bound| socket.bind(bound));
        self.left = None;
        true
    }

    pub(super) fn bind(
        sockets: &mut SocketSet<'_>,
        handle: SocketHandle,
        endpoint: IpListenEndpoint,
    ) -> Result<(), Errno> {
        let socket = sockets.get_mut::<udp::Socket<'_>>(handle);
        socket.bind(endpoint).map_err(|_| Errno::INVAL)
    }

    fn of<'a>(&self, sockets: &'a SocketSet<'static>) -> &'a udp::Socket<'static> {
        sockets.get(self.handle)
    }

    pub(super) fn queues(&self, sockets: &SocketSet<'static>) -> (usize, usize) {
        let socket = self.of(sockets);
        let early = self.early.iter().map(|(_, payload)| payload.len());
        let early: usize = early.sum();
        (early + socket.recv_queue(), socket.send_queue())
    }

    pub(super) fn events(&self, sockets: &SocketSet<'static>) -> i16 {
        let socket = self.of(sockets);
        let mut events = 0;
        if socket.can_recv() || !self.early.is_empty() || self.is_shut.0 {
            events |= POLLIN;
        }
        // With half of the buffer there is room for a datagram, wherever in it the room lies.
        let room = socket.payload_send_capacity() - socket.send_queue();
        if socket.can_send() && room >= socket.payload_send_capacity() / 2 {
            events |= POLLOUT;
        }
        match self.is_shut {
            (true, true) => events | POLLHUP | POLLRDHUP,
            (true, false) => events | POLLRDHUP,
            _ => events,
        }
    }

    pub(super) fn shutdown(&mut self, reads: bool, writes: bool) -> Result<(), Errno> {
        self.is_shut.0 |= reads;
        self.is_shut.1 |= writes;
        self.peer.map(drop).ok_or(Errno::NOTCONN)
    }

    /// Of a connected socket, the address that its datagrams come from.
    pub(super) fn local(
        &self,
        bound: Option<IpListenEndpoint>,
        interface: &Interface,
    ) -> Option<IpEndpoint> {
        let bound = bound?;
        let own = bound
            .addr
            .or_else(|| interface.get_source_address(&self.peer?.addr))?;
        Some(IpEndpoint::new(own, bound.port))
    }
}

impl<W: Wire> Stack<W> {
    fn datagrams(&self, id: Id) -> Result<&Datagrams, Errno> {
        match &self.socket(id)?.body {
            Body::Datagrams(datagrams) => Ok(datagrams),
            Body::Stream(_) => Err(Errno::OPNOTSUPP),
        }
    }

    /// Gives a socket a port, if it has none.
    fn give_port(&mut self, id: Id) -> Result<(), Errno> {
        if self.socket(id)?.bound.is_some() {
            return Ok(());
        }
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        self.bind(id, any)
    }

    pub(super) fn connect_datagrams(&mut self, id: Id, to: SocketAddr) -> Result<(), Errno> {
        let to = IpEndpoint::from(to);
        if to.port == 0 {
            return Err(Errno::INVAL);
        }
        if self.interface.get_source_address(&to.addr).is_none() {
            return Err(Errno::NETUNREACH);
        }
        self.give_port(id)?;
        if let Body::Datagrams(datagrams) = &mut self.socket_mut(id)?.body {
            datagrams.peer = Some(to);
        }
        Ok(())
    }

    pub(super) fn send_datagram(
        &mut self,
        id: Id,
        bytes: &[u8],
        to: Option<SocketAddr>,
    ) -> Result<usize, Errno> {
        let datagrams = self.datagrams(id)?;
        if datagrams.is_shut.1 {
            return Err(Errno::PIPE);
        }
        let handle = datagrams.handle;
        let to = to.map(IpEndpoint::from).or(datagrams.peer);
        let to = to.ok_or(Errno::DESTADDRREQ)?;
        if to.port == 0 {
            return Err(Errno::INVAL);
        }
        let is_broadcast = matches!(to.addr, IpAddress::Ipv4(address) if address.is_broadcast());
        if is_broadcast && !self.options(id)?.broadcast {
            return Err(Errno::ACCESS);
        }
        if self.interface.get_source_address(&to.addr).is_none() {
            return Err(Errno::NETUNREACH);
        }
        // There are no fragments.
        let headers = if to.addr.version() == smoltcp::wire::IpVersion::Ipv4 {
            28
        } else {
            48
        };
        let buffer = self.sockets.get::<udp::Socket<'_>>(handle);
        if bytes.len() + headers > self.mtu || bytes.len() > buffer.payload_send_capacity() {
            return Err(Errno::MSGSIZE);
        }
        self.give_port(id)?;
        let socket = self.sockets.get_mut::<udp::Socket<'_>>(handle);
        socket.send_slice(bytes, to).map_err(|error| match error {
            udp::SendError::BufferFull => Errno::AGAIN,
            udp::SendError::Unaddressable => Errno::NETUNREACH,
        })?;
        self.note_neighbour(to.addr);
        if let Body::Datagrams(datagrams) = &mut self.socket_mut(id)?.body {
            datagrams.given = datagrams.given.wrapping_add(bytes.len());
        }
        Ok(bytes.len())
    }

    /// Closes a socket, when all that was sent has left.
    pub(super) fn close_datagrams(&mut self, datagrams: &Datagrams) {
        let handle = datagrams.handle;
        if self.sockets.get::<udp::Socket<'_>>(handle).send_queue() == 0 {
            return drop(self.sockets.remove(handle));
        }
        self.leaving.push((handle, self.now + LEAVES));
        if self.leaving.len() > MOST_LEAVING {
            let (oldest, _) = self.leaving.remove(0);
            drop(self.sockets.remove(oldest));
        }
    }

    /// Loses datagrams that cannot leave. `true`: there were some.
    pub(super) fn look_after_datagrams(&mut self) -> bool {
        let (sockets, now) = (&mut self.sockets, self.now);
        self.leaving.retain(|(handle, until)| {
            let waits = sockets.get::<udp::Socket<'_>>(*handle).send_queue() > 0;
            let stays = waits && now < *until;
            if !stays {
                drop(sockets.remove(*handle));
            }
            stays
        });
        let mut has_changed = false;
        for socket in self.slots.iter_mut().flatten() {
            if let Body::Datagrams(datagrams) = &mut socket.body {
                let bound = socket.bound;
                has_changed |= datagrams.look_after(&mut self.sockets, bound, self.now);
            }
        }
        has_changed
    }

    pub(super) fn receive_datagram(
        &mut self,
        id: Id,
        bytes: &mut [u8],
        peek: bool,
    ) -> Result<ReceivedBytes, Errno> {
        if let Some(error) = self.socket_mut(id)?.error.take() {
            return Err(error);
        }
        let only = self.options(id)?.only;
        let Self { slots, sockets, .. } = self;
        let slot = slots.get_mut(id).and_then(Option::as_mut);
        let Some(Body::Datagrams(datagrams)) = slot.map(|slot| &mut slot.body) else {
            return Err(Errno::OPNOTSUPP);
        };
        let socket = sockets.get_mut::<udp::Socket<'_>>(datagrams.handle);
        loop {
            let early = datagrams.early.front();
            let is_early = early.is_some();
            let next = match early {
                Some((from, payload)) => Some((payload.as_slice(), *from)),
                None => socket
                    .peek()
                    .ok()
                    .map(|(payload, metadata)| (payload, metadata.endpoint)),
            };
            let Some((payload, from)) = next else {
                let nothing = ReceivedBytes {
                    len: 0,
                    whole: 0,
                    from: None,
                };
                return if datagrams.is_shut.0 {
                    Ok(nothing)
                } else {
                    Err(Errno::AGAIN)
                };
            };
            let is_of_family = only.is_none_or(|only| only == from.addr.version());
            let is_heard = is_of_family && datagrams.peer.is_none_or(|peer| peer == from);
            let len = payload.len().min(bytes.len());
            let received = ReceivedBytes {
                len,
                whole: payload.len(),
                from: Some(from.into()),
            };
            bytes[..len].copy_from_slice(&payload[..len]);
            if !is_heard || !peek {
                // It is there: it was looked at.
                if is_early {
                    datagrams.early.pop_front();
                } else {
                    let _ = socket.recv();
                }
            }
            if is_heard {
                return Ok(received);
            }
        }
    }

    /// Gives datagrams of a port that several sockets have to that one which they are for: the
    /// stack gives all to the first.
    pub(super) fn share_datagrams(&mut self) {
        for id in 0..self.slots.len() {
            let Some((handle, port)) = self.shared_port(id) else {
                continue;
            };
            loop {
                let socket = self.sockets.get_mut::<udp::Socket<'_>>(handle);
                let Ok((payload, metadata)) = socket.recv() else {
                    break;
                };
                let (from, local) = (metadata.endpoint, metadata.local_address);
                let payload = payload.to_vec();
                let to = self.receiver((port, local), from).unwrap_or(id);
                let body = self.slots[to].as_mut().map(|socket| &mut socket.body);
                if let Some(Body::Datagrams(datagrams)) = body {
                    datagrams.add(from, payload);
                }
            }
        }
    }

    /// The socket of the stack, and the port, of a UDP socket that has received something and is
    /// not alone there.
    fn shared_port(&self, id: Id) -> Option<(SocketHandle, u16)> {
        let has = |socket: &Slot| match (&socket.body, socket.bound) {
            (Body::Datagrams(datagrams), Some(bound)) => Some((datagrams.handle, bound.port)),
            _ => None,
        };
        let own = self.slots[id].as_ref()?;
        // Sockets of one family each can have a port without these options.
        let options = &own.options;
        let is_shared = options.reuse_address || options.reuse_port || options.only.is_some();
        let (handle, port) = has(own).filter(|_| is_shared)?;
        if !self.sockets.get::<udp::Socket<'_>>(handle).can_recv() {
            return None;
        }
        let all = self.slots.iter().flatten().filter_map(has);
        (all.filter(|(_, other)| *other == port).count() > 1).then_some((handle, port))
    }

    /// The UDP socket that a datagram is for: one that is connected to its sender, else one at its
    /// address, else one at all; of several one by the sender, or the last.
    fn receiver(&self, (port, local): (u16, Option<IpAddress>), from: IpEndpoint) -> Option<Id> {
        let score = |socket: &Slot| {
            let Body::Datagrams(datagrams) = &socket.body else {
                return None;
            };
            let bound = socket.bound.filter(|bound| bound.port == port)?;
            let is_here = bound.addr.is_none() || local.is_none() || bound.addr == local;
            let is_of_family = socket
                .options
                .only
                .is_none_or(|only| only == from.addr.version());
            let is_heard = datagrams.peer.is_none_or(|peer| peer == from);
            let score = 2 * u8::from(datagrams.peer.is_some()) + u8::from(bound.addr.is_some());
            (is_here && is_of_family && is_heard).then_some(score)
        };
        let all = self.slots.iter().enumerate();
        let scored = all.filter_map(|(id, socket)| Some((id, score(socket.as_ref()?)?)));
        let scored: Vec<_> = scored.collect();
        let best = scored.iter().map(|(_, score)| *score).max()?;
        let best = scored.iter().filter(|(_, score)| *score == best);
        let best: Vec<_> = best.map(|(id, _)| *id).collect();
        let options = |id: &Id| self.slots[*id].as_ref().map(|socket| socket.options);
        let all_by_port = best
            .iter()
            .all(|id| options(id).is_some_and(|options| options.reuse_port));
        if !all_by_port {
            return best.last().copied();
        }
        let mut hasher = DefaultHasher::new();
        from.hash(&mut hasher);
        let at = hasher.finish() % best.len() as u64;
        best.get(at as usize).copied()
    }
}
