//! The rules of forwarding.

use super::*;
use crate::{Action, DECISION_MASK, DropReason, decide};

fn action(table: &Table, key: &FlowKey) -> Action {
    decide(&program(), table, key).action
}

fn learned(entries: &[(SegmentId, u8, u32)]) -> Table {
    let entry = |&(segment, last, port): &_| ((segment, mac(last)), PortId(port));
    Table {
        learned: entries.iter().map(entry).collect(),
        ..Table::default()
    }
}

#[test]
fn unknown_group_and_broadcast_destinations_flood() {
    let group = MacAddr([1, 0, 0x5e, 0, 0, 1]);
    for destination in [mac(2), group, MacAddr::BROADCAST] {
        let decision = decide(
            &program(),
            &Table::default(),
            &key(1, None, mac(1), destination),
        );
        assert_eq!(decision.action, Action::flood(LAN));
        assert_eq!(decision.learn, Some((LAN, mac(1))));
        assert_eq!(decision.segment, Some(LAN));
        assert_eq!(decision.mask, DECISION_MASK);
    }
}

#[test]
fn known_destinations_get_the_tag_of_their_port() {
    let table = learned(&[(LAN, 2, 2), (LAN, 4, 4), (DMZ, 4, 4), (DMZ, 3, 3)]);
    let unicast = |port, tag| Action::Unicast {
        port: PortId(port),
        tag,
    };
    assert_eq!(
        action(&table, &key(1, None, mac(1), mac(2))),
        unicast(2, None)
    );
    assert_eq!(
        action(&table, &key(1, None, mac(1), mac(4))),
        unicast(4, None)
    );
    assert_eq!(
        action(&table, &key(3, None, mac(1), mac(4))),
        unicast(4, Some(30))
    );
    assert_eq!(
        action(&table, &key(5, Some(30), mac(1), mac(4))),
        unicast(4, Some(30))
    );
    assert_eq!(
        action(&table, &key(5, Some(30), mac(1), mac(3))),
        unicast(3, None)
    );
}

#[test]
fn segments_are_separate() {
    let table = learned(&[(LAN, 2, 2)]);
    let other = key(3, None, mac(1), mac(2));
    assert_eq!(action(&table, &other), Action::flood(DMZ));
}

#[test]
fn tags_choose_the_segment() {
    let table = Table::default();
    let decide = |port, vlan| action(&table, &key(port, vlan, mac(1), mac(9)));
    let drop = Action::Drop;
    assert_eq!(decide(1, Some(0)), Action::flood(LAN));
    assert_eq!(decide(1, Some(30)), drop(DropReason::VlanNotAllowed));
    assert_eq!(decide(3, Some(30)), drop(DropReason::VlanNotAllowed));
    assert_eq!(decide(4, None), Action::flood(LAN));
    assert_eq!(decide(4, Some(0)), Action::flood(LAN));
    assert_eq!(decide(4, Some(70)), Action::flood(LAB));
    assert_eq!(decide(4, Some(71)), drop(DropReason::VlanUnknown));
    assert_eq!(decide(4, Some(4095)), drop(DropReason::VlanUnknown));
    assert_eq!(decide(5, None), drop(DropReason::VlanUnknown));
    assert_eq!(decide(5, Some(0)), drop(DropReason::VlanUnknown));
    assert_eq!(decide(6, None), drop(DropReason::VlanUnknown));
}

#[test]
fn bad_sources_are_dropped_and_not_learned() {
    for source in [
        MacAddr::ZERO,
        MacAddr::BROADCAST,
        MacAddr([3, 0, 0, 0, 0, 1]),
    ] {
        let decision = decide(&program(), &Table::default(), &key(1, None, source, mac(2)));
        assert_eq!(decision.action, Action::Drop(DropReason::BadSource));
        assert_eq!(decision.learn, None);
    }
}

#[test]
fn link_local_frames_stay_on_the_link() {
    for last in 0..=0x10 {
        let destination = MacAddr([1, 0x80, 0xc2, 0, 0, last]);
        let expected = match last {
            0x10 => Action::flood(LAN),
            _ => Action::Drop(DropReason::LinkLocal),
        };
        assert_eq!(
            action(&Table::default(), &key(1, None, mac(1), destination)),
            expected
        );
    }
}

#[test]
fn reflections_are_dropped_and_still_teach() {
    let table = learned(&[(LAN, 2, 1)]);
    for destination in [mac(1), mac(2)] {
        let decision = decide(&program(), &table, &key(1, None, mac(1), destination));
        assert_eq!(decision.action, Action::Drop(DropReason::Reflection));
        assert_eq!(decision.learn, Some((LAN, mac(1))));
    }
    // On a trunk the same station is behind the same port in another segment only.
    let table = learned(&[(LAN, 2, 4)]);
    let other = key(4, Some(30), mac(1), mac(2));
    assert_eq!(action(&table, &other), Action::flood(DMZ));
}

#[test]
fn barred_claims_are_dropped_and_not_learned() {
    let mut table = learned(&[(LAN, 1, 2)]);
    table.barred.insert((LAN, mac(1), PortId(1)));
    let decision = decide(&program(), &table, &key(1, None, mac(1), mac(9)));
    assert_eq!(decision.action, Action::Drop(DropReason::SpoofedSource));
    assert_eq!((decision.learn, decision.segment), (None, Some(LAN)));
    assert_eq!(
        action(&table, &key(2, None, mac(1), mac(9))),
        Action::flood(LAN)
    );
}

#[test]
fn a_port_that_left_the_segment_is_unknown() {
    let table = learned(&[(LAN, 2, 3), (LAN, 3, 77)]);
    for last in [2, 3] {
        let key = key(1, None, mac(1), mac(last));
        assert_eq!(action(&table, &key), Action::flood(LAN));
    }
}
