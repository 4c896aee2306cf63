use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use wire::MacAddr;

use super::*;
use crate::network::Network;
use crate::services::Client;

fn network() -> Network {
    let prefix = "10.0.2.0/24".parse().unwrap();
    let prefix6 = "fd00:1::/64".parse().unwrap();
    Network::new(prefix, Some(prefix6), MacAddr([2, 0, 0, 0, 0, 2]), 1500).unwrap()
}

fn guest() -> Asker {
    guest_at(1, "10.0.2.15:4000")
}

fn guest_at(station: u8, from: &str) -> Asker {
    Asker::Udp(Client {
        mac: MacAddr([2, 0, 0, 0, 0, station]),
        from: from.parse().unwrap(),
        to: "10.0.2.3:53".parse().unwrap(),
    })
}

/// A question; with EDNS of 1232 bytes.
fn question(name: &str, kind: u16, edns: bool) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns)];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    if edns {
        bytes.extend([0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 4, 0, 10, 0, 0]);
    }
    bytes
}

fn query(name: &str, kind: u16) -> Query {
    Query::parse(&question(name, kind, true)).unwrap().unwrap()
}

/// The answer to a message, with one address of it, and `extra` bytes of data more.
fn answered(ask: &[u8], extra: usize) -> Vec<u8> {
    let end = ask
        .windows(5)
        .position(|part| part == [0, 0, 1, 0, 1])
        .unwrap()
        + 5;
    let mut bytes = ask[..end].to_vec();
    bytes[2] |= 0x80;
    bytes[6..12].copy_from_slice(&[0, 1, 0, 0, 0, 0]);
    bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9]);
    bytes.extend((4 + extra as u16).to_be_bytes());
    bytes.extend([192, 0, 2, 1]);
    bytes.resize(bytes.len() + extra, 0);
    bytes
}

fn servers() -> Vec<SocketAddr> {
    ["127.0.0.53:53", "192.0.2.53:53"]
        .map(|text| text.parse().unwrap())
        .into()
}

#[test]
fn an_answer_counts_from_the_server_with_the_id_and_the_question() {
    let mut forwarder = Forwarder::new(&network(), servers());
    let ask = forwarder
        .ask(guest(), query("Example.org", 1), 0xabcd_ffff_0000_0000, 0)
        .unwrap();
    assert_eq!(
        (&ask.message[..2], ask.server),
        (&[0xab, 0xcd][..], servers()[0])
    );
    assert!(matches!(ask.transport, Transport::Udp(1024..)));
    // The guest's option is not passed on.
    assert!(
        ask.message
            .ends_with(&[0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 0])
    );
    let good = answered(&ask.message, 0);
    let mut cases = vec![(servers()[1], good.clone())];
    for (at, bits) in [
        (0, 1),
        (2, 0x80),
        (2, 0x08),
        (14, 1),
        (26, 3),
        (5, 1),
        (7, 2),
    ] {
        let mut bad = good.clone();
        bad[at] ^= bits;
        cases.push((servers()[0], bad));
    }
    cases.push((servers()[0], good[..good.len() - 1].to_vec()));
    for (from, bytes) in cases {
        let got = forwarder.answer(ask.ticket, from, &bytes);
        assert_eq!(got, Err(MalformedError), "{bytes:?}");
    }
    let got = forwarder.answer(ask.ticket, servers()[0], &good).unwrap();
    assert_eq!((got.asker, &got.message[..2]), (guest(), &[0x12, 0x34][..]));
    assert_eq!(got.message[2..], good[2..]);
    assert!(forwarder.answer(ask.ticket, servers()[0], &good).is_err());
}

