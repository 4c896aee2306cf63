//! How far apart two cores are: the time of a cache line from one to the other and back.
//!
//! On machines with several core complexes, or in virtual machines that are moved between them,
//! this time has two values that differ by a factor of six and flips between them within seconds.
//! Every packet rate follows it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::Serialize;

use e2e::machine::pin;
use e2e::statistics::median;

/// Below this a round trip is near, in nanoseconds. Seen were 50 to 60 and 310 to 370 on AMD EPYC,
/// and 120 to 145 on an Intel Xeon, whose cores all share one cache.
pub(crate) const NEAR_BELOW_NS: f64 = 200.0;
/// Round trips of one batch, and batches; the median of the batches counts.
const TRIPS: u32 = 2_000;
const BATCHES: u32 = 25;

/// Distance of the two cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Placement {
    /// They share a cache.
    Near,
    /// They do not.
    Far,
}

impl Placement {
    /// The label for a round trip of `ns`.
    pub(crate) fn of(ns: f64, near_below: f64) -> Self {
        if ns < near_below {
            Self::Near
        } else {
            Self::Far
        }
    }

    /// The label of a measurement, if it is the same before and after.
    pub(crate) fn of_both(trips_ns: [f64; 2], near_below: f64) -> Option<Self> {
        let [before, after] = trips_ns.map(|ns| Self::of(ns, near_below));
        (before == after).then_some(before)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

/// One cache line that both threads write.
#[repr(align(128))]
struct Line(AtomicU32);

/// The round trip of a cache line between two cores, in nanoseconds. Nothing else should run on
/// them.
pub(crate) fn round_trip(cores: [usize; 2]) -> Result<f64> {
    let line = Line(AtomicU32::new(0));
    let rounds = TRIPS * (BATCHES + 1);
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            let pinned = pin(cores[0]);
            for round in 0..rounds {
                until(&line.0, 2 * round + 1);
                line.0.store(2 * round + 2, Ordering::Release);
            }
            pinned
        });
        let here = scope.spawn(|| {
            let pinned = pin(cores[1]);
            let mut batches = Vec::new();
            for batch in 0..=BATCHES {
                let start = Instant::now();
                for round in batch * TRIPS..(batch + 1) * TRIPS {
                    line.0.store(2 * round + 1, Ordering::Release);
                    until(&line.0, 2 * round + 2);
                }
                batches.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(TRIPS));
            }
            // The first batch waits for the other thread to start.
            batches.remove(0);
            pinned.map(|()| batches)
        });
        there.join().ok().context("a thread panicked")??;
        let batches = here.join().ok().context("a thread panicked")??;
        median(&batches).context("no batches")
    })
}

fn until(line: &AtomicU32, value: u32) {
    let mut spins = 0_u32;
    while line.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
        spins += 1;
        // If both threads are on one core, one must yield.
        if spins.is_multiple_of(1 << 12) {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_known_placements_are_distinguished() {
        for ns in [50.0, 60.0, 145.0] {
            assert_eq!(Placement::of(ns, NEAR_BELOW_NS), Placement::Near);
        }
        for ns in [310.0, 370.0] {
            assert_eq!(Placement::of(ns, NEAR_BELOW_NS), Placement::Far);
        }
    }
}
