//! One rule of waiting: when a thread that waits for frames looks on, and when it requests
//! notifications and sleeps. Workers, drivers, and the netmap and sockets libraries
//! follow it.
//!
//! **The price.** A look costs its time. A sleep costs the CPU time of falling asleep and waking,
//! and the wake-up that the peer waits for. Both are measured while the thread runs: the first
//! around some sleeps, the second by timed sleeps with a known end ([`Sample`]).
//!
//! **The rule.** A thread that does not know the length of a wait pays at most twice the optimum,
//! if it looks for as long as a sleep costs and then sleeps (the ski-rental rule). But frames that
//! come once in 100 µs would make that the worst of both: a look in vain before every sleep. So
//! each wait is entered in a *balance*: the cost of looking less the cost of sleeping at once. The
//! thread looks only while the balance of recent waits is negative (Karlin et al., "Empirical
//! studies of competitive spinning for a shared-memory multiprocessor", SOSP 1991). A wait that
//! was slept through counts, too: it has lasted until the thread ran, less a wake-up. There are two
//! balances, one for waits after short ones and one for waits after long ones: in requests that
//! come at intervals, the short wait for the answer follows each long one.
//!
//! ```text
//!             frames                     no frames, and looking pays lately
//!         .------------.  .-----------------------------------------------------.
//!         v            |  |                                                     v
//!      [ Busy ] <------+--+<---------------- frames ----------------------- [ Looking ]
//!         |            |                                                        |
//!         |            '-- frames -- [ Asleep ] <---- for as long as a sleep ---'
//!         '--------- no frames ---------^          costs, or another runs
//! ```
//! A sleep hides waits: the length of its wake-up is an estimate, and frames that come meanwhile
//! are waited for no more. So after some sleeps that may have been short the thread
//! looks once on trial. While it only looks, nothing shows what a sleep costs by now: after
//! `WAITS_PER_SLEEP` waits it sleeps through one.
//!
//! **The core.** A thread that looks yields its core now and then. A yield that takes longer than
//! a sleep costs went to another thread. So did the time without a sleep that is not CPU time of
//! the thread. Then a look takes its time from the other, and the thread waits for a time slice in
//! the end, where one that was woken would run at once. So for a while the price is the CPU time of
//! a sleep alone: the thread looks only where a sleep would take more from the other. That while
//! doubles when the next longer look meets another thread again.
//!
//! The decision is one of the thread, not of a queue: the core sleeps only when all queues are
//! empty, so the relevant waits are those for frames of any queue. No clock is read but by
//! [`Waiter`], which is the whole for a thread that does little else before it sleeps.

mod balance;
mod price;
mod shared_core;
#[cfg(test)]
mod tests;
mod waiter;

use std::time::Duration;

use balance::Balance;
use price::Price;
pub use price::Sample;
use shared_core::SharedCore;
pub use waiter::{Look, SleepSample, Waiter};

/// The longest look without a setting, microseconds: longer than the wake-up of most machines.
pub const LONGEST_LOOK: Duration = Duration::from_micros(100);

/// Whether a thread that waits may sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// It sleeps, unless the next frame is likely to arrive before a sleep pays off.
    Adaptive,
    /// It polls without pause.
    Always,
}

/// Limit of a wake-up, microseconds: a sleep that lasted longer was long without it, and is no
/// reason for a trial.
const MAX_WAKE_UP: Duration = Duration::from_micros(500);
/// Waits with a look before one that is slept through, where looking is not far cheaper.
const WAITS_PER_SLEEP: u32 = 1024;
/// A look that costs less than this part of a sleep is far cheaper: a fourth.
const FAR_CHEAPER: u32 = 4;
/// Limit of a balance, prices of a sleep: as many waits of the other kind turn it.
const MEMORY: i64 = 8;
/// Maximum time that a peer runs when a call of the thread wakes it on the same core, microseconds:
/// a thread that is no peer keeps a core for a time slice.
const PEER: Duration = Duration::from_micros(100);
/// A look is no gain where frames gather for longer than this multiple of a sleep's CPU time.
const GATHERING: u32 = 4;

