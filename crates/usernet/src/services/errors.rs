//! Errors to guests about what was refused, and about datagrams that a socket could not deliver.

use std::net::{IpAddr, SocketAddr};

use wire::MacAddr;
use wire::build::PacketBuilder;

use super::icmp::{self, IcmpError};
use super::limit::Limit;
use crate::network::{Network, Refusal};
use crate::translator::Undelivered;
use crate::{Nanos, Secret};

/// Most bytes of a datagram that an error quotes, when its socket gives them back.
const RETURNED: usize = 512;

/// The errors of a port, of which each guest gets a bounded number.
#[derive(Clone, Debug)]
pub struct Errors {
    network: Network,
    limit: Limit,
}

impl Errors {
    /// Errors from the gateway of `network`.
    #[must_use]
    pub fn new(network: Network, secret: Secret) -> Self {
        Self {
            network,
            limit: Limit::new(secret),
        }
    }

    /// Returns the error about a whole frame that was refused. `None`: none is due, since the frame
    /// is one about which none may be sent (RFC 1122, section 3.2.2; RFC 4443, section 2.4), was of
    /// TCP, which has had a reset, or contradicts itself; or the guest has had too many.
    pub fn refused(&mut self, now: Nanos, frame: &[u8], refusal: Refusal) -> Option<Vec<u8>> {
        let error = match refusal {
            Refusal::Denied | Refusal::Flows | Refusal::Ports => IcmpError::Prohibited,
            Refusal::Unreachable => IcmpError::Host,
            Refusal::Fragment | Refusal::Protocol => return None,
        };
        let answer = icmp::refused(&self.network, frame, error)?;
        self.limited(now, answer)
    }

    /// Returns the error about a datagram that a socket could not deliver. `payload` is what the
    /// socket gave back of it (`MSG_ERRQUEUE`), maybe nothing.
    pub fn undelivered(
        &mut self,
        now: Nanos,
        datagram: &Undelivered,
        payload: &[u8],
        error: IcmpError,
    ) -> Option<Vec<u8>> {
        let payload = &payload[..payload.len().min(RETURNED)];
        let frame = again(&self.network, datagram, payload)?;
        self.about(now, &frame, error)
    }

    /// Returns the error about a whole frame that a socket could not deliver.
    pub fn about(&mut self, now: Nanos, frame: &[u8], error: IcmpError) -> Option<Vec<u8>> {
        let answer = icmp::error(&self.network, frame, error)?;
        self.limited(now, answer)
    }

    fn limited(&mut self, now: Nanos, answer: Vec<u8>) -> Option<Vec<u8>> {
        let to = answer.first_chunk().copied().map(MacAddr)?;
        self.limit.take(to, now).then_some(answer)
    }
}

/// The frame that the guest may have sent: its addresses and ports are what it is found by.
fn again(network: &Network, datagram: &Undelivered, payload: &[u8]) -> Option<Vec<u8>> {
    let Undelivered {
        station,
        guest,
        peer,
    } = *datagram;
    let builder = PacketBuilder::new(station, network.mac());
    let builder = match (guest.ip(), peer.ip()) {
        (IpAddr::V4(guest), IpAddr::V4(peer)) => builder.ipv4(guest, peer),
        (IpAddr::V6(guest), IpAddr::V6(peer)) => builder.ipv6(guest, peer),
        _ => return None,
    };
    let ports = [guest, peer].map(|end: SocketAddr| end.port());
    Some(builder.udp(ports[0], ports[1]).payload(payload).build())
}
