//! Traffic between two namespaces: a sender and a receiver with plain sockets, each in a thread.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::world::{FAR, NEAR, World};

/// Bytes of a TCP write and read.
const CHUNK: usize = 128 << 10;
/// Bytes that make a frame of 64 bytes with the headers of UDP, IPv4 and Ethernet.
const PAYLOAD: usize = 64 - 8 - 20 - 14;
/// UDP packets of a system call.
const BATCH: usize = 64;
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
    /// Of guests, by the lean client.
    Guests,
}

impl Load {
    /// Between namespaces.
    pub(super) const SOCKETS: [Self; 4] = [Self::TcpOut, Self::TcpIn, Self::UdpOut, Self::UdpIn];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TcpOut => "TCP out, Gbit/s",
            Self::TcpIn => "TCP in, Gbit/s",
            Self::UdpOut => "64 B out, kpps",
            Self::UdpIn => "64 B in, kpps",
            Self::Guests => "64 B, two guests, kpps",
        }
    }

    /// Gbit of so many bytes, or thousands of so many packets.
    pub(super) fn per_second(self, count: u64) -> f64 {
        let count = count as f64;
        match self {
            Self::TcpOut | Self::TcpIn => count * 8.0 / 1e9,
            Self::UdpOut | Self::UdpIn | Self::Guests => count / 1e3,
        }
    }

    /// Starts sender and receiver; there is a way between them when this returns.
    pub(super) fn start(self, world: &World) -> Result<Traffic> {
        // What is left of the traffic before goes to another port.
        static PORT: AtomicU16 = AtomicU16::new(5001);
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let ends = [(&world.near, NEAR), (&world.far, FAR)];
        let (from, to) = match self {
            Self::TcpOut | Self::UdpOut | Self::Guests => (ends[0], ends[1]),
            Self::TcpIn | Self::UdpIn => (ends[1], ends[0]),
        };
        let (address, other) = (format!("{}:{port}", to.1), format!("{}:{port}", from.1));
        match self {
            Self::TcpOut | Self::TcpIn => {
                let listener = to.0.inside(|| Ok(TcpListener::bind(&address)?))?;
                let sender = from.0.inside(|| {
                    let address = address.parse()?;
                    Ok(TcpStream::connect_timeout(&address, TIMEOUT)?)
                })?;
                let (receiver, _) = listener.accept()?;
                receiver.set_read_timeout(Some(LOOK))?;
                sender.set_write_timeout(Some(LOOK))?;
                Ok(Traffic::of(
                    move |running| write(sender, running),
                    move |running, count| read(receiver, running, count),
                ))
            }
            Self::UdpOut | Self::UdpIn | Self::Guests => {
                let receiver = to.0.inside(|| Ok(UdpSocket::bind(&address)?))?;
                let sender = from.0.inside(|| Ok(UdpSocket::bind(&other)?))?;
                sender.connect(&address)?;
                receiver.set_read_timeout(Some(LOOK))?;
                Ok(Traffic::of(
                    move |running| send(&sender, running),
                    move |running, count| receive(&receiver, running, count),
                ))
            }
        }
    }
}

/// A sender and a receiver at work.
pub(super) struct Traffic {
    running: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    threads: [JoinHandle<Result<()>>; 2],
}

impl Traffic {
    fn of(
        send: impl FnOnce(&AtomicBool) -> Result<()> + Send + 'static,
        receive: impl FnOnce(&AtomicBool, &AtomicU64) -> Result<()> + Send + 'static,
    ) -> Self {
        let (running, count) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let (sending, receiving, counted) = (running.clone(), running.clone(), count.clone());
        Self {
            threads: [
                std::thread::spawn(move || send(&sending)),
                std::thread::spawn(move || receive(&receiving, &counted)),
            ],
            running,
            count,
        }
    }

    /// Bytes or packets that have arrived.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn end(self) -> Result<()> {
        self.running.store(false, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().ok().context("a thread panicked")??;
        }
        Ok(())
    }
}

fn waited(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

fn write(mut stream: TcpStream, running: &AtomicBool) -> Result<()> {
    let chunk = vec![0; CHUNK];
    while running.load(Ordering::Relaxed) {
        match stream.write(&chunk) {
            Err(error) if !waited(&error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

fn read(mut stream: TcpStream, running: &AtomicBool, count: &AtomicU64) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    while running.load(Ordering::Relaxed) {
        match stream.read(&mut chunk) {
            Ok(len) => count.fetch_add(len as u64, Ordering::Relaxed),
            Err(error) if waited(&error) => continue,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(())
}

/// Messages of one system call, each with a piece of memory of its own.
struct Messages {
    _bytes: Vec<[u8; PAYLOAD]>,
    _pieces: Vec<libc::iovec>,
    heads: Vec<libc::mmsghdr>,
}

impl Messages {
    fn new() -> Self {
        let mut bytes = vec![[0u8; PAYLOAD]; BATCH];
        let piece = |bytes: &mut [u8; PAYLOAD]| libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: PAYLOAD,
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

fn send(socket: &UdpSocket, running: &AtomicBool) -> Result<()> {
    let mut messages = Messages::new();
    let heads = messages.heads.as_mut_ptr();
    while running.load(Ordering::Relaxed) {
        // SAFETY: the heads describe pieces that live as long as `messages`; the system writes the
        // heads alone.
        let done = unsafe { libc::sendmmsg(socket.as_raw_fd(), heads, BATCH as u32, 0) };
        let error = std::io::Error::last_os_error();
        // No room, or no receiver yet: lost frames do not count.
        if done < 0 && !waited(&error) && error.kind() != ErrorKind::ConnectionRefused {
            let full = error.raw_os_error() == Some(libc::ENOBUFS);
            anyhow::ensure!(full, "sending: {error}");
        }
    }
    Ok(())
}

fn receive(socket: &UdpSocket, running: &AtomicBool, count: &AtomicU64) -> Result<()> {
    let mut messages = Messages::new();
    let heads = messages.heads.as_mut_ptr();
    let (flags, no_limit) = (libc::MSG_WAITFORONE, std::ptr::null_mut());
    while running.load(Ordering::Relaxed) {
        // SAFETY: as in `send`; the pieces are written by the system alone.
        let got =
            unsafe { libc::recvmmsg(socket.as_raw_fd(), heads, BATCH as u32, flags, no_limit) };
        match u64::try_from(got) {
            Ok(got) => _ = count.fetch_add(got, Ordering::Relaxed),
            Err(_) => {
                let error = std::io::Error::last_os_error();
                anyhow::ensure!(waited(&error), "receiving: {error}");
            }
        }
    }
    Ok(())
}
