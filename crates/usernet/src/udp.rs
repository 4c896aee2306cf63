//! Mappings of UDP: a socket for each address and port of a guest, whatever it sends to (RFC 4787,
//! requirement 1: the mapping is independent of the endpoint; so is the filtering, requirement 8,
//! but for what guests may not reach).

use std::net::SocketAddr;

use crate::Nanos;
use crate::action::Headers;
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
    /// All that the guest has sent went to DNS servers.
    only_dns: bool,
    deadline: Nanos,
}

impl Mapping {
    /// A mapping that a guest's datagram opens.
    pub(crate) fn new(ends: Ends) -> Self {
        Self {
            ends,
            only_dns: true,
            deadline: 0,
        }
    }

    /// A mapping of a predecessor, which may have had more peers than the record names.
    pub(crate) fn restored(ends: Ends, now: Nanos) -> Self {
        let mut mapping = Self::new(ends);
        mapping.only_dns = false;
        mapping.used(now);
        mapping
    }

    /// The part that outlives the process.
    pub(crate) fn record(&self) -> MappingRecord {
        MappingRecord {
            guest: self.ends.guest,
            peer: self.ends.peer,
            station: self.ends.station,
        }
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

    pub(crate) fn headers(&self, peer: SocketAddr, len: u16) -> Headers {
        Ends { peer, ..self.ends }.udp(len)
    }
}