#[test]
fn the_next_resolver_is_asked_until_the_time_is_over() {
    let mut forwarder = Forwarder::new(&network(), servers());
    let ask = forwarder.ask(guest(), query("a.org", 1), 1, 0).unwrap();
    let again = forwarder.failed(ask.ticket, 2, 0).unwrap();
    assert_eq!(again.server, servers()[1]);
    assert_eq!(forwarder.expired(3, 0), None);
    let mut last = None;
    for round in 1..5 {
        let now = forwarder.deadline().unwrap();
        let (_, next) = forwarder.expired(round, now).unwrap();
        last = Some(next);
    }
    let reply = last.unwrap().unwrap_err();
    assert_eq!(reply.message[3] & 0xf, 2);
    assert_eq!(forwarder.deadline(), None);
    let none = Forwarder::new(&network(), Vec::new()).ask(guest(), query("a.org", 1), 1, 0);
    assert_eq!(none.unwrap_err().message[3] & 0xf, 2);
}

#[test]
fn a_guest_has_its_bound_of_questions() {
    let mut forwarder = Forwarder::new(&network(), servers());
    for i in 0..64 {
        assert!(forwarder.ask(guest(), query("a.org", 1), i, 0).is_ok());
    }
    let mut asks = |asker| forwarder.ask(asker, query("a.org", 1), 9, 0);
    let refused = asks(guest()).unwrap_err();
    assert_eq!(refused.message[3] & 0xf, 5);
    // Another address is no other guest, and the address of another does not take its part.
    assert!(asks(guest_at(1, "10.0.2.16:4000")).is_err());
    assert!(asks(guest_at(2, "10.0.2.15:4000")).is_ok());
}

#[test]
fn a_long_answer_is_truncated_for_udp_and_whole_for_tcp() {
    let mut forwarder = Forwarder::new(&network(), servers());
    let ask = forwarder.ask(guest(), query("a.org", 1), 7, 0).unwrap();
    let long = answered(&ask.message, 2000);
    let got = forwarder.answer(ask.ticket, ask.server, &long).unwrap();
    assert_eq!((got.message.len(), got.message[2] & 2), (12 + 7 + 4, 2));
    let asker = Asker::Tcp(5, MacAddr([2, 0, 0, 0, 0, 1]));
    let ask = forwarder.ask(asker, query("a.org", 1), 7, 0).unwrap();
    assert_eq!(ask.transport, Transport::Tcp);
    let got = forwarder.answer(ask.ticket, ask.server, &long).unwrap();
    assert_eq!(got.message.len(), long.len());
    let ask = forwarder.ask(asker, query("a.org", 1), 7, 0).unwrap();
    assert_eq!(forwarder.closed(5), [ask.ticket]);
}

#[test]
fn names_of_ports_and_their_reverse_are_answered_here() {
    let address: IpAddr = "10.0.2.15".parse().unwrap();
    let address6: IpAddr = "fd00:1::9".parse().unwrap();
    let zone = Zone::new([("vm1", address), ("VM1", address6), ("bad..name", address)]);
    let of = |name: &str, kind| zone.answer(&network(), &query(name, kind));
    let found = of("VM1.Internal", 1).unwrap();
    assert_eq!(
        (found[3] & 0xf, found[7], found.ends_with(&[10, 0, 2, 15])),
        (0, 1, true)
    );
    assert_eq!(of("vm1.internal", 28).unwrap()[7], 1);
    assert_eq!(of("vm1.internal", 15).unwrap()[6..8], [0, 0]);
    assert_eq!(of("vm2.internal", 1).unwrap()[3] & 0xf, 3);
    let reverse = of("15.2.0.10.in-addr.arpa", 12).unwrap();
    assert!(reverse.ends_with(b"\x03vm1\x08internal\x00"));
    let reverse6 = format!("9{}1.0.0.0.0.0.d.f.ip6.arpa", ".0".repeat(23) + ".");
    assert!(of(&reverse6, 12).unwrap().ends_with(b"\x08internal\x00"));
    assert_eq!(of("16.2.0.10.in-addr.arpa", 12).unwrap()[3] & 0xf, 3);
    for other in ["1.0.0.8.in-addr.arpa", "example.org", "internal.org"] {
        assert_eq!(of(other, 12), None, "{other}");
    }
}

