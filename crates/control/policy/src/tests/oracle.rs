//! The decision again, straight from the model, one sentence of the rules after the other. Slow,
//! and written without looking at the fast one.

use proptest::prelude::*;

use super::*;
use crate::{Action, DropReason, decide};

/// Returns the action for a frame, and the source to learn.
fn oracle(model: &Model, table: &Table, key: &FlowKey) -> (Action, Option<(SegmentId, MacAddr)>) {
    let port = PortId(key.in_port());
    let (source, destination) = (key.smac(), key.dmac());
    let drop = |reason| (Action::Drop(reason), None);
    if source.0[0] % 2 == 1 || source.0 == [0; 6] {
        return drop(DropReason::BadSource);
    }
    if destination.0[..5] == [1, 0x80, 0xc2, 0, 0] && destination.0[5] < 16 {
        return drop(DropReason::LinkLocal);
    }
    let untagged = matches!(key.vlan(), None | Some(0));
    let segment = match model.ports.get(&port) {
        None => return drop(DropReason::VlanUnknown),
        Some(PortMode::Down) => return drop(DropReason::PortDown),
        Some(PortMode::Access(_)) if !untagged => return drop(DropReason::VlanNotAllowed),
        Some(PortMode::Access(segment)) => *segment,
        Some(PortMode::Trunk(carried)) => {
            let desired = if untagged { None } else { key.vlan() };
            let found = carried.iter().find(|id| model.segments[id].vlan == desired);
            match found {
                Some(segment) => *segment,
                None => return drop(DropReason::VlanUnknown),
            }
        }
    };
    if table.barred.contains(&(segment, source, port)) {
        return drop(DropReason::SpoofedSource);
    }
    let learn = Some((segment, source));
    let known = table.learned.get(&(segment, destination)).copied();
    if destination == source || (known == Some(port) && destination.0[0] % 2 == 0) {
        return (Action::Drop(DropReason::Reflection), learn);
    }
    for (&receiver, mode) in &model.ports {
        if Some(receiver) == known && destination.0[0] % 2 == 0 {
            match mode {
                PortMode::Access(own) if *own == segment => {
                    return (
                        Action::Unicast {
                            port: receiver,
                            tag: None,
                        },
                        learn,
                    );
                }
                PortMode::Trunk(carried) if carried.contains(&segment) => {
                    let tag = model.segments[&segment].vlan;
                    return (
                        Action::Unicast {
                            port: receiver,
                            tag,
                        },
                        learn,
                    );
                }
                _ => {}
            }
        }
    }
    (Action::flood(segment), learn)
}

/// Returns the receivers of a flood from `ingress`, with their tags.
fn flooded(model: &Model, segment: SegmentId, ingress: PortId) -> Vec<(PortId, Option<u16>)> {
    let mut out = Vec::new();
    for (&port, mode) in &model.ports {
        match mode {
            _ if port == ingress => {}
            PortMode::Access(own) if *own == segment => out.push((port, None)),
            PortMode::Trunk(carried) if carried.contains(&segment) => {
                out.push((port, model.segments[&segment].vlan));
            }
            _ => {}
        }
    }
    out
}

const SEGMENTS: u16 = 6;
pub(super) const PORTS: u32 = 8;

/// Six segments: 0 and 1 without a VLAN, the others with VLANs 1 to 4.
fn segments() -> impl Iterator<Item = (SegmentId, Segment)> {
    (0..SEGMENTS).map(|i| {
        let vlan = i.checked_sub(1).filter(|vlan| *vlan > 0);
        (SegmentId(i), segment(&format!("s{i}"), vlan))
    })
}

fn any_segment() -> impl Strategy<Value = SegmentId> {
    (0..SEGMENTS).prop_map(SegmentId)
}

fn mode() -> impl Strategy<Value = PortMode> {
    let trunk = prop::sample::subsequence((0..SEGMENTS).map(SegmentId).collect::<Vec<_>>(), 1..6)
        .prop_shuffle();
    prop_oneof![
        any_segment().prop_map(PortMode::Access),
        trunk.prop_map(PortMode::Trunk),
        Just(PortMode::Down)
    ]
}

pub(super) fn any_model() -> impl Strategy<Value = Model> {
    prop::collection::btree_map((0..PORTS).prop_map(PortId), mode(), 0..PORTS as usize).prop_map(
        |ports| Model {
            segments: segments().collect(),
            ports,
        },
    )
}

fn any_mac() -> impl Strategy<Value = MacAddr> {
    prop_oneof![
        8 => (0..6u8).prop_map(mac),
        1 => Just(MacAddr::BROADCAST),
        1 => Just(MacAddr::ZERO),
        1 => (0..20u8).prop_map(|last| MacAddr([1, 0x80, 0xc2, 0, 0, last])),
        1 => Just(MacAddr([1, 0, 0x5e, 0, 0, 9])),
    ]
}

pub(super) fn any_table() -> impl Strategy<Value = Table> {
    let port = || (0..PORTS).prop_map(PortId);
    (
        prop::collection::hash_map((any_segment(), any_mac()), port(), 0..20),
        prop::collection::hash_set((any_segment(), any_mac(), port()), 0..20),
    )
        .prop_map(|(learned, barred)| Table {
            learned,
            barred,
            ..Table::default()
        })
}

pub(super) fn any_key() -> impl Strategy<Value = FlowKey> {
    let vlan = prop::option::of(prop_oneof![0..6u16, Just(4095)]);
    (0..PORTS + 1, vlan, any_mac(), any_mac())
        .prop_map(|(port, vlan, source, destination)| key(port, vlan, source, destination))
}

fn two_untagged(model: &Model) -> bool {
    let both = |mode: &PortMode| {
        mode.segments().contains(&SegmentId(0)) && mode.segments().contains(&SegmentId(1))
    };
    model.ports.values().any(both)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn program_agrees_with_the_oracle(
        model in any_model(),
        table in any_table(),
        keys in prop::collection::vec(any_key(), 1..40),
        noise in any::<[u8; 64]>(),
    ) {
        let compiled = Program::compile(&model, 5);
        prop_assert_eq!(compiled.is_err(), two_untagged(&model));
        let Ok(program) = compiled else { return Ok(()) };
        for key in keys {
            let decision = decide(&program, &table, &key);
            prop_assert_eq!((decision.action, decision.learn), oracle(&model, &table, &key));
            if let Action::Flood { segment, .. } = decision.action {
                let ingress = PortId(key.in_port());
                let members: Vec<_> =
                    program
                        .flood(segment, ingress)
                        .map(|member| (member.port, member.tag))
                        .collect();
                prop_assert_eq!(members, flooded(&model, segment, ingress));
            }
            // The mask holds: other bits of the key change nothing.
            let other = with_noise(&key, &decision.mask, &noise);
            prop_assert_eq!(decide(&program, &table, &other), decision);
        }
    }
}

/// `key` with all bits outside the mask replaced.
pub(super) fn with_noise(key: &FlowKey, mask: &wire::FlowMask, noise: &[u8; 64]) -> FlowKey {
    let (key, mask, noise) = (key.words(), mask.words(), noise.as_chunks::<8>().0);
    FlowKey::from_words(std::array::from_fn(|i| {
        key[i] & mask[i] | u64::from_le_bytes(noise[i]) & !mask[i]
    }))
}
