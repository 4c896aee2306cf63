//! Senders to a scheduled port: frames that wait stay where they are, in order.

use std::sync::Arc;

use ipc::egress::{Beyond, FullAction, MAX_CLASSES, OutputConfig, Rates, Sender};
use ipc::limits::{Limit, Limits, Rate};
use port::{DropReason, PortId};
use testkit::packets::{BROADCAST, Flow, ethernet, mac, tcp_super, udp};

use super::bench::{Bench, offload};
use crate::forward::egress::Output;
use crate::forward::limits::PortLimits;
use crate::forward::switch::Pause;

const OUT: u32 = 3;
const MS: u64 = 1_000_000;

fn frame(to: u8, number: u8) -> Vec<u8> {
    udp(&Flow::v4(1, to), &[number; 1400])
}

fn output(rate: u64, beyond: Beyond) -> Option<Arc<Output>> {
    output_of(Some(rate), beyond, FullAction::Drop)
}

pub(super) fn output_of(
    rate: Option<u64>,
    beyond: Beyond,
    full: FullAction,
) -> Option<Arc<Output>> {
    let config = config(rate, beyond, full);
    Some(Arc::new(Output::new(config, None)))
}

fn config(rate: Option<u64>, beyond: Beyond, full: FullAction) -> OutputConfig {
    let sender = |port| Sender {
        port,
        rates: Rates::usual(),
        priority: 0,
        group: None,
        beyond,
        classes: Vec::new(),
    };
    OutputConfig {
        rate,
        overhead: 0,
        full,
        room: 0,
        groups: Vec::new(),
        priorities: [0; MAX_CLASSES],
        senders: (1..=7).filter(|port| *port != OUT).map(sender).collect(),
    }
}

/// Returns a bench with flows from port 1 to 2, to 3 and to all, where port 3 is scheduled.
fn bench(rate: u64, beyond: Beyond) -> Bench {
    let mut bench = Bench::with_stations();
    for frame in [
        frame(2, 0),
        frame(3, 0),
        ethernet(BROADCAST, mac(1), 0x88b5, &[0; 86]),
    ] {
        bench.send_and_decide(1, &frame);
    }
    bench.switch.set_output(PortId(OUT), output(rate, beyond));
    (1..=7).for_each(|port| drop(bench.port(port).delivered()));
    bench
}

fn numbers(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.iter().map(|frame| frame[frame.len() - 1]).collect()
}

fn push(bench: &Bench, to: u8, count: u8) {
    for number in 0..count {
        bench.port(1).push(&frame(to, number), Default::default());
    }
}

/// Serves port 1 until it has to wait. Returns its pause.
fn serve(bench: &mut Bench) -> Option<Pause> {
    bench.serve(1);
    bench.switch.take_pause()
}

#[test]
fn frames_without_credit_wait_in_order_and_are_counted_once() {
    let mut bench = bench(100_000_000, Beyond::Hold);
    push(&bench, 3, 200);
    let hits = bench.switch.figures().hits;
    let mut all = Vec::new();
    let mut now = 0;
    while all.len() < 200 {
        let pause = serve(&mut bench);
        all.extend(numbers(&bench.port(OUT).frames()));
        if all.len() == 200 {
            break;
        }
        let pause = pause.expect("a turn to wait for");
        let first = all.len();
        assert!(!bench.switch.is_over(&pause, now), "at frame {first}");
        while !bench.switch.is_over(&pause, now) {
            now += MS / 20;
            bench.switch.set_clock(now);
            bench.switch.allot(now);
        }
    }
    assert_eq!(all, (0..200).collect::<Vec<u8>>());
    // 1442 bytes each at 100 Mbit/s, less the first burst.
    assert!((12 * MS..=24 * MS).contains(&now), "{now}");
    assert_eq!(bench.switch.figures().hits - hits, 200);
}

#[test]
fn a_frame_that_waits_holds_those_behind_it() {
    let mut bench = bench(1_000_000, Beyond::Hold);
    push(&bench, 3, 120);
    push(&bench, 2, 1);
    let pause = serve(&mut bench);
    assert!(matches!(pause, Some(Pause::Turn(_))));
    assert!(bench.port(2).frames().is_empty());
    // Without a schedule no frame waits.
    bench.switch.set_output(PortId(OUT), None);
    assert!(bench.switch.is_over(&pause.unwrap(), 0));
    bench.serve(1);
    assert_eq!(bench.port(2).frames().len(), 1);
    assert_eq!(bench.port(OUT).frames().len(), 120);
}

