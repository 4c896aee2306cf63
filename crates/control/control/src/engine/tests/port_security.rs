//! Port security: the life of bindings.

use api::v1::{AllowedAddresses, AllowedWord, PortSecuritySpec, PortSpec};
use ipc::records::{Answer, mask_from_words};
use ipc::switching::{PhaseReport, PortPhase, SwitchEvent};
use policy::Action;
use port::{DropReason, PortId};
use wire::{EtherType, FlowKey, FlowMask};

use super::super::Engine;
use super::world::{World, flood, key, mac, port};

fn secured(port_security: PortSecuritySpec) -> PortSpec {
    PortSpec {
        port_security,
        ..port("a", "default")
    }
}

/// Port 0 has this port security, port 1 none.
fn world(port_security: PortSecuritySpec) -> World {
    let world = World::new(vec![secured(port_security), port("b", "default")]);
    world.switch().guests_are_there = true;
    world
}

/// Returns the answer to an upcall.
fn asked(world: &World, engine: &mut Engine, key: FlowKey) -> Action {
    assert!(world.send_upcall(7, key));
    while engine.handle_upcalls().unwrap() {}
    match world.answers().pop() {
        Some(Answer::Install { action, mask, .. }) => {
            assert!(mask_from_words(&mask).covers(&FlowMask::NONE.with_ethertype()));
            action
        }
        other => panic!("{other:?}"),
    }
}

fn drops(reason: DropReason) -> Action {
    Action::Drop(reason)
}

const SPOOFED: Action = Action::Drop(DropReason::SpoofedMac);

#[test]
fn the_first_source_is_bound_and_stays_bound_when_control_dies() {
    let mut world = world(PortSecuritySpec::default());
    let mut engine = world.start().unwrap();
    assert_eq!(world.frame(&mut engine, key(0, 1, 255)), flood(0));
    assert_eq!(world.frame(&mut engine, key(0, 2, 255)), SPOOFED);
    world.seconds(&mut engine, 2);
    assert_eq!(world.saved().bound[&PortId(0)].mac, Some(mac(1).0));
    drop(engine);
    let mut engine = world.start().unwrap();
    assert_eq!(world.frame(&mut engine, key(0, 2, 255)), SPOOFED);
    assert_eq!(world.frame(&mut engine, key(0, 3, 255)), SPOOFED);
    assert_eq!(world.frame(&mut engine, key(0, 1, 255)), flood(0));
    // A minute later all flows are checked.
    world.seconds(&mut engine, 61);
    assert!(world.cached().len() >= 3, "{:?}", world.cached());
}

#[test]
fn a_binding_made_just_before_the_end_is_restored_from_its_flow() {
    let mut world = world(PortSecuritySpec::default());
    let mut engine = world.start().unwrap();
    assert_eq!(world.frame(&mut engine, key(0, 1, 255)), flood(0));
    world.settle(&mut engine);
    world.answers();
    let mut saved = world.saved();
    saved.bound.clear();
    drop(engine);
    world.store(&mut saved);
    let mut engine = world.start().unwrap();
    assert_eq!(world.frame(&mut engine, key(0, 2, 255)), SPOOFED);
}

/// A guest with the addresses of a list sends from a link-local one, which is bound then; or from
/// another.
fn link_local(last: u8) -> FlowKey {
    key(0, 1, 255)
        .with_ethertype(EtherType::IPV6)
        .with_src_ip(0xfe80 << 112 | u128::from(last))
}

fn of_a_list() -> PortSecuritySpec {
    PortSecuritySpec {
        addresses: Some(AllowedAddresses::List(vec!["10.0.0.1".to_owned()])),
        ..PortSecuritySpec::default()
    }
}

#[test]
fn a_binding_is_saved_before_its_frame_is_forwarded() {
    let mut world = world(of_a_list());
    let mut engine = world.start().unwrap();
    assert_eq!(asked(&world, &mut engine, link_local(1)), flood(0));
    drop(engine);
    let mut engine = world.start().unwrap();
    let refused = drops(DropReason::SpoofedIp);
    assert_eq!(asked(&world, &mut engine, link_local(2)), refused);
    assert_eq!(asked(&world, &mut engine, link_local(1)), flood(0));
}

#[test]
fn a_frame_whose_binding_cannot_be_saved_is_not_forwarded() {
    let mut world = world(of_a_list());
    let mut engine = world.start().unwrap();
    engine.store.file = world.file_that_cannot_be_written();
    assert!(world.send_upcall(7, link_local(1)));
    engine.handle_upcalls().unwrap_err();
    assert_eq!(world.answers(), []);
}

