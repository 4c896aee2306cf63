use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use wire::MacAddr;

use super::message::Reading;
use super::*;
use crate::network::Network;
use crate::services::Client;
use crate::{FlowId, Nanos};

fn network() -> Network {
    let prefix = "10.0.2.0/24".parse().unwrap();
    let prefix6 = "fd00:1::/64".parse().unwrap();
    Network::new(prefix, Some(prefix6), MacAddr([2, 0, 0, 0, 0, 2]), 1500).unwrap()
}

fn flow(index: u32) -> FlowId {
    FlowId {
        index,
        generation: 0,
    }
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
    let mut forwarder = Forwarder::new(&network(), &servers());
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
    let mut others = vec![(servers()[1], good.clone()), (servers()[0], Vec::new())];
    for (at, bits) in [(0, 1), (1, 0x80), (2, 0x80)] {
        let mut other = good.clone();
        other[at] ^= bits;
        others.push((servers()[0], other));
    }
    for (from, bytes) in others {
        let got = forwarder.answer(ask.ticket, from, &bytes, 3, 0);
        assert_eq!(got, None, "it waits further after {bytes:?}");
    }
    let got = forwarder.answer(ask.ticket, servers()[0], &good, 3, 0);
    let got = got.unwrap().unwrap_err();
    assert_eq!((got.asker, &got.message[..2]), (guest(), &[0x12, 0x34][..]));
    assert_eq!(got.message[2..], good[2..]);
    assert_eq!(
        forwarder.answer(ask.ticket, servers()[0], &good, 3, 0),
        None
    );
}

#[test]
fn nonsense_with_the_id_of_the_question_leads_to_the_next_resolver() {
    let asked = |bad: &dyn Fn(&mut Vec<u8>)| {
        let mut forwarder = Forwarder::new(&network(), &servers());
        let ask = forwarder.ask(guest(), query("Example.org", 1), 0, 0);
        let ask = ask.unwrap();
        let mut bytes = answered(&ask.message, 0);
        bad(&mut bytes);
        let next = forwarder.answer(ask.ticket, ask.server, &bytes, 3, 0);
        let server = next.unwrap().unwrap().server;
        (server, forwarder.resolvers()[0].udp.last)
    };
    let next = (servers()[1], Outcome::Nonsense);
    for (at, bits) in [(2, 0x08), (14, 1), (26, 3), (5, 1), (5, 3), (7, 2), (25, 1)] {
        assert_eq!(asked(&|bytes| bytes[at] ^= bits), next, "{at} {bits}");
    }
    assert_eq!(asked(&|bytes| bytes.truncate(12)), next);
    assert_eq!(asked(&|bytes| bytes.truncate(bytes.len() - 1)), next);
}

/// The head of an answer with a response code, and `extended` upper bits of it.
fn failed(ask: &[u8], code: u8, extended: u8) -> Vec<u8> {
    let mut bytes = Query::parse(ask).unwrap().unwrap().reply(Rcode::Ok);
    bytes[3] |= code;
    if extended > 0 {
        bytes[11] = 1;
        bytes.extend([0, 0, 41, 4, 208, extended, 0, 0, 0, 0, 0]);
    }
    bytes
}

/// The response code of a message.
fn code(message: &[u8]) -> u8 {
    message[3] & 0xf
}

#[test]
fn an_error_leads_to_the_next_resolver_and_the_last_is_passed_on() {
    for asker in [guest(), Asker::Tcp(flow(1), MacAddr([2; 6]))] {
        for (error, extended) in [
            (1, 0),
            (2, 0),
            (4, 0),
            (5, 0),
            (9, 0),
            (15, 0),
            (0, 1),
            (7, 1),
        ] {
            let mut forwarder = Forwarder::new(&network(), &servers());
            let question = Query::parse(&question("a.org", 1, false)).unwrap().unwrap();
            let ask = forwarder.ask(asker, question.clone(), 1, 0).unwrap();
            let bytes = failed(&ask.message, error, extended);
            let next = forwarder.answer(ask.ticket, ask.server, &bytes, 2, 0);
            let next = next.unwrap().unwrap();
            assert_eq!(next.server, servers()[1], "{error} {extended}");
            // That there is no such name is an answer.
            let none = failed(&next.message, 3, 0);
            let got = forwarder.answer(next.ticket, next.server, &none, 3, 0);
            assert_eq!(code(&got.unwrap().unwrap_err().message), 3);
            let outcome = Outcome::Error(u16::from(extended) << 4 | u16::from(error));
            let known = |of: &Resolver| match asker {
                Asker::Udp(_) => of.udp.last,
                Asker::Tcp(..) => of.tcp.last,
            };
            let all: Vec<_> = forwarder.resolvers().iter().map(known).collect();
            assert_eq!(all, [outcome, Outcome::Answered]);

            // An error is about a question: the order stays.
            let ask = forwarder.ask(asker, question, 1, 0).unwrap();
            assert_eq!(ask.server, servers()[0]);
            let bytes = failed(&ask.message, 5, 0);
            let next = forwarder.answer(ask.ticket, ask.server, &bytes, 2, 0);
            let next = next.unwrap().unwrap();
            let bytes = failed(&next.message, error, extended);
            let got = forwarder.answer(next.ticket, next.server, &bytes, 3, 0);
            let message = got.unwrap().unwrap_err().message;
            assert_eq!((&message[..2], code(&message)), (&[0x12, 0x34][..], error));
        }
    }
}

