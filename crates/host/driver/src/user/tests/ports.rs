//! Ephemeral ports of the host, in a network namespace of the test's own that has 1024 of them:
//! guests take all they can, and programs of the host find some.

use std::net::UdpSocket;
use std::process::Command;

use rustix::thread::UnshareFlags;

use super::outside::outside;
use super::*;

/// The range, and the part of it that guests get.
const RANGE: (u16, u16) = (32768, 33791);
const HALF: usize = 512;
const OTHER: (MacAddr, [u8; 4]) = (MacAddr([0x52, 0x54, 0, 0, 0, 16]), [10, 0, 2, 21]);
const BOTH: [(MacAddr, [u8; 4]); 2] = [(GUEST, GUEST_IP), OTHER];
const FAR: [u8; 4] = [192, 0, 2, 9];
/// Place of the drop reason for want of ports.
const PORTS: usize = 5;

fn set(key: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{key}"), value).unwrap();
}

/// A namespace for this thread; `false` where there can be none.
fn has_namespace() -> bool {
    // SAFETY: the flag is not `FILES`; a thread of a test may have a network of its own.
    let alone = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status();
    let is_made = alone.is_ok() && up.is_ok_and(|status| status.success());
    if !is_made {
        eprintln!("skipped: no network namespaces here");
        return false;
    }
    let (first, last) = RANGE;
    set("ipv4/ip_local_port_range", &format!("{first} {last}"));
    true
}

/// A port of so many in the namespace, with services of the host; on a kernel that keeps a socket
/// to a range of ports or not.
fn world(host: &str, sharers: u32, by_system: bool) -> World {
    let ports = match by_system {
        true => HostPorts::read(),
        false => HostPorts::read().without_system(),
    };
    let network = UserNetwork {
        network6: Some("fd00::/64".to_owned()),
        allow: vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()],
        sharers,
        ..network(host)
    };
    World::with_ports((network, ports), &records(), Vec::new())
}

impl World {
    fn refused_ports(&self) -> u64 {
        self.worker.gateway.figures().totals.refused[PORTS]
    }

    /// Gives datagrams from one port after the other until one is refused for want of a port;
    /// returns how many mappings there are more.
    fn take_mappings(&mut self, frame: impl Fn(u16) -> PacketBuilder) -> usize {
        let (before, refused) = (self.worker.gateway.translator.len(), self.refused_ports());
        let mut ports = 1000..;
        while self.refused_ports() == refused {
            self.give(&frame(ports.next().unwrap()));
            while let Some((id, ..)) = self.to_switch.take() {
                self.to_switch.give(id.into(), 0);
            }
        }
        self.worker.gateway.translator.len() - before
    }

    fn take_mappings_of(&mut self, (station, ip): (MacAddr, [u8; 4])) -> usize {
        self.take_mappings(|port| {
            let frame = PacketBuilder::new(station, GATEWAY).ipv4(ip, GATEWAY_IP);
            frame.udp(port, 9).payload(b"x")
        })
    }

    fn take_mappings6_of(&mut self, (station, ip): (MacAddr, [u8; 4])) -> usize {
        let mut own = [0; 16];
        (own[0], own[15]) = (0xfd, ip[3]);
        let far = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        self.take_mappings(|port| {
            let frame = PacketBuilder::new(station, GATEWAY).ipv6(own, far);
            frame.udp(port, 9).payload(b"x")
        })
    }

    /// Opens connections to a service of the host until one is refused; returns their other ends.
    fn take_connections(
        &mut self,
        (station, ip): (MacAddr, [u8; 4]),
        server: &TcpListener,
    ) -> Vec<TcpStream> {
        let to = server.local_addr().unwrap().port();
        let frame = |src_port, (seq, ack, flags): (u32, u32, u16)| {
            let frame = PacketBuilder::new(station, GATEWAY).ipv4(ip, GATEWAY_IP);
            frame.tcp(TcpFields {
                src_port,
                dst_port: to,
                seq,
                ack,
                flags,
                ..TcpFields::default()
            })
        };
        let mut streams = Vec::new();
        for port in 1000.. {
            self.give(&frame(port, (IRS, 0, SYN)));
            let answer = loop {
                // Router advertisements come as well.
                let answer = self.take();
                if ParsedHeaders::parse(&answer, answer.len()).dst_port == port {
                    break Segment::of(&answer);
                }
            };
            if answer.flags & RST != 0 {
                break;
            }
            self.give(&frame(port, (IRS + 1, answer.seq + 1, ACK)));
            streams.push(server.accept().unwrap().0);
        }
        streams
    }
}

