//! Conditions of a rule: whether a key matches, and the bits that decide it.

use std::sync::Arc;

use wire::flow::{FlowKey, KeyState};
use wire::{EtherType, MacAddr};

use super::class_key::{ClassKey, Dim, Family, MacBits, Wildcards};
use super::order::Order;
use super::prefix::{Prefix, Prefixes};
use super::ranges::{Ranges, WIDTH, cover_of};
use super::rules::{RuleInfo, Verdict};

/// EtherTypes to which a rule applies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Kinds {
    #[default]
    Any,
    One(u16),
    /// IPv4 and IPv6.
    Ip,
}

impl Kinds {
    fn has(self, class_key: &ClassKey) -> bool {
        match self {
            Self::Any => true,
            Self::One(ethertype) => ethertype == class_key.ethertype.0,
            Self::Ip => [EtherType::IPV4, EtherType::IPV6].contains(&class_key.ethertype),
        }
    }

    fn covers(self, other: Self) -> bool {
        let ip = |one| [0x0800, 0x86dd].contains(&one);
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Ip, Self::One(one)) => ip(one),
            (one, other) => one == other,
        }
    }
}

/// Addresses of both families. Sets are shared by the rules that name them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Addresses {
    pub(super) v4: Arc<Prefixes>,
    pub(super) v6: Arc<Prefixes>,
}

impl Addresses {
    pub(super) fn of(&self, family: Family) -> Option<&Prefixes> {
        match family {
            Family::V4 => Some(&self.v4),
            Family::V6 => Some(&self.v6),
            Family::None => None,
        }
    }

    /// Returns whether every address of these types is included.
    fn has_all_of(&self, kinds: Kinds) -> bool {
        let v4 = self.v4.is_all() || kinds == Kinds::One(0x86dd);
        v4 && (self.v6.is_all() || matches!(kinds, Kinds::One(0x0800 | 0x0806)))
    }

    fn covers(&self, other: &Self) -> bool {
        self.v4.covers(&other.v4) && self.v6.covers(&other.v6)
    }
}

/// Conditions of a rule. `None` matches everything.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Matcher {
    pub(super) source_mac: MacBits,
    pub(super) destination_mac: MacBits,
    pub(super) kinds: Kinds,
    pub(super) vlan: Option<u16>,
    /// Only with `kinds` that have addresses.
    pub(super) source: Option<Addresses>,
    pub(super) destination: Option<Addresses>,
    /// Ingress ports in ascending order.
    pub(super) peers: Option<Vec<u32>>,
    /// Only with IP.
    pub(super) protocol: Option<u8>,
    /// Only with TCP or UDP.
    pub(super) source_ports: Option<Ranges>,
    pub(super) destination_ports: Option<Ranges>,
    /// Value and mask of TCP flags, or of ICMP's type and code; only with these protocols.
    pub(super) flags: (u16, u16),
    /// Value and mask of the parse state of the upper layers.
    pub(super) state: (u16, u16),
}

impl Matcher {
    /// Returns whether the rule is for IP or ARP: by the EtherType, or by fields behind it.
    pub(super) fn is_for_network(&self) -> bool {
        let network = [EtherType::IPV4, EtherType::IPV6, EtherType::ARP];
        match self.kinds {
            Kinds::Any => false,
            Kinds::One(one) => network.contains(&EtherType(one)),
            Kinds::Ip => true,
        }
    }

    /// Returns whether fields behind the EtherType are matched. Then the rule is for IP or ARP.
    pub(super) fn looks_above_ethernet(&self) -> bool {
        self.looks_at_transport() || self.source.is_some() || self.destination.is_some()
    }

    /// Returns whether the protocol or fields behind it are matched.
    pub(super) fn looks_at_transport(&self) -> bool {
        self.protocol.is_some() || self.looks_into_transport() || self.state.1 != 0
    }

    /// Returns whether fields are matched that later fragments do not have.
    pub(super) fn looks_into_transport(&self) -> bool {
        self.source_ports.is_some() || self.destination_ports.is_some() || self.flags.1 != 0
    }

    /// Returns the conditions without those that later fragments do not have.
    pub(super) fn for_later_fragments(&self) -> Self {
        Self {
            source_ports: None,
            destination_ports: None,
            flags: (0, 0),
            ..self.clone()
        }
    }