/// The decision after a pass without frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollDecision {
    /// Poll again.
    Poll,
    /// Enable kicks, and sleep if no frame came meanwhile.
    Sleep,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Busy,
    Looking {
        since: Duration,
    },
    /// `counted`: the balance has the wait already, or is not to have it.
    Asleep {
        since: Duration,
        counted: bool,
    },
}

/// The waiting of one thread. Times are since any fixed moment.
#[derive(Debug)]
pub struct AdaptivePoll {
    /// `None`: it never sleeps.
    longest_look: Option<Duration>,
    state: State,
    price: Price,
    core: SharedCore,
    /// Other threads want the core in this wait.
    is_shared: bool,
    /// When the thread found frames, as long as it is busy.
    busy_since: Option<Duration>,
    /// The sum of the times of work, at most [`PEER`] of each.
    busy: Duration,
    /// After a long wait, and after a short one.
    balances: [Balance; 2],
    after_short: bool,
    /// Waits with a look before one that is slept through.
    until_sleep: u32,
}

impl AdaptivePoll {
    /// Creates the state of a busy thread without measurements.
    #[must_use]
    pub fn new(poll: Poll) -> Self {
        Self {
            longest_look: (poll == Poll::Adaptive).then_some(LONGEST_LOOK),
            state: State::Busy,
            price: Price::default(),
            core: SharedCore::default(),
            is_shared: false,
            busy_since: None,
            busy: Duration::ZERO,
            balances: [Balance::default(); 2],
            after_short: false,
            until_sleep: WAITS_PER_SLEEP,
        }
    }

    /// Creates the state of a worker that waits for control's answers. That price is not measured.
    #[must_use]
    pub fn for_answers() -> Self {
        Self {
            price: Price::of_answers(),
            until_sleep: u32::MAX,
            ..Self::new(Poll::Adaptive)
        }
    }

    /// Limits the length of a look; zero: the thread sleeps at once. Without effect on one that
    /// always polls.
    pub fn limit_looks(&mut self, longest: Duration) {
        self.longest_look = self.longest_look.map(|_| longest);
    }

    /// Returns whether the thread always polls.
    #[must_use]
    pub fn never_sleeps(&self) -> bool {
        self.longest_look.is_none()
    }

