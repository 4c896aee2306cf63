//! Super-frames between guests and interfaces of the host: those of UDP come in whole and reach
//! guests that negotiated them whole, others cut; what guests send singly leaves in super-frames,
//! and arrives as it was sent.
//!
//! Everything is in network namespaces of the test's own; where they cannot be had, a test says so
//! and ends.

use std::net::UdpSocket;

use e2e::lasthop::Lasthop;
use e2e::nested::{Host, Kernel, is_inside};
use e2e::uplinks::{
    TIMEOUT, ethtool, ethtool_off, pattern, send_in_parts, tap, uplink, wire as veth,
};
use e2e::{is_long, machine};
use tempfile::TempDir;
use testkit::features::{ALL_OFFLOADS, HOST_OFFLOADS};
use testkit::net::{GSO_UDP_L4, NetHeader};
use testkit::netns::Netns;
use testkit::packets::{self, Flow};
use testkit::wait::{wait_for, wait_until};
use testkit::{FakeGuest, GuestConfig};
use wire::build::{PacketBuilder, TcpFields};
use wire::{MacAddr, Sum, tcp};

const GUESTS: &str = r#"
[switch]
name = "host1"

[[port]]
name = "a"
kind = "vhost-user"
socket = "a.sock"
port_security = { macs = "any" }

[[port]]
name = "b"
kind = "vhost-user"
socket = "b.sock"
port_security = { macs = "any" }
"#;
/// The address of `t0`.
const HOST: [u8; 6] = [0x02, 0x1a, 0x57, 0, 0, 9];
/// Payload of a datagram, in bytes, and datagrams of a super-frame.
const PART: usize = 100;
const PARTS: usize = 40;
/// Bursts of a test.
const ROUNDS: usize = 10;

fn load(fill: usize) -> Vec<u8> {
    (0..PART * PARTS).map(|at| pattern(at + fill)).collect()
}

/// Frames and system calls of a driver, from the interface and to it.
fn calls(lasthop: &Lasthop, port: &str) -> [u64; 4] {
    let driver = &lasthop.port(port)["driver_status"];
    [
        "received_frames",
        "receive_calls",
        "sent_frames",
        "send_calls",
    ]
    .map(|key| driver[key].as_u64().expect("a counter"))
}

/// A namespace with the TAP port `t0`, which is 10.0.0.9 and knows the guests. The kernel moves its
/// frames where it can.
fn host(folder: &TempDir) -> (Netns, Lasthop) {
    let netns = Netns::new("host", folder.path());
    let driver = match std::fs::exists("/dev/vhost-net") {
        Ok(true) => "vhost-net",
        _ => "tap",
    };
    let more = format!("mac = \"02:1a:57:00:00:09\"\ndriver = \"{driver}\"");
    let port = tap("t0", &netns.path(), "10.0.0.9/24", &more);
    let lasthop = Lasthop::start(&[GUESTS, &port].concat());
    lasthop.wait_port("t0", "up");
    for guest in [1, 2] {
        netns.ip(&format!(
            "neigh replace 10.0.0.{guest} lladdr 02:1a:57:00:00:0{guest} dev t0"
        ));
    }
    (netns, lasthop)
}

/// A guest whose address the switch knows.
fn guest(lasthop: &Lasthop, name: &str, number: u8, features: u64, peer: &UdpSocket) -> FakeGuest {
    let config = GuestConfig::default().guest(number);
    let config = config.without(ALL_OFFLOADS).with(features);
    let mut guest = lasthop.connect_as(name, config);
    let flow = Flow::v4(number, 9);
    guest.send(&packets::udp(&flow, b"hello")).expect("room");
    let mut got = [0; 16];
    peer.recv_from(&mut got).expect("it arrives");
    guest
}

