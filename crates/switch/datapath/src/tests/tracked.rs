//! The flow table of tracked ports beside that of all others.

use flow_table::{Class, FLOWS_PER_PART, Origin};
use ipc::egress::SenderQos;
use ipc::flows::FlowDumpRequest;
use ipc::limits::{Limit, Limits, Rate};
use ipc::records::{Answer, StaleFlows};
use policy::{Action, ConnectionChange};
use port::{Offload, PortId};
use testkit::packets::{Flow, ethernet, mac, udp};
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};

use super::bench::{BLUE, Bench, Move::*};
use crate::forward::limits::PortLimits;
use crate::forward::revalidator::{FLOW_IDLE_MS, FlowSweep, SweepResult};
use crate::ports::batch::BatchLimit;

/// Ports 1 and 2 may not send UDP to one address. Their frames are looked at above Ethernet.
const DEEP: &str = "
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p1']
[[acl.rule]]
name = 'udp'
action = 'drop'
protocol = 'udp'
destination = ['10.9.9.9']
[[acl.rule]]
name = 'all'
action = 'allow'
";

fn frame(a: u8, b: u8) -> Vec<u8> {
    udp(&Flow::v4(a, b), &[7; 58])
}

/// Returns a bench whose port 1 is tracked.
fn bench() -> Bench {
    let mut bench = Bench::with_stations();
    track(&mut bench, &[1]);
    bench
}

fn track(bench: &mut Bench, ports: &[u32]) {
    let ports: Vec<_> = ports.iter().map(|id| PortId(*id)).collect();
    bench.switch.set_tracked_ports(&ports, bench.now);
    bench.finish();
}

/// Returns the ingress ports of the flows of each table, in ascending order.
fn flows(bench: &mut Bench) -> Vec<Vec<u32>> {
    let (mut all, now) = (Vec::new(), bench.now);
    bench.switch.tables().each(|flows| {
        let records = flows.records(now).into_iter();
        let ports = records.map(|flow| FlowKey::from_words(flow.key).in_port());
        let mut ports: Vec<_> = ports.collect();
        ports.sort_unstable();
        all.push(ports);
    });
    all
}

/// Runs a sweep to its end.
fn sweep(bench: &mut Bench, sweep: FlowSweep) -> SweepResult {
    bench.switch.begin(5, sweep);
    while bench.switch.has_work() {
        bench.switch.continue_work(bench.now);
    }
    let mut finished = bench.switch.take_finished();
    assert_eq!(finished.len(), 1, "a sweep ends once");
    finished.remove(0)
}

/// Adds flows of so many sources from ports 1 and 3 to port 2.
fn fill(bench: &mut Bench, stations: u32) {
    for n in 0..stations {
        let [_, b, c, d] = n.to_be_bytes();
        for port in [1, 3] {
            let source = [0x0a, port as u8, 0, b, c, d];
            let frame = ethernet(mac(2), source, 0x0800, &[0; 86]);
            bench.send_and_decide(port, &frame);
            bench.switch.continue_work(bench.now);
        }
    }
    bench.port(2).delivered();
}

#[test]
fn flows_of_a_tracked_port_are_in_a_table_of_their_own() {
    let mut bench = bench();
    // Answers come when the lookup of the other port is in hand.
    bench.send(1, &frame(1, 2));
    bench.send(2, &frame(2, 1));
    bench.decide();
    assert_eq!(flows(&mut bench), [[2], [1]]);
    for _ in 0..3 {
        bench.step(&[Hits(1), From(1, 1, 100), To(2, 1, 100)], |b| {
            b.send(1, &frame(1, 2));
        });
        bench.step(&[Hits(1), From(2, 1, 100), To(1, 1, 100)], |b| {
            b.send(2, &frame(2, 1));
        });
    }
    assert_eq!(bench.switch.figures().flows, 2);
    let key = |port: u32, to: u8| {
        let key = FlowKey::default().with_in_port(port);
        let key = key.with_smac(MacAddr(mac(port as u8)));
        key.with_dmac(MacAddr(mac(to)))
    };
    let mut peek = |key| bench.switch.peek(&key, 0).map(|flow| flow.packets);
    assert_eq!((peek(key(1, 2)), peek(key(2, 1))), (Some(3), Some(3)));
    assert_eq!(peek(key(1, 3)), None);
}

#[test]
fn how_deep_flows_of_tracked_ports_look_is_no_others_concern() {
    let mut bench = bench();
    bench.set_access(DEEP);
    bench.send_and_decide(1, &frame(1, 2));
    bench.send_and_decide(2, &frame(2, 1));
    let mut depths = Vec::new();
    let mut counted = Vec::new();
    bench.switch.tables().each(|flows| {
        depths.push(flows.looks_above_ethernet());
        counted.push(flows.counts_rules());
    });
    assert_eq!((depths, counted), (vec![false, true], vec![false, true]));
}

