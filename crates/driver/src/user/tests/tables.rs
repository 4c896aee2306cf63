//! Flows and leases, asked for part by part.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

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
