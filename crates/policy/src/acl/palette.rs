//! Few masks for many decisions.
//!
//! The flow cache asks its masks in turn, and has room for so many different ones. What a decision looked at may be any
//! number of first bits of addresses and ports: thousands of masks. Therefore a set of rules has a palette of few
//! masks, and each decision takes the cheapest of them that has all that it looked at. Which masks these are depends on the
//! rules: keys near the rules' edges are decided, what these decisions looked at is rounded up to steps, and of what is left
//! those are taken that save most. One mask of each family has everything, for what no other one has. The choice is the
//! same each time; a bad one would make more flows than necessary, never wrong ones.

use std::sync::Arc;

use wire::EtherType;

use super::list::AccessList;
use super::matcher::{Kinds, Matcher, Rule};
use super::order::Order;
use super::point::{Family, Looked, Point};

/// Masks of a family, the one with everything included.
const V4_MASKS: usize = 24;
const V6_MASKS: usize = 8;
/// Different masks in the decisions of one program, at most: these, and that of decisions that asked no rule.
pub const MAX_MASKS: usize = V4_MASKS + V6_MASKS + 1;
/// Keys that are decided to find them; fewer for few rules.
const SAMPLES: usize = 3000;
const LEAST_SAMPLES: usize = 256;
const SAMPLES_PER_RULE: usize = 64;
/// First bits of addresses (IPv4, IPv6) are rounded up to multiples of these.
const ADDRESS_STEPS: [u8; 2] = [16, 64];
/// Likewise of destination ports. In 4 steps, a port that differs from all around it costs 60 flows and 4 masks at most.
const PORT_STEP: u8 = 4;
/// Likewise of source ports, which differ with each connection.
const SOURCE_PORT_STEP: u8 = 16;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Palette {
    v4: Vec<Looked>,
    v6: Vec<Looked>,
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// So many random bits, at most; fewer as likely as more.
    fn low_bits(&mut self, width: u32) -> u128 {
        let random = u128::from(self.next()) << 64 | u128::from(self.next());
        let bits = self.below(width as usize + 1) as u32;
        random & u128::MAX.checked_shr(128 - bits).unwrap_or(0)
    }

    /// Nothing changed, or low bits.
    fn noise(&mut self, width: u32) -> u128 {
        match self.below(2) {
            0 => 0,
            _ => self.low_bits(width),
        }
    }

    /// A key near an edge of a rule, or within it; where it matches everything, near another one.
    fn near(&mut self, rules: &[Arc<Rule>]) -> Point {
        let [rule, second, third] = [0; 3].map(|_| &rules[self.below(rules.len())].matcher);
        let [mut point, second, third] = [rule, second, third].map(Matcher::sample);
        if matches!(rule.kinds, Kinds::Any | Kinds::Ip) && self.below(4) == 0 {
            let others = [EtherType::IPV4, EtherType::IPV6];
            let key = point.key.with_ethertype(others[self.below(2)]);
            point = Point::new(&key);
        }
        let width = match point.family {
            Family::V4 => 32,
            Family::V6 => 128,
            Family::None => 0,
        };
        let or = |said, other: &Point| if said { point.key } else { other.key };
        let source = or(rule.source.is_some(), &second).src_ip();
        let destination = or(rule.destination.is_some(), &third).dst_ip();
        let protocol = or(rule.protocol.is_some(), &second).ip_proto();
        let source_port = or(rule.source_ports.is_some(), &second).l4_src();
        let destination_port = or(rule.destination_ports.is_some(), &third).l4_dst();
        let key = point
            .key
            .with_src_ip(source ^ self.noise(width))
            .with_dst_ip(destination ^ self.noise(width))
            .with_ip_proto(protocol)
            .with_l4_ports(
                source_port ^ self.noise(16) as u16,
                destination_port ^ self.noise(16) as u16,
            );
        Point::new(&key)
    }
}

impl Palette {
    /// Masks for decisions by these lists.
    pub(super) fn new(lists: &[Arc<AccessList>]) -> Self {
        let mut samples = Samples::default();
        let all: usize = lists.iter().map(|list| list.len).sum();
        let mut dice = Dice(1);
        for list in lists {
            let share = (SAMPLES * list.len).div_ceil(all.max(1));
            let share = share.min(LEAST_SAMPLES + SAMPLES_PER_RULE * list.len);
            samples.take(lists, list, share, &mut dice);
        }
        let mut palette = Self {
            v4: chosen(&samples.v4, V4_MASKS - 1),
            v6: chosen(&samples.v6, V6_MASKS - 1),
        };
        lists.iter().for_each(|list| palette.extend(list));
        palette
    }

    /// Sees to it that there are masks for everything that a list may look at.
    pub(super) fn extend(&mut self, list: &AccessList) {
        let mut flags = 0;
        list.for_each(|rule| flags |= rule.matcher.flags.1);
        self.extend_flags(flags);
    }

