//! Simulated arrivals: what is spent on looking and sleeping, beside what somebody would have spent who
//! knows the future.

use proptest::prelude::*;

use super::*;

/// An empty pass takes this long.
const PASS: Duration = Duration::from_nanos(50);
/// Serving one frame takes this long.
const SERVICE: Duration = Duration::from_nanos(100);
/// Of our time, what a sleep takes: it costs [`COST_AT_FIRST`] in all.
const SLEEP: Duration = Duration::from_micros(4);

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// A worker without queues: time, and what was spent.
struct Worker {
    patience: Patience,
    now: Duration,
    /// When the last frame came.
    arrival: Duration,
    /// From a kick until the worker runs.
    wake_up: Duration,
    spent: Spent,
}

#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    spells: u32,
    sleeps: u32,
    looking: Duration,
    /// With knowledge of the future: looking or sleeping at once, whichever costs less.
    optimum: Duration,
}

impl Spent {
    fn total(&self) -> Duration {
        self.looking + self.sleeps * COST_AT_FIRST
    }
}

impl Worker {
    fn new(wake_up: Duration) -> Self {
        Self {
            patience: Patience::new(Poll::Adaptive),
            now: Duration::ZERO,
            arrival: Duration::ZERO,
            wake_up,
            spent: Spent::default(),
        }
    }

    /// A frame comes `gap` after the last one.
    fn frame_after(&mut self, gap: Duration) {
        self.arrival += gap;
        if self.now < self.arrival {
            self.spell();
        }
        self.patience.found_frames(self.now);
        self.now += SERVICE;
    }

    /// Nothing to do until the next frame comes.
    fn spell(&mut self) {
        self.spent.spells += 1;
        self.spent.optimum += (self.arrival - self.now).min(COST_AT_FIRST);
        while self.now < self.arrival {
            if self.patience.found_nothing(self.now) == Next::Sleep {
                self.spent.sleeps += 1;
                self.now = self.arrival + self.wake_up;
                return self.patience.slept(SLEEP);
            }
            self.now += PASS;
            self.spent.looking += PASS;
        }
    }

    /// What is spent while frames come with these gaps.
    fn frames(&mut self, gaps: impl IntoIterator<Item = Duration>) -> Spent {
        self.spent = Spent::default();
        gaps.into_iter().for_each(|gap| self.frame_after(gap));
        self.spent
    }

    fn steady(&mut self, gap: Duration, frames: usize) -> Spent {
        self.frames(std::iter::repeat_n(gap, frames))
    }
}

/// Gaps of a Poisson process; `dice` are uniform.
fn poisson(mean: Duration, dice: &[f64]) -> impl Iterator<Item = Duration> {
    dice.iter().map(move |u| mean.mul_f64(-(1.0 - u).ln()))
}

#[test]
fn rare_frames_are_not_looked_for() {
    for gap in [us(1000), us(50_000)] {
        let spent = Worker::new(us(20)).steady(gap, 1000);
        assert_eq!((spent.sleeps, spent.looking), (1000, Duration::ZERO));
    }
}

#[test]
fn gaps_a_little_longer_than_a_sleep_is_worth_cost_trials_only() {
    let spent = Worker::new(us(20)).steady(us(100), 10_000);
    assert_eq!(spent.sleeps, spent.spells);
    assert!(spent.looking <= spent.sleeps / SLEEPS_PER_TRIAL * (COST_AT_FIRST + PASS));
}

#[test]
fn frequent_frames_end_the_sleeping_for_good() {
    // Wake-ups so slow that each finds more frames hide how short the gaps are.
    for wake_up in [0, 5, 20, 100] {
        let mut worker = Worker::new(us(wake_up));
        let first = worker.steady(us(1), 10_000);
        assert!(first.sleeps < 2 * SLEEPS_PER_TRIAL, "{first:?}");
        let then = worker.steady(us(1), 10_000);
        assert_eq!(then.sleeps, 0, "wake-up in {wake_up} µs");
    }
}

#[test]
fn within_a_burst_it_looks_and_after_it_it_sleeps() {
    let burst = [vec![us(1000)], vec![us(2); 9]].concat();
    let mut worker = Worker::new(us(5));
    worker.frames(burst.repeat(20));
    let spent = worker.frames(burst.repeat(100));
    assert_eq!(spent.sleeps, 100);
    assert!(spent.looking < 100 * (us(18) + COST_AT_FIRST), "{spent:?}");
}

