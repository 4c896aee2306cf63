//! Forwarding between test ports, with all counters.

use ipc::records::{Answer, StaleFlows};
use policy::Action;
use port::{DropReason, MAX_FRAME, PortId};
use proptest::prelude::*;
use testkit::net::NetHeader;
use testkit::packets::{
    BROADCAST, Flow, ethernet, mac, on_the_wire, tcp_super, udp, udp_partial, udp_super,
    verify_checksums, verify_partial, vlan_stripped, vlan_tagged,
};

use super::bench::{BLUE, Bench, Move::*, PLAIN, RED, encoded};
use crate::forward::pending_upcalls::{FRAMES_PER_PORT, UPCALL_TIMEOUT_MS};
use crate::ports::port::Accepts;
use crate::tests::faulty::Faulty;
use crate::tests::null::NullPort;

/// Returns a numbered frame from test guest `a` to test guest `b`.
fn frame(a: u8, b: u8, n: u8) -> Vec<u8> {
    udp(&Flow::v4(a, b), &[n; 58])
}

fn broadcast(a: u8) -> Vec<u8> {
    ethernet(BROADCAST, mac(a), 0x0806, &[0; 86])
}

/// Returns a bench with guests 1 to 7 in the FDB, at the ports with their numbers.
fn known() -> Bench {
    let mut bench = Bench::new();
    for (segment, ports) in [
        (BLUE, &[1, 2, 3, 4, 6][..]),
        (RED, &[4, 5]),
        (PLAIN, &[6, 7]),
    ] {
        for port in ports {
            bench.learn(segment, mac(*port as u8), *port);
        }
    }
    bench
}

#[test]
fn a_miss_causes_an_upcall_and_in_order_delivery_and_then_hits() {
    let mut bench = known();
    bench.step(&[From(1, 3, 300), Misses(3), Upcalls(1)], |b| {
        for n in 0..3 {
            b.send(1, &frame(1, 2, n));
        }
    });
    assert_eq!(bench.switch.figures().pending, 3);
    assert!(bench.port(2).frames().is_empty());
    assert_eq!(bench.ring.upcalls[0].frame_len, 100);
    assert_eq!(bench.ring.upcalls[0].headers, frame(1, 2, 0));
    bench.step(&[To(2, 3, 300)], |b| assert_eq!(b.decide(), 1));
    let desired: Vec<_> = (0..3).map(|n| frame(1, 2, n)).collect();
    assert_eq!(bench.port(2).frames(), desired);
    assert_eq!(
        (bench.switch.figures().pending, bench.switch.figures().flows),
        (0, 1)
    );
    bench.step(&[From(1, 1, 100), To(2, 1, 100), Hits(1)], |b| {
        b.send(1, &frame(1, 2, 9))
    });
    assert_eq!(bench.port(2).frames(), [frame(1, 2, 9)]);
    // The reverse direction is a flow of its own.
    bench.step(
        &[From(2, 1, 100), Misses(1), Upcalls(1), To(1, 1, 100)],
        |b| {
            b.send_and_decide(2, &frame(2, 1, 1));
        },
    );
}

#[test]
fn frames_of_one_pair_of_guests_stay_in_order_whatever_their_ports() {
    // Exact keys differ, so that each has its own upcall; the decision covers all of them.
    let mut bench = known();
    let flow = |n: u16| Flow::v4(1, 2).ports(n % 3, 80);
    let numbered = |n: u16| udp(&flow(n), &[n as u8; 58]);
    bench.step(&[From(1, 7, 700), Misses(7), Upcalls(3)], |b| {
        (0..7).for_each(|n| b.send(1, &numbered(n)));
    });
    let mut later = bench.ring.upcalls.split_off(1);
    // The first answer comes, and another frame after it; then the other answers.
    bench.step(&[To(2, 7, 700)], |b| assert_eq!(b.decide(), 1));
    bench.step(&[From(1, 1, 100), Hits(1), To(2, 1, 100)], |b| {
        b.send(1, &numbered(7))
    });
    bench.ring.upcalls.append(&mut later);
    bench.step(&[], |b| assert_eq!(b.decide(), 2));
    let desired: Vec<_> = (0..8).map(numbered).collect();
    assert_eq!(bench.port(2).frames(), desired);
    // Other senders and other destinations still wait for their own.
    bench.send(1, &frame(1, 3, 0));
    bench.send(3, &frame(3, 2, 0));
    bench.ring.upcalls.truncate(1);
    bench.step(&[To(3, 1, 100)], |b| assert_eq!(b.decide(), 1));
    assert_eq!(bench.switch.figures().pending, 1);
}

