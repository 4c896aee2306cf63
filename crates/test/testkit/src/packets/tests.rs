use super::*;

fn flows() -> [Flow; 4] {
    [
        Flow::v4(1, 2),
        Flow::v6(1, 2),
        Flow::v4(1, 2).tagged(7),
        Flow::v6(1, 2).tagged(4095),
    ]
}

#[test]
fn checksums_hold_until_a_bit_flips() {
    for flow in flows() {
        for frame in [udp(&flow, b"odd"), tcp(&flow, 9, b"even"), udp(&flow, &[])] {
            assert_eq!(verify_checksums(&frame), Ok(()));
            let mut damaged = frame.clone();
            *damaged.last_mut().expect("bytes") ^= 1;
            assert!(verify_checksums(&damaged).is_err());
        }
    }
}

#[test]
fn a_known_ipv4_header_sums_up() {
    let mut ip = vec![0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0];
    ip.extend([0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7]);
    assert_eq!(!fold(sum_bytes(&ip)), 0xb861);
}

#[test]
fn partial_frames_become_right_on_the_wire() {
    for flow in flows() {
        for (frame, header) in [
            udp_partial(&flow, b"datagram"),
            tcp_partial(&flow, 5, b"segment"),
        ] {
            assert_eq!(verify_partial(&frame, &header), Ok(()));
            assert!(verify_checksums(&frame).is_err());
            let wire = on_the_wire(&frame, &header).expect("fits");
            assert_eq!(wire.len(), 1);
            assert_eq!(verify_checksums(&wire[0]), Ok(()));
        }
    }
}

#[test]
fn super_frames_are_cut() {
    let payload: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    for flow in flows() {
        for (frame, header) in [
            tcp_super(&flow, u32::MAX - 9, &payload, 1448),
            udp_super(&flow, &payload, 1448),
        ] {
            assert_eq!(verify_partial(&frame, &header), Ok(()));
            let wire = on_the_wire(&frame, &header).expect("fits");
            assert_eq!(wire.len(), 4);
            for segment in &wire {
                assert_eq!(verify_checksums(segment), Ok(()));
            }
            let back: Vec<u8> = wire
                .iter()
                .flat_map(|s| payload_of(s).expect("a segment").to_vec())
                .collect();
            assert_eq!(back, payload);
        }
    }
}

#[test]
fn tcp_segments_keep_numbers_and_flags() {
    let (frame, header) = tcp_super(&Flow::v4(1, 2), 100, &[0; 3000], 1000);
    let wire = on_the_wire(&frame, &header).expect("fits");
    let field = |s: &[u8]| {
        (
            u32::from_be_bytes(s[38..42].try_into().expect("4")),
            s[47],
            s[19],
        )
    };
    let fields: Vec<_> = wire.iter().map(|s| field(s)).collect();
    assert_eq!(
        fields,
        [(100, 0x10, 0x34), (1100, 0x10, 0x35), (2100, 0x18, 0x36)]
    );
}

#[test]
fn tags_and_announcements() {
    let frame = rarp(mac(3));
    assert_eq!((frame.len(), &frame[12..14]), (42, &[0x80, 0x35][..]));
    let tagged = vlan_tagged(&frame, 0x2005);
    assert_eq!(vlan_stripped(&tagged), (frame.clone(), Some(0x2005)));
    assert_eq!(vlan_stripped(&frame), (frame, None));
    let (a, b) = (
        (mac(1), Ipv4Addr::new(10, 0, 0, 1)),
        (mac(2), Ipv4Addr::new(10, 0, 0, 2)),
    );
    assert_eq!(verify_checksums(&arp_request(a.0, a.1, b.1)), Ok(()));
    assert_eq!(arp_reply(b, a)[..6], mac(1));
    assert_eq!(Flow::v4(1, 2).reversed(), Flow::v4(2, 1).ports(2002, 1001));
}

#[test]
fn the_checker_tells_loss_from_reordering() {
    let mut checker = SequenceChecker::default();
    let payload = |seq| numbered_payload(Numbered { stream: 4, seq }, 40);
    for seq in [0, 1, 4, 2, 2] {
        assert!(checker.see(&payload(seq)).is_some());
    }
    let mut damaged = payload(5);
    damaged[30] ^= 0x10;
    assert_eq!(checker.see(&damaged), None);
    assert_eq!(
        (checker.received, checker.lost(), checker.reordered),
        (5, 1, 1)
    );
    assert_eq!(
        (checker.duplicated, checker.damaged, checker.next_of(4)),
        (1, 1, 5)
    );
    let mut clean = SequenceChecker::default();
    clean.see(&payload(0));
    assert!(clean.is_clean(4, 1) && !clean.is_clean(4, 2));
}

#[test]
fn an_echo_is_answered_with_what_it_brought() {
    let flow = Flow::v4(1, 2);
    let request = echo_request(&flow, 7, 300, b"what it brought");
    verify_checksums(&request).expect("a sound frame");
    assert_eq!(
        echo_of(&request),
        Some((ECHO_REQUEST, [0, 7, 1, 44], &b"what it brought"[..]))
    );
    let reply = echo_reply(&request).expect("an answer");
    assert_eq!((&reply[..6], &reply[6..12]), (&mac(1)[..], &mac(2)[..]));
    assert_eq!(
        echo_of(&reply),
        Some((ECHO_REPLY, [0, 7, 1, 44], &b"what it brought"[..]))
    );
    assert_eq!(echo_reply(&reply), None, "an answer is not answered");
    assert_eq!(echo_of(&udp(&flow, b"no echo")), None);
}
