//! When a guest hears that frames have come, and when we hear of its frames: state-aware batching (Hyper-Switch, 4.3.3).
//!
//! A notification interrupts a guest that runs, and wakes one that does not. The first is worth little when the guest was
//! interrupted a moment ago; the second is worth its price at once. The frames themselves are in the guest's buffers before, and
//! published: a guest that looks finds them.
//!
//! ```text
//! frames published ---> THRESHOLD since the last notification? --yes--> notify
//!                       the last one PERIOD ago or longer? -------yes--> notify: the first after silence never waits
//!                       receiver not known to run? ---------------yes--> notify
//!                       otherwise wait, until PERIOD after the last one, or until the receiver blocks
//! ```
//! The other way round, a guest that has kicked is not asked to kick again for a PERIOD, though nobody looks at its queue, as long as it
//! runs. Before it sleeps, a bell is rung ([`Vcpus::listen`]), so that nothing it waits for lies there. That is done where the worker may run
//! on the guest's core, and as long as it pays (`worker/held.rs`): on a core of its own the worker rather works beside the guest.
//!
//! With whom it is not known whether they run, the guest's own wish is all there is to go by, as without these rules. Nothing here
//! reads a clock, and no timer runs without frames.

use channel::supervision::Batching;

mod record;

pub(crate) use record::Record;

/// Nanoseconds of the machine's monotonic clock.
pub type Nanos = u64;

const NANOS_PER_MICRO: u64 = 1000;

/// What is known of the virtual processors that serve a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// All run, or are about to without being asked.
    Running,
    /// One at least sleeps, and would be woken by a notification.
    Blocked,
    /// Nobody says.
    Unknown,
}

/// A virtual processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processor {
    /// The core where it runs, or ran last.
    pub core: usize,
    /// Since when it sleeps, if it does.
    pub asleep: Option<Nanos>,
}

/// Sees what the virtual processors behind a port do, without a system call.
pub trait Vcpus: Send + Sync + std::fmt::Debug {
    /// Those that serve queue pair `pair` of `pairs`.
    fn activity(&self, pair: u16, pairs: u16) -> Activity;

    /// The one that serves queue pair `pair` of `pairs`. `None` where there are several, or nothing is known.
    fn processor(&self, pair: u16, pairs: u16) -> Option<Processor>;

    /// Has a bell rung when one of those blocks that serve queue pair `pair` of `pairs`. `false` where there is no such bell.
    fn listen(&self, _pair: u16, _pairs: u16) -> bool {
        false
    }
}

/// The rules' numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Between two notifications of a guest that runs; 0: nobody ever waits.
    period: Nanos,
    /// Buffers that are never waited with.
    threshold: u32,
}

impl Rules {
    /// Nobody waits.
    pub const OFF: Self = Self {
        period: 0,
        threshold: 0,
    };

    /// What the configuration says.
    #[must_use]
    pub fn of(batching: Option<Batching>) -> Self {
        batching.map_or(Self::OFF, |batching| Self {
            period: u64::from(batching.period_us) * NANOS_PER_MICRO,
            threshold: batching.threshold,
        })
    }

    /// Whether a notification that was put off has come to its end by time or by number, and not because of what the receiver did.
    #[must_use]
    pub fn is_up(&self, published: u32, last: Option<Nanos>, now: Nanos) -> bool {
        let until = last.map_or(0, |last| last + self.period);
        now >= until || published >= self.threshold
    }

    /// Until when the notification of a queue can wait; `None`: it is due. `published`: buffers since the last notification.
    /// `activity` is asked only where it matters.
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
    /// For how long a guest that kicks now need not kick again, if it runs.
    #[inline]
    #[must_use]
    pub fn quiet_until(&self, now: Nanos) -> Nanos {
        now + self.period
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: Rules = Rules {
        period: 125_000,
        threshold: 64,
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

    #[test]
    fn without_rules_nobody_waits_and_nobody_is_asked() {
        let off = Rules::of(None);
        assert_eq!(off.wait(1, Some(5), 5, || unreachable!()), None);
    }

    proptest! {
        /// Whatever comes when: between two notifications of a guest that runs is a period or a threshold of frames, and no frame
        /// waits longer than a period.
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