    /// Likewise, where flags are all that is new.
    pub(super) fn extend_flags(&mut self, flags: u16) {
        for (masks, width) in [(&mut self.v4, 32), (&mut self.v6, 128)] {
            let everything = Looked {
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
                        && last.covers(&Looked {
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

    /// Whether there is a mask for decisions that look at these flags.
    pub(super) fn has_flags(&self, flags: u16) -> bool {
        let masks = [&self.v4, &self.v6];
        masks
            .iter()
            .all(|masks| masks.last().is_some_and(|last| last.flags & flags == flags))
    }

    /// The cheapest mask with all that was looked at.
    pub(super) fn cover(&self, family: Family, looked: &Looked) -> Looked {
        if looked.is_nothing() {
            return *looked;
        }
        let masks = match family {
            Family::V4 | Family::None => &self.v4,
            Family::V6 => &self.v6,
        };
        let covering = masks.iter().filter(|mask| mask.covers(looked));
        let found = covering.min_by_key(|mask| cost(mask)).copied();
        found.unwrap_or(*looked)
    }
}

/// What decisions looked at, and how many of them.
#[derive(Default)]
struct Samples {
    v4: Vec<(Looked, u64)>,
    v6: Vec<(Looked, u64)>,
}

impl Samples {
    /// Decides some keys near rules of a list; half of them with another list, as of the receiver.
    fn take(
        &mut self,
        lists: &[Arc<AccessList>],
        list: &AccessList,
        count: usize,
        dice: &mut Dice,
    ) {
        let mut rules = Vec::with_capacity(list.len);
        list.for_each(|rule| rules.push(rule.clone()));
        if rules.is_empty() {
            return;
        }
        for _ in 0..count {
            let point = dice.near(&rules);
            let mut looked = looked_at(list, &point);
            let other = &lists[dice.below(lists.len())];
            if dice.below(2) == 0 && other.direction != list.direction {
                looked = looked.union(&looked_at(other, &point));
            }
            self.add(&point, &looked);
        }
    }

    fn add(&mut self, point: &Point, looked: &Looked) {
        let v6 = point.ethertype == EtherType::IPV6;
        let step = ADDRESS_STEPS[usize::from(v6)];
        let looked = Looked {
            destination: looked.destination.next_multiple_of(step),
            source: looked.source.next_multiple_of(step),
            destination_port: looked.destination_port.next_multiple_of(PORT_STEP),
            source_port: looked.source_port.next_multiple_of(SOURCE_PORT_STEP),
            protocol: looked.protocol | (looked.destination_port | looked.source_port > 0),
            ethertype: true,
            state: true,
            ..*looked
        };
        let all = if v6 { &mut self.v6 } else { &mut self.v4 };
        match all.iter_mut().find(|(one, _)| *one == looked) {
            Some((_, count)) => *count += 1,
            None => all.push((looked, 1)),
        }
    }
}

/// What a list looks at to decide.
fn looked_at(list: &AccessList, point: &Point) -> Looked {
    let mut looked = Looked::default();
    list.note_readable(&mut looked);
    let found = list.find(point, Order::NEVER);
    if let Some(rule) = found {
        rule.matcher.note_match(point, &mut looked);
    }
    let limit = found.map_or(Order::NEVER, |rule| rule.order);
    list.note_misses(point, limit, &mut looked);
    looked
}

/// How much less of the traffic a mask takes together than one that counts nothing: first bits, weighed by how differently
/// frames fill them.
fn cost(looked: &Looked) -> u64 {
    let bits = |len: u8| u64::from(len);
    let flags = u64::from(looked.flags.count_ones());
    bits(looked.destination)
        + bits(looked.source)
        + 2 * bits(looked.destination_port)
        + 2 * bits(looked.source_port)
        + 2 * flags
        + u64::from(looked.protocol)
        + u64::from(looked.state)
        + u64::from(looked.ethertype)
}

/// What a sample costs while only the mask with everything serves it: more than any mask.
const UNSERVED: u64 = 512;

/// The masks that serve samples best: first the one that saves most bits, then the one that saves most beside that, and so
/// on.
fn chosen(samples: &[(Looked, u64)], most: usize) -> Vec<Looked> {
    let mut masks = Vec::new();
    let mut paid = vec![UNSERVED; samples.len()];
    while masks.len() < most {
        let saved = |mask: &Looked| -> u64 {
            let own = cost(mask);
            let served = samples
                .iter()
                .zip(&paid)
                .filter(|((s, _), _)| mask.covers(s));
            served
                .map(|((_, count), paid)| count * paid.saturating_sub(own))
                .sum()
        };
        let candidates = samples.iter().map(|(looked, _)| (saved(looked), *looked));
        let Some((1.., best)) = candidates.max_by_key(|(saved, _)| *saved) else {
            break;
        };
        for ((looked, _), paid) in samples.iter().zip(&mut paid) {
            if best.covers(looked) {
                *paid = cost(&best).min(*paid);
            }
        }
        masks.push(best);
    }
    masks
}