    fn matches_ethernet(&self, class_key: &ClassKey) -> bool {
        self.source_mac.matches(class_key.key.smac())
            && self.destination_mac.matches(class_key.key.dmac())
            && self.vlan.is_none_or(|vlan| vlan == class_key.vlan())
            && self
                .peers
                .as_ref()
                .is_none_or(|all| all.binary_search(&class_key.key.in_port()).is_ok())
    }

    fn matches_state(&self, class_key: &ClassKey) -> bool {
        class_key.state.bits() & self.state.1 == self.state.0
    }

    fn matches_flags(&self, class_key: &ClassKey) -> bool {
        class_key.key.l4_flags() & self.flags.1 == self.flags.0
    }

    #[inline]
    pub(super) fn matches(&self, class_key: &ClassKey) -> bool {
        let key = &class_key.key;
        self.kinds.has(class_key)
            && has_address(
                self.destination.as_ref(),
                class_key.family,
                class_key.destination,
            )
            && has_address(self.source.as_ref(), class_key.family, class_key.source)
            && self.protocol.is_none_or(|p| p == key.ip_proto())
            && has_port(self.destination_ports.as_ref(), key.l4_dst())
            && has_port(self.source_ports.as_ref(), key.l4_src())
            && self.matches_flags(class_key)
            && self.matches_state(class_key)
            && self.matches_ethernet(class_key)
    }

    /// Adds the bits that prove that the key matches, which it does.
    pub(super) fn unwildcard_match(&self, class_key: &ClassKey, wildcards: &mut Wildcards) {
        let family = class_key.family;
        let mut unwildcard = |dim, len| wildcards.unwildcard(dim, len, family);
        if self.kinds != Kinds::Any {
            unwildcard(Dim::EtherType, WIDTH);
        }
        let address = |all: Option<&Addresses>, value| {
            let found = all?.of(family)?.find(value)?;
            Some(found.len)
        };
        if let Some(len) = address(self.destination.as_ref(), class_key.destination) {
            unwildcard(Dim::Destination, len);
        }
        if let Some(len) = address(self.source.as_ref(), class_key.source) {
            unwildcard(Dim::Source, len);
        }
        if self.protocol.is_some() {
            unwildcard(Dim::Protocol, 8);
        }
        if let Some(ports) = &self.destination_ports {
            unwildcard(
                Dim::DestinationPort,
                ports.bits_to_hit(class_key.key.l4_dst()),
            );
        }
        if let Some(ports) = &self.source_ports {
            unwildcard(Dim::SourcePort, ports.bits_to_hit(class_key.key.l4_src()));
        }
        wildcards.flags |= self.flags.1;
        wildcards.state |= self.state.1 != 0;
    }

    /// Adds bits that prove that the key does not match, which it does not: none if the included
    /// ones suffice, else those that split traffic least.
    pub(super) fn unwildcard_miss(&self, class_key: &ClassKey, wildcards: &mut Wildcards) {
        if !self.matches_ethernet(class_key) {
            return;
        }
        let missed = self.reasons_to_miss(class_key);
        let family = class_key.family;
        let known = |(dim, len): &(Dim, u8)| wildcards.has(*dim, *len, family);
        let known_flags = wildcards.flags & self.flags.1 == self.flags.1;
        if missed.iter().flatten().any(known) || known_flags && !self.matches_flags(class_key) {
            return;
        }
        if !self.matches_state(class_key) {
            wildcards.state = true;
        } else if let Some((dim, len)) = missed.into_iter().flatten().next() {
            wildcards.unwildcard(dim, len, family);
        } else {
            wildcards.flags |= self.flags.1;
        }
    }

    /// Returns the fields in which the key does not match, with the prefix lengths that prove it.
    /// Those that split traffic least come first.
    fn reasons_to_miss(&self, class_key: &ClassKey) -> [Option<(Dim, u8)>; 6] {
        let key = &class_key.key;
        let address = |all: Option<&Addresses>, value| {
            let all = all?.of(class_key.family)?;
            all.find(value).is_none().then(|| all.bits_to_miss(value))
        };
        let port = |all: Option<&Ranges>, port| {
            let all = all?;
            (!all.contains(port)).then(|| all.bits_to_miss(port))
        };
        let kind = (!self.kinds.has(class_key)).then_some(WIDTH);
        let protocol = self.protocol.filter(|p| *p != key.ip_proto()).map(|_| 8);
        let destination = address(self.destination.as_ref(), class_key.destination);
        let source = address(self.source.as_ref(), class_key.source);
        let destination_port = port(self.destination_ports.as_ref(), key.l4_dst());
        let source_port = port(self.source_ports.as_ref(), key.l4_src());
        [
            kind.map(|len| (Dim::EtherType, len)),
            protocol.map(|len| (Dim::Protocol, len)),
            destination.map(|len| (Dim::Destination, len)),
            source.map(|len| (Dim::Source, len)),
            destination_port.map(|len| (Dim::DestinationPort, len)),
            source_port.map(|len| (Dim::SourcePort, len)),
        ]
    }