    /// Returns whether the last pass had frames.
    #[inline]
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.state == State::Busy
    }

    /// Decides after a pass without frames. `asleep`: the expected length of a sleep that guests
    /// end once for several frames, if they do.
    pub fn found_nothing(&mut self, now: Duration, asleep: Option<Duration>) -> PollDecision {
        if self.never_sleeps() {
            return PollDecision::Poll;
        }
        if self.is_busy() {
            self.is_shared = self.core.is_shared(now);
            let since = self.busy_since.take().unwrap_or(now);
            self.busy += now.saturating_sub(since).min(PEER);
        }
        match self.state {
            // A look would last until all these frames are there, and no one waits for the first.
            State::Busy if asleep.is_some_and(|asleep| asleep >= GATHERING * self.price.own()) => {
                self.sleep(now, true)
            }
            State::Busy if self.looks() => {
                self.state = State::Looking { since: now };
                PollDecision::Poll
            }
            State::Busy => self.sleep(now, false),
            State::Looking { since } if self.core.is_shared(now) && !self.is_shared => {
                self.sleep(since, true)
            }
            State::Looking { since } if now.saturating_sub(since) < self.look() => {
                PollDecision::Poll
            }
            State::Looking { since } => {
                self.enter(None, None);
                self.sleep(since, true)
            }
            State::Asleep { .. } => PollDecision::Sleep,
        }
    }

    /// Notes a pass with frames, which has begun at `now`.
    #[inline]
    pub fn found_frames(&mut self, now: Duration) {
        if self.state != State::Busy {
            self.end_wait(now);
            self.busy_since = Some(now);
        }
    }

    /// Notes that the thread has given its core away for `took`, until `now`, while it looked.
    /// `cpu_time` reads the CPU time of the thread, which takes a system call now and then.
    pub fn yielded(&mut self, now: Duration, took: Duration, cpu_time: impl FnOnce() -> Duration) {
        if self.never_sleeps() || self.core.is_shared(now) {
            return;
        }
        if took > self.price.whole() {
            self.core.met_another(now);
        } else {
            // A call that wakes a peer on this core gives the core to it, as a yield does.
            let busy = self.busy;
            self.core.yielded(now, took, || cpu_time() + busy);
        }
    }

    /// Begins a sleep: returns what to measure of it, to be passed to [`AdaptivePoll::slept`] or
    /// [`AdaptivePoll::woke_late`].
    pub fn next_sleep(&mut self) -> Sample {
        self.price.next_sleep(self.until_sleep == 0)
    }

    /// Notes the CPU time of a sleep.
    pub fn slept(&mut self, cpu: Duration) {
        self.price.slept(cpu);
    }

    /// Notes how much later than its end a timed sleep has ended.
    pub fn woke_late(&mut self, late: Duration) {
        self.price.woke_late(late);
    }

    /// Returns whether other threads want the core, as far as is known: a yield would go to them.
    #[must_use]
    pub fn is_on_shared_core(&self) -> bool {
        self.is_shared
    }

    /// Returns the estimated price of a sleep.
    #[must_use]
    pub fn price(&self) -> Duration {
        match self.is_shared {
            true => self.price.own(),
            false => self.price.whole(),
        }
    }

    /// Returns the length of a look.
    fn look(&self) -> Duration {
        let longest = self.longest_look.unwrap_or(Duration::MAX);
        longest.min(self.price())
    }

    fn looks(&self) -> bool {
        let balance = &self.balances[usize::from(self.after_short)];
        balance.is_for_looking() && self.until_sleep > 0 && !self.look().is_zero()
    }

    fn sleep(&mut self, since: Duration, counted: bool) -> PollDecision {
        self.state = State::Asleep { since, counted };
        self.core.slept();
        PollDecision::Sleep
    }

    fn end_wait(&mut self, now: Duration) {
        match std::mem::replace(&mut self.state, State::Busy) {
            State::Looking { since } => {
                let wait = now.saturating_sub(since);
                // A longer one was interrupted.
                let is_short = wait < self.look();
                if wait * FAR_CHEAPER > self.price() {
                    self.until_sleep = self.until_sleep.saturating_sub(1);
                }
                self.enter(is_short.then_some(wait), None);
            }
            State::Asleep { since, counted } => {
                self.until_sleep = self.until_sleep.max(WAITS_PER_SLEEP);
                if !counted {
                    let asleep = now.saturating_sub(since);
                    let wait = asleep.saturating_sub(self.price.wake_up());
                    let is_short = wait < self.look();
                    let may_be_short = asleep < MAX_WAKE_UP;
                    self.enter(is_short.then_some(wait), Some(may_be_short));
                }
            }
            State::Busy => {}
        }
    }

    /// Enters a wait in the balance; `None`: it was longer than a look. `asleep`: it was slept
    /// through, and may have been short.
    fn enter(&mut self, wait: Option<Duration>, asleep: Option<bool>) {
        let price = signed(self.price());
        let more = match wait {
            Some(wait) => signed(wait) - price,
            None => signed(self.look()),
        };
        let balance = &mut self.balances[usize::from(self.after_short)];
        let limit = MEMORY * price;
        match asleep {
            Some(may_be_short) => balance.slept(more, limit, may_be_short),
            None => balance.looked(more, limit),
        }
        self.after_short = wait.is_some();
    }
}

fn signed(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX / 16)
}
