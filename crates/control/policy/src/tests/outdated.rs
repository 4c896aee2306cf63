//! Outdated flows, compared with all decisions.

use std::collections::BTreeMap;

use port::PortId;
use wire::flow::{Ct, CtState};
use wire::{FlowKey, MacAddr};

use crate::acl::{AccessModel, Names, Rules};
use crate::{Action, DscpClasses, Model, PortMode, Program, Segment, SegmentId, decide};

/// Station `n` is behind port `n`, in every segment.
fn numbered(_: SegmentId, mac: MacAddr) -> Option<PortId> {
    Some(PortId(mac.0[5].into()))
}

fn model(ports: u32) -> Model {
    let segment = |name: &str| Segment {
        name: name.into(),
        vlan: None,
    };
    let (red, blue) = (SegmentId(0), SegmentId(1));
    let mode = |id| PortMode::Access(if id == 5 { blue } else { red });
    Model {
        segments: BTreeMap::from([(red, segment("red")), (blue, segment("blue"))]),
        ports: (1..=ports).map(|id| (PortId(id), mode(id))).collect(),
    }
}

fn program(epoch: u64, ports: u32, text: &str) -> Program {
    let access: AccessModel = toml::from_str(text).expect("a model");
    let model = model(ports);
    let names = (1..=ports).map(|id| (format!("p{id}"), PortId(id)));
    let names = Names {
        segments: &model.segments,
        ports: &names.collect(),
        classes: &BTreeMap::from([("storage".to_owned(), 1), ("voice".to_owned(), 2)]),
    };
    let rules = Rules::compile(&access, names).expect("sound lists").rules;
    let program = Program::compile(&model, epoch).expect("a sound model");
    program.with_rules(rules, epoch)
}

fn keys() -> impl Iterator<Item = FlowKey> {
    let pairs = (1..=4u32).flat_map(|from| (0..=4u8).map(move |to| (from, to)));
    pairs.flat_map(|(from, to)| {
        let dmac = match to {
            0 => MacAddr([0xff; 6]),
            to => MacAddr([2, 0, 0, 0, 0, to]),
        };
        [(6, 0), (17, 0), (6, 26 << 2)].map(|(protocol, tos)| {
            FlowKey::default()
                .with_in_port(from)
                .with_smac(MacAddr([2, 0, 0, 0, 0, from as u8]))
                .with_dmac(dmac)
                .with_ethertype(wire::EtherType::IPV4)
                .with_ip_proto(protocol)
                .with_tos(tos)
        })
    })
}

const LISTS: [&str; 12] = [
    "",
    "[[acl]]\nname='a'\ndirection='to-guest'\nports=['p2']\n[[acl.rule]]\nname='r'\n\
     action='drop'\n",
    "[[acl]]\nname='a'\ndirection='to-guest'\nports=['p2']\n[[acl.rule]]\nname='r'\naction='drop'\n\
     protocol='udp'\n",
    "[[acl]]\nname='a'\ndirection='from-guest'\nports=['p1']\n[[acl.rule]]\nname='r'\n\
     action='drop'\nprotocol='tcp'\n",
    "[[acl_default]]\nsegment='red'\nto_guest='deny'\n",
    "[[group]]\nname='g'\nports=['p1','p3']\n[[acl]]\nname='a'\ndirection='to-guest'\n\
     ports=['p2']\n[[acl.rule]]\nname='r'\naction='drop'\npeer_groups=['g']\n",
    "[[group]]\nname='g'\nports=['p1']\n[[acl]]\nname='a'\ndirection='to-guest'\nports=['p2']\n\
     [[acl.rule]]\nname='r'\naction='drop'\npeer_groups=['g']\n",
    "[[acl]]\nname='a'\ndirection='from-guest'\nports=['p1']\n[[acl.rule]]\nname='r'\n\
     action='allow'\nprotocol='tcp'\nclass='storage'\n",
    "[[acl]]\nname='a'\ndirection='from-guest'\nports=['p1']\n[[acl.rule]]\nname='r'\n\
     action='allow'\nprotocol='tcp'\nclass='voice'\n",
    "[[acl]]\nname='a'\ndirection='from-guest'\nports=['p1','p2']\n[[acl.rule]]\nname='r'\n\
     action='allow-stateful'\n[[acl_default]]\nsegment='red'\nfrom_guest='deny'\n",
    "[[acl]]\nname='a'\ndirection='from-guest'\nports=['p2']\n[[acl.rule]]\nname='r'\n\
     action='allow-stateful'\n[[acl_default]]\nsegment='red'\nfrom_guest='deny'\n",
    "[[acl]]\nname='a'\ndirection='to-guest'\nports=['p2']\n[[acl.rule]]\nname='r'\n\
     action='allow-stateful'\nprotocol='tcp'\n[[acl_default]]\nsegment='red'\nto_guest='deny'\n",
];

