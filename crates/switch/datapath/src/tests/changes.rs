//! Changes of the program while frames come: no frame is forwarded by parts of two programs.

use std::collections::BTreeMap;

use ipc::records::{Answer, SourceRole};
use policy::{Action, DECISION_MASK, Model, OutdatedFlows, PortMode, Program, Segment, SegmentId};
use port::PortId;
use testkit::packets::{BROADCAST, ethernet, mac};
use wire::flow::FlowKey;
use wire::{EtherType, MacAddr};

use super::bench::{BLUE, Bench, Move::*, RED};
use flow_table::FLOWS_PER_PART;

/// Returns a program with ports 1 and 3 in blue, and port 2 in `two`.
fn program(epoch: u64, two: SegmentId) -> Program {
    let segment = |name: &str| Segment {
        name: name.into(),
        vlan: None,
    };
    let ports = [(1, BLUE), (2, two), (3, BLUE)];
    let model = Model {
        segments: BTreeMap::from([(BLUE, segment("blue")), (RED, segment("red"))]),
        ports: ports
            .map(|(id, segment)| (PortId(id), PortMode::Access(segment)))
            .into(),
    };
    Program::compile(&model, epoch).expect("a sound model")
}

/// Returns the outdated flows when a member of blue is added or removed.
fn of_blue() -> OutdatedFlows {
    OutdatedFlows {
        ports: vec![PortId(1)],
        segments: vec![BLUE],
    }
}

fn broadcast() -> Vec<u8> {
    ethernet(BROADCAST, mac(1), 0x88b5, &[0; 86])
}

fn key(dmac: [u8; 6]) -> FlowKey {
    FlowKey::default()
        .with_in_port(1)
        .with_smac(MacAddr(mac(1)))
        .with_dmac(MacAddr(dmac))
        .with_ethertype(EtherType(0x88b5))
}

/// Returns an answer that floods blue without exclusions; without `upcall` only a flow.
fn flooded(upcall: Option<u64>, dmac: [u8; 6], epoch: u64) -> Answer {
    Answer::Install {
        upcall,
        key: *key(dmac).masked(&DECISION_MASK).words(),
        mask: *DECISION_MASK.words(),
        action: Action::flood(BLUE),
        segment: Some(BLUE),
        source: SourceRole::Unlearned,
        class: policy::DEFAULT_CLASS,
        connection: policy::ConnectionChange::None,
        except: Vec::new(),
        rules: Vec::new(),
        epoch,
    }
}

fn bench(two: SegmentId) -> Bench {
    let mut bench = Bench::new();
    bench.switch.set_program(program(1, two));
    bench
}

/// Returns the numbers of frames that ports 2 and 3 get.
fn received(bench: &mut Bench, act: impl FnOnce(&mut Bench)) -> [usize; 2] {
    act(bench);
    [2, 3].map(|id| bench.port(id).frames().len())
}

#[test]
fn an_outdated_flow_does_not_flood_to_new_members() {
    let mut bench = bench(RED);
    for n in 0..3 * FLOWS_PER_PART as u32 {
        let [a, b, c, d] = n.to_be_bytes();
        let answer = flooded(None, [2, 1, a, b, c, d], 1);
        bench.switch.answer(answer, bench.now);
    }
    bench.switch.answer(flooded(None, BROADCAST, 1), bench.now);
    bench.finish();
    bench
        .switch
        .change_program(program(2, BLUE), of_blue(), bench.now);
    bench.switch.continue_work(bench.now);
    assert!(bench.switch.has_work());
    bench.step(&[From(1, 1, 100), Hits(1), To(3, 1, 100)], |b| {
        assert_eq!(received(b, |b| b.send(1, &broadcast())), [0, 1]);
    });
    // Further changes meanwhile do not admit new members earlier either.
    let again = program(3, BLUE);
    bench
        .switch
        .change_program(again, OutdatedFlows::default(), bench.now);
    assert_eq!(received(&mut bench, |b| b.send(1, &broadcast())), [0, 1]);
    bench.finish();
    assert_eq!(bench.switch.program(), &program(3, BLUE));
    bench.send(1, &broadcast());
    let upcall = bench.ring.upcalls.remove(0).id;
    let answer = flooded(Some(upcall), BROADCAST, 3);
    assert_eq!(
        received(&mut bench, |b| b.switch.answer(answer, b.now)),
        [1, 1]
    );
}

/// The answer may be older than the current program, or newer.
#[test]
fn a_flood_decided_by_another_program_causes_a_new_upcall() {
    for (before, after, epoch) in [(RED, BLUE, 1), (BLUE, RED, 3)] {
        for once in [true, false] {
            let mut bench = bench(before);
            bench.send(1, &broadcast());
            let upcall = bench.ring.upcalls.remove(0).id;
            bench
                .switch
                .change_program(program(2, after), of_blue(), bench.now);
            bench.finish();
            let late = match once {
                false => flooded(Some(upcall), BROADCAST, epoch),
                true => Answer::Once {
                    upcall,
                    action: Action::flood(BLUE),
                    class: policy::DEFAULT_CLASS,
                    connection: policy::ConnectionChange::None,
                    except: vec![PortId(9)],
                    rules: Vec::new(),
                    epoch,
                },
            };
            let act = |b: &mut Bench| b.switch.answer(late, b.now);
            assert_eq!(received(&mut bench, act), [0, 0], "{epoch} {once}");
            bench.switch.send_unsent_upcalls(&mut bench.ring);
            assert_eq!(bench.ring.upcalls.remove(0).id, upcall);
            let right = flooded(Some(upcall), BROADCAST, 2);
            let act = |b: &mut Bench| b.switch.answer(right, b.now);
            let two = usize::from(after == BLUE);
            assert_eq!(received(&mut bench, act), [two, 1], "{epoch} {once}");
        }
    }
}
