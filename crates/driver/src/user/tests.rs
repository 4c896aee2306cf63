//! A worker between a switch that is played here, and services of this host on its loopback.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::{Duration, Instant};

use channel::driving::{ForwardProtocol, Listen, UserForward, UserGuest};
use channel::user_reports::{USER_REFUSALS, USER_STATES};
use front::queue::device::Device;
use sys::event;
use wire::build::{PacketBuilder, TcpFields};
use wire::packet::L3;
use wire::tcp::{ACK, FIN, SYN, TcpView};
use wire::{MacAddr, Parsed};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);
const GUEST: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 15]);
const GATEWAY: MacAddr = MacAddr([0x52, 0x55, 10, 0, 2, 2]);
const GATEWAY_IP: [u8; 4] = [10, 0, 2, 2];
const RST: u16 = 4;
/// The guest's address and first sequence number.
const GUEST_IP: [u8; 4] = [10, 0, 2, 20];
const IRS: u32 = 7000;

/// A worker, and the switch's side of its queues.
struct World {
    worker: UserWorker,
    outbox: Arc<Outbox>,
    /// Sockets that the supervisor has.
    kept: Vec<KeptFlow>,
    region: Arc<Region>,
    from_switch: Device,
    to_switch: Device,
}

fn network(host: &str) -> UserNetwork {
    UserNetwork {
        network: "10.0.2.0/24".to_owned(),
        network6: None,
        mac: GATEWAY.0,
        mtu: 1500,
        dns: true,
        resolvers: Vec::new(),
        allow: vec!["0.0.0.0/0".to_owned()],
        deny: Vec::new(),
        host: vec![host.to_owned()],
        guests: vec![UserGuest {
            name: "vm1".to_owned(),
            mac: Some(GUEST.0),
            addresses: vec![GUEST_IP.into()],
        }],
        forwards: Vec::new(),
    }
}

/// Settings of a translator.
fn world_settings() -> Settings {
    let network = network("tcp 1");
    Settings {
        network: settings::network(&network).unwrap(),
        access: settings::access(&network).unwrap(),
        bounds: Bounds::default(),
        secret: Secret([1, 2]),
        super_frames: true,
    }
}

/// A copy, as the supervisor hands it out.
fn copy_of_flow(flow: &KeptFlow) -> KeptFlow {
    KeptFlow {
        slot: flow.slot,
        socket: flow.socket.try_clone().unwrap(),
    }
}

/// Records of a test.
const SLOTS: u32 = 4;

/// Memory for records.
fn records() -> OwnedFd {
    sys::file::fixed("records", u64::from(SLOTS) * usernet::RECORD_LEN as u64).unwrap()
}

impl World {
    fn new(host: &str) -> Self {
        Self::after(host, &records(), Vec::new())
    }

    /// A worker that continues flows of a predecessor.
    fn after(host: &str, records: &OwnedFd, flows: Vec<KeptFlow>) -> Self {
        let region = Arc::new(Region::new("test", 1).expect("memory"));
        let kept = flows.iter().map(copy_of_flow).collect();
        let outbox = Arc::new(Outbox::new().unwrap());
        let inherited = Inherited {
            records: Records::new(records, SLOTS).unwrap(),
            flows,
            outbox: outbox.clone(),
        };
        let worker = UserWorker::new(&region, network(host), Arc::default(), inherited);
        Self {
            outbox,
            kept,
            from_switch: Device::new(&region, 0),
            to_switch: Device::new(&region, 1),
            worker: worker.unwrap(),
            region,
        }
    }

    /// Ends as a killed process does; returns what the supervisor has of its flows.
    fn kill(mut self) -> Vec<KeptFlow> {
        self.worker.keep(now(), true);
        let kept = |letter| match letter {
            Letter::Keep(slot, socket) => {
                let socket = socket.try_clone().unwrap();
                KeptFlow { slot, socket }
            }
            Letter::Drop(slot) => panic!("{slot} is dropped"),
        };
        let letters = self.outbox.take(8, 8);
        self.kept.extend(letters.into_iter().map(kept));
        self.kept
    }

