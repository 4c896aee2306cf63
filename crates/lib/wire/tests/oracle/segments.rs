//! Segments of a large frame: each valid for smoltcp and etherparse, all of them together the
//! payload again.

use super::{
    checksums::{sum_in_pieces, verify},
    frames,
};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::{collection::vec, prelude::*};
use wire::{
    MacAddr, ParsedHeaders, SNAPSHOT,
    build::PacketBuilder,
    packet::L3,
    segment::{GsoError, GsoKind, MAX_SEGMENTS, Segmenter},
};

fn kind(p: &ParsedHeaders) -> GsoKind {
    match (p.l3, p.l4_proto) {
        (L3::V4 { .. }, 6) => GsoKind::Tcp4,
        (L3::V4 { .. }, _) => GsoKind::Udp4,
        (_, 6) => GsoKind::Tcp6,
        _ => GsoKind::Udp6,
    }
}

fn segments(frame: &[u8], gso_size: u16, pieces: &[usize]) -> Vec<Vec<u8>> {
    let p = ParsedHeaders::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len());
    let (headers, payload) = frame.split_at(usize::from(p.header_len));
    let gso = Segmenter::new(headers, payload.len(), gso_size, kind(&p), false).unwrap();
    let frames: Vec<_> = gso
        .iter()
        .map(|s| {
            let mut out = [0xcc; SNAPSHOT];
            let n = s.write_headers(&mut out);
            s.finish_checksum(&mut out, sum_in_pieces(&payload[s.payload_range()], pieces));
            [&out[..n], &payload[s.payload_range()]].concat()
        })
        .collect();
    assert_eq!(frames.len(), gso.count());
    frames
}

/// The size at which so much payload makes as many segments as a frame may have.
fn smallest_size(payload: usize) -> u16 {
    payload.div_ceil(MAX_SEGMENTS) as u16
}

/// Returns the payload of a segment, and the field that must continue from one to the next: TCP's
/// sequence number.
fn open(frame: &[u8]) -> (Vec<u8>, u32) {
    let oracle = SlicedPacket::from_ethernet(frame).expect("a segment is a frame");
    if let Some(NetSlice::Ipv4(ip)) = &oracle.net {
        assert_eq!(
            usize::from(ip.header().total_len()),
            ip.header().slice().len() + ip.payload().payload.len()
        );
    }
    match oracle.transport {
        Some(TransportSlice::Tcp(tcp)) => (tcp.payload().to_vec(), tcp.sequence_number()),
        Some(TransportSlice::Udp(udp)) => {
            assert_eq!(usize::from(udp.length()), 8 + udp.payload().len());
            (udp.payload().to_vec(), 0)
        }
        other => panic!("{other:?}"),
    }
}

fn ipv4_id(frame: &[u8]) -> Option<u16> {
    match SlicedPacket::from_ethernet(frame).ok()?.net? {
        NetSlice::Ipv4(ip) => Some(ip.header().identification()),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn segments_add_up_to_the_frame(
        b in frames::segmentable(9000),
        gso_size in 8u16..2000,
        pieces in vec(0usize..700, 0..4),
    ) {
        let frame = b.build();
        let (payload, first_seq) = open(&frame);
        let gso_size = gso_size.max(smallest_size(payload.len()));
        let parts = segments(&frame, gso_size, &pieces);
        let mut joined = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            prop_assert!(verify(part), "segment {i}");
            let (bytes, seq) = open(part);
            let head = &frame[..frame.len().min(SNAPSHOT)];
            if kind(&ParsedHeaders::parse(head, frame.len())).is_tcp() {
                prop_assert_eq!(seq, first_seq.wrapping_add(joined.len() as u32));
            }
            prop_assert_eq!(ipv4_id(part), ipv4_id(&frame).map(|id| id.wrapping_add(i as u16)));
            prop_assert!(bytes.len() == usize::from(gso_size) || i + 1 == parts.len());
            joined.extend(bytes);
        }
        prop_assert_eq!(joined, payload);
    }

    #[test]
    fn any_bytes_are_segmented_or_refused(
        headers in prop_oneof![frames::damaged(), vec(any::<u8>(), 0..250)],
        payload_len in 0usize..70_000,
        gso_size: u16,
        (tcp, v4, ecn) in any::<(bool, bool, bool)>(),
    ) {
        let kind = match (tcp, v4) {
            (true, true) => GsoKind::Tcp4,
            (true, false) => GsoKind::Tcp6,
            (false, true) => GsoKind::Udp4,
            (false, false) => GsoKind::Udp6,
        };
        if let Ok(gso) = Segmenter::new(&headers, payload_len, gso_size, kind, ecn) {
            prop_assert!(gso.count() <= MAX_SEGMENTS);
            let mut out = [0; SNAPSHOT];
            for s in gso.iter() {
                prop_assert_eq!(s.write_headers(&mut out), headers.len());
                s.finish_checksum(&mut out, wire::Sum::new());
                s.partial_checksum(&mut out);
            }
        }
    }
}

#[test]
fn the_largest_frame_in_the_most_segments() {
    let payload: Vec<u8> = (0..65_495u32).map(|i| i as u8).collect();
    let frame = PacketBuilder::new(MacAddr::ZERO, MacAddr::BROADCAST)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .tcp(Default::default())
        .payload(&payload)
        .build();
    let smallest = smallest_size(payload.len());
    let parts = segments(&frame, smallest, &[]);
    assert_eq!(parts.len(), MAX_SEGMENTS);
    assert!(parts.iter().all(|part| verify(part)));

    let headers = &frame[..frame.len() - payload.len()];
    let one_less = Segmenter::new(headers, payload.len(), smallest - 1, GsoKind::Tcp4, false);
    assert_eq!(one_less.unwrap_err(), GsoError::TooManySegments);
}
