//! Flows and leases, asked for part by part.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};

use super::dns::{DNS, OWN_NAME, framed};
use super::*;

#[test]
fn tables_come_in_parts() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut world = World::new(&format!("tcp {port}"));
    assert_eq!(world.flows(0), (Vec::new(), None));
    let next = world.connect(port);
    let mut stream = server.accept().unwrap().0;
    world.segment(port, (IRS + 1, next, ACK), b"four");
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).unwrap();
    let (flows, more) = world.flows(0);
    assert_eq!((flows.len(), more), (1, None));
    let flow = &flows[0];
    assert_eq!(USER_STATES[usize::from(flow.state)], ("tcp", "established"));
    assert_eq!(flow.guest.to_string(), "10.0.2.20:1000");
    assert_eq!(flow.peer.to_string(), format!("10.0.2.2:{port}"));
    assert_eq!((flow.mac, flow.bytes), (GUEST.0, Some([4, 0])));
    assert!(flow.age_ms.is_some());
    assert_eq!(world.flows(7), (Vec::new(), None), "behind the last");
    // The guest closes its half: its FIN is no byte.
    world.segment(port, (IRS + 5, next, ACK | FIN), b"");
    stream.write_all(b"three").unwrap();
    let received = loop {
        let segment = Segment::of(&world.take());
        if !segment.payload.is_empty() {
            break segment.payload.len() as u32;
        }
    };
    world.segment(port, (IRS + 6, next + received, ACK), b"");
    let flow = &world.flows(0).0[0];
    assert_eq!(USER_STATES[usize::from(flow.state)], ("tcp", "half-closed"));
    assert_eq!(flow.bytes, Some([4, 5]));
    // More leases than a part has.
    for n in 0..70 {
        let mac = MacAddr([2, 0, 0, 0, 1, n]);
        let address = Ipv4Addr::new(10, 0, 2, 100 + n);
        world
            .worker
            .gateway
            .services
            .leases_mut()
            .lease(mac, address, now());
    }
    let leases = |world: &mut World, from| match world.page(UserTable::Leases, from) {
        (UserRows::Leases(rows), next) => (rows, next),
        other => panic!("{other:?}"),
    };
    let (first, more) = leases(&mut world, 0);
    assert_eq!((first.len(), more), (USER_ROWS, Some(64)));
    assert!((3590..=3600).contains(&first[0].seconds));
    let (rest, more) = leases(&mut world, 64);
    assert_eq!((rest.len(), more), (6, None));
    assert_eq!(rest[5].address, Ipv4Addr::new(10, 0, 2, 169));
}

/// The flows that have made no progress for so many milliseconds.
fn stalled(world: &mut World, ms: u32) -> Vec<UserFlow> {
    match world.page(UserTable::StalledFlows(ms), 0) {
        (UserRows::Flows(rows), None) => rows,
        other => panic!("{other:?}"),
    }
}

/// Waits until no flow waits: events of sockets may not be handled yet.
fn none_waits(world: &mut World) {
    let start = Instant::now();
    while !stalled(world, 0).is_empty() {
        assert!(start.elapsed() < LIMIT, "a flow waits");
    }
}

#[test]
fn a_stalled_flow_says_what_it_waits_for() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut world = World::new(&format!("tcp {port}"));
    let next = world.connect(port);
    let mut stream = server.accept().unwrap().0;
    none_waits(&mut world);
    // The guest does not acknowledge what it gets.
    stream.write_all(b"seven b").unwrap();
    let segment = payload(&mut world);
    assert_eq!(segment.payload, b"seven b");
    let [flow] = &stalled(&mut world, 0)[..] else {
        panic!("one flow waits");
    };
    let tcp = flow.tcp.unwrap();
    assert_eq!(flow.waits_for, UserWait::Acknowledgement);
    assert_eq!((tcp.unacknowledged, tcp.pending), (7, 0));
    assert_eq!(stalled(&mut world, u32::MAX), [], "it is not old");
    world.segment(port, (IRS + 1, next + 7, ACK), b"");
    none_waits(&mut world);
    // The peer takes no more than its buffer holds.
    let mut sent = IRS + 1;
    while world.flows(0).0[0].tcp.unwrap().room > 0 {
        let room = world.flows(0).0[0].tcp.unwrap().room.min(1000);
        world.segment(port, (sent, next + 7, ACK), &vec![7; room as usize]);
        sent += room;
        while world.next().is_some() {}
    }
    let [flow] = &stalled(&mut world, 0)[..] else {
        panic!("one flow waits");
    };
    assert_eq!(flow.waits_for, UserWait::HostSocket);
    assert!(flow.tcp.unwrap().queued > 0);
    // A connection to the DNS server is a flow as others.
    let first = world.connect_to(DNS);
    assert_eq!(stalled(&mut world, 0).len(), 1);
    world.segment_to(DNS, (IRS + 1, first, ACK), &framed(1, OWN_NAME));
    payload(&mut world);
    assert_eq!(stalled(&mut world, 0).len(), 2);
}

