//! Credit of senders, without a switch.

use ipc::egress::{FullAction, Rates, Sender};
use port::PortId;

use super::*;

const MS: Nanos = 1_000_000;
const FRAME: u64 = 1_514 * 8;

fn sender(port: u32, rates: Rates, beyond: Beyond) -> Sender {
    Sender {
        port,
        rates,
        priority: 0,
        group: None,
        beyond,
        classes: Vec::new(),
    }
}

fn config(rate: u64, senders: Vec<Sender>) -> OutputConfig {
    OutputConfig {
        rate: Some(rate),
        overhead: 24,
        full: FullAction::Drop,
        room: 0,
        groups: Vec::new(),
        priorities: [0; MAX_CLASSES],
        senders,
    }
}

fn two_senders(rate: u64) -> Output {
    let sender = |port| sender(port, Rates::usual(), Beyond::Hold);
    Output::new(config(rate, vec![sender(1), sender(2)]), None)
}

/// Sends single frames as a worker does, until one has to wait. Returns their number.
fn send_all(output: &Output, port: u32, now: Nanos) -> u64 {
    let leaf = output.leaf(PortId(port), 0).unwrap();
    let mut sent = 0;
    while output.take(leaf, (FRAME, FRAME), now) == FRAME {
        output.settle(leaf, FRAME, FRAME);
        sent += 1;
    }
    sent
}

#[test]
fn a_sender_gets_the_rate_and_no_more() {
    let output = two_senders(1_000_000_000);
    let burst = send_all(&output, 1, 0);
    let later: u64 = (1..=1000)
        .map(|tick| send_all(&output, 1, tick * MS / 10))
        .sum();
    let most = 100_000_000 / FRAME;
    assert!(
        later <= most + burst && later >= most - 1,
        "{later} of {most}"
    );
}

#[test]
fn who_waits_has_a_turn_when_credit_has_come() {
    let output = two_senders(1_000_000);
    send_all(&output, 1, 0);
    let leaf = output.leaf(PortId(1), 0).unwrap();
    let turn = output.wait((PortId(9), leaf), (FRAME, FRAME), 0);
    assert!(!output.has_turn(&turn));
    // Thirteen milliseconds bring one frame.
    output.allot(13 * MS);
    assert!(output.has_turn(&turn));
    output.end_turn(&turn, 13 * MS);
    assert_eq!(output.uses()[0].held_ns, 13 * MS);
    // It was the last frame.
    assert_eq!(output.take(leaf, (FRAME, FRAME), 13 * MS), FRAME);
    assert_eq!(output.uses()[0].waiting_bits, 0, "no frame waits");
}

#[test]
fn a_request_that_was_satisfied_for_another_pair_is_made_again() {
    let output = two_senders(1_000_000);
    send_all(&output, 1, 0);
    let leaf = output.leaf(PortId(1), 0).unwrap();
    let turn = output.wait((PortId(9), leaf), (FRAME, FRAME), 0);
    output.allot(13 * MS);
    assert_eq!(output.take(leaf, (FRAME, FRAME), 13 * MS), FRAME);
    assert!(!output.has_turn(&turn), "the other pair took it");
    assert!(output.uses()[0].waiting_bits > 0);
    output.allot(26 * MS);
    assert!(output.has_turn(&turn));
}

#[test]
fn a_sender_that_vanishes_keeps_no_more_than_it_asked_for() {
    let output = two_senders(1_000_000_000);
    send_all(&output, 1, 0);
    let gone = output.leaf(PortId(1), 0).unwrap();
    let asked = 64 * FRAME;
    output.wait((PortId(9), gone), (FRAME, asked), 0);
    let mut sent = 0;
    for tick in 1..=1000 {
        output.allot(tick * MS / 10);
        sent += send_all(&output, 2, tick * MS / 10);
    }
    let kept = output.state(gone).credit.bits();
    assert!((0..=asked as i64).contains(&kept), "{kept}");
    let least = (100_000_000 - asked) / FRAME - 1;
    assert!(sent >= least, "{sent}, not {least}");
}

