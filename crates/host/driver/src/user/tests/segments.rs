//! Segments of connections, several a call.

use super::*;

/// A batch of the guest's frames, handled in one turn.
fn give_all(world: &mut World, frames: impl IntoIterator<Item = PacketBuilder>) {
    let header = NetHeader::default();
    frames
        .into_iter()
        .for_each(|frame| world.put(header, &frame));
    world.turn();
}

#[test]
fn segments_that_come_together_leave_by_one_call_of_each_connection() {
    let servers = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = [0, 1].map(|at: usize| servers[at].local_addr().unwrap().port());
    let mut world = World::new(&format!("tcp {},tcp {}", ports[0], ports[1]));
    let next = ports.map(|port| world.connect(port));
    let frames = (0..5).flat_map(|at| [(at, 0), (at, 1)]);
    let frames = frames.map(|(at, of)| {
        let numbers = (IRS + 1 + 10 * at, next[of], ACK);
        segment((1000, (GATEWAY_IP, ports[of])), numbers, &[at as u8; 10])
    });
    give_all(&mut world, frames);
    assert_eq!(world.worker.gateway.counters.frames.sent.calls, 2);
    for next in next {
        let answer = Segment::of(&world.take());
        assert_eq!((answer.seq, answer.ack), (next, IRS + 51));
    }
    world.turn();
    assert!(
        world.to_switch.take().is_none(),
        "one acknowledgement of each"
    );
    let sent: Vec<u8> = (0..5).flat_map(|at| [at; 10]).collect();
    for server in servers {
        let mut bytes = [0; 50];
        let mut stream = server.accept().unwrap().0;
        stream.read_exact(&mut bytes).unwrap();
        assert!(bytes[..] == sent);
    }
}

#[test]
fn bytes_in_front_of_a_reset_arrive() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut world = World::new(&format!("tcp {port}"));
    let next = world.connect(port);
    let mut stream = server.accept().unwrap().0;
    let ends = (1000, (GATEWAY_IP, port));
    let frames = [(0, ACK, &b"last"[..]), (4, RST, b"")];
    let frames =
        frames.map(|(at, flags, payload)| segment(ends, (IRS + 1 + at, next, flags), payload));
    give_all(&mut world, frames);
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"last");
    let error = stream.read(&mut bytes).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
