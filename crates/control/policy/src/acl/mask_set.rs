//! Few masks for many decisions.
//!
//! A lookup in the flow cache tries its masks in turn, and their number is limited. A decision may
//! depend on any number of first bits of addresses and ports: thousands of masks. Therefore a set
//! of rules has a small set of masks, and each decision takes the cheapest of them that covers all
//! its bits. The masks depend on the rules: sample keys near the rules' edges are decided, the bits
//! on which these decisions depend are rounded up to steps, and of the results those are chosen
//! that save most. One mask of each family has all bits, as a fallback. The choice is
//! deterministic; a bad one makes more flows than necessary, never wrong ones.

use std::sync::Arc;

use wire::EtherType;
use wire::hash::SplitMix64;

use super::class_key::{ClassKey, Family, Wildcards};
use super::list::AccessList;
use super::matcher::{Kinds, Matcher, Rule};
use super::order::Order;

/// Masks of a family, the fallback included.
const V4_MASKS: usize = 24;
const V6_MASKS: usize = 8;
/// Limit of different masks in the decisions of one program: these, and that of decisions without
/// rules.
pub const MAX_MASKS: usize = V4_MASKS + V6_MASKS + 1;
/// Sample keys, which are fewer for few rules.
const SAMPLES: usize = 3000;
const LEAST_SAMPLES: usize = 256;
const SAMPLES_PER_RULE: usize = 64;
/// First bits of addresses (IPv4, IPv6) are rounded up to multiples of these.
const ADDRESS_STEPS: [u8; 2] = [16, 64];
/// First bits of destination ports are rounded up to multiples of this. In 4 steps, a port that
/// differs from all around it costs 60 flows and 4 masks at most.
const PORT_STEP: u8 = 4;
/// First bits of source ports are rounded up to multiples of this: they differ with each
/// connection.
const SOURCE_PORT_STEP: u8 = 16;

/// A set of masks: see the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct MaskSet {
    v4: Vec<Wildcards>,
    v6: Vec<Wildcards>,
}

/// Deterministic pseudo-random numbers.
struct Rng(SplitMix64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    /// Returns up to `width` random low bits; all lengths are equally likely.
    fn low_bits(&mut self, width: u32) -> u128 {
        let random = u128::from(self.0.number()) << 64 | u128::from(self.0.number());
        let bits = self.below(width as usize + 1) as u32;
        random & u128::MAX.checked_shr(128 - bits).unwrap_or(0)
    }

    /// Returns zero or random low bits.
    fn noise(&mut self, width: u32) -> u128 {
        match self.below(2) {
            0 => 0,
            _ => self.low_bits(width),
        }
    }

    /// Returns a key near an edge of a rule, or within it; where the rule matches everything, near
    /// another one.
    fn near(&mut self, rules: &[Arc<Rule>]) -> ClassKey {
        let [rule, second, third] = [0; 3].map(|_| &rules[self.below(rules.len())].matcher);
        let [mut class_key, second, third] = [rule, second, third].map(Matcher::sample);
        if matches!(rule.kinds, Kinds::Any | Kinds::Ip) && self.below(4) == 0 {
            let others = [EtherType::IPV4, EtherType::IPV6];
            let key = class_key.key.with_ethertype(others[self.below(2)]);
            class_key = ClassKey::new(&key);
        }
        let width = class_key.family.width().into();
        let or = |said, other: &ClassKey| if said { class_key.key } else { other.key };
        let source = or(rule.source.is_some(), &second).src_ip();
        let destination = or(rule.destination.is_some(), &third).dst_ip();
        let protocol = or(rule.protocol.is_some(), &second).ip_proto();
        let source_port = or(rule.source_ports.is_some(), &second).l4_src();
        let destination_port = or(rule.destination_ports.is_some(), &third).l4_dst();
        let key = class_key
            .key
            .with_src_ip(source ^ self.noise(width))
            .with_dst_ip(destination ^ self.noise(width))
            .with_ip_proto(protocol)
            .with_l4_ports(
                source_port ^ self.noise(16) as u16,
                destination_port ^ self.noise(16) as u16,
            );
        ClassKey::new(&key)
    }
}

impl MaskSet {
    /// Returns masks for decisions by these lists.
    pub(super) fn new(lists: &[Arc<AccessList>]) -> Self {
        let mut samples = Samples::default();
        let all: usize = lists.iter().map(|list| list.len).sum();
        let mut rng = Rng(SplitMix64(1));
        for list in lists {
            let share = (SAMPLES * list.len).div_ceil(all.max(1));
            let share = share.min(LEAST_SAMPLES + SAMPLES_PER_RULE * list.len);
            samples.take(lists, list, share, &mut rng);
        }
        let mut masks = Self {
            v4: chosen(&samples.v4, V4_MASKS - 1),
            v6: chosen(&samples.v6, V6_MASKS - 1),
        };
        lists.iter().for_each(|list| masks.extend(list));
        masks
    }

    /// Extends the masks to all fields that a list may match on.
    pub(super) fn extend(&mut self, list: &AccessList) {
        let mut flags = 0;
        list.for_each(|rule| flags |= rule.matcher.flags.1);
        self.extend_flags(flags);
    }

