//! DNS: guests' questions, and those of them that are at resolvers.
//!
//! A connection of a guest to the DNS server ends here, so that names of ports are answered by TCP,
//! too, and each question goes to a resolver by itself.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketType, bind, connect, recv, send};
use usernet::network::Network;
use usernet::services::Client;
use usernet::services::dns::{
    self, Answered, Ask, Asker, Forwarder, MalformedError, Query, Ticket, Transport, Zone,
};
use usernet::{Failure, FlowId, Nanos, Peek, Peeked, SocketEvent};
use wire::MacAddr;
use wire::build::PacketBuilder;

use super::events::{Kind, Tag};
use super::host_ports::HostPorts;
use super::memory::Bytes;
use super::random;
use super::streams::Streams;

/// Room for an answer of any length.
const ANSWER: usize = 1 << 16;
const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// An answer to a guest.
#[derive(Debug)]
pub(super) enum Reply {
    /// A frame.
    Frame(Vec<u8>),
    /// Reports of the stream of a connection.
    Stream(FlowId, Vec<SocketEvent>),
}

/// The way to a resolver.
#[derive(Debug)]
enum Way {
    Udp,
    /// The rest of the question, and the part of the answer that has come.
    Tcp(Vec<u8>, dns::Stream),
}

/// A question at a resolver, with its socket.
#[derive(Debug)]
struct Question {
    fd: OwnedFd,
    way: Way,
    ticket: Ticket,
    server: SocketAddr,
    serial: u32,
}

