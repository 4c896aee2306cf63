//! The cache against a list that is searched from front to back.

use channel::switching::FlowRecord;
use policy::{Action, SegmentId};
use port::PortId;
use proptest::prelude::*;
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};

use crate::flow_table::FlowTable;

const WAYS: usize = 8;

fn masks() -> [FlowMask; 3] {
    [
        FlowMask::NONE.with_in_port().with_smac().with_dmac(),
        FlowMask::NONE.with_in_port().with_dmac(),
        FlowMask::NONE.with_dmac(),
    ]
}

fn key(port: u32, smac: u64, dmac: u64) -> FlowKey {
    FlowKey::default()
        .with_in_port(port)
        .with_smac(MacAddr::from_u64(smac))
        .with_dmac(MacAddr::from_u64(dmac))
}

fn to(port: u32) -> Action {
    Action::Unicast {
        port: PortId(port),
        tag: None,
    }
}

#[derive(Clone, Debug)]
struct Row {
    key: FlowKey,
    action: Action,
    packets: u64,
    used: u64,
}

/// One list for each mask, in the order in which the masks came. `room` entries in each.
#[derive(Debug)]
struct Oracle {
    lists: Vec<(FlowMask, Vec<Row>)>,
    room: usize,
}

impl Oracle {
    fn lookup(&mut self, key: &FlowKey, now: u64) -> Option<Action> {
        self.lists.iter_mut().find_map(|(mask, rows)| {
            let row = rows.iter_mut().find(|r| r.key == key.masked(mask))?;
            row.packets += 1;
            row.used = now;
            Some(row.action)
        })
    }

    fn install(&mut self, key: &FlowKey, mask: &FlowMask, action: Action, now: u64) {
        if !self.lists.iter().any(|(m, _)| m == mask) {
            self.lists.push((*mask, Vec::new()));
        }
        let room = self.room;
        let list = self.lists.iter_mut().find(|(m, _)| m == mask);
        let rows = &mut list.expect("just added").1;
        let mut row = Row {
            key: key.masked(mask),
            action,
            packets: 0,
            used: now,
        };
        if let Some(at) = rows.iter().position(|r| r.key == row.key) {
            row.packets = rows.remove(at).packets;
        } else if rows.len() == room {
            rows.remove(Self::victim(rows, row.key.in_port()));
        }
        rows.push(row);
    }

    /// The oldest of the port's own once it holds half of the set, else the oldest of all.
    fn victim(rows: &[Row], port: u32) -> usize {
        let own = rows.iter().filter(|r| r.key.in_port() == port).count();
        let (at, _) = rows
            .iter()
            .enumerate()
            .filter(|(_, r)| own < WAYS / 2 || r.key.in_port() == port)
            .min_by_key(|(_, r)| r.used)
            .expect("a full set");
        at
    }

    fn remove(&mut self, key: &FlowKey, mask: &FlowMask) {
        for (m, rows) in &mut self.lists {
            rows.retain(|r| m != mask || r.key != key.masked(mask));
        }
    }

    fn remove_if(&mut self, gone: impl Fn(&FlowKey, &Action) -> bool) {
        for (_, rows) in &mut self.lists {
            rows.retain(|r| !gone(&r.key, &r.action));
        }
    }

    fn sorted(&self) -> Vec<([u64; 8], [u64; 8], u64, u64)> {
        let rows = self.lists.iter().flat_map(|(m, rows)| {
            rows.iter()
                .map(|r| (*m.words(), *r.key.words(), r.packets, r.used))
        });
        let mut all: Vec<_> = rows.collect();
        all.sort_unstable();
        all
    }
}

/// A whole dump, piece by piece.
fn dump(table: &FlowTable, now: u64) -> Vec<FlowRecord> {
    let (mut all, mut next) = (Vec::new(), Some(0));
    while let Some(at) = next {
        let (piece, then) = table.records(at, now);
        all.extend(piece);
        next = then;
    }
    all
}

fn sorted(table: &FlowTable, now: u64) -> Vec<([u64; 8], [u64; 8], u64, u64)> {
    let mut all: Vec<_> = dump(table, now)
        .into_iter()
        .map(|r| (r.mask, r.key, r.packets, now - r.idle_ms))
        .collect();
    all.sort_unstable();
    all
}

#[derive(Clone, Debug)]
enum Step {
    Lookup(FlowKey),
    Install(FlowKey, usize, u32),
    Remove(FlowKey, usize),
    RemovePort(u32),
    RemoveTo(u32),
}

fn a_key(keys: u64) -> impl Strategy<Value = FlowKey> {
    (0..4u32, 0..keys, 0..keys).prop_map(|(p, s, d)| key(p, s, d))
}

fn a_step(keys: u64) -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => a_key(keys).prop_map(Step::Lookup),
        8 => (a_key(keys), 0..3usize, 0..4u32).prop_map(|(k, m, a)| Step::Install(k, m, a)),
        1 => (a_key(keys), 0..3usize).prop_map(|(k, m)| Step::Remove(k, m)),
        1 => (0..4u32).prop_map(Step::RemovePort),
        1 => (0..4u32).prop_map(Step::RemoveTo),
    ]
}