#[test]
fn a_switch_without_tracked_ports_has_one_table() {
    let mut bench = Bench::with_stations();
    track(&mut bench, &[]);
    bench.send_and_decide(1, &frame(1, 2));
    assert_eq!(flows(&mut bench), [[1]]);
}

#[test]
fn a_port_that_becomes_tracked_or_is_no_longer_begins_without_flows() {
    let mut bench = bench();
    let send = |bench: &mut Bench| {
        bench.send_and_decide(1, &frame(1, 2));
        bench.send_and_decide(3, &frame(3, 2));
    };
    send(&mut bench);
    assert_eq!(flows(&mut bench), [[3], [1]]);
    track(&mut bench, &[3, 9999]);
    assert_eq!(flows(&mut bench), [[], []] as [[u32; 0]; 2]);
    send(&mut bench);
    assert_eq!(flows(&mut bench), [[1], [3]]);
    track(&mut bench, &[3]);
    assert_eq!(flows(&mut bench), [[1], [3]], "they are the same ports");
    track(&mut bench, &[]);
    assert_eq!(flows(&mut bench), [vec![1], vec![]]);
    send(&mut bench);
    assert_eq!(flows(&mut bench), [vec![1, 3], vec![]]);
}

#[test]
fn removals_find_the_flows_of_both_tables() {
    let send = |bench: &mut Bench| {
        for (from, to) in [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1)] {
            bench.send_and_decide(from, &frame(from as u8, to));
        }
        assert_eq!(flows(bench), [vec![2, 2, 3], vec![1, 1]]);
    };
    // From the removed port and to it.
    let mut without = bench();
    send(&mut without);
    without.switch.remove_port(PortId(2), without.now);
    without.finish();
    assert_eq!(flows(&mut without), [[3], [1]]);
    let mut without = bench();
    send(&mut without);
    without.switch.remove_port(PortId(1), without.now);
    without.finish();
    assert_eq!(flows(&mut without), [vec![2], vec![]]);
    // The next port of the number is not tracked.
    let port = without.port(1);
    without.plug(1, port);
    without.send_and_decide(1, &frame(1, 3));
    assert_eq!(flows(&mut without), [vec![1, 2], vec![]]);

    let mut moved = bench();
    send(&mut moved);
    let station = StaleFlows::Station {
        segment: BLUE,
        mac: mac(3),
    };
    moved.switch.answer(Answer::Forget(station), moved.now);
    moved.finish();
    assert_eq!(flows(&mut moved), [[2], [1]]);
}

#[test]
fn sweeps_visit_both_tables() {
    let mut bench = bench();
    bench.set_access(DEEP);
    for (from, to) in [(1, 2), (1, 3), (2, 1), (3, 1)] {
        bench.send_and_decide(from, &frame(from as u8, to));
        bench.send(from, &frame(from as u8, to));
    }
    let stations = FlowSweep::Stations { within_ms: 1000 };
    let used = sweep(&mut bench, stations).stations;
    let mut used: Vec<_> = used.into_keys().map(|station| station.port.0).collect();
    used.sort_unstable();
    assert_eq!(used, [1, 2, 3]);
    let request = FlowDumpRequest {
        port: None,
        limit: 99,
    };
    let top = sweep(&mut bench, FlowSweep::TopFlows(request)).busiest;
    let top = top.expect("flows").into_flows();
    let packets: Vec<_> = top.iter().map(|flow| flow.packets).collect();
    assert_eq!(packets, [1; 4]);
    assert_eq!(bench.counted(), [("all", (4, 400))].into());
    assert_eq!(bench.counted(), [].into());

    bench.now += u64::from(FLOW_IDLE_MS);
    bench.send(3, &frame(3, 1));
    bench.now += 1000;
    bench.switch.expire(bench.now);
    assert_eq!(flows(&mut bench), [vec![3], vec![]]);
}

#[test]
fn a_check_removes_wrong_flows_from_both_tables() {
    let mut bench = bench();
    for (from, to) in [(1, 2), (1, 3), (2, 3), (3, 2)] {
        bench.send_and_decide(from, &frame(from as u8, to));
    }
    bench.learn(BLUE, mac(3), 4);
    bench.check();
    assert_eq!(flows(&mut bench), [[3], [1]]);
}