#[test]
fn a_frozen_control_binds_nothing_and_decides_everything_else() {
    let mut world = world(of_a_list());
    let mut engine = world.start().unwrap();
    assert_eq!(asked(&world, &mut engine, link_local(1)), flood(0));
    let saved = world.saved().bound;
    engine.store.frozen = true;
    let v4 = key(0, 1, 255)
        .with_ethertype(EtherType::IPV4)
        .with_src_ip(0x0a00_0001);
    assert_eq!(asked(&world, &mut engine, v4), flood(0));
    engine.forwarding.bound.clear();
    assert!(world.send_upcall(7, link_local(2)));
    assert!(!engine.handle_upcalls().unwrap());
    assert_eq!(world.answers(), []);
    assert_eq!(world.saved().bound, saved);
    assert!(engine.forwarding.bound.is_empty());
}

#[test]
fn bindings_end_with_the_connection() {
    let mut world = world(PortSecuritySpec::default());
    let mut engine = world.start().unwrap();
    let phase = |world: &World, engine: &mut Engine, phase| {
        world.report(&SwitchEvent::Phases(vec![PhaseReport {
            port: PortId(0),
            phase,
            reason: None,
        }]));
        world.settle(engine);
        world.answers();
    };
    phase(&world, &mut engine, PortPhase::Up);
    assert_eq!(world.frame(&mut engine, key(0, 1, 255)), flood(0));
    // A guest that resets its driver is the same one.
    phase(&world, &mut engine, PortPhase::Connected);
    assert_eq!(world.frame(&mut engine, key(0, 2, 255)), SPOOFED);
    // Its last upcall is handled after it has disconnected.
    assert!(world.send_upcall(77, key(0, 1, 3)));
    phase(&world, &mut engine, PortPhase::Waiting);
    engine.handle_upcalls().unwrap();
    phase(&world, &mut engine, PortPhase::Up);
    assert_eq!(world.frame(&mut engine, key(0, 2, 255)), flood(0));
    assert_eq!(world.frame(&mut engine, key(0, 1, 255)), SPOOFED);
}

#[test]
fn a_change_is_in_force_at_once_and_costs_others_nothing() {
    let mut world = world(PortSecuritySpec::default());
    let mut engine = world.start().unwrap();
    assert_eq!(world.frame(&mut engine, key(1, 5, 255)), flood(0));
    assert_eq!(world.frame(&mut engine, key(0, 1, 255)), flood(0));
    assert_eq!(world.frame(&mut engine, key(0, 2, 255)), SPOOFED);
    let others = || key(1, 5, 255).masked(&policy::DECISION_MASK);
    let any = |macs: Option<AllowedAddresses>| serde_json::json!({"port_security": {"macs": macs}});
    let word = Some(AllowedAddresses::Word(AllowedWord::Any));
    let status = engine.set_port("a", &any(word)).unwrap();
    assert_eq!(status.name, "a");
    world.settle(&mut engine);
    world.answers();
    assert!(world.switch().flows.contains_key(others().words()));
    assert_eq!(world.frame(&mut engine, key(0, 2, 255)), flood(0));
    let list = Some(AllowedAddresses::List(vec!["52:54:00:00:00:03".to_owned()]));
    engine.set_port("a", &any(list)).unwrap();
    world.settle(&mut engine);
    world.answers();
    assert_eq!(world.frame(&mut engine, key(0, 2, 255)), SPOOFED);
    assert_eq!(world.frame(&mut engine, key(0, 3, 255)), flood(0));
    assert!(world.switch().flows.contains_key(others().words()));
    let bad = Some(AllowedAddresses::List(vec!["x".to_owned()]));
    let problem = engine.set_port("a", &any(bad)).unwrap_err();
    assert_eq!(problem.field.as_deref(), Some("macs"));
    assert_eq!(world.frame(&mut engine, key(0, 3, 255)), flood(0));
}

#[test]
fn addresses_are_bound_and_others_are_refused() {
    let spec = PortSecuritySpec {
        addresses: Some(AllowedAddresses::Word(AllowedWord::Sticky)),
        ..PortSecuritySpec::default()
    };
    let mut world = world(spec);
    let mut engine = world.start().unwrap();
    let from = |last: u8| -> FlowKey {
        key(0, 1, 255)
            .with_ethertype(EtherType::IPV4)
            .with_src_ip(u128::from(0x0a00_0000 + u32::from(last)))
    };
    assert_eq!(asked(&world, &mut engine, from(5)), flood(0));
    let refused = drops(DropReason::SpoofedIp);
    assert_eq!(asked(&world, &mut engine, from(6)), refused);
    world.seconds(&mut engine, 2);
    drop(engine);
    let mut engine = world.start().unwrap();
    assert_eq!(asked(&world, &mut engine, from(6)), refused);
    assert_eq!(asked(&world, &mut engine, from(5)), flood(0));
}
