//! Requests of an honest client beside a flood: so many a second, each sent once, whether answers
//! come or not.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use load::lean::Histogram;

use super::world::FloodWorld;
use crate::stop;

/// Requests a second.
pub(super) const RATE: u32 = 2000;
/// Bytes of a request and of its answer: frames of 64.
const LEN: usize = 64 - 14 - 20 - 8;
/// How long an answer may take before its request counts as lost.
const REST: Duration = Duration::from_millis(200);
/// How often a thread that waits looks whether it must end.
const LOOK: Duration = Duration::from_millis(50);

/// Results of an interval.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) sent: u64,
    pub(super) lost: u64,
    pub(super) latency: Histogram,
}

#[derive(Debug)]
struct Shared {
    epoch: Instant,
    asking: AtomicBool,
    hearing: AtomicBool,
    /// Number of the next request.
    next: AtomicU64,
    /// The first request that counts.
    from: AtomicU64,
    answered: AtomicU64,
    latency: Mutex<Histogram>,
}

/// A client in the far namespace and a server in the near one; they end when dropped.
#[derive(Debug)]
pub(super) struct Honest {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Honest {
    /// Starts them; requests are answered when this returns.
    pub(super) fn start(world: &FloodWorld) -> Result<Self> {
        let [client, server] = world.sockets()?;
        let shared = Arc::new(Shared {
            epoch: Instant::now(),
            asking: AtomicBool::new(true),
            hearing: AtomicBool::new(true),
            next: AtomicU64::new(0),
            from: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            latency: Mutex::default(),
        });
        let asks = client.try_clone()?;
        let mut honest = Self {
            shared,
            threads: Vec::new(),
        };
        honest.thread(move |shared| ask(&asks, shared))?;
        honest.thread(move |shared| hear(&client, shared))?;
        honest.thread(move |shared| answer(&server, shared))?;
        let answered = || honest.shared.answered.load(Ordering::Relaxed);
        stop::try_wait("answers", Duration::from_secs(10), || {
            Ok((answered() > 20).then_some(()))
        })?;
        Ok(honest)
    }

    fn thread(&mut self, work: impl FnOnce(&Shared) -> Result<()> + Send + 'static) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("bench-honest".to_owned());
        self.threads.push(thread.spawn(move || work(&shared))?);
        Ok(())
    }

    /// Requests that were sent until now.
    pub(super) fn sent(&self) -> u64 {
        self.shared.next.load(Ordering::Relaxed)
    }

    /// Has only later requests count.
    pub(super) fn begin(&self) {
        let mut latency = self.latency();
        *latency = Histogram::default();
        self.shared.answered.store(0, Ordering::Relaxed);
        self.shared.from.store(self.sent(), Ordering::Relaxed);
    }

    fn latency(&self) -> std::sync::MutexGuard<'_, Histogram> {
        let latency = self.shared.latency.lock();
        latency.unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the requests, waits for the last answers, and gives what came of those that count.
    pub(super) fn end(mut self) -> Result<Answers> {
        self.shared.asking.store(false, Ordering::Relaxed);
        stop::sleep(REST)?;
        self.shared.hearing.store(false, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().ok().context("a thread panicked")??;
        }
        let sent = self.sent() - self.shared.from.load(Ordering::Relaxed);
        let answered = self.shared.answered.load(Ordering::Relaxed);
        let latency = std::mem::take(&mut *self.latency());
        Ok(Answers {
            sent,
            lost: sent.saturating_sub(answered),
            latency,
        })
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        self.shared.asking.store(false, Ordering::Relaxed);
        self.shared.hearing.store(false, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            let _ = thread.join();
        }
    }
}

/// Sends a request when each is due, by a timer; one that is late does not hasten the next.
fn ask(socket: &UdpSocket, shared: &Shared) -> Result<()> {
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    let mut due = Instant::now();
    let mut request = [0; LEN];
    while shared.asking.load(Ordering::Relaxed) {
        due = (due + Duration::from_secs(1) / RATE).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        request[..8].copy_from_slice(&number.to_ne_bytes());
        request[8..16].copy_from_slice(&nanoseconds(shared.epoch)?.to_ne_bytes());
        // What cannot be sent is lost.
        let _ = socket.send(&request);
    }
    Ok(())
}

fn nanoseconds(epoch: Instant) -> Result<u64> {
    Ok(u64::try_from(epoch.elapsed().as_nanos())?)
}

/// Counts answers.
fn hear(socket: &UdpSocket, shared: &Shared) -> Result<()> {
    let mut bytes = [0; LEN];
    while shared.hearing.load(Ordering::Relaxed) {
        if !receive(socket, &mut bytes)? {
            continue;
        }
        let [number, sent] = [0, 8].map(|at| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(eight)
        });
        if number >= shared.from.load(Ordering::Relaxed) {
            let time = nanoseconds(shared.epoch)?.saturating_sub(sent);
            let latency = shared.latency.lock();
            latency.unwrap_or_else(PoisonError::into_inner).record(time);
            shared.answered.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Sends each request back.
fn answer(socket: &UdpSocket, shared: &Shared) -> Result<()> {
    let mut bytes = [0; LEN];
    while shared.hearing.load(Ordering::Relaxed) {
        if receive(socket, &mut bytes)? {
            let _ = socket.send(&bytes);
        }
    }
    Ok(())
}

/// Returns whether a whole message arrived before the time-out of the socket.
fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> Result<bool> {
    match socket.recv(bytes) {
        Ok(len) => Ok(len == bytes.len()),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused => Ok(false),
            _ => Err(error.into()),
        },
    }
}

/// Sets the time-outs of both ends.
pub(super) fn with_time_outs(sockets: [UdpSocket; 2]) -> Result<[UdpSocket; 2]> {
    for socket in &sockets {
        socket.set_read_timeout(Some(LOOK))?;
    }
    Ok(sockets)
}