    /// One turn, which does not sleep.
    fn turn(&mut self) {
        event::ring(self.worker.status.wake()).unwrap();
        self.worker.turn().unwrap();
    }

    /// A frame of the guest.
    fn give(&mut self, frame: &PacketBuilder) {
        self.put(NetHeader::default(), frame);
        self.turn();
    }

    /// The same with a header, which waits for the worker's next turn.
    fn put(&mut self, header: NetHeader, frame: &PacketBuilder) {
        let frame = [header.encode().to_vec(), frame.build()].concat();
        let (id, address, ..) = self.from_switch.take().unwrap();
        let place = self.region.pointer(address, frame.len() as u64);
        // SAFETY: `pointer` checked the bounds, and the buffer is available to us.
        unsafe { std::slice::from_raw_parts_mut(place, frame.len()) }.copy_from_slice(&frame);
        self.from_switch.give(id.into(), frame.len() as u32);
    }

    /// The next frame for the guest.
    fn take(&mut self) -> Vec<u8> {
        self.take_with_header().1
    }

    /// The same with its virtio header.
    fn take_with_header(&mut self) -> (NetHeader, Vec<u8>) {
        let start = Instant::now();
        loop {
            if let Some((id, address, len, _)) = self.to_switch.take() {
                let place = self.region.pointer(address, len.into());
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts(place, len as usize) }.to_vec();
                self.to_switch.give(id.into(), 0);
                let (header, frame) = bytes.split_first_chunk().unwrap();
                return (NetHeader::decode(header), frame.to_vec());
            }
            assert!(start.elapsed() < LIMIT, "no frame");
            self.turn();
        }
    }

    fn segment(&mut self, port: u16, numbers: (u32, u32, u16), payload: &[u8]) {
        self.segment_to((GATEWAY_IP, port), numbers, payload);
    }

    fn segment_to(
        &mut self,
        (ip, port): ([u8; 4], u16),
        (seq, ack, flags): (u32, u32, u16),
        payload: &[u8],
    ) {
        let fields = TcpFields {
            src_port: 1000,
            dst_port: port,
            seq,
            ack,
            flags,
            ..TcpFields::default()
        };
        let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, ip);
        self.give(&frame.tcp(fields).payload(payload));
    }

    /// Opens a connection; returns the number of the first byte for the guest.
    fn connect(&mut self, port: u16) -> u32 {
        self.connect_to((GATEWAY_IP, port))
    }

    fn connect_to(&mut self, to: ([u8; 4], u16)) -> u32 {
        self.segment_to(to, (IRS, 0, SYN), b"");
        let answer = self.take();
        let answer = Segment::of(&answer);
        assert_eq!((answer.flags, answer.ack), (SYN | ACK, IRS + 1));
        self.segment_to(to, (IRS + 1, answer.seq + 1, ACK), b"");
        answer.seq + 1
    }
}

/// A segment for the guest.
struct Segment {
    seq: u32,
    ack: u32,
    flags: u16,
    payload: Vec<u8>,
}

impl Segment {
    fn of(frame: &[u8]) -> Self {
        let parsed = Parsed::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len());
        let start = usize::from(parsed.l4_offset.unwrap());
        let tcp = TcpView::new_checked(&frame[start..]).unwrap();
        Self {
            seq: tcp.seq(),
            ack: tcp.ack(),
            flags: tcp.flags(),
            payload: tcp.payload().to_vec(),
        }
    }
}

#[test]
fn the_gateway_answers_for_itself() {
    let mut world = World::new("tcp 1");
    let request = PacketBuilder::new(GUEST, MacAddr([0xff; 6]));
    world.give(&request.arp_request(GUEST_IP, GATEWAY_IP));
    let answer = world.take();
    assert_eq!(
        (&answer[..6], &answer[6..12]),
        (&GUEST.0[..], &GATEWAY.0[..])
    );
    let echo = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, GATEWAY_IP);
    world.give(&echo.echo_request(1, 2));
    let answer = world.take();
    let parsed = Parsed::parse(&answer, answer.len());
    let [src, dst] = [GATEWAY_IP, GUEST_IP].map(Ipv4Addr::from);
    assert!(
        matches!(parsed.l3, L3::V4 { src: s, dst: d, .. } if (s, d) == (src, dst)),
        "{parsed:?}"
    );
}

