//! Datagrams: of mappings, of forwards, several a call.

use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

use super::forwards::udp_forward;
use super::*;

#[test]
fn datagrams_go_to_a_service_and_back() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut world = World::new(&format!("udp {port}"));
    let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, GATEWAY_IP);
    world.give(&frame.udp(2000, port).payload(b"question"));
    let mut bytes = [0; 64];
    let (len, from) = server.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"question");
    server.send_to(b"answer", from).unwrap();
    let answer = world.take();
    let parsed = ParsedHeaders::parse(&answer, answer.len());
    assert_eq!((parsed.src_port, parsed.dst_port), (port, 2000));
    assert!(answer.ends_with(b"answer"));
    let [mapping] = &world.flows(0).0[..] else {
        panic!("one flow");
    };
    assert_eq!(USER_STATES[usize::from(mapping.state)], ("udp", "mapped"));
    assert_eq!(mapping.bytes, Some([8, 6]));
    let totals = world.worker.gateway.figures().totals;
    assert_eq!((totals.from_guests, totals.to_guests), (8, 6));
    assert_eq!(totals.results, [1, 0, 0]);
}

/// A program of the host that sends to a forward.
pub(super) fn peer(to: SocketAddr) -> UdpSocket {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(LIMIT)).unwrap();
    peer.connect(to).unwrap();
    peer
}

/// The guest answers a datagram that has come by a forward.
fn answer_datagram(world: &mut World, frame: &[u8], payload: &[u8]) {
    let parsed = ParsedHeaders::parse(frame, frame.len());
    assert_eq!(parsed.dst_port, 53);
    let answer = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, GATEWAY_IP);
    world.give(&answer.udp(53, parsed.src_port).payload(payload));
}

#[test]
fn datagrams_come_by_a_forward_and_answers_go_to_their_peers() {
    let mut world = World::new("tcp 1");
    let (forward, address) = udp_forward("vm1");
    world.worker.orders.put_forwards(vec![forward]);
    world.turn();
    let peers = [peer(address), peer(address)];
    for (n, peer) in (0..).zip(&peers) {
        peer.send(&[n; 4]).unwrap();
        let frame = world.take();
        assert!(frame.ends_with(&[n; 4]), "{frame:?}");
        answer_datagram(&mut world, &frame, &[n + 10; 5]);
    }
    let mut bytes = [0; 16];
    for (n, peer) in (10..).zip(&peers) {
        assert_eq!(peer.recv(&mut bytes).unwrap(), 5);
        assert_eq!(bytes[..5], [n; 5]);
    }
    // Many at once.
    for n in 0..40 {
        peers[0].send(&[n; 8]).unwrap();
    }
    for n in 0..40 {
        assert!(world.take().ends_with(&[n; 8]));
    }
    assert_eq!(world.worker.gateway.translator.len(), 2);
    // Without the forward its mappings end, and its port is free.
    world.worker.orders.put_forwards(Vec::new());
    world.turn();
    assert!(world.worker.gateway.translator.is_empty());
    UdpSocket::bind(address).unwrap();
}

/// A datagram to a service of the host.
fn to_service(port: u16, payload: &[u8]) -> PacketBuilder {
    let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, GATEWAY_IP);
    frame.udp(2000, port).payload(payload)
}

#[test]
fn datagrams_that_come_together_leave_by_one_call_and_come_by_one() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    let port = server.local_addr().unwrap().port();
    let mut world = World::new(&format!("udp {port}"));
    for n in 0..40u8 {
        world.put(NetHeader::default(), &to_service(port, &[n; 20]));
    }
    world.turn();
    // Sixteen a call.
    assert_eq!(world.worker.gateway.counters.frames.sent.calls, 3);
    let mut bytes = [0; 2048];
    let mut from = None;
    for n in 0..40 {
        let (len, sender) = server.recv_from(&mut bytes).unwrap();
        assert_eq!(bytes[..len], [n; 20]);
        from = Some(sender);
    }
    let calls = world.worker.gateway.counters.frames.received.calls;
    for n in 0..40 {
        server.send_to(&[n; 30], from.unwrap()).unwrap();
    }
    for n in 0..40 {
        assert!(world.take().ends_with(&[n; 30]));
    }
    // One more may find that there is nothing.
    assert!(world.worker.gateway.counters.frames.received.calls - calls <= 4);
    // Between two sockets they leave in order.
    let other = |n: u8| {
        let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, GATEWAY_IP);
        frame.udp(2001, port).payload(&[n])
    };
    for n in 0..3 {
        world.put(NetHeader::default(), &to_service(port, &[n]));
        world.put(NetHeader::default(), &other(n));
    }
    world.turn();
    assert_eq!(world.worker.gateway.counters.frames.sent.calls, 9);
    for n in [0, 0, 1, 1, 2, 2] {
        assert_eq!(server.recv(&mut bytes).unwrap(), 1);
        assert_eq!(bytes[0], n);
    }
    // A call that fills one buffer keeps no other.
    world.turn();
    let free = world.worker.gateway.guests.free();
    server.send_to(b"one", from.unwrap()).unwrap();
    world.take();
    world.turn();
    assert_eq!(world.worker.gateway.guests.free(), free);
    // All buffers are the switch's again.
    for n in 0..=u8::MAX {
        world.give(&to_service(port, &[n]));
        assert_eq!(server.recv(&mut bytes).unwrap(), 1);
    }
}

