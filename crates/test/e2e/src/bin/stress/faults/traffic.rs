//! The guests, the host, and what they send each other.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::net::RecvFlags;
use testkit::frontend::FrontEnd;
use testkit::guest::{GuestError, GuestPair};
use testkit::guest_ram::RegionSpec;
use testkit::iommu::{IommuConfig, Mode};
use testkit::net::NetHeader;
use testkit::packets::{Flow, arp_reply, mac, numbered_payload, numbered_read, payload_of, udp};
use testkit::{FakeGuest, GuestConfig};

use super::stream::Stream;
use e2e::lasthop::{Lasthop, port_table};
use e2e::namespace;

/// Of each direction, in frames a second.
const PAIR_RATE: f64 = 10_000.0;
const HOST_RATE: f64 = 2_000.0;
/// That of a pair with an IOMMU, each of whose frames is four messages with answers.
const STRICT_RATE: f64 = 1_000.0;
/// Bytes of payload.
const PAYLOAD: usize = 64;
/// Entries of a queue: at the rate of the pair it is full after 100 ms.
const QUEUE: u16 = 1024;
const GUEST_BYTES: u64 = 32 << 20;
/// How often connections are looked at.
const LOOK: Duration = Duration::from_millis(1);
/// How long a new connection may take to be ready.
const DIAL: Duration = Duration::from_secs(1);
const ETHER_ARP: [u8; 2] = [8, 6];

/// Interface between a guest and the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interface {
    /// A TAP device of a port.
    Tap,
    /// One end of a veth pair, by a packet socket; the host's socket is at the other end.
    Packet,
}

impl Interface {
    pub(crate) const ALL: [Self; 2] = [Self::Tap, Self::Packet];

    /// The port.
    pub(crate) fn port(self) -> &'static str {
        match self {
            Self::Tap => "t0",
            Self::Packet => "u0",
        }
    }

    /// The index of the guest that it leads to, and that guest's port.
    fn guest(self) -> (usize, &'static str) {
        match self {
            Self::Tap => (2, "p2"),
            Self::Packet => (3, "p3"),
        }
    }

    /// The host's number among the test guests, for addresses.
    fn number(self) -> u8 {
        match self {
            Self::Tap => 9,
            Self::Packet => 8,
        }
    }

    fn mac(self) -> String {
        mac(self.number())
            .map(|byte| format!("{byte:02x}"))
            .join(":")
    }
}

/// The host's side of a port, in a network namespace of its own.
struct HostSide {
    socket: UdpSocket,
    namespace: File,
}

impl HostSide {
    fn new(interface: Interface) -> Result<Self> {
        namespace::inside_new(move || {
            match interface {
                Interface::Tap => {
                    let mut tun = File::options();
                    tun.read(true)
                        .write(true)
                        .open("/dev/net/tun")
                        .context("/dev/net/tun")?;
                }
                Interface::Packet => {
                    let (mac, number) = (interface.mac(), interface.number());
                    ip("link add up0 type veth peer name wire0")?;
                    ip(&format!("link set wire0 address {mac} up"))?;
                    ip("link set up0 up")?;
                    ip(&format!("address add 10.0.0.{number}/24 dev wire0"))?;
                }
            }
            let port = Flow::v4(3, interface.number()).dst_port;
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
            socket.set_nonblocking(true)?;
            let namespace = File::open("/proc/thread-self/ns/net")?;
            Ok(Self { socket, namespace })
        })
    }

    /// The namespace, for a configuration.
    fn netns(&self) -> String {
        let namespace = self.namespace.as_raw_fd();
        format!("/proc/{}/fd/{namespace}", std::process::id())
    }
}

/// `ip` with these arguments.
fn ip(arguments: &str) -> Result<()> {
    let status = Command::new("ip").args(arguments.split(' ')).status()?;
    ensure!(status.success(), "ip {arguments} failed");
    Ok(())
}

/// The host, behind a TAP port and behind a packet socket.
pub(crate) struct Host([HostSide; 2]);

impl Host {
    pub(crate) fn new() -> Result<Self> {
        let [tap, packet] = Interface::ALL.map(HostSide::new);
        Ok(Self([tap?, packet?]))
    }

    fn side(&self, interface: Interface) -> &HostSide {
        &self.0[interface as usize]
    }