/// The frames that come to a guest until they are as many bytes of payload as were sent.
fn arrived(guest: &mut FakeGuest, sent: &[u8]) -> Vec<(NetHeader, Vec<u8>)> {
    let (mut frames, mut payload) = (Vec::new(), Vec::new());
    while payload.len() < sent.len() {
        let received = guest.recv(TIMEOUT).expect("an honest device");
        let received = received.expect("a frame");
        // The namespace has things of its own to say, and the other guest's greeting to it is
        // flooded where it has said nothing yet.
        let is_udp = packets::parse(&received.frame).is_ok_and(|p| p.protocol == packets::UDP);
        let is_ours = is_udp && received.frame[..6] != HOST;
        if let (true, Ok(part)) = (is_ours, packets::payload_of(&received.frame)) {
            payload.extend_from_slice(part);
            frames.push((received.header, received.frame));
        }
    }
    assert!(payload == sent, "all of it, in order");
    frames
}

#[test]
fn datagrams_of_the_host_come_whole_to_guests_that_negotiated_that() {
    if !Netns::allowed() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (netns, lasthop) = host(&folder);
    let features = lasthop.port("t0")["features"].to_string();
    if !features.contains("NET_F_GUEST_USO4") {
        testkit::skip::skipped("no UDP segmentation offload of TAP devices here (Linux 6.2)");
        return;
    }
    let socket = netns.udp("10.0.0.9:2009");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    let mut whole = guest(&lasthop, "a", 1, ALL_OFFLOADS, &socket);
    let mut cut = guest(&lasthop, "b", 2, 0, &socket);
    send_in_parts(&socket, PART as u16);

    turn.step("whole");
    let before = calls(&lasthop, "t0");
    socket
        .send_to(&load(1), "10.0.0.1:1001")
        .expect("a neighbour");
    let [(header, frame)] = &arrived(&mut whole, &load(1))[..] else {
        panic!("several frames")
    };
    assert_eq!(header.gso_type, GSO_UDP_L4);
    assert_eq!(usize::from(header.gso_size), PART);
    let parts = packets::on_the_wire(frame, header).expect("a frame that can be cut");
    assert_eq!(parts.len(), PARTS);

    turn.step("cut");
    socket
        .send_to(&load(2), "10.0.0.2:1002")
        .expect("a neighbour");
    let frames = arrived(&mut cut, &load(2));
    assert_eq!(frames.len(), PARTS);
    for (header, frame) in &frames {
        assert_eq!(
            *header,
            NetHeader {
                num_buffers: header.num_buffers,
                ..NetHeader::default()
            }
        );
        packets::verify_checksums(frame).expect("a complete checksum");
    }
    turn.step("many frames a call");
    wait_for("the driver has counted both", || {
        let now = calls(&lasthop, "t0");
        (now[0] - before[0] >= 2 * PARTS as u64).then_some(())
    });
    let now = calls(&lasthop, "t0");
    assert!(now[1] - before[1] < PARTS as u64, "{before:?} {now:?}");
    let show = lasthop.ok(&["port", "show", "t0"]);
    assert!(show.contains("frames a call from the interface"), "{show}");
    lasthop.stop();
}

