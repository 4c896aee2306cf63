//! Questions that wait for the host's resolvers.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use wire::MacAddr;

use crate::Nanos;
use crate::network::Network;
use crate::services::Client;

use super::message::{MalformedError, Query, Rcode};

/// Most questions that wait, in all and of one guest.
const PENDING_MAX: usize = 1024;
const PENDING_GUEST_MAX: usize = 64;
/// Time for one resolver, and for a question.
const TRY: Nanos = 2_500_000_000;
const ALL: Nanos = 10_000_000_000;
/// First port that questions are sent from: those below are for services.
const FIRST_PORT: u16 = 1024;

/// A question at a resolver; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// The asking side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A guest by UDP.
    Udp(Client),
    /// A guest by TCP: the caller's number of the connection, and the guest's station.
    Tcp(u64, MacAddr),
}

impl Asker {
    /// The guest: it can take any address, also that of another.
    fn station(&self) -> MacAddr {
        match self {
            Self::Udp(client) => client.mac,
            Self::Tcp(_, station) => *station,
        }
    }
}

/// How a resolver is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// From this port, or any if it is taken.
    Udp(u16),
    /// With [`super::framed`] messages.
    Tcp,
}

/// A question to send from a socket of its own, which is closed when the ticket ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The ticket with which the answer is handed in.
    pub ticket: Ticket,
    /// The resolver.
    pub server: SocketAddr,
    /// How to ask.
    pub transport: Transport,
    /// The message.
    pub message: Vec<u8>,
}

/// A reply to a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The asking side.
    pub asker: Asker,
    /// The message.
    pub message: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Pending {
    asker: Asker,
    query: Query,
    id: u16,
    server: SocketAddr,
    /// Position of `server` in the list.
    position: usize,
    retry: Nanos,
    end: Nanos,
}

/// The questions at resolvers.
#[derive(Clone, Debug)]
pub struct Forwarder {
    servers: Vec<SocketAddr>,
    /// Longest answer by UDP to a guest in bytes.
    most: u16,
    pending: BTreeMap<Ticket, Pending>,
    next: u64,
}

impl Forwarder {
    /// Asks these resolvers, in this order.
    #[must_use]
    pub fn new(network: &Network, servers: Vec<SocketAddr>) -> Self {
        Self {
            servers,
            // Headers of IPv6 and UDP.
            most: network.mtu().saturating_sub(48),
            pending: BTreeMap::new(),
            next: 0,
        }
    }

    /// Changes the resolvers; questions that wait are asked there at their next try.
    pub fn set_servers(&mut self, servers: Vec<SocketAddr>) {
        self.servers = servers;
    }

    /// Returns the message to send to the first resolver. Id and source port come from `entropy`,
    /// which must be random.
    ///
    /// # Errors
    /// The reply to the guest, if too many questions wait or there is no resolver.
    pub fn ask(
        &mut self,
        asker: Asker,
        query: Query,
        entropy: u64,
        now: Nanos,
    ) -> Result<Ask, Answered> {
        let guest = asker.station();
        let own = self.pending.values();
        let own = own.filter(|pending| pending.asker.station() == guest);
        if self.pending.len() >= PENDING_MAX || own.count() >= PENDING_GUEST_MAX {
            let message = query.reply(Rcode::Refused);
            return Err(Answered { asker, message });
        }
        let end = now.saturating_add(ALL);
        self.send(asker, query, (0, end), entropy, now)
    }

    fn send(
        &mut self,
        asker: Asker,
        query: Query,
        (position, end): (usize, Nanos),
        entropy: u64,
        now: Nanos,
    ) -> Result<Ask, Answered> {
        let at = position.checked_rem(self.servers.len());
        let Some(server) = at.and_then(|at| self.servers.get(at)).copied() else {
            let message = query.reply(Rcode::ServerFailure);
            return Err(Answered { asker, message });
        };
        let [a, b, c, d, ..] = entropy.to_be_bytes();
        let id = u16::from_be_bytes([a, b]);
        let port = FIRST_PORT + u16::from_be_bytes([c, d]) % (u16::MAX - FIRST_PORT + 1);
        let transport = match asker {
            Asker::Udp(_) => Transport::Udp(port),
            Asker::Tcp(..) => Transport::Tcp,
        };
        let message = query.to_resolver(id, self.most);
        let ticket = Ticket(self.next);
        self.next += 1;
        let pending = Pending {
            asker,
            query,
            id,
            server,
            position,
            retry: now.saturating_add(TRY).min(end),
            end,
        };
        self.pending.insert(ticket, pending);
        Ok(Ask {
            ticket,
            server,
            transport,
            message,
        })
    }

    /// Takes what came to the socket of a ticket, which ends with an answer.
    ///
    /// # Errors
    /// [`MalformedError`] for what is no answer to the question; the ticket waits further.
    pub fn answer(
        &mut self,
        ticket: Ticket,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Result<Answered, MalformedError> {
        let pending = self.pending.get(&ticket).ok_or(MalformedError)?;
        if pending.server != from {
            return Err(MalformedError);
        }
        let most = match pending.asker {
            Asker::Udp(_) => pending.query.size().min(self.most),
            Asker::Tcp(..) => u16::MAX,
        };
        let answer = pending.query.answer(pending.id, bytes, usize::from(most));
        let answered = Answered {
            asker: pending.asker,
            message: answer?,
        };
        self.pending.remove(&ticket);
        Ok(answered)
    }

    /// The socket of a ticket failed. The ticket ends; the next resolver is asked.
    ///
    /// # Errors
    /// The reply to the guest, if none is left; `None` if the ticket had ended before.
    pub fn failed(
        &mut self,
        ticket: Ticket,
        entropy: u64,
        now: Nanos,
    ) -> Result<Ask, Option<Answered>> {
        let pending = self.pending.remove(&ticket).ok_or(None)?;
        let next = pending.position + 1;
        if next >= self.servers.len() {
            return Err(Some(Answered {
                message: pending.query.reply(Rcode::ServerFailure),
                asker: pending.asker,
            }));
        }
        let Pending {
            asker, query, end, ..
        } = pending;
        self.send(asker, query, (next, end), entropy, now)
            .map_err(Some)
    }

    /// A guest's connection ended: its questions end, and their tickets are returned.
    pub fn closed(&mut self, connection: u64) -> Vec<Ticket> {
        let own = |p: &Pending| matches!(p.asker, Asker::Tcp(id, _) if id == connection);
        let tickets = self.pending.iter().filter(|(_, pending)| own(pending));
        let tickets: Vec<_> = tickets.map(|(ticket, _)| *ticket).collect();
        tickets.iter().for_each(|ticket| {
            self.pending.remove(ticket);
        });
        tickets
    }

    /// When [`Forwarder::expired`] has something next.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.pending.values().map(|pending| pending.retry).min()
    }

    /// Ends one ticket that had no answer in time, and asks the next resolver, the first one again
    /// behind the last, or gives up. Call it until it returns `None`; each time with new
    /// `entropy`.
    pub fn expired(&mut self, entropy: u64, now: Nanos) -> Option<(Ticket, Result<Ask, Answered>)> {
        let mut all = self.pending.iter();
        let ticket = *all.find(|(_, pending)| pending.retry <= now)?.0;
        let pending = self.pending.remove(&ticket)?;
        let Pending {
            asker, query, end, ..
        } = pending;
        if now >= end {
            let message = query.reply(Rcode::ServerFailure);
            return Some((ticket, Err(Answered { asker, message })));
        }
        let next = (pending.position + 1, end);
        Some((ticket, self.send(asker, query, next, entropy, now)))
    }
}