#[test]
fn a_batch_is_delivered_in_order() {
    let mut bench = known();
    bench.send_and_decide(1, &frame(1, 2, 0));
    bench.port(2).frames();
    let desired: Vec<_> = (0..200).map(|n| frame(1, 2, n)).collect();
    bench.step(
        &[From(1, 200, 20_000), To(2, 200, 20_000), Hits(200)],
        |b| {
            desired
                .iter()
                .for_each(|f| b.port(1).push(f, port::Offload::default()));
            b.serve(1);
        },
    );
    assert_eq!(bench.port(2).frames(), desired);
}

#[test]
fn a_broadcast_reaches_all_other_ports_with_their_own_tags() {
    let mut bench = known();
    let moves = [
        From(1, 1, 100),
        Misses(1),
        Upcalls(1),
        To(2, 1, 100),
        To(3, 1, 100),
        To(4, 1, 104),
        To(6, 1, 104),
    ];
    bench.step(&moves, |b| b.send_and_decide(1, &broadcast(1)));
    assert!(bench.port(1).frames().is_empty(), "the sender");
    for id in [2, 3] {
        assert_eq!(bench.port(id).frames(), [broadcast(1)]);
    }
    for id in [4, 6] {
        assert_eq!(bench.port(id).frames(), [vlan_tagged(&broadcast(1), 10)]);
    }
    // A frame of a trunk is not sent back, and leaves untagged at access ports.
    let tagged = vlan_tagged(&broadcast(4), 20);
    bench.step(
        &[From(4, 1, 104), Misses(1), Upcalls(1), To(5, 1, 100)],
        |b| {
            b.send_and_decide(4, &tagged);
        },
    );
    assert_eq!(bench.port(5).frames(), [broadcast(4)]);
}

#[test]
fn tags_are_pushed_popped_and_replaced_and_priorities_kept() {
    let mut bench = known();
    let plain = frame(1, 4, 1);
    let priority = |pcp: u16, vid: u16| pcp << 13 | vid;
    // From an access port: untagged and priority-tagged frames.
    bench.send_and_decide(1, &plain);
    assert_eq!(bench.port(4).frames(), [vlan_tagged(&plain, 10)]);
    bench.send_and_decide(1, &vlan_tagged(&plain, priority(5, 0)));
    assert_eq!(
        bench.port(4).frames(),
        [vlan_tagged(&plain, priority(5, 10))]
    );
    // To an access port: the tag is popped.
    bench.send_and_decide(4, &vlan_tagged(&frame(4, 1, 1), priority(7, 10)));
    assert_eq!(bench.port(1).frames(), [frame(4, 1, 1)]);
    // From trunk to trunk: same segment, priority and drop eligibility preserved.
    let both = priority(3, 10) | 0x1000;
    bench.send_and_decide(4, &vlan_tagged(&frame(4, 6, 1), both));
    assert_eq!(bench.port(6).frames(), [vlan_tagged(&frame(4, 6, 1), both)]);
    // A tag below the outer one stays when a tag is pushed.
    let inner = vlan_tagged(&frame(4, 6, 2), 99);
    bench.send_and_decide(4, &vlan_tagged(&inner, 10));
    assert_eq!(bench.port(6).frames(), [vlan_tagged(&inner, 10)]);
    // An access port does not choose its VLAN.
    bench.step(
        &[
            From(1, 1, 104),
            Misses(1),
            Upcalls(1),
            Drop(1, DropReason::VlanNotAllowed, 1),
        ],
        |b| b.send_and_decide(1, &vlan_tagged(&frame(1, 2, 1), 20)),
    );
    bench.step(
        &[
            From(4, 1, 104),
            Misses(1),
            Upcalls(1),
            Drop(4, DropReason::VlanUnknown, 1),
        ],
        |b| b.send_and_decide(4, &vlan_tagged(&frame(4, 1, 1), 77)),
    );
}

