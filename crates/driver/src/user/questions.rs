//! DNS: guests' questions, and those of them that are at resolvers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketType, bind, connect, recv, send};
use usernet::Nanos;
use usernet::network::Network;
use usernet::services::Client;
use usernet::services::dns::{
    self, Answered, Ask, Asker, Forwarder, Query, Ticket, Transport, Zone,
};
use wire::build::PacketBuilder;

use super::events::{Kind, Tag};
use super::{random, sockets};

/// Room for an answer of any length.
const ANSWER: usize = 1 << 16;

/// A question at a resolver, with its socket.
#[derive(Debug)]
struct Question {
    fd: OwnedFd,
    ticket: Ticket,
    server: SocketAddr,
    serial: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Questions {
    epoll: OwnedFd,
    network: Network,
    zone: Zone,
    forwarder: Forwarder,
    open: HashMap<u32, Question>,
    tickets: HashMap<Ticket, u32>,
    next: u32,
}

impl Questions {
    /// Answers from `zone`, and from resolvers.
    pub(super) fn new(
        epoll: OwnedFd,
        network: Network,
        zone: Zone,
        resolvers: Vec<SocketAddr>,
    ) -> Self {
        Self {
            epoll,
            network,
            zone,
            forwarder: Forwarder::new(&network, resolvers),
            open: HashMap::new(),
            tickets: HashMap::new(),
            next: 0,
        }
    }

    /// Changes names and resolvers.
    pub(super) fn set(&mut self, zone: Zone, resolvers: Vec<SocketAddr>) {
        self.zone = zone;
        self.forwarder.set_servers(resolvers);
    }

    /// Handles a guest's message; returns the frame of the answer, if there is one already.
    pub(super) fn ask(&mut self, client: Client, message: &[u8], now: Nanos) -> Option<Vec<u8>> {
        let query = match Query::parse(message).ok()? {
            Ok(query) => query,
            Err(message) => return frame(&self.network, client, &message),
        };
        if let Some(message) = self.zone.answer(&self.network, &query) {
            return frame(&self.network, client, &message);
        }
        let asked = self.forwarder.ask(Asker::Udp(client), query, random(), now);
        let answered = match asked {
            Ok(ask) => self.send(ask, now),
            Err(answered) => Some(answered),
        };
        self.answer(answered)
    }

    fn answer(&self, answered: Option<Answered>) -> Option<Vec<u8>> {
        let Answered { asker, message } = answered?;
        match asker {
            Asker::Udp(client) => frame(&self.network, client, &message),
            Asker::Tcp(..) => None,
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
        let fd = sockets::open(ask.server.ip(), SocketType::DGRAM)?;
        if let Transport::Udp(port) = ask.transport {
            let any: IpAddr = match ask.server {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            // Where the port is taken, the system chooses one, which is random, too.
            let _ = bind(&fd, &SocketAddr::new(any, port));
        }
        connect(&fd, &ask.server)?;
        send(&fd, &ask.message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        let serial = self.next;
        self.next = self.next.wrapping_add(1);
        let tag = Tag::new(Kind::Question, serial, serial);
        epoll::add(&self.epoll, &fd, tag.data(), EventFlags::IN)?;
        self.tickets.insert(ask.ticket, serial);
        let question = Question {
            fd,
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

    /// Reads what came to the socket of a question; returns the frame of the answer.
    pub(super) fn event(&mut self, tag: Tag, now: Nanos) -> Option<Vec<u8>> {
        let question = self.open.get(&tag.index());
        let question = question.filter(|question| question.serial == tag.serial())?;
        let (ticket, server) = (question.ticket, question.server);
        let mut bytes = vec![0; ANSWER];
        let answered = match recv(&question.fd, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((len, _)) => {
                // What is no answer to the question is not waited for any less.
                let answered = self.forwarder.answer(ticket, server, &bytes[..len]);
                Some(answered.ok()?)
            }
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(_) => match self.forwarder.failed(ticket, random(), now) {
                Ok(next) => self.send(next, now),
                Err(answered) => answered,
            },
        };
        self.close(ticket);
        self.answer(answered)
    }

    /// When [`Self::expired`] has something next.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.forwarder.deadline()
    }

    /// Ends questions whose time is over, or asks the next resolver; returns frames of answers.
    pub(super) fn expired(&mut self, now: Nanos) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some((ticket, next)) = self.forwarder.expired(random(), now) {
            self.close(ticket);
            let answered = match next {
                Ok(ask) => self.send(ask, now),
                Err(answered) => Some(answered),
            };
            frames.extend(self.answer(answered));
        }
        frames
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
