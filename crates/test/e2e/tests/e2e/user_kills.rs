//! Connections over a user port outlive its processes: the driver and the switch are killed, and
//! Lasthop is upgraded.
//!
//! The guests are stacks of crate `net`. Half of the streams were opened by a guest, half came by a
//! forward. `LASTHOP_LONG=1` kills more often.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use e2e::lasthop::Lasthop;
use e2e::machine::raise_open_files;
use e2e::outside::{OUTSIDE, echo, namespaces, serve, user_port};
use e2e::uplinks::{driver_pid, pattern};
use e2e::{Turn, beside};
use rustix::process::Signal;
use sockets::config::{Network, Route};
use sockets::{Config, Errno, Kind, Net};
use testkit::is_complete_run;
use testkit::lasthop::port;
use testkit::netns::Netns;
use testkit::process::send as signal;
use testkit::procfs;
use testkit::wait::{wait_for, wait_until};

/// Streams whose every byte is checked.
const STREAMS: usize = 32;
/// Connections on which nothing happens, and the guests that have them.
const IDLE: usize = 1000;
const IDLE_GUESTS: usize = 4;
/// Bytes of a stream that have not come back yet, at most.
const IN_FLIGHT: usize = 64 << 10;
/// Bytes of each stream after an interruption: more than can have waited since before.
const PROGRESS: u64 = 4 * IN_FLIGHT as u64;
/// The bytes of streams repeat after so many.
const PERIOD: usize = 1_000_003;
/// Time until flows are kept.
const YOUNG: Duration = Duration::from_secs(1);
/// The address of the guest with the streams, and the port at which it accepts some.
const GUEST: &str = "10.0.2.200";
const SERVICE: u16 = 7;
const FORWARD: &str = "127.0.0.1:2222";

/// A guest at a port.
fn plug_in(lasthop: &Lasthop, name: &str, address: Option<&str>, buffer: usize) -> Arc<Net> {
    let mut config = Config::new(lasthop.socket_of(name));
    config.buffer = buffer;
    if let Some(address) = address {
        let network = Network::parse(&format!("{address}/24"));
        config.addresses = vec![network.expect("a network")];
        config.routes = vec![Route::parse("10.0.2.2").expect("a router")];
    }
    Net::plug_in(config).expect("a guest at a port")
}

/// Connections of a guest to an address of the outside.
fn connect(net: &Net, to: &str, count: usize) -> Vec<sockets::Id> {
    let to: SocketAddr = to.parse().expect("an address");
    let opened = (0..count).map(|_| {
        let id = net.open(Kind::Stream).expect("room for a socket");
        assert_eq!(net.connect(id, to), Err(Errno::INPROGRESS));
        id
    });
    let ids: Vec<sockets::Id> = opened.collect();
    for id in &ids {
        wait_until("a connection", || net.ready(*id, libc::POLLOUT) != 0);
        assert_eq!(net.peer(*id), Ok(to), "{:?}", net.take_error(*id));
    }
    ids
}

/// Connections to the guest by a forward, which give back what comes.
fn forwarded(net: &Net, host: &Netns, count: usize) -> Vec<sockets::Id> {
    let listener = net.open(Kind::Stream).expect("room for a socket");
    let any = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), SERVICE);
    net.bind(listener, any).expect("a free port");
    net.listen(listener, count as i32).expect("it listens");
    let ids = (0..count).map(|_| {
        let stream = host.connect(FORWARD);
        thread::spawn(|| echo(stream));
        wait_for("a forwarded connection", || net.accept(listener).ok())
    });
    ids.collect()
}

/// How far streams are, for another thread.
#[derive(Default)]
struct Seen {
    /// Bytes of each that came back.
    received: [AtomicU64; STREAMS],
    /// The longest time without a byte of each, in microseconds.
    gaps: [AtomicU64; STREAMS],
    is_over: AtomicBool,
}

struct Stream {
    id: sockets::Id,
    /// Place of its first byte in the pattern.
    first: usize,
    sent: usize,
    received: usize,
    last: Instant,
}

