//! Reference classifiers: tuple space search with priority pruning, and TupleMerge (Daly et al.:
//! TupleMerge: Fast Software Packet Processing for Online Packet Classification, 2019), in short.
//! They find the rule and compute no masks.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::generate::{Five, Header};

/// Rules of a bucket at most, before TupleMerge takes a narrower table.
const BUCKET: usize = 10;

/// Multiply and fold: no hash with a secret, for speed.
#[derive(Default)]
pub(crate) struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
        self.0 = wide as u64 ^ (wide >> 64) as u64;
    }
}

/// How many first bits of each field a table's keys have.
type Lengths = [u8; 5];
type MaskedKey = [u64; 2];

struct Table {
    lengths: Lengths,
    first: usize,
    buckets: HashMap<MaskedKey, Vec<usize>, BuildHasherDefault<Fold>>,
}

fn top(value: u64, width: u8, len: u8) -> u64 {
    let drop = u32::from(width - len);
    value
        .checked_shr(drop)
        .unwrap_or(0)
        .checked_shl(drop)
        .unwrap_or(0)
}

fn masked(header: &Header, lengths: &Lengths) -> MaskedKey {
    let source = top(header.source.into(), 32, lengths[0]);
    let destination = top(header.destination.into(), 32, lengths[1]);
    let protocol = top(header.protocol.into(), 8, lengths[2]);
    let ports = [
        top(header.ports.0.into(), 16, lengths[3]),
        top(header.ports.1.into(), 16, lengths[4]),
    ];
    [
        source << 32 | destination,
        protocol << 32 | ports[0] << 16 | ports[1],
    ]
}

fn shared((from, to): (u16, u16)) -> u8 {
    (from ^ to).leading_zeros() as u8
}

fn lengths_of(rule: &Five) -> Lengths {
    let protocol = if rule.protocol.is_some() { 8 } else { 0 };
    let ports = [shared(rule.source_ports), shared(rule.destination_ports)];
    [
        rule.source.1,
        rule.destination.1,
        protocol,
        ports[0],
        ports[1],
    ]
}

/// A header that the rule matches.
fn corner(rule: &Five) -> Header {
    Header {
        source: rule.source.0,
        destination: rule.destination.0,
        protocol: rule.protocol.unwrap_or(0),
        ports: (rule.source_ports.0, rule.destination_ports.0),
    }
}

pub(crate) fn matches(rule: &Five, header: &Header) -> bool {
    let within =
        |(bits, len): (u32, u8), address: u32| (bits ^ address).leading_zeros() >= len.into();
    let between = |(from, to): (u16, u16), port| from <= port && port <= to;
    within(rule.source, header.source)
        && within(rule.destination, header.destination)
        && rule.protocol.is_none_or(|p| p == header.protocol)
        && between(rule.source_ports, header.ports.0)
        && between(rule.destination_ports, header.ports.1)
}

/// Tables by tuple, those with the earliest rules first.
pub(crate) struct Tuples<'r> {
    rules: &'r [Five],
    tables: Vec<Table>,
}

impl<'r> Tuples<'r> {
    /// Each rule in the table of its own lengths.
    pub(crate) fn exact(rules: &'r [Five]) -> Self {
        Self::build(rules, |tables, at, rule| {
            let lengths = lengths_of(rule);
            Self::table(tables, lengths, at)
        })
    }

    /// Each rule in a table that is wide enough and has room for it.
    pub(crate) fn merged(rules: &'r [Five]) -> Self {
        Self::build(rules, |tables, at, rule| {
            let own = lengths_of(rule);
            let fits = |table: &Table| {
                let key = masked(&corner(rule), &table.lengths);
                let wide = (0..5).all(|i| table.lengths[i] <= own[i]);
                wide && table.buckets.get(&key).is_none_or(|all| all.len() < BUCKET)
            };
            if let Some(found) = tables.iter().position(fits) {
                return found;
            }
            let [source, destination, protocol, ports @ ..] = own;
            let (wide_source, wide_destination) = (source / 8 * 8, destination / 8 * 8);
            let ports = if source.max(destination) < 16 {
                ports
            } else {
                [0, 0]
            };
            let wide = [wide_source, wide_destination, 0, ports[0], ports[1]];
            let taken = tables.iter().any(|table| table.lengths == wide);
            let lengths = if taken { own } else { wide };
            let _ = protocol;
            Self::table(tables, lengths, at)
        })
    }

    fn build(rules: &'r [Five], choose: impl Fn(&mut Vec<Table>, usize, &Five) -> usize) -> Self {
        let mut tables = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            let chosen = choose(&mut tables, at, rule);
            let table = &mut tables[chosen];
            let key = masked(&corner(rule), &table.lengths);
            table.buckets.entry(key).or_default().push(at);
        }
        tables.sort_by_key(|table| table.first);
        Self { rules, tables }
    }

    fn table(tables: &mut Vec<Table>, lengths: Lengths, first: usize) -> usize {
        let found = tables.iter().position(|table| table.lengths == lengths);
        found.unwrap_or_else(|| {
            let buckets = HashMap::default();
            tables.push(Table {
                lengths,
                first,
                buckets,
            });
            tables.len() - 1
        })
    }

    pub(crate) fn tables(&self) -> usize {
        self.tables.len()
    }

    /// The first rule that matches.
    pub(crate) fn find(&self, header: &Header) -> Option<usize> {
        let mut first = usize::MAX;
        for table in &self.tables {
            if table.first > first {
                break;
            }
            let key = masked(header, &table.lengths);
            let rules = table.buckets.get(&key).into_iter().flatten();
            let mut before = rules.take_while(|at| **at < first);
            if let Some(at) = before.find(|at| matches(&self.rules[**at], header)) {
                first = *at;
            }
        }
        (first != usize::MAX).then_some(first)
    }
}