/// Gives an untagged IPv4 frame an identification.
fn identify(frame: &mut [u8], id: u16) {
    let ip = &mut frame[14..34];
    ip[4..6].copy_from_slice(&id.to_be_bytes());
    ip[10..12].fill(0);
    let checksum = Sum::of(ip).finish();
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Has a guest send datagrams with one kick, the last one shorter. They have identifications that
/// count up, as those of operating systems do.
fn burst(guest: &mut FakeGuest, flow: &Flow, sent: &[u8], partial: bool) {
    let pair = &mut guest.pairs[0];
    for (id, part) in (0..).zip(sent.chunks(PART)) {
        let (mut frame, header) = if partial {
            packets::udp_partial(flow, part)
        } else {
            (packets::udp(flow, part), NetHeader::default())
        };
        identify(&mut frame, id);
        assert!(
            pair.stage(&frame, &header).expect("an honest device"),
            "room"
        );
    }
    pair.flush();
}

/// Sends bursts of datagrams from a guest, which must arrive. Returns the number of datagrams.
fn bursts_arrive(guest: &mut FakeGuest, socket: &UdpSocket, partial: bool) -> u64 {
    for round in 0..ROUNDS {
        let sent = &load(round)[10..];
        burst(guest, &Flow::v4(1, 9), sent, partial);
        for part in sent.chunks(PART) {
            let mut got = [0; 2 * PART];
            let (len, _) = socket.recv_from(&mut got).expect("the kernel checked it");
            assert!(got[..len] == *part, "{len} bytes");
        }
    }
    (ROUNDS * PARTS) as u64
}

/// Waits until a driver has counted so many more frames to its interface. Returns its calls for
/// them.
fn calls_for(lasthop: &Lasthop, port: &str, before: [u64; 4], frames: u64) -> u64 {
    let now = wait_for("the driver has counted them", || {
        let now = calls(lasthop, port);
        (now[2] - before[2] >= frames).then_some(now)
    });
    eprintln!("before {before:?}, after {now:?}");
    now[3] - before[3]
}

/// Checks that what the host sends as one comes to a guest as single, complete frames.
fn comes_cut(guest: &mut FakeGuest, socket: &UdpSocket) {
    socket
        .send_to(&load(3), "10.0.0.1:1001")
        .expect("a neighbour");
    let frames = arrived(guest, &load(3));
    assert_eq!(frames.len(), PARTS);
    for (header, frame) in &frames {
        assert_eq!(header.gso_type, 0);
        let whole = packets::on_the_wire(frame, header).expect("a frame");
        assert_eq!(whole.len(), 1);
        packets::verify_checksums(&whole[0]).expect("a complete checksum");
    }
}

/// Returns whether super-frames of UDP are sent to the interface of a port.
fn takes_datagrams(lasthop: &Lasthop, port: &str) -> bool {
    let features = lasthop.port(port)["features"].to_string();
    features.contains("NET_F_HOST_USO")
}

/// In the host of the next test.
#[test]
fn datagrams_are_single_frames_where_the_kernel_has_no_super_frames_of_udp() {
    if !is_inside() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (netns, lasthop) = host(&folder);
    assert!(!takes_datagrams(&lasthop, "t0"));
    let socket = netns.udp("10.0.0.9:2009");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    let mut guest = guest(&lasthop, "a", 1, ALL_OFFLOADS, &socket);
    let before = calls(&lasthop, "t0");
    let frames = bursts_arrive(&mut guest, &socket, true);
    calls_for(&lasthop, "t0", before, frames);
    let [.., sent, calls] = calls(&lasthop, "t0");
    assert_eq!(sent, calls, "a call for each");
    send_in_parts(&socket, PART as u16);
    comes_cut(&mut guest, &socket);
    let log = lasthop.log();
    assert_eq!(log.matches("no UDP segmentation").count(), 1, "{log}");
    lasthop.stop();
}

#[test]
fn debians_kernel_has_no_super_frames_of_udp() {
    if is_inside() || !is_long() {
        return;
    }
    let _turn = machine();
    let mut host = Host::start(Kernel::Debian, module_path!());
    host.test("datagrams_of_guests_leave_in_super_frames_and_arrive_as_they_were");
    // With vhost-net a call is not for each frame.
    host.run("rm /dev/vhost-net");
    host.test("datagrams_are_single_frames_where_the_kernel_has_no_super_frames_of_udp");
    host.test("datagrams_of_guests_leave_in_super_frames_and_arrive_as_they_were");
    host.test("the_kernel_cuts_what_was_coalesced_to_what_it_was");
}

/// A kernel with super-frames of UDP, whose TAP devices have vhost devices first.
#[test]
fn super_frames_of_udp_cross_with_and_without_vhost_net() {
    if is_inside() || !is_long() || !Kernel::Newer.has_image() {
        return;
    }
    let _turn = machine();
    let mut host = Host::start(Kernel::Newer, module_path!());
    for with_vhost in [true, false] {
        if !with_vhost {
            host.run("rm /dev/vhost-net");
        }
        host.test("datagrams_of_the_host_come_whole_to_guests_that_negotiated_that");
        host.test("datagrams_of_guests_leave_in_super_frames_and_arrive_as_they_were");
        host.test("offloads_of_an_interface_are_switched_off_while_its_driver_runs");
    }
}

/// The features of `ethtool -K` that are switched off one after another, and an offload that is
/// gone then by its name in the log.
const SWITCHED: [(&str, &str); 3] = [
    ("tx-udp-segmentation", "tx-udp-segmentation"),
    ("gso", "generic-segmentation-offload"),
    ("tx", "tx-tcp-segmentation"),
];

/// Waits for the line of the log about an offload, which stands there once.
fn is_said_once(lasthop: &Lasthop, interface: &str, offload: &str, state: &str) {
    let line = format!("offload {offload} of interface {interface} is {state}");
    wait_until(&line, || lasthop.log().contains(&line));
    assert_eq!(lasthop.log().matches(&line).count(), 1, "{}", lasthop.log());
}

/// Switches all on that was switched off, and waits for the lines of the log.
fn are_on_again(lasthop: &Lasthop, netns: &Netns, interface: &str) {
    ethtool(netns, interface, "tx tso gso tx-udp-segmentation", "on");
    for (_, offload) in SWITCHED {
        is_said_once(lasthop, interface, offload, "on again");
        is_said_once(lasthop, interface, offload, "off: ");
    }
}

/// The kernel cuts what the driver still coalesces for an interface that cannot do it any more, and
/// what the host sends to it.
#[test]
fn offloads_of_an_interface_are_switched_off_while_its_driver_runs() {
    if !Netns::allowed() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (netns, lasthop) = host(&folder);
    let socket = netns.udp("10.0.0.9:2009");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    let mut guest = guest(&lasthop, "a", 1, ALL_OFFLOADS, &socket);
    send_in_parts(&socket, PART as u16);
    if takes_datagrams(&lasthop, "t0") {
        socket
            .send_to(&load(2), "10.0.0.1:1001")
            .expect("a neighbour");
        assert_eq!(arrived(&mut guest, &load(2)).len(), 1, "whole before");
    }
    // A kernel without that offload of TAP devices has nothing to say about it.
    let has_uso = takes_datagrams(&lasthop, "t0");
    for (features, offload) in SWITCHED {
        turn.step(&format!("TAP without {features}"));
        ethtool_off(&netns, "t0", features);
        comes_cut(&mut guest, &socket);
        bursts_arrive(&mut guest, &socket, true);
        if has_uso {
            is_said_once(&lasthop, "t0", offload, "off: ");
        }
    }
    if has_uso {
        are_on_again(&lasthop, &netns, "t0");
    }
    lasthop.stop();

    let [near, far] = ["near", "far"].map(|name| Netns::new(name, folder.path()));
    veth(&near, &far);
    far.ip("link set wire0 address 02:1a:57:00:00:09");
    far.ip("address add 10.0.0.9/24 dev wire0");
    far.ip("neigh replace 10.0.0.1 lladdr 02:1a:57:00:00:01 dev wire0");
    let lasthop = Lasthop::start(&[GUESTS, &uplink(&near.path(), "driver = \"packet\"")].concat());
    lasthop.wait_port("uplink", "up");
    let socket = far.udp("10.0.0.9:2009");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    let mut guest = self::guest(&lasthop, "a", 1, ALL_OFFLOADS, &socket);
    let sniffer = far.sniff();
    let is_ours = |frame: &[u8]| frame.starts_with(&packets::mac(9));
    if takes_datagrams(&lasthop, "uplink") {
        let frames = bursts_arrive(&mut guest, &socket, true);
        let on_the_wire = sniffer.frames(1, TIMEOUT, is_ours).len();
        assert!((on_the_wire as u64) < frames, "whole before");
    }
    for (features, offload) in SWITCHED {
        turn.step(&format!("packet socket on an interface without {features}"));
        ethtool_off(&near, "up0", features);
        let before = calls(&lasthop, "uplink");
        let frames = bursts_arrive(&mut guest, &socket, true);
        calls_for(&lasthop, "uplink", before, frames);
        let on_the_wire = sniffer.frames(frames as usize, TIMEOUT, is_ours);
        assert_eq!(on_the_wire.len() as u64, frames, "each is a frame");
        is_said_once(&lasthop, "up0", offload, "off: ");
    }
    are_on_again(&lasthop, &near, "up0");
    lasthop.stop();
}

#[test]
fn datagrams_of_guests_leave_in_super_frames_and_arrive_as_they_were() {
    if !Netns::allowed() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (netns, lasthop) = host(&folder);
    let is_offered = takes_datagrams(&lasthop, "t0");
    let socket = netns.udp("10.0.0.9:2009");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    let mut guest = guest(&lasthop, "a", 1, HOST_OFFLOADS, &socket);
    for partial in [false, true] {
        turn.step(&format!("checksums left to the receiver: {partial}"));
        let before = calls(&lasthop, "t0");
        let frames = bursts_arrive(&mut guest, &socket, partial);
        let calls = calls_for(&lasthop, "t0", before, frames);
        assert!(!is_offered || calls < frames, "several a call");
    }
    lasthop.stop();
}

/// Segments of TCP, and datagrams of two flows among them.
fn mix() -> Vec<Vec<u8>> {
    let packet = |from: u8| {
        let packet = PacketBuilder::new(MacAddr(packets::mac(1)), MacAddr(packets::mac(9)));
        packet.ipv4([10, 0, 0, from], [10, 0, 0, 9])
    };
    let payload = |n: usize, len| (n..n + len).map(pattern).collect::<Vec<u8>>();
    let frames = (0..PARTS).map(|n| {
        let last = n + 3 >= PARTS;
        let frame = match n % 3 {
            0 => packet(1).tcp(TcpFields {
                src_port: 1,
                dst_port: 2,
                seq: (n / 3 * 1000) as u32,
                ack: 5,
                flags: if last { tcp::ACK | tcp::PSH } else { tcp::ACK },
                options: vec![1; 12],
            }),
            flow => packet(1 + flow as u8).udp(1, 2),
        };
        let len = if last { 999 } else { 1000 };
        frame
            .ip_id((n / 3) as u16)
            .payload(&payload(n, len))
            .build()
    });
    frames.collect()
}

#[test]
fn the_kernel_cuts_what_was_coalesced_to_what_it_was() {
    if !Netns::allowed() {
        return;
    }
    let _turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [near, far] = ["near", "far"].map(|name| Netns::new(name, folder.path()));
    veth(&near, &far);
    ethtool_off(&near, "up0", "tx gso");
    let lasthop = Lasthop::start(&[GUESTS, &uplink(&near.path(), "driver = \"packet\"")].concat());
    lasthop.wait_port("uplink", "up");
    let sniffer = far.sniff();
    let mut guest = lasthop.connect("a", 1);
    let is_ours = |frame: &[u8]| frame.starts_with(&packets::mac(9));
    guest.send(&mix()[0]).expect("room");
    assert_eq!(
        sniffer.frames(1, TIMEOUT, is_ours).len(),
        1,
        "the way is known"
    );
    let before = calls(&lasthop, "uplink");
    for round in 0..20 {
        let sent = mix();
        for frame in &sent {
            let pair = &mut guest.pairs[0];
            let staged = pair.stage(frame, &NetHeader::default());
            assert!(staged.expect("an honest device"), "room");
        }
        guest.pairs[0].flush();
        let mut got = sniffer.frames(PARTS, TIMEOUT, is_ours);
        let mut sent = sent;
        // Flows may overtake each other: protocol and source address tell them apart.
        for frames in [&mut got, &mut sent] {
            frames.sort_by_key(|frame| [frame[23], frame[29]]);
        }
        assert!(got == sent, "round {round}: {got:02x?}");
    }
    let frames = 20 * PARTS as u64;
    let calls = calls_for(&lasthop, "uplink", before, frames);
    assert!(calls < frames, "several a call");
    lasthop.stop();
}
