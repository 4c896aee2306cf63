//! Scheduled ports: checks of their settings, and their values for the switch. Guarantees that
//! cannot all be kept are found in `admission`.

mod admission;
mod change;
mod outputs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use api::v1::{
    Beyond, DEFAULT_CLASS, DesiredState, EgressSpec, FullAction, PortKind, PortQosSpec, PortSpec,
    QosClassSpec, QosGroupStatus, QosRates,
};
use port::MAX_FRAME;

use super::at::{At, count, name, number, quoted};
use super::bursts::FRAME;
use super::invalid::{Invalid, Place, expect};
pub use admission::{Speeds, admit, foresee};
pub use change::QosChange;
pub use outputs::{
    Names, class_priorities, code_points, dscp_of_classes, output_of, sender_qos_of,
};

/// Most classes, with the default one.
const MAX_CLASSES: usize = egress::MAX_CLASSES;
/// Most groups: each may be at every output.
const MAX_GROUPS: usize = 1024;
/// Priorities of classes and ports, and priority code points (IEEE 802.1Q).
const PRIORITIES: RangeInclusive<u8> = 0..=7;
/// Differentiated services code points (RFC 2474).
const DSCPS: RangeInclusive<u8> = 0..=63;
const WEIGHTS: RangeInclusive<u16> = 1..=1000;
const BITS: RangeInclusive<u64> = 1..=1_000_000_000_000;
const BURSTS: RangeInclusive<u64> = FRAME..=1_000_000_000_000;
/// Bytes beside those of a frame; more than any encapsulation of Ethernet adds.
const OVERHEADS: RangeInclusive<u32> = 0..=256;
/// Bytes that may wait in an interface.
const ROOMS: RangeInclusive<u64> = MAX_FRAME as u64..=1_000_000_000;
/// Bytes that may wait in an interface by default, at least.
const ROOM: u64 = 256_000;
/// A bit rate divided by the bytes that may wait there by default: those of 0.4 milliseconds. The
/// switch looks at interfaces four times in that time.
const ROOMS_PER_SECOND: u64 = 20_000;
/// Most entries of `class_by_pair`, as there are queue pairs.
const PAIRS_MAX: usize = 64;

/// Checks classes, groups, and the settings of all ports, whose names and segments are valid.
///
/// # Errors
/// The first error. Guarantees at uplinks whose rate is the speed of their interface are checked
/// by [`admit`] only.
pub(super) fn check(state: &DesiredState) -> Result<(), Invalid> {
    classes(&state.qos_classes)?;
    groups(state)?;
    for (i, port) in state.ports.iter().enumerate() {
        if let Some(spec) = &port.egress {
            self::egress(Place::Egress(i), port, spec)?;
        }
        if !port.qos.is_nothing() {
            of_port(Place::Qos(i), port, state)?;
        }
    }
    admission::within_objects(state)?;
    admission::at_outputs(state, &Speeds::new(), admission::Unknown::Skipped)
}

/// Brings classes into their normal form: the default class is listed only if it has settings.
pub(super) fn normalise(state: &mut DesiredState) {
    let usual = QosClassSpec::new(DEFAULT_CLASS);
    state.qos_classes.retain(|class| *class != usual);
}

/// Returns all classes, the default one first if it is not configured.
#[must_use]
pub fn classes_of(state: &DesiredState) -> Vec<QosClassSpec> {
    let mut all = state.qos_classes.clone();
    if state.qos_class(DEFAULT_CLASS).is_none() {
        all.insert(0, QosClassSpec::new(DEFAULT_CLASS));
    }
    all
}

/// Returns all groups with their members.
#[must_use]
pub fn groups_of(state: &DesiredState) -> Vec<QosGroupStatus> {
    let members = |name: &str| {
        let ports = state.ports.iter();
        let members = ports.filter(|port| port.qos.group.as_deref() == Some(name));
        members.map(|port| port.name.clone()).collect()
    };
    let groups = state.qos_groups.iter();
    groups
        .map(|group| QosGroupStatus::new(group, members(&group.name)))
        .collect()
}

/// Returns the overhead of a frame at a port with an output, in bytes.
#[must_use]
pub fn overhead_of(port: &PortSpec, spec: &EgressSpec) -> u32 {
    // Preamble and start delimiter (8), frame check sequence (4), gap (12): IEEE 802.3, 3.1, 4.4.
    let usual = if port.kind == PortKind::Uplink { 24 } else { 0 };
    spec.overhead.unwrap_or(usual)
}

/// Returns what happens when the interface of a port takes no more.
#[must_use]
pub fn full_of(port: &PortSpec, spec: &EgressSpec) -> FullAction {
    let usual = match port.kind.has_interface() {
        true => FullAction::Hold,
        false => FullAction::Drop,
    };
    spec.full.unwrap_or(usual)
}