#[test]
fn a_second_tag_does_not_hop_into_another_segment() {
    let mut bench = known();
    // Priority tag outside, blue's tag inside; port 6 carries plain untagged and blue tagged.
    let hop = vlan_tagged(&vlan_tagged(&frame(7, 6, 1), 10), 0);
    let dropped = [
        From(7, 1, 108),
        Misses(1),
        Upcalls(1),
        Drop(7, DropReason::VlanNotAllowed, 1),
    ];
    bench.step(&dropped, |b| b.send_and_decide(7, &hop));
    bench.step(
        &[
            From(7, 1, 108),
            Hits(1),
            Drop(7, DropReason::VlanNotAllowed, 1),
        ],
        |b| b.send(7, &hop),
    );
    assert!(bench.port(6).frames().is_empty());
    // A flood: receivers that would get it with a second tag do not get it in plain.
    let flood = vlan_tagged(&vlan_tagged(&broadcast(7), 10), 0);
    bench.step(&dropped, |b| b.send_and_decide(7, &flood));
    assert!(bench.port(6).frames().is_empty());
}

#[test]
fn nothing_goes_back_to_its_sender() {
    let mut bench = known();
    bench.learn(BLUE, mac(9), 1);
    let to_myself = [
        From(1, 1, 100),
        Misses(1),
        Upcalls(1),
        Drop(1, DropReason::Reflection, 1),
    ];
    bench.step(&to_myself, |b| b.send_and_decide(1, &frame(1, 9, 0)));
    bench.step(&to_myself, |b| b.send_and_decide(1, &frame(1, 1, 0)));
    bench.step(
        &[From(1, 1, 100), Hits(1), Drop(1, DropReason::Reflection, 1)],
        |b| {
            b.send(1, &frame(1, 9, 0));
        },
    );
    assert!(bench.port(1).frames().is_empty());
}

#[test]
fn a_flood_without_receivers_has_a_name() {
    let mut bench = known();
    for id in [2, 3, 4, 6] {
        bench.switch.remove_port(PortId(id), bench.now);
    }
    let down = |id, n| Drop(id, DropReason::ReceiverDown, n);
    let moves = [
        From(1, 1, 100),
        Misses(1),
        Upcalls(1),
        down(2, 1),
        down(3, 1),
        down(4, 1),
        down(6, 1),
    ];
    bench.step(&moves, |b| b.send_and_decide(1, &broadcast(1)));
    bench.switch.set_program(policy::Program::default());
    bench.step(
        &[From(1, 1, 100), Hits(1), Drop(1, DropReason::NoReceiver, 1)],
        |b| {
            b.send(1, &broadcast(1));
        },
    );
}

#[test]
fn a_receiver_that_leaves_under_traffic_takes_its_flows_along() {
    let mut bench = known();
    bench.send_and_decide(1, &frame(1, 2, 0));
    bench.send_and_decide(2, &frame(2, 1, 0));
    bench.send_and_decide(1, &frame(1, 3, 0));
    assert_eq!(bench.switch.figures().flows, 3);
    bench.send(2, &frame(2, 3, 0));
    assert_eq!(bench.switch.figures().pending, 1);
    bench.step(&[], |b| {
        b.switch.remove_port(PortId(2), b.now);
    });
    assert_eq!(bench.switch.figures().flows, 1);
    assert_eq!(bench.switch.figures().pending, 0);
    // Control is not informed yet: its answers lead to counted drops.
    bench.step(
        &[
            From(1, 1, 100),
            Misses(1),
            Upcalls(1),
            Drop(2, DropReason::ReceiverDown, 1),
        ],
        |b| {
            b.send_and_decide(1, &frame(1, 2, 1));
        },
    );
    bench.step(&[From(1, 1, 100), Hits(1), To(3, 1, 100)], |b| {
        b.send(1, &frame(1, 3, 1))
    });
    // A new port with the same number starts at zero.
    let fresh = bench.port(2);
    bench.plug(2, fresh);
    let counters = bench.reading();
    assert!(
        counters
            .iter()
            .all(|(name, n)| !name.starts_with("port 2 ") || *n == 0)
    );
    bench.step(&[From(1, 1, 100), Hits(1), To(2, 1, 100)], |b| {
        b.send(1, &frame(1, 2, 1))
    });
}

