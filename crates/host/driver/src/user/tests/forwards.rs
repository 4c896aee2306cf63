//! Forwards to guests whose station is not known.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream, UdpSocket};

use ipc::driving::{ForwardProtocol, Listen, UserForward};

use super::datagrams::peer;
use super::*;

/// The socket of a forward to a guest's port 53, as the supervisor opens it.
pub(super) fn udp_forward(to: &str) -> (Forward, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    let forward = forward(ForwardProtocol::Udp, address, to, socket.into());
    (forward, address)
}

fn tcp_forward(to: &str) -> (Forward, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    let forward = forward(ForwardProtocol::Tcp, address, to, socket.into());
    (forward, address)
}

fn forward(protocol: ForwardProtocol, address: SocketAddr, to: &str, socket: OwnedFd) -> Forward {
    let spec = UserForward {
        listen: Listen { protocol, address },
        to: to.to_owned(),
        port: 53,
    };
    Forward { spec, socket }
}

/// Takes the question for 10.0.2.30, the guest of these tests.
fn take_question(world: &mut World) {
    let request = world.take();
    let parsed = ParsedHeaders::parse(&request, request.len());
    let L3::Arp { target_ip, .. } = parsed.l3 else {
        panic!("{parsed:?}");
    };
    assert_eq!(target_ip, Ipv4Addr::new(10, 0, 2, 30));
}

/// The guest has its address checked, by which it says where it is.
fn speak(world: &mut World) -> MacAddr {
    let station = MacAddr([0x52, 0x54, 0, 0, 0, 30]);
    let request = PacketBuilder::new(station, MacAddr([0xff; 6]));
    world.give(&request.arp_request([10, 0, 2, 30], GATEWAY_IP));
    station
}

#[test]
fn a_forward_asks_for_a_guest_that_is_not_known() {
    let mut world = World::new("tcp 1");
    let (forward, address) = udp_forward("10.0.2.30");
    world.worker.orders.put_forwards(vec![forward]);
    world.turn();
    let peer = peer(address);
    peer.send(b"lost").unwrap();
    take_question(&mut world);
    assert_eq!(
        world.worker.gateway.counters.frames.rejected_by_interface,
        1
    );
    // It is not asked for with every datagram.
    peer.send(b"lost").unwrap();
    while world.worker.gateway.counters.frames.rejected_by_interface < 2 {
        world.turn();
    }
    assert!(world.to_switch.take().is_none());
    let station = speak(&mut world);
    world.take();
    peer.send(b"found").unwrap();
    let frame = world.take();
    assert!(frame.starts_with(&station.0) && frame.ends_with(b"found"));
}

#[test]
fn a_connection_waits_until_its_guest_has_said_where_it_is() {
    let mut world = World::new("tcp 1");
    let (forward, address) = tcp_forward("10.0.2.30");
    world.worker.orders.put_forwards(vec![forward]);
    world.turn();
    let _peer = TcpStream::connect(address).unwrap();
    take_question(&mut world);
    // Without an answer it is asked again.
    take_question(&mut world);
    let station = speak(&mut world);
    let frames = [world.take(), world.take()];
    let syn = frames.iter().find(|frame| frame[12..14] == [8, 0]).unwrap();
    assert!(syn.starts_with(&station.0), "{syn:?}");
    assert_eq!(TcpView::new_checked(&syn[34..]).unwrap().flags(), SYN);
    assert_eq!(
        world.worker.gateway.counters.frames.rejected_by_interface,
        0
    );
}

/// The guest has said where it is, and has gone since.
#[test]
fn a_connection_to_a_guest_that_went_away_is_reset() {
    let mut world = World::new("tcp 1");
    let (forward, address) = tcp_forward("10.0.2.30");
    world.worker.orders.put_forwards(vec![forward]);
    let station = speak(&mut world);
    world.take();
    let mut peer = TcpStream::connect(address).unwrap();
    let mut asked = 0;
    let start = Instant::now();
    while world.worker.gateway.counters.frames.rejected_by_interface == 0 {
        assert!(start.elapsed() < LIMIT, "the connection stays");
        world.turn();
        if let Some((_, frame)) = world.next() {
            let is_arp = frame[12..14] == [8, 6];
            asked += u32::from(is_arp);
            assert!(is_arp || frame.starts_with(&station.0));
        }
    }
    assert_eq!(asked, 1);
    let error = peer.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// A guest that is there and does not answer the SYN has time, as long as it answers for its
/// address.
#[test]
fn a_connection_to_a_guest_that_is_slow_waits() {
    let mut world = World::new("tcp 1");
    let (forward, address) = tcp_forward("10.0.2.30");
    world.worker.orders.put_forwards(vec![forward]);
    let station = speak(&mut world);
    world.take();
    let peer = TcpStream::connect(address).unwrap();
    let mut syns = 0;
    let start = Instant::now();
    while syns < 3 {
        assert!(start.elapsed() < LIMIT, "no SYN comes again");
        world.turn();
        let Some((_, frame)) = world.next() else {
            continue;
        };
        if frame[12..14] == [8, 6] && frame[20..22] == [0, 1] {
            let answer = PacketBuilder::new(station, GATEWAY);
            world.give(&answer.arp(2, [10, 0, 2, 30], GATEWAY, GATEWAY_IP));
        } else if frame[12..14] == [8, 0] {
            syns += 1;
        }
    }
    assert_eq!(
        world.worker.gateway.counters.frames.rejected_by_interface,
        0
    );
    drop(peer);
}

#[test]
fn a_connection_to_a_guest_that_is_not_there_is_reset() {
    let mut world = World::new("tcp 1");
    let (forward, address) = tcp_forward("10.0.2.30");
    world.worker.orders.put_forwards(vec![forward]);
    world.turn();
    let mut peer = TcpStream::connect(address).unwrap();
    (0..3).for_each(|_| take_question(&mut world));
    let start = Instant::now();
    while world.worker.gateway.counters.frames.rejected_by_interface == 0 {
        assert!(start.elapsed() < LIMIT, "the connection stays");
        world.turn();
    }
    let error = peer.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
