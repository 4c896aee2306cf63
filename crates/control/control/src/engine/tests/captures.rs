//! Captures, as the switch sees them.

use api::v1::{CaptureDirection, CaptureQuery};

use super::super::Engine;
use super::world::{World, port};

fn world() -> (World, Engine) {
    let mut world = World::new(vec![port("vm0", "blue"), port("vm1", "blue")]);
    let engine = world.start().unwrap();
    world.orders();
    (world, engine)
}

#[test]
fn a_capture_runs_until_it_is_ended() {
    let (world, mut engine) = world();
    let begun = engine.capture("vm1", &CaptureQuery::default()).unwrap();
    assert_eq!(world.orders(), ["capture 1 of 1"]);
    assert!(!begun.reader.is_ended());
    engine.tick().unwrap();
    engine.end_capture(begun.number).unwrap();
    let again = engine.end_capture(begun.number).unwrap_err();
    assert_eq!(again.status, 404);
    // The reply is written behind it.
    engine.status().unwrap();
    assert_eq!(world.orders(), ["end capture 1"]);
}

#[test]
fn a_capture_without_a_client_ends() {
    let (world, mut engine) = world();
    let first = engine.capture("vm0", &CaptureQuery::default()).unwrap();
    drop(engine.capture("vm1", &CaptureQuery::default()).unwrap());
    world.orders();
    engine.tick().unwrap();
    engine.status().unwrap();
    assert_eq!(world.orders(), ["end capture 2"]);
    drop(first);
    engine.end_captures().unwrap();
    engine.status().unwrap();
    assert_eq!(world.orders(), ["end capture 1"]);
}

#[test]
fn the_buffers_of_all_captures_are_bounded_together() {
    let (world, mut engine) = world();
    let long = CaptureQuery {
        buffer: 64 << 20,
        ..CaptureQuery::default()
    };
    let first = engine.capture("vm0", &long).unwrap();
    let _second = engine.capture("vm1", &long).unwrap();
    let full = engine.capture("vm1", &CaptureQuery::default()).unwrap_err();
    assert_eq!((full.status, full.field.as_deref()), (503, Some("buffer")));
    assert_eq!(world.orders(), ["capture 1 of 0", "capture 2 of 1"]);
    drop(first);
    engine.capture("vm1", &CaptureQuery::default()).unwrap();
}

#[test]
fn an_invalid_request_names_its_field_and_does_not_reach_the_switch() {
    let (world, mut engine) = world();
    let query = CaptureQuery::default;
    let wishes = [
        (
            "filter",
            CaptureQuery {
                filter: "tcp prt 80".to_owned(),
                ..query()
            },
        ),
        (
            "snaplen",
            CaptureQuery {
                snaplen: 0,
                ..query()
            },
        ),
        (
            "count",
            CaptureQuery {
                count: Some(0),
                ..query()
            },
        ),
        (
            "buffer",
            CaptureQuery {
                buffer: 5000,
                ..query()
            },
        ),
    ];
    for (field, query) in wishes {
        let problem = engine.capture("vm1", &query).unwrap_err();
        assert_eq!(
            (problem.status, problem.field.as_deref()),
            (422, Some(field))
        );
    }
    let query = CaptureQuery {
        direction: CaptureDirection::In,
        ..query()
    };
    assert_eq!(engine.capture("vm2", &query).unwrap_err().status, 404);
    assert!(world.orders().is_empty());
}
