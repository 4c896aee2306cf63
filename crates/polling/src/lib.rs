//! Adaptive polling: when a worker without frames, or a program of the netmap API, continues to
//! poll, and when it enables kicks and sleeps.
//!
//! Polling costs the time until the next frames; a sleep costs a kick, a wake-up and two system
//! calls, however long it lasts. A worker that does not know the length of a wait pays at most
//! twice the optimum if it polls for as long as a sleep costs and then sleeps (the ski-rental
//! rule). But frames that come once in 100 µs would make that the worst of both: polling in vain
//! before every sleep. So the worker measures the *spells*, the times without a frame: it polls
//! only while polling has been cheaper lately than sleeping (Karlin et al., "Empirical studies of
//! competitive spinning", SOSP 1991).
//!
//! ```text
//!             frames                     no frames, and polling pays lately
//!         .------------.  .-----------------------------------------------------.
//!         v            |  |                                                     v
//!      [ Busy ] <------+--+<---------------- frames ----------------------- [ Polling ]
//!         |            |                                                        |
//!         |            '-- frames -- [ Asleep ] <---- for as long as a sleep ---'
//!         '--------- no frames ---------^                     costs
//! ```
//! A sleep hides how short the wait could have been, because the wake-up takes time: after
//! `SLEEPS_PER_TRIAL` short sleeps in a row the worker polls through one spell on trial. While it
//! only polls, nothing shows what a sleep costs by now: after `SPELLS_PER_SLEEP` spells it sleeps
//! through one.
//!
//! The decision is one of the worker, not of a queue: the core sleeps only when all queues are
//! empty, so the relevant gaps are those between frames of any queue. This module reads no clock.

#[cfg(test)]
mod tests;

use std::time::Duration;

/// Whether a thread that waits may sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// It sleeps, unless the next frame is likely to arrive before a sleep pays off.
    Adaptive,
    /// It polls without pause.
    Always,
}

/// Short sleeps before a trial, in which the worker polls through a spell. A trial costs at most
/// one sleep more.
const SLEEPS_PER_TRIAL: u32 = 16;
/// Polled spells before one that is slept through, where polling is not far cheaper: only a sleep
/// shows what a sleep costs. It may have been more before, with fewer frames and colder caches.
const SPELLS_PER_SLEEP: u32 = 1024;
/// Polling that costs less than this part of a sleep is far cheaper: a fourth.
const FAR_CHEAPER: u32 = 4;
/// Limit of a wake-up's duration, microseconds: a longer sleep was long without it, and is no
/// reason for a trial.
const MAX_WAKE_UP: Duration = Duration::from_micros(500);
/// Divisor of the latest spell's part in the average: 1 / 8.
const WEIGHT: u32 = 8;

/// Assumed cost of a sleep before the first measurement, microseconds.
const INITIAL_COST: Duration = Duration::from_micros(8);
/// Bounds of the measured cost of a sleep, microseconds: an interrupted thread measures too much.
const COST_RANGE: (Duration, Duration) = (Duration::from_micros(1), Duration::from_micros(50));

/// Cost of a sleep for a frame that waits for control's answer, microseconds: two wake-ups of idle
/// cores, one of them a vCPU's.
const ANSWER_COST: Duration = Duration::from_micros(100);

/// The decision after a pass without frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Poll again.
    Poll,
    /// Enable kicks, and sleep if no frame came meanwhile.
    Sleep,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Busy,
    Polling {
        since: Duration,
    },
    /// `counted`: the spell was polled for long enough to be in the average already.
    Asleep {
        since: Duration,
        counted: bool,
    },
}

/// The adaptive polling of one worker. Times are since any fixed moment.
#[derive(Debug)]
pub struct AdaptivePoll {
    mode: Poll,
    state: State,
    /// The cost of a sleep: the worker's CPU time, and as much again for the sender, whose kick is
    /// an exit from its guest and a wake-up.
    cost: Duration,
    /// The average cost of polling through recent spells.
    polling: Duration,
    /// Short sleeps since the last spell that was polled.
    sleeps: u32,
    /// The last polled spell ended in time.
    poll_succeeded: bool,
    /// Spells to be polled before one is slept through.
    until_sleep: u32,
}

