//! How often somebody else can cause something.

use std::time::Duration;

/// Bounds how often something is done for one cause, such as lines of the log about a port. What was left out is counted, and told when
/// it is done again.
#[derive(Clone, Copy, Debug)]
pub struct EventLimiter {
    most: u32,
    within: Duration,
    /// When the time began that `done` counts for.
    since: Duration,
    done: u32,
    /// Left out since it was done last.
    left_out: u64,
    /// Left out in all.
    all: u64,
}

impl EventLimiter {
    /// At most `most` times `within` that time.
    #[must_use]
    pub fn new(most: u32, within: Duration) -> Self {
        Self {
            most,
            within,
            since: Duration::ZERO,
            done: 0,
            left_out: 0,
            all: 0,
        }
    }

    /// Whether it may be done once more, and how often it was left out before that. `now` is on any clock that goes forward.
    pub fn once_more(&mut self, now: Duration) -> Option<u64> {
        if !self.is_under_way(now) {
            (self.since, self.done) = (now, 0);
        }
        if self.done >= self.most {
            self.left_out += 1;
            self.all += 1;
            return None;
        }
        self.done += 1;
        Some(std::mem::take(&mut self.left_out))
    }

    /// Whether it may not be done once more, without counting that as an attempt.
    #[must_use]
    pub fn is_exhausted(&self, now: Duration) -> bool {
        self.done >= self.most && self.is_under_way(now)
    }

    /// How often it was left out so far.
    #[must_use]
    pub fn all_left_out(&self) -> u64 {
        self.all
    }

    /// Whether one made anew would allow or tell something else.
    #[must_use]
    pub fn is_needed(&self, now: Duration) -> bool {
        self.is_under_way(now) || self.left_out > 0
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
        let mut at = |ms| limiter.once_more(Duration::from_millis(ms));
        assert_eq!(
            [at(0), at(1), at(2), at(999)],
            [Some(0), Some(0), None, None]
        );
        assert_eq!([at(1000), at(1001), at(1002)], [Some(2), Some(0), None]);
        let exhausted = |ms| limiter.is_exhausted(Duration::from_millis(ms));
        assert_eq!([exhausted(1999), exhausted(2000)], [true, false]);
        let mut at = |ms| limiter.once_more(Duration::from_millis(ms));
        assert_eq!(at(5000), Some(1));
        assert_eq!(limiter.all_left_out(), 3);
    }
}
