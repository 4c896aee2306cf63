//! Pauses in which a port accepts no connection: after connections that did harm, and after failed
//! ones.

use std::time::{Duration, Instant};

/// Pauses of one port for one kind of reason: each is twice as long as the one before.
#[derive(Debug)]
pub(super) struct Pauses {
    first: Duration,
    longest: Duration,
    /// Time without a reason for a pause after which the next one is the shortest again.
    reset_after: Duration,
    /// The start of the last pause.
    last_start: Option<Instant>,
    next: Duration,
    until: Option<Instant>,
    /// The number of pauses so far.
    pub(super) count: u64,
}

impl Pauses {
    /// Creates pauses after connections that did harm.
    pub(super) fn after_fault() -> Self {
        let (first, reset_after) = (Duration::from_millis(100), Duration::from_secs(60));
        Self::new(first, Duration::from_secs(10), reset_after)
    }

    /// Creates pauses after failed connections: a front end that disconnects repeatedly would
    /// otherwise keep a core busy.
    pub(super) fn after_failure() -> Self {
        Self::growing_to(Duration::from_millis(20))
    }

    /// Creates pauses after connections beside an open one, as of two VMMs with one socket. They
    /// delay no connection that could be served.
    pub(super) fn after_rejection() -> Self {
        Self::growing_to(Duration::from_secs(1))
    }

    /// Creates pauses after connections that could not be accepted, for lack of descriptors or
    /// memory: hundreds of VMMs may wait for them, and none of the others may notice that.
    pub(super) fn after_failed_accept() -> Self {
        Self::growing_to(Duration::from_secs(1))
    }

    fn growing_to(longest: Duration) -> Self {
        Self::new(Duration::from_millis(1), longest, Duration::from_secs(10))
    }

    fn new(first: Duration, longest: Duration, reset_after: Duration) -> Self {
        Self {
            first,
            longest,
            reset_after,
            next: first,
            last_start: None,
            until: None,
            count: 0,
        }
    }

    /// Starts a pause. No reason for a pause occurred from `since` until `now`.
    pub(super) fn begin(&mut self, since: Instant, now: Instant) {
        if now.saturating_duration_since(since) >= self.reset_after {
            self.next = self.first;
        }
        let pause = self.next;
        self.until = Some(now + pause);
        self.next = self.longest.min(2 * pause);
        self.last_start = Some(now);
        self.count += 1;
    }

    /// Starts a pause. No reason for a pause occurred since the last one.
    pub(super) fn begin_again(&mut self, now: Instant) {
        self.begin(self.last_start.unwrap_or(now), now);
    }

    /// Ends the present pause now.
    pub(super) fn end_now(&mut self, now: Instant) {
        self.until = self.until.map(|until| until.min(now));
    }

    /// Returns the end of the present pause.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Returns the remaining time of the present pause.
    pub(super) fn remaining(&self, now: Instant) -> Duration {
        let until = self.until.unwrap_or(now);
        until.saturating_duration_since(now)
    }

    /// Ends a pause whose time is over. Returns whether there was one.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        self.until.take_if(|until| *until <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pause_is_twice_the_one_before_until_a_minute_without_a_fault() {
        let mut pauses = Pauses::after_fault();
        let mut now = Instant::now();
        let mut after = |lasted: u64| {
            let attached = now;
            now += Duration::from_secs(lasted);
            pauses.begin(attached, now);
            let pause = pauses.remaining(now);
            assert!(!pauses.is_over(now));
            now += pause;
            assert!(pauses.is_over(now));
            assert_eq!(
                (pauses.until(), pauses.remaining(now)),
                (None, Duration::ZERO)
            );
            pause.as_millis()
        };
        let lasting = |seconds, count| vec![seconds; count];
        let pauses: Vec<_> = lasting(1, 9).into_iter().map(&mut after).collect();
        assert_eq!(
            pauses,
            [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
        assert_eq!(after(59), 10_000);
        assert_eq!(after(60), 100);
    }

    #[test]
    fn a_pause_that_was_ended_is_over() {
        let mut pauses = Pauses::after_failure();
        let now = Instant::now();
        pauses.end_now(now);
        assert_eq!(pauses.until(), None);
        pauses.begin_again(now);
        assert!(!pauses.is_over(now));
        pauses.end_now(now);
        assert!(pauses.is_over(now));
    }
}
