//! Shares without a switch: the tests set the cost of copies.

use proptest::prelude::*;

use super::*;

/// The copies for one receiver.
#[derive(Clone, Debug)]
struct Receiver {
    weight: u16,
    /// Ticks of the copies of a batch for it, and of their switching.
    cost: u64,
    switching: u64,
    /// Batches for it in each round; their sender has more.
    batches: u64,
    copied: u64,
    /// Rounds in a row in which all batches for it were dropped: the most.
    dropped: u64,
    longest: u64,
    any_dropped: u64,
}

impl Receiver {
    fn new(weight: u16, cost: u64, batches: u64) -> Self {
        Self {
            weight,
            cost,
            switching: cost / 2,
            batches,
            copied: 0,
            dropped: 0,
            longest: 0,
            any_dropped: 0,
        }
    }
}

fn shares_of(receivers: &[Receiver]) -> ReceiveShares {
    let mut shares = ReceiveShares::default();
    for (at, receiver) in receivers.iter().enumerate() {
        shares.set_weight(PortId(at as u32), receiver.weight);
        shares.add(PortId(at as u32));
    }
    shares
}

/// Two senders have more frames for a port.
fn wanted(shares: &mut ReceiveShares, port: PortId) {
    for sender in [500, 501] {
        shares.note_backlog(port, PortId(sender));
    }
}

/// Plays rounds in which batches for all receivers come, and returns all ticks.
fn play(shares: &mut ReceiveShares, receivers: &mut [Receiver], rounds: usize) -> u64 {
    let mut total = 0;
    for _ in 0..rounds {
        for (at, receiver) in receivers.iter_mut().enumerate() {
            let port = PortId(at as u32);
            let mut served = receiver.batches == 0;
            for _ in 0..receiver.batches {
                shares.spend(receiver.switching);
                total += receiver.switching;
                if shares.is_over(port) {
                    shares.note_dropped(port);
                    receiver.any_dropped += 1;
                    continue;
                }
                shares.charge(port, receiver.cost);
                shares.spend(receiver.cost);
                wanted(shares, port);
                receiver.copied += receiver.cost;
                total += receiver.cost;
                served = true;
            }
            receiver.dropped = if served { 0 } else { receiver.dropped + 1 };
            receiver.longest = receiver.longest.max(receiver.dropped);
        }
        shares.end_round(false);
    }
    total
}

fn any_receiver() -> impl Strategy<Value = Receiver> {
    let weights = prop_oneof![Just(100u16), 10..=1000u16];
    (weights, 100..10_000u64, 1..40u64)
        .prop_map(|(weight, cost, batches)| Receiver::new(weight, cost, batches))
}

proptest! {
    #[test]
    fn none_has_more_than_its_weight_and_all_that_it_may_have(
        mut receivers in prop::collection::vec(any_receiver(), 2..6),
    ) {
        let mut shares = shares_of(&receivers);
        play(&mut shares, &mut receivers, 1000);
        receivers.iter_mut().for_each(|receiver| receiver.copied = 0);
        let total = play(&mut shares, &mut receivers, 20_000);
        let copied: u64 = receivers.iter().map(|receiver| receiver.copied).sum();
        let weights: u64 = receivers.iter().map(|receiver| u64::from(receiver.weight)).sum();
        let pool = (total as f64 / 2.0).max(copied as f64 * 1.125);
        for receiver in &receivers {
            let share = pool * f64::from(receiver.weight) / weights as f64;
            let ratio = receiver.copied as f64 / share;
            prop_assert!(ratio < 1.02, "{ratio}: {receivers:?}");
            // A receiver that is just below its share may have had a costly round.
            let is_cut = receiver.any_dropped * receiver.cost > receiver.copied / 50;
            prop_assert!(!is_cut || ratio > 0.9, "{ratio} and drops: {receivers:?}");
        }
    }

    /// The rounds of a costly flow differ by what they grant, and small batches are far cheaper.
    #[test]
    fn many_cheap_batches_below_their_share_are_not_dropped_beside_costly_ones(
        cheap in (100..400u64, 5..40u64),
        costly in (3000..10_000u64, 1..3u64),
        weight in 50..200u16,
    ) {
        let mut receivers = [
            Receiver::new(100, cheap.0, cheap.1),
            Receiver::new(weight, costly.0, costly.1),
        ];
        let mut shares = shares_of(&receivers);
        play(&mut shares, &mut receivers, 1000);
        receivers.iter_mut().for_each(|receiver| (receiver.copied, receiver.any_dropped) = (0, 0));
        let total = play(&mut shares, &mut receivers, 10_000);
        let copied: u64 = receivers.iter().map(|receiver| receiver.copied).sum();
        let pool = (total / 2).max(copied + copied / 8);
        for receiver in &receivers {
            let share = pool * u64::from(receiver.weight) / (100 + u64::from(weight));
            let is_cut = receiver.any_dropped * receiver.cost > receiver.copied / 200;
            let is_below = receiver.copied < share / 10 * 9;
            prop_assert!(!(is_cut && is_below), "share {share}: {receivers:?}");
        }
    }

    #[test]
    fn no_receiver_starves(mut receivers in prop::collection::vec(any_receiver(), 1..6)) {
        let mut shares = shares_of(&receivers);
        play(&mut shares, &mut receivers, 20_000);
        for receiver in &receivers {
            prop_assert!(receiver.longest < 2000, "{receivers:?}");
        }
    }

    #[test]
    fn a_lone_receiver_never_drops(
        receiver in any_receiver(),
        before in prop::collection::vec(any_receiver(), 0..3),
        others in 0..3usize,
    ) {
        // Earlier contention does not matter, nor do receivers of senders without more frames.
        let mut all = vec![receiver];
        all.extend(before);
        let mut shares = shares_of(&all);
        play(&mut shares, &mut all, 100);
        all[0].any_dropped = 0;
        all[1..].iter_mut().for_each(|other| other.batches = 0);
        // The first round ends the contention.
        play(&mut shares, &mut all, 1);
        all[0].any_dropped = 0;
        for _ in 0..1000 {
            for other in 1..all.len().min(1 + others) {
                shares.charge(PortId(other as u32), 10_000);
            }
            play(&mut shares, &mut all, 1);
        }
        prop_assert_eq!(all[0].any_dropped, 0);
    }
}