impl Question {
    /// Sends what is left and reads what has come; returns an answer that is whole.
    ///
    /// # Errors
    /// The resolver cannot be asked.
    fn advance(&mut self) -> Result<Option<Vec<u8>>, Errno> {
        let mut bytes = vec![0; ANSWER];
        let waits = |error| match error {
            Errno::AGAIN | Errno::INTR => Ok(None),
            error => Err(error),
        };
        let (question, answer) = match &mut self.way {
            Way::Udp => {
                return match recv(&self.fd, &mut bytes[..], RecvFlags::DONTWAIT) {
                    Ok((len, _)) => Ok(Some(bytes[..len].to_vec())),
                    Err(error) => waits(error),
                };
            }
            Way::Tcp(question, answer) => (question, answer),
        };
        while !question.is_empty() {
            match send(&self.fd, question, FLAGS) {
                Ok(sent) => drop(question.drain(..sent)),
                Err(error) => return waits(error),
            }
        }
        loop {
            if let Some(message) = answer.message().map_err(|_| Errno::PROTO)? {
                return Ok(Some(message));
            }
            let room = answer.room().min(ANSWER);
            match recv(&self.fd, &mut bytes[..room], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Errno::CONNRESET),
                Ok((len, _)) => answer.push(&bytes[..len]).map_err(|_| Errno::PROTO)?,
                Err(error) => return waits(error),
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Questions {
    epoll: OwnedFd,
    network: Network,
    ports: HostPorts,
    zone: Zone,
    forwarder: Forwarder,
    open: HashMap<u32, Question>,
    tickets: HashMap<Ticket, u32>,
    next: u32,
    streams: Streams,
    /// Questions of guests so far.
    pub(super) asked: u64,
}

impl Questions {
    /// Answers from `zone`, and from resolvers.
    pub(super) fn new(
        epoll: OwnedFd,
        (network, ports): (Network, HostPorts),
        zone: Zone,
        resolvers: Vec<SocketAddr>,
    ) -> Self {
        Self {
            epoll,
            network,
            ports,
            zone,
            forwarder: Forwarder::new(&network, resolvers),
            open: HashMap::new(),
            tickets: HashMap::new(),
            next: 0,
            streams: Streams::default(),
            asked: 0,
        }
    }

    /// Changes names and resolvers.
    pub(super) fn set(&mut self, zone: Zone, resolvers: Vec<SocketAddr>) {
        self.zone = zone;
        self.forwarder.set_servers(resolvers);
    }

    /// Handles a guest's message by UDP.
    pub(super) fn ask(&mut self, client: Client, message: &[u8], now: Nanos) -> Option<Reply> {
        let answer = self.question(Asker::Udp(client), message, now).ok()??;
        frame(&self.network, client, &answer).map(Reply::Frame)
    }

    /// Handles a message; returns the answer, if there is one already.
    fn question(
        &mut self,
        asker: Asker,
        message: &[u8],
        now: Nanos,
    ) -> Result<Option<Vec<u8>>, MalformedError> {
        self.asked += 1;
        let query = match Query::parse(message)? {
            Ok(query) => query,
            Err(message) => return Ok(Some(message)),
        };
        if let Some(message) = self.zone.answer(&self.network, &query) {
            return Ok(Some(message));
        }
        let answered = match self.forwarder.ask(asker, query, random(), now) {
            Ok(ask) => self.send(ask, now),
            Err(answered) => Some(answered),
        };
        Ok(answered.map(|answered| answered.message))
    }

    fn answer(&mut self, answered: Option<Answered>, now: Nanos) -> Option<Reply> {
        let Answered { asker, message } = answered?;
        match asker {
            Asker::Udp(client) => frame(&self.network, client, &message).map(Reply::Frame),
            Asker::Tcp(number, _) => {
                let flow = self.streams.answered(number, &message, now)?;
                Some(Reply::Stream(flow, self.advance(flow, now)))
            }
        }
    }

    /// Asks a resolver, and the next ones if that fails; returns the answer of a failure of all.
    fn send(&mut self, mut ask: Ask, now: Nanos) -> Option<Answered> {
        while self.send_one(&ask).is_err() {
            self.close(ask.ticket);
            ask = match self.forwarder.failed(ask.ticket, random(), now) {
                Ok(next) => next,
                Err(answered) => return answered,
            };
        }
        None
    }

    fn send_one(&mut self, ask: &Ask) -> Result<(), Errno> {
        let (fd, way, events) = match ask.transport {
            Transport::Udp(port) => {
                let fd = self.ports.open(ask.server.ip(), SocketType::DGRAM)?;
                let any: IpAddr = match ask.server {
                    SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                // Where the port is taken, the system chooses one, which is random, too.
                let _ = bind(&fd, &SocketAddr::new(any, port));
                connect(&fd, &ask.server)?;
                send(&fd, &ask.message, FLAGS)?;
                (fd, Way::Udp, EventFlags::IN)
            }
            Transport::Tcp => {
                let fd = self.ports.open(ask.server.ip(), SocketType::STREAM)?;
                match connect(&fd, &ask.server) {
                    Ok(()) | Err(Errno::INPROGRESS) => {}
                    Err(error) => return Err(error),
                }
                let message = dns::framed(&ask.message).ok_or(Errno::MSGSIZE)?;
                let edges = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
                (fd, Way::Tcp(message, dns::Stream::default()), edges)
            }
        };
        let serial = self.next;
        self.next = self.next.wrapping_add(1);
        let tag = Tag::new(Kind::Question, serial, serial);
        epoll::add(&self.epoll, &fd, tag.data(), events)?;
        self.tickets.insert(ask.ticket, serial);
        let question = Question {
            fd,
            way,
            ticket: ask.ticket,
            server: ask.server,
            serial: tag.serial(),
        };
        self.open.insert(serial, question);
        Ok(())
    }

    fn close(&mut self, ticket: Ticket) {
        if let Some(serial) = self.tickets.remove(&ticket) {
            self.open.remove(&serial);
        }
    }

    /// Handles an event of the socket of a question.
    pub(super) fn event(&mut self, tag: Tag, now: Nanos) -> Option<Reply> {
        let question = self.open.get_mut(&tag.index());
        let question = question.filter(|question| question.serial == tag.serial())?;
        let (ticket, server) = (question.ticket, question.server);
        let is_udp = matches!(question.way, Way::Udp);
        let answered = match question.advance() {
            Ok(None) => return None,
            Ok(Some(message)) => match self.forwarder.answer(ticket, server, &message) {
                Ok(answered) => Some(answered),
                // What is no answer to the question is not waited for any less: by UDP it may have
                // come from elsewhere.
                Err(_) if is_udp => return None,
                Err(_) => self.failed(ticket, now),
            },
            Err(_) => self.failed(ticket, now),
        };
        self.close(ticket);
        self.answer(answered, now)
    }

    /// Asks the next resolver; returns the answer if there is none.
    fn failed(&mut self, ticket: Ticket, now: Nanos) -> Option<Answered> {
        match self.forwarder.failed(ticket, random(), now) {
            Ok(next) => self.send(next, now),
            Err(answered) => answered,
        }
    }

    /// When [`Self::expired`] has something next.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        let all = [self.forwarder.deadline(), self.streams.deadline()];
        all.into_iter().flatten().min()
    }

    /// Ends questions whose time is over, or asks the next resolver; ends connections that are
    /// idle.
    pub(super) fn expired(&mut self, now: Nanos) -> Vec<Reply> {
        let mut replies = Vec::new();
        while let Some((ticket, next)) = self.forwarder.expired(random(), now) {
            self.close(ticket);
            let answered = match next {
                Ok(ask) => self.send(ask, now),
                Err(answered) => Some(answered),
            };
            replies.extend(self.answer(answered, now));
        }
        let idle = self.streams.expired(now).into_iter();
        replies.extend(idle.map(|(flow, event)| Reply::Stream(flow, vec![event])));
        replies
    }

    /// A guest connects to the DNS server; returns the bytes that it may send.
    ///
    /// # Errors
    /// There are too many connections.
    pub(super) fn connect(
        &mut self,
        flow: FlowId,
        station: MacAddr,
        now: Nanos,
    ) -> Result<u32, Failure> {
        let opened = self.streams.open(flow, station, now);
        opened.ok_or(Failure::Descriptors)
    }

    /// Returns whether there is a connection or a question at a resolver.
    #[cfg(test)]
    pub(super) fn has_any(&self) -> bool {
        !self.open.is_empty() || !self.streams.is_empty()
    }

    /// Returns whether a flow is a connection to the DNS server.
    pub(super) fn has(&self, flow: FlowId) -> bool {
        self.streams.has(flow)
    }

    /// Takes bytes of a guest's questions.
    pub(super) fn take(&mut self, flow: FlowId, bytes: Bytes, now: Nanos) -> Vec<SocketEvent> {
        let Some(taken) = self.streams.take(flow, bytes, now) else {
            return vec![SocketEvent::Reset];
        };
        let more = self.advance(flow, now);
        let room = self.streams.room(flow);
        let mut events = vec![SocketEvent::Sent { taken, room }];
        events.extend(more);
        events
    }

    /// Answers questions that are whole, as many as may wait.
    fn advance(&mut self, flow: FlowId, now: Nanos) -> Vec<SocketEvent> {
        loop {
            let (asker, message) = match self.streams.next(flow) {
                Ok(Some(next)) => next,
                Ok(None) => return self.streams.news(flow),
                Err(_) => return vec![SocketEvent::Reset],
            };
            match self.question(asker, &message, now) {
                Ok(Some(answer)) => self.streams.push(flow, &answer),
                Ok(None) => {}
                Err(_) => return vec![SocketEvent::Reset],
            }
        }
    }

    /// Reads answers without consuming them; `None` for a flow of another kind.
    pub(super) fn peek(&self, flow: FlowId, peek: Peek, into: Bytes) -> Option<Peeked> {
        self.streams.peek(flow, peek, into)
    }

    /// Consumes bytes that the guest has.
    pub(super) fn discard(&mut self, flow: FlowId, len: u32, now: Nanos) -> Vec<SocketEvent> {
        self.streams.discard(flow, len);
        self.advance(flow, now)
    }

    /// The guest sends no more questions.
    pub(super) fn shut_down(&mut self, flow: FlowId) -> Vec<SocketEvent> {
        self.streams.shut_down(flow);
        self.streams.news(flow)
    }

    /// Room is to be reported.
    pub(super) fn await_room(&mut self, flow: FlowId) -> Vec<SocketEvent> {
        self.streams.await_room(flow);
        self.streams.news(flow)
    }

    /// A connection has ended, and its questions with it.
    pub(super) fn closed(&mut self, flow: FlowId) {
        let Some(number) = self.streams.close(flow) else {
            return;
        };
        for ticket in self.forwarder.closed(number) {
            self.close(ticket);
        }
    }
}

/// Returns the frame with a message for a guest.
fn frame(network: &Network, client: Client, message: &[u8]) -> Option<Vec<u8>> {
    let builder = PacketBuilder::new(network.mac(), client.mac);
    let builder = match (client.to.ip(), client.from.ip()) {
        (IpAddr::V4(own), IpAddr::V4(guest)) => builder.ipv4(own, guest),
        (IpAddr::V6(own), IpAddr::V6(guest)) => builder.ipv6(own, guest),
        _ => return None,
    };
    let frame = builder.udp(dns::PORT, client.from.port()).payload(message);
    Some(frame.build())
}