#[test]
fn frames_that_need_not_wait_pass_before_a_frame_that_does() {
    let mut bench = bench(1_000_000, Beyond::Hold);
    push(&bench, 3, 120);
    serve(&mut bench);
    let sent = bench.port(OUT).frames().len();
    let mut bench = self::bench(1_000_000, Beyond::Hold);
    push(&bench, 3, sent as u8);
    push(&bench, 2, 5);
    push(&bench, 3, 3);
    let pause = serve(&mut bench);
    assert!(matches!(pause, Some(Pause::Turn(_))), "{pause:?}");
    assert_eq!(bench.port(2).frames().len(), 5);
    assert_eq!(bench.port(OUT).frames().len(), sent);
}

#[test]
fn beyond_drop_drops_by_name_and_holds_no_frame() {
    let mut bench = bench(1_000_000, Beyond::Drop);
    push(&bench, 3, 200);
    push(&bench, 2, 1);
    assert_eq!(serve(&mut bench), None);
    let sent = bench.port(OUT).frames().len() as u64;
    assert!(sent < 200);
    assert_eq!(bench.dropped(1, DropReason::RateLimited), 200 - sent);
    assert_eq!(bench.port(2).frames().len(), 1);
}

#[test]
fn floods_are_never_held_and_end_with_a_burst_of_debt() {
    let mut bench = bench(1_000_000, Beyond::Hold);
    let flood = ethernet(BROADCAST, mac(1), 0x88b5, &[0; 1400]);
    for _ in 0..400 {
        bench.port(1).push(&flood, Default::default());
    }
    assert_eq!(serve(&mut bench), None);
    assert_eq!(bench.port(2).frames().len(), 400);
    let sent = bench.port(OUT).frames().len();
    let most = 4 * egress::LONGEST / (1414 * 8);
    assert!(sent > 50 && sent <= most as usize, "{sent}");
    assert_eq!(
        bench.dropped(OUT, DropReason::RateLimited),
        400 - sent as u64
    );
    // The debt is its own: another sender's frame goes when the port has credit.
    bench.switch.set_clock(20 * MS);
    bench.send_and_decide(2, &udp(&Flow::v4(2, 3), &[1; 100]));
    assert_eq!(bench.port(OUT).frames().len(), 1);
}

#[test]
fn runts_and_segments_of_one_byte_cost_what_they_take_on_the_wire() {
    let mut bench = Bench::with_stations();
    let runt = |to| ethernet(to, mac(1), 0x88b5, &[]);
    let (segments, header) = tcp_super(&Flow::v4(1, 3), 1, &[7; 200], 1);
    let scheduled = output(1_000_000_000, Beyond::Hold).expect("an output");
    let config = OutputConfig {
        overhead: 24,
        ..scheduled.config().clone()
    };
    let output = Arc::new(Output::new(config, None));
    // The flows are known.
    for frame in [runt(mac(3)), runt(BROADCAST)] {
        bench.send_and_decide(1, &frame);
    }
    bench.port(1).push(&segments, offload(&header));
    bench.serve(1);
    bench.decide();
    bench
        .switch
        .set_output(PortId(OUT), Some(Arc::clone(&output)));
    // An empty frame takes 84 bytes, with preamble, checksum and gap.
    let mut sent = 0;
    for (frame, offload, on_the_wire) in [
        (runt(mac(3)), Default::default(), 1),
        (runt(BROADCAST), Default::default(), 1),
        (segments, offload(&header), 200),
    ] {
        for _ in 0..3 {
            bench.port(1).push(&frame, offload);
        }
        bench.serve(1);
        sent += 3 * on_the_wire;
        assert_eq!(output.uses()[0].bits, sent * 84 * 8);
    }
}

#[test]
fn frames_behind_one_that_waits_are_not_asked_about() {
    let mut bench = bench(1_000_000, Beyond::Hold);
    push(&bench, 3, 120);
    bench
        .port(1)
        .push(&udp(&Flow::v4(1, 9), &[0; 64]), Default::default());
    serve(&mut bench);
    assert!(bench.ring.upcalls.is_empty());
    bench.switch.set_output(PortId(OUT), None);
    bench.serve(1);
    assert_eq!(bench.ring.upcalls.len(), 1);
}

#[test]
fn a_rate_limit_and_a_schedule_charge_the_frames_that_went() {
    let mut bench = bench(1_000_000, Beyond::Hold);
    let limit = Limit {
        packets: Some(Rate {
            per_second: 1,
            burst: 100,
        }),
        bits: None,
    };
    let limits = Limits {
        from_guest: limit,
        ..Limits::default()
    };
    bench.switch.set_limits(PortId(1), PortLimits::new(limits));
    push(&bench, 3, 120);
    let pause = serve(&mut bench);
    assert!(matches!(pause, Some(Pause::Turn(_))), "{pause:?}");
    let sent = bench.port(OUT).frames().len();
    assert!(sent < 100, "{sent}");
    bench.switch.set_output(PortId(OUT), None);
    let pause = serve(&mut bench);
    assert!(matches!(pause, Some(Pause::Until(_))), "{pause:?}");
    assert_eq!(bench.port(OUT).frames().len(), 100 - sent);
}