#[test]
fn a_pair_that_gives_up_leaves_its_debt_and_nothing_else() {
    let output = two_senders(1_000_000);
    send_all(&output, 1, 0);
    let leaf = output.leaf(PortId(1), 0).unwrap();
    let turn = output.wait((PortId(9), leaf), (FRAME, FRAME), 0);
    let credit = output.state(leaf).credit.bits();
    output.end_turn(&turn, MS);
    let uses = output.uses();
    assert_eq!((uses[0].waiting_bits, uses[0].held_ns), (0, MS));
    // Nothing is granted for it, and another pair of the leaf asks again.
    output.allot(13 * MS);
    assert_eq!(output.state(leaf).credit.bits(), credit);
    assert!(!output.has_turn(&turn));
    output.allot(14 * MS);
    assert!(output.has_turn(&turn));
    assert_eq!(output.take(leaf, (FRAME, FRAME), 14 * MS), FRAME);

    assert!(output.pay_later(leaf, 2 * FRAME, 14 * MS));
    let turn = output.wait((PortId(9), leaf), (FRAME, FRAME), 14 * MS);
    output.end_turn(&turn, 14 * MS);
    let second = 1_000 * MS;
    output.allot(second);
    assert_eq!(output.uses()[0].waiting_bits, 0, "it is repaid");
    assert!(!output.has_turn(&turn), "and no more than that was granted");
}

#[test]
fn a_debt_is_at_most_one_burst_and_is_paid_first() {
    let output = two_senders(1_000_000_000);
    let leaf = output.leaf(PortId(1), 0).unwrap();
    let mut paid = 0;
    while output.pay_later(leaf, FRAME, 0) {
        paid += FRAME;
    }
    // What the output had, and one burst.
    assert!(paid <= 4 * LONGEST && paid > LONGEST, "{paid}");
    assert_eq!(output.take(leaf, (FRAME, FRAME), 0), 0);
    let uses = output.uses();
    assert_eq!((uses[0].dropped_frames, uses[0].bits), (1, paid));
    // Two milliseconds bring more than the debt.
    output.allot(3 * MS);
    output.allot(4 * MS);
    assert_eq!(output.take(leaf, (FRAME, FRAME), 4 * MS), FRAME);
}

#[test]
fn short_frames_get_their_share_beside_long_ones() {
    let output = two_senders(200_000_000);
    let mut sent = [0; 2];
    let mut turns = [None; 2];
    let mut now = 0;
    while now < 1000 * MS {
        for (at, frame) in [(0, 88 * 8), (1, FRAME)] {
            let leaf = output.leaf(PortId(1 + at as u32), 0).unwrap();
            // A worker takes batches of 64 frames until one is cut.
            while turns[at].is_none_or(|turn| output.has_turn(&turn)) {
                turns[at] = None;
                let taken = output.take(leaf, (frame, 64 * frame), now);
                let bits = taken / frame * frame;
                output.settle(leaf, taken, bits);
                sent[at] += bits;
                if bits < 64 * frame {
                    let missing = (frame, 64 * frame - bits);
                    turns[at] = Some(output.wait((PortId(9), leaf), missing, now));
                    break;
                }
            }
        }
        now = output.due().max(now + 1000);
        output.allot(now);
    }
    assert!(sent.iter().sum::<u64>() >= 199_000_000, "{sent:?}");
    assert!(sent[0].abs_diff(sent[1]) <= 1_000_000, "{sent:?}");
}

#[test]
fn others_are_served_while_a_large_debt_is_repaid() {
    let bursts = Rates {
        burst: 20_000_000,
        ..Rates::usual()
    };
    let senders = vec![
        sender(1, bursts, Beyond::Hold),
        sender(2, Rates::usual(), Beyond::Hold),
    ];
    let output = Output::new(config(50_000_000, senders), None);
    let leaf = output.leaf(PortId(1), 0).unwrap();
    while output.pay_later(leaf, FRAME, 0) {}
    let sent: u64 = (1..=100).map(|ms| send_all(&output, 2, ms * MS)).sum();
    let half = 2_500_000 / FRAME;
    assert!(sent >= half * 9 / 10, "{sent} of {half}");
}

