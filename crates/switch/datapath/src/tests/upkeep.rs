//! Maintenance of flows by the switch, and the amount of work per call.

use flow_table::FLOWS_PER_PART;
use ipc::records::{Answer, SourceRole, StaleFlows};
use policy::{Action, PortId};
use testkit::packets::{Flow, ethernet, mac, udp};
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};

use super::bench::{BLUE, Bench, Move::*};
use crate::forward::revalidator::FlowSweep;

const MASK: FlowMask = policy::DECISION_MASK;

fn key(port: u32, smac: u64, dmac: u64) -> FlowKey {
    FlowKey::default()
        .with_in_port(port)
        .with_smac(MacAddr::from_u64(smac))
        .with_dmac(MacAddr::from_u64(dmac))
}

/// Returns a bench with flows of this many sources from port 1 to port 2.
fn many(stations: u32) -> Bench {
    let mut bench = Bench::with_stations();
    for n in 0..stations {
        let [_, b, c, d] = n.to_be_bytes();
        let frame = ethernet(mac(2), [0x0a, 0, 0, b, c, d], 0x0800, &[0; 86]);
        bench.send_and_decide(1, &frame);
        bench.switch.continue_work(bench.now);
    }
    bench.port(2).delivered();
    bench
}

fn frame(a: u8, b: u8) -> Vec<u8> {
    udp(&Flow::v4(a, b), &[7; 58])
}

#[test]
fn ports_that_go_together_share_a_walk_and_later_answers_stay() {
    let mut bench = many(3 * FLOWS_PER_PART as u32);
    bench.send_and_decide(3, &frame(3, 1));
    bench.switch.continue_work(bench.now);
    for port in [1, 4, 3, 5] {
        let rule = Answer::Forget(StaleFlows::Port(PortId(port)));
        bench.switch.answer(rule, bench.now);
    }
    bench.send_and_decide(1, &frame(1, 2));
    let now = bench.switch.figures();
    assert_eq!(
        (now.flows, now.pending),
        (2 * FLOWS_PER_PART as u64 + 1, 1),
        "a piece"
    );
    let mut calls = 1;
    while !bench.switch.continue_work(bench.now) {
        calls += 1;
    }
    // The rest of the first walk, and one walk for the three others.
    let now = bench.switch.figures();
    assert_eq!((calls, now.flows, now.pending), (3, 1, 0));
}

#[test]
fn answers_are_applied_in_parts_without_retries_meanwhile() {
    let mut bench = many(0);
    let flows = 3 * FLOWS_PER_PART as u64;
    for n in 0..flows {
        let key = key(1, 100 + n, 5);
        let answer = Answer::Install {
            upcall: None,
            key: *key.masked(&MASK).words(),
            mask: *MASK.words(),
            action: Action::to(2),
            segment: Some(BLUE),
            source: SourceRole::Holder,
            class: policy::DEFAULT_CLASS,
            connection: policy::ConnectionChange::None,
            except: Vec::new(),
            rules: Vec::new(),
            epoch: bench.switch.program().epoch(),
        };
        bench.switch.answer(answer, bench.now);
    }
    assert_eq!(bench.switch.figures().flows, FLOWS_PER_PART as u64);
    bench.send(1, &frame(1, 2));
    bench.ring.upcalls.clear();
    bench.switch.retry_upcalls(&mut bench.ring);
    assert!(
        bench.ring.upcalls.is_empty(),
        "its answer may be among them"
    );
    assert!(!bench.switch.continue_work(bench.now));
    assert_eq!(bench.switch.figures().flows, 2 * FLOWS_PER_PART as u64);
    bench.finish();
    assert_eq!(bench.switch.figures().flows, flows);
    bench.switch.retry_upcalls(&mut bench.ring);
    assert_eq!(bench.ring.upcalls.len(), 1);
}

/// A new control requests a check while answers of a former one are pending.
#[test]
fn a_check_runs_after_earlier_answers() {
    let mut bench = many(2 * FLOWS_PER_PART as u32);
    let rule = StaleFlows::Station {
        segment: BLUE,
        mac: mac(2),
    };
    bench.switch.answer(Answer::Forget(rule), bench.now);
    let wrong = key(1, 77, 0).with_dmac(MacAddr(mac(3)));
    let answer = Answer::Install {
        upcall: None,
        key: *wrong.words(),
        mask: *MASK.words(),
        action: Action::to(2),
        segment: Some(BLUE),
        source: SourceRole::Unlearned,
        class: policy::DEFAULT_CLASS,
        connection: policy::ConnectionChange::None,
        except: Vec::new(),
        rules: Vec::new(),
        epoch: bench.switch.program().epoch(),
    };
    bench.switch.answer(answer, bench.now);
    bench.switch.begin(9, FlowSweep::Check(bench.known()));
    assert_eq!(bench.finish(), [9]);
    assert_eq!(bench.switch.figures().flows, 0);
}

#[test]
fn a_sweep_over_many_flows_delays_no_answer() {
    let mut bench = many(5 * FLOWS_PER_PART as u32);
    bench.switch.begin(1, FlowSweep::Check(bench.known()));
    bench.switch.begin(
        2,
        FlowSweep::Stations {
            within_ms: u32::MAX,
        },
    );
    bench.switch.begin(3, FlowSweep::Settle);
    assert!(
        bench.switch.continue_work(bench.now),
        "a sweep delays no answer"
    );
    let first = bench.switch.take_finished();
    assert_eq!(first.len(), 1, "only what is no work is done");
    bench.step(
        &[From(1, 1, 100), Misses(1), Upcalls(1), To(2, 1, 100)],
        |b| {
            b.send_and_decide(1, &frame(1, 2));
        },
    );
    let mut rest = Vec::new();
    while bench.switch.has_work() {
        bench.switch.continue_work(bench.now);
        rest.extend(bench.switch.take_finished());
    }
    let tickets: Vec<_> = rest.iter().map(|sweep| sweep.ticket).collect();
    assert_eq!(tickets, [1, 2]);
    assert_eq!(rest[1].stations.len(), 5 * FLOWS_PER_PART + 1);
}
