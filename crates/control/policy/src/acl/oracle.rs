//! Reference implementation of access lists, for tests and fuzzing: every rule of every list is
//! parsed anew for every key. Shares nothing with the compiler but the types of the model.

mod cases;
mod connections;
mod denied;

use std::net::{Ipv4Addr, Ipv6Addr};

use port::PortId;
use wire::flow::{Ct, CtState, FlowKey, KeyState};
use wire::{EtherType, MacAddr};

use super::{Names, Verdict};
use crate::model::SegmentId;
use model::{
    AccessListSpec, AccessModel, Direction, Otherwise, Pieces, PortText, RuleAction, RuleSpec,
};

pub use cases::check;
pub use connections::check_connections;
pub use denied::check_denied;

/// A model that compiles, with its names.
#[derive(Clone, Copy, Debug)]
pub struct Oracle<'a> {
    /// The model.
    pub model: &'a AccessModel,
    /// The names.
    pub names: Names<'a>,
}

/// Result of the oracle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The verdict.
    pub verdict: Verdict,
    /// The names of the list and rule that decide, if a rule does.
    pub rule: Option<(String, String)>,
}

impl Oracle<'_> {
    /// Evaluates the lists of a port in a segment for a key.
    #[must_use]
    pub fn evaluate(
        &self,
        direction: Direction,
        segment: SegmentId,
        port: PortId,
        key: &FlowKey,
    ) -> Answer {
        let lists = self.lists(direction, segment, port);
        let rules = || lists.iter().flat_map(|list| list.rules.iter());
        let state = key.state();
        let above = |rule: &RuleSpec| {
            !rule.source.is_empty() || !rule.destination.is_empty() || transport(rule)
        };
        // By its EtherType, or because addresses and all fields behind them are those of IP, unless
        // the rule has another EtherType.
        let network = |rule: &RuleSpec| match rule.ether_type.as_deref() {
            Some("ipv4" | "ipv6" | "arp" | "0x0800" | "0x86dd" | "0x0806") => true,
            Some(_) => false,
            None => above(rule),
        };
        if state.contains(KeyState::HIDDEN) && rules().any(network)
            || state.contains(KeyState::L3_MALFORMED) && rules().any(above)
            || state.contains(KeyState::L4_UNKNOWN) && rules().any(transport)
        {
            let (verdict, rule) = (Verdict::Drop, None);
            return Answer { verdict, rule };
        }
        let first = self.first(&lists, key, |_| true);
        let stateful = |rule: &RuleSpec| rule.action == RuleAction::AllowStateful;
        let invalid = is_invalid(key.ct().state());
        let answer = self.answer(first, (direction, segment));
        if !invalid || first.is_none_or(|(_, rule)| !stateful(rule)) {
            return answer;
        }
        let other = self.first(&lists, key, |rule| !stateful(rule));
        let answer = self.answer(other, (direction, segment));
        match answer.verdict {
            Verdict::Allow => answer,
            _ => Answer {
                verdict: Verdict::Drop,
                rule: None,
            },
        }
    }

    /// Returns the rule that decides, out of some.
    fn first<'m>(
        &self,
        lists: &[&'m AccessListSpec],
        key: &FlowKey,
        counts: impl Fn(&RuleSpec) -> bool,
    ) -> Option<(&'m AccessListSpec, &'m RuleSpec)> {
        let mut first: Option<(&AccessListSpec, &RuleSpec)> = None;
        for list in lists {
            for rule in list.rules.iter().filter(|rule| counts(rule)) {
                let earlier = first.is_none_or(|(_, old)| rule.priority > old.priority);
                if earlier && self.matches(rule, key) {
                    first = Some((list, rule));
                }
            }
        }
        first
    }

    fn answer(
        &self,
        first: Option<(&AccessListSpec, &RuleSpec)>,
        (direction, segment): (Direction, SegmentId),
    ) -> Answer {
        match first {
            Some((list, rule)) => Answer {
                verdict: match rule.action {
                    RuleAction::Drop => Verdict::Drop,
                    RuleAction::Reject => Verdict::Reject,
                    RuleAction::Allow => Verdict::Allow,
                    RuleAction::AllowStateful => Verdict::Stateful,
                },
                rule: Some((list.name.clone(), rule.name.clone())),
            },
            None => Answer {
                verdict: self.otherwise(direction, segment),
                rule: None,
            },
        }
    }

    fn otherwise(&self, direction: Direction, segment: SegmentId) -> Verdict {
        let name = self.names.segments.get(&segment).map(|s| &s.name);
        let found = self
            .model
            .defaults
            .iter()
            .find(|d| Some(&d.segment) == name);
        let otherwise = found.map(|default| match direction {
            Direction::FromGuest => default.from_guest,
            Direction::ToGuest => default.to_guest,
        });
        match otherwise {
            Some(Otherwise::Deny) => Verdict::Drop,
            Some(Otherwise::Allow) | None => Verdict::Allow,
        }
    }

    /// Returns the lists of the port, then those of its groups, then those of the segment.
    fn lists(
        &self,
        direction: Direction,
        segment: SegmentId,
        port: PortId,
    ) -> Vec<&AccessListSpec> {
        let name = self.names.ports.iter().find(|(_, id)| **id == port);
        let segment = self.names.segments.get(&segment).map(|s| s.name.clone());
        let is_port = |name_of: &String| name.is_some_and(|(name, _)| name == name_of);
        let in_group = |group: &String| {
            let found = self.model.groups.iter().find(|g| g.name == *group);
            found.is_some_and(|group| group.ports.iter().any(is_port))
        };
        let by_port = |list: &&AccessListSpec| list.ports.iter().any(is_port);
        let by_group = |list: &&AccessListSpec| list.groups.iter().any(in_group);
        let by_segment =
            |list: &&AccessListSpec| list.segments.iter().any(|s| Some(s) == segment.as_ref());
        let all = || self.model.lists.iter().filter(|l| l.direction == direction);
        all()
            .filter(by_port)
            .chain(all().filter(by_group))
            .chain(all().filter(by_segment))
            .collect()
    }

    fn matches(&self, rule: &RuleSpec, key: &FlowKey) -> bool {
        let ethertype = key.ethertype();
        let ip = [EtherType::IPV4, EtherType::IPV6].contains(&ethertype);
        let kind = match rule.ether_type.as_deref() {
            None => true,
            Some("ipv4") => ethertype == EtherType::IPV4,
            Some("ipv6") => ethertype == EtherType::IPV6,
            Some("arp") => ethertype == EtherType::ARP,
            Some(hex) => u16::from_str_radix(&hex[2..], 16) == Ok(ethertype.0),
        };
        let vlan = i64::from(key.vlan().unwrap_or(0));
        let addressed = !rule.source.is_empty() || !rule.destination.is_empty();
        kind && (ip || !transport(rule))
            // Without a type, addresses are those of IP and not of ARP.
            && (ip || rule.ether_type.is_some() || !addressed)
            && rule.vlan.is_none_or(|v| v == vlan)
            && mac_matches(rule.source_mac.as_deref(), key.smac())
            && mac_matches(rule.destination_mac.as_deref(), key.dmac())
            && self.peer_matches(rule, key.in_port())
            && self.address_matches(&rule.source, ethertype, key.src_ip())
            && self.address_matches(&rule.destination, ethertype, key.dst_ip())
            && protocol_matches(rule.protocol.as_deref(), key)
            && piece_matches(rule.fragment, key.state())
            && into_transport_matches(rule, key)
    }

    fn peer_matches(&self, rule: &RuleSpec, port: u32) -> bool {
        if rule.peer_ports.is_empty() && rule.peer_groups.is_empty() {
            return true;
        }
        let is_it = |name: &String| self.names.ports[name].0 == port;
        let named = |group: &&super::Group| rule.peer_groups.contains(&group.name);
        let mut groups = self.model.groups.iter().filter(named);
        rule.peer_ports.iter().any(is_it) || groups.any(|g| g.ports.iter().any(is_it))
    }

    fn address_matches(&self, texts: &[String], ethertype: EtherType, address: u128) -> bool {
        texts.is_empty() || texts.iter().any(|text| self.has(text, ethertype, address))
    }

    fn has(&self, text: &str, ethertype: EtherType, address: u128) -> bool {
        if let Some(name) = text.strip_prefix('@') {
            let mut sets = self
                .model
                .address_sets
                .iter()
                .filter(|set| set.name == name);
            return sets.any(|set| {
                let mut all = set.addresses.iter();
                all.any(|text| self.has(text, ethertype, address))
            });
        }
        let (start, len) = text.split_once('/').unwrap_or((text, "128"));
        let len: u32 = len.parse().expect("a checked length");
        match ethertype {
            EtherType::IPV4 | EtherType::ARP => start.parse().is_ok_and(|start: Ipv4Addr| {
                let differ = start.to_bits() ^ address as u32;
                differ.leading_zeros() >= len.min(32)
            }),
            EtherType::IPV6 => start
                .parse()
                .is_ok_and(|s: Ipv6Addr| (s.to_bits() ^ address).leading_zeros() >= len),
            _ => false,
        }
    }
}

