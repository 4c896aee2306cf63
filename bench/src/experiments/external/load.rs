//! Traffic between two namespaces: a sender and a receiver with plain sockets, each in a thread.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use load::lean::Histogram;
use serde::Serialize;

use super::requests::{answer, ask};
use super::world::{FAR, NEAR, Namespace, World};

/// Bytes of a TCP write and read.
const CHUNK: usize = 128 << 10;
/// Bytes that make a frame of 64 bytes with the headers of UDP, IPv4 and Ethernet.
pub(super) const PAYLOAD: usize = 64 - 8 - 20 - 14;
/// Names of the two threads.
pub(super) const SENDER: &str = "bench-sender";
pub(super) const RECEIVER: &str = "bench-receiver";
/// UDP packets of a system call.
const BATCH: usize = 64;
/// Connections of [`Load::TcpStreams`].
const STREAMS: usize = 16;
/// How often a thread that waits looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// How long a connection may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Kind and direction of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Load {
    TcpOut,
    TcpIn,
    UdpOut,
    UdpIn,
    /// Small requests one at a time, each with an answer of the same size.
    TcpRequests,
    UdpRequests,
    /// Requests over UDP, so many a second.
    PacedRequests(u32),
    /// As [`Load::TcpOut`] with sixteen connections.
    TcpStreams,
    /// Of guests, by the lean client.
    Guests,
}

impl Load {
    /// Between namespaces.
    pub(super) const SOCKETS: [Self; 10] = [
        Self::TcpOut,
        Self::TcpIn,
        Self::UdpOut,
        Self::UdpIn,
        Self::TcpRequests,
        Self::UdpRequests,
        Self::PacedRequests(1000),
        Self::PacedRequests(5000),
        Self::PacedRequests(20_000),
        Self::TcpStreams,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TcpOut => "TCP out, Gbit/s",
            Self::TcpIn => "TCP in, Gbit/s",
            Self::UdpOut => "64 B out, kpps",
            Self::UdpIn => "64 B in, kpps",
            Self::TcpRequests => "TCP requests, transactions/s",
            Self::UdpRequests => "UDP requests, transactions/s",
            Self::PacedRequests(1000) => "1000 UDP requests a second, transactions/s",
            Self::PacedRequests(5000) => "5000 UDP requests a second, transactions/s",
            Self::PacedRequests(_) => "20 000 UDP requests a second, transactions/s",
            Self::TcpStreams => "TCP out, 16 connections, Gbit/s",
            Self::Guests => "64 B, two guests, kpps",
        }
    }

    /// Returns whether each unit is a request with its answer.
    pub(crate) fn is_requests(self) -> bool {
        matches!(
            self,
            Self::TcpRequests | Self::UdpRequests | Self::PacedRequests(_)
        )
    }

    /// Gbit of so many bytes, thousands of so many packets, or transactions.
    pub(crate) fn per_second(self, count: u64) -> f64 {
        let count = count as f64;
        match self {
            Self::TcpOut | Self::TcpIn | Self::TcpStreams => count * 8.0 / 1e9,
            Self::UdpOut | Self::UdpIn | Self::Guests => count / 1e3,
            Self::TcpRequests | Self::UdpRequests | Self::PacedRequests(_) => count,
        }
    }

    /// Time between two requests; `None`: each follows the answer before it.
    fn period(self) -> Option<Duration> {
        match self {
            Self::PacedRequests(rate) => Some(Duration::from_secs(1) / rate),
            _ => None,
        }
    }

    /// Starts sender and receiver; there is a way between them when this returns.
    pub(super) fn start(self, world: &World) -> Result<Traffic> {
        let port = next_port();
        let ends = [(&world.near, NEAR), (&world.far, FAR)];
        let ends = match self {
            Self::TcpIn | Self::UdpIn => [ends[1], ends[0]],
            _ => ends,
        };
        match self {
            Self::TcpOut | Self::TcpIn => {
                let [sender, receiver] = tcp(ends, port)?;
                Traffic::of(
                    move |shared| write(sender, shared),
                    move |shared| read(receiver, shared),
                )
            }
            Self::UdpOut | Self::UdpIn | Self::Guests => {
                let [sender, receiver] = udp(ends, port)?;
                Traffic::of(
                    move |shared| send(&sender, shared, PAYLOAD, None),
                    move |shared| receive(&receiver, shared, PAYLOAD),
                )
            }
            Self::TcpRequests => {
                let [client, server] = tcp(ends, port)?;
                for stream in [&client, &server] {
                    stream.set_nodelay(true)?;
                }
                Traffic::of(
                    move |shared| ask(&client, shared, None),
                    move |shared| answer(&server, shared),
                )
            }
            Self::TcpStreams => streams(ends),
            Self::UdpRequests | Self::PacedRequests(_) => {
                let [client, server] = udp(ends, port)?;
                server.connect(format!("{}:{port}", ends[0].1))?;
                let period = self.period();
                Traffic::of(
                    move |shared| ask(&client, shared, period),
                    move |shared| answer(&server, shared),
                )
            }
        }
    }
}

