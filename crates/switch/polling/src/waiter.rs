//! The waiting of a thread by the rule, with its clocks: for threads that do nothing else before
//! they sleep than request notifications.

use std::num::NonZeroU64;
use std::time::Duration;

use rustix::thread::{current_timer_slack, set_current_timer_slack};
use sys::time::{lateness, monotonic, of_thread};

use super::{AdaptivePoll, Poll, PollDecision, Sample};

/// Price of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Some loads.
    Memory,
    /// System calls, or a lock.
    System,
}

impl Look {
    /// Looks in vain between two yields of the core: the other side may wait for it.
    const fn per_yield(self) -> u32 {
        match self {
            Self::Memory => 8,
            Self::System => 1,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Waiter {
    poll: AdaptivePoll,
    look: Look,
    /// Looks in vain. They count over all waits, because a sender on the core of its receiver finds
    /// room after few looks each time, and would send without end what is not taken.
    looks: u32,
    has_slack: bool,
}

impl Waiter {
    /// Creates the state of a busy thread that looks for at most `longest` before a sleep. Its
    /// timers have no slack.
    #[must_use]
    pub fn new(look: Look, longest: Duration) -> Self {
        let mut poll = AdaptivePoll::new(Poll::Adaptive);
        poll.limit_looks(longest);
        Self {
            poll,
            look,
            looks: 0,
            has_slack: false,
        }
    }

    /// Notes that the thread is not one of ours: its timers may end 50 us late, but those that
    /// measure must not.
    #[must_use]
    pub fn with_timer_slack(self) -> Self {
        Self {
            has_slack: true,
            ..self
        }
    }

    /// Notes that something was there.
    #[inline]
    pub fn found(&mut self) {
        if !self.poll.is_busy() {
            self.poll.found_frames(monotonic());
        }
    }

    /// Notes at the time `now` that nothing was there. Returns whether to look on, and gives the
    /// core to a thread that waits for it now and then; else the thread requests notifications
    /// and sleeps.
    #[inline]
    pub fn looks_on(&mut self, now: Duration) -> bool {
        if self.poll.found_nothing(now, None) == PollDecision::Sleep {
            return false;
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(self.look.per_yield()) {
            self.yield_core();
        } else {
            std::hint::spin_loop();
        }
        true
    }

    /// Gives the core away; the time that this takes shows whether another thread wants it.
    fn yield_core(&mut self) {
        let before = monotonic();
        std::thread::yield_now();
        let now = monotonic();
        self.poll
            .yielded(now, now.saturating_sub(before), of_thread);
    }

    /// Measures the price of a sleep, now and then. To be called before each sleep; what it returns
    /// is for [`Waiter::slept`].
    #[must_use]
    pub fn before_sleep(&mut self) -> SleepSample {
        match self.poll.next_sleep() {
            Sample::None => SleepSample(None),
            Sample::CpuTime => SleepSample(Some(of_thread())),
            Sample::WakeUp(time) => {
                let late = match self.has_slack {
                    true => without_slack(|| lateness(time)),
                    false => lateness(time),
                };
                self.poll.woke_late(late);
                SleepSample(None)
            }
        }
    }

    /// Ends the measurement of a sleep.
    pub fn slept(&mut self, SleepSample(before): SleepSample) {
        if let Some(before) = before {
            self.poll.slept(of_thread().saturating_sub(before));
        }
    }
}

/// The CPU time of the thread before a sleep that is measured.
#[derive(Debug)]
pub struct SleepSample(Option<Duration>);

/// Calls `act` with timers that end when they are due, not up to 50 us later.
fn without_slack<T>(act: impl FnOnce() -> T) -> T {
    let slack = current_timer_slack().ok();
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let result = act();
    if let Some(slack) = slack {
        let _ = set_current_timer_slack(NonZeroU64::new(slack));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LONGEST_LOOK;

    /// Waits through sleeps of no time until a look is due, or so many waits are over.
    fn looks(waiting: &mut Waiter, waits: u32) -> bool {
        (0..waits).any(|_| {
            let looks = waiting.looks_on(monotonic());
            if !looks {
                let measured = waiting.before_sleep();
                waiting.slept(measured);
            }
            waiting.found();
            looks
        })
    }

    #[test]
    fn short_waits_make_a_thread_look_on_and_a_limit_of_zero_never_does() {
        assert!(looks(&mut Waiter::new(Look::Memory, LONGEST_LOOK), 1000));
        assert!(!looks(&mut Waiter::new(Look::Memory, Duration::ZERO), 1000));
    }
}