/// Returns whether a frame belongs to no connection and opens none: it is tracked, and neither new
/// nor of a known one.
fn is_invalid(state: CtState) -> bool {
    let has = |bit| state.contains(bit);
    let anew = has(CtState::STALE) || has(CtState::MOVED);
    let related = has(CtState::RELATED) && !anew;
    let belongs = has(CtState::ESTABLISHED) || has(CtState::NEW) || related;
    has(CtState::TRACKED) && (has(CtState::INVALID) || !belongs)
}

/// Returns whether a rule matches on the protocol or behind it.
fn transport(rule: &RuleSpec) -> bool {
    rule.protocol.is_some() || rule.fragment.is_some()
}

fn mac_matches(text: Option<&str>, mac: MacAddr) -> bool {
    let Some(text) = text else { return true };
    let (value, mask) = text.split_once('/').unwrap_or((text, "ff:ff:ff:ff:ff:ff"));
    let number = |text: &str| {
        let mac: MacAddr = text.parse().expect("a checked address");
        mac.to_u64()
    };
    mac.to_u64() & number(mask) == number(value)
}

fn protocol_matches(text: Option<&str>, key: &FlowKey) -> bool {
    let (protocol, v4) = (key.ip_proto(), key.ethertype() == EtherType::IPV4);
    match text {
        None => true,
        Some("tcp") => protocol == 6,
        Some("udp") => protocol == 17,
        // In the other family this number is not ICMP.
        Some("icmp" | "1") => protocol == 1 && v4,
        Some("icmpv6" | "58") => protocol == 58 && !v4,
        Some(number) => number.parse() == Ok(protocol),
    }
}

