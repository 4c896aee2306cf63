//! Numbers of ports, segments and mirrors. Those that were handed out stay the same, because the switch's flows speak of them. A number
//! that is given back is handed out again when all others have had their turn: until then nothing is left in the
//! switch, or on its way to or from it, that speaks of whoever had it.

use std::collections::{BTreeMap, BTreeSet};

use api::v1::{AdminState, PortSpec, WantedState};
use policy::{MAX_SEGMENTS, Model, PortMode, Segment, SegmentId};
use port::PortId;
use port::counters::{MAX_MIRRORS, MAX_PORTS};
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    /// Of segments by name.
    #[serde(default)]
    pub segments: BTreeMap<String, SegmentId>,
    /// Of ports by name.
    #[serde(default)]
    pub ports: BTreeMap<String, PortId>,
    /// Of mirrors by name.
    #[serde(default)]
    pub mirrors: BTreeMap<String, u8>,
    /// Where the next free number is looked for.
    #[serde(default)]
    next_segment: u32,
    /// Likewise.
    #[serde(default)]
    next_port: u32,
    /// Likewise.
    #[serde(default)]
    next_mirror: u32,
}

/// The first number that is not taken among those below `end`, from `next` on and around.
fn free(next: u32, end: usize, taken: impl Iterator<Item = u32>) -> u32 {
    let taken: BTreeSet<u32> = taken.collect();
    let mut numbers = (next..end as u32).chain(0..next);
    numbers.find(|n| !taken.contains(n)).unwrap_or(0)
}

impl Numbers {
    /// The number of a segment; a new one gets the next free number.
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

    /// The number of a port; a new one gets the next free number.
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

    /// The number of a mirror, and whether it was handed out just now.
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

    /// Gives back those of what is not wanted any more.
    pub fn forget_unwanted(&mut self, wanted: &WantedState) {
        self.ports.retain(|name, _| wanted.port(name).is_some());
        self.segments
            .retain(|name, _| wanted.segment(name).is_some());
        self.mirrors.retain(|name, _| wanted.mirror(name).is_some());
    }

    /// Has the names that there were before. What was handed out since has its next turn when all others had theirs.
    pub fn take_back(&mut self, before: Self) {
        (self.ports, self.segments) = (before.ports, before.segments);
        self.mirrors = before.mirrors;
    }

    /// What is wanted, in numbers. New names get some, and those of what is not wanted any more are given back.
    pub fn model(&mut self, wanted: &WantedState) -> Model {
        self.forget_unwanted(wanted);
        let segments = wanted.segments.iter().map(|spec| {
            let segment = Segment {
                name: spec.name.clone(),
                vlan: spec.vlan,
            };
            (self.segment_id(&spec.name), segment)
        });
        let segments = segments.collect();
        let ports = wanted.ports.iter();
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
