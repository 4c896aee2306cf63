//! Errors to guests about what was refused, and about datagrams that a socket could not deliver.

use std::net::{IpAddr, SocketAddr};

use wire::MacAddr;
use wire::build::{PacketBuilder, TcpFields};

use super::icmp::{self, IcmpError, Notice};
use super::limit::Limit;
use crate::network::{Network, Refusal};
use crate::{Nanos, Secret};

/// Maximum number of bytes that an error quotes of a datagram, if its socket returns them.
const RETURNED: usize = 512;

/// A datagram or a SYN that a socket could not deliver, as the guest sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UndeliveredPacket {
    /// Station of the guest.
    pub station: MacAddr,
    /// Address and port of the guest.
    pub guest: SocketAddr,
    /// The other end, as the guest sees it.
    pub peer: SocketAddr,
    /// Sequence number, of a SYN of TCP.
    pub syn: Option<u32>,
}

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

    /// Returns the error about a whole frame that the gateway does not pass on, since its time to
    /// live ends here.
    pub fn expired(&mut self, now: Nanos, frame: &[u8]) -> Option<Vec<u8>> {
        let answer = icmp::refused(&self.network, frame, IcmpError::HopLimit)?;
        self.limited(now, answer)
    }

    /// Returns the error about a datagram that a socket could not deliver. `payload` is what the
    /// socket gave back of it (`MSG_ERRQUEUE`), maybe nothing.
    pub fn undelivered(
        &mut self,
        now: Nanos,
        datagram: &UndeliveredPacket,
        payload: &[u8],
        notice: impl Into<Notice>,
    ) -> Option<Vec<u8>> {
        let payload = &payload[..payload.len().min(RETURNED)];
        let frame = again(&self.network, datagram, payload)?;
        self.about(now, &frame, notice)
    }

    /// Returns the error about a whole frame that a socket could not deliver. One that a router of
    /// the outside has sent is passed on, and does not count as the gateway's own.
    pub fn about(
        &mut self,
        now: Nanos,
        frame: &[u8],
        notice: impl Into<Notice>,
    ) -> Option<Vec<u8>> {
        let notice = notice.into();
        let answer = icmp::error(&self.network, frame, notice)?;
        match notice.from {
            Some(_) => Some(answer),
            None => self.limited(now, answer),
        }
    }

    fn limited(&mut self, now: Nanos, answer: Vec<u8>) -> Option<Vec<u8>> {
        let to = answer.first_chunk().copied().map(MacAddr)?;
        self.limit.take(to, now).then_some(answer)
    }
}

/// The frame that the guest may have sent: its addresses and ports are what it is found by.
fn again(network: &Network, datagram: &UndeliveredPacket, payload: &[u8]) -> Option<Vec<u8>> {
    let UndeliveredPacket {
        station,
        guest,
        peer,
        syn,
    } = *datagram;
    let builder = PacketBuilder::new(station, network.mac());
    let builder = match (guest.ip(), peer.ip()) {
        (IpAddr::V4(guest), IpAddr::V4(peer)) => builder.ipv4(guest, peer),
        (IpAddr::V6(guest), IpAddr::V6(peer)) => builder.ipv6(guest, peer),
        _ => return None,
    };
    let ports = [guest, peer].map(|end: SocketAddr| end.port());
    let [src_port, dst_port] = ports;
    let builder = match syn {
        None => builder.udp(src_port, dst_port),
        Some(seq) => builder.tcp(TcpFields {
            src_port,
            dst_port,
            seq,
            ack: 0,
            flags: wire::tcp::SYN,
            options: Vec::new(),
        }),
    };
    Some(builder.payload(payload).build())
}
