//! Test cases from bytes: models, keys and changes, and the properties that must hold.

use std::collections::{BTreeMap, HashSet};

use super::*;
use crate::acl::class_key::{ClassKey, Wildcards};
use crate::acl::{
    AddressSet, Change, CompiledRules, Group, LogSpec, Place, RuleId, Rules, Ruling, SegmentDefault,
};
use crate::model::Segment;
use wire::flow::FlowMask;

/// Bytes that define a case; zeros follow the last.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// Returns true once in so many times.
    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len())]
    }

    fn some_of(&mut self, from: &[&str], most: usize) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for _ in 0..self.below(most + 1) {
            let one = self.pick(from).to_string();
            if !all.contains(&one) {
                all.push(one);
            }
        }
        all
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}

const PORTS: [&str; 4] = ["p0", "p1", "p2", "p3"];
const SEGMENTS: [&str; 2] = ["s0", "s1"];
const GROUPS: [&str; 3] = ["g0", "g1", "g2"];
const SETS: [&str; 2] = ["@a", "@b"];
/// TCP and UDP ports at the edges of ranges.
const NUMBERS: [u16; 8] = [0, 22, 80, 81, 443, 1023, 1024, 65535];
const PROTOCOLS: [&str; 8] = ["tcp", "udp", "tcp", "icmp", "icmpv6", "icmpv6", "47", "0"];
/// ICMP types; in ICMPv6 the last two are those of neighbour discovery.
const TYPES: [u8; 6] = [0, 1, 2, 3, 135, 136];
const FLAGS: [&str; 4] = ["syn/syn,ack", "/syn", "ack/ack", "rst,ack/rst,ack,fin"];
const MACS: [&str; 4] = [
    "02:00:00:00:00:01",
    "02:00:00:00:00:02",
    "02:00:00:00:00:00/ff:ff:ff:00:00:00",
    "01:00:00:00:00:00/01:00:00:00:00:00",
];

/// Returns an address of a few with long common prefixes.
fn address(bytes: &mut Bytes<'_>, v6: bool) -> u128 {
    let high = [0x0a00_0000, 0x0a00_0100, 0x0a01_0000, 0xc0a8_0000][bytes.below(4)];
    let low: u128 = (high | u32::from(bytes.byte() & 0x3f)).into();
    if v6 {
        0x2001_0db8 << 96 | low << [0, 64, 30][bytes.below(3)]
    } else {
        low
    }
}

fn prefix(bytes: &mut Bytes<'_>) -> String {
    let v6 = bytes.one_in(4);
    let (width, lengths) = if v6 {
        (128, [128, 96, 126, 64, 63, 34, 100, 0])
    } else {
        (32, [32, 30, 26, 24, 16, 8, 31, 0])
    };
    let len: u32 = *bytes.pick(&lengths);
    let bits = address(bytes, v6);
    let bits = bits & u128::MAX.checked_shl(width - len).unwrap_or(0);
    if v6 {
        format!("{}/{len}", Ipv6Addr::from_bits(bits))
    } else {
        format!("{}/{len}", Ipv4Addr::from_bits(bits as u32))
    }
}

fn addresses(bytes: &mut Bytes<'_>) -> Vec<String> {
    match bytes.below(8) {
        0..=2 => Vec::new(),
        3 => vec![bytes.pick(&SETS).to_string()],
        4 => vec![bytes.pick(&SETS).to_string(), prefix(bytes)],
        5 => (0..bytes.below(4)).map(|_| prefix(bytes)).collect(),
        _ => vec![prefix(bytes)],
    }
}

fn number(bytes: &mut Bytes<'_>) -> u16 {
    let near = *bytes.pick(&NUMBERS);
    near.wrapping_add([0, 0, 1, u16::MAX][bytes.below(4)])
}

fn numbers(bytes: &mut Bytes<'_>) -> Vec<PortText> {
    let count = [0, 0, 1, 1, 2][bytes.below(5)];
    let one = |_| {
        let (a, b) = (number(bytes), number(bytes));
        match bytes.below(3) {
            0 => PortText::Number(a.into()),
            _ => PortText::Text(format!("{}-{}", a.min(b), a.max(b))),
        }
    };
    (0..count).map(one).collect()
}