#[test]
fn without_a_buffer_connections_and_mappings_wait_for_one() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let service = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let own = service.local_addr().unwrap().port();
    let mut world = World::new(&format!("tcp {port},udp {own}"));
    let next = world.connect(port);
    let mut stream = server.accept().unwrap().0;
    let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, GATEWAY_IP);
    world.give(&frame.udp(2000, own).payload(b"question"));
    let mapping = service.recv_from(&mut [0; 8]).unwrap().1;
    none_waits(&mut world);
    // The switch takes all buffers, and gives none back.
    let guests = &mut world.worker.gateway.guests;
    while guests.has_room() {
        guests.send(NetHeader::default(), &[0; 60]);
    }
    stream.write_all(b"bytes").unwrap();
    service.send_to(b"answer", mapping).unwrap();
    let start = Instant::now();
    while stalled(&mut world, 0).len() < 2 {
        assert!(start.elapsed() < LIMIT, "no event");
    }
    let waits = stalled(&mut world, 0)
        .into_iter()
        .map(|flow| flow.waits_for);
    assert_eq!(waits.collect::<Vec<_>>(), [UserWait::Buffer; 2]);
    // It gives them back.
    while !world.take().ends_with(b"bytes") {}
    world.segment(port, (IRS + 1, next + 5, ACK), b"");
    let start = Instant::now();
    while !stalled(&mut world, 0).is_empty() {
        while world.next().is_some() {}
        assert!(start.elapsed() < LIMIT, "it goes on");
    }
}

#[test]
fn forwards_say_which_guest_they_lead_to() {
    let mut world = World::new("tcp 1");
    let to = |name: &str| super::forwards::udp_forward(name).0;
    let forwards = ["vm1", "10.0.2.30", "vm2", "fd00:1::9"].map(to);
    world.worker.orders.put_forwards(forwards.into());
    world.turn();
    let rows = |world: &mut World, from| match world.page(UserTable::Forwards, from) {
        (UserRows::Forwards(rows), next) => (rows, next),
        other => panic!("{other:?}"),
    };
    let (all, next) = rows(&mut world, 0);
    let found: Vec<_> = all
        .iter()
        .map(|row| (row.address, row.has_station))
        .collect();
    let [vm1, other] = [GUEST_IP, [10, 0, 2, 30]].map(|ip| Some(IpAddr::from(ip)));
    let expected = [(vm1, true), (other, false), (None, false), (None, false)];
    assert_eq!((&found[..], next), (&expected[..], None));
    // An address by DHCP.
    let mac = MacAddr([2, 0, 0, 0, 0, 2]);
    let guests = &mut world.worker.gateway.desired.network.guests;
    guests.push(UserGuest {
        name: "vm2".to_owned(),
        mac: Some(mac.0),
        addresses: Vec::new(),
    });
    assert_eq!(rows(&mut world, 2).0[0].address, None);
    let leased = Ipv4Addr::new(10, 0, 2, 77);
    let leases = world.worker.gateway.services.leases_mut();
    leases.lease(mac, leased, now());
    let (rest, next) = rows(&mut world, 2);
    assert_eq!((rest[0].address, next), (Some(leased.into()), None));
    assert_eq!(rows(&mut world, 4), (Vec::new(), None));
}