    /// The ports, for a configuration, in segments of their own. The TAP port has a `process`, or
    /// is served by the switch, as the other one is.
    pub(crate) fn port_tables(&self, process: bool) -> String {
        let [tap, packet] = Interface::ALL.map(|interface| {
            let (port, (_, guest)) = (interface.port(), interface.guest());
            let netns = self.side(interface).netns();
            format!(
                "\n[[segment]]\nname = \"host-{port}\"\n{}\n[[port]]\nname = \"{port}\"\n\
                 segment = \"host-{port}\"\nnetns = \"{netns}\"\n",
                port_table(guest, &format!("host-{port}")),
            )
        });
        let (number, mac) = (Interface::Tap.number(), Interface::Tap.mac());
        format!(
            "{tap}kind = \"tap\"\ndriver_process = {process}\naddress = \"10.0.0.{number}/24\"\n\
             mac = \"{mac}\"\n{packet}kind = \"uplink\"\ninterface = \"up0\"\n\
             driver = \"packet\"\n"
        )
    }
}

/// Endpoints of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Guest to guest.
    Pair,
    /// Guest to host.
    Host(Interface),
}

impl Route {
    pub(crate) const ALL: [Self; 3] = [
        Self::Pair,
        Self::Host(Interface::Tap),
        Self::Host(Interface::Packet),
    ];

    /// The ports on the way.
    pub(crate) fn ports(self) -> [&'static str; 2] {
        match self {
            Self::Pair => ["p0", "p1"],
            Self::Host(interface) => [interface.guest().1, interface.port()],
        }
    }
}

/// Guests of the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guests {
    Plain,
    /// With an IOMMU: a page is mapped for one frame, and watched once it is unmapped.
    Strict,
}

impl Guests {
    /// Frames a second, each way.
    fn rate(self) -> f64 {
        match self {
            Self::Plain => PAIR_RATE,
            Self::Strict => STRICT_RATE,
        }
    }
}

/// One end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Counted from 0.
    Guest(usize),
    Host(Interface),
}

impl End {
    /// Its number among the test guests.
    fn number(self) -> u8 {
        match self {
            Self::Guest(index) => u8::try_from(index).unwrap_or_default() + 1,
            Self::Host(interface) => interface.number(),
        }
    }
}

/// A direction between two ends.
pub(crate) struct Lane {
    pub(crate) route: Route,
    pub(crate) from: End,
    pub(crate) to: End,
    pub(crate) stream: Stream,
}

/// A guest and its way back in.
struct Seat {
    /// Away while it dials.
    guest: Option<FakeGuest>,
    /// Thread that sets a new connection up, which waits for replies, while traffic does not.
    /// Returns whether it worked.
    dialing: Option<JoinHandle<(FakeGuest, bool)>>,
    connected: bool,
    socket: PathBuf,
    redials: u32,
}

impl Seat {
    fn attach(lasthop: &Lasthop, guests: Guests, index: usize) -> Result<Self> {
        let config = GuestConfig {
            regions: Some(vec![RegionSpec::at(0, GUEST_BYTES)]),
            queue_size: QUEUE,
            busy: true,
            ..GuestConfig::default()
        };
        let socket = lasthop.socket_of(&format!("p{index}"));
        let config = config.guest(End::Guest(index).number());
        let guest = match guests {
            Guests::Strict if index < 2 => {
                FakeGuest::connect_translated(&socket, config, IommuConfig::new(Mode::Strict))
            }
            _ => FakeGuest::connect(&socket, config),
        };
        let guest = guest.with_context(|| format!("guest {index} is not attached"))?;
        Ok(Self {
            guest: Some(guest),
            dialing: None,
            connected: true,
            socket,
            redials: 0,
        })
    }

    /// Dials again where the connection has ended.
    fn look(&mut self) {
        if let Some(thread) = self.dialing.take_if(|thread| thread.is_finished())
            && let Ok((guest, connected)) = thread.join()
        {
            (self.guest, self.connected) = (Some(guest), connected);
        }
        if self.connected && self.is_closed() {
            self.lose();
        }
        // No listener yet: expected.
        if !self.connected
            && self.guest.is_some()
            && let Ok(socket) = UnixStream::connect(&self.socket)
        {
            self.dial(socket);
        }
    }

    fn lose(&mut self) {
        self.guest.iter_mut().for_each(FakeGuest::crash);
        self.connected = false;
        self.redials += 1;
    }

