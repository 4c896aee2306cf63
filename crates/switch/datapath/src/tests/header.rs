//! Legal virtio headers, specified a second time, and compared for every type, flag and feature.

use port::{DropReason, Gso, Offload, PartialChecksum};
use testkit::features as bits;
use testkit::net::NetHeader;
use wire::segment::GsoKind;
use wire::virtio::features::Features;

use crate::ports::guest::header::{accepts, decode, encode};
use crate::ports::port::Accepts;

const HOST: [u64; 5] = [
    bits::CSUM,
    bits::HOST_TSO4,
    bits::HOST_TSO6,
    bits::HOST_ECN,
    bits::HOST_USO,
];

/// Returns all combinations of these bits.
fn subsets(bits: &[u64]) -> impl Iterator<Item = u64> + '_ {
    (0..1u32 << bits.len()).map(|n| {
        let chosen = bits.iter().enumerate().filter(|(i, _)| n >> i & 1 == 1);
        chosen.map(|(_, bit)| bit).sum()
    })
}

fn decoded(header: NetHeader, features: u64) -> Result<Offload, DropReason> {
    let header = wire::virtio::net::NetHeader::decode(&header.to_bytes());
    decode(&header, Features::from_bits_truncate(features))
}

/// Returns the features that a driver must have negotiated for this header (virtio 1.3, 5.1.6.2);
/// `None` if it is never legal.
fn needs(flags: u8, gso_type: u8) -> Option<u64> {
    let checksum = if flags & 1 != 0 { bits::CSUM } else { 0 };
    let segmentation = match gso_type {
        0 => return Some(checksum),
        1 => bits::HOST_TSO4,
        4 => bits::HOST_TSO6,
        5 => bits::HOST_USO,
        0x81 => bits::HOST_TSO4 | bits::HOST_ECN,
        0x84 => bits::HOST_TSO6 | bits::HOST_ECN,
        _ => return None,
    };
    (checksum != 0).then_some(checksum | segmentation)
}

/// Returns a header's bytes from its two numbers.
pub(super) fn bytes((low, high): (u64, u32)) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&low.to_le_bytes());
    bytes[8..].copy_from_slice(&high.to_le_bytes());
    bytes
}

#[test]
fn every_type_with_every_flag_and_feature_set() {
    for features in subsets(&HOST) {
        for gso_type in 0..=255 {
            for flags in 0..8 {
                let header = NetHeader {
                    flags,
                    gso_type,
                    gso_size: 1000,
                    csum_start: 34,
                    csum_offset: 16,
                    ..NetHeader::default()
                };
                let legal = needs(flags, gso_type).is_some_and(|needed| needed & !features == 0);
                let got = decoded(header, features);
                assert_eq!(got.is_ok(), legal, "{header:?} with {features:#x}");
                let Ok(offload) = got else {
                    assert_eq!(got, Err(DropReason::BadHeader));
                    continue;
                };
                let checksum = PartialChecksum {
                    start: 34,
                    offset: 16,
                };
                assert_eq!(offload.checksum, (flags & 1 != 0).then_some(checksum));
                assert_eq!(
                    offload.gso.map(|g| (g.size, g.ecn)),
                    (gso_type != 0).then_some((1000, gso_type > 0x7f))
                );
            }
        }
    }
}

#[test]
fn encoding_is_the_inverse_of_decoding() {
    let kinds = [
        (GsoKind::Tcp4, 1),
        (GsoKind::Tcp6, 4),
        (GsoKind::Udp4, 5),
        (GsoKind::Udp6, 5),
    ];
    let checksum = Some(PartialChecksum {
        start: 38,
        offset: 6,
    });
    for (kind, gso_type) in kinds {
        for ecn in [false, true] {
            let gso = Some(Gso {
                kind,
                size: 1448,
                ecn,
                header_len: 58,
            });
            let header = NetHeader::from_bytes(bytes(encode(&Offload { checksum, gso }, 3)));
            let expected = NetHeader {
                flags: 1,
                gso_type: gso_type | if ecn { 0x80 } else { 0 },
                hdr_len: 58,
                gso_size: 1448,
                csum_start: 38,
                csum_offset: 6,
                num_buffers: 3,
            };
            assert_eq!(header, expected);
        }
    }
    let plain = NetHeader::from_bytes(bytes(encode(&Offload::default(), 1)));
    assert_eq!(
        plain,
        NetHeader {
            num_buffers: 1,
            ..NetHeader::default()
        }
    );
}

#[test]
fn a_receiver_takes_what_it_negotiated_and_nothing_else() {
    let guest = [
        bits::GUEST_CSUM,
        bits::GUEST_TSO4,
        bits::GUEST_TSO6,
        bits::GUEST_ECN,
        bits::GUEST_USO4,
        bits::GUEST_USO6,
    ];
    for features in subsets(&guest) {
        let all = features | HOST.iter().sum::<u64>();
        let [checksum, tso4, tso6, ecn, uso4, uso6] = guest.map(|bit| features & bit != 0);
        let expected = Accepts {
            checksum,
            tso4,
            tso6,
            ecn,
            uso4,
            uso6,
        };
        assert_eq!(accepts(Features::from_bits_truncate(all)), expected);
    }
}
