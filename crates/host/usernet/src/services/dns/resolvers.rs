//! The resolvers, with the state of each, in the order of questions.
//!
//! An error is about a question, and costs no time: a resolver of some names alone refuses all
//! others. So it changes no order. A resolver that is silent costs each question a wait. Where
//! another one has answered twice in its place, it is asked last for a while. A question that no
//! resolver answers says nothing about any of them, so that a guest cannot change the order by a
//! name whose servers are silent.

use std::net::SocketAddr;

use crate::Nanos;

/// Maximum number of resolvers of a network.
pub const RESOLVERS_MAX: usize = 8;
/// Questions one after the other that another resolver has answered in place of one.
const FAILURES: u8 = 2;
/// How long it is asked last.
const LAST: Nanos = 60_000_000_000;

/// The last thing that a resolver has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// It was not asked.
    #[default]
    NotAsked,
    /// It has answered; that there is no such name is an answer, too.
    Answered,
    /// It has answered with this response code (RFC 6895, section 2.3).
    Error(u16),
    /// It has answered that it knows nothing, and asks no other server.
    Lame,
    /// It has sent something else than an answer to the question.
    Nonsense,
    /// Nothing listens there, or it has closed the connection.
    Closed,
    /// The host has no way to it.
    Unreachable,
    /// It has not answered in time.
    Silent,
}

impl Outcome {
    /// Whether another resolver's answer shows that this one does not work.
    fn is_failure(self) -> bool {
        use Outcome::{Closed, Nonsense, Silent, Unreachable};
        matches!(self, Nonsense | Closed | Unreachable | Silent)
    }
}

/// The state of a resolver by one protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResolverState {
    /// The last thing that it has done.
    pub last: Outcome,
    failures: u8,
    last_until: Nanos,
}

impl ResolverState {
    /// Whether it is asked after all others.
    #[must_use]
    pub fn is_last(&self, now: Nanos) -> bool {
        self.last_until > now
    }
}

/// A resolver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolver {
    /// Its address.
    pub address: SocketAddr,
    /// Its state by UDP.
    pub udp: ResolverState,
    /// The same by TCP.
    pub tcp: ResolverState,
}

impl Resolver {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            udp: ResolverState::default(),
            tcp: ResolverState::default(),
        }
    }

    fn known(&self, by_tcp: bool) -> &ResolverState {
        match by_tcp {
            true => &self.tcp,
            false => &self.udp,
        }
    }
}

/// The tries of a question.
#[derive(Clone, Debug, Default)]
pub(super) struct Tries {
    all: Vec<Try>,
}

#[derive(Clone, Copy, Debug)]
struct Try {
    server: SocketAddr,
    count: u8,
    last: Outcome,
}

impl Tries {
    fn of(&self, server: SocketAddr) -> Option<&Try> {
        self.all.iter().find(|of| of.server == server)
    }

    fn count(&self, server: SocketAddr) -> u8 {
        self.of(server).map_or(0, |of| of.count)
    }

    /// Whether a resolver is not asked the question again. One that was silent is: a datagram may
    /// have been lost.
    fn is_over(&self, server: SocketAddr) -> bool {
        self.of(server).is_some_and(|of| of.last != Outcome::Silent)
    }

    /// A resolver is not asked this question any more, and it is not at fault.
    pub(super) fn skip(&mut self, server: SocketAddr) {
        self.note(server, Outcome::NotAsked);
    }

    fn note(&mut self, server: SocketAddr, last: Outcome) {
        match self.all.iter_mut().find(|of| of.server == server) {
            Some(of) => (of.count, of.last) = (of.count.saturating_add(1), last),
            None => self.all.push(Try {
                server,
                count: 1,
                last,
            }),
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolvers {
    all: Vec<Resolver>,
}

impl Resolvers {
    /// Sets the resolvers: the first [`RESOLVERS_MAX`] count. Those that stay keep their states.
    pub(super) fn set(&mut self, servers: &[SocketAddr]) {
        let known = |address: &SocketAddr| {
            let mut all = self.all.iter();
            let known = all.find(|of| of.address == *address).copied();
            known.unwrap_or_else(|| Resolver::new(*address))
        };
        let mut all: Vec<Resolver> = Vec::new();
        for server in servers {
            let is_new = all.iter().all(|of| of.address != *server);
            if is_new && all.len() < RESOLVERS_MAX {
                all.push(known(server));
            }
        }
        self.all = all;
    }

    pub(super) fn all(&self) -> &[Resolver] {
        &self.all
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the resolver to ask next, and how often it was asked the question: the one that was
    /// asked least, and of these the first that is not asked last.
    pub(super) fn next(&self, by_tcp: bool, tries: &Tries, now: Nanos) -> Option<(SocketAddr, u8)> {
        let all = self.all.iter().filter(|of| !tries.is_over(of.address));
        let next = all.min_by_key(|of| (tries.count(of.address), of.known(by_tcp).is_last(now)))?;
        Some((next.address, tries.count(next.address)))
    }

    /// Takes what a resolver has done.
    pub(super) fn note(
        &mut self,
        (server, by_tcp): (SocketAddr, bool),
        last: Outcome,
        tries: &mut Tries,
        now: Nanos,
    ) {
        tries.note(server, last);
        if let Some(known) = self.known(server, by_tcp) {
            known.last = last;
        }
        if last != Outcome::Answered {
            return;
        }
        if let Some(known) = self.known(server, by_tcp) {
            (known.failures, known.last_until) = (0, 0);
        }
        let failed = tries.all.iter().filter(|of| of.last.is_failure());
        for of in failed.filter(|of| of.server != server) {
            if let Some(known) = self.known(of.server, by_tcp) {
                known.failures = known.failures.saturating_add(1);
                if known.failures >= FAILURES {
                    known.last_until = now.saturating_add(LAST);
                }
            }
        }
    }

    fn known(&mut self, server: SocketAddr, by_tcp: bool) -> Option<&mut ResolverState> {
        let of = self.all.iter_mut().find(|of| of.address == server)?;
        Some(match by_tcp {
            true => &mut of.tcp,
            false => &mut of.udp,
        })
    }
}