#[test]
fn super_frames_of_datagrams_are_cut_by_the_system_and_put_together_by_it() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    let port = server.local_addr().unwrap().port();
    let mut world = World::new(&format!("udp {port}"));
    let header = NetHeader {
        gso_type: net::GSO_UDP_L4,
        gso_size: 1000,
        ..NetHeader::default()
    };
    let payload: Vec<u8> = (0..3500u32).map(|n| (n % 251) as u8).collect();
    world.put(header, &to_service(port, &payload));
    world.turn();
    assert_eq!(world.worker.gateway.counters.frames.sent.calls, 1);
    let mut bytes = [0; 2048];
    let mut from = None;
    for part in payload.chunks(1000) {
        let (len, sender) = server.recv_from(&mut bytes).unwrap();
        assert_eq!(bytes[..len], *part);
        from = Some(sender);
    }
    // The kernel hands a message of several on over loopback.
    let whole = world.worker.from_switch.queue.place().shape.buffer;
    assert!(whole > 65_535 + 256, "{whole}");
    send_several(&server, &payload, from.unwrap(), 1000);
    let mut got: Vec<u8> = Vec::new();
    let mut super_frames = 0;
    while got.len() < payload.len() {
        let (header, frame) = world.take_with_header();
        super_frames += u32::from(header.gso_type == net::GSO_UDP_L4 && header.gso_size == 1000);
        got.extend(&frame[42..]);
    }
    assert_eq!(got, payload);
    assert_eq!(super_frames, 1);
}

/// Sends datagrams of `segment` bytes by one call.
fn send_several(socket: &UdpSocket, bytes: &[u8], to: SocketAddr, segment: u16) {
    let value = i32::from(segment);
    // SAFETY: the option reads one int.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const value).cast(),
            4,
        )
    };
    assert_eq!(set, 0);
    assert_eq!(socket.send_to(bytes, to).unwrap(), bytes.len());
}

#[test]
fn a_successor_continues_mappings_of_forwards() {
    let records = records();
    let mut world = World::after("tcp 1", &records, Vec::new());
    let (forward, address) = udp_forward("vm1");
    let spec = forward.spec.clone();
    let socket = forward.socket.try_clone().unwrap();
    world.worker.orders.put_forwards(vec![forward]);
    world.turn();
    let peer = peer(address);
    peer.send(b"question").unwrap();
    let frame = world.take();
    let mut world = World::after("tcp 1", &records, world.kill());
    world
        .worker
        .orders
        .put_forwards(vec![Forward { spec, socket }]);
    world.turn();
    answer_datagram(&mut world, &frame, b"answer");
    let mut bytes = [0; 16];
    assert_eq!(peer.recv(&mut bytes).unwrap(), 6);
    peer.send(b"again").unwrap();
    assert!(world.take().ends_with(b"again"));
    assert_eq!(world.worker.gateway.translator.len(), 1);
}

/// A port of loopback at which nothing listens, as long as the socket lives: it receives from one
/// peer alone, and no other test gets its port.
fn closed_port() -> (UdpSocket, u16) {
    let closed = peer("127.0.0.1:9".parse().unwrap());
    let port = closed.local_addr().unwrap().port();
    (closed, port)
}

#[test]
fn a_service_that_does_not_listen_is_an_unreachable_port() {
    let (_closed, port) = closed_port();
    let mut world = World::new(&format!("udp {port}"));
    for _ in 0..3 {
        world.give(&to_service(port, b"question"));
        let error = world.take();
        assert_eq!(error[34..36], [3, 3]);
        // The datagram that the guest has sent.
        let quoted = ParsedHeaders::parse(&[&error[..14], &error[42..]].concat(), error.len() - 28);
        assert_eq!((quoted.src_port, quoted.dst_port), (2000, port));
        assert_eq!(
            (error[26..30].to_vec(), error[54..58].to_vec()),
            (GATEWAY_IP.to_vec(), GUEST_IP.to_vec(),)
        );
        assert!(error.ends_with(b"question"), "{error:?}");
    }
    assert_eq!(
        world.worker.gateway.counters.frames.rejected_by_interface,
        0
    );
}

#[test]
fn a_peer_of_a_forward_that_has_gone_is_an_unreachable_port() {
    let mut world = World::new("tcp 1");
    let (forward, address) = udp_forward("vm1");
    world.worker.orders.put_forwards(vec![forward]);
    world.turn();
    let peer = peer(address);
    peer.send(b"question").unwrap();
    let frame = world.take();
    drop(peer);
    answer_datagram(&mut world, &frame, b"answer");
    let error = world.take();
    assert_eq!(error[34..36], [3, 3]);
    assert!(error.ends_with(b"answer"), "{error:?}");
}

#[test]
fn the_kernel_keeps_errors_of_both_versions() {
    for own in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(socket) = UdpSocket::bind(own) else {
            eprintln!("skipped: no {own} here");
            continue;
        };
        let closed = UdpSocket::bind(own).unwrap();
        let to = closed.local_addr().unwrap();
        drop(closed);
        calls::keep_errors(socket.as_fd(), to.is_ipv4(), true).unwrap();
        socket.send_to(b"a question", to).unwrap();
        let mut quoted = [0; 64];
        let error = calls::next_error(socket.as_fd(), &mut quoted).unwrap();
        let error = error.unwrap();
        assert_eq!(
            (error.to, error.notice.error),
            (to, usernet::services::IcmpError::Port)
        );
        assert_eq!(quoted[..error.len], *b"a question");
        // None is left, and the next datagram is sent.
        assert!(calls::next_error(socket.as_fd(), &mut quoted).is_err());
        socket.send_to(b"again", to).unwrap();
    }
}
