//! What a rule matches: whether a key does, and what of the key says so.

use std::sync::Arc;

use wire::flow::{FlowKey, KeyState};
use wire::{EtherType, MacAddr};

use super::order::Order;
use super::point::{Dim, Family, Looked, MacBits, Point};
use super::prefix::{Prefix, Prefixes};
use super::ranges::{Ranges, WIDTH, cover_of};
use super::rules::RuleInfo;

/// Types that a rule is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Kinds {
    #[default]
    Any,
    One(u16),
    /// IPv4 and IPv6.
    Ip,
}

impl Kinds {
    fn has(self, point: &Point) -> bool {
        match self {
            Self::Any => true,
            Self::One(ethertype) => ethertype == point.ethertype.0,
            Self::Ip => [EtherType::IPV4, EtherType::IPV6].contains(&point.ethertype),
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

    /// Whether every address of these types is in here.
    fn has_all_of(&self, kinds: Kinds) -> bool {
        let v4 = self.v4.is_all() || kinds == Kinds::One(0x86dd);
        v4 && (self.v6.is_all() || matches!(kinds, Kinds::One(0x0800 | 0x0806)))
    }

    fn covers(&self, other: &Self) -> bool {
        self.v4.covers(&other.v4) && self.v6.covers(&other.v6)
    }
}

/// What a rule matches. What is `None` matches everything.
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
    /// Value and mask of what is known of the upper layers.
    pub(super) state: (u16, u16),
}

impl Matcher {
    /// Whether it is for IP or ARP: by the type, or by what it looks at behind that.
    pub(super) fn is_for_network(&self) -> bool {
        let network = [EtherType::IPV4, EtherType::IPV6, EtherType::ARP];
        match self.kinds {
            Kinds::Any => false,
            Kinds::One(one) => network.contains(&EtherType(one)),
            Kinds::Ip => true,
        }
    }

    /// Whether it looks behind the type. Then it is for IP or ARP.
    pub(super) fn looks_above_ethernet(&self) -> bool {
        self.looks_at_transport() || self.source.is_some() || self.destination.is_some()
    }

    /// Whether it looks at the protocol or what comes behind it.
    pub(super) fn looks_at_transport(&self) -> bool {
        self.protocol.is_some() || self.looks_into_transport() || self.state.1 != 0
    }

    /// Whether it looks at what later fragments do not have.
    pub(super) fn looks_into_transport(&self) -> bool {
        self.source_ports.is_some() || self.destination_ports.is_some() || self.flags.1 != 0
    }

    /// The same without what later fragments do not have.
    pub(super) fn for_later_fragments(&self) -> Self {
        Self {
            source_ports: None,
            destination_ports: None,
            flags: (0, 0),
            ..self.clone()
        }
    }

    fn matches_ethernet(&self, point: &Point) -> bool {
        self.source_mac.matches(point.key.smac())
            && self.destination_mac.matches(point.key.dmac())
            && self.vlan.is_none_or(|vlan| vlan == point.vlan())
            && self
                .peers
                .as_ref()
                .is_none_or(|all| all.binary_search(&point.key.in_port()).is_ok())
    }

    fn matches_state(&self, point: &Point) -> bool {
        point.state.bits() & self.state.1 == self.state.0
    }

    fn matches_flags(&self, point: &Point) -> bool {
        point.key.l4_flags() & self.flags.1 == self.flags.0
    }

    #[inline]
    pub(super) fn matches(&self, point: &Point) -> bool {
        let key = &point.key;
        self.kinds.has(point)
            && has_address(self.destination.as_ref(), point.family, point.destination)
            && has_address(self.source.as_ref(), point.family, point.source)
            && self.protocol.is_none_or(|p| p == key.ip_proto())
            && has_port(self.destination_ports.as_ref(), key.l4_dst())
            && has_port(self.source_ports.as_ref(), key.l4_src())
            && self.matches_flags(point)
            && self.matches_state(point)
            && self.matches_ethernet(point)
    }

