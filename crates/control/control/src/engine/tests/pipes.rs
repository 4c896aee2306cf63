//! Pipes and ports for processes through changes and restarts.

use api::v1::{PortKind, PortSpec, Secret};
use ipc::switching::Clients;
use serde_json::json;

use super::world::World;

fn netmap(name: &str) -> PortSpec {
    PortSpec {
        pipes: true,
        ..PortSpec::new(name, PortKind::Netmap)
    }
}

#[test]
fn the_switch_gets_the_clients_of_a_port() {
    let mut world = World::new(Vec::new());
    let mut engine = world.start().unwrap();
    engine.add_port(netmap("ids")).unwrap();
    let secret = Some(Secret::from("s3cret".to_owned()));
    let memif = PortSpec {
        secret: secret.clone(),
        ..PortSpec::new("m", PortKind::Memif)
    };
    engine.add_port(memif).unwrap();
    let clients: Vec<Clients> = {
        let configs = engine.ports.configs.values();
        configs.map(|config| config.clients.clone()).collect()
    };
    let of_memif = Clients::Memif { id: 0, secret };
    assert_eq!(clients, [Clients::Netmap { slots: 1024 }, of_memif]);
    let listening = world.listening(&mut engine);
    assert_eq!(listening, ["ids.netmap", "ids.pipes", "m.memif"]);
    world.orders();
    let patch = json!({"pipes": false});
    engine.set_port("ids", &patch).unwrap();
    assert_eq!(world.orders(), [""; 0], "its client stays");
    assert_eq!(world.listening(&mut engine), ["ids.netmap", "m.memif"]);
    let patch = json!({"secret": null});
    engine.set_port("m", &patch).unwrap();
    assert_eq!(world.orders(), ["remove 1", "add 1 m"]);
}

#[test]
fn a_pipe_whose_socket_is_taken_changes_nothing() {
    let mut world = World::new(vec![netmap("ids")]);
    let mut engine = world.start().unwrap();
    world.orders();
    engine
        .patch_state(json!({"pipes": [{"name": "p0"}]}))
        .unwrap();
    let both = ["ids.netmap", "ids.pipes", "p0.pipes"];
    assert_eq!(world.listening(&mut engine), both);
    world.supervisor().taken.insert("p2.pipes".to_owned());
    let problem = engine
        .patch_state(json!({"pipes": [{"name": "p1"}, {"name": "p2"}]}))
        .unwrap_err();
    assert_eq!(
        (problem.status, problem.field.as_deref()),
        (409, Some("socket"))
    );
    assert_eq!(world.listening(&mut engine), both);
    let wider = json!({"pipes": [{"name": "p0", "mode": "0666"}, {"name": "p2"}]});
    engine.patch_state(wider).unwrap_err();
    let mode = |world: &World| world.supervisor().owners["p0.pipes"].mode;
    assert_eq!(mode(&world), None, "as before");
    engine
        .patch_state(json!({"pipes": [{"name": "p0", "mode": "0600"}]}))
        .unwrap();
    assert_eq!(mode(&world), Some(0o600));
    assert_eq!(world.orders(), [""; 0]);
    assert_eq!(world.saved().desired.pipes[0].name, "p0");
}

#[test]
fn a_new_control_serves_the_sockets_of_pipes() {
    let mut world = World::new(vec![netmap("ids")]);
    drop(world.start().unwrap());
    let mut engine = world.start().unwrap();
    let document = engine.pipes.document();
    let names: Vec<&str> = document.pipes.iter().map(|pipe| &*pipe.name).collect();
    assert_eq!(names, ["ids"]);
    assert_eq!(world.listening(&mut engine), ["ids.netmap", "ids.pipes"]);
}
