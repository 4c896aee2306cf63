//! Offloads that a sender requests, at receivers with and without them.

use memory::Segment;
use port::{DropReason, Gso, Offload, PartialChecksum};
use proptest::prelude::*;
use testkit::net::{NEEDS_CSUM, NetHeader};
use testkit::packets::{
    Flow, arp_request, mac, on_the_wire, tcp, tcp_super, udp, udp_partial, udp_super,
    verify_checksums, vlan_tagged,
};
use wire::build::{PacketBuilder, TcpFields};
use wire::flow::FlowKey;
use wire::packet::ParsedHeaders;
use wire::segment::GsoKind;
use wire::vlan::CAP;
use wire::{EtherType, MacAddr, VlanTci};

use super::bench::{BLUE, Bench, Move::*, offload};
use crate::ports::loopback::LoopbackPort;
use crate::ports::offload::{Delivery, Fitter, check};
use crate::ports::payload::{Outgoing, Payload};
use crate::ports::port::{Accepts, Port};
use crate::tests::faulty::Faulty;

fn checked(frame: &[u8], mut offload: Offload) -> Result<Offload, DropReason> {
    let headers = &frame[..frame.len().min(CAP)];
    let parsed = ParsedHeaders::parse(headers, frame.len());
    check(headers, frame.len() as u32, &parsed, &mut offload).map(|()| offload)
}

fn checksum(start: u16, offset: u16) -> Offload {
    Offload {
        checksum: Some(PartialChecksum { start, offset }),
        gso: None,
    }
}

fn with_gso(base: Offload, change: impl FnOnce(&mut Gso)) -> Offload {
    let mut gso = base.gso.expect("a TSO frame");
    change(&mut gso);
    Offload {
        gso: Some(gso),
        ..base
    }
}

const BAD: Result<Offload, DropReason> = Err(DropReason::BadOffload);

#[test]
fn cve_2024_11614_checksum_beyond_the_packet() {
    let frame = udp(&Flow::v4(1, 2), &[0; 58]);
    let len = frame.len() as u16;
    assert_eq!(len, 100);
    for (start, offset) in [(34, 6), (42, 56), (98, 0)] {
        assert!(
            checked(&frame, checksum(start, offset)).is_ok(),
            "{start} {offset}"
        );
    }
    for (start, offset) in [
        (42, 57),
        (34, 65),
        (99, 0),
        (100, 0),
        (34, u16::MAX),
        (u16::MAX, 0),
        (u16::MAX, u16::MAX),
        (u16::MAX - 33, 34),
    ] {
        assert_eq!(
            checked(&frame, checksum(start, offset)),
            BAD,
            "{start} {offset}"
        );
    }
}

#[test]
fn a_checksum_does_not_touch_the_ethernet_header() {
    let frame = udp(&Flow::v4(1, 2), &[0; 20]);
    for start in 0..14 {
        assert_eq!(checked(&frame, checksum(start, 6)), BAD);
    }
    let tagged = vlan_tagged(&frame, 5);
    assert_eq!(checked(&tagged, checksum(17, 0)), BAD);
    // The type announces a tag, and there is no room for one: no Ethernet header at all.
    for len in 14..18 {
        for start in 0..12 {
            assert_eq!(
                checked(&tagged[..len], checksum(start, 0)),
                BAD,
                "{len} {start}"
            );
        }
    }
}

