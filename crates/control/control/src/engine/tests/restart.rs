//! A second control process on the state of the first one.

use std::time::Duration;

use ::port::PortId;
use policy::Program;

use super::saved::valid;
use super::world::{World, flood, key, port, to};
use crate::engine::Engine;
use crate::engine::store::SAVE_INTERVAL;

fn world() -> World {
    World::new(vec![port("vm0", "blue"), port("vm1", "blue")])
}

#[test]
fn a_restart_changes_nothing_in_the_switch() {
    let mut world = world();
    let mut engine = world.start().unwrap();
    engine.add_port(port("vm2", "blue")).unwrap();
    world.ask(&mut engine, key(0, 1, 255));
    world.ask(&mut engine, key(1, 2, 1));
    world.seconds(&mut engine, 1);
    world.orders();
    world.removed();
    drop(engine);

    let mut engine = world.start().unwrap();
    assert_eq!(world.orders(), ["adopt"], "not even a new program");
    assert_eq!(world.removed(), [""; 0]);
    assert_eq!(world.saved().epoch, 2);
    assert_eq!(engine.status().unwrap().switch.epoch, 2);
    assert_eq!(world.ask(&mut engine, key(2, 3, 1)), to(0), "known at once");
    assert_eq!(world.frame(&mut engine, key(0, 1, 2)), to(1));
    // Epochs of later changes continue from the last one.
    engine.remove_port("vm2").unwrap();
    assert_eq!(world.orders(), ["remove 2", "program 3"]);
    assert!(world.removed().contains(&"2: 3 > 1".to_owned()));
}

/// The ports of connections that a dead switch has left: frames go first, then new connections.
#[test]
fn ports_of_saved_connections_get_their_sockets_after_the_program() {
    let ports = (0..3).map(|n| port(&format!("vm{n}"), "blue")).collect();
    let mut world = World::new(ports);
    drop(world.start().unwrap());
    world.orders();
    world.supervisor().requested.clear();
    {
        let mut switch = world.switch();
        switch.program = Program::default();
        let saved = [0, 2].map(PortId);
        switch.ports.retain(|id, _| saved.contains(id));
        switch.without_listener = saved.into();
    }
    let mut engine = world.start().unwrap();
    assert_eq!(world.orders(), ["adopt", "add 1 vm1", "program 2"]);
    let requested = |world: &World| std::mem::take(&mut world.supervisor().requested).len();
    assert_eq!(requested(&world), 1, "that of the port that was added");
    engine.listen_again().unwrap();
    assert_eq!(world.orders(), ["listen 0", "listen 2"]);
    assert_eq!(requested(&world), 2);
    engine.listen_again().unwrap();
    engine.add_port(port("vm3", "blue")).unwrap();
    assert_eq!(world.orders(), ["add 3 vm3", "program 3"], "they listen");
}

/// The next change opens a socket that could not be opened. Other ports get theirs at once.
#[test]
fn a_socket_that_cannot_be_opened_again_is_tried_with_the_next_change() {
    let mut world = world();
    drop(world.start().unwrap());
    world.switch().without_listener = [0, 1].map(PortId).into();
    let mut engine = world.start().unwrap();
    world.orders();
    let socket = world.switch().ports[&PortId(0)].socket.clone();
    world.supervisor().taken.insert(socket);
    assert!(engine.listen_again().is_err());
    assert_eq!(world.orders(), ["listen 1"]);
    world.supervisor().taken.clear();
    engine.add_port(port("vm2", "blue")).unwrap();
    assert!(world.orders().contains(&"listen 0".to_owned()));
    // A port that goes needs none.
    world.switch().without_listener = [PortId(1)].into();
    drop(engine);
    let mut engine = world.start().unwrap();
    engine.remove_port("vm1").unwrap();
    world.orders();
    engine.listen_again().unwrap();
    assert_eq!(world.orders(), [""; 0]);
}

