//! Compilation and its errors.

use super::*;
use crate::{CompileError, DropReason, Ingress, MAX_SEGMENTS, Member, VlanSegment};

fn error(change: impl FnOnce(&mut Model)) -> String {
    let mut model = model();
    change(&mut model);
    Program::compile(&model, 1).unwrap_err().to_string()
}

#[test]
fn program_lists_members_with_their_tags() {
    let program = program();
    let member = |port, tag| Member {
        port: PortId(port),
        tag,
    };
    assert_eq!(
        program.members(LAN),
        [member(1, None), member(2, None), member(4, None)]
    );
    assert_eq!(
        program.members(DMZ),
        [member(3, None), member(4, Some(30)), member(5, Some(30))]
    );
    assert_eq!(program.members(LAB), [member(4, Some(70))]);
    assert_eq!(program.members(SegmentId(1)), []);
    assert_eq!(program.members(SegmentId(999)), []);
    assert_eq!(program.member(DMZ, PortId(4)), Some(member(4, Some(30))));
    assert_eq!(program.member(DMZ, PortId(1)), None);
    let flooded: Vec<_> = program.flood(DMZ, PortId(4)).collect();
    assert_eq!(flooded, [member(3, None), member(5, Some(30))]);
}

#[test]
fn program_classifies_ports() {
    let program = program();
    assert_eq!(*program.ingress(PortId(0)), Ingress::Closed);
    assert_eq!(*program.ingress(PortId(1)), Ingress::Access(LAN));
    let tagged = vec![
        VlanSegment {
            vid: 30,
            segment: DMZ,
        },
        VlanSegment {
            vid: 70,
            segment: LAB,
        },
    ];
    assert_eq!(
        *program.ingress(PortId(4)),
        Ingress::Trunk {
            native: Some(LAN),
            tagged
        }
    );
    assert_eq!(*program.ingress(PortId(u32::MAX)), Ingress::Closed);
}

#[test]
fn program_survives_its_encoding() {
    let program = program();
    let bytes = postcard::to_stdvec(&program).unwrap();
    assert_eq!(postcard::from_bytes::<Program>(&bytes).unwrap(), program);
    assert_eq!(program.epoch(), 1);
    assert_eq!(
        Program::compile(&Model::default(), 0).unwrap(),
        Program::default()
    );
}

#[test]
fn vlans_are_checked() {
    for vlan in [0, 4095, u16::MAX] {
        assert_eq!(
            error(|model| model.segments.get_mut(&DMZ).unwrap().vlan = Some(vlan)),
            format!("segment \"dmz\": VLAN {vlan} is not between 1 and 4094"),
        );
    }
    assert_eq!(
        error(|model| model.segments.get_mut(&LAB).unwrap().vlan = Some(30)),
        "segments \"dmz\" and \"lab\" have the same VLAN 30",
    );
    for vlan in [1, 4094] {
        let mut model = model();
        model.segments.get_mut(&DMZ).unwrap().vlan = Some(vlan);
        assert!(Program::compile(&model, 1).is_ok());
    }
}

#[test]
fn segments_are_checked() {
    assert_eq!(
        error(|model| drop(model.segments.insert(SegmentId(1), segment("lab", None)))),
        "two segments are called \"lab\"",
    );
    let id = SegmentId(MAX_SEGMENTS as u16);
    assert_eq!(
        error(|model| drop(model.segments.insert(id, segment("far", None)))),
        "segment \"far\": its number is not below 4096",
    );
}

#[test]
fn ports_are_checked() {
    let with = |port: u32, mode| error(|model| drop(model.ports.insert(PortId(port), mode)));
    let nowhere = "port 1: there is no segment 1";
    assert_eq!(with(1, PortMode::Access(SegmentId(1))), nowhere);
    assert_eq!(with(1, PortMode::Trunk(vec![LAN, SegmentId(1)])), nowhere);
    assert_eq!(
        with(1024, PortMode::Access(LAN)),
        "port 1024: its number is not below 1024"
    );
    assert_eq!(
        with(9, PortMode::Trunk(vec![])),
        "port 9: a trunk needs at least one segment"
    );
    assert_eq!(
        with(9, PortMode::Trunk(vec![DMZ, LAB, DMZ])),
        "port 9: segment \"dmz\" is listed twice",
    );
    let untagged = error(|model| {
        model.segments.insert(SegmentId(1), segment("old", None));
        model
            .ports
            .insert(PortId(9), PortMode::Trunk(vec![SegmentId(1), DMZ, LAN]));
    });
    assert_eq!(
        untagged,
        "port 9: segments \"old\" and \"lan\" both have no VLAN, a trunk can carry only one such",
    );
}

#[test]
fn errors_name_their_port() {
    let error = CompileError::EmptyTrunk { port: PortId(9) };
    assert_eq!(error.port(), Some(PortId(9)));
    assert_eq!(
        CompileError::SameName {
            name: "a".to_owned()
        }
        .port(),
        None
    );
}

#[test]
fn a_port_that_is_down_is_in_no_segment_and_says_so() {
    let mut model = model();
    model.ports.insert(PortId(1), PortMode::Down);
    let program = Program::compile(&model, 1).unwrap();
    assert_eq!(*program.ingress(PortId(1)), Ingress::Down);
    assert_eq!(program.ingress(PortId(1)).segments().count(), 0);
    assert!(program.members(LAN).iter().all(|m| m.port != PortId(1)));
    for vlan in [None, Some(0), Some(30)] {
        let found = crate::decide::classify(program.ingress(PortId(1)), vlan);
        assert_eq!(found, Err(DropReason::PortDown));
    }
}
