//! The program of the experiment: plain sockets, which are the kernel's or the library's.
//!
//! A connection begins with a byte for what is done on it and four for the bytes of a message. A
//! client prints one number: Gbit/s, or nanoseconds.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use load::lean::Histogram;

/// Bytes of a read of a stream.
const CHUNK: usize = 256 << 10;
/// How long a client tries to connect.
const CONNECT: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(20);
/// Line of a server that listens.
pub(super) const READY: &str = "ready";

/// See the module.
#[derive(Debug, Args)]
pub(crate) struct EndArguments {
    role: Role,
    /// Of the server.
    address: SocketAddr,
    /// Bytes of a message.
    #[arg(long, default_value_t = 1)]
    size: u32,
    /// Milliseconds before the measurement, and of it.
    #[arg(long, default_value_t = 100)]
    settle: u64,
    #[arg(long, default_value_t = 300)]
    window: u64,
}

/// Role of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// It serves connections one after the other.
    Serve,
    /// It sends messages, and has the server count their bytes.
    Stream,
    /// It sends a message and waits for it to come back, again and again.
    PingPong,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Stream => "stream",
            Self::PingPong => "ping-pong",
        }
    }

    fn byte(self) -> u8 {
        self as u8
    }
}

/// Runs an end.
///
/// # Errors
/// Those of its sockets.
pub(crate) fn run(end: &EndArguments) -> Result<()> {
    match end.role {
        Role::Serve => serve(end.address),
        Role::Stream => {
            println!("{}", stream(end)?);
            Ok(())
        }
        Role::PingPong => {
            println!("{}", ping_pong(end)?);
            Ok(())
        }
    }
}

fn serve(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    println!("{READY}");
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let [role, size @ ..] = head;
        let size = u32::from_be_bytes(size) as usize;
        // A client ends as it likes.
        let _ = match role {
            role if role == Role::Stream.byte() => count(&mut stream),
            _ => echo(&mut stream, size),
        };
    }
}

/// Counts until the client has ended its direction, and says how many bytes there were.
fn count(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut total = 0_u64;
    loop {
        match stream.read(&mut chunk)? {
            0 => return stream.write_all(&total.to_be_bytes()),
            len => total += len as u64,
        }
    }
}

fn echo(stream: &mut TcpStream, size: usize) -> std::io::Result<()> {
    let mut message = vec![0; size];
    loop {
        stream.read_exact(&mut message)?;
        stream.write_all(&message)?;
    }
}

fn connect(end: &EndArguments) -> Result<TcpStream> {
    let until = Instant::now() + CONNECT;
    let mut stream = loop {
        match TcpStream::connect(end.address) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() >= until => return Err(error.into()),
            Err(_) => std::thread::sleep(AGAIN),
        }
    };
    stream.set_nodelay(true)?;
    let size = end.size.to_be_bytes();
    stream.write_all(&[&[end.role.byte()], &size[..]].concat())?;
    Ok(stream)
}

/// Gbit/s of messages, from the first to the server's word that it has got the last.
fn stream(end: &EndArguments) -> Result<f64> {
    let message = vec![0; end.size as usize];
    let until = Instant::now() + Duration::from_millis(end.settle);
    send_until(&mut connect(end)?, &message, until)?;
    let mut stream = connect(end)?;
    let began = Instant::now();
    let total = send_until(
        &mut stream,
        &message,
        began + Duration::from_millis(end.window),
    )?;
    Ok(total as f64 * 8.0 / 1e9 / began.elapsed().as_secs_f64())
}

/// Returns the bytes that the server has counted.
fn send_until(stream: &mut TcpStream, message: &[u8], until: Instant) -> Result<u64> {
    while Instant::now() < until {
        // The clock is no part of what is measured.
        for _ in 0..16 {
            stream.write_all(message)?;
        }
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut total = [0; 8];
    stream
        .read_exact(&mut total)
        .context("the server's count")?;
    Ok(u64::from_be_bytes(total))
}

/// Half a round trip in nanoseconds, in the middle.
fn ping_pong(end: &EndArguments) -> Result<f64> {
    let mut stream = connect(end)?;
    let mut message = vec![0; end.size as usize];
    let mut trips = Histogram::default();
    let begin = Instant::now() + Duration::from_millis(end.settle);
    let until = begin + Duration::from_millis(end.window);
    loop {
        let sent = Instant::now();
        if sent >= until {
            break;
        }
        stream.write_all(&message)?;
        match stream.read_exact(&mut message) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => bail!("the server has ended"),
            done => done?,
        }
        if sent >= begin {
            trips.record(sent.elapsed().as_nanos() as u64);
        }
    }
    Ok(trips.quantile(0.5) as f64 / 2.0)
}