#[test]
fn entries_learned_after_the_last_save_are_restored_from_flows() {
    let mut world = world();
    let mut engine = world.start().unwrap();
    world.ask(&mut engine, key(0, 1, 255));
    assert!(world.saved().stations.is_empty());
    drop(engine);
    let mut engine = world.start().unwrap();
    assert_eq!(world.ask(&mut engine, key(1, 2, 1)), to(0));
}

#[test]
fn entries_without_flows_are_restored_from_the_state_file() {
    let mut world = world();
    let mut engine = world.start().unwrap();
    world.ask(&mut engine, key(0, 1, 255));
    world.seconds(&mut engine, 1);
    drop(engine);
    world.switch().flows.clear();
    let mut engine = world.start().unwrap();
    assert_eq!(world.ask(&mut engine, key(1, 2, 1)), to(0));
}

/// The document grows with the ports and stations of a host: it is not written because time passes.
#[test]
fn the_state_file_is_written_when_an_entry_has_changed() {
    let mut world = world();
    let mut engine = world.start().unwrap();
    world.ask(&mut engine, key(0, 1, 255));
    let is_written = |world: &World, engine: &mut Engine| {
        let before = valid(&world.state);
        world.seconds(engine, 1);
        valid(&world.state) != before
    };
    assert!(is_written(&world, &mut engine), "it was learned");
    // Until the switch has reported the last use of its flow.
    world.seconds(&mut engine, 12);
    let written = (0..60).filter(|_| is_written(&world, &mut engine)).count();
    assert_eq!(written, 0);
    world.frame(&mut engine, key(0, 1, 255));
    let written = (0..5).filter(|_| is_written(&world, &mut engine)).count();
    assert_eq!(written, 1, "it was used");
    let aged = (0..300).filter(|_| is_written(&world, &mut engine)).count();
    assert_eq!(aged, 1, "it is forgotten");
    assert!(world.saved().stations.is_empty());
}

/// A guest migrates away, and then the switch crashes, with its flows.
#[test]
fn a_station_that_has_moved_is_known_where_it_is_from_the_state_file() {
    let mut world = world();
    let mut engine = world.start().unwrap();
    world.ask(&mut engine, key(0, 1, 255));
    world.seconds(&mut engine, 1);
    let saved_at = |world: &World| world.saved().stations[0].port.0;
    world.pass(SAVE_INTERVAL);
    world.ask(&mut engine, key(1, 1, 255));
    assert_eq!(saved_at(&world), 1, "at once");
    world.ask(&mut engine, key(0, 1, 255));
    assert_eq!(saved_at(&world), 1, "but not again and again");
    world.pass(SAVE_INTERVAL);
    engine.handle_upcalls().unwrap();
    assert_eq!(saved_at(&world), 0);
}

/// A spoofer does not gain an address by a crash of control.
#[test]
fn a_contested_address_stays_at_its_holder_by_its_flows() {
    for is_saved in [true, false] {
        let mut world = World::new(["vm0", "vm1", "vm2"].map(|name| port(name, "blue")).into());
        let mut engine = world.start().unwrap();
        world.pass(SAVE_INTERVAL);
        for _ in 0..20 {
            world.ask(&mut engine, key(0, 1, 255));
            world.ask(&mut engine, key(1, 1, 255));
        }
        let there = world.ask(&mut engine, key(2, 3, 1));
        assert_eq!(there, to(0), "moves of 1 are spent");
        let mut saved = world.saved();
        let stations = saved.stations.iter().map(|station| station.port.0);
        assert_eq!(stations.collect::<Vec<_>>(), [1], "before the last move");
        drop(engine);
        if !is_saved {
            saved.stations.clear();
            world.store(&mut saved);
        }
        // The spoofer sends last.
        world.pass(Duration::from_millis(5));
        let words = *key(0, 1, 255).masked(&policy::DECISION_MASK).words();
        world.switch().flows.get_mut(&words).unwrap().idle_ms = 5;
        let mut engine = world.start().unwrap();
        assert_eq!(world.ask(&mut engine, key(2, 3, 1)), to(0), "{is_saved}");
    }
}

