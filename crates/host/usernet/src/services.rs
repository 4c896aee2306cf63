//! What the gateway itself answers: ARP, neighbour discovery, router advertisements, DHCP and echo
//! requests. DNS is in [`dns`].
//!
//! A frame goes in whole, as a private copy; frames come out. What is not for the gateway is left
//! to the translation of flows.

pub mod dns;

mod dhcp4;
mod dhcp6;
mod errors;
mod icmp;
mod incoming;
mod leases;
mod limit;
mod neighbours;
mod path_errors;
mod search;
mod stations;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use wire::MacAddr;

use crate::Nanos;
use crate::network::{Network, Refusal};

pub use errors::{Errors, UndeliveredPacket};
pub use icmp::{IcmpError, Notice};
pub use incoming::Checksum;
pub use leases::{LEASE_SECONDS, LEASE_TIME, LEASES_MAX, Lease, Leases};
pub use neighbours::{Offer, ROUTER_LIFETIME};
pub use path_errors::{PathError, Trouble};
pub use search::{Search, SearchError};

use incoming::{Body, Incoming, Packet};
use stations::Stations;

/// Time between router advertisements to all: below a third of [`ROUTER_LIFETIME`] (RFC 4861,
/// section 6.2.1).
const ADVERTISEMENTS: Nanos = 400_000_000_000;

/// The purpose of a frame: the part of the network that handles it.
#[derive(Debug, PartialEq, Eq)]
pub enum FramePurpose {
    /// For the gateway; the frame, if there is one, answers it.
    Here(Option<Vec<u8>>),
    /// For the DNS server, by UDP.
    Dns {
        /// The asking side.
        client: Client,
        /// The message.
        message: Vec<u8>,
    },
    /// An error about a packet to a guest, for [`crate::Translator::path_error`].
    PathError(PathError),
    /// A packet for the translation of flows.
    Elsewhere,
}

/// A guest that asks the DNS server by UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its station.
    pub mac: MacAddr,
    /// Its address.
    pub from: SocketAddr,
    /// The address of the DNS server that it asked.
    pub to: SocketAddr,
}

/// The services of a network.
#[derive(Clone, Debug)]
pub struct Services {
    network: Network,
    offer: Offer,
    leases: Leases,
    stations: Stations,
    advertise: Nanos,
}

impl Services {
    /// The services of `network`; a router advertisement to all is due at once.
    #[must_use]
    pub fn new(network: Network, offer: Offer) -> Self {
        Self {
            network,
            offer,
            leases: Leases::new(network),
            stations: Stations::default(),
            advertise: 0,
        }
    }

    /// The leases.
    #[must_use]
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// The leases, to reserve addresses and to restore those of a predecessor.
    pub fn leases_mut(&mut self) -> &mut Leases {
        &mut self.leases
    }

    /// Returns the station of the guest at an address: the one with the lease, or that the address
    /// is reserved for, else the one that has said so of itself. `None`: send [`Services::ask`]
    /// into the segment, and try again when the answer has come.
    #[must_use]
    pub fn station(&self, address: IpAddr, now: Nanos) -> Option<MacAddr> {
        let owner = match address {
            IpAddr::V4(address) => self.leases.owner(address, now),
            IpAddr::V6(_) => None,
        };
        owner.or_else(|| self.stations.at(address, now))
    }

    /// Returns the frame that asks for the station at a guest's address; `None` for an address that
    /// no guest may have.
    #[must_use]
    pub fn ask(&self, address: IpAddr) -> Option<Vec<u8>> {
        let is_guest = self.network.may_be_guest(address);
        is_guest.then(|| neighbours::ask(&self.network, address))
    }

    /// Returns whether a station has said of itself that it has an address, since then.
    #[must_use]
    pub fn was_heard(&self, address: IpAddr, station: MacAddr, since: Nanos) -> bool {
        self.stations.was_heard(address, station, since)
    }

    fn learn(&mut self, mac: MacAddr, address: IpAddr, now: Nanos) {
        if self.network.may_be_guest(address) {
            self.stations.learn(mac, address, now);
        }
    }

    /// Changes what is offered. If it differs, all guests hear of it at the next
    /// [`Services::advertisement`].
    pub fn set_offer(&mut self, offer: Offer) {
        if self.offer != offer {
            (self.offer, self.advertise) = (offer, 0);
        }
    }

    /// The time of the next call of [`Services::advertisement`].
    #[must_use]
    pub fn deadline(&self) -> Nanos {
        self.advertise
    }