/// Programs of the host have at least the upper half.
fn host_has_ports() {
    let udp = |any: &str| -> Vec<_> {
        let sockets = (0..HALF).map(|_| UdpSocket::bind(any).expect("a port"));
        sockets.collect()
    };
    // A socket of IPv6 that takes the port of IPv4 as well.
    drop(udp("0.0.0.0:0"));
    drop(udp("[::]:0"));
    let tcp = (0..HALF / 2).map(|_| TcpListener::bind("0.0.0.0:0").expect("a port"));
    drop(tcp.collect::<Vec<_>>());
}

/// A program of the host finds ports for a destination.
fn host_connects(server: &TcpListener) {
    let connections = (0..HALF / 2).map(|_| {
        let own = TcpStream::connect(server.local_addr().unwrap()).expect("a port");
        (own, server.accept().unwrap())
    });
    drop(connections.collect::<Vec<_>>());
}

#[test]
fn guests_that_take_all_ports_of_udp_leave_some_to_the_host() {
    if !has_namespace() {
        return;
    }
    for by_system in [true, false] {
        let mut world = world("udp 9", 1, by_system);
        let taken = BOTH.map(|guest| world.take_mappings_of(guest));
        // Of half for the known one, and half of the rest; of what is left then.
        assert_eq!(taken, [384, 64], "{by_system}");
        host_has_ports();
        let taken = BOTH.map(|guest| world.take_mappings6_of(guest));
        assert_eq!(taken, [0, 0], "IPv6 has no others");
    }
}

/// A mapping of IPv6 does not take the port of IPv4.
#[test]
fn a_mapping_takes_the_port_of_its_version_alone() {
    if !has_namespace() {
        return;
    }
    let mut world = world("udp 9", 1, true);
    assert_eq!(world.take_mappings6_of(BOTH[0]), 384);
    let (first, last) = RANGE;
    for port in first..=last {
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
    }
    host_has_ports();
}

/// Two ports of one namespace, of which the first takes what it can before it knows the other.
#[test]
fn ports_of_a_namespace_have_half_together() {
    if !has_namespace() {
        return;
    }
    for by_system in [true, false] {
        let mut worlds = [1, 2].map(|sharers| world("udp 9", sharers, by_system));
        let taken = worlds.each_mut().map(|world| {
            let taken = BOTH.map(|guest| world.take_mappings_of(guest));
            taken.iter().sum::<usize>()
        });
        assert!(taken[0] + taken[1] <= HALF, "{taken:?}");
        assert!(taken[1] > 0);
        host_has_ports();
        // The first takes no more, once it knows.
        let network = UserNetwork {
            sharers: 2,
            ..worlds[0].worker.gateway.desired.network.clone()
        };
        worlds[0].worker.orders.put(network);
        assert_eq!(worlds[0].take_mappings_of(OTHER), 0);
    }
}

#[test]
fn guests_that_take_all_ports_to_a_destination_leave_some_to_the_host() {
    for by_system in [true, false] {
        // Each time another one, where no connection waits for late segments.
        if !has_namespace() {
            return;
        }
        let server = TcpListener::bind("127.0.0.1:80").unwrap();
        let second = TcpListener::bind("127.0.0.1:81").unwrap();
        let mut world = world("tcp 80,tcp 81", 1, by_system);
        let taken = BOTH.map(|guest| world.take_connections(guest, &server));
        assert_eq!(taken.each_ref().map(Vec::len), [384, 64], "{by_system}");
        assert_eq!(world.take_connections(BOTH[0], &second).len(), 384);
        host_has_ports();
        for server in [&server, &second] {
            host_connects(server);
        }
    }
}

/// A connection that has ended has its port for a minute more.
#[test]
fn connections_that_have_ended_take_no_port_of_the_host() {
    if !has_namespace() {
        return;
    }
    let server = TcpListener::bind("127.0.0.1:80").unwrap();
    let mut world = world("tcp 80", 1, true);
    if HostPorts::read() == HostPorts::read().without_system() {
        return eprintln!("skipped: this kernel keeps no socket to a range");
    }
    let mut streams = world.take_connections(BOTH[0], &server);
    streams.extend(world.take_connections(BOTH[1], &server));
    // The guest's end closes first, and waits for late segments.
    drop(world);
    drop(streams);
    host_has_ports();
    host_connects(&server);
}

#[test]
fn echo_requests_leave_identifiers_to_the_host() {
    let Some(_outside) = outside() else { return };
    if std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").is_err() {
        return eprintln!("skipped: no ping sockets here");
    }
    // Of half of all identifiers, 16 are for this port.
    let mut world = world("udp 9", 1 << 11, true);
    let taken = BOTH.map(|(station, ip)| {
        let refused = world.refused_ports();
        let sent = (0..100u16).take_while(|id| {
            let frame = PacketBuilder::new(station, GATEWAY).ipv4(ip, FAR);
            world.give(&frame.echo_request(*id, 1));
            world.refused_ports() == refused
        });
        sent.count()
    });
    assert_eq!(taken, [8, 4]);
}
