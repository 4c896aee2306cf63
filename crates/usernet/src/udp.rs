//! Mappings of UDP: a socket for each address and port of a guest, whatever it sends to (RFC 4787,
//! requirement 1: the mapping is independent of the endpoint; so is the filtering, requirement 8,
//! but for what guests may not reach). A mapping of a forward belongs to one peer, which has sent
//! the first datagram: the guest's answers go out by the forward's socket.

use std::net::SocketAddr;

use crate::Nanos;
use crate::action::{Datagrams, Forwarded, Headers};
use crate::headers::Ends;
use crate::record::MappingRecord;
use crate::services::dns;

/// A mapping that is not used ends after so long (RFC 4787, requirement 5: two minutes at least).
const IDLE: Nanos = 120_000_000_000;
/// One that has only asked DNS servers: a port of a well-known service may have less (requirement
/// 5 a), and a resolver takes a new port for each question (RFC 5452, section 9.2).
const IDLE_DNS: Nanos = 10_000_000_000;

/// A mapping. What comes from outside keeps it alive as what the guest sends does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    /// The peer is the first that the guest has sent to.
    pub(crate) ends: Ends,
    /// The other end of a mapping of a forward.
    pub(crate) forwarded: Option<Forwarded>,
    /// All that the guest has sent went to DNS servers.
    only_dns: bool,
    deadline: Nanos,
}

impl Mapping {
    /// A mapping that a guest's datagram opens.
    pub(crate) fn new(ends: Ends) -> Self {
        Self {
            ends,
            forwarded: None,
            only_dns: true,
            deadline: 0,
        }
    }

    /// A mapping that a datagram from outside opens, or one of a predecessor, which may have had
    /// more peers than its record names.
    pub(crate) fn of_peer(ends: Ends, forwarded: Option<Forwarded>, now: Nanos) -> Self {
        let mut mapping = Self::new(ends);
        (mapping.forwarded, mapping.only_dns) = (forwarded, false);
        mapping.used(now);
        mapping
    }

    /// The part that outlives the process; `None` if the record has no room for its peer.
    pub(crate) fn record(&self) -> Option<MappingRecord> {
        let record = MappingRecord {
            guest: self.ends.guest,
            peer: self.ends.peer,
            station: self.ends.station,
            forwarded: self.forwarded.map(|forwarded| forwarded.peer),
        };
        record.is_complete().then_some(record)
    }

    /// The guest sends a datagram.
    pub(crate) fn sent(&mut self, to: SocketAddr, now: Nanos) {
        self.only_dns &= to.port() == dns::PORT;
        self.used(now);
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// A datagram went one way or the other.
    pub(crate) fn used(&mut self, now: Nanos) {
        let idle = if self.only_dns { IDLE_DNS } else { IDLE };
        self.deadline = now.saturating_add(idle);
    }

    pub(crate) fn headers(&self, peer: SocketAddr, datagrams: Datagrams) -> Headers {
        Ends { peer, ..self.ends }.udp(datagrams)
    }
}
