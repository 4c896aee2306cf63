//! Values of scheduled ports for the switch.

use std::collections::{BTreeMap, BTreeSet};

use api::v1::{Beyond, DEFAULT_CLASS, DesiredState, FullAction, PortSpec, QosRates};
use egress::{Group, MAX_CLASSES, OutputConfig, Rates, Sender};
use ipc::egress::SenderQos;

use super::super::bursts::{self, Unit};
use super::{beyond_of, full_of, overhead_of, rate_of, room_of};

/// Numbers of ports and classes by name.
pub trait Names {
    /// Returns the number of a port of the state.
    fn port(&self, name: &str) -> u32;

    /// Returns the number of a class of the state.
    fn class(&self, name: &str) -> u8;
}

/// Returns the output of a port of a checked state; `None` for a port that is not scheduled.
/// `speed` is that of its interface, in bits a second: a slower one scales guarantees down.
#[must_use]
pub fn output_of(
    state: &DesiredState,
    port: &PortSpec,
    names: &impl Names,
    speed: Option<u64>,
) -> Option<OutputConfig> {
    let spec = port.egress.as_ref()?;
    let segments: BTreeSet<&str> = port.segments().collect();
    let reach = |sender: &&PortSpec| {
        sender.name != port.name && sender.segments().any(|name| segments.contains(name))
    };
    let senders: Vec<&PortSpec> = state.ports.iter().filter(reach).collect();
    let rate = rate_of(spec, speed);
    let mut groups = Groups::default();
    let senders = senders.iter().map(|sender| Sender {
        group: groups.index(state, sender),
        ..sender_of(sender, rate, names)
    });
    let senders = senders.collect();
    let full = match full_of(port, spec) {
        FullAction::Hold => egress::FullAction::Hold,
        FullAction::Drop => egress::FullAction::Drop,
    };
    let mut output = OutputConfig {
        rate,
        overhead: overhead_of(port, spec),
        full,
        room: room_of(port, speed).unwrap_or(0),
        groups: groups.all,
        priorities: class_priorities(state, names),
        senders,
    };
    if let Some(speed) = speed {
        output.scale_to(speed);
    }
    Some(output)
}

/// The groups at one output.
#[derive(Default)]
struct Groups<'a> {
    by_name: BTreeMap<&'a str, u16>,
    all: Vec<Group>,
}

impl<'a> Groups<'a> {
    /// Returns the index of a sender's group.
    fn index(&mut self, state: &'a DesiredState, sender: &PortSpec) -> Option<u16> {
        let group = state.qos_group(sender.qos.group.as_deref()?)?;
        let all = &mut self.all;
        let index = self.by_name.entry(&group.name).or_insert_with(|| {
            all.push(Group {
                name: group.name.clone(),
                rates: rates_of(&group.rates()),
            });
            (all.len() - 1) as u16
        });
        Some(*index)
    }
}

fn sender_of(port: &PortSpec, rate: Option<u64>, names: &impl Names) -> Sender {
    let classes = port.qos.classes.iter();
    let beyond = match beyond_of(port) {
        Beyond::Hold => egress::Beyond::Hold,
        Beyond::Drop => egress::Beyond::Drop,
    };
    let rates = |spec: &QosRates| match beyond {
        egress::Beyond::Hold => rates_of(spec),
        egress::Beyond::Drop => dropped_rates_of(spec, rate),
    };
    Sender {
        port: names.port(&port.name),
        rates: rates(&port.qos.rates()),
        priority: port.qos.priority,
        group: None,
        beyond,
        classes: classes
            .map(|(name, spec)| (names.class(name), rates(spec)))
            .collect(),
    }
}

/// Returns rates with the default burst filled in.
fn rates_of(spec: &QosRates) -> Rates {
    let rate = spec.max.or(spec.min);
    with_burst(spec, bursts::of_held(rate.unwrap_or(0), Unit::Bits))
}

/// Returns the rates of a sender whose frames are dropped, to an output with this rate.
fn dropped_rates_of(spec: &QosRates, rate: Option<u64>) -> Rates {
    let rate = spec.max.or(rate).or(spec.min);
    with_burst(spec, bursts::of_dropped(rate.unwrap_or(0), Unit::Bits))
}

fn with_burst(spec: &QosRates, usual: u64) -> Rates {
    Rates {
        min: spec.min.unwrap_or(0),
        max: spec.max,
        burst: spec.burst.unwrap_or(usual),
        weight: spec.weight,
    }
}

/// Returns the priorities of all classes, by number.
#[must_use]
pub fn class_priorities(state: &DesiredState, names: &impl Names) -> [u8; MAX_CLASSES] {
    let mut all = [0; MAX_CLASSES];
    for class in &state.qos_classes {
        if let Some(priority) = all.get_mut(usize::from(names.class(&class.name))) {
            *priority = class.priority;
        }
    }
    all
}

/// Returns the priority code points to write into tags, by number of the class; empty if there are
/// none.
#[must_use]
pub fn code_points(state: &DesiredState, names: &impl Names) -> Vec<Option<u8>> {
    let mut all = Vec::new();
    for class in state.qos_classes.iter().filter(|class| class.pcp.is_some()) {
        let number = usize::from(names.class(&class.name));
        if all.len() <= number {
            all.resize(number + 1, None);
        }
        all[number] = class.pcp;
    }
    all
}

/// Returns the classes of DSCP values, by number of the class; those of the default class are left
/// out.
pub fn dscp_of_classes<'a>(
    state: &'a DesiredState,
    names: &'a impl Names,
) -> impl Iterator<Item = (u8, u8)> + 'a {
    let named = state.qos_classes.iter();
    let named = named.filter(|class| class.name != DEFAULT_CLASS);
    named.flat_map(|class| {
        let number = names.class(&class.name);
        class.dscp.iter().map(move |dscp| (*dscp, number))
    })
}

/// Returns what the switch has to know of a port as a sender.
#[must_use]
pub fn sender_qos_of(port: &PortSpec, names: &impl Names) -> SenderQos {
    let classes = port.qos.class_by_pair.iter();
    SenderQos {
        priority: port.qos.priority,
        class_by_pair: classes.map(|name| Some(names.class(name))).collect(),
    }
}