#[test]
fn questions_that_contradict_themselves_are_dropped() {
    let good = question("a.org", 1, true);
    for (at, value) in [
        (2, 0x81),
        (5, 2),
        (7, 1),
        (9, 1),
        (11, 2),
        (12, 0xc0),
        (12, 64),
        (12, 9),
    ] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(Query::parse(&bad), Err(MalformedError), "{at} {value}");
    }
    for len in 0..good.len() {
        assert_eq!(Query::parse(&good[..len]), Err(MalformedError), "{len}");
    }
    let mut update = good.clone();
    update[2] = 5 << 3;
    let reply = Query::parse(&update).unwrap().unwrap_err();
    assert_eq!(reply, [0x12, 0x34, 0xa8, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn pointers_never_lead_in_circles() {
    let query = query("a.org", 1);
    let head = query.reply(Rcode::Ok);
    for pointer in [[0xc0, 23], [0xc0, 24], [0xc0, 0], [0xff, 0xff]] {
        let mut bytes = [&head[..], &pointer, &[0, 1, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
        bytes[7] = 1;
        assert_eq!(
            query.answer(query.id, &bytes, 512),
            Err(MalformedError),
            "{pointer:?}"
        );
    }
}

#[test]
fn pointers_are_bounded() {
    let query = query("a.org", 1);
    // A chain of pointers, each to the one before; the first leads to the question's name.
    let with = |pointers: u16| {
        let mut bytes = query.reply(Rcode::Ok);
        let start = bytes.len() as u16 + 12;
        bytes[7] = 2;
        bytes.extend([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0]);
        bytes.extend((2 * pointers).to_be_bytes());
        let chain = (0..pointers).map(|at| if at == 0 { 12 } else { start + 2 * (at - 1) });
        bytes.extend(chain.flat_map(|to| (0xc000 | to).to_be_bytes()));
        bytes.extend((0xc000 | (start + 2 * (pointers - 1))).to_be_bytes());
        bytes.extend([0, 1, 0, 1, 0, 0, 0, 0, 0, 0]);
        query.answer(query.id, &bytes, 1 << 16).is_ok()
    };
    assert_eq!([1, 126, 127, 2000].map(with), [true, true, false, false]);
}

proptest! {
    #[test]
    fn messages_survive_any_cut_of_a_stream(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..5),
        cut in 1usize..50,
    ) {
        let bytes: Vec<u8> = messages.iter().filter_map(|one| framed(one)).flatten().collect();
        let (mut stream, mut got) = (Stream::default(), Vec::new());
        for part in bytes.chunks(cut) {
            stream.push(part).unwrap();
            while let Some(message) = stream.message().unwrap() {
                got.push(message);
            }
        }
        prop_assert_eq!(got, messages);
    }

    #[test]
    fn any_bytes_are_no_harm(
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        headed in any::<bool>(),
        flips in prop::collection::vec((0usize..60, any::<u8>()), 0..4),
    ) {
        if headed {
            bytes.splice(..0, question("vm1.internal", 1, true));
            for (at, bits) in flips {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= bits;
                }
            }
        }
        let asked = query("vm1.internal", 1);
        if let Ok(answer) = asked.answer(0x1234, &bytes, 64) {
            prop_assert!(answer.len() <= 64);
        }
        let zone = Zone::new([("vm1", "10.0.2.15".parse().unwrap())]);
        if let Ok(Ok(query)) = Query::parse(&bytes) {
            if let Some(reply) = zone.answer(&network(), &query) {
                prop_assert_eq!(query.answer(query.id, &reply, 512), Ok(reply));
            }
            let mut forwarder = Forwarder::new(&network(), servers());
            let ask = forwarder.ask(guest(), query, 1 << 50, 0).unwrap();
            let again = Query::parse(&ask.message);
            prop_assert!(matches!(again, Ok(Ok(_))));
        }
        let mut stream = Stream::default();
        if stream.push(&bytes).is_ok() {
            while let Ok(Some(message)) = stream.message() {
                prop_assert!(!message.is_empty());
            }
        }
    }
}