/// A question about an address.
fn question(id: u8, name: &[u8]) -> Vec<u8> {
    let head = [0, id, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    [&head[..], name, &[0, 1, 0, 1]].concat()
}

/// The same over TCP.
fn framed(id: u8, name: &[u8]) -> Vec<u8> {
    let question = question(id, name);
    [&[0, question.len() as u8][..], &question[..]].concat()
}

const OWN_NAME: &[u8] = b"\x03vm1\x08internal\0";
const DNS: ([u8; 4], u16) = ([10, 0, 2, 3], 53);

/// Messages over TCP that come to the guest, until the end of the stream or `count` of them.
fn messages(world: &mut World, (mut own, mut next): (u32, u32), count: usize) -> Vec<Vec<u8>> {
    let (mut bytes, mut all) = (Vec::new(), Vec::new());
    while all.len() < count {
        let segment = Segment::of(&world.take());
        own = own.max(segment.ack);
        assert!(segment.seq <= next, "a gap");
        let known = (next - segment.seq) as usize;
        let new = segment.payload.get(known..).unwrap_or_default();
        bytes.extend(new);
        next += new.len() as u32;
        if !new.is_empty() {
            world.segment_to(DNS, (own, next, ACK), b"");
        }
        while let Some(end) = bytes.first_chunk().map(|len| 2 + u16::from_be_bytes(*len)) {
            if bytes.len() < end.into() {
                break;
            }
            all.push(bytes.drain(..usize::from(end)).skip(2).collect());
        }
        if segment.flags & FIN != 0 {
            break;
        }
    }
    all
}

#[test]
fn questions_by_tcp_are_answered_here_or_by_a_resolver() {
    let resolver = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = resolver.local_addr().unwrap();
    // Answers each question by an empty message, a byte at a time.
    let answering = thread::spawn(move || {
        for _ in 0..2 {
            let mut stream = resolver.accept().unwrap().0;
            stream.set_nodelay(true).unwrap();
            let mut len = [0; 2];
            stream.read_exact(&mut len).unwrap();
            let mut message = vec![0; u16::from_be_bytes(len).into()];
            stream.read_exact(&mut message).unwrap();
            message[2] |= 0x80;
            for byte in [&len[..], &message].concat() {
                stream.write_all(&[byte]).unwrap();
            }
        }
    });
    let mut world = World::new("tcp 1");
    world.worker.name(now());
    let zone = settings::zone(
        &world.worker.desired.network,
        world.worker.services.leases(),
    );
    world.worker.questions.set(zone, vec![address]);
    world.worker.desired.names_until = Nanos::MAX;
    let next = world.connect_to(DNS);
    // Several at once, the last in parts.
    let other = b"\x03far\x04test\0";
    let all = [
        framed(1, OWN_NAME),
        framed(2, other),
        framed(3, OWN_NAME),
        framed(4, other),
    ];
    let all = all.concat();
    let mut own = IRS + 1;
    for part in [&all[..90], &all[90..91], &all[91..]] {
        world.segment_to(DNS, (own, next, ACK), part);
        own += part.len() as u32;
    }
    let mut answers = messages(&mut world, (own, next), 4);
    answers.sort_by_key(|answer| answer[1]);
    assert_eq!([0, 1, 2, 3].map(|at| answers[at][1]), [1, 2, 3, 4]);
    assert!(answers[0].ends_with(&GUEST_IP) && answers[2].ends_with(&GUEST_IP));
    assert_eq!(answers[1][..4], [0, 2, 0x81, 0]);
    answering.join().unwrap();
    // Bytes that are no question end the connection.
    world.segment_to(DNS, (own, next, ACK), &[0, 0]);
    let reset = loop {
        let segment = Segment::of(&world.take());
        if segment.flags & RST != 0 {
            break segment;
        }
    };
    assert!(reset.seq > next && world.worker.translator.is_empty());
    assert!(!world.worker.questions.has_any());
}

#[test]
fn a_connection_to_the_dns_server_ends_after_its_answers() {
    let mut world = World::new("tcp 1");
    let next = world.connect_to(DNS);
    let asked = framed(1, OWN_NAME).repeat(3);
    world.segment_to(DNS, (IRS + 1, next, ACK | FIN), &asked);
    let answers = messages(&mut world, (IRS + 1, next), 4);
    assert_eq!(answers.len(), 3);
    let end = IRS + 2 + asked.len() as u32;
    let len: usize = answers.iter().map(|answer| answer.len() + 2).sum();
    world.segment_to(DNS, (end, next + len as u32 + 1, ACK), b"");
    assert!(!world.worker.questions.has_any());
}

#[test]
fn an_idle_connection_to_the_dns_server_ends() {
    let mut world = World::new("tcp 1");
    world.connect_to(DNS);
    let later = now() + 11_000_000_000;
    world.worker.expire(later);
    let ended = Segment::of(&world.take());
    assert_eq!(ended.flags & (FIN | RST), FIN);
    // The guest does not end it.
    world.worker.expire(later + 11_000_000_000);
    let reset = loop {
        let segment = Segment::of(&world.take());
        if segment.flags & FIN == 0 {
            break segment;
        }
    };
    assert_eq!(reset.flags & RST, RST);
    assert!(!world.worker.questions.has_any());
}

#[test]
fn connections_to_the_dns_server_are_bounded() {
    let mut streams = streams::Streams::default();
    let mut translator = Translator::new(world_settings());
    let mut flows = Vec::new();
    for port in 1..=9 {
        let fields = TcpFields {
            src_port: port,
            dst_port: 53,
            seq: IRS,
            ack: 0,
            flags: SYN,
            ..TcpFields::default()
        };
        let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, DNS.0);
        let frame = frame.tcp(fields).build();
        let mut out = Vec::new();
        translator.frame(0, &frame, frame.len(), &NetHeader::default(), &mut out);
        let [Action::Connect(flow, _)] = out[..] else {
            panic!("{out:?}");
        };
        flows.push(flow);
    }
    let guest = (SocketAddr::from((GUEST_IP, 1)), GUEST);
    let opened = flows.iter().map(|flow| streams.open(*flow, guest, 0));
    let opened: Vec<bool> = opened.map(|room| room.is_some()).collect();
    assert_eq!(opened, [[true; 8].as_slice(), &[false]].concat());
    streams.close(flows[0]);
    assert!(streams.open(flows[8], guest, 0).is_some());
}

