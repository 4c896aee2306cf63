//! User ports: figures of their drivers.

use api::v1::{PortKind, PortSpec, Problem};
use channel::user_reports::{UserFigures, UserFlow, UserLease, UserRows, UserTotals};

use super::world::{World, port};
use crate::engine::Engine;

/// A world with the user port "out", of which the supervisor has figures.
fn world() -> (World, Engine) {
    let mut world = World::new(vec![PortSpec {
        mac: Some("02:00:00:00:00:01".to_owned()),
        ..port("vm0", "blue")
    }]);
    let mut engine = world.start().unwrap();
    let figures = UserFigures {
        flows: [1, 2, 0, 0, 3],
        totals: UserTotals {
            refused: [4, 0, 0, 0, 0, 0],
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

fn flow(n: u8, state: u8) -> UserFlow {
    UserFlow {
        state,
        mac: [2, 0, 0, 0, 0, n],
        guest: format!("10.0.2.15:{}", 1000 + u16::from(n))
            .parse()
            .unwrap(),
        peer: "192.0.2.1:80".parse().unwrap(),
        age_ms: None,
        bytes: Some([3, 4]),
    }
}

#[test]
fn tables_are_asked_for_part_by_part() {
    let (world, mut engine) = world();
    let flows = |from: u8| UserRows::Flows((from..from + 3).map(|n| flow(n, 1)).collect());
    world.supervisor().user_pages = vec![flows(0), UserRows::Flows(Vec::new()), flows(3)];
    let all = engine.user_flows("out", None).unwrap().flows;
    assert_eq!(all.len(), 6);
    let first = &all[0];
    assert_eq!((&*first.protocol, &*first.state), ("tcp", "established"));
    assert_eq!(
        (&*first.guest, &*first.mac),
        ("10.0.2.15:1000", "02:00:00:00:00:00")
    );
    assert_eq!(
        (first.from_guest_bytes, first.to_guest_bytes),
        (Some(3), Some(4))
    );
    assert_eq!(first.port, None);
    assert_eq!(
        all[1].port.as_deref(),
        Some("vm0"),
        "its port has this address"
    );
    assert_eq!(engine.user_flows("out", Some(2)).unwrap().flows.len(), 2);
    let lease = |seconds| UserLease {
        mac: [2, 0, 0, 0, 0, 1],
        address: [10, 0, 2, 15].into(),
        seconds,
    };
    let leases = [3600, 0].map(|seconds| UserRows::Leases(vec![lease(seconds)]));
    world.supervisor().user_pages = leases.into();
    let all = engine.user_leases("out").unwrap().leases;
    assert_eq!(all.len(), 1, "one has ended");
    assert_eq!((&*all[0].address, all[0].seconds), ("10.0.2.15", 3600));
    assert_eq!(all[0].port.as_deref(), Some("vm0"));
}

#[test]
fn a_table_that_there_is_not_is_a_problem() {
    let (world, mut engine) = world();
    let status = |refused: Problem| (refused.status, refused.detail);
    let (code, text) = status(engine.user_flows("vm0", None).unwrap_err());
    assert_eq!((code, &*text), (404, "port `vm0` is not of kind `user`"));
    assert_eq!(status(engine.user_leases("vm9").unwrap_err()).0, 404);
    for limit in [0, 1025] {
        let refused = engine.user_flows("out", Some(limit)).unwrap_err();
        assert_eq!(
            (refused.status, refused.field.as_deref()),
            (422, Some("limit"))
        );
    }
    let (code, text) = status(engine.user_leases("out").unwrap_err());
    assert_eq!((code, &*text), (503, "port out: nothing of out"));
    // A driver's answer of another kind, or without an end, ends the table.
    world.supervisor().user_pages = vec![UserRows::Flows(Vec::new())];
    assert!(engine.user_leases("out").unwrap().leases.is_empty());
    world.supervisor().user_pages = vec![UserRows::Leases(Vec::new()); 5000];
    assert!(engine.user_leases("out").unwrap().leases.is_empty());
}
