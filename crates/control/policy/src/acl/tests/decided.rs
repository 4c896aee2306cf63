//! Decisions with access lists: order of lists, defaults, fragments, floods, masks.

use std::collections::HashSet;

use wire::flow::KeyState;
use wire::{EtherType, FlowKey, FlowMask, MacAddr};

use super::*;
use crate::{Action, DECISION_MASK, Decision, DropReason, PortMode, Program, decide};

/// Stations 1 to 4 are behind the ports of these numbers.
pub(super) fn stations(_: SegmentId, mac: MacAddr) -> Option<PortId> {
    let number = u32::from(mac.0[5]);
    (1..=4).contains(&number).then_some(PortId(number))
}

/// No station is known.
fn nobody(_: SegmentId, _: MacAddr) -> Option<PortId> {
    None
}

/// Ports 1 to 4 in `lan`.
pub(super) fn program(text: &str) -> Program {
    let model = crate::Model {
        segments: segments(),
        ports: (1..=4)
            .map(|id| (PortId(id), PortMode::Access(LAN)))
            .collect(),
    };
    let rules = try_compile(text).expect("a model").rules;
    Program::compile(&model, 1).unwrap().with_rules(rules, 2)
}

/// From port 1, from station 1 to another, TCP.
pub(super) fn key(to: u8, port: u16) -> FlowKey {
    FlowKey::default()
        .with_in_port(1)
        .with_smac(MacAddr([2, 0, 0, 0, 0, 1]))
        .with_dmac(MacAddr([2, 0, 0, 0, 0, to]))
        .with_ethertype(EtherType::IPV4)
        .with_src_ip(0x0a00_0001)
        .with_dst_ip(0x0a00_0000 | u128::from(to))
        .with_ip_proto(6)
        .with_l4_ports(40_000, port)
}

pub(super) fn list(name: &str, direction: &str, attached: &str, rules: &str) -> String {
    format!("[[acl]]\nname = \"{name}\"\ndirection = \"{direction}\"\n{attached}\n{rules}")
}

pub(super) fn rule(name: &str, action: &str, rest: &str) -> String {
    format!("[[acl.rule]]\nname = \"{name}\"\naction = \"{action}\"\n{rest}\n")
}

/// Names of the rules that decided: the sender's and the receiver's.
fn deciders(decision: &Decision) -> Vec<String> {
    let rules = decision.rulings().filter_map(Ruling::rule);
    rules
        .map(|rule| format!("{}/{}", rule.list, rule.name))
        .collect()
}

pub(super) fn denied() -> Action {
    Action::Drop(DropReason::AclDenied)
}

#[test]
fn without_rules_a_decision_is_what_it_was() {
    let program = program("");
    let decision = decide(&program, &stations, &key(2, 80));
    assert_eq!(
        (decision.action, decision.mask),
        (Action::to(2), DECISION_MASK)
    );
    let flood = decide(&program, &nobody, &key(2, 80));
    assert_eq!(flood.action, Action::flood(LAN));
    assert_eq!((flood.mask, flood.to_guest.len()), (DECISION_MASK, 0));
}

#[test]
fn the_highest_priority_decides_then_the_port_before_its_group_before_the_segment() {
    let all = |priority| format!("priority = {priority}");
    let text = |port, group, segment| {
        GROUPS.to_owned()
            + &list(
                "s",
                "from-guest",
                "segments = [\"lan\"]",
                &rule("r", "drop", &all(segment)),
            )
            + &list(
                "g",
                "from-guest",
                "groups = [\"first\"]",
                &rule("r", "drop", &all(group)),
            )
            + &list(
                "p",
                "from-guest",
                "ports = [\"vm1\"]",
                &rule("r", "allow", &all(port)),
            )
    };
    let who = |port, group, segment| {
        let decision = decide(
            &program(&text(port, group, segment)),
            &stations,
            &key(2, 80),
        );
        deciders(&decision)
    };
    assert_eq!(who(1, 1, 1), ["p/r"]);
    assert_eq!(who(1, 2, 2), ["g/r"]);
    assert_eq!(who(1, 2, 3), ["s/r"]);
    assert_eq!(who(3, 2, 3), ["p/r"]);
}

