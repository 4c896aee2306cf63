use super::*;
use wire::{MacAddr, Sum, ipv4::Ipv4View, tcp::TcpView};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn v4() -> PacketBuilder {
    PacketBuilder::new(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2])
}

fn v6() -> PacketBuilder {
    let ip = |n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
    PacketBuilder::new(A, B).ipv6(ip(1), ip(2))
}

fn answer(frame: &[u8]) -> Option<Vec<u8>> {
    refusal(frame, frame.len())
}

fn parsed(frame: &[u8]) -> ParsedHeaders {
    ParsedHeaders::parse(frame, frame.len())
}

fn segment(flags: u16) -> TcpFields {
    TcpFields {
        src_port: 4000,
        dst_port: 80,
        seq: u32::MAX,
        ack: 77,
        flags,
        options: vec![1; 4],
    }
}

#[test]
fn a_connection_is_reset_in_its_own_numbers() {
    for (flags, payload, expected) in [
        (tcp::SYN, 0, (0, 0, RST | tcp::ACK)),
        (tcp::SYN | tcp::FIN, 10, (0, 11, RST | tcp::ACK)),
        (tcp::ACK, 10, (77, 0, RST)),
    ] {
        for builder in [v4(), v6()] {
            let frame = builder
                .tcp(segment(flags))
                .payload(&vec![7; payload])
                .build();
            let told = answer(&frame).unwrap();
            let p = parsed(&told);
            assert_eq!((p.src, p.dst, p.src_port, p.dst_port), (B, A, 80, 4000));
            let view = TcpView::new_checked(&told[p.l4_offset.unwrap().into()..]).unwrap();
            assert_eq!(
                (view.seq(), view.ack(), view.flags()),
                expected,
                "{flags:x}"
            );
        }
    }
}

#[test]
fn padding_is_no_payload_and_what_is_not_at_hand_is() {
    let frame = v4().tcp(segment(tcp::SYN)).pad_to(100).build();
    let ack = |told: &[u8]| {
        let at = parsed(told).l4_offset.unwrap();
        TcpView::new_checked(&told[at.into()..]).unwrap().ack()
    };
    assert_eq!(ack(&answer(&frame).unwrap()), 0);
    let long = v4().tcp(segment(0)).payload(&[7; 1000]).build();
    assert_eq!(ack(&refusal(&long[..64], long.len()).unwrap()), 999);
}

#[test]
fn other_protocols_get_an_icmp_error_with_the_datagram() {
    for (frame, kind, code) in [
        (v4().udp(5, 53).payload(&[9; 400]).build(), 3, 13),
        (v6().udp(5, 53).payload(&[9; 400]).build(), 1, 1),
        (v4().echo_request(1, 1).build(), 3, 13),
        (v6().echo_request(1, 1).build(), 1, 1),
        (v4().protocol(132).payload(&[0; 40]).build(), 3, 13),
    ] {
        let told = answer(&frame).unwrap();
        let p = parsed(&told);
        assert_eq!(p.l4_flags, kind << 8 | code);
        let body = &told[usize::from(p.l4_offset.unwrap()) + icmp::HEADER_LEN..];
        let datagram = &frame[14..];
        assert_eq!(body, &datagram[..datagram.len().min(QUOTE)]);
    }
}

#[test]
fn checksums_are_right() {
    let told = answer(&v4().udp(5, 53).payload(&[9; 31]).build()).unwrap();
    let header = Ipv4View::new_checked(&told[14..]).unwrap();
    assert_eq!(Sum::of(&told[14..14 + header.header_len()]).finish(), 0);
    assert_eq!(Sum::of(&told[34..]).finish(), 0);
}

#[test]
fn nothing_is_said_of_what_must_not_be_answered() {
    let many = PacketBuilder::new(A, MacAddr::BROADCAST);
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    for (what, frame) in [
        (
            "a broadcast",
            many.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2).build(),
        ),
        (
            "a multicast address",
            PacketBuilder::new(A, B)
                .ipv4([10, 0, 0, 1], [224, 0, 0, 1])
                .udp(1, 2)
                .build(),
        ),
        (
            "no address",
            PacketBuilder::new(A, B)
                .ipv4([0, 0, 0, 0], [10, 0, 0, 2])
                .udp(1, 2)
                .build(),
        ),
        (
            "all nodes",
            PacketBuilder::new(A, B)
                .ipv6(Ipv6Addr::LOCALHOST, all)
                .udp(1, 2)
                .build(),
        ),
        ("a reset", v4().tcp(segment(RST)).build()),
        (
            "an error",
            v4().icmp(3, 1, [0; 4]).payload(&[0; 28]).build(),
        ),
        (
            "an error of v6",
            v6().icmp(1, 1, [0; 4]).payload(&[0; 48]).build(),
        ),
        (
            "a neighbour",
            v6().icmp(135, 0, [0; 4]).payload(&[0; 16]).build(),
        ),
        (
            "a later fragment",
            v4().protocol(17)
                .fragment(8, false)
                .payload(&[0; 16])
                .build(),
        ),
        (
            "an error behind more extensions than are followed",
            (0..9)
                .fold(v6().icmp(1, 1, [0; 4]), |packet, _| {
                    packet.extension(0, &[0; 6])
                })
                .payload(&[0; 48])
                .build(),
        ),
        (
            "ARP",
            PacketBuilder::new(A, B)
                .arp_request([10, 0, 0, 1], [10, 0, 0, 2])
                .build(),
        ),
        (
            "another type",
            PacketBuilder::new(A, B).payload(&[0; 50]).build(),
        ),
        (
            "a piece of a header",
            v4().tcp(segment(tcp::SYN)).build()[..40].to_vec(),
        ),
        ("nothing", Vec::new()),
    ] {
        assert_eq!(answer(&frame), None, "{what}");
    }
    let error = v6().icmp(1, 1, [0; 4]).extension(60, &[0; 190]).build();
    let copied = &error[..wire::SNAPSHOT];
    assert_eq!(refusal(copied, error.len()), None, "not to be seen");
}

#[test]
fn senders_that_are_no_single_host_get_no_answer() {
    let host = [10, 0, 0, 1];
    for other in [
        [0, 0, 0, 0],
        [0, 0, 0, 7],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
    ] {
        for (src, dst) in [(other, host), (host, other)] {
            let frame = PacketBuilder::new(A, B).ipv4(src, dst);
            assert_eq!(answer(&frame.clone().udp(1, 2).build()), None, "{src:?}");
            assert_eq!(answer(&frame.tcp(segment(tcp::SYN)).build()), None);
        }
    }
    let own = PacketBuilder::new(A, B).ipv6(Ipv6Addr::LOCALHOST, Ipv6Addr::from([2; 16]));
    assert_eq!(answer(&own.udp(1, 2).build()), None);
}

proptest::proptest! {
    #[test]
    fn whatever_comes_an_answer_is_a_whole_frame_that_is_not_answered(
        mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
        kind in 0..3,
        more in 0..9000_usize,
    ) {
        // Most random bytes are no IP.
        let head: &[u8] = match kind {
            0 => &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45],
            1 => &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60],
            _ => &[],
        };
        let n = head.len().min(bytes.len());
        bytes[..n].copy_from_slice(&head[..n]);
        if let Some(told) = refusal(&bytes, bytes.len() + more) {
            let p = parsed(&told);
            proptest::prop_assert!(p.l4_offset.is_some() && told.len() <= MAX);
            proptest::prop_assert_eq!(answer(&told), None);
        }
    }
}
