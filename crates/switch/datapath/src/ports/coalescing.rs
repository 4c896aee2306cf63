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
//!                      receiver not known to work? --------------yes--> notify
//!                      otherwise wait until PERIOD after the last one, or the receiver blocks
//! ```
//! A vCPU of KVM that has halted still runs as far as the scheduler knows, for 200 microseconds by
//! default: KVM polls in its thread before it lets it sleep. So a guest whose vCPUs run is known to
//! work only by its past notifications, of which none has ended a halt (`WorkRecord`).
//!
//! In the other direction, a guest that has kicked need not kick again for half a PERIOD as long as
//! it runs, though its queue is not polled. When its vCPU blocks, a block event wakes the worker
//! ([`Vcpus::listen`]), so that the guest waits for no frame that lies there. That is done where
//! the worker may run on the guest's core, and as long as it pays (`worker/suppressed_kicks.rs`):
//! on a core of its own the worker rather works beside the guest.
//!
//! For guests with unknown vCPU states only the guest's notification suppression applies, as
//! without these rules. Kicks of a guest that sends steadily are coalesced whatever is known of its
//! vCPUs (`ports/guest/kick_rate.rs`). This module reads no clock, and no timer runs without
//! frames.

use ipc::supervision::Coalescing;

/// Nanoseconds of the machine's monotonic clock.
pub type Nanos = u64;

const NANOS_PER_MICRO: u64 = 1000;
/// Opportunities that are skipped after the first failure; twice as many after each further one.
const SKIPS: u32 = 8;
const MAX_SKIPS: u32 = 1024;
/// Failures that count at most: more would skip no more, and would have to be made good one by one.
const MAX_FAILURES: u32 = (MAX_SKIPS / SKIPS).ilog2();

/// Time within which a notification that wakes a halted vCPU is seen to have done so, nanoseconds:
/// more than the interrupt of an idle guest and its answer take together.
const WAKES_WITHIN: Nanos = 60_000;
/// Notifications in a row that end no halt, and nanoseconds since the first of them, after which a
/// guest is known to work. It takes several, because one may come while a guest works that halts a
/// moment later.
const FOUND_WORKING: (u32, Nanos) = (4, 800_000);
/// Periods without a notification after which earlier ones tell nothing.
const FORGOTTEN: u64 = 2;

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
    /// Whether KVM polls in its place when it halts, so that it sleeps only some time later.
    pub polled_for: bool,
}

/// The states of the vCPUs behind a port, read without a system call.
pub trait Vcpus: Send + Sync + std::fmt::Debug {
    /// Returns the joint state of the vCPUs that serve queue pair `pair` of `pairs`.
    fn activity(&self, pair: u16, pairs: u16) -> Activity;

    /// Returns the number of halts of the vCPUs that serve queue pair `pair` of `pairs` that have
    /// ended, since any time; it wraps around. `None` where halts are not counted.
    fn halts(&self, pair: u16, pairs: u16) -> Option<u64>;

    /// Returns the vCPU that serves queue pair `pair` of `pairs`. `None` where there are several,
    /// or nothing is known.
    fn processor(&self, pair: u16, pairs: u16) -> Option<Processor>;

    /// Requests a block event for the vCPUs that serve queue pair `pair` of `pairs`. Returns
    /// `false` where there are no block events.
    fn listen(&self, _pair: u16, _pairs: u16) -> bool {
        false
    }
}

/// The vCPUs that serve one queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Servers<'a> {
    /// Those of the port, if they are known.
    pub vcpus: Option<&'a dyn Vcpus>,
    /// The queue pair.
    pub pair: u16,
    /// The number of queue pairs of the port.
    pub pairs: u16,
}

