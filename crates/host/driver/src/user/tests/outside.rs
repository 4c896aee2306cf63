//! A worker whose outside is a TAP device in a network namespace of the test's own, at which the
//! test answers with ICMP errors.

use interfaces::device::Device as Interface;
use interfaces::testing;
use ipc::driving::{Choice, DeviceSpec};
use rustix::thread::UnshareFlags;

use super::*;

/// The host's address there, a host that answers ARP, and its station.
const OWN: [u8; 4] = [192, 0, 2, 1];
const FAR: [u8; 4] = [192, 0, 2, 9];
/// A router.
const ROUTER: [u8; 4] = [198, 51, 100, 254];
const FAR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

pub(super) struct Outside {
    _tap: Interface,
    wire: OwnedFd,
}

/// The outside of a test, on a thread that has left the host's network; none where that or TAP
/// devices are not allowed.
pub(super) fn outside() -> Option<Outside> {
    // SAFETY: the flag is not `FILES`; a thread of a test may have a network of its own.
    let alone = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
    let spec = DeviceSpec {
        address: Some((IpAddr::from(OWN), 24)),
        ..testing::spec(Choice::Tap, true)
    };
    let tap = alone
        .map_err(|e| e.to_string())
        .and_then(|()| Interface::open(&spec).map_err(|e| e.to_string()));
    let mut tap = match tap {
        Ok(tap) => tap,
        Err(error) => {
            eprintln!("skipped: no network namespace or TAP device here ({error})");
            return None;
        }
    };
    let wire = tap.hand_over(Choice::Tap).unwrap().queues.pop()?;
    rustix::io::ioctl_fionbio(&wire, true).unwrap();
    Some(Outside { _tap: tap, wire })
}

impl Outside {
    fn give(&self, frame: &PacketBuilder) {
        let bytes = [vec![0; net::LEN], frame.build()].concat();
        assert_eq!(rustix::io::write(&self.wire, &bytes), Ok(bytes.len()));
    }

    /// The next packet for the far host, which answers ARP.
    fn take(&self) -> Vec<u8> {
        let start = Instant::now();
        loop {
            let mut bytes = vec![0; 4096];
            let Ok(len) = rustix::io::read(&self.wire, &mut bytes) else {
                assert!(start.elapsed() < LIMIT, "no packet");
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            let frame = &bytes[net::LEN..len];
            let parsed = ParsedHeaders::parse(frame, frame.len());
            match parsed.l3 {
                L3::Arp { target_ip, .. } if target_ip == Ipv4Addr::from(FAR) => {
                    let answer = PacketBuilder::new(FAR_MAC, parsed.src);
                    self.give(&answer.arp(2, FAR, parsed.src, OWN));
                }
                L3::V4 { dst, .. } if dst == Ipv4Addr::from(FAR) => return frame.to_vec(),
                _ => {}
            }
        }
    }

    /// The far host refuses a packet.
    fn refuse(&self, packet: &[u8], code: u8, mtu: u16) {
        self.say(packet, FAR, (3, code, mtu));
    }

    /// A router says something of a packet: type, code and MTU.
    fn say(&self, packet: &[u8], from: [u8; 4], (kind, code, mtu): (u8, u8, u16)) {
        let own = MacAddr(std::array::from_fn(|at| packet[6 + at]));
        let [high, low] = mtu.to_be_bytes();
        let error = PacketBuilder::new(FAR_MAC, own).ipv4(from, OWN);
        let error = error.icmp(kind, code, [0, 0, high, low]);
        self.give(&error.payload(&packet[14..packet.len().min(14 + 64)]));
    }
}

/// The same by IPv6: the host's address there, and the guest's.
const OWN6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);
const FAR6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 9);
const ROUTER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 1);
const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0x20);

impl Outside {
    /// Gives the host its address of IPv6, and the station of the far host; `false` where that is
    /// not possible.
    fn add_ipv6(&self) -> bool {
        let far = FAR_MAC.to_string();
        let [own6, far6] = [format!("{OWN6}/64"), FAR6.to_string()];
        let commands: [&[&str]; 2] = [
            &["-6", "addr", "add", &own6, "dev", "up0", "nodad"],
            &["-6", "neigh", "add", &far6, "lladdr", &far, "dev", "up0"],
        ];
        // A process that a thread starts has its network.
        let mut results = commands.iter().map(|words| {
            let status = std::process::Command::new("ip").args(*words).status();
            status.is_ok_and(|status| status.success())
        });
        results.all(|done| done)
    }