#[test]
fn rules_count_a_frame_that_waited_once() {
    let mut bench = Bench::with_stations();
    bench.set_access(
        "
        [[acl]]
        name = 'out'
        direction = 'from-guest'
        ports = ['p1']
        [[acl.rule]]
        name = 'udp'
        action = 'allow'
        ",
    );
    bench.send_and_decide(1, &frame(3, 0));
    bench
        .switch
        .set_output(PortId(OUT), output(1_000_000, Beyond::Hold));
    push(&bench, 3, 120);
    serve(&mut bench);
    let sent = bench.port(OUT).frames().len() as u64;
    assert!(sent < 121);
    let counted = bench.counted();
    // The first one was counted when it was decided.
    assert_eq!(counted["udp"].0, sent, "{counted:?}");
}

#[test]
fn a_removed_port_leaves_no_schedule_to_the_next_one_of_its_number() {
    let mut bench = bench(1_000_000, Beyond::Hold);
    push(&bench, 3, 120);
    let pause = serve(&mut bench).expect("a turn to wait for");
    let port = bench.port(OUT);
    bench.switch.remove_port(PortId(OUT), bench.now);
    assert!(bench.switch.is_over(&pause, 0));
    bench.plug(OUT, port);
    assert!(bench.switch.output_of(PortId(OUT)).is_none());
}

#[test]
fn senders_wait_for_an_interface_that_takes_no_more() {
    let mut bench = bench(1_000_000, Beyond::Hold);
    bench.switch.set_clock(MS);
    let output = output_of(None, Beyond::Hold, FullAction::Hold);
    bench.switch.set_output(PortId(OUT), output);
    bench.port(OUT).set_room(70);
    push(&bench, 3, 200);
    let mut got = Vec::new();
    let mut now = MS;
    while got.len() < 200 {
        let pause = serve(&mut bench);
        let frames = numbers(&bench.port(OUT).frames());
        assert!(frames.len() <= 70);
        got.extend(frames);
        let Some(pause) = pause else { continue };
        while !bench.switch.is_over(&pause, now) {
            now += MS / 10;
            assert!(now < 20 * MS, "{} frames", got.len());
            bench.switch.set_clock(now);
            bench.switch.allot(now);
        }
    }
    assert_eq!(got, (0..200).collect::<Vec<u8>>());
    assert_eq!(bench.dropped(OUT, DropReason::ReceiverFull), 0);
}

#[test]
fn floods_and_unused_credit_do_not_use_up_the_room_of_an_interface() {
    let mut bench = bench(1_000_000, Beyond::Hold);
    bench.switch.set_clock(MS);
    let output = output_of(None, Beyond::Hold, FullAction::Hold);
    bench.switch.set_output(PortId(OUT), output);
    bench.port(OUT).set_room(64);
    let flood = ethernet(BROADCAST, mac(1), 0x88b5, &[0; 1400]);
    for round in 0..400 {
        let now = (round + 2) * MS;
        bench.switch.set_clock(now);
        bench.port(1).push(&flood, Default::default());
        bench.port(1).push(&frame(3, 1), Default::default());
        let mut waited = 0;
        while let Some(pause) = serve(&mut bench) {
            let later = now + waited * MS / 10;
            bench.switch.set_clock(later);
            bench.switch.allot(later);
            waited += u64::from(!bench.switch.is_over(&pause, later));
            assert!(waited < 9, "round {round}: a sender waits for good");
        }
        drop(bench.port(OUT).frames());
    }
}

/// Has ports 1 and 2 always send to an interface that sends three frames of 1442 bytes each 100 us.
/// Returns how many of each arrived, and the most bytes that waited in it.
fn compete(bench: &mut Bench, config: OutputConfig, buffers: usize) -> ([usize; 2], usize) {
    compete_with(bench, config, buffers, [1400, 1400])
}