#[test]
fn a_detached_receiver_drops_by_name() {
    let mut bench = known();
    bench.send_and_decide(1, &frame(1, 2, 0));
    bench.port(2).set_pairs(0);
    bench.step(
        &[
            From(1, 1, 100),
            Hits(1),
            Drop(2, DropReason::ReceiverDown, 1),
        ],
        |b| {
            b.send(1, &frame(1, 2, 1));
        },
    );
}

#[test]
fn a_port_may_have_so_many_frames_waiting() {
    let mut bench = known();
    let n = FRAMES_PER_PORT as u64;
    let moves = [
        From(1, n + 3, (n + 3) * 100),
        Misses(n + 3),
        Upcalls(1),
        Drop(1, DropReason::UpcallFull, 3),
    ];
    bench.step(&moves, |b| {
        (0..n + 3).for_each(|i| b.send(1, &frame(1, 2, i as u8)));
    });
    // Other ports are not affected.
    bench.step(&[From(3, 1, 100), Misses(1), Upcalls(1)], |b| {
        b.send(3, &frame(3, 2, 0))
    });
    bench.step(&[To(2, n + 1, (n + 1) * 100)], |b| {
        assert_eq!(b.decide(), 2)
    });
    let got = bench.port(2).frames();
    assert!(
        got[..n as usize]
            .iter()
            .zip(0..)
            .all(|(f, i)| *f == frame(1, 2, i as u8))
    );
}

#[test]
fn frames_that_wait_too_long_are_dropped_by_name() {
    let mut bench = known();
    bench.send(1, &frame(1, 2, 0));
    bench.now += 10;
    bench.send(1, &frame(1, 2, 1));
    bench.send(3, &frame(3, 2, 0));
    bench.now += UPCALL_TIMEOUT_MS - 9;
    let late = [Drop(1, DropReason::UpcallTimeout, 2)];
    bench.step(&late, |b| b.switch.expire(b.now));
    bench.now += 10;
    bench.step(&[Drop(3, DropReason::UpcallTimeout, 1)], |b| {
        b.switch.expire(b.now)
    });
    assert!(!bench.switch.has_pending());
    // The answers come late: the flows are cached, and nothing is delivered twice.
    bench.step(&[], |b| assert_eq!(b.decide(), 2));
    bench.step(&[From(1, 1, 100), Hits(1), To(2, 1, 100)], |b| {
        b.send(1, &frame(1, 2, 2))
    });
}

#[test]
fn pending_frames_of_a_disconnected_guest_are_dropped_and_cause_no_upcall() {
    let mut bench = known();
    bench.ring.room = 0;
    bench.send(1, &frame(1, 2, 0));
    bench.send(1, &frame(1, 2, 1));
    bench.send(3, &frame(3, 2, 0));
    let left = [Drop(1, DropReason::UpcallTimeout, 2)];
    bench.step(&left, |b| b.switch.guest_disconnected(PortId(1)));
    bench.ring.room = usize::MAX;
    bench.switch.retry_upcalls(&mut bench.ring);
    let [upcall] = &bench.ring.upcalls[..] else {
        panic!("{:?}", bench.ring.upcalls);
    };
    assert_eq!(upcall.flow_key().in_port(), 3);
    bench.step(&[To(2, 1, 100)], |b| assert_eq!(b.decide(), 1));
}

/// A worker retries lost upcalls before it sleeps: directly after the first frame of a flow if
/// there are few frames.
#[test]
fn a_recent_upcall_is_not_repeated() {
    let mut bench = known();
    bench.send(1, &frame(1, 2, 0));
    bench.now += 50;
    bench.send(1, &frame(1, 3, 0));
    bench.ring.upcalls.clear();
    let asked_at = |bench: &mut super::bench::Bench, ms| {
        bench.now += ms;
        bench
            .switch
            .retry_overdue_upcalls(100, bench.now, &mut bench.ring);
        std::mem::take(&mut bench.ring.upcalls).len()
    };
    assert_eq!(
        [0, 49, 1, 50].map(|ms| asked_at(&mut bench, ms)),
        [0, 0, 1, 2]
    );
}

