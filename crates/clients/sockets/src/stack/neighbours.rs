//! Questions for the stations of neighbours, beside those of smoltcp 0.14: it asks one a second,
//! whatever there is to ask, and for one that does not answer again and again, so that it may never
//! ask for another. An answer counts for it, too, if the question was ours.

use std::net::IpAddr;

use smoltcp::iface::Interface;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::IpAddress;
use wire::MacAddr;
use wire::build::PacketBuilder;
use wire::virtio::net::NetHeader;

use super::cidr;
use crate::config::Route;
use crate::device::Wire;

/// Questions for a neighbour, and the time between two (arp(7), `mcast_solicit`, `retrans_time`).
const TRIES: u8 = 3;
const INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a neighbour is asked for anew, if there is something for it: smoltcp forgets a
/// station after a minute.
const FRESH: Duration = Duration::from_secs(30);
/// Neighbours at most that are asked for; the one that came first makes room.
const MOST: usize = 64;
/// Hop limit of neighbour discovery (RFC 4861, section 4.3).
const HOPS: u8 = 255;
const SOLICITATION: u8 = 135;

#[derive(Debug)]
struct Question {
    to: IpAddress,
    next: Instant,
    left: u8,
    /// Time of the next question for it.
    until: Instant,
}

/// The neighbours that were asked for last.
#[derive(Debug, Default)]
pub(super) struct Questions(Vec<Question>);

impl Questions {
    /// Sees to it that the neighbour is asked for that a packet goes to.
    pub(super) fn note_packet(
        &mut self,
        to: IpAddress,
        (interface, routes): (&Interface, &[Route]),
        now: Instant,
    ) {
        if to.is_unicast()
            && let Some(hop) = next_hop(to, interface, routes)
        {
            self.note(hop, now);
        }
    }

    /// Asks for neighbours.
    pub(super) fn ask<W: Wire>(
        &mut self,
        wire: &mut W,
        (interface, mac): (&Interface, MacAddr),
        now: Instant,
    ) {
        while wire.has_room()
            && let Some(to) = self.take(now)
        {
            if let Some(frame) = question(to, interface, mac) {
                wire.transmit(frame.len(), |room| {
                    room.copy_from_slice(&frame);
                    ((), NetHeader::default())
                });
            }
        }
    }

    /// There is something for a neighbour.
    fn note(&mut self, to: IpAddress, now: Instant) {
        let known = self.0.iter().position(|question| question.to == to);
        match known {
            Some(at) if now < self.0[at].until => return,
            Some(at) => drop(self.0.remove(at)),
            None if self.0.len() >= MOST => drop(self.0.remove(0)),
            None => {}
        }
        self.0.push(Question {
            to,
            next: now,
            left: TRIES,
            until: now + FRESH,
        });
    }

    /// A neighbour has answered.
    pub(super) fn answered(&mut self, by: IpAddr) {
        let by = IpAddress::from(by);
        let mut all = self.0.iter_mut();
        if let Some(question) = all.find(|question| question.to == by) {
            question.left = 0;
        }
    }

    /// When the next question is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let open = self.0.iter().filter(|question| question.left > 0);
        open.map(|question| question.next).min()
    }

    /// Takes a question that is due.
    fn take(&mut self, now: Instant) -> Option<IpAddress> {
        let mut all = self.0.iter_mut();
        let question = all.find(|question| question.left > 0 && question.next <= now)?;
        question.left -= 1;
        question.next = now + INTERVAL;
        Some(question.to)
    }
}

/// The neighbour that a packet goes to: itself, or the router of the closest of the routes.
fn next_hop(to: IpAddress, interface: &Interface, routes: &[Route]) -> Option<IpAddress> {
    let mut own = interface.ip_addrs().iter();
    if own.any(|own| own.contains_addr(&to)) {
        return Some(to);
    }
    let routes = routes
        .iter()
        .filter(|route| cidr(route.to).contains_addr(&to));
    let closest = routes.max_by_key(|route| route.to.prefix)?;
    Some(closest.by.into())
}

/// An ARP request (RFC 826), or a neighbour solicitation (RFC 4861, section 4.3) to the group of
/// the address (RFC 4291, section 2.7.1).
fn question(to: IpAddress, interface: &Interface, mac: MacAddr) -> Option<Vec<u8>> {
    let from = interface.get_source_address(&to)?;
    let frame = match (IpAddr::from(from), IpAddr::from(to)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            PacketBuilder::new(mac, MacAddr::BROADCAST).arp_request(from, to)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let [.., a, b, c] = to.octets();
            let low = [u16::from_be_bytes([0xff, a]), u16::from_be_bytes([b, c])];
            let group = [0xff02, 0, 0, 0, 0, 1, low[0], low[1]];
            let body = [&to.octets()[..], &[1, 1], &mac.0].concat();
            PacketBuilder::new(mac, MacAddr([0x33, 0x33, 0xff, a, b, c]))
                .ipv6(from, group)
                .ttl(HOPS)
                .icmp(SOLICITATION, 0, [0; 4])
                .payload(&body)
        }
        _ => return None,
    };
    Some(frame.build())
}