/// Returns what happens to frames of a port that may not go yet.
#[must_use]
pub fn beyond_of(port: &PortSpec) -> Beyond {
    match port.kind {
        PortKind::Uplink => Beyond::Drop,
        _ => port.qos.beyond.unwrap_or(Beyond::Hold),
    }
}

/// Returns whether the DSCP of a port's frames gives them their class.
#[must_use]
pub fn trusts_dscp(port: &PortSpec) -> bool {
    let usual = port.kind == PortKind::Uplink;
    port.qos.trust_dscp.unwrap_or(usual)
}

/// Returns the rate of an output, bits a second, if it is known. `speed` is that of its interface.
#[must_use]
pub fn rate_of(spec: &EgressSpec, speed: Option<u64>) -> Option<u64> {
    match (spec.rate, speed) {
        (Some(rate), Some(speed)) => Some(rate.min(speed)),
        (rate, speed) => rate.or(speed),
    }
}

/// Returns the bytes that may wait in the interface of a scheduled port, in each of two places: in
/// the queue of its driver, and in the send buffer that the kernel has for it. `speed` is that of
/// the interface.
#[must_use]
pub fn room_of(port: &PortSpec, speed: Option<u64>) -> Option<u64> {
    let spec = port.egress.filter(|_| port.kind.has_interface())?;
    let of_rate = rate_of(&spec, speed).unwrap_or(0) / ROOMS_PER_SECOND;
    let usual = ROOM.max(of_rate).min(*ROOMS.end());
    Some(spec.room.unwrap_or(usual) / 2)
}

/// Formats a number exactly, with a decimal prefix where that is no longer: `10.4G`.
#[must_use]
pub fn si(number: u64) -> String {
    let scales = [(12, "T"), (9, "G"), (6, "M"), (3, "k")];
    let exact = scales.into_iter().find_map(|(zeros, prefix)| {
        let scale = 10u64.pow(zeros);
        let (whole, part) = (number / scale, number % scale);
        // Three digits at most behind the point.
        let step = scale / 1000;
        if whole == 0 || part % step != 0 {
            return None;
        }
        let part = format!("{:03}", part / step);
        let part = part.trim_end_matches('0');
        let point = if part.is_empty() { "" } else { "." };
        Some(format!("{whole}{point}{part}{prefix}"))
    });
    let plain = number.to_string();
    exact
        .filter(|exact| exact.len() <= plain.len())
        .unwrap_or(plain)
}

fn classes(classes: &[QosClassSpec]) -> Result<(), Invalid> {
    let mut names = BTreeMap::new();
    let mut owners = BTreeMap::new();
    names.insert(DEFAULT_CLASS, usize::MAX);
    for (i, class) in classes.iter().enumerate() {
        let at = |key| At(Place::QosClass(i), key);
        name(at("name"), &class.name)?;
        let before = names.insert(class.name.as_str(), i);
        if before.is_some_and(|before| before != usize::MAX) {
            let found = format!("{} a second time", quoted(&class.name));
            return Err(at("name").taken("a name that no other class has", found));
        }
        if names.len() > MAX_CLASSES {
            let expected = format!(
                "at most {MAX_CLASSES} classes with {}",
                quoted(DEFAULT_CLASS)
            );
            return Err(at("name").wrong(expected, format!("{} classes", names.len())));
        }
        let priority = class.priority;
        number(at("priority"), priority, &PRIORITIES, expect::PRIORITY)?;
        if let Some(pcp) = class.pcp {
            number(at("pcp"), pcp, &PRIORITIES, expect::PCP)?;
        }
        for (item, dscp) in class.dscp.iter().enumerate() {
            if !DSCPS.contains(dscp) {
                return Err(at("dscp").item(item, expect::DSCP, dscp.to_string()));
            }
            if let Some(first) = owners.insert(dscp, &class.name) {
                let found = format!("{dscp}, a value of class {}", quoted(first));
                return Err(at("dscp").item(item, "a value that no other class has", found));
            }
        }
    }
    Ok(())
}

fn groups(state: &DesiredState) -> Result<(), Invalid> {
    let last = Place::QosGroup(state.qos_groups.len().saturating_sub(1));
    let groups = state.qos_groups.len();
    count(At(last, "name"), groups, MAX_GROUPS, "groups")?;
    let mut names = BTreeMap::new();
    for (i, group) in state.qos_groups.iter().enumerate() {
        let place = Place::QosGroup(i);
        let at = At(place, "name");
        name(at, &group.name)?;
        if names.insert(&group.name, i).is_some() {
            let found = format!("{} a second time", quoted(&group.name));
            return Err(at.taken("a name that no other group has", found));
        }
        rates(|key| At(place, key), &group.rates(), "")?;
    }
    Ok(())
}

