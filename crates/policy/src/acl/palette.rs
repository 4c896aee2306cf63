//! Few masks for many decisions.
//!
//! The flow cache asks its masks in turn and has room for 16 different ones. What a decision looked at may be any number of first bits of
//! addresses and ports, so there could be thousands. Therefore a set of rules has a palette: at most 12 masks in all,
//! and each decision takes the cheapest of them that has all that it looked at. Which ones depends on
//! the rules: keys near the rules' edges are decided, and of what these decisions looked at, the two
//! that lose least by it become one, again and again, until there are few enough. One mask of each family has everything.
//! The choice is the same each time, and costs narrow masks, never right decisions.

use wire::EtherType;

use super::list::AccessList;
use super::matcher::Rule;
use super::order::Order;
use super::point::{Family, Looked, Point};

/// Masks of a family, [`Looked`] at everything included.
const V4_MASKS: usize = 8;
const V6_MASKS: usize = 4;
/// Keys that are decided to find them.
const SAMPLES: usize = 3000;
/// First bits of fields are rounded up to multiples of these before masks are compared.
const ADDRESS_STEPS: [u8; 2] = [4, 16];
const PORT_STEP: u8 = 2;

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

    /// A key near an edge of a rule.
    fn near(&mut self, rule: &Rule) -> Point {
        let point = rule.matcher.sample();
        let key = point.key;
        let width = match point.family {
            Family::V4 => 32,
            Family::V6 => 128,
            Family::None => 0,
        };
        let protocol = [key.ip_proto(), 6, 17, 1][self.below(8).min(3)];
        let ports = [key.l4_src(), key.l4_dst()].map(|port| port ^ self.low_bits(16) as u16);
        let key = key
            .with_src_ip(key.src_ip() ^ self.low_bits(width))
            .with_dst_ip(key.dst_ip() ^ self.low_bits(width))
            .with_ip_proto(protocol)
            .with_l4_ports(ports[0], ports[1]);
        Point::new(&key)
    }
}

impl Palette {
    /// Masks for decisions by these lists.
    pub(super) fn new(lists: &[std::sync::Arc<AccessList>]) -> Self {
        let mut samples = Samples::default();
        let all: usize = lists.iter().map(|list| list.len).sum();
        let mut dice = Dice(1);
        for list in lists {
            let share = (SAMPLES * list.len).div_ceil(all.max(1)).min(16 * list.len);
            samples.take(list, share, &mut dice);
        }
        let mut palette = Self {
            v4: reduced(samples.v4, V4_MASKS - 1),
            v6: reduced(samples.v6, V6_MASKS - 1),
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
    /// Decides some keys near rules of a list.
    fn take(&mut self, list: &AccessList, count: usize, dice: &mut Dice) {
        let mut rules = Vec::with_capacity(list.len);
        list.for_each(|rule| rules.push(rule.clone()));
        if rules.is_empty() {
            return;
        }
        for _ in 0..count {
            let rule = &rules[dice.below(rules.len())];
            let point = dice.near(rule);
            let mut looked = Looked::default();
            list.note_readable(&mut looked);
            let found = list.find(&point, Order::NEVER);
            if let Some(rule) = found {
                rule.matcher.note_match(&point, &mut looked);
            }
            let limit = found.map_or(Order::NEVER, |rule| rule.order);
            list.note_misses(&point, limit, &mut looked);
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
            source_port: looked.source_port.next_multiple_of(PORT_STEP),
            ..*looked
        };
        let all = if v6 { &mut self.v6 } else { &mut self.v4 };
        match all.iter_mut().find(|(one, _)| *one == looked) {
            Some((_, count)) => *count += 1,
            None => all.push((looked, 1)),
        }
    }
}

/// How much narrower than nothing: first bits, weighed by how differently traffic fills them.
fn cost(looked: &Looked) -> u64 {
    let bits = |len: u8| u64::from(len);
    let flags = u64::from(looked.flags.count_ones());
    bits(looked.destination)
        + bits(looked.source)
        + 2 * (bits(looked.destination_port) + 2 * bits(looked.source_port))
        + 2 * flags
        + u64::from(looked.protocol) * 2
        + u64::from(looked.state)
        + u64::from(looked.ethertype)
}

/// Joins masks until there are few enough, each time the two that lose least by it.
fn reduced(mut masks: Vec<(Looked, u64)>, most: usize) -> Vec<Looked> {
    let loss = |a: &(Looked, u64), b: &(Looked, u64)| {
        let both = cost(&a.0.union(&b.0));
        (both - cost(&a.0)) * a.1 + (both - cost(&b.0)) * b.1
    };
    while masks.len() > most {
        let pairs = (0..masks.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
        let least = pairs.min_by_key(|&(i, j)| loss(&masks[i], &masks[j]));
        let Some((i, j)) = least else { break };
        let (b, a) = (masks.swap_remove(j), masks[i]);
        let both = (a.0.union(&b.0), a.1 + b.1);
        masks[i] = both;
    }
    masks.into_iter().map(|(looked, _)| looked).collect()
}