#[test]
fn both_directions_must_allow_and_the_sender_comes_first() {
    let out = list(
        "out",
        "from-guest",
        "ports = [\"vm1\"]",
        &rule(
            "ssh",
            "drop",
            "protocol = \"tcp\"\ndestination_ports = [22]",
        ),
    );
    let to = list(
        "in",
        "to-guest",
        "ports = [\"vm2\"]",
        &rule(
            "web",
            "reject",
            "protocol = \"tcp\"\ndestination_ports = [22, 80]",
        ),
    );
    let program = program(&(out + &to));
    let of = |to, port| decide(&program, &stations, &key(to, port));
    let ssh = of(2, 22);
    assert_eq!(
        (ssh.action, ssh.learn),
        (denied(), None),
        "a denied sender is not learned"
    );
    assert_eq!(deciders(&ssh), ["out/ssh"]);
    let web = of(2, 80);
    assert_eq!(web.action, Action::Drop(DropReason::AclRejected));
    assert!(web.learn.is_some());
    assert_eq!(deciders(&web), ["in/web"]);
    assert!(matches!(of(2, 443).action, Action::Unicast { .. }));
    assert!(matches!(of(3, 80).action, Action::Unicast { .. }));
}

#[test]
fn defaults_are_of_the_segment_and_each_side() {
    let deny = |side: &str| format!("[[acl_default]]\nsegment = \"lan\"\n{side} = \"deny\"\n");
    for side in ["from_guest", "to_guest"] {
        let decision = decide(&program(&deny(side)), &stations, &key(2, 80));
        assert_eq!(
            (decision.action, decision.mask),
            (denied(), DECISION_MASK),
            "{side}"
        );
        assert_eq!(
            decide(&program(&deny(side)), &nobody, &key(2, 80)).action,
            denied()
        );
    }
    let allow = list(
        "in",
        "to-guest",
        "segments = [\"lan\"]",
        &rule("tcp", "allow", "protocol = \"tcp\""),
    );
    let program = program(&(deny("to_guest") + &allow));
    assert_ne!(decide(&program, &stations, &key(2, 80)).action, denied());
    let udp = key(2, 80).with_ip_proto(17);
    assert_eq!(decide(&program, &stations, &udp).action, denied());
}

#[test]
fn a_flood_leaves_out_those_who_do_not_want_it() {
    let text = list(
        "in",
        "to-guest",
        "ports = [\"vm2\", \"vm4\"]",
        &rule("no", "drop", "destination = [\"10.0.0.0/8\"]"),
    ) + &list(
        "log",
        "to-guest",
        "ports = [\"vm3\"]",
        &rule("yes", "allow", "log = { per_second = 5 }"),
    );
    let program = program(&text);
    let decision = decide(&program, &nobody, &key(9, 80));
    assert_eq!(decision.action, Action::flood(LAN));
    assert_eq!(
        decision.excluded().collect::<Vec<_>>(),
        [PortId(2), PortId(4)]
    );
    assert_eq!(deciders(&decision), ["in/no", "log/yes", "in/no"]);
    let expected = DECISION_MASK
        .with_ethertype()
        .with_state()
        .with_dst_ip_bits(0xff00_0000);
    assert!(decision.mask.covers(&expected));
    let arp = key(9, 80).with_ethertype(EtherType::ARP);
    let decision = decide(&program, &nobody, &arp);
    assert_eq!(decision.excluded().count(), 0);
    // If no receiver's lists allow it, it is dropped.
    let all = list(
        "in",
        "to-guest",
        "segments = [\"lan\"]",
        &rule("no", "drop", ""),
    );
    let decision = decide(&self::program(&all), &nobody, &key(9, 80));
    assert_eq!(
        (decision.action, decision.excluded().count()),
        (denied(), 3)
    );
}

#[test]
fn peers_are_senders() {
    let peers = "peer_groups = [\"first\"]";
    let text = GROUPS.to_owned()
        + &list(
            "in",
            "to-guest",
            "segments = [\"lan\"]",
            &rule("no", "drop", peers),
        );
    let program = program(&text);
    assert_eq!(decide(&program, &stations, &key(2, 80)).action, denied());
    let other = key(2, 80).with_in_port(3);
    assert_ne!(decide(&program, &stations, &other).action, denied());
}

#[test]
fn later_fragments_are_dropped_where_they_might_be_and_allowed_where_they_must_be() {
    let ports = "protocol = \"tcp\"\ndestination_ports = [80]";
    let later = |key: FlowKey| {
        let state = KeyState::FRAGMENT | KeyState::LATER_FRAGMENT;
        key.with_l4_ports(0, 0).with_state(state)
    };
    let with = |rules: &str| program(&list("l", "from-guest", "segments = [\"lan\"]", rules));
    let drops = with(&rule("web", "drop", ports));
    let of = |program: &Program, key| decide(program, &stations, &key).action;
    assert_eq!(of(&drops, key(2, 80)), denied());
    assert_ne!(of(&drops, key(2, 81)), denied());
    assert_eq!(of(&drops, later(key(2, 0))), denied());
    assert_ne!(of(&drops, later(key(2, 0)).with_ip_proto(17)), denied());
    let allows = with(&(rule("web", "allow", ports) + &rule("rest", "drop", "")));
    assert_ne!(of(&allows, key(2, 80)), denied());
    assert_eq!(of(&allows, later(key(2, 0))), denied());
    let pieces = rule("pieces", "allow", "priority = 1\nfragment = \"later\"");
    let said = with(&(pieces + &rule("web", "drop", ports)));
    assert_ne!(of(&said, later(key(2, 0))), denied());
}