    /// Returns whether every key that `other` matches is matched by this one.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let addresses = |one: &Option<Addresses>, of: &Option<Addresses>| match (one, of) {
            (None, _) => true,
            (Some(one), Some(of)) => one.covers(of),
            (Some(one), None) => one.has_all_of(other.kinds),
        };
        let ranges = |one: &Option<Ranges>, of: &Option<Ranges>| match (one, of) {
            (None, _) => true,
            (Some(one), Some(of)) => one.covers(of),
            (Some(one), None) => one.is_all(),
        };
        let peers = |one: &Option<Vec<u32>>, of: &Option<Vec<u32>>| match (one, of) {
            (None, _) => true,
            (Some(one), Some(of)) => of.iter().all(|port| one.binary_search(port).is_ok()),
            (Some(_), None) => false,
        };
        let bits = |one: (u16, u16), other: (u16, u16)| {
            one.1 & other.1 == one.1 && other.0 & one.1 == one.0
        };
        self.kinds.covers(other.kinds)
            && addresses(&self.destination, &other.destination)
            && addresses(&self.source, &other.source)
            && self.protocol.is_none_or(|p| other.protocol == Some(p))
            && ranges(&self.destination_ports, &other.destination_ports)
            && ranges(&self.source_ports, &other.source_ports)
            && bits(self.flags, other.flags)
            && bits(self.state, other.state)
            && self.source_mac.covers(other.source_mac)
            && self.destination_mac.covers(other.destination_mac)
            && self.vlan.is_none_or(|vlan| other.vlan == Some(vlan))
            && peers(&self.peers, &other.peers)
    }
}

impl Matcher {
    /// Returns whether any key matches.
    pub(super) fn matches_anything(&self) -> bool {
        self.matches(&self.sample())
    }

    /// Returns a key that matches, if there is any.
    pub(super) fn sample(&self) -> ClassKey {
        let address = |all: &Option<Addresses>, family| {
            let prefixes = all.as_ref().and_then(|all| all.of(family));
            let first = prefixes.and_then(|all| all.as_slice().first());
            first.map_or(0, |prefix| prefix.bits)
        };
        let no_v4 = |all: &Option<Addresses>| all.as_ref().is_some_and(|all| all.v4.is_empty());
        let ethertype = match self.kinds {
            Kinds::Any => u16::MAX,
            Kinds::One(one) => one,
            Kinds::Ip if no_v4(&self.source) || no_v4(&self.destination) => 0x86dd,
            Kinds::Ip => 0x0800,
        };
        let ethertype = EtherType(ethertype);
        let family = Family::of(ethertype);
        let port =
            |all: &Option<Ranges>| all.as_ref().and_then(|all| all.as_slice().first().copied());
        let port = |all| port(all).map_or(0, |range| range.0);
        let key = FlowKey::default()
            .with_in_port(self.peers.iter().flatten().next().copied().unwrap_or(0))
            .with_vlan(self.vlan.filter(|vlan| *vlan != 0))
            .with_smac(MacAddr::from_u64(self.source_mac.value))
            .with_dmac(MacAddr::from_u64(self.destination_mac.value))
            .with_ethertype(ethertype)
            .with_src_ip(family.place(address(&self.source, family)))
            .with_dst_ip(family.place(address(&self.destination, family)))
            .with_ip_proto(self.protocol.unwrap_or(0))
            .with_l4_ports(port(&self.source_ports), port(&self.destination_ports))
            .with_l4_flags(self.flags.0)
            .with_state(KeyState::from_bits_truncate(self.state.0));
        ClassKey::new(&key)
    }
}

#[inline]
fn has_address(all: Option<&Addresses>, family: Family, value: u128) -> bool {
    all.is_none_or(|all| all.of(family).is_some_and(|all| all.find(value).is_some()))
}

#[inline]
fn has_port(all: Option<&Ranges>, port: u16) -> bool {
    all.is_none_or(|all| all.contains(port))
}

