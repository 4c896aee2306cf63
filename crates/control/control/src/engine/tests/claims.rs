//! Tests of the sockets that a change claims for ports.

use api::v1::{DesiredState, PortKind, PortSpec};
use config::desired::Change;
use serde_json::json;

use super::world::{World, port};
use crate::engine::Engine;

/// Takes the paths of the sockets that were requested.
fn requested(world: &World) -> Vec<String> {
    std::mem::take(&mut world.supervisor().requested)
}

/// Ports vm0 and vm1, whose sockets have been requested.
fn world() -> (World, Engine) {
    let mut world = World::new(vec![port("vm0", "blue"), port("vm1", "red")]);
    let engine = world.start().unwrap();
    assert_eq!(requested(&world), ["vm0.sock", "vm1.sock"], "once each");
    world.orders();
    (world, engine)
}

fn set_ports(engine: &mut Engine, ports: Vec<PortSpec>) {
    let state = DesiredState {
        ports: ports.into(),
        ..engine.desired().state
    };
    engine.change_to(Change::State(Box::new(state))).unwrap();
}

#[test]
fn a_socket_is_requested_once() {
    let (world, mut engine) = world();
    engine.add_port(port("vm2", "blue")).unwrap();
    assert_eq!(requested(&world), ["vm2.sock"]);
    for (patch, paths) in [
        (json!({"socket": "new.sock"}), vec!["new.sock"]),
        (json!({"queues": 2}), vec!["new.sock"]),
        (json!({"user": "8"}), vec!["new.sock"]),
        (json!({"user": "9", "queues": 1}), vec!["new.sock"]),
        (json!({"mtu": 1400}), vec![]),
    ] {
        engine.set_port("vm2", &patch).unwrap();
        assert_eq!(requested(&world), paths, "{patch}");
    }
    let listening = world.listening(&mut engine);
    assert_eq!(listening, ["new.sock", "vm0.sock", "vm1.sock"]);
}

#[test]
fn a_socket_that_moves_between_ports_is_requested_once() {
    let (world, mut engine) = world();
    let moved = |kind, user: Option<&str>| PortSpec {
        socket: "vm0.sock".to_owned(),
        user: user.map(str::to_owned),
        ..PortSpec::new("other", kind)
    };
    for other in [
        moved(PortKind::VhostUser, None),
        moved(PortKind::VhostUser, Some("8")),
        moved(PortKind::Memif, None),
    ] {
        set_ports(&mut engine, vec![port("vm0", "blue"), port("vm1", "red")]);
        requested(&world);
        set_ports(&mut engine, vec![port("vm1", "red"), other.clone()]);
        assert_eq!(requested(&world), ["vm0.sock"], "{other:?}");
        let listening = world.listening(&mut engine);
        assert_eq!(listening, ["vm0.sock", "vm1.sock"], "{other:?}");
        set_ports(&mut engine, vec![port("vm1", "red")]);
        assert_eq!(world.listening(&mut engine), ["vm1.sock"], "{other:?}");
    }
}

#[test]
fn claims_of_a_change_that_fails_are_closed() {
    let (world, mut engine) = world();
    world.supervisor().taken.insert("taken.sock".to_owned());
    let with = |name: &str, socket: &str| PortSpec {
        socket: socket.to_owned(),
        ..port(name, "blue")
    };
    let state = DesiredState {
        ports: vec![
            PortSpec {
                user: Some("8".to_owned()),
                ..port("vm0", "blue")
            },
            port("vm1", "red"),
            with("vm2", "free.sock"),
            with("vm3", "taken.sock"),
        ]
        .into(),
        ..engine.desired().state
    };
    let refused = engine.change_to(Change::State(Box::new(state)));
    let refused = refused.unwrap_err();
    assert_eq!(refused.field.as_deref(), Some("socket"), "{refused:?}");
    assert_eq!(world.listening(&mut engine), ["vm0.sock", "vm1.sock"]);
    assert_eq!(world.supervisor().owners["vm0.sock"].user, None);
}
