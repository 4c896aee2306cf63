//! Simulated arrivals: the cost of polling and sleeping, compared with the optimum for known
//! arrivals.

use proptest::prelude::*;

use super::*;

/// Duration of an empty pass, nanoseconds.
const PASS: Duration = Duration::from_nanos(50);
/// Duration of serving one frame, nanoseconds.
const SERVICE: Duration = Duration::from_nanos(100);
/// CPU time of a sleep, microseconds: it costs [`INITIAL_COST`] in all.
const SLEEP: Duration = Duration::from_micros(4);

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// A worker without queues: time and costs.
struct Worker {
    poll: AdaptivePoll,
    now: Duration,
    /// Arrival of the last frame.
    arrival: Duration,
    /// Time from a kick until the worker runs.
    wake_up: Duration,
    spent: Spent,
}

#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    spells: u32,
    sleeps: u32,
    polling: Duration,
    /// With known arrivals: polling or sleeping at once, whichever costs less.
    optimum: Duration,
}

impl Spent {
    fn total(&self) -> Duration {
        self.polling + self.sleeps * INITIAL_COST
    }
}

impl Worker {
    fn new(wake_up: Duration) -> Self {
        Self {
            poll: AdaptivePoll::new(Poll::Adaptive),
            now: Duration::ZERO,
            arrival: Duration::ZERO,
            wake_up,
            spent: Spent::default(),
        }
    }

    /// Simulates a frame `gap` after the last one.
    fn frame_after(&mut self, gap: Duration) {
        self.arrival += gap;
        if self.now < self.arrival {
            self.spell();
        }
        self.poll.found_frames(self.now);
        self.now += SERVICE;
    }