fn piece_matches(piece: Option<Pieces>, state: KeyState) -> bool {
    let (any, later) = (
        state.contains(KeyState::FRAGMENT),
        state.contains(KeyState::LATER_FRAGMENT),
    );
    match piece {
        None => true,
        Some(Pieces::Whole) => !any,
        Some(Pieces::First) => any && !later,
        Some(Pieces::Later) => later,
    }
}

/// Matches ports, flags, type and code. Later fragments have none: an allowing rule does not match
/// them, a dropping rule does.
fn into_transport_matches(rule: &RuleSpec, key: &FlowKey) -> bool {
    let looks = !rule.source_ports.is_empty()
        || !rule.destination_ports.is_empty()
        || rule.tcp_flags.is_some()
        || rule.icmp_type.is_some();
    if looks && key.state().contains(KeyState::LATER_FRAGMENT) {
        return !matches!(rule.action, RuleAction::Allow | RuleAction::AllowStateful);
    }
    let flags = key.l4_flags();
    port_matches(&rule.source_ports, key.l4_src())
        && port_matches(&rule.destination_ports, key.l4_dst())
        && rule
            .tcp_flags
            .as_deref()
            .is_none_or(|text| flags_match(text, flags))
        && rule
            .icmp_type
            .is_none_or(|kind| flags >> 8 == u16::from(kind))
        && rule
            .icmp_code
            .is_none_or(|code| flags & 0xff == u16::from(code))
}

fn port_matches(texts: &[PortText], port: u16) -> bool {
    let has = |text: &PortText| match text {
        PortText::Number(number) => *number == i64::from(port),
        PortText::Text(text) => {
            let (from, to) = text.split_once('-').unwrap_or((text, text));
            let number = |text: &str| text.parse::<u16>().expect("a checked port");
            (number(from)..=number(to)).contains(&port)
        }
    };
    texts.is_empty() || texts.iter().any(has)
}

fn flags_match(text: &str, flags: u16) -> bool {
    let names = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];
    let (set, wildcards_of) = text.split_once('/').expect("checked flags");
    let has = |list: &str, name| list.split(',').any(|one| one.trim() == name);
    names
        .iter()
        .enumerate()
        .all(|(bit, name)| !has(wildcards_of, *name) || has(set, *name) == (flags >> bit & 1 == 1))
}
