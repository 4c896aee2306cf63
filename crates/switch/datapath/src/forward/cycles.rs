//! The cost of batches, in ticks of the processor's counter: read in a few instructions, twice a
//! batch.
//!
//! ```text
//! begin        take, match              deliver, publish, give back
//!   |----------------------------|-------------------------------------|----------- next batch
//!              switching                         copying
//! ```
//! The counter runs while another thread has the core. A batch that seems to cost many times the
//! recent average was interrupted, and the served port must not pay for that. So bills are bounded.

use std::time::Instant;

use port::counters::Ticks;

use crate::ports::batch::BATCH;

/// Largest bill, in multiples of the recent cost of batches of its size.
const OUTLIER: u64 = 16;
/// Largest bill at all, ticks: about a second. The counter of a suspended machine jumps.
const MAX_BILL: u64 = 1 << 32;
/// Load that stands for the fixed costs of a batch.
const LOAD_PER_BATCH: u64 = BATCH as u64 / 4;
/// Divisor of the latest batch's part in the average: 1 / 64.
const WEIGHT: u64 = 64;
/// Parts of a tick in which averages are kept.
const PARTS: u64 = 256;
/// Bytes whose copy costs about as much as the rest of the work for a frame.
pub(crate) const BYTES_PER_LOAD: u64 = 512;

/// Reads the counter, which grows at a constant rate: the time stamp counter, the virtual count of
/// aarch64, or else nanoseconds of the system's clock.
#[inline]
#[must_use]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction, and no process of Lasthop has it taken
    // away.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let count: u64;
        // SAFETY: Linux lets every process read this register (arm64/booting.rst), and reading
        // changes nothing.
        unsafe {
            std::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack));
        }
        return count;
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        sys::time::monotonic_ns()
    }
}

/// The rate of the counter, measured against the system's clock.
#[derive(Debug)]
pub struct TickRate {
    from: (Instant, u64),
}

/// Shortest time for a measurement, seconds.
const MIN_SECONDS: f64 = 0.01;

impl TickRate {
    /// Starts a measurement.
    #[must_use]
    pub fn start() -> Self {
        Self {
            from: (Instant::now(), ticks()),
        }
    }

    /// Returns the ticks per second, once enough time has passed; `now` was read a moment ago.
    #[must_use]
    pub fn ticks_per_second(&self, now: Instant) -> Option<u64> {
        let (then, count) = self.from;
        let seconds = now.saturating_duration_since(then).as_secs_f64();
        (seconds >= MIN_SECONDS).then(|| (ticks().saturating_sub(count) as f64 / seconds) as u64)
    }
}

/// The cost of a batch, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchCost {
    /// All of it, the part of its receivers included.
    pub all: u64,
    /// The part that its sender pays.
    pub of_sender: u64,
    /// The part of the notifications, which does not grow with the number of frames.
    pub notifying: u64,
    /// Whether a frame was copied. A batch without says little about the cost of others.
    pub copied: bool,
}

/// The last batch of a switch.
#[derive(Debug, Default)]
pub(crate) struct LastBatch {
    /// Its frames, plus a part for bytes.
    pub(crate) load: u64,
    pub(crate) cost: BatchCost,
    pub(crate) frames: usize,
    /// Whether it was cut for the sake of others, so that its sender may have more frames.
    pub(crate) more: bool,
}

/// The accounting of a switch.
#[derive(Debug)]
pub struct Meter {
    clock: fn() -> u64,
    /// The last reading.
    last: u64,
    /// Recent ticks for a load of 1, in [`PARTS`]; 0: not known yet.
    rate: u64,
    /// The sum of all bills so far.
    total: u64,
}

impl Meter {
    /// Creates a meter that reads this counter.
    #[must_use]
    pub fn reading(clock: fn() -> u64) -> Self {
        Self {
            clock,
            last: clock(),
            rate: 0,
            total: 0,
        }
    }

    /// Starts a lap: the time since the last batch is charged to no port.
    #[inline]
    pub fn begin(&mut self) {
        self.last = (self.clock)();
    }

    /// Returns the ticks since the last reading.
    #[inline]
    pub fn lap(&mut self) -> u64 {
        let now = (self.clock)();
        let lap = now.saturating_sub(self.last);
        self.last = now;
        lap
    }

    /// Returns the ticks since the last reading, and bills all of them.
    pub fn lap_of_all(&mut self) -> u64 {
        let lap = self.lap();
        self.total += lap;
        lap
    }

    /// Returns the sum of all bills so far, in ticks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the bill of a batch of this load with a measured cost of `ticks`. One of which
    /// nothing was `copied` says little about others: it has the load of its bytes, and was cheap.
    #[inline]
    pub fn bill(&mut self, ticks: Ticks, load: u64, copied: bool) -> Ticks {
        let load = load.max(1);
        let total = ticks.switching + ticks.copying;
        let most = match self.rate {
            0 => MAX_BILL,
            rate => (rate * (load + LOAD_PER_BATCH) * OUTLIER / PARTS).clamp(1, MAX_BILL),
        };
        let billed = total.min(most);
        self.total += billed;
        if copied || self.rate == 0 {
            let latest = billed.saturating_mul(PARTS) / load;
            self.rate = match self.rate {
                0 => latest,
                rate => rate - rate / WEIGHT + latest / WEIGHT,
            };
        }
        if billed == total {
            ticks
        } else {
            scaled(ticks, total, billed)
        }
    }
}

/// Returns a bill that is reduced from `total` to `billed`.
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
        let gauge = TickRate::start();
        let before = ticks();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(ticks() > before);
        let rate = gauge.ticks_per_second(Instant::now()).expect("long enough");
        assert!((1_000_000..20_000_000_000).contains(&rate), "{rate}");
    }

    #[test]
    fn an_interruption_is_not_billed() {
        let mut meter = meter();
        for _ in 0..100 {
            assert_eq!(meter.bill(bill(3000, 3400), 64, true), bill(3000, 3400));
        }
        // One frame costs more than a 64th of a batch, also with a system call.
        assert_eq!(meter.bill(bill(500, 9000), 1, true), bill(500, 9000));
        let cut = meter.bill(bill(500, 9_999_500), 1, true);
        let total = cut.switching + cut.copying;
        assert!((9_500..100_000).contains(&total), "{cut:?}");
        assert!(cut.switching * 1000 < total && cut.copying > 0, "{cut:?}");
    }

    #[test]
    fn a_jump_of_the_counter_overflows_nothing() {
        let mut meter = meter();
        for load in [1, 64, 64 * 64 * 1024 / BYTES_PER_LOAD] {
            for _ in 0..200 {
                let cut = meter.bill(bill(1 << 62, 1 << 62), load, true);
                assert!(cut.switching + cut.copying <= MAX_BILL, "{cut:?}");
            }
        }
        let before = meter.total();
        meter.bill(bill(u64::MAX / 2, 0), 1, false);
        assert!(meter.total() > before);
    }

    #[test]
    fn a_lasting_higher_cost_is_billed_in_full() {
        let mut meter = meter();
        meter.bill(bill(100, 0), 64, true);
        let last = (0..2000)
            .map(|_| meter.bill(bill(400_000, 0), 64, true))
            .last();
        assert_eq!(last, Some(bill(400_000, 0)));
        // Batches whose frames are dropped are cheap, and lower no bill.
        for _ in 0..2000 {
            meter.bill(bill(100, 0), 64, false);
        }
        assert_eq!(meter.bill(bill(400_000, 0), 64, true), bill(400_000, 0));
        let free = meter.bill(bill(0, 0), 0, true);
        assert_eq!(free, bill(0, 0));
    }
}