/// Packets or requests over UDP between two connected sockets: the first sends, or asks.
pub(crate) fn over(load: Load, [client, server]: [UdpSocket; 2]) -> Result<Traffic> {
    if load.is_requests() {
        let period = load.period();
        return Traffic::of(
            move |shared| ask(&client, shared, period),
            move |shared| answer(&server, shared),
        );
    }
    Traffic::of(
        move |shared| send(&client, shared, PAYLOAD, None),
        move |shared| receive(&server, shared, PAYLOAD),
    )
}

/// Connections at work at once, each with threads of its own.
fn streams(ends: Ends<'_>) -> Result<Traffic> {
    let pairs = (0..STREAMS).map(|_| tcp(ends, next_port()));
    let pairs = pairs.collect::<Result<Vec<_>>>()?;
    let (senders, receivers): (Vec<_>, Vec<_>) = pairs.into_iter().map(|[a, b]| (a, b)).unzip();
    Traffic::of(
        move |shared| each(senders, |stream| write(stream, shared)),
        move |shared| each(receivers, |stream| read(stream, shared)),
    )
}

/// Has a thread for each of these.
fn each<T: Send>(all: Vec<T>, work: impl Fn(T) -> Result<()> + Copy + Send) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = all
            .into_iter()
            .map(|one| scope.spawn(move || work(one)))
            .collect();
        let mut ends = threads.into_iter();
        ends.try_for_each(|thread| thread.join().ok().context("a thread panicked")?)
    })
}

/// Packets of so much payload into the near namespace, so many a second.
pub(super) fn paced(world: &World, payload: usize, rate: u32) -> Result<Traffic> {
    let ends = [(&world.far, FAR), (&world.near, NEAR)];
    let [sender, receiver] = udp(ends, next_port())?;
    let period = Duration::from_secs(1) * BATCH as u32 / rate;
    Traffic::of(
        move |shared| send(&sender, shared, payload, Some(period)),
        move |shared| receive(&receiver, shared, payload),
    )
}

/// A port of its own for each traffic: late packets of the one before are for another one.
fn next_port() -> u16 {
    static PORT: AtomicU16 = AtomicU16::new(5001);
    PORT.fetch_add(1, Ordering::Relaxed)
}

/// Two namespaces with their addresses.
type Ends<'a> = [(&'a Namespace, &'static str); 2];

/// A connection from the first to the second.
fn tcp(ends: Ends<'_>, port: u16) -> Result<[TcpStream; 2]> {
    let address = format!("{}:{port}", ends[1].1);
    let listener = ends[1].0.inside(|| Ok(TcpListener::bind(&address)?))?;
    let client = ends[0].0.inside(|| {
        let address = address.parse()?;
        Ok(TcpStream::connect_timeout(&address, TIMEOUT)?)
    })?;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(LOOK))?;
    }
    client.set_write_timeout(Some(LOOK))?;
    Ok([client, server])
}

/// Sockets at this port, the first connected to the second.
fn udp(ends: Ends<'_>, port: u16) -> Result<[UdpSocket; 2]> {
    let [client, server] = ends.map(|(namespace, address)| {
        namespace.inside(|| Ok(UdpSocket::bind(format!("{address}:{port}"))?))
    });
    let (client, server) = (client?, server?);
    client.connect(format!("{}:{port}", ends[1].1))?;
    for socket in [&client, &server] {
        socket.set_read_timeout(Some(LOOK))?;
    }
    Ok([client, server])
}

/// State of two threads at work, and of the one that measures them.
#[derive(Default)]
pub(super) struct Shared {
    ended: AtomicBool,
    /// Bytes, packets or answers that have arrived.
    pub(super) count: AtomicU64,
    /// Nanoseconds of requests.
    latency: Mutex<Histogram>,
}