/// Control dies after it has saved a move, and before the switch removes the flows.
#[test]
fn a_flow_of_a_former_holder_is_removed() {
    let mut world = world();
    let mut engine = world.start().unwrap();
    world.ask(&mut engine, key(0, 1, 255));
    let words = *key(0, 1, 255).masked(&policy::DECISION_MASK).words();
    let mut old = world.switch().flows[&words].clone();
    world.pass(SAVE_INTERVAL);
    world.ask(&mut engine, key(1, 1, 255));
    drop(engine);
    old.idle_ms = 2 * SAVE_INTERVAL.as_millis() as u32;
    world.switch().flows.insert(words, old);
    world.removed();
    let mut engine = world.start().unwrap();
    world.settle(&mut engine);
    assert!(world.removed().contains(&"0: 1 > 255".to_owned()));
    assert_eq!(world.ask(&mut engine, key(0, 2, 1)), to(1));
}

#[test]
fn a_flow_that_contradicts_what_is_known_is_taken_back() {
    let mut world = world();
    let mut engine = world.start().unwrap();
    world.ask(&mut engine, key(0, 1, 2));
    world.ask(&mut engine, key(1, 2, 255));
    // Control crashes before the answers reach the switch: it still floods to address 2.
    let words = *key(0, 1, 2).words();
    let mut old = world.switch().flows.values().next().unwrap().clone();
    old.action = flood(1);
    world.switch().flows.insert(words, old);
    drop(engine);
    let mut engine = world.start().unwrap();
    world.settle(&mut engine);
    assert_eq!(world.removed(), ["0: 1 > 2"]);
    assert_eq!(world.frame(&mut engine, key(0, 1, 2)), to(1));
}

#[test]
fn a_new_switch_is_given_everything() {
    let mut world = world();
    let mut engine = world.start().unwrap();
    engine.add_port(port("vm2", "red")).unwrap();
    world.orders();
    drop(engine);
    {
        let mut switch = world.switch();
        switch.ports.clear();
        switch.flows.clear();
        switch.program = policy::Program::default();
    }
    let mut engine = world.start().unwrap();
    let all = ["adopt", "add 0 vm0", "add 1 vm1", "add 2 vm2", "program 3"];
    assert_eq!(world.orders(), all);
    assert_eq!(world.listening(&mut engine).len(), 3);
}

#[test]
fn a_change_that_the_predecessor_did_not_finish_is_finished() {
    let mut world = world();
    drop(world.start().unwrap());
    world.orders();
    // The switch has a port too many, one too few, and a newer program than the state file.
    let saved = world.saved();
    {
        let mut switch = world.switch();
        let mut odd = switch.ports.remove(&port::PortId(1)).unwrap();
        (odd.id, odd.name, odd.socket) = (port::PortId(2), "vm2".into(), "vm2.sock".into());
        switch.ports.insert(odd.id, odd);
        switch.program = policy::Program::compile(&policy::Model::default(), 9).unwrap();
    }
    world.supervisor().listening.insert("vm2.sock".to_owned());
    let mut engine = world.start().unwrap();
    assert_eq!(
        world.orders(),
        ["adopt", "remove 2", "add 1 vm1", "program 10"]
    );
    assert_eq!(
        world.saved().epoch,
        10,
        "never one that was used: {saved:?}"
    );
    assert_eq!(world.listening(&mut engine).len(), 2);
}

#[test]
fn a_malformed_state_file_is_an_error() {
    let mut world = World::empty();
    let error = world.start().err().unwrap().to_string();
    assert_eq!(error, "the state file is empty");
    world.state.save(b"{\"desired\":").unwrap();
    let error = world.start().err().unwrap().to_string();
    assert!(error.starts_with("malformed state file: "), "{error}");
    world.state.save(&[0xff; 100]).unwrap();
    let error = world.start().err().unwrap().to_string();
    assert!(error.starts_with("malformed state file: "), "{error}");
    assert_eq!(world.orders(), [""; 0], "the switch was not touched");
}