    /// The next packet for the far host by IPv6.
    fn take6(&self) -> Vec<u8> {
        let start = Instant::now();
        loop {
            let mut bytes = vec![0; 4096];
            if let Ok(len) = rustix::io::read(&self.wire, &mut bytes) {
                let frame = &bytes[net::LEN..len];
                if frame[12..14] == [0x86, 0xdd] && frame[38..54] == FAR6.octets() {
                    return frame.to_vec();
                }
            }
            assert!(start.elapsed() < LIMIT, "no packet");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn say6(&self, packet: &[u8], kind: u8, code: u8) {
        let own = MacAddr(std::array::from_fn(|at| packet[6 + at]));
        let error = PacketBuilder::new(FAR_MAC, own).ipv6(ROUTER6, OWN6);
        let error = error.icmp(kind, code, [0; 4]);
        self.give(&error.payload(&packet[14..packet.len().min(14 + 80)]));
    }
}

#[test]
fn hops_and_errors_of_ipv6_reach_the_guest() {
    let Some(outside) = outside() else { return };
    if !outside.add_ipv6() {
        eprintln!("skipped: no IPv6 here");
        return;
    }
    let pings = std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").is_ok();
    let network = UserNetwork {
        network6: Some("fd00:1::/64".to_owned()),
        allow: vec!["::/0".to_owned()],
        ..network("tcp 1")
    };
    let mut world = World::of(network, &records(), Vec::new());
    let probe = |protocol: u8, hops: u8| {
        let packet = PacketBuilder::new(GUEST, GATEWAY).ttl(hops);
        let packet = packet.ipv6(GUEST6, FAR6);
        match protocol {
            58 => packet.icmp(128, 0, [0, 77, 0, hops]).payload(&[7; 32]),
            6 => packet.tcp(TcpFields {
                src_port: 3000 + u16::from(hops),
                dst_port: 80,
                seq: IRS,
                flags: SYN,
                ..TcpFields::default()
            }),
            _ => packet.udp(2000, 33_434 + u16::from(hops)).payload(&[7; 32]),
        }
    };
    let error = |world: &mut World| {
        loop {
            let frame = world.take();
            // Router advertisements come, too.
            if frame[20] == 58 && frame[54] < 128 {
                return frame;
            }
        }
    };
    for protocol in [17, 6, 58].into_iter().filter(|of| *of != 58 || pings) {
        world.give(&probe(protocol, 1));
        assert_eq!(error(&mut world)[54..56], [3, 0], "{protocol}");
        // Its end on the way, no route, prohibited, an address without a host.
        for (hops, kind, code) in [(2, 3, 0), (3, 1, 0), (4, 1, 1), (65, 1, 3)] {
            world.give(&probe(protocol, hops));
            let packet = outside.take6();
            let left = if hops < 64 { hops - 1 } else { 64 };
            assert_eq!((packet[20], packet[21]), (protocol, left));
            outside.say6(&packet, kind, code);
            let frame = error(&mut world);
            assert_eq!(frame[22..38], ROUTER6.octets(), "{protocol}");
            assert_eq!(frame[54..56], [kind, code], "{protocol}");
            // The guest's own packet: addresses, and ports or identifier.
            let expected = probe(protocol, hops).build();
            assert_eq!(frame[70..102], expected[22..54], "{protocol}");
            let at = if protocol == 58 { 58 } else { 54 };
            assert_eq!(frame[at + 48..at + 52], expected[at..at + 4], "{protocol}");
        }
    }
    assert!(
        !world.worker.gateway.translator.is_empty(),
        "the mapping stays"
    );
}

/// Type, code, MTU of an error for the guest, and the packet that it is about.
fn error(world: &mut World) -> ((u8, u8, u16), Vec<u8>) {
    let frame = world.take();
    let mtu = u16::from_be_bytes([frame[40], frame[41]]);
    let about = [&frame[..14], &frame[42..]].concat();
    ((frame[34], frame[35], mtu), about)
}

#[test]
fn errors_about_datagrams_reach_the_guest() {
    let Some(outside) = outside() else { return };
    let mut world = World::new("tcp 1");
    for (code, mtu, expected) in [
        (4, 1300, (3, 4, 1300)),
        (1, 0, (3, 1, 0)),
        (0, 0, (3, 0, 0)),
    ] {
        let datagram = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, FAR);
        world.give(&datagram.udp(2000, 9).payload(&[7; 1000]));
        outside.refuse(&outside.take(), code, mtu);
        let (found, about) = error(&mut world);
        assert_eq!(found, expected);
        let about = ParsedHeaders::parse(&about, about.len());
        assert_eq!((about.src_port, about.dst_port), (2000, 9));
        let L3::V4 { src, dst, .. } = about.l3 else {
            panic!("{about:?}");
        };
        assert_eq!((src.octets(), dst.octets()), (GUEST_IP, FAR));
    }
}

#[test]
fn errors_about_echo_requests_reach_the_guest() {
    let Some(outside) = outside() else { return };
    if let Err(error) = std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647") {
        eprintln!("skipped: no ping sockets here ({error})");
        return;
    }
    let mut world = World::new("tcp 1");
    for (seq, code, mtu) in [(1, 4, 1200), (2, 3, 0)] {
        let request = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, FAR);
        world.give(&request.echo_request(77, seq).payload(&[7; 1000]));
        let packet = outside.take();
        outside.refuse(&packet, code, mtu);
        let (found, about) = error(&mut world);
        assert_eq!(found, (3, code, mtu));
        // The guest's own identifier.
        let [high, low] = seq.to_be_bytes();
        assert_eq!(about[34..36], [8, 0]);
        assert_eq!(about[38..42], [0, 77, high, low]);
    }
    // A reply still comes.
    let request = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, FAR);
    world.give(&request.echo_request(77, 3).payload(b"data"));
    let packet = outside.take();
    let own = MacAddr(std::array::from_fn(|at| packet[6 + at]));
    let rest = std::array::from_fn(|at| packet[38 + at]);
    let reply = PacketBuilder::new(FAR_MAC, own).ipv4(FAR, OWN);
    outside.give(&reply.icmp(0, 0, rest).payload(&packet[42..]));
    let reply = world.take();
    assert_eq!((reply[34], &reply[38..42]), (0, &[0, 77, 0, 3][..]));
    assert!(reply.ends_with(b"data"));
}