    /// Returns the router advertisement to all if it is due.
    pub fn advertisement(&mut self, now: Nanos) -> Option<Vec<u8>> {
        if now < self.advertise {
            return None;
        }
        self.advertise = now.saturating_add(ADVERTISEMENTS);
        neighbours::advertisement(&self.network, &self.offer, None)
    }

    /// Handles a whole frame of a guest, without the virtio header. Frames of TCP need not come
    /// here.
    ///
    /// # Errors
    /// Why the frame is dropped: what contradicts itself is [`Refusal::Protocol`].
    pub fn frame(
        &mut self,
        frame: &[u8],
        checksum: Checksum,
        now: Nanos,
    ) -> Result<FramePurpose, Refusal> {
        let incoming = Incoming::parse(frame)?;
        if incoming.dst != self.network.mac() && !incoming.dst.is_multicast() {
            return Ok(FramePurpose::Here(None));
        }
        match &incoming.body {
            Body::Arp(packet) => {
                let answer = neighbours::arp(&self.network, incoming.src, packet);
                if packet.sender_mac() == incoming.src {
                    self.learn(incoming.src, packet.sender_ip().into(), now);
                }
                Ok(FramePurpose::Here(answer))
            }
            Body::Ip(packet) => match packet.protocol {
                wire::udp::PROTOCOL => self.udp(incoming.src, packet, checksum, now),
                wire::icmp::PROTOCOL_V4 if packet.to.is_ipv4() => {
                    self.icmp(incoming.src, packet, checksum, now)
                }
                wire::icmp::PROTOCOL_V6 if packet.to.is_ipv6() => {
                    self.icmp(incoming.src, packet, checksum, now)
                }
                _ => Ok(FramePurpose::Elsewhere),
            },
        }
    }

    fn icmp(
        &mut self,
        mac: MacAddr,
        packet: &Packet<'_>,
        checksum: Checksum,
        now: Nanos,
    ) -> Result<FramePurpose, Refusal> {
        let message = packet.icmp(checksum)?;
        let network = &self.network;
        let has6 = packet.to.is_ipv6() && network.prefix6().is_some();
        let answer = match message.kind {
            neighbours::NEIGHBOUR_SOLICITATION if has6 => {
                let answer = neighbours::solicited(network, mac, packet, &message)?;
                self.learn(mac, packet.from, now);
                answer
            }
            neighbours::NEIGHBOUR_ADVERTISEMENT if has6 => {
                let target = neighbours::advertised(packet, &message)?;
                self.learn(mac, target.into(), now);
                None
            }
            neighbours::ROUTER_SOLICITATION if has6 => {
                neighbours::router_solicited(network, &self.offer, mac, packet, &message)?
            }
            kind if path_errors::is_error(packet, kind) && !packet.to.is_multicast() => {
                return path_errors::read(mac, packet, &message).map(FramePurpose::PathError);
            }
            _ if network.is_gateway(packet.to) || network.is_dns(packet.to) => {
                icmp::echo(network, mac, packet, &message)
            }
            _ if packet.to.is_multicast() => None,
            _ => return Ok(FramePurpose::Elsewhere),
        };
        Ok(FramePurpose::Here(answer))
    }

    fn udp(
        &mut self,
        mac: MacAddr,
        packet: &Packet<'_>,
        checksum: Checksum,
        now: Nanos,
    ) -> Result<FramePurpose, Refusal> {
        let datagram = packet.udp(checksum)?;
        let network = self.network;
        if datagram.to == dhcp4::SERVER && dhcp4::is_for_server(&network, packet.to) {
            let (leases, offer) = (&mut self.leases, &self.offer);
            let answer = dhcp4::answer(&network, leases, offer, mac, datagram.payload, now)?;
            return Ok(FramePurpose::Here(answer));
        }
        if datagram.to == dhcp6::SERVER && packet.to == dhcp6::SERVERS {
            if network.prefix6().is_none() {
                return Ok(FramePurpose::Here(None));
            }
            let from = (mac, packet.from);
            let answer = dhcp6::answer(&network, &self.offer, from, datagram.payload)?;
            return Ok(FramePurpose::Here(answer));
        }
        if self.offer.dns && datagram.to == dns::PORT && network.is_dns(packet.to) {
            if datagram.from == 0 || !network.may_be_guest(packet.from) {
                return Err(Refusal::Protocol);
            }
            return Ok(FramePurpose::Dns {
                client: Client {
                    mac,
                    from: SocketAddr::new(packet.from, datagram.from),
                    to: SocketAddr::new(packet.to, datagram.to),
                },
                message: datagram.payload.to_vec(),
            });
        }
        match packet.to.is_multicast() {
            true => Ok(FramePurpose::Here(None)),
            false => Ok(FramePurpose::Elsewhere),
        }
    }
}