/// Checks the rates of one object; `of` names it in messages, where its keys do not.
fn rates(at: impl Fn(&'static str) -> At, rates: &QosRates, of: &str) -> Result<(), Invalid> {
    let named = |found: u64| format!("{of}{found}");
    for (key, value, range, words) in [
        ("min", rates.min, &BITS, expect::BITS),
        ("max", rates.max, &BITS, expect::BITS),
        ("burst", rates.burst, &BURSTS, expect::BITS_BURST),
    ] {
        if let Some(value) = value.filter(|value| !range.contains(value)) {
            return Err(at(key).wrong(words, named(value)));
        }
    }
    if !WEIGHTS.contains(&rates.weight) {
        return Err(at("weight").wrong(expect::WEIGHT, named(rates.weight.into())));
    }
    match (rates.min, rates.max) {
        (Some(min), Some(max)) if min > max => {
            let expected = format!("at most the max of {}", si(max));
            Err(at("min").wrong(expected, format!("{of}{}", si(min))))
        }
        _ => Ok(()),
    }
}

/// Checks the output of a port.
fn egress(place: Place, port: &PortSpec, spec: &EgressSpec) -> Result<(), Invalid> {
    let at = |key| At(place, key);
    let kind = quoted(port.kind.as_str());
    match spec.rate {
        Some(rate) => number(at("rate"), rate, &BITS, expect::BITS)?,
        None if port.kind != PortKind::Uplink => {
            let expected = format!("a rate, which ports of kind {kind} need");
            return Err(at("rate").wrong(expected, "no such key"));
        }
        None => {}
    }
    if let Some(overhead) = spec.overhead {
        number(at("overhead"), overhead, &OVERHEADS, expect::OVERHEAD)?;
    }
    let full = spec.full.map(|full| quoted(full.as_str()));
    let room = spec.room.map(|room| room.to_string());
    for (key, found) in [("full", full), ("room", room)] {
        if let Some(found) = found.filter(|_| !port.kind.has_interface()) {
            return Err(at(key).wrong(format!("no {key} with kind {kind}"), found));
        }
    }
    match spec.room {
        Some(room) => number(at("room"), room, &ROOMS, expect::ROOM),
        None => Ok(()),
    }
}

/// Checks what a port has as a sender.
fn of_port(place: Place, port: &PortSpec, state: &DesiredState) -> Result<(), Invalid> {
    let qos = &port.qos;
    let at = |key| At(place, key);
    rates(at, &qos.rates(), "")?;
    number(at("priority"), qos.priority, &PRIORITIES, expect::PRIORITY)?;
    if let Some(group) = &qos.group
        && state.qos_group(group).is_none()
    {
        let names = state.qos_groups.iter().map(|group| group.name.as_str());
        return Err(at("group").wrong(one_of("a group", names), quoted(group)));
    }
    if qos.beyond == Some(Beyond::Hold) && port.kind == PortKind::Uplink {
        let kind = quoted(port.kind.as_str());
        let expected = format!("\"drop\" with kind {kind}, whose frames cannot be held");
        return Err(at("beyond").wrong(expected, quoted(Beyond::Hold.as_str())));
    }
    by_pair(at("class_by_pair"), qos, state)?;
    for (class, spec) in &qos.classes {
        if !class_exists(state, class) {
            return Err(at("classes").wrong(one_of_classes(state), quoted(class)));
        }
        let of = format!("class {}: ", quoted(class));
        rates(|_| at("classes"), spec, &of)?;
    }
    Ok(())
}

fn by_pair(at: At, qos: &PortQosSpec, state: &DesiredState) -> Result<(), Invalid> {
    count(
        at,
        qos.class_by_pair.len(),
        PAIRS_MAX,
        "classes of queue pairs",
    )?;
    let mut classes = qos.class_by_pair.iter().enumerate();
    match classes.find(|(_, class)| !class_exists(state, class)) {
        Some((item, class)) => Err(at.item(item, one_of_classes(state), quoted(class))),
        None => Ok(()),
    }
}

fn class_exists(state: &DesiredState, class: &str) -> bool {
    class == DEFAULT_CLASS || state.qos_class(class).is_some()
}

fn one_of_classes(state: &DesiredState) -> String {
    let all = classes_of(state);
    one_of("a class", all.iter().map(|class| class.name.as_str()))
}

/// Describes the existing objects of a kind; of many, the first ones.
fn one_of<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    let more = if names.len() > 8 { ", …" } else { "" };
    names.truncate(8);
    match names.is_empty() {
        true => format!("the name of {what}, and there is none"),
        false => format!("the name of {what} ({}{more})", names.join(", ")),
    }
}
