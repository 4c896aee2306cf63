//! How long a port takes no connection: after one that did harm, and after those that came to nothing.

use std::time::{Duration, Instant};

/// Each pause is twice as long as the one before.
#[derive(Debug)]
struct Growth {
    first: Duration,
    longest: Duration,
    /// After so long without a reason for a pause the next one is the first again.
    forgiven: Duration,
}

/// Pauses of one port for one kind of reason.
#[derive(Debug)]
pub(super) struct Pauses {
    growth: Growth,
    /// The last one.
    begun: Option<Instant>,
    next: Duration,
    until: Option<Instant>,
    /// Pauses so far.
    pub(super) count: u64,
}

impl Pauses {
    /// After connections that did harm.
    pub(super) fn after_harm() -> Self {
        Self::new(Growth {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(10),
            forgiven: Duration::from_secs(60),
        })
    }

    /// After connections that came to nothing: who hangs up again and again would else keep a processor busy.
    pub(super) fn after_nothing() -> Self {
        Self::rising_to(Duration::from_millis(20))
    }

    /// After connections beside one that is open, as of two VMMs that dial one socket. Nobody waits for it who is to be served.
    pub(super) fn beside_another() -> Self {
        Self::rising_to(Duration::from_secs(1))
    }

    fn rising_to(longest: Duration) -> Self {
        Self::new(Growth {
            first: Duration::from_millis(1),
            longest,
            forgiven: Duration::from_secs(10),
        })
    }

    fn new(growth: Growth) -> Self {
        Self {
            next: growth.first,
            growth,
            begun: None,
            until: None,
            count: 0,
        }
    }

    /// Begins one. All was well from `since` until `now`.
    pub(super) fn begin(&mut self, since: Instant, now: Instant) {
        if now.saturating_duration_since(since) >= self.growth.forgiven {
            self.next = self.growth.first;
        }
        let pause = self.next;
        self.until = Some(now + pause);
        self.next = self.growth.longest.min(2 * pause);
        self.begun = Some(now);
        self.count += 1;
    }

    /// Begins one. All was well since the last one began.
    pub(super) fn begin_again(&mut self, now: Instant) {
        self.begin(self.begun.unwrap_or(now), now);
    }

    /// Has the pause that is under way end now.
    pub(super) fn cut_short(&mut self, now: Instant) {
        self.until = self.until.map(|until| until.min(now));
    }

    /// When the pause ends that is under way.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// What is left of it.
    pub(super) fn left(&self, now: Instant) -> Duration {
        let until = self.until.unwrap_or(now);
        until.saturating_duration_since(now)
    }

    /// Ends a pause whose time is over. Whether there was one.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        self.until.take_if(|until| *until <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pause_is_twice_the_one_before_until_a_connection_behaves_for_a_minute() {
        let mut pauses = Pauses::after_harm();
        let mut now = Instant::now();
        let mut after = |lasted: u64| {
            let attached = now;
            now += Duration::from_secs(lasted);
            pauses.begin(attached, now);
            let pause = pauses.left(now);
            assert!(!pauses.is_over(now));
            now += pause;
            assert!(pauses.is_over(now));
            assert_eq!((pauses.until(), pauses.left(now)), (None, Duration::ZERO));
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
    fn a_pause_that_is_cut_short_is_over() {
        let mut pauses = Pauses::after_nothing();
        let now = Instant::now();
        pauses.cut_short(now);
        assert_eq!(pauses.until(), None);
        pauses.begin_again(now);
        assert!(!pauses.is_over(now));
        pauses.cut_short(now);
        assert!(pauses.is_over(now));
    }
}