impl Shared {
    pub(super) fn is_running(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Records the time of a request, in nanoseconds.
    pub(super) fn record(&self, nanoseconds: u64) {
        let latency = self.latency.lock();
        let mut latency = latency.unwrap_or_else(PoisonError::into_inner);
        latency.record(nanoseconds);
    }

    /// Takes the times since the last call.
    pub(super) fn take_latency(&self) -> Histogram {
        let latency = self.latency.lock();
        std::mem::take(&mut latency.unwrap_or_else(PoisonError::into_inner))
    }
}

/// A sender and a receiver at work.
pub(crate) struct Traffic {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Drop for Traffic {
    /// Threads that are not waited for end, too.
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Traffic {
    fn of(
        send: impl FnOnce(&Shared) -> Result<()> + Send + 'static,
        receive: impl FnOnce(&Shared) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (sending, receiving) = (shared.clone(), shared.clone());
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        Ok(Self {
            threads: vec![
                named(SENDER).spawn(move || send(&sending))?,
                named(RECEIVER).spawn(move || receive(&receiving))?,
            ],
            shared,
        })
    }

    /// Bytes, packets or answers that have arrived.
    pub(crate) fn count(&self) -> u64 {
        self.shared.count.load(Ordering::Relaxed)
    }

    /// Nanoseconds of the requests since the last call.
    pub(super) fn take_latency(&self) -> Histogram {
        self.shared.take_latency()
    }

    pub(crate) fn end(mut self) -> Result<()> {
        self.shared.end();
        for thread in std::mem::take(&mut self.threads) {
            thread.join().ok().context("a thread panicked")??;
        }
        Ok(())
    }
}

pub(super) fn waited(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

fn write(mut stream: TcpStream, shared: &Shared) -> Result<()> {
    let chunk = vec![0; CHUNK];
    while shared.is_running() {
        match stream.write(&chunk) {
            Err(error) if !waited(&error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

fn read(mut stream: TcpStream, shared: &Shared) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    while shared.is_running() {
        match stream.read(&mut chunk) {
            Ok(len) => shared.count.fetch_add(len as u64, Ordering::Relaxed),
            Err(error) if waited(&error) => continue,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(())
}

/// Messages of one system call, each with a piece of memory of its own.
struct Messages {
    _bytes: Vec<Vec<u8>>,
    _pieces: Vec<libc::iovec>,
    heads: Vec<libc::mmsghdr>,
}

impl Messages {
    fn new(payload: usize) -> Self {
        let mut bytes = vec![vec![0_u8; payload]; BATCH];
        let piece = |bytes: &mut Vec<u8>| libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let mut pieces: Vec<libc::iovec> = bytes.iter_mut().map(piece).collect();
        let head = |piece: &mut libc::iovec| {
            // SAFETY: zero is a value of this C structure: null pointers and lengths of 0.
            let mut head: libc::mmsghdr = unsafe { std::mem::zeroed() };
            head.msg_hdr.msg_iov = piece;
            head.msg_hdr.msg_iovlen = 1;
            head
        };
        let heads = pieces.iter_mut().map(head).collect();
        Self {
            _bytes: bytes,
            _pieces: pieces,
            heads,
        }
    }
}

/// Sends a batch each period, or without a pause.
fn send(
    socket: &UdpSocket,
    shared: &Shared,
    payload: usize,
    period: Option<Duration>,
) -> Result<()> {
    let mut messages = Messages::new(payload);
    let mut due = Instant::now();
    let heads = messages.heads.as_mut_ptr();
    while shared.is_running() {
        // SAFETY: the heads describe pieces that live as long as `messages`; the system writes the
        // heads alone.
        let done = unsafe { libc::sendmmsg(socket.as_raw_fd(), heads, BATCH as u32, 0) };
        let error = std::io::Error::last_os_error();
        // No room, or no receiver yet: lost frames do not count.
        if done < 0 && !waited(&error) && error.kind() != ErrorKind::ConnectionRefused {
            let full = error.raw_os_error() == Some(libc::ENOBUFS);
            anyhow::ensure!(full, "sending: {error}");
        }
        if let Some(period) = period {
            due += period;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
    Ok(())
}

fn receive(socket: &UdpSocket, shared: &Shared, payload: usize) -> Result<()> {
    let mut messages = Messages::new(payload);
    let heads = messages.heads.as_mut_ptr();
    let (flags, no_limit) = (libc::MSG_WAITFORONE, std::ptr::null_mut());
    while shared.is_running() {
        // SAFETY: as in `send`; the pieces are written by the system alone.
        let got =
            unsafe { libc::recvmmsg(socket.as_raw_fd(), heads, BATCH as u32, flags, no_limit) };
        match u64::try_from(got) {
            Ok(got) => _ = shared.count.fetch_add(got, Ordering::Relaxed),
            Err(_) => {
                let error = std::io::Error::last_os_error();
                anyhow::ensure!(waited(&error), "receiving: {error}");
            }
        }
    }
    Ok(())
}
