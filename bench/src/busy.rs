//! Threads that compute all the time, one on each core: others who want the machine as much as the
//! switch and its guests do.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::machine::pin;

use crate::stop;

/// Steps of a count: some microseconds.
const STEPS: u64 = 4000;

/// The counts of one thread, in cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Counts(AtomicU64);

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    counts: Vec<Counts>,
}

/// See the module. They end when it is dropped.
pub(crate) struct BusyThreads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

impl BusyThreads {
    /// One thread on each of these cores, with the priority of the caller.
    ///
    /// # Errors
    /// There is no such core, or no thread.
    pub(crate) fn on(cores: &[usize]) -> Result<Self> {
        let shared = Arc::new(Shared {
            counts: cores.iter().map(|_| Counts::default()).collect(),
            ..Shared::default()
        });
        let mut busy = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        for (number, core) in cores.iter().copied().enumerate() {
            let shared = Arc::clone(&shared);
            let (says, hears) = mpsc::channel();
            let thread = std::thread::Builder::new().name("bench-busy".to_owned());
            busy.threads.push(thread.spawn(move || {
                let pinned = pin(core);
                let is_pinned = pinned.is_ok();
                // The starter waits.
                let _ = says.send(pinned);
                if is_pinned {
                    count(&shared, number);
                }
            })?);
            hears.recv().context("a thread has ended")??;
        }
        Ok(busy)
    }

    /// Counts of all of them so far.
    pub(crate) fn counted(&self) -> u64 {
        let counts = self.shared.counts.iter();
        counts.map(|counts| counts.0.load(Ordering::Relaxed)).sum()
    }
}

/// Counts a second of such threads while nothing else wants their cores, in a time after another.
///
/// # Errors
/// As [`BusyThreads::on`].
pub(crate) fn alone(cores: &[usize], (settle, time): (Duration, Duration)) -> Result<f64> {
    let busy = BusyThreads::on(cores)?;
    stop::sleep(settle)?;
    rate(&busy, || stop::sleep(time)).map(|(_, rate)| rate)
}

/// Does something beside them. Returns its result, and their counts a second meanwhile.
///
/// # Errors
/// Of `what`, or they have stopped.
pub(crate) fn rate<T>(busy: &BusyThreads, what: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let (began, before) = (Instant::now(), busy.counted());
    let result = what()?;
    let counted = busy.counted() - before;
    ensure!(counted > 0, "busy threads have stopped");
    Ok((result, counted as f64 / began.elapsed().as_secs_f64()))
}

fn count(shared: &Shared, number: usize) {
    let counts = &shared.counts[number].0;
    let mut state = number as u64 | 1;
    while !shared.is_over.load(Ordering::Relaxed) {
        for _ in 0..STEPS {
            state = black_box(
                state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .rotate_left(17),
            );
        }
        // The only writer.
        counts.store(counts.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_count_and_end() {
        let busy = BusyThreads::on(&[0]).expect("there is a core");
        let (answer, rate) = rate(&busy, || stop::sleep(Duration::from_millis(5)).map(|()| 1))
            .expect("the thread counts");
        assert_eq!(answer, 1);
        assert!(rate > 0.0);
        drop(busy);
        assert!(BusyThreads::on(&[100_000]).is_err(), "no such core");
    }
}
