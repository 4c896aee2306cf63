//! Admission: all guarantees together are within the rates that they are given from.

use std::collections::{BTreeMap, BTreeSet};

use api::v1::{DesiredState, PortSpec};

use super::super::at::{At, quoted};
use super::super::invalid::{Invalid, Place};
use super::si;

/// Speeds of the interfaces of ports, in bits a second, by the port's name.
pub type Speeds = BTreeMap<String, u64>;

/// Checks that the guarantees of a checked state are within the rates of its outputs, where those
/// without a configured rate have the speed of their interface. A state that promises nothing more
/// than the one `before` is not refused: links become slower, or have no speed while they are down.
///
/// # Errors
/// The first port or group whose guarantee is beyond an output's rate, or that has one at an output
/// of unknown rate.
pub fn admit(state: &DesiredState, before: &DesiredState, speeds: &Speeds) -> Result<(), Invalid> {
    if promises_no_more(state, before) {
        return Ok(());
    }
    at_outputs(state, speeds, Unknown::Refused)
}

/// As [`admit`], before the interfaces of new uplinks are open: outputs of unknown rate are not
/// checked.
///
/// # Errors
/// As [`admit`].
pub fn foresee(
    state: &DesiredState,
    before: &DesiredState,
    speeds: &Speeds,
) -> Result<(), Invalid> {
    if promises_no_more(state, before) {
        return Ok(());
    }
    at_outputs(state, speeds, Unknown::Skipped)
}

/// Treatment of guarantees at an output of unknown rate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    /// They are not checked.
    Skipped,
    /// They are refused.
    Refused,
}

/// Returns whether every guarantee and every output of a state was the same before.
fn promises_no_more(state: &DesiredState, before: &DesiredState) -> bool {
    let group_is_same = |name: &str| {
        let min = |state: &DesiredState| state.qos_group(name).and_then(|group| group.min);
        min(state) == min(before)
    };
    let is_same = |port: &PortSpec| {
        let Some(old) = before.port(&port.name) else {
            return false;
        };
        let promise = |port: &PortSpec| (port.qos.min, port.qos.group.clone());
        let output = |port: &PortSpec| port.egress.map(|spec| spec.rate);
        let place = |port: &PortSpec| (port.interface.clone(), port.netns.clone());
        port.segments().eq(old.segments())
            && promise(port) == promise(old)
            && output(port) == output(old)
            && (port.egress.is_none() || place(port) == place(old))
            && port.qos.group.as_deref().is_none_or(group_is_same)
    };
    let counts = |port: &&PortSpec| {
        port.egress.is_some() || port.qos.min.is_some() || port.qos.group.is_some()
    };
    state.ports.iter().filter(counts).all(is_same)
}

/// Checks that classes are within their port, and ports within their group.
pub(super) fn within_objects(state: &DesiredState) -> Result<(), Invalid> {
    let mut groups: BTreeMap<&str, u64> = BTreeMap::new();
    for (i, port) in state.ports.iter().enumerate() {
        let own = port.qos.min.unwrap_or(0);
        let classes = port.qos.classes.values().filter_map(|class| class.min);
        let promised: u64 = classes.sum();
        let at = |key| At(Place::Qos(i), key);
        if promised > own {
            let of = format!("its own min of {}", si(own));
            return Err(beyond(at("classes"), "port", &port.name, promised, &of));
        }
        let group = port.qos.group.as_deref();
        let Some(group) = group.and_then(|group| state.qos_group(group)) else {
            continue;
        };
        let sum = groups.entry(&group.name).or_default();
        *sum += own;
        let min = group.min.unwrap_or(0);
        if *sum > min {
            let of = format!("the min of {} of group {}", si(min), quoted(&group.name));
            return Err(beyond(at("min"), "port", &port.name, *sum, &of));
        }
    }
    Ok(())
}

/// Checks that guarantees are within the rates of the outputs.
pub(super) fn at_outputs(
    state: &DesiredState,
    speeds: &Speeds,
    unknown: Unknown,
) -> Result<(), Invalid> {
    let promises = promises(state);
    if promises.is_empty() {
        return Ok(());
    }
    for output in state.ports.iter() {
        let Some(spec) = output.egress else { continue };
        let rate = spec.rate.or_else(|| speeds.get(&output.name).copied());
        if rate.is_some() || unknown == Unknown::Refused {
            at_output(state, &promises, output, rate)?;
        }
    }
    Ok(())
}

/// The ports that have a guarantee, or a group with one, by index.
fn promises(state: &DesiredState) -> Vec<(usize, &PortSpec)> {
    let group_min = |port: &PortSpec| {
        let group = port.qos.group.as_deref()?;
        state.qos_group(group)?.min
    };
    let promised = |port: &PortSpec| port.qos.min.is_some() || group_min(port).is_some();
    let ports = state.ports.iter().enumerate();
    ports.filter(|(_, port)| promised(port)).collect()
}

fn at_output(
    state: &DesiredState,
    promises: &[(usize, &PortSpec)],
    output: &PortSpec,
    rate: Option<u64>,
) -> Result<(), Invalid> {
    let segments: BTreeSet<&str> = output.segments().collect();
    let reach = |port: &PortSpec| {
        port.name != output.name && port.segments().any(|name| segments.contains(name))
    };
    let mut groups = BTreeSet::new();
    let mut sum = 0;
    for &(i, port) in promises.iter().filter(|(_, port)| reach(port)) {
        let group = port.qos.group.as_deref();
        let group = group.and_then(|name| {
            let mut all = state.qos_groups.iter();
            let at = all.position(|group| group.name == name)?;
            Some((at, &state.qos_groups[at]))
        });
        let (at, what, name, min) = match group {
            Some((at, group)) => (Place::QosGroup(at), "group", &group.name, group.min),
            None => (Place::Qos(i), "port", &port.name, port.qos.min),
        };
        if group.is_some_and(|(at, _)| !groups.insert(at)) {
            continue;
        }
        let (at, min) = (At(at, "min"), min.unwrap_or(0));
        sum += min;
        match rate {
            Some(rate) if sum > rate => {
                let of = format!("the {} of {}", si(rate), quoted(&output.name));
                return Err(beyond(at, what, name, sum, &of));
            }
            None if min > 0 => {
                let found = format!(
                    "{what} {}: the rate of {}, which it can reach, is not known: its egress.rate \
                     is not set, and its interface has no speed",
                    quoted(name),
                    quoted(&output.name)
                );
                return Err(at.wrong("", found));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the error for guarantees that are too much together.
fn beyond(at: At, what: &str, name: &str, promised: u64, of: &str) -> Invalid {
    let name = quoted(name);
    let found = format!("{what} {name}: {} of {of} would be promised", si(promised));
    at.wrong("", found)
}