    /// Extends the masks to these flags.
    pub(super) fn extend_flags(&mut self, flags: u16) {
        for (masks, width) in [(&mut self.v4, 32), (&mut self.v6, 128)] {
            let everything = Wildcards {
                ethertype: true,
                state: true,
                protocol: true,
                flags,
                destination: width,
                source: width,
                destination_port: 16,
                source_port: 16,
            };
            match masks.last_mut() {
                Some(last)
                    if last.destination == width
                        && last.covers(&Wildcards {
                            flags: 0,
                            ..everything
                        }) =>
                {
                    last.flags |= flags;
                }
                _ => masks.push(everything),
            }
        }
    }

    /// Returns whether there is a mask for decisions that depend on these flags.
    pub(super) fn has_flags(&self, flags: u16) -> bool {
        let masks = [&self.v4, &self.v6];
        masks
            .iter()
            .all(|masks| masks.last().is_some_and(|last| last.flags & flags == flags))
    }

    /// Returns the cheapest mask with all these bits.
    pub(super) fn cover(&self, family: Family, wildcards: &Wildcards) -> Wildcards {
        if wildcards.is_empty() {
            return *wildcards;
        }
        let masks = match family {
            Family::V4 | Family::None => &self.v4,
            Family::V6 => &self.v6,
        };
        let covering = masks.iter().filter(|mask| mask.covers(wildcards));
        let found = covering.min_by_key(|mask| cost(mask)).copied();
        found.unwrap_or(*wildcards)
    }
}

/// Bits on which sample decisions depend, with their counts.
#[derive(Default)]
struct Samples {
    v4: Vec<(Wildcards, u64)>,
    v6: Vec<(Wildcards, u64)>,
}

impl Samples {
    /// Decides some keys near rules of a list; half of them with another list, as of the receiver.
    fn take(&mut self, lists: &[Arc<AccessList>], list: &AccessList, count: usize, rng: &mut Rng) {
        let mut rules = Vec::with_capacity(list.len);
        list.for_each(|rule| rules.push(rule.clone()));
        if rules.is_empty() {
            return;
        }
        for _ in 0..count {
            let class_key = rng.near(&rules);
            let mut wildcards = wildcards_of(list, &class_key);
            let other = &lists[rng.below(lists.len())];
            if rng.below(2) == 0 && other.direction != list.direction {
                wildcards = wildcards.union(&wildcards_of(other, &class_key));
            }
            self.add(&class_key, &wildcards);
        }
    }

    fn add(&mut self, class_key: &ClassKey, wildcards: &Wildcards) {
        let v6 = class_key.ethertype == EtherType::IPV6;
        let step = ADDRESS_STEPS[usize::from(v6)];
        let wildcards = Wildcards {
            destination: wildcards.destination.next_multiple_of(step),
            source: wildcards.source.next_multiple_of(step),
            destination_port: wildcards.destination_port.next_multiple_of(PORT_STEP),
            source_port: wildcards.source_port.next_multiple_of(SOURCE_PORT_STEP),
            protocol: wildcards.protocol | (wildcards.destination_port | wildcards.source_port > 0),
            ethertype: true,
            state: true,
            ..*wildcards
        };
        let all = if v6 { &mut self.v6 } else { &mut self.v4 };
        match all.iter_mut().find(|(one, _)| *one == wildcards) {
            Some((_, count)) => *count += 1,
            None => all.push((wildcards, 1)),
        }
    }
}

/// Returns the bits on which a list's decision depends.
fn wildcards_of(list: &AccessList, class_key: &ClassKey) -> Wildcards {
    let mut wildcards = Wildcards::default();
    list.unwildcard_state(&mut wildcards);
    let found = list.find(class_key, Order::NEVER);
    if let Some(rule) = found {
        rule.matcher.unwildcard_match(class_key, &mut wildcards);
    }
    let limit = found.map_or(Order::NEVER, |rule| rule.order);
    list.unwildcard_misses(class_key, limit, &mut wildcards);
    wildcards
}

/// Returns how much a mask narrows its flows: prefix lengths, weighted by how much traffic varies
/// in them.
fn cost(wildcards: &Wildcards) -> u64 {
    let bits = |len: u8| u64::from(len);
    let flags = u64::from(wildcards.flags.count_ones());
    bits(wildcards.destination)
        + bits(wildcards.source)
        + 2 * bits(wildcards.destination_port)
        + 2 * bits(wildcards.source_port)
        + 2 * flags
        + u64::from(wildcards.protocol)
        + u64::from(wildcards.state)
        + u64::from(wildcards.ethertype)
}

/// Cost of a sample that only the fallback covers: more than any mask.
const UNSERVED: u64 = 512;

/// Chooses the masks that serve samples best: first the one that saves most bits, then the one that
/// saves most in addition, and so on.
fn chosen(samples: &[(Wildcards, u64)], most: usize) -> Vec<Wildcards> {
    let mut masks = Vec::new();
    let mut paid = vec![UNSERVED; samples.len()];
    while masks.len() < most {
        let saved = |mask: &Wildcards| -> u64 {
            let own = cost(mask);
            let served = samples
                .iter()
                .zip(&paid)
                .filter(|((s, _), _)| mask.covers(s));
            served
                .map(|((_, count), paid)| count * paid.saturating_sub(own))
                .sum()
        };
        let candidates = samples
            .iter()
            .map(|(wildcards, _)| (saved(wildcards), *wildcards));
        let Some((1.., best)) = candidates.max_by_key(|(saved, _)| *saved) else {
            break;
        };
        for ((wildcards, _), paid) in samples.iter().zip(&mut paid) {
            if best.covers(wildcards) {
                *paid = cost(&best).min(*paid);
            }
        }
        masks.push(best);
    }
    masks
}
