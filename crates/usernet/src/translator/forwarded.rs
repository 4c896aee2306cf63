//! Datagrams that come to the sockets of forwards, and the guests' answers.

use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};

use wire::MacAddr;

use super::table::Entry;
use super::{Packet, Translator};
use crate::Nanos;
use crate::action::{Action, Datagrams, FlowId, Forwarded, Headers, Target};
use crate::network::{Protocol, Refusal};
use crate::udp::Mapping;

/// First port that a peer gets in place of its own.
const FIRST_PORT: u16 = 49_152;
/// Ports that are tried for a peer.
const TRIES: u64 = 64;
/// Ports whose datagrams are for the services of the gateway, whatever their address (DHCP).
const SERVICES: [u16; 2] = [67, 547];

impl Translator {
    /// Datagrams came to the socket of a forward that leads to this address of this station: the
    /// mapping, and the headers to put in front of them. A mapping that is new has no socket yet:
    /// it is to get the forward's.
    ///
    /// # Errors
    /// [`Refusal::Flows`] at a bound; [`Refusal::Unreachable`] if an address is none for guests or
    /// their peers.
    pub fn forwarded(
        &mut self,
        now: Nanos,
        (guest, station): (SocketAddr, MacAddr),
        from: Forwarded,
        datagrams: Datagrams,
        out: &mut Vec<Action>,
    ) -> Result<(FlowId, Headers), Refusal> {
        let known = self.flow_of(&from);
        let ends = known.and_then(|id| self.entry(id)).map(Entry::ends);
        let is_same = ends.is_some_and(|ends| (ends.guest, ends.station) == (guest, station));
        let id = match known.filter(|_| is_same) {
            Some(id) => id,
            None => {
                if let Some(other) = known {
                    // The forward leads to another guest by now.
                    self.end_mapping(other, out);
                }
                self.open_forwarded(now, (guest, station), from, out)?
            }
        };
        let entry = self.entry(id).ok_or(Refusal::Flows)?;
        let headers = self.received(now, id, entry.ends().peer, datagrams);
        Ok((id, headers.ok_or(Refusal::Flows)?))
    }

    fn open_forwarded(
        &mut self,
        now: Nanos,
        (guest, station): (SocketAddr, MacAddr),
        from: Forwarded,
        out: &mut Vec<Action>,
    ) -> Result<FlowId, Refusal> {
        let seen = self.seen(guest, from.peer).ok_or(Refusal::Unreachable)?;
        let ends = self.checked_ends((guest, seen), station)?;
        let own = self.guests.get(&station).copied().unwrap_or_default();
        if own.forwarded >= self.settings.bounds.forwarded {
            let mut all = self.peers.idle.range((station, 0, 0)..);
            if let Some((_, _, oldest)) = all.next().filter(|(of, ..)| *of == station) {
                self.end_mapping(self.id(*oldest), out);
            }
        }
        if !self.has_room(station, false) {
            return Err(Refusal::Flows);
        }
        let mapping = Mapping::of_peer(ends, Some(from), now);
        let has_record = mapping.record().is_some();
        let id = self.insert(Entry::Udp(mapping));
        if has_record {
            out.push(Action::Keep(id));
        }
        Ok(id)
    }

    /// The peer of a forward as the guest is to see it: with its own address, or as the gateway
    /// if that is none for peers of guests, and with a port by which an answer finds it.
    fn seen(&self, guest: SocketAddr, peer: SocketAddr) -> Option<SocketAddr> {
        let network = &self.settings.network;
        let is_outside = network.may_be_peer(peer.ip()) && !network.contains(peer.ip());
        let ip = match peer.ip() {
            ip if is_outside => ip,
            IpAddr::V4(_) => network.gateway().into(),
            IpAddr::V6(_) => network.gateway6()?.into(),
        };
        if peer.port() == 0 {
            return None;
        }
        let is_free = |port: &u16| {
            let key = (Protocol::Udp, guest, Some(SocketAddr::new(ip, *port)));
            let is_service = !is_outside && self.settings.access.host_allows(Protocol::Udp, *port);
            !self.keys.contains_key(&key) && !is_service && !SERVICES.contains(port)
        };
        let start = self.settings.secret.hash_one((guest, peer));
        let others = (0..TRIES).map(|n| {
            let ports = u64::from(u16::MAX - FIRST_PORT) + 1;
            FIRST_PORT + (start.wrapping_add(n) % ports) as u16
        });
        let port = std::iter::once(peer.port()).chain(others).find(is_free)?;
        Some(SocketAddr::new(ip, port))
    }

    /// The mapping of a peer of a forward.
    #[must_use]
    pub fn flow_of(&self, from: &Forwarded) -> Option<FlowId> {
        self.peers.flows.get(from).map(|index| self.id(*index))
    }

    /// The mapping whose peer a guest's datagram goes to.
    pub(super) fn peer_of_forward(&self, packet: &Packet<'_>) -> Option<(FlowId, Target)> {
        let key = (Protocol::Udp, packet.guest, Some(packet.to));
        let id = self.id(*self.keys.get(&key)?);
        let forwarded = self.entry(id)?.forwarded()?;
        Some((id, Target::Peer(forwarded.peer)))
    }

    /// Ends the mappings of forwards whose sockets are no longer open.
    pub fn retain_forwards(&mut self, is_open: impl Fn(SocketAddr) -> bool, out: &mut Vec<Action>) {
        let all = self.peers.flows.iter();
        let ended = all.filter(|(of, _)| !is_open(of.listen));
        let ended: Vec<u32> = ended.map(|(_, index)| *index).collect();
        for index in ended {
            self.end_mapping(self.id(index), out);
        }
    }
}