#[test]
fn errors_about_connections_reach_the_guest() {
    let Some(outside) = outside() else { return };
    let mut world = World::new("tcp 1");
    // A host may say it, or a router in front of it.
    for (port, from, code) in [
        (80, FAR, 1),
        (81, ROUTER, 0),
        (82, ROUTER, 13),
        (83, ROUTER, 10),
    ] {
        world.segment_to((FAR, port), (IRS, 0, SYN), b"");
        outside.say(&outside.take(), from, (3, code, 0));
        let frame = world.take();
        let expected = if code == 10 { 13 } else { code };
        assert_eq!((frame[34], frame[35]), (3, expected), "port {port}");
        assert_eq!(frame[26..30], from);
        let about = Segment::of(&[&frame[..14], &frame[42..]].concat());
        assert_eq!((about.seq, about.flags), (IRS, SYN));
        assert!(world.worker.gateway.translator.is_empty());
    }
    // A port without a program is a reset, as that of a host.
    world.segment_to((FAR, 90), (IRS, 0, SYN), b"");
    outside.refuse(&outside.take(), 3, 0);
    let answer = Segment::of(&world.take());
    assert_eq!((answer.flags & RST, answer.ack), (RST, IRS + 1));
}

/// The hosts between the guest and the far host, and the far host itself, by each protocol.
#[test]
fn a_time_to_live_shows_each_hop() {
    let Some(outside) = outside() else { return };
    let pings = std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").is_ok();
    let mut world = World::new("tcp 1");
    let probe = |protocol: u8, hops: u8| {
        let packet = PacketBuilder::new(GUEST, GATEWAY).ttl(hops);
        let packet = packet.ipv4(GUEST_IP, FAR);
        match protocol {
            1 => packet.echo_request(77, hops.into()),
            6 => packet.tcp(TcpFields {
                src_port: 3000 + u16::from(hops),
                dst_port: 80,
                seq: IRS,
                flags: SYN,
                ..TcpFields::default()
            }),
            _ => packet.udp(2000, 33_434 + u16::from(hops)).payload(&[7; 32]),
        }
    };
    for protocol in [17, 6, 1] {
        if protocol == 1 && !pings {
            eprintln!("skipped: no ping sockets here");
            continue;
        }
        // The gateway is the first hop.
        world.give(&probe(protocol, 1));
        let (found, about) = error(&mut world);
        assert_eq!(found, (11, 0, 0), "{protocol}");
        assert_eq!(about[14 + 9], protocol);
        for hops in 2..5 {
            world.give(&probe(protocol, hops));
            let packet = outside.take();
            assert_eq!(packet[14 + 8], hops - 1, "{protocol}");
            outside.say(&packet, [198, 51, 100, hops], (11, 0, 0));
            let frame = world.take();
            assert_eq!(frame[26..30], [198, 51, 100, hops], "{protocol}");
            assert_eq!(frame[34..36], [11, 0]);
            // What the guest knows its own packet by.
            let about = [&frame[..14], &frame[42..]].concat();
            let expected = probe(protocol, hops).build();
            assert_eq!(about[14 + 9], protocol);
            assert_eq!(about[26..34], expected[26..34], "{protocol}");
            // Ports; of an echo request, identifier and sequence number.
            let at = if protocol == 1 { 38 } else { 34 };
            assert_eq!(about[at..at + 4], expected[at..at + 4], "{protocol}");
        }
    }
    // With as many as usual the host's own are used again.
    for protocol in [17, 1].into_iter().filter(|of| *of == 17 || pings) {
        world.give(&probe(protocol, 64));
        assert_eq!(outside.take()[14 + 8], 64, "{protocol}");
    }
}