#[test]
fn flows_with_about_equal_copies_lose_nothing() {
    let mut receivers = [Receiver::new(100, 5000, 1), Receiver::new(100, 6000, 1)];
    receivers[1].switching = 100;
    receivers[0].switching = 100;
    let mut shares = shares_of(&receivers);
    play(&mut shares, &mut receivers, 10_000);
    assert_eq!(receivers.map(|receiver| receiver.any_dropped), [0, 0]);
}

#[test]
fn a_receiver_that_takes_little_does_not_reduce_the_share_of_others() {
    // The second one is flooded, but its guest takes next to nothing.
    let mut receivers = [Receiver::new(100, 5000, 1), Receiver::new(100, 1, 1)];
    receivers[1].switching = 5000;
    let mut shares = shares_of(&receivers);
    let total = play(&mut shares, &mut receivers, 10_000);
    assert!(receivers[0].copied * 4 > total * 99 / 100, "{receivers:?}");
}

#[test]
fn time_without_frames_is_not_saved_up() {
    let mut receivers = [
        Receiver::new(100, 1000, 4),
        Receiver::new(100, 1000, 4),
        Receiver::new(100, 1000, 0),
    ];
    let mut shares = shares_of(&receivers);
    play(&mut shares, &mut receivers, 1000);
    let before = receivers[0].copied;
    receivers[2].batches = 4;
    for receiver in &mut receivers {
        receiver.copied = 0;
    }
    play(&mut shares, &mut receivers, 100);
    assert!(before > 0);
    let [first, _, late] = receivers.map(|receiver| receiver.copied);
    assert!(late <= first + 3 * BATCHES * 1000, "{late} beside {first}");
}

#[test]
fn a_receiver_stays_backlogged_while_its_sender_waits_for_its_turn() {
    let mut shares = shares_of(&[Receiver::new(100, 1, 1), Receiver::new(100, 1, 1)]);
    let (flooded, other) = (PortId(0), PortId(1));
    wanted(&mut shares, flooded);
    wanted(&mut shares, other);
    shares.end_round(true);
    let mut passed = 0;
    for _ in 0..PATIENCE - 1 {
        if shares.is_over(flooded) {
            shares.note_dropped(flooded);
        } else {
            shares.charge(flooded, 1000);
            wanted(&mut shares, flooded);
            passed += 1;
        }
        shares.spend(1000);
        shares.end_round(true);
    }
    assert!(passed < PATIENCE / 2, "{passed}");
    // All have had their turn, and only one has more frames.
    wanted(&mut shares, flooded);
    shares.end_round(false);
    assert!(!shares.is_over(flooded));
}

#[test]
fn several_senders_to_a_lossless_port_pay_and_lose_nothing() {
    let mut shares = shares_of(&[Receiver::new(100, 1, 1), Receiver::new(100, 1, 1)]);
    let (held, other) = (PortId(0), PortId(1));
    shares.set_lossless(held, true);
    let mut paid = 0;
    for _ in 0..1000 {
        for (port, ticks) in [(held, 3000), (other, 1000)] {
            assert!(!shares.is_over(port));
            shares.charge(port, ticks);
            shares.spend(ticks);
            wanted(&mut shares, port);
        }
        paid += u32::from(shares.charges_sender(held));
        shares.end_round(false);
    }
    assert!(paid > 900, "{paid}");
    // The next port with this number.
    shares.add(held);
    wanted(&mut shares, held);
    for _ in 0..20 {
        shares.charge(held, 3000);
    }
    assert!(shares.is_over(held));
}

#[test]
fn a_single_sender_pays_for_copies_beyond_the_share_and_loses_nothing() {
    let receivers = [Receiver::new(100, 1, 1), Receiver::new(100, 1, 1)];
    let mut shares = shares_of(&receivers);
    let (bulk, other) = (PortId(0), PortId(1));
    let mut paid = 0;
    for _ in 0..1000 {
        for (port, sender, ticks) in [(bulk, 7, 3000), (other, 8, 1000)] {
            assert!(!shares.is_over(port));
            shares.charge(port, ticks);
            shares.spend(ticks);
            shares.note_backlog(port, PortId(sender));
        }
        assert!(!shares.charges_sender(other), "it has less than its share");
        paid += u32::from(shares.charges_sender(bulk));
        shares.end_round(false);
    }
    assert!(paid > 900, "{paid}");
    // A second sender to it: now its frames are dropped.
    let mut dropped = 0;
    for round in 0..10 * PATIENCE as u32 {
        shares.note_backlog(bulk, PortId(7 + 2 * (round % 2)));
        shares.note_backlog(other, PortId(8));
        assert!(!shares.charges_sender(bulk) || round == 0);
        dropped += u32::from(shares.is_over(bulk));
        shares.charge(bulk, 3000);
        shares.end_round(false);
    }
    assert!(dropped > 0);
}