#[test]
fn a_name_is_answered_here() {
    let mut world = World::new("tcp 1");
    let question = question(9, OWN_NAME);
    let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, [10, 0, 2, 3]);
    world.give(&frame.udp(2000, 53).payload(&question));
    let answer = world.take();
    assert!(answer.ends_with(&GUEST_IP), "{answer:?}");
}

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
    let parsed = Parsed::parse(&answer, answer.len());
    assert_eq!((parsed.src_port, parsed.dst_port), (port, 2000));
    assert!(answer.ends_with(b"answer"));
}

/// The socket of a forward to the guest's port 53, as the supervisor opens it.
fn udp_forward(to: &str) -> (Forward, std::net::SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    let forward = forward(ForwardProtocol::Udp, address, to, socket.into());
    (forward, address)
}

fn tcp_forward(to: &str) -> (Forward, std::net::SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    let forward = forward(ForwardProtocol::Tcp, address, to, socket.into());
    (forward, address)
}

fn forward(
    protocol: ForwardProtocol,
    address: std::net::SocketAddr,
    to: &str,
    socket: OwnedFd,
) -> Forward {
    let spec = UserForward {
        listen: Listen { protocol, address },
        to: to.to_owned(),
        port: 53,
    };
    Forward { spec, socket }
}

/// A program of the host that sends to a forward.
fn peer(to: std::net::SocketAddr) -> UdpSocket {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(LIMIT)).unwrap();
    peer.connect(to).unwrap();
    peer
}