#[test]
fn without_control_frames_wait_and_upcalls_are_retried() {
    let mut bench = known();
    bench.ring.room = 0;
    bench.step(&[From(1, 2, 200), Misses(2), Upcalls(2)], |b| {
        b.send(1, &frame(1, 2, 0));
        b.send(1, &frame(1, 3, 0));
    });
    assert!(bench.ring.upcalls.is_empty());
    bench.ring.room = 1;
    bench.step(&[], |b| b.switch.retry_upcalls(&mut b.ring));
    assert_eq!(
        bench.ring.upcalls.len(),
        1,
        "no more than there is room for"
    );
    bench.ring = super::bench::Ring {
        upcalls: Vec::new(),
        room: 9,
    };
    bench.step(&[], |b| b.switch.retry_upcalls(&mut b.ring));
    let first = &bench.ring.upcalls[0];
    assert_eq!((first.frame_len, &first.headers), (100, &frame(1, 2, 0)));
    // Sent twice, answered twice, delivered once.
    bench.step(&[], |b| b.switch.retry_upcalls(&mut b.ring));
    bench.step(&[To(2, 1, 100), To(3, 1, 100)], |b| {
        assert_eq!(b.decide(), 4)
    });
    bench.step(&[], |b| b.switch.retry_upcalls(&mut b.ring));
    assert!(bench.ring.upcalls.is_empty());
}

#[test]
fn cached_flows_need_no_control() {
    let mut bench = known();
    bench.send_and_decide(1, &frame(1, 2, 0));
    bench.ring.room = 0;
    bench.step(&[From(1, 1, 100), Hits(1), To(2, 1, 100)], |b| {
        b.send(1, &frame(1, 2, 0))
    });
}

#[test]
fn an_answer_for_once_is_not_cached_and_a_removed_flow_causes_an_upcall() {
    let mut bench = known();
    let to = Action::to;
    bench.send(1, &frame(1, 2, 0));
    bench.step(&[To(3, 1, 100)], |b| b.answer_once(to(3)));
    assert_eq!(bench.switch.figures().flows, 0);
    bench.send_and_decide(1, &frame(1, 2, 0));
    let station = |segment| StaleFlows::Station {
        segment,
        mac: mac(2),
    };
    bench.switch.answer(Answer::Forget(station(RED)), bench.now);
    bench.step(&[From(1, 1, 100), To(2, 1, 100), Hits(1)], |b| {
        b.send(1, &frame(1, 2, 0))
    });
    bench
        .switch
        .answer(Answer::Forget(station(BLUE)), bench.now);
    bench.step(&[From(1, 1, 100), Misses(1), Upcalls(1)], |b| {
        b.send(1, &frame(1, 2, 0))
    });
    bench.step(&[Drop(1, DropReason::SpoofedSource, 1)], |b| {
        b.answer_once(Action::Drop(DropReason::SpoofedSource));
    });
}

#[test]
fn a_check_removes_outdated_flows_only() {
    let mut bench = known();
    bench.send_and_decide(1, &frame(1, 2, 0));
    bench.send_and_decide(2, &frame(2, 1, 0));
    bench.check();
    assert_eq!(bench.switch.figures().flows, 2);
    bench.learn(BLUE, mac(2), 3);
    bench.check();
    assert_eq!(bench.switch.figures().flows, 1);
    bench.step(&[From(1, 1, 100), Misses(1), Upcalls(1)], |b| {
        b.send(1, &frame(1, 2, 0))
    });
    bench.step(&[To(3, 1, 100)], |b| assert_eq!(b.decide(), 1));
}

/// Answers behind a rule with many flows are applied after it.
#[test]
fn a_rule_for_many_flows_keeps_later_answers_waiting() {
    let mut bench = known();
    let stations = 3 * flow_table::FLOWS_PER_PART as u32;
    let source = |n: u32| {
        let [_, b, c, d] = n.to_be_bytes();
        [0x0a, 0, 0, b, c, d]
    };
    for n in 0..stations {
        bench.send_and_decide(1, &ethernet(mac(2), source(n), 0x0800, &[0; 86]));
        bench.switch.continue_work(bench.now);
    }
    let rule = StaleFlows::Station {
        segment: BLUE,
        mac: mac(2),
    };
    bench.switch.answer(Answer::Forget(rule), bench.now);
    bench.send_and_decide(1, &frame(1, 2, 0));
    let left = bench.switch.figures();
    assert_eq!((left.flows, left.pending), (2 * 1024, 1), "a piece is done");
    let mut calls = 1;
    while !bench.switch.continue_work(bench.now) {
        calls += 1;
    }
    let left = bench.switch.figures();
    assert_eq!((calls, left.flows, left.pending), (3, 1, 0));
    bench.port(2).delivered();
    bench.step(&[From(1, 1, 100), To(2, 1, 100), Hits(1)], |b| {
        b.send(1, &frame(1, 2, 0))
    });
}

