//! Resolution of a rule's text to its conditions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use port::PortId;
use wire::flow::KeyState;

use super::error::{AccessError, Place, Reason, RuleName};
use super::matcher::{Addresses, Kinds, Matcher};
use super::prefix::Prefixes;
use super::ranges::Ranges;
use super::rules::{LogLimit, RuleId, RuleInfo, Verdict};
use super::text;
use crate::qos_class::DEFAULT_CLASS;
use model::{AccessModel, Direction, Pieces, PortText, RuleAction, RuleSpec};

/// Name of the class that frames have without any other.
const DEFAULT_CLASS_NAME: &str = "default";

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;

/// Objects that rules refer to by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Context {
    pub(super) sets: Arc<HashMap<String, Addresses>>,
    /// In ascending order of the ports.
    pub(super) groups: BTreeMap<String, Vec<PortId>>,
    pub(super) ports: BTreeMap<String, PortId>,
    pub(super) classes: BTreeMap<String, u8>,
}

/// Field and reason of an error.
pub(super) type Fault = (&'static str, Reason);

fn unknown(kind: &'static str, name: &str) -> Reason {
    let name = name.to_owned();
    Reason::Unknown { kind, name }
}

impl Context {
    /// Checks and resolves sets and groups.
    pub(super) fn new(
        model: &AccessModel,
        ports: BTreeMap<String, PortId>,
        classes: BTreeMap<String, u8>,
    ) -> Result<Self, AccessError> {
        let mut context = Self {
            ports,
            classes,
            ..Self::default()
        };
        for set in model.address_sets.iter() {
            let fault = |field| at(Place::Set(set.name.clone()), field);
            text::name(&set.name).map_err(fault("name"))?;
            let addresses = context
                .addresses(&set.addresses)
                .map_err(fault("addresses"))?;
            let sets = Arc::make_mut(&mut context.sets);
            if sets.insert(set.name.clone(), addresses).is_some() {
                return Err(fault("name")(Reason::Repeated(set.name.clone())));
            }
        }
        for group in &model.groups {
            let fault = |field| at(Place::Group(group.name.clone()), field);
            text::name(&group.name).map_err(fault("name"))?;
            let ports = context.ports(&group.ports).map_err(fault("ports"))?;
            if context.groups.insert(group.name.clone(), ports).is_some() {
                return Err(fault("name")(Reason::Repeated(group.name.clone())));
            }
        }
        Ok(context)
    }

    pub(super) fn port(&self, name: &str) -> Result<PortId, Reason> {
        let port = self.ports.get(name).copied();
        port.ok_or_else(|| unknown("port", name))
    }

    pub(super) fn group(&self, name: &str) -> Result<&[PortId], Reason> {
        let group = self.groups.get(name);
        group
            .map(Vec::as_slice)
            .ok_or_else(|| unknown("group", name))
    }

    /// Resolves port names, each once, to ascending ids.
    fn ports(&self, names: &[String]) -> Result<Vec<PortId>, Reason> {
        let mut ports = Vec::with_capacity(names.len());
        for name in names {
            ports.push(self.port(name)?);
        }
        ports.sort_unstable();
        let twice = ports.windows(2).find(|pair| pair[0] == pair[1]);
        match twice {
            Some(pair) => Err(Reason::Repeated(self.port_name(pair[0]))),
            None => Ok(ports),
        }
    }

    pub(super) fn port_name(&self, port: PortId) -> String {
        let found = self.ports.iter().find(|(_, id)| **id == port);
        found.map_or_else(|| port.0.to_string(), |(name, _)| name.clone())
    }

    /// Resolves addresses, prefixes and sets. A single set is shared.
    fn addresses(&self, texts: &[String]) -> Result<Addresses, Reason> {
        let set = |text: &str| {
            let name = text.strip_prefix('@')?;
            let set = self.sets.get(name);
            Some(set.ok_or_else(|| unknown("address_set", name)))
        };
        if let [only] = texts
            && let Some(set) = set(only)
        {
            return set.cloned();
        }
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for text in texts {
            if let Some(set) = set(text) {
                let set = set?;
                v4.extend_from_slice(set.v4.as_slice());
                v6.extend_from_slice(set.v6.as_slice());
                continue;
            }
            match text::prefix(text)? {
                (prefix, false) => v4.push(prefix),
                (prefix, true) => v6.push(prefix),
            }
        }
        let prefixes = |all| Arc::new(Prefixes::new(all));
        let (v4, v6) = (prefixes(v4), prefixes(v6));
        Ok(Addresses { v4, v6 })
    }

    fn peers(&self, spec: &RuleSpec, direction: Direction) -> Result<Option<Vec<u32>>, Fault> {
        let (ports, groups) = (&spec.peer_ports, &spec.peer_groups);
        if ports.is_empty() && groups.is_empty() {
            return Ok(None);
        }
        let field = ["peer_ports", "peer_groups"][usize::from(ports.is_empty())];
        if direction == Direction::FromGuest {
            return Err((field, Reason::PeersFromGuest));
        }
        let mut all = Vec::new();
        for name in ports {
            all.push(self.port(name).map_err(|r| ("peer_ports", r))?.0);
        }
        for name in groups {
            let group = self.group(name).map_err(|r| ("peer_groups", r))?;
            all.extend(group.iter().map(|port| port.0));
        }
        all.sort_unstable();
        all.dedup();
        Ok(Some(all))
    }

    /// Resolves a rule of a list with this direction.
    pub(super) fn rule(
        &self,
        list: &Arc<str>,
        direction: Direction,
        spec: &RuleSpec,
    ) -> Result<(Arc<RuleInfo>, Matcher), AccessError> {
        let fault = |(field, reason)| AccessError {
            place: Place::Rule(RuleName {
                list: list.to_string(),
                rule: spec.name.clone(),
            }),
            field,
            reason: Box::new(reason),
        };
        let class = self.class(spec).map_err(fault)?;
        let info = info(list, spec, class).map_err(fault)?;
        let matcher = self.matcher(spec, direction).map_err(fault)?;
        Ok((Arc::new(info), matcher))
    }

    fn class(&self, spec: &RuleSpec) -> Result<Option<u8>, Fault> {
        let number = |name: &String| {
            let default = (name == DEFAULT_CLASS_NAME).then_some(DEFAULT_CLASS);
            let number = default.or_else(|| self.classes.get(name).copied());
            number.ok_or_else(|| ("class", unknown("class", name)))
        };
        spec.class.as_ref().map(number).transpose()
    }

    fn matcher(&self, spec: &RuleSpec, direction: Direction) -> Result<Matcher, Fault> {
        let mac = |field, text: &Option<String>| match text {
            Some(text) => text::mac(text).map_err(|r| (field, r)),
            None => Ok(Default::default()),
        };
        let addresses = |field, texts: &[String]| match texts {
            [] => Ok(None),
            texts => self.addresses(texts).map(Some).map_err(|r| (field, r)),
        };
        let transport = transport(spec)?;
        let mut matcher = Matcher {
            source_mac: mac("source_mac", &spec.source_mac)?,
            destination_mac: mac("destination_mac", &spec.destination_mac)?,
            vlan: vlan(spec)?,
            source: addresses("source", &spec.source)?,
            destination: addresses("destination", &spec.destination)?,
            peers: self.peers(spec, direction)?,
            state: pieces(spec.fragment),
            ..transport
        };
        let ethertype = spec.ether_type.as_deref().map(text::ether_type).transpose();
        let ethertype = ethertype.map_err(|r| ("ether_type", r))?;
        settle_kinds(&mut matcher, ethertype)?;
        Ok(matcher)
    }
}

/// Returns a function from reason to error.
pub(super) fn at(place: Place, field: &'static str) -> impl FnOnce(Reason) -> AccessError {
    move |reason| AccessError {
        place,
        field,
        reason: Box::new(reason),
    }
}

fn info(list: &Arc<str>, spec: &RuleSpec, class: Option<u8>) -> Result<RuleInfo, Fault> {
    text::name(&spec.name).map_err(|r| ("name", r))?;
    let verdict = match spec.action {
        RuleAction::Allow => Verdict::Allow,
        RuleAction::Drop => Verdict::Drop,
        RuleAction::Reject => Verdict::Reject,
        RuleAction::AllowStateful => Verdict::Stateful,
    };
    let log = match spec.log {
        Some(log) if log.per_second == 0 => return Err(("log.per_second", Reason::ZeroLimit)),
        log => log.map(|log| LogLimit {
            per_second: log.per_second,
        }),
    };
    Ok(RuleInfo {
        id: RuleId::of(list, &spec.name),
        list: list.clone(),
        name: spec.name.as_str().into(),
        verdict,
        log,
        class,
    })
}

fn vlan(spec: &RuleSpec) -> Result<Option<u16>, Fault> {
    let vlan = spec.vlan.map(text::vlan).transpose();
    vlan.map_err(|r| ("vlan", r))
}

fn pieces(pieces: Option<Pieces>) -> (u16, u16) {
    let (any, later) = (KeyState::FRAGMENT.bits(), KeyState::LATER_FRAGMENT.bits());
    match pieces {
        None => (0, 0),
        Some(Pieces::Whole) => (0, any),
        Some(Pieces::First) => (any, any | later),
        Some(Pieces::Later) => (later, later),
    }
}

/// Returns the conditions on the protocol and fields behind it, and no others.
fn transport(spec: &RuleSpec) -> Result<Matcher, Fault> {
    let protocol = spec.protocol.as_deref().map(text::protocol).transpose();
    let protocol = protocol.map_err(|r| ("protocol", r))?;
    let has_ports = matches!(protocol, Some(TCP | UDP));
    let later = spec.fragment == Some(Pieces::Later);
    let ports = |field, texts: &[PortText]| {
        if texts.is_empty() {
            return Ok(None);
        }
        if !has_ports {
            return Err((field, Reason::PortsWithoutProtocol));
        }
        if later {
            return Err((field, Reason::LaterFragmentsHaveNone));
        }
        let ranges: Result<Vec<_>, _> = texts.iter().map(text::ports).collect();
        Ok(Some(Ranges::new(ranges.map_err(|r| (field, r))?)))
    };
    let (field, flags) = flags(spec, protocol)?;
    if later && flags.1 != 0 {
        return Err((field, Reason::LaterFragmentsHaveNone));
    }
    Ok(Matcher {
        protocol,
        source_ports: ports("source_ports", &spec.source_ports)?,
        destination_ports: ports("destination_ports", &spec.destination_ports)?,
        flags,
        ..Matcher::default()
    })
}

/// Returns the field with its value and mask of TCP flags, or of type and code.
fn flags(spec: &RuleSpec, protocol: Option<u8>) -> Result<(&'static str, (u16, u16)), Fault> {
    if let Some(text) = &spec.tcp_flags {
        let field = "tcp_flags";
        if protocol != Some(TCP) {
            return Err((field, Reason::FlagsWithoutTcp));
        }
        return Ok((field, text::tcp_flags(text).map_err(|r| (field, r))?));
    }
    let field = ["icmp_type", "icmp_code"][usize::from(spec.icmp_type.is_none())];
    let value = match (spec.icmp_type, spec.icmp_code) {
        (None, None) => return Ok((field, (0, 0))),
        (None, Some(_)) => return Err((field, Reason::CodeWithoutType)),
        (Some(kind), None) => (u16::from(kind) << 8, 0xff00),
        (Some(kind), Some(code)) => (u16::from(kind) << 8 | u16::from(code), 0xffff),
    };
    match protocol {
        Some(ICMP | ICMPV6) => Ok((field, value)),
        _ => Err((field, Reason::TypeWithoutIcmp)),
    }
}

/// Address families of a rule: IPv4 and IPv6.
type Families = [bool; 2];

fn families_of(addresses: &Option<Addresses>) -> Families {
    match addresses {
        // A set may be empty for a while: its rules match nothing then.
        Some(all) if all.v4.is_empty() && all.v6.is_empty() => [true, true],
        Some(all) => [!all.v4.is_empty(), !all.v6.is_empty()],
        None => [true, true],
    }
}

/// Determines the EtherTypes of the rule, and removes addresses of others.
fn settle_kinds(matcher: &mut Matcher, ethertype: Option<u16>) -> Result<(), Fault> {
    let of_protocol = match matcher.protocol {
        Some(ICMP) => [true, false],
        Some(ICMPV6) => [false, true],
        _ => [true, true],
    };
    let of_type = match ethertype {
        None => [true, true],
        Some(IPV6) => [false, true],
        Some(IPV4) => [true, false],
        // ARP has IPv4 addresses and no protocol.
        Some(ARP) if !matcher.looks_at_transport() => [true, false],
        Some(_) => [false, false],
    };
    let all = [
        families_of(&matcher.source),
        families_of(&matcher.destination),
        of_protocol,
        of_type,
    ];
    let families = [0, 1].map(|i| all.iter().all(|families| families[i]));
    let above = matcher.looks_above_ethernet();
    matcher.kinds = match (ethertype, families) {
        (_, [false, false]) if above => return Err(("ether_type", Reason::Families)),
        (Some(one), _) => Kinds::One(one),
        (None, _) if !above => Kinds::Any,
        (None, [true, false]) => Kinds::One(IPV4),
        (None, [false, _]) => Kinds::One(IPV6),
        (None, [true, true]) => Kinds::Ip,
    };
    if above {
        keep(&mut matcher.source, families);
        keep(&mut matcher.destination, families);
    }
    Ok(())
}

/// Removes addresses of other families.
fn keep(addresses: &mut Option<Addresses>, families: Families) {
    let Some(all) = addresses else { return };
    if !families[0] && !all.v4.is_empty() {
        all.v4 = Arc::default();
    }
    if !families[1] && !all.v6.is_empty() {
        all.v6 = Arc::default();
    }
}