/// The guest answers a datagram that has come by a forward.
fn answer_datagram(world: &mut World, frame: &[u8], payload: &[u8]) {
    let parsed = Parsed::parse(frame, frame.len());
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
    assert_eq!(world.worker.translator.len(), 2);
    // Without the forward its mappings end, and its port is free.
    world.worker.orders.put_forwards(Vec::new());
    world.turn();
    assert!(world.worker.translator.is_empty());
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
    assert_eq!(world.worker.counters.frames.sent.calls, 3);
    let mut bytes = [0; 2048];
    let mut from = None;
    for n in 0..40 {
        let (len, sender) = server.recv_from(&mut bytes).unwrap();
        assert_eq!(bytes[..len], [n; 20]);
        from = Some(sender);
    }
    let calls = world.worker.counters.frames.received.calls;
    for n in 0..40 {
        server.send_to(&[n; 30], from.unwrap()).unwrap();
    }
    for n in 0..40 {
        assert!(world.take().ends_with(&[n; 30]));
    }
    // One more may find that there is nothing.
    assert!(world.worker.counters.frames.received.calls - calls <= 4);
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
    assert_eq!(world.worker.counters.frames.sent.calls, 9);
    for n in [0, 0, 1, 1, 2, 2] {
        assert_eq!(server.recv(&mut bytes).unwrap(), 1);
        assert_eq!(bytes[0], n);
    }
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
    assert_eq!(world.worker.counters.frames.sent.calls, 1);
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
fn a_forward_asks_for_a_guest_that_is_not_known() {
    let mut world = World::new("tcp 1");
    let (forward, address) = udp_forward("10.0.2.30");
    world.worker.orders.put_forwards(vec![forward]);
    world.turn();
    let peer = peer(address);
    peer.send(b"lost").unwrap();
    take_question(&mut world);
    assert_eq!(world.worker.counters.frames.rejected_by_interface, 1);
    let station = MacAddr([0x52, 0x54, 0, 0, 0, 30]);
    let answer = PacketBuilder::new(station, MacAddr([0xff; 6]));
    world.give(&answer.arp_request([10, 0, 2, 30], GATEWAY_IP));
    world.take();
    peer.send(b"found").unwrap();
    let frame = world.take();
    assert!(frame.starts_with(&station.0) && frame.ends_with(b"found"));
}

/// Takes the question for 10.0.2.30, the guest of these tests.
fn take_question(world: &mut World) {
    let request = world.take();
    let parsed = Parsed::parse(&request, request.len());
    let L3::Arp { target_ip, .. } = parsed.l3 else {
        panic!("{parsed:?}");
    };
    assert_eq!(target_ip, Ipv4Addr::new(10, 0, 2, 30));
}

#[test]
fn a_connection_waits_until_its_guest_has_said_where_it_is() {
    let mut world = World::new("tcp 1");
    let (forward, address) = tcp_forward("10.0.2.30");
    world.worker.orders.put_forwards(vec![forward]);
    world.turn();
    let peer = TcpStream::connect(address).unwrap();
    take_question(&mut world);
    // Without an answer it is asked again.
    take_question(&mut world);
    let station = MacAddr([0x52, 0x54, 0, 0, 0, 30]);
    let answer = PacketBuilder::new(station, MacAddr([0xff; 6]));
    world.give(&answer.arp_request([10, 0, 2, 30], GATEWAY_IP));
    let frames = [world.take(), world.take()];
    let syn = frames.iter().find(|frame| frame[12..14] == [8, 0]).unwrap();
    assert!(syn.starts_with(&station.0), "{syn:?}");
    assert_eq!(TcpView::new_checked(&syn[34..]).unwrap().flags(), SYN);
    assert_eq!(world.worker.counters.frames.rejected_by_interface, 0);
    drop(peer);
}

#[test]
fn a_connection_to_a_guest_that_is_not_there_is_reset() {
    let mut world = World::new("tcp 1");
    let (forward, address) = tcp_forward("10.0.2.30");
    world.worker.orders.put_forwards(vec![forward]);
    world.turn();
    let mut peer = TcpStream::connect(address).unwrap();
    (0..4).for_each(|_| take_question(&mut world));
    let start = Instant::now();
    while world.worker.counters.frames.rejected_by_interface == 0 {
        assert!(start.elapsed() < LIMIT, "the connection stays");
        world.turn();
    }
    let error = peer.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
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
    assert_eq!(world.worker.translator.len(), 1);
}

#[test]
fn a_connection_carries_bytes_and_both_ends() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let answering = thread::spawn(move || {
        let mut stream = server.accept().unwrap().0;
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(b"welcome").unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        (bytes, rest)
    });
    let mut world = World::new(&format!("tcp {port}"));
    let next = world.connect(port);
    world.segment(port, (IRS + 1, next, ACK), b"hello");
    let mut got = Vec::new();
    while got.len() < 7 {
        let segment = Segment::of(&world.take());
        if segment.payload.is_empty() {
            assert_eq!(segment.ack, IRS + 6, "an acknowledgement");
            continue;
        }
        assert_eq!(segment.seq, next + got.len() as u32);
        got.extend(segment.payload);
    }
    assert_eq!(got, b"welcome");
    world.segment(port, (IRS + 6, next + 7, ACK | FIN), b"");
    let ended = loop {
        let segment = Segment::of(&world.take());
        if segment.flags & FIN != 0 {
            break segment;
        }
    };
    assert_eq!((ended.seq, ended.ack), (next + 7, IRS + 7));
    assert_eq!(answering.join().unwrap(), (*b"hello", Vec::new()));
    world.segment(port, (IRS + 7, next + 8, ACK), b"");
}

