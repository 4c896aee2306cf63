//! Owners of sockets, and users that may connect, through changes and restarts.

use ::port::PortId;
use api::v1::PortSpec;
use serde_json::json;

use super::world::{World, port};

fn owned(name: &str, user: &str) -> PortSpec {
    PortSpec {
        user: Some(user.to_owned()),
        mode: Some("0600".to_owned()),
        peer_user: Some(user.to_owned()),
        ..port(name, "blue")
    }
}

fn users(world: &World) -> Vec<Option<String>> {
    let supervisor = world.supervisor();
    let owners = supervisor.owners.values();
    owners.map(|owner| owner.user.clone()).collect()
}

fn said(user: &str) -> Option<String> {
    Some(user.to_owned())
}

#[test]
fn the_switch_gets_the_peer_user_before_the_socket_is_served() {
    let mut world = World::new(vec![owned("vm0", "7"), port("vm1", "blue")]);
    let mut engine = world.start().unwrap();
    assert_eq!(
        world.orders(),
        [
            "adopt",
            "peer 0 Some(7)",
            "add 0 vm0",
            "add 1 vm1",
            "program 1"
        ]
    );
    assert_eq!(users(&world), [said("7"), None]);
    engine.remove_port("vm0").unwrap();
    engine.add_port(owned("vm2", "8")).unwrap();
    let orders = world.orders();
    let at = |order: &str| orders.iter().position(|o| o.starts_with(order));
    assert!(at("peer").unwrap() < at("add").unwrap(), "{orders:?}");
}

#[test]
fn a_live_change_disconnects_no_guest_and_an_invalid_one_changes_nothing() {
    let mut world = World::new(vec![owned("vm0", "7")]);
    let mut engine = world.start().unwrap();
    world.orders();
    let patch = |user: &str| json!({"user": user, "peer_user": "9"});
    engine.set_port("vm0", &patch("8")).unwrap();
    assert_eq!(world.orders(), ["peer 0 Some(9)"]);
    assert_eq!(users(&world), [said("8")]);
    let problem = engine.set_port("vm0", &patch("nobody-here")).unwrap_err();
    assert_eq!(
        (problem.status, problem.field.as_deref()),
        (422, Some("user"))
    );
    assert_eq!(users(&world), [said("8")]);
    let gone = json!({"user": null, "peer_user": null});
    engine.set_port("vm0", &gone).unwrap();
    assert_eq!(world.orders(), ["peer 0 None"]);
    assert_eq!(users(&world), [None]);
}

#[test]
fn a_new_control_finds_the_saved_state() {
    let mut world = World::new(vec![owned("vm0", "7")]);
    let engine = world.start().unwrap();
    drop(engine);
    world.orders();
    let _engine = world.start().unwrap();
    assert_eq!(world.orders(), ["adopt"]);
    assert_eq!(users(&world), [said("7")]);
    assert_eq!(world.switch().peers.get(&PortId(0)), Some(&7));
}

#[test]
fn the_socket_of_a_removed_port_is_gone_when_the_change_is_made() {
    let mut world = World::new(vec![owned("vm0", "7"), owned("vm1", "7")]);
    let mut engine = world.start().unwrap();
    for name in ["vm0", "vm1"] {
        let path = format!("{name}.sock");
        assert!(world.supervisor().listening.contains(&path));
        engine.remove_port(name).unwrap();
        assert!(!world.supervisor().listening.contains(&path));
    }
}
