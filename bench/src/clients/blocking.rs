//! Guests that attach again and again, and whose receive queues have call descriptors that block:
//! a switch that writes to one waits until it is interrupted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use hostile::blocking_calls;
use testkit::guest_ram::RegionSpec;
use testkit::{FakeGuest, GuestConfig};

/// Memory of a guest.
const GUEST_BYTES: u64 = 8 << 20;
/// From an attempt to attach to the next one, and between two looks whether a guest is attached.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a port may take to answer. One that pauses does not answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// One guest for each socket, until they are dropped.
pub(crate) struct Blocking {
    stop: Arc<AtomicBool>,
    ended: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Blocking {
    pub(crate) fn start(sockets: &[PathBuf]) -> Self {
        let (stop, ended) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let one = |(number, socket): (usize, &PathBuf)| {
            let (socket, stop, ended) = (socket.clone(), Arc::clone(&stop), Arc::clone(&ended));
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    if attach(&socket, number as u8 + 10, &stop).is_some() {
                        ended.fetch_add(1, Relaxed);
                    }
                    std::thread::sleep(PAUSE);
                }
            })
        };
        let threads = sockets.iter().enumerate().map(one).collect();
        Self {
            stop,
            ended,
            threads,
        }
    }

    /// How many connections the switch has ended so far: once for each write that blocked.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Relaxed)
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A guest from its start to the end of its connection, if the switch has ended it.
fn attach(socket: &Path, number: u8, stop: &AtomicBool) -> Option<()> {
    let config = GuestConfig {
        regions: Some(vec![RegionSpec::at(0, GUEST_BYTES)]),
        timeout: PATIENCE,
        ..GuestConfig::default()
    };
    let mut guest = FakeGuest::connect(socket, config.guest(number)).ok()?;
    blocking_calls(&mut guest).ok()?;
    while !stop.load(Relaxed) {
        // Buffers for the next frames, each of which is to be notified.
        let pair = &mut guest.pairs[0];
        while pair.try_recv().ok()?.is_some() {}
        pair.arm_rx();
        let front = guest.front().ok()?;
        if front.closes_within(PAUSE) {
            return Some(());
        }
    }
    None
}
