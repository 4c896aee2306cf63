//! Questions of guests, and connections to the DNS server.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::Instant;

use ipc::user_reports::UserOutcome;
use usernet::services::dns::{self, Zone};

use super::*;

/// A question about an address.
fn question(id: u8, name: &[u8]) -> Vec<u8> {
    let head = [0, id, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    [&head[..], name, &[0, 1, 0, 1]].concat()
}

/// The same over TCP.
pub(super) fn framed(id: u8, name: &[u8]) -> Vec<u8> {
    let question = question(id, name);
    [&[0, question.len() as u8][..], &question[..]].concat()
}

pub(super) const OWN_NAME: &[u8] = b"\x03vm1\x08internal\0";
pub(super) const DNS: ([u8; 4], u16) = ([10, 0, 2, 3], 53);

/// Messages over TCP that come to the guest, until the end of the stream or `count` of them.
fn messages(world: &mut World, (mut own, mut next): (u32, u32), count: usize) -> Vec<Vec<u8>> {
    let (mut bytes, mut all) = (Vec::new(), Vec::new());
    while all.len() < count {
        let segment = Segment::of(&world.take());
        own = own.max(segment.ack);
        assert!(segment.seq <= next, "a gap");
        let known = (next - segment.seq) as usize;
        let new = segment.payload.get(known..).unwrap_or_default();
        bytes.extend(new);
        next += new.len() as u32;
        if !new.is_empty() {
            world.segment_to(DNS, (own, next, ACK), b"");
        }
        while let Some(end) = bytes.first_chunk().map(|len| 2 + u16::from_be_bytes(*len)) {
            if bytes.len() < end.into() {
                break;
            }
            all.push(bytes.drain(..usize::from(end)).skip(2).collect());
        }
        if segment.flags & FIN != 0 {
            break;
        }
    }
    all
}

#[test]
fn questions_by_tcp_are_answered_here_or_by_a_resolver() {
    let resolver = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = resolver.local_addr().unwrap();
    // Answers each question by an empty message, a byte at a time.
    let answering = thread::spawn(move || {
        for _ in 0..2 {
            let mut stream = resolver.accept().unwrap().0;
            stream.set_nodelay(true).unwrap();
            let mut len = [0; 2];
            stream.read_exact(&mut len).unwrap();
            let mut message = vec![0; u16::from_be_bytes(len).into()];
            stream.read_exact(&mut message).unwrap();
            message[2] |= 0x80;
            for byte in [&len[..], &message].concat() {
                stream.write_all(&[byte]).unwrap();
            }
        }
    });
    let mut world = World::new("tcp 1");
    world.worker.gateway.name(now());
    let zone = settings::zone(
        &world.worker.gateway.desired.network,
        world.worker.gateway.services.leases(),
    );
    world.worker.gateway.questions.set(zone, &[address]);
    world.worker.gateway.desired.names_until = Nanos::MAX;
    let next = world.connect_to(DNS);
    // Several at once, the last in parts.
    let other = b"\x03far\x04test\0";
    let all = [
        framed(1, OWN_NAME),
        framed(2, other),
        framed(3, OWN_NAME),
        framed(4, other),
    ];
    let all = all.concat();
    let mut own = IRS + 1;
    for part in [&all[..90], &all[90..91], &all[91..]] {
        world.segment_to(DNS, (own, next, ACK), part);
        own += part.len() as u32;
    }
    let mut answers = messages(&mut world, (own, next), 4);
    answers.sort_by_key(|answer| answer[1]);
    assert_eq!([0, 1, 2, 3].map(|at| answers[at][1]), [1, 2, 3, 4]);
    assert!(answers[0].ends_with(&GUEST_IP) && answers[2].ends_with(&GUEST_IP));
    assert_eq!(answers[1][..4], [0, 2, 0x81, 0]);
    answering.join().unwrap();
    // Bytes that are no question end the connection.
    world.segment_to(DNS, (own, next, ACK), &[0, 0]);
    let reset = loop {
        let segment = Segment::of(&world.take());
        if segment.flags & RST != 0 {
            break segment;
        }
    };
    assert!(reset.seq > next && world.worker.gateway.translator.is_empty());
    assert!(has_no_dns(&world));
}

/// A resolver that returns each question with these bytes of flags, or is silent with none.
fn resolver(flags: Option<[u8; 2]>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            if let Some(flags) = flags {
                bytes[2..4].copy_from_slice(&flags);
                let _ = socket.send_to(&bytes[..len], from);
            }
        }
    });
    address
}

#[test]
fn the_next_resolver_is_asked_and_the_states_are_reported() {
    let closed = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let all = [
        closed,
        resolver(Some([0x81, 0x85])),
        resolver(Some([0x81, 0x82])),
        resolver(Some([0x01, 0x80])),
        resolver(None),
        resolver(Some([0x81, 0x83])),
    ];
    let mut world = World::new("tcp 1");
    world.worker.gateway.name(now());
    world.worker.gateway.questions.set(Zone::default(), &all);
    world.worker.gateway.desired.names_until = Nanos::MAX;
    let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, DNS.0);
    world.give(
        &frame
            .udp(2000, 53)
            .payload(&question(9, b"\x03far\x04test\0")),
    );
    // What is no answer, and silence, end with their time.
    let mut later = now();
    for asked in [3, 4] {
        wait_for_outcomes(&mut world, asked);
        later += 2_500_000_000;
        world.worker.expire(later);
    }
    let answer = world.take();
    assert_eq!(answer[42..46], [0, 9, 0x81, 0x83]);
    let outcomes = world.worker.gateway.figures().resolvers;
    let outcomes = outcomes.map(|of| of.map(|of| of.udp.outcome));
    let expected = [
        UserOutcome::Closed,
        UserOutcome::Error(5),
        UserOutcome::Error(2),
        UserOutcome::Silent,
        UserOutcome::Silent,
        UserOutcome::Answered,
    ];
    assert_eq!(outcomes[..6], expected.map(Some));
}

