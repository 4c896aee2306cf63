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
    self, Ask, Asker, Forwarder, MalformedError, Outcome, Query, Resolver, ResolverAnswer, Step,
    Ticket, Transport, Trouble, Zone,
};
use usernet::{FlowId, Nanos, SocketEvent};
use wire::build::PacketBuilder;

use super::events::{Kind, Tag};
use super::host_ports::HostPorts;
use super::random;
use super::streams::Stream;

/// Room for an answer of any length.
const ANSWER: usize = 1 << 16;
const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// An answer to a guest.
#[derive(Debug)]
pub(super) enum Reply {
    /// A frame.
    Frame(Vec<u8>),
    /// A message for the connection of a flow.
    Message(FlowId, Vec<u8>),
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

/// Whose fault an error of a resolver's socket is.
fn trouble(error: Errno) -> Trouble {
    match error {
        Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE => Trouble::Resolver(Outcome::Closed),
        Errno::PROTO => Trouble::Resolver(Outcome::Nonsense),
        Errno::TIMEDOUT => Trouble::Resolver(Outcome::Silent),
        Errno::MFILE
        | Errno::NFILE
        | Errno::NOMEM
        | Errno::NOBUFS
        | Errno::NOSPC
        | Errno::ADDRNOTAVAIL
        | Errno::AGAIN
        | Errno::MSGSIZE => Trouble::Own,
        _ => Trouble::Resolver(Outcome::Unreachable),
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
    /// Questions of guests so far.
    pub(super) asked: u64,
}

impl Questions {
    /// Answers from `zone`, and from resolvers.
    pub(super) fn new(
        epoll: OwnedFd,
        (network, ports): (Network, HostPorts),
        zone: Zone,
        resolvers: &[SocketAddr],
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
            asked: 0,
        }
    }

    /// Changes names and resolvers.
    pub(super) fn set(&mut self, zone: Zone, resolvers: &[SocketAddr]) {
        self.zone = zone;
        self.forwarder.set_servers(resolvers);
    }

    /// The resolvers, with what is known of them.
    pub(super) fn resolvers(&self) -> &[Resolver] {
        self.forwarder.resolvers()
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
        let step = self.forwarder.ask(asker, query, random(), now);
        Ok(self.step(step, now).map(|answered| answered.message))
    }

    fn answer(&self, ResolverAnswer { asker, message }: ResolverAnswer) -> Option<Reply> {
        match asker {
            Asker::Udp(client) => frame(&self.network, client, &message).map(Reply::Frame),
            Asker::Tcp(flow, _) => Some(Reply::Message(flow, message)),
        }
    }

    /// Asks a resolver, and the next ones if that fails; returns the reply to the guest when none
    /// is left.
    fn step(&mut self, mut step: Step, now: Nanos) -> Option<ResolverAnswer> {
        loop {
            let ask = match step {
                Ok(ask) => ask,
                Err(answered) => return Some(answered),
            };
            let Err(trouble) = self.send_one(&ask) else {
                return None;
            };
            self.close(ask.ticket);
            step = self.forwarder.failed(ask.ticket, trouble, random(), now)?;
        }
    }

    fn send_one(&mut self, ask: &Ask) -> Result<(), Trouble> {
        let kind = match ask.transport {
            Transport::Udp(_) => SocketType::DGRAM,
            Transport::Tcp => SocketType::STREAM,
        };
        let fd = self.ports.open(ask.server.ip(), kind);
        let fd = fd.map_err(|_| Trouble::Own)?;
        self.send_from(fd, ask).map_err(trouble)
    }

    fn send_from(&mut self, fd: OwnedFd, ask: &Ask) -> Result<(), Errno> {
        let (way, events) = match ask.transport {
            Transport::Udp(port) => {
                let any: IpAddr = match ask.server {
                    SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                // Where the port is taken, the system chooses one, which is random, too.
                let _ = bind(&fd, &SocketAddr::new(any, port));
                connect(&fd, &ask.server)?;
                send(&fd, &ask.message, FLAGS)?;
                (Way::Udp, EventFlags::IN)
            }
            Transport::Tcp => {
                match connect(&fd, &ask.server) {
                    Ok(()) | Err(Errno::INPROGRESS) => {}
                    Err(error) => return Err(error),
                }
                let message = dns::framed(&ask.message).ok_or(Errno::MSGSIZE)?;
                let edges = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
                (Way::Tcp(message, dns::Stream::default()), edges)
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
        let step = match question.advance() {
            Ok(message) => {
                let message = message?;
                let forwarder = &mut self.forwarder;
                forwarder.answer(ticket, server, &message, random(), now)
            }
            Err(error) => self.forwarder.failed(ticket, trouble(error), random(), now),
        }?;
        self.close(ticket);
        self.step(step, now)
            .and_then(|answered| self.answer(answered))
    }

    /// When [`Self::expired`] has something next.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.forwarder.deadline()
    }

    /// Ends questions that are due, or asks the next resolver.
    pub(super) fn expired(&mut self, now: Nanos) -> Vec<Reply> {
        let mut replies = Vec::new();
        while let Some((ticket, step)) = self.forwarder.expired(random(), now) {
            self.close(ticket);
            let answered = self.step(step, now);
            replies.extend(answered.and_then(|answered| self.answer(answered)));
        }
        replies
    }

    /// Returns whether there is a question at a resolver.
    #[cfg(test)]
    pub(super) fn has_any(&self) -> bool {
        !self.open.is_empty()
    }

    /// Answers whole questions of a connection, as many as may wait; returns its events.
    pub(super) fn serve(&mut self, stream: &mut Stream, now: Nanos) -> Vec<SocketEvent> {
        loop {
            let (asker, message) = match stream.next() {
                Ok(Some(next)) => next,
                Ok(None) => return stream.news(),
                Err(_) => return vec![SocketEvent::Reset],
            };
            match self.question(asker, &message, now) {
                Ok(Some(answer)) => stream.push(&answer),
                Ok(None) => {}
                Err(_) => return vec![SocketEvent::Reset],
            }
        }
    }

    /// A connection has ended, and its questions with it.
    pub(super) fn closed(&mut self, flow: FlowId) {
        for ticket in self.forwarder.closed(flow) {
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