/// Returns frames of all kinds that the parser distinguishes.
fn all_kinds() -> Vec<Vec<u8>> {
    let frame = || PacketBuilder::new(MacAddr(mac(1)), MacAddr(mac(2)));
    let v4 = || frame().ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let v6 = || frame().ipv6([1u16; 8], [2u16; 8]).ttl(255);
    let advertised = [&[2; 16][..], &[2, 1], &mac(1)].concat();
    let other = |ethertype, bytes: &[u8]| frame().ethertype(EtherType(ethertype)).payload(bytes);
    let ports = || TcpFields {
        src_port: 40_000,
        dst_port: 80,
        ..TcpFields::default()
    };
    let built = [
        v4().tcp(ports()),
        v6().tcp(ports()).extension(60, &[0; 6]),
        v4().udp(68, 67),
        v4().vlan(VlanTci::new(5)).udp(4000, 53),
        v6().udp(546, 547),
        v4().icmp(8, 0, [0; 4]),
        v6().icmp(128, 0, [0; 4]),
        v6().icmp(136, 0, [0x20, 0, 0, 0]).payload(&advertised),
        v4().protocol(47),
        v4().fragment(0, true).udp(4000, 53),
        v4().fragment(1, true).udp(4000, 53),
        v6().fragment(1, false).udp(4000, 53),
        (0..9).fold(v6().udp(4000, 53), |packet, _| {
            packet.extension(60, &[0; 6])
        }),
        frame().arp_request([10, 0, 0, 1], [10, 0, 0, 2]),
        other(0x88a8, &[0, 5, 8, 0, 0x45]),
        other(0x8100, &[0, 5, 8, 6]).vlan(VlanTci::new(3)),
        other(90, &[0xaa, 0xaa, 3, 0, 0, 0, 0x88, 0xb5]),
        other(0x0800, &[0x46, 0, 0xff, 0xff]),
        other(0x86dd, &[0x60, 0]),
    ];
    let padded = |packet: PacketBuilder| [packet.build(), vec![0; 60]].concat();
    built.into_iter().map(padded).collect()
}

/// The delivered frame has the same decision as the frame that was decided.
#[test]
fn completing_a_checksum_does_not_change_decided_fields() {
    let decided = |frame: &[u8]| {
        let headers = &frame[..frame.len().min(CAP)];
        let key = FlowKey::new(1, &ParsedHeaders::parse(headers, frame.len()));
        (key, policy::frame_class::classify(headers, frame.len()))
    };
    // Ports of DHCP, types of neighbour discovery, of frames, and of tags without a VLAN.
    let values = [
        0, 0xffff, 68, 67, 546, 0x8600, 0x8900, 0x0800, 0x0806, 0x8100,
    ];
    for frame in all_kinds() {
        let before = decided(&frame);
        let end = frame.len().min(CAP) as u16;
        for (start, at) in (0..end).flat_map(|start| (start..end).map(move |at| (start, at))) {
            if checked(&frame, checksum(start, at - start)).is_err() {
                continue;
            }
            for value in values {
                let mut completed = frame.clone();
                completed[usize::from(at)..][..2].copy_from_slice(&u16::to_be_bytes(value));
                assert_eq!(
                    decided(&completed),
                    before,
                    "{value:#x} at {at} of {frame:02x?}"
                );
            }
        }
    }
}

#[test]
fn own_and_inner_checksums_are_accepted() {
    let frame =
        |len: usize| PacketBuilder::new(MacAddr(mac(1)), MacAddr(mac(2))).payload(&vec![0; len]);
    let v4 = || frame(80).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let v6 = || frame(120).ipv6([1u16; 8], [2u16; 8]);
    // Own checksums of TCP, UDP and ICMP; then TCP within VXLAN, GRE, IP in IP; and behind two
    // tags.
    for (packet, start, offset) in [
        (v4().tcp(TcpFields::default()), 34, 16),
        (
            v6().tcp(TcpFields::default()).extension(60, &[0; 6]),
            62,
            16,
        ),
        (v4().udp(1, 2).vlan(VlanTci::new(5)), 38, 6),
        (v4().icmp(8, 0, [0; 4]), 34, 2),
        (v6().icmp(128, 0, [0; 4]), 54, 2),
        (v4().udp(40_000, 4789), 34 + 8 + 8 + 14 + 20, 16),
        (v6().udp(40_000, 4789), 54 + 8 + 8 + 14 + 40, 16),
        (v4().protocol(47), 34 + 4 + 20, 16),
        (v4().protocol(4), 34 + 20, 16),
        (v6().protocol(41), 54 + 40, 6),
        (frame(80).ethertype(EtherType(0x88a8)), 18 + 4 + 20, 16),
    ] {
        let packet = packet.build();
        let requested = checksum(start, offset);
        assert_eq!(checked(&packet, requested), Ok(requested), "{packet:02x?}");
    }
}

