//! User ports: figures of their drivers.

use api::v1::{
    ForwardSpec, ForwardState, PortKind, PortSpec, Problem, UserFlowTcp, UserFlowTimer,
    UserFlowWait,
};
use ipc::driving::{ForwardProtocol, Listen};
use ipc::user_reports::{
    UserFigures, UserFlow, UserForwardRow, UserLease, UserRows, UserTcp, UserTimer, UserTotals,
    UserWait,
};

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
    let driver = out.driver_status.as_ref().unwrap();
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
        waits_for: UserWait::HostSocket,
        progress_ms: 7000,
        timer: Some((UserTimer::KeepAlive, 900)),
        tcp: Some(UserTcp {
            unacknowledged: 1,
            window: 2,
            pending: 3,
            queued: 4,
            room: 5,
            retransmissions: 6,
        }),
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
    let waits = (
        first.waits_for,
        first.progress_ms,
        first.timer,
        first.timer_ms,
    );
    let timer = Some(UserFlowTimer::KeepAlive);
    let expected = (UserFlowWait::HostSocket, 7000, timer, Some(900));
    assert_eq!(waits, expected);
    let tcp = UserFlowTcp {
        unacknowledged_bytes: 1,
        window_bytes: 2,
        pending_bytes: 3,
        queued_bytes: 4,
        room_bytes: 5,
        retransmissions: 6,
    };
    assert_eq!(first.tcp, Some(tcp));
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

#[test]
fn a_port_has_the_keys_of_its_kind_alone() {
    let (_world, mut engine) = world();
    engine
        .add_port(PortSpec {
            segment: Some("blue".to_owned()),
            ..PortSpec::new("t0", PortKind::Tap)
        })
        .unwrap();
    let ports = engine.status().unwrap().ports;
    let keys = |name: &str| {
        let port = ports.iter().find(|port| port.name == name).unwrap();
        serde_json::to_value(port).unwrap()
    };
    for name in ["out", "t0"] {
        let port = keys(name);
        for key in [
            "role",
            "socket",
            "user",
            "group",
            "mode",
            "peer_user",
            "slots",
            "id",
        ] {
            assert!(port.get(key).is_none(), "{name}: {key}");
        }
        assert!(port.get("driver_status").is_some());
    }
    assert!(keys("out").get("interface").is_none() && keys("t0").get("interface").is_some());
    let guest = keys("vm0");
    assert_eq!(
        (&guest["role"], &guest["socket"]),
        (&"server".into(), &"vm0.sock".into())
    );
    for key in [
        "driver",
        "interface",
        "address",
        "netns",
        "user_network",
        "driver_status",
    ] {
        assert!(guest.get(key).is_none(), "{key}");
    }
    // The desired state likewise.
    let tap = serde_json::to_value(PortSpec::new("t1", PortKind::Tap)).unwrap();
    assert!(tap.get("role").is_none() && tap.get("socket").is_none());
}

#[test]
fn a_host_that_forbids_pings_is_a_warning() {
    let (world, mut engine) = world();
    let denied = |engine: &mut Engine| {
        let status = engine.status().unwrap();
        let all = status.warnings.into_iter();
        all.filter(|warning| warning.text.contains("net.ipv4.ping_group_range"))
            .flat_map(|warning| warning.ports)
            .collect::<Vec<_>>()
    };
    assert_eq!(denied(&mut engine), [""; 0]);
    world.supervisor().user_figures[0].1.echo_denied = true;
    assert_eq!(denied(&mut engine), ["out"]);
}

#[test]
fn forwards_have_states() {
    let (world, mut engine) = world();
    let forward = |listen: &str, to: &str| ForwardSpec {
        listen: listen.to_owned(),
        to: to.to_owned(),
    };
    let patch = serde_json::json!({"forward": [
        forward("tcp 127.0.0.1:2222", "10.0.2.30:22"),
        forward("tcp 127.0.0.1:2300-2309", "vm0:2300"),
    ]});
    engine.set_port("out", &patch).unwrap();
    world.supervisor().user_pages = Vec::new();
    let states = |engine: &mut Engine| {
        let all = engine.user_forwards("out").unwrap().forwards.into_iter();
        all.map(|of| (of.state, of.reason.unwrap_or_default(), of.ports))
            .collect::<Vec<_>>()
    };
    let silent = "port out: nothing of out".to_owned();
    let waiting = ForwardState::Waiting;
    assert_eq!(
        states(&mut engine),
        [(waiting, silent.clone(), 1), (waiting, silent, 10)]
    );
    let row = |listen: &str, address: [u8; 4]| UserForwardRow {
        listen: Listen {
            protocol: ForwardProtocol::Tcp,
            address: listen.parse().unwrap(),
        },
        address: Some(address.into()),
        has_station: true,
    };
    world.supervisor().user_pages = vec![
        UserRows::Forwards(vec![row("127.0.0.1:2222", [10, 0, 2, 30])]),
        UserRows::Forwards(vec![row("127.0.0.1:2300", [10, 0, 2, 15])]),
    ];
    let found = states(&mut engine);
    assert_eq!(found[0], (ForwardState::Ready, String::new(), 1));
    assert_eq!(found[1], (waiting, "vm0 is not connected".to_owned(), 10));
    let (code, text) = {
        let refused = engine.user_forwards("vm0").unwrap_err();
        (refused.status, refused.detail)
    };
    assert_eq!((code, &*text), (404, "port `vm0` is not of kind `user`"));
}
