//! A worker between a switch that is played here, and services of this host on its loopback.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ipc::driving::{UserBuffers, UserGuest};
use ipc::user_reports::{
    USER_REFUSALS, USER_ROWS, USER_STATES, UserFlow, UserRows, UserTable, UserWait,
};
use sys::event;
use vhost_frontend::queue::device::Device;
use wire::build::{PacketBuilder, TcpFields};
use wire::packet::L3;
use wire::tcp::{ACK, FIN, SYN, TcpView};
use wire::{MacAddr, ParsedHeaders};

use super::*;

mod buffers;
mod datagrams;
mod dns;
mod forwards;
mod outside;
mod own_addresses;
mod ports;
mod segments;
mod tables;

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
        search: "internal".to_owned(),
        allow: vec!["0.0.0.0/0".to_owned()],
        deny: Vec::new(),
        host: host.split(',').map(str::to_owned).collect(),
        guests: vec![UserGuest {
            name: "vm1".to_owned(),
            mac: Some(GUEST.0),
            addresses: vec![GUEST_IP.into()],
        }],
        forwards: Vec::new(),
        times: Vec::new(),
        buffers: UserBuffers {
            guest: 256 << 20,
            port: 1 << 30,
        },
        sharers: 1,
    }
}

/// Settings of a translator.
fn world_settings() -> Settings {
    let network = network("tcp 1");
    Settings {
        network: settings::network(&network).unwrap(),
        access: settings::access(&network).unwrap(),
        bounds: Bounds::default(),
        times: settings::times(&network).unwrap(),
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
    sys::file::fixed("records", ipc::driving::records_len(SLOTS)).unwrap()
}

impl World {
    fn new(host: &str) -> Self {
        Self::after(host, &records(), Vec::new())
    }

    /// A worker that continues flows of a predecessor.
    fn after(host: &str, records: &OwnedFd, flows: Vec<KeptFlow>) -> Self {
        Self::of(network(host), records, flows)
    }

    fn of(network: UserNetwork, records: &OwnedFd, flows: Vec<KeptFlow>) -> Self {
        Self::with_ports((network, HostPorts::read()), records, flows)
    }

    /// The same with these ports of the host.
    fn with_ports(
        (network, ports): (UserNetwork, HostPorts),
        records: &OwnedFd,
        flows: Vec<KeptFlow>,
    ) -> Self {
        let region = Arc::new(Region::new("test", 1).expect("memory"));
        let kept = flows.iter().map(copy_of_flow).collect();
        let outbox = Arc::new(Outbox::new().unwrap());
        let inherited = Inheritance {
            records: FlowRecords::new(records, SLOTS).unwrap(),
            leases: KeptLeases::new(records, SLOTS).unwrap(),
            flows,
            outbox: outbox.clone(),
        };
        let worker = UserWorker::new(
            &region,
            (network, ports),
            Arc::default(),
            inherited,
            Duration::ZERO,
        );
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
            FlowMessage::Keep(slot, socket) => {
                let socket = socket.try_clone().unwrap();
                KeptFlow { slot, socket }
            }
            FlowMessage::Drop(slot) => panic!("{slot} is dropped"),
        };
        let letters = self.outbox.take(8, 8);
        self.kept.extend(letters.into_iter().map(kept));
        self.kept
    }

    /// Works as on a system without peek offsets for TCP.
    fn forget_peek_offsets(&mut self) {
        let all = self.worker.gateway.sockets.all_mut();
        all.for_each(sockets::Socket::forget_peek_offset);
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
            if let Some(next) = self.next() {
                return next;
            }
            assert!(start.elapsed() < LIMIT, "no frame");
            self.turn();
        }
    }

    /// The next frame for the guest, if there is one.
    fn next(&mut self) -> Option<(NetHeader, Vec<u8>)> {
        let (id, address, len, _) = self.to_switch.take()?;
        let place = self.region.pointer(address, len.into());
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(place, len as usize) }.to_vec();
        self.to_switch.give(id.into(), 0);
        let (header, frame) = bytes.split_first_chunk().unwrap();
        Some((NetHeader::decode(header), frame.to_vec()))
    }

    fn segment(&mut self, port: u16, numbers: (u32, u32, u16), payload: &[u8]) {
        self.segment_to((GATEWAY_IP, port), numbers, payload);
    }

    fn segment_to(&mut self, to: ([u8; 4], u16), numbers: (u32, u32, u16), payload: &[u8]) {
        self.give(&segment((1000, to), numbers, payload));
    }

    /// A part of a table, as the supervisor gets it.
    fn page(&mut self, table: UserTable, from: u32) -> (UserRows, Option<u32>) {
        let question = UserQuestion { table, from };
        self.worker.orders.ask(question);
        self.turn();
        let page = self.outbox.take_page().expect("an answer");
        assert!(page.answers(question), "{page:?}");
        (page.rows, page.next)
    }

    fn flows(&mut self, from: u32) -> (Vec<UserFlow>, Option<u32>) {
        match self.page(UserTable::Flows, from) {
            (UserRows::Flows(rows), next) => (rows, next),
            other => panic!("{other:?}"),
        }
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

/// A segment of the guest: its port, its peer, sequence number, acknowledgement and flags.
fn segment(
    (src_port, (ip, dst_port)): (u16, ([u8; 4], u16)),
    (seq, ack, flags): (u32, u32, u16),
    payload: &[u8],
) -> PacketBuilder {
    let fields = TcpFields {
        src_port,
        dst_port,
        seq,
        ack,
        flags,
        ..TcpFields::default()
    };
    let frame = PacketBuilder::new(GUEST, GATEWAY).ipv4(GUEST_IP, ip);
    frame.tcp(fields).payload(payload)
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
        let parsed = ParsedHeaders::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len());
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
    let parsed = ParsedHeaders::parse(&answer, answer.len());
    let [src, dst] = [GATEWAY_IP, GUEST_IP].map(Ipv4Addr::from);
    assert!(
        matches!(parsed.l3, L3::V4 { src: s, dst: d, .. } if (s, d) == (src, dst)),
        "{parsed:?}"
    );
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

/// The peer's urgent byte stays in its place, whether the system peeks at an offset or not.
#[test]
fn urgent_data_stays_in_the_stream() {
    for has_offset in [true, false] {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let mut world = World::new(&format!("tcp {port}"));
        let next = world.connect(port);
        let mut stream = server.accept().unwrap().0;
        if !has_offset {
            world.forget_peek_offsets();
        }
        stream.write_all(b"before").unwrap();
        rustix::net::send(&stream, b"!", SendFlags::OOB).unwrap();
        stream.write_all(b"after").unwrap();
        drop(stream);
        let (mut got, mut ended) = (Vec::<u8>::new(), None);
        while ended.is_none() {
            let segment = Segment::of(&world.take());
            let known = next + got.len() as u32;
            if segment.seq == known {
                got.extend(&segment.payload);
                let fin = u32::from(segment.flags & FIN != 0);
                ended = (fin > 0).then_some(segment.seq);
                let ack = known + segment.payload.len() as u32 + fin;
                world.segment(port, (IRS + 1, ack, ACK), b"");
            }
        }
        assert_eq!(got, b"before!after", "{has_offset}");
        assert_eq!(ended, Some(next + 12));
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
    assert!(world.worker.gateway.translator.is_empty());
    let letters = world.outbox.take(8, 8);
    assert!(matches!(letters[..], [FlowMessage::Drop(0)]), "{letters:?}");
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

/// A connection: the end that is asked, which has connected or was accepted, and its peer.
fn connection(connects: bool) -> (TcpStream, TcpStream) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(server.local_addr().unwrap()).unwrap();
    let other = server.accept().unwrap().0;
    if connects { (one, other) } else { (other, one) }
}

/// Writes until there is no more room, so that what follows waits; returns how much.
fn fill(stream: &mut TcpStream) -> u64 {
    stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    while let Ok(len) = stream.write(&[1; 4096]) {
        sent += len as u64;
    }
    stream.set_nonblocking(false).unwrap();
    sent
}

/// Closes halves of a connection with bytes on their way both ways, and has the peer read all:
/// where the end that is asked stands is right all the time.
fn closes_halves(connects: bool, halves: &[bool]) {
    let (mut own, mut peer) = connection(connects);
    peer.write_all(&[2; 500]).unwrap();
    own.read_exact(&mut [0; 200]).unwrap();
    let sent = fill(&mut own);
    for is_own in halves {
        let end = if *is_own { &own } else { &peer };
        end.shutdown(std::net::Shutdown::Write).unwrap();
    }
    let of_peer = halves.contains(&false);
    let start = Instant::now();
    let ask = || calls::progress(own.as_fd(), connects, 0).expect("a connection");
    while of_peer && !ask().peer_closed {
        assert!(start.elapsed() < LIMIT, "the peer's end does not come");
    }
    let closes = halves.contains(&true);
    let reader = thread::spawn(move || {
        let mut left = sent;
        while left > 0 {
            left -= peer.read(&mut [0; 4096]).unwrap() as u64;
        }
        // The end, which it acknowledges.
        assert!(!closes || peer.read(&mut [0]).unwrap() == 0);
        peer
    });
    loop {
        let is_last = reader.is_finished();
        let progress = ask();
        let expected = (sent, 200, 300, closes, of_peer);
        let found = (
            progress.taken,
            progress.given,
            progress.unread,
            progress.guest_closed,
            progress.peer_closed,
        );
        assert_eq!(found, expected, "{connects} {halves:?}");
        if is_last {
            break;
        }
    }
    reader.join().unwrap();
}

#[test]
fn the_kernel_knows_it_whatever_halves_are_closed() {
    for connects in [true, false] {
        let orders: [&[bool]; 5] = [&[], &[true], &[false], &[true, false], &[false, true]];
        for halves in orders {
            closes_halves(connects, halves);
        }
    }
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
    let figures = world.worker.gateway.figures();
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
    assert_eq!(
        error.to_string(),
        "the network: it cannot change while the process runs"
    );
}

#[test]
fn without_flows_there_is_nothing_to_wake_for() {
    let mut world = World::new("tcp 1");
    world.turn();
    assert_eq!(world.worker.sleep_limit(), None);
}
