//! The time that is left: estimates of the catalogue, corrected by how long experiments took.

use std::time::{Duration, Instant};

use crate::plan::expect_end;

/// The bounds of the correction: one experiment that waited for the machine says little.
const CORRECTION: [f64; 2] = [0.25, 4.0];

/// Experiments one after the other, each with its estimate.
pub(super) struct Clock {
    estimates: Vec<Duration>,
    /// How many have ended, and how long they took.
    ended: usize,
    spent: Duration,
    begun: Instant,
}

impl Clock {
    pub(super) fn of(estimates: Vec<Duration>) -> Self {
        Self {
            estimates,
            ended: 0,
            spent: Duration::ZERO,
            begun: Instant::now(),
        }
    }

    /// The next experiment begins; all that is said in it has the time that is left.
    pub(super) fn begin(&mut self) {
        self.begun = Instant::now();
        expect_end(Some(self.left()));
    }

    pub(super) fn end(&mut self) {
        self.add(self.begun.elapsed());
        let left = (self.ended < self.estimates.len()).then(|| self.left());
        expect_end(left);
    }

    fn add(&mut self, spent: Duration) {
        self.ended += 1;
        self.spent += spent;
    }

    /// The time for the experiments that have not ended.
    fn left(&self) -> Duration {
        let (ended, left) = self
            .estimates
            .split_at(self.ended.min(self.estimates.len()));
        let estimate: Duration = ended.iter().sum();
        let factor = if estimate.is_zero() {
            1.0
        } else {
            let factor = self.spent.as_secs_f64() / estimate.as_secs_f64();
            factor.clamp(CORRECTION[0], CORRECTION[1])
        };
        left.iter().sum::<Duration>().mul_f64(factor)
    }
}

/// A time as people say it.
pub(super) fn duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=90 => format!("{seconds} seconds"),
        seconds => format!("{} minutes", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_what_experiments_took() {
        let seconds = Duration::from_secs;
        let mut clock = Clock::of([10, 20, 30].map(seconds).to_vec());
        assert_eq!(clock.left(), seconds(60));
        clock.add(seconds(15));
        assert_eq!(clock.left(), seconds(75));
        // A very long one is no measure of the others.
        clock.add(seconds(1000));
        assert_eq!(clock.left(), seconds(120));
        clock.add(seconds(30));
        assert_eq!(clock.left(), seconds(0));
    }

    #[test]
    fn times_are_rounded_up() {
        let shown = [5, 90, 91, 600].map(|s| duration(Duration::from_secs(s)));
        let desired = ["5 seconds", "90 seconds", "2 minutes", "10 minutes"];
        assert_eq!(shown, desired);
    }
}