/// As [`resolver`], by TCP; with none it closes the connection after the question.
fn resolver_by_tcp(flags: Option<[u8; 2]>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut len = [0; 2];
            stream.read_exact(&mut len).unwrap();
            let mut message = vec![0; u16::from_be_bytes(len).into()];
            stream.read_exact(&mut message).unwrap();
            if let Some(flags) = flags {
                message[2..4].copy_from_slice(&flags);
                stream.write_all(&[&len[..], &message].concat()).unwrap();
            }
        }
    });
    address
}

#[test]
fn the_next_resolver_is_asked_by_tcp() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let all = [
        closed.unwrap(),
        resolver_by_tcp(None),
        resolver_by_tcp(Some([0x81, 0x82])),
        resolver_by_tcp(Some([0x01, 0x80])),
        resolver_by_tcp(Some([0x81, 0x83])),
    ];
    let mut world = World::new("tcp 1");
    world.worker.gateway.name(now());
    world.worker.gateway.questions.set(Zone::default(), &all);
    world.worker.gateway.desired.names_until = Nanos::MAX;
    let next = world.connect_to(DNS);
    let asked = framed(9, b"\x03far\x04test\0");
    world.segment_to(DNS, (IRS + 1, next, ACK), &asked);
    let end = IRS + 1 + asked.len() as u32;
    let answers = messages(&mut world, (end, next), 1);
    assert_eq!(answers[0][..4], [0, 9, 0x81, 0x83]);
    let outcomes = world.worker.gateway.figures().resolvers;
    let outcomes = outcomes.map(|of| of.map(|of| of.tcp.outcome));
    let expected = [
        UserOutcome::Closed,
        UserOutcome::Closed,
        UserOutcome::Error(2),
        UserOutcome::Nonsense,
        UserOutcome::Answered,
    ];
    assert_eq!(outcomes[..5], expected.map(Some));
}

/// Turns until so many resolvers have done something.
fn wait_for_outcomes(world: &mut World, count: usize) {
    let start = Instant::now();
    let is_known = |of: &dns::Resolver| of.udp.last != dns::Outcome::NotAsked;
    while !world.worker.gateway.questions.resolvers()[..count]
        .iter()
        .all(is_known)
    {
        assert!(start.elapsed() < LIMIT, "no outcome");
        world.turn();
    }
}

/// Returns whether there is no question at a resolver, and no connection to the DNS server.
fn has_no_dns(world: &World) -> bool {
    let gateway = &world.worker.gateway;
    !gateway.questions.has_any() && gateway.sockets.streams.is_empty()
}

#[test]
fn a_connection_to_the_dns_server_ends_after_its_answers() {
    let mut world = World::new("tcp 1");
    let next = world.connect_to(DNS);
    let asked = framed(1, OWN_NAME).repeat(3);
    world.segment_to(DNS, (IRS + 1, next, ACK | FIN), &asked);
    let answers = messages(&mut world, (IRS + 1, next), 4);
    assert_eq!(answers.len(), 3);
    let end = IRS + 2 + asked.len() as u32;
    let len: usize = answers.iter().map(|answer| answer.len() + 2).sum();
    world.segment_to(DNS, (end, next + len as u32 + 1, ACK), b"");
    assert!(has_no_dns(&world));
}

#[test]
fn an_idle_connection_to_the_dns_server_ends() {
    let mut world = World::new("tcp 1");
    world.connect_to(DNS);
    let later = now() + 11_000_000_000;
    world.worker.expire(later);
    let ended = Segment::of(&world.take());
    assert_eq!(ended.flags & (FIN | RST), FIN);
    // The guest does not end it.
    world.worker.expire(later + 11_000_000_000);
    let reset = loop {
        let segment = Segment::of(&world.take());
        if segment.flags & FIN == 0 {
            break segment;
        }
    };
    assert_eq!(reset.flags & RST, RST);
    assert!(has_no_dns(&world));
}

#[test]
fn connections_to_the_dns_server_are_bounded() {
    let mut streams = streams::Streams::default();
    let mut translator = Translator::new(world_settings());
    let mut flows = Vec::new();
    for port in 1..=9 {
        let fields = TcpFields {
            src_port: port,
            dst_port: 53,
            seq: IRS,
            ack: 0,
            flags: SYN,
            ..TcpFields::default()
        };
        let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, DNS.0);
        let frame = frame.tcp(fields).build();
        let mut out = Vec::new();
        translator.frame(0, &frame, frame.len(), &NetHeader::default(), &mut out);
        let [Action::Connect(flow, _)] = out[..] else {
            panic!("{out:?}");
        };
        flows.push(flow);
    }
    let opened = flows.iter().map(|flow| streams.open(*flow, GUEST, 0));
    let opened: Vec<bool> = opened.map(|room| room.is_some()).collect();
    assert_eq!(opened, [[true; 8].as_slice(), &[false]].concat());
    streams.close(flows[0]);
    assert!(streams.open(flows[8], GUEST, 0).is_some());
}

#[test]
fn a_name_is_answered_here() {
    let mut world = World::new("tcp 1");
    let question = question(9, OWN_NAME);
    let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, [10, 0, 2, 3]);
    world.give(&frame.udp(2000, 53).payload(&question));
    let answer = world.take();
    assert!(answer.ends_with(&GUEST_IP), "{answer:?}");
}
