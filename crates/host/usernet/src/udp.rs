//! Mappings of UDP: a socket for each address and port of a guest, whatever it sends to (RFC 4787,
//! requirement 1: the mapping is independent of the endpoint; so is the filtering, requirement 8,
//! but for what guests may not reach). A mapping of a forward belongs to one peer, which has sent
//! the first datagram: the guest's answers go out by the forward's socket.

use std::net::SocketAddr;

use crate::Nanos;
use crate::action::{Datagrams, ForwardPeer, Headers};
use crate::headers::Ends;
use crate::record::MappingRecord;
use crate::services::dns;
use crate::times::Times;

/// A mapping. What comes from outside keeps it alive as what the guest sends does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    /// The peer is the first that the guest has sent to.
    pub(crate) ends: Ends,
    /// The other end of a mapping of a forward.
    pub(crate) forwarded: Option<ForwardPeer>,
    /// All that the guest has sent went to DNS servers.
    only_dns: bool,
    /// Identification of the next datagram to the guest, if routers may fragment it.
    id: Option<u16>,
    last_used: Nanos,
    deadline: Nanos,
}

impl Mapping {
    /// A mapping that a guest's datagram opens.
    pub(crate) fn new(ends: Ends) -> Self {
        Self {
            ends,
            forwarded: None,
            only_dns: true,
            id: None,
            last_used: 0,
            deadline: 0,
        }
    }

    /// A mapping that a datagram from outside opens, or one of a predecessor, which may have had
    /// more peers than its record names.
    pub(crate) fn of_peer(
        ends: Ends,
        forwarded: Option<ForwardPeer>,
        now: Nanos,
        times: &Times,
    ) -> Self {
        let mut mapping = Self::new(ends);
        (mapping.forwarded, mapping.only_dns) = (forwarded, false);
        mapping.used(now, times);
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
    pub(crate) fn sent(&mut self, to: SocketAddr, now: Nanos, times: &Times) {
        self.only_dns &= to.port() == dns::PORT;
        self.used(now, times);
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// Returns the time of the last datagram.
    pub(crate) fn last_used(&self) -> Nanos {
        self.last_used
    }

    /// A datagram went one way or the other.
    pub(crate) fn used(&mut self, now: Nanos, times: &Times) {
        let idle = if self.only_dns { times.dns } else { times.udp };
        self.last_used = now;
        self.deadline = now.saturating_add(idle);
    }

    /// A datagram to the guest was longer than a link takes: routers may fragment the next ones, as
    /// they may those of most hosts. IPv6 has no such routers.
    pub(crate) fn was_too_big(&mut self) {
        self.id = self.id.or(Some(self.ends.guest.port()));
    }

    pub(crate) fn headers(&mut self, peer: SocketAddr, datagrams: Datagrams) -> Headers {
        let id = self.id;
        let count = datagrams.len.checked_div(datagrams.segment).unwrap_or(0) + 1;
        self.id = id.map(|id| id.wrapping_add(count));
        Ends { peer, ..self.ends }.udp(datagrams, id)
    }
}
