//! Datagrams of mappings; at the end those that come to the sockets of forwards, and their answers.

use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};

use wire::MacAddr;
use wire::udp as wire_udp;
use wire::virtio::net::{self, NetHeader};

use super::ports::Supply;
use super::table::Entry;
use super::{Packet, Translator, Verdict, hops_left};
use crate::Nanos;
use crate::action::{Action, Datagrams, Family, ForwardPeer, Headers, Payload, Target};
use crate::flow::FlowId;
use crate::headers::Ends;
use crate::network::{Protocol, Refusal};
use crate::record::MappingRecord;
use crate::services::UndeliveredPacket;
use crate::udp::Mapping;

/// Maximum number of datagrams of a super-frame: Linux has no more (`UDP_MAX_SEGMENTS`).
const DATAGRAMS_MAX: u32 = 128;

/// First port that a peer gets in place of its own.
const FIRST_PORT: u16 = 49_152;
/// Ports that are tried for a peer.
const TRIES: u64 = 64;
/// Ports of the gateway's services for datagrams to any address (DHCP).
const SERVICES: [u16; 2] = [67, 547];

impl Translator {
    pub(super) fn udp(
        &mut self,
        now: Nanos,
        packet: &Packet<'_>,
        net: &NetHeader,
        out: &mut Vec<Action>,
    ) -> Verdict {
        let Some((payload, segment)) = datagram(packet, net) else {
            return Verdict::Refused(Refusal::Protocol);
        };
        if self.expires(packet) {
            return Verdict::Expired;
        }
        let hops = hops_left(packet.hops);
        if let Some((flow, target)) = self.peer_of_forward(packet) {
            if self.station(flow) != Some(packet.parsed.src) {
                return Verdict::Refused(Refusal::Denied);
            }
            self.sent(flow, packet, now);
            out.push(Action::SendTo {
                flow,
                target,
                payload,
                segment,
                hops,
            });
            return Verdict::Done;
        }
        let target = match self.target(Protocol::Udp, packet.to) {
            Ok(target) => target,
            Err(refusal) => return Verdict::Refused(refusal),
        };
        let (flow, is_new) = match self.flow_to_send(packet, out) {
            Ok(found) => found,
            Err(refusal) => return Verdict::Refused(refusal),
        };
        self.sent(flow, packet, now);
        if is_new {
            out.push(Action::Keep(flow));
        }
        out.push(Action::SendTo {
            flow,
            target,
            payload,
            segment,
            hops,
        });
        Verdict::Done
    }

    /// Returns the flow of a packet, and whether it is new.
    fn flow_to_send(
        &mut self,
        packet: &Packet<'_>,
        out: &mut Vec<Action>,
    ) -> Result<(FlowId, bool), Refusal> {
        let key = (Protocol::Udp, packet.guest, None);
        if let Some(index) = self.keys.get(&key).copied() {
            let flow = self.id(index);
            let is_own = self.station(flow) == Some(packet.parsed.src);
            return is_own.then_some((flow, false)).ok_or(Refusal::Denied);
        }
        if !self.has_port(Supply::Udp, packet.parsed.src) {
            return Err(Refusal::Ports);
        }
        if !self.has_room(packet.parsed.src, |_| 0) {
            return Err(Refusal::Flows);
        }
        let mapping = Mapping::new(self.ends(packet));
        let flow = self.insert(Entry::Udp(mapping));
        let family = match packet.guest {
            SocketAddr::V4(_) => Family::V4,
            SocketAddr::V6(_) => Family::V6,
        };
        out.push(Action::OpenUdp(flow, family));
        Ok((flow, true))
    }

    fn sent(&mut self, flow: FlowId, packet: &Packet<'_>, now: Nanos) {
        let times = self.settings.times;
        if let Some(Entry::Udp(mapping)) = self.entry_mut(flow) {
            mapping.sent(packet.to, now, &times);
        }
        self.settle(flow.index);
    }

    pub(super) fn end_mapping(&mut self, id: FlowId, out: &mut Vec<Action>) {
        out.push(Action::Close {
            flow: id,
            reset: false,
        });
        self.remove(id.index);
    }

    /// Datagrams came from outside for a mapping: the headers to put in front of them. `None`: they
    /// are dropped. `from` says whether they are from a service of the host.
    pub fn datagram(
        &mut self,
        now: Nanos,
        id: FlowId,
        from: Target,
        datagrams: Datagrams,
    ) -> Option<Headers> {
        let peer = self.peer(id, from)?;
        self.received(now, id, peer, datagrams)
    }

    pub(super) fn received(
        &mut self,
        now: Nanos,
        id: FlowId,
        peer: SocketAddr,
        datagrams: Datagrams,
    ) -> Option<Headers> {
        let times = self.settings.times;
        let Some(Entry::Udp(mapping)) = self.entry_mut(id) else {
            return None;
        };
        let headers = mapping.headers(peer, datagrams);
        mapping.used(now, &times);
        self.settle(id.index);
        Some(headers)
    }

    /// A socket could not deliver a datagram of a mapping to `to`: the datagram for
    /// [`crate::services::Errors::undelivered`]. `None`: the guest gets no error.
    #[must_use]
    pub fn undelivered(&self, id: FlowId, to: Target) -> Option<UndeliveredPacket> {
        let entry = self.entry(id)?;
        let Ends {
            guest,
            station,
            peer,
            ..
        } = *entry.ends();
        let peer = match entry.forwarded() {
            Some(_) => peer,
            None => self.peer(id, to)?,
        };
        Some(UndeliveredPacket {
            station,
            guest,
            peer,
            syn: None,
        })
    }