/// States of frames in their connections.
const STATES: [CtState; 7] = [
    CtState::NEW,
    CtState::NEW.union(CtState::REPLY),
    CtState::ESTABLISHED,
    CtState::ESTABLISHED.union(CtState::REPLY),
    CtState::ESTABLISHED.union(CtState::STALE),
    CtState::ESTABLISHED
        .union(CtState::STALE)
        .union(CtState::REPLY),
    CtState::INVALID,
];

/// Keys of a segment with this tracking, before and after a change. Where the one has state and
/// the other has not, no flow of the one is one of the other.
fn states(before: &Program, after: &Program) -> Vec<Ct> {
    match [before, after].map(|program| program.tracks(SegmentId(0)).is_some()) {
        [true, true] => {
            let states = STATES.map(|state| Ct::new(CtState::TRACKED | state, 0));
            states.to_vec()
        }
        [false, false] => vec![Ct::UNTRACKED],
        _ => Vec::new(),
    }
}

/// Classes of DSCPs, and the trusted ports.
type Trusted = (&'static [(u8, u8)], &'static [u32]);

const TRUSTED: [Trusted; 4] = [
    (&[], &[1]),
    (&[(0, 1)], &[1, 2]),
    (&[(0, 1), (26, 2)], &[1, 2]),
    (&[(0, 1), (26, 2)], &[2]),
];

/// Access lists and classes of DSCPs: each list without and all classes without lists.
fn variants() -> impl Iterator<Item = (&'static str, DscpClasses)> {
    let lists = LISTS.iter().map(|list| (*list, DscpClasses::default()));
    let dscps = TRUSTED.iter().map(|(classes, ports)| {
        let ports = ports.iter().map(|id| PortId(*id));
        ("", DscpClasses::new(classes.iter().copied(), ports))
    });
    lists.chain(dscps)
}

#[test]
fn whatever_is_not_outdated_is_decided_as_before() {
    for (old, (from, classes_before)) in variants().enumerate() {
        for (new, (to, classes_after)) in variants().enumerate() {
            for ports in [4, 3] {
                let before = program(1, ports, from).with_dscp_classes(classes_before.clone());
                let after = program(2, 4, to).with_dscp_classes(classes_after.clone());
                let outdated = after.outdated(&before);
                assert!(outdated.is_empty() || old != new || ports != 4);
                // A port that comes has no stations yet.
                let there = |key: &FlowKey| {
                    let to = key.dmac().0[5];
                    key.in_port() <= ports && (to == 0xff || u32::from(to) <= ports)
                };
                let states = states(&before, &after);
                let keys = || {
                    let all = keys().filter(there);
                    all.flat_map(|key| states.iter().map(move |ct| key.with_ct(*ct)))
                };
                for key in keys() {
                    let was = decide(&before, &numbered, &key);
                    let to = match was.action {
                        Action::Unicast { port, .. } => Some(port),
                        Action::Flood { .. } | Action::Drop(_) => None,
                    };
                    let concerned = |port| outdated.ports.contains(&port);
                    let forgotten = concerned(PortId(key.in_port()))
                        || to.is_some_and(concerned)
                        || to.is_none()
                            && was
                                .segment
                                .is_some_and(|segment| outdated.segments.contains(&segment));
                    // All that the cached flow stands for.
                    let covered =
                        |other: &FlowKey| other.masked(&was.mask) == key.masked(&was.mask);
                    for other in keys().filter(covered) {
                        let is = decide(&after, &numbered, &other);
                        let same = was.action == is.action
                            && was.class == is.class
                            && was.connection == is.connection
                            && was.excluded().eq(is.excluded());
                        assert!(forgotten || same, "{from} {to:?} {other:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_received_program_knows_the_filtered_segments() {
    let program = program(1, 4, LISTS[4]);
    assert!(program.without_rules().filters(SegmentId(0)));
    assert!(!program.without_rules().filters(SegmentId(1)));
    assert!(program.filters_anywhere());
}

#[test]
fn newcomers_are_members_of_nothing_that_they_were_not_before() {
    let (before, after) = (program(1, 3, ""), program(2, 5, ""));
    let without = after.without_new_members(&before);
    let ports = |program: &Program, segment| -> Vec<u32> {
        let members = program.members(SegmentId(segment)).iter();
        members.map(|member| member.port.0).collect()
    };
    assert_eq!(
        (ports(&after, 0), ports(&after, 1)),
        (vec![1, 2, 3, 4], vec![5])
    );
    assert_eq!(
        (ports(&without, 0), ports(&without, 1)),
        (vec![1, 2, 3], vec![])
    );
    assert_eq!(
        (without.epoch(), without.ingress(PortId(4))),
        (2, after.ingress(PortId(4)))
    );
    assert_eq!(before.without_new_members(&after), before);
}