    fn is_closed(&mut self) -> bool {
        let Some(Ok(front)) = self.guest.as_mut().map(FakeGuest::front) else {
            return true;
        };
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(front.socket(), &mut [0_u8; 1], flags) {
            Ok((_, length)) => length == 0,
            Err(error) => error != rustix::io::Errno::AGAIN,
        }
    }

    /// Sends the guest away to set a connection up.
    fn dial(&mut self, socket: UnixStream) {
        let Some(mut guest) = self.guest.take() else {
            return;
        };
        self.dialing = Some(std::thread::spawn(move || {
            let front = FrontEnd::over(socket, DIAL).map_err(GuestError::from);
            let done = front.and_then(|front| guest.reconnect_over(front));
            (guest, done.is_ok())
        }));
    }

    /// Its queues, unless it is away.
    fn pair(&mut self) -> Option<&mut GuestPair> {
        Some(&mut self.guest.as_mut()?.pairs[0])
    }

    /// Returns whether there was room.
    fn send(&mut self, frame: &[u8]) -> Result<bool> {
        let connected = self.connected;
        match self.pair().filter(|_| connected) {
            Some(pair) => Ok(pair.stage(frame, &NetHeader::default())?),
            None => Ok(false),
        }
    }

    fn flush(&mut self) {
        if let Some(pair) = self.pair() {
            pair.flush();
        }
    }
}

/// Everything that sends and receives.
pub(crate) struct Traffic<'a> {
    seats: Vec<Seat>,
    host: Option<&'a Host>,
    guests: Guests,
    lanes: Vec<Lane>,
    looked: Instant,
    /// Sending stops for the last frames to arrive.
    pub(crate) sending: bool,
    buffer: Vec<u8>,
    /// Payloads of streams that arrived otherwise than they were sent.
    pub(crate) damaged: u64,
}

impl<'a> Traffic<'a> {
    /// Connects all guests.
    pub(crate) fn attach(
        lasthop: &Lasthop,
        guests: Guests,
        host: Option<&'a Host>,
    ) -> Result<Self> {
        let count = if host.is_some() { 4 } else { 2 };
        let seats: Result<_> = (0..count)
            .map(|index| Seat::attach(lasthop, guests, index))
            .collect();
        let mut traffic = Self {
            seats: seats?,
            host,
            guests,
            lanes: Vec::new(),
            looked: Instant::now(),
            sending: true,
            buffer: Vec::new(),
            damaged: 0,
        };
        traffic.begin(0);
        Ok(traffic)
    }

