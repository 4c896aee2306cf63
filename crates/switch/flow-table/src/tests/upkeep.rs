//! Maintenance of flows, and the amount of work per call.

use std::collections::HashSet;

use ipc::records::SourceRole;
use policy::{Action, OutdatedFlows, PortId, Program, SegmentId};
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};

use crate::{Class, Effort, FLOWS_PER_PART, FlowTable, Origin, Progress};

const MASK: FlowMask = policy::DECISION_MASK;
const LAN: SegmentId = SegmentId(1);
const LEARNED: Origin = Origin {
    segment: Some(LAN),
    class: Class::new(3),
    source: SourceRole::Holder,
    rules: 0,
};

fn key(port: u32, smac: u64, dmac: u64) -> FlowKey {
    FlowKey::default()
        .with_in_port(port)
        .with_smac(MacAddr::from_u64(smac))
        .with_dmac(MacAddr::from_u64(dmac))
}

/// Runs a walk with a new effort for each call. Returns the number of calls.
fn walk(mut part: impl FnMut(usize, &mut Effort) -> Progress) -> usize {
    let (mut at, mut calls) = (0, 1);
    while let Progress::ResumeAt(next) = part(at, &mut Effort::default()) {
        (at, calls) = (next, calls + 1);
    }
    calls
}

/// Returns the number of stations in use and of calls.
fn in_use(table: &mut FlowTable) -> (usize, usize) {
    let mut found = HashSet::new();
    let calls = walk(|at, effort| {
        table.stations_in_use(at, 0, u32::MAX, effort, |used| {
            found.insert(used.station);
        })
    });
    (found.len(), calls)
}

#[test]
fn a_rule_for_many_flows_is_applied_in_parts_and_touches_no_others() {
    let mut table = FlowTable::new(16_384, 3);
    for n in 0..3000 {
        table.install(&key(1, 10 + n, 5), &MASK, Action::to(2), LEARNED, 0);
        table.install(&key(2, 5, 10 + n), &MASK, Action::to(1), LEARNED, 0);
        table.install(&key(3, 10 + n, 6), &MASK, Action::to(2), LEARNED, 0);
    }
    let mut before = table.len();
    let mut calls = walk(|at, effort| {
        let progress = table.forget_station(LAN, MacAddr::from_u64(5), at, effort);
        assert!(before - table.len() <= FLOWS_PER_PART);
        before = table.len();
        progress
    });
    assert_eq!((calls, table.len()), (6, 3000));
    assert_eq!(table.lookup(&key(3, 12, 6), 0), Some(Action::to(2)));
    calls = walk(|at, effort| {
        let progress = table.forget_outdated(&OutdatedFlows::ports(vec![PortId(2)]), at, effort);
        assert!(before - table.len() <= FLOWS_PER_PART);
        before = table.len();
        progress
    });
    assert_eq!((table.is_empty(), calls), (true, 3));
}

#[test]
fn a_walk_touches_flows_and_not_the_places_of_those_that_are_gone() {
    let mut table = FlowTable::new(1 << 20, 3);
    for n in 0..60_000 {
        let port = if n == 59_999 { 2 } else { 1 };
        table.install(&key(port, n, 1 << 20), &MASK, Action::to(3), LEARNED, 0);
    }
    assert_eq!(in_use(&mut table), (60_000, 30), "a call for 2048");
    let calls = walk(|at, effort| {
        table.forget_outdated(&OutdatedFlows::ports(vec![PortId(1)]), at, effort)
    });
    assert_eq!((table.len(), calls), (1, 59));
    assert_eq!(in_use(&mut table), (1, 1));
    let check =
        |at, effort: &mut Effort| table.check(at, &Program::default(), &|_, _| None, effort);
    assert_eq!(walk(check), 1);
    assert!(table.is_empty());
}

#[test]
fn a_port_with_few_flows_among_many_is_soon_forgotten() {
    let mut table = FlowTable::new(1 << 20, 3);
    for n in 0..60_000 {
        let port = if n % 1000 == 7 { 2 } else { 1 };
        table.install(&key(port, n, 1 << 20), &MASK, Action::to(3), LEARNED, 0);
    }
    let calls = walk(|at, effort| {
        table.forget_outdated(&OutdatedFlows::ports(vec![PortId(2)]), at, effort)
    });
    assert_eq!((table.len(), calls), (59_940, 2), "looking costs little");
}

/// Lists are found by a hash, and a station can have any number of flows.
#[test]
fn flows_of_others_in_a_stations_list_count_as_work() {
    // Only four lists, all of them long.
    let mut table = FlowTable::new(16, 3);
    assert_eq!(
        walk(|at, effort| table.forget_station(LAN, MacAddr::from_u64(1), at, effort)),
        1
    );
    table = FlowTable::new(16_384, 3);
    let busy = MacAddr::from_u64(1 << 30);
    for n in 0..16_000 {
        table.install(&key(1, n, busy.to_u64()), &MASK, Action::to(2), LEARNED, 0);
    }
    // Finds a station with the same list by search: there are 4096 lists.
    let neighbour = (1..60_000).map(|n| MacAddr::from_u64(n << 32)).find(|one| {
        let effort = &mut Effort::default();
        table.forget_station(LAN, *one, 0, effort) != Progress::Done
    });
    let neighbour = neighbour.expect("a station that shares the list, and a call that ends early");
    let calls = walk(|at, effort| table.forget_station(LAN, neighbour, at, effort));
    assert_eq!((table.len(), calls), (16_000, 8));
    // The flow that was visited last is removed between two calls: the walk still completes.
    let effort = &mut Effort::default();
    let Progress::ResumeAt(at) = table.forget_station(LAN, neighbour, 0, effort) else {
        panic!("one call was enough");
    };
    let all = walk(|at, effort| table.forget_station(LAN, busy, at, effort));
    assert_eq!((table.len(), all), (0, 16));
    table.install(
        &key(4, 1, neighbour.to_u64()),
        &MASK,
        Action::to(2),
        LEARNED,
        0,
    );
    let last = table.forget_station(LAN, neighbour, at, &mut Effort::default());
    assert_eq!((last, table.len()), (Progress::Done, 0));
}