fn rule(bytes: &mut Bytes<'_>, name: String, direction: Direction) -> RuleSpec {
    let actions = [
        RuleAction::Allow,
        RuleAction::Drop,
        RuleAction::Reject,
        RuleAction::AllowStateful,
    ];
    let mut rule = RuleSpec {
        name,
        priority: bytes.below(4) as u32,
        action: *bytes.pick(&actions),
        source: addresses(bytes),
        destination: addresses(bytes),
        ..RuleSpec::default()
    };
    if bytes.one_in(8) {
        rule.source_mac = Some(bytes.pick(&MACS).to_string());
        rule.destination_mac = bytes.one_in(2).then(|| bytes.pick(&MACS).to_string());
        rule.vlan = bytes.one_in(2).then(|| bytes.below(3) as i64);
    }
    if bytes.one_in(6) {
        let types = ["ipv4", "ipv6", "arp", "0x88cc"];
        rule.ether_type = Some(bytes.pick(&types).to_string());
    }
    if direction == Direction::ToGuest && bytes.one_in(4) {
        rule.peer_ports = bytes.some_of(&PORTS, 2);
        rule.peer_groups = bytes.some_of(&GROUPS, 1);
    }
    if bytes.one_in(10) {
        let pieces = [Pieces::Whole, Pieces::First, Pieces::Later];
        rule.fragment = Some(*bytes.pick(&pieces));
    }
    rule.log = bytes.one_in(8).then_some(LogSpec { per_second: 1 });
    if !bytes.one_in(3) {
        transport_of(bytes, &mut rule);
    }
    rule
}

fn transport_of(bytes: &mut Bytes<'_>, rule: &mut RuleSpec) {
    let protocol = *bytes.pick(&PROTOCOLS);
    rule.protocol = Some(protocol.to_owned());
    match protocol {
        "tcp" | "udp" => {
            rule.source_ports = numbers(bytes);
            rule.destination_ports = numbers(bytes);
        }
        "icmp" | "icmpv6" => {
            rule.icmp_type = bytes.one_in(2).then(|| *bytes.pick(&TYPES));
            rule.icmp_code = rule.icmp_type.map(|_| bytes.byte() & 1);
        }
        _ => {}
    }
    if protocol == "tcp" && bytes.one_in(4) {
        rule.tcp_flags = Some(bytes.pick(&FLAGS).to_string());
    }
}

fn list(bytes: &mut Bytes<'_>, number: usize) -> AccessListSpec {
    let direction = [Direction::FromGuest, Direction::ToGuest][bytes.below(2)];
    let most = [4, 12, 40][bytes.below(3)];
    let rules = 0..bytes.below(most);
    AccessListSpec {
        name: format!("l{number}"),
        direction,
        segments: bytes.some_of(&SEGMENTS, 2),
        groups: bytes.some_of(&GROUPS, 1),
        ports: bytes.some_of(&PORTS, 2),
        rules: rules
            .map(|n| rule(bytes, format!("r{n}"), direction))
            .collect(),
    }
}

fn model(bytes: &mut Bytes<'_>) -> AccessModel {
    let set = |(bytes, name): (&mut Bytes<'_>, &str)| AddressSet {
        name: name[1..].to_owned(),
        addresses: (0..bytes.below(20)).map(|_| prefix(bytes)).collect(),
    };
    let sets = SETS.map(|name| set((bytes, name)));
    let groups = GROUPS.map(|name| Group {
        name: name.to_owned(),
        ports: bytes.some_of(&PORTS, 3),
    });
    let otherwise = [Otherwise::Allow, Otherwise::Deny];
    AccessModel {
        address_sets: sets.into_iter().collect(),
        groups: groups.into(),
        defaults: vec![SegmentDefault {
            segment: "s0".to_owned(),
            from_guest: *bytes.pick(&otherwise),
            to_guest: *bytes.pick(&otherwise),
        }],
        lists: (0..1 + bytes.below(4)).map(|n| list(bytes, n)).collect(),
    }
}

