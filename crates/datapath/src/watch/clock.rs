//! The time of day for each frame that is copied. The system's clock takes longer to read than a short frame to copy, so between
//! two looks at it the processor's counter says how much time has gone by.

use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::cycles::ticks;

/// A look at the clock is good for so many nanoseconds.
const GOOD: u64 = 1_000_000;
/// The counter's rate is measured between looks that are so far apart, nanoseconds.
const MEASURED: std::ops::Range<u64> = GOOD / 2..1_000_000_000;
/// A look that took more than this part of the time that it measures was interrupted.
const QUICK: u64 = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Clock {
    last: Option<Look>,
    /// Nanoseconds of a tick, times 2^32; 0 while that is not known.
    scale: u64,
}

/// The clocks, read together.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// Nanoseconds since 1970.
    day: u64,
    /// Of a clock that is never set.
    steady: u64,
    /// The counter, before and after.
    ticks: [u64; 2],
}

impl Look {
    fn now() -> Self {
        let nanos = |time: Timespec| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        let begin = ticks();
        let steady = nanos(clock_gettime(ClockId::Monotonic));
        let day = nanos(clock_gettime(ClockId::Realtime));
        Self {
            day,
            steady,
            ticks: [begin, ticks()],
        }
    }
}

impl Clock {
    /// Nanoseconds since 1970.
    pub(super) fn now(&mut self) -> u64 {
        self.at(ticks(), Look::now)
    }

    fn at(&mut self, ticks: u64, look: impl FnOnce() -> Look) -> u64 {
        if let (Some(last), scale @ 1..) = (self.last, self.scale) {
            let passed = ticks.wrapping_sub(last.ticks[1]);
            let nanos = (u128::from(passed) * u128::from(scale)) >> 32;
            if nanos < u128::from(GOOD) {
                return last.day + nanos as u64;
            }
        }
        let look = look();
        self.take(look);
        look.day
    }

    /// Goes on from this look; measures the counter's rate, if the last one is long enough ago and both were quick.
    fn take(&mut self, look: Look) {
        let Some(last) = self.last else {
            self.last = Some(look);
            return;
        };
        let nanos = look.steady.saturating_sub(last.steady);
        let passed = look.ticks[1].wrapping_sub(last.ticks[1]);
        let took = |look: &Look| look.ticks[1].wrapping_sub(look.ticks[0]);
        let quick = took(&look).max(took(&last)) < passed / QUICK;
        if quick && MEASURED.contains(&nanos) {
            self.scale = ((u128::from(nanos) << 32) / u128::from(passed)) as u64;
        }
        // A first look waits for one that is far enough away; one that was interrupted may be wrong.
        let is_measured = self.scale > 0 && took(&look) < passed / QUICK;
        if is_measured || nanos >= MEASURED.start {
            self.last = Some(look);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at clocks whose counter has 3 ticks a nanosecond; the day began at 5 seconds.
    fn look(at: u64, took: u64) -> Look {
        Look {
            day: 5_000_000_000 + at,
            steady: at,
            ticks: [3 * at - 3 * took, 3 * at],
        }
    }

    /// The time by a clock, and whether it looked.
    fn read(clock: &mut Clock, at: u64, took: u64) -> (u64, bool) {
        let mut looked = false;
        let day = clock.at(3 * at, || {
            looked = true;
            look(at, took)
        });
        (day - 5_000_000_000, looked)
    }

    #[test]
    fn it_looks_until_it_knows_the_rate_and_then_once_a_millisecond() {
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
    fn an_interrupted_look_measures_nothing() {
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
            let before = Look::now().day;
            let now = clock.now();
            // The counter's rate is measured to a few parts in a thousand, and used for a millisecond.
            assert!(now + 100_000_000 > before && now < Look::now().day + 100_000_000);
        }
    }
}