/// The same with payloads of these lengths.
fn compete_with(
    bench: &mut Bench,
    config: OutputConfig,
    buffers: usize,
    lens: [usize; 2],
) -> ([usize; 2], usize) {
    bench.switch.set_clock(MS);
    let output = Some(Arc::new(Output::new(config, None)));
    bench.switch.set_output(PortId(OUT), output);
    bench.port(OUT).set_room(buffers);
    let (mut got, mut most, mut waiting) = ([0; 2], 0, 0);
    let mut budget = 0;
    let mut pauses = [None; 2];
    for tick in 1..2000 {
        let now = MS + tick * MS / 10;
        bench.switch.set_clock(now);
        bench.switch.allot(now);
        for ((pause, port), len) in pauses.iter_mut().zip([1, 2]).zip(lens) {
            if pause.is_some_and(|pause| !bench.switch.is_over(&pause, now)) {
                continue;
            }
            // More than a batch has.
            while bench.port(port).queued() < 80 {
                let frame = udp(&Flow::v4(port as u8, 3), &vec![port as u8; len]);
                bench.port(port).push(&frame, Default::default());
            }
            bench.serve(port);
            *pause = bench.switch.take_pause();
        }
        waiting = bench.port(OUT).waiting();
        most = most.max(waiting);
        budget += 3 * 1442;
        while budget > 0
            && let [frame] = &bench.port(OUT).first(1)[..]
        {
            budget -= frame.len() as i64;
            got[usize::from(frame[frame.len() - 1]) - 1] += 1;
        }
    }
    assert!(waiting > 0, "it was always full");
    assert_eq!(bench.dropped(OUT, DropReason::ReceiverFull), 0);
    (got, most)
}

fn bench_of_two() -> Bench {
    let mut bench = bench(1_000_000, Beyond::Hold);
    bench.send_and_decide(2, &udp(&Flow::v4(2, 3), &[2; 1400]));
    drop(bench.port(OUT).frames());
    bench
}

#[test]
fn a_full_interface_takes_frames_in_the_order_of_service() {
    let held = || config(None, Beyond::Hold, FullAction::Hold);
    let ([a, b], _) = compete(&mut bench_of_two(), held(), 20);
    assert!(a.abs_diff(b) <= (a + b) / 50, "{a} and {b}");
    let ([a, b], _) = compete_with(&mut bench_of_two(), held(), 40, [1400, 60]);
    let (a, b) = (a * 1442, b * 102);
    assert!(a.abs_diff(b) <= (a + b) / 50, "{a} and {b} bytes");
    let mut long = held();
    long.room = 128_000;
    let ([a, b], _) = compete_with(&mut bench_of_two(), long, 256, [1400, 60_000]);
    let (a, b) = (a * 1442, b * 60_042);
    assert!(a.abs_diff(b) <= (a + b) / 5, "{a} and {b} bytes");
    let mut weighted = held();
    weighted.senders[1].rates.weight = 300;
    let ([a, b], _) = compete(&mut bench_of_two(), weighted, 20);
    assert!(b > 2 * a && b < 4 * a, "{a} and {b}");
    let mut preferred = held();
    preferred.senders[1].priority = 5;
    let ([a, b], _) = compete(&mut bench_of_two(), preferred, 20);
    assert!(a <= b / 50, "{a} beside {b}");
    // Of 346 Mbit/s that the interface carries.
    let mut guaranteed = held();
    guaranteed.rate = Some(10_000_000_000);
    guaranteed.senders[0].rates.min = 260_000_000;
    guaranteed.senders[1].priority = 5;
    let ([a, b], _) = compete(&mut bench_of_two(), guaranteed, 20);
    let part = a as f64 / (a + b) as f64;
    assert!((0.7..0.8).contains(&part), "{a} and {b}");
}

#[test]
fn no_more_bytes_wait_in_an_interface_than_it_has_room_for() {
    let mut bounded = config(None, Beyond::Hold, FullAction::Hold);
    bounded.room = 20_000;
    let ([a, b], most) = compete(&mut bench_of_two(), bounded, 200);
    // The last frame may exceed it.
    assert!((18_000..21_500).contains(&most), "{most}");
    assert!(a.abs_diff(b) <= (a + b) / 50, "{a} and {b}");
}

#[test]
fn a_dead_interface_holds_senders_for_a_while_only() {
    let mut bench = bench(1_000_000, Beyond::Hold);
    bench.switch.set_clock(MS);
    let output = output_of(None, Beyond::Hold, FullAction::Hold);
    bench.switch.set_output(PortId(OUT), output);
    bench.port(OUT).set_room(0);
    push(&bench, 3, 100);
    let pause = serve(&mut bench).expect("a pause");
    let mut now = MS;
    while !bench.switch.is_over(&pause, now) {
        now += MS / 10;
        assert!(now < 100 * MS);
        bench.switch.set_clock(now);
        bench.switch.allot(now);
    }
    assert!(now > 40 * MS, "{now}");
    assert_eq!(serve(&mut bench), None);
    assert_eq!(bench.dropped(OUT, DropReason::ReceiverFull), 100);
}
