//! Numbers of ports, segments, mirrors and traffic classes. Numbers in use stay the same, because
//! the switch's flows contain them. A released number is reused after all other free ones: until
//! then nothing in the switch, or on its way to or from it, refers to the former owner.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use api::v1::{AdminState, DEFAULT_CLASS, DesiredState, PortSpec};
use config::desired::qos;
use ipc::egress::MAX_CLASSES;
use policy::{MAX_SEGMENTS, Model, PortMode, Segment, SegmentId};
use port::PortId;
use port::counters::{MAX_MIRRORS, MAX_PORTS};
use serde::{Deserialize, Serialize};

/// Numbers in use; see the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Numbers {
    /// Segments by name.
    pub segments: BTreeMap<String, SegmentId>,
    /// Ports by name.
    pub ports: BTreeMap<String, PortId>,
    /// Mirrors by name.
    pub mirrors: BTreeMap<String, u8>,
    /// Traffic classes by name, but for the default one, which is 0.
    pub classes: BTreeMap<String, u8>,
    /// Start of the search for the next free segment number.
    next_segment: u32,
    /// Start of the search for the next free port number.
    next_port: u32,
    /// Start of the search for the next free mirror number.
    next_mirror: u32,
    /// Start of the search for the next free class number.
    next_class: u32,
}

impl qos::Names for Numbers {
    fn port(&self, name: &str) -> u32 {
        // Names of a state have numbers once there is a model of it.
        self.ports.get(name).map_or(u32::MAX, |id| id.0)
    }

    fn class(&self, name: &str) -> u8 {
        self.classes.get(name).copied().unwrap_or(0)
    }
}

/// Returns the first free number below `end`, searching from `next` and wrapping around.
fn free(next: u32, end: usize, taken: impl Iterator<Item = u32>) -> u32 {
    let taken: BTreeSet<u32> = taken.collect();
    let mut numbers = (next..end as u32).chain(0..next);
    numbers.find(|n| !taken.contains(n)).unwrap_or(0)
}

impl Numbers {
    /// Returns the number of a segment; a new one gets the next free number.
    pub fn segment_id(&mut self, name: &str) -> SegmentId {
        if let Some(id) = self.segments.get(name) {
            return *id;
        }
        let taken = self.segments.values().map(|id| id.0.into());
        let id = free(self.next_segment, MAX_SEGMENTS, taken);
        self.next_segment = id + 1;
        let id = SegmentId(id as u16);
        self.segments.insert(name.to_owned(), id);
        id
    }

    /// Returns the number of a port; a new one gets the next free number.
    pub fn port_id(&mut self, name: &str) -> PortId {
        if let Some(id) = self.ports.get(name) {
            return *id;
        }
        let taken = self.ports.values().map(|id| id.0);
        let id = free(self.next_port, MAX_PORTS, taken);
        self.next_port = id + 1;
        let id = PortId(id);
        self.ports.insert(name.to_owned(), id);
        id
    }

    /// Returns the number of a mirror, and whether it is new.
    pub fn mirror_number(&mut self, name: &str) -> (u8, bool) {
        if let Some(number) = self.mirrors.get(name) {
            return (*number, false);
        }
        let taken = self.mirrors.values().map(|number| (*number).into());
        let number = free(self.next_mirror, MAX_MIRRORS, taken);
        self.next_mirror = number + 1;
        self.mirrors.insert(name.to_owned(), number as u8);
        (number as u8, true)
    }

    /// Assigns a number to a traffic class that has none.
    fn number_class(&mut self, name: &str) {
        if name == DEFAULT_CLASS || self.classes.contains_key(name) {
            return;
        }
        let taken = self.classes.values().map(|number| (*number).into());
        let number = free(self.next_class, MAX_CLASSES, taken.chain([0]));
        self.next_class = number + 1;
        self.classes.insert(name.to_owned(), number as u8);
    }

    /// Releases the numbers of everything that is no longer desired.
    pub fn release_undesired(&mut self, desired: &DesiredState) {
        let ports: HashSet<&str> = desired
            .ports
            .iter()
            .map(|port| port.name.as_str())
            .collect();
        self.ports.retain(|name, _| ports.contains(name.as_str()));
        self.segments
            .retain(|name, _| desired.segment(name).is_some());
        self.mirrors
            .retain(|name, _| desired.mirror(name).is_some());
        self.classes
            .retain(|name, _| desired.qos_class(name).is_some());
    }

    /// Restores earlier names and numbers. Numbers assigned since are reused last.
    pub fn restore(&mut self, before: Self) {
        (self.ports, self.segments) = (before.ports, before.segments);
        (self.mirrors, self.classes) = (before.mirrors, before.classes);
    }

    /// Returns the desired ports and segments by number. New names, those of classes, too, get
    /// numbers, and those of names that are no longer desired are released.
    pub fn model(&mut self, desired: &DesiredState) -> Model {
        self.release_undesired(desired);
        let classes = desired.qos_classes.iter();
        classes.for_each(|class| self.number_class(&class.name));
        let segments = desired.segments.iter().map(|spec| {
            let segment = Segment {
                name: spec.name.clone(),
                vlan: spec.vlan,
            };
            (self.segment_id(&spec.name), segment)
        });
        let segments = segments.collect();
        let ports = desired.ports.iter();
        let ports = ports.map(|spec| (self.port_id(&spec.name), self.mode(spec)));
        Model {
            segments,
            ports: ports.collect(),
        }
    }

    fn mode(&mut self, spec: &PortSpec) -> PortMode {
        if spec.admin_state == AdminState::Down {
            return PortMode::Down;
        }
        let mut ids: Vec<_> = spec.segments().map(|s| self.segment_id(s)).collect();
        match (spec.trunk.is_some(), ids.pop()) {
            (false, Some(segment)) => PortMode::Access(segment),
            (_, last) => PortMode::Trunk(ids.into_iter().chain(last).collect()),
        }
    }
}