fn both(table: &mut FlowTable, oracle: &mut Oracle, steps: &[Step]) {
    for (step, now) in steps.iter().zip(1..) {
        match step {
            Step::Lookup(key) => {
                assert_eq!(table.lookup(key, now), oracle.lookup(key, now), "{step:?}");
            }
            Step::Install(key, mask, action) => {
                let mask = masks()[*mask];
                assert!(table.install(key, &mask, to(*action), Some(SegmentId(1)), now));
                oracle.install(key, &mask, to(*action), now);
            }
            Step::Remove(key, mask) => {
                table.remove(key, &masks()[*mask]);
                oracle.remove(key, &masks()[*mask]);
            }
            Step::RemovePort(port) => {
                table.remove_if(|key, _| key.in_port() == *port);
                oracle.remove_if(|key, _| key.in_port() == *port);
            }
            Step::RemoveTo(port) => {
                table.remove_if(|_, action| *action == to(*port));
                oracle.remove_if(|_, action| *action == to(*port));
            }
        }
        let rows = oracle.sorted();
        assert_eq!(table.len(), rows.len(), "{step:?}");
        assert_eq!(table.is_empty(), rows.is_empty());
        assert_eq!(sorted(table, now), rows, "{step:?}");
    }
}

proptest! {
    /// A single set: every eviction is known beforehand.
    #[test]
    fn one_set_does_what_a_list_of_eight_does(
        seed: u64,
        steps in prop::collection::vec(a_step(6), 1..120),
    ) {
        let mut oracle = Oracle { lists: Vec::new(), room: WAYS };
        both(&mut FlowTable::new(WAYS, seed), &mut oracle, &steps);
    }

    /// A table far larger than its content: nothing is ever evicted.
    #[test]
    fn a_roomy_table_forgets_nothing(
        seed: u64,
        steps in prop::collection::vec(a_step(4), 1..60),
    ) {
        let mut oracle = Oracle { lists: Vec::new(), room: usize::MAX };
        both(&mut FlowTable::new(16_384, seed), &mut oracle, &steps);
    }

    /// Whoever sprays addresses displaces its own flows once it holds half of each set.
    #[test]
    fn a_port_that_sprays_keys_evicts_its_own(seed: u64) {
        let mut table = FlowTable::new(64, seed);
        let mask = masks()[0];
        for n in 0..16 {
            table.install(&key(1, n, 1), &mask, to(2), None, n);
        }
        // Every set that is not full yet is filled by the sprayer, and holds at least half of it then
        // unless the others' flows crowd there; those it may not touch beyond that half.
        let fair: Vec<_> = (0..16).filter(|n| table.lookup(&key(1, *n, 1), 20).is_some()).collect();
        for n in 0..5_000 {
            table.install(&key(2, n, 2), &mask, to(1), None, 100 + n);
        }
        let left = fair.iter().filter(|n| table.lookup(&key(1, **n, 1), 9_000).is_some()).count();
        prop_assert!(table.len() <= 64);
        let lost = fair.len() - left;
        // A set holds at most eight of the first port's flows; four of them at most give way.
        prop_assert!(lost <= fair.len() / 2, "{lost} of {} lost", fair.len());
    }
}

#[test]
fn a_flow_keeps_its_count_when_its_action_changes() {
    let mut table = FlowTable::new(64, 1);
    let (mask, k) = (masks()[0], key(1, 2, 3));
    table.install(&k, &mask, to(2), None, 1);
    table.lookup(&k, 2);
    table.lookup(&k, 3);
    table.install(&k, &mask, to(3), Some(SegmentId(4)), 5);
    let records = dump(&table, 8);
    assert_eq!((records.len(), table.len()), (1, 1));
    assert_eq!((records[0].packets, records[0].idle_ms), (2, 3));
    assert_eq!(records[0].segment, Some(SegmentId(4)));
    assert_eq!(table.lookup(&k, 9), Some(to(3)));
}

#[test]
fn masks_are_bounded() {
    let mut table = FlowTable::new(8, 1);
    let mask = |n: u64| {
        FlowMask::from_bytes(&{
            let mut bytes = [0; 64];
            bytes[8] = 1 + n as u8;
            bytes
        })
    };
    let installed = (0..20).filter(|n| table.install(&key(1, 1, 0xff), &mask(*n), to(1), None, 0));
    assert_eq!(installed.count(), 16);
    assert_eq!(table.len(), 16);
    table.remove(&key(1, 1, 0xff), &mask(18));
    assert_eq!(table.len(), 16);
}

#[test]
fn records_show_the_masked_key() {
    let mut table = FlowTable::new(8, 1);
    let (mask, k) = (masks()[1], key(3, 2, 1));
    assert!(table.install(&k, &mask, to(9), None, 0));
    assert_eq!(table.lookup(&k, 0), Some(to(9)));
    let record = &dump(&table, 0)[0];
    assert_eq!(record.key, *k.masked(&mask).words());
    assert_eq!(record.mask, *mask.words());
}