impl AdaptivePoll {
    /// Creates the state of a busy worker without measurements.
    #[must_use]
    pub fn new(mode: Poll) -> Self {
        Self {
            mode,
            state: State::Busy,
            cost: INITIAL_COST,
            polling: INITIAL_COST,
            sleeps: 0,
            poll_succeeded: false,
            until_sleep: SPELLS_PER_SLEEP,
        }
    }

    /// Creates the state of a worker that waits for control's answers.
    #[must_use]
    pub fn for_answers() -> Self {
        let cost = ANSWER_COST;
        Self {
            cost,
            polling: cost,
            // That cost is not measured.
            until_sleep: u32::MAX,
            ..Self::new(Poll::Adaptive)
        }
    }

    /// Returns whether the worker always polls.
    #[must_use]
    pub fn never_sleeps(&self) -> bool {
        self.mode == Poll::Always
    }

    /// Returns whether the last pass had frames.
    #[inline]
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.state == State::Busy
    }

    /// Decides after a pass without frames. `asleep`: the expected length of a sleep that guests
    /// end once for several frames, if they do.
    pub fn found_nothing(&mut self, now: Duration, asleep: Option<Duration>) -> Next {
        if self.never_sleeps() {
            return Next::Poll;
        }
        match self.state {
            // Polling would cost the time until all these frames are there, not until the first.
            State::Busy if asleep.is_some_and(|asleep| asleep >= 2 * self.cost) => {
                self.sleep(now, true)
            }
            State::Busy if self.polling_pays() && self.until_sleep > 0 => {
                self.state = State::Polling { since: now };
                Next::Poll
            }
            State::Busy => self.sleep(now, false),
            State::Polling { since } if now.saturating_sub(since) < self.cost => Next::Poll,
            State::Polling { since } => {
                self.poll_succeeded = false;
                self.learn(2 * self.cost);
                self.sleep(since, true)
            }
            State::Asleep { .. } => Next::Sleep,
        }
    }

    /// Notes a pass with frames.
    #[inline]
    pub fn found_frames(&mut self, now: Duration) {
        if self.state != State::Busy {
            self.end_spell(now);
        }
    }

    /// Notes the CPU time of a sleep.
    pub fn slept(&mut self, cpu: Duration) {
        let (least, most) = COST_RANGE;
        self.cost = average(self.cost, (2 * cpu).clamp(least, most));
    }

    /// Returns the estimated cost of a sleep.
    #[must_use]
    pub fn cost(&self) -> Duration {
        self.cost
    }

    fn polling_pays(&self) -> bool {
        self.polling < self.cost || self.poll_succeeded || self.sleeps >= SLEEPS_PER_TRIAL
    }

    fn sleep(&mut self, since: Duration, counted: bool) -> Next {
        self.state = State::Asleep { since, counted };
        self.until_sleep = self.until_sleep.max(SPELLS_PER_SLEEP);
        Next::Sleep
    }

    fn end_spell(&mut self, now: Duration) {
        match std::mem::replace(&mut self.state, State::Busy) {
            State::Polling { since } => {
                self.poll_succeeded = true;
                // A thread that was interrupted has not polled for longer than that.
                self.learn(now.saturating_sub(since).min(2 * self.cost));
                if self.polling * FAR_CHEAPER > self.cost {
                    self.until_sleep = self.until_sleep.saturating_sub(1);
                }
            }
            State::Asleep {
                since,
                counted: false,
            } => {
                let waited = now.saturating_sub(since);
                if waited < self.cost {
                    self.learn(waited);
                } else if waited < MAX_WAKE_UP {
                    self.sleeps += 1;
                }
            }
            State::Asleep { .. } | State::Busy => {}
        }
    }

    fn learn(&mut self, cost: Duration) {
        self.sleeps = 0;
        self.polling = average(self.polling, cost);
    }
}

/// Returns the average with one more value in it.
fn average(old: Duration, new: Duration) -> Duration {
    (old * (WEIGHT - 1) + new) / WEIGHT
}
