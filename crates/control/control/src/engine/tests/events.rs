//! Events of the engine.

use api::v1::EventKind;
use ipc::supervision::EventToControl;
use ipc::switching::{PhaseReport, PortPhase, SwitchEvent};
use port::PortId;

use super::world::{World, key, port};
use crate::engine::Engine;
use crate::engine::event_log::PORT_EVENTS;
use crate::events;

fn world() -> (World, Engine) {
    let mut world = World::new(vec![port("a", "default"), port("b", "default")]);
    world.switch().guests_are_there = true;
    let engine = world.start().unwrap();
    (world, engine)
}

fn phase(phase: PortPhase, reason: Option<&str>) -> SwitchEvent {
    SwitchEvent::Phases(vec![PhaseReport {
        port: PortId(0),
        phase,
        reason: reason.map(str::to_owned),
    }])
}

/// Events so far: the message, and the number of suppressed ones.
fn emitted(engine: &Engine) -> Vec<(String, u64)> {
    let all = engine.events().kept().into_iter();
    all.map(|event| (events::message(&event.what), event.suppressed))
        .collect()
}

#[test]
fn phases_of_a_port_are_events_with_the_reason() {
    let (world, mut engine) = world();
    world.report(&phase(PortPhase::Waiting, None));
    world.report(&phase(PortPhase::Connected, None));
    world.report(&phase(PortPhase::Up, Some("of before")));
    world.report(&phase(PortPhase::Faulted, Some("a chain\nwithout end")));
    world.settle(&mut engine);
    let words: Vec<String> = emitted(&engine)
        .into_iter()
        .map(|(words, _)| words)
        .collect();
    assert_eq!(
        words,
        [
            "port a is waiting",
            "port a is connected",
            "port a is up",
            "port a is faulted: a chain\u{fffd}without end",
        ]
    );
}

#[test]
fn events_of_a_port_are_limited_and_the_last_phase_is_reported() {
    let (world, mut engine) = world();
    let most = PORT_EVENTS.0 as usize;
    for _ in 0..most {
        world.report(&phase(PortPhase::Waiting, None));
        world.report(&phase(PortPhase::Connected, None));
    }
    world.report(&phase(PortPhase::Faulted, Some("the last")));
    world.settle(&mut engine);
    assert_eq!(emitted(&engine).len(), most);
    world.seconds(&mut engine, 2);
    assert_eq!(emitted(&engine).len(), most);
    world.seconds(&mut engine, PORT_EVENTS.1.as_secs());
    let all = emitted(&engine);
    let suppressed = most as u64 + 1;
    assert_eq!(all.len(), most + 1, "{all:?}");
    assert_eq!(
        all[most],
        ("port a is faulted: the last".to_owned(), suppressed)
    );
}

#[test]
fn events_that_a_guest_causes_name_its_port() {
    let (world, mut engine) = world();
    for port in [0, 1].repeat(7) {
        world.frame(&mut engine, key(port, 1, 255));
    }
    let mut events = engine.events().kept();
    events.dedup_by_key(|event| event.what.name());
    let kinds = events
        .iter()
        .map(|event| (event.what.name(), event.what.ports()));
    let kinds: Vec<_> = kinds.collect();
    let expected = [
        ("mac_moved", vec!["a", "b"]),
        ("mac_flapping", vec!["b", "a"]),
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn events_of_the_supervisor_are_published() {
    let (world, mut engine) = world();
    let what = EventKind::Reload {
        by: None,
        file: "/etc/lasthop.toml".to_owned(),
        progress: api::v1::Progress::Started,
        reason: None,
    };
    let mut event = events::unlogged(what, 0);
    event.time = "2026-01-02T03:04:05.006Z".to_owned();
    let newer = r#"{"time": "t", "kind": "eclipse"}"#.to_owned();
    let all = vec![
        serde_json::to_string(&event).unwrap(),
        "{".to_owned(),
        newer,
    ];
    world.tell(&EventToControl::Events(all));
    // Events also arrive while a reply is awaited.
    drop(engine.status().unwrap());
    engine.publish_supervisor_events().unwrap();
    let kept = engine.events().kept();
    assert_eq!(kept.len(), 2);
    assert_eq!((&kept[0].time, &kept[0].what), (&event.time, &event.what));
    assert_eq!(kept[1].what, EventKind::Unknown);
}
