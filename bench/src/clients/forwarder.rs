//! A guest that forwards: a thread with two ports that copies frames from one to the other.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use e2e::machine::pin;
use load::vcpu::Nic as _;
use testkit::frontend::wait_any;
use testkit::guest::GuestError;
use testkit::net::NetHeader;
use testkit::{FakeGuest, GuestConfig};

/// Entries of a queue.
const QUEUE: u16 = 1024;
/// Frames of one direction before the other one has its turn.
const BATCH: u32 = 32;
/// How often a forwarder that sleeps looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
const ATTACH: Duration = Duration::from_secs(10);

/// A way to wait for frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Sleep,
    Poll,
}

impl Wait {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sleep => "guests that sleep",
            Self::Poll => "guests that poll",
        }
    }
}

/// See the module. It ends when it is dropped.
pub(crate) struct Forwarder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Attaches to two listening ports, and forwards on a core.
    pub(crate) fn start(sockets: [&Path; 2], core: usize, wait: Wait) -> Result<Self> {
        let config = GuestConfig {
            queue_size: QUEUE,
            timeout: ATTACH,
            ..GuestConfig::default()
        };
        let attach = |socket: &Path| FakeGuest::connect(socket, config.clone());
        let [one, other] = sockets.map(attach);
        let mut guests = [one?, other?];
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let body = move || {
            let pinned = pin(core).map_err(|error| GuestError::Io(std::io::Error::other(error)));
            // Nothing arrives behind one that has ended, which the measurement sees.
            if let Err(error) = pinned.and_then(|()| forward(&mut guests, wait, &stopped)) {
                eprintln!("warning: a guest that forwards: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("forwarder".to_owned());
        let thread = Some(thread.spawn(body)?);
        Ok(Self { stop, thread })
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn forward(guests: &mut [FakeGuest; 2], wait: Wait, stop: &AtomicBool) -> Result<(), GuestError> {
    let mut frame = Vec::new();
    guests.iter_mut().for_each(FakeGuest::mask);
    while !stop.load(Relaxed) {
        let [one, other] = guests;
        let moved = batch(one, other, &mut frame)? + batch(other, one, &mut frame)?;
        if moved > 0 || wait == Wait::Poll {
            continue;
        }
        let there = guests.each_mut().map(FakeGuest::unmask);
        if !there.contains(&true) {
            let [one, other] = guests;
            let _ = wait_any(&[&one.pairs[0].rx_call, &other.pairs[0].rx_call], LOOK);
        }
        for guest in guests.iter_mut() {
            guest.interrupted();
            guest.mask();
        }
    }
    Ok(())
}

/// Copies some frames from one port to the other; how many.
fn batch(from: &mut FakeGuest, to: &mut FakeGuest, frame: &mut Vec<u8>) -> Result<u32, GuestError> {
    let mut moved = 0;
    while moved < BATCH {
        let Some((header, _)) = from.pairs[0].try_recv_into(frame)? else {
            break;
        };
        let header = NetHeader {
            num_buffers: 0,
            ..header
        };
        // A full queue drops the frame, as bridges do.
        to.pairs[0].stage(frame, &header)?;
        moved += 1;
    }
    if moved > 0 {
        to.pairs[0].flush();
    }
    Ok(moved)
}
