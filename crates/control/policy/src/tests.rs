//! Tests: the rules one by one, the compiler's errors, and the program against a slow oracle.

mod compile;
mod connections;
mod decide;
mod explain;
mod oracle;
mod outdated;
mod port_security;
mod qos_class;

use std::collections::{HashMap, HashSet};

use wire::{FlowKey, MacAddr};

use crate::port_security::Bindings;
use crate::{Lookup, Model, PortId, PortMode, Program, Segment, SegmentId};

/// Forwarding database with fixed contents.
#[derive(Clone, Debug, Default)]
struct Table {
    learned: HashMap<(SegmentId, MacAddr), PortId>,
    barred: HashSet<(SegmentId, MacAddr, PortId)>,
    bound: HashMap<PortId, Bindings>,
}

impl Lookup for Table {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        self.learned.get(&(segment, mac)).copied()
    }

    fn is_barred(&self, segment: SegmentId, mac: MacAddr, port: PortId) -> bool {
        self.barred.contains(&(segment, mac, port))
    }

    fn bound(&self, port: PortId) -> Bindings {
        self.bound.get(&port).copied().unwrap_or_default()
    }
}

fn segment(name: &str, vlan: Option<u16>) -> Segment {
    Segment {
        name: name.to_owned(),
        vlan,
    }
}

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

fn key(port: u32, vlan: Option<u16>, source: MacAddr, destination: MacAddr) -> FlowKey {
    FlowKey::default()
        .with_in_port(port)
        .with_vlan(vlan)
        .with_smac(source)
        .with_dmac(destination)
}

const LAN: SegmentId = SegmentId(0);
const DMZ: SegmentId = SegmentId(3);
const LAB: SegmentId = SegmentId(7);

/// Ports 1 and 2 in `lan`, 3 in `dmz` (VLAN 30); trunk 4 with `lan` native, `dmz` and `lab`
/// (VLAN 70); trunk 5 with `dmz` only.
fn model() -> Model {
    Model {
        segments: [
            (LAN, segment("lan", None)),
            (DMZ, segment("dmz", Some(30))),
            (LAB, segment("lab", Some(70))),
        ]
        .into(),
        ports: [
            (PortId(1), PortMode::Access(LAN)),
            (PortId(2), PortMode::Access(LAN)),
            (PortId(3), PortMode::Access(DMZ)),
            (PortId(4), PortMode::Trunk(vec![LAB, LAN, DMZ])),
            (PortId(5), PortMode::Trunk(vec![DMZ])),
        ]
        .into(),
    }
}

fn program() -> Program {
    Program::compile(&model(), 1).unwrap()
}
