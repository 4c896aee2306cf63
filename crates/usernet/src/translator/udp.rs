//! Datagrams of mappings.

use std::net::{IpAddr, SocketAddr};

use wire::udp as wire_udp;
use wire::virtio::net::{self, NetHeader};

use super::table::Entry;
use super::{Packet, Translator, Undelivered, Verdict};
use crate::Nanos;
use crate::action::{Action, Family, FlowId, Headers, Payload, Target};
use crate::headers::Ends;
use crate::network::{Protocol, Refusal};
use crate::record::MappingRecord;
use crate::udp::Mapping;

/// Most datagrams of a super-frame: Linux has no more (`UDP_MAX_SEGMENTS`).
const DATAGRAMS_MAX: u32 = 128;

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
        let target = match self.target(Protocol::Udp, packet.to) {
            Ok(target) => target,
            Err(refusal) => return Verdict::Refused(refusal),
        };
        let key = (Protocol::Udp, packet.guest, None);
        let known = self.keys.get(&key).copied();
        let is_new = known.is_none();
        let flow = match known {
            Some(index) if self.station(self.id(index)) != Some(packet.parsed.src) => {
                return Verdict::Refused(Refusal::Denied);
            }
            Some(index) => self.id(index),
            None if !self.has_room(packet.parsed.src, false) => {
                return Verdict::Refused(Refusal::Flows);
            }
            None => {
                let mapping = Mapping::new(self.ends(packet));
                let id = self.insert(Entry::Udp(mapping));
                let is_v4 = packet.guest.is_ipv4();
                out.push(Action::OpenUdp(
                    id,
                    if is_v4 { Family::V4 } else { Family::V6 },
                ));
                id
            }
        };
        if let Some(Entry::Udp(mapping)) = self.entry_mut(flow) {
            mapping.sent(packet.to, now);
        }
        self.settle(flow.index);
        if is_new {
            out.push(Action::Keep(flow));
        }
        out.push(Action::SendTo {
            flow,
            target,
            payload,
            segment,
        });
        Verdict::Done
    }

    pub(super) fn end_mapping(&mut self, id: FlowId, out: &mut Vec<Action>) {
        out.push(Action::Close {
            flow: id,
            reset: false,
        });
        self.remove(id.index);
    }

    /// A datagram of `len` bytes came from outside for a mapping: the headers to put in front of
    /// it. `None`: it is dropped. `from` says whether it is from a service of the host.
    pub fn datagram(&mut self, now: Nanos, id: FlowId, from: Target, len: u16) -> Option<Headers> {
        let peer = self.peer(id, from)?;
        let Some(Entry::Udp(mapping)) = self.entry_mut(id) else {
            return None;
        };
        let headers = mapping.headers(peer, len);
        mapping.used(now);
        self.settle(id.index);
        Some(headers)
    }

    /// A socket could not deliver a datagram of a mapping to `to`: the datagram for
    /// [`crate::services::Errors::undelivered`]. `None`: the guest gets no error.
    #[must_use]
    pub fn undelivered(&self, id: FlowId, to: Target) -> Option<Undelivered> {
        let peer = self.peer(id, to)?;
        let Ends { guest, station, .. } = *self.entry(id)?.ends();
        Some(Undelivered {
            station,
            guest,
            peer,
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
        }
    }

    /// Continues a mapping of which the record and the socket are left.
    ///
    /// # Errors
    /// As [`Translator::restore`].
    pub fn restore_mapping(
        &mut self,
        now: Nanos,
        record: &MappingRecord,
    ) -> Result<FlowId, Refusal> {
        let MappingRecord {
            guest,
            peer,
            station,
        } = *record;
        let ends = self.restorable(Protocol::Udp, (guest, peer), station)?;
        if !self.has_room(station, false) {
            return Err(Refusal::Flows);
        }
        Ok(self.insert(Entry::Udp(Mapping::restored(ends, now))))
    }
}

/// The payload of a UDP packet whose length agrees with IP's, and how long each of its datagrams
/// is; 0: it is one.
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
