//! Interrupt coalescing, and suppression of kicks, by vCPU states (Hyper-Switch, 4.3.3).
//!
//! A notification interrupts a guest that runs, and wakes one that does not. The first is worth
//! little when the guest was interrupted a moment ago; the second is worth its cost at once. The
//! frames themselves are in the guest's buffers before, and published: a guest that polls finds
//! them.
//!
//! ```text
//! frames published --> THRESHOLD since the last notification? --yes--> notify
//!                      the last one PERIOD ago or longer? -------yes--> notify: after silence
//!                                                                       no frame waits
//!                      receiver not known to run? ---------------yes--> notify
//!                      otherwise wait until PERIOD after the last one, or the receiver blocks
//! ```
//! In the other direction, a guest that has kicked need not kick again for a PERIOD as long as it
//! runs, though its queue is not polled. When its vCPU blocks, a block event wakes the worker
//! ([`Vcpus::listen`]), so that the guest waits for no frame that lies there. That is done where
//! the worker may run on the guest's core, and as long as it pays (`worker/suppressed_kicks.rs`):
//! on a core of its own the worker rather works beside the guest.
//!
//! For guests with unknown vCPU states only the guest's notification suppression applies, as
//! without these rules. Kicks of a guest that sends steadily are coalesced whatever is known of its
//! vCPUs (`ports/guest/kick_rate.rs`). This module reads no clock, and no timer runs without
//! frames.

use channel::supervision::Coalescing;

/// Nanoseconds of the machine's monotonic clock.
pub type Nanos = u64;

const NANOS_PER_MICRO: u64 = 1000;
/// Opportunities that are skipped after the first failure; twice as many after each further one.
const SKIPS: u32 = 8;
const MAX_SKIPS: u32 = 1024;
/// Failures that count at most: more would skip no more, and would have to be made good one by one.
const MAX_FAILURES: u32 = (MAX_SKIPS / SKIPS).ilog2();

/// The joint state of the vCPUs that serve a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// All run, or are runnable.
    Running,
    /// At least one sleeps, and would be woken by a notification.
    Blocked,
    /// The state is not reported.
    Unknown,
}

/// A vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processor {
    /// The core where it runs, or ran last.
    pub core: usize,
    /// The time since when it sleeps, if it does.
    pub asleep: Option<Nanos>,
}

/// The states of the vCPUs behind a port, read without a system call.
pub trait Vcpus: Send + Sync + std::fmt::Debug {
    /// Returns the joint state of the vCPUs that serve queue pair `pair` of `pairs`.
    fn activity(&self, pair: u16, pairs: u16) -> Activity;

    /// Returns the vCPU that serves queue pair `pair` of `pairs`. `None` where there are several,
    /// or nothing is known.
    fn processor(&self, pair: u16, pairs: u16) -> Option<Processor>;

    /// Requests a block event for the vCPUs that serve queue pair `pair` of `pairs`. Returns
    /// `false` where there are no block events.
    fn listen(&self, _pair: u16, _pairs: u16) -> bool {
        false
    }
}

/// The parameters of interrupt coalescing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Time between two notifications of a running guest; 0: no notification is deferred.
    period: Nanos,
    /// Number of buffers that is notified at once.
    threshold: u32,
    /// Time in which frames gather for one kick; 0: each frame has its kick.
    kick_window: Nanos,
}

impl Rules {
    /// No notification is deferred, and no kick is coalesced.
    pub const OFF: Self = Self {
        period: 0,
        threshold: 0,
        kick_window: 0,
    };

    /// Returns the rules of the configuration.
    #[must_use]
    pub fn of(coalescing: Option<Coalescing>) -> Self {
        coalescing.map_or(Self::OFF, |coalescing| Self {
            period: u64::from(coalescing.period_us) * NANOS_PER_MICRO,
            threshold: coalescing.threshold,
            kick_window: u64::from(coalescing.kick_us) * NANOS_PER_MICRO,
        })
    }

    /// Returns the rules for a port that gathers frames itself before it kicks.
    #[must_use]
    pub fn without_kick_window(self) -> Self {
        Self {
            kick_window: 0,
            ..self
        }
    }

    /// Returns whether a deferred notification is due by time or number, not because of the
    /// receiver's state.
    #[must_use]
    pub fn is_up(&self, published: u32, last: Option<Nanos>, now: Nanos) -> bool {
        let until = last.map_or(0, |last| last + self.period);
        now >= until || published >= self.threshold
    }

    /// Returns the time until which the notification of a queue can wait; `None`: it is due.
    /// `published`: buffers since the last notification. `activity` is called only where it
    /// matters.
    #[inline]
    #[must_use]
    pub fn wait(
        &self,
        published: u32,
        last: Option<Nanos>,
        now: Nanos,
        activity: impl FnOnce() -> Activity,
    ) -> Option<Nanos> {
        let until = last? + self.period;
        let may_wait = now < until && published < self.threshold;
        (may_wait && activity() == Activity::Running).then_some(until)
    }
}