#[test]
fn a_sender_that_drops_takes_no_more_than_it_sends() {
    let bursts = Rates {
        burst: 20_000_000,
        ..Rates::usual()
    };
    let mut first = sender(1, bursts, Beyond::Drop);
    first.priority = 6;
    let other = sender(2, Rates::usual(), Beyond::Hold);
    let output = Output::new(config(50_000_000, vec![first, other]), None);
    let leaf = output.leaf(PortId(1), 0).unwrap();
    let mut sent = [0; 2];
    for ms in 1..=1000 {
        // Its frames come at 29 Mbit/s: some at once, and then none for a while.
        let frames = if ms % 10 == 0 { 290_000 / FRAME } else { 0 };
        for _ in 0..frames {
            let taken = output.take(leaf, (FRAME, FRAME), ms * MS);
            output.settle(leaf, taken, taken);
            sent[0] += taken / FRAME;
            if taken == 0 {
                output.note_dropped(leaf, 1, ms * MS);
                assert_eq!(output.uses()[0].waiting_bits, 0);
            }
        }
        sent[1] += send_all(&output, 2, ms * MS);
    }
    let rates = sent.map(|frames| frames * FRAME / 1_000_000);
    assert_eq!(rates[0], 100 * (290_000 / FRAME) * FRAME / 1_000_000);
    // The other one gets the rest; both together what comes in a second, what the output had at
    // first, and one burst.
    assert!(rates[1] >= 21, "{rates:?}");
    assert!(rates[0] + rates[1] <= 50 + 2 + 20, "{rates:?}");
}

#[test]
fn a_long_frame_gets_its_turn_beside_short_ones_of_another_pair_of_the_leaf() {
    let output = two_senders(100_000_000);
    let leaf = output.leaf(PortId(1), 0).unwrap();
    send_all(&output, 1, 0);
    let long = Turn {
        output: PortId(9),
        leaf,
        first: LONGEST,
        all: LONGEST,
        since: 0,
    };
    let at_most = 3 * LONGEST / 100_000;
    let came = (1..=at_most).find(|ms| {
        output.allot(ms * MS);
        let has_turn = output.has_turn(&long);
        if !has_turn {
            send_all(&output, 1, ms * MS);
        }
        has_turn
    });
    assert!(came.is_some(), "not within {at_most} ms");
}

#[test]
fn a_sender_that_is_dropped_gets_the_rate_and_one_frame_of_64_kib_at_once() {
    let limited = Rates {
        max: Some(10_000_000),
        ..Rates::usual()
    };
    let senders = vec![sender(1, limited, Beyond::Drop)];
    let output = Output::new(config(1_000_000_000, senders), None);
    let leaf = output.leaf(PortId(1), 0).unwrap();
    let burst = send_all(&output, 1, 0);
    assert!(burst >= LONGEST / FRAME, "{burst}");
    output.note_dropped(leaf, 1, 0);
    let mut sent = 0;
    for ms in 1..=1000 {
        sent += send_all(&output, 1, ms * MS);
        output.note_dropped(leaf, 1, ms * MS);
    }
    let rate = 10_000_000 / FRAME;
    assert!(
        sent >= rate * 98 / 100 && sent <= rate + 2 * LONGEST / FRAME,
        "{sent} of {rate}"
    );
}

#[test]
fn changed_settings_keep_credit_and_counters() {
    let old = two_senders(1_000_000_000);
    send_all(&old, 2, 0);
    let sent = old.uses()[0].bits;
    let senders = vec![
        sender(3, Rates::usual(), Beyond::Hold),
        sender(2, Rates::usual(), Beyond::Hold),
    ];
    let new = Output::new(config(1_000_000_000, senders), Some(&old));
    let uses = new.uses();
    assert_eq!(uses.len(), 1);
    assert_eq!((uses[0].sender, uses[0].bits), (PortId(2), sent));
    let leaf = new.leaf(PortId(2), 0).unwrap();
    assert_eq!(new.take(leaf, (FRAME, FRAME), 0), 0, "its burst is spent");
    assert_eq!(new.leaf(PortId(1), 0), None);
}

#[test]
fn bits_are_those_on_the_wire() {
    let output = two_senders(1_000_000);
    let cost = Cost {
        packets: 3,
        bits: 1000,
    };
    assert_eq!(output.bits(cost), 1000 + 3 * 24 * 8);
}

#[test]
fn settings_from_outside_the_tables_are_refused() {
    let mut refused = config(1, vec![sender(5000, Rates::usual(), Beyond::Hold)]);
    assert!(check(&refused).is_err());
    refused.senders[0].port = 1;
    assert_eq!(check(&refused), Ok(()));
    refused.senders[0].classes = vec![(8, Rates::usual())];
    assert!(check(&refused).is_err());
}
