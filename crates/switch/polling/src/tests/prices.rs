//! The price of a sleep.

use super::*;

#[test]
fn it_is_the_cpu_time_and_the_wake_up_as_measured() {
    let mut poll = AdaptivePoll::new(Poll::Adaptive);
    poll.slept(us(10));
    poll.woke_late(us(25));
    assert_eq!(poll.price(), us(35), "the first ones are believed");
    // A wake-up that was delayed once.
    poll.woke_late(us(10_000));
    assert!(poll.price() < us(65));
    (0..100).for_each(|_| poll.slept(us(5)));
    (0..100).for_each(|_| poll.woke_late(us(15)));
    assert!(poll.price() > us(19) && poll.price() < us(21));
    // A thread that was interrupted for long, or a sleep that did not happen.
    (0..100).for_each(|_| poll.slept(us(10_000)));
    (0..100).for_each(|_| poll.woke_late(us(10_000)));
    assert!(poll.price() <= us(1050));
    (0..100).for_each(|_| poll.slept(Duration::ZERO));
    (0..100).for_each(|_| poll.woke_late(Duration::ZERO));
    assert!(poll.price() >= us(1) && poll.price() < us(2));
}

#[test]
fn few_sleeps_are_measured() {
    let mut poll = AdaptivePoll::new(Poll::Adaptive);
    let samples: Vec<Sample> = (0..4096).map(|_| poll.next_sleep()).collect();
    let count = |is: fn(&Sample) -> bool| samples.iter().filter(|sample| is(sample)).count();
    assert_eq!(count(|sample| matches!(sample, Sample::WakeUp(_))), 12);
    assert_eq!(count(|sample| *sample == Sample::CpuTime), 248);
    assert!(matches!(samples[0], Sample::WakeUp(_)), "the first is one");
}

#[test]
fn a_peer_that_waits_for_the_wake_up_raises_it() {
    // The answer takes longer than the CPU time of a sleep, and less than both.
    let mut waiter = Waiter::new();
    waiter.requests(us(9), us(9), 100);
    assert_eq!(waiter.requests(us(9), us(9), 100).sleeps, 0);
    // On a core that wakes quickly, a sleep is cheaper.
    let mut waiter = Waiter::new();
    waiter.wake_up = us(1);
    waiter.steady(us(10_000), 20_000);
    waiter.requests(us(9), us(9), 100);
    let spent = waiter.requests(us(9), us(9), 1600);
    assert!(spent.looks <= 16 * us(6), "{spent:?}");
}

#[test]
fn a_price_that_has_fallen_is_found_out_while_looking_succeeds() {
    let mut waiter = Waiter::new();
    (0..100).for_each(|_| waiter.poll.slept(us(20)));
    let first = waiter.steady(us(25), 1000);
    assert!(first.sleeps <= MEMORY as u32, "cheaper than sleeping was");
    waiter.steady(us(25), 20 * WAITS_PER_SLEEP as usize);
    let then = waiter.steady(us(25), 1000);
    assert!(then.total <= then.optimum * 5 / 4, "{then:?}");
}