impl Rules {
    /// Returns the time until which a guest that kicks now need not kick again, if it runs.
    #[inline]
    #[must_use]
    pub fn quiet_until(&self, now: Nanos) -> Nanos {
        now + self.period
    }

    /// Returns the time in which frames of a guest gather for one kick while its worker sleeps; 0:
    /// each frame has its kick.
    #[inline]
    #[must_use]
    pub fn kick_window(&self) -> Nanos {
        self.kick_window
    }

    /// Returns the number of buffers that is notified at once.
    #[must_use]
    pub fn threshold(&self) -> u32 {
        self.threshold
    }
}

/// The record of earlier trials: whether a measure pays.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct TrialRecord {
    /// Failures less successes, [`MAX_FAILURES`] at most.
    failures: u32,
    /// The number of opportunities to skip.
    skips: u32,
}

impl TrialRecord {
    /// Returns whether to try. To be called once for each opportunity.
    pub(crate) fn should_try(&mut self) -> bool {
        let skips = self.skips > 0;
        self.skips = self.skips.saturating_sub(1);
        !skips
    }

    /// Records the result of a trial.
    pub(crate) fn learn(&mut self, paid: bool) {
        if paid {
            self.failures = self.failures.saturating_sub(1);
            return;
        }
        self.skips = SKIPS << self.failures;
        self.failures = (self.failures + 1).min(MAX_FAILURES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: Rules = Rules {
        period: 125_000,
        threshold: 64,
        kick_window: 80_000,
    };

    fn wait(published: u32, last: Option<Nanos>, now: Nanos, activity: Activity) -> Option<Nanos> {
        RULES.wait(published, last, now, || activity)
    }

    #[test]
    fn a_guest_that_runs_and_was_just_notified_waits_for_the_period() {
        assert_eq!(wait(1, Some(1000), 1001, Activity::Running), Some(126_000));
        assert_eq!(
            wait(1, Some(1000), 125_999, Activity::Running),
            Some(126_000)
        );
        assert_eq!(wait(1, Some(1000), 126_000, Activity::Running), None);
    }

    #[test]
    fn a_guest_that_sleeps_or_is_not_known_never_waits() {
        assert_eq!(wait(1, Some(1000), 1001, Activity::Blocked), None);
        assert_eq!(wait(1, Some(1000), 1001, Activity::Unknown), None);
    }

    #[test]
    fn many_frames_never_wait() {
        assert_eq!(wait(63, Some(1000), 1001, Activity::Running), Some(126_000));
        assert_eq!(wait(64, Some(1000), 1001, Activity::Running), None);
    }

    #[test]
    fn the_first_frame_after_silence_never_waits() {
        assert_eq!(wait(1, None, 5, Activity::Running), None);
        assert_eq!(wait(1, Some(5), 200_000, Activity::Running), None);
    }

    /// Offers so many opportunities, of which nine of ten pay or none. Returns how many it took.
    fn trials(record: &mut TrialRecord, chances: u32, pays: bool) -> u32 {
        let mut count = 0;
        for _ in 0..chances {
            if record.should_try() {
                count += 1;
                record.learn(pays && count % 10 != 0);
            }
        }
        count
    }

    #[test]
    fn a_long_time_in_which_trials_failed_is_forgotten_soon() {
        let (mut new, mut old) = (TrialRecord::default(), TrialRecord::default());
        assert!(trials(&mut old, 1_000_000, false) < 1000);
        let [of_new, of_old] = [&mut new, &mut old].map(|record| trials(record, 20_000, true));
        assert!(
            of_old > 9_000 && of_new.abs_diff(of_old) < 2_000,
            "{of_new} {of_old}"
        );
    }

    #[test]
    fn without_rules_no_notification_waits_and_no_state_is_read() {
        let off = Rules::of(None);
        assert_eq!(off.wait(1, Some(5), 5, || unreachable!()), None);
    }

    proptest! {
        /// For all arrivals: between two notifications of a running guest is a period or a
        /// threshold of frames, and no frame waits longer than a period.
        #[test]
        fn notifications_are_rare_and_none_is_late(
            arrivals in prop::collection::vec((0u64..200_000, 1u32..20), 1..200),
        ) {
            let (mut now, mut last, mut due, mut published) = (1u64, None, None, 0);
            let mut oldest = None;
            for (gap, frames) in arrivals {
                let next = now + gap;
                if let Some(at) = due.filter(|at| *at <= next) {
                    prop_assert!(at - oldest.unwrap() <= RULES.period);
                    (last, published, oldest) = (Some(at), 0, None);
                }
                now = next;
                published += frames;
                oldest = oldest.or(Some(now));
                match wait(published, last, now, Activity::Running) {
                    until @ Some(_) => due = until,
                    None => {
                        prop_assert!(
                            last.is_none_or(|last| now - last >= RULES.period)
                                || published >= RULES.threshold
                        );
                        (last, due, published, oldest) = (Some(now), None, 0, None);
                    }
                }
            }
        }
    }
}
