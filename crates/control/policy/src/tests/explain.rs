//! The explanation of a decision: the same decision, and steps from which it follows.

use std::collections::BTreeMap;

use proptest::prelude::*;
use wire::flow::{Ct, CtState};

use super::oracle::{PORTS, any_key, any_model, any_table};
use super::*;
use crate::acl::{AccessModel, Direction, Names, Rules};
use crate::connection::Standing;
use crate::{Action, Destination, DropReason, Step, decide, explain};

/// Derives the action from the steps alone; `None` where several frames are asked for.
fn conclusion(steps: &[Step]) -> Option<Action> {
    let (mut action, mut known) = (None, false);
    let (mut receivers, mut allowed, mut reasons) = (0, 0, Vec::new());
    let denied = |reasons: &[DropReason]| {
        let order = [
            DropReason::AclRejected,
            DropReason::AclDenied,
            DropReason::ConnectionInvalid,
        ];
        let found = order.into_iter().find(|reason| reasons.contains(reason));
        Some(Action::Drop(found.expect("a reason")))
    };
    for step in steps {
        match step {
            Step::Addresses(reason) | Step::Segment(Err(reason)) | Step::PortSecurity(reason) => {
                return Some(Action::Drop(*reason));
            }
            Step::Source { barred: true } => return Some(Action::Drop(DropReason::SpoofedSource)),
            Step::Segment(Ok(_)) | Step::Source { .. } | Step::Unfiltered => {}
            Step::Connection(Standing::Anew { .. } | Standing::New { maybe_reply: true }) => {
                return None;
            }
            Step::Connection(standing) => known = *standing == Standing::Known,
            Step::Lists(evaluation) if evaluation.direction == Direction::FromGuest => {
                if let Some(reason) = evaluation.ruling.drop_reason() {
                    return denied(&[reason]);
                }
            }
            Step::Lists(evaluation) => {
                receivers += 1;
                allowed += u32::from(evaluation.ruling.allows());
                reasons.extend(evaluation.ruling.drop_reason());
            }
            Step::Destination(destination) => action = Some(whither(*destination, steps)),
            Step::Class(..) => {}
        }
    }
    match action.expect("a destination") {
        Action::Drop(reason) => Some(Action::Drop(reason)),
        Action::Flood { .. } if known => Some(Action::Drop(DropReason::ConnectionInvalid)),
        _ if receivers > 0 && allowed == 0 => denied(&reasons),
        action => Some(action),
    }
}

fn whither(destination: Destination, steps: &[Step]) -> Action {
    let segment = steps.iter().find_map(|step| match step {
        Step::Segment(Ok(segment)) => Some(*segment),
        _ => None,
    });
    match destination {
        Destination::Itself | Destination::Reflected => Action::Drop(DropReason::Reflection),
        Destination::Behind(member) => Action::Unicast {
            port: member.port,
            tag: member.tag,
        },
        Destination::Group(_) | Destination::Unknown | Destination::Left(_) => {
            Action::flood(segment.expect("a segment"))
        }
    }
}

/// States of connections, those that tracking gives more often than others.
pub(super) fn any_ct() -> impl Strategy<Value = Ct> {
    let usual = [
        CtState::NEW,
        CtState::INVALID,
        CtState::ESTABLISHED,
        CtState::ESTABLISHED | CtState::REPLY,
        CtState::ESTABLISHED | CtState::STALE,
        CtState::ESTABLISHED | CtState::REPLY | CtState::STALE,
        CtState::ESTABLISHED | CtState::REPLY | CtState::MOVED,
        CtState::RELATED,
        CtState::RELATED | CtState::STALE,
        CtState::NEW | CtState::REPLY,
    ];
    let state = prop_oneof![
        1 => Just(CtState::empty()),
        4 => prop::sample::select(usual.to_vec()).prop_map(|state| state | CtState::TRACKED),
        1 => any::<u8>().prop_map(CtState::from_bits_retain),
    ];
    (state, 0..3u8).prop_map(|(state, mark)| Ct::new(state, mark))
}

