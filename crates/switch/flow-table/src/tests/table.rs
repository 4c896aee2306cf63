//! Comparison of the flow cache with a linear list.

use std::collections::BTreeMap;

use ipc::records::SourceRole;
use policy::acl::RuleId;
use policy::{Action, ConnectionChange, OutdatedFlows, PortId, SegmentId};
use proptest::prelude::*;
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};

use crate::{CachedDecision, Class, Effort, FlowTable, Origin, Progress};

/// Flows of a table with a single set.
const FEW: usize = 7;

fn masks() -> [FlowMask; 4] {
    [
        FlowMask::NONE.with_in_port().with_smac().with_dmac(),
        FlowMask::NONE.with_in_port().with_dmac(),
        FlowMask::NONE.with_dmac(),
        FlowMask::NONE.with_in_port().with_dst_ip(),
    ]
}

/// Returns a key whose IP address contains the destination, too.
fn key(port: u32, smac: u64, dmac: u64) -> FlowKey {
    FlowKey::from_words([0, 0, 0, 0, smac, 0, 1, dmac])
        .with_in_port(port)
        .with_smac(MacAddr::from_u64(smac))
        .with_dmac(MacAddr::from_u64(dmac))
}

#[derive(Clone, Debug)]
struct Row {
    key: FlowKey,
    action: Action,
    origin: Origin,
    packets: u64,
    used: u64,
}

/// One list per mask, in search order; `room` rows in total.
#[derive(Debug)]
struct Oracle {
    lists: Vec<(FlowMask, Vec<Row>)>,
    room: usize,
    /// Packets and bytes of rules.
    counts: BTreeMap<RuleId, (u64, u64)>,
}

impl Oracle {
    fn new(room: usize) -> Self {
        Self {
            lists: Vec::new(),
            room,
            counts: BTreeMap::new(),
        }
    }

    fn lookup(&mut self, key: &FlowKey, now: u64) -> Option<CachedDecision> {
        self.lookup_of(key, 0, now)
    }

    fn lookup_of(&mut self, key: &FlowKey, bytes: u64, now: u64) -> Option<CachedDecision> {
        let counts = &mut self.counts;
        self.lists.iter_mut().find_map(|(mask, rows)| {
            let row = rows.iter_mut().find(|r| r.key == key.masked(mask))?;
            row.packets += 1;
            row.used = now;
            for rule in rules(row.action, row.key.in_port()) {
                let count = counts.entry(rule).or_default();
                *count = (count.0 + 1, count.1 + bytes);
            }
            Some((row.action, row.origin.class))
        })
    }

    /// Returns the index of the mask's list; a new one replaces an empty one.
    fn list(&mut self, mask: &FlowMask) -> usize {
        let known = self.lists.iter().position(|(m, _)| m == mask);
        let empty = || self.lists.iter().position(|(_, rows)| rows.is_empty());
        if let Some(at) = known {
            return at;
        }
        match empty() {
            Some(at) => {
                self.lists[at].0 = *mask;
                at
            }
            None => {
                self.lists.push((*mask, Vec::new()));
                self.lists.len() - 1
            }
        }
    }

    fn install(
        &mut self,
        key: &FlowKey,
        mask: &FlowMask,
        (action, origin): (Action, Origin),
        now: u64,
    ) -> bool {
        let at = self.list(mask);
        let mut row = Row {
            key: key.masked(mask),
            action,
            origin,
            packets: 0,
            used: now,
        };
        if let Some(old) = self.lists[at].1.iter_mut().find(|r| r.key == row.key) {
            row.packets = old.packets;
            *old = row;
            return true;
        }
        let full = self.rows().count() == self.room;
        if full && !self.evict_for(row.key.in_port()) {
            return false;
        }
        self.lists[at].1.push(row);
        true
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.lists.iter().flat_map(|(_, rows)| rows)
    }

    /// Evicts the oldest row: of ports above their share that have more than this one, else of the
    /// port itself, else, for a port below its share, of any port.
    fn evict_for(&mut self, port: u32) -> bool {
        let from = |port| self.rows().filter(|r| r.key.in_port() == port).count();
        let mut senders: Vec<u32> = self.rows().map(|r| r.key.in_port()).collect();
        senders.sort_unstable();
        senders.dedup();
        let (share, mine) = (self.room / senders.len(), from(port));
        let oldest = |may_go: &dyn Fn(u32) -> bool| {
            let rows = self.rows().filter(|r| may_go(r.key.in_port()));
            rows.map(|r| r.used).min()
        };
        let victim = oldest(&|owner| from(owner) > share.max(mine))
            .or_else(|| oldest(&|owner| owner == port))
            .or_else(|| oldest(&|_| mine < share));
        if let Some(used) = victim {
            self.retain(|r| r.used != used);
        }
        victim.is_some()
    }