    /// Notes what of the key says that it matches, which it does.
    pub(super) fn note_match(&self, point: &Point, looked: &mut Looked) {
        let family = point.family;
        let mut note = |dim, len| looked.note(dim, len, family);
        if self.kinds != Kinds::Any {
            note(Dim::EtherType, WIDTH);
        }
        let address = |all: Option<&Addresses>, value| {
            let found = all?.of(family)?.find(value)?;
            Some(found.len)
        };
        if let Some(len) = address(self.destination.as_ref(), point.destination) {
            note(Dim::Destination, len);
        }
        if let Some(len) = address(self.source.as_ref(), point.source) {
            note(Dim::Source, len);
        }
        if self.protocol.is_some() {
            note(Dim::Protocol, 8);
        }
        if let Some(ports) = &self.destination_ports {
            note(Dim::DestinationPort, ports.bits_to_hit(point.key.l4_dst()));
        }
        if let Some(ports) = &self.source_ports {
            note(Dim::SourcePort, ports.bits_to_hit(point.key.l4_src()));
        }
        looked.flags |= self.flags.1;
        looked.state |= self.state.1 != 0;
    }

    /// Notes what of the key says that it does not match, which it does not: what was looked at anyway if that is
    /// enough, else what splits traffic least.
    pub(super) fn note_miss(&self, point: &Point, looked: &mut Looked) {
        if !self.matches_ethernet(point) {
            return;
        }
        let wanting = self.reasons_to_miss(point);
        let family = point.family;
        let known = |(dim, len): &(Dim, u8)| looked.has(*dim, *len, family);
        let known_flags = looked.flags & self.flags.1 == self.flags.1;
        if wanting.iter().flatten().any(known) || known_flags && !self.matches_flags(point) {
            return;
        }
        if !self.matches_state(point) {
            looked.state = true;
        } else if let Some((dim, len)) = wanting.into_iter().flatten().next() {
            looked.note(dim, len, family);
        } else {
            looked.flags |= self.flags.1;
        }
    }

    /// The fields that the key misses this in, and how many first bits of each say so. Those that split traffic least
    /// come first.
    fn reasons_to_miss(&self, point: &Point) -> [Option<(Dim, u8)>; 6] {
        let key = &point.key;
        let address = |all: Option<&Addresses>, value| {
            let all = all?.of(point.family)?;
            all.find(value).is_none().then(|| all.bits_to_miss(value))
        };
        let port = |all: Option<&Ranges>, port| {
            let all = all?;
            (!all.contains(port)).then(|| all.bits_to_miss(port))
        };
        let kind = (!self.kinds.has(point)).then_some(WIDTH);
        let protocol = self.protocol.filter(|p| *p != key.ip_proto()).map(|_| 8);
        let destination = address(self.destination.as_ref(), point.destination);
        let source = address(self.source.as_ref(), point.source);
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

    /// Whether every key that `other` matches is matched by this one.
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
    /// Whether there is a key that it matches.
    pub(super) fn matches_anything(&self) -> bool {
        self.matches(&self.sample())
    }

    /// A key that it matches, if there is any.
    pub(super) fn sample(&self) -> Point {
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
        Point::new(&key)
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

/// Places of one rule in the classifier at most.
const MAX_PARTS: usize = 64;
/// Elements of one list that get places of their own at most; of a longer one, all share one.
const MAX_SPREAD: usize = 16;

/// A rule in its list.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) info: Arc<RuleInfo>,
    pub(super) order: Order,
    pub(super) matcher: Matcher,
    /// How many destinations, sources and destination ports have places of their own; one each at least.
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

    /// In how many places it is.
    pub(super) fn parts(&self) -> u16 {
        self.spread.iter().product()
    }

    /// What all keys that a part of the rule matches have in a field.
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

/// The element at a place, of so many; one place is all of them together.
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
