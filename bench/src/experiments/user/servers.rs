//! The servers outside: plain sockets in a network namespace, a thread for each connection.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::net::RecvFlags;

use super::super::external::Namespace;

/// Ports: what is sent there is counted; it sends; it answers; it answers once.
pub(super) const SINK: u16 = 7001;
pub(super) const SOURCE: u16 = 7002;
pub(super) const ECHO: u16 = 7003;
pub(super) const ONCE: u16 = 7004;
/// Bytes of a request, and of its answer.
pub(super) const MESSAGE: usize = 64;
/// Bytes of a datagram: with the headers of UDP and IPv4 an MTU of 1500 has room for it.
pub(super) const DATAGRAM: usize = 1472;
/// The address of the servers.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 9);
/// Bytes of a call.
const CHUNK: usize = 128 << 10;
/// Time for which one question starts datagrams.
const ANSWERS: Duration = Duration::from_millis(100);
/// How often a thread that waits looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// A server.
pub(super) fn at(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(OUTSIDE), port)
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Bytes and datagrams that have arrived.
    count: AtomicU64,
}

/// Running servers; their threads end when it is dropped.
pub(super) struct Servers(Arc<Shared>);

impl Drop for Servers {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

type Serve = fn(TcpStream, &Shared) -> std::io::Result<()>;
type ServeDatagrams = fn(&UdpSocket, &Shared);

impl Servers {
    /// Starts them in a network namespace.
    pub(super) fn start(outside: &Namespace) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let all: [(u16, Serve); 4] = [(SINK, sink), (SOURCE, source), (ECHO, echo), (ONCE, once)];
        for (port, serve) in all {
            let listener = outside.inside(|| Ok(TcpListener::bind(at(port))?))?;
            listener.set_nonblocking(true)?;
            let shared = Arc::clone(&shared);
            thread::spawn(move || accept(&listener, serve, &shared));
        }
        let datagrams: [(u16, ServeDatagrams); 2] =
            [(SINK, count_datagrams), (SOURCE, send_datagrams)];
        for (port, serve) in datagrams {
            let socket = outside.inside(|| Ok(UdpSocket::bind(at(port))?))?;
            socket.set_read_timeout(Some(LOOK))?;
            let shared = Arc::clone(&shared);
            thread::spawn(move || serve(&socket, &shared));
        }
        Ok(Self(shared))
    }

    /// Bytes and datagrams that have arrived so far.
    pub(super) fn counted(&self) -> u64 {
        self.0.count.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Takes connections until the end, each served by a thread of its own.
fn accept(listener: &TcpListener, serve: Serve, shared: &Arc<Shared>) {
    while !shared.is_over() {
        let Ok((stream, _)) = listener.accept() else {
            let mut fds = [rustix::event::PollFd::new(
                listener,
                rustix::event::PollFlags::IN,
            )];
            let limit = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: LOOK.as_nanos() as i64,
            };
            let _ = rustix::event::poll(&mut fds, Some(&limit));
            continue;
        };
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            let set_up = || {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(LOOK))?;
                stream.set_read_timeout(Some(LOOK))
            };
            // The client ends connections as it likes.
            let _ = set_up().and_then(|()| serve(stream, &shared));
        });
    }
}

/// Whether a call only took too long.
fn is_late(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

fn sink(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    while !shared.is_over() {
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(len) => drop(shared.count.fetch_add(len as u64, Ordering::Relaxed)),
            Err(error) if is_late(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn source(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let chunk = vec![0; CHUNK];
    while !shared.is_over() {
        match stream.write(&chunk) {
            Err(error) if !is_late(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Reads a message. `false`: the client has ended.
fn read_message(stream: &mut TcpStream, shared: &Shared) -> std::io::Result<bool> {
    let (mut message, mut got) = ([0; MESSAGE], 0);
    while got < MESSAGE && !shared.is_over() {
        match stream.read(&mut message[got..]) {
            Ok(0) => return Ok(false),
            Ok(len) => got += len,
            Err(error) if is_late(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got == MESSAGE)
}

fn echo(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    // A kept connection costs no time.
    stream.set_read_timeout(None)?;
    while read_message(&mut stream, shared)? {
        stream.write_all(&[1; MESSAGE])?;
    }
    Ok(())
}

fn once(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    if read_message(&mut stream, shared)? {
        stream.write_all(&[1; MESSAGE])?;
    }
    Ok(())
}

fn count_datagrams(socket: &UdpSocket, shared: &Shared) {
    let mut bytes = [0; DATAGRAM];
    while !shared.is_over() {
        if socket.recv(&mut bytes).is_ok() {
            shared.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Sends to whom has asked last, for a while after each question.
fn send_datagrams(socket: &UdpSocket, shared: &Shared) {
    let mut bytes = [0; DATAGRAM];
    while !shared.is_over() {
        let Ok((_, to)) = socket.recv_from(&mut bytes) else {
            continue;
        };
        let mut until = Instant::now() + ANSWERS;
        while Instant::now() < until {
            for _ in 0..32 {
                let _ = socket.send_to(&bytes, to);
            }
            if rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT).is_ok() {
                until = Instant::now() + ANSWERS;
            }
        }
    }
}
