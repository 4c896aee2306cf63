use super::*;
use crate::{
    EtherType, MacAddr, VlanTci,
    build::{PacketBuilder, TcpFields},
};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fn tcp4(payload: usize) -> PacketBuilder {
    let flags = tcp::ACK | tcp::PSH | tcp::FIN | tcp::CWR;
    PacketBuilder::new(A, A)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .ip_id(0xffff)
        .tcp(TcpFields {
            seq: u32::MAX,
            flags,
            ..TcpFields::default()
        })
        .payload(&vec![0x5a; payload])
}

fn udp6() -> PacketBuilder {
    PacketBuilder::new(A, A)
        .ipv6([0; 16], [1; 16])
        .udp(1, 2)
        .payload(&[0; 1000])
}

fn check(b: &PacketBuilder, gso_size: u16, kind: GsoKind, ecn: bool) -> Option<GsoError> {
    let frame = b.build();
    let n = usize::from(
        ParsedHeaders::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len()).header_len,
    );
    Segmenter::new(&frame[..n], frame.len() - n, gso_size, kind, ecn).err()
}

#[test]
fn flags_id_and_sequence_go_on_from_segment_to_segment() {
    let frame = tcp4(2500).build();
    let gso = Segmenter::new(&frame[..54], 2500, 1000, GsoKind::Tcp4, true).unwrap();
    assert_eq!((gso.count(), gso.header_len()), (3, 54));
    let flags = [
        tcp::ACK | tcp::CWR,
        tcp::ACK,
        tcp::ACK | tcp::PSH | tcp::FIN,
    ];
    for (i, s) in gso.iter().enumerate() {
        let mut out = [0; SNAPSHOT];
        assert_eq!(s.write_headers(&mut out), 54);
        let ip = crate::ipv4::Ipv4View::new_checked(&out[14..]).unwrap();
        let tcp = tcp::TcpView::new_checked(ip.payload()).unwrap();
        assert_eq!(usize::from(ip.total_len()), 40 + s.payload_len());
        assert_eq!(
            (ip.id(), tcp.flags()),
            (0xffffu16.wrapping_add(i as u16), flags[i])
        );
        assert_eq!(tcp.seq(), u32::MAX.wrapping_add(1000 * i as u32));
        assert_eq!(s.payload_range(), 1000 * i..(1000 * i + 1000).min(2500));
    }
}

#[test]
fn a_frame_that_fits_is_one_segment_with_its_flags() {
    let frame = tcp4(0).build();
    let gso = Segmenter::new(&frame, 0, 1000, GsoKind::Tcp4, false).unwrap();
    let mut out = [0; 54];
    let s = gso.segment(0).unwrap();
    s.write_headers(&mut out);
    s.finish_checksum(&mut out, Sum::new());
    assert_eq!(out, frame[..]);
    assert!(gso.segment(1).is_none());
    assert_eq!(s.write_headers(&mut out[..53]), 0);
}

#[test]
fn what_cannot_be_segmented_has_a_name() {
    use GsoKind::*;
    assert_eq!(check(&tcp4(100), 0, Tcp4, false), Some(GsoError::ZeroSize));
    assert_eq!(check(&tcp4(512), 1, Tcp4, false), None);
    assert_eq!(
        check(&tcp4(513), 1, Tcp4, false),
        Some(GsoError::TooManySegments)
    );
    // The longest frame, in the smallest segments that guests use by themselves.
    for size in [536, 500, 256, 128] {
        assert_eq!(check(&tcp4(65_495), size, Tcp4, false), None);
    }
    assert_eq!(
        check(&tcp4(65_495), 47, Tcp4, false),
        Some(GsoError::TooManySegments)
    );
    for kind in [Tcp6, Udp4, Udp6] {
        assert_eq!(
            check(&tcp4(100), 10, kind, false),
            Some(GsoError::HeaderMismatch)
        );
    }
    assert_eq!(
        check(&udp6(), 10, Udp6, true),
        Some(GsoError::EcnWithoutTcp)
    );
    assert_eq!(
        check(&udp6().fragment(0, true), 10, Udp6, false),
        Some(GsoError::Fragment)
    );
    assert_eq!(
        check(&udp6().extension(43, &[]), 10, Udp6, false),
        Some(GsoError::RoutingHeader)
    );
    assert_eq!(check(&udp6().extension(60, &[]), 10, Udp6, false), None);
    assert_eq!(
        check(&tcp4(100).pad_to(300), 10, Tcp4, false),
        Some(GsoError::FrameLength)
    );
    let arp = PacketBuilder::new(A, A).arp_request([1; 4], [2; 4]);
    assert_eq!(check(&arp, 10, Tcp4, false), Some(GsoError::HeaderMismatch));
    let service_tag = tcp4(100).ethertype(EtherType::SERVICE_VLAN);
    assert_eq!(
        check(&service_tag, 10, Tcp4, false),
        Some(GsoError::HeaderMismatch)
    );
}

#[test]
fn headers_must_end_where_the_transport_header_does() {
    let frame = tcp4(100).vlan(VlanTci::new(1)).build();
    let err =
        |n: usize| Segmenter::new(&frame[..n], frame.len() - n, 10, GsoKind::Tcp4, false).err();
    assert_eq!(
        (err(58), err(60), err(57)),
        (
            None,
            Some(GsoError::HeaderLength),
            Some(GsoError::HeaderMismatch)
        )
    );
    for n in 0..frame.len() {
        assert!(n == 58 || err(n).is_some());
    }
}

#[test]
fn a_partial_checksum_completes_to_the_full_one() {
    let frame = udp6().build();
    let (headers, payload) = frame.split_at(62);
    let gso = Segmenter::new(headers, payload.len(), 333, GsoKind::Udp6, false).unwrap();
    for s in gso.iter() {
        let (mut full, mut partial, sum) = ([0; 62], [0; 62], Sum::of(&payload[s.payload_range()]));
        s.write_headers(&mut full);
        s.finish_checksum(&mut full, sum);
        s.write_headers(&mut partial);
        let (start, offset) = s.partial_checksum(&mut partial);
        crate::checksum::complete_partial(&mut partial, start, offset, sum).unwrap();
        assert_eq!(full, partial);
    }
}
