//! Questions that wait for the host's resolvers.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use wire::MacAddr;

use crate::network::Network;
use crate::services::Client;
use crate::{FlowId, Nanos};

use super::message::{Query, Rcode, Reading};
use super::resolvers::{Outcome, Resolver, Resolvers, Tries};

/// Maximum number of questions that wait, in all and of one guest.
const PENDING_MAX: usize = 1024;
const PENDING_GUEST_MAX: usize = 64;
/// Maximum time for one resolver, and for a question.
const TRY: Nanos = 2_500_000_000;
const ALL: Nanos = 10_000_000_000;
/// How often a silent resolver is asked a question if another one has answered with an error.
const TRIES: u8 = 2;
/// Response codes (RFC 6895, section 2.3).
const FORMAT_ERROR: u16 = 1;
const NOT_IMPLEMENTED: u16 = 4;
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
    /// A guest by TCP: the flow of the connection, and the guest's station.
    Tcp(FlowId, MacAddr),
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
    /// The ticket for the answer.
    pub ticket: Ticket,
    /// The resolver.
    pub server: SocketAddr,
    /// How to ask.
    pub transport: Transport,
    /// The message.
    pub message: Vec<u8>,
}

/// Why a socket failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// There was none, which is no fault of the resolver.
    Own,
    /// The resolver, or the way to it.
    Resolver(Outcome),
}

/// A reply to a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverAnswer {
    /// The asking side.
    pub asker: Asker,
    /// The message.
    pub message: Vec<u8>,
}

/// The next step: a question to another resolver, or the reply to the guest.
pub type Step = Result<Ask, ResolverAnswer>;

/// A reply that is passed on if none is better.
#[derive(Clone, Debug)]
struct Best {
    is_lame: bool,
    message: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Pending {
    asker: Asker,
    query: Query,
    /// The resolver does not understand the guest's EDNS.
    is_plain: bool,
    id: u16,
    server: SocketAddr,
    tries: Tries,
    best: Option<Best>,
    retry: Nanos,
    end: Nanos,
}

impl Pending {
    fn by_tcp(&self) -> bool {
        matches!(self.asker, Asker::Tcp(..))
    }

    /// Keeps an error for the guest, which is better than a lame answer.
    fn keep(&mut self, is_lame: bool, message: Vec<u8>) {
        if self
            .best
            .as_ref()
            .is_none_or(|best| best.is_lame >= is_lame)
        {
            self.best = Some(Best { is_lame, message });
        }
    }

    /// The reply to the guest when no resolver is left.
    fn reply(self) -> ResolverAnswer {
        let none = || self.query.reply(Rcode::ServerFailure);
        ResolverAnswer {
            asker: self.asker,
            message: self.best.map_or_else(none, |best| best.message),
        }
    }
}

/// The questions at resolvers.
#[derive(Clone, Debug)]
pub struct Forwarder {
    resolvers: Resolvers,
    /// Longest answer by UDP to a guest in bytes.
    most: u16,
    pending: BTreeMap<Ticket, Pending>,
    next: u64,
}

impl Forwarder {
    /// Asks these resolvers, in this order.
    #[must_use]
    pub fn new(network: &Network, servers: &[SocketAddr]) -> Self {
        let mut resolvers = Resolvers::default();
        resolvers.set(servers);
        Self {
            resolvers,
            // Headers of IPv6 and UDP.
            most: network.mtu().saturating_sub(48),
            pending: BTreeMap::new(),
            next: 0,
        }
    }

    /// Changes the resolvers; questions that wait are asked there at their next try.
    pub fn set_servers(&mut self, servers: &[SocketAddr]) {
        self.resolvers.set(servers);
    }

    /// The resolvers, with what is known of them.
    #[must_use]
    pub fn resolvers(&self) -> &[Resolver] {
        self.resolvers.all()
    }

    /// Returns the message to send to the first resolver. Id and source port come from `entropy`,
    /// which must be random.
    ///
    /// # Errors
    /// The reply to the guest, if too many questions wait or there is no resolver.
    pub fn ask(&mut self, asker: Asker, query: Query, entropy: u64, now: Nanos) -> Step {
        let guest = asker.station();
        let own = self.pending.values();
        let own = own.filter(|pending| pending.asker.station() == guest);
        if self.pending.len() >= PENDING_MAX || own.count() >= PENDING_GUEST_MAX {
            let message = query.reply(Rcode::Refused);
            return Err(ResolverAnswer { asker, message });
        }
        let end = now.saturating_add(ALL);
        let pending = Pending {
            asker,
            query,
            is_plain: false,
            id: 0,
            server: SocketAddr::from(([0; 4], 0)),
            tries: Tries::default(),
            best: None,
            retry: end,
            end,
        };
        self.next(pending, entropy, now)
    }

