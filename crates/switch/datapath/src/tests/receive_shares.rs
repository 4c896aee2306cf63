//! Frames for a receiver that has had its share while others want the worker.

use ipc::egress::{Beyond, FullAction};
use port::{DropReason, PortId};
use testkit::packets::{Flow, ethernet, mac, udp};

use super::bench::{Bench, Move};
use super::scheduled::output_of;

/// Lets port 2 have more than its share while port 7 is backlogged.
fn exceed(bench: &mut Bench) {
    let shares = &mut bench.switch.fabric.shares;
    let (over, other) = (PortId(2), PortId(7));
    for port in [over, other] {
        for sender in [500, 501] {
            shares.note_backlog(port, PortId(sender));
        }
    }
    shares.end_round(false);
    // Far more than the costliest batch so far.
    (0..6).for_each(|_| shares.charge(over, 1 << 40));
    let has_had_it = |port| shares.is_over(port) || shares.charges_sender(port);
    assert!(has_had_it(over) && !has_had_it(other));
}

/// As a scheduled uplink by default: its senders wait while the interface takes no more.
#[test]
fn frames_for_a_port_that_holds_its_senders_are_paid_by_them_and_not_dropped() {
    for full in [FullAction::Hold, FullAction::Drop] {
        let mut bench = Bench::with_stations();
        let frame = udp(&Flow::v4(1, 2), &[7; 100]);
        bench.send_and_decide(1, &frame);
        assert_eq!(bench.port(2).frames().len(), 1);
        let output = output_of(Some(1_000_000_000), Beyond::Hold, full);
        bench.switch.set_output(PortId(2), output);
        exceed(&mut bench);
        let shares = &bench.switch.fabric.shares;
        assert_eq!(shares.charges_sender(PortId(2)), full == FullAction::Hold);
        bench.send(1, &frame);
        let lost = bench.dropped(2, DropReason::ReceiveShare);
        let arrived = bench.port(2).frames().len() as u64;
        let expected = if full == FullAction::Hold {
            (1, 0)
        } else {
            (0, 1)
        };
        assert_eq!((arrived, lost), expected, "{full:?}");
    }
}

#[test]
fn frames_beyond_the_share_are_dropped_by_name_and_counted_once_at_the_receiver() {
    for pairs in [1, 4] {
        let mut bench = Bench::with_stations();
        bench.port(2).set_pairs(pairs);
        let frame = udp(&Flow::v4(1, 2), &[7; 100]);
        bench.send_and_decide(1, &frame);
        assert_eq!(bench.port(2).frames().len(), 1);
        exceed(&mut bench);
        let len = frame.len() as u64;
        let moves = [
            Move::From(1, 2, 2 * len),
            Move::Drop(2, DropReason::ReceiveShare, 2),
            Move::Hits(2),
        ];
        bench.step(&moves, |bench| {
            bench.send(1, &frame);
            bench.send(1, &frame);
        });
        assert!(bench.port(2).frames().is_empty(), "{pairs} pairs");
        // What it sends itself is in another account.
        bench.send_and_decide(2, &udp(&Flow::v4(2, 3), &[7; 100]));
        assert_eq!(bench.port(3).frames().len(), 1);
        // A round in which one receiver is backlogged, or none, ends it.
        bench.switch.end_round(false);
        bench.switch.end_round(false);
        bench.send(1, &frame);
        assert_eq!(bench.port(2).frames().len(), 1);
    }
}

#[test]
fn a_flood_reaches_all_others() {
    let mut bench = Bench::with_stations();
    let frame = ethernet([0xff; 6], mac(1), 0x88b5, &[1; 60]);
    bench.send_and_decide(1, &frame);
    let reached = |bench: &Bench| -> Vec<u32> {
        let ports = 2..=7;
        ports
            .filter(|id| !bench.port(*id).delivered().is_empty())
            .collect()
    };
    let mut all = reached(&bench);
    assert!(all.len() > 1 && all.contains(&2), "{all:?}");
    exceed(&mut bench);
    bench.send(1, &frame);
    all.retain(|id| *id != 2);
    assert_eq!(reached(&bench), all);
    assert_eq!(bench.dropped(2, DropReason::ReceiveShare), 1);
}