#[test]
fn trains_of_frames_are_one_arrival() {
    let train = [vec![us(1000)], vec![Duration::ZERO; 63]].concat();
    let spent = Worker::new(us(5)).frames(train.repeat(100));
    assert_eq!((spent.sleeps, spent.looking), (100, Duration::ZERO));
}

#[test]
fn a_change_is_followed_within_a_few_spells() {
    let mut worker = Worker::new(us(10));
    worker.steady(us(1000), 1000);
    let busy = worker.steady(us(1), 10_000);
    assert!(busy.sleeps <= SLEEPS_PER_TRIAL + 8, "{busy:?}");
    let calm = worker.steady(us(1000), 1000);
    assert!(calm.looking <= 8 * (COST_AT_FIRST + PASS), "{calm:?}");
}

#[test]
fn the_end_of_all_traffic_costs_one_look() {
    let mut worker = Worker::new(us(10));
    worker.steady(us(1), 10_000);
    let end = worker.steady(us(1_000_000), 1);
    assert!(end.looking <= COST_AT_FIRST + PASS);
    // Whatever wakes it without a frame: it sleeps on.
    let mut patience = Patience::new(Poll::Adaptive);
    assert_eq!(patience.found_nothing(us(1)), Next::Sleep);
    assert_eq!(patience.found_nothing(us(2)), Next::Sleep);
}

#[test]
fn the_cost_of_a_sleep_is_measured() {
    let mut patience = Patience::new(Poll::Adaptive);
    (0..100).for_each(|_| patience.slept(us(10)));
    assert!(patience.cost() > us(19) && patience.cost() <= us(20));
    // A thread that was interrupted for long, or a sleep that did not come about.
    (0..100).for_each(|_| patience.slept(us(10_000)));
    assert!(patience.cost() <= COST_RANGE.1);
    (0..100).for_each(|_| patience.slept(Duration::ZERO));
    assert!(patience.cost() >= COST_RANGE.0);
}

#[test]
fn who_wants_no_sleep_gets_none() {
    let mut patience = Patience::new(Poll::Always);
    for second in 0..100 {
        let next = patience.found_nothing(Duration::from_secs(second));
        assert_eq!(next, Next::Look);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_arrivals_cost_at_most_twice_the_optimum(
        nanos in 200u64..200_000,
        wake_up in 0u64..30,
        dice in proptest::collection::vec(0.0..1.0f64, 3000),
    ) {
        let mut worker = Worker::new(us(wake_up));
        let spent = worker.frames(poisson(Duration::from_nanos(nanos), &dice));
        let start = 2 * SLEEPS_PER_TRIAL * COST_AT_FIRST;
        prop_assert!(spent.total() <= 2 * spent.optimum + start, "{spent:?}");
    }

    #[test]
    fn whatever_changes_costs_little_more(
        nanos in proptest::collection::vec(200u64..2_000_000, 1..10),
        dice in proptest::collection::vec(0.0..1.0f64, 300),
    ) {
        let gaps = nanos.iter().flat_map(|n| poisson(Duration::from_nanos(*n), &dice));
        let spent = Worker::new(us(5)).frames(gaps);
        let changes = nanos.len() as u32 * 2 * SLEEPS_PER_TRIAL * COST_AT_FIRST;
        prop_assert!(spent.total() <= 2 * spent.optimum + changes, "{spent:?}");
    }
}

/// Control answers each question after `answer`: whether the worker looked until it came, for each of so many.
fn looked_for_answers(patience: &mut Patience, answer: Duration, questions: u32) -> Vec<bool> {
    let ask = |number| {
        let asked = us(1000) * number;
        let looks = (0..).map(|pass| asked + PASS * pass);
        let mut until = looks.take_while(|&now| now < asked + answer);
        let looked = until.all(|now| patience.found_nothing(now) == Next::Look);
        patience.found_frames(asked + answer);
        looked
    };
    (1..=questions).map(ask).collect()
}

#[test]
fn answers_are_looked_for_as_long_as_they_come_soon() {
    let mut patience = Patience::for_answers();
    let soon = looked_for_answers(&mut patience, us(30), 40);
    assert!(
        soon[SLEEPS_PER_TRIAL as usize..]
            .iter()
            .all(|&looked| looked),
        "{soon:?}"
    );
    let late = looked_for_answers(&mut patience, us(300), 40);
    assert_eq!(late.iter().filter(|&&looked| looked).count(), 0);
    // The trials that it goes on with show it that answers come soon again.
    let again = looked_for_answers(&mut patience, us(30), 200);
    assert!(again.ends_with(&[true; 100]), "{again:?}");
}