#[test]
fn a_walk_in_parts_visits_each_flow_of_both_tables_once() {
    let mut bench = bench();
    let stations = 3 * FLOWS_PER_PART as u32 / 2;
    fill(&mut bench, stations);
    let within = FlowSweep::Stations { within_ms: 1000 };
    let used = sweep(&mut bench, within).stations.len();
    assert_eq!(used, 2 * stations as usize);
    // The window of recent packets begins with a dump, and not within one.
    for port in [2, 1, 3] {
        let request = FlowDumpRequest {
            port: Some(PortId(port)),
            limit: u16::MAX,
        };
        bench.now += 500;
        let busiest = sweep(&mut bench, FlowSweep::TopFlows(request)).busiest;
        let dumped = busiest.expect("flows").into_flows();
        let recent = dumped.iter().all(|flow| flow.recent_ms == 500);
        assert!(port == 2 || recent && !dumped.is_empty());
    }
    bench
        .switch
        .answer(Answer::Forget(StaleFlows::Port(PortId(2))), bench.now);
    let mut calls = 1;
    while !bench.switch.continue_work(bench.now) {
        calls += 1;
        // Frames are served meanwhile, by either table.
        bench.send(1 + 2 * (calls % 2), &frame(7, 7));
    }
    assert_eq!((calls, bench.switch.figures().flows), (2, 0));
}

#[test]
fn batches_of_both_tables_have_the_limit() {
    let mut bench = bench();
    let served = |bench: &mut Bench, port: u32| {
        (0..6).for_each(|_| {
            bench
                .port(port)
                .push(&frame(port as u8, 2), Offload::default())
        });
        bench
            .switch
            .serve(PortId(port), 0, bench.now, &mut bench.ring);
        let frames = bench.switch.last_frames();
        bench.serve(port);
        frames
    };
    for frames in [2, 5, 1] {
        for port in [1, 3, 1] {
            let limit = BatchLimit {
                frames,
                ..BatchLimit::MOST
            };
            bench.switch.set_limit(limit);
            assert_eq!(served(&mut bench, port), frames);
        }
        assert_eq!(served(&mut bench, 3), frames, "as before");
    }
}

#[test]
fn every_way_into_the_switch_takes_the_ports_table() {
    let mut bench = bench();
    let rate = Rate {
        per_second: 1 << 40,
        burst: 1 << 30,
    };
    let from_guest = Limit {
        packets: None,
        bits: Some(rate),
    };
    let limits = Limits {
        from_guest,
        ..Limits::default()
    };
    for port in [1, 3] {
        bench.send_and_decide(port, &frame(port as u8, 2));
        bench
            .switch
            .set_limits(PortId(port), PortLimits::new(limits));
    }
    for port in [1, 3, 1] {
        let moves = [Hits(1), From(port, 1, 100), To(2, 1, 100)];
        bench.step(&moves, |b| b.send(port, &frame(port as u8, 2)));
        bench.step(&[Hits(1), To(2, 1, 100)], |b| {
            let frame = frame(port as u8, 2);
            b.switch.inject(PortId(port), &frame, b.now, &mut b.ring);
        });
    }
    assert_eq!(flows(&mut bench), [[3], [1]]);
    // Frames of one port, answered once while the other's lookup is in hand.
    bench.send(1, &frame(1, 9));
    bench.send(3, &frame(3, 2));
    bench.step(&[To(2, 1, 100)], |b| b.answer_once(Action::to(2)));
    assert_eq!(flows(&mut bench), [[3], [1]]);
}

#[test]
fn frames_whose_connections_are_committed_are_action_batches_of_their_own() {
    let mut bench = bench();
    for from in [1, 9, 7] {
        let change = match from {
            9 => ConnectionChange::Deny,
            _ => ConnectionChange::None,
        };
        let class = Class::new(2).with_change(change);
        let origin = Origin {
            class,
            ..Origin::default()
        };
        let key = FlowKey::default().with_in_port(3);
        let key = key.with_smac(MacAddr(mac(from)));
        let mask = FlowMask::NONE.with_in_port().with_smac();
        let flows = &mut bench.switch.lookup.flows;
        assert!(flows.install(&key, &mask, Action::to(2), origin, bench.now));
    }
    let batches = |bench: &mut Bench| {
        for from in [1, 7, 9, 9, 7] {
            bench.port(3).push(&frame(from, 2), Offload::default());
        }
        let (switch, now) = (&mut bench.switch, bench.now);
        assert!(switch.serve(PortId(3), 0, now, &mut bench.ring));
        let groups = switch.lookup.action_batches.iter();
        let groups = groups.map(|group| (group.frames.len(), group.class()));
        let groups = groups.map(|(frames, class)| (frames, class.number(), class.commits()));
        groups.collect::<Vec<_>>()
    };
    let classes = [(2, 2, false), (2, 2, true), (1, 2, false)];
    assert_eq!(batches(&mut bench), classes);
    // A class of the queue pair replaces that of the decision, and nothing else.
    let qos = SenderQos {
        class_by_pair: vec![Some(1)],
        ..SenderQos::default()
    };
    bench.switch.set_qos(PortId(3), qos);
    let classes = [(2, 1, false), (2, 1, true), (1, 1, false)];
    assert_eq!(batches(&mut bench), classes);
}