impl Stream {
    /// Sends what there is room for, and checks what has come back. Returns whether there was
    /// something.
    fn turn(&mut self, net: &Net, bytes: &[u8], into: &mut [u8]) -> bool {
        let part = |at: usize| &bytes[(self.first + at) % PERIOD..];
        let room = IN_FLIGHT - (self.sent - self.received);
        let sent = match net.send(self.id, &part(self.sent)[..room], None) {
            Ok(len) => len,
            Err(Errno::AGAIN) => 0,
            Err(error) => panic!("a stream ends after {} bytes: {error}", self.sent),
        };
        let received = match net.receive(self.id, into, false) {
            Ok(got) if got.len > 0 => got.len,
            Err(Errno::AGAIN) => 0,
            end => panic!("a stream ends after {} bytes: {end:?}", self.received),
        };
        let is_right = into[..received] == part(self.received)[..received];
        assert!(is_right, "wrong bytes behind {}", self.received);
        self.sent += sent;
        self.received += received;
        sent + received > 0
    }
}

/// Has bytes go around on all streams, without end.
fn go_around(net: &Net, ids: &[sockets::Id], seen: &Seen) {
    let bytes: Vec<u8> = (0..PERIOD + IN_FLIGHT)
        .map(|at| pattern(at % PERIOD))
        .collect();
    let mut into = vec![0; IN_FLIGHT];
    let start = |(number, id): (usize, &sockets::Id)| Stream {
        id: *id,
        first: number * 1009,
        sent: 0,
        received: 0,
        last: Instant::now(),
    };
    let mut streams: Vec<Stream> = ids.iter().enumerate().map(start).collect();
    while !seen.is_over.load(Ordering::Relaxed) {
        let mut has_moved = false;
        for (number, stream) in streams.iter_mut().enumerate() {
            let before = stream.received;
            has_moved |= stream.turn(net, &bytes, &mut into);
            if stream.received > before {
                let gap = stream.last.elapsed().as_micros() as u64;
                seen.gaps[number].fetch_max(gap, Ordering::Relaxed);
                stream.last = Instant::now();
                seen.received[number].store(stream.received as u64, Ordering::Relaxed);
            }
        }
        if !has_moved {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Running streams.
struct Streams {
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

impl Streams {
    fn start(net: Arc<Net>, ids: Vec<sockets::Id>) -> Self {
        let seen = Arc::new(Seen::default());
        let own = Arc::clone(&seen);
        let thread = thread::spawn(move || go_around(&net, &ids, &own));
        Self {
            seen,
            thread: Some(thread),
        }
    }

    fn received(&self) -> Vec<u64> {
        let received = self.seen.received.iter();
        received
            .map(|count| count.load(Ordering::Relaxed))
            .collect()
    }

    /// Waits until bytes have gone around on all, so that each is known to live.
    fn wait_progress(&self) {
        let before = self.received();
        wait_until("all streams move", || {
            let thread = self.thread.as_ref();
            let has_failed = thread.is_some_and(JoinHandle::is_finished);
            assert!(!has_failed, "a stream has ended");
            let now = self.received();
            now.iter()
                .zip(&before)
                .all(|(now, before)| now - before >= PROGRESS)
        });
    }

    /// Does something that interrupts the streams, and prints for how long.
    fn interrupt(&self, turn: &Turn, what: &str, act: impl FnOnce()) {
        let gaps = self.seen.gaps.iter();
        gaps.for_each(|gap| gap.store(0, Ordering::Relaxed));
        act();
        self.wait_progress();
        let gaps = self.seen.gaps.iter();
        let mut gaps: Vec<u64> = gaps.map(|gap| gap.load(Ordering::Relaxed) / 1000).collect();
        gaps.sort_unstable();
        let (median, longest) = (gaps[STREAMS / 2], gaps[STREAMS - 1]);
        turn.step(&format!(
            "    {what}: gaps of {median} ms (median), {longest} ms (longest)"
        ));
    }

    fn end(mut self) {
        self.seen.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread
            .map(JoinHandle::join)
            .expect("once")
            .expect("all bytes were right");
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.seen.is_over.store(true, Ordering::Relaxed);
    }
}

/// Accepts connections, counted in `accepted`, and answers one byte on each, in their order.
fn answer_once(listener: TcpListener, accepted: Arc<AtomicUsize>) {
    thread::spawn(move || {
        let all: Vec<_> = listener
            .incoming()
            .take(IDLE)
            .inspect(|_| {
                accepted.fetch_add(1, Ordering::Relaxed);
            })
            .collect();
        for stream in all {
            let mut stream = stream.expect("a connection");
            let mut byte = [0];
            // The guest finds out what does not come.
            let _ = stream
                .read_exact(&mut byte)
                .and_then(|()| stream.write_all(&byte));
        }
    });
}

/// Asks on each idle connection of a guest.
fn ask(net: &Net, ids: &[sockets::Id]) {
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(net.send(*id, &[number as u8], None), Ok(1));
    }
}

fn check_answers(net: &Net, ids: &[sockets::Id]) {
    for (number, id) in ids.iter().enumerate() {
        let mut byte = [0];
        let got = wait_for("an answer", || match net.receive(*id, &mut byte, false) {
            Err(Errno::AGAIN) => None,
            got => Some(got.map(|got| got.len)),
        });
        assert_eq!((got, byte[0]), (Ok(1), number as u8), "connection {number}");
    }
}

fn kill_driver(lasthop: &Lasthop) {
    let pid = driver_pid(lasthop, "out").expect("a driver");
    signal(pid, Signal::KILL);
    lasthop.other_driver("out", pid);
}

#[test]
fn connections_outlive_driver_switch_and_version() {
    if !Netns::allowed() {
        return;
    }
    let (kills, switches, upgrades) = match is_complete_run() {
        true => (50, 20, 10),
        false => (3, 2, 1),
    };
    raise_open_files();
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (host, outside) = namespaces(folder.path());
    serve(outside.listen(&format!("{OUTSIDE}:7000")), echo);
    let accepted = Arc::new(AtomicUsize::new(0));
    answer_once(
        outside.listen(&format!("{OUTSIDE}:7001")),
        Arc::clone(&accepted),
    );
    let names: Vec<String> = (1..=IDLE_GUESTS).map(|n| format!("idle{n}")).collect();
    let guests: String = names.iter().map(|name| port(name, "")).collect();
    let forward =
        format!("[[port.forward]]\nlisten = \"tcp {FORWARD}\"\nto = \"{GUEST}:{SERVICE}\"");
    let ports = [guests, port("streams", ""), user_port(&host, &forward)].concat();
    let lasthop = Lasthop::start(&format!("[switch]\nname = \"host1\"\n{ports}"));

    // A DHCP client asks again after ten seconds.
    lasthop.wait_port("out", "up");
    turn.step("idle connections");
    let idle: Vec<_> = names
        .iter()
        .map(|name| {
            let net = plug_in(&lasthop, name, None, 4096);
            let ids = connect(&net, &format!("{OUTSIDE}:7001"), IDLE / IDLE_GUESTS);
            (net, ids)
        })
        .collect();
    wait_until("all are there", || accepted.load(Ordering::Relaxed) == IDLE);
    turn.step("streams");
    let net = plug_in(&lasthop, "streams", Some(GUEST), 2 * IN_FLIGHT);
    let mut ids = connect(&net, &format!("{OUTSIDE}:7000"), STREAMS / 2);
    ids.extend(forwarded(&net, &host, STREAMS / 2));
    let streams = Streams::start(net, ids);
    thread::sleep(YOUNG);
    streams.wait_progress();
    wait_until("the supervisor has all sockets", || {
        let descriptors = procfs::descriptors(lasthop.supervisor());
        descriptors.is_some_and(|count| count as usize > IDLE + STREAMS)
    });

    turn.step("kills and upgrades");
    for _ in 0..kills {
        streams.interrupt(&turn, "driver", || kill_driver(&lasthop));
    }
    let restarts = &lasthop.port("out")["driver_status"]["restarts"];
    assert_eq!(*restarts, kills, "a driver has ended by itself");
    for _ in 0..switches {
        streams.interrupt(&turn, "switch", || lasthop.replace_switch());
    }
    for _ in 0..upgrades {
        streams.interrupt(&turn, "upgrade", || drop(lasthop.ok(&["upgrade"])));
    }
    streams.end();
    turn.step("idle connections have stayed");
    idle.iter().for_each(|(net, ids)| ask(net, ids));
    idle.iter().for_each(|(net, ids)| check_answers(net, ids));
}