#[test]
fn an_error_without_a_question_is_one() {
    let mut forwarder = Forwarder::new(&network(), &servers()[..1]);
    let question = Query::parse(&question("a.org", 1, false)).unwrap().unwrap();
    let ask = forwarder.ask(guest(), question, 1, 0).unwrap();
    let bytes = [&ask.message[..2], &[0x81, 0x85, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    let got = forwarder.answer(ask.ticket, ask.server, &bytes, 2, 0);
    let message = got.unwrap().unwrap_err().message;
    // The guest's C library compares the question.
    assert_eq!((code(&message), message.len()), (5, 12 + 7 + 4));
}

#[test]
fn an_answer_of_a_server_for_other_names_is_passed_on_if_there_is_no_other() {
    let mut forwarder = Forwarder::new(&network(), &servers());
    let ask = forwarder.ask(guest(), query("a.org", 1), 1, 0).unwrap();
    let mut lame = failed(&ask.message, 0, 0);
    lame[3] &= 0x7f;
    let next = forwarder.answer(ask.ticket, ask.server, &lame, 2, 0);
    let next = next.unwrap().unwrap();
    assert_eq!(forwarder.resolvers()[0].udp.last, Outcome::Lame);
    let closed = Trouble::Resolver(Outcome::Closed);
    let got = forwarder.failed(next.ticket, closed, 3, 0).unwrap();
    let message = got.unwrap_err().message;
    assert_eq!((code(&message), message[3] & 0x80), (0, 0));
    // An error is better.
    let ask = forwarder.ask(guest(), query("a.org", 1), 1, 0).unwrap();
    let refused = failed(&ask.message, 5, 0);
    let next = forwarder.answer(ask.ticket, ask.server, &refused, 2, 0);
    let next = next.unwrap().unwrap();
    lame[..2].copy_from_slice(&next.message[..2]);
    let got = forwarder.answer(next.ticket, next.server, &lame, 3, 0);
    assert_eq!(code(&got.unwrap().unwrap_err().message), 5);
}

#[test]
fn a_resolver_without_edns_is_asked_without() {
    let mut forwarder = Forwarder::new(&network(), &servers());
    let ask = forwarder.ask(guest(), query("a.org", 1), 1, 0).unwrap();
    let again = forwarder.answer(ask.ticket, ask.server, &failed(&ask.message, 1, 0), 2, 0);
    let again = again.unwrap().unwrap();
    assert_eq!((again.server, again.message[11]), (servers()[0], 0));
    let next = forwarder.answer(
        again.ticket,
        again.server,
        &failed(&again.message, 1, 0),
        3,
        0,
    );
    let next = next.unwrap().unwrap();
    assert_eq!((next.server, next.message[11]), (servers()[1], 1));
}

#[test]
fn an_answer_that_was_cut_off_anywhere_says_so() {
    let mut forwarder = Forwarder::new(&network(), &servers());
    let ask = forwarder.ask(guest(), query("a.org", 1), 1, 0).unwrap();
    let mut cut = answered(&ask.message, 0);
    cut[2] |= 2;
    cut.truncate(cut.len() - 3);
    let got = forwarder.answer(ask.ticket, ask.server, &cut, 2, 0);
    let message = got.unwrap().unwrap_err().message;
    assert_eq!((message[2] & 2, &message[6..8]), (2, &[0, 0][..]));
}

#[test]
fn the_next_resolver_is_asked_until_the_time_is_over() {
    let mut forwarder = Forwarder::new(&network(), &servers());
    let ask = forwarder.ask(guest(), query("a.org", 1), 1, 0).unwrap();
    assert_eq!(forwarder.expired(3, 0), None);
    let (mut order, mut next) = (Vec::new(), Some(ask));
    let (reply, now) = loop {
        order.extend(next.take().map(|ask: Ask| ask.server));
        let now = forwarder.deadline().unwrap();
        match forwarder.expired(2, now).unwrap().1 {
            Ok(ask) => next = Some(ask),
            Err(reply) => break (reply, now),
        }
    };
    let [a, b] = servers()[..] else { panic!() };
    assert_eq!((order, now), (vec![a, b, a, b], 10_000_000_000));
    assert_eq!(code(&reply.message), 2);
    assert_eq!(forwarder.deadline(), None);
    let none = Forwarder::new(&network(), &[]).ask(guest(), query("a.org", 1), 1, 0);
    assert_eq!(code(&none.unwrap_err().message), 2);
}

#[test]
fn each_of_many_silent_resolvers_is_asked_in_time() {
    let all: Vec<SocketAddr> = (1..=10)
        .map(|last| SocketAddr::from(([192, 0, 2, last], 53)))
        .collect();
    let mut forwarder = Forwarder::new(&network(), &all);
    let ask = forwarder.ask(guest(), query("a.org", 1), 1, 0).unwrap();
    let mut order = vec![ask.server];
    while let Some((_, Ok(ask))) = {
        let now = forwarder.deadline().unwrap();
        forwarder.expired(2, now)
    } {
        order.push(ask.server);
    }
    assert_eq!(order, all[..RESOLVERS_MAX]);
}

#[test]
fn a_silent_resolver_is_asked_again_before_an_error_is_passed_on() {
    let mut forwarder = Forwarder::new(&network(), &servers());
    forwarder.ask(guest(), query("a.org", 1), 1, 0).unwrap();
    let now = forwarder.deadline().unwrap();
    let next = forwarder.expired(2, now).unwrap().1.unwrap();
    let refused = failed(&next.message, 5, 0);
    let again = forwarder.answer(next.ticket, next.server, &refused, 3, now);
    assert_eq!(again.unwrap().unwrap().server, servers()[0]);
    let now = forwarder.deadline().unwrap();
    let reply = forwarder.expired(4, now).unwrap().1.unwrap_err();
    assert_eq!((code(&reply.message), now), (5, 5_000_000_000));
}

/// Asks a question that the first resolver does not answer, for a reason; the second answers it
/// with a response code. Returns the resolver that was asked first, and the time.
fn without_first(
    forwarder: &mut Forwarder,
    reason: Outcome,
    rcode: u8,
    mut now: Nanos,
) -> (SocketAddr, Nanos) {
    let ask = forwarder.ask(guest(), query("a.org", 1), 1, now).unwrap();
    let first = ask.server;
    let mut next = Some(ask);
    while let Some(ask) = next.take() {
        let step = if ask.server == servers()[1] {
            let bytes = failed(&ask.message, rcode, 0);
            forwarder.answer(ask.ticket, ask.server, &bytes, 2, now)
        } else if reason == Outcome::Silent {
            now = forwarder.deadline().unwrap();
            forwarder.expired(2, now).map(|(_, step)| step)
        } else {
            forwarder.failed(ask.ticket, Trouble::Resolver(reason), 2, now)
        };
        next = step.unwrap().ok();
    }
    (first, now)
}

#[test]
fn a_resolver_that_keeps_failing_is_asked_last_for_a_while() {
    let [a, b] = servers()[..] else { panic!() };
    for reason in [Outcome::Silent, Outcome::Closed, Outcome::Nonsense] {
        let mut forwarder = Forwarder::new(&network(), &servers());
        let mut firsts = Vec::new();
        let mut now = 0;
        for _ in 0..4 {
            let (first, then) = without_first(&mut forwarder, reason, 3, now);
            firsts.push(first);
            now = then;
            // Lists that are set again are the same resolvers.
            forwarder.set_servers(&servers());
        }
        assert_eq!(firsts, [a, a, b, b], "{reason:?}");
        let known = forwarder.resolvers()[0].udp;
        assert_eq!((known.last, known.is_last(now)), (reason, true));
        // By TCP it may work.
        let asker = Asker::Tcp(flow(1), MacAddr([2; 6]));
        let ask = forwarder.ask(asker, query("a.org", 1), 1, now).unwrap();
        assert_eq!(ask.server, a);
        forwarder.closed(flow(1));
        // The while is over; it works again.
        now += 60_000_000_000;
        let ask = forwarder.ask(guest(), query("a.org", 1), 1, now).unwrap();
        assert_eq!(ask.server, a);
        let good = failed(&ask.message, 0, 0);
        let got = forwarder.answer(ask.ticket, a, &good, 2, now);
        assert!(got.unwrap().is_err());
        assert_eq!(without_first(&mut forwarder, reason, 0, now).0, a);
    }
}

#[test]
fn a_name_that_no_resolver_knows_in_time_changes_no_order() {
    let mut forwarder = Forwarder::new(&network(), &servers());
    let mut now = 0;
    for _ in 0..5 {
        let (first, then) = without_first(&mut forwarder, Outcome::Silent, 2, now);
        assert_eq!(first, servers()[0]);
        now = then;
    }
    assert!(!forwarder.resolvers()[0].udp.is_last(now));
}

#[test]
fn a_resolver_that_is_asked_last_is_asked() {
    let mut forwarder = Forwarder::new(&network(), &servers());
    for _ in 0..2 {
        without_first(&mut forwarder, Outcome::Closed, 0, 0);
    }
    let ask = forwarder.ask(guest(), query("a.org", 1), 1, 0).unwrap();
    let closed = Trouble::Resolver(Outcome::Closed);
    let next = forwarder.failed(ask.ticket, closed, 2, 0).unwrap().unwrap();
    assert_eq!([ask.server, next.server], [servers()[1], servers()[0]]);
    // It answers: it is the first again.
    let good = failed(&next.message, 0, 0);
    let got = forwarder.answer(next.ticket, next.server, &good, 3, 0);
    assert!(got.unwrap().is_err());
    let ask = forwarder.ask(guest(), query("a.org", 1), 1, 0).unwrap();
    assert_eq!(ask.server, servers()[0]);
}

#[test]
fn no_socket_is_no_fault_of_a_resolver() {
    let mut forwarder = Forwarder::new(&network(), &servers());
    for _ in 0..3 {
        let ask = forwarder.ask(guest(), query("a.org", 1), 1, 0).unwrap();
        assert_eq!(ask.server, servers()[0]);
        let next = forwarder.failed(ask.ticket, Trouble::Own, 2, 0).unwrap();
        let next = next.unwrap();
        let good = failed(&next.message, 0, 0);
        let got = forwarder.answer(next.ticket, next.server, &good, 3, 0);
        assert!(got.unwrap().is_err());
    }
    assert_eq!(forwarder.resolvers()[0].udp, ResolverState::default());
}

#[test]
fn a_guest_has_its_bound_of_questions() {
    let mut forwarder = Forwarder::new(&network(), &servers());
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
    let mut forwarder = Forwarder::new(&network(), &servers());
    let ask = forwarder.ask(guest(), query("a.org", 1), 7, 0).unwrap();
    let long = answered(&ask.message, 2000);
    let got = forwarder.answer(ask.ticket, ask.server, &long, 8, 0);
    let got = got.unwrap().unwrap_err();
    assert_eq!((got.message.len(), got.message[2] & 2), (12 + 7 + 4, 2));
    let asker = Asker::Tcp(flow(5), MacAddr([2, 0, 0, 0, 0, 1]));
    let ask = forwarder.ask(asker, query("a.org", 1), 7, 0).unwrap();
    assert_eq!(ask.transport, Transport::Tcp);
    let got = forwarder.answer(ask.ticket, ask.server, &long, 8, 0);
    assert_eq!(got.unwrap().unwrap_err().message.len(), long.len());
    let ask = forwarder.ask(asker, query("a.org", 1), 7, 0).unwrap();
    assert_eq!(forwarder.closed(flow(5)), [ask.ticket]);
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
            query.read(query.id, &bytes, 512),
            Reading::Nonsense,
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
        query.read(query.id, &bytes, 1 << 16) != Reading::Nonsense
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
        use Reading::{Answer, Error, Lame};
        let reading = asked.read(0x1234, &bytes, 64);
        if let Answer(message) | Error(_, message) | Lame(message) = reading {
            prop_assert!(message.len() <= 64);
            prop_assert_eq!(&message[..2], &asked.id.to_be_bytes());
        }
        let zone = Zone::new([("vm1", "10.0.2.15".parse().unwrap())]);
        if let Ok(Ok(query)) = Query::parse(&bytes) {
            if let Some(reply) = zone.answer(&network(), &query) {
                prop_assert_eq!(query.read(query.id, &reply, 512), Answer(reply));
            }
            let mut forwarder = Forwarder::new(&network(), &servers());
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