/// Some lists of segments and ports, as text.
pub(super) fn any_lists() -> impl Strategy<Value = String> {
    let attached = prop_oneof![
        (0..6u16).prop_map(|n| format!("segments = [\"s{n}\"]")),
        (0..PORTS).prop_map(|n| format!("ports = [\"p{n}\"]")),
    ];
    let matched = prop_oneof![
        Just(String::new()),
        (0..6u8).prop_map(|last| format!("destination_mac = \"{}\"", mac(last))),
        (0..6u8).prop_map(|last| format!("source_mac = \"{}\"", mac(last))),
    ];
    let action = prop_oneof![
        Just("allow"),
        Just("drop"),
        Just("reject"),
        Just("allow-stateful")
    ];
    let direction = prop_oneof![Just("from-guest"), Just("to-guest")];
    let list = (
        direction,
        attached,
        prop::collection::vec((action, matched), 0..3),
    );
    let lists = prop::collection::vec(list, 0..6);
    let defaults = prop::collection::btree_set(0..6u16, 0..2);
    (lists, defaults).prop_map(|(lists, defaults)| {
        let mut text = String::new();
        for n in defaults {
            text += &format!("[[acl_default]]\nsegment = \"s{n}\"\nto_guest = \"deny\"\n");
        }
        for (number, (direction, attached, rules)) in lists.into_iter().enumerate() {
            text += &format!(
                "[[acl]]\nname = \"l{number}\"\ndirection = \"{direction}\"\n{attached}\n"
            );
            for (at, (action, matched)) in rules.into_iter().enumerate() {
                let rule = format!("name = \"r{at}\"\npriority = {at}\naction = \"{action}\"");
                text += &format!("[[acl.rule]]\n{rule}\n{matched}\n");
            }
        }
        text
    })
}

pub(super) fn with_lists(model: &Model, program: &Program, lists: &str) -> Program {
    let access: AccessModel = toml::from_str(lists).unwrap();
    let ports: BTreeMap<String, PortId> = (0..PORTS)
        .map(|id| (format!("p{id}"), PortId(id)))
        .collect();
    let names = Names {
        segments: &model.segments,
        ports: &ports,
        classes: &BTreeMap::new(),
    };
    program.with_rules(Rules::compile(&access, names).unwrap().rules, 6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_is_explained_is_what_is_decided(
        model in any_model(),
        lists in any_lists(),
        table in any_table(),
        keys in prop::collection::vec((any_key(), any_ct()), 1..40),
    ) {
        let Ok(program) = Program::compile(&model, 5) else { return Ok(()) };
        let program = with_lists(&model, &program, &lists);
        for (key, ct) in keys {
            let key = key.with_ct(ct);
            let (decision, steps) = explain(&program, &table, &key);
            prop_assert_eq!(&decision, &decide(&program, &table, &key));
            if let Some(action) = conclusion(&steps) {
                prop_assert_eq!(decision.action, action, "{:?}", steps);
            }
            let evaluation = |step: &Step| match step {
                Step::Lists(evaluation) => Some(evaluation.clone()),
                _ => None,
            };
            for evaluation in steps.iter().filter_map(evaluation) {
                if let Some(rule) = evaluation.ruling.rule() {
                    prop_assert!(evaluation.lists.contains(&rule.list), "{:?}", evaluation);
                }
            }
        }
    }
}

#[test]
fn each_step_is_recorded_once_in_order() {
    let program = program();
    let mut table = Table::default();
    table.learned.insert((LAN, mac(2)), PortId(2));
    let (_, steps) = explain(&program, &table, &key(1, None, mac(1), mac(2)));
    let member = program.member(LAN, PortId(2)).unwrap();
    assert_eq!(
        steps,
        [
            Step::Segment(Ok(LAN)),
            Step::Source { barred: false },
            Step::Unfiltered,
            Step::Destination(Destination::Behind(member)),
        ]
    );
    let (_, steps) = explain(&program, &table, &key(1, Some(9), mac(1), mac(2)));
    assert_eq!(steps, [Step::Segment(Err(DropReason::VlanNotAllowed))]);
    let (_, steps) = explain(&program, &table, &key(1, None, MacAddr::ZERO, mac(2)));
    assert_eq!(steps, [Step::Addresses(DropReason::BadSource)]);
}