/// The next segment with payload.
fn payload(world: &mut World) -> Segment {
    loop {
        let segment = Segment::of(&world.take());
        if !segment.payload.is_empty() {
            return segment;
        }
    }
}

#[test]
fn a_successor_continues_connections() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let (host, records) = (format!("tcp {port}"), records());
    let mut world = World::after(&host, &records, Vec::new());
    let mut next = world.connect(port);
    let mut stream = server.accept().unwrap().0;
    let mut at = IRS + 1;
    for n in 0..5u8 {
        // Bytes that have come, bytes that wait for the guest, and bytes that it has.
        world.segment(port, (at, next, ACK), &[n; 100]);
        at += 100;
        let mut got = [0; 100];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, [n; 100]);
        stream.write_all(&[n; 10]).unwrap();
        let flows = world.kill();
        assert_eq!(flows.len(), 1);
        world = World::after(&host, &records, flows);
        let segment = payload(&mut world);
        assert_eq!(
            (segment.seq, segment.ack, &segment.payload[..]),
            (next, at, &[n; 10][..])
        );
        next += 10;
        world.segment(port, (at, next, ACK), b"");
    }
    // Half closed, by the guest.
    world.segment(port, (at, next, ACK | FIN), b"");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    world = World::after(&host, &records, world.kill());
    stream.write_all(b"last").unwrap();
    let segment = payload(&mut world);
    assert_eq!((segment.seq, segment.ack), (next, at + 1));
    world.segment(port, (at + 1, next + 4, ACK), b"");
    drop(stream);
    let ended = loop {
        let segment = Segment::of(&world.take());
        if segment.flags & FIN != 0 {
            break segment;
        }
    };
    assert_eq!((ended.seq, ended.ack), (next + 4, at + 1));
}

