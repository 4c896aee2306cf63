//! Rate limit for events that another party can cause.

use std::time::Duration;

/// Limits the rate of an event with one cause, such as log lines about a port. Suppressed events
/// are counted, and the count is returned with the next admitted one.
#[derive(Clone, Copy, Debug)]
pub struct EventLimiter {
    most: u32,
    within: Duration,
    /// Start of the period that `done` counts for.
    since: Duration,
    done: u32,
    /// Suppressed since the last admitted event.
    pending: u64,
    /// Suppressed in total.
    all: u64,
}

impl EventLimiter {
    /// Admits at most `most` events `within` a period.
    #[must_use]
    pub fn new(most: u32, within: Duration) -> Self {
        Self {
            most,
            within,
            since: Duration::ZERO,
            done: 0,
            pending: 0,
            all: 0,
        }
    }

    /// Admits an event and returns the number of suppressed ones before it, or suppresses it. `now`
    /// is on any monotonic clock.
    pub fn admit(&mut self, now: Duration) -> Option<u64> {
        if !self.is_under_way(now) {
            (self.since, self.done) = (now, 0);
        }
        if self.done >= self.most {
            self.pending += 1;
            self.all += 1;
            return None;
        }
        self.done += 1;
        Some(std::mem::take(&mut self.pending))
    }

    /// Returns whether the next event would be suppressed, without counting it.
    #[must_use]
    pub fn is_exhausted(&self, now: Duration) -> bool {
        self.done >= self.most && self.is_under_way(now)
    }

    /// Returns the total number of suppressed events.
    #[must_use]
    pub fn suppressed(&self) -> u64 {
        self.all
    }

    /// Returns whether a new limiter would behave differently.
    #[must_use]
    pub fn is_needed(&self, now: Duration) -> bool {
        self.is_under_way(now) || self.pending > 0
    }

    fn is_under_way(&self, now: Duration) -> bool {
        self.done > 0 && now.saturating_sub(self.since) < self.within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_so_many_and_the_next_tells_how_many_were_left_out() {
        let mut limiter = EventLimiter::new(2, Duration::from_secs(1));
        let mut at = |ms| limiter.admit(Duration::from_millis(ms));
        assert_eq!(
            [at(0), at(1), at(2), at(999)],
            [Some(0), Some(0), None, None]
        );
        assert_eq!([at(1000), at(1001), at(1002)], [Some(2), Some(0), None]);
        let exhausted = |ms| limiter.is_exhausted(Duration::from_millis(ms));
        assert_eq!([exhausted(1999), exhausted(2000)], [true, false]);
        let mut at = |ms| limiter.admit(Duration::from_millis(ms));
        assert_eq!(at(5000), Some(1));
        assert_eq!(limiter.suppressed(), 3);
    }
}