    /// Begins to count anew, with streams that are numbered from `first` on; frames of others are
    /// forgotten.
    pub(crate) fn begin(&mut self, first: u16) {
        let now = Instant::now();
        let (a, b) = (End::Guest(0), End::Guest(1));
        let mut ways = vec![(Route::Pair, a, b), (Route::Pair, b, a)];
        for interface in self.host.iter().flat_map(|_| Interface::ALL) {
            let (guest, host) = (End::Guest(interface.guest().0), End::Host(interface));
            let route = Route::Host(interface);
            ways.extend([(route, guest, host), (route, host, guest)]);
        }
        let pair_rate = self.guests.rate();
        let lane = |(id, (route, from, to))| {
            let rate = match route {
                Route::Pair => pair_rate,
                Route::Host(_) => HOST_RATE,
            };
            Lane {
                route,
                from,
                to,
                stream: Stream::new(id, rate, now),
            }
        };
        self.lanes = (first..).zip(ways).map(lane).collect();
        self.sending = true;
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    pub(crate) fn streams(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.lanes.iter_mut().map(|lane| &mut lane.stream)
    }

    /// Guests that had to dial again.
    pub(crate) fn redialled(&self) -> Vec<usize> {
        let all = self.seats.iter().enumerate();
        all.filter(|(_, seat)| seat.redials > 0)
            .map(|(index, _)| index)
            .collect()
    }

    /// Looks for pages of guests with an IOMMU that were written after they were revoked.
    ///
    /// # Errors
    /// When there is one.
    pub(crate) fn verify_pages(&self) -> Result<()> {
        if self.guests == Guests::Strict {
            for guest in self.seats[..2]
                .iter()
                .filter_map(|seat| seat.guest.as_ref())
            {
                let watched = guest.iommu().verify().map_err(anyhow::Error::msg)?;
                ensure!(watched > 0, "no page is watched");
            }
        }
        Ok(())
    }

    /// New connections of all guests together.
    pub(crate) fn redials(&self) -> u64 {
        self.seats.iter().map(|seat| u64::from(seat.redials)).sum()
    }

    /// A guest resets its device and starts it again; whether it was connected.
    ///
    /// # Errors
    /// When the connection ends over it.
    pub(crate) fn reboot(&mut self, guest: usize) -> Result<bool> {
        let seat = &mut self.seats[guest];
        let connected = seat.connected;
        let Some(guest) = seat.guest.as_mut().filter(|_| connected) else {
            return Ok(false);
        };
        guest.reset()?;
        Ok(true)
    }

    /// A guest's VMM goes away, and comes back as soon as it can; whether it was there.
    pub(crate) fn crash(&mut self, guest: usize) -> bool {
        let seat = &mut self.seats[guest];
        let was_connected = seat.connected;
        if was_connected {
            seat.lose();
        }
        was_connected
    }

    /// Sends what is due, takes what has arrived, and dials where a connection has ended.
    ///
    /// # Errors
    /// When the switch broke a rule of the queues.
    pub(crate) fn step(&mut self) -> Result<()> {
        if self.sending {
            self.send()?;
        }
        for index in 0..self.seats.len() {
            self.receive(index)?;
        }
        for interface in Interface::ALL {
            self.receive_at_host(interface)?;
        }
        if self.looked.elapsed() >= LOOK {
            self.seats.iter_mut().for_each(Seat::look);
            self.looked = Instant::now();
        }
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        let now = Instant::now();
        for lane in &mut self.lanes {
            let flow = Flow::v4(lane.from.number(), lane.to.number());
            for _ in 0..lane.stream.take_due(now) {
                let payload = numbered_payload(lane.stream.next(), PAYLOAD);
                let sent = match (lane.from, self.host) {
                    (End::Guest(index), _) => self.seats[index].send(&udp(&flow, &payload))?,
                    (End::Host(interface), Some(host)) => {
                        let to = SocketAddr::new(flow.dst, flow.dst_port);
                        let socket = &host.side(interface).socket;
                        socket.send_to(&payload, to).is_ok()
                    }
                    (End::Host(_), None) => false,
                };
                if sent {
                    lane.stream.was_sent();
                }
            }
            if let End::Guest(index) = lane.from {
                self.seats[index].flush();
            }
        }
        Ok(())
    }

    fn receive(&mut self, index: usize) -> Result<()> {
        let mut frame = std::mem::take(&mut self.buffer);
        while let Some(pair) = self.seats[index].pair()
            && pair.try_recv_into(&mut frame)?.is_some()
        {
            match payload_of(&frame) {
                _ if frame.get(12..14) == Some(&ETHER_ARP[..]) => self.answer_arp(index)?,
                Ok(payload) if !is_group(&frame) => self.see(End::Guest(index), payload),
                // The host's own noise: IPv6 looks for routers and neighbours.
                _ => {}
            }
        }
        self.buffer = frame;
        Ok(())
    }

    /// The only one who asks is the host.
    fn answer_arp(&mut self, index: usize) -> Result<()> {
        let mut all = Interface::ALL.into_iter();
        let Some(asker) = all.find(|interface| interface.guest().0 == index) else {
            return Ok(());
        };
        let address = |end: End| (mac(end.number()), Ipv4Addr::new(10, 0, 0, end.number()));
        let answer = arp_reply(address(End::Guest(index)), address(End::Host(asker)));
        self.seats[index].send(&answer)?;
        self.seats[index].flush();
        Ok(())
    }

    fn receive_at_host(&mut self, interface: Interface) -> Result<()> {
        let Some(host) = self.host else { return Ok(()) };
        let socket = &host.side(interface).socket;
        let mut payload = [0; 2048];
        loop {
            match socket.recv(&mut payload) {
                Ok(length) => self.see(End::Host(interface), &payload[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // What ICMP said about frames before.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => bail!("the host's socket: {error}"),
            }
        }
    }

    fn see(&mut self, end: End, payload: &[u8]) {
        let Some(key) = numbered_read(payload) else {
            self.damaged += 1;
            return;
        };
        let own = |lane: &&mut Lane| lane.to == end && lane.stream.id() == key.stream;
        if let Some(lane) = self.lanes.iter_mut().find(own) {
            lane.stream.see(payload, Instant::now());
        }
    }
}

/// Returns whether a frame is for several: ours never are.
fn is_group(frame: &[u8]) -> bool {
    frame.first().is_some_and(|byte| byte & 1 != 0)
}
