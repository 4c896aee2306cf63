//! A worker whose outside is a TAP device in a network namespace of the test's own, at which the
//! test answers with ICMP errors.

use channel::driving::{Choice, DeviceSpec};
use rustix::thread::UnshareFlags;

use super::*;
use crate::device::Device as Interface;

/// The host's address there, a host that answers ARP, and its station.
const OWN: [u8; 4] = [192, 0, 2, 1];
const FAR: [u8; 4] = [192, 0, 2, 9];
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
        choice: Choice::Tap,
        own: true,
        interface: "up0".parse().unwrap(),
        netns: None,
        address: Some((IpAddr::from(OWN), 24)),
        mac: None,
        mtu: None,
        queues: 1,
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
            let parsed = Parsed::parse(frame, frame.len());
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
        let own = MacAddr(std::array::from_fn(|at| packet[6 + at]));
        let [high, low] = mtu.to_be_bytes();
        let error = PacketBuilder::new(FAR_MAC, own).ipv4(FAR, OWN);
        let error = error.icmp(3, code, [0, 0, high, low]);
        self.give(&error.payload(&packet[14..packet.len().min(14 + 64)]));
    }
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
        let about = Parsed::parse(&about, about.len());
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
