use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use wire::build::PacketBuilder;
use wire::{MacAddr, Sum, packet::L3};

use super::icmp::error;
use super::*;
use crate::network::Prefix;

const GUEST: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
const OWN: MacAddr = MacAddr([0x52, 0x55, 0, 0, 0, 2]);
const SECOND: Nanos = 1_000_000_000;

fn network() -> Network {
    let prefix: Prefix = "10.0.2.0/24".parse().unwrap();
    let prefix6: Prefix = "fd00:1::/64".parse().unwrap();
    Network::new(prefix, Some(prefix6), OWN, 1500).unwrap()
}

fn services() -> Services {
    let offer = Offer {
        route6: true,
        dns: true,
        search: "internal example.org".parse().unwrap(),
    };
    Services::new(network(), offer)
}

fn answer(services: &mut Services, frame: &[u8], now: Nanos) -> Option<Vec<u8>> {
    match services.frame(frame, Checksum::InFrame, now).unwrap() {
        FramePurpose::Here(answer) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn arp_is_answered_for_gateway_and_dns_alone() {
    let mut services = services();
    for (last, known) in [(2, true), (3, true), (1, false), (15, false)] {
        let ask = PacketBuilder::new(GUEST, MacAddr::BROADCAST)
            .arp_request([10, 0, 2, 15], [10, 0, 2, last])
            .build();
        let reply = answer(&mut services, &ask, 0);
        assert_eq!(reply.is_some(), known, "{last}");
        let Some(reply) = reply else { continue };
        let parsed = wire::ParsedHeaders::parse(&reply, reply.len());
        let expected = L3::Arp {
            operation: 2,
            sender_mac: OWN,
            sender_ip: Ipv4Addr::new(10, 0, 2, last),
            target_ip: Ipv4Addr::new(10, 0, 2, 15),
        };
        assert_eq!(parsed.l3, expected);
    }
    let liar = PacketBuilder::new(GUEST, MacAddr::BROADCAST)
        .arp_request([10, 0, 2, 15], [10, 0, 2, 2])
        .arp_sender_mac(OWN)
        .build();
    assert_eq!(answer(&mut services, &liar, 0), None);
}

fn solicit(from: &str, to: &str, target: &str, options: &[u8], hops: u8) -> Vec<u8> {
    let target: Ipv6Addr = target.parse().unwrap();
    let body = [&target.octets()[..], options].concat();
    PacketBuilder::new(GUEST, MacAddr([0x33, 0x33, 0xff, 0, 0, 2]))
        .ipv6(
            from.parse::<Ipv6Addr>().unwrap(),
            to.parse::<Ipv6Addr>().unwrap(),
        )
        .ttl(hops)
        .icmp(135, 0, [0; 4])
        .payload(&body)
        .build()
}

#[test]
fn neighbours_are_advertised_as_rfc_4861_has_it() {
    let mut services = services();
    let own = [1, 1, 0x52, 0x54, 0, 0, 0, 1];
    let ask = solicit("fe80::1", "ff02::1:ff00:2", "fd00:1::2", &own, 255);
    let reply = answer(&mut services, &ask, 0).unwrap();
    // Router, solicited, override; to the guest alone.
    assert_eq!(
        (&reply[..6], reply[54], reply[58]),
        (&GUEST.0[..], 136, 0xe0)
    );
    let ask = solicit("fe80::1", "ff02::1:ff00:3", "fd00:1::3", &[], 255);
    assert_eq!(answer(&mut services, &ask, 0).unwrap()[58], 0x60);
    let probe = solicit("::", "ff02::1:ff00:2", "fd00:1::2", &[], 255);
    let reply = answer(&mut services, &probe, 0).unwrap();
    // To all nodes, but at the station that asked (RFC 6085).
    assert_eq!(
        (&reply[..6], &reply[38..40], reply[58]),
        (&GUEST.0[..], &[0xff, 2][..], 0xa0)
    );
    let other = solicit("fe80::1", "ff02::1:ff00:9", "fd00:1::9", &own, 255);
    assert_eq!(answer(&mut services, &other, 0), None);
    for bad in [
        solicit("fe80::1", "ff02::1:ff00:2", "fd00:1::2", &own, 64),
        solicit(
            "fe80::1",
            "ff02::1:ff00:2",
            "fd00:1::2",
            &[1, 0, 0, 0, 0, 0, 0, 0],
            255,
        ),
        solicit(
            "fe80::1",
            "ff02::1:ff00:2",
            "fd00:1::2",
            &[1, 2, 0, 0, 0, 0, 0, 0],
            255,
        ),
        solicit("::", "ff02::1:ff00:2", "fd00:1::2", &own, 255),
        solicit("fe80::1", "ff02::1:ff00:2", "ff02::1", &own, 255),
    ] {
        let got = services.frame(&bad, Checksum::InFrame, 0);
        assert_eq!(got, Err(Refusal::Protocol));
    }
}

#[test]
fn router_advertisements_have_lifetime_0_without_a_route() {
    let mut services = services();
    let first = services.advertisement(0).unwrap();
    assert_eq!(u16::from_be_bytes([first[60], first[61]]), ROUTER_LIFETIME);
    assert_eq!(services.advertisement(SECOND), None);
    services.set_offer(Offer {
        route6: false,
        dns: true,
        search: Search::default(),
    });
    let second = services.advertisement(2 * SECOND).unwrap();
    assert_eq!(u16::from_be_bytes([second[60], second[61]]), 0);
    let ask = PacketBuilder::new(GUEST, MacAddr([0x33, 0x33, 0, 0, 0, 2]))
        .ipv6(
            "fe80::1".parse::<Ipv6Addr>().unwrap(),
            "ff02::2".parse::<Ipv6Addr>().unwrap(),
        )
        .ttl(255)
        .icmp(133, 0, [0; 4])
        .build();
    let reply = answer(&mut services, &ask, 0).unwrap();
    assert_eq!((&reply[..6], reply[54]), (&GUEST.0[..], 134));
    // The DNS server is in the last option (RFC 8106).
    assert!(reply.ends_with(&network().dns6().unwrap().octets()));
    // The domains are in the one before, for as long.
    let domains = [
        &[31, 3, 0, 0, 0, 0, 7, 8][..],
        b"\x08internal\0\0\0\0\0\0\0",
    ]
    .concat();
    assert_eq!(reply[118..142], domains);
    // MTU and prefix.
    assert_eq!(reply[78..86], [5, 1, 0, 0, 0, 0, 5, 220]);
    assert_eq!(reply[86..90], [3, 4, 64, 0xc0]);
}

#[test]
fn echo_is_answered_for_the_gateway_and_others_are_left() {
    let mut services = services();
    let ping = |to: [u8; 4]| {
        PacketBuilder::new(GUEST, OWN)
            .ipv4([10, 0, 2, 15], to)
            .echo_request(7, 9)
            .payload(b"abc")
            .build()
    };
    let reply = answer(&mut services, &ping([10, 0, 2, 2]), 0).unwrap();
    assert_eq!(
        (reply[34], &reply[38..42], &reply[42..]),
        (0, &[0, 7, 0, 9][..], &b"abc"[..])
    );
    assert_eq!(Sum::of(&reply[34..]).finish(), 0);
    let far = services.frame(&ping([192, 0, 2, 1]), Checksum::InFrame, 0);
    assert_eq!(far, Ok(FramePurpose::Elsewhere));
    let mut wrong = ping([10, 0, 2, 2]);
    wrong[43] ^= 1;
    let got = services.frame(&wrong, Checksum::InFrame, 0);
    assert_eq!(got, Err(Refusal::Protocol));
}

#[test]
fn errors_quote_the_packet_and_answer_no_error() {
    let network = network();
    let frame = PacketBuilder::new(GUEST, OWN)
        .ipv4([10, 0, 2, 15], [192, 0, 2, 1])
        .udp(1000, 2000)
        .payload(&[1; 1000])
        .build();
    let big = error(&network, &frame, IcmpError::TooBig(1400).into()).unwrap();
    assert_eq!(
        (big.len(), &big[34..36], &big[40..42]),
        (14 + 576, &[3, 4][..], &[5, 120][..])
    );
    assert_eq!(big[42..], frame[14..14 + 548]);
    assert_eq!(error(&network, &big, IcmpError::Host.into()), None);
    let port = error(&network, &frame, IcmpError::Port.into()).unwrap();
    assert_eq!(port[26..30], [192, 0, 2, 1]);
    let all = PacketBuilder::new(GUEST, MacAddr::BROADCAST)
        .ipv4([10, 0, 2, 15], [10, 0, 2, 255])
        .udp(1, 2)
        .build();
    assert_eq!(error(&network, &all, IcmpError::Port.into()), None);
}

#[test]
fn errors_answer_what_was_refused_and_are_bounded() {
    let mut errors = Errors::new(network(), crate::Secret([1, 2]));
    let to = |to: [u8; 4]| {
        let frame = PacketBuilder::new(GUEST, OWN).ipv4([10, 0, 2, 15], to);
        frame.udp(1000, 2000).payload(b"bytes").build()
    };
    let mut code = |frame: &[u8], refusal| {
        let answer = errors.refused(0, frame, refusal)?;
        assert_eq!((answer[34], &answer[..6]), (3, &GUEST.0[..]));
        Some(answer[35])
    };
    let far = to([192, 0, 2, 1]);
    assert_eq!(code(&far, Refusal::Denied), Some(13));
    assert_eq!(code(&far, Refusal::Flows), Some(13));
    assert_eq!(code(&to([10, 0, 2, 77]), Refusal::Unreachable), Some(1));
    assert_eq!(code(&to([10, 0, 2, 2]), Refusal::Unreachable), Some(3));
    assert_eq!(code(&far, Refusal::Fragment), None);
    let tcp = PacketBuilder::new(GUEST, OWN).ipv4([10, 0, 2, 15], [10, 0, 2, 77]);
    let tcp = tcp.tcp(wire::build::TcpFields::default()).build();
    assert_eq!(code(&tcp, Refusal::Unreachable), None);
    // RFC 4443, section 2.4 f.
    let more = (0..50).filter(|_| code(&far, Refusal::Denied).is_some());
    assert_eq!(more.count(), 6);
}

#[test]
fn a_datagram_that_is_too_big_is_answered_with_the_mtu() {
    let mut errors = Errors::new(network(), crate::Secret([1, 2]));
    let mut said = |guest: &str, peer: &str, mtu: u32| {
        let datagram = crate::UndeliveredPacket {
            station: GUEST,
            guest: guest.parse().unwrap(),
            peer: peer.parse().unwrap(),
            syn: None,
        };
        let error = IcmpError::TooBig(mtu);
        errors.undelivered(0, &datagram, &[7; 2000], error).unwrap()
    };
    let v4 = said("10.0.2.15:1000", "192.0.2.1:2000", 1400);
    assert_eq!(
        (&v4[34..36], &v4[40..42]),
        (&[3, 4][..], &1400u16.to_be_bytes()[..])
    );
    // Addresses and ports of the guest's datagram, by which it finds its socket.
    assert_eq!(
        (&v4[54..58], &v4[58..62]),
        (&[10, 0, 2, 15][..], &[192, 0, 2, 1][..])
    );
    assert_eq!(v4[62..66], [3, 232, 7, 208]);
    assert_eq!(
        said("10.0.2.15:1000", "192.0.2.1:2000", 0)[40..42],
        68u16.to_be_bytes()
    );
    let v6 = said("[fd00:1::15]:1000", "[2001:db8::1]:2000", 1000);
    assert_eq!((v6[54], &v6[58..62]), (2, &1280u32.to_be_bytes()[..]));
}

#[test]
fn stations_are_learned_from_what_they_say_of_themselves() {
    let mut services = services();
    let v4: IpAddr = "10.0.2.99".parse().unwrap();
    let v6: Ipv6Addr = "fd00:1::99".parse().unwrap();
    assert_eq!(services.station(v4, 0), None);
    // The question is answered with a reply to the gateway.
    let ask = services.ask(v4).unwrap();
    assert!(is_well_formed(&ask) && ask[..6] == [0xff; 6] && ask[21] == 1);
    assert_eq!(
        (&ask[28..32], &ask[38..42]),
        (&[10, 0, 2, 2][..], &[10, 0, 2, 99][..])
    );
    let reply = |mac: MacAddr, from: [u8; 4]| {
        let mut frame = PacketBuilder::new(mac, OWN)
            .arp(2, from, OWN, [10, 0, 2, 2])
            .build();
        frame[6..12].copy_from_slice(&GUEST.0);
        frame
    };
    for (mac, from) in [
        (OWN, [10, 0, 2, 99]),
        (GUEST, [10, 0, 2, 2]),
        (GUEST, [10, 9, 9, 9]),
    ] {
        assert_eq!(answer(&mut services, &reply(mac, from), 0), None);
        assert_eq!(services.station(IpAddr::from(from), 0), None);
    }
    answer(&mut services, &reply(GUEST, [10, 0, 2, 99]), 0);
    assert_eq!(services.station(v4, 1), Some(GUEST));
    // A lease decides before it.
    let other = MacAddr([2, 0, 0, 0, 0, 9]);
    let reserved = Ipv4Addr::new(10, 0, 2, 99);
    services.leases_mut().reserve([(other, reserved)]);
    assert_eq!(services.station(v4, 1), Some(other));
    for none in ["10.0.2.2", "10.0.3.1", "fd00:1::2", "fe80::1"] {
        assert_eq!(services.ask(none.parse().unwrap()), None, "{none}");
    }

    let ask = services.ask(v6.into()).unwrap();
    assert!(is_well_formed(&ask));
    assert_eq!(ask[..6], [0x33, 0x33, 0xff, 0, 0, 0x99]);
    let advertise = |flags: u8, to: Ipv6Addr, hops: u8| {
        let frame = PacketBuilder::new(GUEST, OWN).ipv6(v6, to).ttl(hops);
        let frame = frame.icmp(136, 0, [flags, 0, 0, 0]).payload(&v6.octets());
        frame.build()
    };
    let all = "ff02::1".parse().unwrap();
    let own = network().link_local();
    // RFC 4861, section 7.1.2.
    for bad in [advertise(0x60, own, 64), advertise(0x60, all, 255)] {
        let got = services.frame(&bad, Checksum::InFrame, 0);
        assert_eq!(got, Err(Refusal::Protocol));
    }
    assert_eq!(services.station(v6.into(), 0), None);
    answer(&mut services, &advertise(0x60, own, 255), 0);
    assert_eq!(services.station(v6.into(), 0), Some(GUEST));
    // A solicitation tells its sender's.
    let ask = solicit("fd00:1::77", "ff02::1:ff00:2", "fd00:1::2", &[], 255);
    answer(&mut services, &ask, 0);
    let asker = "fd00:1::77".parse().unwrap();
    assert_eq!(services.station(asker, 0), Some(GUEST));
}

/// A DHCP message with these options.
fn dhcp(mac: MacAddr, current: [u8; 4], options: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 240];
    body[..3].copy_from_slice(&[1, 1, 6]);
    body[4..8].copy_from_slice(&[1, 2, 3, 4]);
    body[12..16].copy_from_slice(&current);
    body[28..34].copy_from_slice(&mac.0);
    body[236..].copy_from_slice(&[99, 130, 83, 99]);
    body.extend(options);
    body.push(255);
    PacketBuilder::new(mac, MacAddr::BROADCAST)
        .ipv4(current, [255; 4])
        .udp(68, 67)
        .payload(&body)
        .build()
}

/// Type and address of an answer.
fn offered(frame: &[u8]) -> (u8, Ipv4Addr) {
    let body = &frame[42..];
    assert_eq!(
        (body[0], &body[4..8], body.len() >= 300),
        (2, &[1, 2, 3, 4][..], true)
    );
    let address = Ipv4Addr::from([body[16], body[17], body[18], body[19]]);
    assert_eq!(body[240..242], [53, 1]);
    (body[242], address)
}

fn discover(services: &mut Services, mac: MacAddr, now: Nanos) -> Ipv4Addr {
    let frame = answer(services, &dhcp(mac, [0; 4], &[53, 1, 1]), now).unwrap();
    let (kind, address) = offered(&frame);
    assert_eq!(kind, 2);
    address
}

fn request(services: &mut Services, mac: MacAddr, asked: Ipv4Addr, now: Nanos) -> (u8, Ipv4Addr) {
    let [a, b, c, d] = asked.octets();
    let options = [53, 1, 3, 50, 4, a, b, c, d];
    offered(&answer(services, &dhcp(mac, [0; 4], &options), now).unwrap())
}

#[test]
fn a_lease_is_offered_taken_renewed_and_the_same_after_a_restart() {
    let mut one = services();
    let address = discover(&mut one, GUEST, 0);
    assert!(address.octets()[3] >= 15 && address.octets()[3] < 255);
    assert_eq!(request(&mut one, GUEST, address, 0), (5, address));
    let renew = dhcp(GUEST, address.octets(), &[53, 1, 3]);
    let frame = answer(&mut one, &renew, SECOND).unwrap();
    assert_eq!(
        (&frame[..6], &frame[30..34]),
        (&GUEST.0[..], &address.octets()[..])
    );
    assert_eq!(discover(&mut services(), GUEST, 9), address);
    let wrong = Ipv4Addr::new(192, 168, 0, 7);
    assert_eq!(request(&mut one, GUEST, wrong, 0).0, 6);
    // Mask, router, DNS and MTU.
    for option in [
        &[1, 4, 255, 255, 255, 0][..],
        &[3, 4, 10, 0, 2, 2],
        &[6, 4, 10, 0, 2, 3],
        b"\x0f\x08internal",
        b"\x77\x17\x08internal\0\x07example\x03org\0",
        &[26, 2, 5, 220],
        &[51, 4, 0, 0, 14, 16],
    ] {
        assert!(
            frame.windows(option.len()).any(|part| part == option),
            "{option:?}"
        );
    }
}

#[test]
fn stations_never_share_an_address_and_reserved_ones_are_kept() {
    let mut services = services();
    let reserved = Ipv4Addr::new(10, 0, 2, 200);
    services.leases_mut().reserve([(GUEST, reserved)]);
    assert_eq!(discover(&mut services, GUEST, 0), reserved);
    let mut seen = vec![reserved];
    for i in 0..239u8 {
        let mac = MacAddr([2, 0, 0, 0, 1, i]);
        let address = discover(&mut services, mac, 0);
        assert_eq!(request(&mut services, mac, address, 0), (5, address));
        assert!(!seen.contains(&address), "{address}");
        seen.push(address);
    }
    let late = MacAddr([2, 0, 0, 0, 9, 9]);
    let ask = dhcp(late, [0; 4], &[53, 1, 1]);
    assert_eq!(answer(&mut services, &ask, 0), None);
    let after = u64::from(LEASE_SECONDS) * SECOND + 1;
    assert!(answer(&mut services, &ask, after).is_some());
}

#[test]
fn a_declined_address_is_set_aside() {
    let mut services = services();
    let first = discover(&mut services, GUEST, 0);
    request(&mut services, GUEST, first, 0);
    let [a, b, c, d] = first.octets();
    let decline = dhcp(GUEST, [0; 4], &[53, 1, 4, 50, 4, a, b, c, d]);
    assert_eq!(answer(&mut services, &decline, 1), None);
    assert_ne!(discover(&mut services, GUEST, 2), first);
}

#[test]
fn dhcp_messages_of_no_client_are_dropped() {
    let mut services = services();
    let mut refused = |frame: &[u8]| {
        let got = services.frame(frame, Checksum::InFrame, 0);
        assert_eq!(got, Err(Refusal::Protocol), "{frame:?}");
    };
    for kind in [2, 5, 6, 9, 77, 255] {
        refused(&dhcp(GUEST, [0; 4], &[53, 1, kind]));
    }
    // Operation, hardware type and length, station, cookie; without a checksum.
    for (at, bits) in [(0, 3), (1, 1), (2, 2), (2, 16), (33, 1), (239, 1)] {
        let mut frame = dhcp(GUEST, [0; 4], &[53, 1, 1]);
        frame[40..42].fill(0);
        frame[42 + at] ^= bits;
        refused(&frame);
    }
}

#[test]
fn dhcp_is_lenient_with_what_it_does_not_need() {
    let mut services = services();
    let own = discover(&mut services, GUEST, 0);
    let [a, b, c, d] = own.octets();
    // Parts of an option are one (RFC 3396); of several values the first counts.
    for options in [
        &[53, 1, 3, 50, 4, a, b, c, d, 50, 4, 1, 1, 1, 1][..],
        &[53, 1, 3, 50, 2, a, b, 0, 0, 50, 2, c, d],
        &[53, 2, 3, 1, 53, 1, 1, 50, 4, a, b, c, d, 54, 0],
        &[53, 1, 3, 50, 4, a, b, c, d, 54, 3, 9, 9, 9],
        &[53, 1, 3, 50, 4, a, b, c, d, 99, 200, 1],
    ] {
        let frame = answer(&mut services, &dhcp(GUEST, [0; 4], options), 0);
        assert_eq!(offered(&frame.unwrap()), (5, own), "{options:?}");
    }
    // The address that a client has decides.
    for options in [
        &[53, 1, 3, 50, 4, a, b, c, d][..],
        &[53, 1, 3, 54, 4, 10, 0, 2, 2],
        &[53, 1, 3, 50, 4, a, b, c, d, 54, 4, 10, 0, 2, 2],
        &[53, 1, 3, 50, 4, 10, 0, 2, 99, 54, 4, 10, 0, 2, 99],
    ] {
        let frame = answer(&mut services, &dhcp(GUEST, own.octets(), options), 0);
        assert_eq!(offered(&frame.unwrap()), (5, own), "{options:?}");
    }
    // Neither an address nor one that it asks for.
    let frame = answer(&mut services, &dhcp(GUEST, [0; 4], &[53, 1, 3]), 0);
    assert_eq!(offered(&frame.unwrap()).0, 6);
    // It has chosen another server.
    let options = [53, 1, 3, 50, 4, a, b, c, d, 54, 4, 10, 0, 2, 9];
    let frame = answer(&mut services, &dhcp(GUEST, [0; 4], &options), 0);
    assert_eq!(frame, None);
}

#[test]
fn a_client_of_bootp_gets_its_address_without_a_type() {
    let mut services = services();
    for options in [&[][..], &[12, 3, 118, 109, 49], &[53, 0], &[53, 1, 0]] {
        let frame = answer(&mut services, &dhcp(GUEST, [0; 4], options), 0).unwrap();
        let address = services.leases().of(GUEST).unwrap().address;
        assert_eq!(frame[58..62], address.octets());
        // The mask is the first option, and there is neither a type nor a time.
        assert_eq!(frame[282..288], [1, 4, 255, 255, 255, 0]);
        assert!(frame.len() >= 42 + 300);
    }
}

#[test]
fn a_relay_in_the_network_gets_the_answer() {
    let mut services = services();
    let ask = |relay: [u8; 4]| {
        let mut frame = dhcp(GUEST, [0; 4], &[53, 1, 1]);
        frame[40..42].fill(0);
        frame[66..70].copy_from_slice(&relay);
        frame
    };
    let frame = answer(&mut services, &ask([10, 0, 2, 77]), 0).unwrap();
    assert_eq!(
        (&frame[30..34], &frame[36..38]),
        (&[10, 0, 2, 77][..], &[0, 67][..])
    );
    for other in [[192, 0, 2, 1], [10, 0, 2, 2], [10, 0, 2, 255]] {
        assert_eq!(answer(&mut services, &ask(other), 0), None);
    }
}

#[test]
fn dhcpv6_gives_the_dns_server_and_no_addresses() {
    let mut services = services();
    let ask = |kind: u8, options: &[u8]| {
        PacketBuilder::new(GUEST, MacAddr([0x33, 0x33, 0, 1, 0, 2]))
            .ipv6(
                "fe80::1".parse::<Ipv6Addr>().unwrap(),
                "ff02::1:2".parse::<Ipv6Addr>().unwrap(),
            )
            .udp(546, 547)
            .payload(&[&[kind, 7, 8, 9][..], options].concat())
            .build()
    };
    let client = [0, 1, 0, 4, 0, 3, 0, 1];
    let reply = answer(&mut services, &ask(11, &client), 0).unwrap();
    assert_eq!(reply[62..66], [7, 7, 8, 9]);
    assert_eq!(reply[66..74], client);
    assert!(reply.ends_with(&network().dns6().unwrap().octets()));
    let domains = b"\0\x18\0\x17\x08internal\0\x07example\x03org\0";
    assert!(reply.windows(domains.len()).any(|part| part == domains));
    assert_eq!(answer(&mut services, &ask(1, &client), 0), None);
    for bad in [
        &[0, 1][..],
        &[0, 1, 0, 9, 1],
        &[0, 2, 0, 1, 1],
        &[0, 1, 0, 0],
    ] {
        let got = services.frame(&ask(11, bad), Checksum::InFrame, 0);
        assert_eq!(got, Err(Refusal::Protocol), "{bad:?}");
    }
    // RFC 8415, section 16.12: an information request asks for no addresses; others may.
    for association in [3, 4, 25] {
        let options = [0, association, 0, 0];
        let got = services.frame(&ask(11, &options), Checksum::InFrame, 0);
        assert_eq!(got, Err(Refusal::Protocol));
        assert_eq!(answer(&mut services, &ask(1, &options), 0), None);
    }
}

/// Returns whether a frame's headers agree with its bytes.
fn is_well_formed(frame: &[u8]) -> bool {
    Incoming::parse(frame).is_ok_and(|incoming| match incoming.body {
        Body::Arp(_) => true,
        Body::Ip(packet) => match packet.protocol {
            17 => packet.udp(Checksum::InFrame).is_ok(),
            _ => packet.icmp(Checksum::InFrame).is_ok(),
        },
    })
}

proptest! {
    #[test]
    fn any_bytes_are_answered_well_or_not_at_all(
        kind in 0usize..8,
        port in prop::sample::select(vec![53u16, 67, 547]),
        hops in prop::sample::select(vec![64u8, 255]),
        cut in 0usize..400,
        bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let own6 = network().link_local();
        let guest6: Ipv6Addr = "fe80::1".parse().unwrap();
        let builder = PacketBuilder::new(GUEST, OWN).ttl(hops);
        let v4 = builder.clone().ipv4([10, 0, 2, 15], [10, 0, 2, 2]).payload(&bytes);
        let v6 = builder.ipv6(guest6, own6).payload(&bytes);
        let mut frame = match kind {
            0 => bytes.clone(),
            1 => v4.udp(68, port).build(),
            2 => v6.udp(546, port).build(),
            3 => v4.icmp(8, 0, [0; 4]).build(),
            4 => v6.icmp(133, 0, [0; 4]).build(),
            5 => v6.icmp(135, 0, [0; 4]).build(),
            6 => dhcp(GUEST, [0; 4], &bytes),
            _ => PacketBuilder::new(GUEST, OWN).ethertype(wire::EtherType::ARP)
                .payload(&[&[0, 1, 8, 0, 6, 4][..], &bytes].concat()).build(),
        };
        frame.truncate(frame.len().saturating_sub(cut / 8 * usize::from(cut % 2 == 0)));
        let mut services = services();
        for checksum in [Checksum::InFrame, Checksum::Left] {
            if let Ok(FramePurpose::Here(Some(answer))) = services.frame(&frame, checksum, 0) {
                prop_assert!(is_well_formed(&answer), "{answer:?}");
            }
        }
        let too_big = IcmpError::TooBig(1280);
        for what in [IcmpError::Host, IcmpError::Port, too_big, IcmpError::HopLimit] {
            if let Some(answer) = error(&network(), &frame, what.into()) {
                prop_assert!(is_well_formed(&answer), "{answer:?}");
            }
        }
    }

    #[test]
    fn leases_lie_in_the_network(macs in prop::collection::vec(any::<[u8; 6]>(), 0..40)) {
        let mut leases = Leases::new(network());
        for (i, mac) in macs.into_iter().enumerate() {
            let mac = MacAddr(mac);
            let Some(address) = leases.address_of(mac, None, i as Nanos) else { continue };
            prop_assert!(network().may_be_guest(IpAddr::V4(address)));
            leases.lease(mac, address, i as Nanos);
            prop_assert_eq!(leases.address_of(mac, None, i as Nanos), Some(address));
        }
    }
}
