//! States with scheduled ports.

use api::v1::{
    Beyond, DesiredState, EgressSpec, FullAction, PortKind, PortQosSpec, PortSpec, QosClassSpec,
    QosGroupSpec, QosRates,
};
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

const CLASSES: [&str; 3] = ["default", "storage", "voice"];
const GROUPS: [&str; 2] = ["tenant1", "tenant2"];

/// Settings that any state may have.
#[derive(Clone, Debug)]
pub(super) struct Scheduling {
    classes: Vec<QosClassSpec>,
    groups: Vec<QosGroupSpec>,
    ports: Vec<(Option<EgressSpec>, PortQosSpec)>,
}

impl Scheduling {
    /// Adds the settings to a state.
    pub(super) fn of(self, state: DesiredState) -> DesiredState {
        let ports = state.ports.into_iter().zip(self.ports);
        let ports = ports.map(|(port, (egress, qos))| with(port, egress, qos));
        DesiredState {
            ports: ports.collect(),
            qos_classes: self.classes,
            qos_groups: self.groups,
            ..state
        }
    }
}

/// Leaves out what a port of this kind does not have.
fn with(port: PortSpec, egress: Option<EgressSpec>, qos: PortQosSpec) -> PortSpec {
    let has_interface = port.kind.has_interface();
    let egress = egress.map(|spec| EgressSpec {
        full: spec.full.filter(|_| has_interface),
        room: spec.room.filter(|_| has_interface),
        ..spec
    });
    let qos = PortQosSpec {
        beyond: qos.beyond.filter(|_| port.kind != PortKind::Uplink),
        ..qos
    };
    PortSpec {
        egress,
        qos,
        ..port
    }
}

fn rates() -> impl Strategy<Value = QosRates> {
    let max = 1_000_000..=1_000_000_000_000u64;
    let parts = (of(max), of(524_424..=1_000_000_000_000u64), 1..=1000u16);
    parts.prop_map(|(max, burst, weight)| QosRates {
        min: None,
        max,
        burst,
        weight,
    })
}

fn egress() -> impl Strategy<Value = EgressSpec> {
    let rate = 1_000_000_000..=1_000_000_000_000u64;
    let full = of(select(vec![FullAction::Hold, FullAction::Drop]));
    let parts = (rate, of(0..=256u32), full, of(65_553..=1_000_000_000u64));
    parts.prop_map(|(rate, overhead, full, room)| EgressSpec {
        rate: Some(rate),
        overhead,
        full,
        room,
    })
}

fn of_port() -> impl Strategy<Value = PortQosSpec> {
    let names = || select(CLASSES.to_vec()).prop_map(str::to_owned);
    let words = (
        of(select(GROUPS.to_vec())),
        of(select(vec![Beyond::Hold, Beyond::Drop])),
        of(any::<bool>()),
    );
    let classes = (vec(names(), 0..4), btree_map(names(), rates(), 0..3));
    let parts = (of(1..=1000u64), rates(), 0..=7u8, words, classes);
    parts.prop_map(|(min, rates, priority, words, (class_by_pair, classes))| {
        let (group, beyond, trust_dscp) = words;
        PortQosSpec {
            min,
            max: rates.max,
            burst: rates.burst,
            priority,
            weight: rates.weight,
            group: group.map(str::to_owned),
            beyond,
            trust_dscp,
            class_by_pair,
            classes,
        }
    })
}

/// Any settings, all of whose guarantees can be kept.
pub(super) fn scheduling() -> impl Strategy<Value = Scheduling> {
    let class = (
        0..=7u8,
        of(0..=7u8),
        subsequence((0..21).collect::<Vec<u8>>(), 0..4),
    );
    let classes = vec(class, 3).prop_map(|all| {
        let all = all.into_iter().zip(CLASSES).enumerate();
        let class =
            |(at, ((priority, pcp, dscp), name)): (usize, ((u8, _, Vec<u8>), _))| QosClassSpec {
                priority,
                pcp,
                dscp: dscp.into_iter().map(|dscp| 21 * at as u8 + dscp).collect(),
                ..QosClassSpec::new(name)
            };
        all.map(class).collect()
    });
    let groups = vec(rates(), 2).prop_map(|all| {
        let group = |(rates, name): (QosRates, _)| QosGroupSpec {
            min: Some(100_000),
            max: rates.max,
            burst: rates.burst,
            weight: rates.weight,
            ..QosGroupSpec::new(name)
        };
        all.into_iter().zip(GROUPS).map(group).collect()
    });
    let ports = vec((of(egress()), of_port()), 6);
    let all = (classes, groups, ports).prop_map(|(classes, groups, ports)| Scheduling {
        classes,
        groups,
        ports,
    });
    let none = Just(Scheduling {
        classes: Vec::new(),
        groups: Vec::new(),
        ports: vec![(None, PortQosSpec::default()); 6],
    });
    prop_oneof![none, all]
}
