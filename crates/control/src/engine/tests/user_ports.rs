//! User ports: figures of their drivers.

use api::v1::{PortKind, PortSpec};
use channel::user_reports::{UserFigures, UserTotals};

use super::world::{World, port};
use crate::engine::Engine;

/// A world with the user port "out", of which the supervisor has figures.
fn world() -> (World, Engine) {
    let mut world = World::new(vec![port("vm0", "blue")]);
    let mut engine = world.start().unwrap();
    let figures = UserFigures {
        flows: [1, 2, 0, 0, 3],
        totals: UserTotals {
            refused: [4, 0, 0, 0, 0],
            ..UserTotals::default()
        },
        ..UserFigures::default()
    };
    world.supervisor().user_figures = vec![("out".to_owned(), figures)];
    engine
        .add_port(PortSpec {
            segment: Some("blue".to_owned()),
            ..PortSpec::new("out", PortKind::User)
        })
        .unwrap();
    (world, engine)
}

#[test]
fn what_a_driver_refuses_is_dropped_at_its_port() {
    let (_world, mut engine) = world();
    let status = engine.status().unwrap();
    let out = status.ports.iter().find(|port| port.name == "out").unwrap();
    let driver = out.driver_process.as_ref().unwrap();
    assert_eq!(driver.user.as_ref().unwrap().flows, 6);
    let stats = engine.stats().unwrap();
    let out = stats.ports.iter().find(|port| port.name == "out").unwrap();
    assert_eq!(out.drops["user-denied"], 4);
    assert_eq!(stats.drops["user-denied"], 4, "it is in the sum of all");
    let facts = engine.facts().unwrap();
    let at = facts
        .status
        .ports
        .iter()
        .position(|of| of.name == "out")
        .unwrap();
    let dropped = facts.ports[at]
        .counts
        .dropped(::port::DropReason::UserDenied);
    assert_eq!(dropped, 4);
}