    /// Asks the next resolver, or ends the question.
    fn next(&mut self, mut pending: Pending, entropy: u64, now: Nanos) -> Step {
        let next = self.resolvers.next(pending.by_tcp(), &pending.tries, now);
        let is_worth = |count| pending.best.is_none() || count < TRIES;
        match next.filter(|(_, count)| is_worth(*count) && now < pending.end) {
            Some((server, _)) => {
                (pending.server, pending.is_plain) = (server, false);
                Ok(self.send(pending, entropy, now))
            }
            None => Err(pending.reply()),
        }
    }

    /// Asks the resolver of a question.
    fn send(&mut self, mut pending: Pending, entropy: u64, now: Nanos) -> Ask {
        let [a, b, c, d, ..] = entropy.to_be_bytes();
        let port = FIRST_PORT + u16::from_be_bytes([c, d]) % (u16::MAX - FIRST_PORT + 1);
        pending.id = u16::from_be_bytes([a, b]);
        // All resolvers are asked once before the time is over.
        let time = TRY.min(ALL / self.resolvers.len().max(1) as Nanos);
        pending.retry = now.saturating_add(time).min(pending.end);
        let plain = pending.query.without_edns().filter(|_| pending.is_plain);
        let query = plain.as_ref().unwrap_or(&pending.query);
        let ticket = Ticket(self.next);
        self.next += 1;
        let ask = Ask {
            ticket,
            server: pending.server,
            transport: match pending.by_tcp() {
                false => Transport::Udp(port),
                true => Transport::Tcp,
            },
            message: query.to_resolver(pending.id, self.most),
        };
        self.pending.insert(ticket, pending);
        ask
    }

    /// Takes what came to the socket of a ticket. The ticket ends with what follows; `None`: it
    /// waits further, or had ended.
    pub fn answer(
        &mut self,
        ticket: Ticket,
        from: SocketAddr,
        bytes: &[u8],
        entropy: u64,
        now: Nanos,
    ) -> Option<Step> {
        let pending = self.pending.get(&ticket).filter(|of| of.server == from)?;
        let most = match pending.asker {
            Asker::Udp(_) => pending.query.size().min(self.most),
            Asker::Tcp(..) => u16::MAX,
        };
        let reading = pending.query.read(pending.id, bytes, most.into());
        if reading == Reading::Other && !pending.by_tcp() {
            return None;
        }
        let mut pending = self.pending.remove(&ticket)?;
        let outcome = match reading {
            Reading::Answer(message) => {
                let asker = pending.asker;
                self.note(&mut pending, Outcome::Answered, now);
                return Some(Err(ResolverAnswer { asker, message }));
            }
            // A server that does not know EDNS (RFC 6891, section 7).
            Reading::Error(FORMAT_ERROR | NOT_IMPLEMENTED, _)
                if !pending.is_plain && pending.query.without_edns().is_some() =>
            {
                pending.is_plain = true;
                return Some(Ok(self.send(pending, entropy, now)));
            }
            Reading::Error(code, message) => {
                pending.keep(false, message);
                Outcome::Error(code)
            }
            Reading::Lame(message) => {
                pending.keep(true, message);
                Outcome::Lame
            }
            Reading::Nonsense | Reading::Other => Outcome::Nonsense,
        };
        self.note(&mut pending, outcome, now);
        Some(self.next(pending, entropy, now))
    }

    fn note(&mut self, pending: &mut Pending, outcome: Outcome, now: Nanos) {
        let of = (pending.server, pending.by_tcp());
        self.resolvers.note(of, outcome, &mut pending.tries, now);
    }

    /// The socket of a ticket failed. The ticket ends with what follows; `None` if it had ended
    /// before.
    pub fn failed(
        &mut self,
        ticket: Ticket,
        trouble: Trouble,
        entropy: u64,
        now: Nanos,
    ) -> Option<Step> {
        let mut pending = self.pending.remove(&ticket)?;
        match trouble {
            Trouble::Own => pending.tries.skip(pending.server),
            Trouble::Resolver(outcome) => self.note(&mut pending, outcome, now),
        }
        Some(self.next(pending, entropy, now))
    }

    /// A guest's connection ended: its questions end, and their tickets are returned.
    pub fn closed(&mut self, flow: FlowId) -> Vec<Ticket> {
        let own = |p: &Pending| matches!(p.asker, Asker::Tcp(id, _) if id == flow);
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
    pub fn expired(&mut self, entropy: u64, now: Nanos) -> Option<(Ticket, Step)> {
        let mut all = self.pending.iter();
        let ticket = *all.find(|(_, pending)| pending.retry <= now)?.0;
        let mut pending = self.pending.remove(&ticket)?;
        self.note(&mut pending, Outcome::Silent, now);
        Some((ticket, self.next(pending, entropy, now)))
    }
}
