use super::*;
use proptest::prelude::*;
use wire::MacAddr;
use wire::build::{PacketBuilder, TcpFields};

const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [10, 0, 0, 2];
const A6: [u16; 8] = [0xfd00, 0, 0, 0, 0, 0, 0, 1];
const B6: [u16; 8] = [0xfd00, 0, 0, 0, 0, 0, 0, 2];
const ZONE: u16 = 7;

fn frame() -> PacketBuilder {
    PacketBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]))
}

fn v4() -> PacketBuilder {
    frame().ipv4(A, B)
}

fn v6() -> PacketBuilder {
    frame().ipv6(A6, B6)
}

fn read_bytes(bytes: &[u8]) -> Reading {
    let headers = &bytes[..bytes.len().min(wire::SNAPSHOT)];
    let parsed = ParsedHeaders::parse(headers, bytes.len());
    read(ZONE, &parsed, headers, false)
}

fn of(frame: &PacketBuilder) -> Reading {
    read_bytes(&frame.build())
}

#[track_caller]
fn packet(frame: &PacketBuilder) -> Packet {
    match of(frame) {
        Reading::Packet(packet) => packet,
        other => panic!("{other:?}"),
    }
}

fn ends(protocol: u8, ports: (u16, u16)) -> Tuple {
    let (a, b) = (IpAddr::from(A), IpAddr::from(B));
    Tuple::new(ZONE, protocol, (a, ports.0), (b, ports.1))
}

fn tcp_fields(flags: u16) -> TcpFields {
    TcpFields {
        src_port: 1000,
        dst_port: 80,
        seq: 5,
        ack: 6,
        flags,
        ..TcpFields::default()
    }
}

#[test]
fn tuples_are_those_of_the_protocols() {
    assert_eq!(packet(&v4().udp(5, 6)).tuple, ends(17, (5, 6)));
    assert_eq!(packet(&v4().udp(5, 6)).message, Message::Udp);
    assert_eq!(
        packet(&v4().tcp(tcp_fields(tcp::ACK))).tuple,
        ends(6, (1000, 80))
    );
    assert_eq!(packet(&v4().protocol(50)).tuple, ends(50, (0, 0)));
    assert_eq!(packet(&v4().protocol(50)).message, Message::Other);
    let asks = packet(&v4().echo_request(7, 1));
    assert_eq!(asks.message, Message::Request);
    assert_eq!((asks.tuple.src_port(), asks.tuple.dst_port()), (7, 0));
    let answers = packet(&frame().ipv4(B, A).icmp(0, 0, [0, 7, 0, 1]));
    assert_eq!(answers.message, Message::Answer);
    assert_eq!(answers.tuple, asks.tuple.reversed());
    let asks = packet(&v6().echo_request(7, 1));
    let answers = packet(&frame().ipv6(B6, A6).icmp(129, 0, [0, 7, 0, 1]));
    assert_eq!(answers.tuple, asks.tuple.reversed());
    let behind = v6().extension(60, &[0; 6]).udp(5, 6);
    assert_eq!(packet(&behind).tuple, packet(&v6().udp(5, 6)).tuple);
}

#[test]
fn segments_count_their_whole_payload() {
    let mut fields = tcp_fields(tcp::ACK);
    fields.options = vec![1, 1, 5, 10, 0, 0, 0, 9, 0, 0, 0, 20];
    let frame = v4().tcp(fields).payload(&[0; 60_000]).build();
    let Reading::Packet(Packet { message, .. }) = read_bytes(&frame) else {
        panic!("it is tracked")
    };
    let Message::Tcp(segment) = message else {
        panic!("it is a segment")
    };
    assert_eq!((segment.payload, segment.seq, segment.ack), (60_000, 5, 6));
    assert_eq!((segment.sack, segment.window), (20, 0xffff));
    // Ethernet's padding is no payload.
    let padded = v4().tcp(tcp_fields(tcp::ACK)).pad_to(200);
    let Message::Tcp(segment) = packet(&padded).message else {
        panic!("it is a segment")
    };
    assert_eq!(segment.payload, 0);
}

#[test]
fn what_goes_to_several_stations_is_not_tracked() {
    let group = PacketBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr::BROADCAST);
    let of_group = [
        group.clone().ipv4(A, B).udp(5, 6),
        frame().ipv4(A, [224, 0, 0, 1]).udp(5, 6),
        frame().ipv4(A, [255; 4]).udp(5, 6),
        frame().ipv6(A6, [0xff02, 0, 0, 0, 0, 0, 0, 1]).udp(5, 6),
    ];
    for frame in of_group {
        assert_eq!(of(&frame), Reading::Untracked(Exemption::Group));
    }
    for kind in [130, 131, 132, 133, 134, 135, 136, 137, 143] {
        let frame = v6().icmp(kind, 0, [0; 4]).payload(&[0; 20]);
        assert_eq!(
            of(&frame),
            Reading::Untracked(Exemption::Neighbours),
            "{kind}"
        );
    }
    let arp = frame().arp_request(A, B);
    assert_eq!(of(&arp), Reading::Untracked(Exemption::NotIp));
    assert_eq!(of(&frame()), Reading::Untracked(Exemption::NotIp));
}

