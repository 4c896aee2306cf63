//! Datagrams of mappings.

use std::net::{IpAddr, SocketAddr};

use wire::udp as wire_udp;
use wire::virtio::net::{self, NetHeader};

use super::table::Entry;
use super::{Packet, Translator, Verdict};
use crate::Nanos;
use crate::action::{Action, Family, FlowId, Headers, Payload, Target};
use crate::network::{Protocol, Refusal};
use crate::udp::Mapping;

impl Translator {
    pub(super) fn udp(
        &mut self,
        now: Nanos,
        packet: &Packet<'_>,
        net: &NetHeader,
        out: &mut Vec<Action>,
    ) -> Verdict {
        let Some(payload) = datagram(packet) else {
            return Verdict::Refused(Refusal::Protocol);
        };
        let target = match self.target(Protocol::Udp, packet.to) {
            Ok(target) => target,
            Err(refusal) => return Verdict::Refused(refusal),
        };
        let key = (Protocol::Udp, packet.guest, None);
        let flow = match self.keys.get(&key).copied() {
            Some(index) => self.id(index),
            None if !self.has_room(packet.parsed.src, false) => {
                return Verdict::Refused(Refusal::Flows);
            }
            None => {
                let mapping = Mapping::new(self.ends(packet), now);
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
            mapping.used(now);
        }
        self.settle(flow.index);
        let segment = if net.gso() == net::GSO_UDP_L4 {
            net.gso_size
        } else {
            0
        };
        out.push(Action::SendTo {
            flow,
            target,
            payload,
            segment,
        });
        Verdict::Done
    }

    /// A datagram of `len` bytes came from outside for a mapping: the headers to put in front of
    /// it. `None`: it is dropped. `from` says whether it is from a service of the host.
    pub fn datagram(&mut self, now: Nanos, id: FlowId, from: Target, len: u16) -> Option<Headers> {
        let network = self.settings.network;
        let access = &self.settings.access;
        let is_v4 = matches!(self.entry(id)?, Entry::Udp(m) if m.ends.guest.is_ipv4());
        let peer = match from {
            Target::Outside(from) if from.is_ipv4() != is_v4 => return None,
            Target::Outside(from) if network.contains(from.ip()) => return None,
            Target::Outside(from) => access.allows(Protocol::Udp, from).then_some(from)?,
            Target::Host(from) => {
                let gateway = match is_v4 {
                    true => IpAddr::V4(network.gateway()),
                    false => IpAddr::V6(network.gateway6()?),
                };
                let is_allowed = access.host_allows(Protocol::Udp, from.port());
                is_allowed.then_some(SocketAddr::new(gateway, from.port()))?
            }
            Target::Resolver => return None,
        };
        let Some(Entry::Udp(mapping)) = self.entry_mut(id) else {
            return None;
        };
        let headers = mapping.headers(peer, len);
        mapping.used(now);
        self.settle(id.index);
        Some(headers)
    }
}

/// The payload of a UDP packet whose length agrees with IP's.
fn datagram(packet: &Packet<'_>) -> Option<Payload> {
    let view = wire_udp::UdpView::new_checked(packet.headers).ok()?;
    let len = u32::from(view.length()).checked_sub(wire_udp::HEADER_LEN as u32)?;
    (len <= packet.payload.len).then_some(Payload {
        len,
        ..packet.payload
    })
}
