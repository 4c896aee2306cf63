//! Buckets compared with an exact oracle, in simulated time.

use ipc::limits::{Limit, Limits, Rate};
use proptest::prelude::*;

use super::bucket::Bucket;
use super::{Limiter, MIN_WAIT, PortLimits, RETRY};
use crate::ports::budget::{Cost, Share};

const SECOND: u128 = 1_000_000_000;

fn rate(per_second: u64, burst: u64) -> Rate {
    Rate { per_second, burst }
}

/// All grants with their times.
#[derive(Default)]
struct Oracle(Vec<(u64, u64)>);

impl Oracle {
    fn grant(&mut self, now: u64, tokens: u64) {
        if tokens > 0 {
            self.0.push((now, tokens));
        }
    }

    /// Checks that in each interval at most burst + rate * time was granted, up to the 64th of a
    /// nanosecond that a bucket counts in.
    fn check(&self, rate: Rate) {
        for (first, (from, _)) in self.0.iter().enumerate() {
            let mut sum = 0u128;
            for (at, tokens) in &self.0[first..] {
                sum += u128::from(*tokens);
                let time = u128::from(at - from) * 64 + 1;
                let most =
                    u128::from(rate.burst) * SECOND * 64 + u128::from(rate.per_second) * time;
                assert!(
                    sum * SECOND * 64 <= most,
                    "{sum} from {from} to {at}: {rate:?}"
                );
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64),
    /// Takes so many, if available.
    Take(u64),
    /// Takes all, and uses so many of a thousand.
    Use(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0u64..2_000_000).prop_map(Step::Wait),
        (0u64..20).prop_map(Step::Wait),
        (1u64..100).prop_map(Step::Take),
        (0u64..=1000).prop_map(Step::Use),
    ];
    prop::collection::vec(step, 1..200)
}

fn rates() -> impl Strategy<Value = Rate> {
    let per_second = prop_oneof![1u64..1000, 1000u64..1_000_000_000, Just(1_000_000_000_000)];
    (per_second, prop_oneof![1u64..100, 100u64..1_000_000])
        .prop_map(|(per_second, burst)| rate(per_second, burst))
}

proptest! {
    #[test]
    fn no_more_than_burst_and_rate_in_any_time(rate in rates(), steps in steps()) {
        let (bucket, mut oracle, mut now) = (Bucket::new(rate), Oracle::default(), 1 << 40);
        for step in steps {
            match step {
                Step::Wait(time) => now += time,
                Step::Take(tokens) => {
                    let tokens = tokens.min(rate.burst);
                    if bucket.take(tokens, now) {
                        oracle.grant(now, tokens);
                    }
                }
                Step::Use(part) => {
                    let taken = bucket.take_all(now).tokens;
                    let used = taken * part / 1000;
                    bucket.settle(taken, used);
                    oracle.grant(now, used);
                }
            }
        }
        oracle.check(rate);
    }

    #[test]
    fn tokens_are_available_at_the_ready_time(rate in rates(), tokens in 1u64..200) {
        let (bucket, mut now) = (Bucket::new(rate), 1 << 40);
        let tokens = tokens.min(rate.burst);
        for _ in 0..50 {
            now = bucket.ready_at(tokens).max(now);
            prop_assert!(bucket.take(tokens, now), "{rate:?} at {now}");
        }
    }

    /// A sender with a permanent backlog gets the configured rate, however it takes tokens.
    #[test]
    fn the_rate_is_reached(per_second in 100u64..2_000_000_000, size in 1u64..64) {
        let burst = (per_second / 100).max(64);
        let bucket = Bucket::new(rate(per_second, burst));
        bucket.take_all(0);
        let (mut now, mut taken) = (0u64, 0u64);
        // Retries as PortLimits returns them; covers ten seconds at most.
        for _ in 0..20_000 {
            now = bucket.ready_at(size).max(now + bucket.fills_in() / 2);
            taken += bucket.take_all(now).tokens;
        }
        let most = u128::from(per_second) * u128::from(now) / SECOND;
        let taken = u128::from(taken);
        prop_assert!(taken <= most + 1, "{taken} of {most}");
        prop_assert!(taken + most / 1000 + 1 >= most, "{taken} of {most}");
    }
}

#[test]
fn a_request_above_the_burst_passes_and_leaves_a_debt() {
    let bucket = Bucket::new(rate(1000, 10));
    assert!(bucket.take(25, 0));
    assert!(!bucket.take(1, 15_000_000), "15 are owed");
    assert_eq!(bucket.ready_at(1), 16_000_000);
    assert!(bucket.take(1, 16_000_000));
    // The next frame waits for a full bucket, and no longer.
    let ready = bucket.ready_at(25);
    assert_eq!(ready, 26_000_000);
    assert!(!bucket.take(25, ready - 1) && bucket.take(25, ready));
}

#[test]
fn unused_tokens_are_available_again() {
    let bucket = Bucket::new(rate(1_000_000, 64));
    for _ in 0..1000 {
        let all = bucket.take_all(5);
        assert_eq!((all.tokens, bucket.take_all(5).tokens), (64, 0));
        bucket.settle(all.tokens, 0);
    }
    assert!(bucket.take(64, 5) && !bucket.take(1, 5));
}

#[test]
fn a_rest_of_each_token_is_kept() {
    // A third of a nanosecond of error per token would show up.
    let bucket = Bucket::new(rate(3, 1));
    let mut now = 0;
    for _ in 0..3000 {
        assert!(bucket.take(1, now));
        now = bucket.ready_at(1);
    }
    let late = now - 1000 * SECOND as u64;
    assert!(late <= 3000, "{late} ns in a thousand seconds");
}

#[test]
fn tokens_come_as_long_as_a_switch_may_run() {
    const DAY: u64 = 86_400 * SECOND as u64;
    for days in [0, 833, 834, 900, 7 * 365] {
        let bucket = Bucket::new(rate(10, 100));
        let mut now = days * DAY;
        assert!(bucket.take(100, now) && !bucket.take(1, now), "{days}");
        now += 10 * SECOND as u64;
        assert_eq!(bucket.ready_at(100), now, "{days}");
        assert_eq!(bucket.take_all(now).tokens, 100, "{days}");
        bucket.settle(100, 0);
        assert!(bucket.take(100, now) && !bucket.take(1, now), "{days}");
    }
}

#[test]
fn both_bounds_hold_and_neither_takes_for_the_other() {
    let limiter = Limiter::new(Limit {
        packets: Some(rate(1000, 10)),
        bits: Some(rate(1_000_000, 8000)),
    });
    let limiter = limiter.unwrap();
    let cost = |packets, bits| Cost { packets, bits };
    assert!(!limiter.admits(cost(1, 8001), 0) || !limiter.admits(cost(1, 1), 0));
    let now = 1_000_000_000;
    assert!(limiter.admits(cost(1, 7000), now));
    for _ in 0..100 {
        assert!(!limiter.admits(cost(1, 7000), now), "packets go back");
    }
    for left in (0..9).rev() {
        assert!(limiter.admits(cost(1, 1), now), "{left} left");
    }
    assert!(!limiter.admits(cost(1, 1), now));
}

#[test]
fn a_batch_gets_what_there_is_and_waits_for_its_next_frame() {
    let limits = PortLimits::new(Limits {
        from_guest: Limit {
            packets: Some(rate(1000, 100)),
            bits: None,
        },
        ..Limits::default()
    });
    let limits = limits.unwrap();
    let frame = Cost {
        packets: 45,
        bits: 500_000,
    };
    let mut budget = limits.grant(0).unwrap().unwrap();
    assert_eq!(budget.bits, Share::ENDLESS);
    assert!(budget.admit(frame) && budget.admit(frame) && !budget.admit(frame));
    // Ten are left, and thirty-five arrive in as many milliseconds.
    assert_eq!(limits.settle(&budget, 0), Some(35_000_000));
    let mut budget = limits.grant(35_000_000).unwrap().unwrap();
    assert!(budget.admit(frame));
    assert_eq!(limits.settle(&budget, 35_000_000), None);
    // The minimum wait applies.
    assert_eq!(limits.grant(35_000_000), Err(36_000_000));
    let slow = PortLimits::new(Limits::default());
    assert!(slow.is_none(), "without limits there is nothing");
}

#[test]
fn a_worker_does_not_pause_a_sender_for_tokens_that_another_one_gives_back() {
    let limits = PortLimits::new(Limits {
        from_guest: Limit {
            packets: None,
            bits: Some(rate(1_000_000_000, 10_000_000)),
        },
        ..Limits::default()
    });
    let (limits, now) = (limits.unwrap(), SECOND as u64);
    let frame = Cost {
        packets: 1,
        bits: 12_112,
    };
    let mut one = limits.grant(now).unwrap().unwrap();
    assert_eq!(limits.grant(now), Err(now + RETRY));
    // A few tokens have come since.
    let mut other = limits.grant(now + 100).unwrap().unwrap();
    assert!(!other.admit(frame));
    assert_eq!(limits.settle(&other, now + 100), Some(now + 100 + RETRY));
    // The same, and they are given back meanwhile.
    let mut other = limits.grant(now + 200).unwrap().unwrap();
    assert!(one.admit(frame) && !other.admit(frame));
    assert_eq!(limits.settle(&one, now + 200), None);
    assert_eq!(limits.settle(&other, now + 200), Some(now + 200 + RETRY));
    // None has them, but they are used up.
    let mut last = limits.grant(now + 300).unwrap().unwrap();
    while last.admit(frame) {}
    assert_eq!(limits.settle(&last, now + 300), Some(now + 300 + MIN_WAIT));
}

#[test]
fn flooded_frames_have_buckets_of_their_own() {
    let limits = PortLimits::new(Limits {
        broadcast: Some(rate(10, 2)),
        unknown_unicast: Some(rate(10, 1)),
        ..Limits::default()
    });
    let limits = limits.unwrap();
    let cost = Cost {
        packets: 1,
        bits: 512,
    };
    let broadcast = wire::MacAddr::BROADCAST;
    let unknown = wire::MacAddr([2, 0, 0, 0, 0, 1]);
    let group = wire::MacAddr([0x33, 0x33, 0, 0, 0, 1]);
    let admits = |to, now| limits.admits_flood(to, cost, now);
    assert_eq!(
        [0; 3].map(|now| admits(broadcast, now)),
        [true, true, false]
    );
    assert_eq!([0; 2].map(|now| admits(unknown, now)), [true, false]);
    assert!((0..1000).all(|_| admits(group, 0)), "not limited");
    assert!(admits(broadcast, 100_000_000) && !admits(broadcast, 100_000_001));
    assert!(!limits.limits_from_guest() && !limits.limits_to_guest());
}