pub(super) fn key(bytes: &mut Bytes<'_>) -> FlowKey {
    let types = [
        0x0800, 0x0800, 0x0800, 0x86dd, 0x86dd, 0x0806, 0x88cc, 0x88a8,
    ];
    let ethertype = EtherType(*bytes.pick(&types));
    let v6 = ethertype == EtherType::IPV6;
    let states = [0, 0, 0, 0, 1, 3, 4, 8, 11, 16];
    let ct = match bytes.below(3) {
        0 => CtState::empty(),
        1 => CtState::TRACKED | CtState::INVALID,
        _ => CtState::from_bits_retain(bytes.byte()),
    };
    let mac = |bytes: &mut Bytes<'_>| MacAddr([2, 0, 0, 0, 0, bytes.byte() & 3]);
    let vlan = [None, None, Some(0), Some(1), Some(2)][bytes.below(5)];
    let key = FlowKey::default()
        .with_in_port(bytes.below(5) as u32)
        .with_ct(Ct::new(ct, bytes.byte() & 1))
        .with_vlan(vlan)
        .with_smac(mac(bytes))
        .with_dmac(mac(bytes))
        .with_ethertype(ethertype)
        .with_src_ip(address(bytes, v6))
        .with_dst_ip(address(bytes, v6))
        .with_ip_proto([6, 6, 17, 1, 58, 47, 0][bytes.below(7)])
        .with_l4_ports(number(bytes), number(bytes))
        .with_l4_flags(u16::from_le_bytes([
            bytes.byte() & 0x1f,
            *bytes.pick(&TYPES),
        ]))
        .with_state(KeyState::from_bits_truncate(*bytes.pick(&states)));
    if bytes.one_in(6) {
        discovery(bytes, key)
    } else {
        key
    }
}

/// Turns a key into neighbour discovery, which may be incomplete.
fn discovery(bytes: &mut Bytes<'_>, key: FlowKey) -> FlowKey {
    let whole = bytes.one_in(2);
    let state = if whole {
        KeyState::empty()
    } else {
        KeyState::L4_UNKNOWN
    };
    let flags = u16::from_be_bytes([135 + (bytes.byte() & 1), bytes.byte() & 1]);
    key.with_ethertype(EtherType::IPV6)
        .with_src_ip(address(bytes, true))
        .with_dst_ip(address(bytes, true))
        .with_ip_proto(58)
        .with_l4_ports(0, 0)
        .with_l4_flags(if whole { flags } else { 0 })
        .with_state(state)
}

/// The names, and the model without the rules that are refused.
pub(super) struct Case {
    segments: BTreeMap<SegmentId, Segment>,
    ports: BTreeMap<String, PortId>,
    pub(super) model: AccessModel,
}

impl Case {
    pub(super) fn new(bytes: &mut Bytes<'_>) -> Self {
        let segments = (0..).zip(SEGMENTS).map(|(id, name)| {
            let (name, vlan) = (name.to_owned(), None);
            (SegmentId(id), Segment { name, vlan })
        });
        let ports = (0..).zip(PORTS);
        Self {
            segments: segments.collect(),
            ports: ports
                .map(|(id, name)| (name.to_owned(), PortId(id)))
                .collect(),
            model: model(bytes),
        }
    }

    pub(super) fn names(&self) -> Names<'_> {
        let (segments, ports) = (&self.segments, &self.ports);
        const NO_CLASSES: &BTreeMap<String, u8> = &BTreeMap::new();
        Names {
            segments,
            ports,
            classes: NO_CLASSES,
        }
    }

    /// Compiles the model without the rules that are refused.
    pub(super) fn compile(&mut self) -> CompiledRules {
        loop {
            let error = match Rules::compile(&self.model, self.names()) {
                Ok(compiled) => return compiled,
                Err(error) => error,
            };
            assert!(!error.to_string().is_empty());
            let Place::Rule(wrong) = error.place else {
                panic!("{error}");
            };
            let lists = self.model.lists.iter_mut();
            for list in lists.filter(|list| list.name == wrong.list) {
                assert!(list.rules.remove(&wrong.rule), "a rule of the model");
            }
        }
    }

    /// Changes a rule, in the rules and in the model.
    fn change(&mut self, rules: &Rules, bytes: &mut Bytes<'_>) -> Rules {
        let at = bytes.below(self.model.lists.len());
        let list = &mut self.model.lists[at];
        let name = format!("r{}", bytes.below(list.rules.len() + 2));
        let is_there = list.rules.iter().any(|rule| rule.name == name);
        if is_there && bytes.one_in(3) {
            list.rules.remove(&name);
            let (list, rule) = (list.name.clone(), name);
            let changed = rules.change(&Change::Remove { list, rule });
            return changed.expect("a rule that is there").rules;
        }
        let new = rule(bytes, name, list.direction);
        let before = list.rules.clone();
        list.rules.put(new.clone());
        let (list, rule) = (list.name.clone(), Box::new(new));
        let changed = rules.change(&Change::Put { list, rule });
        let whole = Rules::compile(&self.model, self.names());
        assert_eq!(changed.is_ok(), whole.is_ok(), "{changed:?} {whole:?}");
        match changed {
            Ok(changed) => changed.rules,
            Err(_) => {
                self.model.lists[at].rules = before;
                rules.clone()
            }
        }
    }
}

