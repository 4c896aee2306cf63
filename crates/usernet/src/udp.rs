//! Mappings of UDP: a socket for each address and port of a guest, whatever it sends to (RFC 4787,
//! requirement 1: the mapping is independent of the endpoint; so is the filtering, requirement 8,
//! but for what guests may not reach).

use std::net::SocketAddr;

use crate::Nanos;
use crate::action::Headers;
use crate::headers::Ends;

/// A mapping that is not used ends after so long (RFC 4787, requirement 5: two minutes at least).
const IDLE: Nanos = 120_000_000_000;

/// A mapping. What comes from outside keeps it alive as what the guest sends does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    /// The peer is the first that the guest has sent to.
    pub(crate) ends: Ends,
    deadline: Nanos,
}

impl Mapping {
    pub(crate) fn new(ends: Ends, now: Nanos) -> Self {
        let deadline = now.saturating_add(IDLE);
        Self { ends, deadline }
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// A datagram went one way or the other.
    pub(crate) fn used(&mut self, now: Nanos) {
        self.deadline = now.saturating_add(IDLE);
    }

    pub(crate) fn headers(&self, peer: SocketAddr, len: u16) -> Headers {
        Ends { peer, ..self.ends }.udp(len)
    }
}
