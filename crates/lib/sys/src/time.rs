//! Clocks (clock_gettime(2)).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the time of the machine's monotonic clock: the same for all processes, and for those
/// that ran before.
#[must_use]
pub fn monotonic() -> Duration {
    read(ClockId::Monotonic)
}

/// Returns [`monotonic()`] in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    monotonic().as_nanos() as u64
}

/// Returns the time since 1970.
#[must_use]
pub fn since_1970() -> Duration {
    read(ClockId::Realtime)
}

/// Returns the CPU time of the calling thread.
#[must_use]
pub fn of_thread() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// Sleeps for `time`; returns how much later the thread ran. It has fallen asleep, its core has
/// woken up, and its timer slack has passed.
#[must_use]
pub fn lateness(time: Duration) -> Duration {
    let due = monotonic() + time;
    std::thread::sleep(time);
    monotonic().saturating_sub(due)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_run_forward() {
        let before = (monotonic(), monotonic_ns(), of_thread());
        assert!(monotonic() >= before.0 && monotonic_ns() >= before.1 && of_thread() >= before.2);
        assert!(u128::from(before.1) >= before.0.as_nanos());
        // 2020.
        assert!(since_1970().as_secs() > 50 * 365 * 86_400);
    }
}
