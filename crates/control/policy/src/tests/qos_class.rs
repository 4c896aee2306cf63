//! Classes of frames: by access rules, by DSCP, and what they depend on.

use std::collections::BTreeMap;

use proptest::prelude::*;
use wire::{EtherType, FlowMask};

use super::*;
use crate::acl::{AccessModel, Names, Rules};
use crate::{ClassOrigin, DECISION_MASK, DscpClasses, Step, decide, explain};

/// DSCP 26 is class 1, 0 is class 2; ports 1 and 4 are trusted.
fn dscp() -> DscpClasses {
    DscpClasses::new([(26, 1), (0, 2)], [PortId(4), PortId(1)])
}

fn with_access(text: &str) -> Program {
    let model = model();
    let access: AccessModel = toml::from_str(text).expect("a model");
    let names = Names {
        segments: &model.segments,
        ports: &[1, 2].map(|id| (format!("p{id}"), PortId(id))).into(),
        classes: &BTreeMap::from([("storage".to_owned(), 3), ("voice".to_owned(), 4)]),
    };
    let rules = Rules::compile(&access, names).expect("sound lists").rules;
    program().with_dscp_classes(dscp()).with_rules(rules, 2)
}

/// Knows stations 1 and 2.
fn table() -> Table {
    let learned = [1, 2].map(|n| ((LAN, mac(n)), PortId(n.into())));
    Table {
        learned: learned.into(),
        ..Table::default()
    }
}

/// IPv4 from station `from` at its port to another, with this type of service.
fn packet(from: u8, to: MacAddr, tos: u8) -> FlowKey {
    let key = key(from.into(), None, mac(from), to);
    key.with_ethertype(EtherType::IPV4).with_tos(tos)
}

const TO_CLASS: &str = "[[acl]]\nname='a'\ndirection='from-guest'\nports=['p1']\n\
    [[acl.rule]]\nname='r'\naction='allow'\nprotocol='tcp'\nclass='storage'\n\
    [[acl.rule]]\nname='s'\naction='allow'\nprotocol='icmp'\nclass='default'\n\
    [[acl]]\nname='b'\ndirection='to-guest'\nports=['p2']\n\
    [[acl.rule]]\nname='r'\naction='allow'\nclass='voice'\nether_type='ipv4'\n";

#[test]
fn dscps_give_classes_to_packets_of_trusted_ports() {
    let program = program().with_dscp_classes(dscp());
    let class = |key: &FlowKey| {
        let decision = decide(&program, &table(), key);
        (decision.class, decision.mask)
    };
    let trusted = DECISION_MASK.with_ethertype().with_dscp();
    let ecn = 3;
    for (tos, class_of) in [(26 << 2, 1), (26 << 2 | ecn, 1), (0, 2), (27 << 2, 0)] {
        assert_eq!(class(&packet(1, mac(2), tos)), (class_of, trusted));
        assert_eq!(class(&packet(2, mac(1), tos)), (0, DECISION_MASK));
    }
    let arp = packet(1, mac(2), 0).with_ethertype(EtherType::ARP);
    assert_eq!(class(&arp), (0, DECISION_MASK.with_ethertype()));
    let six = packet(1, MacAddr::BROADCAST, 26 << 2).with_ethertype(EtherType::IPV6);
    assert_eq!(class(&six).0, 1, "floods have classes, too");
}

#[test]
fn a_senders_rule_comes_before_a_receivers_and_both_before_the_dscp() {
    let program = with_access(TO_CLASS);
    let class = |to: MacAddr, protocol, tos| {
        let key = packet(1, to, tos).with_ip_proto(protocol);
        let (decision, steps) = explain(&program, &table(), &key);
        let class = steps.iter().find_map(|step| match step {
            Step::Class(class, origin) => Some((*class, *origin)),
            _ => None,
        });
        assert_eq!(decision.class, class.map_or(0, |(class, _)| class));
        let by_dscp = decision.mask.union(&FlowMask::NONE.with_dscp()) == decision.mask;
        (class, by_dscp)
    };
    let (tcp, icmp, udp) = (6, 1, 17);
    let sender = ClassOrigin::FromGuest;
    assert_eq!(class(mac(2), tcp, 26 << 2), (Some((3, sender)), false));
    assert_eq!(class(mac(2), icmp, 26 << 2), (Some((0, sender)), false));
    let receiver = ClassOrigin::ToGuest;
    assert_eq!(class(mac(2), udp, 26 << 2), (Some((4, receiver)), false));
    // Receivers of a flood do not decide for each other.
    let dscp = ClassOrigin::Dscp(26);
    let flooded = class(MacAddr::BROADCAST, udp, 26 << 2);
    assert_eq!(flooded, (Some((1, dscp)), true));
    assert_eq!(class(MacAddr::BROADCAST, udp, 1 << 2), (None, true));
}

#[test]
fn rules_name_classes_that_exist() {
    let model = model();
    let names = Names {
        segments: &model.segments,
        ports: &BTreeMap::from([("p1".to_owned(), PortId(1))]),
        classes: &BTreeMap::from([("storage".to_owned(), 3)]),
    };
    let text = TO_CLASS.replace("ports=['p2']", "ports=['p1']");
    let access: AccessModel = toml::from_str(&text).unwrap();
    let refused = Rules::compile(&access, names).unwrap_err().to_string();
    let expected = "acl \"b\", rule \"r\": class: there is no class \"voice\"";
    assert_eq!(refused, expected);
}

proptest! {
    #[test]
    fn a_class_depends_on_the_masked_bits_only(
        from in 1..=2u8,
        to in prop_oneof![(1..=3u8).prop_map(mac), Just(MacAddr::BROADCAST)],
        protocol in prop_oneof![Just(6), Just(1), Just(17), Just(0)],
        tos in prop_oneof![Just(26 << 2), Just(0), any::<u8>()],
        ethertype in prop_oneof![Just(EtherType::IPV4), Just(EtherType::ARP)],
        noise in any::<[u8; 64]>(),
    ) {
        let program = with_access(TO_CLASS);
        let key = packet(from, to, tos).with_ip_proto(protocol).with_ethertype(ethertype);
        let decision = decide(&program, &table(), &key);
        let other = oracle::with_noise(&key, &decision.mask, &noise);
        let again = decide(&program, &table(), &other);
        prop_assert_eq!((again.action, again.class), (decision.action, decision.class));
    }
}