    fn retain(&mut self, stays: impl Fn(&Row) -> bool) {
        for (_, rows) in &mut self.lists {
            rows.retain(&stays);
        }
    }

    fn forget_station(&mut self, segment: u16, mac: u64) {
        let (segment, mac) = (Some(SegmentId(segment)), MacAddr::from_u64(mac));
        self.retain(|r| {
            let its = r.key.dmac() == mac || r.key.smac() == mac;
            r.origin.segment != segment || !its
        });
    }

    /// Returns the idle times of the learned stations used within a time.
    fn stations(&self, now: u64, within: u64) -> BTreeMap<Used, u64> {
        let mut all = BTreeMap::new();
        for row in self
            .rows()
            .filter(|r| r.origin.source != SourceRole::Unlearned)
        {
            let idle = now - row.used;
            if let Some(segment) = row.origin.segment.filter(|_| idle <= within) {
                let used = (segment, row.key.smac().0, row.key.in_port());
                let least = all.entry(used).or_insert(idle);
                *least = idle.min(*least);
            }
        }
        all
    }

    fn remove_port(&mut self, port: u32) {
        self.retain(|r| r.key.in_port() != port && r.action != Action::to(port));
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

/// Segment, address and port.
type Used = (SegmentId, [u8; 6], u32);

/// Runs a walk to its end. Returns the number of calls.
fn walk(mut part: impl FnMut(usize, &mut Effort) -> Progress) -> usize {
    let (mut at, mut calls) = (0, 1);
    while let Progress::ResumeAt(next) = part(at, &mut Effort::default()) {
        (at, calls) = (next, calls + 1);
    }
    calls
}

fn stations(table: &mut FlowTable, now: u64, within: u32) -> BTreeMap<Used, u64> {
    let mut all = BTreeMap::new();
    walk(|at, effort| {
        table.stations_in_use(at, now, within, effort, |one| {
            let used = (one.station.segment, one.station.mac, one.station.port.0);
            let idle = u64::from(one.idle_ms);
            let least = all.entry(used).or_insert(idle);
            *least = idle.min(*least);
        })
    });
    all
}

fn sorted(table: &FlowTable, now: u64) -> Vec<([u64; 8], [u64; 8], u64, u64)> {
    let mut all: Vec<_> = table
        .records(now)
        .into_iter()
        .map(|r| (r.mask, r.key, r.packets, now - u64::from(r.idle_ms)))
        .collect();
    all.sort_unstable();
    all
}

#[derive(Clone, Debug)]
enum Step {
    Lookup(FlowKey),
    /// A lookup in three steps, all keys together.
    Batch(Vec<FlowKey>),
    /// A lookup in three steps, with an installation before the last.
    Late(FlowKey, FlowKey, usize, u32),
    Install(FlowKey, usize, u32),
    ForgetStation(u16, u64),
    ForgetPort(u32),
    Stations(u32),
    CountRules,
    Expire,
}

/// Milliseconds of a step at most.
const STEP: u64 = 16;
/// Idle timeout in this test, milliseconds.
const IDLE: u64 = 20 * STEP;

fn a_key(keys: u64) -> impl Strategy<Value = FlowKey> {
    (0..4u32, 0..keys, 0..keys).prop_map(|(p, s, d)| key(p, s, d))
}

fn a_step(keys: u64) -> impl Strategy<Value = Step> {
    let key = move || a_key(keys);
    prop_oneof![
        8 => key().prop_map(Step::Lookup),
        2 => prop::collection::vec(key(), 1..9).prop_map(Step::Batch),
        2 => (key(), key(), 0..4usize, 0..4u32).prop_map(|(k, l, m, a)| Step::Late(k, l, m, a)),
        8 => (key(), 0..4usize, 0..4u32).prop_map(|(k, m, a)| Step::Install(k, m, a)),
        2 => (0..2u16, 0..keys).prop_map(|(s, m)| Step::ForgetStation(s, m)),
        1 => (0..4u32).prop_map(Step::ForgetPort),
        1 => (0..200u32).prop_map(Step::Stations),
        1 => Just(Step::CountRules),
        1 => Just(Step::Expire),
    ]
}

/// Returns pseudo-random rules of a flow.
fn rules(action: Action, in_port: u32) -> Vec<RuleId> {
    let Action::Unicast { port, .. } = action else {
        panic!("none of these: {action:?}");
    };
    let all = [RuleId(7), RuleId(8)];
    all[..(port.0 + in_port) as usize % 3].to_vec()
}

fn install(
    table: &mut FlowTable,
    oracle: &mut Oracle,
    (key, mask, action): (&FlowKey, usize, u32),
    now: u64,
) {
    let mask = masks()[mask];
    // Pseudo-random: a segment or none, known or not.
    let segment = (action + key.in_port()) as u16 % 3;
    let rules = table.intern_rules(rules(Action::to(action), key.masked(&mask).in_port()));
    let origin = Origin {
        segment: (segment < 2).then_some(SegmentId(segment)),
        class: Class::new((now % 8) as u8),
        source: match now % 4 {
            0 => SourceRole::Unlearned,
            1 => SourceRole::Rival,
            _ => SourceRole::Holder,
        },
        rules,
    };
    let decision = (Action::to(action), origin);
    let installed = table.install(key, &mask, Action::to(action), origin, now);
    table.release_rules(rules);
    assert_eq!(installed, oracle.install(key, &mask, decision, now));
}

fn act(table: &mut FlowTable, oracle: &mut Oracle, step: &Step, now: u64) {
    match step {
        Step::Lookup(key) => {
            let probe = table.prepare(key);
            let found = table.lookup_prepared(key, probe, 1, now);
            assert_eq!(found, oracle.lookup(key, now), "{step:?}");
        }
        Step::Batch(keys) => {
            let begun: Vec<_> = keys.iter().map(|key| table.prepare(key)).collect();
            for (n, (key, mut probe)) in keys.iter().zip(begun).enumerate() {
                if n % 2 == 0 {
                    probe = table.approach(key, probe);
                }
                let now = now + n as u64;
                let found = table.lookup_counting_bytes(key, probe, (1, 100), now);
                assert_eq!(found, oracle.lookup_of(key, 100, now), "{step:?}");
            }
        }
        Step::CountRules => {
            walk(|at, effort| table.count_rules(at, effort));
            let counted = table.rules.take(now).into_iter();
            let counted = counted.map(|uses| (uses.rule, (uses.packets, uses.bytes)));
            let expected = std::mem::take(&mut oracle.counts);
            assert_eq!(counted.collect::<BTreeMap<_, _>>(), expected);
        }
        Step::Late(key, other, mask, action) => {
            let probe = table.prepare(key);
            let probe = table.approach(key, probe);
            install(table, oracle, (other, *mask, *action), now);
            let found = table.lookup_prepared(key, probe, 1, now + 1);
            assert_eq!(found, oracle.lookup(key, now + 1), "{step:?}");
        }
        Step::Install(key, mask, action) => install(table, oracle, (key, *mask, *action), now),
        Step::ForgetStation(segment, mac) => {
            let address = MacAddr::from_u64(*mac);
            walk(|at, effort| table.forget_station(SegmentId(*segment), address, at, effort));
            oracle.forget_station(*segment, *mac);
        }
        Step::ForgetPort(port) => {
            walk(|at, effort| {
                table.forget_outdated(&OutdatedFlows::ports(vec![PortId(*port)]), at, effort)
            });
            oracle.remove_port(*port);
        }
        Step::Stations(within) => {
            let found = stations(table, now, *within);
            assert_eq!(found, oracle.stations(now, u64::from(*within)));
        }
        Step::Expire => {
            table.expire_some(now, IDLE as u32, usize::MAX);
            oracle.retain(|r| now - r.used <= IDLE);
        }
    }
}

fn both(table: &mut FlowTable, oracle: &mut Oracle, steps: &[Step]) {
    for (step, now) in steps.iter().zip((1..).step_by(STEP as usize)) {
        act(table, oracle, step, now);
        let now = now + STEP - 1;
        let rows = oracle.sorted();
        assert_eq!(table.len(), rows.len(), "{step:?}");
        assert_eq!(table.is_empty(), rows.is_empty());
        assert_eq!(sorted(table, now), rows, "{step:?}");
    }
}

proptest! {
    /// Single set: every eviction can be predicted.
    #[test]
    fn one_set_does_what_a_list_does(
        seed: u64,
        steps in prop::collection::vec(a_step(6), 1..160),
    ) {
        both(&mut FlowTable::new(FEW, seed), &mut Oracle::new(FEW), &steps);
    }

    /// Table far larger than its content: nothing is evicted.
    #[test]
    fn a_roomy_table_forgets_nothing(
        seed: u64,
        steps in prop::collection::vec(a_step(4), 1..160),
    ) {
        both(&mut FlowTable::new(16_384, seed), &mut Oracle::new(usize::MAX), &steps);
    }

    /// A port that sprays headers fills unused room, and then evicts its own flows.
    #[test]
    fn a_port_that_sprays_keys_evicts_its_own(seed: u64, victims in 1..4u32) {
        let mut table = FlowTable::new(1024, seed);
        let mask = masks()[0];
        // Together they have a little less than their shares.
        let each = 1000 / u64::from(victims + 1);
        let theirs = (1..=victims).flat_map(|port| (0..each).map(move |n| key(port, n, 1)));
        let theirs: Vec<_> = theirs.collect();
        for key in &theirs {
            prop_assert!(table.install(key, &mask, Action::to(2), Origin::default(), 0));
        }
        // By chance a set gets more of them than it has room, so that they evict one another. One
        // that is full with them has nothing for a sprayer below its share but the oldest of them.
        let hash_of = |key: &FlowKey| table.tuples[0].hash.hash(&key.masked(&mask));
        prop_assume!(!theirs.iter().any(|key| table.index.is_full_at(hash_of(key))));
        let installed = table.len();
        for n in 0..20_000 {
            table.install(&key(9, n, 2), &mask, Action::to(1), Origin::default(), 100 + n);
        }
        prop_assert!(table.len() <= 1024);
        let kept = theirs.iter().filter(|key| table.lookup(key, 9_000).is_some()).count();
        prop_assert_eq!(kept, installed, "none is lost to the sprayer");
        let sprayed = table.records(0).len() - kept;
        prop_assert!(sprayed as u64 >= each, "the sprayer has {} flows", sprayed);
    }

    /// A port above its share returns room when others need it.
    #[test]
    fn a_late_port_gets_its_share(seed: u64) {
        let mut table = FlowTable::new(1024, seed);
        let mask = masks()[0];
        for n in 0..5_000 {
            table.install(&key(9, n, 2), &mask, Action::to(1), Origin::default(), n);
        }
        let late: Vec<_> = (0..450).map(|n| key(1, n, 1)).collect();
        for key in &late {
            prop_assert!(table.install(key, &mask, Action::to(2), Origin::default(), 6_000));
        }
        let lost = late.iter().filter(|key| table.lookup(key, 6_000).is_none()).count();
        prop_assert_eq!(lost, 0, "at first");
        for n in 0..5_000 {
            table.install(&key(9, n, 3), &mask, Action::to(1), Origin::default(), 7_000 + n);
        }
        let lost = late.iter().filter(|key| table.lookup(key, 20_000).is_none()).count();
        prop_assert_eq!(lost, 0);
    }
}

/// Half a million flows: sets are split repeatedly, and all flows are found.
#[test]
fn a_table_grows_with_its_flows() {
    let mut table = FlowTable::new(1 << 20, 7);
    let flows = 60_000;
    for n in 0..flows {
        assert!(table.install(
            &key(1, n, 1),
            &masks()[0],
            Action::to(n as u32),
            Origin::default(),
            0
        ));
    }
    for n in (0..flows).step_by(7) {
        assert_eq!(table.lookup(&key(1, n, 1), 0), Some(Action::to(n as u32)));
    }
    assert_eq!(table.len() as u64, flows);
}

#[test]
fn a_sweep_resumes_where_it_stopped() {
    let mut table = FlowTable::new(64, 1);
    for n in 0..40 {
        table.install(
            &key(1, n, 1),
            &masks()[0],
            Action::to(2),
            Origin::default(),
            n,
        );
    }
    assert_eq!(table.expire_some(50, 30, 8), 8);
    assert_eq!(table.expire_some(50, 30, 8), 8);
    // Of the next 24, four exceed the idle timeout.
    assert_eq!(table.expire_some(50, 30, 24), 4);
    assert_eq!(table.len(), 20);
    assert_eq!(table.expire_some(90, 30, usize::MAX), 20);
    assert_eq!(table.expire_some(90, 30, 8), 0);
}

#[test]
fn an_empty_table_has_nothing_to_sweep_and_nothing_to_find() {
    let mut table = FlowTable::new(0, 1);
    assert_eq!(table.expire_some(1, 0, 8), 0);
    assert_eq!(table.lookup(&key(1, 1, 1), 0), None);
    assert_eq!(stations(&mut table, 0, u32::MAX), BTreeMap::new());
    let effort = &mut Effort::default();
    let all = table.forget_outdated(&OutdatedFlows::ports(vec![PortId(1)]), 0, effort);
    assert_eq!(all, Progress::Done);
    let all = table.forget_station(SegmentId(1), MacAddr::from_u64(1), 0, effort);
    assert_eq!(all, Progress::Done);
}

#[test]
fn a_flow_keeps_its_count_when_its_action_changes() {
    let mut table = FlowTable::new(64, 1);
    let (mask, k) = (masks()[0], key(1, 2, 3));
    table.install(&k, &mask, Action::to(2), Origin::default(), 1);
    table.lookup(&k, 2);
    table.lookup(&k, 3);
    let origin = Origin {
        segment: Some(SegmentId(4)),
        class: Class::new(3).with_change(ConnectionChange::Deny),
        source: SourceRole::Holder,
        rules: 0,
    };
    table.install(&k, &mask, Action::to(3), origin, 5);
    let records = table.records(8);
    assert_eq!((records.len(), table.len()), (1, 1));
    assert_eq!((records[0].packets, records[0].idle_ms), (2, 3));
    assert_eq!(records[0].origin, origin);
    assert_eq!(table.lookup(&k, 9), Some(Action::to(3)));
}

#[test]
fn a_class_and_what_commits_share_a_byte() {
    for number in 0..=u8::MAX {
        let class = Class::new(number);
        let stored = if number < 16 { number } else { 0 };
        assert_eq!((class.number(), class.commits()), (stored, false));
        let denies = class.with_change(ConnectionChange::Deny);
        let commit = |mark, reply| class.with_change(ConnectionChange::Commit { mark, reply });
        let all = [
            denies,
            commit(0, false),
            commit(0, true),
            commit(9, false),
            commit(9, true),
        ];
        for changes in all {
            assert_eq!((changes.number(), changes.commits()), (stored, true));
            assert_eq!((class.bits() & 1, changes.bits() & 1), (0, 0));
            assert_eq!(Class::from_bits(changes.bits() | 1), changes);
            assert_ne!(changes, class);
            assert_eq!(changes.with_change(ConnectionChange::None), class);
            let renumbered = changes.renumbered(Class::new(5));
            assert_eq!((renumbered.number(), renumbered.mark()), (5, 0));
            assert_eq!(renumbered.is_answer(), changes.is_answer());
        }
        assert_eq!(all.map(Class::is_answer), [false, false, true, false, true]);
        let mark = stored + 1;
        assert_eq!(all.map(Class::mark), [0, 0, 0, mark, mark]);
    }
}

#[test]
fn masks_are_bounded() {
    let mut table = FlowTable::new(256, 1);
    let mask = |n: u64| FlowMask::from_words([0, 1 + n, 0, 0, 0, 0, 0, 0]);
    let installed = (0..140).filter(|n| {
        table.install(
            &key(1, 1, 0xff),
            &mask(*n),
            Action::to(1),
            Origin::default(),
            0,
        )
    });
    assert_eq!(installed.count(), 128);
    assert_eq!(table.len(), 128);
}

#[test]
fn records_show_the_masked_key() {
    let mut table = FlowTable::new(FEW, 1);
    let (mask, k) = (masks()[1], key(3, 2, 1));
    assert!(table.install(&k, &mask, Action::to(9), Origin::default(), 0));
    assert_eq!(table.lookup(&k, 0), Some(Action::to(9)));
    let record = &table.records(0)[0];
    assert_eq!(record.key, *k.masked(&mask).words());
    assert_eq!(record.mask, *mask.words());
}
