//! A program that burns CPU time and does nothing else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::arena::thread_cpu;

/// A thread works and sleeps within so much time.
const PERIOD: Duration = Duration::from_millis(4);

/// Uses `cpu` of CPU time within `time`, on as many threads as that takes; gives what it
/// really used.
pub(super) fn burn(cpu: Duration, time: Duration, stop: &AtomicBool) -> Duration {
    let load = cpu.as_secs_f64() / time.as_secs_f64().max(1e-3);
    let threads = load.ceil().max(1.0);
    let share = load / threads;
    let end = Instant::now() + time;
    std::thread::scope(|scope| {
        let spawn = |_| scope.spawn(|| work(share, end, stop));
        let all: Vec<_> = (0..threads as usize).map(spawn).collect();
        let used = all.into_iter().map(|one| one.join().unwrap_or_default());
        used.sum()
    })
}

/// One thread's part: what it did not get in one period it makes up for in the next.
fn work(share: f64, end: Instant, stop: &AtomicBool) -> Duration {
    let (began, first) = (Instant::now(), thread_cpu());
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        let due = began.elapsed().mul_f64(share);
        while thread_cpu() - first < due {
            std::hint::spin_loop();
        }
        if share < 0.98 {
            std::thread::sleep(PERIOD.mul_f64(1.0 - share));
        }
    }
    thread_cpu() - first
}
