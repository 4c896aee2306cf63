//! ARP requests and neighbour solicitations to many stations, and the replies of their target: for
//! neighbour suppression (RFC 9161).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::arp::{self, ArpView};
use wire::build::PacketBuilder;
use wire::packet::{L3, ParsedHeaders};
use wire::{FrameClass, MacAddr};

use crate::frame_class::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, Neighbour, classify};

/// All nodes of a link (RFC 4291, 2.7.1), and their Ethernet address (RFC 2464, 7).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
/// Flags of an advertisement (RFC 4861, 4.4): it answers a solicitation; it replaces what was
/// known.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// The hop limit of neighbour discovery.
const HOPS: u8 = 255;
/// Bytes of the longest [`NeighbourRequest::reply`].
pub const MAX: usize = 14 + 40 + 24 + 8;

/// An ARP request or neighbour solicitation to many stations for another's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourRequest {
    /// The requester.
    requester_mac: MacAddr,
    requester: IpAddr,
    target: IpAddr,
}

impl NeighbourRequest {
    /// Parses the request of a frame of `frame_len` bytes with these first bytes. `None` for other
    /// frames: unicast ones, which probe reachability; announcements (RFC 5227, 3); and those that
    /// contradict themselves.
    #[must_use]
    pub fn in_frame(headers: &[u8], frame_len: usize) -> Option<Self> {
        let parsed = ParsedHeaders::parse(headers, frame_len);
        let frame_class = classify(headers, frame_len);
        let (requester, target) = match (frame_class, parsed.l3) {
            (FrameClass::Neighbour, L3::V6 { src, .. }) if parsed.dst.is_multicast() => {
                let kind = (parsed.l4_flags >> 8) as u8;
                let found = Neighbour::in_frame(headers, frame_len)?;
                let target = found.target.filter(|_| kind == NEIGHBOUR_SOLICITATION)?;
                (IpAddr::V6(src), IpAddr::V6(target))
            }
            (FrameClass::NeighbourRequest, _) => {
                let packet = headers.get(usize::from(parsed.l3_offset)..)?;
                let arp = ArpView::new_checked(packet).ok()?;
                (IpAddr::V4(arp.sender_ip()), IpAddr::V4(arp.target_ip()))
            }
            _ => return None,
        };
        Some(Self {
            requester_mac: parsed.src,
            requester,
            target,
        })
    }

    /// Returns the requested address.
    #[must_use]
    pub const fn target(&self) -> IpAddr {
        self.target
    }

    /// Returns the reply of the station `owner`, which has the address and is no router: an ARP
    /// reply (RFC 826), also to a probe (RFC 5227, 2.1.1); an advertisement (RFC 4861, 7.2.4), to
    /// all nodes if the requester has no address (RFC 4862, 5.4.3). Untagged.
    #[must_use]
    pub fn reply(&self, owner: MacAddr) -> Vec<u8> {
        match (self.target, self.requester) {
            (IpAddr::V4(target), requester) => {
                let requester = match requester {
                    IpAddr::V4(requester) => requester,
                    IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
                };
                PacketBuilder::new(owner, self.requester_mac)
                    .arp(arp::REPLY, target, self.requester_mac, requester)
                    .build()
            }
            (IpAddr::V6(target), IpAddr::V6(requester)) if !requester.is_unspecified() => {
                let flags = SOLICITED | OVERRIDE;
                advertisement(owner, target, self.requester_mac, requester, flags)
            }
            (IpAddr::V6(target), _) => {
                advertisement(owner, target, ALL_NODES_MAC, ALL_NODES, OVERRIDE)
            }
        }
    }
}

