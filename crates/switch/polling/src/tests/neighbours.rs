//! Other threads on the core of one that looks.

use super::*;

const SLICE: Duration = Duration::from_millis(4);

#[test]
fn beside_a_neighbour_it_stops_looking() {
    let mut waiter = Waiter::new();
    waiter.requests(us(10), us(8), 100);
    waiter.slice = Some(SLICE);
    // Ten seconds.
    let start = waiter.now;
    let mut spent = Spent::default();
    while waiter.now - start < Duration::from_secs(10) {
        let more = waiter.requests(us(10), us(8), 1000);
        spent.lost += more.lost;
        spent.looks += more.looks;
        spent.waits += more.waits;
        spent.sleeps += more.sleeps;
    }
    // A slice for each pause: 10 ms, twice as long each time, then one second.
    assert!(spent.lost <= 17 * SLICE, "{spent:?}");
    assert!(spent.waits - spent.sleeps <= 17, "{spent:?}");
    assert!(spent.looks < us(3000), "the neighbour's loss: {spent:?}");
}

#[test]
fn beside_a_neighbour_it_looks_where_a_sleep_would_take_more() {
    let mut waiter = Waiter::new();
    waiter.requests(us(2), us(2), 100);
    let now = waiter.now + SLICE;
    waiter.poll.yielded(now, SLICE, || now);
    (waiter.now, waiter.arrival) = (now, now);
    let spent = waiter.requests(us(2), us(2), 1000);
    assert!(waiter.poll.is_on_shared_core());
    assert!(spent.sleeps <= spent.waits / WAITS_PER_SLEEP, "{spent:?}");
}

#[test]
fn when_the_neighbour_has_gone_it_looks_again() {
    let mut waiter = Waiter::new();
    waiter.slice = Some(SLICE);
    let start = waiter.now;
    while waiter.now - start < Duration::from_secs(5) {
        waiter.requests(us(10), us(8), 100);
    }
    waiter.slice = None;
    let left = waiter.now;
    while waiter.now - left < LONGEST {
        waiter.requests(us(10), us(8), 10);
    }
    waiter.requests(us(10), us(8), 20);
    let spent = waiter.requests(us(10), us(8), 1000);
    assert!(
        spent.sleeps <= spent.waits / WAITS_PER_SLEEP + 1,
        "{spent:?}"
    );
    // Much later, a neighbour for a moment makes a pause of the first length.
    waiter.steady(LONGEST, 3);
    waiter.requests(us(10), us(8), 20);
    waiter.slice = Some(SLICE);
    waiter.requests(us(10), us(8), 1);
    assert!(waiter.poll.core.is_shared(waiter.now));
    waiter.slice = None;
    let now = waiter.now + Duration::from_millis(11);
    assert!(!waiter.poll.core.is_shared(now));
}

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);

#[test]
fn a_neighbour_that_interrupts_is_met_without_yields() {
    let mut waiter = Waiter::new();
    waiter.requests(us(10), us(8), 1000);
    assert!(!waiter.poll.core.is_shared(waiter.now));
    // A slice while it serves a frame.
    waiter.now += SLICE;
    waiter.gone += SLICE;
    waiter.requests(us(10), us(8), 100);
    assert!(waiter.poll.core.is_shared(waiter.now));
    // So little is an interrupt.
    let mut waiter = Waiter::new();
    waiter.requests(us(10), us(8), 1000);
    waiter.now += us(100);
    waiter.gone += us(100);
    waiter.requests(us(10), us(8), 100);
    assert!(!waiter.poll.core.is_shared(waiter.now));
}

/// A write to an event or to an interface wakes a peer, which takes the core for a moment.
#[test]
fn a_peer_that_runs_while_the_thread_works_is_no_neighbour() {
    for (peers, is_neighbour) in [(us(20), false), (us(90), false), (us(2000), true)] {
        let mut waiter = Waiter::new();
        waiter.requests(us(10), us(8), 1000);
        for _ in 0..200 {
            waiter.requests(us(10), us(8), 1);
            waiter.now += peers;
            waiter.gone += peers;
        }
        let found = waiter.poll.core.is_shared(waiter.now);
        assert_eq!(found, is_neighbour, "{peers:?}");
    }
}

#[test]
fn a_yield_that_takes_less_than_a_sleep_is_no_neighbour() {
    let mut waiter = Waiter::new();
    // A peer that answers on the same core, or an interrupt.
    waiter.slice = Some(PRICE - us(1));
    waiter.requests(us(10), us(8), 100);
    assert!(!waiter.poll.core.is_shared(waiter.now));
}

#[test]
fn the_length_of_a_wait_in_which_others_ran_is_not_known() {
    let mut waiter = Waiter::new();
    waiter.requests(us(10), us(8), 100);
    let balances = waiter.poll.balances;
    let now = waiter.now;
    assert_eq!(waiter.poll.found_nothing(now, None), PollDecision::Poll);
    waiter.poll.yielded(now + SLICE, SLICE, || now);
    let next = waiter.poll.found_nothing(now + SLICE, None);
    assert_eq!(next, PollDecision::Sleep);
    waiter.poll.found_frames(now + SLICE + us(20));
    assert_eq!(waiter.poll.balances, balances);
}
