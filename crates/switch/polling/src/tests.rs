//! Simulated arrivals: what waiting costs, compared with the best fixed choices and with the
//! optimum for known arrivals.

mod arrivals;
mod bounds;
mod neighbours;
mod prices;

use std::time::Duration;

use super::*;

/// Duration of an empty pass, nanoseconds.
const PASS: Duration = Duration::from_nanos(50);
/// Duration of serving one frame, nanoseconds.
const SERVICE: Duration = Duration::from_nanos(100);
/// Empty passes between two yields.
const PASSES_PER_YIELD: u32 = 16;
/// CPU time of a sleep, microseconds.
const OWN: Duration = us(4);
/// A wake-up, microseconds.
const WAKE_UP: Duration = us(8);
/// The price of a sleep with these.
const PRICE: Duration = us(12);

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// A thread that waits for one source of frames: time and costs.
struct Waiter {
    poll: AdaptivePoll,
    now: Duration,
    /// Arrival of the last frame.
    arrival: Duration,
    own: Duration,
    /// Time from a notification until the thread runs.
    wake_up: Duration,
    /// Another thread runs on the core: a yield takes this time.
    slice: Option<Duration>,
    /// Time without the core.
    gone: Duration,
    passes: u32,
    spent: Spent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spent {
    waits: u32,
    sleeps: u32,
    /// Time of looking.
    looks: Duration,
    /// Time of others on the core while it looked.
    lost: Duration,
    /// All of these and the prices of all sleeps.
    total: Duration,
    /// The cost of always sleeping at once.
    sleeping: Duration,
    /// The cost of always looking for as long as a sleep costs, then sleeping.
    looking: Duration,
    /// With known arrivals: looking or sleeping at once, whichever costs less.
    optimum: Duration,
}

impl Spent {
    /// The cost of the better one of the two fixed choices.
    fn best_fixed(&self) -> Duration {
        self.sleeping.min(self.looking)
    }
}

impl Waiter {
    fn new() -> Self {
        Self::limited(LONGEST_LOOK)
    }

    /// Creates one that has measured its price and was idle for long.
    fn limited(longest_look: Duration) -> Self {
        let mut waiter = Self {
            poll: AdaptivePoll::new(Poll::Adaptive),
            now: Duration::ZERO,
            arrival: Duration::ZERO,
            own: OWN,
            wake_up: WAKE_UP,
            slice: None,
            gone: Duration::ZERO,
            passes: 0,
            spent: Spent::default(),
        };
        waiter.poll.limit_looks(longest_look);
        waiter.poll.slept(OWN);
        waiter.poll.woke_late(WAKE_UP);
        waiter.steady(us(10_000), 20);
        waiter
    }

    fn price(&self) -> Duration {
        self.own + self.wake_up
    }

    /// Simulates a frame `gap` after the last one.
    fn frame_after(&mut self, gap: Duration) {
        self.arrival += gap;
        if self.now < self.arrival {
            self.wait();
        }
        self.poll.found_frames(self.now);
        self.now += SERVICE;
    }

    /// Simulates the time until the next frame.
    fn wait(&mut self) {
        let (length, price) = (self.arrival - self.now, self.price());
        let spent = &mut self.spent;
        spent.waits += 1;
        spent.sleeping += price;
        spent.looking += if length < price { length } else { 2 * price };
        spent.optimum += length.min(price);
        while self.now < self.arrival {
            if self.poll.found_nothing(self.now, None) == PollDecision::Sleep {
                return self.sleep();
            }
            self.look();
        }
    }

    fn look(&mut self) {
        self.passes += 1;
        self.now += PASS;
        self.spent.looks += PASS;
        self.spent.total += PASS;
        if self.passes.is_multiple_of(PASSES_PER_YIELD) && !self.poll.is_on_shared_core() {
            let took = self.slice.unwrap_or_default();
            self.now += took;
            self.spent.lost += took;
            self.gone += took;
            let cpu = self.now - self.gone;
            self.poll.yielded(self.now, took, || cpu);
        }
    }

    fn sleep(&mut self) {
        self.spent.sleeps += 1;
        self.spent.total += self.price();
        match self.poll.next_sleep() {
            Sample::None => {}
            Sample::CpuTime => self.poll.slept(self.own),
            Sample::WakeUp(_) => self.poll.woke_late(self.wake_up),
        }
        self.gone += self.arrival.saturating_sub(self.now) + self.wake_up;
        self.now = self.now.max(self.arrival) + self.wake_up;
    }

    /// Returns the costs of frames with these gaps.
    fn frames(&mut self, gaps: impl IntoIterator<Item = Duration>) -> Spent {
        self.spent = Spent::default();
        gaps.into_iter().for_each(|gap| self.frame_after(gap));
        self.spent
    }

    fn steady(&mut self, gap: Duration, frames: usize) -> Spent {
        self.frames(std::iter::repeat_n(gap, frames))
    }

    /// Returns the costs of requests: each comes `gap` after the last answer, and a peer answers
    /// after `think`.
    fn requests(&mut self, gap: Duration, think: Duration, requests: u32) -> Spent {
        self.spent = Spent::default();
        for wait in std::iter::repeat_n([gap, think], requests as usize).flatten() {
            self.arrival = self.now;
            self.frame_after(wait);
        }
        self.spent
    }
}

/// Returns the gaps of a Poisson process; the values of `uniform` are uniformly distributed.
fn poisson(mean: Duration, uniform: &[f64]) -> impl Iterator<Item = Duration> {
    uniform.iter().map(move |u| mean.mul_f64(-(1.0 - u).ln()))
}
