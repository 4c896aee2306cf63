//! An engine in software: a thread that copies what it finds, in any order. It stands for a device where there is
//! none, to show that what completes out of order is put into order, and it takes copying off the workers' cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;

use super::slots::{Line, SLOTS, Slot};
use super::{Device, Outcome};

/// The thread, asleep or not.
#[derive(Debug)]
struct Shared {
    asleep: AtomicBool,
    stop: AtomicBool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Thread {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

/// What wakes the thread.
#[derive(Debug)]
pub(super) struct Bell {
    shared: Arc<Shared>,
    thread: std::thread::Thread,
}

impl Thread {
    /// Looks after these lines. Where no thread can be had, who waits for a copy makes it.
    pub(super) fn start(lines: &Arc<[Line]>, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let (lines, all) = (Arc::clone(lines), Arc::clone(&shared));
        let thread = std::thread::spawn(move || run(&lines, &all, seed));
        Self { shared, thread }
    }

    pub(super) fn bell(&self) -> Bell {
        Bell {
            shared: Arc::clone(&self.shared),
            thread: self.thread.thread().clone(),
        }
    }

    /// Ends the thread, between two copies.
    pub(super) fn stop(self) {
        self.shared.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        let _ = self.thread.join();
    }
}

impl Device for Bell {
    fn submit(&self, _: &Slot) -> bool {
        // Either the thread sees the slot before it sleeps, or its wish to be woken is seen here.
        fence(Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::Relaxed) {
            self.thread.unpark();
        }
        true
    }

    fn look(&self, _: &Slot) -> Outcome {
        Outcome::Busy
    }

    fn can_be_helped(&self) -> bool {
        true
    }
}

/// Marsaglia's xorshift: no dependency, and no need for more.
fn shuffle(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state as usize
}

fn run(lines: &[Line], shared: &Shared, seed: u64) {
    let mut random = seed | 1;
    while !shared.stop.load(Ordering::Acquire) {
        if look_through(lines, &mut random) {
            continue;
        }
        shared.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !look_through(lines, &mut random) && !shared.stop.load(Ordering::Acquire) {
            std::thread::park();
        }
        shared.asleep.store(false, Ordering::Relaxed);
    }
}

/// Copies what is there, from any slot on and with any step; one in four is left for the next look. Whether there was
/// any.
fn look_through(lines: &[Line], random: &mut u64) -> bool {
    let mut found = false;
    for line in lines {
        let (start, step) = (shuffle(random), shuffle(random) | 1);
        for turn in 0..SLOTS {
            let slot = &line.slots[start.wrapping_add(turn.wrapping_mul(step)) % SLOTS];
            if !slot.is_busy() {
                continue;
            }
            found = true;
            if !shuffle(random).is_multiple_of(4)
                && let Some(claim) = slot.claim()
            {
                claim.copy();
            }
        }
    }
    found
}
