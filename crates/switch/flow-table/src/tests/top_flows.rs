//! Dumps of flows, which change nothing.

use ipc::flows::{CachedFlow, FlowDumpRequest};
use ipc::records::SourceRole;
use policy::{Action, PortId, SegmentId};
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};

use crate::{Class, Effort, FLOWS_PER_PART, FlowTable, Origin, Progress, TopFlows};

const MASK: FlowMask = policy::DECISION_MASK;

fn key(port: u32, station: u64) -> FlowKey {
    FlowKey::default()
        .with_in_port(port)
        .with_smac(MacAddr::from_u64(station))
        .with_dmac(MacAddr::from_u64(0x99))
}

/// Returns a table with one flow for each station, from port 1 to port 2.
fn table(stations: u64, now: u64) -> FlowTable {
    let mut table = FlowTable::new(1 << 16, 7);
    for station in 0..stations {
        let origin = Origin {
            segment: Some(SegmentId(3)),
            class: Class::new(3),
            source: SourceRole::Holder,
            rules: 0,
        };
        assert!(table.install(&key(1, station), &MASK, Action::to(2), origin, now));
    }
    table
}

fn use_flow(table: &mut FlowTable, station: u64, times: u64, now: u64) {
    for _ in 0..times {
        table.lookup(&key(1, station), now).expect("a flow");
    }
}

/// Returns the busiest flows, and the number of calls.
fn busiest(table: &mut FlowTable, desired: FlowDumpRequest, now: u64) -> (Vec<CachedFlow>, usize) {
    let mut busiest = TopFlows::new(desired);
    let (mut at, mut calls) = (0, 1);
    while let Progress::ResumeAt(next) =
        table.dump_top(at, now, &mut busiest, &mut Effort::default())
    {
        (at, calls) = (next, calls + 1);
    }
    (busiest.into_flows(), calls)
}

fn desired(limit: u16) -> FlowDumpRequest {
    FlowDumpRequest { port: None, limit }
}

fn stations(flows: &[CachedFlow]) -> Vec<(u64, u64)> {
    let station = |flow: &CachedFlow| (flow.flow_key().smac().to_u64(), flow.recent);
    flows.iter().map(station).collect()
}

#[test]
fn a_dump_is_no_use_of_a_flow() {
    let mut table = table(1, 100);
    use_flow(&mut table, 0, 3, 400);
    // Fields outside of the mask may have any value.
    let full_key = key(1, 0).with_l4_ports(7, 8);
    let flow = table.peek(&full_key, 1000).expect("a flow");
    assert_eq!(flow.flow_key(), key(1, 0));
    assert_eq!(flow.flow_mask(), MASK);
    assert_eq!(
        (flow.action, flow.segment),
        (Action::to(2), Some(SegmentId(3)))
    );
    assert_eq!((flow.packets, flow.idle_ms, flow.age_ms), (3, 600, 900));
    assert_eq!(table.peek(&full_key, 1000), Some(flow), "the same again");
    assert_eq!(table.peek(&key(2, 0), 1000), None);
    assert_eq!(
        table.expire_some(1000, 599, FLOWS_PER_PART),
        1,
        "it was not used"
    );
}

#[test]
fn a_changed_decision_is_young_and_keeps_its_count() {
    let mut table = table(1, 100);
    use_flow(&mut table, 0, 2, 200);
    assert!(table.install(&key(1, 0), &MASK, Action::to(3), Origin::default(), 700));
    let flow = table.peek(&key(1, 0), 1000).expect("a flow");
    assert_eq!(
        (flow.packets, flow.age_ms, flow.action),
        (2, 300, Action::to(3))
    );
}

#[test]
fn the_busiest_since_the_last_count_come_first() {
    let mut table = table(50, 0);
    use_flow(&mut table, 4, 100, 10);
    use_flow(&mut table, 5, 60, 10);
    // The first time all packets count.
    let (flows, _) = busiest(&mut table, desired(2), 1000);
    assert_eq!(stations(&flows), [(4, 100), (5, 60)]);
    assert_eq!((flows[0].recent_ms, flows[0].rate()), (1000, 100_000));
    use_flow(&mut table, 5, 7, 1500);
    use_flow(&mut table, 6, 9, 1500);
    let (flows, _) = busiest(&mut table, desired(3), 3000);
    // Among flows without recent packets the one with the most packets is first.
    assert_eq!(stations(&flows), [(6, 9), (5, 7), (4, 0)]);
    assert_eq!((flows[1].packets, flows[1].recent_ms), (67, 2000));
    // A new flow has its own time window.
    table.install(&key(9, 1), &MASK, Action::to(2), Origin::default(), 3900);
    table.lookup(&key(9, 1), 3950);
    let (flows, _) = busiest(&mut table, desired(1), 4000);
    assert_eq!((flows[0].recent, flows[0].recent_ms), (1, 100));
    assert_eq!(busiest(&mut table, desired(0), 5000).0, []);
}

#[test]
fn only_flows_of_the_port_are_dumped() {
    let mut table = table(3, 0);
    table.install(&key(4, 7), &MASK, Action::to(1), Origin::default(), 0);
    table.install(&key(4, 8), &MASK, Action::to(5), Origin::default(), 0);
    let mut of = |port| {
        let port = Some(PortId(port));
        let (flows, _) = busiest(&mut table, FlowDumpRequest { port, limit: 100 }, 9);
        flows.len()
    };
    assert_eq!((of(1), of(2), of(4), of(5), of(6)), (4, 3, 2, 1, 0));
}

#[test]
fn a_large_table_is_counted_in_parts() {
    let mut table = table(60_000, 0);
    for station in [59_999, 5, 30_000] {
        use_flow(&mut table, station, 1 + station % 7, 1);
    }
    let (flows, calls) = busiest(&mut table, desired(3), 10);
    assert_eq!(stations(&flows), [(30_000, 6), (5, 6), (59_999, 3)]);
    assert!((2..50).contains(&calls), "{calls}");
    // The slot of a removed flow has no history for the next one.
    assert_eq!(table.expire_some(1000, 0, 60_000), 60_000);
    table.install(
        &key(1, 70_000),
        &MASK,
        Action::to(2),
        Origin::default(),
        1020,
    );
    use_flow(&mut table, 70_000, 2, 1025);
    let (flows, _) = busiest(&mut table, desired(1), 1030);
    assert_eq!(stations(&flows), [(70_000, 2)]);
}