const RANGE: &str = "/proc/sys/net/ipv4/ping_group_range";

#[test]
fn a_ping_that_the_system_forbids_has_an_answer_and_works_later() {
    let Some(outside) = outside() else { return };
    let all = std::fs::write(RANGE, "0 2147483647");
    if let Err(error) = all.and_then(|()| std::fs::write(RANGE, "1 0")) {
        eprintln!("skipped: no ping sockets here ({error})");
        return;
    }
    let network = UserNetwork {
        network6: Some("fd00:1::/64".to_owned()),
        allow: vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()],
        ..network("tcp 1")
    };
    let mut six = World::of(network, &records(), Vec::new());
    let mut world = World::new("tcp 1");
    assert!(
        world.worker.echoes.is_denied(),
        "it is known from the start"
    );
    let request = || PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, FAR);
    world.give(&request().echo_request(77, 1));
    let (found, about) = error(&mut world);
    assert_eq!((found, &about[34..36]), ((3, 13, 0), &[8, 0][..]));
    // There is no way for IPv6 here, so that the socket is not tried.
    let [guest6, far6] = ["fd00:1::9", "2001:db8::9"].map(|ip| ip.parse::<Ipv6Addr>().unwrap());
    let request6 = PacketBuilder::new(GUEST, GATEWAY).ipv6(guest6, far6);
    let request6 = request6.icmp(128, 0, [0, 77, 0, 1]).build();
    let answer = six.worker.refused_echo(&request6, Refusal::Protocol, now());
    let Some(Reply::Frame(answer)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(answer[54..56], [1, 1], "administratively prohibited");
    let at = USER_REFUSALS
        .iter()
        .position(|of| of.name() == "user-protocol")
        .unwrap();
    assert_eq!(world.worker.gateway.counters.totals.refused[at], 1);
    // Other protocols that are not translated still get none.
    let other = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, FAR);
    world.give(&other.icmp(13, 0, [0, 77, 0, 1]));
    assert!(world.to_switch.take().is_none());
    // The next try works as soon as it is permitted, and it is known without one.
    std::fs::write(RANGE, "0 2147483647").unwrap();
    world.give(&request().echo_request(77, 2));
    assert_eq!(outside.take()[34..36], [8, 0]);
    assert!(!world.worker.echoes.look());
    std::fs::write(RANGE, "1 0").unwrap();
    assert!(world.worker.echoes.look());
}