#[test]
fn damaged_frames_are_invalid() {
    let invalid = |bytes: &[u8], why| {
        assert_eq!(read_bytes(bytes), Reading::Invalid(why, None));
    };
    // Cut within the transport header: IP says so, too.
    let cut = v4().protocol(6).payload(&[0; 19]).build();
    invalid(&cut, Invalid::Header);
    invalid(&v4().protocol(17).payload(&[0; 7]).build(), Invalid::Header);
    for length in [0, 7, 13] {
        let udp = [0, 5, 0, 6, 0, length, 0, 0, 1, 2, 3, 4];
        invalid(&v4().protocol(17).payload(&udp).build(), Invalid::Header);
    }
    let mut longer = v4().udp(5, 6).build();
    longer[16] = 0xff;
    invalid(&longer, Invalid::Header);
    invalid(&v6().protocol(59).build(), Invalid::Header);
    for kind in [1, 2, 6, 9, 10, 19, 255] {
        invalid(&v4().icmp(kind, 0, [0; 4]).build(), Invalid::Icmp);
    }
    // The checksum of what opens or closes.
    for flags in [tcp::SYN, tcp::RST, tcp::FIN | tcp::ACK] {
        let mut wrong = v4().tcp(tcp_fields(flags)).build();
        wrong[14 + 20 + tcp::CHECKSUM_OFFSET] ^= 1;
        invalid(&wrong, Invalid::Checksum);
        let parsed = ParsedHeaders::parse(&wrong, wrong.len());
        let trusted = read(ZONE, &parsed, &wrong, true);
        assert!(matches!(trusted, Reading::Packet(_)));
    }
    let mut data = v4().tcp(tcp_fields(tcp::ACK)).build();
    data[14 + 20 + tcp::CHECKSUM_OFFSET] ^= 1;
    assert!(matches!(read_bytes(&data), Reading::Packet(_)));
}

fn error(inner: &[u8]) -> PacketBuilder {
    frame().ipv4(B, A).icmp(3, 3, [0; 4]).payload(inner)
}

#[test]
fn errors_are_of_the_connection_that_they_quote() {
    let quoted = v4().udp(5, 6).payload(b"query").build();
    let inner = &quoted[14..];
    for len in [24, 28, inner.len()] {
        let error = packet(&error(&inner[..len]));
        assert_eq!(error.message, Message::Error, "{len}");
        assert_eq!(error.tuple, ends(17, (5, 6)).reversed());
    }
    let echo = v4().echo_request(7, 1).build();
    let error_of_echo = packet(&error(&echo[14..]));
    assert_eq!(
        error_of_echo.tuple,
        packet(&v4().echo_request(7, 1)).tuple.reversed()
    );
    let quoted = v6().udp(5, 6).build();
    let too_big = frame()
        .ipv6(B6, A6)
        .icmp(2, 0, [0; 4])
        .payload(&quoted[14..]);
    assert_eq!(
        packet(&too_big).tuple,
        packet(&v6().udp(5, 6)).tuple.reversed()
    );
}

#[test]
fn errors_that_quote_damaged_headers_are_invalid() {
    let quoted = v4().udp(5, 6).payload(b"query").build();
    let good = &quoted[14..];
    let damage = |at: usize, value: u8| {
        let mut inner = good.to_vec();
        inner[at] = value;
        inner
    };
    let damaged = [
        good[..23].to_vec(),
        good[..19].to_vec(),
        Vec::new(),
        damage(0, 0x65),
        damage(0, 0x44),
        damage(0, 0x4f),
        // A later fragment has no ports.
        damage(7, 1),
        // An error about an error (RFC 1122, 3.2.2).
        error(good).build()[14..].to_vec(),
    ];
    for inner in damaged {
        let read = of(&error(&inner));
        assert!(
            matches!(
                read,
                Reading::Invalid(Invalid::Quote | Invalid::WrongSide, None)
            ),
            "{inner:x?}: {read:?}"
        );
    }
    let foreign = of(&frame()
        .ipv4(B, [10, 0, 0, 9])
        .icmp(3, 3, [0; 4])
        .payload(good));
    assert_eq!(foreign, Reading::Invalid(Invalid::WrongSide, None));
}