impl Servers<'_> {
    /// Returns their joint state.
    #[inline]
    #[must_use]
    pub fn activity(&self) -> Activity {
        self.vcpus.map_or(Activity::Unknown, |vcpus| {
            vcpus.activity(self.pair, self.pairs)
        })
    }

    /// Returns the number of their halts that have ended; see [`Vcpus::halts`].
    #[inline]
    fn halts(&self) -> Option<u64> {
        self.vcpus?.halts(self.pair, self.pairs)
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

    /// Returns whether notifications are deferred at all.
    #[must_use]
    pub fn defers(&self) -> bool {
        self.period > 0
    }

    /// Returns whether so many buffers since the last notification are notified at once.
    #[must_use]
    pub fn are_many(&self, published: u32) -> bool {
        published >= self.threshold
    }

    /// Returns the time until which the notification of a queue can wait; `None`: it is due.
    /// `published`: buffers since the last notification. `works`: whether the receiver is known to
    /// work; called only where it matters.
    #[inline]
    #[must_use]
    pub fn wait(
        &self,
        published: u32,
        last: Option<Nanos>,
        now: Nanos,
        works: impl FnOnce() -> bool,
    ) -> Option<Nanos> {
        let until = last? + self.period;
        let may_wait = now < until && !self.are_many(published);
        (may_wait && works()).then_some(until)
    }

    /// Returns the time until which a guest that kicks now need not kick again, if it runs.
    #[inline]
    #[must_use]
    pub fn quiet_until(&self, now: Nanos) -> Nanos {
        now + self.period / 2
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

/// The record of a queue's notifications, which tells whether the guest works.
///
/// A notification that finds a vCPU halted, asleep or while KVM polls in its place, ends that halt.
/// A guest whose last [`FOUND_WORKING`] notifications have ended none was at work each time. It may
/// have halted since: then the next notification tells, so one is deferred in error, and another
/// if frames come before that one has woken the vCPU.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct WorkRecord {
    /// Halts of the vCPUs when they were counted last.
    halts: u64,
    /// Notifications since a halt has ended.
    notifications: u32,
    /// Times of the first and of the last of them.
    since: Nanos,
    last: Nanos,
    /// Whether the last notification was a deferred one, and the guest may have slept meanwhile.
    was_deferred: bool,
}

impl WorkRecord {
    /// Returns whether the guest is known to work. `learn` is called with whether the last deferral
    /// paid, once that is known: not if the guest had halted meanwhile.
    pub(crate) fn works(
        &mut self,
        servers: Servers<'_>,
        now: Nanos,
        learn: impl FnOnce(bool),
    ) -> bool {
        let Some(halts) = servers.halts() else {
            return false;
        };
        let halted = std::mem::replace(&mut self.halts, halts) != halts;
        let is_known = halted || now >= self.last + WAKES_WITHIN;
        if self.was_deferred && is_known {
            self.was_deferred = false;
            learn(!halted);
        }
        if halted || servers.activity() != Activity::Running {
            self.notifications = 0;
        }
        let (notifications, time) = FOUND_WORKING;
        self.notifications >= notifications && now >= self.since + time
    }

    /// Notes a notification. `was_deferred`: it was, for as long as it may be.
    pub(crate) fn notified(&mut self, rules: Rules, now: Nanos, was_deferred: bool) {
        if now > self.last + FORGOTTEN * rules.period {
            self.notifications = 0;
        }
        if self.notifications == 0 {
            self.since = now;
        }
        self.notifications = self.notifications.saturating_add(1);
        self.last = now;
        self.was_deferred = was_deferred;
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

    fn wait(published: u32, last: Option<Nanos>, now: Nanos, works: bool) -> Option<Nanos> {
        RULES.wait(published, last, now, || works)
    }

    #[test]
    fn a_guest_that_runs_and_was_just_notified_waits_for_the_period() {
        assert_eq!(wait(1, Some(1000), 1001, true), Some(126_000));
        assert_eq!(wait(1, Some(1000), 125_999, true), Some(126_000));
        assert_eq!(wait(1, Some(1000), 126_000, true), None);
    }

    #[test]
    fn a_guest_that_is_not_known_to_work_never_waits() {
        assert_eq!(wait(1, Some(1000), 1001, false), None);
    }

    #[test]
    fn many_frames_never_wait() {
        assert_eq!(wait(63, Some(1000), 1001, true), Some(126_000));
        assert_eq!(wait(64, Some(1000), 1001, true), None);
    }

    #[test]
    fn the_first_frame_after_silence_never_waits() {
        assert_eq!(wait(1, None, 5, true), None);
        assert_eq!(wait(1, Some(5), 200_000, true), None);
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
                match wait(published, last, now, true) {
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
