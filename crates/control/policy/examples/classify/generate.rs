//! Rule sets like those of ClassBench (Taylor, Turner: ClassBench: A Packet Classification
//! Benchmark, 2005), from a seed: access lists of routers (acl), firewalls (fw) and IP chains
//! (ipc). The shares of prefix lengths, port classes and protocols follow that paper and those that
//! use its seeds; addresses share networks, as there.

use std::collections::HashSet;

use wire::hash::SplitMix64;

/// Numbers that look random.
pub(crate) struct Rng(SplitMix64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.number()
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// One of the values, by their weights.
    fn by_weight<T: Copy>(&mut self, values: &[(u64, T)]) -> T {
        let total = values.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(total);
        for (weight, value) in values {
            match at.checked_sub(*weight) {
                None => return *value,
                Some(left) => at = left,
            }
        }
        values[0].1
    }

    /// Small numbers more often than large ones.
    fn skewed(&mut self, end: u64) -> u64 {
        let (a, b) = (self.below(end), self.below(end));
        a * b / end
    }
}

/// A rule of five fields: prefixes, a protocol, ranges of ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Five {
    pub(crate) source: (u32, u8),
    pub(crate) destination: (u32, u8),
    pub(crate) protocol: Option<u8>,
    pub(crate) source_ports: (u16, u16),
    pub(crate) destination_ports: (u16, u16),
}

#[derive(Clone, Copy)]
enum Ports {
    Any,
    High,
    Low,
    One,
    Range,
}

type Weights<T> = &'static [(u64, T)];

/// Parameters of one kind of rule sets.
pub(crate) struct Flavour {
    pub(crate) name: &'static str,
    lengths: Weights<(u8, u8)>,
    source_ports: Weights<Ports>,
    destination_ports: Weights<Ports>,
    protocols: Weights<Option<u8>>,
}

pub(crate) const FLAVOURS: [Flavour; 3] = [
    Flavour {
        name: "acl",
        lengths: &[
            (30, (32, 32)),
            (14, (24, 32)),
            (12, (16, 32)),
            (9, (0, 32)),
            (8, (32, 24)),
            (7, (24, 24)),
            (6, (28, 30)),
            (5, (0, 24)),
            (4, (20, 27)),
            (3, (32, 0)),
            (2, (0, 16)),
        ],
        source_ports: &[(98, Ports::Any), (2, Ports::One)],
        destination_ports: &[
            (20, Ports::Any),
            (8, Ports::High),
            (2, Ports::Low),
            (55, Ports::One),
            (15, Ports::Range),
        ],
        protocols: &[(78, Some(6)), (12, Some(17)), (4, Some(1)), (6, None)],
    },
    Flavour {
        name: "fw",
        lengths: &[
            (24, (0, 32)),
            (16, (32, 0)),
            (14, (0, 24)),
            (10, (24, 0)),
            (9, (32, 32)),
            (8, (16, 32)),
            (6, (24, 24)),
            (5, (0, 16)),
            (4, (28, 0)),
            (3, (8, 24)),
            (1, (0, 0)),
        ],
        source_ports: &[
            (58, Ports::Any),
            (20, Ports::High),
            (16, Ports::One),
            (6, Ports::Range),
        ],
        destination_ports: &[
            (28, Ports::Any),
            (10, Ports::High),
            (4, Ports::Low),
            (46, Ports::One),
            (12, Ports::Range),
        ],
        protocols: &[(58, Some(6)), (24, Some(17)), (8, Some(1)), (10, None)],
    },
    Flavour {
        name: "ipc",
        lengths: &[
            (34, (32, 32)),
            (13, (24, 32)),
            (11, (32, 24)),
            (9, (24, 24)),
            (8, (0, 32)),
            (7, (32, 0)),
            (6, (16, 24)),
            (5, (27, 29)),
            (4, (20, 20)),
            (2, (0, 24)),
            (1, (8, 8)),
        ],
        source_ports: &[
            (64, Ports::Any),
            (10, Ports::High),
            (20, Ports::One),
            (6, Ports::Range),
        ],
        destination_ports: &[
            (44, Ports::Any),
            (6, Ports::High),
            (2, Ports::Low),
            (38, Ports::One),
            (10, Ports::Range),
        ],
        protocols: &[(60, Some(6)), (24, Some(17)), (8, Some(1)), (8, None)],
    },
];