    /// The other end of a mapping's datagram as the guest sees it, if it may reach that.
    fn peer(&self, id: FlowId, other: Target) -> Option<SocketAddr> {
        let network = &self.settings.network;
        let access = &self.settings.access;
        let is_v4 = matches!(self.entry(id)?, Entry::Udp(m) if m.ends.guest.is_ipv4());
        match other {
            Target::Outside(from) if from.is_ipv4() != is_v4 => None,
            Target::Outside(from) if network.contains(from.ip()) => None,
            Target::Outside(from) => access.allows(Protocol::Udp, from).then_some(from),
            Target::Host(from) => {
                let gateway = match is_v4 {
                    true => IpAddr::V4(network.gateway()),
                    false => IpAddr::V6(network.gateway6()?),
                };
                let is_allowed = access.host_allows(Protocol::Udp, from.port());
                is_allowed.then_some(SocketAddr::new(gateway, from.port()))
            }
            Target::Resolver => None,
            // What the socket of a forward sends goes to the peer that it is known by.
            Target::Peer(_) => None,
        }
    }

    /// Continues a mapping from its record; its socket is left. `listen` is the address of the
    /// socket, which is that of a forward if the record says so.
    ///
    /// # Errors
    /// As [`Translator::restore`].
    pub fn restore_mapping(
        &mut self,
        now: Nanos,
        record: &MappingRecord,
        listen: SocketAddr,
    ) -> Result<FlowId, Refusal> {
        let MappingRecord {
            guest,
            peer,
            station,
            forwarded,
        } = *record;
        let ends = self.checked_ends((guest, peer), station)?;
        let forwarded = forwarded.map(|peer| ForwardPeer { listen, peer });
        // A mapping is independent of its peer, but for one of a forward.
        let key = (Protocol::Udp, guest, forwarded.map(|_| peer));
        let is_known = forwarded.is_some_and(|of| self.peers.flows.contains_key(&of));
        if is_known || self.keys.contains_key(&key) || !self.has_room(station, |_| 0) {
            return Err(Refusal::Flows);
        }
        let mapping = Mapping::of_peer(ends, forwarded, now, &self.settings.times);
        Ok(self.insert(Entry::Udp(mapping)))
    }
}

/// The payload of a UDP packet, if its length agrees with IP's, and the length of each datagram; 0:
/// it is one.
fn datagram(packet: &Packet<'_>, net: &NetHeader) -> Option<(Payload, u16)> {
    let view = wire_udp::UdpView::new_checked(packet.headers).ok()?;
    let len = u32::from(view.length()).checked_sub(wire_udp::HEADER_LEN as u32)?;
    let segment = match net.gso() {
        net::GSO_NONE | net::GSO_UDP => 0,
        net::GSO_UDP_L4 => {
            let datagrams = len.checked_div(u32::from(net.gso_size))?;
            (datagrams <= DATAGRAMS_MAX).then_some(net.gso_size)?
        }
        _ => return None,
    };
    let payload = Payload {
        len,
        ..packet.payload
    };
    (len <= packet.payload.len).then_some((payload, segment))
}

/// Forwards.
impl Translator {
    /// Datagrams came to the socket of a forward that leads to this address of this station: the
    /// mapping, and the headers to put in front of them. A mapping that is new has no socket yet:
    /// it gets the forward's.
    ///
    /// # Errors
    /// [`Refusal::Flows`] at a bound; [`Refusal::Unreachable`] if an address is none for guests or
    /// their peers.
    pub fn forwarded(
        &mut self,
        now: Nanos,
        (guest, station): (SocketAddr, MacAddr),
        from: ForwardPeer,
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
        from: ForwardPeer,
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
        if !self.has_room(station, |_| 0) {
            return Err(Refusal::Flows);
        }
        let mapping = Mapping::of_peer(ends, Some(from), now, &self.settings.times);
        let has_record = mapping.record().is_some();
        let id = self.insert(Entry::Udp(mapping));
        if has_record {
            out.push(Action::Keep(id));
        }
        Ok(id)
    }

    /// The peer of a forward as the guest sees it: with its own address, or that of the gateway if
    /// peers of guests cannot have it, and with a port that leads an answer to it.
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
    pub fn flow_of(&self, from: &ForwardPeer) -> Option<FlowId> {
        self.peers.flows.get(from).map(|index| self.id(*index))
    }

    /// The mapping of the peer that gets a guest's datagram.
    pub(super) fn peer_of_forward(&self, packet: &Packet<'_>) -> Option<(FlowId, Target)> {
        let key = (Protocol::Udp, packet.guest, Some(packet.to));
        let id = self.id(*self.keys.get(&key)?);
        let forwarded = self.entry(id)?.forwarded()?;
        Some((id, Target::Peer(forwarded.peer)))
    }

    /// Ends the mappings of forwards without an open socket.
    pub fn retain_forwards(&mut self, is_open: impl Fn(SocketAddr) -> bool, out: &mut Vec<Action>) {
        let all = self.peers.flows.iter();
        let ended = all.filter(|(of, _)| !is_open(of.listen));
        let ended: Vec<u32> = ended.map(|(_, index)| *index).collect();
        for index in ended {
            self.end_mapping(self.id(index), out);
        }
    }
}