/// Limit of places of one rule in the classifier.
const MAX_PARTS: usize = 64;
/// Limit of elements of one list with places of their own; those of a longer one share one.
const MAX_SPREAD: usize = 16;

/// A rule in its list.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) info: Arc<RuleInfo>,
    pub(super) order: Order,
    pub(super) matcher: Matcher,
    /// Numbers of destinations, sources and destination ports with places of their own; at least
    /// one each.
    spread: [u16; 3],
}

impl Rule {
    pub(super) fn new(info: Arc<RuleInfo>, order: Order, matcher: Matcher) -> Self {
        let addresses = |all: &Option<Addresses>| match all {
            Some(all) => all.v4.as_slice().len() + all.v6.as_slice().len(),
            None => 1,
        };
        let ports = matcher.destination_ports.as_ref();
        let lengths = [
            addresses(&matcher.destination),
            addresses(&matcher.source),
            ports.map_or(1, |all| all.as_slice().len()),
        ];
        let mut parts = 1;
        let spread = lengths.map(|length| {
            let fits = (1..=MAX_SPREAD).contains(&length) && parts * length <= MAX_PARTS;
            let own = if fits { length } else { 1 };
            parts *= own;
            own as u16
        });
        Self {
            info,
            order,
            matcher,
            spread,
        }
    }

    /// Returns whether the rule does not count for this key, whatever its fields are.
    pub(super) fn is_skipped(&self, class_key: &ClassKey) -> bool {
        class_key.skips_stateful && self.info.verdict == Verdict::Stateful
    }

    /// Returns the number of places of the rule.
    pub(super) fn parts(&self) -> u16 {
        self.spread.iter().product()
    }

    /// Returns the common prefix of a field in all keys that a part of the rule matches.
    pub(super) fn prefix(&self, part: u16, dim: Dim) -> Prefix {
        let matcher = &self.matcher;
        let [destinations, sources, ports] = self.spread;
        let [destination, source, port] = [
            part % destinations,
            part / destinations % sources,
            part / destinations / sources % ports,
        ];
        match dim {
            Dim::InPort => match matcher.peers.as_deref() {
                Some([only]) => Prefix::of((*only).into(), 32),
                _ => Prefix::ANY,
            },
            Dim::SourceMac => matcher.source_mac.prefix(),
            Dim::DestinationMac => matcher.destination_mac.prefix(),
            Dim::Vlan => of_option(matcher.vlan.map(u64::from), WIDTH),
            Dim::EtherType => match matcher.kinds {
                Kinds::One(one) => Prefix::of(one.into(), WIDTH),
                Kinds::Any | Kinds::Ip => Prefix::ANY,
            },
            Dim::Destination => of_addresses(&matcher.destination, destination, destinations),
            Dim::Source => of_addresses(&matcher.source, source, sources),
            Dim::Protocol => of_option(matcher.protocol.map(u64::from), 8),
            Dim::DestinationPort => of_ports(&matcher.destination_ports, port, ports),
            Dim::SourcePort => of_ports(&matcher.source_ports, 0, 1),
        }
    }
}

fn of_option(value: Option<u64>, width: u8) -> Prefix {
    value.map_or(Prefix::ANY, |value| Prefix::of(value, width))
}

/// Returns the element at a place; if there is one place, the common prefix of all elements.
fn of_addresses(all: &Option<Addresses>, at: u16, places: u16) -> Prefix {
    let Some(all) = all else { return Prefix::ANY };
    let mut each = all.v4.as_slice().iter().chain(all.v6.as_slice());
    if places > 1 {
        return each.nth(at.into()).copied().unwrap_or(Prefix::ANY);
    }
    match (all.v4.is_empty(), all.v6.is_empty()) {
        (false, true) => all.v4.cover(),
        (true, false) => all.v6.cover(),
        _ => all.v4.cover().join(all.v6.cover()),
    }
}

fn of_ports(all: &Option<Ranges>, at: u16, places: u16) -> Prefix {
    let ranges = all.as_ref().map_or(&[][..], Ranges::as_slice);
    if places > 1 {
        return ranges
            .get(usize::from(at))
            .map_or(Prefix::ANY, |range| cover_of(*range));
    }
    match (ranges.first(), ranges.last()) {
        (Some(first), Some(last)) => cover_of((first.0, last.1)),
        _ => Prefix::ANY,
    }
}