/// A completed "checksum" would turn TCP port 80 into port 22, and 10.0.0.1 into 10.0.0.254, both
/// with correct checksums.
#[test]
fn a_frame_is_not_another_one_when_its_checksum_is_completed() {
    const PORT: &str = "\
        52540000000252540000000108004500002800004000400626ce0a0000010a0000029c4000500000\
        000100000000500203e8fba0000013cd";
    const ADDRESS: &str = "\
        52540000000252540000000108004500002800004000400625d10a0000010a0000029c4000500000\
        000100000000500203e8fa6900001519";
    for (hex, start, offset) in [(PORT, 34, 2), (ADDRESS, 14, 14)] {
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        let frame: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let mut bench = Bench::new();
        bench.learn(BLUE, [0x52, 0x54, 0, 0, 0, 2], 2);
        bench.port(2).set_accepts(Accepts::default());
        let len = frame.len() as u64;
        bench.step(
            &[From(1, 1, len), Drop(1, DropReason::BadOffload, 1)],
            |b| {
                b.port(1).push(&frame, checksum(start, offset));
                b.serve(1);
            },
        );
    }
}

#[test]
fn plain_frames_have_nothing_to_check() {
    for frame in [udp(&Flow::v4(1, 2), &[]), vec![0xff; 14], vec![0; 60]] {
        assert_eq!(checked(&frame, Offload::default()), Ok(Offload::default()));
    }
}

#[test]
fn segmentation_comes_with_a_checksum() {
    let (frame, header) = tcp_super(&Flow::v4(1, 2), 1, &[0; 3000], 1448);
    let alone = Offload {
        checksum: None,
        ..offload(&header)
    };
    assert_eq!(checked(&frame, alone), BAD);
}

#[test]
fn the_description_is_completed_from_the_headers() {
    let flows = [
        (Flow::v4(1, 2), 54, 42, GsoKind::Tcp4, GsoKind::Udp4),
        (Flow::v6(1, 2), 74, 62, GsoKind::Tcp6, GsoKind::Udp6),
        (
            Flow::v6(1, 2).tagged(9),
            78,
            66,
            GsoKind::Tcp6,
            GsoKind::Udp6,
        ),
    ];
    for (flow, tcp_len, udp_len, tcp_kind, udp_kind) in flows {
        for ((frame, header), len, kind) in [
            (tcp_super(&flow, 1, &[0; 3000], 1000), tcp_len, tcp_kind),
            (udp_super(&flow, &[0; 3000], 1000), udp_len, udp_kind),
        ] {
            // The sender's header length is a hint that may be wrong.
            let lying = NetHeader {
                hdr_len: 7,
                ..header
            };
            let gso = checked(&frame, offload(&lying))
                .expect("sound")
                .gso
                .expect("kept");
            assert_eq!((gso.header_len, gso.kind, gso.size), (len, kind, 1000));
        }
    }
}

