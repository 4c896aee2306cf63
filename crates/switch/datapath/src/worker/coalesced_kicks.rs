//! Queue pairs that are not polled while their worker sleeps, and whose guests kick once for
//! several frames (`ports/guest/kick_rate.rs` has the number).
//!
//! Any wake-up of the worker makes all of them active: guests that send at the same time share one
//! wake-up. A timer looks after frames that are fewer than their guest kicks for. It is *lazy*:
//! once set it runs on, whatever wakes the worker meanwhile, and is set again only after it has
//! expired. Setting a timer for each sleep would cost as much as a wake-up on virtual machines.
//! A guest without an event index cannot be asked for a kick after several frames. It does not kick
//! at all, and the worker sleeps with a time limit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use port::PortId;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::ports::coalescing::Nanos;

/// Windows of coalescing in the period of the safety timer.
const WINDOWS_PER_PERIOD: Nanos = 3;

type Pair = (PortId, u16);

/// The pairs with coalesced kicks of a worker that sleeps.
#[derive(Debug)]
pub(super) struct CoalescedKicks {
    pairs: Vec<Pair>,
    timer: OwnedFd,
    /// The timer is running.
    set: bool,
    /// Period of the timer.
    period: Nanos,
    /// The time when the first pair without an event index is to be looked at.
    due: Option<Nanos>,
    estimate: Estimate,
}

/// The expected time between two wake-ups, as of the last measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    until: Nanos,
    sleep: Option<Duration>,
}

impl CoalescedKicks {
    /// Creates the state of a worker that has no pairs.
    ///
    /// # Errors
    /// The timer cannot be created.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self {
            pairs: Vec::new(),
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            set: false,
            period: 0,
            due: None,
            estimate: Estimate::default(),
        })
    }

    /// Adds a pair that is no longer active. `due`: the time when it is to be looked at, if its
    /// guest does not kick.
    pub(super) fn add(&mut self, pair: Pair, window: Nanos, due: Option<Nanos>) {
        self.pairs.push(pair);
        self.period = WINDOWS_PER_PERIOD * window;
        self.due = self.due.into_iter().chain(due).min();
    }

    /// Removes a pair, if it is listed.
    pub(super) fn remove(&mut self, pair: Pair) {
        self.pairs.retain(|listed| *listed != pair);
    }

    /// Removes the next pair, when the worker is awake.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Pair> {
        let pair = self.pairs.pop();
        if pair.is_none() {
            self.due = None;
        }
        pair
    }

    /// Sets the timer before a sleep, if it is needed and not running. Returns the time when the
    /// worker is to wake up by itself.
    pub(super) fn prepare_sleep(&mut self) -> Option<Nanos> {
        if !self.pairs.is_empty() && !self.set {
            let once = Itimerspec {
                it_interval: Timespec::default(),
                it_value: Timespec {
                    tv_sec: (self.period / 1_000_000_000) as i64,
                    tv_nsec: (self.period % 1_000_000_000) as i64,
                },
            };
            let relative = TimerfdTimerFlags::empty();
            self.set = timerfd_settime(&self.timer, relative, &once).is_ok();
            if !self.set {
                // Frames below their number would wait without end: the worker stays awake.
                self.due = Some(0);
            }
        }
        self.due
    }

    /// Notes that the timer has expired.
    pub(super) fn expired(&mut self) {
        self.set = false;
    }

    /// Returns the expected time until the next wake-up, if it was estimated a moment ago.
    #[inline]
    pub(super) fn estimated(&self, now: Nanos) -> Option<Option<Duration>> {
        (now < self.estimate.until).then_some(self.estimate.sleep)
    }

    /// Sets the expected time until the next wake-up.
    pub(super) fn set_estimate(&mut self, until: Nanos, sleep: Option<Duration>) {
        self.estimate = Estimate { until, sleep };
    }
}

impl AsFd for CoalescedKicks {
    /// Returns the timer, which is readable when it has expired.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// Adds up the wake-ups of several pairs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WakeUps {
    /// Wake-ups per second by pairs that kick for each frame.
    single: f64,
    /// The shortest time in which a pair gathers the frames of one kick.
    shared: Option<Nanos>,
}

impl WakeUps {
    /// Adds a pair whose guest kicks once for so many frames, with this gap between them.
    pub(super) fn add(&mut self, threshold: u16, gap: Nanos) {
        if threshold > 1 {
            let time = gap.saturating_mul(threshold.into());
            self.shared = Some(self.shared.map_or(time, |shared| shared.min(time)));
        } else {
            self.single += 1e9 / gap.max(1) as f64;
        }
    }

    /// Returns the expected time between two wake-ups; `None` where no kicks are coalesced.
    pub(super) fn interval(self) -> Option<Duration> {
        let shared = 1e9 / self.shared?.max(1) as f64;
        Some(Duration::from_secs_f64(1.0 / (shared + self.single)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_gather_frames_share_a_wake_up() {
        let mut all = WakeUps::default();
        assert_eq!(all.interval(), None);
        all.add(1, 1_000_000);
        assert_eq!(all.interval(), None, "each frame has its kick");
        all.add(8, 10_000);
        all.add(8, 11_000);
        let interval = all.interval().unwrap();
        assert!((70..80).contains(&interval.as_micros()), "{interval:?}");
        all.add(1, 1000);
        assert!(all.interval().unwrap() < Duration::from_micros(1));
    }

    #[test]
    fn the_timer_runs_on_until_it_expires() {
        let mut kicks = CoalescedKicks::new().unwrap();
        assert_eq!(kicks.prepare_sleep(), None);
        assert!(!kicks.set, "no pair needs it");
        kicks.add((PortId(1), 0), 1000, None);
        kicks.add((PortId(2), 0), 1000, Some(70));
        kicks.add((PortId(3), 0), 1000, Some(90));
        assert_eq!(kicks.prepare_sleep(), Some(70));
        assert!(kicks.set);
        kicks.remove((PortId(3), 0));
        assert_eq!(kicks.take(), Some((PortId(2), 0)));
        assert_eq!(kicks.take(), Some((PortId(1), 0)));
        assert_eq!(kicks.take(), None);
        assert_eq!(kicks.prepare_sleep(), None);
        assert!(kicks.set, "it is not stopped");
        let mut count = [0; 8];
        testkit::wait::wait_until("it expires", || {
            rustix::io::read(&kicks, &mut count).is_ok()
        });
        kicks.expired();
        assert!(!kicks.set);
    }

    #[test]
    fn an_estimate_holds_for_a_while() {
        let mut kicks = CoalescedKicks::new().unwrap();
        assert_eq!(kicks.estimated(5), None);
        kicks.set_estimate(10, Some(Duration::from_micros(80)));
        assert_eq!(kicks.estimated(9), Some(Some(Duration::from_micros(80))));
        assert_eq!(kicks.estimated(10), None);
    }
}
