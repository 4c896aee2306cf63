//! The price of a sleep, as measured.

use std::time::Duration;

/// Sleeps for each measured CPU time, which takes two more system calls.
const SLEEPS_PER_CPU: u32 = 16;
/// Sleeps for each measured wake-up, which makes a wait longer by one.
const SLEEPS_PER_WAKE_UP: u32 = 512;
/// The first sleeps measure wake-ups, too, up to this one: each power of two.
const FIRST_SLEEPS: u32 = 8;
/// Length of a timed sleep, microseconds: an idle core sleeps as deeply as in the waits that the
/// price decides.
const TIMED: Duration = Duration::from_micros(20);
/// Samples of an average: the latest has a part of 1 / 8.
const WEIGHT: u32 = 8;

/// CPU time of a sleep before the first measurement, microseconds.
const ASSUMED: Duration = Duration::from_micros(4);
/// Bounds of a measured CPU time, microseconds: an interrupted thread measures too much.
const CPU_RANGE: (Duration, Duration) = (Duration::from_micros(1), Duration::from_micros(50));
/// Limit of a measured wake-up, milliseconds.
const LONGEST_WAKE_UP: Duration = Duration::from_millis(1);

/// Part of each for a frame that waits for control's answer, microseconds: two wake-ups of idle
/// cores, one of them a vCPU's.
const ANSWER: Duration = Duration::from_micros(50);

/// The measurement of a sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sample {
    /// Nothing.
    None,
    /// Its CPU time.
    CpuTime,
    /// A timed sleep of this length before it: how late that ends.
    WakeUp(Duration),
}

/// An average with more weight on later values.
#[derive(Clone, Copy, Debug)]
struct Average {
    value: Duration,
    samples: u32,
}

impl Average {
    fn of(value: Duration, samples: u32) -> Self {
        Self { value, samples }
    }

    fn add(&mut self, new: Duration) {
        self.samples = (self.samples + 1).min(WEIGHT);
        self.value = (self.value * (self.samples - 1) + new) / self.samples;
    }
}

/// The price of a sleep.
#[derive(Debug)]
pub(crate) struct Price {
    /// CPU time of falling asleep and waking.
    own: Average,
    /// From a notification until the thread runs: the peer waits for that.
    wake_up: Average,
    sleeps: u32,
}

impl Default for Price {
    /// Assumed, and replaced by the first measurements.
    fn default() -> Self {
        Self {
            own: Average::of(ASSUMED, 0),
            wake_up: Average::of(ASSUMED, 0),
            sleeps: 0,
        }
    }
}

impl Price {
    /// The price of sleeping while control is asked.
    pub(crate) fn of_answers() -> Self {
        Self {
            own: Average::of(ANSWER, WEIGHT),
            wake_up: Average::of(ANSWER, WEIGHT),
            sleeps: 0,
        }
    }

    pub(crate) fn own(&self) -> Duration {
        self.own.value
    }

    pub(crate) fn wake_up(&self) -> Duration {
        self.wake_up.value
    }

    pub(crate) fn whole(&self) -> Duration {
        self.own.value + self.wake_up.value
    }

    /// Returns what to measure of the next sleep. `only_one`: the next is far away.
    pub(crate) fn next_sleep(&mut self, only_one: bool) -> Sample {
        self.sleeps = self.sleeps.wrapping_add(1);
        if only_one {
            // It is measured in any case.
            self.sleeps = self
                .sleeps
                .checked_next_multiple_of(SLEEPS_PER_CPU)
                .unwrap_or(0);
        }
        let is_first = self.sleeps <= FIRST_SLEEPS && self.sleeps.is_power_of_two();
        if is_first || self.sleeps.is_multiple_of(SLEEPS_PER_WAKE_UP) {
            Sample::WakeUp(TIMED)
        } else if self.sleeps.is_multiple_of(SLEEPS_PER_CPU) {
            Sample::CpuTime
        } else {
            Sample::None
        }
    }

    pub(crate) fn slept(&mut self, cpu: Duration) {
        let (least, most) = CPU_RANGE;
        self.own.add(cpu.clamp(least, most));
    }

    pub(crate) fn woke_late(&mut self, late: Duration) {
        // One that is far longer than the others was delayed by something else.
        let likely = 2 * self.wake_up.value + TIMED;
        self.wake_up.add(late.min(likely).min(LONGEST_WAKE_UP));
    }
}