#[test]
fn runt_and_oversize_frames_have_names() {
    let mut bench = known();
    bench.step(&[From(1, 1, 13), Drop(1, DropReason::Runt, 1)], |b| {
        b.send(1, &[0xff; 13])
    });
    let large = vec![0; MAX_FRAME as usize + 1];
    let bytes = large.len() as u64;
    bench.step(
        &[From(1, 1, bytes), Drop(1, DropReason::Oversize, 1)],
        |b| b.send(1, &large),
    );
    // The longest and the shortest frames pass.
    let mut longest = vlan_tagged(&ethernet(mac(1), mac(4), 0x88b5, &[]), 10);
    longest.resize(MAX_FRAME as usize, 0x42);
    let n = longest.len() as u64;
    let moves = [From(4, 1, n), Misses(1), Upcalls(1), To(1, 1, n - 4)];
    bench.step(&moves, |b| b.send_and_decide(4, &longest));
    assert_eq!(bench.port(1).frames(), [vlan_stripped(&longest).0]);
    let shortest = ethernet(mac(2), mac(1), 0x88b5, &[]);
    let moves = [From(1, 1, 14), Misses(1), Upcalls(1), To(2, 1, 14)];
    bench.step(&moves, |b| b.send_and_decide(1, &shortest));
}

#[test]
fn the_mtu_counts_without_ethernet_header_and_tag() {
    let mut bench = known();
    bench.port(2).set_mtu(1500);
    bench.port(4).set_mtu(1500);
    let fits = ethernet(mac(2), mac(1), 0x88b5, &[0; 1500]);
    let long = ethernet(mac(2), mac(1), 0x88b5, &[0; 1501]);
    bench.send_and_decide(1, &fits);
    assert_eq!(bench.port(2).frames(), [fits]);
    bench.step(
        &[
            From(1, 1, 1515),
            Hits(1),
            Drop(2, DropReason::ExceedsMtu, 1),
        ],
        |b| {
            b.send(1, &long);
        },
    );
    let to_trunk = ethernet(mac(4), mac(1), 0x88b5, &[0; 1500]);
    bench.send_and_decide(1, &to_trunk);
    assert_eq!(bench.port(4).frames(), [vlan_tagged(&to_trunk, 10)]);
    let too_long = ethernet(mac(4), mac(1), 0x88b5, &[0; 1501]);
    bench.step(
        &[
            From(1, 1, 1515),
            Hits(1),
            Drop(4, DropReason::ExceedsMtu, 1),
        ],
        |b| {
            b.send(1, &too_long);
        },
    );
    // Of a TSO frame the segments count.
    let (frame, header) = tcp_super(&Flow::v4(1, 2), 1, &[0; 9000], 1460);
    let n = frame.len() as u64;
    bench.step(&[From(1, 1, n), Hits(1), To(2, 1, n)], |b| {
        b.send_with(1, &frame, &header)
    });
    let (frame, header) = tcp_super(&Flow::v4(1, 2), 1, &[0; 9000], 1461);
    bench.step(
        &[From(1, 1, n), Hits(1), Drop(2, DropReason::ExceedsMtu, 1)],
        |b| {
            b.send_with(1, &frame, &header);
        },
    );
    // A TSO frame that fits as a whole fits whatever its segment size.
    let (frame, header) = tcp_super(&Flow::v4(1, 2), 1, &[0; 1000], 9000);
    let n = frame.len() as u64;
    bench.step(&[From(1, 1, n), Hits(1), To(2, 1, n)], |b| {
        b.send_with(1, &frame, &header)
    });
}