#[test]
fn a_successor_takes_no_record_of_another() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let (host, records) = (format!("tcp {port}"), records());
    let mut world = World::after(&host, &records, Vec::new());
    world.connect(port);
    let mut stream = server.accept().unwrap().0;
    let flows = world.kill();
    rustix::io::pwrite(&records, &[0xff; 64], 0).unwrap();
    let mut world = World::after(&host, &records, flows);
    assert!(world.worker.translator.is_empty());
    let letters = world.outbox.take(8, 8);
    assert!(matches!(letters[..], [Letter::Drop(0)]), "{letters:?}");
    // The supervisor closes the last descriptor.
    world.kept.clear();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn the_kernel_knows_how_far_a_connection_is() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = std::net::TcpStream::connect(server.local_addr().unwrap()).unwrap();
    let (mut own, mut peer) = (own, server.accept().unwrap().0);
    let progress = |stream: &std::net::TcpStream, connected| {
        let progress = calls::progress(stream.as_fd(), connected, 0).unwrap();
        (progress.taken, progress.given, progress.unread)
    };
    assert_eq!(
        (progress(&own, true), progress(&peer, false)),
        ((0, 0, 0), (0, 0, 0))
    );
    own.write_all(&[1; 3000]).unwrap();
    peer.write_all(&[2; 50]).unwrap();
    peer.read_exact(&mut [0; 1000]).unwrap();
    own.read_exact(&mut [0; 20]).unwrap();
    assert_eq!(progress(&own, true), (3000, 20, 30));
    assert_eq!(progress(&peer, false), (50, 1000, 2000));
    own.shutdown(std::net::Shutdown::Write).unwrap();
    peer.read_exact(&mut [0; 2000]).unwrap();
    assert_eq!(progress(&own, true), (3000, 20, 30));
    let closed = calls::progress(peer.as_fd(), false, 0).unwrap();
    assert!(closed.peer_closed && !closed.guest_closed);
    assert_eq!((closed.taken, closed.given, closed.unread), (50, 3000, 0));
}

/// The numbers are of one time, though the peer takes bytes between the calls that read them.
#[test]
fn the_kernel_knows_it_while_the_peer_reads() {
    const PART: usize = 64 << 10;
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut own = std::net::TcpStream::connect(server.local_addr().unwrap()).unwrap();
    let mut peer = server.accept().unwrap().0;
    let reader = std::thread::spawn(move || {
        let mut part = [0; 1024];
        while peer.read(&mut part).unwrap() > 0 {}
    });
    for part in 1..=3000 {
        own.write_all(&[1; PART]).unwrap();
        for _ in 0..20 {
            let progress = calls::progress(own.as_fd(), true, 0).unwrap();
            assert_eq!(progress.taken, (part * PART) as u64);
        }
    }
    drop(own);
    reader.join().unwrap();
}

#[test]
fn reasons_have_the_names_of_refusals() {
    let names = USER_REFUSALS.map(|reason| reason.name());
    assert_eq!(Refusal::ALL.map(Refusal::name), names);
    let states = USER_STATES.map(|(_, state)| state);
    assert_eq!(
        usernet::FlowState::ALL.map(usernet::FlowState::name),
        states
    );
}

#[test]
fn what_is_refused_is_reset() {
    let mut world = World::new("tcp 1");
    // Nothing listens at the one port of the host that is allowed.
    for port in [1, 2] {
        world.segment(port, (IRS, 0, SYN), b"");
        let answer = Segment::of(&world.take());
        assert_eq!(
            (answer.flags & RST, answer.ack),
            (RST, IRS + 1),
            "port {port}"
        );
    }
    let own = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, [127, 0, 0, 1]);
    world.give(&own.udp(2000, 9).payload(b"x"));
    let error = world.take();
    assert_eq!(error[34..36], [3, 13], "prohibited");
    let figures = world.worker.figures();
    assert_eq!((figures.all_flows(), figures.totals.refused[0]), (0, 1));
    assert_eq!(figures.totals.results, [0, 1, 0], "the other is not tried");
}

#[test]
fn settings_change_under_flows() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut world = World::new(&format!("tcp {port}"));
    let next = world.connect(port);
    let mut stream = server.accept().unwrap().0;
    world.worker.orders.put(network("tcp 1"));
    world.turn();
    stream.write_all(b"still here").unwrap();
    let segment = loop {
        let segment = Segment::of(&world.take());
        if !segment.payload.is_empty() {
            break segment;
        }
    };
    assert_eq!(
        (segment.seq, &segment.payload[..]),
        (next, &b"still here"[..])
    );
    let other = UserNetwork {
        network: "10.0.3.0/24".to_owned(),
        ..network("tcp 1")
    };
    world.worker.orders.put(other);
    let error = world.worker.turn().unwrap_err();
    assert_eq!(error.to_string(), "the network: it changed under flows");
}

#[test]
fn without_flows_there_is_nothing_to_wake_for() {
    let mut world = World::new("tcp 1");
    world.turn();
    assert_eq!(world.worker.sleep_limit(), None);
}
