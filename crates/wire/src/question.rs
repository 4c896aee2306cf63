//! Who has an address? The questions of ARP and neighbour discovery that go to many, and the answers that their owner gives:
//! for whoever answers in its place.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::arp::{self, ArpView};
use crate::build::PacketBuilder;
use crate::conduct::{Conduct, NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, Neighbour};
use crate::ethernet::MacAddr;
use crate::packet::{L3, Parsed};

/// All nodes of a link (RFC 4291, 2.7.1), and their Ethernet address (RFC 2464, 7).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
/// Flags of an advertisement (RFC 4861, 4.4): it answers a solicitation; it replaces what was known.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// The hop limit of neighbour discovery.
const HOPS: u8 = 255;
/// Bytes of the longest [`Question::answer`].
pub const MAX: usize = 14 + 40 + 24 + 8;

/// Somebody asks everybody who has an address that is not its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Who asks.
    asker_mac: MacAddr,
    asker: IpAddr,
    target: IpAddr,
}

impl Question {
    /// The question that a frame of `frame_len` bytes with these first bytes asks. `None` where none is asked: of frames to
    /// one station, which ask whether it is still there; of announcements (RFC 5227, 3); of what contradicts itself.
    #[must_use]
    pub fn in_frame(headers: &[u8], frame_len: usize) -> Option<Self> {
        let parsed = Parsed::parse(headers, frame_len);
        let conduct = Conduct::of(headers, frame_len);
        let (asker, target) = match (conduct, parsed.l3) {
            (Conduct::Neighbour, L3::V6 { src, .. }) if parsed.dst.is_multicast() => {
                let kind = (parsed.l4_flags >> 8) as u8;
                let said = Neighbour::in_frame(headers, frame_len)?;
                let target = said.target.filter(|_| kind == NEIGHBOUR_SOLICITATION)?;
                (IpAddr::V6(src), IpAddr::V6(target))
            }
            (Conduct::Question, _) => {
                let packet = headers.get(usize::from(parsed.l3_offset)..)?;
                let arp = ArpView::new_checked(packet).ok()?;
                (IpAddr::V4(arp.sender_ip()), IpAddr::V4(arp.target_ip()))
            }
            _ => return None,
        };
        Some(Self {
            asker_mac: parsed.src,
            asker,
            target,
        })
    }

    /// The address that is asked about.
    #[must_use]
    pub const fn target(&self) -> IpAddr {
        self.target
    }

    /// What the station `owner` answers, which has the address and is no router: an ARP reply (RFC 826), also to a probe
    /// (RFC 5227, 2.1.1); an advertisement (RFC 4861, 7.2.4), to all nodes where the asker has no address (RFC 4862, 5.4.3).
    /// Untagged.
    #[must_use]
    pub fn answer(&self, owner: MacAddr) -> Vec<u8> {
        match (self.target, self.asker) {
            (IpAddr::V4(target), asker) => {
                let asker = match asker {
                    IpAddr::V4(asker) => asker,
                    IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
                };
                PacketBuilder::new(owner, self.asker_mac)
                    .arp(arp::REPLY, target, self.asker_mac, asker)
                    .build()
            }
            (IpAddr::V6(target), IpAddr::V6(asker)) if !asker.is_unspecified() => {
                let flags = SOLICITED | OVERRIDE;
                advertisement(owner, target, self.asker_mac, asker, flags)
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

    const ASKER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OWNER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const GROUP: MacAddr = MacAddr([0x33, 0x33, 0xff, 0, 0, 2]);

    fn ip6(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn solicitation(to: MacAddr, src: &str) -> PacketBuilder {
        let nobody = ip6(src).is_unspecified();
        let option = [&[1, 1][..], &ASKER.0].concat();
        let option = if nobody { &[][..] } else { &option };
        let body = [&ip6("2001:db8::2").octets()[..], option].concat();
        PacketBuilder::new(ASKER, to)
            .ipv6(ip6(src), ip6("ff02::1:ff00:2"))
            .ttl(255)
            .icmp(135, 0, [0; 4])
            .payload(&body)
    }

    fn question(frame: &PacketBuilder) -> Option<Question> {
        let frame = frame.build();
        Question::in_frame(&frame, frame.len())
    }

    fn sum_is_right(frame: &[u8]) -> bool {
        let message = &frame[54..];
        let (src, dst) = (&frame[22..38], &frame[38..54]);
        let address = |bytes: &[u8]| Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap());
        let mut sum = crate::Sum::pseudo_v6(address(src), address(dst), 58, message.len() as u32);
        sum.add_bytes(message);
        sum.finish() == 0
    }

    #[test]
    fn arp_is_answered_to_the_asker() {
        for asker in [[10, 0, 0, 1], [0; 4]] {
            let asked = PacketBuilder::new(ASKER, MacAddr::BROADCAST);
            let asked = question(&asked.arp_request(asker, [10, 0, 0, 2]).pad_to(60)).unwrap();
            assert_eq!(asked.target(), IpAddr::from([10, 0, 0, 2]));
            let answer = asked.answer(OWNER);
            let head = [&ASKER.0[..], &OWNER.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
            let rest = [&OWNER.0[..], &[10, 0, 0, 2], &ASKER.0, &asker].concat();
            assert_eq!(answer, [head, rest].concat());
            assert_eq!(Conduct::of(&answer, answer.len()), Conduct::Ordinary);
        }
    }

    #[test]
    fn a_solicitation_is_answered_to_the_asker_and_one_from_nobody_to_all() {
        for (src, to, flags, dst) in [
            ("2001:db8::1", ASKER, 0x60, ip6("2001:db8::1")),
            ("::", ALL_NODES_MAC, 0x20, ALL_NODES),
        ] {
            let asked = question(&solicitation(GROUP, src)).unwrap();
            assert_eq!(asked.target(), IpAddr::V6(ip6("2001:db8::2")));
            let answer = asked.answer(OWNER);
            assert!(answer.len() <= MAX);
            assert_eq!((&answer[..6], &answer[6..12]), (&to.0[..], &OWNER.0[..]));
            assert_eq!(answer[38..54], dst.octets());
            assert_eq!((answer[54], answer[58]), (136, flags));
            assert_eq!(answer[78..], [&[2, 1][..], &OWNER.0].concat());
            assert!(sum_is_right(&answer));
            let said = Neighbour::in_frame(&answer, answer.len()).unwrap();
            assert_eq!(said.claims, Some(ip6("2001:db8::2")));
        }
    }

    #[test]
    fn what_asks_nobody_or_nothing_is_no_question() {
        let to_all = PacketBuilder::new(ASKER, MacAddr::BROADCAST);
        let to_one = PacketBuilder::new(ASKER, OWNER);
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
            assert_eq!(question(&frame), None, "{frame:?}");
        }
        let answer = question(&solicitation(GROUP, "::")).unwrap().answer(OWNER);
        assert_eq!(Question::in_frame(&answer, answer.len()), None);
    }

    #[test]
    fn cut_off_frames_ask_nothing_wrong() {
        for frame in [
            solicitation(GROUP, "2001:db8::1").build(),
            PacketBuilder::new(ASKER, MacAddr::BROADCAST)
                .arp_request([10, 0, 0, 1], [10, 0, 0, 2])
                .build(),
        ] {
            for len in 0..frame.len() {
                assert_eq!(Question::in_frame(&frame[..len], len), None, "{len}");
            }
        }
    }
}