#[test]
fn a_partial_checksum_moves_with_the_tags() {
    let mut bench = known();
    let (frame, header) = udp_partial(&Flow::v4(1, 4), &[7; 500]);
    bench.send_with(1, &frame, &header);
    bench.decide();
    let (tagged, offload) = bench.port(4).delivered().remove(0);
    assert_eq!(encoded(&offload).csum_start, 38);
    assert_eq!(verify_partial(&tagged, &encoded(&offload)), Ok(()));
    let (frame, header) = udp_partial(&Flow::v6(4, 1).tagged(10), &[7; 501]);
    assert_eq!(header.csum_start, 58);
    bench.send_with(4, &frame, &header);
    bench.decide();
    let (plain, offload) = bench.port(1).delivered().remove(0);
    assert_eq!(encoded(&offload).csum_start, 54);
    assert_eq!(verify_partial(&plain, &encoded(&offload)), Ok(()));
    // The same for receivers without checksum offload.
    for id in [1, 4] {
        bench.port(id).set_accepts(Accepts::default());
    }
    bench.send_with(4, &frame, &header);
    let finished = bench.port(1).frames().remove(0);
    assert_eq!(verify_checksums(&finished), Ok(()));
    assert_eq!(vlan_stripped(&finished).1, None);
    let (frame, header) = udp_partial(&Flow::v4(1, 4), &[7; 500]);
    bench.send_with(1, &frame, &header);
    let finished = bench.port(4).frames().remove(0);
    assert_eq!(vlan_stripped(&finished).1, Some(10));
    assert_eq!(verify_checksums(&finished), Ok(()));
}

#[test]
fn a_tso_frame_is_flooded_in_the_form_that_each_receiver_accepts() {
    let mut bench = known();
    bench.port(2).set_accepts(Accepts::default());
    bench.port(6).set_accepts(Accepts {
        checksum: true,
        ..Accepts::default()
    });
    let flow = Flow {
        dst_mac: BROADCAST,
        ..Flow::v4(1, 2)
    };
    let (frame, header) = udp_super(&flow, &[9; 4000], 1000);
    let n = frame.len() as u64;
    let cut = 4 * 1042;
    let moves = [
        From(1, 1, n),
        Misses(1),
        Upcalls(1),
        To(2, 4, cut),
        To(3, 1, n),
        To(4, 1, n + 4),
        To(6, 4, cut + 16),
    ];
    bench.step(&moves, |b| {
        b.send_with(1, &frame, &header);
        b.decide();
    });
    let wire = on_the_wire(&frame, &header).expect("fits");
    assert_eq!(bench.port(2).frames(), wire);
    let tagged: Vec<_> = wire.iter().map(|f| vlan_tagged(f, 10)).collect();
    assert_eq!(bench.port(6).frames(), tagged);
    let (whole, offload) = bench.port(4).delivered().remove(0);
    assert_eq!(whole, vlan_tagged(&frame, 10));
    let seen = encoded(&offload);
    assert_eq!(
        (seen.csum_start, seen.hdr_len),
        (header.csum_start + 4, header.hdr_len + 4)
    );
    assert_eq!(on_the_wire(&whole, &seen).expect("fits"), tagged);
    assert_eq!(bench.port(3).delivered()[0].0, frame);
}

#[test]
fn pending_tso_frames_fit_any_receiver() {
    let mut bench = known();
    bench.port(2).set_accepts(Accepts::default());
    let (frame, header) = tcp_super(&Flow::v6(1, 2), 77, &[3; 60_000], 1428);
    bench.step(
        &[From(1, 1, frame.len() as u64), Misses(1), Upcalls(1)],
        |b| {
            b.send_with(1, &frame, &header);
        },
    );
    let wire = on_the_wire(&frame, &header).expect("fits");
    let bytes = wire.iter().map(|f| f.len() as u64).sum();
    bench.step(&[To(2, wire.len() as u64, bytes)], |b| {
        assert_eq!(b.decide(), 1)
    });
    assert_eq!(bench.port(2).frames(), wire);
}

#[test]
fn an_invalid_offload_is_dropped_before_an_upcall() {
    let mut bench = known();
    let (frame, header) = udp_partial(&Flow::v4(1, 2), &[7; 58]);
    let lie = NetHeader {
        csum_start: 99,
        ..header
    };
    bench.step(
        &[From(1, 1, 100), Drop(1, DropReason::BadOffload, 1)],
        |b| {
            b.send_with(1, &frame, &lie);
        },
    );
}

