//! Memory of the host in the sockets of flows whose guest, or peer, takes nothing any more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

/// Flows of a guest at most.
const FLOWS: u16 = 4096;
/// Bytes that a peer leaves to wait in a flow, if it can.
const WAITING: usize = 1 << 20;

impl World {
    /// Bytes of memory that the sockets of flows have, and may have.
    fn memory(&mut self) -> (u64, u64) {
        let sockets = &mut self.worker.gateway.sockets;
        let used = sockets.all_mut().map(|socket| socket.used_memory()).sum();
        (used, sockets.held())
    }

    /// Connects from a port of the guest; returns the peer and the number of its first byte.
    fn connect_from(&mut self, port: u16, server: &TcpListener) -> (TcpStream, u32) {
        let to = (GATEWAY_IP, server.local_addr().unwrap().port());
        self.give(&segment((port, to), (IRS, 0, SYN), b""));
        loop {
            let frame = self.take();
            let parsed = ParsedHeaders::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len());
            let answer = Segment::of(&frame);
            if parsed.dst_port == port && answer.flags & SYN != 0 {
                let next = answer.seq.wrapping_add(1);
                self.give(&segment((port, to), (IRS + 1, next, ACK), b""));
                return (server.accept().unwrap().0, next);
            }
        }
    }
}

fn allow_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

#[test]
fn flows_that_have_stopped_stay_within_the_budget_of_their_guest() {
    allow_descriptors();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut world = World::new(&format!("tcp {port}"));
    let budget = world.worker.gateway.desired.network.buffers;
    let mut peers = Vec::new();
    for port in 0..FLOWS {
        let (mut peer, _) = world.connect_from(1000 + port, &server);
        // What waits there is memory of the host, too, but not the guest's.
        rustix::net::sockopt::set_socket_send_buffer_size(&peer, 4096).unwrap();
        peer.set_nonblocking(true).unwrap();
        let mut left = WAITING;
        while let Ok(len) = peer.write(&[7; 4096])
            && left > len
        {
            left -= len;
        }
        peers.push(peer);
    }
    assert_eq!(world.worker.gateway.translator.len(), usize::from(FLOWS));
    let (used, held) = world.memory();
    assert!(held <= budget.guest && used <= held, "{used} {held}");
    // The sizes are those that the system chose, up to half of it.
    assert!(held > budget.guest / 2);
    // The next starts as if there had been none.
    for port in 0..FLOWS {
        let to = (GATEWAY_IP, server.local_addr().unwrap().port());
        world.give(&segment((1000 + port, to), (IRS + 1, 0, RST), b""));
        while let Some((id, ..)) = world.to_switch.take() {
            world.to_switch.give(id.into(), 0);
        }
    }
    assert_eq!(world.memory(), (0, 0));
}

/// A connection whose buffers have grown, since it was fast, keeps them; but they grow no further
/// than to the budget, and others are there beside it.
#[test]
fn a_fast_flow_takes_no_more_than_the_budget() {
    const BYTES: usize = 48 << 20;
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut network = network(&format!("tcp {port}"));
    network.buffers.guest = 32 << 20;
    let budget = network.buffers;
    let mut world = World::of(network, &records(), Vec::new());
    let (mut peer, mut next) = world.connect_from(1000, &server);
    let writer = thread::spawn(move || {
        let chunk = vec![7; 256 << 10];
        // The rest is lost with the connection.
        while peer.write_all(&chunk).is_ok() {}
    });
    let mut got = 0;
    // What is behind that waits in the socket.
    while got < BYTES {
        let frame = world.take();
        let Segment { seq, payload, .. } = Segment::of(&frame);
        assert_eq!(seq, next);
        got += payload.len();
        next = next.wrapping_add(payload.len() as u32);
        let to = (GATEWAY_IP, port);
        world.give(&segment((1000, to), (IRS + 1, next, ACK), b""));
        let (used, held) = world.memory();
        assert!(used <= held && held <= budget.guest, "{used} {held}");
    }
    let others: Vec<_> = (2000..2032)
        .map(|port| world.connect_from(port, &server))
        .collect();
    let (used, held) = world.memory();
    assert!(used <= held && held <= budget.guest, "{used} {held}");
    drop((others, world));
    writer.join().unwrap();
}

#[test]
fn at_the_end_of_a_budget_there_are_no_more_flows() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut network = network(&format!("tcp {port},udp 9"));
    network.buffers.port = 1 << 20;
    let mut world = World::of(network, &records(), Vec::new());
    let refused = |world: &World| world.worker.gateway.figures().totals.refused[1];
    for port in 1000.. {
        // Mappings have buffers as well.
        let datagram = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, GATEWAY_IP);
        world.give(&datagram.udp(port, 9).payload(b"x"));
        if refused(&world) > 0 {
            break;
        }
    }
    let (_, held) = world.memory();
    assert!((1 << 19..=1 << 20).contains(&held), "{held}");
    world.segment(port, (IRS, 0, SYN), b"");
    assert_eq!(refused(&world), 2);
}
