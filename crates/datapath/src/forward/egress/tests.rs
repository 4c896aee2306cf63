//! Credit of senders, without a switch.

use channel::egress::{Full, Rates, Sender};
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
        full: Full::Drop,
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
    let turn = Turn {
        output: PortId(9),
        leaf,
        first: FRAME,
        all: FRAME,
        since: 0,
    };
    assert!(!output.has_turn(&turn));
    // Thirteen milliseconds bring one frame.
    output.allot(13 * MS);
    assert!(output.has_turn(&turn));
    output.end_turn(&turn, 13 * MS);
    assert_eq!(output.uses()[0].held_ns, 13 * MS);
}

#[test]
fn a_request_that_was_satisfied_for_another_pair_is_made_again() {
    let output = two_senders(1_000_000);
    send_all(&output, 1, 0);
    let leaf = output.leaf(PortId(1), 0).unwrap();
    let turn = Turn {
        output: PortId(9),
        leaf,
        first: FRAME,
        all: FRAME,
        since: 0,
    };
    output.allot(13 * MS);
    assert_eq!(output.take(leaf, (FRAME, FRAME), 13 * MS), FRAME);
    assert!(!output.has_turn(&turn), "the other pair took it");
    assert_eq!(output.uses()[0].waiting_bits, FRAME);
    output.allot(26 * MS);
    assert!(output.has_turn(&turn));
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
fn a_sender_that_is_dropped_starts_with_a_burst_and_gets_the_rate() {
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