/// Direction, segment and port of an evaluation.
type At = (Direction, SegmentId, PortId);

fn evaluate(rules: &Rules, at: At, key: &FlowKey) -> (Ruling, Wildcards) {
    let (direction, segment, port) = at;
    let mut wildcards = Wildcards::default();
    let (class_key, at) = (ClassKey::new(key), rules.scope(direction, segment, port));
    let ruling = rules.evaluate_profile(at, &class_key, &mut wildcards);
    let rounded = rules.round(&class_key, &wildcards);
    assert!(
        rounded.covers(&wildcards),
        "{rounded:?} covers {wildcards:?}"
    );
    (ruling, wildcards)
}

fn answer(ruling: &Ruling) -> Answer {
    let names = |rule: &std::sync::Arc<crate::acl::RuleInfo>| {
        assert_eq!(rule.id, RuleId::of(&rule.list, &rule.name));
        (rule.list.to_string(), rule.name.to_string())
    };
    Answer {
        verdict: ruling.verdict,
        rule: ruling.rule().map(names),
    }
}

/// Returns other keys that agree in the mask's bits.
pub(super) fn agreeing(
    key: &FlowKey,
    mask: &FlowMask,
    bytes: &mut Bytes<'_>,
    other: &FlowKey,
) -> Vec<FlowKey> {
    let with = |noise: &dyn Fn(usize) -> u64| {
        FlowKey::from_words(std::array::from_fn(|i| {
            let mask = mask.words()[i];
            key.words()[i] & mask | (key.words()[i] ^ noise(i)) & !mask
        }))
    };
    let (word, bit) = (bytes.below(8), bytes.byte() & 63);
    let random = bytes.word();
    vec![
        key.masked(mask),
        with(&|i| other.words()[i] ^ key.words()[i]),
        with(&|i| u64::from(i == word) << bit),
        with(&|i| random.rotate_left(11 * i as u32)),
        with(&|i| u64::from(i > 2) * (random & 0xffff)),
    ]
}

/// Builds a case from bytes and compares the compiled rules with the oracle: the same decisions by
/// the same rules, the same for all keys that agree in the mask's bits, no decision by a shadowed
/// rule, and changed rules equal to the compiled changed model while the old ones stay unchanged.
/// Returns the number of compared keys.
///
/// # Panics
/// When a property does not hold.
pub fn check(data: &[u8]) -> usize {
    let mut bytes = Bytes(data);
    let mut case = Case::new(&mut bytes);
    let CompiledRules { rules, shadowed } = case.compile();
    let shadowed: HashSet<_> = shadowed
        .into_iter()
        .map(|s| (s.rule.list, s.rule.rule))
        .collect();
    let keys = 24;
    let compare = |case: &Case, rules: &Rules, bytes: &mut Bytes<'_>, never: &HashSet<_>| {
        let mut masks = HashSet::new();
        for _ in 0..keys {
            let (key, other) = (key(bytes), key(bytes));
            let direction = [Direction::FromGuest, Direction::ToGuest][bytes.below(2)];
            let segment = SegmentId(bytes.below(3) as u16);
            let at = (direction, segment, PortId(bytes.below(5) as u32));
            let (ruling, wildcards) = evaluate(rules, at, &key);
            let names = case.names();
            let model = &case.model;
            let right = Oracle { model, names }.evaluate(at.0, at.1, at.2, &key);
            assert_eq!(answer(&ruling), right, "{at:?} {key:?} {model:#?}");
            assert!(right.rule.is_none_or(|rule| !never.contains(&rule)));
            let rounded = rules.round(&ClassKey::new(&key), &wildcards);
            masks.insert(rounded.add_to(crate::DECISION_MASK, key.ethertype()));
            let mask = wildcards.add_to(crate::DECISION_MASK.with_ct(), key.ethertype());
            for like in agreeing(&key, &mask, bytes, &other) {
                let same = evaluate(rules, at, &like).0;
                assert_eq!(
                    same, ruling,
                    "{key:?} and {like:?} {wildcards:?} {model:#?}"
                );
            }
        }
        assert!(masks.len() <= crate::acl::MAX_MASKS);
    };
    compare(&case, &rules, &mut bytes, &shadowed);
    let mut now = rules.clone();
    for _ in 0..3 {
        now = case.change(&now, &mut bytes);
    }
    let whole = case.compile().rules;
    assert!(now == whole, "a changed model is the same as a new one");
    compare(&case, &now, &mut bytes, &HashSet::new());
    2 * keys
}