const SERVICES: [u16; 12] = [80, 443, 22, 25, 53, 110, 143, 3306, 5432, 8080, 1433, 6379];

fn ports(rng: &mut Rng, class: Ports) -> (u16, u16) {
    match class {
        Ports::Any => (0, 65535),
        Ports::High => (1024, 65535),
        Ports::Low => (0, 1023),
        Ports::One => {
            let port = match rng.below(4) {
                0 => rng.below(65536) as u16,
                _ => SERVICES[rng.skewed(12) as usize],
            };
            (port, port)
        }
        Ports::Range => {
            let from = rng.below(60000) as u16;
            (from, from + 1 + rng.skewed(5000) as u16)
        }
    }
}

/// A prefix; those of the same net share it, and nets are nested.
fn prefix(rng: &mut Rng, len: u8, spread: u64) -> (u32, u8) {
    let nets = [
        rng.skewed(24),
        rng.skewed(60),
        rng.skewed(64 + spread / 40),
        rng.below(256),
    ];
    let hashed = nets.map(|part| (part * 167 + 10) as u8);
    let address = u32::from_be_bytes([hashed[0], hashed[1], hashed[2], nets[3] as u8]);
    let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
    (address & mask, len)
}

/// So many different rules, the narrower ones first as a rule.
pub(crate) fn rules(flavour: &Flavour, count: usize, seed: u64) -> Vec<Five> {
    let mut rng = Rng::new(seed);
    let mut seen = HashSet::new();
    let mut rules = Vec::with_capacity(count);
    while rules.len() < count {
        let (source, destination) = rng.by_weight(flavour.lengths);
        let protocol = rng.by_weight(flavour.protocols);
        let transport = matches!(protocol, Some(6 | 17));
        let mut class = |classes| {
            let class = rng.by_weight(classes);
            ports(&mut rng, if transport { class } else { Ports::Any })
        };
        let (source_ports, destination_ports) = (
            class(flavour.source_ports),
            class(flavour.destination_ports),
        );
        let five = Five {
            source: prefix(&mut rng, source, count as u64),
            destination: prefix(&mut rng, destination, count as u64),
            protocol,
            source_ports,
            destination_ports,
        };
        if seen.insert(five) {
            rules.push((
                u64::from(source) + u64::from(destination) + rng.below(16),
                five,
            ));
        }
    }
    rules.sort_by_key(|(turn, _)| std::cmp::Reverse(*turn));
    rules.into_iter().map(|(_, five)| five).collect()
}

/// A packet's five fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Header {
    pub(crate) source: u32,
    pub(crate) destination: u32,
    pub(crate) protocol: u8,
    pub(crate) ports: (u16, u16),
}

/// A header that a rule matches, in nine of ten cases; some rules are met more often than others.
/// Else one that is near.
pub(crate) fn header(rng: &mut Rng, rules: &[Five]) -> Header {
    let five = rules[rng.skewed(rules.len() as u64) as usize];
    let within = |rng: &mut Rng, (bits, len): (u32, u8)| {
        bits | (rng.next() as u32).checked_shr(len.into()).unwrap_or(0)
    };
    let port =
        |rng: &mut Rng, (from, to): (u16, u16)| from + rng.below(u64::from(to - from) + 1) as u16;
    let other = [6, 17, 6, 1][rng.below(4) as usize];
    let mut header = Header {
        source: within(rng, five.source),
        destination: within(rng, five.destination),
        protocol: five.protocol.unwrap_or(other),
        ports: (
            port(rng, five.source_ports),
            port(rng, five.destination_ports),
        ),
    };
    if rng.below(10) == 0 {
        header.destination ^= (rng.next() as u32) >> rng.below(32);
        header.ports.1 = rng.next() as u16;
    }
    header
}
