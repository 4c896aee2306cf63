//! What the rule does with arrivals of one kind.

use super::*;

#[test]
fn rare_frames_are_not_looked_for() {
    for gap in [us(600), us(1000), us(50_000)] {
        let spent = Waiter::new().steady(gap, 1000);
        assert_eq!((spent.sleeps, spent.looks), (1000, Duration::ZERO));
    }
}

#[test]
fn gaps_a_little_longer_than_the_price_cost_trials_only() {
    let mut waiter = Waiter::new();
    let spent = waiter.steady(PRICE + us(9), 10_000);
    assert_eq!(spent.sleeps, spent.waits);
    assert!(spent.looks <= 16 * (PRICE + PASS), "{spent:?}");
}

#[test]
fn frequent_frames_end_the_sleeping_for_good() {
    // Slow wake-ups, with more frames pending after them, hide how short the gaps are.
    for wake_up in [0, 5, 20, 100] {
        let mut waiter = Waiter::new();
        waiter.wake_up = us(wake_up);
        let first = waiter.steady(us(1), 10_000);
        assert!(first.sleeps < 64, "{first:?}");
        let then = waiter.steady(us(1), 10_000);
        assert_eq!(then.sleeps, 0, "wake-up in {wake_up} µs");
    }
}

#[test]
fn within_a_burst_it_looks_and_after_it_it_sleeps() {
    let burst = [vec![us(1000)], vec![us(2); 9]].concat();
    let mut waiter = Waiter::new();
    waiter.frames(burst.repeat(20));
    let spent = waiter.frames(burst.repeat(100));
    assert_eq!(spent.sleeps, 100);
    assert!(spent.looks < 100 * (us(18) + PRICE), "{spent:?}");
}

#[test]
fn bursts_of_frames_are_one_arrival() {
    let burst = [vec![us(1000)], vec![Duration::ZERO; 63]].concat();
    let spent = Waiter::new().frames(burst.repeat(100));
    assert_eq!((spent.sleeps, spent.looks), (100, Duration::ZERO));
}

#[test]
fn a_change_is_followed_within_a_few_waits() {
    let mut waiter = Waiter::new();
    let busy = waiter.steady(us(1), 10_000);
    assert!(busy.sleeps <= MEMORY as u32 + 2, "{busy:?}");
    let calm = waiter.steady(us(1000), 1000);
    assert!(
        calm.looks <= (MEMORY as u32 + 1) * (PRICE + PASS),
        "{calm:?}"
    );
}

#[test]
fn the_peer_of_a_request_is_waited_for_and_the_next_request_is_not() {
    // Requests one after another: every wait is short.
    let mut waiter = Waiter::new();
    waiter.requests(us(10), us(8), 100);
    let spent = waiter.requests(us(10), us(8), 100);
    assert_eq!(spent.sleeps, 0, "{spent:?}");
    // At intervals: the thread sleeps between two requests, and looks for the answer.
    waiter.requests(us(200), us(8), 100);
    let spent = waiter.requests(us(200), us(8), 100);
    assert_eq!(spent.sleeps, 100, "{spent:?}");
    assert!(spent.looks < 100 * us(9), "{spent:?}");
    // Answers that take longer than a sleep costs are slept for.
    waiter.requests(us(200), us(40), 100);
    let spent = waiter.requests(us(200), us(40), 100);
    assert_eq!((spent.sleeps, spent.looks), (200, Duration::ZERO));
}

#[test]
fn the_end_of_all_traffic_costs_one_look() {
    let mut waiter = Waiter::new();
    waiter.steady(us(1), 10_000);
    let end = waiter.steady(us(1_000_000), 1);
    assert!(end.looks <= PRICE + PASS);
    // A wake-up without a frame is followed by the next sleep.
    let poll = &mut Waiter::new().poll;
    let now = us(1_000_000);
    assert_eq!(poll.found_nothing(now, None), PollDecision::Sleep);
    assert_eq!(poll.found_nothing(now + us(1), None), PollDecision::Sleep);
}

#[test]
fn an_interrupted_look_counts_as_one_in_vain() {
    let mut waiter = Waiter::new();
    waiter.steady(us(1), 10_000);
    let now = waiter.now;
    assert_eq!(waiter.poll.found_nothing(now, None), PollDecision::Poll);
    let before = waiter.poll.balances;
    waiter.poll.found_frames(now + us(10_000));
    let mut after = before;
    after[1].looked(PRICE.as_nanos() as i64, i64::MAX);
    assert_eq!(waiter.poll.balances, after);
}

#[test]
fn a_thread_that_always_polls_never_sleeps() {
    let mut poll = AdaptivePoll::new(Poll::Always);
    for second in 0..100 {
        let next = poll.found_nothing(Duration::from_secs(second), None);
        assert_eq!(next, PollDecision::Poll);
    }
}

#[test]
fn without_looks_it_sleeps_at_once() {
    let mut waiter = Waiter::limited(Duration::ZERO);
    for gap in [us(1), us(20), us(1000)] {
        let spent = waiter.steady(gap, 1000);
        assert_eq!((spent.sleeps, spent.looks), (spent.waits, Duration::ZERO));
        assert_eq!(spent.total, spent.sleeping);
    }
}

#[test]
fn a_limit_shortens_the_look() {
    let mut waiter = Waiter::limited(us(5));
    waiter.requests(us(4), us(4), 100);
    assert_eq!(waiter.requests(us(4), us(4), 100).sleeps, 0);
    // Without the limit it would look for these.
    waiter.requests(us(9), us(9), 100);
    let spent = waiter.requests(us(9), us(9), 1000);
    assert!(spent.looks <= 16 * us(6), "{spent:?}");
}

#[test]
fn a_sleep_that_is_ended_once_for_several_frames_is_cheaper_than_looking() {
    let mut waiter = Waiter::new();
    waiter.steady(us(1), 1000);
    let (poll, start) = (&mut waiter.poll, waiter.now);
    let asleep = |us| Some(Duration::from_micros(us));
    for round in 0..100 {
        let now = start + us(10 * round);
        poll.found_frames(now);
        assert!(poll.is_busy());
        assert_eq!(
            poll.found_nothing(now + us(1), asleep(80)),
            PollDecision::Sleep
        );
    }
    // Frames that come more quickly are looked for.
    poll.found_frames(start + us(2000));
    let next = poll.found_nothing(start + us(2001), asleep(10));
    assert_eq!(next, PollDecision::Poll);
}

/// Control answers each upcall after `answer`: returns for each upcall whether the worker polled
/// until then.
fn polled_for_answers(poll: &mut AdaptivePoll, answer: Duration, questions: u32) -> Vec<bool> {
    let ask = |number| {
        let asked = us(1000) * number;
        let looks = (0..).map(|pass| asked + PASS * pass);
        let mut until = looks.take_while(|&now| now < asked + answer);
        let looked = until.all(|now| poll.found_nothing(now, None) == PollDecision::Poll);
        poll.found_frames(asked + answer);
        looked
    };
    (1..=questions).map(ask).collect()
}

#[test]
fn answers_are_looked_for_as_long_as_they_come_soon() {
    let mut poll = AdaptivePoll::for_answers();
    let soon = polled_for_answers(&mut poll, us(30), 40);
    assert!(soon.ends_with(&[true; 20]), "{soon:?}");
    let late = polled_for_answers(&mut poll, us(300), 40);
    assert_eq!(late.iter().filter(|&&looked| looked).count(), 0);
    // They come soon again.
    let again = polled_for_answers(&mut poll, us(30), 200);
    assert!(again.ends_with(&[true; 100]), "{again:?}");
}
