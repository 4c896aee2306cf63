//! Two guests, of which one sends frames at a steady rate and the other one computes all the time,
//! and is interrupted. It polls after an interrupt only, as a driver does, and until no frame is
//! there.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use e2e::machine::pin;
use load::vcpu::Nic as _;
use testkit::guest::GuestError;
use testkit::net::NetHeader;
use testkit::packets::{Flow, udp};
use testkit::{FakeGuest, GuestConfig};

use crate::peers::lasthop::thread_name;

/// Frames of a second: so many at once, with so long from one burst to the next.
const AT_ONCE: u32 = 5;
const PERIOD: Duration = Duration::from_micros(100);
const PAYLOAD: usize = 1400;
const QUEUE: u16 = 1024;
const ATTACH: Duration = Duration::from_secs(10);
/// How often a guest that pauses looks whether it still does.
const LOOK: Duration = Duration::from_millis(1);

const PAUSED: u8 = 0;
const RUNNING: u8 = 1;
const STOPPED: u8 = 2;

/// State of both guests, and counts of the receiver.
#[derive(Default)]
struct Shared {
    state: AtomicU8,
    received: AtomicU64,
    interrupts: AtomicU64,
    /// Nanoseconds from an interrupt until there is nothing left to receive.
    receiving: AtomicU64,
}

/// Counts of the receiver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) received: u64,
    pub(crate) interrupts: u64,
    /// The time from interrupts until there was nothing left to receive, in seconds.
    pub(crate) receiving: f64,
}

/// See the module. Both pause at first.
pub(crate) struct Steady {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Work of a guest until it is stopped.
type Work = fn(&mut FakeGuest, &Shared) -> Result<(), GuestError>;

impl Steady {
    /// Attaches sender and receiver to two listening ports, each in a thread on a core; threads are
    /// called after their group.
    pub(crate) fn start(sockets: [&Path; 2], group: usize, cores: [usize; 2]) -> Result<Self> {
        let mut steady = Self {
            shared: Arc::default(),
            threads: Vec::new(),
        };
        let work: [Work; 2] = [send, receive];
        for ((number, work), (socket, core)) in
            (1_u8..).zip(work).zip(sockets.into_iter().zip(cores))
        {
            let (socket, shared) = (socket.to_owned(), steady.shared.clone());
            let (tell, ready) = channel();
            let body = move || run((number, core), &socket, (work, &shared), &tell);
            let name = thread_name(group, number.into());
            let thread = std::thread::Builder::new().name(name.clone());
            steady.threads.push(thread.spawn(body)?);
            attached(&ready).context(name)?;
        }
        Ok(steady)
    }

    /// Lets both run, or pause.
    pub(crate) fn set_running(&self, runs: bool) {
        let state = if runs { RUNNING } else { PAUSED };
        self.shared.state.store(state, Relaxed);
    }

    /// Counts since the start.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            received: self.shared.received.load(Relaxed),
            interrupts: self.shared.interrupts.load(Relaxed),
            receiving: self.shared.receiving.load(Relaxed) as f64 / 1e9,
        }
    }
}

impl Drop for Steady {
    fn drop(&mut self) {
        self.shared.state.store(STOPPED, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn attached(ready: &Receiver<Result<(), GuestError>>) -> Result<()> {
    ready.recv().context("a thread ended")??;
    Ok(())
}

/// The body of a guest's thread. An error at work ends its counts, which the measurement sees.
fn run(
    (number, core): (u8, usize),
    socket: &Path,
    (work, shared): (Work, &Shared),
    tell: &Sender<Result<(), GuestError>>,
) {
    let attach = || {
        pin(core).map_err(std::io::Error::other)?;
        let config = GuestConfig {
            queue_size: QUEUE,
            timeout: ATTACH,
            ..GuestConfig::default().guest(number)
        };
        let mut guest = FakeGuest::connect(socket, config)?;
        guest.wait_link()?;
        // The switch learns where it is.
        guest.send(&udp(&Flow::v4(number, 3 - number), b"here"))?;
        Ok(guest)
    };
    match attach() {
        Ok(mut guest) => {
            let _ = tell.send(Ok(()));
            if let Err(error) = work(&mut guest, shared) {
                eprintln!("warning: guest {number}: {error}");
            }
        }
        Err(error) => drop(tell.send(Err(error))),
    }
}

/// Returns whether there is work now; none at the end of all.
fn runs(shared: &Shared) -> Option<bool> {
    match shared.state.load(Relaxed) {
        STOPPED => None,
        RUNNING => Some(true),
        _ => {
            std::thread::sleep(LOOK);
            Some(false)
        }
    }
}

fn send(guest: &mut FakeGuest, shared: &Shared) -> Result<(), GuestError> {
    let frame = udp(&Flow::v4(1, 2), &[0x5a; PAYLOAD]);
    let mut due = Instant::now();
    while let Some(runs) = runs(shared) {
        if !runs {
            due = Instant::now();
            continue;
        }
        let pair = &mut guest.pairs[0];
        for _ in 0..AT_ONCE {
            pair.stage(&frame, &NetHeader::default())?;
        }
        pair.flush();
        due += PERIOD;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

fn receive(guest: &mut FakeGuest, shared: &Shared) -> Result<(), GuestError> {
    let mut frame = Vec::new();
    while let Some(runs) = runs(shared) {
        if !runs || !guest.interrupted() {
            continue;
        }
        let begin = Instant::now();
        shared.interrupts.fetch_add(1, Relaxed);
        loop {
            guest.mask();
            while guest.receive(&mut frame)? {
                shared.received.fetch_add(1, Relaxed);
            }
            if !guest.unmask() {
                break;
            }
        }
        let nanoseconds = begin.elapsed().as_nanos() as u64;
        shared.receiving.fetch_add(nanoseconds, Relaxed);
    }
    Ok(())
}
