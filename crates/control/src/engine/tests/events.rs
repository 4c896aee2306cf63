//! What is told to those who watch.

use std::time::Duration;

use api::v1::EventKind;
use channel::supervision::Tell;
use channel::switching::{PortPhase, Report};
use port::PortId;

use super::super::PORT_EVENTS;
use super::world::{World, key, port};
use crate::engine::Engine;
use crate::events;

fn world() -> (World, Engine) {
    let mut world = World::new(vec![port("a", "default"), port("b", "default")]);
    world.switch().guests_are_there = true;
    let engine = world.start().unwrap();
    (world, engine)
}

fn phase(phase: PortPhase, reason: Option<&str>) -> Report {
    Report::Phase {
        port: PortId(0),
        phase,
        reason: reason.map(str::to_owned),
    }
}

/// What was told so far: in words, with what was left out.
fn told(engine: &Engine) -> Vec<(String, u64)> {
    let all = engine.events.kept().into_iter();
    all.map(|event| (events::words(&event.what), event.left_out))
        .collect()
}

#[test]
fn a_port_that_comes_and_goes_is_told_with_the_reason() {
    let (world, mut engine) = world();
    world.report(&phase(PortPhase::Waiting, None));
    world.report(&phase(PortPhase::Connected, None));
    world.report(&phase(PortPhase::Up, Some("of before")));
    world.report(&phase(PortPhase::Faulted, Some("a chain\nwithout end")));
    world.settle(&mut engine);
    let words: Vec<String> = told(&engine).into_iter().map(|(words, _)| words).collect();
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
fn a_flood_about_a_port_is_cut_off_and_its_end_is_told_all_the_same() {
    let (world, mut engine) = world();
    let most = PORT_EVENTS.0 as usize;
    for _ in 0..most {
        world.report(&phase(PortPhase::Waiting, None));
        world.report(&phase(PortPhase::Connected, None));
    }
    world.report(&phase(PortPhase::Faulted, Some("the last")));
    world.settle(&mut engine);
    assert_eq!(told(&engine).len(), most);
    world.seconds(&mut engine, 2);
    assert_eq!(told(&engine).len(), most);
    world.seconds(&mut engine, PORT_EVENTS.1.as_secs());
    let all = told(&engine);
    let left_out = most as u64 + 1;
    assert_eq!(all.len(), most + 1, "{all:?}");
    assert_eq!(
        all[most],
        ("port a is faulted: the last".to_owned(), left_out)
    );
}

#[test]
fn what_a_guest_does_is_told_with_its_port() {
    let (world, mut engine) = world();
    world.frame(&mut engine, key(0, 1, 255));
    // Another port may not have it while it is in use, and gets it later.
    world.frame(&mut engine, key(1, 1, 255));
    world.pass(Duration::from_secs(400));
    world.frame(&mut engine, key(1, 1, 255));
    let kinds: Vec<(&str, Vec<String>)> = engine
        .events
        .kept()
        .iter()
        .map(|event| {
            let ports = event.what.ports().into_iter().map(str::to_owned);
            (event.what.name(), ports.collect())
        })
        .collect();
    let is_told = |kind| {
        kinds
            .iter()
            .any(|(name, ports)| *name == kind && ports.contains(&"b".to_owned()))
    };
    assert!(is_told("claimed") || is_told("moved"), "{kinds:?}");
}

#[test]
fn what_the_supervisor_tells_is_passed_on() {
    let (world, mut engine) = world();
    let what = EventKind::Reload {
        by: None,
        file: "/etc/lasthop.toml".to_owned(),
        progress: api::v1::Progress::Begun,
        reason: None,
    };
    let mut event = events::untold(what, 0);
    event.time = "2026-01-02T03:04:05.006Z".to_owned();
    let newer = r#"{"time": "t", "kind": "eclipse"}"#.to_owned();
    let all = vec![
        serde_json::to_string(&event).unwrap(),
        "{".to_owned(),
        newer,
    ];
    world.tell(&Tell::Events(all));
    // It comes also while something else is waited for.
    drop(engine.status().unwrap());
    engine.tell_supervisors_events().unwrap();
    let kept = engine.events.kept();
    assert_eq!(kept.len(), 2);
    assert_eq!((&kept[0].time, &kept[0].what), (&event.time, &event.what));
    assert_eq!(kept[1].what, EventKind::Unknown);
}