fn flows(program: &Program, keys: impl Iterator<Item = FlowKey>) -> (usize, usize) {
    let flow = |key: FlowKey| {
        let mask = decide(program, &stations, &key).mask;
        (mask, key.masked(&mask))
    };
    let flows: HashSet<(FlowMask, FlowKey)> = keys.map(flow).collect();
    let masks: HashSet<_> = flows.iter().map(|(mask, _)| mask).collect();
    (flows.len(), masks.len())
}

#[test]
fn a_scan_costs_few_flows_and_what_no_rule_tells_apart_costs_one() {
    let text = "[[acl_default]]\nsegment = \"lan\"\nto_guest = \"deny\"\n".to_owned()
        + &list(
            "in",
            "to-guest",
            "ports = [\"vm2\"]",
            &(rule(
                "web",
                "allow",
                "protocol = \"tcp\"\ndestination_ports = [22, 80, 443]",
            ) + &rule(
                "office",
                "allow",
                "priority = 1\nsource = [\"10.9.0.0/16\"]",
            )),
        );
    let program = program(&text);
    let scan = (0..=u16::MAX).map(|port| key(2, port));
    let (flows_of_scan, masks) = flows(&program, scan);
    assert!(
        flows_of_scan <= 128 && masks <= 6,
        "{flows_of_scan} flows of {masks} masks"
    );
    let other_port = |n: u16| key(2, 1).with_l4_ports(n, !n);
    let connections = (0..5000).map(|n| other_port(n).with_src_ip(0x0a09_0000 | u128::from(n)));
    assert_eq!(flows(&program, connections), (1, 1));
    let exact = (0..5000).map(|n| key(2, 80).with_l4_ports(n, 80));
    assert_eq!(
        flows(&program, exact),
        (1, 1),
        "source ports are not wildcards at"
    );
}

#[test]
fn rules_go_on_when_a_program_is_changed_and_are_shared() {
    let text = list(
        "l",
        "from-guest",
        "segments = [\"lan\"]",
        &rule("r", "drop", "log = { per_second = 3 }"),
    );
    let old = program(&text);
    let change = Change::Remove {
        list: "l".to_owned(),
        rule: "r".to_owned(),
    };
    let new = old.with_rules(old.rules().change(&change).unwrap().rules, 3);
    assert_eq!((old.epoch(), new.epoch()), (2, 3));
    assert_ne!(old, new);
    assert_eq!(decide(&old, &stations, &key(2, 80)).action, denied());
    assert_ne!(decide(&new, &stations, &key(2, 80)).action, denied());
    let rule = old.rules().rule("l", "r").unwrap();
    assert_eq!(
        (rule.id, rule.log),
        (RuleId::of("l", "r"), Some(LogLimit { per_second: 3 }))
    );
    assert_eq!(rule.id.to_string(), "112270191caf1e59");
    assert!(new.rules().rule("l", "r").is_none());
}

#[test]
fn a_change_concerns_those_whose_lists_it_is_in() {
    let text = list(
        "a",
        "from-guest",
        "ports = [\"vm1\"]",
        &rule("r", "drop", "vlan = 1"),
    ) + &list(
        "b",
        "to-guest",
        "segments = [\"lan\"]",
        &rule("r", "drop", "vlan = 1"),
    );
    let old = try_compile(&text).unwrap().rules;
    let put = |list: &str| Change::Put {
        list: list.to_owned(),
        rule: Box::new(RuleSpec {
            name: "more".to_owned(),
            vlan: Some(2),
            ..RuleSpec::default()
        }),
    };
    let concerned = |new: &Rules| {
        let all = (1..=2).flat_map(|port| {
            let both = [Direction::FromGuest, Direction::ToGuest];
            both.map(|direction| !old.is_same_for(new, direction, LAN, PortId(port)))
        });
        all.collect::<Vec<bool>>()
    };
    let with = |list| old.change(&put(list)).unwrap().rules;
    assert_eq!(concerned(&with("a")), [true, false, false, false]);
    assert_eq!(concerned(&with("b")), [false, true, false, true]);
    assert_eq!(concerned(&try_compile(&text).unwrap().rules), [false; 4]);
    let deny = "[[acl_default]]\nsegment = \"lan\"\nfrom_guest = \"deny\"\n";
    let denying = try_compile(&(deny.to_owned() + &text)).unwrap().rules;
    assert_eq!(concerned(&denying), [true, false, true, false]);
}
