//! What batches cost, in ticks of the processor's own counter: read in a few instructions, twice a batch.
//!
//! ```text
//! begin        take, match              deliver, publish, give back
//!   |----------------------------|-------------------------------------|----------- next batch
//!              switching                         copying
//! ```
//! The counter goes on while another thread has the core. A batch that seems to cost many times what batches cost
//! lately did not: it was interrupted, and who was served then is not to blame. So bills are bounded.

use std::time::Instant;

use port::BATCH;
use port::counters::Ticks;

/// A bill is at most so many times what batches of its size cost lately.
const OUTLIER: u64 = 16;
/// Load that every batch is taken to have besides its frames': it has costs of its own.
const LOAD_OF_A_BATCH: u64 = BATCH as u64 / 4;
/// Part that the latest batch has in the average: 1 / 64.
const SHARE: u64 = 64;
/// Averages are kept in so many parts of a tick.
const PARTS: u64 = 256;

/// The counter: it grows at a constant rate, whatever the core does. The time stamp counter, the virtual count of
/// aarch64, or else nanoseconds of the system's clock.
#[inline]
#[must_use]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction, and no process of Lasthop has it taken away.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let count: u64;
        // SAFETY: Linux lets every process read this register (arm64/booting.rst), and reading changes nothing.
        unsafe {
            std::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack));
        }
        return count;
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// How fast the counter is, measured against the system's clock.
#[derive(Debug)]
pub struct Gauge {
    from: (Instant, u64),
}

/// Less than this is too short to measure with, seconds.
const SHORT: f64 = 0.01;

impl Gauge {
    /// Starts to measure.
    #[must_use]
    pub fn start() -> Self {
        Self {
            from: (Instant::now(), ticks()),
        }
    }

    /// Ticks in a second, once enough time has gone by; `now` was read a moment ago.
    #[must_use]
    pub fn ticks_per_second(&self, now: Instant) -> Option<u64> {
        let (then, count) = self.from;
        let seconds = now.saturating_duration_since(then).as_secs_f64();
        (seconds >= SHORT).then(|| (ticks().saturating_sub(count) as f64 / seconds) as u64)
    }
}

/// Writes a switch's bills.
#[derive(Debug)]
pub struct Meter {
    clock: fn() -> u64,
    /// When it was read last.
    last: u64,
    /// Ticks for a load of 1 lately, in [`PARTS`]; 0: not known yet.
    rate: u64,
    /// Of all bills so far.
    total: u64,
}

impl Meter {
    /// One that reads this counter.
    #[must_use]
    pub fn reading(clock: fn() -> u64) -> Self {
        Self {
            clock,
            last: clock(),
            rate: 0,
            total: 0,
        }
    }

    /// What was done since the last batch is nobody's.
    #[inline]
    pub fn begin(&mut self) {
        self.last = (self.clock)();
    }

    /// Ticks since the last reading.
    #[inline]
    pub fn lap(&mut self) -> u64 {
        let now = (self.clock)();
        let lap = now.saturating_sub(self.last);
        self.last = now;
        lap
    }

    /// Ticks since the last reading, which are billed as they are.
    pub fn lap_of_all(&mut self) -> u64 {
        let lap = self.lap();
        self.total += lap;
        lap
    }

    /// What all bills so far come to, in ticks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// What a batch of this load costs that was measured to cost `ticks`.
    #[inline]
    pub fn bill(&mut self, ticks: Ticks, load: u64) -> Ticks {
        let load = load.max(1);
        let total = ticks.switching + ticks.copying;
        let most = match self.rate {
            0 => u64::MAX,
            rate => (rate * (load + LOAD_OF_A_BATCH) * OUTLIER / PARTS).max(1),
        };
        let billed = total.min(most);
        self.total += billed;
        let latest = billed.saturating_mul(PARTS) / load;
        self.rate = match self.rate {
            0 => latest,
            rate => rate - rate / SHARE + latest / SHARE,
        };
        match billed == total {
            true => ticks,
            false => scaled(ticks, total, billed),
        }
    }
}

/// A bill cut down from `total` to `billed`.
#[cold]
fn scaled(ticks: Ticks, total: u64, billed: u64) -> Ticks {
    let copying = u128::from(ticks.copying) * u128::from(billed) / u128::from(total);
    Ticks {
        switching: billed - copying as u64,
        copying: copying as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter() -> Meter {
        Meter::reading(|| 0)
    }

    fn bill(switching: u64, copying: u64) -> Ticks {
        Ticks { switching, copying }
    }

    #[test]
    fn the_counter_grows_as_fast_as_time() {
        let gauge = Gauge::start();
        let before = ticks();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(ticks() > before);
        let rate = gauge.ticks_per_second(Instant::now()).expect("long enough");
        assert!((1_000_000..20_000_000_000).contains(&rate), "{rate}");
    }

    #[test]
    fn who_was_interrupted_is_not_billed_for_it() {
        let mut meter = meter();
        for _ in 0..100 {
            assert_eq!(meter.bill(bill(3000, 3400), 64), bill(3000, 3400));
        }
        // One frame costs more than a 64th of a batch, also with a system call.
        assert_eq!(meter.bill(bill(500, 9000), 1), bill(500, 9000));
        let cut = meter.bill(bill(500, 9_999_500), 1);
        let total = cut.switching + cut.copying;
        assert!((9_500..100_000).contains(&total), "{cut:?}");
        assert!(cut.switching * 1000 < total && cut.copying > 0, "{cut:?}");
    }

    #[test]
    fn who_costs_more_for_long_is_billed_for_all_of_it() {
        let mut meter = meter();
        meter.bill(bill(100, 0), 64);
        let last = (0..2000).map(|_| meter.bill(bill(400_000, 0), 64)).last();
        assert_eq!(last, Some(bill(400_000, 0)));
        let free = meter.bill(bill(0, 0), 0);
        assert_eq!(free, bill(0, 0));
    }
}
