//! Cost of access lists: compiling, changing a rule, deciding, and the number of flows and masks;
//! beside two other classifiers.
//!
//! ```sh
//! cargo run --release -p lasthop-policy --example classify
//! cargo run --release -p lasthop-policy --example classify -- 10000
//! ```
//!
//! The rules and the traffic are the same each time. `docs/benchmarks/classifier.md` has its
//! output.

mod generate;
mod scan;
mod tuples;

use std::collections::{BTreeMap, HashSet};
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use policy::acl::{
    AccessListSpec, AccessModel, Change, Direction, Names, PortText, RuleAction, RuleSpec, Rules,
};
use policy::{Lookup, Model, PortId, PortMode, Program, Segment, SegmentId, decide};
use wire::flow::FlowKey;
use wire::{EtherType, MacAddr};

use generate::{FLAVOURS, Five, Flavour, Header, Rng};
use tuples::Tuples;

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
/// Keys of the random traffic.
const KEYS: usize = 100_000;
/// Time for one figure.
const WINDOW: Duration = Duration::from_millis(400);
const LAN: SegmentId = SegmentId(0);

/// The receiver is known, as for most frames.
struct KnownReceiver;

impl Lookup for KnownReceiver {
    fn port_of(&self, _: SegmentId, _: MacAddr) -> Option<PortId> {
        Some(PortId(2))
    }

    fn is_barred(&self, _: SegmentId, _: MacAddr, _: PortId) -> bool {
        false
    }
}

fn spec(at: usize, five: &Five) -> RuleSpec {
    let prefix = |(bits, len): (u32, u8)| match len {
        0 => Vec::new(),
        _ => vec![format!("{}/{len}", Ipv4Addr::from_bits(bits))],
    };
    let ports = |(from, to): (u16, u16)| match (from, to) {
        (0, 65535) => Vec::new(),
        _ => vec![PortText::Text(format!("{from}-{to}"))],
    };
    RuleSpec {
        name: format!("r{at}"),
        action: [RuleAction::Allow, RuleAction::Drop][at % 3 / 2],
        ether_type: Some("ipv4".to_owned()),
        source: prefix(five.source),
        destination: prefix(five.destination),
        protocol: five.protocol.map(|p| p.to_string()),
        source_ports: ports(five.source_ports),
        destination_ports: ports(five.destination_ports),
        ..RuleSpec::default()
    }
}

fn model_of(rules: Vec<RuleSpec>) -> AccessModel {
    let list = AccessListSpec {
        name: "list".to_owned(),
        direction: Direction::FromGuest,
        segments: vec!["lan".to_owned()],
        groups: Vec::new(),
        ports: Vec::new(),
        rules: rules.into(),
    };
    AccessModel {
        lists: vec![list],
        ..AccessModel::default()
    }
}

fn network() -> Model {
    let (name, vlan) = ("lan".to_owned(), None);
    Model {
        segments: BTreeMap::from([(LAN, Segment { name, vlan })]),
        ports: [1, 2].map(|id| (PortId(id), PortMode::Access(LAN))).into(),
    }
}

fn compile(model: &AccessModel) -> (Rules, usize) {
    let network = network();
    let names = Names {
        segments: &network.segments,
        ports: &BTreeMap::new(),
        classes: &BTreeMap::new(),
    };
    let compiled = Rules::compile(model, names).expect("rules that compile");
    (compiled.rules, compiled.shadowed.len())
}

fn program(rules: Rules) -> Program {
    let program = Program::compile(&network(), 1).expect("a model that compiles");
    program.with_rules(rules, 2)
}

fn key(header: &Header) -> FlowKey {
    let transport = [6, 17].contains(&header.protocol);
    let ports = if transport { header.ports } else { (0, 0) };
    FlowKey::default()
        .with_in_port(1)
        .with_smac(MacAddr([2, 0, 0, 0, 0, 1]))
        .with_dmac(MacAddr([2, 0, 0, 0, 0, 2]))
        .with_ethertype(EtherType::IPV4)
        .with_src_ip(header.source.into())
        .with_dst_ip(header.destination.into())
        .with_ip_proto(header.protocol)
        .with_l4_ports(ports.0, ports.1)
}

/// Nanoseconds of one call, with each of the arguments in turn.
fn nanoseconds<T>(all: &[T], mut call: impl FnMut(&T)) -> f64 {
    let (start, mut calls) = (Instant::now(), 0_u64);
    while start.elapsed() < WINDOW {
        all.iter().for_each(&mut call);
        calls += all.len() as u64;
    }
    start.elapsed().as_nanos() as f64 / calls as f64
}

/// Bytes of this process in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * 4096
}