    /// Simulates the time until the next frame.
    fn spell(&mut self) {
        self.spent.spells += 1;
        self.spent.optimum += (self.arrival - self.now).min(INITIAL_COST);
        while self.now < self.arrival {
            if self.poll.found_nothing(self.now, None) == Next::Sleep {
                self.spent.sleeps += 1;
                self.now = self.arrival + self.wake_up;
                return self.poll.slept(SLEEP);
            }
            self.now += PASS;
            self.spent.polling += PASS;
        }
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
}

/// Returns the gaps of a Poisson process; the values of `uniform` are uniformly distributed.
fn poisson(mean: Duration, uniform: &[f64]) -> impl Iterator<Item = Duration> {
    uniform.iter().map(move |u| mean.mul_f64(-(1.0 - u).ln()))
}

#[test]
fn rare_frames_are_not_polled_for() {
    for gap in [us(1000), us(50_000)] {
        let spent = Worker::new(us(20)).steady(gap, 1000);
        assert_eq!((spent.sleeps, spent.polling), (1000, Duration::ZERO));
    }
}

#[test]
fn gaps_a_little_longer_than_the_cost_of_a_sleep_cost_trials_only() {
    let spent = Worker::new(us(20)).steady(us(100), 10_000);
    assert_eq!(spent.sleeps, spent.spells);
    assert!(spent.polling <= spent.sleeps / SLEEPS_PER_TRIAL * (INITIAL_COST + PASS));
}

#[test]
fn frequent_frames_end_the_sleeping_for_good() {
    // Slow wake-ups, after which more frames are pending, hide how short the gaps are.
    for wake_up in [0, 5, 20, 100] {
        let mut worker = Worker::new(us(wake_up));
        let first = worker.steady(us(1), 10_000);
        assert!(first.sleeps < 2 * SLEEPS_PER_TRIAL, "{first:?}");
        let then = worker.steady(us(1), 10_000);
        assert_eq!(then.sleeps, 0, "wake-up in {wake_up} µs");
    }
}

#[test]
fn within_a_burst_it_polls_and_after_it_it_sleeps() {
    let burst = [vec![us(1000)], vec![us(2); 9]].concat();
    let mut worker = Worker::new(us(5));
    worker.frames(burst.repeat(20));
    let spent = worker.frames(burst.repeat(100));
    assert_eq!(spent.sleeps, 100);
    assert!(spent.polling < 100 * (us(18) + INITIAL_COST), "{spent:?}");
}

#[test]
fn bursts_of_frames_are_one_arrival() {
    let burst = [vec![us(1000)], vec![Duration::ZERO; 63]].concat();
    let spent = Worker::new(us(5)).frames(burst.repeat(100));
    assert_eq!((spent.sleeps, spent.polling), (100, Duration::ZERO));
}

#[test]
fn a_change_is_followed_within_a_few_spells() {
    let mut worker = Worker::new(us(10));
    worker.steady(us(1000), 1000);
    let busy = worker.steady(us(1), 10_000);
    assert!(busy.sleeps <= SLEEPS_PER_TRIAL + 8, "{busy:?}");
    let calm = worker.steady(us(1000), 1000);
    assert!(calm.polling <= 8 * (INITIAL_COST + PASS), "{calm:?}");
}

#[test]
fn an_interrupted_spell_counts_as_one_in_vain() {
    let mut worker = Worker::new(us(10));
    worker.steady(us(1), 10_000);
    let now = worker.now;
    assert_eq!(worker.poll.found_nothing(now, None), Next::Poll);
    worker.poll.found_frames(now + us(10_000));
    assert!(worker.poll.polling < us(4), "{:?}", worker.poll);
}

#[test]
fn the_end_of_all_traffic_costs_one_polled_spell() {
    let mut worker = Worker::new(us(10));
    worker.steady(us(1), 10_000);
    let end = worker.steady(us(1_000_000), 1);
    assert!(end.polling <= INITIAL_COST + PASS);
    // A wake-up without a frame is followed by the next sleep.
    let mut poll = AdaptivePoll::new(Poll::Adaptive);
    assert_eq!(poll.found_nothing(us(1), None), Next::Sleep);
    assert_eq!(poll.found_nothing(us(2), None), Next::Sleep);
}

#[test]
fn the_cost_of_a_sleep_is_measured() {
    let mut poll = AdaptivePoll::new(Poll::Adaptive);
    (0..100).for_each(|_| poll.slept(us(10)));
    assert!(poll.cost() > us(19) && poll.cost() <= us(20));
    // A thread that was interrupted for long, or a sleep that did not happen.
    (0..100).for_each(|_| poll.slept(us(10_000)));
    assert!(poll.cost() <= COST_RANGE.1);
    (0..100).for_each(|_| poll.slept(Duration::ZERO));
    assert!(poll.cost() >= COST_RANGE.0);
}

#[test]
fn a_cost_that_has_become_less_is_found_out_while_polling_succeeds() {
    let mut worker = Worker::new(us(5));
    (0..100).for_each(|_| worker.poll.slept(us(20)));
    let first = worker.steady(us(25), 1000);
    assert_eq!(first.sleeps, 0, "cheaper than sleeping was");
    worker.steady(us(25), 20 * SPELLS_PER_SLEEP as usize);
    let then = worker.steady(us(25), 1000);
    assert!(then.total() <= then.optimum * 5 / 4, "{then:?}");
}

#[test]
fn a_worker_that_always_polls_never_sleeps() {
    let mut poll = AdaptivePoll::new(Poll::Always);
    for second in 0..100 {
        let next = poll.found_nothing(Duration::from_secs(second), None);
        assert_eq!(next, Next::Poll);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_arrivals_cost_at_most_twice_the_optimum(
        nanos in 200u64..200_000,
        wake_up in 0u64..30,
        uniform in proptest::collection::vec(0.0..1.0f64, 3000),
    ) {
        let mut worker = Worker::new(us(wake_up));
        let spent = worker.frames(poisson(Duration::from_nanos(nanos), &uniform));
        let start = 2 * SLEEPS_PER_TRIAL * INITIAL_COST;
        prop_assert!(spent.total() <= 2 * spent.optimum + start, "{spent:?}");
    }

    #[test]
    fn whatever_changes_costs_little_more(
        nanos in proptest::collection::vec(200u64..2_000_000, 1..10),
        uniform in proptest::collection::vec(0.0..1.0f64, 300),
    ) {
        let gaps = nanos.iter().flat_map(|n| poisson(Duration::from_nanos(*n), &uniform));
        let spent = Worker::new(us(5)).frames(gaps);
        let changes = nanos.len() as u32 * 2 * SLEEPS_PER_TRIAL * INITIAL_COST;
        prop_assert!(spent.total() <= 2 * spent.optimum + changes, "{spent:?}");
    }
}

/// Control answers each upcall after `answer`: returns for each upcall whether the worker polled
/// until then.
fn polled_for_answers(poll: &mut AdaptivePoll, answer: Duration, questions: u32) -> Vec<bool> {
    let ask = |number| {
        let asked = us(1000) * number;
        let looks = (0..).map(|pass| asked + PASS * pass);
        let mut until = looks.take_while(|&now| now < asked + answer);
        let looked = until.all(|now| poll.found_nothing(now, None) == Next::Poll);
        poll.found_frames(asked + answer);
        looked
    };
    (1..=questions).map(ask).collect()
}

#[test]
fn answers_are_polled_for_as_long_as_they_come_soon() {
    let mut poll = AdaptivePoll::for_answers();
    let soon = polled_for_answers(&mut poll, us(30), 40);
    assert!(
        soon[SLEEPS_PER_TRIAL as usize..]
            .iter()
            .all(|&looked| looked),
        "{soon:?}"
    );
    let late = polled_for_answers(&mut poll, us(300), 40);
    assert_eq!(late.iter().filter(|&&looked| looked).count(), 0);
    // Its further trials show that answers come soon again.
    let again = polled_for_answers(&mut poll, us(30), 200);
    assert!(again.ends_with(&[true; 100]), "{again:?}");
}

#[test]
fn a_sleep_that_is_ended_once_for_several_frames_is_cheaper_than_polling() {
    let mut poll = AdaptivePoll::new(Poll::Adaptive);
    let asleep = |us| Some(Duration::from_micros(us));
    poll.slept(us(6));
    assert!(poll.cost() > us(8) && poll.cost() < us(9));
    for round in 0..100 {
        poll.found_frames(us(10 * round));
        assert!(poll.is_busy());
        assert_eq!(
            poll.found_nothing(us(10 * round + 1), asleep(80)),
            Next::Sleep
        );
    }
    // Frames that come more quickly are polled for.
    poll.found_frames(us(2000));
    assert_eq!(poll.found_nothing(us(2001), asleep(10)), Next::Poll);
}
