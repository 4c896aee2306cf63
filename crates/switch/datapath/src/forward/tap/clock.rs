//! Timestamps of captured frames. The system's clock takes longer to read than a short frame to
//! copy; so between two readings the time is extrapolated from the CPU's tick counter.

use crate::forward::cycles::ticks;

/// Interval in which the clock is read once, nanoseconds.
const READ_INTERVAL: u64 = 1_000_000;
/// Distances of readings from which the counter's rate is measured, nanoseconds.
const MEASURED_INTERVAL: std::ops::Range<u64> = READ_INTERVAL / 2..1_000_000_000;
/// A reading that took more than 1/64 of the measured time counts as interrupted.
const QUICK: u64 = 64;

/// Wall clock; see the module.
#[derive(Debug, Default)]
pub(super) struct Clock {
    last: Option<Reading>,
    /// Nanoseconds per tick, times 2^32; 0 while unknown.
    scale: u64,
}

/// Simultaneous reading of the clocks.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Nanoseconds since 1970.
    day: u64,
    /// Monotonic clock, nanoseconds.
    steady: u64,
    /// Tick counter before and after.
    ticks: [u64; 2],
}

impl Reading {
    fn now() -> Self {
        let begin = ticks();
        let steady = sys::time::monotonic_ns();
        let day = sys::time::since_1970().as_nanos() as u64;
        Self {
            day,
            steady,
            ticks: [begin, ticks()],
        }
    }
}

impl Clock {
    /// Returns the nanoseconds since 1970.
    pub(super) fn now(&mut self) -> u64 {
        self.at(ticks(), Reading::now)
    }

    fn at(&mut self, ticks: u64, look: impl FnOnce() -> Reading) -> u64 {
        if let (Some(last), scale @ 1..) = (self.last, self.scale) {
            let passed = ticks.wrapping_sub(last.ticks[1]);
            let nanos = (u128::from(passed) * u128::from(scale)) >> 32;
            if nanos < u128::from(READ_INTERVAL) {
                return last.day + nanos as u64;
            }
        }
        let look = look();
        self.take(look);
        look.day
    }

    /// Takes a reading as the base of later times. Measures the counter's rate if the last reading
    /// is old enough and neither was interrupted.
    fn take(&mut self, look: Reading) {
        let Some(last) = self.last else {
            self.last = Some(look);
            return;
        };
        let nanos = look.steady.saturating_sub(last.steady);
        let passed = look.ticks[1].wrapping_sub(last.ticks[1]);
        let took = |look: &Reading| look.ticks[1].wrapping_sub(look.ticks[0]);
        let quick = took(&look).max(took(&last)) < passed / QUICK;
        if quick && MEASURED_INTERVAL.contains(&nanos) {
            self.scale = ((u128::from(nanos) << 32) / u128::from(passed)) as u64;
        }
        // The first reading stays until one is far enough away; an interrupted one may be wrong.
        let is_measured = self.scale > 0 && took(&look) < passed / QUICK;
        if is_measured || nanos >= MEASURED_INTERVAL.start {
            self.last = Some(look);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a reading of clocks with 3 ticks per nanosecond and a day that began at 5 seconds.
    fn look(at: u64, took: u64) -> Reading {
        Reading {
            day: 5_000_000_000 + at,
            steady: at,
            ticks: [3 * at - 3 * took, 3 * at],
        }
    }

    /// Returns the time of a clock, and whether the system's clock was read.
    fn read(clock: &mut Clock, at: u64, took: u64) -> (u64, bool) {
        let mut looked = false;
        let day = clock.at(3 * at, || {
            looked = true;
            look(at, took)
        });
        (day - 5_000_000_000, looked)
    }

    #[test]
    fn the_clock_is_read_until_the_rate_is_known_and_then_once_a_millisecond() {
        let mut clock = Clock::default();
        for at in [1_000, 2_000, 400_000] {
            assert_eq!(read(&mut clock, at, 50), (at, true));
        }
        assert_eq!(read(&mut clock, 700_000, 50), (700_000, true));
        for at in [700_001, 900_000, 1_699_000] {
            let (day, looked) = read(&mut clock, at, 50);
            assert!(!looked && day.abs_diff(at) <= 1, "{day} at {at}");
        }
        assert_eq!(read(&mut clock, 1_700_001, 50), (1_700_001, true));
        assert!(!read(&mut clock, 1_800_000, 50).1);
        // After a pause, however long.
        let later = 90_000_000_000;
        assert_eq!(read(&mut clock, later, 50), (later, true));
        let (day, looked) = read(&mut clock, later + 3_000, 50);
        assert!(!looked && day.abs_diff(later + 3_000) <= 1, "{day}");
    }

    #[test]
    fn an_interrupted_reading_measures_nothing() {
        let mut clock = Clock::default();
        read(&mut clock, 1_000, 50);
        read(&mut clock, 1_000_000, 400_000);
        assert_eq!(clock.scale, 0);
        read(&mut clock, 2_000_000, 50);
        assert_eq!(clock.scale, 0, "the one before was interrupted");
        read(&mut clock, 3_000_000, 50);
        assert!(!read(&mut clock, 3_000_500, 50).1);
    }

    #[test]
    fn it_is_the_time_of_day() {
        let mut clock = Clock::default();
        let end = std::time::Instant::now() + std::time::Duration::from_millis(5);
        while std::time::Instant::now() < end {
            let before = Reading::now().day;
            let now = clock.now();
            // The counter's rate is measured to a few parts in a thousand, and used for a
            // millisecond.
            assert!(now + 100_000_000 > before && now < Reading::now().day + 100_000_000);
        }
    }
}