#[test]
fn fragments_have_their_place() {
    let payload = [0; 104];
    let bytes = v4().udp(5, 6).payload(&payload).build();
    let part = |from: usize, to: usize, more| {
        let part = &bytes[34 + from..34 + to];
        let offset = (from / 8) as u16;
        v4().protocol(17)
            .ip_id(9)
            .fragment(offset, more)
            .payload(part)
    };
    let datagram = ends(17, (0, 9));
    let first = packet(&part(0, 48, true));
    let piece = |start, end| Piece {
        datagram,
        start,
        end,
    };
    assert_eq!(first.tuple, ends(17, (5, 6)));
    assert_eq!(first.piece, Some(piece(0, 48)));
    assert_eq!(of(&part(48, 112, false)), Reading::Later(piece(48, 112)));
    let tiny = of(&v4()
        .protocol(17)
        .ip_id(9)
        .fragment(0, true)
        .payload(&bytes[34..38]));
    assert_eq!(
        tiny,
        Reading::Invalid(Invalid::TinyFragment, Some(piece(0, 4)))
    );
    // IPv6: after a header that every fragment has.
    let six = |offset, more| v6().extension(60, &[0; 6]).ip_id(9).fragment(offset, more);
    let first = packet(&six(0, true).udp(5, 6).payload(&[0; 40]));
    let later = of(&six(6, false).protocol(17).payload(&[0; 16]));
    let Some(Piece {
        datagram,
        start,
        end,
    }) = first.piece
    else {
        panic!("it is a fragment")
    };
    assert_eq!((start, end), (0, 48));
    let place = Piece {
        datagram,
        start: 48,
        end: 64,
    };
    assert_eq!(later, Reading::Later(place));
    // A datagram in one fragment (RFC 6946) is whole.
    assert_eq!(packet(&six(0, false).udp(5, 6)).piece, None);
}

proptest! {
    #[test]
    fn any_frame_is_read(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        longer in 0..2000usize,
    ) {
        let headers = &bytes[..bytes.len().min(wire::SNAPSHOT)];
        let parsed = ParsedHeaders::parse(headers, bytes.len() + longer);
        let _ = read(ZONE, &parsed, headers, false);
    }

    /// Bytes that are damaged somewhere are read, and what is tracked has its zone.
    #[test]
    fn any_damage_is_read(at in 12..80usize, value: u8, cut in 14..120usize, which in 0..6usize) {
        let quoted = v4().udp(5, 6).payload(b"query").build();
        let frame = match which {
            0 => v4().tcp(tcp_fields(tcp::SYN)),
            1 => v6().extension(0, &[0; 6]).ip_id(1).fragment(0, true).udp(5, 6).payload(&[0; 32]),
            2 => error(&quoted[14..]),
            3 => frame().ipv6(B6, A6).icmp(1, 4, [0; 4]).payload(&v6().udp(5, 6).build()[14..]),
            4 => v4().ip_id(3).fragment(2, true).protocol(6).payload(&[0; 32]),
            _ => v4().echo_request(1, 1),
        };
        let mut bytes = frame.build();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = value;
        }
        bytes.truncate(cut.max(14));
        if let Reading::Packet(packet) = read_bytes(&bytes) {
            prop_assert_eq!(packet.tuple.zone(), ZONE);
        }
    }

    #[test]
    fn any_options_are_read(options in proptest::collection::vec(any::<u8>(), 0..40), syn: bool) {
        let mut fields = tcp_fields(if syn { tcp::SYN } else { tcp::ACK });
        fields.options = options;
        let Message::Tcp(segment) = packet(&v4().tcp(fields)).message else {
            panic!("it is a segment")
        };
        prop_assert!(segment.options.scale.is_none_or(|scale| scale <= 14));
        prop_assert!((segment.sack.wrapping_sub(segment.ack) as i32) >= 0);
    }
}

#[test]
fn options_are_those_of_the_standards() {
    let of = |flags, options: &[u8]| {
        let mut fields = tcp_fields(flags);
        fields.options = options.to_vec();
        match packet(&v4().tcp(fields)).message {
            Message::Tcp(segment) => segment,
            other => panic!("{other:?}"),
        }
    };
    let scaled = of(tcp::SYN, &[2, 4, 5, 0xb4, 4, 2, 3, 3, 15]).options;
    assert_eq!((scaled.scale, scaled.sack_permitted), (Some(14), true));
    // Only a SYN says them, after the end is nothing, and a damaged option ends them.
    assert_eq!(of(tcp::ACK, &[3, 3, 7, 1]).options.scale, None);
    assert_eq!(of(tcp::SYN, &[0, 3, 3, 7]).options.scale, None);
    assert_eq!(of(tcp::SYN, &[9, 1, 3, 3, 7, 1, 1, 1]).options.scale, None);
    assert_eq!(of(tcp::SYN, &[9, 40, 3, 3, 7, 1, 1, 1]).options.scale, None);
    let edges = [
        1, 1, 5, 18, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 20, 0, 0, 0, 30,
    ];
    assert_eq!(of(tcp::ACK, &edges).sack, 30);
    // Before what is acknowledged.
    let old = [1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 3];
    assert_eq!(of(tcp::ACK, &old).sack, 6);
    let timestamps = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    assert_eq!(of(tcp::ACK, &timestamps).sack, 6);
}