#[test]
fn the_kind_is_that_of_the_packet() {
    let (tcp4, h4) = tcp_super(&Flow::v4(1, 2), 1, &[0; 3000], 1000);
    let (udp4, u4) = udp_super(&Flow::v4(1, 2), &[0; 3000], 1000);
    let (tcp6, h6) = tcp_super(&Flow::v6(1, 2), 1, &[0; 3000], 1000);
    let (udp6, u6) = udp_super(&Flow::v6(1, 2), &[0; 3000], 1000);
    let kinds = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp4, GsoKind::Udp6];
    for (frame, header, right) in [(tcp4, h4, 0), (tcp6, h6, 1), (udp4, u4, 2), (udp6, u6, 3)] {
        for (at, kind) in kinds.into_iter().enumerate() {
            let requested = with_gso(offload(&header), |g| g.kind = kind);
            // A sender cannot state the IP version of UDP; the switch determines it.
            let fits = at == right || (right == 3 && at == 2);
            assert_eq!(
                checked(&frame, requested).is_ok(),
                fits,
                "{kind:?} of frame {right}"
            );
        }
    }
    let arp = arp_request(mac(1), [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    assert_eq!(checked(&arp, offload(&h4)), BAD);
}

#[test]
fn invalid_segmentation_is_refused() {
    let (frame, header) = tcp_super(&Flow::v4(1, 2), 1, &[0; 3000], 1000);
    let good = offload(&header);
    assert!(checked(&frame, good).is_ok());
    let zero = with_gso(good, |g| g.size = 0);
    assert_eq!(checked(&frame, zero), BAD, "segments of nothing");
    let many = with_gso(good, |g| g.size = 1);
    let too_many = Err(DropReason::TooManySegments);
    assert_eq!(checked(&frame, many), too_many, "one for each byte");
    for (start, field) in [(33, 17), (34, 6), (35, 16), (34, 18), (54, 0)] {
        let elsewhere = Offload {
            checksum: Some(PartialChecksum {
                start,
                offset: field,
            }),
            ..good
        };
        assert_eq!(
            checked(&frame, elsewhere),
            BAD,
            "checksum at {start} + {field}"
        );
    }
    let mut longer = frame.clone();
    longer[16..18].copy_from_slice(&9000u16.to_be_bytes());
    assert_eq!(checked(&longer, good), BAD, "an IP length beyond the frame");
    let mut padded = frame.clone();
    padded.extend([0; 9]);
    assert_eq!(checked(&padded, good), BAD, "bytes behind the IP packet");
    let (udp_frame, udp_header) = udp_super(&Flow::v4(1, 2), &[0; 3000], 1000);
    let ecn = with_gso(offload(&udp_header), |g| g.ecn = true);
    assert_eq!(checked(&udp_frame, ecn), BAD, "ECN of UDP");
}

#[test]
fn headers_that_do_not_fit_the_snapshot_cannot_be_segmented() {
    let frame = PacketBuilder::new(MacAddr(mac(1)), MacAddr(mac(2)))
        .ipv6([0u16; 8], [1u16; 8])
        .extension(60, &[0; CAP])
        .udp(1, 2)
        .payload(&[0; 3000])
        .build();
    let start = (14 + 40 + CAP + 2).next_multiple_of(8) as u16;
    let (_, header) = udp_super(&Flow::v6(1, 2), &[0; 3000], 1000);
    let requested = Offload {
        checksum: Some(PartialChecksum { start, offset: 6 }),
        ..offload(&header)
    };
    assert_eq!(checked(&frame, requested), BAD);
}

#[test]
fn fragments_are_not_segmented() {
    let frame = PacketBuilder::new(MacAddr(mac(1)), MacAddr(mac(2)))
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .fragment(0, true)
        .udp(1, 2)
        .payload(&[0; 3000])
        .build();
    let (_, header) = udp_super(&Flow::v4(1, 2), &[0; 3000], 1000);
    assert_eq!(checked(&frame, offload(&header)), BAD);
}

/// Delivers a frame whose payload has these segments.
fn deliver(port: &mut impl Port, frame: &[u8], offload: Offload, lens: &[usize]) -> Delivery {
    let offload = checked(frame, offload).expect("a legal offload");
    let (headers, mut rest) = frame.split_at(frame.len().min(CAP));
    let mut segments = Vec::new();
    let len = rest.len() as u32;
    for part in lens.iter().copied().chain([usize::MAX]) {
        let (first, last) = rest.split_at(part.min(rest.len()));
        segments.push(Segment {
            ptr: first.as_ptr().cast_mut(),
            len: first.len() as u32,
            gpa: 0,
        });
        rest = last;
    }
    segments.retain(|s| s.len > 0);
    // SAFETY: the segments are parts of `frame`, which outlives the payload, and are read only.
    let payload = unsafe { Payload::new(&segments, 0, len) };
    let tag = if frame[12..14] == [0x81, 0] { 4 } else { 0 };
    let out = Outgoing {
        headers,
        payload: &payload,
        offload,
    };
    Fitter::default().deliver(port, 0, &out, 14 + tag)
}

fn no_offloads() -> LoopbackPort {
    let mut port = LoopbackPort::new(false);
    port.accepts = Accepts::default();
    port
}

fn plain(port: LoopbackPort) -> Vec<Vec<u8>> {
    let frames = port.delivered.into_iter();
    frames
        .map(|(frame, offload)| {
            assert_eq!(offload, Offload::default());
            frame
        })
        .collect()
}

proptest! {
    /// The checksum of any range of a frame, with any segments of its payload.
    #[test]
    fn checksums_are_completed_as_on_the_wire(
        bytes in prop::collection::vec(any::<u8>(), 60..4000),
        start in 22..150u16,
        field in 0..60u16,
        cuts in prop::collection::vec(1..700usize, 0..6),
    ) {
        let mut frame = [[0x02; 12].as_slice(), &[0x88, 0xb5], &bytes].concat();
        frame[0] = 0;
        let end = usize::from(start) + usize::from(field) + 2;
        prop_assume!(end <= frame.len().min(CAP));
        let mut port = no_offloads();
        let done = deliver(&mut port, &frame, checksum(start, field), &cuts);
        let header = NetHeader {
            flags: NEEDS_CSUM,
            csum_start: start,
            csum_offset: field,
            ..NetHeader::default()
        };
        prop_assert_eq!(done.lost, None);
        prop_assert_eq!(done.traffic.bytes, frame.len() as u64);
        prop_assert_eq!(plain(port), on_the_wire(&frame, &header).expect("fits"));
    }

    /// TSO frames of any size, with any segments of their payload.
    #[test]
    fn tso_frames_are_segmented_as_on_the_wire(
        len in 1..20_000usize,
        size in 40..9000u16,
        tcp: bool,
        v6: bool,
        tci in prop::option::of(any::<u16>()),
        cuts in prop::collection::vec(1..5000usize, 0..6),
    ) {
        let flow = if v6 { Flow::v6(1, 2) } else { Flow::v4(1, 2) };
        let flow = Flow { vlan: tci, ..flow };
        let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let (frame, header) = if tcp {
            tcp_super(&flow, 0xffff_f000, &payload, size)
        } else {
            udp_super(&flow, &payload, size)
        };
        let wire = on_the_wire(&frame, &header).expect("fits");
        let mut port = no_offloads();
        let done = deliver(&mut port, &frame, offload(&header), &cuts);
        prop_assert_eq!(done.lost, None);
        prop_assert_eq!(done.traffic.packets, wire.len() as u64);
        prop_assert_eq!(done.traffic.bytes, wire.iter().map(|f| f.len() as u64).sum::<u64>());
        let got = plain(port);
        for segment in &got {
            prop_assert_eq!(verify_checksums(segment), Ok(()));
        }
        prop_assert_eq!(with_one_zero(got), with_one_zero(wire));
    }
}

/// A checksum of TCP that is zero has two representations, which receivers take alike (RFC 1624,
/// section 3): the first one in the place of both.
fn with_one_zero(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    for frame in &mut frames {
        let parsed = ParsedHeaders::parse(&frame[..frame.len().min(CAP)], frame.len());
        if parsed.l4_proto == wire::tcp::PROTOCOL {
            let field = usize::from(parsed.l4_offset.expect("a header")) + 16;
            if frame[field..field + 2] == [0xff; 2] {
                frame[field..field + 2].fill(0);
            }
        }
    }
    frames
}

#[test]
fn a_receiver_with_the_offload_gets_the_frame_unchanged() {
    let (frame, header) = tcp_super(&Flow::v4(1, 2), 1, &[7; 60_000], 1448);
    let mut port = LoopbackPort::new(false);
    let done = deliver(&mut port, &frame, offload(&header), &[1000]);
    assert_eq!((done.traffic.packets, done.lost), (1, None));
    assert_eq!(port.delivered.len(), 1);
    assert_eq!(port.delivered[0].0, frame);
    assert_eq!(super::bench::encoded(&port.delivered[0].1).hdr_len, 54);
}

#[test]
fn segments_that_find_no_room_are_counted_one_by_one() {
    let (frame, header) = udp_super(&Flow::v4(1, 2), &[7; 5000], 1000);
    let mut port = Faulty::new(no_offloads(), 2);
    let done = deliver(&mut port, &frame, offload(&header), &[]);
    assert_eq!(done.lost, Some((DropReason::FaultInjected, 2)));
    assert_eq!(done.traffic.packets, 3);
    let frames = plain(port.into_inner());
    assert_eq!(
        done.traffic.bytes,
        frames.iter().map(|f| f.len() as u64).sum::<u64>()
    );
}

#[test]
fn a_finished_frame_is_not_touched() {
    for frame in [
        tcp(
            &Flow::v4(1, 2).tagged(VlanTci::new(5).to_bits()),
            1,
            &[1; 1000],
        ),
        udp(&Flow::v6(1, 2), &[2; 10]),
        vec![0xff; 60],
    ] {
        let mut port = no_offloads();
        deliver(&mut port, &frame, Offload::default(), &[3]);
        assert_eq!(plain(port), [frame]);
    }
}

#[test]
fn a_partial_checksum_is_completed_for_receivers_without_the_offload() {
    let (frame, header) = udp_partial(&Flow::v4(1, 2), &[3; 700]);
    let mut port = no_offloads();
    deliver(&mut port, &frame, offload(&header), &[100, 1, 99]);
    let frames = plain(port);
    assert_eq!(verify_checksums(&frames[0]), Ok(()));
}
