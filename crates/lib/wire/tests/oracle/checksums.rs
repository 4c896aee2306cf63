//! Checksums of built and completed frames against smoltcp.

use super::frames;
use proptest::{collection::vec, prelude::*};
use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet, IpAddress, Ipv4Packet, TcpPacket, UdpPacket};
use wire::{
    ParsedHeaders, SNAPSHOT, Sum,
    checksum::complete_partial,
    packet::{Fragment, L3},
};

/// Returns whether smoltcp finds every checksum of the frame right.
pub(crate) fn verify(frame: &[u8]) -> bool {
    let p = ParsedHeaders::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len());
    let datagram = &frame[usize::from(p.l3_offset)..p.l3_end as usize];
    let (src, dst) = match p.l3 {
        L3::V4 { src, dst, .. } => (IpAddress::Ipv4(src), IpAddress::Ipv4(dst)),
        L3::V6 { src, dst, .. } => (IpAddress::Ipv6(src), IpAddress::Ipv6(dst)),
        _ => return true,
    };
    let ip = p.ethertype != wire::EtherType::IPV4
        || Ipv4Packet::new_checked(datagram).unwrap().verify_checksum();
    let Some(l4) = p
        .l4_offset
        .map(|at| &frame[usize::from(at)..p.l3_end as usize])
    else {
        return ip;
    };
    ip && match (p.l4_proto, src, dst) {
        (6, ..) => TcpPacket::new_checked(l4)
            .unwrap()
            .verify_checksum(&src, &dst),
        (17, ..) => UdpPacket::new_checked(l4)
            .unwrap()
            .verify_checksum(&src, &dst),
        (1, IpAddress::Ipv4(_), _) => Icmpv4Packet::new_checked(l4).unwrap().verify_checksum(),
        (58, IpAddress::Ipv6(src), IpAddress::Ipv6(dst)) => {
            Icmpv6Packet::new_unchecked(l4).verify_checksum(&src, &dst)
        }
        _ => true,
    }
}

/// The sum of `bytes`, taken in pieces.
pub(crate) fn sum_in_pieces(bytes: &[u8], pieces: &[usize]) -> Sum {
    let (mut sum, mut rest) = (Sum::new(), bytes);
    for piece in pieces {
        let (head, tail) = rest.split_at((*piece).min(rest.len()));
        sum.add_bytes(head);
        rest = tail;
    }
    sum.add_bytes(rest);
    sum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn built_frames_have_right_checksums(b in frames::checksummed(600)) {
        let frame = b.build();
        let p = ParsedHeaders::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len());
        // The checksum of a fragment is that of the whole datagram.
        prop_assert!(p.fragment != Fragment::No || verify(&frame));
    }

    #[test]
    fn a_flipped_bit_is_found(
        b in frames::segmentable(300), at in any::<prop::sample::Index>(), bit in 0..8,
    ) {
        let mut frame = b.build();
        let p = ParsedHeaders::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len());
        let payload = usize::from(p.header_len)..frame.len();
        prop_assume!(!payload.is_empty());
        frame[payload.start + at.index(payload.len())] ^= 1u8 << bit;
        prop_assert!(!verify(&frame));
    }

    #[test]
    fn partial_checksums_are_completed_from_any_cut(
        b in frames::segmentable(600),
        cut in 0usize..SNAPSHOT,
        pieces in vec(0usize..200, 0..5),
    ) {
        let mut frame = b.clone().partial_checksum().build();
        let p = ParsedHeaders::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len());
        let start = p.l4_offset.unwrap();
        let offset = p.checksum_offset().unwrap() - start;
        let cut = cut.max(usize::from(p.header_len)).min(frame.len());
        let (headers, payload) = frame.split_at_mut(cut);
        complete_partial(headers, start, offset, sum_in_pieces(payload, &pieces)).unwrap();
        prop_assert!(verify(&frame));
        // A zero checksum is written as its other form, for TCP as well.
        let field = usize::from(start + offset);
        if frame[field..field + 2] != [0xff, 0xff] {
            prop_assert_eq!(frame, b.build());
        }
    }
}