fn advertisement(
    owner: MacAddr,
    target: Ipv6Addr,
    to: MacAddr,
    receiver: Ipv6Addr,
    flags: u8,
) -> Vec<u8> {
    // The target's link-layer address: type 2, 8 bytes (RFC 4861, 4.6.1).
    let body = [&target.octets()[..], &[2, 1], &owner.0].concat();
    PacketBuilder::new(owner, to)
        .ipv6(target, receiver)
        .ttl(HOPS)
        .icmp(NEIGHBOUR_ADVERTISEMENT, 0, [flags, 0, 0, 0])
        .payload(&body)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OWNER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const GROUP: MacAddr = MacAddr([0x33, 0x33, 0xff, 0, 0, 2]);

    fn ip6(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn solicitation(to: MacAddr, src: &str) -> PacketBuilder {
        let probe = ip6(src).is_unspecified();
        let option = [&[1, 1][..], &REQUESTER.0].concat();
        let option = if probe { &[][..] } else { &option };
        let body = [&ip6("2001:db8::2").octets()[..], option].concat();
        PacketBuilder::new(REQUESTER, to)
            .ipv6(ip6(src), ip6("ff02::1:ff00:2"))
            .ttl(255)
            .icmp(135, 0, [0; 4])
            .payload(&body)
    }

    fn parse(frame: &PacketBuilder) -> Option<NeighbourRequest> {
        let frame = frame.build();
        NeighbourRequest::in_frame(&frame, frame.len())
    }

    fn sum_is_right(frame: &[u8]) -> bool {
        let message = &frame[54..];
        let (src, dst) = (&frame[22..38], &frame[38..54]);
        let address = |bytes: &[u8]| Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap());
        let mut sum = wire::Sum::pseudo_v6(address(src), address(dst), 58, message.len() as u32);
        sum.add_bytes(message);
        sum.finish() == 0
    }

    #[test]
    fn arp_is_answered_to_the_requester() {
        for requester in [[10, 0, 0, 1], [0; 4]] {
            let builder = PacketBuilder::new(REQUESTER, MacAddr::BROADCAST);
            let request = parse(&builder.arp_request(requester, [10, 0, 0, 2]).pad_to(60)).unwrap();
            assert_eq!(request.target(), IpAddr::from([10, 0, 0, 2]));
            let reply = request.reply(OWNER);
            let head = [&REQUESTER.0[..], &OWNER.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
            let rest = [&OWNER.0[..], &[10, 0, 0, 2], &REQUESTER.0, &requester].concat();
            assert_eq!(reply, [head, rest].concat());
            assert_eq!(classify(&reply, reply.len()), FrameClass::Ordinary);
        }
    }

    #[test]
    fn a_solicitation_is_answered_to_its_sender_and_a_probe_to_all_nodes() {
        for (src, to, flags, dst) in [
            ("2001:db8::1", REQUESTER, 0x60, ip6("2001:db8::1")),
            ("::", ALL_NODES_MAC, 0x20, ALL_NODES),
        ] {
            let request = parse(&solicitation(GROUP, src)).unwrap();
            assert_eq!(request.target(), IpAddr::V6(ip6("2001:db8::2")));
            let reply = request.reply(OWNER);
            assert!(reply.len() <= MAX);
            assert_eq!((&reply[..6], &reply[6..12]), (&to.0[..], &OWNER.0[..]));
            assert_eq!(reply[38..54], dst.octets());
            assert_eq!((reply[54], reply[58]), (136, flags));
            assert_eq!(reply[78..], [&[2, 1][..], &OWNER.0].concat());
            assert!(sum_is_right(&reply));
            let found = Neighbour::in_frame(&reply, reply.len()).unwrap();
            assert_eq!(found.claims, Some(ip6("2001:db8::2")));
        }
    }

    #[test]
    fn other_frames_are_no_neighbour_request() {
        let to_all = PacketBuilder::new(REQUESTER, MacAddr::BROADCAST);
        let to_one = PacketBuilder::new(REQUESTER, OWNER);
        let (own, other) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        for frame in [
            to_all.clone().arp_request(own, own),
            to_all.clone().arp(2, own, OWNER, other),
            to_all.clone().arp_request(own, other).arp_sender_mac(OWNER),
            to_one.arp_request(own, other),
            to_all.ipv4(own, other).udp(1, 2),
            solicitation(OWNER, "2001:db8::1"),
            solicitation(GROUP, "2001:db8::1").ttl(254),
        ] {
            assert_eq!(parse(&frame), None, "{frame:?}");
        }
        let reply = parse(&solicitation(GROUP, "::")).unwrap().reply(OWNER);
        assert_eq!(NeighbourRequest::in_frame(&reply, reply.len()), None);
    }

    #[test]
    fn cut_off_frames_are_no_neighbour_request() {
        for frame in [
            solicitation(GROUP, "2001:db8::1").build(),
            PacketBuilder::new(REQUESTER, MacAddr::BROADCAST)
                .arp_request([10, 0, 0, 1], [10, 0, 0, 2])
                .build(),
        ] {
            for len in 0..frame.len() {
                assert_eq!(
                    NeighbourRequest::in_frame(&frame[..len], len),
                    None,
                    "{len}"
                );
            }
        }
    }
}