/// Microseconds of changing one rule, the whole program with it.
fn change(program: &Program, rules: &[RuleSpec]) -> f64 {
    let mut rng = Rng::new(5);
    let (mut total, rounds) = (Duration::ZERO, 64);
    for _ in 0..rounds {
        let mut rule = rules[rng.below(rules.len() as u64) as usize].clone();
        rule.destination = vec![format!("{}/32", Ipv4Addr::from_bits(rng.next() as u32))];
        let (list, rule) = ("list".to_owned(), Box::new(rule));
        let change = Change::Put { list, rule };
        let start = Instant::now();
        let changed = program.rules().change(&change).expect("a change");
        let next = program.with_rules(changed.rules, program.epoch() + 1);
        total += start.elapsed();
        black_box(next);
    }
    total.as_micros() as f64 / f64::from(rounds)
}

/// The rule that decides must be the one that the others find.
fn compare(rules: &Rules, tuples: &[&Tuples<'_>], headers: &[Header]) {
    for header in headers {
        let (ruling, _) = rules.evaluate(Direction::FromGuest, LAN, PortId(1), &key(header));
        let name = ruling.rule().map(|rule| rule.name.to_string());
        for other in tuples {
            let found = other.find(header).map(|at| format!("r{at}"));
            assert_eq!(name, found, "{header:?}");
        }
    }
}

fn measure(flavour: &Flavour, size: usize) {
    let fives = generate::rules(flavour, size, 1);
    let specs: Vec<_> = fives
        .iter()
        .enumerate()
        .map(|(at, five)| spec(at, five))
        .collect();
    let model = model_of(specs.clone());
    let (before, start) = (resident(), Instant::now());
    let (rules, shadowed) = compile(&model);
    let compiled = start.elapsed().as_millis();
    let memory = resident().saturating_sub(before) >> 20;
    let mut rng = Rng::new(2);
    let headers: Vec<_> = (0..KEYS)
        .map(|_| generate::header(&mut rng, &fives))
        .collect();
    let (exact, merged) = (Tuples::exact(&fives), Tuples::merged(&fives));
    let near = |header: &&Header| [6, 17].contains(&header.protocol) || header.ports == (0, 0);
    let same: Vec<_> = headers.iter().filter(near).take(20_000).copied().collect();
    compare(&rules, &[&exact, &merged], &same);
    let keys: Vec<_> = headers.iter().map(key).collect();
    let program = program(rules);
    let ask = nanoseconds(&keys, |key| {
        black_box(
            program
                .rules()
                .evaluate(Direction::FromGuest, LAN, PortId(1), key),
        );
    });
    let decision = nanoseconds(&keys, |key| {
        black_box(decide(&program, &KnownReceiver, key));
    });
    let search = |tuples: &Tuples<'_>| {
        nanoseconds(&headers, |header| {
            black_box(tuples.find(header));
        })
    };
    let change = change(&program, &specs);
    println!(
        "{:>4} {size:>7} | {compiled:>6} ms {memory:>4} MB {change:>6.0} us {shadowed:>6} | \
         {ask:>6.0} {decision:>6.0} ns \
         | {:>7.0} ns {:>4} | {:>7.0} ns {:>4}",
        flavour.name,
        search(&exact),
        exact.tables(),
        search(&merged),
        merged.tables(),
    );
    flows(&program, &keys);
}

/// How many flows and masks the traffic makes.
fn flows(program: &Program, keys: &[FlowKey]) {
    let (mut narrow, mut rounded) = (HashSet::new(), HashSet::new());
    let (mut narrow_masks, mut masks) = (HashSet::new(), HashSet::new());
    let mut exact = HashSet::new();
    for key in keys {
        let (_, mask) = program
            .rules()
            .evaluate(Direction::FromGuest, LAN, PortId(1), key);
        let decision = decide(program, &KnownReceiver, key);
        exact.insert(*key);
        narrow.insert((mask, key.masked(&mask)));
        narrow_masks.insert(mask);
        rounded.insert((decision.mask, key.masked(&decision.mask)));
        masks.insert(decision.mask);
    }
    println!(
        "             | {:>6} keys: {:>6} flows of {:>4} masks as narrow as can be, {:>6} of {:>2} \
         masks rounded",
        exact.len(),
        narrow.len(),
        narrow_masks.len(),
        rounded.len(),
        masks.len(),
    );
}

fn main() {
    let desired: Option<usize> = std::env::args().nth(1).and_then(|text| text.parse().ok());
    scan::print();
    println!(
        "               compile, memory, change, shadowed | ask, decide | tuple space, tables | \
         TupleMerge, tables"
    );
    for flavour in &FLAVOURS {
        for size in SIZES
            .into_iter()
            .filter(|size| desired.is_none_or(|w| w == *size))
        {
            measure(flavour, size);
        }
    }
}