#[test]
fn an_announcement_is_switched_as_if_the_guest_had_sent_it() {
    let mut bench = known();
    let rarp = testkit::packets::rarp(mac(1));
    let n = rarp.len() as u64;
    bench.step(&[Misses(1), Upcalls(1)], |b| {
        b.switch.inject(PortId(1), &rarp, b.now, &mut b.ring);
    });
    let moves = [To(2, 1, n), To(3, 1, n), To(4, 1, n + 4), To(6, 1, n + 4)];
    bench.step(&moves, |b| assert_eq!(b.decide(), 1));
    assert_eq!(bench.port(3).frames(), [rarp]);
}

#[test]
fn a_flow_stays_on_one_queue_pair_and_flows_spread() {
    let mut bench = known();
    bench.port(2).set_pairs(4);
    for n in 0..100 {
        let flow = Flow::v4(1, 2).ports(n, 80);
        for _ in 0..3 {
            bench.send(1, &udp(&flow, &[0; 60]));
            bench.decide();
        }
    }
    let by_pair = bench.port(2).by_pair();
    assert_eq!(by_pair.iter().sum::<u64>(), 300);
    assert!(
        by_pair.iter().all(|n| *n >= 30 && n % 3 == 0),
        "{by_pair:?}"
    );
}

#[test]
fn a_flow_stays_on_one_queue_pair_however_deep_its_heads_are_copied() {
    // Of a frame with an offload, or of a pending one, a longer head is copied than of a plain one.
    let mut bench = known();
    bench.port(2).set_pairs(4);
    for n in 0..100 {
        let flow = Flow::v4(1, 2).ports(n, 80);
        let (partial, header) = udp_partial(&flow, &[0; 300]);
        bench.send_with(1, &partial, &header);
        bench.decide();
        bench.send(1, &udp(&flow, &[0; 300]));
    }
    let by_pair = bench.port(2).by_pair();
    assert_eq!(by_pair.iter().sum::<u64>(), 200);
    assert!(
        by_pair.iter().all(|n| *n >= 20 && n % 2 == 0),
        "{by_pair:?}"
    );
}

#[test]
fn decorated_ports_drop_and_swallow() {
    let mut bench = known();
    let inner = bench.port(2);
    bench.plug(2, Faulty::new(inner, 3));
    bench.send_and_decide(1, &frame(1, 2, 0));
    let moves = [
        From(1, 5, 500),
        Hits(5),
        To(2, 3, 300),
        Drop(2, DropReason::FaultInjected, 2),
    ];
    bench.step(&moves, |b| (1..6).for_each(|n| b.send(1, &frame(1, 2, n))));
    let desired: Vec<_> = [0, 1, 3, 4].map(|n| frame(1, 2, n)).to_vec();
    assert_eq!(bench.port(2).frames(), desired);

    bench.plug(2, NullPort::default());
    bench.send_and_decide(1, &frame(1, 2, 0));
    bench.step(&[From(1, 1, 100), Hits(1), To(2, 1, 100)], |b| {
        b.send(1, &frame(1, 2, 1))
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// One frame in is one frame out, one counted drop, or one pending frame. The known guests
    /// exchange frames; nothing is flooded or segmented, which would multiply frames.
    #[test]
    fn no_frame_is_lost_uncounted(
        steps in prop::collection::vec((1..8u32, 1..8u8, 0..200usize, 0..8u8), 1..200),
    ) {
        let mut bench = known();
        bench.port(3).set_mtu(100);
        for (port, dst, len, what) in steps {
            let mut frame = udp(&Flow::v4(port as u8, dst), &vec![1; len]);
            match what {
                0 => frame.truncate(len % 20),
                1 => frame = vlan_tagged(&frame, (len as u16 % 4) * 10),
                2 => { bench.decide(); }
                3 => bench.now += 400,
                4 => bench.switch.expire(bench.now),
                _ => {}
            }
            let unknown = match port {
                5 => !matches!(dst, 4),
                7 => dst != 6,
                6 | 4 => true,
                _ => matches!(dst, 5 | 7),
            };
            if !unknown {
                bench.send(port, &frame);
            }
            let (from, to, drops) = bench.totals();
            prop_assert_eq!(from, to + drops + bench.switch.figures().pending);
        }
        bench.decide();
        bench.switch.expire(u64::MAX);
        let (from, to, drops) = bench.totals();
        prop_assert_eq!(from, to + drops);
    }
}
