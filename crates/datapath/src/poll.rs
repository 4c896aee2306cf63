//! When a worker without frames goes on looking, and when it asks for kicks and sleeps.
//!
//! Looking costs the time until the next frames; a sleep costs what the kick, the wake-up and two system
//! calls cost, however long it lasts. Who does not know how long the wait will be pays at most twice what
//! was necessary by looking for as long as a sleep costs, and then sleeping (the ski-rental rule). But frames
//! that come once in 100 µs would make that the worst of both: a look in vain before every sleep. So the
//! worker learns from the *spells*, the times without a frame: it looks on only while looking has been
//! cheaper lately than sleeping (Karlin et al., "Empirical studies of competitive spinning", SOSP 1991).
//!
//! ```text
//!             frames                     no frames, and looking pays lately
//!         .------------.  .-----------------------------------------------------.
//!         v            |  |                                                     v
//!      [ Busy ] <------+--+<---------------- frames ----------------------- [ Looking ]
//!         |            |                                                        |
//!         |            '-- frames -- [ Asleep ] <---- for as long as a sleep ---'
//!         '--------- no frames ---------^                     costs
//! ```
//! A sleep hides how short the wait could have been, because the wake-up takes time: after
//! [`SLEEPS_PER_TRIAL`] short sleeps in a row one spell is looked through on trial.
//!
//! This is of the worker, not of a queue: what sleeps is its core, and it sleeps only when all queues are
//! empty, so the gaps that count are those between frames of any queue. Nothing here reads a clock.

/// What this thread has run.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use channel::supervision::Poll;

/// Short sleeps after which a spell is looked through, to see whether that pays now. A trial costs at most one
/// sleep more.
const SLEEPS_PER_TRIAL: u32 = 16;
/// No wake-up takes this long: a sleep that did was long without it, and says nothing for a trial.
const LONG: Duration = Duration::from_micros(500);
/// Part that the latest spell has in the average: 1 / 8.
const WEIGHT: u32 = 8;

/// What a sleep is taken to cost before the first was measured.
const COST_AT_FIRST: Duration = Duration::from_micros(8);
/// Bounds of what a sleep is believed to cost: a thread that was interrupted measures too much.
const COST_RANGE: (Duration, Duration) = (Duration::from_micros(1), Duration::from_micros(50));

/// What a sleep costs a frame that waits for control's answer: two wake-ups of cores that idle, one of them a virtual one.
const WAKE_UP: Duration = Duration::from_micros(100);

/// What to do when a pass found no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Look again.
    Look,
    /// Ask for kicks, and sleep if nothing came meanwhile.
    Sleep,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Busy,
    Looking {
        since: Duration,
    },
    /// `learned`: the spell was looked at for long enough to be in the average already.
    Asleep {
        since: Duration,
        learned: bool,
    },
}

/// Learns from arrivals when to sleep. Times are since any fixed moment.
#[derive(Debug)]
pub struct Patience {
    mode: Poll,
    state: State,
    /// What a sleep costs: our time, and as much again for the sender, whose kick is an exit from its guest
    /// and a wake-up.
    cost: Duration,
    /// What looking would have cost in the latest spells, on average.
    looking: Duration,
    /// Short ones, since the last spell that was looked through.
    sleeps: u32,
    /// The last spell that was looked through ended in time.
    won: bool,
}

impl Patience {
    /// Of a worker that is busy, and has seen nothing yet.
    #[must_use]
    pub fn new(mode: Poll) -> Self {
        Self {
            mode,
            state: State::Busy,
            cost: COST_AT_FIRST,
            looking: COST_AT_FIRST,
            sleeps: 0,
            won: false,
        }
    }

    /// Of a worker that waits for control's answers.
    #[must_use]
    pub fn for_answers() -> Self {
        let cost = WAKE_UP;
        Self {
            cost,
            looking: cost,
            ..Self::new(Poll::Adaptive)
        }
    }

    /// Whether queues are looked at for ever.
    #[must_use]
    pub fn is_endless(&self) -> bool {
        self.mode == Poll::Always
    }

    /// A pass found no frame.
    pub fn found_nothing(&mut self, now: Duration) -> Next {
        if self.is_endless() {
            return Next::Look;
        }
        match self.state {
            State::Busy if self.looking_pays() => {
                self.state = State::Looking { since: now };
                Next::Look
            }
            State::Busy => self.sleep(now, false),
            State::Looking { since } if now.saturating_sub(since) < self.cost => Next::Look,
            State::Looking { since } => {
                self.won = false;
                self.learn(2 * self.cost);
                self.sleep(since, true)
            }
            State::Asleep { .. } => Next::Sleep,
        }
    }

    /// A pass found frames.
    #[inline]
    pub fn found_frames(&mut self, now: Duration) {
        if self.state != State::Busy {
            self.end_spell(now);
        }
    }

    /// A sleep took this much of the thread's own time.
    pub fn slept(&mut self, cpu: Duration) {
        let (least, most) = COST_RANGE;
        self.cost = average(self.cost, (2 * cpu).clamp(least, most));
    }

    /// What a sleep is believed to cost.
    #[must_use]
    pub fn cost(&self) -> Duration {
        self.cost
    }

    fn looking_pays(&self) -> bool {
        self.looking < self.cost || self.won || self.sleeps >= SLEEPS_PER_TRIAL
    }

    fn sleep(&mut self, since: Duration, learned: bool) -> Next {
        self.state = State::Asleep { since, learned };
        Next::Sleep
    }

    fn end_spell(&mut self, now: Duration) {
        match std::mem::replace(&mut self.state, State::Busy) {
            State::Looking { since } => {
                self.won = true;
                self.learn(now.saturating_sub(since));
            }
            State::Asleep {
                since,
                learned: false,
            } => {
                let waited = now.saturating_sub(since);
                if waited < self.cost {
                    self.learn(waited);
                } else if waited < LONG {
                    self.sleeps += 1;
                }
            }
            State::Asleep { .. } | State::Busy => {}
        }
    }

    fn learn(&mut self, cost: Duration) {
        self.sleeps = 0;
        self.looking = average(self.looking, cost);
    }
}

/// The average with one more value in it.
fn average(old: Duration, new: Duration) -> Duration {
    (old * (WEIGHT - 1) + new) / WEIGHT
}
