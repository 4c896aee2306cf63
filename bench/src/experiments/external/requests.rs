//! Requests and their answers between two namespaces, one at a time: how many a second, and how
//! long each takes.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::load::{PAYLOAD, Shared, waited};

/// Bytes at the start of a message that hold the number of the request.
const NUMBER: usize = 8;

/// One end of a connection.
pub(super) trait End {
    /// Whether messages may be lost, so that a request without an answer is sent again.
    const LOSES: bool;

    fn put(&self, message: &[u8]) -> io::Result<usize>;
    fn take(&self, bytes: &mut [u8]) -> io::Result<usize>;
}

impl End for UdpSocket {
    const LOSES: bool = true;

    fn put(&self, message: &[u8]) -> io::Result<usize> {
        self.send(message)
    }

    fn take(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.recv(bytes)
    }
}

impl End for TcpStream {
    const LOSES: bool = false;

    fn put(&self, message: &[u8]) -> io::Result<usize> {
        (&*self).write(message)
    }

    fn take(&self, bytes: &mut [u8]) -> io::Result<usize> {
        (&*self).read(bytes)
    }
}

/// Sends a request, waits for its answer, and so on, with this time from one request to the next if
/// the answer comes before. A request that is sent again takes as long as both together.
pub(super) fn ask<E: End>(
    end: &E,
    shared: &Shared,
    period: Option<Duration>,
) -> anyhow::Result<()> {
    if period.is_some() {
        sharp_timers()?;
    }
    let mut due = Instant::now();
    let (mut request, mut answer) = ([0; PAYLOAD], [0; PAYLOAD]);
    for number in 1_u64.. {
        if let Some(period) = period {
            due = (due + period).max(Instant::now());
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        request[..NUMBER].copy_from_slice(&number.to_ne_bytes());
        let sent = Instant::now();
        put(end, &request)?;
        // A late answer to the request before may come first.
        while answer != request {
            if !shared.is_running() {
                return Ok(());
            }
            match fill(end, &mut answer) {
                Ok(true) => {}
                Ok(false) if E::LOSES => put(end, &request)?,
                Ok(false) => {}
                Err(error) => return ended(error, shared),
            }
        }
        shared.count.fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(sent.elapsed().as_nanos())?;
        shared.record(nanoseconds);
    }
    Ok(())
}

/// Has timers of this thread end when they are due, not up to 50 us later.
fn sharp_timers() -> io::Result<()> {
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    Ok(())
}

/// Sends each message back.
pub(super) fn answer<E: End>(end: &E, shared: &Shared) -> anyhow::Result<()> {
    let mut message = [0; PAYLOAD];
    while shared.is_running() {
        match fill(end, &mut message) {
            Ok(true) => put(end, &message)?,
            Ok(false) => {}
            Err(error) => return ended(error, shared),
        }
    }
    Ok(())
}

/// The other end closes first at the end of a measurement.
fn ended(error: io::Error, shared: &Shared) -> anyhow::Result<()> {
    if shared.is_running() {
        return Err(error.into());
    }
    Ok(())
}

fn put<E: End>(end: &E, message: &[u8]) -> io::Result<()> {
    match end.put(message) {
        Err(error) if !E::LOSES => Err(error),
        _ => Ok(()),
    }
}

/// Returns whether a whole message arrived before the socket's timeout.
fn fill<E: End>(end: &E, message: &mut [u8]) -> io::Result<bool> {
    let mut got = 0;
    while got < message.len() {
        match end.take(&mut message[got..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => got += len,
            // The port of the other end may not be open yet.
            Err(error) if waited(&error) || error.kind() == ErrorKind::ConnectionRefused => {
                if got == 0 {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn exchange<E: End + Sync>(ends: [E; 2], period: Option<Duration>) -> u64 {
        let shared = Shared::default();
        thread::scope(|scope| {
            let asks = scope.spawn(|| ask(&ends[0], &shared, period));
            let answers = scope.spawn(|| answer(&ends[1], &shared));
            while shared.count.load(Ordering::Relaxed) < 10 {
                thread::yield_now();
            }
            shared.end();
            asks.join().unwrap().unwrap();
            answers.join().unwrap().unwrap();
        });
        shared.take_latency().count()
    }

    #[test]
    fn each_request_has_its_answer() {
        let short = Some(Duration::from_millis(5));
        let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        for (from, to) in [(0, 1), (1, 0)] {
            let address = sockets[to].local_addr().unwrap();
            sockets[from].connect(address).unwrap();
            sockets[from].set_read_timeout(short).unwrap();
        }
        assert!(exchange(sockets, None) >= 10);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let streams = [client, listener.accept().unwrap().0];
        for stream in &streams {
            stream.set_read_timeout(short).unwrap();
        }
        let period = Some(Duration::from_micros(100));
        assert!(exchange(streams, period) >= 10);
    }
}
